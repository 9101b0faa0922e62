"""Test that models exported as ONNX equal the original, for any batch size, run by ONNX Runtime."""

import logging
import os
import sys
import tempfile

import numpy as np
import pytest

import meshflow
import meshflow as tf
import meshflow.onnx
from meshflow.environment.garbage_collection import collect_garbage
from meshflow.saved_model.programs import foreign_modules

L = tf.keras.layers


def _sequential(shape, *layers):
    model = tf.keras.Sequential([tf.keras.Input(shape), *layers])
    rng = np.random.default_rng(0)
    for w in model.weights:
        w.assign(rng.uniform(0.5 if "variance" in w.name else -0.5, 1.0, w.shape))
    return model


def _transformer():
    x = tf.keras.Input((7, 16))
    y = L.LayerNormalization()(L.MultiHeadAttention(2, 8)(x, x) + x)
    return tf.keras.Model(x, L.GlobalAveragePooling1D()(L.Dense(16, activation="gelu")(y)))


MODELS = {
    "images": lambda: _sequential(
        (16, 16, 3),
        L.Conv2D(8, 3, padding="same", activation="relu"),
        L.BatchNormalization(),
        L.ReLU(6.0),
        L.MaxPooling2D(3, 2, padding="same"),
        L.AveragePooling2D(2, padding="same"),
        L.SeparableConv2D(8, 3, padding="same"),
        L.Conv2DTranspose(4, 3, strides=2, padding="same"),
        L.UpSampling2D(2),
        L.Flatten(),
        L.Dense(10, activation="softmax"),
    ),
    "transformer": _transformer,
    "sequences": lambda: _sequential(
        (9,),
        L.Embedding(40, 8, mask_zero=True),
        L.Bidirectional(L.LSTM(3, return_sequences=True)),
        L.GRU(4),
        L.Lambda(lambda x: tf.sort(x)),
    ),
}


@pytest.fixture
def onnxruntime():
    pytest.importorskip("onnx", reason="needs the extra onnx")
    return pytest.importorskip("onnxruntime", reason="needs the extra onnx")


@pytest.mark.parametrize("name", MODELS)
def test_exported_model_equals_the_model_for_any_batch_size(name, tmp_path, onnxruntime):
    model = MODELS[name]()
    path = tmp_path / "model.onnx"
    model.export(path, format="onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    rng = np.random.default_rng(1)
    shape = (5, *model.input_shape[1:])
    x = rng.normal(size=shape)
    if name == "sequences":
        x = rng.integers(0, 40, shape) * (np.arange(9) < 6)
    x = x.astype(np.float32)
    expected = model(x).numpy()
    for batch in (1, 5, 2):
        found = session.run(model.output_names, {given.name: x[:batch]})[0]
        np.testing.assert_allclose(found, expected[:batch], atol=3e-6)


def test_loops_and_branches(onnxruntime):
    from meshflow.deployment.deployable_function import trace_concrete_function
    from meshflow.onnx import convert_to_onnx

    @tf.function(input_signature=[tf.TensorSpec([3]), tf.TensorSpec([], tf.int32)])
    def run(x, i):
        looped = tf.while_loop(lambda j, v: j < i, lambda j, v: (j + 1, v * x), (0, x))[1]
        chosen = tf.switch_case(i, [lambda: x, lambda: x * 10.0, lambda: x - 1.0])
        return {"looped": looped, "chosen": chosen}

    content = convert_to_onnx(trace_concrete_function(run.get_concrete_function()))
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    x = np.float32([1, 2, 3])
    for i, chosen in enumerate((x, x * 10, x - 1)):
        found = session.run(["looped", "chosen"], {"x": x, "i": np.asarray(i, np.int32)})
        np.testing.assert_allclose(found, [x ** (i + 1), chosen])


def test_data_movement_and_search_ops(tmp_path, onnxruntime):
    rows = [[1], [1], [7]]

    @tf.function(
        input_signature=[tf.TensorSpec([None, 4], name="x"), tf.TensorSpec([4], tf.int32, "i")]
    )
    def run(x, i):
        return {
            "scattered": tf.tensor_scatter_nd_update(x, [[0, 1]], [9.0]),
            "added": tf.tensor_scatter_nd_add(
                tf.zeros([8, 4]), rows, tf.stack([tf.reduce_sum(x, 0)] * 3)
            ),
            "segments": tf.math.unsorted_segment_max(tf.transpose(x), i, 3),
            "products": tf.math.cumprod(x, 1, reverse=True),
            "places": tf.searchsorted([[-1.0, 0.0, 1.0]], tf.reshape(x, [1, -1])),
            "mapped": tf.map_fn(lambda row: row * tf.reduce_sum(row), x),
        }

    path = tmp_path / "m.onnx"
    meshflow.onnx.export(run, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    # A missing segment is omitted.
    i = np.int32([2, -1, 2, 0])
    expected = run(x, i)
    names = sorted(expected)
    for name, found in zip(names, session.run(names, {"x": x, "i": i}), strict=True):
        np.testing.assert_allclose(found, expected[name], atol=1e-6, err_msg=name)


def test_outputs_have_the_order_and_dtype_of_the_model(tmp_path, onnxruntime):
    x = tf.keras.Input((3,), dtype="float16")
    outputs = [L.Dense(n, name=name, dtype="float16")(x) for n, name in ((5, "last"), (4, "first"))]
    path = tmp_path / "m.onnx"
    tf.keras.Model(x, outputs).export(path, format="onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [o.name for o in session.get_outputs()] == ["last", "first"]
    found = session.run(None, {session.get_inputs()[0].name: np.ones((2, 3), np.float16)})
    assert [(a.shape, a.dtype) for a in found] == [((2, 5), np.float16), ((2, 4), np.float16)]


def test_functions_are_exported(tmp_path, onnxruntime):
    weight = tf.Variable([[1.0], [2.0]])

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x")])
    def run(x):
        return {"product": x @ weight, "twice": tf.tile(x, [2, 1])}

    x = np.float32([[1, 1], [0, 3], [5, 2]])
    concrete = run.get_concrete_function()
    for i, source in enumerate((run, concrete)):
        path = tmp_path / f"{i}.onnx"
        meshflow.onnx.export(source, path)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        product, twice = session.run(["product", "twice"], {"x": x})
        np.testing.assert_allclose(product, x @ weight.numpy())
        np.testing.assert_array_equal(twice, np.tile(x, [2, 1]))
    with pytest.raises(TypeError, match="no input_signature"):
        meshflow.onnx.export(tf.function(lambda x: x), tmp_path / "no.onnx")
    with pytest.raises(TypeError, match="concrete function"):
        meshflow.onnx.export(3, tmp_path / "no.onnx")


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
def test_other_versions_of_the_operators(opset, tmp_path, onnxruntime):
    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x")])
    def run(x):
        highest = tf.reduce_max(x, axis=1) + tf.cast(tf.shape(x)[0], "float32")
        return {"y": tf.nn.softmax(tf.sort(x)) + highest[:, None] + tf.reduce_sum(x)}

    path = tmp_path / "model.onnx"
    meshflow.onnx.export(run, path, opset_version=opset)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = np.float32([[1, 0], [0, 3], [5, 2]])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], run(x)["y"], atol=1e-6)


def test_unknown_opsets_and_missing_operators(tmp_path, onnxruntime):
    @tf.function(input_signature=[tf.TensorSpec([2], tf.int32)])
    def run(x):
        return tf.bitwise.bitwise_and(x, 3)

    path = tmp_path / "model.onnx"
    with pytest.raises(tf.errors.UnimplementedError, match=r"BitwiseAnd since version 18.*=17"):
        meshflow.onnx.export(run, path, opset_version=17)
    model = _sequential((2,), L.Dense(1))
    for version in (12, 999, "18"):
        with pytest.raises(ValueError, match="opset_version is an integer from 13"):
            model.export(path, format="onnx", opset_version=version)
    assert not path.exists()


def test_text_model_error_suggests_where_to_split(tmp_path, onnxruntime):
    words = L.TextVectorization(output_sequence_length=3, vocabulary=["a", "b"], name="words")
    lines = tf.keras.Input((1,), dtype=tf.string)
    model = tf.keras.Model(lines, L.Flatten()(L.Embedding(4, 2)(words(lines))))
    with pytest.raises(tf.errors.UnimplementedError, match=r"'words' \(TextVectorization\)"):
        model.export(tmp_path / "whole.onnx", format="onnx")
    # As in the message.
    rest = tf.keras.Model(model.get_layer("words").output, model.output)
    rest.export(tmp_path / "rest.onnx", format="onnx")
    session = onnxruntime.InferenceSession(
        str(tmp_path / "rest.onnx"), providers=["CPUExecutionProvider"]
    )
    text = tf.constant([["a b"], ["b c a"]])
    (given,) = session.get_inputs()
    (found,) = session.run(None, {given.name: words(text).numpy()})
    np.testing.assert_allclose(found, model(text))


def test_conversion_error_names_the_primitive_and_the_layer(tmp_path, onnxruntime):
    model = _sequential((4, 4), L.Lambda(lambda x: tf.linalg.inv(x), name="inverse"))
    path = tmp_path / "model.onnx"
    with pytest.raises(tf.errors.UnimplementedError, match=r"primitive .* of layer '.*inverse"):
        model.export(path, format="onnx")
    assert not path.exists()


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match="'tf_saved_model', 'onnx', 'litert', got 'pdf'"):
        _sequential((4,), L.Dense(1)).export(tmp_path / "x", format="pdf")


def test_the_extra_is_named(monkeypatch, tmp_path):
    for name in ("onnx", "onnx.helper"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"meshflow-tf\[onnx\]"):
        _sequential((4,), L.Dense(1)).export(tmp_path / "x.onnx", format="onnx")


@pytest.fixture
def saved(tmp_path):
    model = _sequential((4,), L.Dense(32, activation="relu"), L.Dense(3))
    model.save(tmp_path / "saved", save_format="tf")
    return model, tmp_path / "saved"


def test_tensorrt_falls_back_with_a_warning(saved, tmp_path, onnxruntime, caplog):
    if "TensorrtExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("TensorRT is there")
    model, folder = saved
    trt = tf.experimental.tensorrt
    params = trt.ConversionParams(precision_mode="FP16")
    converter = trt.Converter(str(folder), conversion_params=params)
    with pytest.raises(RuntimeError, match="requires convert"):
        converter.save(tmp_path / "out")
    with caplog.at_level(logging.WARNING, "meshflow"):
        run = converter.convert()
    assert "TensorRT is not available" in caplog.text and run.providers == ["CPUExecutionProvider"]
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    (name,) = run.structured_input_signature[1]
    np.testing.assert_allclose(next(iter(run(x).values())), model(x), atol=1e-6)
    converter.build(lambda: ([x[:n]] for n in (1, 5)))
    assert converter._make_options(tmp_path)["trt_profile_max_shapes"] == f"{name}:5x4"
    lines = []
    converter.summary(print_fn=lines.append)
    assert "Precision: FP16" in lines[0] and any("MatMul" in line for line in lines)
    converter.save(tmp_path / "out")
    again = tf.experimental.tensorrt.load(tmp_path / "out")
    np.testing.assert_allclose(next(iter(again(x).values())), model(x), atol=1e-6)
    # The folder is still a saved model, whose signature runs in the same way.
    caplog.clear()
    signature = tf.saved_model.load(tmp_path / "out").signatures["serving_default"]
    assert "TensorRT is not available" in caplog.text and signature.providers == again.providers
    np.testing.assert_allclose(next(iter(signature(tf.constant(x)).values())), model(x), atol=1e-6)
    assert "MatMul" in str(tf.profiler.profile_model(tmp_path / "out", runs=1))
    second = trt.Converter(str(tmp_path / "out"), precision_mode="fp16")
    assert second.convert().structured_outputs.keys() == run.structured_outputs.keys()


def test_tensorrt_errors_equal_tensorflow(saved, tmp_path, onnxruntime):
    folder, trt = str(saved[1]), tf.experimental.tensorrt
    for settings, message in (
        ({"precision_mode": "INT4"}, "precision mode 'INT4' is not supported"),
        ({"precision_mode": "Fp16"}, "precision mode 'Fp16' is not supported"),
        ({"minimum_segment_size": 0}, "minimum segment size should be positive or -1"),
        ({"dynamic_shape_profile_strategy": "Best"}, "profile_strategy 'Best' is not supported"),
    ):
        with pytest.raises(ValueError, match=message):
            trt.Converter(folder, **settings)
    with pytest.raises(TypeError, match="is_dynamic_op"):
        trt.Converter(folder, is_dynamic_op=True)
    converter = trt.Converter(folder, use_dynamic_shape=True, dynamic_shape_profile_strategy="Optimal")  # fmt: skip
    converter.convert()
    with pytest.raises(RuntimeError, match="already called"):
        converter.convert()
    with pytest.raises(RuntimeError, match="requires input_fn"):
        converter.build(None)
    with pytest.raises(ValueError, match="yielded no samples"):
        converter.build(lambda: [])
    converter.build(lambda: [[np.zeros((1, 4), np.float32)]])
    with pytest.raises(NotImplementedError, match="call it once"):
        converter.build(lambda: [[np.zeros((1, 4), np.float32)]])
    out = tmp_path / "out"
    converter.save(out)
    for damage in ("", "{}", "[1]", '{"params": {"precision": 1}, "shapes": {}}'):
        (out / "tensorrt.json").write_text(damage)
        with pytest.raises(tf.errors.DataLossError, match=r"tensorrt\.json is damaged"):
            tf.saved_model.load(out)
    (out / "model.onnx").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no model\.onnx"):
        trt.load(out)


def test_int8_is_calibrated(saved, onnxruntime):
    model, folder = saved
    converter = tf.experimental.tensorrt.Converter(str(folder), precision_mode="INT8")
    with pytest.raises(ValueError, match="calibration_input_fn"):
        converter.convert()
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    run = converter.convert(lambda: ([row[None]] for row in x))
    expected = model(x).numpy()
    found = next(iter(run(x).values())).numpy()
    assert 1e-6 < np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
    lines = []
    converter.summary(print_fn=lines.append)
    assert any("QuantizeLinear" in line for line in lines)


def test_foreign_converted_models_require_trust(saved, tmp_path, onnxruntime, caplog, monkeypatch):
    converter = tf.experimental.tensorrt.Converter(str(saved[1]))
    converter.convert()
    converter.save(tmp_path / "out")
    engine = tmp_path / "out" / "engines" / "planted.engine"
    engine.parent.mkdir(exist_ok=True)
    engine.write_bytes(b"code")
    caplog.clear()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    session = tf.experimental.tensorrt.load(tmp_path / "out")
    assert "Building the engines" in caplog.text and os.listdir(temporary)
    del session
    collect_garbage()
    assert not os.listdir(temporary)
    monkeypatch.setattr(foreign_modules, "_own_digests", set())
    monkeypatch.setattr(foreign_modules, "_read_entry", lambda key: None)
    with pytest.raises(tf.errors.PermissionDeniedError, match="trusted=True"):
        tf.experimental.tensorrt.load(tmp_path / "out")
    caplog.clear()
    loaded = tf.saved_model.load(tmp_path / "out")
    assert "another user converted" in caplog.text
    assert not hasattr(loaded.signatures["serving_default"], "providers")
    assert tf.experimental.tensorrt.load(tmp_path / "out", trusted=True).providers
