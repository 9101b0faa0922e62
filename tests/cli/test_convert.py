"""`meshflow convert`: TensorFlow's SavedModels, and models in files, for LiteRT and ONNX Runtime."""

import numpy as np
import pytest
from typer.testing import CliRunner

import meshflow as tf
from meshflow.cli.commands import app


def run(*words):
    return CliRunner().invoke(app, ["convert", *map(str, words)])


def by_onnx(path, x):
    session = pytest.importorskip("onnxruntime").InferenceSession(
        str(path), providers=["CPUExecutionProvider"]
    )
    (given,) = session.get_inputs()
    return session.run(None, {given.name: x})[0]


def by_litert(path, x):
    runner = tf.lite.Interpreter(model_path=str(path)).get_signature_runner()
    (name,) = runner.get_input_details()
    (found,) = runner(**{name: x}).values()
    return found


@pytest.mark.parametrize(("form", "needs"), [("onnx", "onnx"), ("tflite", "ai_edge_litert")])
@pytest.mark.parametrize("folder", ["lstm_export", "subclassed_save", "cnn_save"])
def test_converted_models_reproduce_tensorflow_outputs(folder, form, needs, stored, tmp_path):
    pytest.importorskip(needs, reason=f"needs the extra of {form}")
    path = tmp_path / f"model.{form}"
    result = run(stored / folder, path)
    assert result.exit_code == 0, result.output
    with np.load(stored / f"{folder.split('_')[0]}.npz", allow_pickle=True) as file:
        x, y = file["x"], file["y"]
    for rows in (len(x), 1):
        found = (by_onnx if form == "onnx" else by_litert)(path, x[:rows])
        np.testing.assert_allclose(found, y[:rows], atol=1e-6)


def test_a_models_file_and_weights_of_fewer_bits(tmp_path):
    pytest.importorskip("ai_edge_litert", reason="needs the extra lite")
    model = tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(64)])
    model.save(tmp_path / "model.keras")
    sizes = {}
    for weights in ("float32", "float16", "int8"):
        path = tmp_path / f"{weights}.tflite"
        assert run(tmp_path / "model.keras", path, "--weights", weights).exit_code == 0
        sizes[weights] = path.stat().st_size
    assert sizes["int8"] < 0.5 * sizes["float16"] + 4096 < 0.5 * sizes["float32"] + 4096


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{}/text_save", "x.onnx"], "preprocessed on the host"),
        (["{}/nothing", "x.tflite"], "nothing"),
        (["{}/cnn_save", "x.onnx", "--signature", "other"], "no signature 'other'"),
    ],
)
def test_conversion_failure_is_one_line(words, said, stored, tmp_path, monkeypatch):
    pytest.importorskip("onnx", reason="needs the extra onnx")
    monkeypatch.chdir(tmp_path)
    result = run(*(word.format(stored) for word in words))
    assert result.exit_code == 1 and said in result.output
    assert not list(tmp_path.iterdir())


def test_other_words_are_refused():
    assert "must end in .onnx or .tflite" in run("model", "model.pb").output
    assert "not 'int4'" in run("model", "model.tflite", "--weights", "int4").output
    assert "applies to .tflite files only" in run("model", "model.onnx", "--weights", "int8").output
