"""Frozen graphs as functions."""

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow.checkpoint.bundle_writer import write_bundle
from meshflow.saved_model.graph.format.messages import SavedModel
from meshflow.saved_model.graph.format.nodes import (
    add_node,
    make_shape,
    make_tensor,
    write_shape,
)

v1 = tf.compat.v1
WEIGHTS = np.array([[1.0, -2.0], [3.0, 4.0], [0.0, 1.0]], np.float32)


@pytest.fixture
def definition(tmp_path):
    """A graph as a file has it: relu(x @ w) and its first column's argument."""
    graph = v1.GraphDef()
    kind = tf.float32
    add_node(graph.node, "x", "Placeholder", dtype=kind, shape=make_shape([None, 3]))
    add_node(graph.node, "w", "Const", dtype=kind, value=make_tensor(WEIGHTS))
    add_node(graph.node, "product", "MatMul", ["x", "w"], T=kind)
    add_node(graph.node, "parts/y", "Relu", ["product"], T=kind)
    add_node(graph.node, "v", "VarHandleOp", dtype=kind, shape=make_shape([]))
    add_node(graph.node, "read", "ReadVariableOp", ["v"], dtype=kind)
    (tmp_path / "frozen.pb").write_bytes(graph.SerializeToString())
    read = v1.GraphDef()
    with tf.io.gfile.GFile(str(tmp_path / "frozen.pb"), "rb") as file:
        read.ParseFromString(file.read())
    return read


def test_parts_of_a_frozen_graph_are_functions(definition):
    wrapped = v1.wrap_function(lambda: v1.import_graph_def(definition, name=""), [])
    graph = wrapped.graph
    assert [op.name for op in graph.get_operations()][:4] == ["x", "w", "product", "parts/y"]
    assert graph.get_operation_by_name("product").type == "MatMul"
    assert graph.get_tensor_by_name("x:0").shape == [None, 3]
    function = wrapped.prune(
        tf.nest.map_structure(graph.as_graph_element, ["x:0"]),
        tf.nest.map_structure(graph.as_graph_element, {"y": "parts/y:0"}),
    )
    for rows in (1, 4):
        x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        expected = np.maximum(x @ WEIGHTS, 0)
        assert_close(function(tf.constant(x))["y"], expected, 1e-6)
        assert_close(function(x=x)["y"], expected, 1e-6)
    assert_close(wrapped.prune("product:0", "parts/y:0")([[-1.0, 2.0]]), [[0.0, 2.0]], 0)
    x = tf.Variable(tf.ones([1, 3]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.function(lambda: function(x)["y"])())
    assert_close(tape.gradient(loss, x), WEIGHTS.sum(1)[None], 1e-6)


def test_names_have_the_prefix(definition):
    wrapped = v1.wrap_function(lambda: v1.import_graph_def(definition), [])
    assert wrapped.prune("import/x:0", "import/product:0")(tf.ones([2, 3])).shape == [2, 2]
    with pytest.raises(KeyError, match="not in the graph"):
        wrapped.prune("x:0", "import/product:0")


def test_other_files_than_frozen_graphs_are_refused(definition):
    wrapped = v1.wrap_function(lambda: v1.import_graph_def(definition, name=""), [])
    with pytest.raises(tf.errors.UnimplementedError, match="variables, whose values are not in it"):
        wrapped.prune([], "read:0")
    with pytest.raises(TypeError, match="takes the tensors"):
        wrapped.prune("x:0", "product:0")()
    with pytest.raises(tf.errors.UnimplementedError, match="wrap_function"):
        v1.import_graph_def(definition)


@pytest.fixture
def first_version(tmp_path):
    """A SavedModel as version 1 wrote it: x @ w + b, with variables of both kinds."""
    saved = SavedModel(saved_model_schema_version=1)
    meta = saved.meta_graphs.add()
    meta.meta_info_def.tags.append("serve")
    nodes, kind = meta.graph_def.node, tf.float32
    add_node(nodes, "x", "Placeholder", dtype=kind, shape=make_shape([None, 3]))
    add_node(nodes, "w", "VariableV2", dtype=kind, shape=make_shape([3, 2]))
    add_node(nodes, "w/read", "Identity", ["w"], T=kind)
    add_node(nodes, "b", "VarHandleOp", dtype=kind, shape=make_shape([2]), shared_name=b"b")
    add_node(nodes, "b/read", "ReadVariableOp", ["b"], dtype=kind)
    add_node(nodes, "product", "SparseMatMul", ["x", "w/read"], Ta=kind, Tb=kind)
    add_node(nodes, "y", "AddV2", ["product", "b/read"], T=kind)
    add_node(nodes, "z", "Relu", ["y"], T=kind)
    signature = meta.signature_def["serving_default"]
    signature.method_name = "tensorflow/serving/predict"
    for place, name, sizes in (
        (signature.inputs, "x", [None, 3]),
        (signature.outputs, "y", [None, 2]),
    ):
        place[name].name, place[name].dtype = f"{name}:0", 1
        write_shape(place[name].tensor_shape, sizes)
    (tmp_path / "variables").mkdir()
    write_bundle(
        tmp_path / "variables" / "variables", {"w": WEIGHTS, "b": np.array([1.0, -9.0], np.float32)}
    )
    (tmp_path / "saved_model.pb").write_bytes(saved.SerializeToString())
    return tmp_path


def test_models_of_version_1_have_signatures_variables_and_parts(first_version):
    loaded = tf.saved_model.load(first_version)
    x = np.array([[1.0, 2.0, 3.0]], np.float32)
    expected = x @ WEIGHTS + [1.0, -9.0]
    assert_close(loaded.signatures["serving_default"](x=x)["y"], expected, 1e-6)
    assert [v.name for v in loaded.variables] == ["w:0", "b:0"]
    assert loaded.graph.get_operation_by_name("w").type == "VariableV2"
    part = loaded.prune(["x:0"], {"z": "z:0", "b": "b/read:0"})
    assert_close(part(x)["z"], np.maximum(expected, 0), 1e-6)
    assert part(x)["b"].numpy().tolist() == [1.0, -9.0]
    loaded.variables[1].assign([2.0, 2.0])
    assert_close(part(x)["z"], np.maximum(x @ WEIGHTS + 2, 0), 1e-6)


def test_signatures_of_version_1_are_messages(first_version):
    names, graph = v1.saved_model, tf.saved_model.load(first_version).graph
    x, y = (graph.get_tensor_by_name(name) for name in ("x:0", "y:0"))
    made = names.predict_signature_def({"x": x}, {"y": y})
    assert made.inputs["x"].name == "x:0" and made.inputs["x"].dtype == 1
    assert [d.size for d in made.inputs["x"].tensor_shape.dim] == [-1, 3]
    assert made.method_name == names.signature_constants.PREDICT_METHOD_NAME
    assert names.is_valid_signature(made)
    found = names.utils.get_tensor_from_tensor_info(made.outputs["y"], graph)
    assert found.name == "y:0"
    empty = names.signature_def_utils.build_signature_def({}, {}, made.method_name)
    assert not names.is_valid_signature(empty)
    with pytest.raises(ValueError, match="need string inputs"):
        names.regression_signature_def(x, y)
    with pytest.raises(ValueError, match="cannot be None or empty"):
        names.predict_signature_def({}, {"y": y})
    with pytest.raises(RuntimeError, match="named tensor of a graph"):
        names.build_tensor_info(tf.constant(1.0))
    words = v1.GraphDef()
    add_node(words.node, "words", "Placeholder", dtype=tf.string, shape=make_shape([None]))
    wrapped = v1.wrap_function(lambda: v1.import_graph_def(words, name=""), [])
    given = wrapped.graph.get_tensor_by_name("words:0")
    made = names.classification_signature_def(given, given, y)
    assert sorted(made.outputs) == ["classes", "scores"] and names.is_valid_signature(made)
    assert names.is_valid_signature(names.regression_signature_def(given, y))
    defaults = names.build_signature_def(
        made.inputs, made.outputs, None, {"w": [1.0, 2.0]}
    ).defaults
    assert np.frombuffer(defaults["w"].tensor_content, np.float32).tolist() == [1.0, 2.0]


def test_first_versions_are_loaded_into_sessions(first_version):
    names = v1.saved_model
    with v1.Session(graph=tf.Graph()) as session:
        message = names.loader.load(session, ["serve"], first_version)
        for signature in message.signature_def.values():
            fetches = [info.name for info in signature.outputs.values()]
            feeds = {info.name: np.ones([2, 3], np.float32) for info in signature.inputs.values()}
            assert all(v.shape[0] == 2 for v in session.run(fetches, feeds))
    assert names.builder.SavedModelBuilder is names.Builder
    assert names.loader.maybe_saved_model_directory(str(first_version))
    assert names.tag_constants.SERVING == names.SERVING == "serve"
    assert names.load_v2(first_version).signatures


def test_tags_and_options(tmp_path):
    options = tf.saved_model.SaveOptions(extra_tags=["mine"], experimental_variable_policy=None)
    tf.saved_model.save(tf.Module(), tmp_path, options=options)
    saved = SavedModel.FromString((tmp_path / "saved_model.pb").read_bytes())
    assert sorted(saved.meta_graphs[0].meta_info_def.tags) == ["mine", "serve"]
    load = tf.saved_model.LoadOptions(experimental_variable_policy="expand_distributed_variables")
    assert load.allow_partial_checkpoint is False
    assert tf.saved_model.load(tmp_path, options=load).signatures == {}
    with pytest.raises(ValueError, match="VariablePolicy"):
        tf.saved_model.LoadOptions(experimental_variable_policy="other")
