"""The wait for data. A stop ends the wait of all trainers of a job, or of none, as data may never come.

A checkpoint needs all trainers behind the same step, so the wait ends in two phases. `hold` asks each trainer behind
which step it waits; from then on the trainer uses no batch that comes. Then `decide` ends all waits, or lets all go on.
"""

from __future__ import annotations

import threading
from typing import Any, final

from datarax_ray import Pipeline


@final
class DataWait:
    """The wait of one trainer, in the thread that trains; other threads call `hold` and `decide`.

    has_ended: whether the wait was ended. Then the pipeline is closed, and its state is behind the last used batch.
    """

    def __init__(self) -> None:
        self.has_ended = False
        self._changed = threading.Condition()
        self._waiting: tuple[Pipeline, int, dict[str, Any]] | None = None  # behind which step, and the state there
        self._held: dict[str, Any] | None = None  # the state before the batch that is not to be used yet

    def batch(self, pipeline: Pipeline, step: int) -> Any:
        """The pipeline's next batch, for the step after `step`; None if the wait was ended.

        Raises: what the pipeline raises.
        """
        with self._changed:
            self._waiting = pipeline, step, pipeline.get_state()
        try:
            batch = pipeline.step()
        except RuntimeError:
            if not self.has_ended:
                raise
        finally:
            with self._changed:
                self._changed.wait_for(lambda: self._held is None)
                self._waiting = None
        return None if self.has_ended else batch

    def hold(self) -> int | None:
        """The step behind which the trainer waits; None if it does not wait. Until `decide` it uses no new batch."""
        with self._changed:
            if self._waiting is None:
                return None
            pipeline, step, state = self._waiting
            if pipeline.get_state() != state:  # it has just come; where it is of the same record the position stays
                return None
            self._held = state
            return step

    def decide(self, ends: bool) -> None:
        """End the held wait, or let it go on."""
        with self._changed:
            state, self._held = self._held, None
            if ends and state is not None and self._waiting is not None:
                self.has_ended = True
                pipeline, *_ = self._waiting
                pipeline.close()
                pipeline.set_state(state)  # a batch that has come meanwhile is not learned
            self._changed.notify_all()
