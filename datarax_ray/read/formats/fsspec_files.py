"""The handler through which pyarrow reads files of fsspec; imports pyarrow.fs, so it is imported where it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyarrow import PythonFile
from pyarrow.fs import FileInfo, FileType, FSSpecHandler

from datarax_ray.read.formats.remote.ranges import TELLING
from datarax_ray.read.retry import is_transient


class FsspecFiles(FSSpecHandler):
    """As pyarrow's, but a file is missing only where its storage says so.

    pyarrow's takes every FileNotFoundError for that, which fsspec raises for a busy HTTP server too, and asks isfile()
    before it opens a file, for which fsspec gives False whatever failed.
    """

    def get_file_info(self, paths: Sequence[str]) -> list[Any]:
        return [self._info(path) for path in paths]

    def open_input_file(self, path: str) -> Any:
        return PythonFile(self.fs.open(path, mode="rb"), mode="r")

    def stamp(self, path: str) -> tuple[int, str]:
        """See filesystems.stamp_of: pyarrow asks fsspec for no ETag.

        One thing that tells states apart: clients say the others now by a listing that they keep, now by asking, and
        do not write times, nor quotes of ETags, alike in both.
        """
        info = self.fs.info(path)
        return info["size"], str(next((info[name] for name in TELLING if info.get(name) is not None), "")).strip('"')

    def _info(self, path: str) -> Any:
        try:
            return self._create_file_info(path, self.fs.info(path))
        except FileNotFoundError as error:
            if is_transient(error):
                raise
            return FileInfo(path, FileType.NotFound)
