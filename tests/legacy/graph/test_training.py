"""Tests of programs for version 1 that train: variables, optimizers, layers, metrics, iterators, savers, summaries."""

import weakref

import numpy as np
import pytest

import meshflow as tf
from meshflow.environment.garbage_collection import collect_garbage

v1 = tf.compat.v1


@pytest.fixture(name="graph", autouse=True)
def make_graph():
    with tf.Graph().as_default() as graph:
        yield graph


# The weights after five steps are those of TensorFlow 2.15.1.
@pytest.mark.parametrize(
    "name, options, loss, weights",
    [
        ("GradientDescentOptimizer", (), 0.15015, [0.3057, 0.3643]),
        ("AdamOptimizer", (), 0.08545, [0.4783, 0.4765]),
        ("MomentumOptimizer", (0.9,), 0.62822, [0.6956, 0.8188]),
    ],
)
def test_optimizers(name, options, loss, weights):
    x, y = v1.placeholder(tf.float32, [None, 2]), v1.placeholder(tf.float32, [None, 1])
    w = v1.get_variable("w", [2, 1], initializer=v1.zeros_initializer())
    b = v1.get_variable("b", [1], initializer=v1.zeros_initializer())
    error = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y))
    step = v1.train.get_or_create_global_step()
    train = getattr(v1.train, name)(0.1, *options).minimize(error, global_step=step)
    data = np.arange(8, dtype=np.float32).reshape(4, 2) / 8
    feeds = {x: data, y: data.sum(1, keepdims=True)}
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for _ in range(5):
            session.run(train, feeds)
        found = session.run([error, w, step], feeds)
    np.testing.assert_allclose(found[0], loss, atol=1e-5)
    np.testing.assert_allclose(found[1].ravel(), weights, atol=1e-4)
    assert found[2] == 5 and [v.name for v in v1.trainable_variables()] == ["w:0", "b:0"]


def test_variables_need_an_initializer():
    v = tf.Variable(tf.random.uniform([2]), name="v")
    same = tf.Variable(1.0, name="v")
    assert [v.name, same.name, v.op.name] == ["v:0", "v_1:0", "v"] and v.shape == [2]
    with v1.Session() as session:
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized"):
            session.run(v + 1)
        assert session.run(v1.report_uninitialized_variables()).tolist() == [b"v", b"v_1"]
        session.run(v1.global_variables_initializer())
        assert session.run(v1.report_uninitialized_variables()).tolist() == []
        v.load([1.0, 2.0], session)
        assert session.run(v).tolist() == [1, 2]
        other = v1.Session()
        with pytest.raises(tf.errors.FailedPreconditionError):
            other.run(v)
        assert session.run(v).tolist() == [1, 2]


def test_values_belong_to_sessions():
    v = tf.Variable(1.0)
    v1.layers.dense(tf.ones([1, 1]), 1)
    kernel = v1.trainable_variables()[1]
    init, step = v1.global_variables_initializer(), tf.group(v.assign(5.0), kernel.assign([[5.0]]))
    first, second = v1.Session(), v1.Session()
    first.run(init)
    first.run(step)
    second.run(init)
    assert first.run([v, kernel]) == [5, 5] and second.run(v) == 1 and second.run(kernel) != 5
    with first.as_default(), second.as_default():
        with first.as_default():
            pass
        assert v1.get_default_session() is second
    second.close()
    assert not v.is_set


def test_graphs_are_freed():
    with tf.Graph().as_default() as other:
        v1.layers.dense(v1.placeholder(tf.float32, [None, 2]), 1)
        session = v1.keras.backend.get_session()
        session.run(v1.global_variables_initializer())
    references = weakref.ref(other), weakref.ref(session)
    del other, session
    collect_garbage()
    assert [reference() for reference in references] == [None, None]


def test_variable_scopes():
    with v1.variable_scope("a"):
        with v1.variable_scope("b"):
            v = v1.get_variable("v", [2])
        names = []
        for _ in range(2):
            with v1.variable_scope(None, "d"):
                names += [v1.get_variable("v", [2]).name, tf.constant(1.0, name="c").name]
    assert v.name == "a/b/v:0" and names == ["a/d/v:0", "a/d/c:0", "a/d_1/v:0", "a/d_1/c:0"]
    with v1.variable_scope("a", reuse=True):
        assert v1.get_variable("b/v", [2]) is v
        with pytest.raises(ValueError, match="does not exist"):
            v1.get_variable("z", [2])
        with pytest.raises(ValueError, match="found shape"):
            v1.get_variable("b/v", [3])
    with v1.variable_scope("a/b"), pytest.raises(ValueError, match="already exists"):
        v1.get_variable("v", [2])
    with v1.variable_scope("a/b", reuse=v1.AUTO_REUSE):
        assert v1.get_variable("v", [2]) is v and v1.get_variable("w", []).name == "a/b/w:0"

    def getter(create, *args, **kwargs):
        return create(*args, **{**kwargs, "trainable": False})

    with v1.variable_scope("frozen", custom_getter=getter):
        assert not v1.get_variable("v", []).trainable
    template = v1.make_template("t", lambda: v1.get_variable("v", []))
    assert template() is template() and template().name == "t/v:0"


def test_layers_and_losses():
    x = v1.placeholder(tf.float32, [None, 8, 8, 3])
    hidden = v1.layers.conv2d(x, 4, 3, activation=tf.nn.relu, padding="same")
    hidden = v1.layers.batch_normalization(hidden, training=True)
    logits = v1.layers.dense(v1.layers.flatten(v1.layers.max_pooling2d(hidden, 2, 2)), 10)
    assert logits.shape.as_list() == [None, 10]
    loss = v1.losses.sparse_softmax_cross_entropy(tf.constant([1, 2]), logits)
    train = v1.train.AdamOptimizer(0.01).minimize(loss)
    assert [v.name for v in v1.trainable_variables()] == [
        *("conv2d/kernel:0", "conv2d/bias:0", "batch_normalization/gamma:0"),
        *("batch_normalization/beta:0", "dense/kernel:0", "dense/bias:0"),
    ]
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 3))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        losses = [session.run([loss, train], {x: images})[0] for _ in range(8)]
    assert losses[-1] < losses[0] and v1.losses.get_losses() == [loss]


def test_models_of_keras():
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(3, input_shape=(4,)), tf.keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    losses = model.fit(np.ones((8, 4)), np.ones((8, 1)), epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    x = v1.placeholder(tf.float32, [None, 4])
    y = model(x)
    expected = model.predict(np.ones((2, 4)), verbose=0)
    with v1.keras.backend.get_session() as session:
        np.testing.assert_allclose(session.run(y, {x: np.ones((2, 4))}), expected, rtol=1e-5)


def test_metrics():
    x = v1.placeholder(tf.float32, [None])
    mean, update = v1.metrics.mean(x)
    _, accuracy = v1.metrics.accuracy(tf.constant([1, 2, 3]), tf.constant([1, 2, 0]))
    with v1.Session() as session:
        session.run(v1.local_variables_initializer())
        assert session.run(update, {x: [1.0, 2.0]}) == 1.5 and session.run(update, {x: [6.0]}) == 3
        assert session.run(mean) == 3
        np.testing.assert_allclose(session.run(accuracy), 2 / 3)
    assert v1.global_variables() == [] and v1.local_variables()


def test_iterators():
    dataset = tf.data.Dataset.range(5).batch(2)
    element = v1.data.make_one_shot_iterator(dataset).get_next()
    assert element.shape.as_list() == [None] and element.dtype == tf.int64
    iterator = v1.data.make_initializable_iterator(dataset)
    following = iterator.get_next()
    with v1.Session() as session:
        assert [session.run(element + 1).tolist() for _ in range(3)] == [[1, 2], [3, 4], [5]]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(element)
        with pytest.raises(tf.errors.FailedPreconditionError):
            session.run(following)
        for _ in range(2):
            session.run(iterator.initializer)
            assert session.run(following).tolist() == [0, 1]
    assert iterator.initializer is iterator.initializer
    with v1.Session() as session:
        assert session.run(element).tolist() == [0, 1]
        with pytest.raises(tf.errors.FailedPreconditionError):
            session.run(following)


def test_savers(tmp_path):
    v, saver = tf.Variable([1.0, 2.0], name="v"), v1.train.Saver()
    with v1.Session() as session:
        session.run(v.initializer)
        session.run(v.assign([3.0, 4.0]))
        path = saver.save(session, tmp_path / "model", global_step=7)
    with v1.Session() as session:
        saver.restore(session, path)
        assert session.run(v).tolist() == [3, 4] and path.endswith("model-7")


def test_summaries(tmp_path):
    x = v1.placeholder(tf.float32, [])
    assert v1.summary.merge_all() is None
    v1.summary.scalar("x", x)
    v1.summary.histogram("h", tf.stack([x, x, -x]))
    with v1.Session() as session, v1.summary.FileWriter(tmp_path, session.graph) as writer:
        message = session.run(v1.summary.merge_all(), {x: 3.0})
        writer.add_summary(message, 4)
    values = v1.Summary.FromString(message).value
    assert [value.tag for value in values] == ["x", "h"] and values[0].simple_value == 3
    assert (values[1].histo.num, values[1].histo.min, sum(values[1].histo.bucket)) == (3, -3, 3)
    events = [*v1.train.summary_iterator(str(next(tmp_path.iterdir())))]
    assert events[-1].step == 4
    # TensorFlow joins empty buckets.
    assert list(values[1].histo.bucket) == [0, 1, 0, 2, 0]


def test_summaries_of_images_audio_and_text():
    # Tags and pixels are those of TensorFlow 2.15.
    images = np.array([[[[0.0], [1.0]], [[2.0], [np.nan]]], [[[-1.0], [1.0]], [[2.0], [0.0]]]])
    with tf.name_scope("o"):
        image = v1.summary.image("im g", tf.constant(images, tf.float32), family="f")
        audio = v1.summary.audio("a", tf.zeros([1, 4]), 8000.0, max_outputs=1)
        text = v1.summary.text("t", tf.constant(["a", "b"]))
    with v1.Session() as session:
        found = [v1.Summary.FromString(m).value for m in session.run([image, audio, text])]
    assert image.op.name == "o/f/im_g"
    tags = [[value.tag for value in values] for values in found]
    assert tags == [["f/o/f/im_g/image/0", "f/o/f/im_g/image/1"], ["o/a/audio"], ["o/t"]]
    with tf.init_scope():
        decoded = [np.asarray(tf.image.decode_png(v.image.encoded_image_string)) for v in found[0]]
    assert decoded[0].ravel().tolist() == [0, 127, 255, 255]
    assert decoded[1].ravel().tolist() == [64, 191, 255, 128]
    assert found[1][0].audio.length_frames == 4 and found[1][0].audio.sample_rate == 8000
    assert found[2][0].metadata.plugin_data.plugin_name == "text"
    with pytest.raises(ValueError, match="dtype string"):
        v1.summary.text("t", [1])


def test_wrong_images_and_rates_of_audio_clips():
    rate = v1.placeholder(tf.float32, [])
    with v1.Session() as session:
        message = session.run(v1.summary.audio("a", tf.zeros([1, 4]), rate), {rate: 44.0})
        assert v1.Summary.FromString(message).value[0].audio.sample_rate == 44
        for images in (
            tf.zeros([2, 2, 3]),
            tf.zeros([1, 2, 2, 5]),
            tf.zeros([1, 2, 2, 3], tf.int32),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match="expected uint8 or floating"):
                session.run(v1.summary.image("i", images))
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected clips"):
            session.run(v1.summary.audio("b", tf.zeros([1, 4]), [44.0]))
    with pytest.raises(ValueError, match="max_outputs"):
        v1.summary.image("i", tf.zeros([1, 2, 2, 3]), max_outputs=0)


def test_closed_and_shared_writers(tmp_path):
    writer = v1.summary.FileWriterCache.get(tmp_path)
    assert v1.summary.FileWriterCache.get(str(tmp_path)) is writer
    v1.summary.FileWriterCache.clear()
    with pytest.warns(UserWarning, match="closed FileWriter"):
        writer.add_summary(v1.Summary(), 1)
    writer.reopen()
    writer.add_summary(v1.Summary(), 2)
    writer.close()
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 2
    steps = {e.step for path in paths for e in v1.train.summary_iterator(str(path))}
    assert steps == {0, 2}


def test_penalties_and_states_of_layers():
    x, l2 = tf.ones([1000, 2]), tf.keras.regularizers.l2(0.5)
    v1.layers.dense(x, 3, name="d", kernel_initializer="ones", kernel_regularizer=l2)
    v1.layers.dense(x, 3, name="d", reuse=True)
    layer = v1.layers.Dense(1, kernel_initializer="ones", kernel_regularizer=l2)
    layer(layer(x)[:, :1] * tf.ones([1, 2]))
    dropped = v1.layers.dropout(x, training=True)
    assert len(v1.losses.get_regularization_losses()) == 2
    with v1.Session() as session:
        assert 0.4 < np.mean(session.run(dropped) == 0) < 0.6  # without an initializer
        assert not any("seed" in name for name in v1.train.Saver()._variables)
        session.run(v1.variables_initializer(v1.trainable_variables()))
        assert session.run(v1.losses.get_regularization_loss()) == 4
    with pytest.raises(ValueError, match="does not exist"):
        v1.layers.dense(x, 3, name="e", reuse=True)
    with pytest.raises(ValueError, match="share variable d/kernel"):
        v1.layers.dense(x, 4, name="d", reuse=True)


def test_an_optimizer_has_other_variables_in_each_graph():
    optimizer = v1.train.AdamOptimizer(0.1)
    found = []
    for _ in range(2):
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", initializer=1.0)
            train = optimizer.minimize(w * w, var_list=[w])
            session.run(v1.global_variables_initializer())
            session.run(train)
            assert session.run(w) == pytest.approx(0.9) and len(optimizer.variables()) == 4
            found.extend(optimizer.variables())
    assert len({id(v) for v in found}) == 8


def test_writers_record_sessions_and_runs(tmp_path):
    x = v1.placeholder(tf.float32, [], name="x")
    with tf.control_dependencies([tf.no_op(name="first")]):
        tf.add(x, x, name="double")
    with pytest.raises(TypeError, match="instance of `tf"):
        v1.summary.FileWriter(tmp_path / "other", "graph")
    with v1.summary.FileWriter(tmp_path / "logs", v1.get_default_graph()) as writer:
        writer.add_session_log(v1.SessionLog(status=v1.SessionLog.START), 1)
        writer.add_run_metadata(v1.RunMetadata(), "run", 2)
        with pytest.raises(ValueError, match="already used"):
            writer.add_run_metadata(v1.RunMetadata(), "run", 3)
        writer.add_event(v1.Event(step=4, wall_time=1.0))
    (path,) = (tmp_path / "logs").iterdir()
    graph, *events = list(v1.train.summary_iterator(str(path)))[1:]
    nodes = {n.name: list(n.input) for n in v1.GraphDef.FromString(graph.graph_def).node}
    assert nodes["double"] == ["x", "^first"]
    assert [e.step for e in events] == [1, 2, 4]
    assert events[0].session_log.status == v1.SessionLog.START
    assert events[1].tagged_run_metadata.tag == "run"


def test_iterators_take_elements_of_several_datasets():
    first = tf.data.Dataset.from_tensor_slices({"x": [1, 2, 3]})
    second = tf.data.Dataset.from_tensor_slices({"x": [10, 20]})
    types, shapes = v1.data.get_output_types(first), v1.data.get_output_shapes(first)
    iterator = v1.data.Iterator.from_structure(types, shapes)
    element = iterator.get_next()
    starts = [iterator.make_initializer(d) for d in (first, second, first)]
    with v1.Session() as session:
        with pytest.raises(tf.errors.FailedPreconditionError, match="not been initialized"):
            session.run(element)
        for start, expected in zip(starts, (1, 10, 1), strict=True):
            session.run(start)
            assert session.run(element) == {"x": expected}
    with pytest.raises(TypeError, match="Expected output types"):
        iterator.make_initializer(tf.data.Dataset.from_tensor_slices({"x": [1.0]}))
    with pytest.raises(TypeError, match="Expected output shapes"):
        iterator.make_initializer(first.batch(2))
    with pytest.raises(ValueError, match="make_initializer"):
        assert iterator.initializer

    handle = v1.placeholder(tf.string, [])
    fed = v1.data.Iterator.from_string_handle(handle, types, shapes)
    doubled = fed.get_next()["x"] * 2
    one_shot = v1.data.make_one_shot_iterator(first).string_handle()
    started = v1.data.make_initializable_iterator(second)
    with v1.Session() as session:
        session.run(started.initializer)
        handles = session.run([one_shot, started.string_handle()])
        assert [session.run(doubled, {handle: h}) for h in handles * 2] == [2, 20, 4, 40]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(doubled, {handle: handles[1]})
        with pytest.raises(tf.errors.NotFoundError, match="no iterator"):
            session.run(doubled, {handle: b"other"})


class _Momentum(tf.keras.optimizers.legacy.Optimizer):
    """Optimizer as libraries of 2020 write it: slots by name, and hooks that return operations."""

    def __init__(self):
        super().__init__("Momentum")
        self._set_hyper("rate", 0.1)

    def _create_slots(self, var_list):
        for variable in var_list:
            self.add_slot(variable, "m")
            self.add_slot(variable, "scale", initializer=tf.constant_initializer(2.0))

    def _resource_apply_dense(self, grad, var, apply_state=None):
        momentum = self.get_slot(var, "m")
        momentum = momentum.assign(0.9 * momentum + grad)
        step = self._get_hyper("rate", var.dtype) * momentum * self.get_slot(var, "scale")
        return tf.group(var.assign_sub(step), momentum)

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        momentum = self._resource_scatter_add(self.get_slot(var, "m"), indices, grad)
        rows = self._resource_scatter_add(var, indices, -self._get_hyper("rate", var.dtype) * grad)
        return tf.group(rows, momentum)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_slots_of_keras_optimizers(dtype):
    v = tf.Variable(tf.constant([1.0, 2.0], dtype), name="v")
    table = tf.Variable(tf.constant([[1.0], [2.0], [3.0]], dtype), name="table")
    rows = tf.IndexedSlices(tf.constant([[0.1], [0.2], [0.1]], dtype), tf.constant([0, 2, 2]))
    optimizer = _Momentum()
    train = optimizer.apply_gradients([(tf.constant([0.1, 0.2], dtype), v), (rows, table)])
    assert isinstance(train, tf.Operation)
    assert [w.name for w in optimizer.weights] == [
        "Momentum/iter:0", "Momentum/v/m:0", "Momentum/v/scale:0", "Momentum/table/m:0", "Momentum/table/scale:0",
    ]  # fmt: skip
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(train)
        values = session.run([v, table, *optimizer.weights])
    # The values of TensorFlow 2.15.1.
    np.testing.assert_allclose(values[0], [0.8878, 1.7756], rtol=2e-3)
    np.testing.assert_allclose(values[1].ravel(), [0.97, 2.0, 2.91], rtol=2e-3)
    np.testing.assert_allclose(values[3], [0.271, 0.542], rtol=2e-3)
    np.testing.assert_allclose(values[5].ravel(), [0.3, 0.0, 0.9], rtol=2e-3)
    assert values[2] == 3 and values[4].tolist() == [2.0, 2.0]


# The weights after three steps are those of TensorFlow 2.15.1.
@pytest.mark.parametrize(
    "name, weights",
    [
        ("SGD", [0.97, 1.94]),
        ("Adam", [0.7, 1.7]),
        ("RMSprop", [0.26226, 1.26226]),
        ("Adagrad", [0.91325, 1.85677]),
        ("Ftrl", [-0.04022, 0.16646]),
    ],
)
def test_keras_optimizers(name, weights):
    v = tf.Variable([1.0, 2.0])
    optimizer = getattr(tf.keras.optimizers.legacy, name)(0.1)
    train = optimizer.apply_gradients([(tf.constant([0.1, 0.2]), v)])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert session.run(optimizer._get_hyper("learning_rate") * 2.0) == np.float32(0.2)
        for _ in range(3):
            session.run(train)
        found, step = session.run([v, optimizer.iterations])
    np.testing.assert_allclose(found, weights, atol=1e-4)
    assert step == 3
