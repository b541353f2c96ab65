"""States that earlier releases wrote load for ever, and still belong to their own files alone."""

from __future__ import annotations

import base64
import copy
import itertools
import lzma
from pathlib import Path
from typing import Any

import pytest

from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.sources import (
    ArrayRecordSourceConfig,
    ArrayRecordSourceModule,
    MixtureSource,
    ParquetSource,
    ParquetSourceConfig,
)

# The bytes of the files are pinned too: other versions of their writers may write others.
FILES = {
    "a.array_record": (
        "XQAAAAT//////////wBBq8oNEG132HdJSW77V1MHnYWtyWZ/vvoG+lpokOf2UT+U76pvCIQNOfRTbkYnqQo19DzhXOe++EuJLyZi"
        "qJ9wZnxBzOFWiqRtHjTWNUoTEetc+GJhFEhB+Y6rs7r52rqFsUKHO+iOVR8a2j7r9OxBMZMP+b0i+uYsCBfqBMXZ8dgp62I6Sd05"
        "KCwBRkGB1wW+bmufu3rSM8z649Wnqv3dVlprVFwfuTpE7F6NGDTkFKslYOljXegTcytJsYGELMYOLvdtNdWkm6Pe6yIktfl1TVVB"
        "txharK8li2uwMxg8RF+RLKyPsDP2xy69ZEsRXnLc46QF1MRlrOmXG/sQeiaTeXUF7abHjL8xA0nmbwTN2pibSqOqVX9uaJj1B7BA"
        "R+aJPus00N/Dq42NErebh/wjcJUQnb3WB7axyoURdxB0tqnRuo/5drSli3x9rFlrTu5mf0YROB6eVYfdKoQ1UQ0rjahhl/3xRTyS"
        "wdSg5WIl3BJ8jx2LkcAOWWJAawmTrUeWeogqDJUyd+HoYL0QsWkEo8viHaT2++RGQEguyLOwhoDyOj7edmFkdxrDskm9xFzGg75Y"
        "KM/C6leSyo/tTnZ+WTiuATUB/hZ34zviWDhm+79/dN9bvcJRgofwK3v//+wefqA="
    ),
    "t.parquet": (
        "XQAAAAT//////////wAoEEaITJJqc4BRDNlNZomI0VEGU6ICIneRpZ4eSiZ43vsl2IAASqpMryicA1pkn8vLoJHEZD/6w5AVi8l8"
        "Pab8BH6gkK94z4pl/Hn+YSgyNdKjoYjpf1l754kPmBTQk4+Rp5qdhocHL93ioUVAZDi/FVyPfH/Wb89KWsO63dxz0wG/Y3Ih5O8+"
        "PQjhjOzM+vhG04UhghTWM0VBQqelZIW+vli627b38hx3Iyf2ykjWQzu1AcZiSB5JFKSj0rBmBJoB5b0uoXU5shQ+smam8GLfwRga"
        "L+jtc9bBBPLz2bQPYkw3/Uy4Z71XhPy3vsjtpEM3NrcP9p6Ucv/RL+l5eRdfQjr5HN0+h7qDalMWeWNba8LMpzZHV60uaSTymhIS"
        "Vi7hpFMJy9hnTHMiLC7vaZXDnnOnEbyI//+F1Srs"
    ),
}

ARRAY_RECORD = {
    "files": {"num_files": 1, "num_records": 6, "nbytes": 131072, "digest": "796e8ed12eb080f3"},
    "order": {"shuffle": "global", "seed": 3, "num_epochs": -1, "rounds": 8},
    "transforms": {"names": [], "digest": "4f53cda18c2baa0c"},
    "on_error": "raise",
}
PARQUET = {
    "files": {
        "num_files": 1,
        "num_records": 6,
        "nbytes": 724,
        "digest": "79a10732cfea7ba1",
        "schema": "ffcb5ee0f21fed77",
    },
    "order": {"shuffle": "none", "seed": 42, "num_epochs": -1},
    "transforms": {"names": [], "digest": "4f53cda18c2baa0c"},
    "on_error": "raise",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "array_record": ARRAY_RECORD,
    "parquet": PARQUET,
    "a mixture of 2": {
        "mixture": {"weights": [1, 1], "seed": 42, "length": None},
        "components": {"0": ARRAY_RECORD, "1": PARQUET},
    },
    "a mixture of 5": {  # of which the state has digests alone
        "mixture": {"weights": [1, 1, 1, 1, 1], "seed": 42, "length": None},
        "components": {
            "0": "96e2bbe839de521e",
            "1": "ce1d1c06efc82d59",
            "2": "96e2bbe839de521e",
            "3": "ce1d1c06efc82d59",
            "4": "96e2bbe839de521e",
        },
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, packed in FILES.items():
        (tmp_path / name).write_bytes(lzma.decompress(base64.b64decode(packed)))
    return tmp_path


def make(kind: str, folder: Path) -> Any:
    if kind == "array_record":
        return ArrayRecordSourceModule(ArrayRecordSourceConfig(seed=3, shuffle_files=True), folder / "a.array_record")
    if kind == "parquet":
        return ParquetSource(ParquetSourceConfig(), folder / "t.parquet")
    names = ["array_record", "parquet", "array_record", "parquet", "array_record"][: int(kind[-1])]
    return MixtureSource([make(name, folder) for name in names], weights=[1 / len(names)] * len(names))


def another_record(path: Path) -> None:
    """The file with another byte in a record, and its size, count, footer and first chunk as they were."""
    content = bytearray(path.read_bytes())
    content[60 if path.suffix == ".parquet" else -70_000] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_state_of_version_1_goes_on_as_long_as_its_files_are_the_same(folder: Path, kind: str) -> None:
    source = make(kind, folder)
    source.set_state({"version": 1, "position": 4, "settings": SETTINGS[kind]})
    assert source.get_state()["position"] == 4
    if kind in ("array_record", "parquet"):  # elements of both do not stack
        assert list(itertools.islice(source, 5)) == list(itertools.islice(make(kind, folder), 9))[4:]


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_state_of_version_1_is_refused_for_files_of_other_names(folder: Path, kind: str) -> None:
    settings = copy.deepcopy(SETTINGS[kind])
    if kind == "a mixture of 5":
        settings["components"]["1"] = "ce1d1c06efc82d58"
    else:
        files = settings if "files" in settings else settings["components"]["1"]
        files["files"]["digest"] = "79a10732cfea7ba0"
    with pytest.raises(DriftError, match="belongs to another stream"):
        make(kind, folder).set_state({"version": 1, "position": 4, "settings": settings})


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_state_of_now_is_refused_where_a_byte_of_a_file_is_another(folder: Path, kind: str) -> None:
    state = make(kind, folder).get_state()
    make(kind, folder).set_state(state)
    another_record(folder / ("a.array_record" if kind == "array_record" else "t.parquet"))
    with pytest.raises(DriftError, match=r"files\.content: .*resuming would skip or repeat records"):
        make(kind, folder).set_state(state)
