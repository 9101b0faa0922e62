"""Every option trains as one device does: losses, metrics and weights of the same numbers."""

import contextlib
import functools

import numpy as np
import pytest

import meshflow as tf
from distribute.parallel.training import LAYERS, data, mesh, mlp, same_curves, same_weights, trained

STRATEGIES = {
    "micro_batches": ({"data": 4}, "batch:data", {"micro_batches": 2}),
    "zero 1": ({"data": 4}, "batch:data", {"zero": 1}),
    "zero 1, micro_batches": ({"data": 4}, "batch:data", {"zero": 1, "micro_batches": 2}),
    "zero 2, micro_batches": ({"data": 4}, "batch:data", {"zero": 2, "micro_batches": 2}),
    "zero 3": ({"data": 4}, "batch:data", {"zero": 3}),
    "zero 3, recompute": (
        {"data": 4},
        "batch:data",
        {"zero": 3, "micro_batches": 2, "recompute": "layer"},
    ),
    "zero 3 in a node": (
        {"node": 2, "data": 2},
        "batch:node+data",
        {"zero": 3, "zero_over": "data", "recompute": "gathers"},
    ),
    "zero 3, tensors": (
        {"data": 2, "model": 2},
        "batch:data, hidden:model, heads:model",
        {"zero": 3},
    ),
    "tensors": ({"data": 2, "model": 2}, "batch:data, hidden:model, heads:model", {}),
    "stages, tensors": (
        {"stage": 2, "model": 2},
        "hidden:model",
        {"pipeline": "stage", "micro_batches": 2},
    ),
}


def strategy(name):
    sizes, rules, options = STRATEGIES[name]
    return tf.distribute.MeshStrategy(mesh(**sizes), rules, **options)


ignores = pytest.mark.filterwarnings("ignore:MeshStrategy. no weight")


@functools.cache
def alone():
    return trained(mlp)


# Those that others contain run in `make test-all`.
CONTAINED = (
    *("zero 1", "zero 1, micro_batches", "zero 2, micro_batches", "zero 3"),
    *("tensors", "stages, tensors"),
)


@ignores
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.soak] * (n in CONTAINED)) for n in STRATEGIES]
)
def test_each_option_equals_one_device(name, compile_tier):
    model, curves = trained(mlp, strategy(name))
    same_curves(curves, alone()[1])
    same_weights(model, alone()[0])
    x, y = data()
    wanted = alone()[0].evaluate(x, y, verbose=0)
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0), wanted, rtol=1e-5)
    np.testing.assert_allclose(
        model.predict(x, verbose=0), alone()[0].predict(x, verbose=0), atol=3e-5
    )


def transformer():
    tokens = tf.keras.Input([6], dtype="int32")
    x = LAYERS.Embedding(20, 16, mask_zero=True)(tokens)
    x = x + LAYERS.MultiHeadAttention(4, 4)(x, x)
    x = x + LAYERS.Dense(16)(LAYERS.Dense(64, "gelu")(LAYERS.LayerNormalization()(x)))
    return tf.keras.Model(tokens, LAYERS.Dense(20)(x))


class Watched(LAYERS.Layer):
    """Add a loss and a metric."""

    def call(self, x):
        self.add_loss(0.1 * tf.reduce_mean(x * x))
        self.add_metric(tf.reduce_sum(x, -1), name="sums")
        return x


def build_penalized_model():
    inputs = tf.keras.Input([16])
    x = Watched()(LAYERS.Dense(32, "relu", kernel_regularizer="l2")(inputs))
    outputs = [
        LAYERS.Dense(8, name="a")(x),
        LAYERS.Dense(4, name="b", activity_regularizer="l2")(x),
    ]
    return tf.keras.Model(inputs, outputs)


def convolutional():
    return tf.keras.Sequential(
        [
            tf.keras.Input([4, 4, 3]),
            LAYERS.Conv2D(8, 3, padding="same", use_bias=False),
            LAYERS.BatchNormalization(),
            LAYERS.ReLU(),
            LAYERS.Flatten(),
            LAYERS.Dense(8),
        ]
    )


def _tokens():
    rng = np.random.default_rng(0)
    return tuple(rng.integers(0, 20, (32, 6)).astype("int32") for _ in range(2))


def _images():
    rng = np.random.default_rng(0)
    return rng.normal(size=(32, 4, 4, 3)).astype("float32") + 1, data()[1]


def _two():
    x, y = data()
    return x, {"a": y, "b": y[:, :4]}


def _entropy(**options):
    return functools.partial(
        tf.keras.losses.SparseCategoricalCrossentropy, from_logits=True, **options
    )


X, Y = data()
CASES = {
    "masks": (
        transformer,
        {"batch": _tokens(), "loss": _entropy(), "metrics": lambda: ["accuracy"]},
    ),
    "ignored classes": (transformer, {"batch": _tokens(), "loss": _entropy(ignore_class=3)}),
    "sums, added losses": (
        build_penalized_model,
        {
            "batch": _two(),
            "loss": lambda: {"a": "mse", "b": tf.keras.losses.MeanAbsoluteError(reduction="sum")},
            "loss_weights": {"a": 1.0, "b": 0.01},
            "metrics": lambda: {"a": ["mae"]},
        },
    ),
    "weights": (
        mlp,
        {"batch": (X, Y, np.linspace(0, 2, 32, dtype="float32")), "weighted_metrics": ["mae"]},
    ),
    "uneven": (mlp, {"batch": (X[:27], Y[:27])}),
    "clipped": (mlp, {"optimizer": lambda: tf.keras.optimizers.Adam(1e-2, global_clipnorm=0.5)}),
    "several steps": (mlp, {"steps_per_execution": 2}),
    "scaled": (
        mlp,
        {
            "optimizer": lambda: tf.keras.mixed_precision.LossScaleOptimizer(
                tf.keras.optimizers.SGD(0.1)
            )
        },
    ),
    "accumulated": (mlp, {"gradient_accumulation_steps": 2}),
    "factored": (mlp, {"optimizer": lambda: tf.keras.optimizers.Adafactor(1e-2)}),
    "eager": (mlp, {"run_eagerly": True}),
}


@ignores
@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_fit_features_with_a_split_loss(name):
    make, settings = CASES[name]
    wanted = trained(make, **settings)
    for chosen in ("zero 3, recompute", "zero 3, tensors")[: 1 if name == "eager" else 2]:
        model, curves = trained(make, strategy(chosen), **settings)
        same_curves(curves, wanted[1])
        same_weights(model, wanted[0], rtol=1e-3, atol=1e-5)


def tagger():
    layers = [LAYERS.Embedding(20, 16, mask_zero=True), LAYERS.Dense(32, "tanh"), LAYERS.Dense(20)]
    return tf.keras.Sequential([tf.keras.Input([6], dtype="int32"), *layers])


def test_combined_fit_features():
    """Masks, weights of examples, an uneven last batch, clipping, loss scaling, accumulation and loops of steps at once."""

    def optimizer():
        inner = tf.keras.optimizers.Adam(1e-2, global_clipnorm=0.5, gradient_accumulation_steps=2)
        return tf.keras.mixed_precision.LossScaleOptimizer(inner)

    x, y = _tokens()
    settings = {
        "batch": (x[:27], y[:27], np.linspace(0, 2, 27, dtype="float32")),
        "loss": _entropy(ignore_class=3),
        "optimizer": optimizer,
        "metrics": lambda: ["accuracy"],
        "steps_per_execution": 2,
        "fit": {"batch_size": 8},
        "steps": 4,
    }
    wanted = trained(tagger, **settings)
    model, curves = trained(tagger, strategy("zero 3, recompute"), **settings)
    same_curves(curves, wanted[1])
    same_weights(model, wanted[0], rtol=1e-3, atol=1e-5)


@ignores
def test_losses_that_are_sums_or_added_and_metrics_of_layers():
    make, settings = CASES["sums, added losses"]
    _, curves = trained(make, strategy("zero 2, micro_batches"), **settings)
    same_curves(curves, trained(make, **settings)[1])
    assert "sums" in curves


@ignores
def test_batch_normalization_is_of_all_rows_that_are_computed_together():
    wanted = trained(convolutional, batch=_images())
    model, curves = trained(convolutional, strategy("zero 3 in a node"), batch=_images())
    same_curves(curves, wanted[1])
    moving = model.layers[1].moving_variance
    np.testing.assert_allclose(moving, wanted[0].layers[1].moving_variance, rtol=1e-5)


def of_policy(policy):
    def make():
        tf.keras.mixed_precision.set_global_policy(policy)
        try:
            return mlp()
        finally:
            tf.keras.mixed_precision.set_global_policy("float32")

    return make


@pytest.mark.parametrize(
    "name", ["zero 3, recompute", pytest.param("stages, tensors", marks=pytest.mark.soak)]
)
def test_gradients_in_sixteen_bits(name):
    """The region is nearer to one device than half of a bfloat16's digits."""
    make = of_policy("mixed_bfloat16")
    same_curves(trained(make, strategy(name))[1], trained(make)[1], rtol=2.5e-3)


@pytest.mark.parametrize("name", ["zero 3, recompute", "stages, tensors"])
def test_gradients_in_float64(name):
    tf.keras.backend.set_floatx("float64")
    try:
        (model, got), (wanted, expected) = (trained(mlp, s) for s in (strategy(name), None))
    finally:
        tf.keras.backend.set_floatx("float32")
    same_curves(got, expected, rtol=1e-12)
    same_weights(model, wanted, rtol=1e-10, atol=1e-13)


def test_steps_with_overflowing_gradients_are_skipped():
    def scaled():
        optimizer = tf.keras.optimizers.SGD(0.1)
        return tf.keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=2.0**22)

    make = of_policy("mixed_float16")
    wanted, curve = trained(make, optimizer=scaled)
    model, curves = trained(make, strategy("zero 3"), optimizer=scaled)
    assert float(model.optimizer.loss_scale) == float(wanted.optimizer.loss_scale) < 2.0**22
    same_curves(curves, curve, rtol=5e-3)


class Block(LAYERS.Layer):
    def __init__(self):
        super().__init__()
        self.norm, self.up = LAYERS.LayerNormalization(), LAYERS.Dense(32, "gelu")
        self.down, self.drop = LAYERS.Dense(16), LAYERS.Dropout(0.1)

    def call(self, x):
        return x + self.drop(self.down(self.up(self.norm(x))))


def test_equal_blocks_in_one_loop_equal_unrolled_blocks():
    def blocks():
        return tf.keras.Sequential(
            [tf.keras.Input([16]), *(Block() for _ in range(4)), LAYERS.Dense(8)]
        )

    options = {"zero": 3, "micro_batches": 2, "recompute": "layer"}
    runs = [
        trained(
            blocks, tf.distribute.MeshStrategy(mesh(data=4), "batch:data", stack=stack, **options)
        )
        for stack in (False, True)
    ]
    # Each block draws its own dropout masks in both.
    same_curves(runs[1][1], runs[0][1])
    same_weights(runs[1][0], runs[0][0])


class Drawing(LAYERS.Layer):
    def call(self, x, training=None):
        return tf.nn.dropout(x, 0.5) if training else x


def test_devices_and_micro_batches_have_separate_random_numbers():
    seen = {}

    def make():
        model = tf.keras.Sequential([tf.keras.Input([64]), LAYERS.Dropout(0.5), Drawing()])
        model.add(LAYERS.Dense(1, kernel_initializer="ones", use_bias=False))
        return model

    class Kept(tf.keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="kept")
            self.rows = self.add_weight("rows", (32,))

        def update_state(self, y, y_pred, sample_weight=None):
            self.rows.assign(y_pred[:, 0])

        def result(self):
            return tf.reduce_sum(self.rows)

    for recompute in (None, "layer"):
        chosen = tf.distribute.MeshStrategy(
            mesh(data=4), "batch:data", zero=1, micro_batches=2, recompute=recompute
        )
        kept = []

        def metrics(kept=kept):
            kept.append(Kept())
            return kept

        trained(
            make,
            chosen,
            batch=(np.ones([32, 64], "float32"), np.ones([32, 1], "float32")),
            steps=2,
            fit={"batch_size": 32},
            optimizer=lambda: tf.keras.optimizers.SGD(0.0),
            metrics=metrics,
        )
        rows = kept[0].rows.numpy()
        seen[recompute] = rows
        # About a quarter of the inputs is used, with weight four: rows have different random
        # numbers.
        assert len(set(rows.tolist())) > 10
        assert 32 < rows.mean() < 96
    np.testing.assert_array_equal(seen[None], seen["layer"])


def test_models_that_are_built_by_their_first_batch():
    class Lazy(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = LAYERS.Dense(32, "relu"), LAYERS.Dense(8)

        def call(self, x):
            return self.second(self.first(x))

    chosen = strategy("zero 3")
    model, curves = trained(Lazy, chosen)
    same_curves(curves, trained(Lazy)[1])
    assert model.first.kernel.layout.sharding_specs == ["data", "unsharded"]


def test_custom_losses_and_steps_that_call_the_model():
    class Own(tf.keras.Sequential):
        def compute_loss(self, x, y, y_pred, sample_weight=None):
            return tf.reduce_mean(tf.abs(y - y_pred) ** 3)

        def train_step(self, data):
            x, y = data
            return {**super().train_step((2.0 * x, y)), "twice": tf.constant(2.0)}

    def make():
        return Own(mlp().layers)

    same_curves(trained(make, strategy("zero 3, recompute"))[1], trained(make)[1])


def test_custom_loops():
    """Test one replica that all devices compute together: `run` is a plain call, and rules
    determine the layouts."""
    chosen = strategy("tensors")
    assert chosen.num_replicas_in_sync == 1
    losses = []
    for scope in (contextlib.nullcontext(), chosen.scope()):
        tf.keras.utils.set_random_seed(1)
        with scope:
            model, optimizer = mlp(), tf.keras.optimizers.SGD(0.1)

        @tf.function
        def step(x, y, model=model, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        batches = tf.data.Dataset.from_tensor_slices(data()).batch(16)
        losses.append(
            [float(chosen.run(step, b)) for b in chosen.experimental_distribute_dataset(batches)]
        )
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert model.layers[0].kernel.layout.sharding_specs == ["unsharded", "model"]
