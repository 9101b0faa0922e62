"""Graphs that are imported and exported: frozen graphs, saved models of sessions, and descriptions."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.saved_model.graph.format.nodes import add_node, make_shape, make_tensor

v1 = tf.compat.v1
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def frozen():
    """A frozen graph, and its result for `ROWS`."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 4], name="input")
        scale = v1.placeholder_with_default(1.0, [], name="scale")
        w = v1.get_variable("w", [4, 3], initializer=v1.constant_initializer(0.5))
        y = tf.identity(v1.layers.dense(x @ w, 2) * scale, name="output")
        session.run(v1.global_variables_initializer())
        definition = v1.graph_util.convert_variables_to_constants(
            session, session.graph_def, ["output"]
        )
        return definition, session.run(y, {x: ROWS})


def test_a_frozen_graph_has_the_placeholders_and_outputs(frozen):
    definition, expected = frozen
    assert {n.name: n.op for n in definition.node if n.op.startswith("Placeholder")} == {
        "input": "Placeholder",
        "scale": "PlaceholderWithDefault",
    }
    with tf.Graph().as_default() as graph, v1.Session() as session:
        tf.graph_util.import_graph_def(definition, name="")
        output = graph.get_tensor_by_name("output:0")
        assert output.shape.as_list() == [None, 2] and output.dtype is tf.float32
        np.testing.assert_allclose(session.run(output, {"input:0": ROWS}), expected, rtol=1e-6)
        doubled = session.run("output:0", {"input:0": ROWS, "scale:0": 2.0})
        np.testing.assert_allclose(doubled, 2 * expected, rtol=1e-6)


def test_tensors_replace_placeholders_of_an_imported_graph(frozen):
    definition, expected = frozen
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 4])
        output, operation = tf.import_graph_def(
            definition,
            input_map={"input:0": x * 2.0},
            return_elements=["output:0", "input"],
            name="part",
        )
        assert output.name == "part/output:0" and operation.type == "Placeholder"
        np.testing.assert_allclose(session.run(output, {x: ROWS}), 2 * expected, rtol=1e-6)
        with pytest.raises(ValueError, match="'nothing' not found"):
            tf.import_graph_def(definition, return_elements=["nothing"])


def test_nodes_of_tensorflow_run():
    definition = v1.GraphDef()
    nodes = definition.node
    add_node(nodes, "x", "Placeholder", dtype=tf.float32, shape=make_shape([None, 4]))
    add_node(nodes, "w", "Const", dtype=tf.float32, value=make_tensor(np.ones((4, 2), "f")))
    # The order of nodes is arbitrary.
    add_node(nodes, "act", "Relu", ["sum"], T=tf.float32)
    add_node(nodes, "sum", "MatMul", ["x", "w"], T=tf.float32, transpose_b=False)
    add_node(nodes, "axis", "Const", dtype=tf.int32, value=make_tensor(np.int32(0)))
    add_node(nodes, "parts", "Split", ["axis", "act"], T=tf.float32, num_split=2)
    add_node(nodes, "second", "Identity", ["parts:1"], T=tf.float32)
    with tf.Graph().as_default() as graph, v1.Session() as session:
        tf.import_graph_def(definition, name="")
        assert [o.type for o in graph.get_operations()][-1] == "Identity"
        assert graph.get_tensor_by_name("act:0").shape.as_list() == [None, 2]
        first, second = session.run(["parts:0", "second:0"], {"x:0": ROWS - 10})
        np.testing.assert_array_equal(first, [[0, 0]])
        np.testing.assert_array_equal(second, [[0, 0]])
        np.testing.assert_array_equal(session.run("act:0", {"x:0": ROWS})[:, 0], ROWS.sum(1))
        (gradient,) = tf.gradients(
            graph.get_tensor_by_name("act:0"), [graph.get_tensor_by_name("x:0")]
        )
        np.testing.assert_array_equal(session.run(gradient, {"x:0": ROWS + 1}), np.full((2, 4), 2))


def test_a_description_lists_the_operations(tmp_path):
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [2, 3], name="x")
        with graph.control_dependencies([x]):
            tf.add(x, 1.0, name="y")
        nodes = {n.name: n for n in graph.as_graph_def().node}
    assert nodes["x"].op == "Placeholder" and nodes["y"].op == "AddV2"
    assert nodes["y"].input[0] == "x" and "^x" in nodes["y"].input
    path = tf.io.write_graph(graph, str(tmp_path / "g"), "graph.pbtxt")
    with open(path) as file:
        assert 'op: "AddV2"' in file.read()
    part = v1.graph_util.extract_sub_graph(graph.as_graph_def(), ["x"])
    assert [n.name for n in part.node] == ["x"]


def test_a_saved_model_of_a_session_is_loaded(tmp_path):
    path = str(tmp_path / "model")
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        v = tf.Variable([2.0, 1.0, 0.0, 0.0], name="v")
        y = tf.reduce_sum(x * v, 1, name="y")
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, path, {"rows": x}, {"sums": y})
        expected = session.run(y, {x: ROWS})
    with tf.Graph().as_default() as graph, v1.Session() as session:
        meta = v1.saved_model.loader.load(session, [v1.saved_model.tag_constants.SERVING], path)
        signature = meta.signature_def["serving_default"]
        names = signature.inputs["rows"].name, signature.outputs["sums"].name
        assert names == ("x:0", "y:0") and graph.get_operation_by_name("y")
        np.testing.assert_allclose(session.run(names[1], {names[0]: ROWS}), expected)
    loaded = tf.saved_model.load(path).signatures["serving_default"]
    np.testing.assert_allclose(loaded(rows=tf.constant(ROWS))["sums"], expected)
    with pytest.raises(AssertionError, match="isn't empty"):
        v1.saved_model.Builder(path)


def test_the_variables_of_a_saved_model_are_read_in_a_session(tmp_path):
    module = tf.Module()
    module.w = tf.Variable([1.0, 2.0])
    signature = tf.function(lambda x: {"y": x * module.w}).get_concrete_function(
        tf.TensorSpec([2], tf.float32, name="x")
    )
    tf.saved_model.save(module, str(tmp_path), signatures=signature)
    with tf.Graph().as_default(), v1.Session() as session:
        meta = v1.saved_model.load(session, ["serve"], str(tmp_path), import_scope="part")
        signature = meta.signature_def["serving_default"]
        found = session.run(
            f"part/{signature.outputs['y'].name}",
            {f"part/{signature.inputs['x'].name}": [3.0, 4.0]},
        )
    np.testing.assert_allclose(found, [3.0, 8.0])


def test_variables_of_a_concrete_function_become_constants(tmp_path):
    from meshflow.saved_model.graph.writing.frozen_graphs import convert_variables_to_constants_v2

    model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
    full = tf.function(lambda x: model(x)).get_concrete_function(tf.TensorSpec([None, 3]))
    frozen = convert_variables_to_constants_v2(full)
    assert [t.name for t in frozen.inputs] == ["x:0"] and len(frozen.outputs) == 1
    tf.io.write_graph(frozen.graph, str(tmp_path), "frozen.pb", as_text=False)
    x = np.ones((2, 3), np.float32)
    expected = model(x).numpy()
    model.layers[0].kernel.assign(tf.zeros([3, 2]))
    np.testing.assert_allclose(frozen(tf.constant(x))[0], expected, rtol=1e-6)
    definition = v1.GraphDef()
    with open(tmp_path / "frozen.pb", "rb") as file:
        definition.ParseFromString(file.read())
    wrapped = v1.wrap_function(lambda: v1.import_graph_def(definition, name=""), [])
    pruned = wrapped.prune("x:0", frozen.outputs[0].name)
    np.testing.assert_allclose(pruned(tf.constant(x)), expected, rtol=1e-6)


def _make_definition(*nodes):
    definition = v1.GraphDef()
    for name, op, inputs, *attributes in nodes:
        kinds = dict(attributes) or {"T": tf.float32}
        add_node(definition.node, name, op, inputs, **kinds)
    return definition


_INPUT = ("x", "Placeholder", [], ("dtype", tf.float32), ("shape", make_shape([2])))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([("y", "Neg", ["gone"])], "'y': Unknown input node 'gone'"),
        ([_INPUT, ("y", "Neg", ["x", "^gone"])], "'y': Unknown input node 'gone'"),
        ([_INPUT, ("a", "Sub", ["b", "x"]), ("b", "Neg", ["a"])], "form a cycle"),
        ([_INPUT, _INPUT], "'x' is not unique"),
        ([_INPUT, ("y", "Neg", ["x:5"])], "Connecting to invalid output 5 of source node x"),
        ([_INPUT, ("y", "Neg", ["x:-1"])], "Connecting to invalid output -1"),
        ([_INPUT, ("y", "Foo", ["x"]), ("z", "Neg", ["y:900000000"])], "900000001 outputs"),
        ([_INPUT, ("y", "Split", ["x", "x"], ("num_split", 1 << 40))], f"{1 << 40} outputs"),
        ([("", "NoOp", [])], "invalid characters"),
    ],
)
def test_damaged_graphs_are_rejected(nodes, message):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        tf.import_graph_def(_make_definition(*nodes))


def test_arguments_of_imports_are_checked():
    definition = _make_definition(_INPUT, ("y", "Neg", ["x"]))
    with tf.Graph().as_default():
        value = tf.constant([1.0, 2.0])
        with pytest.raises(ValueError, match=r"not found in graph_def: \[q:0\]"):
            tf.import_graph_def(definition, {"q": value})
        for element in ("x:1", "x:a", "q"):
            with pytest.raises(ValueError, match="return_element"):
                tf.import_graph_def(definition, return_elements=[element])
        with pytest.raises(TypeError, match="must be a GraphDef proto"):
            tf.import_graph_def(b"")
        x, y = tf.import_graph_def(definition, {"x:0": value}, ["x:0", "y"], name="")
        assert x is value and y.name == "y"
        with pytest.raises(ValueError, match="'x' already exists"):
            tf.import_graph_def(definition, name="")


def test_the_shapes_of_a_deep_graph_are_inferred():
    nodes = [(f"n{i}", "Neg", [f"n{i - 1}" if i else "x"]) for i in range(200)]
    with tf.Graph().as_default():
        last = tf.import_graph_def(_make_definition(_INPUT, *nodes), return_elements=["n199:0"])[0]
        assert last.shape == [2]


def test_identities_between_nodes_are_removed():
    identities = [("a", "Identity", ["x:0"]), ("b", "Identity", ["a:0"]), ("c", "Identity", ["b"])]
    nodes = [_INPUT, *identities, ("y", "Neg", ["b:0"]), ("z", "Add", ["c", "b", "^c"])]
    result = v1.graph_util.remove_training_nodes(_make_definition(*nodes))
    inputs = {n.name: list(n.input) for n in result.node}
    assert inputs == {"x": [], "c": ["x:0"], "y": ["x:0"], "z": ["c", "x:0", "^c"]}
    cycle = _make_definition(("a", "Identity", ["b"]), ("b", "Identity", ["a"]))
    assert not v1.graph_util.remove_training_nodes(cycle).node
