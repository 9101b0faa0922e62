"""The choice between running op by op and compiling."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import pytest

import meshflow as tf
from meshflow.core.dispatch import eager_forms, tiers
from meshflow.core.functions import concrete_function
from meshflow.core.runtime import transfers


@pytest.fixture(autouse=True)
def _choose_automatically(monkeypatch):
    monkeypatch.setattr(tiers.TierSettings, "tier", "auto")


def text_model(kind):
    layers = tf.keras.layers
    x = inputs = tf.keras.Input((None,), dtype="int32")
    x = layers.Embedding(50, 8, mask_zero=kind == "masked")(x)
    if kind == "convolution":
        x = layers.GlobalMaxPooling1D()(layers.Conv1D(8, 3, padding="same")(x))
    elif kind == "attention":
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
        x = layers.GlobalAveragePooling1D()(x)
    elif kind == "lstm":
        x = layers.LSTM(8)(x)
    else:
        x = layers.Bidirectional(layers.GRU(4))(x)
    model = tf.keras.Model(inputs, layers.Dense(1)(x))
    model.compile("adam", "mse")
    return model


def text_batches(lengths, batch=4):
    random = np.random.RandomState(0)
    return [(random.randint(1, 50, (batch, n)), random.randn(batch, 1)) for n in lengths]


@pytest.mark.parametrize("kind", ["convolution", "attention", "lstm", "masked"])
def test_epoch_of_many_lengths_compiles_nothing(programs, kind):
    model = text_model(kind)
    batches = text_batches([5, 9, 6, 12, 30, 7, 8, 1, 2, 17])
    model.fit(iter(batches), verbose=0)
    model.evaluate(iter(batches), verbose=0)
    for x, _ in batches:
        assert model.predict(x, verbose=0).shape == (4, 1)
    assert programs == []


@pytest.mark.parametrize("kind", ["convolution", "attention", "lstm", "masked"])
def test_both_tiers_train_alike(monkeypatch, kind):
    weights = []
    for tier in ("interpret", "compile"):
        monkeypatch.setattr(tiers.TierSettings, "tier", tier)
        tf.keras.utils.set_random_seed(1)
        model = text_model(kind)
        model.fit(iter(text_batches([5, 9, 6, 12])), verbose=0)
        weights.append(model.get_weights())
    for interpreted, compiled in zip(*weights, strict=True):
        np.testing.assert_allclose(interpreted, compiled, rtol=2e-4, atol=2e-5)


def sequence_model():
    layers = tf.keras.layers
    x = inputs = tf.keras.Input((None, 3))
    x = layers.Conv1D(4, 5, strides=2, padding="same")(x)
    x = layers.Conv1D(4, 3, dilation_rate=2, padding="causal")(x)
    x = layers.Conv1DTranspose(4, 2, strides=2)(x)
    return tf.keras.Model(inputs, layers.Dense(2)(layers.GlobalAveragePooling1D()(x)))


def image_model():
    layers = tf.keras.layers
    x = inputs = tf.keras.Input((None, None, 3))
    x = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.SeparableConv2D(4, 3, strides=(2, 2), padding="same")(x)
    x = layers.MaxPooling2D(2, padding="same")(x)
    x = layers.Conv2D(4, 3, strides=2)(x)
    return tf.keras.Model(inputs, layers.Dense(2)(layers.GlobalMaxPooling2D()(x)))


@pytest.mark.parametrize(
    ("make", "rank", "batch"),
    [
        (sequence_model, 1, 2),
        (image_model, 2, 4),
        pytest.param(sequence_model, 1, 4, marks=pytest.mark.soak),
        pytest.param(image_model, 2, 2, marks=pytest.mark.soak),
    ],
)
def test_strided_convolutions_are_traced_once_for_all_sizes(programs, make, rank, batch):
    # The padding of a gradient depends on the sizes. A batch of 2 has as many rows as there are classes.
    models = [make(), make()]
    models[1].set_weights(models[0].get_weights())
    calls = []
    call = models[0].call
    models[0].call = lambda *args, **kwargs: calls.append(args[0].shape) or call(*args, **kwargs)
    random = np.random.RandomState(0)
    batches = []
    for n in (64, 59, 61, 70, 68, 63):
        shape = (batch, *[n + 3 * axis for axis in range(rank)], 3)
        batches.append((random.randn(*shape).astype("float32"), np.arange(batch) % 2))
    for model in models:
        model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    models[0].fit(iter(batches), verbose=0)
    assert len(calls) <= 2 and programs == []
    for x, y in batches:
        models[1].fit(x, y, verbose=0)
    for weights in zip(*[model.get_weights() for model in models], strict=True):
        np.testing.assert_allclose(*weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("call", ["eager", "predict", "function", "signature"])
def test_decoding_compiles_nothing(programs, monkeypatch, call):
    model = text_model("attention")
    spec = tf.TensorSpec((1, None), tf.int32)
    run = {
        "eager": model,
        "predict": lambda x: model.predict(x, verbose=0),
        "function": tf.function(model),
        "signature": tf.function(model, input_signature=[spec]),
    }[call]
    outputs = [np.asarray(run(np.arange(n, dtype="int32")[None])) for n in range(1, 12)]
    assert programs == []
    monkeypatch.setattr(tiers.TierSettings, "tier", "compile")
    compiled = tf.function(lambda x: model(x))
    for n, output in enumerate(outputs, 1):
        expected = compiled(np.arange(n, dtype="int32")[None])
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def test_restored_functions_of_many_sizes_compile_nothing(programs, tmp_path, monkeypatch):
    module, layer = tf.Module(), tf.keras.layers.Dense(3, "softmax")
    layer.build((None, 2))
    specs = [tf.TensorSpec([None, None, 2])]
    module.run = tf.function(lambda x: tf.reduce_mean(layer(x), 1), input_signature=specs)
    module.layer = layer
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    signature, plans = loaded.signatures["serving_default"], []
    build_plan = tiers.build_plan
    monkeypatch.setattr(tiers, "build_plan", lambda *args: plans.append(0) or build_plan(*args))
    del programs[:]
    for count, run in enumerate((module.run, loaded.run, signature), 1):
        assert run(tf.ones([3, 4, 2])) is not None and len(plans) == count
    for rows, count in [(2, 5), (3, 7), (1, 4), (6, 9), (5, 8), (4, 3)]:
        x = np.random.default_rng(count).random((rows, count, 2), np.float32)
        expected = module.run(x)
        np.testing.assert_allclose(loaded.run(x), expected, rtol=1e-5)
        (result,) = signature(tf.constant(x)).values()
        np.testing.assert_allclose(result, expected, rtol=1e-5)
    assert programs == [] and len(plans) == 3


def test_a_small_model_trains_without_compilation(programs):
    model = tf.keras.Sequential([tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(3)])
    model.compile(
        "adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy"]
    )
    x, y = np.random.RandomState(0).randn(70, 5).astype("float32"), np.arange(70) % 3
    model.fit(x, y, epochs=3, validation_data=(x, y), verbose=0)
    model.evaluate(x, y, verbose=0)
    assert model.predict(x, verbose=0).shape == (70, 3)
    assert programs == []


def test_a_long_training_is_compiled_at_once(programs):
    model = tf.keras.Sequential([tf.keras.Input((5,)), tf.keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    x = np.zeros((64, 5), "float32")
    model.fit(x, np.zeros((64, 3)), epochs=10**6, verbose=0, callbacks=[StopAfter(1)])
    assert len([p for p in programs if "train_step" in p]) == 1


class StopAfter(tf.keras.callbacks.Callback):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_train_batch_end(self, batch, logs=None):
        self.steps -= 1
        if not self.steps:
            self.model.stop_training = True


def test_a_frequent_function_is_compiled(programs, monkeypatch):
    monkeypatch.setattr(tiers.InterpretedProgram, "_estimate_limit", lambda *_: 3.0)
    double = tf.function(lambda x: 2.0 * x)
    counts = []
    for _ in range(5):
        assert double(np.float32(3)).numpy() == 6
        counts.append(len(programs))
    assert counts == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("tier", ["compile", "interpret"])
def test_the_environment_fixes_one_tier(tier):
    script = """
        import numpy as np, meshflow as tf
        from helpers import record_compilations
        f = tf.function(lambda x: tf.reduce_sum(tf.matmul(x, x)))
        with record_compilations() as programs:
            for _ in range(3): f(np.ones((300, 300), "float32"))
        print(len(programs))
    """
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "MESHFLOW_TIER": tier, "PYTHONPATH": path}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300)
    assert (int(done.stdout.split()[-1]) > 0) is (tier == "compile")


def test_large_arrays_are_compiled_in_eager_mode(programs):
    x = tf.ones([2000, 2000])
    tf.reduce_sum(tf.tanh(x) * x)
    assert programs
    form = eager_forms.EagerForm(lambda x: x + 1)
    assert form.is_interpreted([np.ones(10, "float32")])
    assert not form.is_interpreted([np.ones(10**7, "float32")])


class Interrupt(tf.keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        self.step -= 1
        if not self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("stop", "known"),
    [
        *[(3, False), (8, False), (5, True)],
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in [(5, False), (3, True), (8, True)]
        ),
    ],
)
def test_a_resumed_training_computes_the_same_bits(tmp_path, monkeypatch, stop, known):
    # With an unknown number of steps, the training is compiled in the middle.
    monkeypatch.setattr(tiers.InterpretedProgram, "_estimate_limit", lambda *_: 5.0)
    monkeypatch.setattr(tiers, "RARE_RUNS", 6)
    x, y = np.random.RandomState(0).randn(22, 4), np.random.RandomState(1).randn(22, 1)

    def data():
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
        return dataset if known else dataset.filter(lambda *_: True)

    def fit(folder, callbacks=()):
        tf.keras.utils.set_random_seed(7)
        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(1)])
        model.compile("adam", "mse")
        backup = tf.keras.callbacks.BackupAndRestore(str(folder), save_freq=1)
        history = model.fit(data(), epochs=3, verbose=0, callbacks=[backup, *callbacks])
        return model.get_weights(), history.history

    expected, history = fit(tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "b", [Interrupt(stop)])
    weights, resumed_history = fit(tmp_path / "b")
    assert all(np.array_equal(a, b) for a, b in zip(expected, weights, strict=True))
    assert resumed_history["loss"][-1] == history["loss"][-1]


def test_a_restored_custom_loop_computes_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(tiers.InterpretedProgram, "_estimate_limit", lambda *_: 4.0)
    x = np.random.RandomState(0).randn(8, 4).astype("float32")

    def make():
        tf.keras.utils.set_random_seed(3)
        model = tf.keras.Sequential([tf.keras.layers.Dense(5, "tanh"), tf.keras.layers.Dense(1)])
        model.build((None, 4))
        optimizer = tf.keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) ** 2)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        return model, optimizer, step

    model, _, step = make()
    for _ in range(8):
        step(x)
    for stop in (2, 4, 6):
        first, first_optimizer, first_step = make()
        for _ in range(stop):
            first_step(x)
        path = tf.train.Checkpoint(model=first, optimizer=first_optimizer).save(str(tmp_path / "c"))
        second, second_optimizer, second_step = make()
        tf.train.Checkpoint(model=second, optimizer=second_optimizer).restore(path)
        for _ in range(8 - stop):
            second_step(x)
        for a, b in zip(model.get_weights(), second.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)


def test_repeated_trainings_compute_the_same_bits():
    results = []
    for _ in range(2):
        tf.keras.utils.set_random_seed(1)
        model = text_model("masked")
        model.fit(iter(text_batches([5, 9, 6, 12, 5, 30])), verbose=0)
        results.append(model.get_weights())
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(("rows", "shapes"), [(40, ["(None, 4)"]), (32, ["(16, 4)"])])
def test_fit_traces_once_for_full_and_last_batches(rows, shapes):
    seen = []

    class Spy(tf.keras.layers.Layer):
        def call(self, x):
            seen.append(x.shape)
            return x

    inputs = tf.keras.Input((4,))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(Spy()(inputs)))
    model.compile("sgd", "mse")
    seen.clear()
    model.fit(np.ones((rows, 4), "float32"), np.ones((rows, 1)), batch_size=16, verbose=0)
    assert list(map(str, seen)) == shapes


@pytest.mark.parametrize("seed", [None, 5])
def test_last_batches_continue_the_random_numbers_of_the_others(seed, monkeypatch):
    def train(tier, rows):
        monkeypatch.setattr(tiers.TierSettings, "tier", tier)
        tf.keras.utils.set_random_seed(3)
        dropout = tf.keras.layers.Dropout(0.5, seed=seed)
        model = tf.keras.Sequential([tf.keras.Input((4,)), dropout, tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.random.RandomState(0).rand(rows, 4).astype("float32")
        return model.fit(x, x[:, :1], batch_size=8, epochs=3, shuffle=False, verbose=0)

    for rows in (24, 20):
        losses = [train(tier, rows).history["loss"] for tier in ("auto", "compile")]
        np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize("has_reader", [False, True])
def test_compilation_releases_the_memory_of_the_interpreter(has_reader, monkeypatch):
    monkeypatch.setattr(concrete_function, "_MANY_EQUATIONS", 1)
    total = tf.Variable(np.zeros(1 << 20, np.float32))
    step = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def add(x):
        step.assign_add(1)
        return tf.reduce_sum(total.assign_add(x * tf.ones_like(total)))

    x = tf.constant(1.0)
    concrete = add.get_concrete_function(x)
    monkeypatch.setattr(tiers.TierSettings, "tier", "interpret")
    assert float(concrete(x)) == 1 << 20
    program = concrete._interpreted_program
    assert program._plan is not None
    reader = total.read_value() if has_reader else None
    monkeypatch.setattr(tiers.TierSettings, "tier", "compile")
    release, kept_blocks = transfers.release_free_blocks, []

    def release_and_record():
        release()
        kept_blocks.append([b for b in transfers._free_blocks if b.size >= total._value.nbytes])

    # JAX frees the last operands in a thread of its own, possibly after the call.
    monkeypatch.setattr(transfers, "release_free_blocks", release_and_record)
    assert float(concrete(x)) == 2 << 20 and program._plan is None
    assert kept_blocks == [[]]
    np.testing.assert_array_equal(total, np.full(1 << 20, 2, np.float32))
    assert int(step) == 2 and (reader is None or float(reader[0]) == 1)


@pytest.mark.parametrize("limit", [0, 1 << 40])
def test_runs_with_large_intermediate_values_do_not_overlap(limit, monkeypatch):
    monkeypatch.setattr(tiers.TierSettings, "tier", "compile")
    monkeypatch.setattr(concrete_function, "_MANY_EQUATIONS", 1)
    monkeypatch.setattr(concrete_function, "_LARGE_BYTES", limit)
    total = tf.Variable(np.zeros(4, np.float32))

    @tf.function(input_signature=[tf.TensorSpec([4])])
    def add(x):
        return total.assign_add(tf.sort(tf.sin(x)))

    x, concrete = tf.range(4.0), add.get_concrete_function()
    for _ in range(3):
        concrete(x)
        output = concrete._latest_output and concrete._latest_output()
        assert (output is not None and output is total._value) == (limit == 0)
    # The output of the previous run is deleted now, and was donated to another program before.
    total.assign(tf.zeros(4))
    concrete(x)
    total._value.delete()
    total._value = jax.numpy.zeros(4, np.float32)
    concrete(x)
    np.testing.assert_allclose(total, np.sort(np.sin(np.arange(4))), rtol=1e-6)
