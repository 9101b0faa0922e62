"""Test that NumPy versions of ops in input pipelines equal the compiled programs."""

import contextlib

import numpy as np
import pytest

import forked
import meshflow as tf
from meshflow.core.runtime.context import context
from meshflow.ops import host
from meshflow.ops import random as random_ops


@pytest.fixture
def on_host():
    with host.host_scope():
        yield


def run_both(function, *arrays):
    """Results of compiled programs, and of NumPy, as host arrays."""
    compiled = function(*map(tf.constant, arrays))
    with host.host_scope():
        by_numpy = function(*[tf.Tensor(a) for a in arrays])
    assert type(by_numpy._value) is np.ndarray
    assert by_numpy.dtype is compiled.dtype
    return np.asarray(compiled), by_numpy._value


def numbers(kind, shape=(5, 4, 3)):
    found = np.random.default_rng(3).normal(size=shape) * 100
    return found.astype(kind)


@pytest.mark.parametrize("kind", ["float32", "float64", "int32", "uint8", "int64"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x + y,
        lambda x, y: x - y,
        lambda x, y: x * y,
        lambda x, y: x / 4,
        lambda x, y: x / (y + 1),
        lambda x, y: tf.maximum(x, y),
        lambda x, y: tf.minimum(x, y[0]),
        lambda x, y: tf.cast(x < y, tf.float32),
        lambda x, y: tf.where(x >= y, x, y),
        lambda x, y: tf.cast(x, tf.float32),
        lambda x, y: tf.cast(x, tf.int32),
        lambda x, y: tf.clip_by_value(x, 2, 50),
        lambda x, y: tf.image.flip_left_right(x),
        lambda x, y: tf.image.flip_up_down(x),
        lambda x, y: tf.reshape(x, [-1, 3]),
        lambda x, y: tf.reduce_sum(x),
    ],
)
def test_same_numbers(kind, function):
    compiled, by_numpy = run_both(function, numbers(kind), numbers(kind)[::-1].copy())
    np.testing.assert_array_equal(compiled, by_numpy)


def test_quotients_are_rounded_once(on_host):
    x = numbers("float32")
    np.testing.assert_array_equal((tf.Tensor(x) / 3.0)._value, x / np.float32(3))


def test_not_a_number():
    x, y = np.array([np.nan, 1, np.inf], np.float32), np.array([0, np.nan, np.inf], np.float32)
    for function in (tf.maximum, tf.minimum, tf.subtract, tf.truediv):
        np.testing.assert_array_equal(*run_both(function, x, y))


def test_same_random_numbers():
    for key in np.random.default_rng(0).integers(-(1 << 63), 1 << 63, size=(20, 3)):
        for shape in ([], [3]):
            draw = lambda k, shape=shape: random_ops.draw_uniform(k, shape, 0.0, 2.5, "float32")
            np.testing.assert_array_equal(*run_both(draw, key))


def test_operands_not_handled_on_the_host(on_host):
    """Halves and strings, and operands that are not arrays."""
    half = tf.Tensor(np.ones(3, np.float16))
    assert host._make_elementwise(np.add)([half._value, half._value], ()) is None
    assert (half + half).numpy().tolist() == [2, 2, 2]
    assert (tf.constant(["a"]) + "b").numpy().tolist() == [b"ab"]
    assert tf.concat([half, half], 0).shape == [6]
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.reshape(half, [2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        tf.constant(np.ones(3)) + tf.constant(np.ones(2))


def test_gradients_are_recorded_as_ever(on_host):
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    assert tape.gradient(y, x).numpy().tolist() == [2, 4]


def test_pipelines_use_host_ops():
    def change(text):
        image = tf.reshape(tf.io.decode_raw(text, tf.uint8), [2, 2, 1])
        return tf.image.flip_left_right(tf.cast(image, tf.float32) / 255.0)

    data = tf.data.Dataset.from_tensor_slices([b"\x00\x33\x66\xff"]).map(change)
    (image,) = data
    np.testing.assert_array_equal(
        image[..., 0], np.float32([[51, 0], [255, 102]]) / np.float32(255)
    )
    assert not context.computes_on_host


@pytest.mark.parametrize("flip", [tf.image.flip_left_right, tf.image.flip_up_down])
def test_flips_of_matrices_fail(flip):
    for scope in (contextlib.nullcontext(), host.host_scope()):
        with scope, pytest.raises(ValueError, match="at least three-dimensional"):
            flip(tf.constant([[1.0, 2.0], [3.0, 4.0]]))


def test_api_loads_no_image_ops():
    program = "import sys, meshflow as tf; tf.constant; print('meshflow.ops.image' in sys.modules)"
    assert forked.run(program, after="import jax") == [0, "False\n"]


_IDS = np.array([2, 0, -1, 2, 5, 1])
_PAIRS = np.array([[0, 1], [1, 0], [1, 2], [2, 1], [2, 1], [3, 2]])


@pytest.mark.parametrize("kind", ["float32", "float64", "int32"])
@pytest.mark.parametrize(
    ("public", "operands", "static"),
    [
        (host.gather_scatter._gather, [(6, 2), _IDS % 6], (0, 0)),
        *[
            (host.segments._reduce_segments, [(6, 2), _IDS], (4, reduction))
            for reduction in ("sum", "mean", "sqrt_n", "max", "min")
        ],
        (host.segments._reduce_segments, [(2, 3), _IDS.reshape(2, 3)], (4, "sum")),
        (host.sum_rows, [(6,), _IDS], (3,)),
        (host.coordinates._take, [(6, 2), _IDS], ()),
        (host.coordinates._multiply_elements, [_PAIRS, (6,), (3, 2)], (4, False)),
        (host.coordinates._multiply_elements, [_PAIRS, (6,), (4, 2)], (3, True)),
        (host.coordinates.reduce_elements, [_PAIRS, (6,)], ((4, 3), (0,), (4, 1), "sum")),
        (host.coordinates.add_elements, [(4, 3), _PAIRS, (6,)], (False,)),
        (host.coordinates.add_elements, [(4, 3), _PAIRS, (6,)], (True,)),
    ],
)
def test_reductions_are_those_of_plans(kind, public, operands, static):
    op = getattr(public, "op", public)
    arrays = [numbers(kind, o) if isinstance(o, tuple) else o for o in operands]
    result = op.host_function(arrays, static)
    if kind == "int32" and {"mean", "sqrt_n"}.intersection(static):
        # Means of integers need conversions, which run as programs.
        assert result is None
        return
    expected = op.get_eager(static)._choose_plan(arrays)(*arrays)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, np.asarray(expected))


@pytest.mark.parametrize("kind", ["int8", "int32", "int64", "uint8"])
@pytest.mark.parametrize("public", [host.division._floordiv, host.division._floormod])
def test_divisions_of_integers_are_those_of_plans(kind, public):
    info = np.iinfo(kind)
    values = np.array([info.min, info.min + 1, 0, 1, 2, 7, info.max], kind)
    arrays = [values[:, None], np.append(values[values != 0], np.array(-3).astype(kind))]
    result = public.op.host_function(arrays, ())
    expected = np.asarray(public.op.get_eager(())._choose_plan(arrays)(*arrays))
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)
    assert public.op.host_function([values, np.zeros(1, kind)], ()) is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_small_systems_of_equations(dtype):
    matrices = np.array([[[2.0, 1.0], [0.5, 3.0]], [[0.0, 1.0], [-2.0, 0.0]]]).astype(dtype)
    if dtype == "complex64":
        matrices *= np.complex64(1 + 2j)
    rhs = matrices[:, :, :1]
    for adjoint in (False, True):
        used = np.conj(np.swapaxes(matrices, 1, 2)) if adjoint else matrices
        inverse = tf.linalg.inv(matrices, adjoint=adjoint)
        assert inverse.dtype == dtype
        np.testing.assert_allclose(inverse @ used, [np.eye(2)] * 2, atol=1e-6)
        solution = tf.linalg.solve(matrices, rhs, adjoint=adjoint)
        np.testing.assert_allclose(used @ solution.numpy(), rhs, atol=1e-6)
    determinants = matrices[:, 0, 0] * matrices[:, 1, 1] - matrices[:, 0, 1] * matrices[:, 1, 0]
    np.testing.assert_allclose(tf.linalg.det(matrices), determinants, rtol=1e-6)
    sign, logarithm = tf.linalg.slogdet(matrices)
    assert logarithm.dtype == dtype
    np.testing.assert_allclose(sign * tf.exp(logarithm), determinants, rtol=1e-6)
    for run in (tf.linalg.inv, lambda m: tf.linalg.solve(m, rhs)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not invertible"):
            run(np.ones_like(matrices))
    assert not tf.linalg.det(np.ones_like(matrices)).numpy().any()
