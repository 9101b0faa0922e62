"""Initializers: distributions against scipy's, seeds, dtypes, configurations, errors."""

import numpy as np
import pytest
import scipy.stats

import meshflow as tf
from helpers import assert_close

initializers = tf.keras.initializers
SHAPE = (3, 3, 40, 60)
FAN_IN, FAN_OUT = 360, 540
LEVEL = 1e-3


def uniform(variance):
    limit = np.sqrt(3 * variance)
    return scipy.stats.uniform(-limit, 2 * limit)


def truncated(variance):
    # Scaled to correct the variance of the truncated normal distribution.
    scale = np.sqrt(variance) / scipy.stats.truncnorm(-2, 2).std()
    return scipy.stats.truncnorm(-2, 2, scale=scale)


MEAN = (FAN_IN + FAN_OUT) / 2
CASES = {
    "GlorotUniform": ({}, uniform(1 / MEAN)),
    "GlorotNormal": ({}, truncated(1 / MEAN)),
    "HeUniform": ({}, uniform(2 / FAN_IN)),
    "HeNormal": ({}, truncated(2 / FAN_IN)),
    "LecunUniform": ({}, uniform(1 / FAN_IN)),
    "LecunNormal": ({}, truncated(1 / FAN_IN)),
    "RandomNormal": ({}, scipy.stats.norm(0, 0.05)),
    "RandomUniform": ({}, scipy.stats.uniform(-0.05, 0.1)),
    # Unlike in the scaled ones, its deviation is that of the normal distribution before the cut.
    "TruncatedNormal": ({}, scipy.stats.truncnorm(-2, 2, 0, 0.05)),
}
SCALINGS = [
    ("fan_in", "truncated_normal", truncated(3 / FAN_IN)),
    ("fan_out", "normal", truncated(3 / FAN_OUT)),
    ("fan_avg", "uniform", uniform(3 / MEAN)),
    ("fan_in", "untruncated_normal", scipy.stats.norm(0, np.sqrt(3 / FAN_IN))),
]


@pytest.mark.parametrize("name", CASES)
def test_distributions(name):
    arguments, distribution = CASES[name]
    cls = getattr(initializers, name)
    values = cls(seed=3, **arguments)(SHAPE)
    assert values.dtype is tf.float32 and values.shape == SHAPE
    assert scipy.stats.kstest(values.numpy().reshape(-1), distribution.cdf).pvalue > LEVEL
    assert cls(seed=3)((4, 5), tf.float64).dtype is tf.float64
    assert cls(seed=3)((4, 5), dtype="float16").dtype is tf.float16
    with pytest.raises((ValueError, TypeError), match=r"float|integer"):
        cls()((2, 2), tf.int32)


@pytest.mark.parametrize(("mode", "distribution", "expected"), SCALINGS)
def test_variance_scaling(mode, distribution, expected):
    values = initializers.VarianceScaling(3.0, mode, distribution, seed=3)(SHAPE)
    assert scipy.stats.kstest(values.numpy().reshape(-1), expected.cdf).pvalue > LEVEL


def test_fans_of_other_ranks():
    # One dimension is both input and output; a scalar has one of each.
    for shape, variance in (((300,), 1 / 300), ((100, 200), 1 / 100), ((5, 4, 50), 1 / 20)):
        drawn = [initializers.LecunNormal(seed=n)(shape).numpy() for n in range(3000 // shape[0])]
        assert abs(np.var(drawn) / variance - 1) < 0.1
    assert initializers.HeUniform(seed=1)(()).shape == ()


@pytest.mark.parametrize("name", [*CASES, "VarianceScaling", "Orthogonal"])
def test_seeds(name):
    cls = getattr(initializers, name)
    seeded = cls(seed=5)
    first = seeded((4, 6)).numpy()
    # With a seed, every call returns the same numbers.
    np.testing.assert_array_equal(seeded((4, 6)), first)
    assert not np.array_equal(cls(seed=6)((4, 6)), first)
    tf.random.set_seed(1)
    free = cls()
    first = free((4, 6)).numpy()
    # As in Keras, an initializer without a seed draws one once; another draws another.
    with pytest.warns(UserWarning, match="unseeded and being called multiple times"):
        np.testing.assert_array_equal(free((4, 6)), first)
    assert not np.array_equal(cls()((4, 6)), first)
    tf.random.set_seed(1)
    np.testing.assert_array_equal(cls()((4, 6)), first)


def test_arguments():
    normal = initializers.RandomNormal(2.0, 0.5, seed=1)((5000,)).numpy()
    assert_close([normal.mean(), normal.std()], [2, 0.5], atol=0.03)
    cut = initializers.TruncatedNormal(mean=2.0, stddev=0.5, seed=1)((5000,)).numpy()
    assert cut.min() >= 1 and cut.max() <= 3 and abs(cut.mean() - 2) < 0.03
    flat = initializers.RandomUniform(2.0, 4.0, seed=1)((5000,)).numpy()
    assert 2 <= flat.min() < 2.01 and 3.99 < flat.max() < 4
    numbers = initializers.RandomUniform(0, 3, seed=1)((500,), tf.int32).numpy()
    assert numbers.dtype == np.int32 and set(numbers) == {0, 1, 2}


def test_constants():
    assert_close(initializers.Zeros()((2, 3), tf.int32), np.zeros((2, 3)))
    assert_close(initializers.Ones()((2, 3)), np.ones((2, 3)))
    assert_close(initializers.Constant(2.5)((2,)), [2.5, 2.5])
    assert_close(initializers.Constant([1.0, 2.0])((2,)), [1, 2])
    assert_close(initializers.Constant([1.0, 2.0, 3.0, 4.0])((2, 2)), [[1, 2], [3, 4]])
    assert_close(initializers.Constant([[3.0]])((2,)), [3, 3])
    assert_close(initializers.Identity(gain=2.0)((2, 3)), 2 * np.eye(2, 3))
    with pytest.raises(ValueError, match="2D"):
        initializers.Identity()((2, 2, 2))
    with pytest.raises((ValueError, TypeError)):
        initializers.Constant([1.0, 2.0])((3,))


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (2, 3, 5), (3, 2, 4, 5)])
def test_orthogonal(shape):
    matrix = initializers.Orthogonal(gain=2.0, seed=1)(shape).numpy().reshape(-1, shape[-1])
    rows, columns = matrix.shape
    small = matrix @ matrix.T if rows < columns else matrix.T @ matrix
    assert_close(small, 4 * np.eye(min(rows, columns)), atol=1e-5)


def test_orthogonal_matrices_favour_no_direction():
    # The sign of each entry is as often positive as negative.
    signs = [np.sign(initializers.Orthogonal(seed=n)((3, 3)).numpy()) for n in range(400)]
    assert np.abs(np.mean(signs, 0)).max() < 0.2
    with pytest.raises(ValueError, match="two-dimensional"):
        initializers.Orthogonal()((3,))


CONFIGS = {
    "Zeros": {},
    "Ones": {},
    "Constant": {"value": 2.0},
    "RandomNormal": {"mean": 0.0, "stddev": 0.05, "seed": None},
    "RandomUniform": {"minval": -0.05, "maxval": 0.05, "seed": None},
    "TruncatedNormal": {"mean": 0.0, "stddev": 0.05, "seed": None},
    "VarianceScaling": {
        "scale": 1.0,
        "mode": "fan_in",
        "distribution": "truncated_normal",
        "seed": None,
    },
    "GlorotUniform": {"seed": None},
    "GlorotNormal": {"seed": None},
    "HeUniform": {"seed": None},
    "HeNormal": {"seed": None},
    "LecunUniform": {"seed": None},
    "LecunNormal": {"seed": None},
    "Orthogonal": {"gain": 1.0, "seed": None},
    "Identity": {"gain": 1.0},
}
SNAKE = {
    "Zeros": initializers.zeros,
    "Ones": initializers.ones,
    "Constant": initializers.constant,
    "RandomNormal": initializers.random_normal,
    "RandomUniform": initializers.random_uniform,
    "TruncatedNormal": initializers.truncated_normal,
    "VarianceScaling": initializers.variance_scaling,
    "GlorotUniform": initializers.glorot_uniform,
    "GlorotNormal": initializers.glorot_normal,
    "HeUniform": initializers.he_uniform,
    "HeNormal": initializers.he_normal,
    "LecunUniform": initializers.lecun_uniform,
    "LecunNormal": initializers.lecun_normal,
    "Orthogonal": initializers.orthogonal,
    "Identity": initializers.identity,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_names_and_configurations(name):
    cls = getattr(initializers, name)
    made = cls(2.0) if name == "Constant" else cls()
    assert made.get_config() == CONFIGS[name]
    again = initializers.deserialize(initializers.serialize(made))
    assert type(again) is cls and again.get_config() == CONFIGS[name]
    assert type(cls.from_config(made.get_config())) is cls
    assert SNAKE[name] is cls
    for identifier in (name, cls, made):
        assert isinstance(initializers.get(identifier), cls)
    if name in ("RandomNormal", "RandomUniform", "TruncatedNormal", "GlorotUniform", "HeNormal"):
        snake = "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")
        assert isinstance(initializers.get(snake), cls)


def test_custom_initializers():
    class Rising(initializers.Initializer):
        def __init__(self, start=0.0):
            self.start = start

        def __call__(self, shape, dtype=None, **kwargs):
            return tf.cast(tf.range(shape[0]), dtype or tf.float32) + self.start

        def get_config(self):
            return {"start": self.start}

    layer = tf.keras.layers.Dense(3, bias_initializer=Rising(1.0))
    layer.build((None, 2))
    assert_close(layer.bias, [1, 2, 3])
    again = initializers.deserialize(
        initializers.serialize(Rising(2.0)), custom_objects={"Rising": Rising}
    )
    assert_close(again((2,)), [2, 3])
    with pytest.raises(NotImplementedError):
        initializers.Initializer()((2,))
    assert initializers.get(lambda shape, dtype=None: tf.ones(shape))((2,)).shape == [2]


def test_errors():
    for arguments in ({"scale": 0.0}, {"mode": "fan"}, {"distribution": "flat"}):
        with pytest.raises(ValueError):
            initializers.VarianceScaling(**arguments)
    with pytest.raises(ValueError, match=r"[Uu]nknown"):
        initializers.get("no_such_thing")


def test_short_names_in_the_package():
    assert tf.random_normal_initializer is initializers.RandomNormal
    assert tf.random_uniform_initializer is initializers.RandomUniform
    assert_close(tf.constant_initializer(3.0)((2,)), [3, 3])
    assert_close(tf.zeros_initializer()((2,)), [0, 0])
    assert_close(tf.ones_initializer()((2,)), [1, 1])


def test_weights_after_a_program_s_seed_are_those_of_keras():
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(42)
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8,)),
            layers.Dense(5),
            layers.Dropout(0.5),
            layers.Dense(4, kernel_initializer="he_normal"),
            layers.Dense(4, kernel_initializer="orthogonal", bias_initializer="random_normal"),
            layers.Dense(3, "softmax"),
        ]
    )
    found = [w.reshape(-1)[:3] for w in model.get_weights()]
    wanted = {
        0: [0.486683, 0.220969, -0.191974],
        2: [0.016639, -0.146637, -0.524343],
        4: [0.046324, -0.259579, 0.868306],
        5: [-0.024111, -0.020873, -0.053676],
        6: [0.91775, -0.567956, 0.602345],
    }
    for at, values in wanted.items():
        assert_close(found[at], values, rtol=1e-4, atol=2e-6)
    # Masks of eager calls depend on the op's seeds, which weights do not change.
    masks = [layers.Dropout(0.5)(tf.ones([6]), training=True).numpy() > 0 for _ in range(2)]
    assert [m.tolist() for m in masks] == [[1, 0, 0, 0, 0, 1], [1, 0, 1, 0, 1, 1]]
    seeded = layers.Dropout(0.5, seed=3)
    masks = [seeded(tf.ones([6]), training=True).numpy() > 0 for _ in range(2)]
    assert [m.tolist() for m in masks] == [[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]]


def test_attention_projections_have_separate_weights():
    tf.keras.utils.set_random_seed(42)
    for layer, shape in (
        (tf.keras.layers.LSTM(3), (2, 4, 5)),
        (tf.keras.layers.GRU(3), (2, 4, 5)),
        (tf.keras.layers.RandomFlip(), (1, 2, 2, 1)),
    ):
        layer(tf.ones(shape))
    attention = tf.keras.layers.MultiHeadAttention(2, 3)
    attention(tf.ones((1, 4, 6)), tf.ones((1, 4, 6)))
    kernels = [w.numpy().reshape(-1)[:2] for w in attention.weights if "kernel" in w.name]
    assert len({tuple(k) for k in kernels}) == 4


class Watched(tf.keras.Model):
    """Return two masks of the input, derived from the loss."""

    def __init__(self):
        super().__init__()
        self.one, self.two = tf.keras.layers.Dropout(0.5), tf.keras.layers.Dropout(0.3)
        self.scale = self.add_weight("scale", (), initializer="ones")
        self.seen = tf.Variable(tf.zeros([2, 4, 6]), trainable=False)

    def call(self, x, training=None):
        masks = [layer(x, training=training) for layer in (self.one, self.two)]
        self.seen.assign(tf.stack(masks))
        return self.scale * tf.reduce_sum(masks[0], axis=1, keepdims=True)


def test_masks_and_orders_of_fit_are_those_of_keras():
    tf.keras.utils.set_random_seed(42)
    model = Watched()
    model.compile("sgd", "mse")
    first = [[2, 2, 0, 2, 2, 0], [0, 2, 2, 0, 2, 0]]
    second = [[0, 0, 2, 2, 0, 0], [0, 2, 2, 2, 2, 2]]
    seen = []
    watch = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(model.seen.numpy())
    )
    model.fit(
        np.ones((8, 6), np.float32), np.ones((8, 1)), batch_size=4, verbose=0, callbacks=[watch]
    )
    assert seen[0][0, :2].tolist() == first
    assert_close(seen[0][1, 0], np.array([0, 1, 1, 1, 1, 1]) / 0.7)
    assert len(seen) == 2 and seen[1][0, 0].tolist() == second[0]
