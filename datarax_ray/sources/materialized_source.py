"""A source whose first transforms were run once: what `materialize` wrote, in place of the source's own records."""

from __future__ import annotations

import os
from typing import Any

from flax import nnx

from datarax_ray.plan.fingerprint import shown
from datarax_ray.read.streams.materialized import materialized
from datarax_ray.sources.base.config import SourceConfig
from datarax_ray.sources.base.indexed import PositionedSourceModule


class MaterializedSource(PositionedSourceModule, pytree=False):  # type: ignore[call-arg]
    """The stream of a source, with what `materialize(source, path)` wrote in place of records and first transforms.

    source: as it was given to materialize; a mixture too. Its order, epochs, random transforms and on_error are those
    of this one, and so are its states: a run may go on from one of the live source here, in the middle of an epoch, and
    back again, with the same batches. Only its files are not read any more. path: a folder, or the URL of one.

    Raises: FileNotFoundError, ValueError for what materialize did not write, or not to its end; DriftError where it was
    written from other files, or by other transforms.
    """

    def __init__(
        self, source: Any, path: str | os.PathLike[str], *, rngs: nnx.Rngs | None = None, name: str | None = None
    ) -> None:
        if not isinstance(source, PositionedSourceModule):
            raise TypeError(
                f"MaterializedSource takes the source that was given to materialize, got {shown(source)}; to read with "
                "Ray, give RaySource(MaterializedSource(source, path))"
            )
        description = materialized(source.describe(), os.fspath(path))
        super().__init__(source.config, description, source.skip_options, rngs=rngs or source.rngs, name=name)
        self._live = source
        self._path = path

    def copy(
        self, *, config: SourceConfig | None = None, rngs: nnx.Rngs | None = None, name: str | None = None
    ) -> MaterializedSource:
        """The same source from its beginning, with what is given here changed."""
        live = self._live.copy(config=config, rngs=rngs, name=name)
        return MaterializedSource(live, self._path, rngs=rngs or self.rngs, name=name or self.name)

    def __repr__(self) -> str:
        return f"MaterializedSource({self._live!r}, {shown(os.fspath(self._path))})"
