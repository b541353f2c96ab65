"""Images of files with the few bytes that identify them: by one request for the end, and others at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from datarax_ray.read.file_contents import HEAD_NBYTES, NUM_PAGES, TAIL_NBYTES, sampled_spans
from datarax_ray.read.formats import sniff
from datarax_ray.read.formats.remote.chunks import NoArrayRecordError, chunks, footer_offset
from datarax_ray.read.formats.remote.pages import Image
from datarax_ray.read.formats.remote.ranges import Remote, read_ranges, read_tail
from datarax_ray.read.formats.remote.urls import redacted

_TAIL_NBYTES = TAIL_NBYTES + (NUM_PAGES + 1) * HEAD_NBYTES  # so that of a small file, this is all


@contextlib.contextmanager
def sampled(
    url: str, remote: Remote, tail_nbytes: int, spans: Callable[[bytes, int], Sequence[tuple[int, int]]]
) -> Iterator[tuple[Image, str]]:
    """An image with the last bytes of a file and some others, and the version of the file.

    tail_nbytes: of the last bytes, which come by one request.
    spans: gives the spans of the others from the last bytes and the size of the file.

    Raises: as ranges.read_ranges.
    """
    tail = read_tail(url, tail_nbytes, remote)
    begin = tail.nbytes - len(tail.data)
    image = Image(tail.nbytes)
    try:
        image.fill(begin, tail.data)
        others = [(start, min(stop, begin)) for start, stop in spans(tail.data, tail.nbytes) if start < begin]
        found = read_ranges([(url, tail.version, start, stop) for start, stop in others], remote)
        for (start, _), data in zip(others, found, strict=True):
            image.fill(start, data)
        yield image, tail.version
    finally:
        image.close()


@contextlib.contextmanager
def looked_at(url: str, remote: Remote) -> Iterator[tuple[Image, str, int]]:
    """An image of an ArrayRecord file with its end, its footer and the bytes that identity.contents digests; with the
    version of the file, and the offset of its footer.

    Raises: ValueError for what is no ArrayRecord file; as ranges.read_ranges.
    """
    footer = 0
    problem: NoArrayRecordError | None = None

    def spans(tail: bytes, nbytes: int) -> list[tuple[int, int]]:
        nonlocal footer, problem
        found = sampled_spans(nbytes)
        try:
            footer = footer_offset(tail, nbytes)
        except NoArrayRecordError as error:
            problem = error
            return found[:1]  # the head tells what it is instead
        return [*found, (footer, nbytes)]

    with sampled(url, remote, _TAIL_NBYTES, spans) as (image, version):
        try:
            if problem is not None:
                raise problem
            chunks(image.read(footer, image.nbytes), footer)
        except NoArrayRecordError as error:
            instead = sniff.advice_at(image.path, "ArrayRecord")
            raise sniff.incomplete(redacted(url), "ArrayRecord", error, instead) from error
        yield image, version, footer
