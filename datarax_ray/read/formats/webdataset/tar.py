"""The runs of members in a tar file: where each begins and ends, found by one walk over the headers.

Source: the webdataset package, tariterators.py. A name is split at the first dot behind the last slash into key and
extension; consecutive members of one key are a run; links, folders and what lies below `__name__` are skipped.
Unlike webdataset, this reader also skips notes and leftovers (README.md, __MACOSX/._1.jpg), and index.py joins the runs
of one key.
Python's tarfile reads the headers, one at a time: its own loop ends in silence at a damaged one. The bytes of runs, cut
out of the file, are a tar again, so that reading is the same walk.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from datarax_ray.read.files.listing import is_no_data

KEY = "__key__"
BUFFER_NBYTES = 32 * 1024  # what the walk over a local file reads at a time: longer members are jumped over
_NAME = re.compile(r"(?P<key>(.*/)?[^.]+)\.(?P<extension>[^/]*)")
_META = re.compile(r"__[^/]*__(/|$)")
_ZEROS = bytes(tarfile.BLOCKSIZE)


class Member(NamedTuple):
    """What a header says: where it begins, with those before it that belong to it, and where the data are."""

    name: str
    offset: int
    offset_data: int
    size: int
    kind: str  # regular, sparse, link or other

    @property
    def stop(self) -> int:
        """Where the next member begins."""
        return self.offset_data + -(-self.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


@dataclass
class Sample:
    """Consecutive members of one key, by extension, and the bytes [start, stop) of the tar that hold them."""

    key: str
    start: int
    stop: int
    members: dict[str, Member]


def samples(
    file: Any, nbytes: int, links: list[str] | None = None, no_data: list[str] | None = None
) -> Iterator[Sample]:
    """The samples of an open file of so many bytes, which is a tar from its beginning to its end.

    links: gets the names of links that would be members of samples; they hold no data, and are skipped.
    no_data: gets the names of members that are never data, and are skipped.

    Raises: ValueError, which names the member, for what is damaged, cut, sparse, or twice in one sample.
    """
    sample, name = None, "the beginning"
    members = _members(file)
    while True:
        try:
            info, stop = next(members)
        except StopIteration:
            break
        except (tarfile.TarError, ArithmeticError, MemoryError, RecursionError) as error:
            raise ValueError(f"behind {name} there is no header of a member ({error})") from error
        name = repr(info.name)
        if not info.offset < stop <= nbytes:
            raise ValueError(f"{name} goes on to byte {stop:,} and the file to {nbytes:,}: it was cut, or is damaged")
        named = _NAME.fullmatch(info.name)
        if named is None or _META.match(info.name):
            continue
        if is_no_data(info.name):
            if no_data is not None:
                no_data.append(info.name)
            continue
        if info.kind in ("link", "other"):
            if links is not None and info.kind == "link":
                links.append(info.name)
            continue
        key, extension = named["key"], named["extension"].lower()
        if info.kind == "sparse":
            raise ValueError(f"{name} is stored as a sparse file, without its holes; write the tar without --sparse")
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            sample = Sample(key, info.offset, stop, {})
        if extension in sample.members or extension == KEY:
            raise ValueError(
                f"{name} is the second {extension!r} of the sample {key!r}, and one of them would be lost; give each "
                "sample a key of its own, and each of its members an extension"
            )
        sample.members[extension] = info
        sample.stop = stop
    if sample is not None:
        yield sample


def _members(file: Any) -> Iterator[tuple[Member, int]]:
    """Every member, and where the next one begins. file: at its beginning."""
    tar = tarfile.TarFile(fileobj=file, encoding="utf-8", errors="surrogateescape")  # reads the first header
    info, at = tar.next(), 0
    while info is not None:  # else the zeros that end it are all there is
        found, at = _member_of(info), tar.offset
        if odd := {"path", "size"} & tar.pax_headers.keys():
            raise ValueError(f"a global header gives every member that follows the same {' and '.join(sorted(odd))}")
        yield found, at
        file.seek(at)
        block = file.read(tarfile.BLOCKSIZE)
        if not block:
            raise ValueError(
                f"it ends behind {found.name!r} without the zeros that end a tar: it was cut, or its writer was never "
                "closed. Write or copy it again; if nothing is missing, `truncate --size=+1024` adds them"
            )
        if block == _ZEROS:
            break
        file.seek(at)
        info = tarfile.TarInfo.fromtarfile(tar)
    file.seek(at)
    while part := file.read(BUFFER_NBYTES):
        if part.strip(b"\0"):
            raise ValueError("behind the zeros that end it there is more; join tars by `tar --concatenate`")


def _member_of(info: tarfile.TarInfo) -> Member:
    kind = "link" if info.islnk() or info.issym() else "other"
    if info.isreg():
        kind = "sparse" if info.issparse() else "regular"
    return Member(info.name, info.offset, info.offset_data, info.size, kind)
