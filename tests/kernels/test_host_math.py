"""Compiled float32 functions and random words of programs that run op by op."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.core.runtime import philox, philox_host
from meshflow.interpreter.elementwise import can_repeat_rows, repeat_rows
from meshflow.kernels import host_math

_EXACT = {"exp": np.exp, "logistic": lambda x: 1 / (1 + np.exp(-x)), "tanh": np.tanh}


@pytest.mark.parametrize("name", host_math.FUNCTIONS)
def test_float_functions(name):
    compute = host_math.find_float_function(name)
    if compute is None:
        pytest.skip("the kernels are not available")
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -100, 88.7, 89, -103.9, -104, -200, 200]
    x = np.concatenate([special, np.linspace(-12, 12, 5001), np.geomspace(1e-30, 50, 500)])
    x = x.astype(np.float32)
    found = np.empty_like(x)
    compute(x, found)
    with np.errstate(all="ignore"):
        exact = _EXACT[name](x.astype(np.float64))
        rounded = exact.astype(np.float32)
        normal = np.isfinite(rounded) & (np.abs(rounded) > 2e-38)
        distance = np.abs(found - exact) / np.spacing(np.abs(rounded))
    assert distance[normal].max() < 2.6
    np.testing.assert_allclose(found[~normal], rounded[~normal], 0, 2e-38)
    assert name != "tanh" or np.signbit(found[4])
    in_place = x.copy()
    compute(in_place, in_place)
    np.testing.assert_array_equal(in_place, found)


@pytest.mark.parametrize("has_kernels", [True, False])
def test_philox_words(has_kernels, monkeypatch):
    if not has_kernels:
        monkeypatch.setattr(host_math, "find_philox", lambda: None)
    for state in ([5, 7, 9], [-3, 2**62, -(2**63)]):
        found = philox_host.draw_words(np.array(state, np.int64), 22)
        low, high, key = (n & 0xFFFFFFFFFFFFFFFF for n in state)
        words: list[int] = []
        for i in range(6):
            carry, counter = divmod(low + i, 1 << 64)
            words += philox.generate_block(counter, high + carry, key)
        assert found.tolist() == words[:22]
        uniform = philox_host.draw_unit_uniform(np.array(state, np.int64), 21)
        np.testing.assert_array_equal(uniform, [(word & 0x7FFFFF) / 2**23 for word in words[:21]])


def test_repeated_rows():
    row = np.arange(3.0)
    assert can_repeat_rows((3,), (8, 40, 3)) and can_repeat_rows((1, 1, 3), (8, 40, 3))
    for operand, shape in [((40, 3), (8, 40, 3)), ((1,), (8, 40, 3)), ((3,), (2, 3)), ((), (9, 9))]:
        assert not can_repeat_rows(operand, shape)
    assert not can_repeat_rows((1, 1, 1, 3), (8, 40, 3))
    x = np.arange(960.0).reshape(8, 40, 3)
    np.testing.assert_array_equal(x - repeat_rows(row, x.shape), x - row)


@pytest.mark.parametrize("function", [tf.exp, tf.sigmoid, tf.tanh])
def test_results_do_not_depend_on_the_order_in_memory(function):
    x = np.random.default_rng(0).normal(size=(60, 50)).astype(np.float32)
    for other in (np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2]):
        np.testing.assert_array_equal(function(other), function(x))
    swap = tf.function(lambda y: function(tf.transpose(y)))
    np.testing.assert_array_equal(swap(x), function(x).numpy().T)
