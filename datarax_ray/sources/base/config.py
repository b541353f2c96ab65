"""The configuration that every source shares. Source: datarax.core.config (StructuralConfig and its base)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from datarax_ray.plan.arguments import NamedArguments, flag, whole
from datarax_ray.plan.orders import cipher
from datarax_ray.plan.plain_values import shown
from datarax_ray.read.elements.transforms import OnError
from datarax_ray.read.skipped_records import MAX_SHARE, SkipOptions
from datarax_ray.read.stream import check_on_error, whole_epochs

# datarax's name for what an order is shuffled by. Here that is the seed, so nothing is drawn from it.
SHUFFLE_STREAM = "shuffle"
_FIELD = re.compile(r"^([a-z]\w*(?:, \w+)*): .*(?:\n .*)*", re.MULTILINE)  # of a docstring


def _with_fields(config: type[Any]) -> str:
    """The docstring of a config, and behind it what those of its bases say of other fields: help() tells of each."""
    mine, *bases = (inspect.cleandoc(each.__doc__ or "") for each in config.__mro__ if issubclass(each, SourceConfig))
    told = {name for match in _FIELD.finditer(mine) for name in match[1].split(", ")}
    others = []
    for match in (match for base in bases for match in _FIELD.finditer(base)):
        if told.isdisjoint(those := match[1].split(", ")):
            told.update(those)
            others.append(match[0])
    return "\n".join([mine, "", *others])


def check_given(source: type[Any], args: Sequence[Any], named: Iterable[str]) -> None:
    """Raise TypeError unless the config comes first, is of the source's kind, and the required arguments follow."""
    _, config, *others = inspect.signature(source.__init__).parameters.values()
    if not args or config.name != "config":
        return
    required = [each.name for each in others if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
    kind: type[Any] = source.config_type
    call = f"{source.__name__}({', '.join([f'{kind.__name__}(seed=7, ...)', *required])})"
    if not isinstance(args[0], kind):
        raise TypeError(f"{source.__name__} takes its config first, got {shown(args[0])}. Write {call}")
    if missing := [name for name in required[len(args) - 1 :] if name not in named]:
        raise TypeError(f"{source.__name__} takes {' and '.join(missing)} as well: {call}")


def check_shuffled(config: Any, *names: str, or_auto: bool = False) -> None:
    """Raise TypeError or ValueError unless these fields are whole numbers from 1 on, where shuffle is on, or None.

    or_auto: whether they may be "auto" as well.
    """
    for name in names:
        value = getattr(config, name)
        if value is None:
            continue
        is_auto = or_auto and isinstance(value, str) and value == "auto"
        try:
            number = value if is_auto else whole(name, value)
        except TypeError:
            or_else = "'auto' or None" if or_auto else "or None"
            raise TypeError(f"{name} is a whole number, {or_else}, got {value!r}") from None
        if not config.shuffle or (not is_auto and number < 1):
            raise ValueError(
                f"{name} must be at least 1 and needs shuffle=True, got {number}, shuffle={config.shuffle}"
            )
        object.__setattr__(config, name, number)


@dataclass(frozen=True, kw_only=True)
class SourceConfig(NamedArguments):
    """The settings of every source: seed, epochs and broken records. Frozen; checked when it is made.

    Its repr is the call that makes it, with the fields that differ from the defaults.

    cacheable: keep records in memory once read.
    batch_stats_fn: data -> statistics, for compute_statistics.
    precomputed_stats: statistics known already; not together with batch_stats_fn.
    stochastic, stream_name: whether the source draws from a stream of its rngs, and from which; both or neither.
    seed: 32 bits; epoch e is shuffled by seed + e, and random transforms draw from it.
    num_epochs: passes over the records; -1, the default, for endless.
    on_error: "raise" at a record that cannot be read, decoded or transformed; "skip" to count and list such records; or
        a function of the RecordError, True to skip. Behind a flat_map, single elements fail and are skipped.
    max_skipped: skipped records that end the run with an error: a whole number in all; a share (0.01, the default) of
        any 10,000 consecutive positions, counted anew after a resume; None for no limit. Of a mixture the smallest
        number and the largest share hold for all components together.
    skipped_path: a JSON-lines file, or a URL below which such files are written, that lists each skipped record once a
        pass, whatever the resumes; None for none. An existing file of another kind is refused.

    Raises: ValueError for a value outside its range, or for settings that contradict each other; TypeError.
    """

    cacheable: bool = False
    batch_stats_fn: Callable[[Any], dict[str, Any]] | None = None
    precomputed_stats: dict[str, Any] | None = field(default=None, hash=False)
    stochastic: bool = False
    stream_name: str | None = None
    seed: int = 42
    num_epochs: int = -1
    on_error: OnError = "raise"
    max_skipped: int | float | None = MAX_SHARE
    skipped_path: str | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__doc__ = _with_fields(cls)
        cls.__repr__ = SourceConfig.__repr__  # type: ignore[method-assign]  # or @dataclass writes one of all fields

    def __repr__(self) -> str:
        given = ((setting, getattr(self, setting.name)) for setting in fields(self))
        changed = [
            f"{setting.name}={' '.join(shown(value).split())}"  # arrays are shown in lines
            for setting, value in given
            if type(value) is not type(setting.default) or value != setting.default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __post_init__(self) -> None:
        for setting in fields(self):
            if setting.type == "bool":
                object.__setattr__(self, setting.name, flag(setting.name, getattr(self, setting.name)))
        if self.batch_stats_fn is not None and not callable(self.batch_stats_fn):
            raise TypeError(f"batch_stats_fn is a function of the data, got {self.batch_stats_fn!r}")
        if self.batch_stats_fn is not None and self.precomputed_stats is not None:
            raise ValueError("give batch_stats_fn or precomputed_stats, not both: the second would never be computed")
        if self.stochastic and self.stream_name is None:
            raise ValueError("a stochastic source needs stream_name, the stream of its rngs to draw from")
        if not self.stochastic and self.stream_name is not None:
            raise ValueError(f"stream_name={self.stream_name!r} has no use in a source that is not stochastic")
        cipher.check_seed(self.seed)
        if self.num_epochs is not None or type(self).num_epochs is not None:  # None is one pass where it is the default
            whole_epochs(self.num_epochs)
        check_on_error(self.on_error)
        SkipOptions.of(self.max_skipped)  # the path is checked by the source: the file may be on another machine
        for name, unset in (("max_skipped", MAX_SHARE), ("skipped_path", None)):
            if self.on_error == "raise" and (value := getattr(self, name)) not in (unset, None):
                raise ValueError(
                    f"{name}={value!r} needs on_error='skip' or a function, and on_error='raise' ends at the first "
                    "broken record"
                )

    @property
    def num_passes(self) -> int:
        """Epochs in the stream, -1 for endless."""
        return self.num_epochs

    @property
    def shown_epochs(self) -> str:
        """The number of epochs, for people who did not give one."""
        notes: dict[int | None, str] = {-1: " (endless)", None: " (one pass)"}
        return f"num_epochs={self.num_epochs}{notes.get(self.num_epochs, '')}"

    @property
    def skip_options(self) -> SkipOptions:
        """max_skipped and skipped_path. Raises: TypeError, ValueError as SkipOptions."""
        return SkipOptions.of(0.0 if self.on_error == "raise" else self.max_skipped, self.skipped_path)
