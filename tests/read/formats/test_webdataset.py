"""Tar files against the webdataset package, and everything that is wrong with one against an error that says so."""

import contextlib
import gzip
import io
import json
import os
import pickle
import tarfile
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset import autodecode
from webdataset.tariterators import group_by_keys, tar_file_expander

from datarax_ray.read.formats.file_spans import BrokenRecordError
from datarax_ray.read.formats.webdataset.reader import DecodeExtensions, WebDatasetReader
from tests.tars import joined_by_key, write_tar, write_tars


def everything(paths, **options):
    reader = WebDatasetReader.of(paths, **options)
    return reader.read(np.arange(reader.num_records))


def by_webdataset(paths, *, decode=False):
    """What WebDataset(paths) does, with files that are closed."""
    with contextlib.ExitStack() as stack:
        streams = [{"url": str(path), "stream": stack.enter_context(path.open("rb"))} for path in paths]
        found = list(group_by_keys(tar_file_expander(streams)))
    for sample in found:
        del sample["__url__"]
    return list(map(autodecode.default_decoder, found)) if decode else found


PARTS = ["a", "b", "dir", "D.d", "__meta__", "__", "..", "jpg", "JPG", "seg.png", "", "é", "x" * 120, "\udcff"]
NAMES = st.lists(st.sampled_from([*PARTS, "/", "/", ".", "."]), min_size=1, max_size=6).map("".join)
KINDS = [tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]
MEMBERS = st.lists(st.tuples(NAMES, st.binary(max_size=20), st.sampled_from([*KINDS[:1] * 8, *KINDS])), max_size=12)


@given(shards=st.lists(MEMBERS, min_size=1, max_size=3), format=st.sampled_from([0, 1, 2]))
def test_any_members_are_the_samples_that_webdataset_makes_of_them_or_an_error_for_both(
    tmp_path_factory, shards, format
):
    directory, paths = tmp_path_factory.mktemp("tars"), []
    for number, members in enumerate(shards):
        paths.append(directory / f"{number}.tar")
        with tarfile.open(paths[-1], "w", format=format, errors="surrogateescape") as tar:
            for name, data, kind in members:
                info = tarfile.TarInfo(name)
                info.type, info.linkname = kind, "elsewhere"
                has_data = info.isreg() and not name.endswith("/")  # old tars tell a directory by that
                info.size = len(data) if has_data else 0
                try:
                    tar.addfile(info, io.BytesIO(data) if has_data else None)
                except (ValueError, UnicodeError):  # a name that the format cannot hold
                    continue
    try:
        want = [sample for path in paths for sample in joined_by_key(by_webdataset([path]))]
    except ValueError as error:
        want = error
    if isinstance(want, ValueError):
        with pytest.raises(ValueError, match="is the second"):
            everything(paths)
    elif not want:
        with pytest.raises(ValueError, match="there are 0 samples"):
            everything(paths)
    else:
        found = everything(paths, missing="none")
        assert [{name: part for name, part in sample.items() if part is not None} for sample in found] == want


def test_samples_are_read_in_any_order_each_its_own_and_after_a_pickle(tmp_path):
    paths = write_tars(tmp_path, (7, 1, 30))
    want = by_webdataset(paths)
    reader = pickle.loads(pickle.dumps(WebDatasetReader.of(tmp_path)))
    order = [37, 0, 1, 2, 9, 9, 7, 36]
    found = reader.read(np.array(order))
    assert found == [want[index] for index in order]
    assert found[4] is not found[5]
    assert reader.locate(9) == f"{paths[2]}[1]"
    reader.close()
    assert reader.read(np.array([5])) == [want[5]]


def test_braces_in_a_list_of_paths_keep_its_order(tmp_path):
    paths = write_tars(tmp_path, (1, 1, 1))
    found = WebDatasetReader.of([tmp_path / "shard-{002..001}.tar", str(paths[0])]).files
    assert [file.path for file in found] == [str(paths[2]), str(paths[1]), str(paths[0])]
    with pytest.raises(FileNotFoundError, match=r"shard-003\.tar: no such file"):
        WebDatasetReader.of(f"{tmp_path}/shard-{{002..004}}.tar")


def npy(value):
    file = io.BytesIO()
    np.save(file, value, allow_pickle=value.dtype == object)
    return file.getvalue()


def npz(**values):
    file = io.BytesIO()
    np.savez(file, **values)
    return file.getvalue()


DECODED = {
    "txt": b"caf\xc3\xa9",
    "text": b"",
    "transcript": b"a\n",
    "cls": b"12\n",
    "cls2": b"-3",
    "index": b"0",
    "inx": b"1_0",
    "id": b"9",
    "json": b'{"a": [1, 2.5, null], "b": {"c": "d"}}',
    "jsn": b"[NaN]",
    "npy": npy(np.arange(6, dtype=">i2").reshape(2, 3)),
    "npz": npz(a=np.arange(3), b=np.float32(2)),
    "jpg": b"\xff\xd8\xff",
    "count": b"12",
    "seg.cls": b"4",
    "json.gz": gzip.compress(b'{"a": 1}'),
    "bin.gz": gzip.compress(b"abc"),
    "": b"",
}


@pytest.mark.parametrize("extension", DECODED)
def test_a_member_is_decoded_as_webdataset_decodes_it(tmp_path, extension):
    path = write_tar(tmp_path / "a.tar", [(f"k.{extension}", DECODED[extension])])
    (want,) = by_webdataset([path], decode=True)
    (got,) = map(DecodeExtensions().map, everything(path))
    assert repr(got) == repr(want)  # NaN, and arrays, with their dtypes


def test_pickles_and_what_else_would_run_code_stay_bytes(tmp_path):
    data = pickle.dumps(print)
    names = ["pkl", "pickle", "pyd", "pth", "ten"]
    path = write_tar(tmp_path / "a.tar", [(f"k.{name}", data) for name in names])
    (got,) = map(DecodeExtensions().map, everything(path))
    assert got == {"__key__": "k"} | dict.fromkeys(names, data)


@pytest.mark.parametrize(
    ("extension", "data", "message"),
    [
        ("cls", b"twelve", "'k.cls', 6 bytes that begin b'twelve', is no cls: ValueError: invalid literal"),
        ("txt", b"\xff", "is no txt: UnicodeDecodeError"),
        ("json", b"{", "is no json: JSONDecodeError"),
        ("json", b"[" * 70 + b"]" * 70, "is no json: ValueError: a JSON value nests .* more than 64 deep"),
        ("json", b"[" * 10**5, "is no json: RecursionError"),
        ("npy", npy(np.array([print], object)), "is no npy: ValueError: Object arrays cannot be loaded"),
        ("npy", b"\x93NUMPY", "is no npy"),
        ("npz", b"PK", "is no npz"),
        ("json.gz", b"{}", "is no gz: BadGzipFile"),
    ],
)
def test_a_member_that_is_not_what_its_extension_says_is_named(extension, data, message):
    with pytest.raises(ValueError, match=message):
        DecodeExtensions().map({"__key__": "k", extension: data})


def damaged(edit):
    """A tar of three samples with its bytes edited: 512 of header and 512 of data for each of its members."""

    def make(directory):
        path = write_tar(directory / "a.tar", [(f"{key}.txt", key.encode()) for key in "abc"])
        data = bytearray(path.read_bytes())
        edit(data)
        path.write_bytes(data)
        return path

    return make


def cut(size):
    return lambda data: data.__delitem__(slice(size, None))


def put(offset, new):
    return lambda data: data.__setitem__(slice(offset, offset + len(new)), new)


def of(*members):
    return lambda directory: write_tar(directory / "a.tar", members)


def zipped(directory):
    path = directory / "a.tar"
    path.write_bytes(gzip.compress(write_tar(path, [("a.txt", b"a")]).read_bytes()))
    return path


def joined(directory):
    path = write_tar(directory / "a.tar", [("a.txt", b"a")])
    path.write_bytes(path.read_bytes() * 2)
    return path


def sparse(directory):
    path = write_tar(directory / "a.tar", [("a.txt", b"a" * 512)])
    data = bytearray(path.read_bytes())
    data[156:157] = tarfile.GNUTYPE_SPARSE
    data[483:495] = b"00000001000\0"
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + sum(data[156:512]) + 256)
    path.write_bytes(data)
    return path


def with_global_path(directory):
    path = directory / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"path": "x.txt"}) as tar:
        tar.addfile(tarfile.TarInfo("a.txt"))
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (damaged(cut(0)), "behind the beginning there is no header of a member (empty file)"),
        (damaged(cut(300)), "behind the beginning there is no header of a member (truncated header)"),
        (damaged(cut(1024 + 512)), "'b.txt' goes on to byte 2,048 and the file to 1,536: it was cut"),
        (damaged(cut(2048)), "it ends behind 'b.txt' without the zeros that end a tar: it was cut"),
        (damaged(cut(2048 + 100)), "behind 'b.txt' there is no header of a member (truncated header)"),
        (damaged(put(1024, b"B")), "behind 'a.txt' there is no header of a member (bad checksum)"),
        (damaged(put(0, b"A")), "behind the beginning there is no header of a member (bad checksum)"),
        (joined, "behind the zeros that end it there is more; join tars by `tar --concatenate`"),
        (zipped, "It looks like a gzip file: unpack it first."),
        (sparse, "'a.txt' is stored as a sparse file"),
        (with_global_path, "a global header gives every member that follows the same path"),
        (of(("a.txt", b"1"), ("a.TXT", b"2")), "'a.TXT' is the second 'txt' of the sample 'a'"),
        (of(("a.__key__", b"1")), "'a.__key__' is the second '__key__' of the sample 'a'"),
        (of(), "there are 0 samples in"),
        (of(("noextension", b""), ("__m__/a.txt", b"")), "there are 0 samples in"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_is_no_whole_tar_of_samples_is_refused_with_file_and_member(tmp_path, make, message):
    path = make(tmp_path)
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        WebDatasetReader.of(path)
    assert str(path) in str(raised.value)
    assert message in str(raised.value)


def test_links_are_skipped_as_by_webdataset_and_that_is_said_once_for_each_file(tmp_path, caplog):
    """GNU tar stores the second name of a file as one."""
    (tmp_path / "a.txt").write_bytes(b"a")
    os.link(tmp_path / "a.txt", tmp_path / "b.txt")
    (tmp_path / "a.cls").symlink_to("a.txt")
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name in ("a.txt", "a.cls", "b.txt"):
            tar.add(tmp_path / name, name)
    assert everything(path) == by_webdataset([path]) == [{"__key__": "a", "txt": b"a"}]
    (said,) = caplog.messages
    assert f"{path}: skipped 2 links to files, 'a.cls' the first" in said


def test_headers_on_headers_without_end_are_refused(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.txt")
        info.pax_headers = {"comment": "x"}
        tar.addfile(info)
    stored = path.read_bytes()
    path.write_bytes(stored[:1024] * 2000 + stored)
    said = "behind the beginning there is no header of a member .maximum recursion depth"
    with pytest.raises(ValueError, match=said):
        WebDatasetReader.of(path)


def test_every_broken_file_is_listed(tmp_path):
    paths = write_tars(tmp_path, (2, 2, 2))
    for path in paths[1:]:
        path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(ValueError, match=r"(?s)2 of 3 files cannot be read:.*shard-001.*shard-002"):
        WebDatasetReader.of(tmp_path)


def replaced(path, data):
    (path.parent / "new").write_bytes(data)
    os.replace(path.parent / "new", path)


def rewritten(path, data):
    path.write_bytes(data)


@pytest.mark.parametrize("change", [replaced, rewritten])
@pytest.mark.parametrize(
    "new",
    [
        lambda data: data[:3000],
        lambda data: data[:-1024] + data,
        lambda data: data.replace(b"7", b"8"),
        lambda data: b"",
    ],
    ids=["cut", "appended", "of one size", "emptied"],
)
@pytest.mark.parametrize("is_open", [True, False])
def test_a_file_that_changes_is_an_error_and_never_other_data(tmp_path, change, new, is_open):
    (path,) = write_tars(tmp_path, (9,))
    reader = WebDatasetReader.of(path)
    want = reader.read(np.arange(9)) if is_open else None
    stored = path.read_bytes()
    os.utime(path, ns=(time.time_ns() - 10**9,) * 2)
    if is_open:
        reader.close()
        assert reader.read(np.arange(9)) == want
    change(path, new(stored))
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"{path} (changed while it was read|had [\d,]+ bytes when)"):
            reader.read(np.arange(9))
    change(path, stored)
    reader.close()
    assert len(reader.read(np.arange(9))) == 9


def test_bytes_that_rot_unseen_by_the_filesystem_break_their_sample_alone(tmp_path):
    """A header has a checksum; of data tar keeps none."""
    (path,) = write_tars(tmp_path, (9,))
    reader = WebDatasetReader.of(path)
    reader.read(np.arange(1))
    seen = path.stat()
    with path.open("r+b") as file:
        file.seek(4 * 2048)
        file.write(b"t")
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert len(reader.read(np.array([0, 3, 5]))) == 3
    with pytest.raises(BrokenRecordError, match=rf"{path}\[4\], at byte 8192: .* \(bad checksum\)"):
        reader.read(np.array([4]))


def test_threads_read_files_at_the_same_time_and_one_that_closes_waits_for_none(tmp_path):
    from fsspec.implementations.local import LocalFileSystem

    class Meeting(LocalFileSystem):
        """Whose reads wait for one another, once there is a place to meet."""

        protocol = "meeting"
        place: threading.Barrier | None = None

        def _open(self, path, *args, **options):
            file = super()._open(path, *args, **options)
            read = file.f.read

            def meet(*size):
                if type(self).place is not None:
                    type(self).place.wait(30)
                return read(*size)

            file.read = meet
            return file

    paths = write_tars(tmp_path, (5, 5))
    reader = WebDatasetReader.of(list(map(str, paths)), filesystem=Meeting(skip_instance_cache=True))
    want = reader.read(np.arange(10))
    Meeting.place, found = threading.Barrier(3), {}
    threads = [
        threading.Thread(target=lambda part=part: found.update({part: reader.read(np.arange(5) + 5 * part)}))
        for part in range(2)
    ]
    for thread in threads:
        thread.start()
    while Meeting.place.n_waiting < 2:
        time.sleep(0.001)
    reader.close()  # both wait in the middle of a read
    Meeting.place.wait(30)
    for thread in threads:
        thread.join()
    assert found[0] + found[1] == want


def test_members_names_and_data_are_in_the_fingerprint(tmp_path):
    def fingerprint(*members):
        return json.dumps(WebDatasetReader.of(write_tar(tmp_path / "a.tar", members)).fingerprint())

    base = [("a.txt", b"1"), ("b.txt", b"2")]
    assert fingerprint(*base) == fingerprint(*base)
    others = [
        [("a.txt", b"1"), ("c.txt", b"2")],
        [("a.txt", b"1"), ("b.txt", b"3")],
        [("b.txt", b"2"), ("a.txt", b"1")],
        [("a.txt", b"1"), ("a.cls", b"2")],
    ]
    assert len({fingerprint(*base), *(fingerprint(*other) for other in others)}) == 5
    assert len(fingerprint(*base)) < 300


def test_a_pipe_is_refused_with_what_to_give_instead():
    for paths in ("pipe:curl -s x/{1..2}.tar", ["a.tar", "pipe:cat b.tar"]):
        with pytest.raises(ValueError, match="is a command, and nothing here runs one.*Give the URL"):
            WebDatasetReader.of(paths)


@pytest.mark.parametrize(
    ("extension", "data"),
    [
        ("txt.gz", gzip.compress(bytes(10**6))),
        ("npz", npz(a=np.zeros(10**6, np.uint8))),
        ("bin.gz", gzip.compress(bytes(10**6)) * 3),
    ],
)
def test_what_unpacks_to_more_than_it_may_is_refused_by_name(extension, data, monkeypatch):
    sample = {"__key__": "k", extension: data}
    assert len(DecodeExtensions().map(sample)) == 2
    monkeypatch.setattr("datarax_ray.read.formats.webdataset.reader._MAX_UNPACKED_NBYTES", 10**5)
    with pytest.raises(ValueError, match=rf"'k\.{extension}', .* it unpacks to .* or more, and 100,000 are the most"):
        DecodeExtensions().map(sample)
