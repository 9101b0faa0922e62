"""Behaviour of version 1 graphs that TensorFlow's own unit tests rely on."""

import numpy as np
import pytest

import meshflow as tf

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), v1.Session() as session:
        yield session


def test_gradients_of_constants_that_a_body_uses(session):
    factor = tf.constant(2.0)
    squares = tf.map_fn(lambda x: x * x * factor, tf.constant([1.0, 2.0, 3.0]))
    assert session.run(tf.gradients(squares, factor)[0]) == 14.0


def test_slices_from_fed_positions(session):
    start = v1.placeholder(tf.int32, [])
    part = tf.slice(tf.range(5), [start], [2])
    assert part.shape == [2]
    assert session.run(part, {start: 3}).tolist() == [3, 4]


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("random_contrast", (0.1, 0.9)),
        ("random_crop", ([2, 2, 3],)),
        ("random_flip_up_down", ()),
        ("random_hue", (0.5,)),
        ("random_saturation", (0.1, 0.9)),
    ],
)
def test_each_run_draws_other_images(session, name, arguments):
    image = np.random.default_rng(0).random([8, 8, 3], np.float32)
    seeded = getattr(tf.image, name)(tf.constant(image), *arguments, seed=7)
    assert len({session.run(seeded).tobytes() for _ in range(12)}) > 1


def test_each_run_draws_other_candidates(session):
    true_classes = tf.constant([[0, 1]])
    sampled = tf.random.uniform_candidate_sampler(true_classes, 2, 9, True, 10**6)[0]
    assert session.run(sampled).tolist() != session.run(sampled).tolist()


def test_invalid_values_fail_when_they_are_run(session):
    sums = tf.math.segment_sum([1.0, 2.0], tf.constant([1, 0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not increasing"):
        session.run(sums)
    with pytest.raises(ValueError):
        tf.matmul(tf.ones([2, 3]), tf.ones([2, 3]))


def test_raw_ops_of_strings(session):
    codes = tf.raw_ops.StringToHashBucketFast(input=tf.constant(["a", "b"]), num_buckets=10)
    assert session.run(codes).shape == (2,)


def test_assertions_of_operators_are_operations(session):
    assert session.run(tf.linalg.LinearOperatorDiag([1.0]).assert_non_singular()) is None


def test_positional_arguments_of_initializers():
    assert v1.random_normal_initializer(0.0, 2.0, 1).stddev == 2.0
    for initializer in (v1.zeros_initializer(tf.int32), v1.constant_initializer(3, tf.int32)):
        assert initializer([2]).dtype == tf.int32
    with pytest.raises(ValueError, match="floating point"):
        v1.truncated_normal_initializer(0.0, 1.0, dtype=tf.string)


def test_iterators_return_composite_elements():
    with tf.Graph().as_default(), v1.Session() as session:
        sparse = tf.sparse.from_dense([[0, 7], [8, 0]])
        rows = tf.ragged.constant([[1], [2, 3], []])
        data = tf.data.Dataset.from_tensors({"sparse": sparse, "x": 3})
        slices = tf.data.Dataset.from_tensor_slices(rows).ragged_batch(3)
        element, batch = session.run(
            [d.make_one_shot_iterator().get_next() for d in (data, slices)]
        )
    assert element["x"] == 3
    found = element["sparse"]
    assert found.indices.tolist() == [[0, 1], [1, 0]] and found.values.tolist() == [7, 8]
    assert found.dense_shape.tolist() == [2, 2]
    assert batch.to_list() == [[1], [2, 3], []]


def test_datasets_of_placeholders_have_options():
    with tf.Graph().as_default():
        size = v1.placeholder(tf.int64, [])
        data = tf.data.Dataset.range(size).with_options(tf.data.Options())
        assert data.options().deterministic is None


def test_gradients_of_gradients_depend_on_seeds_and_intermediate_results(session):
    x, seed = v1.placeholder(tf.float32, [3]), v1.placeholder(tf.float32, [3])
    y = x * x
    (inner,) = tf.gradients(tf.nn.l2_loss(y), x)
    (seeded,) = tf.gradients(y, x, seed)
    found = tf.gradients(inner, y) + tf.gradients(seeded, seed)
    feeds = {x: [1.0, 2.0, 3.0], seed: [1.0, 1.0, 1.0]}
    assert [f.tolist() for f in session.run(found, feeds)] == [[2.0, 4.0, 6.0]] * 2


def test_dense_shapes_of_fed_sparse_tensors(session):
    fed = v1.sparse_placeholder(tf.int32)
    value = v1.SparseTensorValue([[0, 0], [1, 2]], [4, 5], [5, 6])
    turned = tf.sparse.transpose(fed)
    found, sizes = session.run([turned, turned.dense_shape], {fed: value})
    assert found.dense_shape.tolist() == sizes.tolist() == [6, 5]
    assert found.indices.tolist() == [[0, 0], [2, 1]]


def test_decorated_python_functions(session):
    @tf.numpy_function(Tout=tf.int32)
    def add(a, b):
        return a + b

    assert session.run(add(tf.constant(1), 2)) == 3


def test_reductions_of_datasets_with_graph_tensors(session):
    size, zero = v1.placeholder(tf.int64, []), tf.constant(0, tf.int64)
    total = tf.data.Dataset.range(size).reduce(zero, lambda a, b: a + b)
    assert session.run(total, {size: 5}) == 10
    state = tf.data.Dataset.range(3).reduce(tf.sparse.from_dense([0, 1]), lambda a, b: a)
    assert session.run(state).values.tolist() == [1]
