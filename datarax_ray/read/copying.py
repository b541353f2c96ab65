"""What cannot be copied or pickled: two would share one position, one thread or one set of actors, and each skip."""

from __future__ import annotations

from typing import Any, ClassVar, SupportsIndex


class Uncopied:
    """Refuses copy.copy, copy.deepcopy and pickle, which would share what runs. A plain base, as Closing is.

    instead: what to do, for the error.
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
