"""Saved functions with unknown sizes, called with empty tensors."""

import numpy as np
import pytest

import meshflow as tf

RAGGED = tf.RaggedTensorSpec([None, None])
SPARSE = tf.SparseTensorSpec([None, None])
ROWS = [
    tf.RaggedTensor.from_row_splits(tf.zeros([0]), [0]),
    tf.RaggedTensor.from_row_splits(tf.zeros([0]), [0, 0, 0]),
    tf.ragged.constant([[1.0, 2.0], [], [3.0]]),
]


def make_sparse(*shape):
    return tf.SparseTensor(np.zeros((0, len(shape)), np.int64), np.zeros(0, np.float32), shape)


def fill(*shape):
    return tf.fill(shape, 2.0)


def add_rows(x):
    total = tf.zeros([2])
    for row in x:
        total += row
    return total


# Function, signature, and the arguments of calls.
CASES = {
    "sum": (lambda x: (tf.reduce_sum(x, 1), x * 2.0), [RAGGED], [[x] for x in ROWS]),
    "join": (
        lambda x: (x.to_tensor(), tf.concat([x, x], 0), x.to_sparse()),
        [RAGGED],
        [[x] for x in ROWS],
    ),
    "sparse": (
        lambda x, y: tf.sparse.sparse_dense_matmul(x, y),
        [SPARSE, tf.TensorSpec([None, None])],
        [
            [make_sparse(0, 3), fill(3, 2)],
            [make_sparse(3, 0), fill(0, 2)],
            [tf.sparse.from_dense([[1.0, 0, 2], [0, 0, 0]]), fill(3, 2)],
        ],
    ),
    "merged": (
        lambda x: (tf.sparse.minimum(x, x * 2.0), tf.sparse.retain(x, x.values > 1)),
        [SPARSE],
        [[make_sparse(2, 3)], [make_sparse(0, 3)], [tf.sparse.from_dense([[1.0, 0, 2]])]],
    ),
    "product": (
        tf.matmul,
        [tf.TensorSpec([None, None])] * 2,
        [[fill(0, 3), fill(3, 2)], [fill(2, 0), fill(0, 3)], [fill(2, 3), fill(3, 2)]],
    ),
    "slices": (
        lambda x: (x[1:], x[:1], tf.cumsum(x), tf.sort(x), tf.size(x), tf.ones([tf.size(x), 2])),
        [tf.TensorSpec([None])],
        [[fill(0)], [fill(1)], [tf.constant([3.0, 1.0, 2.0])]],
    ),
    "loop": (add_rows, [tf.TensorSpec([None, 2])], [[fill(0, 2)], [fill(3, 2)]]),
    "map": (
        lambda x: tf.map_fn(tf.reduce_sum, x),
        [tf.TensorSpec([None, 2])],
        [[fill(0, 2)], [fill(3, 2)]],
    ),
    "map_rows": (
        lambda x: tf.map_fn(tf.reduce_sum, x),
        [tf.TensorSpec([None, None])],
        [[fill(0, 0)], [fill(0, 2)], [fill(3, 0)], [fill(3, 2)]],
    ),
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    module, folder = tf.Module(), tmp_path_factory.mktemp("saved") / "functions"
    for name, (function, signature, _) in CASES.items():
        setattr(module, name, tf.function(function, input_signature=signature))
    tf.saved_model.save(module, folder)
    return tf.saved_model.load(folder)


@pytest.mark.parametrize("name", CASES)
def test_loaded_functions_accept_empty_tensors(name, loaded):
    function, _, calls = CASES[name]
    for arguments in calls:
        wanted, found = (
            tf.nest.flatten(f(*arguments), expand_composites=True)
            for f in (function, getattr(loaded, name))
        )
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b, strict=True)


def test_sizes_that_weights_determine_are_saved(tmp_path):
    module = tf.Module()
    module.kernel = tf.Variable(fill(4, 3))
    module.apply = tf.function(
        lambda x: x @ module.kernel, input_signature=[tf.TensorSpec([None, None])]
    )
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    assert loaded.apply(fill(0, 4)).shape == (0, 3)
    np.testing.assert_array_equal(loaded.apply(fill(2, 4)), np.full((2, 3), 16.0))


def test_gradient_that_needs_a_positive_size(tmp_path):
    """JAX cannot differentiate transposed convolutions of images that may be empty."""
    inputs = tf.keras.Input([None, None, 2])
    outputs = tf.keras.layers.Conv2DTranspose(3, 2, strides=2)(inputs)
    model = tf.keras.Model(inputs, outputs)
    model.export(tmp_path)
    loaded = tf.saved_model.load(tmp_path).serve
    images = tf.random.normal([2, 3, 4, 2])
    gradients = []
    for function in (model, loaded):
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = tf.reduce_sum(function(images) ** 2)
        gradients.append(tape.gradient(loss, images))
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-5, atol=1e-6)
