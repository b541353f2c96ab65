"""What `with` means for everything that has a close()."""

from __future__ import annotations

from types import TracebackType
from typing import Self


def closed(what: str, of: str = "this") -> RuntimeError:
    """The error of who reads from what was closed. of: whose state goes on."""
    return RuntimeError(
        f"this {what} is closed; make a new one, and give it the state of {of}: new.set_state(old.get_state())"
    )


class Closing:
    """Closed at the end of a `with` block. A plain base: NNX modules have a metaclass, and so has an ABC."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
