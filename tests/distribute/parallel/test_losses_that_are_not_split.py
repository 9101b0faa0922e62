"""Test custom steps, strings and Python values under options that split the loss."""

import warnings

import numpy as np
import pytest

import meshflow as tf
from distribute.parallel.training import LAYERS, data, mesh, trained
from meshflow.experimental import dtensor

STRATEGY = tf.distribute.MeshStrategy
PIPELINE = {"pipeline": "stage", "micro_batches": 2}


class Adversary(tf.keras.Model):
    """A maker and its judge, each with an optimizer, as in the usual example of a GAN."""

    def __init__(self):
        super().__init__()
        size = lambda units: [LAYERS.Dense(24, "relu"), LAYERS.Dense(units)]
        self.maker = tf.keras.Sequential([tf.keras.Input([8]), *size(16)])
        self.judge = tf.keras.Sequential([tf.keras.Input([16]), *size(1)])
        self.second = tf.keras.optimizers.Adam(1e-2)

    def train_step(self, inputs):
        real, _ = inputs
        rows = tf.shape(real)[0]
        made = self.maker(tf.random.normal([rows, 8]))
        signs = tf.concat([tf.ones([rows, 1]), -tf.ones([rows, 1])], 0)
        with tf.GradientTape() as tape:
            errors = tf.reduce_mean((self.judge(tf.concat([made, real], 0)) - signs) ** 2)
        weights = self.judge.trainable_weights
        self.second.apply_gradients(zip(tape.gradient(errors, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            judged = self.judge(self.maker(tf.random.normal([rows, 8]), training=True))
            loss = tf.reduce_mean((judged + 1.0) ** 2)
        self.optimizer.minimize(loss, self.maker.trainable_weights, tape=tape)
        return {"loss": loss, "errors": errors}


class OwnSteps(tf.keras.Sequential):
    """A model with a training step that computes gradients itself."""

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        return {"loss": loss}


class Masked(tf.keras.Model):
    """A model with a size that depends on values."""

    def __init__(self):
        super().__init__()
        self.first, self.last = LAYERS.Dense(8), LAYERS.Dense(8)

    def call(self, x):
        y = self.first(x)
        return self.last(y) + tf.reduce_sum(tf.boolean_mask(y, y[:, 0] > 0)) * 0.0


class Looked(tf.keras.Model):
    """A model that looks up words inside its call."""

    def __init__(self):
        super().__init__()
        self.words = LAYERS.StringLookup(vocabulary=list("abc"), name="words")
        self.table, self.last = LAYERS.Embedding(8, 8), LAYERS.Dense(8)

    def call(self, x):
        return self.last(tf.reduce_mean(self.table(self.words(x)), 1))


def texts():
    words = np.random.default_rng(0).choice(list("abcd"), [36, 3])
    return np.array([" ".join(row) for row in words])[:, None], data(36)[1]


def vectorizer(kind=tf.keras.Sequential):
    split = LAYERS.TextVectorization(vocabulary=list("abc"), output_sequence_length=3)
    layers = [split, LAYERS.Embedding(8, 8), LAYERS.Flatten(), LAYERS.Dense(8)]
    return kind([tf.keras.Input([1], dtype="string"), *layers])


def own_vectorizer():
    return vectorizer(OwnSteps)


def lengths():
    """Strings beside numbers; the host's result has a row for each example, too."""
    text, numbers = tf.keras.Input([1], dtype="string"), tf.keras.Input([16])
    joined = LAYERS.Concatenate()([tf.cast(tf.strings.length(text), "float32"), numbers])
    return tf.keras.Model([text, numbers], LAYERS.Dense(8)(LAYERS.Dense(8)(joined)))


def curves(make, options, batch, wanted=None):
    """Return the curves under options, which equal those of one device, and the warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        strategy = STRATEGY(mesh(data=2, stage=2), "batch:data", **options)
        model, history = trained(make, strategy, batch, 4)
        evaluated = model.evaluate(*batch, batch_size=12, verbose=0)
    if wanted is None:
        plain, wanted = trained(make, None, batch, 4)
        np.testing.assert_allclose(
            evaluated, plain.evaluate(*batch, batch_size=12, verbose=0), atol=1e-6
        )
    for name, curve in wanted.items():
        np.testing.assert_allclose(history[name], curve, atol=1e-6)
    return model, [str(w.message) for w in found]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (vectorizer, {"zero": 3, "recompute": "layer"}),
        (lengths, PIPELINE),
        (own_vectorizer, {"zero": 1, "micro_batches": 2}),
        pytest.param(own_vectorizer, PIPELINE, marks=pytest.mark.soak),
        pytest.param(vectorizer, PIPELINE, marks=pytest.mark.soak),
        pytest.param(lengths, {"zero": 1, "micro_batches": 2}, marks=pytest.mark.soak),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_strings_are_split_with_their_rows(make, options):
    text, y = texts()
    x = [text, data(36)[0]] if make is lengths else text
    assert curves(make, options, (x, y))[1] == []


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ({"ragged": True}, "RaggedTensor"),
        pytest.param(
            {"output_mode": "multi_hot", "sparse": True}, "SparseTensor", marks=pytest.mark.soak
        ),
    ],
    ids=str,
)
def test_rows_of_different_sizes_prevent_splitting_the_loss(setting, found):
    def make():
        x = text = tf.keras.Input([1], dtype="string")
        x = LAYERS.TextVectorization(vocabulary=list("abc"), **setting)(x)
        if "ragged" in setting:
            x = tf.reduce_mean(LAYERS.Embedding(8, 8)(x), axis=1)
        return tf.keras.Model(text, LAYERS.Dense(8)(x))

    _, messages = curves(make, {"zero": 1, "micro_batches": 2}, texts())
    assert len(messages) == 1 and f"contains a {found}" in messages[0]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Looked, "the layer 'words' of 'looked' computes with strings"),
        (Masked, "'masked' needs a value of the batch in Python"),
    ],
)
def test_python_values_prevent_splitting_the_loss(make, reason):
    x, y = data(36)
    x = np.char.partition(texts()[0], " ")[:, 0] if make is Looked else x
    options = {"micro_batches": 2, "zero": 1, "recompute": "layer"}
    _, (message,) = curves(make, options, (x, y))
    without = {"micro_batches": 2, "recompute": "layer"}
    assert reason in message and f"{without} have no effect" in message


@pytest.mark.parametrize(
    "options",
    [
        {"zero": 3, "recompute": "layer"},
        pytest.param({"zero": 1, "micro_batches": 2}, marks=pytest.mark.soak),
        PIPELINE,
    ],
    ids=str,
)
def test_custom_steps_with_several_gradients(options):
    _, wanted = trained(Adversary, None, data(36), 4)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        strategy = STRATEGY(mesh(data=2, stage=2), "batch:data", **options)
        model, history = trained(Adversary, strategy, data(36), 4)
    for name, curve in wanted.items():
        np.testing.assert_allclose(history[name], curve, atol=1e-6)
    assert len(found) == ("pipeline" in options)
    if found:
        message = str(found[0].message)
        assert "itself and computes with rows after its first gradients of variables" in message
        assert "the options {'pipeline'" in message
    elif options["zero"] == 3:
        held = {s for w in model.weights for s in dtensor.fetch_layout(w).sharding_specs}
        assert "data" in held


@pytest.mark.soak
def test_recomputation_in_custom_steps():
    def make():
        hidden = lambda: tf.keras.Sequential([LAYERS.Dense(512, "gelu"), LAYERS.Dense(16)])
        return OwnSteps([tf.keras.Input([16]), *(hidden() for _ in range(4)), LAYERS.Dense(8)])

    x, y = data(1024)
    temporaries = []
    for how in (None, "layer"):
        strategy = STRATEGY(mesh(data=2), "batch:data", zero=1, recompute=how)
        model, _ = trained(make, strategy, (x, y), 2, {"batch_size": 1024})
        temporaries.append(dtensor.explain(model, x, y).memory["temporaries"])
    # The hidden rows of four layers on a device, or those of one.
    assert temporaries[0] - temporaries[1] > 3 * 4 * 512 * 512


@pytest.mark.parametrize("layer", ["LSTM"])
def test_states_of_a_fixed_batch_size_are_those_of_a_named_layer(layer):
    memory = getattr(LAYERS, layer)(4, stateful=True, name="memory")
    with STRATEGY(mesh(data=2), "batch:data", zero=1).scope():
        model = tf.keras.Sequential([tf.keras.Input(batch_shape=[8, 3, 2]), memory])
        model.compile("sgd", "mse")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"{layer}\(name='memory'\): expected 8 rows.*got 4"
    ):
        model.fit(np.ones([8, 3, 2]), np.ones([8, 4]), batch_size=8, verbose=0)


class Scaled(LAYERS.Layer):
    """A layer that scales its weight at each call, and one that computes a running mean and uses it."""

    def build(self, shape):
        self.kernel = self.add_weight("kernel", shape=[shape[-1], 8])
        self.factor = self.add_weight("factor", shape=[], initializer="ones", trainable=False)

    def call(self, x):
        if self.name == "weights":
            self.kernel.assign(self.kernel * 0.9)
        else:
            self.factor.assign(0.9 * self.factor + 0.1 * tf.reduce_mean(x))
        return x @ self.kernel * self.factor


class Several(LAYERS.Layer):
    """A layer with a counter and a metric, which do not change its results."""

    def build(self, shape):
        self.count = self.add_weight("count", shape=[], trainable=False)
        self.mean = tf.keras.metrics.Mean(name="mean")

    def call(self, x):
        self.count.assign_add(1.0)
        self.mean.update_state(x)
        return x


def normalized():
    return [LAYERS.Dense(8), LAYERS.BatchNormalization(name="normalized")]


@pytest.mark.parametrize(
    ("kind", "layers", "written"),
    [
        (tf.keras.Sequential, lambda: [Scaled(name="weights")], "variable weights/kernel"),
        (OwnSteps, lambda: [Scaled(name="states")], "variable states/factor"),
        (
            tf.keras.Sequential,
            lambda: [*normalized(), LAYERS.BatchNormalization()],
            "'normalized' uses the statistics of each",
        ),
        (OwnSteps, normalized, "'normalized' uses the statistics of each"),
        (
            tf.keras.Sequential,
            lambda: [Several(), LAYERS.Dropout(0.5), LAYERS.Dense(8)],
            None,
        ),
    ],
    ids=["weight", "own step", "statistics", "statistics of own step", "no effect"],
)
def test_states_that_each_micro_batch_updates_are_named(kind, layers, written):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        make = lambda: kind([tf.keras.Input([16]), *layers()])
        # The last batch has another size.
        trained(make, STRATEGY(mesh(data=1), "batch:data", micro_batches=2), data(24), 2)
    messages = [str(w.message) for w in found]
    assert len(messages) == (written is not None), messages
    assert not written or written in messages[0]


@pytest.mark.parametrize("eager", [False, True])
def test_unused_layout_keys(eager):
    over = mesh(data=2, model=2)
    layouts = tf.keras.dtensor.experimental.LayoutMap(over)
    for name in ("first.kernel", "frist.bias"):
        layouts[name] = dtensor.Layout([dtensor.UNSHARDED, "model"], over)
    with pytest.warns(UserWarning, match=r"no weight of a model matches \['frist.bias'\]") as found:
        trained(Masked, STRATEGY(over, layouts), steps=4, run_eagerly=eager)
    assert len(found) == 1


def test_weights_made_in_eager_mode_have_layouts():
    class Late(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.last = LAYERS.Dense(32, "tanh"), LAYERS.Dense(8)

        def call(self, x):
            return self.last(self.first(x))

    strategy = STRATEGY(mesh(data=2, model=2), "batch:data, hidden:model", zero=3)
    model, found = trained(Late, strategy, steps=2, run_eagerly=True)
    kernel = model.first.kernel
    assert kernel.layout.num_shards(0) * kernel.layout.num_shards(1) == 4
    slot = next(v for v in model.optimizer.variables if v.shape == kernel.shape)
    assert slot.layout == kernel.layout
    np.testing.assert_allclose(found["loss"], trained(Late, steps=2)[1]["loss"], atol=1e-6)
