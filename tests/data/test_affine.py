"""Maps that scale numbers are computed while elements are gathered, rounded as TensorFlow rounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshflow as tf
from meshflow.data.execution import affine
from meshflow.data.execution.map_function import ElementFunction
from meshflow.kernels import row_gather

D = tf.data.Dataset
F = np.float32
MEAN, SPREAD = np.array([0.1, 0.2, 0.3], F), tf.constant([3.0, 5.0, 7.0])
IMAGES = np.random.default_rng(0).integers(0, 255, (50, 4, 6, 3), np.uint8)
FLOATS = IMAGES.astype(F)

# The function, and NumPy's result.
SCALINGS = [
    (lambda x: tf.cast(x, tf.float32) / 255, FLOATS / F(255)),
    (lambda x: (tf.cast(x, tf.float32) - 127.5) / 127.5, (FLOATS - F(127.5)) / F(127.5)),
    (
        lambda x: (tf.cast(x, tf.float32) / 255 - MEAN) / SPREAD,
        (FLOATS / F(255) - MEAN) / F([3, 5, 7]),
    ),
    (
        lambda x: tf.expand_dims(1 - tf.cast(x, tf.float32), -1) * 3,
        ((1 - FLOATS) * F(3))[..., None],
    ),
    (
        lambda x: tf.reshape(-tf.cast(x, tf.float32) / 7, [24, 3]) + MEAN,
        (-FLOATS / F(7)).reshape(50, 24, 3) + MEAN,
    ),
    (lambda x: tf.image.convert_image_dtype(x, tf.float32), FLOATS * F(1 / 255)),
    (tf.keras.layers.Rescaling(1 / 127.5, offset=-1), FLOATS * F(1 / 127.5) - F(1)),
]


def chains_of(fn, array=IMAGES):
    spec = tf.TensorSpec(array.shape[1:], array.dtype)
    return ElementFunction(fn, spec, "map").affine_maps


def values(dataset):
    return [np.asarray(x) for x in dataset]


@pytest.mark.parametrize("number", range(len(SCALINGS)))
@pytest.mark.parametrize("loops", [True, False])
def test_scalings(monkeypatch, number, loops):
    if not loops:
        monkeypatch.setattr("meshflow.kernels.row_gather._load_loops", lambda: None)
    fn, wanted = SCALINGS[number]
    assert chains_of(fn) is not None
    data = D.from_tensor_slices(IMAGES)
    np.testing.assert_array_equal(np.concatenate(values(data.map(fn).batch(8))), wanted)
    np.testing.assert_array_equal(values(data.map(fn)), wanted)
    by_elements = D.from_generator(lambda: iter(IMAGES), output_signature=data.element_spec).map(fn)
    np.testing.assert_array_equal(values(by_elements), wanted)
    shuffled = data.enumerate().map(lambda i, x: (i, fn(x))).shuffle(9, seed=1).batch(8)
    for index, found in shuffled:
        np.testing.assert_array_equal(found, wanted[index.numpy()])


@pytest.mark.parametrize("number", [0, 1, 2, 5, 6])
def test_scalings_of_batches_of_any_size(number):
    fn, wanted = SCALINGS[number]
    batches = D.from_tensor_slices(IMAGES).batch(8)
    assert batches.map(fn).function.rows is not None
    np.testing.assert_array_equal(np.concatenate(values(batches.map(fn))), wanted)
    assert batches.map(lambda x: tf.reshape(tf.cast(x, tf.float32), [-1, 3])).function.rows is None
    over_batch = lambda x: (
        tf.cast(x, tf.float32) / tf.cast(tf.range(tf.shape(x)[0]), tf.float32)[:, None, None, None]
    )
    assert batches.map(over_batch).function.rows is None


def test_parts_that_are_computed_otherwise():
    labels = np.arange(50) % 5
    fn = lambda x, y: {"x": tf.cast(x, tf.float32) / 255, "y": tf.one_hot(y, 5), "label": y}
    found = list(D.from_tensor_slices((IMAGES, labels)).map(fn).batch(20))
    np.testing.assert_array_equal(np.concatenate([f["x"] for f in found]), FLOATS / F(255))
    np.testing.assert_array_equal(np.concatenate([f["y"] for f in found]), np.eye(5)[labels])
    np.testing.assert_array_equal(np.concatenate([f["label"] for f in found]), labels)
    assert found[0]["y"].dtype == tf.float32 and found[0]["label"].dtype == tf.int64


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: tf.cast(x, tf.float32) / tf.reduce_max(tf.cast(x, tf.float32)),
        lambda x: tf.cast(tf.cast(x, tf.float32) / 3, tf.int32),
        lambda x: tf.cast(x, tf.float64) / 255,
        lambda x: tf.cast(x, tf.float32) / 255 + tf.random.uniform([]),
        lambda x: tf.transpose(tf.cast(x, tf.float32)),
        lambda x: tf.cast(x + 200, tf.float32),
    ],
)
def test_functions_that_are_not_affine_chains(fn):
    assert chains_of(fn) is None


def test_variables_may_change():
    scale = tf.Variable(2.0)
    data = D.from_tensor_slices(np.ones((40, 2), F)).map(lambda x: x * scale).batch(40)
    assert float(next(iter(data))[0, 0]) == 2
    scale.assign(3.0)
    assert float(next(iter(data))[0, 0]) == 3


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_chain_of_any_dtype(data):
    dtype = np.dtype(
        data.draw(
            st.sampled_from(["bool", "uint8", "int16", "int32", "int64", "float32", "float64"])
        )
    )
    array = np.random.default_rng(0).integers(-90, 90, (20, 3, 2)).astype(dtype)
    array = data.draw(
        st.sampled_from([array, array[::-1], array[:, ::2], array[::3].transpose(0, 2, 1)])
    )
    numbers = data.draw(
        st.lists(st.tuples(st.sampled_from("+-*/rn"), st.integers(1, 9)), max_size=4)
    )

    def fn(x):
        x = tf.cast(x, tf.float32) if isinstance(x, tf.Tensor) else x.astype(F)
        for sign, n in numbers:
            n = F(n + 0.3)
            x = {"+": x + n, "-": x - n, "*": x * n, "/": x / n, "r": n - x, "n": -x}[sign]
        return x

    source = D.from_tensor_slices(array)
    wanted = fn(array)
    for dataset in (
        source.map(fn).batch(6),
        source.batch(6).map(fn),
        source.map(fn).repeat(1).batch(30),
    ):
        np.testing.assert_array_equal(np.concatenate(values(dataset)), wanted)


def test_batches_do_not_change_with_the_source_or_each_other():
    array = np.ones((4096, 30), F)
    data = D.from_tensor_slices(array).batch(1024)
    plain, scaled = next(iter(data)), next(iter(data.map(lambda x: x * 2)))
    array[:] = 5
    kept = list(D.from_tensor_slices(array).map(lambda x: x + 1).batch(1024))
    again = list(D.from_tensor_slices(array).map(lambda x: x + 3).batch(1024))
    assert float(plain[3, 3]) == 1 and float(scaled[3, 3]) == 2
    assert {float(b.numpy().min()) for b in kept} == {6} and {
        float(b.numpy().max()) for b in again
    } == {8}


def test_arrays_of_iterators_are_not_to_be_written():
    for data in (D.range(100).batch(50), D.from_tensor_slices(np.ones((3, 2)))):
        with pytest.raises(ValueError):
            next(data.as_numpy_iterator())[0] = 1


def test_rows_of_memory_maps(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.uint8, "w+", shape=(50, 4, 6, 3))
    mapped[:] = IMAGES
    data = D.from_tensor_slices(mapped).map(SCALINGS[0][0]).shuffle(20, seed=3).batch(7)
    plain = D.from_tensor_slices(IMAGES).map(SCALINGS[0][0]).shuffle(20, seed=3).batch(7)
    for found, wanted in zip(data, plain, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_likeness():
    step = lambda v: row_gather.RowStep("div", np.array(v, F))
    affine_map = affine.AffineMap(0, None, (step(2),))
    assert affine_map.is_equal(affine.AffineMap(0, None, (step(2),)))
    for other in (
        None,
        affine_map._replace(leaf=1),
        affine_map._replace(steps=None),
        affine_map._replace(steps=(step(3),)),
    ):
        assert not affine_map.is_equal(other)
