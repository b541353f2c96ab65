"""Sources that are made of other sources: mixtures, and a source whose first transforms were run once."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Iterable
from typing import Any

from flax import nnx

from datarax_ray.plan.arguments import ordered
from datarax_ray.plan.orders import cipher
from datarax_ray.plan.plain_values import shown
from datarax_ray.plan.weights import WeightSchedule, plain_weights, weights_given
from datarax_ray.read.streams.materialized import materialized
from datarax_ray.read.streams.merged import AnyComponent, AnyMixture, mixed
from datarax_ray.sources.base.config import SourceConfig
from datarax_ray.sources.base.indexed import PositionedSourceModule
from datarax_ray.sources.base.module import SourceModule


class MixtureSource(PositionedSourceModule, pytree=False):  # type: ignore[call-arg]
    """The elements of several sources, each as often as its weight says, in an order that is a function of position.

    sources: indexed sources, streams and mixtures, whose elements have the same fields, shapes and dtypes.
    weights: numbers of at least 0, in any unit; None for equal weights; a WeightSchedule for weights that change with
        the position.
    seed: shifts the turns of the sources.
    weights_by: a field of the elements whose sizes are shared out by weight: "tokens". Its length counts, of a list, an
        array or a text; an integer counts itself (a field of milliseconds, say). None: each element counts 1.
    length: the number of elements; None to end before the first record that a source with a finite num_epochs lacks, or
        never.
    strict: a source that gives no element in a whole pass (a filter drops all of it) is an error; else a warning, and
        the others go on without it. With a stream or weights_by it is an error always: its turn would never end.
        `Pipeline.stats` has the part that each source gives, beside its weight.

    Of the first n records, source c has its share of n to less than 4 records at any n, and with two sources to less
    than 1. Filters and flat_maps act after the choice of a record. Each source goes through its own epochs, in its own
    order, and gives the same elements as alone, random transforms included. `len` is the records of all sources.

    With weights_by, the next element is of the source that gave least for its weight. At any moment a source has given
    its share to less than one of its own elements more, and to less than one element of each other source too little.
    Sizes are those behind transforms; of packed documents, those of the rows. Otherwise this is as with streams:

    With a stream among the sources (HFStreamingSource), elements are mixed instead of records: source c has its share
    of the first n elements, after filters and flat_maps; of packed rows, its share of documents. Positions count
    elements, and the mixture ends before the first element that a source lacks. Each source is read ahead by itself. A
    state holds the place of every source, and has constant size but for the shards of streams. seek(n) reads from the
    beginning; a state goes on at its place. There is no len, no index and no get_batch_at. Trainers that share actors
    take whole blocks.

    Raises: TypeError for objects that are no sources; ValueError for invalid weights.

    >>> import numpy as np
    >>> from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
    >>> make = lambda first: RandomAccessSource(RandomAccessSourceConfig(), {"x": np.arange(first, first + 3)})
    >>> MixtureSource([make(0), make(100)], weights=[3, 1]).get_batch(8)
    {'x': array([  0, 100,   1,   2,   0, 101,   1,   2])}
    """

    def __init__(
        self,
        sources: Iterable[Any],
        weights: Iterable[float] | WeightSchedule | None = None,
        *,
        seed: int = 42,
        weights_by: str | None = None,
        length: int | None = None,
        strict: bool = False,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        cipher.check_seed(seed)
        if callable(getattr(sources, "describe", None)):  # it is iterable, and would give its elements
            raise TypeError(f"sources is a list of them, got one {type(sources).__name__}; write MixtureSource([a, b])")
        ordered("sources", sources)
        sources = tuple(sources)
        components = tuple(_component(source, index) for index, source in enumerate(sources))
        given = weights_given((1,) * len(components) if weights is None else weights)
        description = mixed(components, given, seed, length, strict, weights_by=weights_by)
        skip_options = functools.reduce(operator.or_, (source.skip_options for source in sources))
        super().__init__(SourceConfig(), description, skip_options, rngs=rngs, name=name)
        self._sources = sources

    def copy(
        self, *, config: SourceConfig | None = None, rngs: nnx.Rngs | None = None, name: str | None = None
    ) -> MixtureSource:
        """The same mixture from the beginning. Raises: ValueError for a config: a mixture has none."""
        if config is not None:
            raise ValueError("a mixture has no config of its own; make another MixtureSource")
        mixture = self.describe()
        return MixtureSource(
            self._sources,
            mixture.weights,
            seed=mixture.seed,
            weights_by=mixture.weights_by,
            length=mixture.length,
            strict=mixture.is_strict,
            rngs=rngs or self.rngs,
            name=name or self.name,
        )

    def describe(self) -> AnyMixture:
        description = super().describe()
        assert isinstance(description, AnyMixture)
        return description

    def __bool__(self) -> bool:
        return not hasattr(self.describe().order, "records") or len(self) > 0

    def __repr__(self) -> str:
        return f"MixtureSource({list(self._sources)!r}, weights={plain_weights(self.describe().weights)})"


def _component(source: Any, index: int) -> AnyComponent:
    describe = getattr(source, "describe", None)
    description = describe() if callable(describe) else None
    if isinstance(source, SourceModule) and isinstance(description, AnyComponent):
        return description
    raise TypeError(
        f"source {index} of the mixture is {type(source).__name__}, and a mixture takes sources of datarax_ray.sources "
        "such as load(path). To read a mixture with Ray, distribute it as a whole: RaySource(MixtureSource(...))"
    )


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
