"""What `with` means for everything that has a close()."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from datarax_ray.plan.arguments import no_attribute


def closed(what: str, of: str = "this") -> RuntimeError:
    """The error of who reads from what was closed. of: whose state goes on."""
    return RuntimeError(
        f"this {what} is closed; make a new one, and give it the state of {of}: new.set_state(old.get_state())"
    )


class Closing:
    """Closed at the end of a `with` block. A plain base: NNX modules have a metaclass, and so has an ABC."""

    def close(self) -> None:
        raise NotImplementedError

    if not TYPE_CHECKING:  # else every name would be one

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
