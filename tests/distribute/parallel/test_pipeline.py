"""Models in stages: the loss curves of one device, the bytes and ticks of theory, and clear errors."""

import contextlib
import re

import numpy as np
import pytest

import meshflow as tf

dtensor = tf.experimental.dtensor
layers = tf.keras.layers
WORDS, LENGTH = 20, 6
# The backward pass of the second micro-batch is first.
TABLE = [["0F0", "0F1", "0B1", "0B0"], ["1F0", "1F1", "1B1", "1B0"]]


def mesh_of(**sizes):
    count = int(np.prod(list(sizes.values())))
    return dtensor.create_mesh(list(sizes.items()), devices=[f"CPU:{i}" for i in range(count)])


def pipelined(
    schedule="1f1b", balance="auto", micro_batches=4, stage=2, data=1, keep="inputs", **options
):
    mesh = mesh_of(stage=stage, data=data) if data > 1 else mesh_of(stage=stage)
    return tf.distribute.MeshStrategy(
        mesh,
        rules="batch:data" if data > 1 else "",
        pipeline=tf.distribute.Pipeline("stage", schedule, balance, keep),
        micro_batches=micro_batches,
        **options,
    )


class Tied(layers.Layer):
    """Scores of words by the embedding's own weights."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def call(self, inputs):
        return tf.matmul(inputs, self.embedding.embeddings, transpose_b=True)


def small():
    return tf.keras.Sequential(
        [
            tf.keras.Input([LENGTH], dtype="int32"),
            layers.Embedding(WORDS, 8),
            layers.Dense(16, "gelu"),
            layers.LayerNormalization(),
            layers.Dense(8, "tanh"),
            layers.Dense(WORDS),
        ]
    )


def rich():
    """Skip over stages, of integers too, tied weights, masks, penalties, a nested model, two outputs."""
    tokens = tf.keras.Input([LENGTH], dtype="int32")
    known = layers.Lambda(lambda t: tf.gather(tf.range(WORDS), t))(tokens)
    embedding = layers.Embedding(WORDS, 8, mask_zero=True)
    embedded = embedding(known)
    penalty = tf.keras.regularizers.L2(1e-3)
    inner = tf.keras.Sequential(
        [layers.Dense(8, input_shape=(LENGTH, 16)), layers.LayerNormalization()]
    )
    x = layers.Dense(16, "gelu", kernel_regularizer="l2", activity_regularizer=penalty)(embedded)
    x = inner(x) + embedded
    scores = Tied(embedding)(x) - tf.one_hot(known, WORDS)
    return tf.keras.Model(tokens, [scores, layers.Dense(3, name="aux")(embedded)])


def compiled(make, strategy=None, **options):
    tf.keras.backend.reset_uids()
    tf.keras.utils.set_random_seed(1)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = make()
        optimizer = tf.keras.optimizers.Adam(1e-2)
        model.compile(**{"optimizer": optimizer, "loss": loss, **options})
    return model


def words(rows, seed=0):
    x = np.random.default_rng(seed).integers(1, WORDS, (rows, LENGTH)).astype("int32")
    return x, (x * 7 + 3) % WORDS


def curve(model, x, y, epochs, batch=8, **more):
    history = model.fit(x, y, batch, epochs, verbose=0, shuffle=False, **more).history
    return {name: np.array(values) for name, values in history.items()}


def same(found, expected, rtol=1e-5):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=rtol, err_msg=name)


@pytest.fixture(scope="module")
def one_device():
    """The small model's curve over 20 steps, and its weights."""
    x, y = words(8)
    model = compiled(small, metrics=["accuracy"])
    return curve(model, x, y, 20), model.get_weights()


@pytest.mark.parametrize(
    ("schedule", "micro_batches", "stage", "data"),
    [
        ("interleaved:2", 2, 2, 2),
        ("zero_bubble", 4, 2, 1),
        ("1f1b", 2, 4, 1),  # fewer micro-batches than stages
        pytest.param("1f1b", 8, 4, 1, marks=pytest.mark.soak),
        pytest.param("1f1b", 1, 3, 1, marks=pytest.mark.soak),  # divides no axis of the weights
        pytest.param("gpipe", 4, 2, 1, marks=pytest.mark.soak),
        pytest.param("classic_1f1b", 4, 2, 1, marks=pytest.mark.soak),
        pytest.param(TABLE, 2, 2, 1, marks=pytest.mark.soak),
    ],
)
def test_curves_equal_one_device(one_device, schedule, micro_batches, stage, data):
    x, y = words(8)
    strategy = pipelined(schedule, "auto", micro_batches, stage, data)
    model = compiled(small, strategy, metrics=["accuracy"])
    expected, weights = one_device
    same(curve(model, x, y, 20), expected)
    for found, wanted in zip(model.get_weights(), weights):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)
    # Each device has its part of divisible values.
    kernel = model.layers[1].kernel
    split = stage in (2, 4)
    assert kernel.layout.sharding_specs == (["stage", "unsharded"] if split else ["unsharded"] * 2)
    slot = next(v for v in model.optimizer.variables() if v.shape == kernel.shape)
    assert slot.layout == kernel.layout


def test_skips_ties_masks_weights_and_penalties():
    x, y = words(8)
    x[:, 4:] = np.where(np.random.default_rng(1).random((8, 2)) < 0.5, 0, x[:, 4:])
    targets = [y, np.ones((8, LENGTH, 3), "float32")]
    weight = np.random.default_rng(2).random((8, LENGTH)).astype("float32")
    crossentropy = tf.keras.losses.SparseCategoricalCrossentropy
    summed = tf.keras.losses.MeanSquaredError("sum")
    options = {
        "optimizer": tf.keras.optimizers.Adam(1e-2, global_clipnorm=0.5),
        "loss": [crossentropy(from_logits=True, ignore_class=3), summed],
        "loss_weights": [1.0, 0.1],
        "metrics": [["accuracy"], ["mae"]],
    }
    plain = compiled(rich, None, **options)
    expected = curve(plain, x, targets, 20, sample_weight=[weight, weight])
    options["optimizer"] = tf.keras.optimizers.Adam(1e-2, global_clipnorm=0.5)
    strategy = pipelined(stage=3, micro_batches=4)
    model = compiled(rich, strategy, **options)
    same(curve(model, x, targets, 20, sample_weight=[weight, weight]), expected, 2e-5)
    # The embedding is in the first stage and in the last, and its result crosses all edges.
    first, middle, last = strategy.pipelined.stages.programs
    assert set(first.captures) & set(last.captures)
    passed = {str(a.dtype) for a in first.sends if a in middle.sends}
    assert passed >= {"float32", "int32", "bool"}
    np.testing.assert_allclose(
        model.predict(x, verbose=0)[0], plain.predict(x, verbose=0)[0], rtol=1e-3, atol=1e-4
    )


def test_uneven_batches_and_half_the_rows_on_each_device():
    x, y = words(10)
    plain = compiled(small, metrics=["accuracy"])
    expected = curve(plain, x, y, 2)
    strategy = pipelined(micro_batches=2, data=2)
    model = compiled(small, strategy, metrics=["accuracy"])
    # Batches of eight rows, and of two.
    same(curve(model, x, y, 2), expected)
    # Forward passes are a pipeline, too.
    step = model._get_step("test")
    step.prepare((x[:5], y[:5]))
    assert "ppermute" in str(step._concrete[next(iter(step._concrete))].traced.closed_jaxpr.jaxpr)
    scores = [m.evaluate(x, y, batch_size=5, verbose=0) for m in (plain, model)]
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-5)
    found = [m.predict(x, batch_size=10, verbose=0) for m in (plain, model)]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)


def uniform():
    dense = [layers.Dense(16, "tanh") for _ in range(8)]
    return tf.keras.Sequential([tf.keras.Input([16]), *dense])


def test_bytes_ticks_and_stages_are_those_of_theory():
    p, m = 4, 8
    strategy = pipelined(stage=p, micro_batches=m)
    model = compiled(uniform, strategy, loss="mse")
    x = np.ones((32, 16), np.float32)
    report = strategy.explain(model, x, x)
    edge = 32 // m * 16 * 4
    # The first and the last p ticks have values, or gradients, that no stage receives.
    assert report.step.sent("collective-permute") == (m + p - 2) * 2 * edge
    assert report.step.count("collective-permute") == 2 * (m + p - 2)
    trips = re.findall(r'known_trip_count":\{"n":"(\d+)"', report.step.text)
    assert trips == [str(m + 2 * p - 2)]
    # Weights, gradients and slots stay on their stages.
    weights = sum(v.numpy().nbytes for v in model.weights)
    assert {c.kind for c in report.step.collectives} == {"collective-permute", "all-reduce"}
    assert report.step.bytes("all-reduce") == 4
    found = report.pipeline
    assert found.bubble == pytest.approx((p - 1) / (m + p - 1))
    assert (found.ticks, found.held, found.edge) == (m + 2 * p - 2, 2 * p - 1, edge)
    assert found.sent == report.step.sent("collective-permute")
    # First, last, and equal ones between.
    assert found.programs == 3
    assert [len(s.layers) for s in found.stages] == [2, 2, 2, 2]
    assert [s.weights for s in found.stages] == [weights // p] * p
    assert "pipeline over 'stage': 8 micro-batches in 14 ticks, bubble 0.273" in str(report)
    # A device has its part of weights, and of the batch all that the pipeline's devices share.
    assert report.step.memory["arguments"] < 3 * weights / p + 2 * x.nbytes + 1000


def test_stored_residuals_avoid_recomputation(one_device):
    p, m = 4, 8
    x = np.ones((32, 16), np.float32)
    products = {}
    for keep in ("inputs", "residuals"):
        strategy = pipelined(stage=p, micro_batches=m, keep=keep)
        report = strategy.explain(compiled(uniform, strategy, loss="mse"), x, x)
        products[keep] = len(re.findall(r" = \S+ dot\(", report.step.text))
    # The first stage and those between have two layers each.
    assert products["inputs"] - products["residuals"] == 2 * 2
    # A device holds one input and one gradient, and the inputs and results of two layers for 2 p -
    # 1 micro-batches.
    edge = 32 // m * 16 * 4
    assert report.pipeline.held_bytes == (2 + 3 * (2 * p - 1)) * edge
    assert f"7 residuals kept ({report.pipeline.held_bytes:,} bytes)" in str(report)
    assert report.pipeline.sent == report.step.sent("collective-permute")


@pytest.mark.parametrize(
    ("schedule", "stage", "data", "options"),
    [
        ("interleaved:2", 2, 2, {"recompute": "layer"}),
        pytest.param("1f1b", 4, 1, {}, marks=pytest.mark.soak),
        pytest.param("gpipe", 2, 2, {"zero": 3}, marks=pytest.mark.soak),
        pytest.param("classic_1f1b", 2, 1, {}, marks=pytest.mark.soak),
        pytest.param(TABLE, 2, 1, {}, marks=pytest.mark.soak),
    ],
)
def test_curves_with_stored_residuals(one_device, schedule, stage, data, options):
    x, y = words(8)
    strategy = pipelined(schedule, "auto", 2, stage, data, "residuals", **options)
    model = compiled(small, strategy, metrics=["accuracy"])
    same(curve(model, x, y, 20), one_device[0])
    with pytest.raises(
        ValueError, match="keep='residuals' has no effect on the schedule 'zero_bubble'"
    ):
        pipelined("zero_bubble", keep="residuals")
    with pytest.raises(ValueError, match="offload='activations' cannot move them"):
        pipelined(keep="residuals", offload="activations")


def build_normalized_model():
    blocks = [layers.BatchNormalization(), layers.Dense(8, "relu"), layers.BatchNormalization()]
    return tf.keras.Sequential([tf.keras.Input([4, 4, 3]), *blocks, layers.Dense(1)])


@pytest.mark.parametrize(
    "options",
    [
        {"pipeline": tf.distribute.Pipeline("stage", keep="residuals")},
        pytest.param({"recompute": "layer", "zero": 1}, marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_moving_averages_of_full_batches(options):
    x = np.random.default_rng(0).normal(5, 3, size=(40, 4, 4, 3)).astype("float32")
    batch = {"batch": 16, "epochs": 2}

    def averages(strategy):
        model = compiled(build_normalized_model, strategy, loss="mse", optimizer="sgd")
        curve(model, x, x[..., :1], **batch)
        return [v.numpy() for v in (model.layers[0].moving_mean, model.layers[0].moving_variance)]

    mesh = mesh_of(stage=2, data=2)
    options = {**options, "micro_batches": 4}
    each, full = (
        tf.distribute.MeshStrategy(mesh, "batch:data", deferred_batch_norm=deferred, **options)
        for deferred in (False, True)
    )
    expected = averages(None)
    for found, wanted in zip(averages(full), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    with pytest.warns(UserWarning, match="With deferred_batch_norm=True"):
        found = averages(each)[0]
    assert not np.allclose(found, expected[0], rtol=1e-2)


def stages_of(model, strategy, x, y):
    """Return the layers of each stage, without compilation."""
    model._get_step("train").prepare((x, y))
    return [list(s.layers) for s in strategy.pipelined.make_report().stages]


@pytest.mark.soak
def test_memory_of_paired_passes_is_flat_in_the_number_of_micro_batches():
    def temporaries(schedule, micro_batches):
        strategy = pipelined(schedule, stage=4, micro_batches=micro_batches)
        model = compiled(uniform, strategy, loss="mse", optimizer="sgd")
        x = np.ones((16 * micro_batches, 16), np.float32)
        return strategy.explain(model, x, x)

    few, many = (temporaries("1f1b", m) for m in (8, 32))
    assert many.step.memory["temporaries"] < 1.05 * few.step.memory["temporaries"]
    assert many.pipeline.held_bytes == few.pipeline.held_bytes == 2 * 3 * many.pipeline.edge
    all_first = temporaries("gpipe", 32)
    growth = all_first.pipeline.held_bytes - many.pipeline.held_bytes
    found = all_first.step.memory["temporaries"] - many.step.memory["temporaries"]
    assert found > growth > 20 * many.pipeline.edge


def chain(*stack):
    made = []
    for n, width in enumerate(stack):
        made.append(
            layers.Stage(name=f"mark{n}") if width is None else layers.Dense(width, name=f"d{n}")
        )
    return lambda: tf.keras.Sequential([tf.keras.Input([8]), *made])


class Layerless(tf.keras.Model):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 1))

    def call(self, inputs):
        return inputs @ self.kernel


def test_balance_by_costs_marks_and_counts():
    x = np.ones((8, 8), np.float32)

    def stages(make, balance="auto", count=2):
        strategy = pipelined(balance=balance, stage=count)
        model = compiled(make, strategy, loss="mse")
        return stages_of(model, strategy, x, np.ones((8, 1), np.float32))

    # One layer costs as much as all others.
    wide = lambda: chain(8, 8, 8, 256, 8, 1)()
    assert stages(wide) == [["d0", "d1", "d2", "d3"], ["d4", "d5"]]
    assert stages(wide, [1, 5]) == [["d0"], ["d1", "d2", "d3", "d4", "d5"]]
    marked = lambda: chain(8, 8, 8, None, 1)()
    assert stages(marked) == [["d0", "d1", "d2"], ["mark3", "d4"]]
    assert stages(marked, "cost") == [["d0"], ["d1", "d2", "mark3", "d4"]]
    with pytest.raises(
        ValueError, match=r"has 1 Stage\(\) layers .* make 2 stages; the pipeline has 3"
    ):
        stages(marked, count=3)
    with pytest.raises(ValueError, match=r"balance=\[1, 2\] must have 2 numbers.*the 6 layers"):
        stages(wide, [1, 2])
    with pytest.raises(ValueError, match="balance='half' is neither"):
        stages(wide, "half")
    few = lambda: chain(8, 8, 1)()
    with pytest.raises(
        ValueError, match=r"4 stages are more than the 3 layers of .* \['d0', 'd1', 'd2'\]"
    ):
        stages(few, count=4)
    with pytest.raises(ValueError, match=r"2 stages are more than the 1 layers of .*: \[\]"):
        stages(Layerless)


def test_schedules_that_do_not_fit_are_refused():
    for schedule, message in (
        (
            [["0F0", "0B0"], ["1F0", "1B0"]],
            "for 2 devices and 1 micro-batches, the pipeline has 2 and 4",
        ),
        ("forward", "'forward' has no backward passes"),
        ("2f2b", "'2f2b' is none of"),
        ([["0F0", "0B0"], ["1B0", "1F0"]], "deadlocks"),
    ):
        with pytest.raises(ValueError, match=message):
            pipelined(schedule)
    x = np.ones((8, 8), np.float32)
    with pytest.raises(ValueError, match="4 stages are more than the 3 layers"):
        few = lambda: chain(8, 8, 1)()
        compiled(few, pipelined("interleaved:2"), loss="mse").fit(x, x[:, :1], verbose=0)


def test_options_that_have_no_place_in_a_pipeline_are_refused():
    with pytest.raises(ValueError, match="recompute='gathers' with a pipeline"):
        pipelined(recompute="gathers")


class Own(tf.keras.Model):
    """A model of Python, with state that its layers keep and random numbers."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(8, "relu")
        self.normed = layers.BatchNormalization(momentum=0.5)
        self.dropped = layers.Dropout(0.5)
        self.last = layers.Dense(1)

    def call(self, inputs):
        x = self.normed(self.first(inputs)) + inputs
        return self.last(self.dropped(x))


@pytest.mark.filterwarnings("ignore:MeshStrategy. the batch normalization")
def test_state_and_random_numbers_of_stages():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 8)).astype("float32"), np.ones((8, 1), np.float32)

    def trained(strategy, epochs=3):
        model = compiled(Own, strategy, loss="mse")
        return model, curve(model, x, y, epochs)

    # One micro-batch has the statistics and the random numbers of one device.
    plain, expected = trained(None)
    model, found = trained(pipelined(micro_batches=1))
    same(found, expected)
    for name in ("moving_mean", "moving_variance"):
        wanted = getattr(plain.normed, name).numpy()
        np.testing.assert_allclose(
            getattr(model.normed, name).numpy(), wanted, rtol=1e-4, atol=1e-6
        )
    # Several have each their own, in turn; random numbers differ from one to the next and from step to step.
    model, found = trained(pipelined(micro_batches=2), 1)
    model.optimizer.learning_rate = 0.0
    first = model.normed.moving_mean.numpy()
    losses = curve(model, x, y, 3)["loss"]
    assert len(set(losses.tolist())) == 3
    halves = [model.first(x[:4]).numpy().mean(0), model.first(x[4:]).numpy().mean(0)]
    moved = first
    for half in halves * 3:
        moved = 0.5 * moved + 0.5 * half
    np.testing.assert_allclose(model.normed.moving_mean.numpy(), moved, rtol=1e-4, atol=1e-6)


class Power(layers.Layer):
    """Define a layer that reads the variable it writes."""

    def build(self, shape):
        self.direction = self.add_weight("direction", [8], trainable=False, initializer="ones")

    def call(self, inputs):
        self.direction.assign(tf.reduce_mean(inputs, axis=0))
        return inputs * self.direction


class Counted(layers.Layer):
    """Define a layer that reads state of earlier steps."""

    def build(self, shape):
        self.seen = self.add_weight("seen", [8], trainable=False, initializer="ones")

    def call(self, inputs):
        before = self.seen.value()
        self.seen.assign(tf.reduce_mean(inputs, axis=0))
        return inputs * before


def test_layers_that_compute_with_their_state_are_refused():
    x = np.ones((8, 8), np.float32)
    make = lambda layer: (
        lambda: tf.keras.Sequential(
            [tf.keras.Input([8]), layers.Dense(8), layer(), layers.Dense(1)]
        )
    )
    with pytest.raises(
        ValueError, match=r"computes with the variable .*seen.*cannot be in a pipeline"
    ):
        compiled(make(Counted), pipelined(), loss="mse").fit(x, x[:, :1], verbose=0)
    # A variable that is written before it is read does not change results.
    model = compiled(make(Power), pipelined(), loss="mse")
    assert np.isfinite(model.fit(x, x[:, :1], verbose=0).history["loss"][0])


@pytest.mark.soak
def test_checkpoints_contain_complete_named_weights(tmp_path, one_device):
    x, y = words(8)
    model = compiled(small, pipelined(micro_batches=2, data=2, zero=1))
    curve(model, x, y, 10)
    model.save_weights(tmp_path / "weights")
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(tmp_path / "all"))
    plain = compiled(small)
    plain.optimizer.build(plain.trainable_variables)
    tf.train.Checkpoint(model=plain, optimizer=plain.optimizer).read(str(tmp_path / "all"))
    rest = curve(plain, x, y, 10)["loss"]
    np.testing.assert_allclose(rest, one_device[0]["loss"][10:], rtol=2e-5)
