"""Test that computations of unchanged values are hoisted and run once, with equal bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from capabilities import needs
from meshflow.kernels import descriptors, lowerings
from meshflow.passes import constant_hoisting
from meshflow.passes.constant_hoisting import hoist_constants
from meshflow.passes.epilogue_fusion import fuse_epilogues

pytestmark = pytest.mark.optimized


def draw(shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape) * 0.2, dtype)


def split_program(fn, *args, stays=(1,)):
    return hoist_constants(fuse_epilogues(jax.make_jaxpr(fn)(*args)), stays)


def names(closed):
    return [e.primitive.name for e in closed.jaxpr.eqns]


def assert_same(fn, *args, stays=(1,)):
    """Assert that both parts in sequence have the bits of the complete program."""
    parts = split_program(fn, *args, stays=stays)
    early = jax.jit(jaxpr_as_fun(parts.hoisted))(*[args[i] for i in parts.operand_indices])
    got = jax.jit(jaxpr_as_fun(parts.remainder))(*args, *early)
    wanted = jax.jit(jaxpr_as_fun(fuse_epilogues(jax.make_jaxpr(fn)(*args))))(*args)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    return parts


X, W = draw((4, 256)), draw((256, 128), 1)


def test_a_cast_of_weights_is_made_apart():
    low = lambda x, w: x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)
    parts = assert_same(low, X, W)
    assert names(parts.hoisted) == ["convert_element_type"]
    assert parts.operand_indices == [1]
    assert names(parts.remainder) == ["convert_element_type", "dot_general"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: x @ w,  # nothing to hoist
        lambda x, w: (
            x @ w.reshape(128, 256).T.reshape(256, 128)[:, :64]
        ),  # depends on changing values
        lambda x, w: x @ jnp.exp(w),  # whose bits depend on surrounding code
        lambda x, w: x + w[:4, :1].astype(jnp.bfloat16),  # small
        lambda x, w: x @ jnp.broadcast_to(w, (256, 256, 128)).astype(jnp.bfloat16)[0],  # grows
    ],
    ids=["no work", "not fixed", "arithmetic", "small", "larger than before"],
)
def test_programs_without_preparations(fn):
    assert split_program(fn, X, W, stays=() if fn(X, W).shape[-1] == 64 else (1,)) is None


def test_changing_values_are_not_packed():
    low = lambda x, w: x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)
    assert split_program(low, X, W, stays=()) is None


def test_results_of_unchanged_operands_are_hoisted():
    parts = assert_same(lambda x, w: (x.sum(), w.astype(jnp.bfloat16)), X, W)
    assert names(parts.hoisted) == ["convert_element_type"]


def test_one_of_two_readers_is_sufficient():
    both = lambda x, w, v: x @ jnp.concatenate([w, v]).astype(jnp.bfloat16)
    x, v = draw((4, 512)), draw((256, 128), 2)
    assert split_program(both, x, W, v, stays=(1,)) is None
    assert assert_same(both, x, W, v, stays=(1, 2)).operand_indices == [1, 2]


def convolve(x, w, stride=1, spread=1):
    w = w.astype(x.dtype)
    layout = ("NHWC", "HWIO", "NHWC")
    if spread > 1:
        return jax.lax.conv_transpose(x, w, (spread, spread), "SAME", dimension_numbers=layout)
    return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=layout)


KERNEL, BIAS = draw((3, 3, 64, 96), 3), draw(96, 4)
CONVOLUTIONS = {
    "float32": (jnp.float32, lambda x, w: convolve(x, w)),
    "float32, strided": (jnp.float32, lambda x, w: convolve(x, w, 2)),
    "bfloat16": (jnp.bfloat16, lambda x, w: convolve(x, w)),
    "bfloat16, transposed": (jnp.bfloat16, lambda x, w: convolve(x, w, 1, 2)),
    "with what follows": (
        jnp.bfloat16,
        lambda x, w: jax.nn.relu(convolve(x, w) + BIAS.astype(x.dtype)),
    ),
}


@needs("oneDNN")
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("batch", [1, 5])
def test_kernels_are_packed_apart(name, batch):
    dtype, fn = CONVOLUTIONS[name]
    parts = assert_same(fn, draw((batch, 13, 11, 64), 5, dtype), KERNEL)
    assert "packed_kernel" in names(parts.hoisted)
    assert "convolution_with_epilogue" in names(parts.remainder)


@needs("oneDNN")
def test_packed_kernels_are_ignored_without_our_kernels():
    """Under vmap, and when a derivative is taken, the kernel itself is read."""
    x = draw((2, 9, 9, 64), 6)
    fn = lambda x, w: convolve(x, w)
    parts = split_program(fn, x, KERNEL)
    early = jaxpr_as_fun(parts.hoisted)(KERNEL)
    rest = lambda x: jaxpr_as_fun(parts.remainder)(x, KERNEL, *early)[0]
    several = jnp.stack([x, 2 * x])
    np.testing.assert_allclose(
        jax.vmap(rest)(several), jax.vmap(lambda x: fn(x, KERNEL))(several), rtol=1e-5, atol=1e-5
    )
    _, got = jax.jvp(rest, (x,), (x,))
    np.testing.assert_allclose(got, fn(x, KERNEL), rtol=1e-5, atol=1e-5)


def test_packed_weights_respect_the_memory_limit(monkeypatch):
    both = lambda x, w, v: x @ (w.astype(jnp.bfloat16) @ v.astype(jnp.bfloat16))
    v = draw((128, 512), 2)
    assert len(split_program(both, X, W, v, stays=(1, 2)).hoisted.jaxpr.outvars) == 2
    monkeypatch.setattr(constant_hoisting, "_MAX_TOTAL_BYTES", 2 * W.size)
    parts = assert_same(both, X, W, v, stays=(1, 2))
    assert parts.operand_indices == [1]


@needs("oneDNN")
@pytest.mark.parametrize(
    "descriptor",
    [
        [descriptors.PACK],
        [descriptors.PACK + descriptors.MATMUL, 2, ord("f"), 1],
        [descriptors.PACKED],
    ],
    ids=["no types", "a product", "no weights"],
)
def test_descriptors_that_pack_nothing_are_errors(descriptor):
    out = jax.ShapeDtypeStruct((64,), np.uint8)
    with pytest.raises(
        Exception, match=r"meshflow_onednn: .*(too short|no packed|missing|more operands)"
    ):
        jax.block_until_ready(jax.jit(lambda x: lowerings.call_handler(descriptor, [x], out))(X))
