"""Arrays that are divided as others are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from meshflow.placement.sharding_groups import shard_like


@pytest.fixture
def rows():
    """A layout that divides the first dimension over all devices."""
    return NamedSharding(jax.make_mesh((4,), ("x",)), PartitionSpec("x"))


def test_the_result_has_the_layout_of_the_model(rows):
    model = jax.device_put(jnp.ones((8, 2)), rows)
    result = jax.jit(lambda model: shard_like(jnp.arange(16.0).reshape(8, 2), model))(model)
    assert result.sharding.is_equivalent_to(rows, 2)
    np.testing.assert_array_equal(result, np.arange(16.0).reshape(8, 2))
    assert shard_like(np.ones(2), np.zeros(2)).tolist() == [1, 1]


def test_only_the_array_has_a_gradient(rows):
    model = jax.device_put(jnp.ones((8, 2)), rows)

    def total(array, model):
        return (shard_like(array, model) * array).sum() + 3 * model.sum()

    array = jnp.arange(16.0).reshape(8, 2)
    of_array, of_model = jax.jit(jax.grad(total, (0, 1)))(array, model)
    np.testing.assert_array_equal(of_array, 2 * array)
    np.testing.assert_array_equal(of_model, np.full((8, 2), 3))
    tangent = jax.jvp(lambda array: shard_like(array, model), (array,), (2 * array,))[1]
    np.testing.assert_array_equal(tangent, 2 * array)


@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (0, None), (None, 1), (2, 1)])
def test_any_axis_may_be_the_batch(axes):
    shapes = [(2, 3) if axis is None else tuple(np.insert((2, 3), axis, 5)) for axis in axes]
    array, model = (np.random.default_rng(0).normal(size=s).astype("f") for s in shapes)
    found = jax.vmap(shard_like, axes)(array, model)
    expected = (
        np.broadcast_to(array, (5, 2, 3)) if axes[0] is None else np.moveaxis(array, axes[0], 0)
    )
    np.testing.assert_array_equal(found, expected)
