"""Functions of `lax` with broadcasting give the same equations as those of `jax.numpy`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import meshflow as tf
from meshflow.core.runtime.broadcasting import combine, select, take

SHAPES = [
    ((2, 3), (2, 3)),
    ((2, 3), (3,)),
    ((3,), (4, 1)),
    ((), (2, 3)),
    ((2, 1, 1), ()),
    ((1, 3), (2, 1)),
]


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize(
    "dtypes", [("float32", "float32"), ("bfloat16", "float32"), ("int32", "int8")]
)
def test_equations_are_those_of_numpy(shapes, dtypes):
    x, y = (jnp.ones(s, d) for s, d in zip(shapes, dtypes, strict=True))
    for function, reference in ((lax.add, jnp.add), (lax.mul, jnp.multiply), (lax.lt, jnp.less)):
        found = jax.make_jaxpr(lambda x, y: combine(function, x, y))(x, y)
        assert str(found) == str(jax.make_jaxpr(reference)(x, y))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_selected_elements(dtype):
    condition, x = jnp.array([[True, False], [False, True]]), jnp.array([[1, 2], [3, 4]], dtype)
    for y in (x.dtype.type(7), 10 * x):
        found = select(condition, x, y), select(condition, y, x)
        expected = jnp.where(condition, x, y), jnp.where(condition, y, x)
        for f, e in zip(found, expected, strict=True):
            assert f.dtype == e.dtype and f.tolist() == e.tolist()


def test_elements():
    vector = jnp.arange(4.0)
    assert [float(take(vector, i)) for i in range(4)] == vector.tolist()


@pytest.mark.parametrize("call", [tf.add, tf.multiply, tf.equal, tf.less, tf.truediv])
@pytest.mark.parametrize("run", [lambda f: f, tf.function])
def test_errors_name_the_shapes_of_the_operands(call, run):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[2, 3\] vs\. \[4\]"):
        run(call)(np.ones((2, 3), np.float32), np.ones(4, np.float32))
