"""The rewrite to mixed precision on every kind of program: dtypes, closeness to float32, few casts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend import core as jex_core

import roundings
from helpers import combine
from meshflow import passes


def equations(jaxpr):
    """All equations, inner ones too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jex_core.jaxprs_in_params(equation.params):
            yield from equations(inner)


def dtypes(fn, *args, name="dot_general"):
    """Result dtypes of a primitive in the rewritten function."""
    closed = jax.make_jaxpr(passes.mixed_precision(fn))(*args)
    return [
        str(e.outvars[0].aval.dtype) for e in equations(closed.jaxpr) if e.primitive.name == name
    ]


def casts(closed):
    return sum(e.primitive.name == "convert_element_type" for e in equations(closed.jaxpr))


def array(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32") / 2


X, W = array(4, 4), array(4, 4, seed=1)

FUNCTIONS = {
    "product": lambda x, w: x @ w,
    "layers": lambda x, w: jax.nn.relu(jax.nn.relu(x @ w + w[0]) @ w + w[1]),
    "jit": lambda x, w: jax.jit(lambda x: jnp.tanh(x @ w))(x) @ w,
    "same function twice": lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w),
    "scan": lambda x, w: jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), c.sum()), x, None, length=3),
    "while": lambda x, w: jax.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1] @ w)), (0, x)
    ),
    "cond": lambda x, w: jax.lax.cond(x[0, 0] > 0, lambda x: x @ w, lambda x: (x @ w) @ w, x),
    "remat": lambda x, w: jax.checkpoint(lambda x: jax.nn.softmax(x @ w))(x),
    "softmax": lambda x, w: jax.nn.softmax(x @ w) @ w,
    "gelu": lambda x, w: jax.nn.gelu(x @ w) @ w,
    "custom derivative": lambda x, w: jax.nn.silu(x @ w) @ w,
    "convolution": lambda x, w: jax.lax.conv_general_dilated(
        x.reshape(1, 4, 4, 1), w.reshape(2, 2, 1, 4), (1, 1), "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    ),
    "constant": lambda x, w: x @ jnp.asarray(np.eye(4), "float32") + w,
    "mixed dtypes": lambda x, w: ((x @ w).astype("float16"), x.argmax(), x > 0),
}  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), combine(FUNCTIONS, ["bfloat16", "float16"]))
def test_close_to_float32_with_the_same_dtypes(name, dtype):
    fn = FUNCTIONS[name]
    wanted = jax.jit(fn)(X, W)
    got = jax.jit(passes.mixed_precision(fn, dtype))(X, W)
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    limits = roundings.allowed(fn, X, W, dtype=dtype)
    roundings.assert_as_near_as_rounding_allows(got, wanted, limits)
    kind = "conv_general_dilated" if name == "convolution" else "dot_general"
    closed = jax.make_jaxpr(passes.mixed_precision(fn, dtype))(X, W)
    found = {
        str(e.outvars[0].aval.dtype) for e in equations(closed.jaxpr) if e.primitive.name == kind
    }
    assert found == {dtype}


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in ("mixed dtypes", "while")])
def test_gradients_inside_and_outside(name):
    def loss(x, w):
        return sum(jnp.mean(y**2) for y in jax.tree.leaves(FUNCTIONS[name](x, w)))

    gradient = jax.grad(loss, (0, 1))
    (x, w), limits = roundings.steady(
        gradient, lambda seed: (array(4, 4, seed=2 * seed), array(4, 4, seed=2 * seed + 1))
    )
    inside = jax.jit(passes.mixed_precision(gradient))(x, w)
    outside = jax.jit(jax.grad(passes.mixed_precision(loss), (0, 1)))(x, w)
    wanted = jax.jit(gradient)(x, w)
    for found in (inside, outside):
        roundings.assert_as_near_as_rounding_allows(found, wanted, limits)
    products = dtypes(jax.grad(loss, (0, 1)), X, W)
    assert set(products) <= {"bfloat16"} and (products or name == "convolution")


def test_under_vmap_and_of_vmap():
    def layer(x, w):
        return jax.nn.relu(x @ w)

    xs = jnp.stack([X, 2 * X])
    wanted = jax.vmap(layer, (0, None))(xs, W)
    for fn in (
        jax.vmap(passes.mixed_precision(layer), (0, None)),
        passes.mixed_precision(jax.vmap(layer, (0, None))),
    ):
        np.testing.assert_allclose(fn(xs, W), wanted, atol=0.05)


def test_inside_shard_map():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("batch",))
    spec = jax.sharding.PartitionSpec

    def layer(x, w):
        return jax.nn.relu(x @ w)

    mapped = jax.shard_map(
        layer, mesh=mesh, in_specs=(spec("batch"), spec()), out_specs=spec("batch")
    )
    np.testing.assert_allclose(
        jax.jit(passes.mixed_precision(mapped))(X, W), layer(X, W), atol=0.05
    )
    assert dtypes(mapped, X, W) == ["bfloat16"]


def test_programs_without_gain_are_unchanged():
    for fn in (
        jnp.exp,
        lambda x: x.astype(int) + 1,
        lambda x: x.astype("float64") @ x.T.astype("float64"),
    ):
        closed = jax.make_jaxpr(fn)(X)
        assert passes.rewrite(closed) is closed
    integers = jax.make_jaxpr(lambda x: x @ x)(jnp.ones((2, 2), int))
    assert passes.rewrite(integers) is integers


def test_linear_solves_remain_in_float32():
    def fn(x, w):
        return jnp.linalg.solve(x + 4 * jnp.eye(4, dtype="float32"), w) @ w

    for program in (fn, jax.grad(lambda x, w: fn(x, w).sum())):
        np.testing.assert_allclose(
            jax.jit(passes.mixed_precision(program))(X, W), program(X, W), atol=0.05
        )
    closed = jax.make_jaxpr(passes.mixed_precision(fn))(X, W)
    (outer,) = [e for e in closed.eqns if e.primitive.name == "dot_general"]
    assert str(outer.outvars[0].aval.dtype) == "bfloat16"
    (solve,) = [e for e in equations(closed.jaxpr) if e.primitive.name == "custom_linear_solve"]
    inner = [e for j in jex_core.jaxprs_in_params(solve.params) for e in equations(j)]
    assert {str(e.outvars[0].aval.dtype) for e in inner if e.primitive.name == "dot_general"} == {
        "float32"
    }


def test_fewest_casts():
    def layers(x, w):
        for _ in range(3):
            x = jax.nn.relu(x @ w)
        return x

    closed = jax.make_jaxpr(layers)(X, W)
    # x and w once each, and the result.
    plain = jax.make_jaxpr(lambda x, w: jnp.maximum(jnp.maximum(x @ w, 0) @ w, 0) @ w)(X, W)
    assert casts(passes.rewrite(plain)) == 3
    assert casts(passes.rewrite(closed)) == 3


def test_values_after_an_exponential_remain_wide_until_the_next_product():
    rows = passes.explain(lambda x, w: (jax.nn.softmax(x @ w) * 2) @ w, X, W).rows
    by_name = {row.primitive: row.precision for row in rows}
    assert by_name["exp"] == by_name["reduce_sum"] == by_name["div"] == by_name["mul"] == "float32"
    assert [r.precision for r in rows if r.primitive == "dot_general"] == ["bfloat16"] * 2


def test_lists_can_be_changed(monkeypatch):
    lists = passes.default_lists()
    assert {"dot_general", "conv_general_dilated"} <= lists.allow
    assert not lists.allow & (lists.infer | lists.deny | lists.clear)
    assert not lists.infer & lists.deny and not lists.deny & lists.clear
    only = lists.replace(allow=lists.allow - {"dot_general"})
    closed = jax.make_jaxpr(lambda x, w: x @ w)(X, W)
    assert passes.rewrite(closed, only) is closed
    monkeypatch.setenv("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_DENYLIST_ADD", "tanh, sin")
    monkeypatch.setenv("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_INFERLIST_REMOVE", "tanh")
    assert passes.default_lists().of("tanh") == "deny"


def test_explanation_is_a_table():
    text = str(passes.explain(lambda x, w: jnp.exp(x @ w), X, W))
    assert "dot_general" in text and "always in low" in text and "always in float32" in text
    assert "test_programs.py:" in text
    assert text.endswith("1 of 2 equations in bfloat16")


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.data())
def test_any_program(data):
    """Random programs of listed and unlisted ops keep their dtypes and stay close."""
    unary = {
        "relu": jax.nn.relu,
        "tanh": jnp.tanh,
        "exp": lambda a: jnp.exp(jnp.minimum(a, 1.0)),
        "softmax": jax.nn.softmax,
        "transpose": jnp.transpose,
        "reverse": lambda a: a[::-1],
        "half": lambda a: a * 0.5,
        "sum": lambda a: a - a.mean(0),
        "cumsum": lambda a: jnp.cumsum(a, 0) / 4,
        "sort": lambda a: jnp.sort(a, 0) * 0.5,
        "product": lambda a: jnp.tanh(a @ W),
    }
    binary = {"add": jnp.add, "max": jnp.maximum, "product": lambda a, b: jnp.tanh(a @ b)}
    plan = []
    for i in range(data.draw(st.integers(1, 8))):
        if data.draw(st.booleans()):
            plan.append(
                (unary[data.draw(st.sampled_from(sorted(unary)))], (data.draw(st.integers(0, i)),))
            )
        else:
            places = data.draw(st.integers(0, i)), data.draw(st.integers(0, i))
            plan.append((binary[data.draw(st.sampled_from(sorted(binary)))], places))

    def program(x):
        values = [x]
        for fn, places in plan:
            values.append(fn(*(values[i] for i in places)))
        return values

    (x,), limits = roundings.steady(program, lambda seed: (array(4, 4, seed=seed),))
    got = jax.jit(passes.mixed_precision(program))(x)
    roundings.assert_as_near_as_rounding_allows(got, program(x), limits)
    assert set(dtypes(program, x)) <= {"bfloat16"}
