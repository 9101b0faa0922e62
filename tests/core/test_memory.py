"""Memory that host arrays and device arrays share."""

import numpy as np

import meshflow as tf
from meshflow.core import memory


def test_arrays_of_ours_are_not_copied():
    array = memory.fresh((100, 7), np.float32)
    array[:] = np.arange(700).reshape(100, 7)
    on_device = memory.to_device(array)
    assert on_device.unsafe_buffer_pointer() == array.ctypes.data
    np.testing.assert_array_equal(on_device, array)
    part = memory.to_device(array[32:48])
    assert part.unsafe_buffer_pointer() == array[32:].ctypes.data
    # One that does not begin at a multiple of the alignment is.
    np.testing.assert_array_equal(memory.to_device(array[1:3]), array[1:3])
    np.testing.assert_array_equal(memory.to_device(array[:, ::-2]), array[:, ::-2])


def test_what_is_ours():
    array = memory.fresh((100, 7), np.float32)
    assert memory.is_ours(array[5:][:3]) and memory.is_ours(array.reshape(-1))
    assert memory.is_ours(np.asarray(tf.range(100)._value))
    for other in (
        np.zeros(50),
        np.zeros(50)[3:],
        array + 1,
        array.copy(),
        np.frombuffer(b"abc", "u1"),
    ):
        assert not memory.is_ours(other)


def test_arrays_of_others_may_change_later():
    array = np.arange(100.0)
    tensor = memory.to_device(array)
    array[:] = 0
    assert float(tensor[3]) == 3


def test_memory_is_used_again_when_nobody_has_it():
    shape = (3 << 18,)
    first = memory.fresh(shape, np.float32)
    first[:] = 1
    held = memory.to_device(first)
    address = first.ctypes.data
    del first
    second = memory.fresh(shape, np.float32)
    second[:] = 2
    assert second.ctypes.data != address and float(held[0]) == 1
    part = second[5:]
    place = second.ctypes.data
    del second
    assert memory.fresh(shape, np.float32).ctypes.data != place
    assert part[0] == 2
    del part
    assert memory.fresh(shape, np.float32).ctypes.data in (place, address)


def test_little_memory_is_kept():
    arrays = [memory.fresh((5 << 18,), np.float32) for _ in range(20)]
    del arrays
    assert sum(map(len, memory._kept)) <= memory._MOST
