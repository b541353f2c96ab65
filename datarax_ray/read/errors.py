"""The errors of reading, drawn as a tree.

ValueError
  RecordError      one record could not be read, decoded or transformed; says which one, where, and why
OSError
  StorageError     what holds the data did not answer, though it was asked again: says nothing of the data
RuntimeError
  SkippedError     more such records were left out than max_skipped allows
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass


class RecordError(ValueError):
    """One record could not be read, decoded or transformed. The message names the file, record and position.

    position: where the record stands in the stream, which gave everything before it.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message, position)
        self.position = position

    def __str__(self) -> str:
        return str(self.args[0])

    @classmethod
    def of(cls, where: str, position: int, reason: str, error: Exception) -> RecordError:
        """What `reason` says of the record at `where`, with the error's traceback as a note.

        A cause does not survive the way from an actor to the driver; a note does.
        """
        failure = cls(f"{where} (position {position}): {reason}", position)
        failure.add_note("".join(traceback.format_exception(error)).rstrip())
        return failure


class StorageError(OSError):
    """The storage failed again and again, for longer than was waited. No record is broken by that: none is left out."""


class SkippedError(RuntimeError):
    """More broken records than max_skipped allows; the stream stays before the batch that leaves them out."""


@dataclass(frozen=True)
class Skipped:
    """A record that `on_error="skip"` left out of the stream.

    where: file, or lane of a stream, and record index in it, as "path[17]". position: its place in the stream. reason:
    what went wrong.
    """

    where: str
    position: int
    reason: str


def raise_together(errors: Sequence[Exception], num_files: int) -> None:
    """Raise the one error that there is, or one ValueError that lists several; nothing where there is none."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        shown = "".join(f"\n  {error}" for error in errors[:10])
        more = f"\n  and {len(errors) - 10} more" if len(errors) > 10 else ""
        raise ValueError(f"{len(errors)} of {num_files} files cannot be read:{shown}{more}")
