"""Tests of `tf.compat.v1.saved_model` with sessions."""

import numpy as np
import pytest

import meshflow as tf

v1 = tf.compat.v1


def save_line(folder):
    """Save y = w * x and z = y + 1 with w = 5."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None], name="x")
        w = v1.get_variable("w", initializer=3.0)
        y = tf.multiply(x, w, name="y")
        z = tf.add(y, 1.0, name="z")
        session.run(v1.saved_model.main_op.main_op())
        session.run(w.assign(5.0))
        v1.saved_model.simple_save(session, folder, {"x": x}, {"line": y, "shifted": z})


def test_parts_of_graphs_are_saved_and_loaded_under_their_names(tmp_path):
    folder = tmp_path / "model"
    save_line(folder)
    with tf.Graph().as_default() as graph, v1.Session() as session:
        message = v1.saved_model.loader.load(session, ["serve"], folder)
        outputs = message.signature_def["serving_default"].outputs
        assert {k: v.name for k, v in outputs.items()} == {"line": "y:0", "shifted": "z:0"}
        values = session.run(["y:0", "z:0", "w:0"], {"x:0": [1.0, 2.0]})
        np.testing.assert_array_equal(values[0], [5.0, 10.0])
        np.testing.assert_array_equal(values[1], [6.0, 11.0])
        assert values[2] == 5.0
        # A second copy has other names.
        v1.saved_model.load(session, ["serve"], folder, import_scope="copy")
        assert session.run("copy/z:0", {"copy/x:0": [3.0]}) == [16.0]
        assert graph.get_tensor_by_name("copy/y:0").shape.as_list() == [None]
    loaded = tf.saved_model.load(folder).signatures["serving_default"]
    assert loaded(x=tf.constant([2.0]))["shifted"].numpy() == [11.0]


def test_sessions_run_signatures_of_functions(tmp_path):
    module = tf.Module()
    module.scale = tf.Variable(2.0)
    double = tf.function(lambda x: {"b": x * module.scale, "a": x})
    spec = tf.TensorSpec([None], tf.float32)
    tf.saved_model.save(module, tmp_path, double.get_concrete_function(spec))
    with v1.Session(graph=tf.Graph()) as session:
        message = v1.saved_model.load(session, ["serve"], tmp_path)
        signature = message.signature_def["serving_default"]
        fetches = {key: info.name for key, info in signature.outputs.items()}
        results = session.run(fetches, {signature.inputs["x"].name: [1.0, 3.0]})
        assert results["b"].tolist() == [2.0, 6.0] and results["a"].tolist() == [1.0, 3.0]
        with pytest.raises(RuntimeError, match="MetaGraphDef not found"):
            v1.saved_model.load(session, ["other"], tmp_path)
        with pytest.raises(OSError, match="does not exist"):
            v1.saved_model.load(session, ["serve"], tmp_path / "none")


def test_builders_reject_full_folders_and_second_graphs(tmp_path):
    folder = tmp_path / "model"
    builder = v1.saved_model.Builder(folder)
    with pytest.raises(tf.errors.NotFoundError, match="add_meta_graph_and_variables"):
        builder.save()
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [])
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": x + 1})
        builder.add_meta_graph_and_variables(session, ["train"], {"next": signature})
        with pytest.raises(AssertionError, match="already been saved"):
            builder.add_meta_graph_and_variables(session, ["serve"])
    with pytest.raises(AttributeError, match="one graph"):
        builder.add_meta_graph(["serve"])
    assert builder.save().endswith("saved_model.pb")
    with pytest.raises(AssertionError, match="isn't empty"):
        v1.saved_model.Builder(folder)
    assert tf.saved_model.load(folder, ["train"]).signatures["next"](x=1.0)["y"].numpy() == 2.0
