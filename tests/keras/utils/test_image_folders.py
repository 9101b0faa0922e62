"""Datasets of folders and series against Keras'."""

import json
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from reference.folder_cases import CASES, make_files, run

FOUND = json.loads((Path(__file__).parents[2] / "reference" / "folders.json").read_text())
utils = tf.keras.utils


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folders")
    make_files(folder)
    return folder


@pytest.fixture
def folder(files, monkeypatch):
    monkeypatch.chdir(files)
    return files


@pytest.mark.parametrize("text", CASES)
def test_case(text, folder):
    own, wanted = run(tf, text), FOUND[text]
    if "error" in wanted:
        assert set(own.get("error", ())) & set(wanted["error"]), own
        return
    assert own.get("names") == wanted["names"]
    assert len(own["leaves"]) == len(wanted["leaves"])
    for found, leaf in zip(own["leaves"], wanted["leaves"], strict=True):
        if leaf[0][-1] == "O" or leaf[0][1] == "S":
            assert found[1:] == leaf[1:]
        else:
            assert found[:2] == leaf[:2]
            np.testing.assert_allclose(found[2], leaf[2], rtol=2e-4, atol=2e-3)


def test_shuffled_files_and_labels_correspond(folder):
    def seen(seed, **kwargs):
        data = utils.text_dataset_from_directory("texts", seed=seed, batch_size=2, **kwargs)
        return [
            (t.decode(), int(y))
            for texts, labels in data
            for t, y in zip(texts.numpy().tolist(), labels.numpy(), strict=True)
        ]

    wanted = [(f"{n} text {i}\n", y) for y, n in enumerate(("neg", "pos")) for i in range(3)]
    assert sorted(seen(1)) == wanted
    assert len({tuple(seen(seed)) for seed in range(4)}) > 1
    parts = [seen(7, validation_split=0.4, subset=s) for s in ("training", "validation")]
    assert [len(p) for p in parts] == [4, 2] and sorted(parts[0] + parts[1]) == wanted
    both = utils.text_dataset_from_directory(
        "texts", seed=7, validation_split=0.4, subset="both", batch_size=None, verbose=False
    )
    assert [len(d) for d in both] == [4, 2]
    assert {t.numpy().decode() for t, _ in both[1]} == {t for t, _ in parts[1]}


def test_number_of_files_is_printed(folder, capsys):
    utils.image_dataset_from_directory("images", validation_split=0.3, subset="training", seed=1)
    assert capsys.readouterr().out == (
        "Found 7 files belonging to 3 classes.\nUsing 5 files for training.\n"
    )


def test_names_and_paths_and_spec(folder):
    data = utils.image_dataset_from_directory("images", image_size=(4, 4), shuffle=False)
    assert data.class_names == ["birds", "cats", "dogs"]
    assert [Path(p).name for p in data.file_paths][:3] == ["0.png", "a.png", "b.png"]
    assert data.element_spec == (
        tf.TensorSpec([None, 4, 4, 3], tf.float32),
        tf.TensorSpec([None], tf.int32),
    )
    preprocessing = tf.keras.preprocessing
    assert preprocessing.image_dataset_from_directory is utils.image_dataset_from_directory
    assert preprocessing.sequence.pad_sequences is utils.pad_sequences


def test_damaged_image_is_named(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(b"no image")
    data = utils.image_dataset_from_directory(str(tmp_path))
    with pytest.raises(ValueError, match=r"x\.png"):
        list(data)


def test_fit_on_a_folder(folder):
    data = utils.image_dataset_from_directory("images", image_size=(4, 4), seed=1, batch_size=4)
    layers = [tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)]
    model = tf.keras.Sequential(layers)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    history = model.fit(data.map(lambda x, y: (x / 255, y)), epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()


def test_images_on_disk(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (5, 4, 3)).astype("float32")
    utils.save_img(tmp_path / "a.png", pixels, scale=False)
    np.testing.assert_array_equal(utils.img_to_array(utils.load_img(tmp_path / "a.png")), pixels)
    with pytest.warns(UserWarning, match="transparency"):
        utils.save_img(tmp_path / "b", np.ones((2, 2, 4)), file_format="jpg")


def test_host_and_compiled_resizing_agree():
    image = np.random.default_rng(2).integers(0, 256, (13, 9, 3)).astype(np.uint8)
    for method in ("bilinear", "nearest", "bicubic", "area", "lanczos3", "mitchellcubic"):
        for size in ((5, 4), (30, 20), (13, 9), (13, 4)):
            host = tf.image.resize(image, size, method)
            compiled = tf.image.resize(image[None], size, method)[0]
            assert host.dtype == compiled.dtype
            np.testing.assert_allclose(host, compiled, rtol=1e-5, atol=1e-3)
    x = tf.constant(image, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.image.resize(x, (5, 4)))
    np.testing.assert_allclose(tf.reduce_sum(tape.gradient(y, x)), 60, rtol=1e-5)


def test_split_dataset():
    split = utils.split_dataset
    left, right = split(np.arange(10), left_size=0.6)
    assert [int(x) for x in left] == list(range(6)) and [int(x) for x in right] == [6, 7, 8, 9]
    left, right = split({"a": np.arange(5), "b": np.ones((5, 2))}, right_size=2)
    assert len(left) == 3 and [int(e["a"]) for e in right] == [3, 4]
    left, right = split((np.arange(6), np.arange(6)), 2, 2, shuffle=True, seed=1)
    parts = [[int(x) for x, _ in part] for part in (left, right)]
    assert [len(p) for p in parts] == [2, 2] and not set(parts[0]) & set(parts[1])
    assert [[int(x) for x, _ in part] for part in (left, right)] == parts
    odd = tf.data.Dataset.range(9).filter(lambda x: x % 2 == 1)
    assert [[int(x) for x in part] for part in split(odd, 1)] == [[1], [3, 5, 7]]
    assert [len(p) for p in split([1, 2, 3], 1)] == [1, 2]
    for sizes in ((None, None), (0.0, None), (11, None), (6, 6), (None, 1.5)):
        with pytest.raises(ValueError, match="size"):
            split(np.arange(10), *sizes)
    with pytest.raises(TypeError, match="left_size"):
        split(np.arange(10), "half")
    with pytest.raises(TypeError, match="dataset"):
        split(3, 1)
    with pytest.raises(ValueError, match="infinite"):
        split(tf.data.Dataset.range(2).repeat(), 1)


def test_to_ordinal():
    assert utils.to_ordinal([0, 3, 1], dtype="int32").tolist() == [[0, 0, 0], [1, 1, 1], [1, 0, 0]]
    assert utils.to_ordinal([[1], [0]], num_classes=3).tolist() == [[1, 0], [0, 0]]


def test_sounds(tmp_path):
    for label, sizes in (("a", (3, 5)), ("b", (4,))):
        (tmp_path / label).mkdir()
        for size in sizes:
            sound = np.full([size, 2], size / 8, np.float32)
            tf.io.write_file(
                str(tmp_path / label / f"{size}.wav"), tf.audio.encode_wav(sound, 8000)
            )
    make = tf.keras.utils.audio_dataset_from_directory
    data = make(tmp_path, shuffle=False)
    sounds, labels = next(iter(data))
    assert sounds.shape == [3, 5, 2] and sounds.dtype is tf.float32
    assert sounds.numpy()[:, :, 0].sum(1).tolist() == [9 / 8, 25 / 8, 2.0]
    assert labels.numpy().tolist() == [0, 0, 1] and data.class_names == ["a", "b"]
    fixed = make(tmp_path, output_sequence_length=4, batch_size=2, label_mode=None)
    assert fixed.element_spec.shape.as_list() == [None, 4, None]
    assert [batch.shape.as_list() for batch in fixed] == [[2, 4, 2], [1, 4, 2]]
    both = make(tmp_path, validation_split=0.4, subset="both", seed=1)
    assert sum(len(d.file_paths) for d in both) == 3
    ragged, _ = next(iter(make(tmp_path, ragged=True, shuffle=False)))
    assert ragged.row_lengths().numpy().tolist() == [3, 5, 4]
