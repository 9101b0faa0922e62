"""Test properties without TensorFlow reference values: randomness, both execution modes, state,
threads, errors."""

import gzip
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshflow as tf
from meshflow.data.dataset import Dataset
from meshflow.data.execution.random_draws import RandomDraws
from meshflow.data.transformations import shuffle_blocks, shuffle_items

D = tf.data.Dataset


def values(dataset):
    return [e.tolist() for e in dataset.as_numpy_iterator()]


def test_shuffle_is_a_permutation_and_changes_every_pass():
    dataset = D.range(100).shuffle(100, seed=1)
    first, second = values(dataset), values(dataset)
    assert sorted(first) == sorted(second) == list(range(100)) and first != second
    fixed = D.range(100).shuffle(100, seed=1, reshuffle_each_iteration=False)
    assert values(fixed) == values(fixed)
    tf.random.set_seed(5)
    a = D.range(50).shuffle(50)
    tf.random.set_seed(5)
    b = D.range(50).shuffle(50)
    assert values(a) == values(b)
    epochs = np.array(values(D.range(20).shuffle(20, seed=2).repeat(3))).reshape(3, 20)
    assert len({tuple(e) for e in epochs}) == 3


def test_small_shuffle_buffer_keeps_elements_close():
    found = values(D.range(1000).shuffle(10, seed=1))
    assert sorted(found) == list(range(1000))
    # An element cannot be produced before the buffer has read it.
    assert all(number < place + 10 for place, number in enumerate(found))


@pytest.mark.parametrize("source", [range(4), list("abcd")], ids=["compiled", "eager"])
def test_seeded_maps_repeat_in_every_pass(source):
    def drawn(fn):
        dataset = D.from_tensor_slices(list(source)).map(lambda _: fn())
        return values(dataset), values(dataset), values(dataset.repeat(2))

    for fn in (lambda: tf.random.uniform([], seed=1), lambda: tf.random.normal([])):
        tf.random.set_seed(3)
        first, second, repeated = drawn(fn)
        assert first == second == repeated[:4]
        # The sequence continues within a pass.
        assert len(set(repeated)) == 8
    generator = tf.random.Generator.from_seed(1)
    first, second, _ = drawn(lambda: generator.uniform([]))
    assert first != second


def test_iterators_of_a_seeded_map_do_not_disturb_each_other():
    dataset = D.range(3).map(lambda _: tf.random.uniform([], seed=1))
    one, other = iter(dataset), iter(dataset)
    assert [float(next(one)) == float(next(other)) for _ in range(3)] == [True] * 3


def test_random_maps_do_not_depend_on_batching():
    def dataset():
        tf.random.set_seed(3)
        return D.range(6).map(lambda x: tf.random.uniform([]) + tf.cast(x, tf.float32))

    flat = [float(x) for x in dataset()]
    batched = np.concatenate([b.numpy() for b in dataset().batch(4)])
    np.testing.assert_array_equal(flat, batched)
    assert len(set(flat)) == 6


def test_saved_iterators_resume(tmp_path):
    dataset = D.range(20).shuffle(20).map(lambda x: x * 2).repeat(2).batch(3)
    iterator = iter(dataset)
    for _ in range(5):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(tmp_path / "ckpt")
    rest = [b.numpy().tolist() for b in iterator]
    again = iter(dataset)
    next(again)
    tf.train.Checkpoint(iterator=again).restore(path)
    assert [b.numpy().tolist() for b in again] == rest


def test_get_next_and_optionals():
    iterator = iter(D.range(2))
    assert int(iterator.get_next()) == 0
    assert int(iterator.get_next_as_optional().get_value()) == 1
    assert not iterator.get_next_as_optional().has_value()
    with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
        iterator.get_next()


def test_a_function_sees_the_end_of_an_iterator_as_an_empty_optional():
    data = tf.data.Dataset.range(3)

    @tf.function
    def next_or(iterator):
        optional = iterator.get_next_as_optional()
        return optional.get_value() if optional.has_value() else tf.constant(-1, tf.int64)

    iterator = iter(data)
    assert [int(next_or(iterator)) for _ in range(5)] == [0, 1, 2, -1, -1]
    assert int(tf.function(next_or.python_function)(iterator)) == -1

    @tf.function
    def total(iterator):
        found = tf.constant(0, tf.int64)
        optional = iterator.get_next_as_optional()
        while optional.has_value():
            found += optional.get_value()
            optional = iterator.get_next_as_optional()
        return found

    assert [int(total(iter(tf.data.Dataset.range(n)))) for n in (3, 5)] == [3, 10]


def test_optionals_are_made_of_values_and_of_specs():
    made = tf.experimental.Optional.from_value({"a": 1.0})
    assert made.has_value() and made.get_value()["a"].numpy() == 1
    assert made.element_spec == {"a": tf.TensorSpec([])}
    empty = tf.experimental.Optional.empty(tf.TensorSpec([2]))
    assert not empty.has_value() and empty.element_spec == tf.TensorSpec([2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not have a value"):
        empty.get_value()


def test_fit_evaluate_and_predict():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(48, 3)).astype("float32")
    y = x @ np.array([[1.0], [2.0], [3.0]], "float32")

    def model():
        tf.keras.utils.set_random_seed(1)
        built = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
        built.compile(tf.keras.optimizers.SGD(0.1), "mse")
        return built

    dataset = D.from_tensor_slices((x, y)).batch(16)
    one, other = model(), model()
    history = one.fit(dataset.prefetch(2), epochs=3, validation_data=dataset, verbose=0)
    wanted = other.fit(x, y, batch_size=16, shuffle=False, epochs=3, verbose=0)
    np.testing.assert_allclose(history.history["loss"], wanted.history["loss"], rtol=1e-6)
    assert one.predict(dataset.map(lambda a, b: a), verbose=0).shape == (48, 1)
    endless = dataset.repeat()
    one.fit(endless, steps_per_epoch=2, epochs=2, verbose=0)
    with pytest.raises(ValueError, match="specify the number of steps"):
        one.fit(endless, verbose=0)


def test_custom_loops_inside_tf_function():
    @tf.function
    def double(x):
        return x * 2

    total = 0.0
    for x, _ in D.from_tensor_slices((np.ones((6, 2), "float32"), np.zeros(6))).batch(4):
        total += float(tf.reduce_sum(double(x)))
    assert total == 24.0


def test_reduce_and_single_elements():
    assert int(D.range(5).reduce(tf.constant(0, tf.int64), lambda s, x: s + x)) == 10
    state = D.range(4).reduce(
        (tf.constant(0, tf.int64), tf.constant(1, tf.int64)), lambda s, x: (s[0] + x, s[1] * 2)
    )
    assert [int(v) for v in state] == [6, 16]
    assert int(D.range(1).get_single_element()) == 0
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than one element"):
        D.range(2).get_single_element()


def test_sampling_and_resampling():
    mixed = D.sample_from_datasets(
        [D.from_tensors(0).repeat(), D.from_tensors(1).repeat()], [0.2, 0.8], seed=1
    )
    share = np.mean(values(mixed.take(2000)))
    assert 0.76 < share < 0.84
    classes = D.from_tensor_slices(np.arange(4000) % 10 == 0).map(lambda b: tf.cast(b, tf.int32))
    even = classes.rejection_resample(lambda c: c, [0.5, 0.5], seed=2)
    share = np.mean([int(c) for c, _ in even])
    assert 0.4 < share < 0.6


def test_text_and_fixed_records(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\nt\rwo\n")
    with gzip.open(tmp_path / "b.gz", "wb") as file:
        file.write(b"th\rree\n")
    names = tf.data.Dataset.list_files(str(tmp_path / "*.txt"), shuffle=False)
    # TensorFlow removes carriage returns inside of lines, too.
    assert list(tf.data.TextLineDataset(names).as_numpy_iterator()) == [b"one", b"two"]
    zipped = tf.data.TextLineDataset(str(tmp_path / "b.gz"), "GZIP")
    assert list(zipped.as_numpy_iterator()) == [b"three"]
    (tmp_path / "r.bin").write_bytes(b"HHaabbccF")
    records = tf.data.FixedLengthRecordDataset(str(tmp_path / "r.bin"), 2, 2, 1)
    assert list(records.as_numpy_iterator()) == [b"aa", b"bb", b"cc"]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Excess bytes in .*r\.bin"):
        list(tf.data.FixedLengthRecordDataset(str(tmp_path / "r.bin"), 2))
    with pytest.raises(tf.errors.NotFoundError, match=r"missing.txt"):
        list(tf.data.TextLineDataset(str(tmp_path / "missing.txt")))
    with pytest.raises(tf.errors.InvalidArgumentError, match="No files matched pattern"):
        tf.data.Dataset.list_files(str(tmp_path / "*.none"))


def test_cache_runs_once_in_memory_and_in_a_file(tmp_path):
    calls = []

    def generator():
        calls.append(1)
        yield from range(3)

    source = D.from_generator(generator, tf.int32)
    for cached in (source.cache(), source.cache(str(tmp_path / "kept"))):
        calls.clear()
        assert values(cached) == values(cached) == [0, 1, 2] and len(calls) == 1
    again = source.cache(str(tmp_path / "kept"))
    calls.clear()
    assert values(again) == [0, 1, 2] and not calls


def test_options_merge():
    options = tf.data.Options()
    options.deterministic = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    found = D.range(2).with_options(options).batch(1).options()
    assert found.deterministic is False
    assert found.experimental_distribute.auto_shard_policy.name == "OFF"
    with pytest.raises(AttributeError, match="Cannot set the property 'determinstic'"):
        options.determinstic = True


def test_explain_names_reasons():
    text = tf.data.experimental.explain(
        D.from_tensor_slices(["7"])
        .map(lambda s: tf.strings.to_number(str(s.numpy(), "utf8")))
        .filter(lambda n: n > 0)
        .batch(2)
    )
    assert "Filter: one element at a time" in text and "its elements hold strings" in text


def test_threads_end_when_iteration_stops():
    def threads():
        return [t for t in threading.enumerate() if t.name == "tf.data prefetch"]

    before = len(threads())
    for i, _ in enumerate(D.range(10**6).prefetch(4)):
        if i == 3:
            break
    iterator = iter(D.range(10**6).prefetch(4))
    next(iterator)
    iterator.close()

    def failing():
        yield 1
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        list(D.from_generator(failing, tf.int32).prefetch(2))
    for _ in range(100):
        if len(threads()) <= before:
            break
        time.sleep(0.05)
    assert len(threads()) <= before


def test_threads_share_an_iterator():
    entered, released = threading.Event(), threading.Event()

    def generate():
        entered.set()
        released.wait(10)
        yield from range(4)

    spec = tf.TensorSpec([], tf.int32)
    iterator = iter(tf.data.Dataset.from_generator(generate, output_signature=spec))
    taken = []
    thread = threading.Thread(target=lambda: taken.append(int(next(iterator))))
    thread.start()
    assert entered.wait(10)
    threading.Timer(0.05, released.set).start()
    taken.append(int(next(iterator)))  # waits for the other thread, which is inside the generator
    thread.join(10)
    assert sorted(taken) == [0, 1]


def test_bad_input():
    with pytest.raises(ValueError, match=r"Dimensions \[2, 3\] are not compatible"):
        D.from_tensor_slices(([1, 2], [1, 2, 3]))
    with pytest.raises(ValueError, match="got a scalar"):
        D.from_tensor_slices(1)

    def failing():
        yield 1
        yield 2
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost") as caught:
        list(D.from_generator(failing, tf.int32))
    assert "element 2" in "".join(caught.value.__notes__)
    with pytest.raises(TypeError, match=r"could not be converted .* int32.*'x' \(element 0\)"):
        list(D.from_generator(lambda: ["x"], tf.int32))
    with pytest.raises(TypeError, match=r"element of shape \(2,\) where .* \(3,\)"):
        list(D.from_generator(lambda: [[1, 2]], tf.int32, [3]))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="Cannot batch tensors with different shapes"
    ):
        list(D.range(1, 3).map(lambda x: tf.range(x)).batch(2))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="Batch size must be greater than zero"
    ):
        D.range(3).batch(0)
    with pytest.raises(TypeError, match="must return a `Dataset` object"):
        list(D.range(3).flat_map(lambda x: x))
    with pytest.raises(TypeError, match="The dataset is infinite"):
        len(D.range(3).repeat())
    with pytest.raises(TypeError, match="The dataset length is unknown"):
        len(D.range(3).filter(lambda x: x > 1))
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected to contain 2 elements"):
        list(D.range(3).apply(tf.data.experimental.assert_cardinality(2)))


def test_transformations_return_datasets():
    dataset = D.range(2).map(lambda x: x)
    assert isinstance(dataset, tf.data.Dataset) and isinstance(dataset, Dataset)
    assert bool(D.range(0)) and "element_spec" in repr(dataset)


def test_printed_names_are_tensorflows():
    slices = tf.data.Dataset.from_tensor_slices([1, 2])
    assert str(slices).startswith("<_TensorSliceDataset element_spec=TensorSpec(shape=(), ")
    assert str(slices.map(lambda x: x).batch(2)).startswith("<_BatchDataset element_spec=")
    assert str(tf.data.Dataset.zip((slices, slices))).startswith("<_ZipDataset element_spec=(")


@given(count=st.integers(0, 60), buffer=st.integers(1, 70), block=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_blocks_are_shuffled_as_elements_are(count, buffer, block):
    numbers = np.arange(count)
    one_by_one = shuffle_items(iter(numbers.tolist()), buffer, RandomDraws([1, 7], 0))
    blocks = (numbers[i : i + block] for i in range(0, count, block))
    found = list(shuffle_blocks(blocks, buffer, RandomDraws([1, 7], 0)))
    assert [int(i) for b in found for i in b] == list(one_by_one)


def test_a_function_in_a_map_may_have_results_of_any_size():
    @tf.function
    def cropped(image):
        size = tf.random.uniform([], 1, 4, tf.int32)
        if size == 0:
            size += 1
        return tf.image.pad_to_bounding_box(
            tf.image.crop_to_bounding_box(image, 1, 0, size, 2), 0, 0, 4, 4
        )

    images = np.ones((3, 4, 4, 1), "float32")
    data = tf.data.Dataset.from_tensor_slices(images).map(lambda x: cropped(x) + 1.0).batch(3)
    (batch,) = data
    assert batch.shape == (3, 4, 4, 1)
    assert set(batch.numpy().sum((1, 2, 3)).astype(int)) <= {16 + 2 * n for n in (1, 2, 3)}


def test_elements_do_not_change_with_the_arrays():
    rows, labels = np.zeros((3, 2), "float32"), np.zeros(3, "int64")
    frame = pytest.importorskip("pandas").DataFrame({"a": labels})
    datasets = [
        tf.data.Dataset.from_tensor_slices(rows),
        tf.data.Dataset.from_tensor_slices({"x": rows, "y": labels}).map(lambda d: d["x"]),
        tf.data.Dataset.from_tensors((rows, labels)),
        tf.data.Dataset.from_tensor_slices(frame["a"]),
        tf.data.Dataset.from_tensor_slices(dict(frame)),
        tf.keras.utils.timeseries_dataset_from_array(rows, labels, 2),
    ]
    rows += 1
    labels += 1
    frame.iloc[:, 0] = 1
    for dataset in datasets:
        for array in tf.nest.flatten(next(iter(dataset))):
            assert not array.numpy().any()
