"""Test that the kernel's row updates equal the optimizers' rules, computed by XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
from kernels.beside_xla import both, every_size, marks  # noqa: F401
from meshflow.keras.optimizers import row_updates
from meshflow.kernels import elementwise, installation, library

pytestmark = marks(library.UPDATE_ROWS)

HANDLER = "meshflow_update_rows"
LEGACY = tf.keras.optimizers.legacy
OPTIMIZERS = {
    "momentum": LEGACY.SGD(0.1, momentum=0.9),
    "nesterov": LEGACY.SGD(0.1, momentum=0.9, nesterov=True),
    "adagrad": LEGACY.Adagrad(0.1),
    "adagrad 2.11": tf.keras.optimizers.Adagrad(0.1),
    "adamax": LEGACY.Adamax(0.1),
    "adadelta": LEGACY.Adadelta(0.1),
    "rmsprop": LEGACY.RMSprop(0.1, momentum=0.9),
    "centered": LEGACY.RMSprop(0.1, momentum=0.9, centered=True),
}
# XLA multiplies by the inverse where these divide by a root.
ROUNDED = ("adagrad 2.11", "adadelta", "rmsprop", "centered")
if not installation.has_onednn():
    # On aarch64, XLA fuses the other one of two products into their sum.
    ROUNDED += ("momentum", "nesterov")


def problem(shape, count, arrays, index="int64"):
    """Return arrays, gradients, and row numbers, some repeated and some out of range."""
    random = np.random.default_rng(0)
    made = [jnp.asarray(random.uniform(0.1, 1, shape), "float32") for _ in range(arrays)]
    gradient = jnp.asarray(random.normal(size=(count, *shape[1:])), "float32")
    numbers = random.integers(0, shape[0] + 3, count)
    return made, gradient, jnp.asarray(numbers, index)


def make_update(rule):
    return lambda arrays, gradient, numbers: row_updates.update_rows(
        rule, arrays, gradient, numbers
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("shape, count", [((200, 64), 90), ((60, 3, 211), 25)])
def test_optimizers(monkeypatch, name, shape, count):
    optimizer = OPTIMIZERS[name]
    made = tf.Variable(tf.zeros([4, 4]))
    state = optimizer._prepare([made])[made.device, made.dtype.base_dtype]
    names, scalars = list(state), [v.numpy() for v in state.values()]
    slots = len(optimizer._get_slot_names(made))

    def run(arrays, gradient, numbers, scalars):
        values = dict(zip(names, scalars, strict=True)), *optimizer._rule_settings()
        rule = lambda a, g: optimizer.rule(a[0], g, a[1:], *values)
        return row_updates.update_rows(rule, arrays, gradient, numbers)

    arrays, gradient, numbers = problem(shape, count, 1 + slots)
    if name == "centered":
        # A mean square is not less than the mean's.
        arrays[1] = arrays[1] + 1.0
    found, plain = both(monkeypatch, run, arrays, gradient, numbers, scalars, handler=HANDLER)
    for one, other in zip(found, plain, strict=True):
        error = 1e-6 if name in ROUNDED else 0
        np.testing.assert_allclose(one, other, error, error)


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize(
    "shape, count", [((7, 5), 40), ((9, 1), 4), ((3, 2, 700), 3), ((50, 64), 1)]
)
def test_every_operation(monkeypatch, shape, count, index):
    def rule(arrays, gradient):
        a, b = arrays
        c = jnp.maximum(jnp.abs(gradient), 0.3) / b - a * 2
        d = jnp.minimum(-c, jnp.sqrt(b)) + a * b
        return [3.0 - c * d, c * a - d]

    operands = problem(shape, count, 2, index)
    with jax.debug_nans(False):
        operands[0][0] = operands[0][0].at[0].set(jnp.nan)
        found, plain = both(monkeypatch, make_update(rule), *operands, handler=HANDLER)
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_allclose(one, other, 1e-6, 1e-6)


def test_repeated_rows_are_summed():
    arrays, gradient, numbers = problem((6, 40), 30, 1)
    run = jax.jit(make_update(lambda a, g: [a[0] - g]))
    exact = np.array(arrays[0])
    total = np.zeros_like(exact)
    for number, row in zip(np.asarray(numbers), np.asarray(gradient), strict=True):
        if number < 6:
            total[number] += row
    np.testing.assert_array_equal(run(arrays, gradient, numbers)[0], exact - total)


def test_numbers_below_zero_count_from_the_end():
    table, gradient = jnp.zeros([4, 16], "float32"), jnp.ones([3, 16], "float32")
    run = jax.jit(make_update(lambda a, g: [a[0] + g]))
    found = run([table], gradient, jnp.array([-1, 3, -9]))[0]
    assert found[:, 0].tolist() == [0, 0, 0, 2]


def test_large_updates_are_divided_among_threads(monkeypatch):
    operands = problem((3000, 513), 2500, 2)
    rule = lambda a, g: [a[0] - g / jnp.sqrt(a[1]), a[1] + g * g]
    found, plain = both(monkeypatch, make_update(rule), *operands, handler=HANDLER)
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_allclose(one, other, 1e-6, 1e-6)


def test_operands_unchanged_by_a_rule():
    (table, slot), gradient, numbers = problem((5, 32), 4, 2)
    run = jax.jit(make_update(lambda a, g: [a[0] * 0 + 7.0, a[1]]))
    found, same = run([table, slot], gradient, jnp.clip(numbers, 0, 3))
    np.testing.assert_array_equal(same, slot)
    assert set(np.unique(np.asarray(found)[np.unique(np.clip(numbers, 0, 3))])) == {7.0}
    np.testing.assert_array_equal(found[4], table[4])


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_types_use_xla(dtype):
    table, gradient = jnp.zeros([4, 64], dtype), jnp.ones([2, 64], dtype)
    run = jax.jit(make_update(lambda a, g: [a[0] + g]))
    lowered = run.lower([table], gradient, jnp.array([1, 1]))
    assert "meshflow_update_rows" not in lowered.as_text()
    assert lowered.compile()([table], gradient, jnp.array([1, 1]))[0][1, 0] == 2


def test_only_elementwise_functions_become_update_programs():
    shape = jax.ShapeDtypeStruct((8, 4), "float32")
    read = lambda function: elementwise.read_program(function, [shape, shape])
    assert read(lambda a, b: [jnp.power(a, b)]) is None
    assert read(lambda a, b: [a + b.sum()]) is None
    assert read(lambda a, b: [a + jnp.ones((8, 4), "float32")]) is not None
    program, scalars = read(lambda a, b: [jnp.clip(a * 2.0 + b, -1.0, 1.0), b])
    assert [s.operation for s in program.steps] == ["mul", "add", "max", "min"]
    assert sorted(float(s) for s in scalars) == [-1, 1, 2]
    assert program.results == (5, 1)


def test_registers_are_used_again():
    shape = jax.ShapeDtypeStruct((8, 4), "float32")

    def deep(a):
        for _ in range(50):
            a = jnp.sqrt(a) + 1.0
        return [a]

    program, _ = elementwise.read_program(deep, [shape])
    assert len(program.steps) == 100
    assert program.encode()[0] <= 4


def test_derivatives():
    table, gradient = jnp.ones([4, 16], "float32"), jnp.ones([3, 16], "float32")
    run = make_update(lambda a, g: [a[0] * 3.0 - g])
    slope = jax.grad(lambda t: run([t], gradient, jnp.array([0, 2, 2]))[0].sum())(table)
    assert slope[:, 0].tolist() == [3, 1, 3, 1]
