"""Test that the kernel's updates of complete variables equal the optimizers' rules, computed by
XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
from kernels.beside_xla import both, every_size, marks  # noqa: F401
from meshflow.kernels import array_updates, library

pytestmark = marks(library.RENEW)

HANDLER = "meshflow_renew"
LEGACY = tf.keras.optimizers.legacy
OPTIMIZERS = {
    "sgd": LEGACY.SGD(0.1),
    "nesterov": LEGACY.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": LEGACY.Adam(0.1),
    "amsgrad": LEGACY.Adam(0.1, amsgrad=True),
    "adagrad": LEGACY.Adagrad(0.1),
    "adamax": LEGACY.Adamax(0.1),
    "rmsprop": LEGACY.RMSprop(0.1, momentum=0.9),
}
# XLA multiplies by the inverse where these divide by a root.
ROUNDED = ("rmsprop",)


def problem(shape, arrays):
    random = np.random.default_rng(0)
    made = [jnp.asarray(random.uniform(0.1, 1, shape), "float32") for _ in range(arrays)]
    return made, jnp.asarray(random.normal(size=shape), "float32")


def make_update(rule, kept=None):
    def run(arrays, gradient):
        wanted = kept or [n == 0 for n in range(len(arrays))]
        return array_updates.update_arrays(rule, arrays, gradient, wanted)

    return run


# The second one ends within a register, is shared by threads, and has numbers left over.
@pytest.mark.parametrize("shape", [(3, 7), ((1 << 18) + 515,)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(monkeypatch, name, shape):
    optimizer = OPTIMIZERS[name]
    made = tf.Variable(tf.zeros([4, 4]))
    state = optimizer._prepare([made])[made.device, made.dtype.base_dtype]
    names, scalars = list(state), [v.numpy() for v in state.values()]

    def run(arrays, gradient, scalars):
        values = dict(zip(names, scalars, strict=True)), *optimizer._rule_settings()
        rule = lambda a, g: optimizer.rule(a[0], g, a[1:], *values)
        return make_update(rule)(arrays, gradient)

    arrays, gradient = problem(shape, 1 + len(optimizer._get_slot_names(made)))
    before = np.array(arrays)
    found, plain = both(monkeypatch, run, arrays, gradient, scalars, handler=HANDLER)
    for one, other in zip(found, plain, strict=True):
        error = 1e-6 if name in ROUNDED else 0
        np.testing.assert_allclose(one, other, error, error)
    np.testing.assert_array_equal(arrays, before)


def test_slots_are_updated_in_place_beside_a_live_value():
    (var, before), gradient = problem((64, 64), 2)
    rule = lambda a, g: [a[0] - g, a[1] + g]
    expected = rule([np.array(var), np.array(before) + 1], gradient)
    slot = before + 1  # NumPy's memory is not donated to a program
    place = slot.unsafe_buffer_pointer()
    update = make_update(rule)
    # A donated buffer becomes the first result of its size.
    run = jax.jit(lambda v, s, g: update([v, s], g)[::-1], donate_argnums=1)
    with jax.debug_nans(False):  # which disables donation
        found = run(var, slot, gradient)[::-1]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert found[1].unsafe_buffer_pointer() == place
    assert not var.is_deleted()


def test_every_operation(monkeypatch):
    def rule(arrays, gradient):
        a, b = arrays
        c = jnp.maximum(jnp.abs(gradient), 0.3) / b - a * 2
        d = jnp.minimum(-c, jnp.sqrt(b)) + a * b
        return [c * a - d, b]

    arrays, gradient = problem((9, 31), 2)
    with jax.debug_nans(False):
        arrays[0] = arrays[0].at[0, 0].set(jnp.nan)
        found, plain = both(
            monkeypatch, make_update(rule, (True, True)), arrays, gradient, handler=HANDLER
        )
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_allclose(one, other, 1e-6, 1e-6)


@pytest.mark.parametrize("last", ["add", "sub", "mul add", "sub mul", "mul sub"])
def test_last_operations(monkeypatch, last):
    rules = {
        "add": lambda a, g: [a[0] + g],
        "sub": lambda a, g: [a[0] - g],
        "mul add": lambda a, g: [a[0] * 0.5 + g],
        "sub mul": lambda a, g: [a[0] - g * 0.1],
        "mul sub": lambda a, g: [a[0] * 0.9 - g],
    }
    found, plain = both(
        monkeypatch, make_update(rules[last]), *problem((16, 33), 1), handler=HANDLER
    )
    np.testing.assert_array_equal(found, plain)


def test_unsupported_update_programs_use_xla():
    arrays, gradient = problem((8, 8), 2)

    def text(rule, arrays=arrays, gradient=gradient):
        return jax.jit(make_update(rule)).lower(arrays, gradient).as_text()

    assert HANDLER in text(lambda a, g: [a[0] - g, a[1]])
    assert HANDLER not in text(lambda a, g: [a[0] - g.sum(), a[1]])
    # One would be written over before the other is read.
    assert HANDLER not in text(lambda a, g: [a[1], a[0]])
    half = [a.astype("bfloat16") for a in arrays], gradient.astype("bfloat16")
    assert HANDLER not in text(lambda a, g: [a[0] - g, a[1]], *half)


def test_small_arrays_use_xla(monkeypatch):
    monkeypatch.setattr(array_updates, "MIN_BYTES", 1 << 12)
    rule = lambda a, g: [a[0] - g]
    for rows, is_large in ((31, False), (32, True)):
        lowered = jax.jit(make_update(rule)).lower(*problem((rows, 32), 1))
        assert (HANDLER in lowered.as_text()) == is_large


def test_derivatives():
    (var,), gradient = problem((4, 16), 1)
    run = make_update(lambda a, g: [a[0] * 3.0 - g])
    slope = jax.grad(lambda v: run([v], gradient)[0].sum())(var)
    np.testing.assert_array_equal(slope, np.full((4, 16), 3.0))
