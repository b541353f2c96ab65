"""Operations on one element, by hand."""

import numpy as np

from datarax_ray.grain.engine.transform_chain import Item, Operation, expand


def outputs(operations, data, rng=None):
    made, error = expand(operations, Item(5, rng, data))
    assert error is None
    return [item.data for item in made]


def test_random_maps_share_one_generator_that_goes_on():
    draw = Operation("random_map", lambda x, rng: [*x, rng.random()], "Draw", 0)
    reference = np.random.Generator(np.random.Philox(key=3))
    expected = [reference.random(), reference.random()]
    assert outputs([draw, draw], [], np.random.Generator(np.random.Philox(key=3))) == [expected]


def test_after_a_flat_map_there_is_no_generator_and_indices_are_spread():
    flat = Operation("flat_map", lambda x: (x, x + 1), "Twice", 0, fan_out=10)
    indexed = Operation("map_with_index", lambda index, x: (index, x), "Indexed", 1)
    random = Operation("random_map", lambda x, rng: (x, rng), "Draw", 2)
    rng = np.random.default_rng(0)
    assert outputs([flat, indexed, random], 7, rng) == [((50, 7), None), ((51, 8), None)]


def test_an_error_comes_after_what_was_made_before_it_and_names_the_operation():
    flat = Operation("flat_map", lambda x: range(4), "Four", 0)
    divide = Operation("map", lambda x: 6 // (2 - x), "Divide", 1)
    made, error = expand([flat, divide], Item(0, None, None))
    assert [item.data for item in made] == [3, 6]
    assert error is not None
    assert error.reason == "operation 1 (Divide) raised ZeroDivisionError: integer division or modulo by zero"


def test_a_filters_answer_is_taken_by_its_truth():
    assert outputs([Operation("filter", lambda x: None, "Keep", 0)], 1) == []
    assert outputs([Operation("filter", lambda x: np.bool_(True), "Keep", 0)], 1) == [1]
    _, error = expand([Operation("filter", lambda x: np.array([True, False]), "Keep", 0)], Item(0, None, 1))
    assert "truth value of an array" in str(error and error.reason)


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
