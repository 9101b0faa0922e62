"""SavedModels with ragged tensors, sparse tensors and extension types, in both directions with TensorFlow 2.21."""

import json
import pathlib
import subprocess
import sys
import tarfile

import numpy as np
import pytest

import meshflow as tf
from capabilities import PEERS_PYTHON, needs_tensorflow
from meshflow.saved_model.graph.format.messages import NodeDef, SavedModel
from meshflow.saved_model.graph.format.node_attributes import GraphNode
from meshflow.saved_model.graph.ops.arrays import ARRAY_OPS
from meshflow.saved_model.graph.ops.composite_functions import COMPOSITE_FUNCTION_OPS

REFERENCE = pathlib.Path(__file__).parent.parent / "reference"
sys.path.insert(0, str(REFERENCE))
from saved_composite_cases import (
    make_calls,
    make_foreign_calls,
    make_models,
    make_module,
    make_pair,
    make_sparse,
    show,
)

sys.path.pop(0)
SCRIPT = pathlib.Path(__file__).parent / "scripts" / "composites_in_tensorflow.py"
PAIR = make_pair(tf)
CALLS = make_calls(tf, PAIR)
FOREIGN_CALLS = make_foreign_calls(tf)
keras = tf.keras


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(REFERENCE / "saved_composites.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def expected(stored):
    return json.loads((stored / "results.json").read_text())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    tf.saved_model.save(make_module(tf, PAIR), folder / "functions")
    for name, (model, _) in make_models(tf).items():
        model.save(folder / name, save_format="tf")
    return folder


@pytest.fixture(scope="module")
def functions(stored, saved):
    return {
        "tensorflow": tf.saved_model.load(stored / "functions"),
        "meshflow": tf.saved_model.load(saved / "functions"),
    }


@pytest.fixture(scope="module")
def foreign(stored):
    return tf.saved_model.load(stored / "foreign")


def check(found, wanted, path=""):
    """Compare nested lists; numbers may differ by rounding."""
    if isinstance(wanted, dict):
        assert set(found) == set(wanted), path
        for key, value in wanted.items():
            check(found[key], value, f"{path}/{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), (path, found, wanted)
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            check(a, b, f"{path}[{i}]")
    elif isinstance(wanted, float):
        np.testing.assert_allclose(found, wanted, 1e-5, 1e-5, err_msg=path)
    else:
        assert found == wanted, path


@pytest.mark.parametrize("source", ["tensorflow", "meshflow"])
@pytest.mark.parametrize("name", list(CALLS))
def test_functions_return_the_same_values(name, source, functions, expected):
    found = [show(getattr(functions[source], f)(*args)) for f, *args in CALLS[name]]
    check(found, expected[name])


@pytest.mark.parametrize("name", list(FOREIGN_CALLS))
def test_ops_that_only_tensorflow_saves(name, foreign, expected):
    found = [show(getattr(foreign, f)(*args)) for f, *args in FOREIGN_CALLS[name]]
    check(found, expected[f"foreign_{name}"])


@pytest.mark.soak
def test_functions_are_saved_again(functions, expected, tmp_path):
    tf.saved_model.save(functions["meshflow"], tmp_path)
    again = tf.saved_model.load(tmp_path)
    for name, calls in CALLS.items():
        check([show(getattr(again, f)(*args)) for f, *args in calls], expected[name])


@pytest.mark.parametrize("source", ["stored", "saved"])
@pytest.mark.parametrize("name", ["ragged", "sparse"])
def test_models_return_the_same_values(name, source, expected, request):
    folder = request.getfixturevalue(source) / name
    value = make_models(tf)[name][1]
    loaded = tf.saved_model.load(folder)
    check(show(loaded(value)), expected[name])
    check(keras.models.load_model(folder).predict(value, verbose=0).tolist(), expected[name])
    names = ["args_0", "args_0_1", "args_0_2"][: 2 if name == "ragged" else 3]
    signature = loaded.signatures["serving_default"]
    assert sorted(signature.structured_input_signature[1]) == names
    components = tf.type_spec_from_value(value)._to_components(value)
    (result,) = signature(**dict(zip(names, components, strict=True))).values()
    check(show(result), expected[name])


@needs_tensorflow
def test_tensorflow_returns_the_same_values(saved, expected):
    command = [PEERS_PYTHON, str(SCRIPT), str(saved), str(REFERENCE)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(output.stdout.splitlines()[-1])
    wanted = {k: v for k, v in expected.items() if not k.startswith("foreign")}
    assert set(found) == set(wanted)
    check(found, wanted)


def test_gradients_and_outer_functions(functions):
    loaded = functions["meshflow"]
    ids = tf.ragged.constant([[1], [], [1, 3]], dtype=tf.int32)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(loaded.embed(ids) ** 2)
    gradient = tf.convert_to_tensor(tape.gradient(total, loaded.weight)).numpy()
    rows = np.arange(30, dtype=np.float32).reshape(10, 3) / 10
    np.testing.assert_allclose(gradient[1], 2 * (rows[1] + rows[1] + rows[3]), 1e-5)
    np.testing.assert_allclose(gradient[3], 2 * (rows[1] + rows[3]), 1e-5)
    outer = tf.function(lambda x: loaded.rows(x)["dense"])
    assert outer(tf.ragged.constant([[1.0], []])).numpy().tolist() == [[1.0], [-1.0]]


def test_signatures_return_ragged_tensors(tmp_path):
    module = tf.Module()
    spec = tf.RaggedTensorSpec([None, None], tf.float32)
    module.double = tf.function(lambda x: {"y": x * 2.0}, input_signature=[spec])
    tf.saved_model.save(module, tmp_path, signatures=module.double)
    signature = tf.saved_model.load(tmp_path).signatures["serving_default"]
    assert sorted(signature.structured_input_signature[1]) == ["x", "x_1"]
    result = signature(x=tf.constant([1.0, 2.0]), x_1=tf.constant([0, 0, 2], tf.int64))
    assert result["y"].to_list() == [[], [2.0, 4.0]]


def test_extension_types_that_are_not_defined(tmp_path, monkeypatch):
    class Named(tf.experimental.ExtensionType):
        __name__ = "tests.Named"
        x: tf.Tensor
        tags: tuple[str, ...] = ("a",)

    class Unnamed(tf.experimental.ExtensionType):
        x: tf.Tensor

    module = tf.Module()
    for cls in (Named, Unnamed):
        function = tf.function(lambda value: value.x * 2.0)
        function(cls([1.0]))
        setattr(module, cls.__name__.lower(), function)
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    assert loaded.named(Named([3.0])).numpy() == [6.0]
    with pytest.raises(AttributeError, match="Define the attribute __name__"):
        loaded.unnamed
    from meshflow.core.values.composite import named_spec_classes

    monkeypatch.delitem(named_spec_classes, "tests.Named.Spec")
    (concrete,) = tf.saved_model.load(tmp_path).named.concrete_functions
    ((spec,), _) = concrete.structured_input_signature
    value = spec._from_components([tf.constant([4.0])])
    assert (type(value).__name__, value.tags) == ("AnonymousExtensionType", ("a",))
    assert tf.saved_model.load(tmp_path).named(value).numpy() == [8.0]


def test_components_of_extension_types_may_have_the_same_unknown_size(tmp_path):
    class Masked(tf.experimental.ExtensionType):
        __name__ = "tests.Masked"
        values: tf.Tensor
        mask: tf.Tensor

    spec = Masked.Spec(tf.TensorSpec([None]), tf.TensorSpec([None], tf.bool))
    module = tf.Module()
    module.fill = tf.function(lambda m: tf.where(m.mask, m.values, 0.0), input_signature=[spec])
    tf.saved_model.save(module, tmp_path)
    fill = tf.saved_model.load(tmp_path).fill
    assert fill(Masked([3.0, 4.0], [False, True])).numpy().tolist() == [0, 4]


@pytest.mark.soak
def test_models_of_several_kinds_of_inputs(tmp_path):
    sparse, dense = keras.Input([10], sparse=True), keras.Input([10])
    joined = keras.layers.concatenate([keras.layers.Dense(3)(sparse), dense])
    both = keras.Model([sparse, dense], keras.layers.Dense(2)(joined))
    words = keras.Input([None], dtype="string", ragged=True)
    ids = keras.layers.StringLookup(vocabulary=["a", "b"])(words)
    hidden = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(20, 4)(ids))
    steps = keras.Input([None, 3], ragged=True)
    states = tf.RaggedTensor.from_row_lengths(tf.ones([4, 3]), [3, 1])
    cases = [
        (both, [make_sparse(tf), tf.ones([3, 10])]),
        (keras.Model(words, hidden), tf.ragged.constant([["a", "c"], ["b"]])),
        (keras.Model(steps, keras.layers.LSTM(4)(steps)), states),
    ]
    for i, (model, value) in enumerate(cases):
        wanted = model(value).numpy()
        for path in (tmp_path / f"{i}.keras", tmp_path / str(i)):
            model.save(path)
            loaded = keras.models.load_model(path)
            np.testing.assert_allclose(loaded.predict(value, verbose=0), wanted, 1e-5, 1e-6)
        np.testing.assert_allclose(tf.saved_model.load(path)(value).numpy(), wanted, 1e-5, 1e-6)


def test_functions_saved_after_calls(tmp_path):
    rows, sparse = tf.ragged.constant([[1.0, 2.0], []]), tf.sparse.from_dense([[1.0, 0.0]])
    module = tf.Module()
    module.rows = tf.function(lambda x: tf.reduce_sum(x, 1))
    module.sparse = tf.function(lambda x: tf.sparse.reduce_sum(x * 2.0))
    module.rows(rows)
    module.sparse(sparse)
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.rows(tf.ragged.constant([[1.0], [4.0, 5.0]])).numpy().tolist() == [1, 9]
    assert float(loaded.sparse(tf.sparse.from_dense([[3.0, 4.0]]))) == 14


def test_functions_of_any_number_of_arguments(tmp_path):
    module = tf.Module()
    specs = [tf.RaggedTensorSpec([None, None], tf.float32), tf.TensorSpec([])]
    module.scale = tf.function(lambda *args: args[0] * args[1], input_signature=specs)
    tf.saved_model.save(module, tmp_path)
    model = SavedModel.FromString((tmp_path / "saved_model.pb").read_bytes())
    nodes = model.meta_graphs[0].object_graph_def.nodes
    (function,) = (n.function for n in nodes if n.function.concrete_functions)
    fields = function.function_spec.fullargspec.named_tuple_value.values
    assert {f.key: f.value.string_value for f in fields}["varargs"] == "args"
    rows = tf.ragged.constant([[1.0], []])
    assert tf.saved_model.load(tmp_path).scale(rows, tf.constant(2.0)).to_list() == [[2.0], []]


@pytest.mark.parametrize(
    ("op", "attributes", "inputs", "message"),
    [
        ("SparseSplit", {"num_split": 1 << 40}, [1, [[0, 0]], [1.0], [2, 1 << 50]], "num_split"),
        ("SparseSplit", {"num_split": 2}, [1, [[0, 9]], [1.0], [2, 4]], "out of bounds"),
        ("DynamicPartition", {"num_partitions": 1 << 40}, [[1], [0]], "num_partitions"),
        ("DynamicPartition", {"num_partitions": 2}, [[1], [2]], "partitions must be in"),
        ("DynamicPartition", {"num_partitions": 2}, [[1, 2], [0]], "must start with"),
    ],
)
def test_damaged_nodes_raise_errors(op, attributes, inputs, message):
    proto = NodeDef(name="node", op=op)
    for key, value in attributes.items():
        proto.attr[key].i = value
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        COMPOSITE_FUNCTION_OPS[op](GraphNode(proto), *map(np.asarray, inputs))


def test_extrema_of_no_numbers():
    node = GraphNode(NodeDef(name="node", op="Max"))
    for name, sign in (("Max", -1), ("Min", 1)):
        for make in (np.zeros, tf.zeros):
            numbers = getattr(make([0, 2], "float32"), "array", make([0, 2], "float32"))
            found = ARRAY_OPS[name](node, numbers, np.array([0]))
            assert np.asarray(found).tolist() == [sign * np.inf] * 2
    assert ARRAY_OPS["Max"](node, np.zeros(0, "int32"), np.array([0])) == -(2**31)


SPARSE, TEXTS = tf.SparseTensorSpec([None, 10]), tf.SparseTensorSpec([None, None], tf.string)
MATRIX = tf.SparseTensorSpec(make_sparse(tf).shape)
WORDS = tf.RaggedTensorSpec([None, None], tf.string)


@pytest.mark.parametrize(
    ("function", "specs", "values"),
    [
        (lambda a, b: tf.sparse.add(a, b), [SPARSE] * 2, [make_sparse(tf)] * 2),
        (lambda a, b: tf.sparse.maximum(a, b), [MATRIX] * 2, [make_sparse(tf)] * 2),
        (lambda a: tf.sparse.slice(a, [0, 1], [1, 2]), [SPARSE], [make_sparse(tf)]),
        (lambda a: tf.sparse.softmax(a), [SPARSE], [make_sparse(tf)]),
        (lambda a: tf.sparse.reshape(a, [-1, 2]), [SPARSE], [make_sparse(tf)]),
        (
            lambda a: tf.sparse.to_dense(a, "-"),
            [TEXTS],
            [tf.SparseTensor([[0, 1], [2, 0]], ["a", "b"], [3, 2])],
        ),
        (
            lambda r: tf.strings.reduce_join(r, 1, separator="+"),
            [WORDS],
            [tf.ragged.constant([["a", "b"], [], ["c"]])],
        ),
    ],
)
def test_ops_are_saved_for_tensorflow(function, specs, values, tmp_path, caplog):
    module = tf.Module()
    module.f = tf.function(function, input_signature=specs)
    tf.saved_model.save(module, tmp_path)
    assert "not for TensorFlow" not in caplog.text and "not saved" not in caplog.text
    check(show(tf.saved_model.load(tmp_path).f(*values)), show(function(*values)))


FREE = tf.SparseTensorSpec([None, None])
BIAS = tf.TensorSpec([None, 2])


@pytest.mark.parametrize(
    ("function", "specs", "sizes", "wrong"),
    [
        (lambda a, b: tf.sparse.add(a, b), [FREE, FREE], [[2, 3], [2, 3]], [[2, 3], [4, 3]]),
        (lambda a, b: tf.sparse.maximum(a, b), [FREE, FREE], [[2, 3], [2, 3]], [[2, 3], [2, 4]]),
        (
            lambda a, b: tf.sparse.sparse_dense_matmul(a, tf.ones([10, 2])) + b,
            [SPARSE, BIAS],
            [[2, 10], [2, 2]],
            [[2, 10], [3, 2]],
        ),
        (
            lambda a, b: tf.sparse.concat(1, [a, b]),
            [FREE, FREE],
            [[2, 3], [2, 5]],
            [[2, 3], [3, 5]],
        ),
        (
            lambda a, b: tf.sparse.concat(0, [a, b]),
            [FREE, FREE],
            [[2, 3], [4, 3]],
            [[2, 3], [2, 4]],
        ),
    ],
)
def test_saved_functions_compare_unknown_sizes(function, specs, sizes, wrong, tmp_path, caplog):
    def make(spec, shape):
        if isinstance(spec, tf.TensorSpec):
            return tf.ones(shape)
        return tf.SparseTensor([[0, 1], [1, 2]], [1.0, 2.0], shape)

    module = tf.Module()
    module.f = tf.function(function, input_signature=specs)
    tf.saved_model.save(module, tmp_path)
    assert "not for TensorFlow" not in caplog.text
    loaded = tf.saved_model.load(tmp_path).f
    values = list(map(make, specs, sizes))
    check(show(loaded(*values)), show(function(*values)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="equal sizes"):
        loaded(*map(make, specs, wrong))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.sparse.concat(0, [x, x]),
        lambda x: tf.sparse.slice(x, [0, 0], [2, 1]),
        lambda x: tf.sparse.retain(x, x.indices[:, 0] > 0),
        lambda x: tf.sparse.transpose(x),
        lambda x: tf.RaggedTensor.from_sparse(x).to_sparse(),
        lambda x: tf.strings.join([tf.sparse.reorder(x).values, "z"]),
        lambda x: tf.RaggedTensor.from_sparse(x) + "z",
        lambda x: tf.add(tf.RaggedTensor.from_sparse(x), y="z"),
        lambda x: tf.math.add(x.values, y="z"),
    ],
)
def test_sparse_tensors_of_strings(function, tmp_path):
    module = tf.Module()
    module.f = tf.function(function, input_signature=[tf.SparseTensorSpec([None, None], tf.string)])
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    full = tf.sparse.from_dense(np.array([["a", ""], ["b", "cd"], ["", ""]]))
    empty = tf.SparseTensor(np.zeros((0, 2), np.int64), tf.zeros([0], tf.string), [1, 2])
    for value in (full, empty):
        results = [tf.nest.flatten(f(value), True) for f in (function, loaded.f)]
        tf.nest.map_structure(np.testing.assert_array_equal, *results)


def test_constants_for_unknown_numbers_of_rows(tmp_path):
    module = tf.Module()
    module.f = tf.function(
        lambda x: tf.cond(
            tf.size(x) > 2, lambda: tf.stack([x, -x], 1), lambda: tf.stack([x, x], 1)
        ),
        input_signature=[tf.RaggedTensorSpec([None, None])],
    )
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    for rows in ([[1.0, 2.0], [], [3.0]], [[1.0], [2.0]]):
        value = tf.ragged.constant(rows)
        assert loaded.f(value).to_list() == module.f(value).to_list()


def test_loaded_functions_with_variables_of_unknown_shapes(tmp_path):
    module = tf.Module()
    module.a, module.b = (
        tf.Variable([1.0], shape=[None]),
        tf.Variable(2.0, shape=tf.TensorShape(None)),
    )
    module.f = tf.function(
        lambda x: tf.boolean_mask(x, x > 1) * tf.reduce_sum(module.a) * module.b,
        input_signature=[tf.TensorSpec([None])],
    )
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    assert loaded.f(tf.constant([1.0, 2.0])).numpy().tolist() == [4.0]
    loaded.a.assign([1.0, 2.0])
    assert loaded.f(tf.constant([3.0, 2.0, 0.0])).numpy().tolist() == [18.0, 12.0]


def test_loaded_functions_with_unknown_sizes_are_traced_once(tmp_path, caplog):
    module = tf.Module()
    module.f = tf.function(
        lambda x: (tf.boolean_mask(x, x > 1) * 2, tf.unique(x)[0]),
        input_signature=[tf.TensorSpec([None])],
    )
    tf.saved_model.save(module, tmp_path, signatures={"s": module.f.get_concrete_function()})
    loaded = tf.saved_model.load(tmp_path)
    traces = []

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def call(x):
        traces.append(x)
        return loaded.f(x)

    caplog.clear()
    for numbers in ([1.0, 2.0, 3.0], [2.0, 0, 3, 1], [0.0, 0, 0, 2, 2], [], [3.0]):
        x = tf.constant(numbers)
        expected = tf.nest.flatten(module.f(x))
        for results in (loaded.f(x), call(x), loaded.signatures["s"](x)):
            results = tf.nest.flatten(results)
            tf.nest.map_structure(np.testing.assert_array_equal, results, expected)
        assert len(traces) <= 2 or len(numbers) < 2
    assert not caplog.records


def test_texts_as_ragged_rows(tmp_path):
    texts = keras.Input([], dtype="string")
    ids = keras.layers.TextVectorization(ragged=True, vocabulary=["a", "b"])(texts)
    assert isinstance(ids.type_spec, tf.RaggedTensorSpec)
    model = keras.Model(texts, keras.layers.Lambda(lambda x: tf.reduce_sum(x, 1))(ids))
    model.save(tmp_path / "model")
    value = tf.constant(["a B", "", "z"])
    assert model(value).numpy().tolist() == [5, 0, 1]
    assert tf.saved_model.load(tmp_path / "model")(value).numpy().tolist() == [5, 0, 1]
    contents = (tmp_path / "model" / "saved_model.pb").read_bytes()
    assert b"StringSplitV2" in contents
    assert b"RaggedTensorToTensor" not in contents


@pytest.mark.parametrize("count", [2, 300])
def test_complex_constants_of_ragged_programs(count, tmp_path):
    factors = np.arange(2 * count).reshape(count, 2).astype(np.float32).view(np.complex64)
    module = tf.Module()
    module.f = tf.function(
        lambda x: tf.concat([x, x * 1j], 1).to_tensor(2 + 1j) @ tf.constant(factors[:4]),
        input_signature=[tf.RaggedTensorSpec([None, None], tf.complex64)],
    )
    rows = tf.ragged.constant([[1 + 1j, 2.0]] if count == 300 else [[1 + 1j]], tf.complex64)
    tf.saved_model.save(module, tmp_path)
    check(show(tf.saved_model.load(tmp_path).f(rows)), show(module.f(rows)))
