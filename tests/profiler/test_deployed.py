"""Test that profiles of deployed models contain the time of each operator."""

import json
import re

import numpy as np
import pytest

import meshflow as tf
from meshflow.profiler import deployed_page

L = tf.keras.layers


@pytest.fixture(scope="module")
def model():
    layers = [
        tf.keras.Input((8, 8, 1)),
        L.Conv2D(4, 3, activation="relu"),
        L.Conv2D(4, 1, name="mixing"),
        L.Flatten(),
        L.Dense(3, activation="softmax"),
    ]
    return tf.keras.Sequential(layers)


def _check(profile, kinds, runs):
    assert profile.runs == runs and profile.batch == 2
    assert profile.first_seconds > 0 and profile.seconds > 0 and not profile.note
    found = " ".join(o.kind for o in profile.operators)
    for kind in kinds:
        assert kind in found, found
    # Each operator runs once per call, and the longest is first.
    assert {o.calls for o in profile.operators} == {1}
    times = [o.seconds for o in profile.operators]
    assert times == sorted(times, reverse=True) and sum(times) > 0
    together = profile.by_kind()
    assert sum(o.seconds for o in together) == pytest.approx(sum(times))
    assert len(str(profile).splitlines()) == 2 + len(times)
    assert all(o.bytes > 0 for o in profile.operators if any(k in o.kind for k in kinds))
    text = deployed_page.format_page(profile)
    shown = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert [o["name"] for o in shown["operators"]] == [o.name for o in profile.operators]
    assert shown["first"] == pytest.approx(profile.first_seconds * 1e6, abs=0.01)


def test_litert(model, tmp_path, monkeypatch):
    pytest.importorskip("ai_edge_litert", reason="needs the extra lite")
    from meshflow.profiler import litert

    path = tmp_path / "model.tflite"
    path.write_bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())
    profile = tf.lite.experimental.profile(path, runs=20, batch=2)
    _check(profile, ["Convolution", "Fully Connected", "Softmax"], 20)
    assert all(o.first_seconds is not None for o in profile.operators)
    # Shapes in the file: two rows of 6 x 6 x 4, then of 3.
    sizes = {o.kind.split()[0]: o.bytes for o in profile.operators}
    assert (sizes["Convolution"], sizes["Softmax"]) == (2 * 6 * 6 * 4 * 4, 2 * 3 * 4)
    assert any("conv2d" in o.name for o in profile.operators if "Convolution" in o.kind)
    # A convolution of single pixels, which LiteRT runs as a product.
    assert any("mixing" in o.name for o in profile.operators if "Fully Connected" in o.kind)
    # Complete calls are timed without recording of operators, which takes longer than they do.
    spied = []
    monkeypatch.setattr(
        litert._LiteRtLibrary,
        "call",
        lambda *given, call=litert._LiteRtLibrary.call: (spied.append(given[1]), call(*given)),
    )
    monkeypatch.setattr(
        litert, "measure_seconds", lambda run, count: (spied.append("timed"), 0.5)[1]
    )
    assert tf.profiler.profile_model(path, runs=2).seconds == 0.5
    assert spied[:2] == ["timed"] * 2 and "timed" not in spied[2:] and "StartProfiler" in spied
    with pytest.raises(tf.errors.InvalidArgumentError, match="The model takes"):
        tf.profiler.profile_model(path, {"x": np.zeros((1, 8, 8, 1))})
    path.write_bytes(b"\0" * 64)
    with pytest.raises(tf.errors.DataLossError, match=r"is not a \.tflite file"):
        tf.profiler.profile_model(path)


def test_litert_without_its_profiler_times_complete_calls(model, tmp_path, monkeypatch):
    pytest.importorskip("ai_edge_litert", reason="needs the extra lite")
    from meshflow.profiler import litert

    def fails(*args):
        raise AttributeError("no such function")

    monkeypatch.setattr(litert, "_profile_with_library", fails)
    path = tmp_path / "model.tflite"
    path.write_bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())
    profile = tf.profiler.profile_model(path, runs=2)
    assert profile.seconds > 0 and not profile.operators
    assert "does not tell the times of operators: no such function" in str(profile)


def test_onnx_runtime(model, tmp_path):
    pytest.importorskip("onnx", reason="needs the extra onnx")
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    path = tmp_path / "model.onnx"
    model.export(path, format="onnx")
    profile = tf.profiler.profile_model(path, runs=4, batch=2)
    _check(profile, ["Conv", "MatMul", "Softmax"], 4)
    conv = next(o for o in profile.operators if o.kind == "Conv" and "conv2d" in o.name)
    assert conv.bytes >= 2 * 6 * 6 * 4 * 4
    (name,) = (spec.name for spec in [model.inputs[0]])
    given = tf.profiler.profile_model(path, {name: np.ones((1, 8, 8, 1))}, runs=1)
    assert given.operators


def test_saved_model(model, tmp_path):
    model.save(tmp_path / "saved", save_format="tf")
    profile = tf.profiler.profile_model(tmp_path / "saved", runs=3, batch=2)
    _check(profile, ["conv"], 3)
    # The first call compiles, and operators run in it, too.
    assert profile.first_seconds > profile.seconds
    assert all(o.first_seconds > 0 for o in profile.operators)


def test_files_other_than_models_are_refused(tmp_path):
    (tmp_path / "x.txt").write_text("no model")
    for path in (tmp_path, tmp_path / "x.txt"):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected a \.tflite or \.onnx"):
            tf.profiler.profile_model(path)
    with pytest.raises(tf.errors.NotFoundError, match=r"model\.onnx: there is no such file"):
        tf.profiler.profile_model(tmp_path / "model.onnx")


@pytest.mark.parametrize(("form", "needs"), [("tflite", "ai_edge_litert"), ("onnx", "onnxruntime")])
def test_damaged_files_are_named(form, needs, model, tmp_path):
    pytest.importorskip(needs, reason=f"needs the extra of {form}")
    path = tmp_path / f"model.{form}"
    if form == "onnx":
        model.export(path, format="onnx")
    else:
        path.write_bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())
    whole = path.read_bytes()
    for damaged in (b"", b"no model" * 50, whole[: len(whole) // 2], whole[:8] + bytes(len(whole))):
        path.write_bytes(damaged)
        with pytest.raises(tf.errors.DataLossError, match=f"model.{form}"):
            tf.profiler.profile_model(path, runs=1)
    if form == "tflite":
        # Names are escaped.
        path.write_bytes(whole.replace(b"conv2d", b"\xffonv2d"))
        assert tf.profiler.profile_model(path, runs=1).operators


def test_command(model, tmp_path):
    typer_testing = pytest.importorskip("typer.testing")
    from meshflow.cli.commands import app

    model.save(tmp_path / "saved", save_format="tf")
    page = tmp_path / "model.html"
    words = ["profile", "model", str(tmp_path / "saved"), "--runs", "2", "--page", str(page)]
    result = typer_testing.CliRunner().invoke(app, words)
    assert result.exit_code == 0 and "conv" in result.output, result.output
    assert str(page) in result.output.replace("\n", "") and "conv" in page.read_text()
    result = typer_testing.CliRunner().invoke(app, [*words[:3], "--serve"])
    assert result.exit_code == 2 and "requires --page" in result.output
    result = typer_testing.CliRunner().invoke(app, ["profile", "model", str(tmp_path)])
    assert result.exit_code == 1
