"""Memory that host arrays and device arrays share."""

import concurrent.futures

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshflow as tf
from meshflow.core.runtime import transfers


def test_arrays_of_ours_are_not_copied():
    array = transfers.allocate((100, 7), np.float32)
    array[:] = np.arange(700).reshape(100, 7)
    on_device = transfers.to_device(array)
    assert on_device.unsafe_buffer_pointer() == array.ctypes.data
    np.testing.assert_array_equal(on_device, array)
    part = transfers.to_device(array[32:48])
    assert part.unsafe_buffer_pointer() == array[32:].ctypes.data
    # A buffer that is not aligned is copied.
    np.testing.assert_array_equal(transfers.to_device(array[1:3]), array[1:3])
    np.testing.assert_array_equal(transfers.to_device(array[:, ::-2]), array[:, ::-2])


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_the_first_array_of_a_thread_may_be_empty(shape):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        array = pool.submit(transfers.allocate, shape, np.float32).result()
        assert array.shape == shape
        # The memory belongs to the next array too.
        after = pool.submit(transfers.allocate, (3,), np.float32).result()
    after[:] = 1
    assert transfers.to_device(array).shape == shape and transfers.is_immutable(array)
    [batch] = tf.data.Dataset.from_tensors(np.zeros(shape, np.float32)).batch(1)
    assert batch.shape == (1, *shape)


def test_is_owned_memory():
    array = transfers.allocate((100, 7), np.float32)
    array[:] = 0
    assert transfers.is_immutable(array[5:][:3]) and transfers.is_immutable(array.reshape(-1))
    assert transfers.is_immutable(np.asarray(tf.range(100)._value))
    for other in (
        np.zeros(50),
        np.zeros(50)[3:],
        array + 1,
        array.copy(),
        np.frombuffer(b"abc", "u1"),
    ):
        assert not transfers.is_immutable(other)


def test_arrays_of_others_may_change_later():
    array = np.arange(100.0)
    tensor = transfers.to_device(array)
    array[:] = 0
    assert float(tensor[3]) == 3


def test_memory_is_reused_after_its_last_reference():
    shape = (3 << 18,)
    first = transfers.allocate(shape, np.float32)
    first[:] = 1
    held = transfers.to_device(first)
    address = first.ctypes.data
    del first
    second = transfers.allocate(shape, np.float32)
    second[:] = 2
    assert second.ctypes.data != address and float(held[0]) == 1
    part = second[5:]
    place = second.ctypes.data
    del second
    assert transfers.allocate(shape, np.float32).ctypes.data != place
    assert part[0] == 2
    del part
    assert transfers.allocate(shape, np.float32).ctypes.data in (place, address)


def test_pool_size_is_bounded():
    arrays = [transfers.allocate((5 << 18,), np.float32) for _ in range(20)]
    del arrays
    assert sum(b.size for b in transfers._free_blocks) <= transfers._MAX_FREE_BYTES


def test_free_blocks_are_released_but_those_in_use_stay():
    held = transfers.to_device(np.arange(1 << 18))
    free = transfers.to_device(np.zeros(3 << 18))
    del free
    transfers.release_free_blocks()
    assert not transfers._free_blocks and transfers._free_bytes == 0
    again = transfers.allocate((1 << 18,), np.int64)
    again[:] = -1
    np.testing.assert_array_equal(held, np.arange(1 << 18))


@pytest.mark.parametrize("size", [1 << 10, 1 << 14, 100_000, 3 << 20])
def test_pool_returns_the_most_recent_buffer(size):
    arrays = [transfers.allocate((size,), np.uint8) for _ in range(3)]
    if size <= transfers._MAX_SMALL_BYTES:
        # Small arrays are adjacent in memory.
        assert arrays[2].ctypes.data - arrays[1].ctypes.data == size
        return
    last = arrays[1].ctypes.data
    del arrays[2], arrays[1]
    assert transfers.allocate((size - 7,), np.uint8).ctypes.data == last


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1 << 18), st.integers(0, 5)), max_size=60))
def test_arrays_in_use_do_not_share_memory(wanted):
    held = []
    for number, (size, dropped) in enumerate(wanted):
        array = transfers.allocate((size,), np.uint8)
        assert array.ctypes.data % transfers.ALIGNMENT == 0
        array[:] = number
        # Any owner of the memory: the array, a view, or a device array.
        array = (lambda a: a, lambda a: a[len(a) // 2 :], transfers.to_device)[number % 3](array)
        held.append((number, array))
        if dropped < len(held):
            del held[dropped]
    for number, array in held:
        assert (np.asarray(array) == number).all()


def test_threads_get_separate_memory():
    def work(number):
        kept = []
        for i in range(200):
            array = transfers.allocate((1 << (9 + i % 8),), np.uint8)
            array[:] = number
            kept = [*kept[-3:], array]
            if not all((a == number).all() for a in kept):
                return False
        return True

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(1, 5)))
