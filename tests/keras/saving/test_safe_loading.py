"""Test files of strangers: a model's file is data; it runs no code, names only ops and known
classes, and opens no other file."""

import contextlib
import functools
import io
import json
import os
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshflow as tf
from helpers import SOAK, assert_close, read_manifest
from meshflow.core.dispatch import op_names
from meshflow.environment import limits
from meshflow.keras import safe_mode as modes
from meshflow.keras.engine.graph import op_table
from meshflow.keras.engine.saving import archives
from meshflow.keras.registry import OBJECT_MARK

h5py = pytest.importorskip("h5py")
keras, layers = tf.keras, tf.keras.layers
FORMATS = ["m.keras", "m.h5", "folder", "json"]
NAMES = [
    "keras.utils.files.os.system",
    "meshflow.keras.utils.files.os.system",
    "tf.keras.utils.files.os.popen",
    "os.system",
    "builtins.eval",
    "builtins.exec",
    "io.write_file",
    "io.read_file",
    "io.gfile.remove",
    "py_function",
    "numpy_function",
    "map_fn",
    "print",
    "timestamp",
    "function",
    "keras.models.load_model",
    "keras.utils.get_file",
    "saved_model.load",
    "compat.v1.py_func",
    "__operators__.__class__",
    "nn.relu.__globals__",
    "ops.array.joining._concat.__globals__",
    "bitwise.op",
    "",
]
_ran = []
_watching = []


def _hook(event, args):
    if _watching and event in (
        "os.system",
        "subprocess.Popen",
        "os.posix_spawn",
        "os.exec",
        "os.remove",
    ):
        _ran.append((event, args))


# An audit hook cannot be removed and slows everything, so it is installed only when a test requests
# it.
@functools.cache
def _hooked():
    sys.addaudithook(_hook)


@contextlib.contextmanager
def watching():
    """Fail where commands ran or files were removed."""
    _hooked()
    _ran.clear()
    _watching.append(True)
    try:
        yield
    finally:
        _watching.pop()
    assert not _ran


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A compiled model with functions, ops and wrappers, in every format."""
    folder = tmp_path_factory.mktemp("saved")
    x = keras.Input((4,), name="x")
    dense = layers.Dense(
        3,
        "relu",
        kernel_initializer="he_normal",
        kernel_regularizer="l2",
        bias_constraint="non_neg",
    )
    y = layers.Lambda(tf.nn.relu)(tf.concat([tf.nn.relu(dense(x)) * 2.0, x[:, :2]], axis=-1))
    y = layers.Activation("tanh")(layers.TimeDistributed(layers.Dense(2))(y[:, :, None]))
    model = keras.Model(x, y)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    model.compile(
        keras.optimizers.SGD(schedule), keras.losses.Huber(), [keras.metrics.MeanAbsoluteError()]
    )
    for name in FORMATS[:3]:
        model.save(folder / name, **({"save_traces": False} if name == "folder" else {}))
    (folder / "json").write_text(model.to_json())
    return folder, model


def changed(source, target, change):
    """A copy of a file with `change(config)` in place of the configuration; the training's is config["training"]."""
    if source.name == "json":
        target.write_text(json.dumps(change(json.loads(source.read_text()))))
    elif source.name == "folder":
        target.mkdir()
        for file in source.iterdir():
            (target / file.name).write_bytes(file.read_bytes())
        manifest = read_manifest(source)
        manifest["model"]["model_config"] = change(manifest["model"]["model_config"])
        (target / "manifest.json").write_text(json.dumps(manifest))
    elif source.name == "m.h5":
        target.write_bytes(source.read_bytes())
        with h5py.File(target, "r+") as file:
            file.attrs["model_config"] = json.dumps(change(json.loads(file.attrs["model_config"])))
    else:
        with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
            for name in old.namelist():
                data = old.read(name)
                if name == "config.json":
                    data = json.dumps(change(json.loads(data))).encode()
                new.writestr(name, data)
    return target


def load(path):
    if "json" in path.name:
        return keras.models.model_from_json(path.read_text())
    return keras.models.load_model(path)


def with_call(name, command):
    """Put a call of a function with a name into a configuration."""

    def change(config):
        entry = {
            "class_name": "TFOpLambda",
            "name": "call",
            "config": {"name": "call", "trainable": True, "dtype": "float32", "function": name},
            "inbound_nodes": [{"args": [command], "kwargs": {}}],
        }
        config["config"]["layers"].append(entry)
        return config

    return change


@pytest.fixture
def watched(tmp_path):
    plant = tmp_path / "plant"
    with watching():
        yield plant
    assert not plant.exists()


@pytest.mark.parametrize("name", FORMATS)
def test_files_are_loaded_and_changed(saved, tmp_path, name):
    folder, model = saved
    found = load(changed(folder / name, tmp_path / f"same-{name}", lambda config: config))
    assert [type(layer) for layer in found.layers] == [type(layer) for layer in model.layers]
    x = np.ones((2, 4), "f4")
    if name != "json":
        assert_close(found(x), model(x))


@pytest.mark.parametrize("function", NAMES)
@pytest.mark.parametrize("name", FORMATS)
def test_calls_of_non_ops_are_refused(saved, tmp_path, watched, name, function):
    source = saved[0] / name
    path = changed(source, tmp_path / f"bad-{name}", with_call(function, f"touch {watched}"))
    with pytest.raises(ValueError, match="no op"):
        load(path)


@pytest.mark.parametrize("function", NAMES)
def test_lambda_layers_name_ops_only(function, watched):
    config = {**layers.Lambda(tf.nn.relu).get_config(), "function": function}
    with pytest.raises(ValueError, match="no op"):
        layers.Lambda.from_config(config)
    config = {"class_name": "Lambda", "config": {**config, "module": "os"}}
    with pytest.raises(ValueError, match="no op"):
        layers.deserialize(config)


@pytest.mark.parametrize(
    "entry",
    [
        {"class_name": "Lambda", "config": {"name": "z", "function": ["code", None, None]}},
        {"class_name": "TextVectorization", "config": {"vocabulary": "words.txt"}},
        {"module": "os", "class_name": "system", "config": "true"},
        {"module": "builtins", "class_name": "function", "config": "eval"},
    ],
)
def test_marked_entries_are_restricted_like_others(entry):
    marked = {OBJECT_MARK: True, **entry}
    with watching(), pytest.raises(ValueError, match=r"Requested the deserialization|Unknown"):
        layers.deserialize({"class_name": "Dense", "config": {"units": 1, "name": marked}})


def _places(value, path=()):
    """Paths of all strings in a configuration, and the keys that they are under."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _places(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _places(item, (*path, i))
    elif isinstance(value, str):
        yield path


# These keys contain the name of a class or function.
NAMING = ("class_name", "function", "activation")


@settings(max_examples=400 if SOAK else 40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mutated_configurations_run_no_code(saved, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("mutated")
    plant, command = folder / "plant", f"touch {folder / 'plant'}"
    evil = data.draw(st.sampled_from([n for n in NAMES if n]))
    form = data.draw(
        st.sampled_from(
            [
                evil,
                {"class_name": evil, "config": {"command": command}},
                {
                    "module": evil.rpartition(".")[0],
                    "class_name": evil.rpartition(".")[2],
                    "config": command,
                    "registered_name": evil,
                },
                {
                    "module": "builtins",
                    "class_name": "function",
                    "config": evil,
                    "registered_name": "function",
                },
                {"class_name": "TFOpLambda", "config": {"function": evil, "name": "z"}},
                {
                    "class_name": "Lambda",
                    "config": {"name": "z", "function": [command, None, None]},
                },
            ]
        )
    )
    naming = []

    def change(config):
        path = data.draw(st.sampled_from(list(_places(config))))
        inner = config
        for key in path[:-1]:
            inner = inner[key]
        # Indexing has no function, regardless of the file.
        naming.append(path[-1] in NAMING and "getitem" not in str(inner[path[-1]]))
        inner[path[-1]] = form
        return config

    name = data.draw(st.sampled_from(FORMATS))
    path = changed(saved[0] / name, folder / name, change)
    with watching():
        try:
            load(path)
            assert not naming[0], "a name of nothing was accepted"
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            NotImplementedError,
            IndexError,
        ) as error:
            assert str(error)
    assert not plant.exists()


@pytest.mark.parametrize("name", FORMATS)
def test_code_is_refused_in_every_format(tmp_path, monkeypatch, name):
    model = keras.Sequential([keras.Input((2,)), layers.Lambda(lambda x: x * 3.0)])
    path = tmp_path / name
    if name == "json":
        path.write_text(model.to_json())
    else:
        model.save(path)
    with pytest.raises(ValueError, match=r"safe_mode=False.*enable_unsafe_deserialization"):
        load(path)
    if name == "json":
        trusted = keras.models.model_from_json(path.read_text(), safe_mode=False)
    else:
        trusted = keras.models.load_model(path, safe_mode=False)
    assert_close(trusted(tf.ones([1, 2])), [[3.0, 3.0]])
    monkeypatch.setattr(modes, "_is_disabled", False)
    keras.config.enable_unsafe_deserialization()
    assert_close(load(path)(tf.ones([1, 2])), [[3.0, 3.0]])


def test_configurations_of_this_program_restore_functions():
    factor = tf.Variable(2.0)
    model = keras.Sequential([keras.Input((2,)), layers.Lambda(lambda x: x * factor)])
    clone = keras.models.clone_model(model)
    assert clone.layers[-1].function is model.layers[-1].function
    plain = layers.serialize(layers.Lambda(lambda x: x * 2))
    assert layers.deserialize(plain)(tf.constant([1.0])).numpy().tolist() == [2.0]
    with pytest.raises(ValueError, match="code of the file's author"):
        layers.deserialize(json.loads(json.dumps(plain)))
    text = layers.TextVectorization(standardize=lambda t: tf.strings.lower(t), vocabulary=["a"])
    again = layers.TextVectorization.from_config(text.get_config())
    assert again(["A b"]).numpy().tolist() == [[2, 1]]
    column = tf.feature_column.numeric_column("a", normalizer_fn=lambda v: v * 2)
    dense = layers.DenseFeatures([column])
    made = layers.DenseFeatures.from_config(dense.get_config())
    assert_close(made({"a": tf.constant([[3.0]])}), [[6.0]])
    swapped = keras.models.clone_model(model, clone_function=lambda layer: layers.ReLU())
    assert isinstance(swapped.layers[-1], layers.ReLU)


def test_names_of_functions_in_lambda_layers():
    for function in (tf.math.square, tf.concat, keras.backend.square, keras.activations.gelu):
        config = json.loads(json.dumps(layers.Lambda(function).get_config()))
        assert layers.Lambda.from_config(config).function is function
    for network in ("mobilenet_v2", "resnet50", "densenet"):
        function = getattr(keras.applications, network).preprocess_input
        config = json.loads(json.dumps(layers.Lambda(function).get_config()))
        x = tf.reshape(tf.range(12.0), (1, 2, 2, 3))
        assert_close(layers.Lambda.from_config(config)(x), function(x))
    # Keras 2 writes a function's name and the module that it is in.
    config = {
        "name": "l",
        "function": "square",
        "function_type": "function",
        "module": "keras.backend",
    }
    assert layers.Lambda.from_config(config)(tf.constant([3.0])).numpy().tolist() == [9.0]
    config["function"] = "eval"
    with pytest.raises(ValueError, match="no op"):
        layers.Lambda.from_config(config)


def test_table_contains_only_ops():
    for space, names in op_table._COMPOSITE_FUNCTIONS.items():
        assert set(names.split()) <= set(op_table.get_ops(space))
    assert op_table.find_function("compat.v1.transpose") is tf.compat.v1.transpose
    forbidden = [
        *(
            tf.print,
            tf.py_function,
            tf.numpy_function,
            tf.io.write_file,
            tf.io.read_file,
            tf.map_fn,
        ),
        *(tf.function, tf.timestamp, tf.cond, tf.while_loop, tf.io.matching_files, os.system, eval),
        *(
            tf.debugging.Assert,
            tf.random.set_seed,
            tf.saved_model.load,
            keras.models.load_model,
            open,
        ),
    ]
    table = [op for space in op_table.NAMESPACES for op in op_table.get_ops(space).values()]
    known = {*map(id, table), *map(id, op_names._functions.values())}
    assert not [f for f in forbidden if id(f) in known]
    assert all(not f.__module__.startswith(("os", "builtins", "subprocess")) for f in table)


def test_stored_function_names_are_unique():
    def convert(x):
        return x

    first = op_names.register_name(convert)
    assert op_names.register_name(first) is first

    def convert(x):
        return -x

    with pytest.raises(ValueError, match=r"Two functions would have the name '.*\.convert'"):
        op_names.register_name(convert)
    assert op_names.find_function(op_names.get_name(first)) is first


@pytest.mark.parametrize("version", ["update", "add", "sub", "min", "max"])
def test_similarly_created_ops_are_distinguished(version, tmp_path):
    x = keras.Input([3], batch_size=2)
    change = getattr(tf, f"tensor_scatter_nd_{version}")
    model = keras.Model(x, change(x, [[0, 1]], [2.0]))
    model.save(tmp_path / "m.keras")
    values = np.float32([[1, 3, 5], [2, 4, 6]])
    expected = change(values, [[0, 1]], [2.0])
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded(values), expected)
    named = loaded.get_config()["layers"][1]["config"]["function"]
    assert named == f"tensor_scatter_nd_{version}"


def test_forms_of_later_versions_of_keras():
    get = keras.saving.deserialize_keras_object
    named = {"module": "builtins", "class_name": "function", "registered_name": "function"}
    assert get({**named, "config": "relu"}) is keras.activations.relu
    dense = {
        "module": "keras.layers",
        "class_name": "Dense",
        "config": {"units": 3},
        "registered_name": None,
    }
    assert get(dense).units == 3
    for bad in ("os.system", "eval", "load_model", "clone_model", "get_file"):
        with pytest.raises(ValueError, match="Unknown object"):
            get({**named, "config": bad})
        with pytest.raises(ValueError, match="Unknown object"):
            get({"module": "builtins", "class_name": bad, "config": {}, "registered_name": bad})
        for family in (keras.layers, keras.losses, keras.metrics, keras.optimizers, keras.initializers,
                       keras.regularizers, keras.constraints, keras.activations, keras.optimizers.schedules):  # fmt: skip
            with pytest.raises(ValueError, match="Unknown"):
                family.deserialize({"module": "os", "class_name": bad, "config": {}})
    with pytest.raises(ValueError, match="class_name"):
        keras.layers.deserialize({"config": {}})


def test_yaml_is_no_more(saved):
    with pytest.raises(RuntimeError, match="model_from_json"):
        keras.models.model_from_yaml("!!python/object/apply:os.system ['true']")
    with pytest.raises(RuntimeError, match="to_json"):
        saved[1].to_yaml()


def test_files_of_vocabularies(tmp_path):
    words = tmp_path / "words"
    words.write_text("a\nb\n")
    model = keras.Sequential(
        [keras.Input((), dtype="string"), layers.StringLookup(vocabulary=str(words))]
    )
    model.save(tmp_path / "m.keras")
    text = model.to_json()
    words.unlink()
    # The words are in the model.
    again = keras.models.load_model(tmp_path / "m.keras")
    assert again.layers[-1].get_vocabulary() == ["[UNK]", "a", "b"]
    assert keras.models.model_from_json(text).layers[-1].get_vocabulary() == ["[UNK]", "a", "b"]
    words.write_text("c\n")
    for cls in (layers.StringLookup, layers.IntegerLookup, layers.TextVectorization):
        with pytest.raises(ValueError, match="reads a file"):
            layers.deserialize({"class_name": cls.__name__, "config": {"vocabulary": str(words)}})
    with modes.safe_mode_scope(False):
        layer = layers.StringLookup.from_config({"vocabulary": str(words)})
    assert layer.get_vocabulary() == ["[UNK]", "c"]
    column = tf.feature_column.categorical_column_with_vocabulary_file("k", str(words))
    dense = layers.DenseFeatures([tf.feature_column.indicator_column(column)])
    config = dense.get_config()
    assert layers.DenseFeatures.from_config(config).get_config() == config
    with pytest.raises(ValueError, match="reads a file"):
        layers.DenseFeatures.from_config(json.loads(json.dumps(config)))


def test_archives_that_inflate(saved, tmp_path, monkeypatch):
    path = tmp_path / "m.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", bytes(3_000_000))
    assert (
        limits.get_unpacked_limit(10) == 1 << 30 and limits.get_unpacked_limit(1 << 30) == 20 << 30
    )
    monkeypatch.setenv(limits.UNPACKED_VARIABLE, "2e6")
    with pytest.raises(ValueError, match=r"3,000,002 bytes.*MESHFLOW_MAX_UNPACKED_BYTES"):
        keras.models.load_model(path)
    # A member may declare a smaller size.
    data = path.read_bytes().replace((3_000_000).to_bytes(4, "little"), (30).to_bytes(4, "little"))
    path.write_bytes(data)
    with archives.Archive(str(path)) as archive, pytest.raises(ValueError, match="damaged"):
        archive.read("model.weights.h5")
    monkeypatch.setenv(limits.UNPACKED_VARIABLE, "much")
    with pytest.raises(ValueError, match="must be a number of bytes"):
        keras.models.load_model(path)
    monkeypatch.setenv(limits.UNPACKED_VARIABLE, "10")
    for name in ("m.keras", "m.h5"):
        with pytest.raises(ValueError, match="MAX_UNPACKED"):
            keras.models.load_model(saved[0] / name)
        with pytest.raises(ValueError, match="MAX_UNPACKED"):
            saved[1].load_weights(saved[0] / name)
    monkeypatch.setenv(limits.UNPACKED_VARIABLE, "1e9")
    keras.models.load_model(saved[0] / "m.keras")


@pytest.mark.parametrize("name", ["../m.json", "/etc/m", "a/../../m", "..\\m", "C:\\m"])
def test_archives_with_members_elsewhere(tmp_path, name):
    path = tmp_path / "m.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr(name, "x")
    with pytest.raises(ValueError, match="leads out of it"):
        keras.models.load_model(path)


def test_damaged_archives(saved, tmp_path):
    whole = (saved[0] / "m.keras").read_bytes()
    (tmp_path / "m.keras").write_bytes(whole[:300] + bytes(50) + whole[350:])
    with pytest.raises((ValueError, OSError), match=r"damaged|no HDF5"):
        keras.models.load_model(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "deep.keras", "w") as archive:
        archive.writestr("config.json", "[" * 100_000)
    with pytest.raises(ValueError, match="missing or damaged"):
        keras.models.load_model(tmp_path / "deep.keras")


def _external_link(file, other):
    file["model_weights/dense/more"] = h5py.ExternalLink(other, "/secret")


def _external_values(file, other):
    file.create_dataset("secret", (8,), "u1", external=[(other, 0, 8)])


def _virtual_values(file, other):
    layout = h5py.VirtualLayout((8,), "u1")
    layout[:] = h5py.VirtualSource(other, "secret", (8,))
    file.create_virtual_dataset("secret", layout)


def _large_values(file, other):
    file.create_dataset("secret", (1 << 40,), "f4", chunks=(1 << 20,))


@pytest.mark.parametrize(
    "change", [_external_link, _external_values, _virtual_values, _large_values]
)
@pytest.mark.parametrize("inside", [False, True])
def test_weights_in_other_files(saved, tmp_path, change, inside):
    other = str(tmp_path / "other.h5")
    with h5py.File(other, "w") as file:
        file["secret"] = np.arange(8, dtype="u1")
    if inside:
        with (
            zipfile.ZipFile(saved[0] / "m.keras") as old,
            zipfile.ZipFile(tmp_path / "m.keras", "w") as new,
        ):
            new.writestr("config.json", old.read("config.json"))
            content = io.BytesIO(old.read("model.weights.h5"))
            with h5py.File(content, "r+") as file:
                change(file, other)
            new.writestr("model.weights.h5", content.getvalue())
        path = tmp_path / "m.keras"
    else:
        path = tmp_path / "m.h5"
        path.write_bytes((saved[0] / "m.h5").read_bytes())
        with h5py.File(path, "r+") as file:
            change(file, other)
    message = "bytes when unpacked" if change is _large_values else "other file|another file"
    with pytest.raises(ValueError, match=message):
        keras.models.load_model(path)
    with pytest.raises(ValueError, match=message):
        saved[1].load_weights(path)


def test_links_inside_a_file_are_followed(saved, tmp_path):
    path = tmp_path / "m.h5"
    path.write_bytes((saved[0] / "m.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        file["again"] = h5py.SoftLink("/model_weights")
        file["model_weights/circle"] = file["/"]
    keras.models.load_model(path)
