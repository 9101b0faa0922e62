"""Test that saved programs are read as jaxprs with equal results."""

import dataclasses
import io
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import meshflow as tf
from meshflow.deployment.equations import flatten_jaxpr
from meshflow.environment import module_rewriting
from meshflow.environment.jax_internals import jex_core
from meshflow.interpreter import build_plan
from meshflow.kernels.recurrent import RecurrentForm, run_layer
from meshflow.saved_model.programs import foreign_modules
from meshflow.saved_model.programs.module_reader import read_jaxpr

X = np.random.RandomState(0).normal(size=(4, 6)).astype(np.float32)
IMAGES = np.random.RandomState(1).normal(size=(2, 6, 6, 2)).astype(np.float32)
KERNEL = np.random.RandomState(2).normal(size=(3, 3, 2, 4)).astype(np.float32)
ROWS = np.array([2, 0, 3, 3], np.int32)


def read_again(function, *arrays):
    """The jaxpr of a function that was exported for any number of rows, and its results for some arrays."""
    (rows,) = jax.export.symbolic_shape("rows")
    specs = [jax.ShapeDtypeStruct((rows, *a.shape[1:]), a.dtype) for a in arrays]
    saved = jax.export.export(jax.jit(function), platforms=("cpu", "cuda"))(*specs)
    program = jax.export.deserialize(saved.serialize())
    closed = read_jaxpr(program, [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays])
    # And with sizes that vary.
    flatten_jaxpr(read_jaxpr(program, specs))
    return closed, jex_core.jaxpr_as_fun(closed)(*arrays)


def run_loop(x):
    return lax.fori_loop(0, 3, lambda i, y: lax.dynamic_update_slice(y, x[:1] * i, (i, 0)), x)


def run_scan(x):
    return lax.scan(lambda c, row: (c * 0.5 + row, c), x[0], x)[1]


FUNCTIONS = {
    "arithmetic": lambda x: (x * 2 - 1) / (jnp.abs(x) + 1) + jnp.floor(x) % 3 + jnp.sign(x) ** 2,
    "functions": lambda x: (
        jnp.tanh(x) + jnp.exp(-x) + jnp.sin(x) + jnp.log1p(x * x) + lax.rsqrt(x * x + 1)
    ),
    "rounding": lambda x: jnp.round(x) + jnp.ceil(x) + lax.round(x),
    "whole numbers": lambda x: (ROWS[:, None] // 2 + x.astype(jnp.int32) % 3) ^ 5,
    "comparisons": lambda x: jnp.where((x > 0) & ~(x >= 1) | (x == 0), x, jnp.clip(x, -0.5, 0.5)),
    "dtypes": lambda x: (
        x.astype(jnp.bfloat16) * jnp.array([1.5, jnp.inf, 2, 1, 0, 3], jnp.bfloat16)
    ).astype(jnp.float32),
    "sizes": lambda x: x.reshape(-1)[None] * x.shape[0] + jnp.arange(x.shape[0] * 6),
    "shapes": lambda x: jnp.concatenate([x.T[::-1], jnp.pad(x.T, ((1, 0), (0, 0)))[1:, :]], 0),
    "slices": lambda x: x[:, 1:5:2] + x[:, :2],
    "products": lambda x: jnp.einsum("ij,kj->ik", x, x) @ (x @ x.T),
    "reductions": lambda x: (x.sum(), x.max(1), x.min(0), x.prod(1), (x > 0).all(1), x.mean(0)),
    "places": lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 1)),
    "running": lambda x: (jnp.cumsum(x, 1), lax.cummax(x, 1, reverse=True)),
    "sorting": lambda x: (
        jnp.sort(x, 1),
        jnp.argsort(x, 1),
        lax.top_k(x, 2),
        jnp.sort(x, 1, descending=True),
    ),
    "picking": lambda x: (x[ROWS], jnp.take_along_axis(x, jnp.abs(x).astype(jnp.int32), 1)),
    "scattering": lambda x: (x.at[:, ROWS].add(1.0), x.at[:, 1].set(0.0), x.at[:, ROWS].max(0.1)),
    "branches": lambda x: lax.cond(x.sum() > 0, lambda: x + 1, lambda: x - 1),
    "loops": run_loop,
    "loops until": lambda x: lax.while_loop(lambda y: y.sum() < 50, lambda y: y + 1, x),
    "scans": run_scan,
    "functions of functions": lambda x: jax.nn.gelu(jax.nn.softmax(x), approximate=False),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_programs_compute_the_same(name):
    function = FUNCTIONS[name]
    # Functions that need all rows, or the number of rows.
    fixed = name in ("whole numbers", "picking", "scans", "loops")
    array = X.T.copy() if fixed else X
    wrapped = (lambda x: function(x.T)) if fixed else function
    _, found = read_again(wrapped, array)
    expected = jax.tree.leaves(wrapped(jnp.asarray(array)))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(one, other, 1e-5, 1e-5)


def test_convolutions_and_windows():
    def both(x):
        made = lax.conv_general_dilated(
            x, KERNEL, (2, 1), [(1, 0), (1, 1)], rhs_dilation=(1, 2),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip
        window = (1, 2, 2, 1)
        return made, lax.reduce_window(x, -jnp.inf, lax.max, window, window, "SAME")

    _, found = read_again(both, IMAGES)
    for one, other in zip(found, both(IMAGES), strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-5)


def test_strided_convolutions_have_paddings_of_symbolic_sizes():
    convolve = lambda x: lax.conv_general_dilated(
        x, KERNEL, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    height, width = jax.export.symbolic_shape("height, width")
    spec = jax.ShapeDtypeStruct((2, height, width, 2), np.float32)
    program = jax.export.export(jax.jit(convolve))(spec)
    plan = build_plan(read_jaxpr(program, [spec]))
    for size in (1, 2, 3, 6):
        x = IMAGES[:, :size]
        np.testing.assert_allclose(plan.run([x])[0], convolve(x), 1e-5, 1e-5)


def test_sizes_and_cumulative_sums_round_trip():
    closed, _ = read_again(lambda x: jnp.cumsum(x, 1) * x.shape[0], X)
    names = [e.primitive.name for e in closed.jaxpr.eqns]
    assert "cumsum" in names and not {"cond", "reduce_window"} & set(names)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: jnp.linalg.cholesky(x.T @ x), r"custom_call of a saved program.*native code, lapack_\w+"),
        (lambda x: lax.reduce(x, np.float32(0), lambda a, b: a * 2 + b, (0,)), "reduce of a saved.*reduction computes"),
        (lambda x: lax.sort([x, x], num_keys=1)[1] + lax.reduce_precision(x, 5, 10), "reduce_precision .*not among"),
    ],
)  # fmt: skip
def test_unsupported_instructions_are_named(function, why):
    with pytest.raises(tf.errors.UnimplementedError, match=why):
        read_again(function, X)


FORMS = [
    # kind, reverse, time_major, returns_sequences, zero_output_for_mask, has_bias, has_mask, has_dropout
    RecurrentForm("lstm", False, False, False, False, True, False, False),
    RecurrentForm("gru", True, False, True, True, True, True, False),
    RecurrentForm("simple_rnn", False, True, True, False, False, False, True),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind)
def test_recurrent_layers_and_their_gradients_are_read_as_primitives(form):
    units, width = 3, 3 * {"lstm": 4, "gru": 3, "simple_rnn": 1}[form.kind]
    shapes = [(5, 4, 2), (2, width), (units, width), *[(5, units)] * form.num_states]
    shapes += [(2, width) if form.kind == "gru" else (width,)] * form.has_bias
    random = np.random.RandomState(3)
    batch = 1 if form.time_major else 0
    (rows,) = jax.export.symbolic_shape("rows")
    if form.time_major:
        shapes[0] = (4, 5, 2)
    arrays = [random.normal(size=s).astype(np.float32) for s in shapes]
    arrays += [random.rand(5, 4) < 0.7] * form.has_mask
    arrays += [np.full((5, units), 0.5, np.float32)] * form.has_dropout
    varies = lambda i, a: (a.shape[batch] if i == 0 else a.shape[0]) == 5
    specs = []
    for i, a in enumerate(arrays):
        shape = [rows if varies(i, a) and n == 5 else n for n in a.shape]
        specs.append(jax.ShapeDtypeStruct(tuple(shape), a.dtype))
    run = lambda *xs: run_layer(form, *xs)
    saved = jax.export.export(jax.jit(run), platforms=("cpu", "cuda"))(*specs)
    program = jax.export.deserialize(saved.serialize(vjp_order=1))
    closed = read_jaxpr(program, specs)
    assert "recurrent_layer" in {e.primitive.name for e in closed.jaxpr.eqns}
    expected = run(*arrays)
    for one, other in zip(build_plan(closed).run(arrays), expected, strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-5)
    gradients, backward = jax.vjp(run, *arrays), program.vjp()
    cotangents = [np.ones(r.shape, np.float32) for r in expected]
    operands = [*arrays, *cotangents]
    closed = read_jaxpr(backward, [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in operands])
    names = {e.primitive.name for e in closed.jaxpr.eqns}
    assert {"recurrent_layer", "recurrent_layer_gradient"} <= names
    for one, other in zip(build_plan(closed).run(operands), gradients[1](cotangents), strict=True):
        if other.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(one, other, 1e-5, 1e-5)


def test_other_functions_with_the_name_of_a_layer_are_read():
    def double(x):
        return 2 * x

    double.__name__ = "meshflow_recurrent_layer_1_00001000"
    _, (found,) = read_again(lambda x: jax.jit(double)(x), X)
    np.testing.assert_array_equal(found, 2 * X)


def test_functions_of_other_authors_lose_the_names_of_layers():
    def compute(x, kernel, recurrent, state):
        return [state + x[:, 0, :1] + kernel[:1] + recurrent[:1], state]

    compute.__name__ = "meshflow_recurrent_layer_0_00000000"
    arrays = [np.ones(s, np.float32) for s in ((9, 5, 2), (2, 3), (3, 3), (9, 3))]
    run = jax.jit(lambda *xs: jax.jit(compute)(*xs))
    program = jax.export.export(run)(*arrays)
    data, result = program.mlir_module_serialized, io.BytesIO()
    source = io.BytesIO(struct.pack("<q", len(data)) + data)
    module_rewriting.rewrite_modules(source, result, 0)
    (module,), _ = foreign_modules._parse_modules(result.getvalue(), 0)
    for content, is_layer in ((data, True), (module, False)):
        read = dataclasses.replace(program, mlir_module_serialized=content)
        closed = read_jaxpr(read, arrays)
        assert is_layer == any(e.primitive.name == "recurrent_layer" for e in closed.jaxpr.eqns)
    np.testing.assert_array_equal(build_plan(closed).run(arrays)[0], np.full((9, 3), 4))
