"""The pipeline's state as one JSON item of an Orbax checkpoint, beside the model in the same step.

Source: Orbax's CheckpointHandler interface, orbax.checkpoint.args.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from datarax_ray.pipeline.pipeline import Pipeline
from datarax_ray.plan.arguments import NamedArguments, named_arguments
from datarax_ray.plan.evidence import RollingDigest, added
from datarax_ray.plan.fingerprint import VERSION, differences
from datarax_ray.plan.plain_values import digest

logger = logging.getLogger("datarax_ray")

FILE = "datarax_ray.json"
_CHECKSUM = "checksum"  # of the other values: a flipped bit in a position is a position too
# A state is under 4 KB, and a stream adds some hundred bytes for each shard, here of 30,000. A larger file is not read.
_MAX_NBYTES = 2**24


class PipelineHandler(ocp.CheckpointHandler):
    """Writes and reads the state of a Pipeline. The state is taken when `save` is called, also by an async manager.

    The primary process writes the state, which is the same in all processes but for the digest of their own rows. The
    others write those digests beside it, and `finalize` adds them up.
    """

    def save(self, directory: epath.Path, args: PipelineSave) -> None:
        state, process = args.pipeline.get_state(), jax.process_index()
        if process == 0:
            _write(directory / FILE, state)
        elif "parts" in state.get("digest", {}):
            _write(directory / f"trainer-{process}.json", state)

    def restore(self, directory: epath.Path, args: PipelineRestore | None = None) -> Pipeline | dict[str, Any]:
        """The pipeline itself at the saved state; without a pipeline the saved state."""
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
        """Add up the digests of all trainers' rows."""
        paths = sorted(directory.glob("trainer-*.json"))
        if not paths or not (directory / FILE).exists():  # on a disk that is another process's alone
            return
        state, others = read_state(directory), [read_state(directory, path.name) for path in paths]
        told = [each for each in (state, *others) if "digest" in each]
        if len(told) > 1:
            whole = added(RollingDigest.from_json(each["digest"]) for each in told)
            if whole is None:
                logger.warning(
                    "the digests of %d trainers do not begin at one position, so they cannot be added up, and the "
                    "checkpoint has the digest of one trainer alone: %s",
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

    In a job of several processes each makes one at the same step; their states are compared before they are written.

    Raises: TypeError for another object; ValueError, in every process, where streams or steps differ.
    """

    pipeline: Pipeline

    def __post_init__(self) -> None:
        _check(self.pipeline)
        if jax.process_count() > 1:
            check_trainers(_states_of_all(self.pipeline.get_state()))


@ocp.args.register_with_handler(PipelineHandler, for_restore=True)
@dataclass
class PipelineRestore(NamedArguments, ocp.args.CheckpointArgs):
    """Bring a pipeline back to a saved state, with any number of actors and trainers.

    pipeline: None, as in `manager.restore(step)` without args, gives the saved state itself, a dict.
    allow_drift: settings that may differ on purpose; see Pipeline.set_state.
    """

    pipeline: Pipeline | None = None
    allow_drift: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.pipeline is not None:
            _check(self.pipeline)


def _check(pipeline: Any) -> None:
    """Checked where the caller stands: an error in Orbax's thread is forty lines of log."""
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


def check_trainers(states: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError unless the states of all trainers of a job agree, but for their own rows."""
    first = states[0]
    for index, other in enumerate(states[1:], 1):
        who = f"trainer {index}"
        found, wanted = (_rest(state)["amendments"] for state in (other, first))
        if found != wanted:
            raise ValueError(
                f"{who} amended the stream by {json.dumps(found)}, and trainer 0 by {json.dumps(wanted)}, so nothing "
                "is saved. Restore an earlier step, and call amend with the same arguments in every trainer at one step"
            )
        if told := differences(first["settings"], other["settings"]):
            raise ValueError(
                f"{who} reads another stream than trainer 0, so nothing is saved. Trainer 0 and {who} have:{told}\n"
                "Make the same pipeline in every process: it divides the rows by itself"
            )
        if other["position"] != first["position"] or _rest(other) != _rest(first):
            raise ValueError(
                f"{who} stands at position {other['position']}, and trainer 0 at {first['position']}, so nothing is "
                "saved. Save after the same batch in every process"
            )


def _states_of_all(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The states of all processes, each of which must ask; one state where all are the same."""
    of_own = ("digest", "statistics", "evidence")
    told = json.dumps({name: value for name, value in state.items() if name not in of_own}, sort_keys=True).encode()
    mark = np.frombuffer(hashlib.sha256(told).digest() + len(told).to_bytes(8), np.uint8)
    marks = multihost_utils.process_allgather(mark)
    if (marks == mark).all():
        return [state]
    nbytes = [int.from_bytes(each[-8:].tobytes()) for each in marks]
    padded = np.frombuffer(told.ljust(max(nbytes)), np.uint8)
    return [json.loads(each.tobytes()) for each in multihost_utils.process_allgather(padded)]


def _rest(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a state holds beside its position, without the reasons of amendments."""
    rest = state.get("rest", {})
    amendments = [{name: each[name] for name in each if name != "why"} for each in rest.get("amendments", [])]
    return rest | {"amendments": amendments}


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
        state = json.loads(content.decode())
        checksum = state.pop(_CHECKSUM, None) if isinstance(state, dict) else None
        found = digest(state)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON ({error}); the checkpoint is damaged, restore an earlier step") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} holds a {type(state).__name__}, a saved pipeline is an object")
    # Another version may have another checksum; set_state refuses the version.
    if state.get("version") == VERSION and checksum != found:
        wrong = "has no checksum" if checksum is None else "is not what its checksum says"
        raise ValueError(f"{path} {wrong}: it is damaged, or was edited. Restore an earlier step")
    return state
