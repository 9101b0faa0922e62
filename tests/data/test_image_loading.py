"""Test that map functions that load images return the same elements in groups as one by one."""

import numpy as np
import pytest

import meshflow as tf
from helpers import combine
from meshflow.core.runtime.seed_sequence import generate_states
from meshflow.data.execution.map_function import ElementFunction
from meshflow.kernels import images

pytest.importorskip("PIL")
D, E = tf.data.Dataset, tf.data.experimental


@pytest.fixture
def paths(tmp_path):
    """Smooth images of several sizes; the ninth is a PNG file, the tenth grey."""
    from PIL import Image

    rng, found = np.random.default_rng(0), []
    for n in range(21):
        coarse = Image.fromarray(rng.integers(0, 255, (4, 5, 3), np.uint8))
        image = coarse.resize((20 + 3 * n, 50 - n), Image.BICUBIC)
        path = tmp_path / f"{n:02}.{'png' if n == 8 else 'jpg'}"
        (image.convert("L") if n == 9 else image).save(path)
        found.append(str(path))
    return found


def run_elementwise(make, fn, monkeypatch):
    """Return the elements of `make(fn)` without recording."""
    with monkeypatch.context() as patch:
        patch.setattr(ElementFunction, "_find_plan", lambda self, on_host=False: False)
        data = make(fn)
        return [[np.asarray(leaf) for leaf in tf.nest.flatten(e)] for e in data.as_numpy_iterator()]


def assert_same(make, fn, monkeypatch, words="loads images"):
    tf.random.set_seed(5)
    data = make(fn)
    assert words in E.explain(data)
    found = [tf.nest.flatten(e) for e in data.as_numpy_iterator()]
    tf.random.set_seed(5)
    wanted = run_elementwise(make, fn, monkeypatch)
    assert len(found) == len(wanted) > 0
    for ours, theirs in zip(found, wanted, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert np.asarray(a).dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def decode_file(path):
    return tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)


def flip_randomly(path):
    image = tf.image.resize(decode_file(path), [16, 24]) / 255.0
    return tf.image.random_flip_up_down(tf.image.random_flip_left_right(image, seed=3))


def normalize_image(path):
    image = tf.image.convert_image_dtype(decode_file(path), tf.float32)
    mean = tf.constant([0.4, 0.5, 0.6])
    return (tf.image.resize(image, (16, 24)) - mean) / [0.2, 0.3, 0.4]


def scale_image(path):
    image = tf.image.random_flip_left_right(
        tf.cast(tf.image.resize(decode_file(path), [9, 9]), tf.float32)
    )
    return {"image": image * 2.0 - 1.0, "path": path}


def grey(path):
    return tf.image.resize(tf.io.decode_png(tf.io.read_file(path), channels=1), [12, 12])


def crop_image(path):
    middle = tf.image.central_crop(decode_file(path), 0.5)
    return tf.image.resize_with_crop_or_pad(middle, 20, 20), tf.image.resize(
        middle, [8, 8], "nearest"
    )


def middle(path):
    image = tf.image.convert_image_dtype(decode_file(path), tf.float32)
    return tf.image.resize(tf.image.central_crop(image, 0.6), [10, 12])


def augment_image(path):
    image = tf.image.random_crop(tf.image.resize(decode_file(path), [24, 28]), [16, 20, 3])
    image = tf.image.random_flip_up_down(tf.image.random_flip_left_right(image))
    return tf.image.random_brightness(image / 255.0, 0.2)


@pytest.mark.parametrize(
    ("fn", "calls"),
    combine([flip_randomly, normalize_image, scale_image, grey, middle, augment_image], [None, 2]),
)
def test_equals_elementwise_execution(fn, calls, paths, monkeypatch):
    assert_same(lambda f: D.from_tensor_slices(paths).map(f, calls), fn, monkeypatch)
    make = lambda f: D.from_tensor_slices(paths).map(f, calls).batch(6).prefetch(1)
    assert_same(make, fn, monkeypatch)


def test_other_ops_on_images_of_all_sizes(paths, monkeypatch):
    assert_same(
        lambda f: D.from_tensor_slices(paths).map(f).batch(4), crop_image, monkeypatch, "in groups"
    )


def test_kinds_of_png_files(tmp_path, monkeypatch):
    from PIL import Image, PngImagePlugin

    rng, paths = np.random.default_rng(1), []
    pixels = rng.integers(0, 255, (20, 30, 4), np.uint8)
    brightness = PngImagePlugin.PngInfo()
    brightness.add(b"gAMA", (30000).to_bytes(4, "big"))
    kinds = [("L", {}), ("RGB", {}), ("RGBA", {}), ("RGB", {"pnginfo": brightness}), ("P", {})]
    for n, (mode, options) in enumerate(kinds):
        paths.append(str(tmp_path / f"{n}.png"))
        source = Image.fromarray(pixels if mode == "RGBA" else pixels[..., :3].copy())
        source.convert(mode).save(paths[-1], **options)
    for fn in (flip_randomly, grey):
        assert_same(lambda f: D.from_tensor_slices(paths).map(f), fn, monkeypatch)
    found = np.asarray(next(D.from_tensor_slices(paths[1:]).map(resize_image).as_numpy_iterator()))
    np.testing.assert_array_equal(found, pixels[..., :3])


def resize_image(path):
    return tf.image.resize(decode_file(path), [20, 30])


def test_labels_from_paths(paths, monkeypatch):
    names = tf.constant(["1", "4", "7"])

    def load(path):
        last = tf.strings.split(path, "/")[-1]
        number = tf.strings.regex_replace(last, "[.].*|^.", "")
        return tf.image.resize(decode_file(path), [8, 8]), tf.argmax(number == names), last

    assert_same(lambda f: D.from_tensor_slices(paths).map(f).batch(5), load, monkeypatch)


def test_strings_at_once(monkeypatch):
    def change(text, number):
        clean = tf.strings.regex_replace(tf.strings.lower(text), "[!.]", "")
        return clean, tf.strings.length(clean) + number, tf.strings.regex_full_match(text, ".*!")

    texts = [f"Text {n}{'!' * (n % 3)}" for n in range(150)]
    make = lambda f: D.from_tensor_slices((texts, range(150))).map(f).batch(40)
    assert_same(make, change, monkeypatch, "vectorized")


def test_images_of_all_sizes_from_another_map(paths):
    data = (
        D.from_tensor_slices(paths)
        .map(decode_file, 2)
        .map(lambda image: tf.image.resize(image, [7, 9]), 2)
    )
    assert "in groups" in E.explain(data)
    assert data.element_spec == tf.TensorSpec([7, 9, 3], tf.float32)
    for path, found in zip(paths, data.as_numpy_iterator(), strict=True):
        wanted = tf.image.resize(decode_file(path).numpy(), [7, 9])
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_labels_and_surrounding_transformations(paths, monkeypatch):
    def load(path, label):
        return flip_randomly(path), tf.one_hot(label, 3)

    def make(f):
        data = D.from_tensor_slices((paths, np.arange(len(paths)) % 3)).shuffle(30, 1, False)
        data = data.shard(2, 1).repeat(3).map(f, tf.data.AUTOTUNE)
        return data.skip(2).take(20).batch(8, drop_remainder=True)

    assert_same(make, load, monkeypatch)


def test_images_in_records(paths, tmp_path, monkeypatch):
    pytest.importorskip("google.protobuf")
    train, file = tf.train, str(tmp_path / "a.tfrecord")
    with tf.io.TFRecordWriter(file) as writer:
        for n, path in enumerate(paths):
            with open(path, "rb") as image:
                feature = {
                    "image": train.Feature(bytes_list=train.BytesList(value=[image.read()])),
                    "label": train.Feature(int64_list=train.Int64List(value=[n])),
                }
            example = train.Example(features=train.Features(feature=feature))
            writer.write(example.SerializeToString())

    def parse(record):
        wanted = {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }
        found = tf.io.parse_single_example(record, wanted)
        image = tf.io.decode_image(found["image"], channels=3, expand_animations=False)
        return tf.image.resize(image, [10, 10]) / 127.5 - 1.0, found["label"]

    assert_same(lambda f: tf.data.TFRecordDataset(file).map(f).batch(5), parse, monkeypatch)


@pytest.mark.parametrize("fn", [middle, augment_image])
def test_without_compiled_loops(fn, paths, monkeypatch):
    tf.random.set_seed(7)
    data = D.from_tensor_slices(paths).map(fn)
    found = list(data.as_numpy_iterator())
    monkeypatch.setattr(images, "_find_compiled_loop", lambda: None)
    again = list(data.as_numpy_iterator())
    np.testing.assert_array_equal(found, again)


def test_batches_are_the_memory_that_images_were_loaded_to(paths):
    batches = list(D.from_tensor_slices(paths).map(grey).batch(5).as_numpy_iterator())
    assert [len(batch) for batch in batches] == [5, 5, 5, 5, 1]
    assert all(batch.base is not None for batch in batches)


def test_bad_files_fail_at_their_position(paths, tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8\xff nothing")
    listed = [*paths[:3], str(tmp_path / "bad.jpg"), paths[3], str(tmp_path / "none.jpg"), paths[4]]
    for calls in (None, 2):
        iterator = iter(D.from_tensor_slices(listed).map(flip_randomly, calls))
        for _ in range(3):
            next(iterator)
        with pytest.raises(tf.errors.InvalidArgumentError):
            next(iterator)
        next(iterator)
        with pytest.raises(tf.errors.NotFoundError, match=r"none\.jpg"):
            next(iterator)
        next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)
    left = D.from_tensor_slices(listed).map(flip_randomly).ignore_errors()
    assert len(list(left)) == 5


def test_iterator_is_resumed_in_the_middle(paths, tmp_path):
    data = D.from_tensor_slices(paths).shuffle(30).map(flip_randomly, 2).batch(4)
    iterator = iter(data)
    next(iterator)
    where = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "here"))
    wanted = [batch.numpy() for batch in iterator]
    other = iter(data)
    tf.train.Checkpoint(iterator=other).restore(where)
    found = [batch.numpy() for batch in other]
    assert len(found) == len(wanted) == 5
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "fn",
    [
        lambda path: decode_file(path).numpy().mean(),
        lambda path: tf.image.resize(decode_file(path), [4 + decode_file(path).shape[0] % 2, 4])[
            :4
        ],
        lambda path: tf.image.resize(decode_file(path), [4, 4]) + np.random.rand(),
        lambda path: (
            tf.image.resize(decode_file(path), [4, 4]) if tf.strings.length(path) > 3 else 0.0
        ),
        lambda path: tf.image.resize(decode_file(path), [4, 4]).numpy() * 2.0,
        lambda path: tf.image.resize(decode_file(path), [4, 4]) + float("jpg" in str(path)),
        lambda path: tf.image.resize(tf.io.decode_image(tf.io.read_file(path)), [4, 4]),
    ],
)
def test_unsupported_functions_run_unchanged(fn, paths):
    data = D.from_tensor_slices(paths[:3]).map(fn)
    assert "elements hold strings" in E.explain(data)
    assert len(list(data)) == 3
    first = np.asarray(next(data.as_numpy_iterator()))
    assert first.any()


def test_states_of_seed_sequences():
    numbers = np.array([0, 1, 77, 2**31])
    for words in ([], [3], [5, 2**32 - 1, 9]):
        for number, found in zip(numbers, generate_states(words, numbers, 6), strict=True):
            wanted = np.random.SeedSequence([*words, int(number)]).generate_state(6)
            np.testing.assert_array_equal(found, wanted)
