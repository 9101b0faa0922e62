"""Graphs with variables and collections, in files of TensorFlow 1."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.saved_model.graph.format.messages import MetaGraphDef, VariableDef
from meshflow.saved_model.graph.format.nodes import add_node, make_shape, make_tensor

v1 = tf.compat.v1
ROWS = np.array([[1.0, 2.0]], np.float32)


def make_meta_graph(resource):
    """`y = x @ w`, an initializer that sets `w` to ones, and a step that subtracts `x` from it and counts."""
    meta = MetaGraphDef()
    nodes, dtype = meta.graph_def.node, tf.float32

    def constant(name, value, *controls):
        array = np.asarray(value)
        kind = tf.as_dtype(array.dtype)
        add_node(nodes, name, "Const", list(controls), dtype=kind, value=make_tensor(array))

    kind, assign = ("VarHandleOp", "AssignVariableOp") if resource else ("VariableV2", "Assign")
    for name, shape, initial in (
        ("w", [2, 1], np.ones((2, 1), np.float32)),
        ("n", [], np.int64(0)),
    ):
        constant(f"{name}/initial", initial)
        option = {"dtype": tf.as_dtype(initial.dtype)}
        add_node(nodes, name, kind, shape=make_shape(shape), **option)
        typed = option if resource else {"T": option["dtype"]}
        add_node(nodes, f"{name}/Assign", assign, [name, f"{name}/initial"], **typed)
        definition = VariableDef(variable_name=f"{name}:0", initializer_name=f"{name}/Assign")
        definition.initial_value_name = f"{name}/initial:0"
        meta.collection_def["variables"].bytes_list.value.append(definition.SerializeToString())
    add_node(nodes, "x", "Placeholder", dtype=dtype, shape=make_shape([1, 2]))
    if resource:
        add_node(nodes, "w/read", "ReadVariableOp", ["w"], dtype=dtype)
    else:
        add_node(nodes, "w/read", "Identity", ["w"], T=dtype)
    options = {"transpose_a": False, "transpose_b": False, "T": dtype}
    add_node(nodes, "y", "MatMul", ["x", "w/read"], **options)
    constant("rate", np.float32(1))
    constant("size", np.array([2, 1], np.int32))
    add_node(nodes, "change", "Reshape", ["x", "size"], T=dtype, Tshape=tf.int32)
    prefix = "Resource" if resource else ""
    add_node(nodes, "update", f"{prefix}ApplyGradientDescent", ["w", "rate", "change"], T=dtype)
    # TensorFlow 1 orders the step after the update by a constant.
    constant("one", np.int64(1), "^update")
    count = "AssignAddVariableOp" if resource else "AssignAdd"
    add_node(nodes, "train", count, ["n", "one"], **{"dtype" if resource else "T": tf.int64})
    meta.collection_def["results"].node_list.value.append("y:0")
    meta.collection_def["sizes"].int64_list.value.append(3)
    return meta


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("scope", [None, "part"])
def test_an_imported_graph_trains(resource, scope, tmp_path):
    prefix, path = f"{scope}/" if scope else "", str(tmp_path / "model.meta")
    with open(path, "wb") as file:
        file.write(make_meta_graph(resource).SerializeToString())
    with tf.Graph().as_default() as graph, v1.Session() as session:
        saver = v1.train.import_meta_graph(path, import_scope=scope)
        feed, y = {f"{prefix}x:0": ROWS}, graph.get_tensor_by_name(f"{prefix}y:0")
        with pytest.raises(tf.errors.FailedPreconditionError, match=f"variable {prefix}w"):
            session.run(y, feed)
        assert session.run(v1.report_uninitialized_variables()).tolist() != []
        session.run(v1.global_variables_initializer())
        assert session.run(y, feed) == [[3.0]]
        session.run(f"{prefix}train", feed)
        assert session.run([y, f"{prefix}n:0"], feed) == [[[-2.0]], 1]
        assert graph.get_collection("results") == [y] and graph.get_collection("sizes") == [3]
        [w, _] = v1.global_variables()
        assert (w.name, w.shape.as_list(), w.dtype.name) == (f"{prefix}w:0", [2, 1], "float32")
        assert session.run(tf.gradients(y, w)[0], feed).tolist() == [[1.0], [2.0]]
        checkpoint = saver.save(session, str(tmp_path / "values"))
        assert tf.train.list_variables(checkpoint) == [("n", []), ("w", [2, 1])]
        session.run(f"{prefix}train", feed)
        saver.restore(session, checkpoint)
        assert session.run([y, f"{prefix}n:0"], feed) == [[[-2.0]], 1]


def test_a_description_has_the_collections(tmp_path):
    with tf.Graph().as_default():
        w = v1.get_variable("w", [2])
        v1.add_to_collection("results", tf.identity(w, "y"))
        for value in (3, 0.5, "text"):
            v1.add_to_collection(type(value).__name__, value)
        path = str(tmp_path / "graph.meta")
        meta = v1.train.export_meta_graph(path)
        text_path = str(tmp_path / "graph.txt")
        v1.train.export_meta_graph(text_path, collection_list=["int", "float", "str"], as_text=True)
    with open(path, "rb") as file:
        assert MetaGraphDef.FromString(file.read()) == meta
    assert list(meta.collection_def["results"].node_list.value) == ["y:0"]
    [data] = meta.collection_def["trainable_variables"].bytes_list.value
    assert VariableDef.FromString(data).initializer_name == "w/Assign"
    with tf.Graph().as_default() as graph:
        v1.train.import_meta_graph(text_path)
        found = [graph.get_collection(name) for name in ("int", "float", "str")]
        assert found == [[3], [0.5], [b"text"]]
    for call in (v1.train.export_meta_graph, lambda: v1.train.import_meta_graph(path)):
        with pytest.raises(RuntimeError, match="eager execution is enabled"):
            call()


def test_files_that_contain_no_meta_graph(tmp_path):
    path = str(tmp_path / "model.meta")
    with tf.Graph().as_default():
        with pytest.raises(OSError, match="does not exist"):
            v1.train.import_meta_graph(path)
        with open(path, "wb") as file:
            file.write(b"\xff")
        with pytest.raises(OSError, match="Cannot parse file"):
            v1.train.import_meta_graph(path)
