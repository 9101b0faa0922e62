"""Version 1's names of ops."""

import functools
import inspect
import logging
import sys
import unittest

import numpy as np
import pytest

import meshflow as tf
from meshflow.legacy.compat import namespaces, op_aliases

v1 = tf.compat.v1


def test_renamed_ops_are_those_of_version_2():
    for old, path in op_aliases.OP_ALIASES.items():
        found = tf
        for part in path.split("."):
            found = getattr(found, part)
        assert inspect.unwrap(functools.reduce(getattr, old.split("."), v1)) is inspect.unwrap(
            found
        )


def test_mock_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "unittest.mock", raising=False)
    monkeypatch.delattr(unittest, "mock", raising=False)
    assert namespaces.find_name.__wrapped__("test.mock").__name__ == "unittest.mock"


def test_older_names_of_arguments():
    x = tf.constant([[1.0, 3.0], [2.0, 0.0]])
    np.testing.assert_array_equal(v1.reduce_sum(x, reduction_indices=1, keep_dims=True), [[4], [2]])
    np.testing.assert_array_equal(v1.argmax(x, dimension=1), [1, 0])
    assert v1.expand_dims(x, dim=0).shape == [1, 2, 2]
    assert v1.squeeze([[1]], squeeze_dims=0).shape == [1]
    assert int(v1.count_nonzero(x, reduction_indices=None)) == 3


def test_ops_that_version_2_has_not():
    variable = tf.Variable(1.0)
    assert float(v1.assign_add(variable, 2.0)) == 3.0
    assert float(v1.assign_sub(variable, 0.5)) == 2.5
    assert float(v1.assign(variable, 7.0)) == 7.0
    np.testing.assert_array_equal(v1.div([-7], [2]), [-4])
    np.testing.assert_allclose(v1.div([-7.0], [2.0]), [-3.5])
    np.testing.assert_array_equal(v1.batch_gather([[1, 2], [3, 4]], [[1], [0]]), [[2], [3]])
    np.testing.assert_allclose(v1.clip_by_average_norm([3.0, 4.0], 0.5), [0.6, 0.8])
    np.testing.assert_array_equal(v1.sparse_to_dense([1], [3], 5, 9), [9, 5, 9])
    with pytest.raises(tf.errors.InvalidArgumentError):
        v1.assert_none_equal([1, 2], [1, 3], data=[1])


def test_lookups_deal_rows_out_to_tables():
    nn, tables = tf.compat.v1.nn, [tf.Variable([[0.0], [10.0], [20.0]])]
    tables += [tf.Variable([[1.0], [11.0], [21.0]]), tf.Variable([[2.0], [12.0]])]
    ids = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], np.array([0, 4, 5]), [3, 2])
    weights = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], [1.0, 2.0, 3.0], [3, 2])

    def flat(value):
        return value.numpy().ravel().tolist()

    # TensorFlow's numbers.
    assert flat(nn.embedding_lookup(tables, [0, 4, 7, 2])) == [0, 11, 21, 2]
    assert flat(nn.embedding_lookup(tables, [0, 4, 7, 2], "div")) == [0, 11, 12, 20]
    assert flat(nn.embedding_lookup(tables[1], [2], "mod")) == [21]
    assert flat(nn.embedding_lookup_sparse(tables, ids, None, "mod", combiner="sum"))[0] == 11
    assert flat(nn.embedding_lookup_sparse(tables, ids, None, "div", combiner="sum"))[0] == 11
    safe = nn.safe_embedding_lookup_sparse(
        tables, ids, weights, "sum", default_id=4, partition_strategy="mod"
    )
    assert flat(safe) == [22, 11, 36]
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(nn.embedding_lookup(tables, [0, 4, 7]) * [[1.0], [2.0], [3.0]])
    found = [flat(tf.convert_to_tensor(g)) for g in tape.gradient(total, tables)]
    assert found == [[1, 0, 0], [0, 2, 3], [0, 0]]
    with pytest.raises(ValueError, match="'mod' or 'div'"):
        nn.embedding_lookup(tables, [0], "other")


PIXELS = (np.arange(24) ** 2 % 17).reshape(1, 4, 3, 2).astype("float32")
# Name, size, align_corners, half_pixel_centers, and every ninth or each number of TensorFlow 2.21.
RESIZED = [
    (
        "resize_bilinear",
        (7, 5),
        False,
        False,
        [0.0, 8.0, 15.4286, 3.7143, 6.0286, 6.0571, 8.6, 11.2],
    ),
    ("resize_bilinear", (7, 5), True, False, [0.0, 8.0, 15.5, 7.5, 9.5, 4.0, 9.0, 10.0]),
    ("resize_bilinear", (7, 5), False, True, [0.0, 8.0, 15.6429, 6.5429, 9.2, 4.8571, 9.0, 8.8]),
    ("resize_nearest_neighbor", (7, 5), False, False, [0.0, 8.0, 16.0, 13.0, 13.0, 4.0, 9.0, 4.0]),
    ("resize_nearest_neighbor", (7, 5), True, False, [0.0, 8.0, 15.0, 2.0, 1.0, 4.0, 9.0, 16.0]),
    ("resize_nearest_neighbor", (7, 5), False, True, [0.0, 8.0, 16.0, 2.0, 1.0, 4.0, 9.0, 4.0]),
    (
        "resize_bicubic",
        (7, 5),
        False,
        False,
        [0.0, 7.892, 17.6718, 3.0619, 5.1233, 4.5033, 9.2742, 13.2446],
    ),
    (
        "resize_bicubic",
        (7, 5),
        True,
        False,
        [0.0, 8.0, 16.8125, 7.3125, 10.1094, 4.0, 8.625, 11.3125],
    ),
    (
        "resize_bicubic",
        (7, 5),
        False,
        True,
        [-0.4187, 8.4596, 16.9396, 6.0566, 9.1958, 4.2659, 8.8471, 8.5947],
    ),
    ("resize_area", (7, 5), False, False, [0.0, 8.0, 15.75, 5.6667, 9.0, 4.0, 9.0, 8.0]),
    ("resize_area", (7, 5), True, False, [0.0, 8.0, 16.0, 13.0, 13.0, 4.0, 9.0, 4.0]),
    ("resize_area", (2, 2), False, False, [3.5, 9.0, 13.1667, 7.0, 6.0, 10.0, 6.0, 4.0]),
    ("resize_area", (2, 2), True, False, [6.0, 9.6667, 10.6667, 3.3333, 5.0, 10.0, 8.0, 2.0]),
]


@pytest.mark.parametrize(("name", "size", "corners", "halves", "expected"), RESIZED)
def test_resized_images(name, size, corners, halves, expected):
    resize = getattr(tf.compat.v1.image, name)
    options = {"half_pixel_centers": True} if halves else {}
    pixels = resize(PIXELS, size, align_corners=corners, **options).numpy().ravel()
    np.testing.assert_allclose(pixels[:: 9 if size == (7, 5) else 1], expected, atol=2e-4)
    traced = tf.function(lambda x: resize(x, size, corners, **options))
    np.testing.assert_allclose(traced(PIXELS).numpy().ravel(), pixels, atol=1e-6)


def test_resize_images_and_its_errors(tmp_path):
    image = tf.compat.v1.image
    bytes_image = tf.cast(PIXELS[0], tf.uint8)
    nearest = image.resize(bytes_image, (3, 2), image.ResizeMethod.NEAREST_NEIGHBOR, True)
    assert nearest.dtype == tf.uint8
    assert nearest.numpy().ravel().tolist() == [0, 1, 16, 8, 8, 16, 1, 0, 1, 4, 8, 2]
    assert image.resize_images(bytes_image, (4, 3)).dtype == tf.uint8
    assert image.resize_images(PIXELS, (8, 3), preserve_aspect_ratio=True).shape == [1, 4, 3, 2]
    padded = image.resize_image_with_pad(PIXELS[0], 6, 6, align_corners=True)
    np.testing.assert_allclose(padded[1, 1], [6.6667, 10.7333], atol=1e-4)
    for arguments, error in [
        ((PIXELS[0], (2, 2)), tf.errors.InvalidArgumentError),
        ((PIXELS, (0, 2)), tf.errors.InvalidArgumentError),
        ((PIXELS, (2, 2, 2)), tf.errors.InvalidArgumentError),
        ((PIXELS, (2, 2), True, None, True), tf.errors.InvalidArgumentError),
    ]:
        with pytest.raises(error):
            image.resize_bilinear(*arguments)
    with pytest.raises(ValueError, match="not implemented: lanczos3"):
        image.resize_images(PIXELS, (2, 2), "lanczos3")
    x = tf.Variable(PIXELS)
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(image.resize_bicubic(x, (7, 5), align_corners=True) ** 2)
    expected = [-1.7425, 13.1024, 36.2742, 55.0858]
    np.testing.assert_allclose(tf.reshape(tape.gradient(y, x), [-1])[:4], expected, rtol=1e-4)
    inputs = tf.keras.Input((4, 3, 2))
    model = tf.keras.Model(inputs, image.resize_bilinear(inputs, (5, 6), align_corners=True))
    assert model.layers[1].get_config()["function"] == "compat.v1.image.resize_bilinear"
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(PIXELS), model(PIXELS))


def test_collections_of_a_graph():
    graph = tf.Graph()
    with graph.as_default():
        weight = tf.Variable(1.0, name="weight")
        constant = v1.Variable(2.0, trainable=False, name="constant")
        local = v1.get_variable("local", [], collections=[v1.GraphKeys.LOCAL_VARIABLES])
        v1.get_variable("single", [], trainable=False, collections=[])
        penalized = v1.get_variable(
            "penalized", [2], regularizer=lambda v: tf.reduce_sum(v * 0) + 3
        )
        kernel, bias = tf.keras.layers.Dense(1, name="dense")(tf.ones([1, 2])) is not None and (
            v1.global_variables("dense")
        )
        with tf.Graph().as_default():
            tf.Variable(1.0, name="inner")
            assert [v.name for v in v1.global_variables()] == ["inner:0"]
        tf.function(lambda: tf.constant(1))()
        loss = v1.losses.mean_squared_error([1.0], [3.0])
        assert all(
            a is b
            for a, b in zip(
                v1.global_variables(), [weight, constant, penalized, kernel, bias], strict=True
            )
        )
        assert [v.name for v in v1.local_variables()] == [local.name]
        assert [v.name for v in v1.trainable_variables("w|d|local")] == [
            *("weight:0", "local:0", kernel.name, bias.name)
        ]
        assert v1.losses.get_losses()[0] is loss
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            assert session.run(v1.losses.get_regularization_loss()) == 3
            assert session.run(v1.losses.get_total_loss()) == session.run(loss) + 3 == 7
        v1.add_to_collections("steps", 1)
        v1.add_to_collections(["steps", "other", "other"], 2)
        v1.get_collection("steps").append(5)
        v1.get_collection_ref("steps").append(6)
        assert v1.get_collection("steps") == [1, 2, 6] and v1.get_collection("other") == [2]
    assert set(graph.collections) >= {"variables", "local_variables", "steps", "losses"}
    graph.clear_collection("steps")
    assert graph.get_collection("steps") == []
    # Variables of other code belong to no collection.
    tf.Variable(1.0)
    assert v1.global_variables() == []
    v1.add_to_collection("code", 1)
    assert v1.get_collection("code") == [1]
    v1.reset_default_graph()
    assert v1.get_collection("code") == []


@pytest.mark.parametrize("name", ["GradientDescentOptimizer", "AdamOptimizer"])
def test_optimizers_apply_constraints(name):
    variable = tf.Variable([1.0, 1.0], constraint=lambda v: tf.maximum(v, 0.9))
    optimizer = getattr(v1.train, name)(0.5)
    optimizer.apply_gradients([(tf.constant([1.0, 0.0]), variable)])
    np.testing.assert_allclose(variable, [0.9, 1])
    rows = tf.IndexedSlices(tf.constant([1.0]), tf.constant([0]))
    with pytest.raises(RuntimeError, match="constraint function on a sparse"):
        optimizer.apply_gradients([(rows, variable)])


def test_messages_of_summaries():
    value = v1.Summary.Value
    summary = v1.Summary(
        value=[
            value(tag="i", image=v1.Summary.Image(height=2, encoded_image_string=b"x")),
            value(tag="h", histo=v1.HistogramProto(min=1, bucket=[1, 2])),
            value(tag="a", audio=v1.Summary.Audio(sample_rate=2.0)),
        ]
    )
    # The bytes are those of TensorFlow 2.15.
    assert summary.SerializeToString().hex() == (
        "0a0a0a0169220508022201780a200a01682a1b09000000000000f03f3a10000000000000f03f0000000000000040"
        "0a0a0a016132050d00000040"
    )


def test_losses_of_a_traced_function_belong_to_no_graph():
    with tf.Graph().as_default():
        function = tf.function(lambda x: v1.losses.mean_squared_error(x, x + 1))
        result = function(tf.constant([1.0]))
        with v1.Session() as session:
            assert session.run(result) == 1 and v1.losses.get_losses() == []
            assert session.run(v1.losses.get_total_loss()) == 0


@pytest.mark.parametrize(
    "name",
    [
        *("absolute_difference", "mean_squared_error", "hinge_loss", "huber_loss", "log_loss"),
        *("mean_pairwise_squared_error", "sigmoid_cross_entropy", "softmax_cross_entropy"),
    ],
)
def test_losses_are_added_to_the_chosen_collection(name):
    compute, pair = getattr(v1.losses, name), ([[0.0, 1.0]], [[0.25, 0.5]])
    with tf.Graph().as_default():
        compute(*pair, loss_collection=None)
        loss = compute(*pair, loss_collection="mine")
        assert v1.losses.get_losses() == []
        assert v1.losses.get_losses(loss_collection="mine") == [loss]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_adam_updates_variables_of_any_float_dtype(dtype):
    variables = tf.Variable([1.0, 2.0], dtype=dtype), tf.Variable([1.0, 2.0])
    optimizer = tf.compat.v1.train.AdamOptimizer(0.125)
    optimizer.apply_gradients([(tf.ones([2], v.dtype), v) for v in variables])
    for variable in variables:
        np.testing.assert_allclose(variable.numpy(), [0.875, 1.875], rtol=1e-2)


def test_names_of_keras_in_version_1():
    keras = tf.compat.v1.keras
    assert (
        keras.losses.cosine is keras.metrics.cosine_proximity is tf.keras.losses.cosine_similarity
    )
    assert keras.initializers.uniform is tf.keras.initializers.RandomUniform
    assert keras.models.LinearModel is tf.keras.experimental.LinearModel
    assert keras.losses.MeanSquaredError is tf.keras.losses.MeanSquaredError
    assert "cosine" in dir(keras.losses)
    assert not hasattr(tf.keras.losses, "cosine")
    assert not {"Any", "Callable", "functools"} & {*dir(tf.compat.v1.app.flags)}


def test_messages_are_printed_at_the_level_of_the_program(capsys, monkeypatch):
    log = tf.compat.v1.logging
    monkeypatch.setattr(tf.get_logger(), "level", tf.get_logger().level)
    # Pytest's handlers of the root logger stand for a program that configures logging itself.
    log.error("hidden")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log.set_verbosity(log.INFO)
    log.info("loss = %d", 3)
    log.debug("hidden")
    tf.print("step", tf.range(2), output_stream=log.info)
    assert capsys.readouterr().err == "INFO:meshflow:loss = 3\nINFO:meshflow:step [0 1]\n"


def test_names_of_other_devices():
    assert tf.DeviceSpec.from_string("/task:1/device:Special:2").device_type == "Special"
    with pytest.raises(ValueError, match="Multiple device types are not allowed"):
        tf.DeviceSpec.from_string("/device:GPU:2/cpu:0")


def test_crelu_of_integers():
    assert tf.nn.crelu([[-1], [2]], axis=0).numpy().tolist() == [[0], [2], [1], [0]]


@pytest.mark.parametrize("body, eager", [(lambda i: i + 1, 3), (lambda i: [i + 1], [3])])
def test_a_loop_with_one_variable_returns_it_without_its_list(body, eager):
    def loop(**options):
        return v1.while_loop(lambda i: i < 3, body, [0], **options)

    def to_python(result):
        return [int(x) for x in result] if isinstance(result, list) else int(result)

    assert to_python(loop()) == eager
    assert to_python(loop(return_same_structure=True)) == [3]
    assert to_python(loop(maximum_iterations=0)) == 0
    with tf.Graph().as_default(), v1.Session() as session:
        assert session.run(loop() + 1) == 4
        assert session.run(loop(return_same_structure=True)) == [3]


def test_conversion_of_several_elements_to_a_number():
    for kind in (int, float, complex):
        with pytest.raises(TypeError, match="only length-1 arrays"):
            kind(tf.constant([1, 2]))
    assert int(tf.constant([[2]])) == 2


def test_functions_of_datasets_run_outside_of_the_graph():
    dataset = tf.data.Dataset
    increment = functools.partial(v1.py_func, lambda x: x + 1, Tout=tf.int64)
    with tf.Graph().as_default(), v1.Session() as session:
        for transformed, expected in (
            (
                dataset.range(3).interleave(lambda x: dataset.from_tensors(x).repeat(2), 2),
                [0, 1, 0],
            ),
            (dataset.range(4).flat_map(dataset.range), [0, 0, 1]),
            (dataset.range(3).map(lambda x: increment(inp=[x])), [1, 2, 3]),
            (dataset.range(3).map(lambda x: dataset.range(x).reduce(x, tf.add)), [0, 1, 3]),
        ):
            element = v1.data.make_one_shot_iterator(transformed).get_next()
            assert [int(session.run(element)) for _ in range(3)] == expected
