"""RaySource: any source, read by Ray actors, with the same batches as in one process."""

from __future__ import annotations

import atexit
import inspect
import logging
import operator
import os
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray

from datarax_ray.actors.connection import RAY_LOCK, check_can_connect, connect
from datarax_ray.actors.lifecycle import Thresholds
from datarax_ray.actors.pool import RayPool
from datarax_ray.actors.recovery import Recoveries
from datarax_ray.actors.sizing import Scaler
from datarax_ray.actors.starting import ActorOptions
from datarax_ray.feed.source import Describes, Source
from datarax_ray.feed.stream import STALL_AFTER_S, StreamOptions
from datarax_ray.feed.window import DEFAULT_MAX_NBYTES, Bound
from datarax_ray.plan.arguments import NamedArguments, flag, whole
from datarax_ray.read.closing import Closing
from datarax_ray.read.formats.random_access import remedy_for
from datarax_ray.read.skipped_records import COUNT_ALONE
from datarax_ray.read.stream import is_endless

logger = logging.getLogger("datarax_ray")


# The arguments that say how the actors are made: share= takes these actors as they are.
_OF_ACTORS = {"num_actors", "num_cpus", "max_nbytes", "resources", "label_selector", "memory", "runtime_env", "name"}
_OF_ACTORS |= {"start_timeout_s", "request_timeout_s", "thresholds"}


class RaySource(NamedArguments, Source, Closing):
    """Reads a source with Ray actors. The stream is the same as that of the source alone, byte for byte.

    source: an ArrayRecordSourceModule, or any other source of datarax_ray.sources.
    num_actors: None for one per CPU of the cluster but one. (least, most) starts `least` actors, adds actors while the
        stream waits for them, and ends some while the stream never waits. A log line (INFO) gives the reason of every
        change. Where drivers share actors, one driver decides.
    num_cpus: CPUs that an actor reserves; 0 in a local Ray that RaySource starts.
    chunk_size: positions that all actors together read at a time; None follows the size of the elements.
    max_nbytes: bound on the blocks in flight in the object store, divided evenly among the drivers that share the
        actors. None for 96 MiB per actor and driver: at least 384 MiB a driver, at most 40 % of a node's store for one
        driver and 40 % of all stores for all drivers.
    resources, label_selector, memory, runtime_env: as Ray's actors take them.
    name: drivers of one Ray namespace that give the same name share the actors; the actors read once for all trainers
        of a job. The actors end with the last driver; where the driver that started them ends, others start new ones.
    start_timeout_s: how long to wait while no actor runs.
    request_timeout_s: an actor that reads one part of a chunk for longer is replaced as hung; a second is usual.
    stall_after_s: a longer wait for a batch is logged with its actors, positions and files.
    thresholds: how long to wait for actors that are silent, lost or do not start; None for the defaults.
    strict: raise an error, not a warning, for a transform that makes another element of the same record.
    share: another RaySource, whose actors read this source too, without more CPUs: an evaluation beside the training.
        Both streams are the same as alone. The sources divide max_nbytes. The actors end when both are closed, and
        num_actors, num_cpus and other settings of actors stay those of the other source.

    Before an actor feeds the stream it makes the first 8 elements twice, in 0.2 s at most. An actor whose bytes differ
    from those of the driver or of other actors is kept out: the log names node, field and library releases.

    RaySource uses the Ray that the program has initialised, else a running cluster (RAY_ADDRESS, or one on this host).
    Else it starts a local Ray, with a log line, and limits the actors to four per core, at least 16. The number of
    actors is not in the state: it may differ at every restart, and `datarax-ray pool resize` changes it from outside.

    Raises: ValueError for num_actors, chunk_size or max_nbytes below 1, and for settings of actors beside share;
    RuntimeError if no actor can start, or share is closed.
    """

    _actors: RayPool
    _is_named: bool

    def __init__(
        self,
        source: Describes,
        *,
        num_actors: int | tuple[int, int] | None = None,
        num_cpus: float = 1.0,
        chunk_size: int | None = None,
        max_nbytes: int | None = None,
        resources: Mapping[str, float] | None = None,
        label_selector: Mapping[str, str] | None = None,
        memory: int | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        name: str | None = None,
        start_timeout_s: float = 300.0,
        request_timeout_s: float = 300.0,
        stall_after_s: float = STALL_AFTER_S,
        thresholds: Thresholds | None = None,
        strict: bool = False,
        share: RaySource | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in _OF_ACTORS}
        _check_source(source)
        least, most = (None, None) if num_actors is None else limits(num_actors)
        bound = DEFAULT_MAX_NBYTES if max_nbytes is None else max_nbytes
        StreamOptions(1, chunk_size=chunk_size, max_nbytes=bound, stall_after_s=stall_after_s)
        description = source.describe()
        options = ActorOptions(
            num_cpus,
            resources,
            label_selector,
            memory,
            name,
            start_timeout_s,
            runtime_env,
            request_timeout_s,
            thresholds or Thresholds(),
            flag("strict", strict),
        )
        if share is not None:
            _check_share(share, given)
            self._actors = share._actors.sharing(description, strict=options.strict)
        else:
            check_can_connect()
            with RAY_LOCK:  # two threads may make their first sources at once, and another may shut Ray down meanwhile
                most, reserved = connect(most, num_cpus)
                options = replace(options, num_cpus=reserved)
                if most is None:
                    most = _default_num_actors(num_cpus)
                least = most if least is None else min(least, most)
                _check_namespace(name)
                scaler = None if least == most else Scaler(least, most, options.thresholds.scale_s)
                self._actors = RayPool(description, least, options, _bound(max_nbytes), scaler)
        self.source = source
        self._chunk_size, self._stall_after_s = chunk_size, stall_after_s
        self._is_named = name is not None if share is None else share._is_named
        traced = getattr(source, "traced", None)  # of an NNX source, which knows JAX
        self._traced = None if traced is None else traced()
        super().__init__(description, self._actors, getattr(source, "skip_options", COUNT_ALONE))
        # Before Ray's own end: a thread that waits for an actor would be waiting while Ray is taken down around it.
        pool = weakref.ref(self._actors)

        def close() -> None:
            if (alive := pool()) is not None:
                alive.close()

        self._at_exit = close
        atexit.register(close)

    @property
    def num_actors(self) -> int:
        """The number of actors that should run; see `num_running`."""
        return len(self._actors)

    @property
    def num_running(self) -> int:
        """The number of actors that run now: fewer than num_actors while some start or are lost."""
        return self._actors.num_running

    @property
    def pool_name(self) -> str:
        """The pool's name in `datarax-ray pool`: the argument `name`, or one made of the Ray job."""
        return self._actors.membership.name

    def get_batch_at(self, start: Any, size: int, key: Any = None) -> Any:
        """The elements at positions [start, start + size): a list, read in this process; see Source.get_batch_at.

        Where JAX traces start, the actors read them. key: not used, accepted as datarax does.
        """
        try:
            start = operator.index(start)
        except TypeError:
            if self._traced is None:
                raise
            return self._traced.at(self, start, size)
        self._actors.check_open()
        return super().get_batch_at(start, size)

    def supports_indexed_access(self) -> bool:
        """False: datarax's Pipeline reads it as a stream, by get_batch, which returns {} at the end."""
        return False

    def stats(self) -> dict[int, dict[str, Any]]:
        """Process, node, memory and work of each running actor, by id."""
        return self._actors.stats()

    @property
    def recoveries(self) -> Recoveries:
        """Losses, returns and other events since this source was made; no part of a state."""
        return self._actors.recoveries

    def add_actors(self, num_actors: int) -> tuple[int, ...]:
        """Start more actors while streams run. Returns their ids. Raises: ValueError for fewer than 1."""
        return self._actors.resize(whole("num_actors", num_actors, least=1), "they were added")

    def remove_actors(self, num_actors: int) -> tuple[int, ...]:
        """End actors, the newest first, while streams run. Returns their ids. Raises: ValueError if none is left."""
        return self._actors.resize(-whole("num_actors", num_actors, least=1), "they were removed")

    def rebalance(self) -> dict[int, float]:
        """Divide the partitions now by the measured speed of the actors; slow actors lose theirs anyway, later.

        Returns the weights by id, where 1.0 is an even share; weights of 1.0 are omitted.
        """
        return self._actors.rebalance()

    def close(self) -> None:
        """Stop reading, and end the actors unless others share them. get_state works on; `source` stays open."""
        atexit.unregister(self._at_exit)
        self._actors.close()  # first, so that nobody waits for actors any more
        self._consumer.end()

    def _bounded(self, options: StreamOptions) -> StreamOptions:
        if self._is_named:
            self._actors.membership.expect(options.process_count)
        if options.timings is not None:
            self._actors.membership.measures.follow(options.timings)
        return replace(
            options,
            chunk_size=self._chunk_size,
            max_nbytes=self._actors.membership.max_nbytes,
            stall_after_s=self._stall_after_s,
            shares_actors=self._is_named,
        )

    def __repr__(self) -> str:
        endless = ", endless" if is_endless(self.description) else ""
        return f"RaySource(num_actors={self.num_actors}, num_running={self.num_running}, {self.description}{endless})"


def limits(num_actors: Any, of_none: str = "one per CPU") -> tuple[int, int]:
    """(least, most) of a user's num_actors: a number, or such a pair. of_none: the meaning of None, for the error.

    >>> limits(4), limits((2, 16))
    ((4, 4), (2, 16))
    """
    if isinstance(num_actors, tuple | list):
        if len(num_actors) != 2:
            raise ValueError(f"num_actors must be a number, or (least, most), got {num_actors!r}")
        least, most = (whole("num_actors", number) for number in num_actors)
    else:
        least = most = whole("num_actors", num_actors, f", (least, most) for as many as help, or None for {of_none}")
    if least < 1 or most < least:
        raise ValueError(
            f"num_actors must be at least 1, or (least, most) with 1 <= least <= most, got {num_actors!r}; "
            f"None is for {of_none}"
        )
    return least, most


def _check_source(source: Any) -> None:
    """Raise TypeError for what no RaySource distributes."""
    if isinstance(source, RaySource):
        raise TypeError("this source is a RaySource already; give the source that it reads")
    if not callable(getattr(source, "describe", None)):
        is_path = isinstance(source, str | os.PathLike)
        remedy = f"; load({str(source)!r}, num_actors=...) makes both of files" if is_path else remedy_for(source)
        raise TypeError(f"RaySource distributes sources of datarax_ray.sources, got {type(source).__name__}{remedy}")


def _check_share(share: Any, given: Mapping[str, Any]) -> None:
    """Raise TypeError for what has no actors to share, ValueError for settings of these actors."""
    if not isinstance(share, RaySource):
        raise TypeError(f"share is a RaySource, got {type(share).__name__}")
    parameters = inspect.signature(RaySource).parameters
    changed = [f"{name}={value!r}" for name, value in given.items() if value != parameters[name].default]
    if changed:
        raise ValueError(
            f"{', '.join(changed)} sets up actors, and share= takes existing actors; give it to the RaySource of these"
        )


def _check_namespace(name: str | None) -> None:
    """Log a warning if no other driver can find actors of this name.

    A driver that gives no namespace has one of its own, a UUID; tasks and actors of a job share the job's.
    """
    namespace = ray.get_runtime_context().namespace
    try:
        uuid.UUID(namespace)
    except ValueError:
        return
    if name is not None and ray._private.worker.global_worker.mode == ray.SCRIPT_MODE:
        logger.warning(
            "actors named %r are shared by the drivers of one Ray namespace, and this driver has one of its own "
            "(%s); call ray.init(namespace=...) in every trainer",
            name,
            namespace,
        )


def _default_num_actors(num_cpus: float) -> int:
    """One per CPU but one, also where actors reserve less than a CPU: each needs one to read with."""
    return max(1, int(ray.cluster_resources().get("CPU", 1) / max(num_cpus, 1.0)) - 1)


def _bound(max_nbytes: int | None) -> Bound:
    """The bound, with the size of the cluster's object stores."""
    store = ray.cluster_resources().get("object_store_memory", 0)
    return Bound(max_nbytes, store / max(1, sum(node["Alive"] for node in ray.nodes())), store)
