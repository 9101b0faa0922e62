"""Memory that somebody still refers to is neither filled again nor donated, as Python's versions count references."""

import jax.numpy as jnp
import numpy as np

from meshflow.distribute.parameter_server.transport.memory_pools import BufferPool
from meshflow.distribute.parameter_server.worker import worker
from meshflow.distribute.parameter_server.worker.worker import VariableRows

SIZE = 1 << 20


def test_unreferenced_buffers_are_reused():
    pool = BufferPool()
    first, second = pool.get(SIZE), pool.get(SIZE)
    assert first is not second
    view, number = first[:10], id(first)
    del first
    assert pool.get(SIZE) is not second and id(pool.get(SIZE)) != number
    del view
    assert id(pool.get(SIZE)) == number


def test_rows_of_shared_arrays_are_replaced_in_a_copy():
    rows = VariableRows(np.full((1, 2), 5, np.float32), np.array([1]))
    array = jnp.ones((3, 2))
    values = {0: array}
    worker._replace_rows(values, 0, rows)
    np.testing.assert_array_equal(array, np.ones((3, 2)))
    del array
    address = values[0].unsafe_buffer_pointer()
    worker._replace_rows(values, 0, rows)
    assert values[0].unsafe_buffer_pointer() == address
    np.testing.assert_array_equal(values[0], [[1, 1], [5, 5], [1, 1]])
