"""The lock that threads share, and forked processes do not."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from datarax_ray.read import forked
from datarax_ray.read.forked import ThreadLock

FORK = """
import os, warnings
from concurrent.futures import ThreadPoolExecutor
from datarax_ray.read.forked import ThreadLock
warnings.simplefilter("ignore")  # Python's, of a fork beside a thread
lock = ThreadLock()
with ThreadPoolExecutor(1) as thread:
    thread.submit(lock.__enter__).result()
    child = os.fork()
    if not child:
        with lock:
            os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    thread.submit(lock.__exit__).result()
with lock:
    print("free")
"""


def is_free(lock: ThreadLock) -> bool:
    """Whether another thread could take it now."""
    with ThreadPoolExecutor(1) as other:
        return other.submit(lambda: lock._lock.acquire(blocking=False) and lock._lock.release() is None).result()


def test_one_thread_holds_it_as_often_as_it_likes_and_no_other_one():
    lock = ThreadLock()
    with lock, lock:
        assert not is_free(lock)
        assert is_free(pickle.loads(pickle.dumps(lock)))
    assert is_free(lock)


def test_a_process_that_is_forked_off_while_another_thread_holds_it_has_its_own():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["7", "free"]


def test_a_long_wait_for_a_users_code_is_logged_with_who_holds_it_and_at_which_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked, "_TELL_AFTER_S", 0.01)
    lock, has_lock, is_logged = ThreadLock("the lock of Halved"), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            has_lock.set()
            assert is_logged.wait(20)

    caplog.handler.addFilter(lambda record: is_logged.set() is None)
    thread = threading.Thread(target=hold, name="holding")
    thread.start()
    assert has_lock.wait(20)
    with caplog.at_level(logging.WARNING, "datarax_ray"), lock:
        pass
    thread.join()
    (message,) = caplog.messages
    assert "for the lock of Halved, held by thread holding at " in message
    assert "threading.py:" in message
