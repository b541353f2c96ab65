"""Situations from public reports about Grain, datasets, Ray Data, MosaicML, LitData and WebDataset, each a small input.

A row's name begins with its report: OWNER/REPO#NUMBER. What other libraries did there is in the row's name; beside the
input stands what a plain reading gives, or the error.
"""

import gzip
import io
import json
import struct

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from grain import MapDataset
from PIL import Image, ImageOps

from datarax_ray import DecodeExample, DecodeImage, MixtureSource, Pipeline, RandomAccessSource, load
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.sources import RandomAccessSourceConfig, TextLinesSource, TextLinesSourceConfig, from_hf
from tests.data import in_memory
from tests.data_as_it_is.streams import assert_gives, pipeline, plain, rows
from tests.mds import write_mds
from tests.tars import write_tar
from tests.tfrecords import write_tfrecord

BIG = 9007199254740993  # 2**53 + 1
LONG = "x" * 5_000_000  # more than a block of text
LETTERS = "\u00e9\u4e2d\U0001f600" * 50_000  # of two, three and four bytes


def ids(*numbers):
    return [{"id": number} for number in numbers]


def written(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def json_lines(path, elements):
    text = "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in elements)
    return written(path, gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text)


def tar(folder, *members, of="x.tar"):
    """Members whose data is their number. Returns the folder."""
    write_tar(folder / of, [(name, str(at).encode()) for at, name in enumerate(members)])
    return folder


def mds(folder, num_samples=5, **settings):
    return write_mds(folder / "mds", {"id": "int"}, ids(*range(num_samples)), shard_size=3, **settings)


def cut(path, nbytes):
    path.write_bytes(path.read_bytes()[:nbytes])


def stream(column, **settings):
    return datasets.Dataset.from_dict({"id": column}).to_iterable_dataset(**settings)


def double(element):
    return {"id": 2 * element["id"]}


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def field(number, data):
    """A field of protobuf that holds bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(**floats):
    """A tf.train.Example of float lists."""
    each = [
        field(1, field(1, name.encode()) + field(2, field(2, field(1, struct.pack(f"<{len(values)}f", *values)))))
        for name, values in floats.items()
    ]
    return field(1, b"".join(each))


def jpeg(mode, orientation=1):
    """A picture of 8 by 16 pixels, white at the left."""
    image = Image.fromarray(np.repeat(np.linspace(255, 0, 16), 8).reshape(16, 8).T.astype(np.uint8)).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = io.BytesIO()
    image.save(found, "JPEG", exif=exif, quality=95)
    return found.getvalue()


def turned(folder):
    data = jpeg("RGB", 6)
    write_tar(folder / "x.tar", [(f"{at}.jpg", data) for at in range(3)])
    shape = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))).shape
    assert shape == (16, 8, 3)  # it is 8 by 16 as it is stored

    def make():
        size = lambda element: {"shape": element["jpg"].shape, "top": int(element["jpg"][0, 0, 0]) > 200}  # noqa: E731
        return load(folder, transforms=[DecodeImage(field="jpg"), size])

    return make, [{"shape": shape, "top": True}] * 3


def of_other_channels(folder):
    (folder / "a").mkdir()
    for mode in ("L", "RGB", "CMYK"):
        written(folder / f"a/{mode}.jpg", jpeg(mode))

    def make():
        return load(f"imagefolder:{folder}", transforms=[lambda element: {"shape": element["image"].shape}])

    return make, [{"shape": (8, 16, 3)}] * 3


def interleaved(folder):
    parts = [stream(column) for column in ([0, 1, 2], [10, 11, 12, 13], [20, 21])]
    found = datasets.interleave_datasets(parts, stopping_strategy="all_exhausted_without_replacement")
    return lambda: from_hf(found), ids(0, 10, 20, 1, 11, 21, 2, 12, 13)


def in_json(name, elements):
    return lambda folder: (lambda: load(json_lines(folder / name, elements)), elements)


def in_text(text, *lines):
    config = TextLinesSourceConfig(num_epochs=1)
    return lambda folder: (
        lambda: TextLinesSource(config, written(folder / "x.txt", text)),
        [{"text": line} for line in lines],
    )


def in_tar(*want, members):
    return lambda folder: (lambda: load(tar(folder, *members)), list(want))


READ = {
    "huggingface/datasets#8145: a map over a stream lost rows up to the next read chunk on resume": lambda folder: (
        lambda: from_hf(stream(list(range(30)), num_shards=1).map(double)),
        ids(*range(0, 60, 2)),
    ),
    "huggingface/datasets#7955: interleaving without replacement ended with the shortest": interleaved,
    "huggingface/datasets#7059: a null that comes first in a list of lists was left out": in_json(
        "x.jsonl", [{"b": [None, [1], [2]]}, {"b": [[1], None, [3]]}, {"b": [[], [2], None]}]
    ),
    "huggingface/datasets#8365: integers beside a null became floats": in_json(
        "x.jsonl", [{"a": BIG}, {"a": None}, {"a": 5}]
    ),
    "huggingface/datasets#3729: lines were cut at U+2029 and other marks of Unicode": in_text(
        "a\u2029b\x85c\nd\x0c\x1ce\n\u2028\n", "a\u2029b\x85c", "d\x0c\x1ce", "\u2028"
    ),
    "huggingface/datasets#622: a carriage return inside a line cut it": in_text("a\rb\nc\r\nd\n", "a\rb", "c", "d"),
    "huggingface/datasets#870: empty lines between verses were lost": in_text("a\n\nb\n\n", "a", "", "b", ""),
    "huggingface/datasets#7150: folders and extensions with dots": in_tar(
        {"__key__": "p/22.0/1", "1.txt": "0", "txt": "1"},
        {"__key__": "p/22.0/2", "1.txt": "2", "txt": "3"},
        {"__key__": "p/22.0/3", "1.txt": "4", "txt": "5"},
        members=[f"p/22.0/{key}{end}" for key in (1, 2, 3) for end in (".1.txt", ".txt")],
    ),
    "huggingface/datasets#7549: a key of JSON that is null in the first shard, and text in the next": lambda folder: (
        lambda: (
            write_tar(folder / "0.tar", [("a.json", b'{"r": null}'), ("b.json", b'{"r": null}')]),
            write_tar(folder / "1.tar", [("c.json", b'{"r": "g"}')]),
            load(folder),
        )[-1],
        [{"__key__": key, "json": {"r": rating}} for key, rating in (("a", None), ("b", None), ("c", "g"))],
    ),
    "huggingface/dataset-viewer#2605: the orientation of EXIF was left aside": turned,
    "webdataset/webdataset#327: the same key in two shards": lambda folder: (
        lambda: load([tar(folder, "a.txt", of="0.tar") / "0.tar", tar(folder, "x.txt", "a.txt", of="1.tar") / "1.tar"]),
        [{"__key__": key, "txt": text} for key, text in (("a", "0"), ("x", "0"), ("a", "1"))],
    ),
    "webdataset/webdataset#221: a name that begins with an underscore": in_tar(
        *({"__key__": key, "_stuff.txt": text} for key, text in (("a", "0"), ("b", "1"), ("c", "2"))),
        members=["a._stuff.txt", "b._stuff.txt", "c._stuff.txt"],
    ),
    "mosaicml/streaming#138: shards that are there compressed alone": lambda folder: (
        lambda: load(mds(folder, compression="zstd")),
        ids(*range(5)),
    ),
    "Lightning-AI/litData#595: a download that is not done lies beside its file": lambda folder: (
        lambda: (
            pq.write_table(pa.table({"id": [0, 1, 2]}), folder / "x.parquet"),
            written(folder / "x.parquet.40e6Ca4A", b"PAR1"),
            load(folder),
        )[-1],
        ids(0, 1, 2),
    ),
    "ray-project/ray#41196: a row of JSON that is longer than a block": in_json(
        "x.jsonl", [{"id": 0, "t": "a"}, {"id": 1, "t": LONG}, {"id": 2, "t": "b"}]
    ),
    "ray-project/ray#55356: a letter of several bytes where a portion of compressed text ends": in_json(
        "x.jsonl.gz", [{"t": LETTERS}, {"t": "b"}, {"t": f"a{LETTERS}"}]
    ),
    "ray-project/ray#31831: a feature without values in some Examples": lambda folder: (
        lambda: (
            write_tfrecord(
                folder / "x.tfrecord", [example(a=[], b=[3.5]), example(a=[1.0], b=[2.5]), example(a=[], b=[0])]
            ),
            load(folder, transforms=[DecodeExample(), lambda each: {name: each[name].tolist() for name in each}]),
        )[-1],
        [{"a": [], "b": [3.5]}, {"a": [1.0], "b": [2.5]}, {"a": [], "b": [0.0]}],
    ),
    "ray-project/ray#38050: pictures that are grey, in colour and CMYK": of_other_channels,
    "google/grain#1200: what a slice left out came back in later epochs": lambda folder: (
        lambda: in_memory(MapDataset.range(10).seed(42).shuffle()[:4].map(lambda x: {"id": x}), num_epochs=3),
        ids(*list(MapDataset.range(10).seed(42).shuffle())[:4]) * 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("report", READ)
def test_it_is_read_as_it_is(report, tmp_path):
    make, want = READ[report](tmp_path)
    assert_gives(make, plain(want))


def broken_mds(change):
    def made(folder):
        change(mds(folder))
        return load(folder / "mds")

    return made


def halved(name):
    return lambda folder: cut(folder / name, (folder / name).stat().st_size // 2)


def cut_tar(folder):
    write_tar(folder / "x.tar", [(f"{at}.txt", bytes(2000)) for at in range(3)])
    cut(folder / "x.tar", 5000)
    return load(folder)


def other_data(folder):
    one, other = (json_lines(folder / name, ids(*range(9))) for name in ("one.jsonl", "other.jsonl"))
    json_lines(other, ids(*range(20, 26)))
    source = load(one)
    source.get_batch(2)
    load(other).set_state(source.get_state())


REFUSED = {
    "webdataset/webdataset#142: a tar file that was cut": (cut_tar, r"x\.tar"),
    "webdataset/webdataset#237: a dot in a key makes another field of each sample": (
        lambda folder: load(tar(folder, "1 Track 2.0 (a).mp3", "2 Track.mp3")).get_batch(2),
        r"mp3",
    ),
    "ray-project/ray#48643: a name that comes twice in a tar file": (
        lambda folder: load(tar(folder, "a.txt", "a.txt", "b.txt")).get_batch(2),
        r"x\.tar",
    ),
    "ray-project/ray#48235: lines of JSON that are lists": (
        lambda folder: load(json_lines(folder / "x.jsonl", [["hello", "world"], ["ray", "rocks"]])),
        r"x\.jsonl",
    ),
    "ray-project/ray#31142: another file among TFRecord files": (
        lambda folder: (
            write_tfrecord(folder / "a.tfrecord", [b"1"]),
            written(folder / "b.tfrecord", '{"a": 1, "b": [1, 2, 3]}'),
            load(f"{folder}/*.tfrecord").get_batch(2),
        ),
        r"b\.tfrecord",
    ),
    "mosaicml/streaming#677: a shard that ends before its last sample": (
        broken_mds(halved("shard.00000.mds")),
        r"shard\.00000\.mds",
    ),
    "mosaicml/streaming#242: an index that is empty": (
        broken_mds(lambda folder: cut(folder / "index.json", 0)),
        r"index\.json",
    ),
    "Lightning-AI/litData#720: an index without its last bracket": (
        broken_mds(lambda folder: cut(folder / "index.json", (folder / "index.json").stat().st_size - 1)),
        r"index\.json",
    ),
    "mosaicml/streaming#335: shards whose index is gone": (
        broken_mds(lambda folder: (folder / "index.json").unlink()),
        r"index\.json",
    ),
    "Lightning-AI/litData#263: a state of other data": (other_data, r"files"),
    "huggingface/datasets#6007: an integer that is too large for 64 bits": (
        lambda folder: load(json_lines(folder / "x.jsonl", [{"a": 1}, {"a": 2**64 - 1}])).get_batch(2),
        r"'a' has the integer 18,446,744,073,709,551,615, and as float64 it would be 18,446,744,073,709,551,616",
    ),
}  # fmt: skip


@pytest.mark.parametrize("report", REFUSED)
def test_it_is_refused_by_name(report, tmp_path):
    make, message = REFUSED[report]
    with pytest.raises((ValueError, OSError, DriftError), match=message):
        make(tmp_path)


def numbers(count, num_epochs, first=0):
    config = RandomAccessSourceConfig(shuffle=True, num_epochs=num_epochs)
    return RandomAccessSource(config, {"id": np.arange(first, first + count)})


# Streams, and the ids that they give in all.
RESUMED = {
    "huggingface/datasets#8308: the state stood still behind the first resume": (
        lambda _: from_hf(stream(list(range(9)), num_shards=2).map(double), shuffle=True, num_epochs=2),
        [*range(0, 18, 2)] * 2,
    ),
    "Lightning-AI/litData#694: a mixture that was resumed behind its first epoch": (
        lambda _: MixtureSource([numbers(3, 4), numbers(6, 2, first=10)]),
        [*range(3)] * 4 + [*range(10, 16)] * 2,
    ),
    "Lightning-AI/litData#316: a state from the end of an epoch": (lambda _: numbers(4, 3), [*range(4)] * 3),
    "webdataset/webdataset#419: an epoch that is shuffled has each sample once": (
        lambda folder: load(
            tar(folder, *(f"{at}.txt" for at in range(7))),
            shuffle=True,
            num_epochs=2,
            transforms=[lambda sample: {"id": int(sample["txt"])}],
        ),
        [*range(7)] * 2,
    ),
}


@pytest.mark.parametrize("report", RESUMED)
def test_it_is_the_same_stream_where_each_batch_is_of_another_resume(report, tmp_path):
    make, want = RESUMED[report]
    whole = rows(pipeline(make(tmp_path)))
    assert sorted(row["id"] for row in whole) == sorted(want)
    found = []
    state = pipeline(make(tmp_path)).get_state()
    while True:
        resumed = pipeline(make(tmp_path))
        resumed.set_state(json.loads(json.dumps(state)))
        if (batch := next(iter(resumed), None)) is None:
            break
        found += rows([batch])
        state = resumed.get_state()
    assert found == whole


def test_an_epoch_has_another_order_and_a_run_has_the_same(tmp_path):
    """webdataset/webdataset#502: shards were shuffled to one order in every epoch."""
    for at in range(12):
        tar(tmp_path, f"{at:02d}.txt", of=f"{at:02d}.tar")
    first, again = (
        [row["__key__"] for row in rows(pipeline(load(tmp_path, shuffle=True, num_epochs=2)))] for _ in range(2)
    )
    assert first == again
    assert sorted(first[:12]) == sorted(first[12:])
    assert first[:12] != first[12:]


def test_trainers_that_are_more_than_the_samples_get_none_twice():
    """mosaicml/streaming#460: samples were repeated where there were fewer than nodes."""
    source = in_memory({"id": np.arange(2)})
    parts = [
        rows(Pipeline(source=source, batch_size=4, on_host=True, process_index=index, process_count=4))
        for index in range(4)
    ]
    assert sorted(row["id"] for part in parts for row in part) == [0, 1]


def test_one_shard_feeds_several_actors(tmp_path, ray_local):
    """webdataset/webdataset#65: workers beyond the number of shards gave nothing, or the samples again."""
    tar(tmp_path, *(f"{at}.txt" for at in range(5)))
    want = [{"__key__": str(at), "txt": str(at)} for at in range(5)]
    assert_gives(lambda: load(tmp_path), want, num_actors=2)
