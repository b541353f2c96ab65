"""Memory is taken again when nobody can see it any more, and never before."""

import copy
import gc
import pickle
import threading

import numpy as np
import pytest

from datarax_ray.read.reused_memory import ReusedMemory, lender

U1 = np.dtype("uint8")


def address(array):
    return array.__array_interface__["data"][0]


@pytest.fixture
def memory():
    return ReusedMemory(max_free=2, min_nbytes=1)


def test_what_was_dropped_is_taken_again_and_what_is_held_is_not(memory):
    first = memory.empty((10, 10), U1)
    held = address(first)
    second = memory.empty((10, 10), U1)
    assert address(second) != held
    free = address(second)
    del second
    third = memory.empty((5, 5, 4), np.dtype("int8"))
    assert address(third) == free
    assert not address(third) % 64
    assert (third.shape, third.dtype, third.flags.writeable, third.flags.c_contiguous) == (
        (5, 5, 4),
        "int8",
        True,
        True,
    )


def test_arrays_that_are_nearly_alike_take_the_same_memory():
    memory = ReusedMemory(max_free=2, min_nbytes=1)
    assert len({address(memory.empty((rows, 1000), U1)) for rows in (111, 105, 114, 111)}) == 1


def test_an_array_tells_whose_memory_it_shows(memory):
    first, second = memory.empty((10, 10), U1), memory.empty((10, 10), U1)
    assert len(lender(first)) == 100
    for shown in (first[3:].view("int8").reshape(-1), np.ndarray(100, "i1", first)):
        assert lender(shown) is lender(first)
    assert lender(second) not in (None, lender(first))
    assert [lender(each) for each in (np.empty(4), first.copy(), np.frombuffer(bytes(8)))] == [None] * 3


@pytest.mark.parametrize(
    "show",
    [
        lambda array: array[3:5],
        lambda array: array.reshape(-1)[7:].view("int8"),
        lambda array: memoryview(array),
        lambda array: np.frombuffer(array, np.int16),
        lambda array: np.from_dlpack(array),
        lambda array: pickle.PickleBuffer(array),
        lambda array: np.lib.stride_tricks.as_strided(array, (3, 3), (1, 1)),
        lambda array: array.view(np.recarray),
        lambda array: array.base,
    ],
)
def test_whatever_shows_the_memory_keeps_it(memory, show):
    array = memory.empty((10, 10), U1)
    array[:] = 7
    at, shown = address(array), show(array)
    del array
    gc.collect()
    others = [memory.empty((10, 10), U1) for _ in range(3)]
    for other in others:
        other[:] = 9
    assert at not in map(address, others)
    del shown
    assert address(memory.empty((10, 10), U1)) == at


def test_a_copy_does_not_keep_it(memory):
    array = memory.empty((10, 10), U1)
    array[:] = 7
    at, copies = address(array), [array.copy(), pickle.loads(pickle.dumps(array)), copy.deepcopy(array)]
    del array
    again = memory.empty((10, 10), U1)
    again[:] = 9
    assert address(again) == at
    assert all((each == 7).all() for each in copies)


def test_any_thread_may_let_go(memory):
    held = []
    go_on = threading.Event()

    def drop():
        while not go_on.is_set() or held:
            if held:
                array = held.pop(0)
                assert (array == array[0]).all()

    thread = threading.Thread(target=drop)
    thread.start()
    for step in range(2000):
        array = memory.empty((64,), U1)
        array[:] = step % 251
        held.append(array)
        del array
    go_on.set()
    thread.join()
