"""Attributes of saved objects, by Meshflow and by TensorFlow 2.21 (tests/reference/generate_saved_objects.py)."""

import json
import logging
import pathlib
import subprocess
import sys
import tarfile

import numpy as np
import pytest

import meshflow as tf
from capabilities import PEERS_PYTHON, needs_tensorflow
from helpers import read_manifest

REFERENCE = pathlib.Path(__file__).parent.parent / "reference"
sys.path.insert(0, str(REFERENCE))
from saved_object_cases import check, module, signature

sys.path.pop(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("objects") / "first"
    root = module(tf, sparse=False)
    options = tf.saved_model.SaveOptions(function_aliases={"other": root.losses[0]})
    tf.saved_model.save(root, path, signature(tf, root), options)
    return path


@pytest.fixture(scope="module")
def of_tensorflow(tmp_path_factory):
    path = tmp_path_factory.mktemp("of_tensorflow")
    with tarfile.open(REFERENCE / "saved_objects.tar.xz") as archive:
        archive.extractall(path, filter="data")
    return path / "objects"


def with_aliases(path):
    options = tf.saved_model.LoadOptions(experimental_load_function_aliases=True)
    return tf.saved_model.load(path, options=options).function_aliases


def test_attributes_round_trip(folder):
    loaded = tf.saved_model.load(folder)
    check(tf, loaded, sparse=False)
    assert loaded.tensorflow_version == tf.__version__
    assert loaded.tensorflow_git_version == tf.version.GIT_VERSION
    assert float(with_aliases(folder)["other"]()) == 9.0
    assert not hasattr(loaded, "function_aliases")


def test_attributes_round_trip_twice(folder, tmp_path):
    first = tf.saved_model.load(folder)
    tf.saved_model.save(first, tmp_path, first.signatures)
    check(tf, tf.saved_model.load(tmp_path), sparse=False)


def test_attributes_saved_by_tensorflow(of_tensorflow):
    loaded = tf.saved_model.load(of_tensorflow)
    check(tf, loaded, sparse=True)
    assert loaded.tensorflow_version == "2.21.0"
    with pytest.raises(AttributeError, match=r"'other'$"):
        loaded.other
    assert float(with_aliases(of_tensorflow)["other"]()) == 9.0
    with pytest.raises(ValueError, match="Could not find matching"):
        loaded.doubled(tf.constant([[1.0, 0.0, 2.0]]))


@needs_tensorflow
def test_tensorflow_loads_equal_attributes(folder):
    command = [PEERS_PYTHON, str(REFERENCE / "generate_saved_objects.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_variables_that_functions_make(tmp_path):
    class Lazy(tf.Module):
        variable = None

        @tf.function(input_signature=[tf.TensorSpec([None])])
        def __call__(self, x):
            if self.variable is None:
                self.variable = tf.Variable(2.0)
            return x * self.variable

    tf.saved_model.save(Lazy(), tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    assert float(loaded([3.0])[0]) == 6.0
    loaded.variable.assign(5.0)
    assert float(loaded([3.0])[0]) == 15.0


def test_variables_and_text_as_arguments(tmp_path):
    root = tf.Module()
    root.variable = tf.Variable(2.0)
    root.squared = tf.function(lambda v: v**2)
    root.squared(root.variable)
    root.joined = tf.function(lambda a, b: tf.strings.join([a, b]))
    root.joined("a", tf.constant("b"))
    root.joined("a", "b")
    tf.saved_model.save(root, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    with tf.GradientTape() as tape:
        y = loaded.squared(loaded.variable)
    assert (float(y), float(tape.gradient(y, loaded.variable))) == (4.0, 4.0)
    assert loaded.joined("a", tf.constant("c")).numpy() == b"ac"
    assert loaded.joined("a", "b").numpy() == b"ab"


def test_functions_that_call_functions_that_were_loaded(folder, tmp_path):
    root = tf.Module()
    root.inner = tf.saved_model.load(folder).inner
    root.outer = tf.function(lambda x: root.inner(x) + 1.0)
    root.again = tf.function(root.outer)
    root.again(tf.constant([1.0]))
    tf.saved_model.save(root, tmp_path)
    np.testing.assert_array_equal(tf.saved_model.load(tmp_path).again(tf.constant([2.0])), [7.0])


def test_unsavable_objects_name_the_reason(tmp_path, caplog):
    root = tf.Module()
    root.plain = tf.function(lambda x: 2.0 * x)
    root.plain(tf.constant(1.0))
    root.writes = tf.function(lambda v: v.assign_add(1.0))
    root.writes(tf.Variable(1.0))
    save = tf.saved_model.save
    with pytest.raises(ValueError, match="Expected a TensorFlow function for which"):
        save(root, tmp_path, root.plain)
    with pytest.raises(AssertionError, match=r"inside a traced @tf\.function"):
        tf.function(lambda: save(root, tmp_path))()
    with caplog.at_level(logging.WARNING):
        save(root, tmp_path, signatures={})
    why = "a tf.Variable as an argument that it does not only read"
    assert why in caplog.text
    with pytest.raises(AttributeError, match=why):
        tf.saved_model.load(tmp_path).writes
    caplog.clear()
    root.untraced = tf.function(lambda x: x)
    with caplog.at_level(logging.WARNING):
        save(root, tmp_path, signatures={})
    assert "found untraced functions such as untraced while saving (showing 1 of 1)" in caplog.text
    root.signatures = {}
    with pytest.raises(ValueError, match=r"del obj\.signatures"):
        save(root, tmp_path)
    with pytest.raises(ValueError, match="tags"):
        tf.saved_model.load(tmp_path, tags=["eval"])
    for tags in (["serve"], "serve", {"serve"}):
        assert tf.saved_model.load(tmp_path, tags=tags).signatures == {}


def test_argument_errors_equal_tensorflow(folder, tmp_path):
    loaded = tf.saved_model.load(folder)
    one, whole = tf.constant(1.0), tf.constant(1)
    errors = tf.errors.InvalidArgumentError
    for kind, wrong in (
        (errors, lambda: loaded.concrete(whole, one)),
        (TypeError, lambda: loaded.concrete(one)),
        (TypeError, lambda: loaded.concrete(one, z=one)),
        (errors, lambda: loaded.signatures["serving_default"](A_b=one, arg_2=whole)),
        (TypeError, lambda: loaded.signatures["serving_default"](A_b=whole)),
        (TypeError, lambda: loaded.inner()),
        (ValueError, lambda: tf.saved_model.load(folder, tags=3)),
        (OSError, lambda: tf.saved_model.load(folder / "saved_model.pb")),
        (TypeError, lambda: tf.saved_model.load(3)),
        (TypeError, lambda: tf.saved_model.save(tf.Module(), None)),
        (ValueError, lambda: tf.saved_model.save(lambda x: x, tmp_path)),
        (ValueError, lambda: tf.saved_model.Asset(None)),
    ):
        with pytest.raises(kind):
            wrong()
    options = tf.saved_model.SaveOptions(function_aliases={"a": 3})
    with pytest.raises(TypeError, match="function_aliases"):
        tf.saved_model.save(tf.Module(), tmp_path, options=options)


def test_signatures_with_python_values_and_texts(tmp_path):
    root = tf.Module()
    root.scaled = tf.function(lambda x, by: {"y": x * by, "unit": "m"})
    call = root.scaled.get_concrete_function(tf.TensorSpec([None]), 2.0)
    tf.saved_model.save(root, tmp_path, call)
    loaded = tf.saved_model.load(tmp_path)
    found = loaded.signatures["serving_default"](tf.constant([3.0]))
    assert (found["y"].numpy().tolist(), found["unit"].numpy()) == ([6.0], b"m")
    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            x = tf.constant([3.0])
            tape.watch(x)
            outer.watch(x)
            y = loaded.scaled(x, 2.0)["y"]
        first = tape.gradient(y, x)
    np.testing.assert_array_equal(first, [2.0])
    with pytest.raises(tf.errors.UnimplementedError, match="saved with its first derivatives"):
        outer.gradient(first, x)


def test_concrete_functions_of_a_loaded_function(folder):
    first, second = tf.saved_model.load(folder).chosen.concrete_functions
    assert {tuple(c.structured_input_signature[0][1:]) for c in (first, second)} == {
        (True,),
        (False,),
    }


def test_folders_of_earlier_versions_whose_models_were_loaded_and_saved_again(tmp_path):
    module = tf.Module()
    setattr(module, "__call__", tf.function(lambda x: x + 1.0, input_signature=[tf.TensorSpec([])]))
    tf.saved_model.save(module, tmp_path)
    content = read_manifest(tmp_path)
    del content["saved_model"]["tags"]
    content["saved_model"]["functions"][0]["name"] = "_call"
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    assert float(tf.saved_model.load(tmp_path, tags="serve")(1.0)) == 2.0
