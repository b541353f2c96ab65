"""A source whose first transforms were run once: its elements are read from a folder that `materialize` wrote."""

from __future__ import annotations

import os
from typing import Any

from flax import nnx

from datarax_ray.plan.plain_values import shown
from datarax_ray.read.streams.materialized import materialized
from datarax_ray.sources.base.config import SourceConfig
from datarax_ray.sources.base.indexed import PositionedSourceModule


class MaterializedSource(PositionedSourceModule, pytree=False):  # type: ignore[call-arg]
    """The stream of a source, read from the folder of `materialize(source, path)` in place of the source's files.

    source: as given to materialize; a mixture too. Order, epochs, random transforms, on_error and states are those of
        this source: a run may change between both sources in the middle of an epoch, with the same batches.
    path: the folder, or its URL.

    Raises: FileNotFoundError, ValueError for a folder that materialize did not write to its end; DriftError for a
    folder of other files or transforms.
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
