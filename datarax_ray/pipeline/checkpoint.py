"""The pipeline's state as one JSON item of an Orbax checkpoint, beside the model in the same step.

Source: Orbax's CheckpointHandler interface, orbax.checkpoint.args.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from datarax_ray.pipeline.pipeline import Pipeline

_FILE = "datarax_ray.json"
# A state is under 4 KB; what is far larger is no state, and is not read into memory.
_MAX_NBYTES = 2**20


class PipelineHandler(ocp.CheckpointHandler):
    """Writes and reads the state of a Pipeline. The state is taken when `save` is called, also by an async manager.

    Only the primary process writes: the state is the same on all of them.
    """

    def save(self, directory: epath.Path, args: PipelineSave) -> None:
        if jax.process_index() == 0:
            text = json.dumps(args.pipeline.get_state(), indent=2)
            (directory / _FILE).write_text(text)

    def restore(self, directory: epath.Path, args: PipelineRestore) -> Pipeline:
        """The pipeline itself, gone back to the saved state."""
        args.pipeline.set_state(read_state(directory), allow_drift=args.allow_drift)
        return args.pipeline

    def metadata(self, directory: epath.Path) -> dict[str, Any]:
        """The state as it stands in the checkpoint."""
        return read_state(directory)

    def finalize(self, directory: epath.Path) -> None:
        pass

    def close(self) -> None:
        pass


@ocp.args.register_with_handler(PipelineHandler, for_save=True)
@dataclass
class PipelineSave(ocp.args.CheckpointArgs):
    """Save a pipeline's state: `Composite(model=..., data=PipelineSave(pipeline))`."""

    pipeline: Pipeline


@ocp.args.register_with_handler(PipelineHandler, for_restore=True)
@dataclass
class PipelineRestore(ocp.args.CheckpointArgs):
    """Bring a pipeline back to a saved state, with any number of actors and trainers.

    allow_drift: settings that may differ on purpose; see Pipeline.set_state.
    """

    pipeline: Pipeline
    allow_drift: Sequence[str] = ()


def save_pipeline(directory: str | epath.PathLike, pipeline: Pipeline, *, force: bool = False) -> None:
    """Save only the data's state into a new directory. force: replace what is there."""
    with ocp.Checkpointer(PipelineHandler()) as checkpointer:
        checkpointer.save(epath.Path(directory).absolute(), args=PipelineSave(pipeline), force=force)


def restore_pipeline(directory: str | epath.PathLike, pipeline: Pipeline, *, allow_drift: Sequence[str] = ()) -> None:
    """Bring a pipeline back to what save_pipeline saved."""
    with ocp.Checkpointer(PipelineHandler()) as checkpointer:
        checkpointer.restore(epath.Path(directory).absolute(), args=PipelineRestore(pipeline, allow_drift))


def read_state(directory: epath.Path) -> dict[str, Any]:
    """The saved state. Raises: FileNotFoundError, ValueError for what is none, with the path."""
    path = epath.Path(directory) / _FILE
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no saved pipeline here")
    nbytes = path.stat().length
    if nbytes > _MAX_NBYTES:
        raise ValueError(f"{path} has {nbytes:,} bytes; a saved pipeline has under 4,096, so this is none")
    try:
        state = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no JSON ({error}); the checkpoint is damaged, restore an earlier step") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} holds a {type(state).__name__}, a saved pipeline is an object")
    return state
