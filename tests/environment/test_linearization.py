"""Direct linearizations of primitives give the bits that JAX's own give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from meshflow.environment import linearization
from meshflow.environment.jax_internals import jex_primitives, linearization_rules

X = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
Y = np.random.default_rng(1).normal(size=(3, 4)).astype("float32")
IMAGES = X.reshape(1, 3, 4, 1)
KERNEL = Y[:2, :2].reshape(2, 2, 1, 1)

# Functions of floating arrays. Some operands have no tangents, and some results none.
FUNCTIONS = {
    "add": (lambda x, y: x + y, X, Y),
    "add broadcast": (lambda x, y: lax.add(x, y), X, Y[:, :1]),
    "add constant": (lambda x: lax.add(x, Y[:1]), X[:, :1]),
    "subtract": (lambda x, y: lax.sub(x, y), X[:1], Y),
    "subtract from constant": (lambda x: lax.sub(Y, x), X[:, :1]),
    "multiply": (lambda x, y: x * y, X, Y),
    "multiply broadcast": (lambda x, y: lax.mul(x, y), X[:1], Y[:, :1]),
    "square by product": (lambda x: x * x, X),
    "scale": (lambda x: 2.0 * x, X),
    "negate": (lambda x: -x, X),
    "matmul": (lambda x, y: x @ y.T, X, Y),
    "batched products": (lambda x, y: jnp.einsum("ij,ik->ijk", x, y), X, Y),
    "convolution": (
        lambda x, k: lax.conv_general_dilated(
            x, k, (1, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        IMAGES,
        KERNEL,
    ),
    "select": (lambda x, y: jnp.where(x > 0, x, y), X, Y),
    "select constant": (lambda x: jnp.where(x > 0, x, 0.0), X),
    "concatenate": (lambda x, y: jnp.concatenate([x, Y, y]), X, Y),
    "pad": (lambda x: jnp.pad(x, 1), X),
    "slice": (lambda x: x[1:, ::2], X),
    "sum": (lambda x: x.sum(0), X),
    "reshape": (lambda x: x.reshape(2, 6).T, X),
    "squeeze": (lambda x: lax.squeeze(x, (1,)), X[:, :1]),
    "convert": (lambda x: x.astype(jnp.float16).astype(jnp.float32) * 3, X),
    "convert to integers": (lambda x: x + x.astype(jnp.int32), X),
    "complex": (lambda x, y: (lax.complex(x, y) * lax.complex(y, x)).real, X, Y),
    "normalization": (lambda x, y: (x - x.mean(0)) / jnp.sqrt(jnp.var(x, 0) + 1e-3) * y, X, Y),
}


@pytest.fixture
def no_rules(monkeypatch):
    """Return a function that removes the rules."""

    def remove():
        for names in (linearization._LINEAR, linearization._BILINEAR, linearization._OTHER):
            for name in names:
                monkeypatch.delitem(linearization_rules, getattr(jex_primitives, f"{name}_p"))

    return remove


def differentiate(function, arrays):
    """Return the value, its gradients, gradients of these, and the forward derivative of the gradients."""
    loss = lambda *a: jnp.sum(jnp.sin(function(*a)))
    arguments = tuple(range(len(arrays)))
    gradients = jax.grad(loss, arguments)
    second = jax.grad(lambda *a: sum(jnp.vdot(g, g) for g in gradients(*a)), arguments)
    _, forward = jax.jvp(gradients, arrays, tuple(map(np.ones_like, arrays)))
    _, linear = jax.linearize(function, *arrays)
    return loss(*arrays), gradients(*arrays), second(*arrays), forward, linear(*arrays)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_equal_bit_by_bit(name, no_rules):
    function, *arrays = FUNCTIONS[name]
    found = jax.tree.leaves(differentiate(function, tuple(arrays)))
    no_rules()
    expected = jax.tree.leaves(differentiate(function, tuple(arrays)))
    assert len(found) == len(expected)
    for f, e in zip(found, expected, strict=True):
        assert np.asarray(f).dtype == np.asarray(e).dtype
        assert np.asarray(f).tobytes() == np.asarray(e).tobytes()


def test_batched_and_compiled_gradients_agree(no_rules):
    function, *arrays = FUNCTIONS["normalization"]
    gradient = lambda *a: jax.vmap(jax.grad(lambda x, y: function(x[:, None], y[:, None]).sum()))(
        *a
    )
    found = jax.jit(gradient)(*arrays)
    no_rules()
    jax.clear_caches()
    assert np.asarray(found).tobytes() == np.asarray(jax.jit(gradient)(*arrays)).tobytes()
