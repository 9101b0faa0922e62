"""Distributions against scipy's: moments, Kolmogorov-Smirnov and chi-square with fixed seeds."""

import numpy as np
import pytest
import scipy.stats

import meshflow as tf
from helpers import assert_close

COUNT = 20000
SEED = [2, 5]
# A wrong distribution fails this far below any sensible level; the seeds are fixed.
LEVEL = 1e-3

CONTINUOUS = {
    "uniform": ((-2.0, 3.0), scipy.stats.uniform(-2, 5)),
    "normal": ((1.0, 2.0), scipy.stats.norm(1, 2)),
    "truncated_normal": ((1.0, 2.0), scipy.stats.truncnorm(-2, 2, 1, 2)),
    "gamma": ((0.7, 2.0), scipy.stats.gamma(0.7, scale=1 / 2)),
}


def follows(values, distribution):
    values = np.asarray(values, np.float64).reshape(-1)
    assert scipy.stats.kstest(values, distribution.cdf).pvalue > LEVEL
    spread = distribution.std() / np.sqrt(len(values))
    assert abs(values.mean() - distribution.mean()) < 4 * spread


def follows_counts(values, probabilities):
    """Test that integers 0, 1, ... occur with the given probabilities, the last of which includes
    all larger integers."""
    values = np.minimum(np.asarray(values).reshape(-1), len(probabilities) - 1).astype(int)
    found = np.bincount(values, minlength=len(probabilities))
    assert scipy.stats.chisquare(found, np.asarray(probabilities) * len(values)).pvalue > LEVEL


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_continuous_distributions(name, dtype):
    arguments, distribution = CONTINUOUS[name]
    tf.random.set_seed(5)
    stateful = getattr(tf.random, name)([COUNT], *arguments, dtype=dtype)
    stateless = getattr(tf.random, f"stateless_{name}")([COUNT], SEED, *arguments, dtype=dtype)
    for values in (stateful, stateless):
        assert values.dtype is dtype and values.shape == [COUNT]
        follows(values.numpy(), distribution)


@pytest.mark.parametrize("name", ["uniform", "normal", "truncated_normal"])
def test_generators_draw_from_the_same_distributions(name):
    arguments, distribution = CONTINUOUS[name]
    follows(getattr(tf.random.Generator.from_seed(1), name)([COUNT], *arguments), distribution)


@pytest.mark.parametrize("name", ["uniform", "normal", "truncated_normal"])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_short_floats(name, dtype):
    values = getattr(tf.random, f"stateless_{name}")([2000], SEED, dtype=dtype)
    assert values.dtype is dtype
    mean = {"uniform": 0.5}.get(name, 0.0)
    assert abs(np.mean(values.numpy().astype(np.float64)) - mean) < 0.08


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_uniform_integers(dtype):
    tf.random.set_seed(4)
    draws = (
        tf.random.uniform([COUNT], -2, 3, dtype),
        tf.random.stateless_uniform([COUNT], SEED, -2, 3, dtype),
        tf.random.Generator.from_seed(1).uniform([COUNT], -2, 3, dtype),
    )
    for values in draws:
        assert values.dtype is dtype
        follows_counts(values.numpy() + 2, [0.2] * 5)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.uint32, tf.uint64])
def test_integers_over_the_full_range(dtype):
    values = tf.random.stateless_uniform([COUNT], SEED, None, None, dtype)
    assert values.dtype is dtype
    share = (values.numpy().astype(np.float64) - dtype.min) / (dtype.max - float(dtype.min))
    follows(share, scipy.stats.uniform())
    drawn = tf.random.Generator.from_seed(1).uniform_full_int([COUNT], dtype)
    follows((drawn.numpy() - float(dtype.min)) / 2.0 ** (8 * dtype.size), scipy.stats.uniform())


@pytest.mark.parametrize("lam", [0.3, 4.0, 40.0])
def test_poisson(lam):
    tf.random.set_seed(1)
    values = tf.random.poisson([COUNT], lam)
    other = tf.random.stateless_poisson([COUNT], SEED, lam)
    assert values.dtype is tf.float32 and other.dtype is tf.int32
    distribution = scipy.stats.poisson(lam)
    low, high = int(distribution.ppf(0.01)), int(distribution.ppf(0.99))
    chances = [distribution.cdf(low), *distribution.pmf(range(low + 1, high)), 0]
    chances[-1] = 1 - sum(chances)
    for drawn in (values, other):
        follows_counts(np.maximum(drawn.numpy() - low, 0), chances)


def test_poisson_of_several_rates():
    values = tf.random.poisson([COUNT], [[1.0, 5.0]], tf.int64, seed=3)
    assert values.shape == [COUNT, 1, 2] and values.dtype is tf.int64
    assert_close(np.mean(values.numpy(), 0), [[1, 5]], rtol=0.02)
    stateless = tf.random.stateless_poisson([COUNT, 2], SEED, [1.0, 5.0], tf.float64)
    assert stateless.shape == [COUNT, 2] and stateless.dtype is tf.float64
    assert_close(np.mean(stateless.numpy(), 0), [1, 5], rtol=0.02)


def test_gamma_of_several_parameters():
    alpha, beta = np.array([0.5, 3.0]), np.array([[1.0], [2.0], [4.0]])
    stateful = tf.random.gamma([COUNT], alpha, beta, dtype=tf.float64, seed=3)
    stateless = tf.random.stateless_gamma([COUNT, 3, 2], SEED, alpha, beta, dtype=tf.float64)
    for values in (stateful, stateless):
        assert values.shape == [COUNT, 3, 2]
        for i in range(3):
            for j in range(2):
                expected = scipy.stats.gamma(alpha[j], scale=1 / beta[i, 0])
                follows(values.numpy()[:, i, j], expected)


def test_binomial():
    distribution = scipy.stats.binom(6, 0.3)
    stateless = tf.random.stateless_binomial([COUNT], SEED, 6.0, 0.3)
    drawn = tf.random.Generator.from_seed(2).binomial([COUNT], 6.0, 0.3)
    for values in (stateless, drawn):
        assert values.dtype is tf.int32 and values.shape == [COUNT]
        follows_counts(values.numpy(), distribution.pmf(range(7)))
    several = tf.random.stateless_binomial(
        [COUNT, 2], SEED, [10.0, 20.0], [0.5, 0.1], output_dtype=tf.float32
    )
    assert several.dtype is tf.float32
    assert_close(np.mean(several.numpy(), 0), [5, 2], rtol=0.02)


def test_categorical():
    chances = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]])
    with np.errstate(divide="ignore"):
        logits = np.log(chances).astype(np.float32) + 3
    tf.random.set_seed(1)
    stateful = tf.random.categorical(logits, COUNT)
    stateless = tf.random.stateless_categorical(logits, COUNT, SEED)
    short = tf.random.stateless_categorical(logits, COUNT, SEED, dtype=tf.int32)
    assert short.dtype is tf.int32
    for values in (stateful, stateless, short):
        assert values.shape == [2, COUNT]
        follows_counts(values.numpy()[0], chances[0])
        follows_counts(values.numpy()[1], chances[1][:2])
    assert stateful.dtype is stateless.dtype is tf.int64


def test_shuffles_draw_every_order_equally_often():
    rows = np.arange(3)
    orders = {tuple(tf.random.stateless_shuffle(rows, [0, n]).numpy().tolist()) for n in range(60)}
    assert len(orders) == 6
    moved = tf.random.stateless_shuffle(np.eye(4), [1, 2]).numpy()
    assert sorted(moved.tolist()) == sorted(np.eye(4).tolist())


STATELESS = {
    "stateless_uniform": ([4],),
    "stateless_normal": ([4],),
    "stateless_truncated_normal": ([4],),
    "stateless_gamma": ([4],),
    "stateless_poisson": ([4],),
    "stateless_binomial": ([4],),
}
PARAMETERS = {
    "stateless_gamma": {"alpha": 2.0},
    "stateless_poisson": {"lam": 50.0},
    "stateless_binomial": {"counts": 100.0, "probs": 0.4},
}


@pytest.mark.parametrize("name", STATELESS)
def test_stateless_numbers_depend_on_the_seed_only(name):
    def draw(seed):
        return getattr(tf.random, name)([4], seed, **PARAMETERS.get(name, {})).numpy()

    first = draw([1, 2])
    tf.random.set_seed(9)
    np.testing.assert_array_equal(draw(tf.constant([1, 2])), first)
    np.testing.assert_array_equal(draw(tf.constant([1, 2], tf.int64)), first)
    compiled = tf.function(lambda s: getattr(tf.random, name)([4], s, **PARAMETERS.get(name, {})))
    # The tiers round logarithms differently.
    np.testing.assert_allclose(compiled(tf.constant([1, 2])), first, rtol=1e-6)
    assert not np.array_equal(draw([1, 3]), first) and not np.array_equal(draw([2, 2]), first)
    with pytest.raises(ValueError, match="seed"):
        draw([1, 2, 3])


STATEFUL = {
    "uniform": {},
    "normal": {},
    "truncated_normal": {},
    "gamma": {"alpha": 2.0},
    "poisson": {"lam": 50.0},
}


@pytest.mark.parametrize("name", STATEFUL)
def test_stateful_numbers_start_again_with_the_global_seed(name):
    def draw():
        tf.random.set_seed(9)
        return [getattr(tf.random, name)([4], **STATEFUL[name]).numpy() for _ in range(2)]

    first, second = draw(), draw()
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(*first)


def test_shapes_may_be_tensors_and_parameters_broadcast():
    assert tf.random.normal(tf.constant([2, 3])).shape == [2, 3]
    assert tf.random.truncated_normal([tf.constant(2), 3]).shape == [2, 3]
    assert tf.random.uniform(tf.TensorShape([2])).shape == [2]
    assert tf.random.uniform([]).shape == []
    assert tf.random.normal([0, 3]).shape == [0, 3]
    wide = tf.random.normal([3000, 2], [0.0, 5.0], [1.0, 0.1], seed=1).numpy()
    assert_close(wide.mean(0), [0, 5], atol=0.08)
    assert_close(wide.std(0), [1, 0.1], rtol=0.05)
    assert tf.random.uniform([5, 2], [0, 10], [5, 20], tf.int32).shape == [5, 2]


def test_gradients_pass_through_to_the_parameters():
    mean, deviation = tf.constant(1.0), tf.constant(2.0)
    alpha, beta = tf.constant(3.0), tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch([mean, deviation, alpha, beta])
        normal = tf.reduce_sum(tf.random.stateless_normal([50], SEED, mean, deviation))
        gamma = tf.reduce_mean(tf.random.stateless_gamma([COUNT], SEED, alpha, beta))
        total = normal + gamma
    found = [g.numpy() for g in tape.gradient(total, [mean, deviation, alpha, beta])]
    noise = tf.random.stateless_normal([50], SEED).numpy()
    assert_close(found[:2], [50, noise.sum()], rtol=1e-4)
    # The mean of the gamma distribution is alpha / beta.
    assert_close(found[2:], [1 / 2, -3 / 4], rtol=0.03)


def test_split_and_fold_in_make_new_seeds():
    seeds = tf.random.stateless_split(SEED, 3)
    assert seeds.shape == [3, 2] and seeds.dtype is tf.int32
    assert len({tuple(s) for s in seeds.numpy().tolist()}) == 3
    np.testing.assert_array_equal(tf.random.stateless_split(SEED, 3), seeds)
    folded = [tuple(tf.random.stateless_fold_in(SEED, n).numpy().tolist()) for n in range(5)]
    assert len(set(folded)) == 5 and len(folded[0]) == 2
    assert tuple(tf.random.stateless_fold_in(SEED, tf.constant(2)).numpy().tolist()) == folded[2]
    draws = [tf.random.stateless_normal([COUNT], s).numpy() for s in seeds]
    for values in draws:
        follows(values, scipy.stats.norm())
    assert np.abs(np.corrcoef(draws) - np.eye(3)).max() < 0.03


def test_global_generator():
    tf.random.set_global_generator(tf.random.Generator.from_seed(5))
    shared = tf.random.get_global_generator()
    assert shared is tf.random.get_global_generator()
    assert_close(shared.normal([3]), tf.random.Generator.from_seed(5).normal([3]).numpy())


def test_generator_state_is_preserved():
    g = tf.random.Generator.from_seed(5)
    copy = tf.random.Generator(copy_from=g)
    first = g.normal([3]).numpy()
    assert_close(copy.normal([3]), first)
    g.reset_from_seed(5)
    g.skip(3)
    second = g.normal([3]).numpy()
    assert_close(copy.normal([3]), second)
    assert_close(tf.random.Generator.from_state(g.state, "philox").normal([3]), copy.normal([3]))
    counted = tf.random.Generator.from_key_counter(7, [1, 0], "philox")
    again = tf.random.Generator.from_seed(1)
    again.reset_from_key_counter(7, [1, 0])
    assert_close(counted.uniform([3]), again.uniform([3]).numpy())
    assert g.make_seeds(4).shape == [2, 4]
    assert not np.array_equal(
        tf.random.Generator.from_non_deterministic_state().normal([4]),
        tf.random.Generator.from_non_deterministic_state().normal([4]),
    )


def test_experimental_names():
    experimental = tf.random.experimental
    assert experimental.Generator is tf.random.Generator
    state = tf.random.create_rng_state(5, "philox")
    g = tf.random.Generator.from_state(state, tf.random.Algorithm.PHILOX)
    assert_close(g.normal([3]), tf.random.Generator.from_seed(5).normal([3]).numpy())
    np.testing.assert_array_equal(
        experimental.stateless_split(SEED, 2), tf.random.split(SEED, num=2)
    )


def test_errors():
    with pytest.raises(ValueError, match="maxval"):
        tf.random.stateless_uniform([2], SEED, dtype=tf.int32)
    for draw in (tf.random.normal, tf.random.truncated_normal):
        with pytest.raises(TypeError, match="float"):
            draw([2], dtype=tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Need minval < maxval"):
        tf.random.uniform([2], 5, 5, tf.int32)
    with pytest.raises(ValueError):
        tf.random.stateless_uniform([2], SEED, None, None)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must end with the shape"):
        tf.random.stateless_gamma([5], SEED, [1.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="must end with the shape"):
        tf.random.stateless_poisson([5, 3], SEED, [1.0, 2.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="matrix"):
        tf.random.categorical([1.0, 2.0], 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="two integers"):
        tf.random.stateless_uniform([3], [1.0, 2.0])


@pytest.mark.parametrize(
    "draw",
    [
        lambda value: tf.random.gamma([2], [value, 2.0]),
        lambda value: tf.random.poisson([2], [value, 2.0]),
        lambda value: tf.keras.random.gamma([2, 2], [value, 2.0]),
        lambda value: tf.keras.random.beta([2, 2], [value, 2.0], 1.0),
        lambda value: tf.keras.random.binomial([2, 2], [value, 2.0], 0.5),
        lambda value: tf.keras.random.binomial([2, 2], 9.0, [value, 0.5]),
    ],
)
@pytest.mark.parametrize("value", [-1.0, np.nan])
def test_invalid_parameters_of_rejection_samplers_return_nan(draw, value):
    numbers = draw(value).numpy()
    assert np.isnan(numbers[:, 0]).all() and (numbers[:, 1] >= 0).all()
