"""Test that the loops of input pipelines equal NumPy bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshflow.kernels import row_gather

compiled = pytest.mark.skipif(
    row_gather._load_loops() is None, reason="the loops are not built here"
)


def by_numpy(function):
    saved, row_gather._load_loops = row_gather._load_loops, lambda: None
    try:
        return function()
    finally:
        row_gather._load_loops = saved


@st.composite
def sources(draw):
    """Return arrays of any layout: contiguous, strided, reversed, transposed."""
    dtype = np.dtype(draw(st.sampled_from((*row_gather.TYPES, "float16", "complex64"))))
    shape = draw(st.lists(st.integers(1, 5), max_size=3))
    count = draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    numbers = rng.integers(-120, 120, (2 * count, *shape))
    array = (numbers * (0.37 if dtype.kind == "f" else 1)).astype(dtype)
    layout = draw(st.sampled_from(("whole", "stepped", "reversed", "columns")))
    if layout == "stepped":
        array = array[::2]
    elif layout == "reversed":
        array = array[::-1]
    elif layout == "columns" and array.ndim > 1:
        array = np.asfortranarray(array)
    return array


@st.composite
def steps(draw, size):
    found = []
    for name in draw(st.lists(st.sampled_from(sorted(row_gather.OPERATIONS)), max_size=4)):
        value = draw(st.floats(-5, 5, width=32).filter(lambda v: abs(v) > 1e-3))
        whole = np.linspace(value, value + 3, size, dtype=np.float32)
        found.append(
            row_gather.RowStep(name, whole if draw(st.booleans()) else np.array(value, "f4"))
        )
    return tuple(found)


@compiled
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_rows_are_taken_and_computed_as_by_numpy(data):
    array = data.draw(sources())
    index = np.array(data.draw(st.lists(st.integers(0, len(array) - 1), min_size=1, max_size=12)))
    size = int(np.prod(array.shape[1:]))
    todo = data.draw(st.none() | steps(size))
    if array.dtype.kind == "c":
        todo = None
    dtype = array.dtype if todo is None else np.float32

    def result():
        out = np.full((len(index), *array.shape[1:]), 7, dtype)
        return row_gather.take_rows(array, index, out, todo).tobytes()

    found = result()
    assert found == by_numpy(result)
    if todo is None:
        assert found == array[index].tobytes()


@compiled
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16", "bool"])
@pytest.mark.parametrize("divisor", [255, 3, 0.1, 7e-30, 1e38, 0, float("inf"), -49.5])
def test_quotients_are_exact(dtype, divisor):
    every = np.arange(1 << 16).astype(dtype).reshape(-1, 1024)
    array = np.concatenate([every] * 5)
    first = row_gather.RowStep("sub", np.array(17.3, "f4"))
    divided = row_gather.RowStep("div", np.array(divisor, "f4"))
    for steps in ((divided,), (first, divided), (divided, first, divided)):
        taken = lambda s=steps: row_gather.take_rows(
            array, np.arange(64), np.empty((64, 1024), "f4"), s
        )
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(taken(), by_numpy(taken))


@compiled
def test_rows_taken_by_another_thread(monkeypatch):
    monkeypatch.setattr(row_gather, "_count_threads", lambda: 2)
    array = np.random.default_rng(0).integers(0, 255, (300, 1000), np.uint8)
    source = row_gather.RowSource(array, (row_gather.RowStep("mul", np.array(3, "f4")),))
    rng = np.random.default_rng(1)
    begun = []
    # More requests than may be started at a time, including unused ones.
    for number in range(90):
        index = rng.integers(0, 300, 60)
        out = np.zeros((60, 1000), "f4")
        job = source.start(index, out, out.ctypes.data)
        if number % 4 and job is not None:
            begun.append((index, job))
        if len(begun) > 40 or job is None:
            chosen, ready = begun.pop(int(rng.integers(len(begun))))
            np.testing.assert_array_equal(ready.result(), array[chosen] * np.float32(3))
    for index, job in begun:
        np.testing.assert_array_equal(job.result(), array[index] * np.float32(3))
    out = np.zeros((1, 1000), "f4")
    with pytest.raises(IndexError, match="300"):
        source.start(np.array([300]), out, out.ctypes.data).result()


@compiled
def test_many_rows_are_divided_among_threads():
    array = np.random.default_rng(0).integers(0, 255, (2000, 700), np.uint8)
    index = np.random.default_rng(1).permutation(2000)
    step = row_gather.RowStep("div", np.array(255, "f4"))
    out = row_gather.take_rows(array, index, np.empty(array.shape, "f4"), (step,))
    np.testing.assert_array_equal(out, array[index].astype("f4") / np.float32(255))


@pytest.mark.parametrize("loops", [True, False])
def test_a_row_that_is_not_there(monkeypatch, loops):
    if not loops:
        monkeypatch.setattr(row_gather, "_load_loops", lambda: None)
    with pytest.raises(IndexError):
        row_gather.take_rows(np.zeros((3, 2)), np.array([0, 3]), np.empty((2, 2)))


@compiled
@settings(max_examples=50, deadline=None)
@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 99))
def test_random_order_of_a_shuffle(size, count, seed):
    rng = np.random.default_rng(seed)
    words, items = (
        rng.integers(1 << 32, size=max(count, size), dtype=np.uint32),
        np.arange(100, 100 + count),
    )

    def exchanged():
        buffer = np.arange(size)
        found, first = row_gather.exchange_ring(words[:count], items, buffer, size // 2)
        drained = row_gather.shuffle(words[:size], buffer.copy())
        return found.tolist(), buffer.tolist(), first, drained.tolist()

    assert exchanged() == by_numpy(exchanged)
    found, _, _, drained = exchanged()
    assert sorted(found + drained) == sorted([*range(size), *items])
