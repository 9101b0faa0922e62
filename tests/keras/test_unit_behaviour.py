"""Behaviour of layers, models and callbacks that TensorFlow's own tests check; expected values are those of TensorFlow 2.15."""

import csv
import re

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


class OwnLayers(keras.Model):
    """Model without a configuration."""

    def __init__(self, layer):
        super().__init__()
        self.parts = [layer]

    def call(self, inputs):
        return self.parts[0](inputs)

    def get_config(self):
        raise NotImplementedError


class AmbiguousMetrics(layers.Layer):
    """Layer with two metrics of one name."""

    def __init__(self):
        super().__init__()
        self.means = [keras.metrics.Mean(name="m"), keras.metrics.Mean(name="m")]

    def call(self, inputs):
        self.add_metric(tf.reduce_sum(inputs), name="m")
        return inputs


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
    "options of native files": (
        *(ValueError, "does not support the `options` argument"),
        lambda: callbacks.ModelCheckpoint("a.keras", options=tf.saved_model.SaveOptions()),
    ),
    "unknown argument of InputLayer": (
        *(ValueError, "Unrecognized keyword arguments"),
        lambda: layers.InputLayer((3,), shapes=(3,)),
    ),
    "parts of initializers": (
        *(ValueError, "initializer doesn't support partition-related arguments"),
        lambda: initializers.Identity()((4, 2), partition_shape=(2, 2), partition_offset=(0, 0)),
    ),
    "module without a call": (
        *(ValueError, "is not defined"),
        lambda: keras.Sequential([tf.Module()]),
    ),
    "mask that is no list": (
        *(ValueError, "should be a list"),
        lambda: layers.Add().compute_mask([X, X], X),
    ),
    "masks of other inputs": (
        *(ValueError, "should have the same length"),
        lambda: layers.Add().compute_mask([X, X], [None]),
    ),
    "metrics of one name": (
        *(ValueError, "Please provide different names"),
        lambda: AmbiguousMetrics()(X),
    ),
    "unregistered class": (
        *(ValueError, "is a custom class, please register it"),
        lambda: layers.deserialize({"class_name": "Unregistered", "config": {}}),
    ),
    "uncompiled model": (
        *(ValueError, "has not been compiled"),
        lambda: keras.__internal__.models.clone_and_build_model(OwnLayers(layers.Dense(2))),
    ),
    "clone in place": (
        *(ValueError, "reset in-place"),
        lambda: keras.__internal__.models.clone_and_build_model(
            OwnLayers(layers.Dense(2)), compile_clone=False
        ),
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


@pytest.mark.parametrize("eagerly", [False, True])
def test_optimizers_of_version_1_train_models(eagerly, tmp_path):
    model = keras.Sequential([layers.Dense(1, kernel_initializer="ones")])
    optimizer = tf.compat.v1.train.AdamOptimizer(0.1)
    model.compile(optimizer, "mse", run_eagerly=eagerly)
    history = model.fit(np.ones((4, 2)), np.zeros((4, 1)), batch_size=2, epochs=3, verbose=0)
    np.testing.assert_allclose(history.history["loss"], [3.445, 1.597993, 0.488542], rtol=1e-5)
    assert int(model.optimizer.iterations) == 6
    power, _ = optimizer._get_beta_accumulators()
    power.assign(12.0)
    model.save_weights(tmp_path / "weights")
    power.assign(13.0)
    model.load_weights(tmp_path / "weights")
    assert float(power) == 12


def test_metrics_of_several_outputs():
    inputs = keras.Input((3,))
    model = keras.Model(
        inputs, [layers.Dense(2, name="a")(inputs), layers.Dense(2, name="b")(inputs)]
    )
    model.compile("sgd", "mse", metrics=["mae", keras.metrics.CategoricalAccuracy()])
    assert len(model.evaluate(X, [Y, Y], verbose=0)) == 7
    assert model.metrics_names[3:5] == ["a_mae", "a_categorical_accuracy"]


def test_targets_have_the_dtype_of_predictions():
    dtypes = []

    def loss(targets, predictions):
        dtypes.append((targets.dtype, predictions.dtype))
        return targets - predictions

    model = keras.Sequential([layers.Dense(2, dtype="float64")])
    model.compile("sgd", loss)
    model.train_on_batch(X, np.ones((8, 1)))
    assert set(dtypes) == {(tf.float64, tf.float64)}


def test_metrics_that_were_created_first_are_listed_first():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.mean = layers.Dense(2), keras.metrics.Mean(name="first")

        def call(self, inputs):
            self.add_metric(tf.reduce_sum(inputs), name="second")
            self.add_metric(self.mean(inputs), name="first")
            return self.dense(inputs)

    model = Model()
    model.compile("sgd", "mse")
    assert model.evaluate(X, Y, verbose=0)[1:] == [1, 24]
    assert model.metrics_names == ["loss", "first", "second"]


@pytest.mark.parametrize(
    ("is_expected", "message", "act"),
    [
        (True, "received a value for `sample_weight`", lambda: evaluate_with_weights(None)),
        (False, "received a value for `sample_weight`", lambda: evaluate_with_weights([])),
        (True, r"incompatible static batch sizes .* \[2, 3\]", lambda: join_batches(2, 3)),
        (False, "incompatible static batch sizes", lambda: join_batches(2, 2)),
        (True, "`epsilon` argument is dep", lambda: callbacks.ReduceLROnPlateau(epsilon=1e-9)),
    ],
)
def test_warnings(is_expected, message, act, caplog):
    act()
    assert bool(re.search(message, caplog.text)) == is_expected


def evaluate_with_weights(weighted_metrics):
    compile_model(metrics=["mae"], weighted_metrics=weighted_metrics).evaluate(
        X, Y, sample_weight=np.ones(8), verbose=0
    )


def join_batches(*sizes):
    inputs = [keras.Input((3,), batch_size=size) for size in sizes]
    keras.Model(inputs, layers.Lambda(lambda parts: tf.concat(parts, 0))(inputs))


def test_masks_of_time_steps():
    model = keras.Sequential(
        [
            layers.TimeDistributed(
                layers.Embedding(5, 2, "ones", mask_zero=True), input_shape=(None, None)
            ),
            layers.TimeDistributed(
                layers.SimpleRNN(2, kernel_initializer="ones", recurrent_initializer="zeros")
            ),
            layers.SimpleRNN(1, kernel_initializer="ones"),
        ]
    )
    # All steps of the first sequence are masked.
    x = np.array([[[0, 0], [0, 0]], [[1, 2], [0, 0]]])
    np.testing.assert_allclose(model(x), [[0], [np.tanh(2 * np.tanh(2))]], rtol=1e-5)
    mask = model.layers[0].compute_mask(model.input)
    assert keras.backend.function([model.input], [mask])([x])[0].tolist() == [
        [[False, False], [False, False]],
        [[True, True], [False, False]],
    ]
    assert model.layers[1].compute_mask(x, x > 0).numpy().tolist() == [
        [False, False],
        [True, False],
    ]


def test_lists_of_inputs_that_change_after_the_call():
    tensors = [keras.Input((None,))]
    for _ in range(3):
        tensors.append(layers.concatenate(tensors, axis=1))
    assert keras.Model(tensors[0], tensors[-1])(X[:, :1]).shape == (8, 4)


def test_sequential_models_of_modules_and_own_calls():
    class Scaled(tf.Module):
        def __init__(self):
            super().__init__()
            self.factor = tf.Variable(2.0)

        def call(self, inputs, training=None):
            assert training is not None
            return self.factor * inputs

    model = keras.Sequential([Scaled()])
    model.compile("sgd", "mse")
    model.fit(X, X, verbose=0)
    assert len(model.trainable_variables) == 1

    class Sums(keras.Sequential):
        def call(self, inputs):
            self.add_loss(tf.reduce_sum(inputs))
            return inputs

    model = Sums([layers.Dense(1)])
    model.compile("sgd")
    assert model.fit(X, verbose=0).history == {"loss": [24]}


def test_outputs_that_vary():
    model = keras.Sequential([layers.Layer()])
    model.compile(loss="mse")
    for x in ({"a": X, "b": Y}, {"a": X}, X):
        assert model.evaluate(x, x, verbose=0) in (0, [0, 0, 0])


def test_cloning_helpers():
    build = keras.__internal__.models.clone_and_build_model
    model = OwnLayers(layers.Dense(2))
    model.compile("rmsprop", "mse", metrics=["acc"])
    steps, layer = tf.Variable(123, dtype=tf.int64), model.parts[0]
    clone = build(model, in_place_reset=True, optimizer_iterations=steps)
    assert clone is model
    assert clone.parts[0] is not layer
    clone.train_on_batch(X, Y)
    assert int(steps) == 124
    keras.__internal__.models.in_place_subclassed_model_state_restoration(model)
    assert model.parts[0] is layer


def test_shapes_of_models_that_train(tmp_path):
    class Doubled(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, inputs):
            return self.dense(2 * inputs)

    model = Doubled()
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = models.load_model(tmp_path / "model.keras", custom_objects={"Doubled": Doubled})
    assert model._build_input_shape == loaded._build_input_shape == [None, 3]


def test_best_weights_are_restored_when_training_is_stopped():
    class Model:
        def get_weights(self):
            return self.weights

        def set_weights(self, weights):
            self.weights = weights

    stop = callbacks.EarlyStopping(patience=2, restore_best_weights=True)
    stop.model = Model()
    stop.on_train_begin()
    for epoch, loss in enumerate([0.2, 0.1, 0.11, 0.12]):
        stop.model.set_weights(epoch)
        stop.on_epoch_end(epoch, {"val_loss": loss})
    assert stop.model.get_weights() == 1


def test_checkpoints_by_pattern(tmp_path):
    path = str(tmp_path / "a.{epoch:02d}-{loss:.2f}.h5")
    model = compile_model()
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[save := callbacks.ModelCheckpoint(path)])
    latest = save._get_most_recently_modified_file_matching_pattern(path)
    assert latest.rpartition("/a.")[2].startswith("02-")
    kernel = model.get_weights()[0]
    model.fit(X, Y, verbose=0)
    restart = callbacks.ModelCheckpoint(path, load_weights_on_restart=True)
    restart.set_model(model)
    restart.on_train_begin()
    np.testing.assert_array_equal(model.get_weights()[0], kernel)
    (tmp_path / "b.h5").mkdir()
    with pytest.raises(OSError, match="Please specify a non-directory filepath"):
        model.fit(X, Y, verbose=0, callbacks=[callbacks.ModelCheckpoint(tmp_path / "b.h5")])


def test_checkpoints_of_several_steps_per_execution(tmp_path):
    model = compile_model(steps_per_execution=4)
    path = tmp_path / "c_{epoch}_{batch}"
    save = callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq=4)
    model.fit(X, Y, batch_size=2, epochs=2, verbose=0, callbacks=[save])
    assert sorted(p.stem for p in tmp_path.glob("*.index")) == ["c_1_4", "c_2_4"]


def test_logs_are_shared_by_callbacks():
    class Change(callbacks.Callback):
        def __init__(self, name, supports_tensors):
            super().__init__()
            self.name, self._supports_tf_logs = name, supports_tensors

        def on_train_batch_end(self, batch, logs=None):
            logs[self.name] = 1
            names.append(list(logs))

    names = []
    events = callbacks.CallbackList([Change("a", False), Change("b", True), Change("c", False)])
    events.on_train_batch_end(0, logs={"loss": tf.constant(0.0)})
    assert names == [["loss", "a"], ["loss", "a", "b"], ["loss", "a", "b", "c"]]


def test_progress_bars_find_the_number_of_steps():
    bar = callbacks.ProgbarLogger("steps")
    assert bar.target is None
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2).filter(lambda x, y: True)
    compile_model().fit(data, verbose=0, callbacks=[bar])
    assert bar.target == 4


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


def choose_loss(y_true, y_pred):
    """Loss with control flow that depends on values."""
    if tf.reduce_mean(y_true) > 0:
        return tf.abs(y_true - y_pred)
    return tf.square(y_true - y_pred)


class ChoosingLoss(keras.losses.Loss):
    """Loss with control flow in `call`."""

    def call(self, y_true, y_pred):
        if tf.reduce_mean(y_true) > 0:
            return tf.abs(y_true - y_pred)
        return tf.square(y_true - y_pred)


class CountPositive(keras.metrics.Metric):
    """Metric with control flow in `update_state`."""

    def __init__(self, name="positive"):
        super().__init__(name)
        self.total = self.add_weight("total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        if tf.reduce_mean(y_true) > 0:
            self.total.assign_add(1.0)
        else:
            self.total.assign_add(10.0)

    def result(self):
        return self.total


@pytest.mark.parametrize("loss", [choose_loss, ChoosingLoss()])
def test_control_flow_of_losses_and_metrics_is_converted(loss):
    model = compile_model(loss=loss, metrics=[CountPositive(), choose_loss])
    values = model.evaluate(np.zeros((4, 3)), np.full((4, 2), 3.0), verbose=0)
    np.testing.assert_allclose(values, [3, 1, 3])
    values = model.evaluate(np.ones((4, 3)), np.zeros((4, 2)), verbose=0)
    np.testing.assert_allclose(values, [9, 10, 9])
    wrapper = keras.losses.LossFunctionWrapper(choose_loss)
    assert float(tf.function(lambda a, b: wrapper(a, b))(tf.constant([3.0]), 1.0)) == 2


def test_compiled_methods_of_metrics_belong_to_one_metric():
    class LateCount(keras.metrics.Metric):
        count = None

        @tf.function
        def update_state(self, values):
            if self.count is None:
                self.count = tf.Variable(0.0)
            self.count.assign_add(tf.reduce_sum(values))

        def result(self):
            return self.count

    first, second = LateCount(), LateCount()
    first.update_state(tf.constant([1.0]))
    second.update_state(tf.constant([2.0, 3.0]))
    assert [float(first.count), float(second.count)] == [1, 5]


def test_metrics_without_methods_are_abstract():
    with pytest.raises(TypeError, match="abstract class Metric without result and update_state"):
        keras.metrics.Metric()


@pytest.mark.parametrize("arguments", [{"beta": 1}, {"threshold": 1}, {"threshold": 2.0}])
def test_f_scores_require_floats(arguments):
    with pytest.raises(ValueError, match="Python float"):
        keras.metrics.FBetaScore(**arguments)


def test_optimizers_write_their_own_variables(caplog):
    store = {}
    trained = []
    for _ in range(2):
        variable = tf.Variable([1.0, 2.0])
        optimizer = optimizers.Adam(0.1)
        optimizer.apply_gradients([(tf.constant([0.5, 1.0]), variable)])
        trained.append(optimizer)
    trained[0].iterations.assign(7)
    trained[0].save_own_variables(store)
    trained[1].load_own_variables(store)
    for a, b in zip(trained[0].get_weights(), trained[1].get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    trained[1].load_own_variables({})
    assert "Skipping variable loading for optimizer 'Adam'" in caplog.text


def test_optimizers_check_their_arguments_as_since_2_11():
    assert type(optimizers.get("adam", use_legacy_optimizer=True)) is optimizers.legacy.Adam
    config = {"class_name": "SGD", "config": {"learning_rate": 0.5}}
    restored = optimizers.deserialize(config, use_legacy_optimizer=True)
    assert type(restored) is optimizers.legacy.SGD
    with pytest.raises(ValueError, match="ema_overwrite_frequency"):
        optimizers.SGD(use_ema=True, ema_overwrite_frequency=-1)
    variable = tf.Variable(1.0)
    optimizer = optimizers.AdamW()
    optimizer.build([variable])
    with pytest.raises(ValueError, match="was called after it was built"):
        optimizer.exclude_from_weight_decay([variable])
    clipped = optimizers.SGD(1.0, clipnorm=0.5, clipvalue=0.1)
    clipped.apply_gradients([(tf.constant(4.0), variable)])
    assert float(variable) == 0.5


@pytest.mark.parametrize("make", [lambda x: x, lambda x: tf.data.Dataset.from_tensors(x)])
@pytest.mark.parametrize("mode", ["int", "tf_idf"])
def test_lookup_layers_adapt_to_ragged_tensors(make, mode):
    lookup = layers.StringLookup(output_mode=mode)
    lookup.adapt(make(tf.ragged.constant([["a", "b"], ["b"], ["b", "c", "c"]])))
    assert lookup.get_vocabulary() == ["[UNK]", "b", "c", "a"]
    words = layers.TextVectorization(split=None, standardize=None)
    words.adapt(make(tf.ragged.constant([["a", "b"], ["b"]])))
    assert words.get_vocabulary() == ["", "[UNK]", "b", "a"]
    numbers = layers.IntegerLookup()
    numbers.adapt(make(tf.ragged.constant([[[5], [7, 7]], [[7]]])))
    assert numbers.get_vocabulary() == [-1, 7, 5]


def test_ragged_texts_have_no_length():
    with pytest.raises(ValueError, match="must not be set if `ragged` is true"):
        layers.TextVectorization(ragged=True, output_sequence_length=4)


def test_callbacks_compare_by_the_names_of_metrics():
    names = ("loss", "val_acc", "accuracy_1", "val_auc", "fmeasure")
    stopping = [callbacks.EarlyStopping(name).monitor_op is np.greater for name in names]
    assert stopping == [False, True, False, True, False]
    saving = [callbacks.ModelCheckpoint("m", name).monitor_op is np.greater for name in names]
    assert saving == [False, True, True, True, True]
    assert [callbacks.ProgbarLogger(m).use_steps for m in ("steps", "samples")] == [True, False]


@pytest.mark.parametrize("label_mode", ["int", None])
def test_recordings_of_different_lengths_are_ragged(tmp_path, label_mode):
    for name, count in (("a", 20), ("b", 30)):
        (tmp_path / name).mkdir()
        sound = tf.audio.encode_wav(np.full((count, 1), 0.5, "float32"), 1000)
        (tmp_path / name / "1.wav").write_bytes(sound.numpy())
    load = utils.audio_dataset_from_directory
    options = {"shuffle": False, "ragged": True, "label_mode": label_mode}
    batch = next(iter(load(tmp_path, batch_size=4, **options)))
    sounds = batch[0] if label_mode else batch
    assert sounds.row_lengths().numpy().tolist() == [20, 30]
    if label_mode:
        assert batch[1].numpy().tolist() == [0, 1]
    element = next(iter(load(tmp_path, batch_size=None, **options)))
    element = element[0] if label_mode else element
    assert isinstance(element, tf.RaggedTensor)
    with pytest.raises(ValueError, match="both `ragged` and `output_sequence_length`"):
        load(tmp_path, output_sequence_length=3, **options)


def test_padded_sequences_have_steps_of_one_shape():
    with pytest.raises(ValueError, match="position 1 is different"):
        utils.pad_sequences([[[1, 2]], [[1]]])


def test_groups_of_one_channel_are_counted_when_built():
    layer = layers.GroupNormalization(groups=-1)
    layer.build((None, 4, 3))
    assert layer.get_config()["groups"] == 3


def test_generators_that_end_after_the_first_epoch_end_the_training():
    model = compile_model()
    with pytest.warns(UserWarning, match="ran out of data"):
        history = model.fit(((X, Y) for _ in range(3)), epochs=4, verbose=0)
    assert history.epoch == [0, 1]
    assert history.history["loss"][0] == history.history["loss"][1]


def test_functions_as_losses_may_return_numbers():
    class Charge(layers.Layer):
        def call(self, inputs):
            self.add_loss(lambda: 2.0)
            return inputs

    model = keras.Sequential([Charge(), layers.Dense(2)])
    model.compile("sgd")
    assert model.evaluate(X, verbose=0) == 2.0


def test_functions_may_return_no_loss():
    layer = layers.Dense(2)
    layer.add_loss(lambda: None)
    layer.add_loss(lambda: 2.0)
    assert [float(loss) for loss in layer.losses] == [2.0]


def test_names_of_metrics_keep_their_case():
    model = compile_model(metrics=["Accuracy", "acc"])
    model.train_on_batch(X, Y)
    assert model.metrics_names == ["loss", "Accuracy", "acc"]


def test_state_of_a_csv_logger(tmp_path):
    logger = callbacks.CSVLogger(tmp_path / "log.csv", append=True)
    assert (logger.append_header, logger.keys, logger.writer) == (True, None, None)
    model = compile_model()
    model.fit(X, Y, verbose=0, callbacks=[logger])
    assert logger.keys == ["loss", "val_loss"]
    model.fit(X, Y, verbose=0, callbacks=[logger])
    assert not logger.append_header
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3


def add_concrete_metric():
    symbolic = keras.Input([3])
    keras.Model(symbolic, symbolic * 2).add_metric(tf.constant(1.0), name="m")


def schedule_without_rate():
    callback = callbacks.LearningRateScheduler(lambda epoch: 0.1)
    model = compile_model()
    model.optimizer = object()
    callback.set_model(model)
    callback.on_epoch_begin(0)


def count_after_failed_build():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, inputs):
            return self.dense(inputs)

    model = Own()
    with pytest.raises(ValueError, match="cannot build"):
        model.build(3)
    model.count_params()


@pytest.mark.parametrize(
    ("error", "run"),
    [
        (ValueError, count_after_failed_build),
        (ValueError, lambda: compile_model(run_eagerly=True, jit_compile=True)),
        (ValueError, lambda: compile_model(distribute=tf.distribute.get_strategy())),
        (ValueError, lambda: compile_model().save_weights("weights.h5", save_format="tf")),
        (TypeError, lambda: keras.Model(inputs=keras.Input([3]))),
        (TypeError, lambda: keras.Model(outputs=keras.Input([3]))),
        (ValueError, add_concrete_metric),
        (ValueError, schedule_without_rate),
        (
            ValueError,
            lambda: layers.StringLookup().adapt(tf.data.Dataset.from_tensors(["a"]).repeat()),
        ),
        (ValueError, lambda: layers.Normalization().adapt(np.ones([0, 2]))),
        (
            ValueError,
            lambda: compile_model().fit(X, Y, validation_data=(X, Y), validation_freq="a"),
        ),
        (
            tf.errors.InvalidArgumentError,
            lambda: compile_model().fit(X, np.eye(2)[[0, 1] * 4], class_weight={0: 1.0}, verbose=0),
        ),
    ],
)
def test_wrong_arguments(error, run):
    with pytest.raises(error):
        run()
