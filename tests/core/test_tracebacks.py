"""Tracebacks of common mistakes, compared with the number of lines that TensorFlow 2.21 prints."""

import subprocess
import sys
import traceback

import numpy as np
import pytest

import meshflow as tf
from meshflow.core.runtime import tracebacks

keras, layers, data = tf.keras, tf.keras.layers, tf.data.Dataset
X, Y = np.ones((8, 4), "float32"), np.ones((8, 3), "float32")
PACKAGE = tracebacks._PACKAGE


class Product(layers.Layer):
    def call(self, x):
        return tf.matmul(x, tf.ones([7, 7]))


class Outer(layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = Product()

    def call(self, x):
        return self.inner(x)


class StepModel(keras.Model):
    def call(self, x):
        return x

    def train_step(self, inputs):
        return {"loss": self(inputs[0]) - inputs[1]}


class LogReader(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["nothing"]


def compile_model(*model_layers, loss="mse", **options):
    model = keras.Sequential(model_layers or [layers.Dense(3)])
    model.compile("sgd", loss, **options)
    return model


def fail(*_):
    raise KeyError("mine")


def yield_and_fail():
    yield 1
    raise KeyError("mine")


@tf.function
def multiply_in_loop(x):
    for _ in tf.range(3):
        if x[0, 0] > 0:
            x = tf.matmul(x, x)
    return x


@tf.function
def concatenate_in_loop(x):
    while tf.reduce_sum(x) < 10.0:
        x = tf.concat([x, x], 0)
    return x


@tf.function(input_signature=[tf.TensorSpec([2], tf.float32)])
def take_two(x):
    return x


@tf.custom_gradient
def double(x):
    return x * 2, lambda dy: tf.matmul(dy, dy)


def differentiate_double():
    with tf.GradientTape() as tape:
        x = tf.constant([1.0])
        tape.watch(x)
        y = double(x)
    tape.gradient(y, x)


# The mistake, and the number of lines and of library frames in TensorFlow's traceback.
MISTAKES = {
    "matmul": (lambda: tf.matmul(tf.ones([2, 3]), tf.ones([4, 5])), 14, 3),
    "dtypes": (lambda: tf.constant(1) + tf.constant(1.0), 12, 2),
    "reshape": (lambda: tf.reshape(tf.ones([6]), [4, 2]), 13, 3),
    "index": (lambda: tf.ones([3])[5], 12, 2),
    "axis": (lambda: tf.reduce_sum(tf.ones([2, 3]), axis=4), 14, 3),
    "lists": (lambda: tf.constant([[1, 2], [3]]), 21, 5),
    "missing argument": (lambda: tf.matmul(tf.ones([2, 3])), 14, 3),
    "decode": (lambda: tf.io.decode_png(b"nonsense"), 10, 2),
    "assign": (lambda: tf.Variable([1.0, 2.0]).assign_add([1.0, 2.0, 3.0]), 17, 4),
    "gradient": (differentiate_double, 26, 6),
    "map_fn": (lambda: tf.map_fn(lambda x: tf.reshape(x, [4]), tf.ones([2, 3])), 38, 9),
    "function": (lambda: multiply_in_loop(tf.ones([2, 3])), 21, 4),
    "loop": (lambda: concatenate_in_loop(tf.ones([1])), 16, 2),
    "signature": (lambda: take_two(tf.ones([3])), 10, 2),
    "py_function": (lambda: tf.py_function(fail, [1.0], tf.float32), 35, 2),
    "keyword": (lambda: layers.Dense(3, unitss=3), 17, 5),
    "layer rank": (lambda: layers.Conv2D(4, 3)(tf.ones([2, 8])), 10, 2),
    "layer": (lambda: Product()(tf.ones([2, 3])), 16, 1),
    "sublayer": (lambda: Outer()(tf.ones([2, 3])), 19, 1),
    "functional": (lambda: layers.Reshape((3, 3))(keras.Input((8,))), 16, 2),
    "add": (lambda: keras.Sequential().add(3), 13, 3),
    "loss": (lambda: keras.losses.MeanSquaredError()(X, Y), 17, 4),
    "optimizer": (
        lambda: keras.optimizers.SGD().apply_gradients([(tf.ones([3]), tf.Variable([1.0, 2.0]))]),
        45,
        14,
    ),
    "load_weights": (lambda: compile_model().load_weights("/nonexistent/weights.h5"), 18, 6),
    "compile": (lambda: keras.Sequential().compile("no_such_optimizer"), 10, 2),
    "not compiled": (lambda: keras.Sequential([layers.Dense(3)]).fit(X, Y), 10, 2),
    "sizes": (lambda: compile_model().fit(X, Y[1:], verbose=0), 13, 2),
    "fit": (lambda: compile_model(layers.Dense(3, input_shape=(5,))).fit(X, Y, verbose=0), 26, 2),
    "fit layer": (lambda: compile_model(Product()).fit(X, Y, verbose=0), 39, 3),
    "metric": (lambda: compile_model(metrics=[tf.matmul]).fit(X, Y, verbose=0), 34, 2),
    "labels": (
        lambda: compile_model(loss="sparse_categorical_crossentropy").fit(X, [9] * 8, verbose=0),
        42,
        2,
    ),
    "callback": (lambda: compile_model().fit(X, Y, verbose=0, callbacks=[LogReader()]), 11, 1),
    "map": (lambda: data.range(3).map(lambda x: tf.matmul(x, x)), 83, 25),
    "map function": (
        lambda: list(data.range(3).map(lambda x: tf.numpy_function(fail, [x], tf.int64))),
        34,
        4,
    ),
    "generator": (
        lambda: list(data.from_generator(yield_and_fail, output_signature=tf.TensorSpec([]))),
        38,
        4,
    ),
    "strategy": (lambda: tf.distribute.get_strategy().run(tf.matmul, (X, X)), 41, 12),
}


def list_frames(error):
    """Return the files of all frames that Python prints for an error."""
    shown = traceback.TracebackException.from_exception(error)
    files = []
    while shown is not None:
        files += [frame.filename for frame in shown.stack]
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
    return files


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    run, max_lines, max_frames = MISTAKES[name]
    with pytest.raises(Exception) as caught:
        run()
    files = list_frames(caught.value)
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    assert len([f for f in files if f.startswith(PACKAGE)]) <= min(max_frames, 2)
    assert not any(f.startswith(tracebacks._HIDDEN_PATHS[1]) for f in files)
    assert "JAX has removed" not in "\n".join(lines)
    assert len(lines) <= max_lines + 3  # Python marks parts of our lines with carets
    assert files.count(__file__) >= 2


def test_step_shows_the_users_lines():
    model = StepModel()
    model.compile("sgd")
    with pytest.raises(ValueError) as caught:
        model.fit(X, Y, verbose=0)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [f.name for f in frames if f.filename == __file__][-1] == "train_step"
    assert frames[-2].line == 'return {"loss": self(inputs[0]) - inputs[1]}'


def test_last_line_of_a_script_is_the_error():
    script = "import meshflow as tf\ntf.function(lambda x: x @ x)(tf.ones([2, 3]))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    lines = ended.stderr.splitlines()
    assert lines[-1].startswith("meshflow.core.runtime.errors.InvalidArgumentError: Matrix size")
    assert len([line for line in lines if line.startswith("  File")]) <= 4


def test_contexts_without_user_frames_are_not_shown():
    @tracebacks.hide_frames_of_errors
    def public():
        try:
            tf.nest.assert_same_structure([1], 2)
        except (TypeError, ValueError):
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError) as caught:
        public()
    assert caught.value.__context__ is not None
    text = "".join(traceback.format_exception(caught.value))
    assert ("During handling" in text) == (not caught.value.__suppress_context__)


def test_functions_of_several_namespaces_are_the_same():
    assert tf.io.decode_jpeg is tf.image.decode_jpeg
    assert tf.nest.map_structure is tf.nest.map_structure


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: tf.ones([2]) + tf.ones([3]),
        lambda: tf.constant("a") + 1,
        lambda: keras.Sequential([layers.Dense(3)]).fit(X, Y),
        lambda: keras.optimizers.get("nothing"),
        lambda: keras.losses.get("nothing"),
        lambda: compile_model(loss="nothing").fit(X, Y, verbose=0),
        lambda: layers.LSTM(3)(tf.ones([2, 3])),
        lambda: take_two(tf.ones([3])),
        lambda: keras.Sequential([keras.Input([4]), layers.Dense(3)]).set_weights([np.ones(3)]),
        lambda: keras.Sequential([keras.Input([4]), layers.Dense(3)]).predict(X[:, :3], verbose=0),
    ],
)
def test_an_error_shows_one_frame_of_the_library(mistake):
    with pytest.raises((ValueError, RuntimeError, tf.errors.OpError)) as caught:
        mistake()
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert sum(f.filename.startswith(PACKAGE) for f in frames) == 1
