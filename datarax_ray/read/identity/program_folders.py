"""The folders that a program lies in, which are others in another clone, or for another job; texts may name them."""

from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path

from datarax_ray.read.identity.users_code import asked, is_users_file


def folder_of(module: str) -> str:
    """The folder from which a module is imported; "" for none, or the root."""
    file = asked(sys.modules.get(module), "__file__")
    if file is None:
        return ""
    depth, parents = module.count(".") + (Path(file).stem == "__init__"), Path(file).absolute().parents
    folder = parents[min(depth, len(parents) - 1)]
    return "" if folder == folder.parent else str(folder)


class ProgramFolders:
    """Those from which users' modules are imported, and of each the one above it, if the script lies below that, too:
    the folder of a project may have its modules in `src`.

    are_left_out: of each text. are_named: whether any text that was told names one.
    """

    def __init__(self, *, are_left_out: bool = False) -> None:
        self._names = _names(folder_of("__main__"), tuple(sys.path))
        self._are_left_out = are_left_out
        self.are_named = False

    def told(self, text: str) -> str:
        """The text, or what is told in its stead."""
        if not self._names.search(text):
            return text
        self.are_named = True
        return self._names.sub("", text) if self._are_left_out else text


@functools.lru_cache(4)
def _names(script: str, paths: tuple[str, ...]) -> re.Pattern[str]:
    imported = {Path(each).absolute() for each in paths if is_users_file(os.path.join(each, ""))}
    above = {each.parent for each in imported if script and Path(script).is_relative_to(each.parent)}
    folders = {each for each in imported - above if len(each.parts) > 1}
    folders |= {each for each in above if len(each.parts) > 2}  # not /home, nor /tmp
    names = {str(each) for folder in folders for each in (folder, folder.resolve())}
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile(rf"(?:{'|'.join(map(re.escape, longest_first))})(?![\w.-])" if names else r"(?!)")
