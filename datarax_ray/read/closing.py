"""Bases of everything with a close(): the end of a `with` block closes it, and it cannot be copied or pickled."""

from __future__ import annotations

from types import TracebackType
from typing import Any, ClassVar, Self, SupportsIndex


def closed(what: str, of: str = "this") -> RuntimeError:
    """The error for a read from a closed object. of: names the object whose state goes on."""
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


class Uncopied:
    """Refuses copy.copy, copy.deepcopy and pickle: two copies would share one position, thread or set of actors.

    A plain base, as Closing is.

    instead: the remedy, for the error.
    """

    instead: ClassVar[str] = ""

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        raise self._refusal("pickled")

    def __copy__(self) -> Any:
        raise self._refusal("copied")

    def __deepcopy__(self, memo: Any) -> Any:
        raise self._refusal("copied")

    @classmethod
    def _refusal(cls, what: str) -> TypeError:
        return TypeError(
            f"a {cls.__name__} cannot be {what}: both would move one position, and each would skip what the other "
            f"gave. {cls.instead}"
        )
