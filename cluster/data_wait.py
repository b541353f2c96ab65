"""The wait for data, which a stop may end where it would last for ever: all trainers of a job, or none of them.

In two phases, as for a checkpoint all must stand behind the same step, and nobody knows how far the others are. Each
is asked first where it waits (`hold`), and from then on does nothing with what comes; then all are told to end, or to
go on.
"""

from __future__ import annotations

import threading
from typing import Any, final

from datarax_ray import Pipeline


@final
class DataWait:
    """The wait of one trainer, in the thread that trains; `hold` and `decide` are for others.

    has_ended: whether it was ended. Then the pipeline is closed, and its state that of the last batch it gave.
    """

    def __init__(self) -> None:
        self.has_ended = False
        self._changed = threading.Condition()
        self._waiting: tuple[Pipeline, int, dict[str, Any]] | None = None  # behind which step, and the state there
        self._held: dict[str, Any] | None = None  # the state before the batch that is not to be used yet

    def batch(self, pipeline: Pipeline, step: int) -> Any:
        """The pipeline's next batch, for the step behind this one; None where the wait was ended.

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
        """The step behind which it waits: until `decide` nothing is done with a batch that comes. None: it does not."""
        with self._changed:
            if self._waiting is None:
                return None
            pipeline, step, state = self._waiting
            if pipeline.get_state() != state:  # it has just come; where it is of the same record the position stays
                return None
            self._held = state
            return step

    def decide(self, ends: bool) -> None:
        """End the wait that is held, or let it go on."""
        with self._changed:
            state, self._held = self._held, None
            if ends and state is not None and self._waiting is not None:
                self.has_ended = True
                pipeline, *_ = self._waiting
                pipeline.close()
                pipeline.set_state(state)  # a batch that has come meanwhile is not learned
            self._changed.notify_all()
