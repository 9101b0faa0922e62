"""Behaviour of layers, models and callbacks that TensorFlow's own tests check; expected values are those of TensorFlow 2.15."""

import csv

import numpy as np
import pytest

import meshflow as tf
from meshflow.keras import callbacks, initializers, layers, models, optimizers, utils

keras = tf.keras
X, Y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")


def compile_model(**options):
    model = keras.Sequential([layers.Dense(2, kernel_initializer="ones", input_shape=(3,))])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **options})
    return model


class Scale(layers.Layer):
    """Layer of a class that is not registered, with a constructor that accepts no name."""

    def __init__(self, factor=2):
        super().__init__()
        self.factor = factor

    def call(self, inputs):
        return inputs * self.factor


class OwnModel(keras.Model):
    """Functional model with its own method."""

    def double(self, inputs):
        return 2 * self(inputs)


def make_schedule_optimizer():
    return optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))


ERRORS = {
    "input of unconnected layer": (AttributeError, "not connected", lambda: layers.Dense(1).input),
    "output of unconnected layer": (
        *(AttributeError, "has no inbound nodes"),
        lambda: layers.Dense(1).output,
    ),
    "input shape": (
        *(RuntimeError, "no defined input shape"),
        lambda: layers.Dense(1).get_input_shape_at(0),
    ),
    "dtype": (TypeError, "Cannot convert value foo", lambda: layers.Dense(1, dtype="foo")),
    "interpolation": (
        *(NotImplementedError, "interpolation"),
        lambda: layers.UpSampling2D(interpolation="x"),
    ),
    "merge of one tensor": (ValueError, "called on a list of inputs", lambda: layers.Add()(X)),
    "dot": (ValueError, "incompatible shapes", lambda: layers.Dot(1)([X, np.ones((8, 4))])),
    "from_config": (
        *(TypeError, "Error when deserializing class 'Dense'"),
        lambda: layers.Dense.from_config({"foo": 1}),
    ),
    "no rank": (
        *(ValueError, "expected min_ndim=2, found ndim=0"),
        lambda: keras.Sequential([layers.Dense(1)])(1.0),
    ),
    "empty data": (
        *(ValueError, "Expected input data to be non-empty"),
        lambda: compile_model().predict(np.ones((0, 3))),
    ),
    "target_tensors": (
        *(ValueError, "`target_tensors` is not supported"),
        lambda: compile_model(target_tensors=[1]),
    ),
    "type_spec": (
        *(ValueError, "all other args except `name` must be None"),
        lambda: keras.Input((3,), type_spec=tf.TensorSpec((2, 3))),
    ),
    "two shapes": (
        *(ValueError, "Only provide the `input_shape` OR"),
        lambda: layers.InputLayer((3,), batch_input_shape=(2, 3)),
    ),
    "checkpoint options": (
        *(TypeError, "CheckpointOptions"),
        lambda: callbacks.ModelCheckpoint("a", save_weights_only=True, options=3),
    ),
    "schedule": (
        *(TypeError, "not settable"),
        lambda: setattr(make_schedule_optimizer(), "learning_rate", 0.5),
    ),
    "strings": (
        *(ValueError, "Expected numeric or boolean dtype"),
        lambda: initializers.Zeros()((2,), dtype="string"),
    ),
    "sequences": (ValueError, "must be iterable", lambda: utils.pad_sequences([1, 2])),
    "random generator": (
        *(ValueError, "rng_type"),
        lambda: keras.__internal__.layers.BaseRandomLayer(rng_type="x"),
    ),
    "arrays of symbolic tensors": (
        *(NotImplementedError, "Cannot convert a symbolic"),
        lambda: tf.function(np.array)(tf.constant(1)),
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    cls, message, call = ERRORS[name]
    with pytest.raises(cls, match=message):
        call()


@pytest.mark.parametrize(
    "method", ["fit", "evaluate", "predict", "train_on_batch", "predict_on_batch"]
)
def test_training_inside_functions(method):
    model = compile_model()
    with pytest.raises(RuntimeError, match=r"inside a `tf\.function`"):
        tf.function(lambda: getattr(model, method)(X))()


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_composite_inputs_are_cast(kind):
    x = tf.sparse.eye(2) if kind == "sparse" else tf.ragged.constant([[1.0], []])
    assert layers.Layer(dtype="float16")(x).dtype == tf.float16


def test_layers():
    layer = layers.Dense(2, activation=layers.PReLU())
    model = keras.Model(inputs := keras.Input((3,)), layer(inputs))
    assert len(model.weights) == 3  # The activation is built with the layer.
    assert layer._call_spec.arg_names == ["inputs"]
    assert layer._self_tracked_trackables == [layer.activation]
    assert str(inputs).startswith("KerasTensor(type_spec=TensorSpec(shape=(None, 3)")
    assert repr(keras.Input((3,), sparse=True)).startswith(
        "<KerasTensor: type_spec=SparseTensorSpec("
    )
    function = keras.backend.function({"a": inputs}, {"b": inputs * 2.0})
    assert function({"a": X})["b"][0, 0] == 2
    assert keras.backend.batch_normalization(X, 0.0, 1.0, 0.0, 1.0, epsilon=0.0)[0, 0] == 1
    assert initializers.Zeros()(2).shape == (2,)


def test_updates_of_frozen_layers():
    class Count(layers.Layer):
        def __init__(self):
            super().__init__()
            self.count = tf.Variable(0.0, trainable=False)

        def call(self, inputs):
            self.add_update(lambda: self.count.assign_add(1.0))
            return inputs

    layer = Count()
    layer(X)
    layer.trainable = False
    layer(X)
    assert float(layer.count) == 1


@pytest.mark.parametrize("make", [keras.Model, OwnModel, keras.Sequential])
def test_clones(make):
    inputs = keras.Input((3,))
    layer = Scale(5)
    model = make([inputs, layer]) if make is keras.Sequential else make(inputs, layer(inputs))
    clone = models.clone_model(model)
    assert type(clone) is type(model)
    assert clone.layers[-1] is not layer
    assert clone(X)[0, 0] == 5


def test_sequential_models_without_layers():
    model = keras.Sequential([layers.Dense(2, input_shape=(3,))])
    model.pop()
    assert (model.layers, model.inputs, model.outputs, model.built) == ([], None, None, False)
    model.add(layers.Dense(4))
    assert model(X).shape == (8, 4)


def test_compiling():
    model = compile_model(cloning=True)
    assert model.jit_compile is None
    model.jit_compile = True
    assert model._jit_compile
    model.compile("sgd", "mse", jit_compile=False)
    assert model.jit_compile is False


def test_monitoring_callbacks():
    class Highest(callbacks.EarlyStopping):
        def __init__(self):
            super().__init__("loss")
            self.monitor_op, self.best = np.greater, -np.inf

    stop, plateau = callbacks.EarlyStopping(min_delta=0.1), callbacks.ReduceLROnPlateau()
    assert (stop.monitor_op, stop.min_delta) == (np.less, -0.1)
    assert callbacks.EarlyStopping("auc").monitor_op is np.greater
    assert plateau.monitor_op(0.9, 1.0)
    assert not plateau.monitor_op(0.99999, 1.0)
    assert Highest()._is_improvement(2.0, 1.0)

    class Names(callbacks.ModelCheckpoint):
        def _save_model(self, epoch, batch, logs):
            names.append((self._get_file_path(epoch, batch, logs), type(logs["loss"])))

    names = []
    compile_model().fit(X, Y, verbose=0, callbacks=[Names("{epoch}", save_freq=1)])
    assert names == [("1", tf.Tensor)]


def test_callback_lists(tmp_path, capsys):
    model = compile_model()
    events = callbacks.CallbackList([], add_history=True, add_progbar=True, model=model, epochs=1)
    assert [type(c) for c in events] == [callbacks.History, callbacks.ProgbarLogger]
    assert events._history is model.history
    assert events.params == {"epochs": 1}
    assert events._should_call_train_batch_hooks
    assert not callbacks.Callback()._implements_test_batch_hooks()
    path = tmp_path / "log.csv"
    model.fit(X, Y, verbose=2, callbacks=[callbacks.CSVLogger(path)])
    with open(path) as file:
        rows = list(csv.reader(file))
    assert (rows[0], rows[1][-1]) == (["epoch", "loss", "val_loss"], "NA")
    assert capsys.readouterr().out.splitlines()[-1].endswith("/step")


def test_dataset_rows_of_ragged_tensors():
    data = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]]))
    assert [row.tolist() for row in data.as_numpy_iterator()] == [[1], [2, 3]]


@pytest.mark.parametrize("value", ["None", "tf.constant(1.0)", "tf.constant([1])"])
def test_branches_and_loops_with_varying_values(value, tmp_path):
    (tmp_path / "varying.py").write_text(
        f"def branch(x):\n  y = {value}\n  if x > 0:\n    y = tf.constant(1)\n  return y\n"
    )
    space = {"tf": tf}
    path = tmp_path / "varying.py"
    exec(compile(path.read_text(), str(path), "exec"), space)
    with pytest.raises(ValueError, match="must have the same"):
        tf.function(space["branch"])(tf.constant(1))


def test_input_accepts_either_name_of_its_shape():
    assert tf.keras.Input(batch_shape=None, batch_input_shape=(2, 3)).shape == (2, 3)
    assert tf.keras.Input(batch_shape=(2, 3), batch_input_shape=None).shape == (2, 3)
