"""Waits for other threads: a circle of them is an error, and a long one is told."""

from __future__ import annotations

import logging
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from datarax_ray.read.errors import DeadlockError
from datarax_ray.read.forked import ThreadLock
from datarax_ray.read.waits import start, wait


def test_threads_that_take_two_locks_in_another_order_do_not_wait_for_ever() -> None:
    one, two = ThreadLock("one"), ThreadLock("two")
    has_one, has_two = threading.Event(), threading.Event()
    errors: list[DeadlockError] = []

    def take(first: ThreadLock, second: ThreadLock, has_first: threading.Event, has_second: threading.Event) -> None:
        with first:
            has_first.set()
            assert has_second.wait(20)
            try:
                with second:
                    pass
            except DeadlockError as error:
                errors.append(error)

    threads = [
        threading.Thread(target=take, args=args, daemon=True)
        for args in ((one, two, has_one, has_two), (two, one, has_two, has_one))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert errors  # of one of them at least; the other then has what it waits for
    with one, two:
        pass


def test_a_wait_for_a_thread_that_goes_on_is_no_circle() -> None:
    lock, has_lock, is_over = ThreadLock("it"), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            has_lock.set()
            is_over.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert has_lock.wait(20)
    threading.Timer(0.5, is_over.set).start()
    with lock:
        assert is_over.is_set()
    thread.join()


def test_a_long_wait_is_logged_once_with_who_has_what_is_waited_for_and_at_which_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait, args=(20,), name="holding")
    thread.start()
    looks = iter([False] * 5 + [True])
    with caplog.at_level(logging.WARNING, "datarax_ray"):
        wait(lambda _: next(looks), "the lock of Halved", lambda: thread.ident, tell_after_s=0)
    is_over.set()
    thread.join()
    (message,) = caplog.messages
    assert "the lock of Halved, which thread holding has, at " in message
    assert "threading.py:" in message


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])  # a signal's handler may raise anything
def test_an_interrupt_wherever_a_thread_is_being_started_comes_out_as_it_is(error: type[BaseException]) -> None:
    def interrupted_at(step: int) -> bool:
        """Start one, with an interrupt at this step of its waiting. Returns whether there is such a step."""
        left = step

        def interrupt(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            if frame.f_code is threading.Condition.wait.__code__:
                frame.f_trace_opcodes = True
                left -= event == "opcode"
                if not left:
                    left = -1
                    raise error
            return interrupt

        go, was = threading.Event(), sys.gettrace()
        thread = threading.Thread(target=print, daemon=True)
        thread.run = go.wait  # type: ignore[method-assign]
        sys.settrace(interrupt)
        try:
            start(thread)
        except error:
            return True
        finally:
            sys.settrace(was)
            go.set()
        return False

    assert not interrupted_at(10_000)  # first: Python 3.12 tells of opcodes from the next call on
    assert interrupted_at(1)
    for step in range(1, 200):
        interrupted_at(step)
