"""Waits for other threads: a circle of them is an error, and a long one is told."""

from __future__ import annotations

import logging
import threading

import pytest

from datarax_ray.read.errors import DeadlockError
from datarax_ray.read.forked import ThreadLock
from datarax_ray.read.waits import wait


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
