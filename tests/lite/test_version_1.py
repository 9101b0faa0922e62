"""The converter with version 1's class methods."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.saved_model.graph.format.nodes import add_node, make_shape, make_tensor

pytest.importorskip("ai_edge_litert", reason="needs the extra lite")

v1 = tf.compat.v1
X = np.float32([[1.0, -2.0, 3.0]])


def _result(content):
    run = tf.lite.Interpreter(model_content=content).get_signature_runner()
    (key,) = run.get_input_details()
    return next(iter(run(**{key: X}).values()))


def test_files_of_models_and_saved_models_are_converted(tmp_path):
    model = tf.keras.Sequential([tf.keras.Input((3,), name="x"), tf.keras.layers.Dense(2)])
    model.save(tmp_path / "m.keras")
    model.save(tmp_path / "m", save_format="tf")
    expected = model(X).numpy()
    kind = v1.lite.TFLiteConverter
    file = kind.from_keras_model_file(str(tmp_path / "m.keras"))
    assert isinstance(file, v1.lite.TocoConverter) and file.get_input_arrays() == ["x"]
    np.testing.assert_allclose(_result(file.convert()), expected, atol=1e-6)
    folder = kind.from_saved_model(str(tmp_path / "m"), signature_key="serving_default")
    np.testing.assert_allclose(_result(folder.convert()), expected, atol=1e-6)
    with pytest.raises(ValueError, match="input_shapes"):
        kind.from_saved_model(str(tmp_path / "m"), input_shapes={"x": [1, 3]})
    with pytest.warns(UserWarning, match="post_training_quantize is deprecated"):
        file.post_training_quantize = True
    assert file.post_training_quantize and file.optimizations == [v1.lite.Optimize.DEFAULT]
    with pytest.warns(UserWarning, match="target_ops is deprecated"):
        file.target_ops = [v1.lite.OpsSet.TFLITE_BUILTINS]
    assert file.target_ops == file.target_spec.supported_ops == [tf.lite.OpsSet.TFLITE_BUILTINS]


def test_a_frozen_graph_is_converted(tmp_path):
    graph, kind = v1.GraphDef(), tf.float32
    weights = np.float32([[1.0, -2.0], [3.0, 4.0], [0.0, 1.0]])
    add_node(graph.node, "x", "Placeholder", dtype=kind, shape=make_shape([None, 3]))
    add_node(graph.node, "w", "Const", dtype=kind, value=make_tensor(weights))
    add_node(graph.node, "product", "MatMul", ["x", "w"], T=kind)
    add_node(graph.node, "parts/y", "Relu", ["product"], T=kind)
    (tmp_path / "frozen.pb").write_bytes(graph.SerializeToString())
    path = str(tmp_path / "frozen.pb")
    converter = v1.lite.TFLiteConverter.from_frozen_graph(path, ["x"], ["parts/y"])
    np.testing.assert_allclose(_result(converter.convert()), np.maximum(X @ weights, 0), atol=1e-6)
    with pytest.raises(NotImplementedError, match="sessions do not exist"):
        v1.lite.TFLiteConverter.from_session(None, [], [])
