"""`datarax-ray cluster`: the files that run this on a real cluster, written to a folder of one's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import datarax_ray


def packaged() -> Path:
    """The folder of these files: inside the installed package, or beside it in a checkout."""
    package = Path(datarax_ray.__file__).parent
    installed = package / "cluster"
    return installed if installed.is_dir() else package.parent / "cluster"


def init(directory: Path, force: bool) -> list[Path]:
    """Write them to `directory`, with the folders that lead there; the files, relative to it.

    Raises: FileExistsError where one of them is there already and `force` is False, and then none is written.
    """
    source = packaged()
    names = sorted(
        path.relative_to(source) for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    if not force and (there := [str(name) for name in names if (directory / name).exists()]):
        raise FileExistsError(
            f"{directory} has {', '.join(there)} already, and what was changed there would be lost; give a folder "
            "without them, or --force to write over them"
        )
    for name in names:
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, target)  # with the mode: scripts stay executable
    return names
