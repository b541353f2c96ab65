"""`cache`: what is kept on disk of files behind URLs, shown and removed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from datarax_ray.cli.commands.datasets import clear, show
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.cli.screens import answer, screen
from tests.data import record, write_files
from tests.http_files import HttpFiles


def printed(run, cache: Path, as_json: bool = False) -> str:
    run(cache, shown := screen(as_json, width=200))
    return answer(shown)


def test_what_a_source_keeps_is_shown_and_removed_once_nobody_reads_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    paths = write_files(tmp_path / "data", [500, 300])
    server, cache = HttpFiles(tmp_path / "data"), tmp_path / "cache"
    try:
        config = ArrayRecordSourceConfig(cache_dir=cache, cache_nbytes=10**8, shuffle=True, num_epochs=1)
        source = ArrayRecordSourceModule(config, [f"{server.url}/{path.name}?signature=secret" for path in paths])
        assert sorted(source) == sorted(map(record, range(800)))
        shown = printed(show, cache)
        assert "2 files take" in shown
        assert f"{server.url}/{paths[0].name}" in shown
        assert "secret" not in shown
        told = json.loads(printed(show, cache, as_json=True))
        assert [each["is_in_use"] for each in told] == [True, True]
        assert "2 files stay, because a process is reading them" in printed(clear, cache)
        source.close()
        assert "MB were freed\n" in printed(clear, cache)
        assert json.loads(printed(show, cache, as_json=True)) == []
        assert source.get_batch_at(0, 800) != []
    finally:
        source.close()
        server.close()
    assert np.all([path.exists() for path in paths])


def test_what_is_no_cache_is_told(tmp_path: Path) -> None:
    for run in (show, clear):
        with pytest.raises(FileNotFoundError, match="is no cache of remote files: nothing was ever kept in it"):
            printed(run, tmp_path)
