"""The errors of reading, and of writing what was read, drawn as a tree.

ValueError
  RecordError      one record could not be read, decoded or transformed; says which one, where, and why
  UnlikeError      an element has other fields, shapes or dtypes than those before it: no batch holds both
OSError
  StorageError     what holds the data did not answer, though it was asked again: says nothing of the data
RuntimeError
  SkippedError     more such records were skipped than max_skipped allows
TypeError
  UnwritableError  a value of an element cannot be written so that the same comes back
"""

from __future__ import annotations

import errno
import re
import signal
import threading
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

# What is no user's code: this package, Python's own files, and installed packages.
_NOT_USERS = (str(Path(__file__).parents[1]), str(Path(traceback.__file__).parent), "<frozen ")

_PLACE = re.compile(
    r"(?P<components>(component \d+: )*)(?P<path>.+?)\[(?P<start>\d+)(:(?P<stop>\d+))?\](?P<tail>( \(.*?\))?)"
    r"(, from (?P<origin>.*))?",
    re.DOTALL,
)

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # where nothing more is written, by whatever host

_CHECK = "`datarax-ray check PATHS`, or check(source), reads all records once and lists each that ends a run, and why"


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
    def of(cls, where: str, position: int, reason: str, error: BaseException) -> RecordError:
        """What `reason` says of the record at `where`, with the error's traceback, from the user's line on, as a note.

        A cause does not survive the way from an actor to the driver; a note does.
        """
        failure = cls(f"{where} (position {position}): {reason}", position)
        begin = users_traceback(error) or error.__traceback__
        failure.add_note("".join(traceback.format_exception(type(error), error, begin)).rstrip())
        return failure

    def move(self, component: str, own: int, position: int) -> None:
        """It stands at this position of a mixture, as the record at position `own` of the component of that name."""
        said = self.args[0].replace(f"(position {own}", f"(position {position}, {own} of {component}", 1)
        self.args = f"{component}: {said}", position
        self.position = position


def advised(failure: Exception) -> Exception:
    """The failure; that of a record with a note on the command that lists all such records."""
    if isinstance(failure, RecordError) and _CHECK not in getattr(failure, "__notes__", ()):  # it may be raised again
        failure.add_note(_CHECK)
    return failure


class UnlikeError(ValueError):
    """An element differs from earlier ones in fields, shapes or dtypes: no batch holds both. Iteration gives both.

    position: of the element. first: of an earlier element.
    """

    def __init__(self, message: str, position: int, first: int) -> None:
        super().__init__(message, position, first)
        self.position, self.first = position, first

    def __str__(self) -> str:
        return str(self.args[0])


class StorageError(OSError):
    """The storage failed again and again, for longer than was waited. No record is broken, and none is skipped."""


def gives_fewer(position: int, offset: int, unit: str = "elements") -> ValueError:
    return ValueError(
        f"the stream goes on behind {offset} {unit} of the record at position {position}, which gives fewer now: a "
        "transform changed since the state was taken, so going on would skip or repeat some. Make transforms functions "
        "of their element alone"
    )


class ChangedError(ValueError):
    """A file changed after it was opened, so its bytes may be of two files. Trying again cannot help."""


class SkippedError(RuntimeError):
    """More broken records than max_skipped allows; the stream stays before the batch that leaves them out."""


class UnwritableError(TypeError):
    """A value that cannot be written so that the same comes back."""


class Place(NamedTuple):
    """The parts of a record's name for people: "component 1: a.parquet[3] (row group 0), from cat/3.jpg[0]".

    components: of the mixtures around it, the outermost first, each with ": " behind it; "" for none.
    path: of the file, or shard of a stream.
    start, stop: its number in there, and None; of several records, path[3:9], both ends.
    tail: what stands behind the number. origin: where the record was written from, "" where that is not known.
    """

    components: str
    path: str
    start: int
    stop: int | None
    tail: str
    origin: str

    @classmethod
    def of(cls, name: str) -> Place | None:
        """The parts of a name; None for a name of another form, as that of an object.

        >>> Place.of("component 1: a.tar[7], from b[0]")
        Place(components='component 1: ', path='a.tar', start=7, stop=None, tail='', origin='b[0]')
        """
        found = _PLACE.fullmatch(name)
        if found is None:
            return None
        stop = None if found["stop"] is None else int(found["stop"])
        return cls(found["components"], found["path"], int(found["start"]), stop, found["tail"], found["origin"] or "")


@dataclass(frozen=True)
class Skipped:
    """A record that `on_error="skip"` skipped, or an element of one, behind a flat_map.

    where: the record's name; see Place.
    position: its place in the stream. reason: what went wrong, and with which element of the record.
    """

    where: str
    position: int
    reason: str

    def moved(self, component: str, position: int) -> Skipped:
        """The same record in a mixture. component: its name there. position: in the mixture."""
        return replace(self, where=f"{component}: {self.where}", position=position)


def users_traceback(error: BaseException) -> TracebackType | None:
    """The error's traceback from the first line on that is neither this package's nor a library's; None without one."""
    begin = error.__traceback__
    while begin is not None:
        path = begin.tb_frame.f_code.co_filename
        if not path.startswith(_NOT_USERS) and {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts):
            break
        begin = begin.tb_next
    return begin


def message_of(error: BaseException) -> str:
    """What the error says; also of one whose __str__ raises."""
    try:
        return str(error)
    except BaseException as second:
        return f"(no message: its __str__ raised {type(second).__name__})"


def is_of_data(error: BaseException, kind: type[BaseException] = Exception) -> bool:
    """Whether an error that a transform or a data source raised is about what it was given.

    kind: the Exceptions that are; a StorageError is none, as what was given may be good when it is asked for again.
    A SystemExit or GeneratorExit that it raised is one, as well, and a KeyboardInterrupt where no Ctrl-C can come: it
    must not end a program, or a Ray actor, that has other data to read.
    """
    if isinstance(error, StorageError):
        return False
    return isinstance(error, kind) or not (isinstance(error, Exception) or _came_by_signal(error))


def _came_by_signal(error: BaseException) -> bool:
    """Whether an error was not raised by the code that it rises from, but by a signal that met it (Ctrl-C, the SIGTERM
    of a cluster): then it ends the program at once.

    Python runs the handlers of signals in the main thread. One that is a Python function stands in the traceback.
    Python's own for Ctrl-C leaves no trace, so there a KeyboardInterrupt is one, unless SIGINT is blocked, as in Ray's
    workers.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if isinstance(error, KeyboardInterrupt) and signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        return True
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
