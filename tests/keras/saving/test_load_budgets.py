"""Test small files that would allocate gigabytes: one budget per load counts allocated bytes, not
declared ones."""

import json
import resource
import tracemalloc
import zipfile

import numpy as np
import pytest

import meshflow as tf
from helpers import read_manifest
from meshflow.environment.json_documents import MAX_JSON_BYTES, MAX_JSON_DEPTH, parse_json
from meshflow.environment.limits import UNPACKED_VARIABLE
from meshflow.keras.engine.saving import archives
from meshflow.keras.engine.saving.group_paths import KERAS_3_STYLE, iterate_objects

h5py = pytest.importorskip("h5py")
keras = tf.keras
TOO_LARGE = pytest.raises(ValueError, match=UNPACKED_VARIABLE)


def make_model():
    return keras.Sequential([keras.Input([512]), keras.layers.Dense(256, name="d")])


@pytest.fixture(autouse=True)
def limited_memory(monkeypatch):
    """Limit a load to 32 MB, and the growth of this process to 300 MB."""
    monkeypatch.setenv(UNPACKED_VARIABLE, str(32 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (300 << 10)


@pytest.fixture
def model():
    return make_model()


@pytest.fixture
def hdf5_file(model, tmp_path):
    model.save(tmp_path / "m.h5")
    return tmp_path / "m.h5"


def check_refused(model, path):
    with TOO_LARGE:
        keras.models.load_model(path)
    with TOO_LARGE:
        model.load_weights(path)


def test_hdf5_strings_that_share_one_object(model, hdf5_file):
    """1 MB of references to one long string would become 180 MB of text."""
    path = hdf5_file
    with h5py.File(path, "a") as file:
        group = file["model_weights"]
        del group.attrs["layer_names"]
        values = ["x" * 60000] + ["y" * 8] * 3000
        group.attrs.create("layer_names", np.array(values, object), dtype=h5py.string_dtype())
    content = bytearray(path.read_bytes())
    long_reference = _find_reference(content, 60000)
    for offset in _find_references(content, 8):
        content[offset : offset + 16] = long_reference
    path.write_bytes(content)
    with h5py.File(path) as file:
        assert file["model_weights"].attrs.get_id("layer_names").shape == (3001,)
    check_refused(model, path)


def _find_references(content, length):
    """Return the offsets of references to strings of a length: the length, a heap's address, an index."""
    needle = length.to_bytes(4, "little")
    offsets, offset = [], content.find(needle)
    while offset >= 0:
        address = int.from_bytes(content[offset + 4 : offset + 12], "little")
        if content[address : address + 4] == b"GCOL" and address:
            offsets.append(offset)
        offset = content.find(needle, offset + 1)
    return offsets


def _find_reference(content, length):
    (offset,) = _find_references(content, length)
    return content[offset : offset + 16]


def test_a_data_set_that_is_referenced_many_times(model, hdf5_file):
    with h5py.File(hdf5_file, "a") as file:
        group = file["model_weights/d"]
        names = group.attrs["weight_names"]
        group.attrs["weight_names"] = np.asarray([names[0]] * 2000)
    check_refused(model, hdf5_file)


@pytest.mark.parametrize("change", ["group", "strings", "references"])
def test_groups_and_references_are_no_weights(hdf5_file, change):
    with h5py.File(hdf5_file, "a") as file:
        group = file["model_weights/d"]
        name = group.attrs["weight_names"][0].decode()
        del group[name]
        if change == "group":
            group.create_group(name)
        else:
            dtype = h5py.string_dtype() if change == "strings" else h5py.ref_dtype
            group.create_dataset(name, (4,), dtype=dtype)
    with pytest.raises(ValueError, match="no array of numbers"):
        keras.models.load_model(hdf5_file)


def replace_member(path, target, name, content):
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.namelist():
            new.writestr(member, content if member == name else old.read(member))


@pytest.mark.parametrize(
    "content",
    ["[" + "[]," * 900_000 + "[]]", '{"a": ' + "[" * 300 + "]" * 300 + "}", "[" * 100_000],
)
@pytest.mark.parametrize("member", ["config.json", "metadata.json"])
def test_json_that_expands_or_is_deep(model, tmp_path, member, content):
    model.save(tmp_path / "m.keras")
    replace_member(tmp_path / "m.keras", tmp_path / "n.keras", member, content)
    reason = f".*{UNPACKED_VARIABLE}" if content.startswith("[[],") else ""
    with pytest.raises(ValueError, match=rf"n\.keras{reason}"):
        keras.models.load_model(tmp_path / "n.keras")
    with pytest.raises(ValueError, match=f"{UNPACKED_VARIABLE}|nested levels"):
        keras.models.model_from_json(content)
    with pytest.raises(ValueError, match=f"{UNPACKED_VARIABLE}|nested levels"):
        keras.preprocessing.text.tokenizer_from_json(content)


def test_vocabularies_that_expand(tmp_path):
    layer = keras.layers.StringLookup()
    layer.adapt(tf.constant(["a", "b"]))
    model = keras.Sequential([keras.Input([1], dtype="string"), layer])
    model.save(tmp_path / "m.keras")
    paths = [path for path, item in iterate_objects(model, KERAS_3_STYLE) if item is layer]
    with zipfile.ZipFile(tmp_path / "m.keras", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"assets/{paths[0]}/vocabulary.txt", "\n" * (20 << 20))
    with TOO_LARGE:
        keras.models.load_model(tmp_path / "m.keras")


def test_manifest_that_repeats_one_array(tmp_path):
    module = tf.Module()
    module.weight = tf.Variable(tf.zeros([1 << 19]))
    module.other = tf.Variable(1.0)
    tf.saved_model.save(module, str(tmp_path))
    manifest = read_manifest(tmp_path)
    nodes = manifest["saved_model"]["nodes"]
    index = next(i for i, n in enumerate(nodes) if n.get("name") and n["kind"] == "variable")
    for number in range(40):
        nodes.append(nodes[index])
        nodes[0]["children"][f"w{number}"] = len(nodes) - 1
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises((tf.errors.DataLossError, ValueError), match=UNPACKED_VARIABLE):
        tf.saved_model.load(str(tmp_path))


def test_limits_of_json():
    assert (MAX_JSON_BYTES, MAX_JSON_DEPTH) == (64 << 20, 200)
    deepest = "[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH
    assert parse_json(deepest.encode("utf-16")) == json.loads(deepest)
    brackets_in_text = '{"a": "' + "[" * 1000 + '\\"["}'
    assert parse_json(brackets_in_text) == json.loads(brackets_in_text)
    for content in (f"[{deepest}]", "[" * 201, '["\\"",' + deepest + "]"):
        with pytest.raises(ValueError, match="nested levels"):
            parse_json(content)
    with pytest.raises(ValueError, match="longer than"):
        parse_json(" " * (MAX_JSON_BYTES + 1))
    with pytest.raises(TypeError):
        parse_json(None)
    tracemalloc.start()
    with pytest.raises(ValueError):
        parse_json('"' + '\\"' * 500_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20


def test_honest_models_fit(model, tmp_path):
    for name in ("m.keras", "m.h5", "folder"):
        model.save(tmp_path / name)
        loaded = keras.models.load_model(tmp_path / name)
        np.testing.assert_array_equal(loaded.layers[0].kernel, model.layers[0].kernel)


def test_stored_weights_are_read_in_place(model, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_CHUNK_BYTES", 1 << 12)
    model.save(tmp_path / "m.keras")
    tracemalloc.start()
    with archives.Archive(str(tmp_path / "m.keras")) as archive, archive.open_weights() as file:
        peak = tracemalloc.get_traced_memory()[1]
        np.testing.assert_array_equal(file["layers/dense/vars/0"], model.get_weights()[0])
    tracemalloc.stop()
    assert peak < model.get_weights()[0].nbytes / 2
