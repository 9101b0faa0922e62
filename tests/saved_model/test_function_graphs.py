"""Graphs of functions, compared with the nodes of TensorFlow 2.21."""

import pytest

import meshflow as tf

W = tf.Variable(tf.ones([2, 3]), name="w")


@tf.function
def compute(x, n=2):
    y = tf.matmul(x, W)
    y = tf.nn.relu(y + 1.0) * 2.0
    return {"out": tf.reduce_sum(y, axis=1), "n": tf.nn.softmax(y)}


@pytest.fixture(scope="module")
def concrete():
    return compute.get_concrete_function(tf.TensorSpec([4, 2], tf.float32, name="x"))


def test_operations(concrete):
    operations = [(op.name, op.type) for op in concrete.graph.get_operations()]
    # TensorFlow also has a node for the constant axes, "Sum/reduction_indices", and a "NoOp".
    assert operations == [
        ("x", "Placeholder"),
        ("MatMul/ReadVariableOp/resource", "Placeholder"),
        ("MatMul/ReadVariableOp", "ReadVariableOp"),
        ("MatMul", "MatMul"),
        ("add/y", "Const"),
        ("add", "AddV2"),
        ("Relu", "Relu"),
        ("mul/y", "Const"),
        ("mul", "Mul"),
        ("Sum", "Sum"),
        ("Softmax", "Softmax"),
        ("Identity", "Identity"),
        ("Identity_1", "Identity"),
    ]
    definition = concrete.graph.as_graph_def()
    assert [(n.name, n.op) for n in definition.node] == operations
    assert list(definition.node[3].input) == ["x", "MatMul/ReadVariableOp"]


def test_elements(concrete):
    graph = concrete.graph
    assert isinstance(graph, tf.Graph) and graph is concrete.graph
    assert (graph.name, graph.building_function) == ("compute", True)
    assert [t.name for t in graph.inputs] == ["x:0", "MatMul/ReadVariableOp/resource:0"]
    assert [t.dtype.name for t in graph.inputs] == ["float32", "resource"]
    assert [(t.name, t.shape) for t in graph.outputs] == [
        ("Identity:0", (4, 3)),
        ("Identity_1:0", (4,)),
    ]
    assert graph.variables == (W,)
    product = graph.get_operation_by_name("MatMul")
    assert isinstance(product, tf.Operation)
    assert (product.name, product.type, product.device) == ("MatMul", "MatMul", "")
    assert (product.get_attr("T"), product.get_attr("transpose_a")) == (tf.float32, False)
    assert product.node_def.op == "MatMul" and not product.control_inputs
    assert [t.name for t in product.inputs] == ["x:0", "MatMul/ReadVariableOp:0"]
    tensor = graph.get_tensor_by_name("MatMul:0")
    assert (tensor.shape, tensor.dtype, tensor.graph) == ((4, 3), tf.float32, graph)
    assert [op.name for op in tensor.consumers()] == ["add"]
    assert graph.as_graph_element("MatMul").outputs[0].name == "MatMul:0"
    with pytest.raises(KeyError, match="The name 'Nope' refers to an Operation not in the graph"):
        graph.get_operation_by_name("Nope")


def test_signatures(concrete):
    definition = concrete.function_def
    assert [a.name for a in definition.signature.input_arg] == [
        "x",
        "matmul_readvariableop_resource",
    ]
    assert [a.type for a in definition.signature.input_arg] == [1, 20]
    assert [a.name for a in definition.signature.output_arg] == ["identity", "identity_1"]
    assert definition.signature.is_stateful
    assert "ReadVariableOp" in [n.op for n in definition.node_def]
    parameters = concrete.function_type.parameters
    assert list(parameters) == ["x", "n"] and parameters["x"].annotation.shape == (4, 2)


def test_control_flow_and_writes():
    @tf.function
    def f(x):
        for _ in tf.range(3):
            if tf.reduce_sum(x) > 0:
                x = x - 1.0
        W.assign_add(x)
        return x, tf.concat([x, x], 0), tf.transpose(x)

    graph = f.get_concrete_function(tf.TensorSpec([2, 3])).graph
    operations = {op.name: op.type for op in graph.get_operations()}
    assert operations["while"] == "While"
    assert operations["concat"] == "ConcatV2" and operations["transpose"] == "Transpose"
    assert operations["AssignVariableOp"] == "AssignVariableOp"
    assert [t.name for t in graph.outputs] == ["Identity:0", "Identity_1:0", "Identity_2:0"]


def test_layers():
    Dense = tf.keras.layers.Dense
    model = tf.keras.Sequential(
        [Dense(3, "relu", input_shape=(4,), name="a"), Dense(2, name="b")], name="m"
    )
    graph = tf.function(model).get_concrete_function(tf.TensorSpec([1, 4])).graph
    names = [
        op.name for op in graph.get_operations() if op.type not in ("Placeholder", "ReadVariableOp")
    ]
    assert names == [
        "m/a/MatMul",
        "m/a/BiasAdd",
        "m/a/Relu",
        "m/b/MatMul",
        "m/b/BiasAdd",
        "Identity",
    ]


def test_gradients():
    @tf.function
    def f(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.sin(x))
        return tape.gradient(y, x)

    types = [op.type for op in f.get_concrete_function(tf.TensorSpec([2])).graph.get_operations()]
    assert types[:3] == ["Placeholder", "Sin", "Sum"] and "Cos" in types


def test_arguments_called_name_are_names_of_nodes():
    @tf.function
    def f(x):
        with tf.name_scope("block"):
            y = tf.matmul(x, x, name="product")
        y = tf.concat([y, y], 0, name="joined")
        largest, _ = tf.math.top_k(y, name="largest")
        return tf.identity(largest, name="result"), tf.identity(x, name="copy") + tf.add(
            1, 2, name="folded"
        )

    graph = f.get_concrete_function(tf.TensorSpec([2, 2], tf.int32, name="x")).graph
    nodes = {op.name: op.type for op in graph.get_operations()}
    assert nodes["block/product"] == "MatMul" and nodes["joined"] == "ConcatV2"
    assert (nodes["largest"], nodes["result"], nodes["copy"]) == ("TopKV2", "Identity", "Identity")
    assert graph.get_operation_by_name("block/product").inputs[0].name == "x:0"
    # The name belongs to the call, although its operand has a node.
    assert graph.get_operation_by_name("add").inputs[0].name == "copy:0"
    assert graph.get_tensor_by_name("largest:0").shape == [4, 1]
