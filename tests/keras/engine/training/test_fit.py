import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow.keras import layers


def blobs(n=96, classes=3, seed=0):
    """Points around class centres: easily learnt."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    return (
        np.eye(classes)[y] @ rng.normal(size=(classes, 5)) * 3 + rng.normal(size=(n, 5)) * 0.3
    ).astype("float32"), y


def mlp(classes=3, **compile_arguments):
    model = tf.keras.Sequential(
        [
            layers.Dense(16, activation="relu", input_shape=(5,)),
            layers.Dense(classes, activation="softmax"),
        ]
    )
    model.compile(
        **{
            "optimizer": "adam",
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
            **compile_arguments,
        }
    )
    return model


def test_learns_and_reports():
    x, y = blobs()
    history = (
        mlp(optimizer=tf.keras.optimizers.Adam(0.02))
        .fit(x, y, epochs=15, verbose=0, validation_split=0.25)
        .history
    )
    assert list(history) == ["loss", "accuracy", "val_loss", "val_accuracy"]
    assert history["loss"][-1] < 0.2 * history["loss"][0] and history["val_accuracy"][-1] > 0.9


def test_same_seed_same_weights_bitwise():
    x, y = blobs()

    def train():
        tf.keras.utils.set_random_seed(3)
        model = tf.keras.Sequential(
            [layers.Dense(8, input_shape=(5,)), layers.Dropout(0.5), layers.Dense(3)]
        )
        model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(x, y, epochs=2, verbose=0)
        return model.get_weights()

    for a, b in zip(train(), train(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_step_is_gradient_descent():
    x, y = np.ones((4, 2), np.float32), np.zeros((4, 1), np.float32)
    model = tf.keras.Sequential(
        [layers.Dense(1, use_bias=False, kernel_initializer="ones", input_shape=(2,))]
    )
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    assert model.train_on_batch(x, y) == pytest.approx(4.0)
    assert_close(model.get_weights()[0], [[0.6], [0.6]])


def test_partial_batches_are_exact_and_compile_once(compile_tier):
    x, y = blobs(70)
    model = mlp(optimizer=tf.keras.optimizers.SGD(0.0))
    loss, accuracy = model.evaluate(x, y, verbose=0, batch_size=32)
    probabilities = model.predict(x, verbose=0, batch_size=32)
    assert loss == pytest.approx(-np.log(probabilities[np.arange(70), y]).mean(), rel=1e-5)
    assert accuracy == pytest.approx((probabilities.argmax(1) == y).mean())
    model.fit(x, y, epochs=4, verbose=0)
    assert len(model._steps["train"]._concrete) == 2


@pytest.mark.parametrize("steps_per_execution", [3, 8])
def test_steps_per_execution_changes_no_number(steps_per_execution):
    x, y = blobs(100)

    def train(**arguments):
        tf.keras.utils.set_random_seed(1)
        model = mlp(**arguments)
        history = model.fit(x, y, epochs=2, batch_size=16, verbose=0).history
        return history["loss"], model.get_weights()

    plain, several = train(), train(steps_per_execution=steps_per_execution)
    assert_close(plain[0], several[0])
    for a, b in zip(plain[1], several[1], strict=True):
        assert_close(a, b)


class Guarded(layers.Layer):
    def call(self, x):
        tf.debugging.assert_less(tf.reduce_max(x), 5.0, message="too large")
        return x


@pytest.mark.parametrize("devices", [1, 2])
def test_failed_assertion_in_a_step_leaves_the_model_usable(devices):
    x, y = np.ones([24, 3], "float32"), np.ones([24, 2], "float32")
    names = [f"CPU:{i}" for i in range(devices)]
    with tf.distribute.MirroredStrategy(names).scope():
        model = tf.keras.Sequential([Guarded(input_shape=(3,)), layers.Dense(2)])
        model.compile("sgd", "mse", steps_per_execution=4)
    model.fit(x, y, batch_size=4, verbose=0)
    before = model.get_weights()
    x[13] = 9  # steps follow
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        model.fit(x[8:], y[8:], batch_size=4, shuffle=False, verbose=0)
    for a, b in zip(before, model.get_weights(), strict=True):
        assert_close(a, b)
    assert model.optimizer.iterations.numpy() == 6


def test_failed_numerics_check_names_the_steps():
    x, _ = blobs(32)
    model = mlp(steps_per_execution=2, loss="mse", metrics=None)
    targets = np.ones([32, 3], "float32")
    targets[-1] = np.inf
    tf.debugging.enable_check_numerics()
    try:
        with pytest.raises(tf.errors.InvalidArgumentError, match="train_step_loop"):
            model.fit(x, targets, batch_size=8, shuffle=False, verbose=0)
    finally:
        tf.debugging.disable_check_numerics()


def test_eager_steps_equal_compiled_steps():
    x, y = blobs(32)

    def train(eager):
        tf.keras.utils.set_random_seed(1)
        model = mlp(run_eagerly=eager)
        return model.fit(x, y, epochs=1, verbose=0).history["loss"]

    assert_close(train(False), train(True))


def test_weights_of_samples_and_classes():
    x, y = blobs(32)
    model = mlp(optimizer=tf.keras.optimizers.SGD(0.0), metrics=None, weighted_metrics=["accuracy"])
    each = -np.log(model.predict(x, verbose=0)[np.arange(32), y])
    weights = np.linspace(0, 1, 32)
    assert model.evaluate(x, y, sample_weight=weights, verbose=0)[0] == pytest.approx(
        (each * weights).mean(), rel=1e-5
    )
    history = model.fit(
        x, y, class_weight={0: 1.0, 1: 2.0, 2: 0.0}, verbose=0, batch_size=32
    ).history
    assert history["loss"][0] == pytest.approx((each * np.array([1, 2, 0])[y]).mean(), rel=1e-5)
    with pytest.raises(ValueError, match=r"classes \[2\]"):
        model.fit(x, y, class_weight={0: 1.0, 1: 1.0}, verbose=0)


def test_epochs_of_sequences_start_with_the_first_batch():
    requested = []

    class Batches(tf.keras.utils.Sequence):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            requested.append(i)
            return np.full([2, 5], i, "float32"), np.zeros([2], "int32")

    model = mlp()
    for steps, order in ((2, [0, 1]), (3, [0, 1, 2]), (4, [0, 1, 2, 0])):
        requested.clear()
        model.fit(Batches(), steps_per_epoch=steps, epochs=2, shuffle=False, verbose=0)
        assert requested == 2 * order

    class Stream(Batches):
        def __iter__(self):
            return self

        def __next__(self):
            return self[10 + len(requested)]

    # Keras reads an iterator by its index only if it is a `Sequence`.
    plain = type(
        "Plain", (), dict(vars(Batches)) | {k: vars(Stream)[k] for k in ("__iter__", "__next__")}
    )
    for data, order in ((Stream(), [0, 1, 0, 1]), (plain(), [10, 11, 12, 13])):
        requested.clear()
        model.fit(data, steps_per_epoch=2, epochs=2, shuffle=False, verbose=0)
        assert requested == order
    images = np.arange(24, dtype="float32").reshape(6, 2, 2, 1)
    flow = tf.keras.preprocessing.image.ImageDataGenerator().flow(
        images, np.ones([6]), batch_size=2
    )
    small = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
    small.compile("sgd", "mse")
    small.fit(flow, steps_per_epoch=len(flow), epochs=3, verbose=0)
    assert small.optimizer.iterations.numpy() == 9


def test_sources_of_data():
    x, y = blobs(64)
    batches = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 64, 16)]

    class Batches(tf.keras.utils.Sequence):
        def __len__(self):
            return len(batches)

        def __getitem__(self, i):
            return batches[i]

    def endless():
        while True:
            yield from batches

    model = mlp()
    expected = model.evaluate(x, y, verbose=0)
    assert_close(model.evaluate(tf.constant(x), tf.constant(y), verbose=0), expected)
    assert_close(model.evaluate(x.tolist(), y.tolist(), verbose=0), expected)
    assert_close(model.evaluate(Batches(), verbose=0), expected)
    assert_close(model.evaluate(iter(batches), verbose=0), expected)
    assert_close(model.evaluate(endless(), steps=4, verbose=0), expected)
    assert len(model.fit(endless(), steps_per_epoch=3, epochs=2, verbose=0).history["loss"]) == 2
    pd = pytest.importorskip("pandas")
    assert_close(mlp().predict(pd.DataFrame(x), verbose=0).shape, (64, 3))
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y)), batch_size=16
    )
    model.fit(loader, verbose=0)


def test_several_inputs_and_outputs():
    a, b = tf.keras.Input((3,), name="a"), tf.keras.Input((2,), name="b")
    joined = layers.Concatenate()([a, b])
    model = tf.keras.Model(
        {"a": a, "b": b},
        {"one": layers.Dense(1, name="one")(joined), "two": layers.Dense(2, name="two")(joined)},
    )
    model.compile(
        "sgd",
        {"one": "mse", "two": "mae"},
        metrics={"two": ["mse"]},
        loss_weights={"one": 2.0, "two": 0.5},
    )
    x = {"a": np.ones((8, 3)), "b": np.ones((8, 2))}
    y = {"one": np.zeros((8, 1)), "two": np.zeros((8, 2))}
    logs = model.evaluate(x, y, verbose=0, return_dict=True)
    assert set(logs) == {"loss", "one_loss", "two_loss", "two_mse"}
    assert logs["loss"] == pytest.approx(2 * logs["one_loss"] + 0.5 * logs["two_loss"], rel=1e-5)
    model.fit(x, y, verbose=0)
    assert model.predict(x, verbose=0)["two"].shape == (8, 2)
    with pytest.raises(ValueError, match="two"):
        model.fit(x, {"one": y["one"]}, verbose=0)
    with pytest.raises(ValueError, match="'b'"):
        model.predict({"a": x["a"]}, verbose=0)


def test_overridden_steps():
    class Custom(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(1)
            self.tracker = tf.keras.metrics.Mean(name="own")

        def call(self, x, training=False):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            self.optimizer.apply_gradients(
                zip(
                    tape.gradient(loss, self.trainable_variables),
                    self.trainable_variables,
                    strict=True,
                )
            )
            self.tracker.update_state(loss)
            return {"own": self.tracker.result()}

        @property
        def metrics(self):
            return [self.tracker]

    model = Custom()
    model.compile(tf.keras.optimizers.SGD(0.1))
    history = model.fit(np.ones((64, 2)), np.ones((64, 1)), epochs=3, verbose=0).history
    assert list(history) == ["own"] and history["own"][-1] < history["own"][0]


def test_add_loss_add_metric_and_regularizers():
    class Penalty(layers.Layer):
        def call(self, x):
            self.add_loss(tf.reduce_sum(x) * 0.5)
            self.add_metric(tf.reduce_mean(x), name="activity")
            return x

    inputs = tf.keras.Input((2,))
    outputs = layers.Dense(
        1, kernel_initializer="ones", kernel_regularizer=tf.keras.regularizers.L2(0.1)
    )(Penalty()(inputs))
    model = tf.keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    x = np.ones((4, 2))
    logs = model.evaluate(x, np.full((4, 1), 2.0), verbose=0, return_dict=True)
    assert logs == {"loss": pytest.approx(4.2), "activity": 1.0}


def test_add_metric_accepts_results_of_layer_metrics():
    class Own(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.out = layers.Dense(1)
            self.size = tf.keras.metrics.Mean(name="size")

        def call(self, x):
            self.add_metric(self.size(tf.reduce_mean(x)))
            return self.out(x)

    model = Own()
    model.compile("sgd", "mse")
    history = model.fit(np.full((4, 2), 3.0), np.zeros((4, 1)), verbose=0).history
    assert set(history) == {"loss", "size"} and history["size"] == [3.0]
    with pytest.raises(ValueError, match="provide a name"):
        model.add_metric(tf.constant(1.0))


def test_symbolic_add_loss():
    inputs = tf.keras.Input((2,))
    outputs = layers.Dense(1, kernel_initializer="ones")(inputs)
    model = tf.keras.Model(inputs, outputs)
    model.add_loss(tf.reduce_mean(outputs))
    model.compile("sgd")
    assert model.evaluate(np.ones((4, 2)), verbose=0) == pytest.approx(2.0)
    model.fit(np.ones((4, 2)), verbose=0)


def test_freezing():
    model = mlp()
    model.layers[0].trainable = False
    model.compile("sgd", "sparse_categorical_crossentropy")
    assert len(model.trainable_weights) == 2 and len(model.non_trainable_weights) == 2
    before = model.get_weights()
    x, y = blobs(32)
    model.fit(x, y, verbose=0)
    after = model.get_weights()
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.allclose(before[2], after[2])


def test_progress_bar_text(capsys):
    x, y = blobs(64)
    mlp().fit(x, y, epochs=2, verbose=1)
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0] == "Epoch 1/2"
        and lines[1].startswith("2/2 [==============================] - ")
        and "accuracy: " in lines[1]
    )
    mlp().fit(x, y, verbose=0)
    assert capsys.readouterr().out == ""


ERRORS = {
    "labels out of range": (
        lambda m, x, y: m.fit(x, y + 5, verbose=0),
        r"dense_1.*label value of .* \[0, 3\)",
    ),
    "different lengths": (lambda m, x, y: m.fit(x, y[:5], verbose=0), "x sizes: 96\n  y sizes: 5"),
    "no targets": (lambda m, x, y: m.fit(x, verbose=0), "Target data is missing"),
    "no data": (lambda m, x, y: m.fit(None, y, verbose=0), "Missing data"),
    "empty data": (lambda m, x, y: m.fit(x[:0], y[:0], verbose=0), "0 samples"),
    "wrong shape": (
        lambda m, x, y: m.fit(x[:, :3], y, verbose=0),
        r"(?s)sequential.*\(None, 5\).*3",
    ),
    "wrong rank": (lambda m, x, y: m.predict(x[None, None], verbose=0), "sequential"),
    "unknown loss": (lambda m, x, y: m.compile("adam", "mean_square_error"), "mean_squared_error"),
    "unknown optimizer": (lambda m, x, y: m.compile("adamm", "mse"), "adam"),
    "text": (
        lambda m, x, y: m.fit(np.array([["a"] * 5]), np.array([0]), verbose=0),
        "Cast string to float is not supported",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_bad_input_is_named(case):
    action, message = ERRORS[case]
    x, y = blobs()
    with pytest.raises((ValueError, TypeError, tf.errors.UnimplementedError), match=message):
        action(mlp(), x, y)


def test_not_compiled_not_built():
    model = tf.keras.Sequential([layers.Dense(2)])
    with pytest.raises(RuntimeError, match="compile"):
        model.fit(np.ones((2, 2)), np.ones((2, 2)))
    with pytest.raises(ValueError, match="not yet been created"):
        _ = model.weights
    with pytest.raises(ValueError, match="not yet been built"):
        model.summary()


def test_ran_out_of_data_warns():
    x, y = blobs(32)
    with pytest.warns(UserWarning, match="ran out of data"):
        mlp().fit(iter([(x, y)]), steps_per_epoch=3, verbose=0)


def test_interrupt_leaves_a_usable_model(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import signal; signal.signal(signal.SIGINT, signal.default_int_handler)
            import numpy as np, meshflow as tf
            model = tf.keras.Sequential([tf.keras.layers.Dense(64, input_shape=(64,)), tf.keras.layers.Dense(1)])
            model.compile("adam", "mse")
            ready = tf.keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: print("epoch", epoch, flush=True))
            try:
                model.fit(np.ones((64, 64)), np.ones((64, 1)), epochs=10**6, verbose=0, callbacks=[ready])
            except KeyboardInterrupt:
                print("stopped", model.predict(np.ones((2, 64)), verbose=0).shape, np.isfinite(model.get_weights()[0]).all(), flush=True)
            """
        )
    )
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    while "epoch 2" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert "stopped (2, 1) True" in output


def test_full_network_has_the_articles_parameter_count(capsys):
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "..", "..", "examples"))
    try:
        from train_digits import build_model
    finally:
        sys.path.pop(0)
    build_model().summary()
    text = capsys.readouterr().out
    assert (
        "Total params: 9123978" in text
        and "Trainable params: 9122954" in text
        and "Non-trainable params: 1024" in text
    )


def test_custom_steps_see_lone_inputs_without_a_tuple():
    class Plain(tf.keras.Model):
        def call(self, inputs):
            return inputs * 2.0

        def predict_step(self, data):
            return self(data)

    x = np.ones((4, 3), "float32")
    assert Plain().predict(x, verbose=0).tolist() == [[2.0] * 3] * 4
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(2)
    assert Plain().predict(dataset, verbose=0).shape == (4, 3)


def test_vectors_remain_vectors():
    shapes = []

    class Custom(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = tf.keras.layers.Embedding(10, 3)

        def call(self, inputs):
            return self.embedding(inputs)

        def train_step(self, data):
            x, y = data
            shapes.append((x.shape.rank, y.shape.rank))
            return {"equal": tf.reduce_sum(tf.cast(tf.equal(tf.argmax(self(x), 1), y), "int32"))}

        test_step = train_step

    x, y = np.arange(8), np.arange(8) % 3
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    model = Custom()
    model.compile("sgd")
    for data in ((x, y), (dataset,)):
        found = model.fit(*data, verbose=0).history["equal"][0]
        assert found == model.evaluate(*data, verbose=0) <= 8
    assert set(shapes) == {(1, 1)}
    model.train_on_batch(x, y)
    assert set(shapes) == {(1, 1)}
    for source in (x, dataset.map(lambda x, y: x)):
        assert model.predict(source, verbose=0).shape == (8, 3)
    assert model.predict_on_batch(x).shape == (8, 3)


def test_vectors_for_models_of_one_feature():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
    model.compile("sgd", "mse", metrics=["mae"])
    x = np.arange(8.0)
    model.fit(x, 2 * x, sample_weight=np.ones(8), verbose=0)
    columns = model.evaluate(x[:, None], x[:, None], verbose=0)
    np.testing.assert_allclose(model.evaluate(x, x, verbose=0), columns, rtol=1e-6)
    assert model.predict(x, verbose=0).shape == (8, 1)


def test_one_array_in_a_list_and_old_names_of_methods():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
    model.fit([x], [y], verbose=0)

    def batches():
        while True:
            yield x, y

    with pytest.warns(DeprecationWarning, match="fit"):
        model.fit_generator(batches(), 2, 1, 0)
    with pytest.warns(DeprecationWarning, match="evaluate"):
        loss = model.evaluate_generator(batches(), 2)
    assert loss == pytest.approx(model.evaluate(x, y, verbose=0))
    with pytest.warns(DeprecationWarning, match="predict"):
        assert model.predict_generator(batches(), 2).shape == (8, 1)


def test_a_generator_that_runs_out_ends_training():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
    with pytest.warns(UserWarning, match="ran out of data"):
        history = model.fit(iter([(x, y)] * 3), steps_per_epoch=2, epochs=5, verbose=0)
    assert history.epoch == [0, 1]


def test_single_target_belongs_to_the_output_with_a_loss():
    inputs = tf.keras.Input((3,))
    hidden = tf.keras.layers.Dense(2, name="hidden")(inputs)
    model = tf.keras.Model(inputs, [tf.keras.layers.Dense(1, name="answer")(hidden), hidden])
    model.compile("sgd", loss=["mse", None])
    x, y = np.ones((4, 3), "f4"), np.zeros((4, 1), "f4")
    history = model.fit(x, y, verbose=0).history
    assert list(history) == ["loss", "answer_loss"]
    model.compile("sgd", loss="mse")
    assert len(model.evaluate(x, y, verbose=0)) == 3
    with pytest.raises(ValueError, match="2 outputs"):
        model.fit(x, [y], verbose=0)


def test_batch_size_is_ignored_for_datasets():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((np.ones((4, 2)), np.ones((4, 1)))).batch(2)
    model.fit(data, batch_size=4, verbose=0)
    assert model.predict(data, batch_size=4, verbose=0).shape == (4, 1)


def test_metric_names_are_known_after_the_first_batch():
    model = mlp()
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    assert model.metrics_names == []
    model.evaluate(*blobs(), verbose=0)
    assert model.metrics_names == ["loss", "accuracy"]


def test_steps_of_a_dataset_of_dictionaries_are_given_the_dictionary():
    class Own(tf.keras.Model):
        def train_step(self, data):
            return {"loss": tf.reduce_mean(data["a"])}

        test_step = train_step

    values = np.arange(4, dtype="float32")
    for extra in ({}, {"text": ["w", "x", "y", "z"]}):
        dataset = tf.data.Dataset.from_tensor_slices({"a": values, **extra}).batch(4)
        model = Own()
        model.compile("sgd")
        assert model.fit(dataset, verbose=0).history["loss"] == [1.5]
        assert model.evaluate(dataset, verbose=0) == 1.5


def test_datasets_that_end_before_the_steps_do():
    x, y = np.zeros((8, 2), "float32"), np.zeros((8, 1), "float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)

    def trained(**steps):
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        history = model.fit(verbose=0, **steps)
        return len(history.history["loss"]), int(model.optimizer.iterations)

    with pytest.warns(UserWarning, match="ran out of data"):
        assert trained(x=data, steps_per_epoch=5, epochs=2) == (1, 2)
    with pytest.warns(UserWarning, match="ran out of data"):
        assert trained(x=data, steps_per_epoch=1, epochs=4) == (3, 2)
    assert trained(x=data, steps_per_epoch=2, epochs=3) == (3, 6)
    assert trained(x=iter(data.repeat()), steps_per_epoch=3, epochs=2) == (2, 6)
