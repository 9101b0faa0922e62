"""Tests of functions of tensors of unknown sizes in version 1 graphs."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.legacy.graph.sessions import VariableFetches

v1 = tf.compat.v1
IMAGES = np.arange(2 * 6 * 8 * 3, dtype=np.float32).reshape(2, 6, 8, 3) / 300


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.image.crop_to_bounding_box(x, 1, 2, 4, 4),
        lambda x: tf.image.pad_to_bounding_box(x, 1, 1, 8, 10),
        lambda x: tf.image.central_crop(x, 0.5),
        lambda x: tf.image.resize_with_crop_or_pad(x, 7, 7),
        lambda x: tf.image.resize_with_pad(x, 7, 7),
        lambda x: tf.image.stateless_random_crop(x, [2, 3, 3, 3], (1, 2)),
        lambda x: tf.image.psnr(x, 0.9 * x, 1.0),
        lambda x: tf.image.ssim(x, 0.9 * x, 1.0, filter_size=3),
        lambda x: tf.image.crop_and_resize(x, [[0.0, 0.0, 1.0, 1.0]], [0], [3, 3]),
        lambda x: tf.image.extract_glimpse(x, [3, 3], [[0.0, 0.0], [0.0, 0.0]]),
        lambda x: tf.nn.conv2d_transpose(
            x, tf.ones([2, 2, 4, 3]), tf.shape(x) * [1, 2, 2, 1] + [0, 0, 0, 1], 2
        ),
        lambda x: tf.linalg.lu(x[0, :3, :3, 0]).p,
        lambda x: tf.nn.ctc_greedy_decoder(x[0], [6] * 8)[1],
        lambda x: tf.tensor_scatter_nd_update(x[0, 0, 0], [[0]], [5.0]),
    ],
)
def test_functions_of_images_of_unknown_sizes(function):
    expected = function(tf.constant(IMAGES)).numpy()
    with tf.Graph().as_default(), v1.Session() as session:
        images = v1.placeholder(tf.float32, [None, None, None, 3])
        result = session.run(function(images), {images: IMAGES})
    np.testing.assert_allclose(result, expected, 1e-5)


def test_ranks_are_checked_when_a_graph_is_built_or_runs():
    with tf.Graph().as_default(), v1.Session() as session:
        row, any_rank = v1.placeholder(tf.float32, [None]), v1.placeholder(tf.float32)
        rank = v1.placeholder(tf.int32, [])
        assert tf.get_static_value(rank) is None
        checks = [v1.assert_rank(row, 1), tf.debugging.assert_rank(any_rank, 1, "wrong")]
        checks += [
            tf.debugging.assert_rank_in(any_rank, (rank, 3)),
            tf.debugging.assert_rank_at_least(any_rank, rank),
        ]
        with tf.control_dependencies(checks):
            result = tf.identity(any_rank)
        assert session.run(result, {any_rank: [1.0], rank: 1}) == [1.0]
        for value, number in ((1.0, 0), ([1.0], 2)):
            with pytest.raises(tf.errors.InvalidArgumentError, match="must have rank"):
                session.run(result, {any_rank: value, rank: number})
        with pytest.raises(ValueError, match="must have rank 2"):
            tf.debugging.assert_rank(row, tf.constant(2))
        with pytest.raises(TypeError, match=r"must be of type tf\.int32"):
            tf.debugging.assert_rank(row, 1.5)
        with pytest.raises(ValueError, match="must be a scalar"):
            tf.debugging.assert_rank_in(row, ([1],))


def test_gradients_and_shapes_of_tensors_of_unknown_rank():
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(x)
            cube = x**3
        gradient = tape.gradient(cube, x)
        assert session.run([cube, gradient], {x: 2.0}) == [8.0, 12.0]
        fixed = tf.ensure_shape(x, [1, 2, 3])
        assert fixed.shape == [1, 2, 3] and session.run(fixed, {x: np.ones([1, 2, 3])}).sum() == 6
        (slope,) = v1.gradients(tf.reduce_sum(fixed**2), [x])
        assert session.run(slope, {x: np.ones([1, 2, 3])}).tolist() == [[[2.0] * 3] * 2]


def test_gradients_through_a_mask_of_a_matching_size():
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        actions, targets = v1.placeholder(tf.int32, [None]), v1.placeholder(tf.float32, [None])
        values = v1.get_variable("values", [2, 3], initializer=v1.ones_initializer())
        mask = tf.one_hot(actions, 3, on_value=True, off_value=False, dtype=tf.bool)
        errors = targets - tf.boolean_mask(values, mask)
        stopped = tf.ones([2])
        loss = tf.reduce_sum(errors**2 + tf.stop_gradient(stopped))
        found = tf.gradients(loss, [values, stopped, 0.5])
        assert found[1:] == [None, None]
        session.run(v1.global_variables_initializer())
        gradient = session.run(found[0], {actions: [0, 2], targets: [1.0, 3.0]})
        assert gradient.tolist() == [[0, 0, 0], [0, 0, -4]]


def test_shapes_of_known_sizes_are_constants():
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [2, 3, 4])
        shape = tf.shape(x)
        flat = tf.reshape(x, tf.concat([shape[:1], [tf.reduce_prod(shape[1:])]], 0))
        assert flat.shape == [2, 12]
        assert tf.get_static_value(tf.size(x)) == 24
        unknown = v1.placeholder(tf.float32, [None, 3])
        assert tf.get_static_value(tf.rank(unknown)) == 2
        assert tf.get_static_value(tf.shape(unknown)) is None
        operator = tf.linalg.LinearOperatorDiag(unknown)
        sizes = [
            operator.shape_tensor(),
            operator.batch_shape_tensor(),
            tf.shape(unknown, tf.int64),
        ]
        found = session.run(sizes, {unknown: np.ones([2, 3])})
        assert [v.tolist() for v in found] == [[2, 3, 3], [2], [2, 3]]


@pytest.mark.parametrize("has_references", [False, True])
def test_fetched_variables_have_the_first_value_or_that_of_references(monkeypatch, has_references):
    monkeypatch.setattr(VariableFetches, "are_last", has_references)
    assert v1.resource_variables_enabled() is not has_references
    with tf.Graph().as_default(), v1.Session() as session:
        count = v1.get_variable("count", initializer=0)
        step = count.assign_add(1).op
        session.run(count.initializer)
        values = [session.run([count, step])[0], session.run([step, count])[1]]
        assert values == ([1, 2] if has_references else [0, 1])


def test_ragged_tensors_of_unknown_rank():
    with tf.Graph().as_default(), v1.Session() as session:
        values = v1.placeholder(tf.float32)
        rows = tf.RaggedTensor.from_row_splits(values, [0, 1, 3])
        results = [tf.reduce_sum(rows, 1), tf.concat([rows, rows], 1)[:, :3], rows.to_tensor()]
        assert rows.shape.rank is None and repr(rows).startswith("tf.RaggedTensor(")
        flat = session.run(results, {values: [1.0, 2.0, 3.0]})
        assert flat[0].tolist() == [1, 5] and flat[1].to_list() == [[1, 1], [2, 3, 2]]
        assert flat[2].tolist() == [[1, 0], [2, 3]]
        pairs = session.run(results, {values: np.ones([3, 2])})
        assert pairs[0].tolist() == [[1, 1], [2, 2]] and pairs[2].shape == (2, 2, 2)
        table = v1.placeholder(tf.int32)
        lengths = tf.RaggedTensor.from_tensor(table).row_lengths()
        assert session.run(lengths, {table: [[1, 0, 2]] * 2}).tolist() == [3, 3]


def test_ragged_placeholders():
    with tf.Graph().as_default(), v1.Session() as session:
        rows = v1.ragged.placeholder(tf.float32, 2, [2])
        assert rows.shape.as_list() == [None, None, None, 2] and rows.ragged_rank == 2
        value = v1.ragged.constant_value([[[[1, 2]]], []], dtype=np.float32, inner_shape=(2,))
        assert session.run(rows * 2.0, {rows: value}).to_list() == [[[[2, 4]]], []]
        assert v1.ragged.placeholder(tf.int32, 0, [3]).shape == [3]
        names = [t.name for t in (rows.flat_values, *rows.nested_row_splits)]
        ends = ["flat_values:0", "row_splits_0:0", "row_splits_1:0"]
        assert names == [f"RaggedPlaceholder/{end}" for end in ends]


def test_shapes_of_variables_are_constants():
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("weights", [2, 3])
        assert tf.shape(weights).op.type == "Const"
        # The variable has no value yet.
        assert session.run([tf.size(weights), tf.rank(weights, "axes")]) == [6, 2]
        assert session.run("axes:0") == 2


def test_sparse_tensors_of_placeholders_of_unknown_rank():
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        parts = [v1.placeholder(dtype) for dtype in (tf.int64, tf.float32, tf.int64)]
        result = tf.sparse.reshape(tf.SparseTensor(*parts), [2, -1])
        feeds = dict(zip(parts, [[[0, 1], [1, 2]], [2.0, 1.0], [2, 3]], strict=True))
        assert session.run(result, feeds).indices.tolist() == [[0, 1], [1, 2]]
