"""The pipeline's state as one JSON item of an Orbax checkpoint, beside the model in the same step.

Source: Orbax's CheckpointHandler interface, orbax.checkpoint.args.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from datarax_ray.pipeline.pipeline import Pipeline
from datarax_ray.plan.arguments import NamedArguments, named_arguments
from datarax_ray.plan.fingerprint import VERSION, DriftError, check_drift, digest
from datarax_ray.plan.rolling_digest import RollingDigest, added

logger = logging.getLogger("datarax_ray")

FILE = "datarax_ray.json"
_CHECKSUM = "checksum"  # of the other values: a flipped bit in a position is a position too
# A state is under 4 KB, and that of a stream has some hundred bytes more for each of its shards: here for 30,000. What
# is larger is no state, and is not read into memory.
_MAX_NBYTES = 2**24


class PipelineHandler(ocp.CheckpointHandler):
    """Writes and reads the state of a Pipeline. The state is taken when `save` is called, also by an async manager.

    The primary process writes it: the state is the same on all of them, but for a digest, where each has that of its
    own rows. The others write theirs beside it, those that are the same into one file; and `finalize`, once all have,
    adds the digests up, and holds the rest against one another: trainers that read two streams are told.
    """

    def save(self, directory: epath.Path, args: PipelineSave) -> None:
        state, process = args.pipeline.get_state(), jax.process_index()
        if process == 0:
            _write(directory / FILE, state)
        elif _has_own(state):
            _write(directory / f"trainer-{process}.json", state)
        else:
            state = {name: value for name, value in state.items() if name != "statistics"}
            _write(directory / f"trainer-{digest(json.loads(json.dumps(state)))}.json", state)

    def restore(self, directory: epath.Path, args: PipelineRestore | None = None) -> Pipeline | dict[str, Any]:
        """The pipeline itself, gone back to the saved state; without a pipeline the state, as it was saved."""
        state = read_state(directory)
        if args is None or args.pipeline is None:
            return state
        try:
            args.pipeline.set_state(state, allow_drift=args.allow_drift)
        except (TypeError, ValueError) as error:
            error.add_note(f"in {directory / FILE}")
            raise
        return args.pipeline

    def metadata(self, directory: epath.Path) -> dict[str, Any]:
        """The state as it stands in the checkpoint."""
        return read_state(directory)

    def finalize(self, directory: epath.Path) -> None:
        """Raises: ValueError where trainers stand at several steps, or read several streams."""
        paths = sorted(directory.glob("trainer-*.json"))
        if not paths or not (directory / FILE).exists():  # on a disk that is another process's alone
            return
        state, others = read_state(directory), [read_state(directory, path.name) for path in paths]
        for path, other in zip(paths, others, strict=True):
            _check_same(
                state, other, f"trainer {path.stem.removeprefix('trainer-')}" if _has_own(other) else "a trainer"
            )
        told = [each for each in (state, *others) if "digest" in each]
        if len(told) > 1:
            whole = added(RollingDigest.from_json(each["digest"]) for each in told)
            if whole is None:
                logger.warning(
                    "the digests of %d trainers do not add up to that of all rows, so the checkpoint has that of one "
                    "alone: %s. They must begin at one position",
                    len(told),
                    [{name: each[name] for name in ("version", "position", "digest")} for each in told],
                )
                return
            _write(directory / FILE, state | {"digest": whole.to_json()})
        for path in paths:
            path.unlink()

    def close(self) -> None:
        pass


@ocp.args.register_with_handler(PipelineHandler, for_save=True)
@dataclass
class PipelineSave(NamedArguments, ocp.args.CheckpointArgs):
    """Save a pipeline's state: `Composite(model=..., data=PipelineSave(pipeline))`.

    Raises: TypeError for what is no pipeline.
    """

    pipeline: Pipeline

    def __post_init__(self) -> None:
        _check(self.pipeline)


@ocp.args.register_with_handler(PipelineHandler, for_restore=True)
@dataclass
class PipelineRestore(NamedArguments, ocp.args.CheckpointArgs):
    """Bring a pipeline back to a saved state, with any number of actors and trainers.

    pipeline: None, as in `manager.restore(step)` without args, gives the saved state itself, a dict. allow_drift:
    settings that may differ on purpose; see Pipeline.set_state.
    """

    pipeline: Pipeline | None = None
    allow_drift: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.pipeline is not None:
            _check(self.pipeline)


def _check(pipeline: Any) -> None:
    """Said here, where the caller stands: Orbax saves in a thread, and its log of what fails there is forty lines."""
    if not isinstance(pipeline, Pipeline):
        raise TypeError(f"PipelineSave and PipelineRestore take the pipeline itself, got {type(pipeline).__name__}")


@named_arguments
def save_pipeline(directory: str | epath.PathLike, pipeline: Pipeline, *, force: bool = False) -> None:
    """Save only the data's state into a new directory. force: replace what is there."""
    with ocp.Checkpointer(PipelineHandler()) as checkpointer:
        checkpointer.save(epath.Path(directory).absolute(), args=PipelineSave(pipeline), force=force)


@named_arguments
def restore_pipeline(directory: str | epath.PathLike, pipeline: Pipeline, *, allow_drift: Sequence[str] = ()) -> None:
    """Bring a pipeline back to what save_pipeline saved."""
    with ocp.Checkpointer(PipelineHandler()) as checkpointer:
        checkpointer.restore(epath.Path(directory).absolute(), args=PipelineRestore(pipeline, allow_drift))


def _has_own(state: dict[str, Any]) -> bool:
    """Whether it says more than that of another trainer may, or may say something else."""
    return "parts" in state.get("digest", {}) or bool(_amendments(state))


def _check_same(state: dict[str, Any], other: dict[str, Any], who: str) -> None:
    """Raise ValueError where another trainer's state is not that of trainer 0."""
    if (found := _amendments(other)) != (wanted := _amendments(state)):
        raise ValueError(
            f"{who} amended the stream by {json.dumps(found)}, and trainer 0 by {json.dumps(wanted)}: they read two "
            "streams, so nothing is saved. Restore a step from before, and call amend in every trainer with the same, "
            "at the same step"
        )
    try:
        check_drift(state["settings"], other["settings"])
    except DriftError as error:
        raise ValueError(
            f"{who} reads another stream than trainer 0, so nothing is saved; where it says checkpoint, that is "
            f"trainer 0: {error} Make the same pipeline in every process: it shares the rows out by itself"
        ) from error
    if any(other.get(name) != state.get(name) for name in ("position", "rest")):
        raise ValueError(
            f"{who} stands at position {other['position']}, and trainer 0 at {state['position']}: the checkpoint "
            "would be right for one of them, so nothing is saved. Save behind the same batch in every process"
        )


def _amendments(state: dict[str, Any]) -> list[Any]:
    return state.get("rest", {}).get("amendments", [])


def _write(path: epath.Path, state: dict[str, Any]) -> None:
    state = json.loads(json.dumps(state))  # as it will be read
    path.write_bytes(json.dumps(state | {_CHECKSUM: digest(state)}, indent=2).encode())


def read_state(directory: epath.Path, name: str = FILE) -> dict[str, Any]:
    """The saved state. Raises: FileNotFoundError, ValueError for what is none, with the path."""
    path = epath.Path(directory) / name
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no saved pipeline here")
    with path.open("rb") as file:
        content = file.read(_MAX_NBYTES + 1)
    if len(content) > _MAX_NBYTES:
        raise ValueError(
            f"{path} has {path.stat().length:,} bytes; a saved pipeline has at most {_MAX_NBYTES:,}, so this is none"
        )
    try:
        state = json.loads(content.decode(), object_pairs_hook=_distinct, parse_constant=_refuse_constant)
        checksum = state.pop(_CHECKSUM, None) if isinstance(state, dict) else None
        found = digest(state)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON ({error}); the checkpoint is damaged, restore an earlier step") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} holds a {type(state).__name__}, a saved pipeline is an object")
    # Another version may have another checksum; that it is another is said by who takes the state.
    if state.get("version") == VERSION and checksum != found:
        wrong = "has no checksum" if checksum is None else "is not what its checksum says"
        raise ValueError(f"{path} {wrong}: it is damaged, or was edited. Restore an earlier step")
    return state


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
