"""Test batches of array rows: their values do not depend on prefetching or on the references to
batches."""

import threading

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshflow as tf
from meshflow.data.epoch import Epoch

D = tf.data.Dataset
IMAGES = np.random.default_rng(0).integers(0, 255, (3000, 20, 20), np.uint8)
LABELS = np.arange(3000)


def scale_images(x):
    return tf.cast(x, tf.float32) / 255


def make_pipeline(dataset, kind):
    """Pipelines of images and their numbers, each by another way."""
    if kind == "map, batch":
        return dataset.map(lambda x, y: (scale_images(x), y)).shuffle(900).batch(64)
    if kind == "batch, map":
        return dataset.shuffle(900).batch(64).map(lambda x, y: (scale_images(x), y))
    if kind == "full batches, map":
        return (
            dataset.repeat(2).batch(50, drop_remainder=True).map(lambda x, y: (scale_images(x), y))
        )
    if kind == "small":
        return dataset.map(lambda x, y: (scale_images(x), y)).shuffle(900).batch(5)
    if kind == "dictionaries":
        named = (
            dataset.map(lambda x, y: {"label": y, "image": scale_images(x)}).shuffle(900).batch(64)
        )
        return named.map(lambda e: (e["image"], e["label"]))
    assert kind == "prefetched"
    return dataset.map(lambda x, y: (scale_images(x), y)).shuffle(900).batch(64).prefetch(3)


KINDS = [
    "map, batch",
    "batch, map",
    "full batches, map",
    "small",
    "dictionaries",
    "prefetched",
]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(KINDS), st.data())
def test_stored_batches_are_not_overwritten(kind, data):
    count = data.draw(st.integers(100, 1500))
    keep = data.draw(st.lists(st.booleans(), min_size=1, max_size=9))
    stop = data.draw(st.integers(1, 40))
    dataset = make_pipeline(D.from_tensor_slices((IMAGES[:count], LABELS[:count])), kind)
    kept = []
    for number, (images, labels) in enumerate(dataset):
        if keep[number % len(keep)]:
            # As a tensor, as a NumPy view of it, and as a result computed from it.
            part = np.asarray(images._value)[1:] if number % 2 else images
            kept.append((part, labels, tf.reduce_sum(images)))
        if number == stop:
            break
    for images, labels, total in kept:
        wanted = IMAGES[labels.numpy()].astype(np.float32) / np.float32(255)
        offset = len(wanted) - len(images)
        np.testing.assert_array_equal(images, wanted[offset:])
        np.testing.assert_allclose(float(total), wanted.sum(), rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_pending_computations_keep_dropped_batches(kind):
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 30, lambda i, v: v + x * 0, x).sum())
    dataset = make_pipeline(D.from_tensor_slices((IMAGES, LABELS)), kind)
    started = [(slow(images._value), labels) for images, labels in dataset]
    for total, labels in started:
        wanted = (IMAGES[labels.numpy()].astype(np.float32) / np.float32(255)).sum()
        np.testing.assert_allclose(float(total), wanted, rtol=1e-4)
    seen = np.sort(np.concatenate([labels for _, labels in started]))
    np.testing.assert_array_equal(np.unique(seen), LABELS)


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_early_and_beginning_again(kind):
    dataset = make_pipeline(D.from_tensor_slices((IMAGES, LABELS)), kind)
    for _ in range(20):
        iterator = iter(dataset)
        images, labels = next(iterator)
        following = next(iterator)
        iterator.close()
        del iterator
        for x, y in ((images, labels), following):
            wanted = IMAGES[y.numpy()].astype(np.float32) / np.float32(255)
            np.testing.assert_array_equal(x, wanted)


def test_map_of_batches_overlaps_gathering():
    source = D.from_tensor_slices((IMAGES, LABELS))
    dataset = source.batch(64).map(lambda x, y: (scale_images(x), y))
    total = sum(len(y) for _, y in dataset)
    text = tf.data.experimental.explain(dataset)
    assert total == 3000
    # Each batch was created once, although nobody else read it.
    assert "47 elements" in text.splitlines()[1] and "3,000 elements" in text.splitlines()[2]


def test_zipped_arrays_are_gathered_as_one_source():
    images, labels = D.from_tensor_slices({"a": IMAGES, "b": -LABELS}), D.from_tensor_slices(LABELS)
    both = D.zip((labels, images))
    mapped = both.map(lambda y, e: (scale_images(e["a"]), e["b"], y, scale_images(e["a"]) - 1))
    assert mapped.parents[0].vectorize(Epoch(both)).gather_affine is not None
    count = 0
    for image, negative, label, shifted in mapped.shuffle(500).batch(70):
        wanted = IMAGES[label.numpy()].astype(np.float32) / np.float32(255)
        np.testing.assert_array_equal(image, wanted)
        np.testing.assert_array_equal(shifted, wanted - np.float32(1))
        np.testing.assert_array_equal(negative, -label.numpy())
        count += len(label)
    assert count == 3000
    text = tf.data.experimental.explain(mapped)
    assert text.count("3,000 elements") == 4


def test_constants_of_a_batch_are_no_constants_of_its_rows():
    weights = tf.constant(np.arange(8.0, dtype=np.float32))[:, None]
    values = np.arange(32, dtype=np.uint8).reshape(16, 2)
    dataset = D.from_tensor_slices(values).batch(8, drop_remainder=True)
    found = list(dataset.map(lambda x: tf.cast(x, tf.float32) * weights))
    wanted = values.reshape(2, 8, 2) * weights.numpy()
    np.testing.assert_array_equal(found, wanted)


def test_prefetched_batches_of_arrays_need_no_thread(monkeypatch):
    monkeypatch.setattr("meshflow.kernels.row_gather._count_threads", lambda: 2)
    dataset = make_pipeline(D.from_tensor_slices((IMAGES, LABELS)), "map, batch").prefetch(4)
    elements = dataset.iter_elements(Epoch(dataset))
    next(elements)
    names = [t.name for t in threading.enumerate()]
    elements.close()
    from meshflow.kernels import row_gather

    assert ("tf.data prefetch" in names) == (row_gather._load_loops() is None)


def test_batches_that_python_makes_are_prefetched_by_a_thread():
    made = []

    def images():
        for number in range(20):
            made.append(number)
            yield np.full((30, 30), number, np.uint8)

    spec = tf.TensorSpec((30, 30), tf.uint8)
    dataset = D.from_generator(images, output_signature=spec).batch(2).prefetch(3)
    iterator = iter(dataset)
    next(iterator)
    for _ in range(200):
        if len(made) >= 8:
            break
        threading.Event().wait(0.01)
    # One delivered batch, three in the queue, and one in progress.
    assert 8 <= len(made) <= 10
    assert [int(b[0, 0, 0]) for b in iterator] == list(range(2, 20, 2))
