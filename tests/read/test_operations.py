"""Operations on one element, by hand."""

import numpy as np

from datarax_ray.grain.engine.transform_chain import Item, Operation, expand


def outputs(operations, data, rng=None):
    made, error = expand(operations, Item(5, rng, data))
    assert error is None
    return [item.data for item in made]


def test_an_operation_may_reuse_its_buffer_also_inside_a_flat_map():
    buffer = np.zeros(2, np.int64)

    def fill(element):
        buffer[:] = element
        return buffer

    def both(element):
        for value in (element, -element):
            yield fill(value)

    items = [Item(index, None, index) for index in range(3)]
    fills = [Operation("map", fill, "Fill", 0)]
    assert [out.data.tolist() for item in items for out in expand(fills, item)[0]] == [[0, 0], [1, 1], [2, 2]]
    boths = [Operation("flat_map", both, "Both", 0, 2), Operation("map", lambda e: e[:1], "First", 1)]
    outputs = expand(boths, Item(5, None, 5))[0]
    assert [out.data.tolist() for out in outputs] == [[5], [-5]]


def test_an_operation_that_exits_is_its_elements_error():
    def leave(element):
        raise SystemExit(0)

    outputs, error = expand([Operation("map", leave, "Leave", 0)], Item(0, None, 3))
    assert (outputs, str(error.reason)) == ([], "operation 0 (Leave) raised SystemExit: 0")


def test_an_error_comes_after_what_was_made_before_it_and_names_the_operation():
    flat = Operation("flat_map", lambda x: range(4), "Four", 0)
    divide = Operation("map", lambda x: 6 // (2 - x), "Divide", 1)
    made, error = expand([flat, divide], Item(0, None, None))
    assert [item.data for item in made] == [3, 6]
    assert error is not None
    assert error.reason == "operation 1 (Divide) raised ZeroDivisionError: integer division or modulo by zero"
