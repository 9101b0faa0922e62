"""Images changed at random against Keras."""

import json
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from reference.augment_cases import CASES, run
from reference.folder_cases import make_files

FOUND = json.loads((Path(__file__).parents[2] / "reference" / "augment.json").read_text())
image = tf.keras.preprocessing.image


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    make_files(folder)
    return folder


def close(own, wanted, path="result"):
    if isinstance(wanted, dict):
        assert own.keys() == wanted.keys(), path
        for key in wanted:
            close(own[key], wanted[key], f"{path}[{key!r}]")
    elif (
        isinstance(wanted, list) and wanted and isinstance(wanted[0], str) and wanted[0][0] in "<|"
    ):
        assert own[1] == wanted[1], path
        assert np.dtype(own[0]).kind == np.dtype(wanted[0]).kind, path
        np.testing.assert_allclose(own[2], wanted[2], rtol=1e-4, atol=2e-3, err_msg=path)
    elif isinstance(wanted, list):
        assert len(own) == len(wanted), path
        for number, (mine, theirs) in enumerate(zip(own, wanted, strict=True)):
            close(mine, theirs, f"{path}[{number}]")
    elif isinstance(wanted, float):
        np.testing.assert_allclose(own, wanted, rtol=1e-9, err_msg=path)
    else:
        assert own == wanted, path


@pytest.mark.parametrize("text", CASES)
def test_case(text, files, monkeypatch):
    monkeypatch.chdir(files)
    own, wanted = run(tf, text), FOUND[text]
    if isinstance(wanted, dict) and "error" in wanted:
        assert set(own["error"]) & set(wanted["error"])
    else:
        close(json.loads(json.dumps(own)), wanted)


def test_warnings():
    with pytest.warns(UserWarning, match="featurewise_center"):
        generator = image.ImageDataGenerator(featurewise_std_normalization=True)
    with pytest.warns(UserWarning, match="hasn't been fit"):
        generator.standardize(np.ones((2, 2, 3)))
    with pytest.warns(UserWarning, match="overrides"):
        image.ImageDataGenerator(samplewise_std_normalization=True)
    with pytest.warns(UserWarning, match="1, 3 or 4 channels"):
        image.ImageDataGenerator().flow(np.ones((2, 4, 4, 2)))


def test_names_that_are_not_files(files):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"filename": ["cats/a.png", "none.png"], "class": ["x", "y"]})
    with pytest.warns(UserWarning, match="1 invalid image filename"):
        rows = image.DataFrameIterator(frame, files / "images", image.ImageDataGenerator())
    assert rows.samples == 1 and rows.filepaths == [str(files / "images" / "cats" / "a.png")]


def test_changed_images_are_written(files, tmp_path):
    generator = image.ImageDataGenerator(rotation_range=5)
    batches = generator.flow_from_directory(
        files / "images", (4, 4), batch_size=3, save_to_dir=tmp_path, save_prefix="x"
    )
    assert isinstance(batches, image.DirectoryIterator) and isinstance(batches, image.Iterator)
    next(batches)
    assert len(list(tmp_path.glob("x_*.png"))) == 3


def test_fit_on_changed_images(files):
    generator = image.ImageDataGenerator(rescale=1 / 255, horizontal_flip=True)
    names = ["birds", "cats", "dogs"]
    flow = generator.flow_from_directory(
        files / "images", (4, 4), classes=names, batch_size=4, seed=1
    )
    layers = [tf.keras.layers.Flatten(), tf.keras.layers.Dense(3, "softmax")]
    model = tf.keras.Sequential(layers)
    model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(flow, epochs=2, verbose=0, validation_data=flow).history
    assert np.isfinite(history["val_loss"]).all()
    assert model.predict(flow, verbose=0).shape == (7, 3)
    rows = tf.data.Dataset.from_generator(
        lambda: (flow[i] for i in range(len(flow))),
        output_signature=(
            tf.TensorSpec([None, 4, 4, 3], tf.float32),
            tf.TensorSpec([None, 3], tf.float32),
        ),
    )
    assert sum(len(x) for x, _ in rows) == 7
