"""SIGTERM and Ctrl-C as a request: the training loop checks for it between two steps."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, final

FORWARDED = signal.SIGUSR1  # a SIGTERM that restarts.py passes on; a process that gets both has one request, not two


@final
class StopRequest:
    """Whether SIGTERM (`ray job stop`) or SIGINT (Ctrl-C) has come. The first asks for a stop, a second kills.

    signal_name: of the signal that came, None until then. A trainer in an actor gets no signals: its driver sets the
        name.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT, FORWARDED)

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        self._before = {number: signal.signal(number, self._on_signal) for number in self._SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            # restarts.py may pass it on only now, which by default would end the process before its last words
            signal.signal(number, signal.SIG_IGN if number == FORWARDED else handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == FORWARDED:
            self.signal_name = self.signal_name or signal.SIGTERM.name
            return
        self.signal_name = signal.Signals(number).name
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
