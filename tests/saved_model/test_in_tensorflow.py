"""Test SavedModels written here from TensorFlow's side: always their files, and their behaviour
where TensorFlow is installed."""

import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import meshflow as tf
from capabilities import PEERS_PYTHON, needs_tensorflow
from helpers import assert_close, read_manifest
from meshflow.checkpoint.bundle import BundleReader
from meshflow.saved_model.graph.format.messages import SavedMetadata, SavedModel

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "in_tensorflow.py"
ROOT = pathlib.Path(__file__).parent.parent.parent
layers = tf.keras.layers


class Module(tf.Module):
    """Variables, constants, numbers as arguments, functions that call each other, sizes, ranks."""

    def __init__(self):
        super().__init__()
        self.weight = tf.Variable([[1.0, 2.0], [3.0, 4.0]], name="weight")
        self.calls = tf.Variable(0, trainable=False, name="calls")
        self.parts = [tf.Variable(1.0, name="first"), {"inner": tf.Variable([1, 2], name="inner")}]
        self.table = tf.constant(np.arange(10, dtype=np.float32))

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def __call__(self, x):
        self.calls.assign_add(1)
        return tf.tanh(x @ self.weight) * self.parts[0] + self.table[3]

    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def flat(self, x):
        rows, columns = tf.shape(x)[0], tf.shape(x)[1]
        numbered = tf.reshape(x, [rows * columns]) + tf.cast(tf.range(rows * columns), tf.float32)
        return {"flat": numbered, "rows": tf.tile(x[:1], [rows + 1, 1])}

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def scaled(self, x):
        return x * self.parts[0]

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def both(self, x):
        return self.flat(self(x))["flat"], self.scaled(x)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def module(folder):
    made = Module()
    tf.saved_model.save(made, folder / "module")
    return made


def graph_of(path):
    return SavedModel.FromString((path / "saved_model.pb").read_bytes()).meta_graphs[0]


def test_arrays_are_stored_once(module, folder):
    bundle = BundleReader(folder / "module" / "variables" / "variables")
    assert bundle.read("weight/.ATTRIBUTES/VARIABLE_VALUE").tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert bundle.read("parts/1/inner/.ATTRIBUTES/VARIABLE_VALUE").tolist() == [1, 2]
    names = {p.name for p in (folder / "module").iterdir()}
    assert {n for n in names if not n.startswith("program_")} == {
        *("saved_model.pb", "fingerprint.pb", "variables", "manifest.json")
    }


def test_files_contain_no_source_paths(module, folder):
    for file in (folder / "module").rglob("*"):
        if file.is_file():
            assert str(ROOT).encode() not in file.read_bytes(), file


def test_graph_contains_tensorflow_metadata(module, folder):
    meta = graph_of(folder / "module")
    assert list(meta.meta_info_def.tags) == ["serve"]
    saver = meta.saver_def
    names = {n.name for n in meta.graph_def.node}
    assert {
        saver.restore_op_name,
        saver.save_tensor_name[:-2],
        saver.filename_tensor_name[:-2],
    } <= names
    library = meta.graph_def.library
    functions = {f.signature.name for f in library.function}
    assert functions >= {g.gradient_func for g in library.registered_gradients}
    assert set(meta.object_graph_def.concrete_functions) == functions
    # Variables that are written are written in the graph.
    assert any(n.op == "AssignVariableOp" for f in library.function for n in f.node_def)


def test_functions_for_any_size_and_rank(module, folder):
    loaded = tf.saved_model.load(folder / "module")
    for rows in (1, 4):
        x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        found = loaded.flat(x)
        assert_close(found["flat"], x.reshape(-1) + np.arange(rows * 3), 0)
        assert found["rows"].shape == (rows + 1, 3)
    for shape in ([], [2], [2, 1, 3]):
        assert loaded.scaled(tf.ones(shape)).shape == shape
    x = np.ones([3, 2], np.float32)
    for ours, theirs in zip(module.both(x), loaded.both(x), strict=True):
        assert_close(ours, theirs, 1e-6)


@pytest.fixture(scope="module")
def graph(module, folder):
    """Return a copy of the module's folder with TensorFlow's files only."""
    return graph_only(folder / "module", folder / "graph_only")


def test_programs_are_read_from_the_graph(module, graph):
    loaded = tf.saved_model.load(graph)
    for rows in (1, 4):
        x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        found = loaded.flat(x)
        assert_close(found["flat"], x.reshape(-1) + np.arange(rows * 3), 0)
        assert found["rows"].shape == (rows + 1, 3)
    assert loaded.scaled(tf.ones([2, 1, 3])).shape == [2, 1, 3]
    x = np.ones([3, 2], np.float32)
    calls = int(loaded.calls)
    assert_close(loaded(x), module(x), 1e-6)
    assert int(loaded.calls) == calls + 1
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loaded(x))
    with pytest.raises(tf.errors.UnimplementedError, match=r"node program .* has no gradient"):
        tape.gradient(loss, loaded.weight)


def change_graph(graph, place, change):
    """The folder with a change to the op in the function that `flat` is."""
    path = graph.parent / place
    shutil.copytree(graph, path)
    content = SavedModel.FromString((path / "saved_model.pb").read_bytes())
    for function in content.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            if node.op == "XlaCallModule":
                change(node.attr)
    (path / "saved_model.pb").write_bytes(content.SerializeToString())
    return path


def test_unreadable_programs_are_named(graph):
    def put(key, field, value):
        return lambda attr: setattr(attr[key], field, value)

    def damaged(attr):
        data = bytearray(attr["module"].s)
        data[len(data) // 2] ^= 1
        attr["module"].s = bytes(data)

    def noise(attr):
        del attr["_module_crc32c"]
        attr["module"].s = b"noise"

    def foreign(attr):
        del attr["_module_crc32c"]
        text = "func.func @main(%x: tensor<f32>) -> tensor<f32> { %y = stablehlo.custom_call @system(%x) : "
        attr["module"].s = (
            text + "(tensor<f32>) -> tensor<f32> return %y : tensor<f32> }"
        ).encode()

    def other_platform(attr):
        attr["platforms"].list.s[:] = [b"ROCM"]

    def calls_back(attr):
        attr["function_list"].list.func.add(name="f")

    errors = tf.errors
    for place, change, kind, message in (
        ("old", put("version", "i", 4), errors.UnimplementedError, "version 4, older"),
        ("rocm", other_platform, errors.UnimplementedError, r"for \['ROCM'\]"),
        ("back", calls_back, errors.UnimplementedError, "calls back into TensorFlow"),
        ("damaged", damaged, errors.DataLossError, "module is damaged"),
        ("noise", noise, errors.DataLossError, "is not StableHLO"),
        ("foreign", foreign, errors.OpError, "not StableHLO|native code"),
    ):
        loaded = tf.saved_model.load(change_graph(graph, place, change))
        with pytest.raises(kind, match=message) as told:
            loaded.flat(np.ones([1, 3], np.float32))
        assert "node program" in str(told.value) or "native" in str(told.value)


def test_gradients_can_be_omitted(module, folder):
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, folder / "plain", options=options)
    assert not graph_of(folder / "plain").graph_def.library.registered_gradients


def test_functions_that_tensorflow_cannot_run_are_named_and_saved(folder, caplog):
    class Solver(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([2, 2])])
        def __call__(self, x):
            return tf.linalg.eigvals(x)

    tf.saved_model.save(Solver(), folder / "solver")
    assert "not for TensorFlow: it calls lapack_" in caplog.text
    matrix = np.array([[4.0, 2.0], [2.0, 3.0]], np.float32)
    found = np.sort(tf.saved_model.load(folder / "solver")(matrix).numpy().real)
    assert_close(found, np.linalg.eigvalsh(matrix), 1e-5)
    assert not graph_of(folder / "solver").signature_def["serving_default"].inputs


def test_folder_of_another_program_is_replaced_completely(folder):
    place = folder / "over"
    (place / "variables").mkdir(parents=True)
    (place / "saved_model.pb").write_bytes(b"")
    (place / "variables" / "variables.data-00000-of-00002").write_bytes(b"old")
    (place / "notes.txt").write_text("mine")
    tf.saved_model.save(Module(), place)
    files = {str(p.relative_to(place)) for p in place.rglob("*") if p.is_file()}
    assert "variables/variables.data-00000-of-00002" not in files
    assert (place / "notes.txt").read_text() == "mine"
    assert int(tf.saved_model.load(place).calls) == 0


def words_and_numbers():
    words = layers.TextVectorization(output_sequence_length=5, vocabulary=["the", "cat", "sat"])
    texts, numbers = tf.keras.Input([1], dtype="string"), tf.keras.Input([2])
    hidden = layers.GlobalAveragePooling1D()(layers.Embedding(5, 4)(words(texts)))
    model = tf.keras.Model(
        [texts, numbers], layers.Dense(2)(layers.Concatenate()([hidden, numbers]))
    )
    lines = np.array([["The cat, sat!"], [""], ["a dog\tsat the the the cat"]], object)
    return model, [tf.constant(lines), tf.constant(np.ones([3, 2], np.float32))]


def test_words_are_looked_up_before_the_program(folder):
    model, data = words_and_numbers()
    expected = model(data)
    tf.saved_model.save(model, folder / "words")
    loaded = tf.saved_model.load(folder / "words")
    assert_close(loaded(data), expected, 1e-6)
    assert loaded(data, training=True).shape == expected.shape
    named = dict(zip(model.input_names, [x[:2] for x in data], strict=True))
    assert_close(*loaded.signatures["serving_default"](**named).values(), expected[:2], 1e-6)
    # TensorFlow executes the same operations.
    graph = folder / "graph"
    shutil.copytree(folder / "words", graph, ignore=shutil.ignore_patterns("manifest.json"))
    content = SavedModel.FromString((graph / "saved_model.pb").read_bytes())
    (function,) = (
        f
        for f in content.meta_graphs[0].graph_def.library.function
        if "serving_default" in f.signature.name and "wrapper" not in f.signature.name
    )
    numbers = next(n for n in function.node_def if n.op == "XlaCallModule").input[0]
    from meshflow.saved_model.graph.reading.interpreter import (
        FunctionLibrary,
        GraphFunction,
        GraphRun,
    )

    made = GraphFunction(function)
    found = {"argument_0": [data[0].numpy()]}
    run = GraphRun(FunctionLibrary([]), [], host=True)
    run.evaluate(made.nodes, found, [numbers.split(":")[0]], "words")
    (ids,) = found[numbers.split(":")[0]]
    assert ids.tolist() == [[2, 3, 4, 0, 0], [0] * 5, [1, 1, 4, 2, 2]]


def test_other_layers_of_strings_are_named(folder, caplog):
    texts = tf.keras.Input([1], dtype="string")
    outputs = layers.Dense(1)(
        layers.TextVectorization(vocabulary=["a"], output_mode="count", ngrams=2)(texts)
    )
    model = tf.keras.Model(texts, outputs)
    model.save(folder / "counts", save_format="tf")
    assert "TextVectorization) with ngrams" in caplog.text
    x = tf.constant([["a a"], ["b"]])
    assert_close(tf.keras.models.load_model(folder / "counts")(x), model(x), 1e-6)


def test_keras_makes_the_model_of_its_layers(folder):
    """A transformer of any length, an op with a number first, and layers in a row that a call built."""
    inputs = tf.keras.Input([None, 4])
    hidden = layers.MultiHeadAttention(1, 2)(inputs, inputs) + 2 * inputs
    outputs = tf.keras.Sequential([layers.Dense(3), layers.Dropout(0.5)], name="inner")(hidden)
    model = tf.keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    model.save(folder / "layered", save_format="tf")
    graph = folder / "layered_graph"
    shutil.copytree(folder / "layered", graph, ignore=shutil.ignore_patterns("manifest.json"))
    x = np.random.default_rng(0).normal(size=[2, 5, 4]).astype("float32")
    loaded = tf.keras.models.load_model(graph)
    assert [type(layer) for layer in loaded.layers] == [type(layer) for layer in model.layers]
    assert_close(loaded(x), model(x), 1e-6)
    assert loaded.optimizer is not None
    nodes = SavedMetadata.FromString((graph / "keras_metadata.pb").read_bytes()).nodes
    about = {n.node_path: (n.identifier, json.loads(n.metadata)) for n in nodes}
    kind, root = about["root"]
    assert kind == "_tf_keras_network" and root["training_config"]["loss"] == "mse"
    calls = [entry["inbound_nodes"] for entry in root["config"]["layers"]]
    name = inputs.name.split(":")[0]
    assert calls[1] == [[[name, 0, 0, {"value": [name, 0, 0]}]]]
    assert ["_CONSTANT_VALUE", -1, 2.0, {"y": [name, 0, 0], "name": None}] in [
        c[0] for c in calls if c
    ]
    kind, inner = about["root.layer_with_weights-1"]
    assert kind == "_tf_keras_sequential"
    assert inner["config"]["layers"][0]["config"]["batch_input_shape"] == [None, None, 4]


def test_missing_protobuf_is_reported(folder, caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "meshflow.saved_model.graph.writing.graph_writer", None)
    tf.saved_model.save(Module(), folder / "ours")
    assert "TensorFlow will not be able to load the model" in caplog.text
    assert not (folder / "ours" / "saved_model.pb").exists()


class Words(tf.Module):
    """Strings and tables before numbers, and a table of numbers."""

    def __init__(self):
        super().__init__()
        words = tf.lookup.KeyValueTensorInitializer(["é", "b", "a!"], tf.constant([1.5, 2.5, 3.0]))
        self.words = tf.lookup.StaticHashTable(words, -1.0)
        numbers = tf.lookup.KeyValueTensorInitializer(tf.constant([3, 5], tf.int64), [0.25, 0.5])
        self.numbers = tf.lookup.StaticHashTable(numbers, 0.0)
        self.scale = tf.Variable([1.0, 2.0], name="scale")

    @tf.function(
        input_signature=[tf.TensorSpec([None, 2], tf.string, "text"), tf.TensorSpec([None, 2], name="x")]
    )  # fmt: skip
    def __call__(self, text, x):
        clean = tf.strings.regex_replace(tf.strings.lower(tf.strings.strip(text)), "[0-9]+", "")
        bucket = tf.cast(tf.strings.to_hash_bucket_fast(clean, 10), tf.float32)
        sizes = tf.strings.length(text)
        return {
            "y": self.words.lookup(clean) * x * self.scale + bucket,
            "n": tf.cast(sizes, tf.float32) + self.numbers.lookup(tf.cast(sizes, tf.int64)),
            "m": tf.strings.regex_full_match(clean, "b|a."),
        }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def joined(self, text):
        return tf.strings.join([text, "!"])


WORDS = [[" É9", "B"], ["zz", "a!12 "]], [[1.0, 2.0], [3.0, 4.0]]
# As TensorFlow 2.21 computes them.
FROM_WORDS = {
    "y": [[1.0, 12.0], [-1.0, 27.0]],
    "n": [[4.0, 1.0], [2.0, 5.5]],
    "m": [[False, True], [False, True]],
}


def test_functions_of_strings_and_tables(folder):
    module = Words()
    tf.saved_model.save(module, folder / "strings", module.__call__)
    graph_only(folder / "strings", folder / "string_graph")
    text, x = tf.constant(WORDS[0]), tf.constant(WORDS[1])
    for found in (module(text, x), *(tf.saved_model.load(folder / n)(text, x) for n in ("strings", "string_graph"))):  # fmt: skip
        assert {k: v.numpy().tolist() for k, v in found.items()} == FROM_WORDS
    loaded = tf.saved_model.load(folder / "strings")
    assert loaded.joined(text[0]).numpy().tolist() == [" É9!".encode(), b"B!"]
    assert loaded.words.lookup(tf.constant(["b"])).numpy().tolist() == [2.5]
    signature = loaded.signatures["serving_default"]
    assert signature(text=text[1:], x=x[1:])["y"].numpy().tolist() == FROM_WORDS["y"][1:]


def graph_only(path, place):
    """Return a copy of a folder with TensorFlow's files only."""
    shutil.copytree(path, place, ignore=shutil.ignore_patterns("manifest.json"))
    return place


class Labels(tf.Module):
    """Strings as results, calls of the host between programs, tables that change, files."""

    def __init__(self, file):
        super().__init__()
        lines = tf.lookup.TextFileIndex
        self.file = tf.saved_model.Asset(file)
        known = tf.lookup.TextFileInitializer(
            str(file), tf.string, lines.WHOLE_LINE, tf.int64, lines.LINE_NUMBER
        )
        self.vocabulary = tf.lookup.StaticVocabularyTable(known, 3)
        back = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), ["zero", "one"])
        self.back = tf.lookup.StaticHashTable(back, "many")
        self.seen = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, -1.0)
        self.seen.insert(tf.constant(["x", "y"]), tf.constant([5.0, 6.0]))
        self.names = tf.constant(["cat", "dog", "cow"])
        self.weight = tf.Variable([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def label(self, x):
        scores = x @ self.weight
        best = tf.argmax(scores, -1)
        return {
            "scores": scores,
            "name": tf.gather(self.names, best),
            "back": self.back.lookup(best),
        }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def look(self, text):
        found = self.seen.lookup(text)
        told = tf.strings.as_string(found * 2.0 + self.weight[0, 0], precision=1)
        return self.vocabulary.lookup(text), found, tf.strings.join([text, "!"]) + told

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string), tf.TensorSpec([None])])
    def put(self, keys, values):
        self.seen.insert(keys, values * self.weight[0, 2])
        return self.seen.size(), self.seen.lookup(keys)

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.string)])
    def parts(self, text):
        digits = tf.strings.regex_replace(text, "[^0-9]", "")
        return {
            "told": self.look(tf.reshape(text, [-1]))[2],
            "joined": tf.strings.reduce_join(text, axis=1, separator=" "),
            "chosen": tf.where(text == "a", "yes", text),
            "first": tf.strings.substr(text[:, 0], 0, 1),
            "numbers": tf.strings.to_number(digits + "1"),
            "stacked": tf.stack([text[:, 1], tf.strings.upper(text[:, 0])], axis=1),
        }

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
    def where(self, text):
        return tf.strings.join([text, self.file.asset_path])


# Program, arguments and results, in this order; as TensorFlow 2.21 computes them.
CALLS = [
    ["label", [[[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]], {"scores": [[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]], "name": ["cat", "cow"], "back": ["zero", "many"]}],
    ["look", [["a", "b", "q", "x"]], [[0, 1, 4, 4], [-1.0, -1.0, -1.0, 5.0], ["a!-2.0", "b!-2.0", "q!-2.0", "x!10.0"]]],
    ["put", [["q"], [7.0]], [3, [7.0]]],
    ["parts", [[["a", "b2"], ["q", "x"]]], {"told": ["a!-2.0", "b2!-2.0", "q!14.0", "x!10.0"], "joined": ["a b2", "q x"], "chosen": [["yes", "b2"], ["q", "x"]], "first": ["a", "q"], "numbers": [[1.0, 21.0], [1.0, 1.0]], "stacked": [["b2", "A"], ["x", "Q"]]}],
]  # fmt: skip


def plain(value):
    """Tensors as lists, strings as text."""
    value = tf.nest.map_structure(lambda t: np.asarray(t.numpy()).tolist(), value)
    return json.loads(json.dumps(value, default=bytes.decode))


@pytest.fixture(scope="module")
def labels(folder):
    file = folder / "words.txt"
    file.write_text("a\nb\n")
    made = Labels(file)
    tf.saved_model.save(made, folder / "there", {"label": made.label, "parts": made.parts})
    (folder / "there").rename(folder / "labels")
    file.unlink()
    return folder / "labels"


@pytest.mark.parametrize("whose", ["labels", "labels_graph"])
def test_strings_as_results_and_tables_that_change(labels, folder, whose):
    path = labels if whose == "labels" else graph_only(labels, folder / whose)
    loaded = tf.saved_model.load(path)
    for name, args, expected in CALLS:
        assert plain(getattr(loaded, name)(*map(tf.constant, args))) == expected, name
    x = tf.constant([[1.0, 2.0, 3.0]])
    assert plain(loaded.signatures["label"](x=x)["name"]) == ["cat"]
    # Another one has its own table.
    assert plain(tf.saved_model.load(path).look(tf.constant(["q"])))[1] == [-1.0]
    file = plain(loaded.where(tf.constant("")))
    assert pathlib.Path(file).parent == path / "assets"
    assert pathlib.Path(file).read_text() == "a\nb\n"


def test_parts_of_functions_of_strings_have_gradients_and_are_saved_again(labels, folder):
    loaded = tf.saved_model.load(labels)
    x = tf.constant([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loaded.label(x)["scores"] ** 2)
    expected = [[12.0, 16.0, 20.0], [16.0, 16.0, 16.0], [20.0, 16.0, 12.0]]
    assert_close(tape.gradient(loss, loaded.weight), expected, 1e-5)
    loaded.weight.assign(-loaded.weight)
    loaded.seen.insert(tf.constant(["new"]), tf.constant([1.0]))
    tf.saved_model.save(loaded, folder / "labels_again")
    again = tf.saved_model.load(folder / "labels_again")
    assert plain(again.label(x)["name"]) == ["cow", "cat"]
    assert plain(again.look(tf.constant(["new"])))[1] == [1.0]
    assert set(again.signatures) == {"label", "parts"}


@pytest.mark.parametrize("name", ["../x", "..", ""])
def test_file_names_cannot_leave_the_folder(labels, folder, name):
    path = folder / "leads"
    shutil.copytree(labels, path, dirs_exist_ok=True)
    manifest = read_manifest(path)
    (asset,) = (n for n in manifest["saved_model"]["nodes"] if n["kind"] == "asset")
    asset["file"] = name
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(tf.errors.DataLossError, match="no file of the model"):
        tf.saved_model.load(path)


def test_unsupported_string_ops_are_named(folder, caplog):
    class Formatted(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def grams(self, text):
            return tf.strings.ngrams(text, 2)

    module = Formatted()
    tf.saved_model.save(module, folder / "grams")
    assert "function grams is not saved" in caplog.text
    with pytest.raises(tf.errors.UnimplementedError, match="serving_default has "):
        tf.saved_model.save(module, folder / "no", module.grams)
    assert not (folder / "no").exists()


# ---- in TensorFlow itself ------------------------------------------------------------------


class Subclassed(tf.keras.Model):
    """Define a model whose class TensorFlow does not know."""

    def __init__(self):
        super().__init__()
        self.dense, self.drop = layers.Dense(2), layers.Dropout(0.0)

    def call(self, x, training=False):
        return self.drop(self.dense(x), training=training)


def models():
    rng = np.random.default_rng(0)
    inputs = tf.keras.Input([8])
    hidden = layers.Dropout(0.3)(layers.Dense(16, "relu")(inputs))
    yield "mlp", tf.keras.Model(inputs, layers.Dense(3)(hidden)), [rng.normal(size=(5, 8))]
    inputs = tf.keras.Input([12, 12, 3])
    hidden = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(inputs)))
    hidden = layers.GlobalAveragePooling2D()(
        layers.Conv2D(8, 3, strides=2)(layers.MaxPooling2D()(hidden))
    )
    model = tf.keras.Model(inputs, layers.Dense(4, "softmax")(hidden))
    yield "cnn", model, [rng.normal(size=(5, 12, 12, 3))]
    ids = tf.keras.Input([None], dtype="int32")
    hidden = layers.Bidirectional(layers.LSTM(6))(layers.Embedding(20, 8, mask_zero=True)(ids))
    words = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8], [9, 0, 0, 0, 0]], np.int32)
    yield "lstm", tf.keras.Model(ids, layers.Dense(2)(hidden)), [words]
    inputs = tf.keras.Input([None, 8])
    hidden = layers.LayerNormalization()(inputs + layers.MultiHeadAttention(2, 4)(inputs, inputs))
    outputs = layers.LayerNormalization()(
        hidden + layers.Dense(8)(layers.Dense(16, "gelu")(hidden))
    )
    yield "transformer", tf.keras.Model(inputs, outputs), [rng.normal(size=(3, 7, 8))]
    inner = tf.keras.Sequential([layers.Dense(4, "relu"), layers.Dense(2)])
    inputs = tf.keras.Input([3])
    outputs = layers.Dense(1, kernel_regularizer="l2")(inner(inputs) + inner(2 * inputs))
    yield "nested", tf.keras.Model(inputs, outputs), [rng.normal(size=(4, 3))]
    yield "subclassed", Subclassed(), [rng.normal(size=(4, 3))]
    first, second = tf.keras.Input([4], name="zeta"), tf.keras.Input([3], name="alpha")
    outputs = [layers.Dense(2)(layers.Concatenate()([first, second])), layers.Dense(1)(first)]
    data = [rng.normal(size=(3, 4)), rng.normal(size=(3, 3))]
    yield "several", tf.keras.Model([first, second], outputs), data


@needs_tensorflow
@pytest.mark.timeout(900)
def test_tensorflow_runs_functions_of_strings(folder):
    module = Words()
    tf.saved_model.save(module, folder / "live_strings", module.__call__)
    code = (
        "import json, sys, tensorflow as tf; loaded = tf.saved_model.load(sys.argv[1]); "
        "text, x = map(tf.constant, json.loads(sys.argv[2])); "
        "print(json.dumps([{k: v.numpy().tolist() for k, v in f.items()} for f in "
        "(loaded(text, x), loaded.signatures['serving_default'](text=text, x=x))]))"
    )
    command = [PEERS_PYTHON, "-c", code, str(folder / "live_strings"), json.dumps(WORDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    called, signed = json.loads(done.stdout.splitlines()[-1])
    assert called == FROM_WORDS and signed == FROM_WORDS


@needs_tensorflow
@pytest.mark.timeout(900)
def test_tensorflow_returns_strings_and_changes_tables(labels):
    code = (
        "import json, sys, tensorflow as tf; l = tf.saved_model.load(sys.argv[1]); "
        "plain = lambda v: tf.nest.map_structure(lambda t: t.numpy().tolist(), v); "
        "found = [plain(getattr(l, n)(*map(tf.constant, a))) for n, a in json.loads(sys.argv[2])]; "
        "named = plain(l.signatures['label'](x=tf.constant([[1., 2., 3.]])))['name']; "
        "t = tf.GradientTape(); t.__enter__(); s = tf.reduce_sum(l.label(tf.ones([2, 3]))['scores'] ** 2); "
        "t.__exit__(None, None, None); g = plain(t.gradient(s, l.weight)); "
        "o = open(l.file.asset_path.numpy()).read(); s = tf.compat.v1.Session(graph=tf.Graph()); "
        "m = s.graph.as_default().__enter__() and tf.compat.v1.saved_model.loader.load(s, ['serve'], sys.argv[1]); "
        "d = m.signature_def['parts']; "
        "v = s.run(d.outputs['told'].name, {d.inputs['text'].name: [['a', 'x']]}).tolist(); "
        "print(json.dumps([found, named, g, o, v], default=bytes.decode))"
    )
    calls = json.dumps([c[:2] for c in CALLS])
    command = [PEERS_PYTHON, "-c", code, str(labels), calls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found, named, gradient, content, served = json.loads(done.stdout.splitlines()[-1])
    assert found == [c[2] for c in CALLS]
    assert named == ["cat"] and content == "a\nb\n"
    assert gradient == [[4.0] * 3] * 3
    assert served == ["a!-2.0", "x!10.0"]


@needs_tensorflow
@pytest.mark.timeout(900)
def test_tensorflow_loads_trains_serves_and_saves_them(folder):
    expected, datas = {}, {}
    for name, model, data in models():
        data = [x.astype(np.int32 if x.dtype.kind == "i" else np.float32) for x in data]
        if not model.built:
            model(data[0])
        model.compile("adam", "mse")
        model.save(folder / name, save_format="tf")
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(model(data if len(data) > 1 else data[0]))
            loss = sum(tf.reduce_sum(y**2) for y in outputs)
        gradients = tape.gradient(loss, model.trainable_variables)
        by_name = {
            v.name: tf.convert_to_tensor(g).numpy()
            for v, g in zip(model.trainable_variables, gradients, strict=True)
        }
        datas[name] = data
        expected[name] = [y.numpy() for y in outputs], by_name
        arrays = {f"x{i}": x for i, x in enumerate(data)}
        names = getattr(model, "input_names", ["input_1"])
        np.savez(folder / f"{name}.npz", names=np.array(names), **arrays)
    command = [PEERS_PYTHON, str(SCRIPT), str(folder), *expected]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, (outputs, gradients) in expected.items():
        with np.load(folder / f"{name}.tf.npz") as file:
            found = dict(file)
        for i, output in enumerate(outputs):
            assert_close(found[f"y{i}"], output, 2e-6)
        assert_close(found["again"], outputs[0], 2e-6)
        # Files saved by TensorFlow contain the same programs.
        data = datas[name]
        again = tf.saved_model.load(folder / f"{name}.again")(data[0] if len(data) == 1 else data)
        assert_close(tf.nest.flatten(again)[0], outputs[0], 2e-6)
        for i, output in enumerate(outputs):
            assert_close(found[f"keras{i}"], output, 2e-6)
        assert np.isfinite(found["keras_losses"]).all()
        assert (
            min(
                np.abs(found["served0"] - y).max()
                for y in outputs
                if y.shape == found["served0"].shape
            )
            < 2e-6
        )
        assert_close(found["one"], outputs[0][:1], 2e-6) if len(outputs) == 1 else None
        for i, weight in enumerate(found["weights"]):
            # Sums of many terms differ by units in the last place of the largest ones.
            tolerance = 2e-5 + 1e-6 * np.abs(gradients[weight]).max()
            assert_close(found[f"g{i}"], gradients[weight], 0, tolerance)
        assert found["trainable_again"] == len(gradients)
        assert found["losses"][-1] < found["losses"][0]
