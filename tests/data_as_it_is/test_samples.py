"""Tar files as people have them: members apart, members missing, and JSON whose keys differ from sample to sample.

Reported of webdataset (`tar` without --sort=name parts the members of a sample, which come as two samples), of
img2dataset (a .json of one sample has keys that another has not, failed downloads leave a .json without a .jpg) and of
LAION (captions that are missing).
"""

import json

import numpy as np
import pytest

from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.read.errors import RecordError
from datarax_ray.read.formats.webdataset.reader import WebDatasetReader
from datarax_ray.sources import WebDatasetSource, WebDatasetSourceConfig
from tests.data_as_it_is.streams import assert_gives, pipeline, rows
from tests.tars import write_tar


def members(*samples):
    """Members in this order, of values by extension; a value of JSON is written as such."""
    return [
        (f"{key}.{extension}", json.dumps(value).encode() if extension == "json" else str(value).encode())
        for key, its in samples
        for extension, value in its.items()
    ]


def make(path, **config):
    return WebDatasetSource(WebDatasetSourceConfig(**{"num_epochs": 1} | config), path)


WHOLE = members(*((f"k{i}", {"cls": i, "json": {"w": i}, "txt": f"t{i}"}) for i in range(5)))
WHOLE_ROWS = [{"__key__": f"k{i}", "cls": i, "json": {"w": i}, "txt": f"t{i}"} for i in range(5)]
LACKING = members(("a", {"cls": 0, "txt": "x"}), ("b", {"cls": 1}), ("c", {"txt": "z"}), ("d", {"cls": 3, "txt": "w"}))
KEYS = members(("a", {"json": {"w": 1, "c": "x"}}), ("b", {"json": {"c": "y", "exif": [1]}}), ("c", {"json": {"w": 3}}))
A, D = {"__key__": "a", "cls": 0, "txt": "x"}, {"__key__": "d", "cls": 3, "txt": "w"}

# What is stored, what is set, and the elements.
SAMPLES = {
    "by extension": (sorted(WHOLE, key=lambda member: member[0].rpartition(".")[2]), {}, WHOLE_ROWS),
    "in any order": ([WHOLE[at] for at in (4, 0, 14, 9, 2, 11, 6, 1, 13, 3, 8, 10, 5, 12, 7)], {}, []),
    "one member apart": ([*WHOLE[1:], WHOLE[0]], {}, WHOLE_ROWS),
    "fields": (WHOLE, {"fields": ("txt",)}, [{"__key__": f"k{i}", "txt": f"t{i}"} for i in range(5)]),
    "fields with a gap": (
        [*WHOLE[2:], *WHOLE[:2]],
        {"fields": ["cls", "txt", "__key__"]},
        [{"__key__": f"k{i}", "cls": i, "txt": f"t{i}"} for i in range(5)],
    ),
    "fields of JSON": (
        WHOLE,
        {"fields": ("cls", "json.w")},
        [{"__key__": f"k{i}", "cls": i, "json": {"w": i}} for i in range(5)],
    ),
    "skip": (LACKING, {"missing": "skip"}, [A, D]),
    "skip of fields": (
        LACKING,
        {"missing": "skip", "fields": ("txt",)},
        [{"__key__": key, "txt": txt} for key, txt in (("a", "x"), ("c", "z"), ("d", "w"))],
    ),
    "skip of members apart": ([*LACKING[3:], *LACKING[:3]], {"missing": "skip"}, [D, A]),
    "none": (
        LACKING,
        {"missing": "none", "decode": False, "fields": ("txt", "cls")},
        [
            {"__key__": "a", "cls": b"0", "txt": b"x"},
            {"__key__": "b", "cls": b"1", "txt": None},
            {"__key__": "c", "cls": None, "txt": b"z"},
            {"__key__": "d", "cls": b"3", "txt": b"w"},
        ],
    ),
    "none of a field": (
        LACKING,
        {"missing": "none", "fields": ("txt",)},
        [{"__key__": key, "txt": txt} for key, txt in (("a", "x"), ("b", None), ("c", "z"), ("d", "w"))],
    ),
    "JSON keys that differ": (
        KEYS,
        {},
        [
            {"__key__": "a", "json": {"c": "x", "w": 1}},
            {"__key__": "b", "json": {"c": "y", "exif": [1]}},
            {"__key__": "c", "json": {"w": 3}},
        ],
    ),
    "a key of JSON that some lack": (
        KEYS,
        {"fields": ("json.c",), "missing": "none"},
        [{"__key__": key, "json": {"c": value}} for key, value in (("a", "x"), ("b", "y"), ("c", None))],
    ),
    "a key of JSON that some lack, skipped": (
        KEYS,
        {"fields": ("json.c",), "on_error": "skip", "max_skipped": 2},
        [{"__key__": key, "json": {"c": value}} for key, value in (("a", "x"), ("b", "y"))],
    ),
    "keys that come again": (
        members(("a", {"txt": 1}), ("b", {"txt": 2}), ("a", {"txt": 3})),
        {},
        [{"__key__": key, "txt": txt} for key, txt in (("a", "1"), ("b", "2"), ("a", "3"))],
    ),
}
SAMPLES["in any order"][2].extend(WHOLE_ROWS[i] for i in (1, 0, 4, 3, 2))
OVER_ACTORS = ("skip of members apart", "a key of JSON that some lack")


@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in OVER_ACTORS])
def test_samples_are_whole_however_their_members_lie(tmp_path, name):
    stored, config, want = SAMPLES[name]
    write_tar(tmp_path / "x.tar", stored)
    assert_gives(lambda: make(tmp_path, **config), want)


def test_fields_are_read_without_what_lies_beside(tmp_path):
    """Captions of large pictures: some bytes of each sample, and not megabytes."""
    write_tar(
        tmp_path / "x.tar",
        [(f"{i}.{e}", bytes(2**20) if e == "jpg" else b"x") for i in range(3) for e in ("jpg", "txt")],
    )
    reader = WebDatasetReader.of(tmp_path, fields=("txt",))
    assert [int(np.diff(span)[0]) for span in reader.files[0].bounds] == [1024] * 3
    assert reader.read(np.array([2, 0])) == [{"__key__": "2", "txt": b"x"}, {"__key__": "0", "txt": b"x"}]


REFUSED = [
    (
        LACKING,
        {},
        r"2 of 4 samples lack a member that other samples have.*:\n  cls in .*x\.tar \(1 of 4, \[2\] the first\)\n"
        r"  txt in .*x\.tar \(1 of 4, \[1\] the first\)\nIn WebDatasetSourceConfig missing='skip' leaves them out, "
        r"missing='none' gives None for the member$",
    ),
    (WHOLE[:-1], {}, r"fields=\('cls', 'json'\) reads the members that all samples have"),
    (LACKING, {"fields": ("txt",)}, r"1 of 4 samples lack a member that fields names"),
    (LACKING, {"fields": ("text",)}, r"names 'text', and no .* members are cls, txt\. Did you mean 'txt'\?"),
    (WHOLE, {"fields": ("cls.w",)}, "names 'cls.w', and no sample has such a member"),
    (WHOLE, {"fields": ("json", "json.w")}, "fields names 'json' and fields of it"),
    (WHOLE, {"fields": ("json.w",), "decode": False}, "decode=False reads no JSON"),
    (LACKING[2:4], {"missing": "skip"}, "2 of 2 samples lack"),
    (WHOLE, {"missing": "drop"}, "missing is one of 'error', 'skip', 'none', got 'drop'"),
]


@pytest.mark.parametrize(("stored", "config", "message"), REFUSED)
def test_what_samples_lack_is_said_before_the_first_batch(tmp_path, stored, config, message):
    write_tar(tmp_path / "x.tar", stored)
    with pytest.raises(ValueError, match=message):
        make(tmp_path, **config)


def test_skipped_samples_are_counted_by_file_and_a_state_knows_of_them(tmp_path, caplog):
    write_tar(tmp_path / "x.tar", LACKING)
    write_tar(tmp_path / "y.tar", WHOLE[:1] + WHOLE[2:3])
    source = make(tmp_path, missing="skip")
    assert len(source) == 3
    said = [line for line in caplog.messages if "skipped" in line]
    assert said == [f"{tmp_path}/x.tar: skipped 2 of 4 samples, [1] the first: they lack cls, txt"]
    with pytest.raises(DriftError, match="files.num_records"):
        make(tmp_path, missing="none", decode=False).set_state(source.get_state())
    with pytest.raises(DriftError, match="files.columns"):
        make(tmp_path, missing="skip", fields=("cls", "txt")).set_state(source.get_state())


def test_a_key_that_a_json_object_lacks_and_fields_that_differ_name_the_settings(tmp_path):
    write_tar(tmp_path / "x.tar", KEYS)
    said = r"x\.tar\[2\] .*'c\.json' lacks \['c'\], and has \['w'\].*missing='none'.*on_error"
    with pytest.raises(RecordError, match=said):
        rows(pipeline(make(tmp_path, fields=("json.c",))))
    config = WebDatasetSourceConfig(num_epochs=1)
    opened = WebDatasetSource(config, tmp_path, transforms=[lambda sample: dict(sample["json"])])
    with pytest.raises(RecordError, match=r"fields \['c', 'w'\] in one element.*fields=\('jpg', 'json\.width'\)"):
        rows(pipeline(opened))


@pytest.mark.ray
@pytest.mark.parametrize("name", OVER_ACTORS)
def test_samples_are_the_same_over_actors(ray_local, tmp_path, name):
    stored, config, want = SAMPLES[name]
    write_tar(tmp_path / "x.tar", stored)
    assert_gives(lambda: make(tmp_path, **config), want, num_actors=2)
