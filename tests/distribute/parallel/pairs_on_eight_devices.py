"""Run features of `fit`, and checkpoints, under every option on eight devices.

Run by test_pairs.py. Arguments: "features" and one of them, or "written" or "taken up" and a folder
for files; then names of options, or "i/n" for the i-th of n parts of them (all without any). Prints
a line of JSON for each pair: two names, and the largest relative difference from one device, or the
text of an error.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile

os.environ.setdefault("NPROC", "32")
os.environ["MESHFLOW_CACHE_DIR"] = ""

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor

LAYERS = tf.keras.layers
WIDTH, TOKENS, WORDS, ROWS = 16, 8, 32, 16
FOLDER = tempfile.mkdtemp()
DATA, MODEL = {"data": 8}, {"data": 4, "model": 2}
STAGES, ALL = {"stage": 2, "data": 4}, {"stage": 2, "data": 2, "model": 2}
TENSORS = "batch:data, heads:model, hidden:model, vocab:model"
SEQUENCE = "batch:data, sequence:model"
EVERYTHING = ("optimizer", "parameters", "activations")


def stages(schedule, sizes=STAGES, rules="batch:data", keep="inputs", **options):
    pipeline = tf.distribute.Pipeline("stage", schedule, keep=keep)
    return sizes, rules, {"pipeline": pipeline, "micro_batches": 2, **options}


CHOICES = {
    "micro_batches": (DATA, "batch:data", {"micro_batches": 2}),
    "zero=1": (DATA, "batch:data", {"zero": 1}),
    "zero=2, micro_batches": (DATA, "batch:data", {"zero": 2, "micro_batches": 2}),
    "zero=3": (DATA, "batch:data", {"zero": 3}),
    "zero=3 in a node": (
        {"node": 2, "data": 4},
        "batch:node+data",
        {"zero": 3, "zero_over": "data", "recompute": "gathers"},
    ),
    "zero=3, equal layers as a loop": (
        DATA,
        "batch:data",
        {"zero": 3, "recompute": "layer", "stack": True},
    ),
    "1D": (MODEL, TENSORS, {}),
    "1D, zero=3": (MODEL, TENSORS, {"zero": 3}),
    "2D": ({"rows": 2, "cols": 2}, "batch:rows, in:rows, out:cols", {}),
    "2.5D": ({"depth": 2, "rows": 2, "cols": 2}, "batch:depth+rows, in:rows, out:cols", {}),
    "3D": (
        {"rows": 2, "depth": 2, "cols": 2},
        "batch:depth+cols, in:rows+depth, out:cols",
        {},
    ),
    "sequence split": (MODEL, TENSORS + ", sequence:model", {"sequence": "split"}),
    "ulysses": (MODEL, SEQUENCE, {"sequence": "ulysses"}),
    "ring, zero=1": (MODEL, SEQUENCE, {"sequence": "ring", "zero": 1}),
    "experts": (DATA, "batch:data, experts:data", {}),
    "experts, zero=3": (
        {"data": 4, "expert": 2},
        "batch:data+expert, experts:expert",
        {"zero": 3},
    ),
    "1f1b": stages("1f1b"),
    "1f1b, residuals, 1D, zero=1": stages("1f1b", ALL, TENSORS, "residuals", zero=1),
    "gpipe, 1D": stages("gpipe", ALL, TENSORS),
    "interleaved, zero=3": stages("interleaved:2", zero=3),
    "zero_bubble": stages("zero_bubble"),
    "classic_1f1b, zero=1, recompute": stages("classic_1f1b", zero=1, recompute="layer"),
    "1f1b, experts": stages("1f1b", rules="batch:data, experts:data"),
    "host": (DATA, "batch:data", {"zero": 3, "offload": EVERYTHING}),
    "files": (
        DATA,
        "batch:data",
        {"zero": 3, "recompute": "layer", "offload": EVERYTHING, "offload_to": FOLDER},
    ),
    "1f1b, files": stages("1f1b", zero=3, offload=EVERYTHING, offload_to=FOLDER),
    # Gradients are uncompressed for so many steps: their errors are stored, and are zero.
    "int8": (DATA, "batch:data", {"compress": "int8", "compress_after": 1000}),
    "1bit, zero=2": (DATA, "batch:data", {"compress": "1bit", "compress_after": 1000, "zero": 2}),
}
OTHERS = {
    "one device": lambda: None,
    "mirrored": lambda: tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)]),
    "workers": tf.distribute.MultiWorkerMirroredStrategy,
}
NAMES = [*OTHERS, *CHOICES]


def strategy(name):
    if name in OTHERS:
        return OTHERS[name]()
    sizes, rules, options = CHOICES[name]
    devices = [f"CPU:{i}" for i in range(int(np.prod([*sizes.values()])))]
    mesh = dtensor.create_mesh(sizes, devices=devices)
    return tf.distribute.MeshStrategy(mesh, rules, **options)


def in_micro_batches(name):
    return CHOICES.get(name, (0, 0, {}))[2].get("micro_batches", 1) > 1


def make_compiled_model(make, name, **compiled):
    """Return a compiled model under an option; functions in `compiled` are called in its scope."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)
    chosen = strategy(name)
    with contextlib.nullcontext() if chosen is None else chosen.scope():
        model = make()
        model.compile(**{k: v() if callable(v) else v for k, v in compiled.items()})
    return model


# ---- models ------------------------------------------------------------------------------------


class Block(LAYERS.Layer):
    """Build two products, and causal attention or experts."""

    def __init__(self, attends=False, experts=False, **kwargs):
        super().__init__(**kwargs)
        self.attends, self.experts, self.supports_masking = attends, experts, True
        self.norm = LAYERS.LayerNormalization()
        if attends:
            self.attention = LAYERS.MultiHeadAttention(2, WIDTH // 2)
        elif experts:
            self.added = LAYERS.MixtureOfExperts(8, 2 * WIDTH, capacity=4.0, groups=16, z_loss=1e-2)
        else:
            self.added = tf.keras.Sequential([LAYERS.Dense(4 * WIDTH, "gelu"), LAYERS.Dense(WIDTH)])

    def call(self, x):
        y = self.norm(x)
        if self.attends:
            return x + self.attention(y, y, use_causal_mask=True)
        return x + self.added(y)

    def get_config(self):
        return {**super().get_config(), "attends": self.attends, "experts": self.experts}


def language_model(mask_zero=False, blocks=4):
    tokens = tf.keras.Input([TOKENS], dtype="int32")
    x = LAYERS.Embedding(WORDS, WIDTH, mask_zero=mask_zero)(tokens)
    x = Block(attends=True)(x)
    for _ in range(blocks):
        x = Block()(x)
    x = Block(experts=True)(x)
    return tf.keras.Model(tokens, LAYERS.Dense(WORDS, dims="out:vocab")(x))


def entropy(**options):
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def text(rows=2 * ROWS):
    rng = np.random.default_rng(0)
    words = (rng.integers(0, WORDS, (rows, 1)) + 3 * np.arange(TOKENS + 1)) % (WORDS - 1) + 1
    return words[:, :-1].astype("int32"), words[:, 1:].astype("int32")


def classifier(normed=False, kind=tf.keras.Model):
    inputs = tf.keras.Input([WIDTH])
    x = LAYERS.Dense(32, "tanh")(inputs)
    x = LAYERS.Dense(WIDTH)(LAYERS.BatchNormalization()(x) if normed else x)
    for _ in range(4):
        x = x + LAYERS.Dense(WIDTH)(LAYERS.Dense(4 * WIDTH, "gelu")(x))
    return kind(inputs, LAYERS.Dense(8, dims="in:embed, out:vocab")(x))


def points(rows=2 * ROWS):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, WIDTH)).astype("float32")
    return x, (x @ rng.normal(size=(WIDTH, 8))).argmax(-1).astype("int32")


# ---- features of fit ----------------------------------------------------------------------------


class Largest(tf.keras.metrics.Metric):
    """Define a metric of predictions with state."""

    def __init__(self):
        super().__init__(name="largest")
        self.most = self.add_weight("most", initializer="zeros")
        self.rows = self.add_weight("rows", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.most.assign(tf.maximum(self.most, tf.reduce_max(y_pred)))
        self.rows.assign_add(tf.cast(tf.shape(y_pred)[0], tf.float32))

    def result(self):
        return self.most + self.rows


class Doubled(tf.keras.Model):
    """Define a `train_step` that calls the model's `train_step`, and a custom loss."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return 2.0 * super().compute_loss(x, y, y_pred, sample_weight)

    def train_step(self, data):
        x, y = data
        return {**super().train_step((0.5 * x, y)), "two": tf.constant(2.0)}


class Taped(tf.keras.Model):
    """A `train_step` that computes gradients itself."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


FIT = {"shuffle": False, "verbose": 0}


def of_tokens(name):
    """Masks, weights of rows, an uneven last batch, clipping, loss scaling, accumulation, loops of steps."""

    def optimizer():
        inner = tf.keras.optimizers.Adam(1e-2, global_clipnorm=0.5, gradient_accumulation_steps=2)
        return tf.keras.mixed_precision.LossScaleOptimizer(inner)

    compiled = {"optimizer": optimizer, "loss": entropy, "metrics": lambda: ["accuracy"]}
    model = make_compiled_model(
        lambda: language_model(mask_zero=True), name, **compiled, steps_per_execution=2
    )
    rows = 20
    x, y = text(rows)
    x = np.where(np.arange(TOKENS) < TOKENS - np.arange(rows)[:, None] % 3, x, 0)
    weights = np.linspace(0, 2, rows, dtype="float32")
    history = model.fit(x, y, 8, 2, sample_weight=weights, **FIT).history
    # The busiest expert is another in each micro-batch; masked tokens' predictions are no one's.
    history.pop("mixture_of_experts_load")
    predicted = model.predict(x, batch_size=8, verbose=0) * (x > 0)[..., None]
    return {**history, "predicted": predicted}


def of_callbacks(name):
    """Use class weights, custom metrics, validation, schedules, files in callbacks, and single
    batches."""
    compiled = {"optimizer": lambda: tf.keras.optimizers.SGD(0.1, 0.9), "loss": entropy}
    metrics = lambda: ["accuracy", Largest()]
    model = make_compiled_model(classifier, name, **compiled, metrics=metrics)
    (x, y), (u, v) = points(), points(20)
    path = f"{FOLDER}/saved.weights.h5"
    callbacks = [
        tf.keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        tf.keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=0, min_delta=10.0),
        tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
    ]
    by_class = {i: 1.0 + i / 4 for i in range(8)}
    found = model.fit(
        x, y, ROWS, 3, class_weight=by_class, validation_data=(u, v), callbacks=callbacks, **FIT
    ).history
    found["evaluated"] = model.evaluate(u, v, batch_size=8, verbose=0)
    found["batch"] = model.train_on_batch(x[:ROWS], y[:ROWS])
    found["tested"] = model.test_on_batch(u, v)
    found["predicted on a batch"] = model.predict_on_batch(u)
    found["weights"] = np.concatenate([w.ravel() for w in model.get_weights()])
    model.load_weights(path)
    found["loaded"] = model.evaluate(u, v, batch_size=8, verbose=0)
    return found


def of_own_steps(name):
    """Use a `train_step` that wraps the model's, and a custom loss."""
    model = make_compiled_model(
        lambda: classifier(kind=Doubled), name, optimizer="sgd", loss=entropy
    )
    return model.fit(*points(), ROWS, 3, **FIT).history


def of_tapes(name):
    """A `train_step` that computes gradients itself."""
    model = make_compiled_model(lambda: classifier(kind=Taped), name, optimizer="sgd", loss=entropy)
    return model.fit(*points(), ROWS, 3, **FIT).history


def of_norms(name):
    """Use batch normalization with statistics of all rows that are computed together."""
    model = make_compiled_model(
        lambda: classifier(normed=True), name, optimizer="sgd", loss=entropy
    )
    found = model.fit(*points(), ROWS, 3, **FIT).history
    return {**found, "evaluated": model.evaluate(*points(), batch_size=ROWS, verbose=0)}


def of_sixteen_bits(name):
    """Use mixed precision with loss scaling whose first steps overflow."""
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        scaled = tf.keras.mixed_precision.LossScaleOptimizer
        optimizer = lambda: scaled(tf.keras.optimizers.SGD(0.1), initial_scale=2.0**22)
        model = make_compiled_model(classifier, name, optimizer=optimizer, loss=entropy)
        found = model.fit(*points(), ROWS, 4, **FIT).history
        return {**found, "scale": float(model.optimizer.loss_scale)}
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


def two_inputs():
    """A model of named inputs and outputs, with penalties, a constraint, and a layer that is not trained."""
    words, numbers = tf.keras.Input([6], dtype="int32"), tf.keras.Input([WIDTH])
    bag = LAYERS.GlobalAveragePooling1D()(LAYERS.Embedding(256, WIDTH)(words))
    x = LAYERS.Concatenate()([bag, LAYERS.Dense(WIDTH, "relu", kernel_regularizer="l2")(numbers)])
    x = LAYERS.Dense(32, "gelu", kernel_constraint=tf.keras.constraints.MaxNorm(2.0))(x)
    x = x + LAYERS.Dense(32, "tanh", trainable=False)(x)
    x = LAYERS.Dense(32, activity_regularizer=tf.keras.regularizers.L2(1e-3))(x)
    kind = LAYERS.Dense(8, dims="in:embed, out:vocab")(x)
    value = LAYERS.Dense(1, dims="in:embed, out:one")(x)
    return tf.keras.Model({"words": words, "numbers": numbers}, {"kind": kind, "value": value})


def of_several_inputs(name):
    """Inputs, outputs, losses, weights and metrics by name, clipping by each norm, moving averages of weights."""

    def optimizer():
        return tf.keras.optimizers.Adam(
            tf.keras.optimizers.schedules.CosineDecay(1e-2, 20),
            clipnorm=0.1,
            use_ema=True,
            ema_momentum=0.9,
            ema_overwrite_frequency=2,
        )

    compiled = {
        "optimizer": optimizer,
        "loss": lambda: {"kind": entropy(), "value": "mae"},
        "loss_weights": {"kind": 1.0, "value": 0.3},
        "metrics": lambda: {"kind": ["accuracy"], "value": ["mse"]},
        "weighted_metrics": lambda: {"kind": [], "value": ["mae"]},
    }
    model = make_compiled_model(two_inputs, name, **compiled)
    rows, rng = 40, np.random.default_rng(2)
    # No repeated word: on one device, the norm of a table's gradient counts repetitions separately.
    words = rng.permutation(256)[: 6 * rows].reshape(rows, 6).astype("int32")
    x = {"words": words, "numbers": rng.normal(size=(rows, WIDTH)).astype("float32")}
    y = {"kind": rng.integers(0, 8, rows), "value": rng.normal(size=(rows, 1)).astype("float32")}
    weights = {"kind": np.linspace(0, 2, rows), "value": np.linspace(1, 0, rows)}
    found = model.fit(x, y, ROWS, 3, sample_weight=weights, **FIT).history
    found["evaluated"] = model.evaluate(x, y, batch_size=12, verbose=0)
    return {**found, **model.predict(x, batch_size=24, verbose=0)}


FEATURES = {
    "tokens": of_tokens,
    "callbacks": of_callbacks,
    "several inputs": of_several_inputs,
    "own steps": of_own_steps,
    "tapes": of_tapes,
    "norms": of_norms,
    "sixteen bits": of_sixteen_bits,
}


def find_difference(found, wanted):
    """Return the largest difference, relative to the largest compared value."""
    assert found.keys() == wanted.keys(), (found.keys(), wanted.keys())
    differences = [
        np.abs(np.asarray(found[k], float) - np.asarray(w, float)).max()
        / max(np.abs(np.asarray(w, float)).max(), 1e-3)
        for k, w in wanted.items()
    ]
    return float(max(differences))


def parse_options(arguments):
    """The options that arguments name."""
    if not arguments:
        return NAMES
    part, _, parts = arguments[0].partition("/")
    return NAMES[int(part) :: int(parts)] if parts else arguments


def features(feature, *names):
    run = FEATURES[feature]
    wanted = run("one device")
    for name in parse_options(names):
        if name == "one device" or (feature == "norms" and in_micro_batches(name)):
            continue
        try:
            report = find_difference(run(name), wanted)
        except Exception as error:  # other pairs may run
            report = f"{type(error).__name__}: {error}"[:2000]
        print(json.dumps([feature, name, report]), flush=True)


# ---- files -------------------------------------------------------------------------------------

STEPS = {"batch_size": ROWS, "shuffle": False, "verbose": 0}
UPDATES = 2


def make_trained_model(name):
    adam = lambda: tf.keras.optimizers.Adam(3e-3)
    return make_compiled_model(lambda: language_model(blocks=1), name, optimizer=adam, loss=entropy)


def run_updates(model, updates, **fit):
    """The losses of the next updates."""
    history = model.fit(*text(ROWS), epochs=updates, **fit, **STEPS).history
    return np.array(history["loss"])


def state(model):
    """Return the state of a model and its optimizer, without compression residuals, which only some
    options have."""
    variables = *model.variables, *model.optimizer.variables
    return [v.numpy() for v in variables if "_error" not in v.name]


def assert_same_bits(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


class Stop(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


def write(name, folder):
    """All kinds of files, and the state, of a model that stopped after two updates."""
    model = make_trained_model(name)
    backup = tf.keras.callbacks.BackupAndRestore(f"{folder}/backup")
    with contextlib.suppress(KeyboardInterrupt):
        run_updates(model, 5, callbacks=[backup, Stop()])
    model.save_weights(f"{folder}/weights.weights.h5")
    model.save(f"{folder}/model.keras")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.write(f"{folder}/checkpoint")
    tf.train.CheckpointManager(checkpoint, f"{folder}/managed", 2).save()
    np.savez(f"{folder}/state.npz", *state(model))


def read(model, folder, wanted):
    """Return the losses after loading files that must have the values of a state."""
    model.load_weights(f"{folder}/weights.weights.h5")
    assert_same_bits(model.get_weights(), wanted[: len(model.variables)])
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.read(f"{folder}/checkpoint")
    assert_same_bits(state(model), wanted)
    return run_updates(model, UPDATES)


def read_by_callbacks(model, folder, wanted):
    """Return the losses after restoring files of a manager and of the callback for interruptions."""
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    manager = tf.train.CheckpointManager(checkpoint, f"{folder}/managed", 2)
    checkpoint.restore(manager.latest_checkpoint)
    assert_same_bits(state(model), wanted)
    losses = run_updates(model, UPDATES)
    backup = tf.keras.callbacks.BackupAndRestore(f"{folder}/backup")
    return [losses, run_updates(model, 2 + UPDATES, callbacks=[backup])]


def read_whole(name, folder, wanted):
    """Return the losses of a complete model loaded under an option."""
    chosen = strategy(name)
    with contextlib.nullcontext() if chosen is None else chosen.scope():
        model = tf.keras.models.load_model(
            f"{folder}/model.keras", custom_objects={"Block": Block, "entropy": entropy}
        )
    assert_same_bits(state(model), wanted)
    return run_updates(model, UPDATES)


def written(folder, *names):
    """Write the files of each option to a separate folder, and the losses of an uninterrupted run
    on one device."""
    for name in parse_options(names):
        own = f"{folder}/{NAMES.index(name)}"
        os.mkdir(own)
        write(name, own)
        if name == "one device":
            losses = run_updates(make_trained_model(name), 2 + UPDATES)[2:]
            np.save(f"{folder}/unbroken.npy", losses)


def restore_checkpoints(folder, *names):
    """Load the files of each option under each option; files of a manager or a callback, and
    complete models, only under the next option.

    Loaded values are bitwise equal to saved ones; losses equal those of an uninterrupted run on one
    device. The first loss tests weights, the second the state of the optimizer.
    """
    wanted = np.load(f"{folder}/unbroken.npy")
    for name in parse_options(names):
        model = make_trained_model(name)
        run_updates(model, 1)
        for number, writer in enumerate(NAMES):
            own = f"{folder}/{number}"
            with np.load(f"{own}/state.npz") as stored:
                values = [*stored.values()]
            try:
                curves = [read(model, own, values)]
                if NAMES[number - 1] == name:
                    curves += read_by_callbacks(model, own, values)
                    curves.append(read_whole(name, own, values))
                report = max(float(np.abs(curve / wanted - 1).max()) for curve in curves)
            except Exception as error:
                report = f"{type(error).__name__}: {error}"[:2000]
            print(json.dumps([writer, name, report]), flush=True)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    try:
        {"features": features, "written": written, "taken up": restore_checkpoints}[what](
            *arguments
        )
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
