"""Test that convolutions that absorb the following steps are equal, and that only unread results
disappear."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshflow as tf
from meshflow.kernels import epilogues
from meshflow.ops.nn.windows import Windows, max_windows
from meshflow.passes.epilogue_fusion import fuse_epilogues


def convolve(x, w):
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def layer(x, w, b):
    return jax.nn.relu(convolve(x, w) + b)


def draw(shape, seed=0, dtype=jnp.bfloat16):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape) * 0.2, dtype)


X, W, V, B = draw((3, 9, 8, 64)), draw((3, 3, 64, 64), 1), draw((3, 3, 64, 64), 2), draw(64, 3)
# With small kernels and these biases every ReLU is far from where rounding opens or closes it.
SMALL, FAR = (W / 20, V / 20), jnp.where(B > 0, 1, -1).astype(B.dtype)


def names(fn, *args):
    return [e.primitive.name for e in fuse_epilogues(jax.make_jaxpr(fn)(*args)).jaxpr.eqns]


def run(fn, *args):
    """The fused program compiled."""
    leaves, tree = jax.tree.flatten(args)
    flat = lambda *leaves: jax.tree.leaves(fn(*jax.tree.unflatten(tree, leaves)))
    return jax.jit(jaxpr_as_fun(fuse_epilogues(jax.make_jaxpr(flat)(*leaves))))(*leaves)


def assert_same(fn, *args, wide=True):
    """Assert that the fused program equals the function in float32."""
    exact = jax.jit(fn)(*(jax.tree.map(lambda a: a.astype(jnp.float32), args) if wide else args))
    for got, wanted in zip(run(fn, *args), jax.tree.leaves(exact), strict=True):
        got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
        np.testing.assert_allclose(got, wanted, rtol=2e-2, atol=2e-2 * np.abs(wanted).max())


def wide(a):
    return a.astype(jnp.float32)


FORMS = {
    "bias and ReLU": layer,
    "a bias with ones around": lambda x, w, b: jax.nn.relu(convolve(x, w) + b[None, None, None]),
    "a bias first, a maximum": lambda x, w, b: jnp.maximum(b + convolve(x, w), 0),
    "a bias": lambda x, w, b: convolve(x, w) + b,
    "ReLU": lambda x, w, b: jax.nn.relu(convolve(x, w)),
    "what skips it": lambda x, w, b: jax.nn.relu(x + (convolve(x, w) + b)),
    "normalised by known moments": lambda x, w, b: jax.nn.relu(
        (wide(convolve(x, w) + b) * wide(b) + wide(b)).astype(x.dtype)
    ),
    "GELU": lambda x, w, b: jax.nn.gelu(convolve(x, w) + b, approximate=False),
    "GELU by tanh": lambda x, w, b: jax.nn.gelu(convolve(x, w), approximate=True),
}


@pytest.mark.isa
@pytest.mark.parametrize("form", FORMS)
def test_forms_are_fused(form):
    assert "convolution_with_epilogue" in names(FORMS[form], X, W, B)
    assert "conv_general_dilated" not in names(FORMS[form], X, W, B)
    assert_same(FORMS[form], X, W, B)


OTHERS = {
    "the sum is a result, too": lambda x, w, b: (
        lambda y: (y, jax.nn.relu(y))
    )(convolve(x, w) + b),
    "the convolution is read twice": lambda x, w, b: (
        lambda y: jax.nn.relu(y + b) + y
    )(convolve(x, w)),
    "a bias along another dimension": lambda x, w, b: jax.nn.relu(convolve(x, w) + x[:, :, :, :1]),
    "another limit": lambda x, w, b: jnp.maximum(convolve(x, w), 0.5),
    "a GELU of what is read again": lambda x, w, b: (
        lambda y: jax.nn.gelu(y, approximate=False) * y
    )(convolve(x, w) + b),
    "a square": lambda x, w, b: (lambda y: y + y)(convolve(x, w)),
}  # fmt: skip


@pytest.mark.parametrize("form", OTHERS)
def test_results_with_other_readers_are_not_fused(form):
    found = fuse_epilogues(jax.make_jaxpr(OTHERS[form])(X, W, B)).jaxpr.eqns
    assert not any(set(e.params.get("epilogue", ())) - {"add"} for e in found)
    assert_same(OTHERS[form], X, W, B)


PRODUCTS = {
    ("add", "relu"): lambda x, w, b, r: jax.nn.relu(x @ w + b),
    ("add", "gelu"): lambda x, w, b, r: jax.nn.gelu(b + x @ w, approximate=False),
    ("gelu_tanh",): lambda x, w, b, r: jax.nn.gelu(x @ w, approximate=True),
    ("add", "plus"): lambda x, w, b, r: r + (x @ w + b),
}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("steps", PRODUCTS)
def test_products_absorb_following_steps(steps, dtype):
    shapes = (3, 700, 24), (24, 40), (40,), (3, 700, 40)
    args = [draw(shape, i, dtype) for i, shape in enumerate(shapes)]
    found = fuse_epilogues(jax.make_jaxpr(PRODUCTS[steps])(*args)).jaxpr.eqns
    assert [e.params["epilogue"] for e in found if e.primitive is epilogues.product_p] == [steps]
    assert_same(PRODUCTS[steps], *args)


def test_unprofitable_products_are_not_fused():
    x, w, b, r = (draw(shape, i) for i, shape in enumerate(((9, 24), (24, 40), (40,), (9, 40))))
    assert "product_with_epilogue" not in names(lambda x, w, b: x @ w + b, x, w, b)
    assert "product_with_epilogue" not in names(lambda x, w, r: (x @ w) * r, x, w, r)
    pair = lambda x, w, b: (lambda y: (y, jax.nn.relu(y)))(x @ w + b)
    assert "product_with_epilogue" not in names(pair, x, w, b)


def test_a_vector_of_several_dimensions_is_added_to_each_row():
    x, w, b = draw((4, 8, 16), 0), draw((16, 2, 8), 1), draw((2, 8), 2)
    layer = lambda x, w, b: jax.nn.relu(jnp.einsum("btc,chd->bthd", x, w) + b)
    assert "product_with_epilogue" in names(layer, x, w, b)
    assert_same(layer, x, w, b)


def loss(parameters, x):
    w, v, b = parameters
    return jnp.sum(layer(layer(layer(x, w, b), v, b), w, b).astype(jnp.float32) ** 2)


@pytest.mark.isa
def test_relu_gradients_are_fused():
    step = jax.value_and_grad(loss, argnums=(0, 1))
    found = fuse_epilogues(jax.make_jaxpr(step)((*SMALL, FAR), X)).jaxpr.eqns
    steps = [
        e.params["epilogue"] for e in found if e.primitive.name == epilogues.convolution_p.name
    ]
    assert steps == [("add", "relu")] * 3 + [("relu_mask",)] * 2 + [()]
    assert_same(step, (*SMALL, FAR), X)


def test_kernels_are_rounded_and_turned_in_the_convolution():
    def network(w, v, x):
        w, v = w.astype(jnp.bfloat16), v.astype(jnp.bfloat16)
        return jnp.sum(convolve(jnp.tanh(convolve(x, w)), v).astype(jnp.float32) ** 2)

    wide = W.astype(jnp.float32) + 1e-4, V.astype(jnp.float32) + 1e-4
    step = jax.value_and_grad(network, argnums=(0, 1))
    found = fuse_epilogues(jax.make_jaxpr(step)(*wide, X)).jaxpr.eqns
    made = [e for e in found if e.primitive.name == epilogues.convolution_p.name]
    assert [e.params["flipped"] for e in made] == [False, False, True]
    assert all(e.invars[1].aval.dtype == jnp.float32 for e in made)
    got, wanted = run(step, *wide, X), jax.tree.leaves(jax.jit(step)(*wide, X))
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-2 * np.abs(b).max())


def test_partially_reversed_kernels_are_unchanged():
    part = lambda x, w: convolve(x, jax.lax.rev(w, (0,)))
    assert "convolution_with_epilogue" not in names(part, X, W)


def test_programs_inside_are_fused():
    def scanned(x, w, b):
        return jax.lax.scan(lambda x, _: (layer(x, w, b), x[0, 0, 0, 0]), x, None, 3)

    def branched(x, w, b):
        call = jax.checkpoint(lambda x: layer(x, w, b))
        return jax.lax.cond(x[0, 0, 0, 0] > 0, call, lambda x: x, x)

    for fn in (scanned, branched, jax.jit(layer)):
        assert "convolution_with_epilogue" in str(fuse_epilogues(jax.make_jaxpr(fn)(X, W, B)))
        assert_same(fn, X, W, B)


def test_derivatives_and_vmap_of_a_fused_program():
    program = jaxpr_as_fun(fuse_epilogues(jax.make_jaxpr(layer)(X, W, B)))
    total = lambda f, *xs: jnp.sum(f(*xs).astype(jnp.float32) ** 2)
    once = lambda f: jax.grad(functools.partial(total, f), argnums=(0, 1, 2))
    twice = lambda f: jax.grad(lambda *xs: total(lambda *ys: once(f)(*ys)[1], *xs), argnums=0)
    call = lambda *xs: program(*xs)[0]
    for transform in (once, twice):
        operands = (X, SMALL[0], FAR)
        for got, wanted in zip(
            transform(call)(*operands), transform(layer)(*operands), strict=True
        ):
            got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
            np.testing.assert_allclose(got, wanted, atol=2e-2 * np.abs(wanted).max())
    many = jnp.stack([W, V])
    got = jax.vmap(call, in_axes=(None, 0, None))(X, many, B)
    for part, w in zip(got, many, strict=True):
        np.testing.assert_allclose(
            np.asarray(part, np.float64), np.asarray(layer(X, w, B), np.float64), atol=0.05
        )


@pytest.mark.nan_expected
def test_nan_passes_a_fused_relu_and_closes_a_gate():
    x = X.at[1, 2, 3, 4].set(jnp.nan)
    (got,) = run(layer, x, W, B)
    assert np.isnan(np.asarray(got[1, 1:4, 2:5], np.float32)).all()
    assert not np.isnan(np.asarray(got[0], np.float32)).any()

    def gated(gate, g, w):
        return jnp.where(gate > 0, convolve(g, w), jnp.zeros((), g.dtype))

    gate = X.at[0, 0, 0, :4].set(jnp.asarray([jnp.nan, jnp.inf, -jnp.inf, 0.0], jnp.bfloat16))
    (got,) = run(gated, gate, X, W)
    assert [bool(v != 0) for v in got[0, 0, 0, :4]] == [False, True, False, False]


def test_on_a_mesh_the_parts_are_convolved():
    mesh = Mesh(np.array(jax.devices()[:2]), ("batch",))
    x = draw((4, 8, 8, 64))
    split = jax.device_put(x, NamedSharding(mesh, PartitionSpec("batch")))
    mapped = jax.shard_map(
        layer,
        mesh=mesh,
        in_specs=(PartitionSpec("batch"), PartitionSpec(), PartitionSpec()),
        out_specs=PartitionSpec("batch"),
    )
    (wanted,) = run(layer, x, W, B)
    for fn in (layer, mapped):
        (got,) = run(fn, split, W, B)
        np.testing.assert_allclose(
            np.asarray(got, np.float64), np.asarray(wanted, np.float64), rtol=2e-2, atol=2e-2
        )


TILES = Windows((1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4, (1,) * 4)


def test_max_pool_gradient_absorbs_the_relu_gradient():
    x = draw((2, 8, 8, 64))
    total = lambda call: lambda *args: jnp.sum(call(*args).astype(jnp.float32) ** 2)
    step = jax.grad(total(lambda x: max_windows(jax.nn.relu(x), TILES)))
    found = names(step, x)
    assert "max_windows_gated_gradient" in found and "select_n" not in found
    # Not compared with float32, where other elements are the largest.
    (got,) = run(step, x)
    np.testing.assert_array_equal(got, jax.jit(step)(x))
    behind = jax.grad(total(lambda x, w, b: max_windows(layer(x, w, b), TILES)))
    assert "max_windows_gated_gradient" in names(behind, x, W, B)
    alone = jax.grad(total(lambda x, w: max_windows(convolve(x, w), TILES)))
    assert "max_windows_gated_gradient" not in names(alone, x, W)


def test_functions_are_compiled_fused_and_their_gradients_are_right():
    tf.keras.utils.set_random_seed(0)
    policy = tf.keras.mixed_precision.Policy("mixed_bfloat16")
    conv = tf.keras.layers.Conv2D(64, 3, padding="same", activation="relu", dtype=policy)
    conv.build((None, 9, 8, 64))
    conv.kernel.assign(conv.kernel / 10)
    conv.bias.assign(np.asarray(FAR, np.float32))
    x = tf.constant(np.asarray(X, np.float32))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.cast(conv(conv(x)), tf.float32) ** 2)
        return y, *tape.gradient(y, [x, *conv.trainable_variables])

    def exact(x, w, b):
        y = layer(layer(x, w, b), w, b)
        return jnp.sum(y**2)

    compiled = step(x)
    arrays = [x.numpy(), *(v.numpy() for v in conv.trainable_variables)]
    wanted = [exact(*arrays), *jax.grad(exact, argnums=(0, 1, 2))(*arrays)]
    for got, value in zip(compiled, wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), value, atol=0.1 * np.abs(value).max())
    # A tape around a compiled function differentiates it.
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.function(conv)(x))
    assert np.isfinite(tape.gradient(y, x).numpy().astype(np.float32)).all()
