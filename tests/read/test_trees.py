"""Elements of any kind on their way to the driver."""

import pickle

import numpy as np

from datarax_ray.grain.engine.stream import Elements, ObjectList


def test_a_box_is_one_buffer_and_its_arrays_may_be_written_to():
    buffers = []
    data = pickle.dumps(ObjectList([np.zeros(n) for n in range(100)]), 5, buffer_callback=buffers.append)
    assert buffers == []
    assert pickle.loads(data).values[3].flags.writeable


def test_a_box_of_what_pickle_cannot_is_left_to_the_pickler_around_it():
    reduced = ObjectList([lambda: 1]).__reduce__()
    assert reduced[0] is ObjectList


def test_bytes_are_counted():
    assert Elements(ObjectList(["ab", "cde"])).nbytes == 5
    assert Elements(ObjectList([np.zeros(2, np.int8), np.zeros(3, np.int8)])).nbytes == 5
