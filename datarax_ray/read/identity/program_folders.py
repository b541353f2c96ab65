"""The folders that a program lies in, which are others in another clone, or for another job; texts may name them."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from datarax_ray.read.identity.users_code import asked, is_users, is_users_file

# What the folder of a project has, and no folder of projects: below the first of these it ends.
_OF_REPOSITORIES = (".git", ".hg", ".svn")
_OF_PROJECTS = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "uv.lock", "Dockerfile")
_MAX_ABOVE = 5
# Folders of many projects, as is that of a user.
_SHARED = {
    Path(each) for each in ("/tmp", "/var/tmp", "/home", "/mnt", "/media", "/opt", "/srv", "/usr", "/var", "/data")
}


def folder_of(module: str) -> str:
    """The folder from which a module is imported; "" for none, or the root."""
    file = asked(sys.modules.get(module), "__file__")
    if file is None:
        return ""
    depth, parents = module.count(".") + (Path(file).stem == "__init__"), Path(file).absolute().parents
    folder = parents[min(depth, len(parents) - 1)]
    return "" if folder == folder.parent else str(folder)


class ProgramFolders:
    """Those of users' packages, of the script, and of the projects that all from which modules are imported are in.

    are_left_out: of each text: a name that is the same everywhere stands for them. are_named: whether any text that was
    told names one.
    """

    def __init__(self, *, are_left_out: bool = False) -> None:
        self._names, self._stand_ins = _pattern(
            folder_of("__main__"), tuple(sys.path), tuple(_packages()), _here(), str(Path.home())
        )
        self._are_left_out = are_left_out
        self.are_named = False

    def told(self, text: str) -> str:
        """The text, or what is told in its stead."""
        if not self._names.search(text):
            return text
        self.are_named = True
        return self._names.sub(lambda found: self._stand_ins[found[0]], text) if self._are_left_out else text


def _here() -> str:
    with contextlib.suppress(FileNotFoundError):  # it is gone
        return os.getcwd()
    return os.sep


def _packages() -> Iterator[tuple[str, str]]:
    """The packages of users' that are imported, by name, each with its folder."""
    for name, module in sys.modules.copy().items():  # another thread may import: a list of items is not made at once
        file = asked(module, "__file__") if "." not in name else None
        if isinstance(file, str) and Path(file).stem == "__init__" and is_users(module):
            yield name, os.path.dirname(os.path.abspath(file))


def stand_ins(
    script: Path | None,
    roots: Sequence[Path],
    packages: Mapping[str, Path],
    here: Path,
    home: Path,
    has: Callable[[Path, str], bool],
) -> dict[Path, str]:
    """What stands for each folder of a program: two places in it have two names, the same wherever it lies.

    script: the folder that the script is in; where there is none, as in a notebook, it runs `here`. roots: from which
    modules are imported, in order. has: whether a folder has a file or folder of this name.

    >>> roots, packages = [Path("/r/apps/lm"), Path("/r/libs/tok"), Path("/b")], {"tok": Path("/r/libs/tok/tok")}
    >>> found = stand_ins(roots[0], roots, packages, Path("/r"), Path("/root"), has=lambda folder, name: False)
    >>> for folder, name in found.items():
    ...     print(folder, name)
    /b <project 2>
    /r <project>
    /r/apps/lm <script>
    /r/libs/tok/tok <package tok>
    """
    script = script or here

    def may_be_projects(folder: Path) -> bool:
        return len(folder.parts) > 1 and folder not in _SHARED and folder != home

    def project_of(folder: Path) -> Path:
        above = [each for each in (folder, *folder.parents) if may_be_projects(each)][: _MAX_ABOVE + 1]
        repository = next((each for each in above if any(has(each, name) for name in _OF_REPOSITORIES)), None)
        marked = [each for each in above if any(has(each, name) for name in _OF_PROJECTS)]
        if repository or marked:
            return repository or marked[-1]
        return next(
            (each for each in (here, folder.parent) if each in above[1:] and script.is_relative_to(each)), folder
        )

    project = project_of(script)
    others = dict.fromkeys(each for each in map(project_of, roots) if each not in (script, project))
    found = {folder: f"<project {number}>" for number, folder in enumerate(others, start=2)}
    found |= {project: "<project>", script: "<script>"}  # the latter wherever its project begins: a copy has no .git
    found |= {folder: f"<package {name}>" for name, folder in packages.items()}
    return {folder: name for folder, name in found.items() if len(folder.parts) > 1}


@functools.lru_cache(4)
def _pattern(
    script: str, paths: tuple[str, ...], packages: tuple[tuple[str, str], ...], here: str, home: str
) -> tuple[re.Pattern[str], dict[str, str]]:
    """What finds these folders in a text, and what stands for each."""
    roots = [Path(here, each) for each in paths if is_users_file(os.path.join(each, ""))]
    folders = {Path(sysconfig.get_path(name)): "<libraries>" for name in ("purelib", "platlib")}
    folders |= stand_ins(
        Path(script) if script else None,
        roots,
        {name: Path(folder) for name, folder in packages},
        Path(here),
        Path(home),
        lambda folder, name: (folder / name).exists(),
    )
    names = {
        as_written: name
        for folder, name in folders.items()
        for each in (folder.resolve(), folder)
        for as_written in (re.escape(str(each)), str(each))
    }
    longest_first = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.compile(rf"(?<![\w.-])(?:{longest_first})(?![\w.-])" if names else r"(?!)"), names
