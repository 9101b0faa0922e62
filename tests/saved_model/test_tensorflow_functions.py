"""Functions of many ops that TensorFlow 2.21 saved (tests/reference/generate_saved_functions.py)."""

import json
import pathlib
import re
import subprocess
import sys
import tarfile

import numpy as np
import pytest

import meshflow as tf
from capabilities import PEERS_PYTHON, needs_tensorflow
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.environment.jax_internals import mlir_lowering, read_portable_artifact
from meshflow.saved_model.graph.format.messages import SavedModel
from meshflow.saved_model.graph.ops.host_ops import HOST_OPS
from meshflow.saved_model.graph.reading.interpreter import list_supported_ops

REFERENCE = pathlib.Path(__file__).parent.parent / "reference"
STORED = REFERENCE / "saved_functions.tar.xz"
sys.path.insert(0, str(REFERENCE))
from saved_function_cases import cases

sys.path.pop(0)

NAMES = list(cases(tf))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored_functions")
    with tarfile.open(STORED) as archive:
        archive.extractall(folder, filter="data")
    with np.load(folder / "functions.npz", allow_pickle=True) as file:
        return tf.saved_model.load(folder / "functions"), dict(file)


def assert_same(found, wanted, name):
    assert found.dtype == wanted.dtype, name
    assert found.shape == wanted.shape, name
    if wanted.dtype.kind in "fc":
        np.testing.assert_allclose(found, wanted, 2e-5, 2e-5, err_msg=name)
    else:
        assert found.tolist() == wanted.tolist(), name


@pytest.mark.parametrize("name", NAMES)
def test_functions_reproduce_tensorflow_results(name, stored):
    loaded, known = stored
    spec, _, _ = cases(tf)[name]
    found = getattr(loaded, name)(tf.constant(known[f"{name}/input"], spec.dtype))
    wanted = {k.split("/")[1]: v for k, v in known.items() if k.startswith(f"{name}/")}
    del wanted["input"]
    assert set(found) == set(wanted)
    for key, value in wanted.items():
        assert_same(np.asarray(found[key].numpy()), value, f"{name}/{key}")


def test_value_dependent_sizes(stored):
    loaded, _ = stored
    for rows in (1, 6):
        assert loaded.ranges(rows)["eye"].numpy().tolist() == np.eye(rows).tolist()
    for low in (0, 0.2):
        x = np.linspace(low, 1, 12, dtype=np.float32).reshape(3, 4)
        found = loaded.sizes_by_values(x)
        np.testing.assert_array_equal(found["masked"], x[x[:, 0] > 0.5])
        np.testing.assert_array_equal(found["found"], np.argwhere(x > 0.5))
    with pytest.raises(tf.errors.InvalidArgumentError, match="do not form a valid RaggedTensor"):
        loaded.sizes_by_values(np.ones((5, 4), np.float32))


def test_a_model_may_not_print_into_files(tmp_path):
    class Node:
        def text(self, key):
            return {"output_stream": f"file://{tmp_path}/x", "end": "\n"}[key]

    with pytest.raises(UnimplementedError, match="may not"):
        HOST_OPS["PrintV2"](Node(), np.array(b"text", object))
    assert not list(tmp_path.iterdir())


def test_no_op_reads_or_writes_files():
    for name in ("ReadFile", "WriteFile", "PyFunc", "EagerPyFunc", "SaveV2", "LoadLibrary"):
        assert name not in list_supported_ops()


class Composites(tf.Module):
    """Define functions that JAX writes as composite operations."""

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def __call__(self, x):
        values, places = tf.math.top_k(x, 2)
        curves = [f(x) for f in (tf.math.erf, tf.asin, tf.sinh, tf.atanh, tf.nn.gelu)]
        return values, places, *curves


@pytest.fixture(scope="module")
def composites(tmp_path_factory):
    path = tmp_path_factory.mktemp("composites") / "model"
    tf.saved_model.save(Composites(), path)
    return path


def list_programs(path):
    graph = SavedModel.FromString((path / "saved_model.pb").read_bytes()).meta_graphs[0]
    functions = graph.graph_def.library.function
    return [n for f in functions for n in f.node_def if n.op == "XlaCallModule"]


def test_programs_have_no_composite_operations(composites):
    modules = [n.attr["module"].s for n in list_programs(composites)]
    # Of the function, its signature's and its gradient.
    assert modules
    assert not any(b"composite_v" in m or b"vhlo.composite" in m for m in modules)
    # Their definitions stay, as functions.
    assert not any(re.search(rb"chlo\.\w+\b(?!\.impl)", m) for m in modules)


@pytest.mark.parametrize(
    ("function", "version", "result"),
    [
        (lambda x: tf.nn.relu(x - 0.5), b"StableHLO_v0.14.0", [[0.5, 0.0]]),
        # This gather has batch dimensions.
        (
            lambda x: tf.gather(x, tf.cast(x, tf.int32), batch_dims=1),
            b"StableHLO_v1.1.0",
            [[0.0, 1.0]],
        ),
    ],
)
def test_programs_have_the_oldest_version_that_expresses_them(function, version, result, tmp_path):
    module = tf.Module()
    module.f = tf.function(function, input_signature=[tf.TensorSpec([None, 2])])
    tf.saved_model.save(module, tmp_path)
    program = list_programs(tmp_path)[0]
    assert version in program.attr["module"].s and program.attr["version"].i == 8
    # TensorFlow 2.15 does not have this attribute, and requires an int32.
    assert "use_shardy_partitioner" not in program.attr
    with mlir_lowering.make_ir_context():
        text = str(read_portable_artifact(program.attr["module"].s))
    assert '@main(%arg0: tensor<i32> {jax.global_constant = "_platform_index"}' in text
    found = tf.saved_model.load(tmp_path).f(tf.constant([[1.0, 0.0]]))
    assert found.numpy().tolist() == result


@needs_tensorflow
@pytest.mark.timeout(900)
def test_tensorflow_runs_composite_instructions_of_jax(composites):
    code = (
        "import json, sys, tensorflow as tf; f = tf.saved_model.load(sys.argv[1]); "
        "x = tf.constant([[0.1, 0.4, 0.3, 0.2]]); tape = tf.GradientTape(); tape.__enter__(); tape.watch(x); "
        "y = f(x); tape.__exit__(None, None, None); "
        "print(json.dumps([v.numpy().tolist() for v in (*y, tape.gradient(y[2], x))]))"
    )
    done = subprocess.run(
        [PEERS_PYTHON, "-c", code, str(composites)], capture_output=True, text=True, check=True
    )
    x = tf.constant([[0.1, 0.4, 0.3, 0.2]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        wanted = Composites()(x)
    wanted = (*wanted, tape.gradient(wanted[2], x))
    for found, value in zip(json.loads(done.stdout.splitlines()[-1]), wanted, strict=True):
        np.testing.assert_allclose(found, value, 1e-5, 1e-6)
