"""Recurrent layers by the kernel's loops are those of their equations, with derivatives of any order."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import helpers
import meshflow as tf
from kernels.beside_xla import needs
from meshflow.interpreter import build_plan
from meshflow.kernels import library, recurrent
from meshflow.kernels.recurrent import RecurrentForm

compiled = needs(library.RECURRENT)
# No options, all with batches first, and all with steps first.
FLAGS = [(0, 0, 1, 0, 0, 0, 0), (1, 0, 1, 0, 1, 1, 1), (0, 1, 0, 1, 1, 1, 1)]


def make_operands(form, sizes, dtype="float32"):
    batch, steps, features, units = sizes
    rng = np.random.default_rng(0)
    axes = (steps, batch) if form.time_major else (batch, steps)
    width = recurrent._NUM_GATES[form.kind] * units
    shapes = [(*axes, features), (features, width), (units, width)]
    shapes += [(batch, units)] * form.num_states
    if form.has_bias:
        shapes.append((2, width) if form.kind == "gru" else (width,))
    arrays = [jnp.asarray(rng.normal(size=s) / s[0] ** 0.5, dtype) for s in shapes]
    if form.has_mask:
        arrays.append(jnp.asarray(rng.random(axes) < 0.6))
    if form.has_dropout:
        arrays.append(jnp.asarray((rng.random((batch, units)) < 0.7) / 0.7, dtype))
    return arrays


def run_equations(form, *arrays):
    return recurrent._compute_layer(*arrays, form=form, saves=False)


def total(run, form, *arrays):
    results = run(form, *arrays)
    return sum((jnp.cos(jnp.arange(r.size).reshape(r.shape)) * r).sum() for r in results)


def slopes(run, form, arrays):
    places = [i for i, a in enumerate(arrays) if a.dtype != bool]
    return jax.value_and_grad(functools.partial(total, run, form), places)(*arrays)


def convert(arrays, dtype):
    """Convert by NumPy, without a program for each shape."""
    return [a if a.dtype == bool else np.asarray(a, jnp.dtype(dtype)) for a in arrays]


def widen(arrays):
    return convert(arrays, "float64")


def assert_near(found, wanted, tolerance):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        wide = np.asarray(b, np.float64)
        np.testing.assert_allclose(
            np.asarray(a, np.float64), wide, rtol=0, atol=tolerance * max(1, np.abs(wide).max())
        )


@compiled
@pytest.mark.isa
@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("kind", recurrent.KINDS)
def test_values_and_gradients(kind, flags, monkeypatch):
    form = RecurrentForm(kind, *map(bool, flags))
    # More than one group of columns, and zeros between the last vector of units and the multiple of 32 that matrix tiles read.
    arrays = make_operands(form, (9, 4, 5, 77))
    if form.reverse:
        monkeypatch.setattr(recurrent, "MAX_WEIGHT_BYTES", 0)
    wanted = jax.jit(functools.partial(slopes, run_equations, form))(widen(arrays))
    for dtype, tolerance in (("float32", 5e-6), ("bfloat16", 0.03), ("float16", 0.005)):
        narrow = convert(arrays, dtype)
        program = jax.jit(functools.partial(slopes, recurrent.run_layer, form)).lower(narrow)
        assert program.as_text().count("@meshflow_recurrent") == 2
        assert_near(program.compile()(narrow), wanted, tolerance)


@compiled
@pytest.mark.parametrize("sizes", [(1, 40, 16, 256), (33, 9, 20, 64)])
def test_bits_do_not_depend_on_threads_or_tiers(sizes, monkeypatch):
    monkeypatch.setattr(recurrent, "MAX_WEIGHT_BYTES", 1 << 30)
    form = RecurrentForm("lstm", *map(bool, FLAGS[1]))
    arrays = make_operands(form, sizes)
    run = functools.partial(recurrent.run_layer, form)
    results = [jax.jit(run)(*arrays)]
    library.load().set_threads(1)
    try:
        results.append(jax.jit(run)(*arrays))
    finally:
        library.load().set_threads(2)
    plan = build_plan(jax.make_jaxpr(run)(*arrays))
    results.append(plan.run([np.asarray(a) for a in arrays]))
    # The interpreter multiplies large kernels by another library.
    monkeypatch.setattr(recurrent, "MAX_WEIGHT_BYTES", 0)
    other = build_plan(jax.make_jaxpr(run)(*arrays)).run([np.asarray(a) for a in arrays])
    assert_near(other, results[0], 1e-5)
    for a, b, c in zip(*results, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        np.testing.assert_array_equal(np.asarray(a), np.asarray(c))


@pytest.mark.parametrize("kind", helpers.rounds(["lstm", "gru"], recurrent.KINDS))
def test_other_derivatives(kind):
    form = RecurrentForm(kind, *map(bool, FLAGS[2]))
    arrays = make_operands(form, (3, 4, 2, 3))

    def transform(run, x, *rest):
        loss = lambda x: total(run, form, x, *rest)
        curvature = jax.grad(lambda x: (jax.grad(loss)(x) ** 2).sum())(x)
        forward = jax.jvp(
            lambda w: total(run, form, x, w, *rest[1:]), rest[:1], (jnp.sin(rest[0]),)
        )
        many = jax.vmap(lambda s: jax.grad(lambda x: loss(x * s))(x))(
            jnp.arange(1.0, 3).astype(x.dtype)
        )
        return curvature, forward, many

    found = jax.jit(functools.partial(transform, recurrent.run_layer))(*arrays)
    assert_near(found, jax.jit(functools.partial(transform, run_equations))(*widen(arrays)), 1e-4)


def test_nan_and_infinity_affect_only_their_examples():
    form = RecurrentForm("lstm", *map(bool, FLAGS[0]))
    x, *rest = make_operands(form, (5, 4, 3, 20))
    with jax.debug_nans(False):
        x = x.at[1, 2, 0].set(jnp.nan).at[3, 0, 0].set(jnp.inf)
        outputs = np.asarray(jax.jit(functools.partial(recurrent.run_layer, form))(x, *rest)[0])
    assert np.isnan(outputs[1, 2:]).all()
    assert np.isfinite(outputs[[0, 2, 4]]).all() and np.isfinite(outputs[1, :2]).all()


def test_other_types_and_exported_programs_use_the_equations():
    form = RecurrentForm("gru", *map(bool, FLAGS[0]))
    arrays = make_operands(form, (3, 4, 2, 3))
    run = jax.jit(functools.partial(recurrent.run_layer, form))
    assert "@meshflow" not in run.lower(*widen(arrays)).as_text()
    assert "@meshflow" not in run.lower(*[a[:, :1] if a.ndim == 3 else a for a in arrays]).as_text()
    assert "custom_call" not in jax.export.export(run)(*arrays).mlir_module()


def test_operands_of_other_shapes_use_the_equations():
    form = recurrent.RecurrentForm("simple_rnn", False, False, False, False, False, False, False)
    for is_gradient, shapes in (
        (False, [(9, 5, 2), (2, 3), (3, 3), (9, 3)]),
        (True, [(9, 5, 3), (9, 5, 3), (3, 3), (9, 3), (9, 3)]),
    ):
        operands = [jax.ShapeDtypeStruct(s, np.float32) for s in shapes]
        assert recurrent._describe(operands, is_gradient, form) is not None
        for i, shape in enumerate(shapes):
            other = jax.ShapeDtypeStruct((1, *shape[1:]), np.float32)
            changed = [*operands[:i], other, *operands[i + 1 :]]
            assert recurrent._describe(changed, is_gradient, form) is None


@pytest.mark.parametrize("options", [{}, {"activation": "relu"}, {"unroll": True}])
def test_layers_without_a_kernel_run_step_by_step(options):
    x = tf.constant(np.random.default_rng(0).normal(size=(4, 6, 3)), "float32")
    layer = tf.keras.layers.LSTM(8, **options)
    layer(x)
    assert layer._is_fused(x, layer.get_initial_state(x)) == (not options)


@pytest.mark.parametrize("shape", [(1, 6), (9, 1), (9, 6, 1)])
def test_masks_broadcast_over_examples_and_steps(shape):
    rng = np.random.default_rng(0)
    x, mask = rng.normal(size=(9, 6, 3)).astype(np.float32), rng.random(shape) < 0.5
    layer = tf.keras.layers.LSTM(8)
    layer(x)
    full = np.broadcast_to(mask.reshape(shape[:2]), (9, 6))
    for compile_step in (lambda f: f, tf.function):
        found, expected = (
            compile_step(layer)(tf.constant(x), mask=tf.constant(m)) for m in (mask, full)
        )
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("place", "shape"), [(5, (1,)), (6, (1, 4)), (7, (1, 3)), (7, (9, 1))])
def test_operands_that_the_handler_does_not_broadcast(place, shape):
    form = RecurrentForm("lstm", *map(bool, (0, 0, 1, 0, 1, 1, 1)))
    arrays = make_operands(form, (9, 4, 5, 3))
    arrays[place] = jnp.ones(shape, arrays[place].dtype)
    run = functools.partial(recurrent.run_layer, form)
    plan = build_plan(jax.make_jaxpr(run)(*arrays))
    for results in (jax.jit(run)(*arrays), plan.run([np.asarray(a) for a in arrays])):
        assert_near(results, run_equations(form, *arrays), 1e-6)
