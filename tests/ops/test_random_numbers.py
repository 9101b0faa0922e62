"""Random numbers against those of real TensorFlow 2.21 on a CPU, stored here."""

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow.core.runtime import philox, philox_host
from meshflow.core.variables import random_streams

SEED = [3, 5]
CLOSE = {"rtol": 2e-5, "atol": 2e-6}

FLOATS = {
    ("uniform", "float16"): [0.604492, 0.186523, 0.074219, 0.891602, 0.638672],
    ("uniform", "bfloat16"): [0.835938, 0.492188, 0.59375, 0.132812, 0.109375],
    ("uniform", "float32"): [0.308668, 0.09597, 0.37037, 0.393664, 0.888384],
    ("uniform", "float64"): [0.469341, 0.962964, 0.107069, 0.731161, 0.964511],
    ("normal", "float16"): [0.869629, 1.262695, 0.873047, -1.106445, -0.221313],
    ("normal", "float32"): [0.869551, 1.262879, 0.873173, -1.106378, -0.221283],
    ("normal", "float64"): [-0.283648, 1.196828, -2.099104, -0.249639, -0.264989],
    ("truncated_normal", "float32"): [0.869551, 1.262879, 0.873173, -1.106378, -0.352975],
    ("truncated_normal", "float64"): [-0.283648, 1.196828, -1.310843, 0.558684, 0.193237],
}


@pytest.mark.parametrize(("name", "dtype"), FLOATS)
def test_stateless_floats(name, dtype):
    drawn = getattr(tf.random, f"stateless_{name}")([3, 3], SEED, dtype=dtype)
    assert_close(np.asarray(drawn, np.float64).reshape(-1)[:5], FLOATS[name, dtype], **CLOSE)


def test_stateless_integers_and_seeds_of_seeds():
    draw = tf.random.stateless_uniform
    assert draw([9], SEED, -7, 100, "int32").numpy().tolist() == [52, 58, 86, 2, 71, 80, 0, 27, 35]
    assert draw([5], SEED, -7, 100, "int64").numpy().tolist() == [11, 26, 26, 23, 57]
    assert draw([2], SEED, None, None, "uint32").numpy().tolist() == [3248980587, 1091324095]
    wide = [4687201300610777707, -8344497684996986804]
    assert draw([2], SEED, None, None, "int64").numpy().tolist() == wide
    assert_close(draw([3], [-3, -5]), [0.813945, 0.190161, 0.432488], **CLOSE)
    assert_close(
        draw([3], np.array([2**40 + 3, -(2**50)])), [0.636065, 0.459988, 0.041207], **CLOSE
    )
    split = [[-1045986709, 1091324095], [145713228, -1942854767], [-1225673074, 1769365890]]
    assert tf.random.split(SEED, 3).numpy().tolist() == split
    assert tf.random.split(np.array(SEED), 1).numpy().tolist() == [wide]
    assert tf.random.fold_in(SEED, 7).numpy().tolist() == [-1045986709, 7]
    shuffled = tf.random.experimental.stateless_shuffle(np.arange(10), SEED)
    assert shuffled.numpy().tolist() == [7, 8, 6, 0, 4, 5, 3, 9, 1, 2]


BINOMIAL = [[3, 806], [5, 788], [2, 787], [5, 782], [2, 814], [5, 791], [2, 791], [6, 819]]
POISSON = [[3, 27], [0, 35], [4, 28], [4, 23], [3, 24], [4, 34], [4, 34], [4, 22], [6, 26]]


def test_stateless_rejection_sampling():
    few = tf.random.stateless_binomial([10, 2], SEED, [10.0, 1000.0], [0.3, 0.8])
    assert few.numpy()[:8].tolist() == BINOMIAL
    poisson = tf.random.stateless_poisson([10, 2], SEED, [3.0, 30.0])
    assert poisson.numpy()[:9].tolist() == POISSON
    gamma = tf.random.stateless_gamma([12, 3], SEED, [0.3, 1.0, 20.0]).numpy()
    # The first numbers belong to the first parameter.
    assert_close(gamma[:4, 0], [0.001565, 0.970817, 0.010775, 0.065351], rtol=1e-3)
    alone = tf.random.stateless_gamma([4], SEED, 20.0)
    assert_close(alone, [25.466036, 25.66696, 21.651033, 17.522388], **CLOSE)
    ones = tf.random.stateless_gamma([3], SEED, 1.0, dtype="float64")
    assert_close(ones, [3.295855, 0.025015, 1.645338], rtol=2e-5)
    logits = np.log(np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0], [0.3, 0.3, 0.4]]) + 1e-30)
    classes = tf.random.stateless_categorical(logits.astype(np.float32), 7, SEED)
    assert classes.numpy()[:2].tolist() == [[2, 2, 1, 2, 2, 2, 2], [0, 1, 0, 1, 0, 0, 1]]


GENERATOR = {
    "uniform": (([3],), [0.567016, 0.207709, 0.182239], 773),
    "normal": (([5],), [1.027852, 0.279741, -0.013479, 1.845181, 0.970611], 1285),
    "truncated_normal": (([4],), [1.027852, 0.279741, -0.013479, 1.845181], 1029),
    "uniform_full_int": (([2], "int64"), [511886651086640123, 6557199171514225562], 517),
    "binomial": (([7], 20.0, 0.3), [6, 6, 5, 6, 5, 8, 7], 128005),
    "make_seeds": ((2,), [[511886651086640123, 6557199171514225562], [0, 0]], 517),
}


@pytest.mark.parametrize("name", GENERATOR)
def test_generator_numbers_and_states_equal_tensorflow(name):
    arguments, values, counter = GENERATOR[name]
    generator = tf.random.Generator.from_seed(5)
    drawn = getattr(generator, name)(*arguments).numpy()
    if drawn.dtype.kind == "f":
        assert_close(drawn, values, **CLOSE)
    else:
        assert drawn.tolist() == values
    assert generator.state.numpy().tolist() == [counter, 0, 0]


def test_states_of_generators():
    generators = tf.random.Generator
    states = {5: [5, 0, 0], -5: [-5, -1, -1], 2**70 + 3: [3, 64, 0]}
    for seed, state in states.items():
        assert generators.from_seed(seed).state.numpy().tolist() == state
    assert generators.from_seed([1, 2]).state.numpy().tolist() == [0, 1, 2]
    assert generators.from_key_counter(7, [1, 9], "philox").state.numpy().tolist() == [1, 9, 7]
    generator = generators.from_seed(5)
    assert [g.state.numpy().tolist() for g in generator.split(2)] == [
        [0, 0, 511886651086640123],
        [0, 0, 6557199171514225562],
    ]
    generator.reset([7, 8, 9])
    assert (int(generator.key), generator.algorithm) == (9, 1)
    with pytest.raises(tf.errors.UnimplementedError, match="ThreeFry"):
        generators.from_seed(5, "threefry")
    with pytest.raises(ValueError, match="unsupported value foo"):
        generators.from_seed(5, "foo")
    # The state of earlier versions: two words of a key, and a counter.
    earlier = generators.from_state(np.array([1, 2, 3], np.uint32))
    assert earlier.state.numpy().tolist() == [3, 0, 1 << 32 | 2]


def calls(*seeds, times=2):
    return [tf.random.uniform([2], seed=s).numpy().tolist() for s in seeds for _ in range(times)]


def test_eager_ops_with_global_and_op_seeds():
    """The cases of `tf.random.set_seed`'s documentation that need no function."""
    tf.random.set_seed(7)
    unseeded = [tf.random.uniform([3]).numpy() for _ in range(2)]
    assert_close(unseeded[0], [0.834454, 0.233367, 0.879652], **CLOSE)
    assert_close(unseeded[1], [0.019053, 0.649655, 0.696207], **CLOSE)
    # One kernel advances by its output size; each of the others has a separate counter.
    assert_close(tf.random.uniform([3], seed=1), [0.460375, 0.928518, 0.345556], **CLOSE)
    assert_close(tf.random.normal([3], seed=1), [-0.540805, 1.122033, 1.174174], **CLOSE)
    assert_close(tf.random.uniform([3], seed=1)[:2], [0.377156, 0.392504], **CLOSE)
    assert_close(tf.random.normal([3], seed=1), [0.873119, -1.089888, 0.441364], **CLOSE)
    assert tf.random.uniform([3], 0, 100, "int32", seed=1).numpy().tolist() == [28, 71, 3]
    shuffled = [tf.random.shuffle(np.arange(10), seed=1).numpy().tolist() for _ in range(2)]
    assert shuffled == [[8, 1, 5, 7, 2, 0, 6, 9, 4, 3], [3, 6, 1, 5, 7, 8, 0, 4, 2, 9]]
    tf.random.set_seed(7)
    assert_close(tf.random.uniform([3], seed=1), [0.460375, 0.928518, 0.345556], **CLOSE)
    assert_close(tf.random.uniform([3]), unseeded[0])
    for seed, expected in {-1: [0.438408, 0.978375], 2**40 + 5: [0.064411, 0.503894]}.items():
        tf.random.set_seed(seed)
        assert_close(tf.random.uniform([2]), expected, **CLOSE)
    tf.random.set_seed(0)
    assert_close(tf.random.uniform([3], seed=0), [0.019757, 0.007042, 0.189872], **CLOSE)


def test_other_eager_ops():
    tf.random.set_seed(7)
    gammas = [tf.random.gamma([3], [0.5, 1.5], seed=1).numpy()[0] for _ in range(2)]
    assert_close(gammas, [[0.410033, 1.722382], [0.458347, 1.158282]], rtol=1e-4)
    counts = [tf.random.poisson([3], [0.5, 15.0], seed=1).numpy().tolist() for _ in range(2)]
    assert counts == [[[1, 11], [1, 12], [0, 14]], [[1, 12], [0, 12], [0, 14]]]
    true = tf.constant([[0], [3]], tf.int64)
    tf.random.set_seed(7)
    draw = tf.random.log_uniform_candidate_sampler
    sampled = [draw(true, 1, 5, True, 20, seed=s) for s in (None, None, 3, 3)]
    assert [s[0].numpy().tolist() for s in sampled] == [
        [6, 0, 2, 13, 1],
        [0, 4, 7, 5, 11],
        [0, 3, 18, 2, 8],
        [15, 3, 0, 6, 4],
    ]
    assert_close(sampled[1][2], [0.787765, 0.309624, 0.210796, 0.267838, 0.147733], **CLOSE)
    tf.random.set_seed(7)
    assert (tf.nn.dropout(tf.ones([9]), 0.4) > 0).numpy().tolist() == [1, 0, 1, 0, 1, 1, 1, 1, 1]
    tf.random.set_seed(7)
    images = np.arange(10.0, dtype=np.float32).reshape(5, 1, 2, 1)
    flipped = tf.image.random_flip_left_right(images).numpy()[:, 0, 0, 0] % 2
    assert flipped.tolist() == [1, 0, 1, 0, 1]
    tf.random.set_seed(7)
    crop = tf.image.random_crop(np.arange(24).reshape(4, 6, 1), [2, 2, 1])
    assert int(crop[0, 0, 0]) == 9


FIRST, SECOND = [0.753729, 0.077938], [0.460375, 0.928518]
AGAIN, SECOND_AGAIN = [0.397102, 0.684935], [0.740752, 0.292138]


def test_ops_of_functions_count_in_their_graph():
    @tf.function
    def drawn(x):
        total = tf.zeros([2])
        if x > 0:
            total = tf.random.uniform([2])
        for _ in tf.range(2):
            total += 10 * tf.random.uniform([2])
        one = tf.random.uniform([2])
        return total, one, tf.random.uniform([2]), tf.random.uniform([2], seed=1)

    tf.random.set_seed(7)
    f = drawn.get_concrete_function(tf.TensorSpec([], tf.int32))
    for _ in range(2):
        tf.random.set_seed(7)
        total, *others = f(tf.constant(1))
        assert_close(others, [FIRST, SECOND, SECOND], **CLOSE)
        # A branch and a loop have separate graphs.
        assert_close(total, np.array(FIRST) * 11 + np.array(AGAIN) * 10, **CLOSE)
    _, *others = f(tf.constant(1))
    assert_close(others, [AGAIN, SECOND_AGAIN, SECOND_AGAIN], **CLOSE)
    # Eager ops do not mind.
    assert_close(tf.random.uniform([2]), [0.834454, 0.233367], **CLOSE)


def test_random_ops_in_datasets_depend_on_the_element_index():
    tf.random.set_seed(7)
    wanted = [0.753729, 0.587602, 0.397102, 0.791504, 0.178159]
    for parallel in (None, 2):
        data = tf.data.Dataset.range(5).map(lambda _: tf.random.uniform([]), parallel)
        for _ in range(2):
            assert_close(list(data.as_numpy_iterator()), wanted, **CLOSE)


@pytest.mark.parametrize("count", [1, 3, 9, 1000])
@pytest.mark.parametrize("high, key", [(5, 7), (1 << 63, (1 << 64) - 3)])
def test_blocks_on_the_host_are_those_of_the_definition(count, high, key):
    low = np.random.default_rng(0).integers(0, 1 << 63, count, dtype=np.uint64) * 2 + 1
    found = philox_host._generate_blocks(low, high, key)
    blocks = [philox.generate_block(int(n), high, key) for n in low]
    np.testing.assert_array_equal(found, blocks)


def test_mapped_seeds_draw_the_numbers_of_single_seeds():
    seeds = np.arange(10).reshape(5, 2)
    expected = [tf.random.stateless_uniform([3], seed).numpy() for seed in seeds]
    draw = lambda seed: tf.random.stateless_uniform([3], seed)
    np.testing.assert_array_equal(tf.vectorized_map(draw, tf.constant(seeds)), expected)
    drawn = list(tf.data.Dataset.from_tensor_slices(seeds.reshape(-1)).batch(2).map(draw))
    np.testing.assert_array_equal(drawn, expected)
    assert tf.data.Dataset.range(4).batch(2).map(draw).element_spec.shape == [3]


def test_eager_keys_carry_into_the_high_half():
    stream = random_streams.SeedStream(0)
    stream.reset([-2, 4, 5])
    keys = [stream.next_key(3).numpy().tolist(), stream.next_key(1).numpy().tolist()]
    assert keys == [[-2, 4, 5], [1, 5, 5]] and stream.state.numpy().tolist() == [2, 5, 5]


@pytest.mark.parametrize(
    ("last", "seed", "indices", "positions"),
    [
        (9, [5, 9], range(10), [8, 0, 6, 3, 1, 5, 4, 7, 2, 9]),
        (2389, [74, 117], range(0, 2389, 477), [1956, 1382, 844, 1472, 2001, 1658]),
        (70000, [-1, 2**31 - 1], [0, 14000, 70000], [61453, 42867, 41189]),
        (2**33, [5, 9], [0, 1717986918, 2**33 - 2], [1369990276, 2942755886, 2781994325]),
    ],
)
def test_index_shuffle(last, seed, indices, positions):
    index = tf.constant(list(indices), tf.int64)
    found = tf.random.experimental.index_shuffle(index, seed, last)
    assert found.dtype == tf.int64 and found.numpy().tolist() == positions


def test_index_shuffle_of_scalars_and_rounds():
    shuffle = tf.raw_ops.RandomIndexShuffle
    found = [int(shuffle(index=i, seed=[74, 117, 42], max_index=129, rounds=8)) for i in range(4)]
    assert found == [13, 75, 103, 16]
    with pytest.raises(tf.errors.InvalidArgumentError, match="even and at least 4"):
        shuffle(index=1, seed=[1, 2, 3], max_index=9, rounds=5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"shape \[3\] or \[n, 3\]"):
        tf.random_index_shuffle(1, [1, 2], 9)
    with pytest.raises(TypeError, match="float32"):
        tf.random.experimental.index_shuffle(1, [1.0, 2.0], 9)
