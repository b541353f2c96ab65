"""The lock that threads share, and forked processes do not."""

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

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


def is_free(lock):
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
