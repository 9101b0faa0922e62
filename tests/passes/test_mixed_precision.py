"""Test rewritten programs: close to float32 results, products in low precision, few casts, equal
dtypes."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend import core as jex_core

import meshflow as tf
import roundings
from meshflow import passes

F32 = np.float32
X = np.random.default_rng(0).normal(size=(4, 4)).astype(F32)
W = (np.random.default_rng(1).normal(size=(4, 4)) / 2).astype(F32)


def numbers(seed):
    return (np.random.default_rng(seed).normal(size=(4, 4)).astype(F32),)


def equations(jaxpr):
    """All equations of a jaxpr and of those inside."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jex_core.jaxprs_in_params(eqn.params):
            yield from equations(inner)


def rewritten(fn, *args, **kwargs):
    return list(equations(jax.make_jaxpr(passes.mixed_precision(fn, **kwargs))(*args).jaxpr))


def dtypes_of(eqns, *names):
    return {str(e.outvars[0].aval.dtype) for e in eqns if e.primitive.name in names}


def casts(eqns):
    return sum(
        e.primitive.name == "convert_element_type"
        and {str(e.invars[0].aval.dtype), str(e.outvars[0].aval.dtype)} == {"float32", "bfloat16"}
        for e in eqns
    )


def assert_near(fn, *args, dtype="bfloat16", limits=None):
    """Check values, dtypes and that no float32 product is left; return the equations."""
    expected = jax.jit(fn)(*args)
    actual = jax.jit(passes.mixed_precision(fn, dtype))(*args)
    limits = limits or roundings.allowed(fn, *args, dtype=dtype)
    roundings.assert_as_near_as_rounding_allows(actual, expected, limits)
    eqns = rewritten(fn, *args, dtype=dtype)
    assert dtypes_of(eqns, "dot_general", "conv_general_dilated") <= {dtype}
    return eqns


def mlp(params, x):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def loss(params, x, labels):
    return -jnp.mean(jax.nn.log_softmax(mlp(params, x))[jnp.arange(len(labels)), labels])


def mlp_data():
    params = [(W, W[i]) for i in range(3)]
    # No ReLU opens or closes by rounding.
    return params, *numbers(2), np.array([0, 1, 2, 3], np.int32)


# ---- random programs ---------------------------------------------------------------------------


@jax.custom_vjp
def scaled(x):
    return jnp.tanh(x @ W)


scaled.defvjp(lambda x: (scaled(x), x), lambda x, g: ((g * (1 - jnp.tanh(x @ W) ** 2)) @ W.T,))


@jax.custom_jvp
def bent(x):
    return jnp.sin(x @ W)


bent.defjvp(lambda p, t: (bent(*p), jnp.cos(p[0] @ W) * (t[0] @ W)))


def run_scan(x):
    step = lambda c, _: (jnp.tanh(c @ W), c)
    last, all_ = lax.scan(step, x, length=3)
    return last + all_.mean(0)


def run_while_loop(x):
    return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, jnp.tanh(c[1] @ W)), (0, x))[1]


UNARY = [
    jnp.tanh,
    jax.nn.relu,
    jax.nn.softmax,
    jax.nn.gelu,
    scaled,
    bent,
    run_scan,
    run_while_loop,
    lambda x: x @ W,
    lambda x: W.T @ x * 0.5,
    lambda x: x.T,
    lambda x: x.reshape(2, 8)[::-1].reshape(4, 4),
    lambda x: jax.jit(lambda y: jnp.tanh(y @ W) - 1)(x),
    lambda x: jax.checkpoint(lambda y: jnp.tanh(y @ W) @ W)(x),
    lambda x: lax.cond(x[0, 0] > 100.0, lambda y: y, lambda y: jnp.tanh(y @ W), x),
    lambda x: lax.switch(2, [lambda y: y, jnp.sin, lambda y: y @ W], x),
    lambda x: jax.vmap(lambda row: jnp.tanh(row @ W))(x),
    lambda x: (x - x.mean(1, keepdims=True)) * lax.rsqrt(x.var(1, keepdims=True) + 1.0),
    lambda x: x / (1 + jnp.sum(x * x)),
]
BINARY = [
    lambda x, y: (x + y) / 2,
    lambda x, y: jnp.tanh(x) * jnp.tanh(y),
    jnp.maximum,
    lambda x, y: jnp.tanh(x @ y / 4),
    lambda x, y: jnp.concatenate([x[:2], y[2:]]),
    lambda x, y: jnp.where(x > 100, x, y),
]


STEP = st.tuples(st.sampled_from(UNARY + BINARY), st.integers(0, 9), st.integers(0, 9))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.lists(STEP, min_size=1, max_size=7))
def test_random_programs(steps):
    def program(x):
        values = [x]
        for op, i, j in steps:
            operands = [values[i % len(values)], values[j % len(values)]]
            values.append(op(*operands[: 2 if op in BINARY else 1]))
        return values[-1], sum(v.sum() for v in values)

    args, limits = roundings.steady(program, numbers)
    eqns = assert_near(program, *args, limits=limits)
    assert dtypes_of(eqns, "exp", "log", "reduce_sum", "rsqrt") <= {"float32"}


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from(UNARY[:-5]), st.just(0), st.just(0)), min_size=1, max_size=4)
)
def test_gradients_of_random_programs(steps):
    def program(x):
        for op, _, _ in steps:
            x = op(x)
        return (x * X).sum()

    def is_loop(op):
        return op is run_while_loop

    if any(is_loop(op) for op, _, _ in steps):
        return  # while_loop has no reverse mode
    gradient = jax.grad(program)
    (x,), limits = roundings.steady(gradient, numbers)
    assert_near(gradient, x, limits=limits)
    actual = jax.grad(passes.mixed_precision(program))(x)
    roundings.assert_as_near_as_rounding_allows(actual, gradient(x), limits)


# ---- colours and casts -------------------------------------------------------------------------


def test_an_mlp_has_the_fewest_casts():
    params, x, _ = mlp_data()
    eqns = assert_near(mlp, params, x)
    # The input, three kernels, two biases, and the result back.
    assert casts(eqns) == 7
    assert dtypes_of(eqns, "max") == {"bfloat16"}


def test_training_gradient_computes_the_loss_in_float32():
    eqns = assert_near(jax.value_and_grad(loss), *mlp_data())
    assert dtypes_of(eqns, "exp", "log", "reduce_sum", "div") == {"float32"}
    assert "float32" not in dtypes_of(eqns, "select_n")
    # Seven forward, logits' gradient down, and up: three kernels', three for two bias sums and results.
    assert casts(eqns) <= 14


def test_no_cast_is_undone():
    params, x, labels = mlp_data()
    eqns = rewritten(jax.grad(loss), params, x, labels)
    made = {
        e.outvars[0]: e.invars[0]
        for e in eqns
        if e.primitive.name == "convert_element_type" and e.invars[0].aval.dtype == jnp.bfloat16
    }
    assert not [
        e for e in eqns if e.primitive.name == "convert_element_type" and e.invars[0] in made
    ]


def test_each_value_is_cast_once():
    eqns = assert_near(lambda w, x: (x @ w) @ w + jnp.exp(x @ w), W, X)
    sources = [e.invars[0] for e in eqns if e.primitive.name == "convert_element_type"]
    assert len(sources) == len(set(sources))


def test_a_convolution_network():
    def network(kernel, images):
        y = lax.conv_general_dilated(
            images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        y = lax.reduce_window(
            jax.nn.relu(y + 0.5), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
        return y.reshape(len(y), -1) @ jnp.ones((y[0].size, 2), F32)

    images = np.random.default_rng(2).normal(size=(2, 4, 4, 3)).astype(F32)
    kernel = np.random.default_rng(3).normal(size=(3, 3, 3, 3)).astype(F32)
    eqns = assert_near(network, kernel, images)
    assert dtypes_of(eqns, "reduce_window_max", "add", "max", "reshape") == {"bfloat16"}
    assert_near(jax.grad(lambda *a: network(*a).sum()), kernel, images)


def test_float16():
    assert_near(jax.value_and_grad(loss), *mlp_data(), dtype="float16")


def test_unchanged_programs():
    def softmax_sum(x):
        return jax.nn.softmax(x).sum()

    closed = jax.make_jaxpr(softmax_sum)(X)
    assert passes.rewrite(closed) is closed
    assert str(jax.make_jaxpr(passes.mixed_precision(softmax_sum))(X)) == str(closed)
    for other in (X.astype(np.float64), X.astype(np.int32), X.astype(jnp.bfloat16)):
        program = jax.make_jaxpr(lambda x: x @ x)(other)
        assert passes.rewrite(program) is program
    program = jax.make_jaxpr(lambda x: jnp.matmul(x, x, precision="highest"))(X)
    assert passes.rewrite(program) is program


def test_rewriting_is_idempotent():
    once = passes.rewrite(jax.make_jaxpr(jax.value_and_grad(loss))(*mlp_data()))
    assert passes.rewrite(once) is once


def test_table_lookups_remain_in_float32():
    table = np.ones((1000, 4), F32)
    eqns = assert_near(lambda t, i: jnp.take(t, i, axis=0) @ W, table, np.array([1, 2]))
    assert all(e.outvars[0].aval.shape != (1000, 4) for e in eqns)


def test_targets_are_not_rounded_by_free_operations():
    def autoencoder(x):
        target = x.reshape(16)
        return jnp.sum((jnp.tanh(x @ W) @ W).reshape(16) - target), target

    assert dtypes_of(rewritten(autoencoder, X), "sub") == {"float32"}
    np.testing.assert_array_equal(passes.mixed_precision(autoencoder)(X)[1], X.ravel())


# ---- programs inside programs ------------------------------------------------------------------


def test_loops_preserve_carries_and_cast_constants_outside():
    def rnn(w, xs):
        def step(state, x):
            state = jnp.tanh(x @ w + state @ w)
            return state, state @ w

        return lax.scan(step, jnp.zeros((4, 4), F32), xs)

    eqns = assert_near(rnn, W, np.stack([X] * 3))
    (scan,) = [e for e in eqns if e.primitive.name == "scan"]
    assert [str(v.aval.dtype) for v in scan.invars] == ["bfloat16", "float32", "bfloat16"]
    assert [str(v.aval.dtype) for v in scan.outvars] == ["float32", "bfloat16"]
    assert_near(jax.grad(lambda w, xs: rnn(w, xs)[1].sum()), W, np.stack([X] * 3))


def test_updates_inside_a_training_loop_are_exact():
    def train(w, x):
        step = lambda w, _: (w - 1e-5 * jax.grad(lambda w: (x @ w).sum())(w), None)
        return lax.scan(step, w, length=8)[0]

    got = jax.jit(passes.mixed_precision(train))(W, X)
    want = jax.jit(train)(W, X)
    np.testing.assert_allclose(got - W, want - W, atol=2e-6)
    assert np.abs(got - W).max() > 0


def test_while_branches_and_checkpoint():
    assert_near(run_while_loop, X)
    for x in (X, -X):
        eqns = assert_near(
            lambda x: lax.cond(x[0, 0] > 0, lambda y: jnp.tanh(y @ W), lambda y: y @ W, x) @ W, x
        )
        (cond,) = [e for e in eqns if e.primitive.name == "cond"]
        assert str(cond.invars[1].aval.dtype) == "bfloat16"
    block = jax.checkpoint(lambda w, x: jnp.tanh(x @ w) @ w)
    eqns = assert_near(jax.grad(lambda w, x: (block(w, x) @ w).sum()), W, X)
    assert any(e.primitive.name in ("remat2", "checkpoint") for e in eqns)


@pytest.mark.parametrize("fn", [scaled, bent])
def test_custom_derivatives_are_preserved(fn):
    def objective(x):
        return (fn(x) @ W).sum()

    assert_near(objective, X)
    expected = jax.grad(objective)(X)
    for actual in (
        jax.grad(passes.mixed_precision(objective))(X),
        passes.mixed_precision(jax.grad(objective))(X),
    ):
        np.testing.assert_allclose(actual, expected, atol=0.03)
    eqns = list(equations(jax.make_jaxpr(jax.grad(passes.mixed_precision(objective)))(X).jaxpr))
    assert dtypes_of(eqns, "dot_general") == {"bfloat16"}


def test_a_custom_rule_decides_the_gradient():
    @jax.custom_vjp
    def double_gradient(x, n):
        return x @ W

    double_gradient.defvjp(lambda x, n: (x @ W, None), lambda _, g: (2 * (g @ W.T), None))
    plain = jax.grad(lambda x: (x @ W).sum())(X)
    got = jax.grad(passes.mixed_precision(lambda x: double_gradient(x, 3).sum()))(X)
    np.testing.assert_allclose(got, 2 * plain, atol=0.03)


def test_transformations_compose():
    def objective(w, x):
        return jnp.sum(jnp.tanh(x @ w) @ w)

    mixed = passes.mixed_precision(objective)
    batch = np.stack([X, -X])
    want = jax.vmap(objective, (None, 0))(W, batch)
    for got in (
        jax.vmap(mixed, (None, 0))(W, batch),
        passes.mixed_precision(jax.vmap(objective, (None, 0)))(W, batch),
    ):
        np.testing.assert_allclose(got, want, atol=0.1)
    hessian = jax.hessian(objective)(W, X)
    np.testing.assert_allclose(jax.hessian(mixed)(W, X), hessian, atol=0.05 * np.abs(hessian).max())
    _, moved = jax.jvp(functools.partial(mixed, x=X), (W,), (W,))
    np.testing.assert_allclose(moved, jax.jvp(lambda w: objective(w, X), (W,), (W,))[1], atol=0.15)

    @jax.jit
    def closing_over_tracers(w, x):
        return passes.mixed_precision(lambda y: y @ w)(x)

    np.testing.assert_allclose(closing_over_tracers(W, X), X @ W, atol=0.05)


def test_shard_map():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec

    def fn(w, x):
        inner = jax.shard_map(
            lambda x, w: lax.psum(jnp.tanh(x @ w) @ w, "i"),
            mesh=mesh,
            in_specs=(spec("i"), spec()),
            out_specs=spec(),
        )
        return inner(x, w)

    eqns = assert_near(fn, W, X)
    assert dtypes_of(eqns, "psum", "psum_invariant") == {"float32"}


def test_side_effects_are_preserved():
    seen = []

    def fn(x):
        y = x @ W
        jax.debug.callback(lambda v: seen.append(np.asarray(v)), y, ordered=True)
        return y @ W

    jax.block_until_ready(jax.jit(passes.mixed_precision(fn))(X))
    jax.effects_barrier()
    assert len(seen) == 1 and seen[0].dtype == F32


def test_structures_keywords_and_static_arguments():
    def fn(tree, *, scale, mode):
        return {"out": tree["x"] @ tree["w"] * scale, "mode": jnp.float32(len(mode)), "none": None}

    got = passes.mixed_precision(fn)({"x": X, "w": W}, scale=2.0, mode="abc")
    assert got["none"] is None and got["mode"] == 3 and got["out"].dtype == F32
    np.testing.assert_allclose(got["out"], 2 * (X @ W), atol=0.1)


def test_flags_sizes_and_dtypes_are_available_in_python():
    def fn(x, times, train=False, dtype=None):
        for _ in range(times):
            x = x @ W if train else x
        return x.astype(dtype)

    got = passes.mixed_precision(fn)(X, 2, train=True, dtype=np.float32)
    np.testing.assert_allclose(got, X @ W @ W, atol=0.2)
    step = jax.jit(passes.mixed_precision(fn), static_argnames=("times", "train", "dtype"))
    np.testing.assert_allclose(step(X, 2, train=True, dtype="float32"), got, atol=0.02)
    np.testing.assert_array_equal(step(X, 2, dtype="float32"), X)


# ---- lists -------------------------------------------------------------------------------------


def test_lists_are_data():
    def fn(x):
        return jnp.exp(x @ W) @ W

    assert dtypes_of(rewritten(fn, X), "exp") == {"float32"}
    lists = passes.default_lists()
    lists = lists.replace(deny=lists.deny - {"exp"}, infer=lists.infer | {"exp"})
    assert dtypes_of(rewritten(fn, X, lists=lists), "exp") == {"bfloat16"}
    nothing = passes.default_lists().replace(allow=())
    assert dtypes_of(rewritten(fn, X, lists=nothing), "dot_general") == {"float32"}
    nothing.allow |= {"dot_general"}
    assert dtypes_of(rewritten(fn, X, lists=nothing), "dot_general") == {"bfloat16"}
    with pytest.raises(TypeError, match=r"allow.*nope"):
        lists.replace(nope=())


def test_the_lists_name_primitives_once():
    lists = passes.default_lists()
    names = [n for part in (lists.allow, lists.infer, lists.deny, lists.clear) for n in part]
    assert len(names) == len(set(names))


def test_names_that_are_no_primitives_are_warned_of():
    lists = passes.default_lists()
    lists.deny.add("dot_generl")
    with pytest.warns(UserWarning, match="'dot_generl'.*Did you mean 'dot_general'"):
        passes.mixed_precision(lambda x: x, lists=lists)
    with pytest.raises(TypeError, match="must be a PrecisionLists"):
        passes.explain(lambda x: x, X, lists={"deny": {"exp"}})


def test_the_lists_of_the_process():
    assert passes.lists is tf.mixed_precision.lists
    passes.lists.allow.remove("dot_general")
    try:
        assert dtypes_of(rewritten(jnp.dot, X, W), "dot_general") == {"float32"}
    finally:
        passes.lists.allow.add("dot_general")
    assert dtypes_of(rewritten(jnp.dot, X, W), "dot_general") == {"bfloat16"}


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"'bfloat16' or 'float16'.*'float64'"):
        passes.mixed_precision(jnp.sin, "float64")
    with pytest.raises(TypeError, match="takes a function"):
        passes.mixed_precision(3)


def test_explicit_shardings_are_preserved():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(X, jax.sharding.PartitionSpec("i"))
        closed = jax.make_jaxpr(lambda w, x: jnp.tanh(x @ w) @ w)(W, x)
        assert passes.rewrite(closed).out_avals == closed.out_avals


def test_state_inside_a_program():
    def fn(x):
        ref = jax.new_ref(x)
        ref[...] = ref[...] @ W
        return ref[...] @ W

    assert_near(fn, X)


def test_large_constants_remain_finite_in_float16():
    def masked(x, mask):
        return jnp.tanh(x @ W + (1 - mask) * -1e9) @ W

    mask = np.ones((4, 4), np.float32)
    assert_near(masked, X, mask, dtype="float16")
    assert_near(masked, X, mask * (X > 0), dtype="float16")


def test_float64_programs_are_unchanged_with_a_warning():
    def product(w, x):
        return jax.nn.relu(x @ w)

    w, x = np.ones((4, 2)), np.ones((3, 4))
    with pytest.warns(UserWarning, match="left product as it is: it computes in float64"):
        assert passes.mixed_precision(jax.jit(product))(w, x).dtype == "float64"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        passes.mixed_precision(product)(w.astype("float32"), x.astype("float32"))
        passes.mixed_precision(jnp.sin)(x)
