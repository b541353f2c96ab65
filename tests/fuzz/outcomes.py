"""What became of one mutant: the words of the table, and which of them break a promise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

# Far above what any mutant here takes to read honestly, and far below what a forged size asks for.
_MAX_GROWTH_MB = 300

UNHARMED = "same data"  # the mutation hit padding, or something that does not matter
REFUSED = "refused"  # at once, by an error that says what and where
PARTIAL = "good records, then refused"  # errors in their place, and everything else as it was
OTHER = "other data, checksums hold"  # forged, or a whole chunk of another file: the format cannot tell
WRONG = "WRONG DATA"
FOREIGN = "FOREIGN ERROR"  # not of the types that are promised
NAMELESS = "ERROR WITHOUT NAME"
MEMORY = "TOO MUCH MEMORY"
CRASH = "CRASH"
HANG = "HANG"

BROKEN = (WRONG, FOREIGN, NAMELESS, MEMORY, CRASH, HANG)
ALL = (UNHARMED, REFUSED, PARTIAL, OTHER, *BROKEN)


def refusal(error: BaseException, name: str, allowed: tuple[type[BaseException], ...]) -> tuple[str, str]:
    """(outcome, detail) of an error: of a promised type, and saying where."""
    text = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
    if not isinstance(error, allowed):
        return FOREIGN, text[:300]
    return (REFUSED, "") if name in text else (NAMELESS, text[:300])


def watched(check: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    """The outcome of a check, unless the process grew out of all proportion over it."""
    before = _peak_mb()
    outcome = check()
    grown = _peak_mb() - before
    return outcome if grown < _MAX_GROWTH_MB else (MEMORY, f"{grown} MB more at {outcome}")


def _peak_mb() -> int:
    """The most memory that this process has had. Not ru_maxrss, which begins with that of the parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024
