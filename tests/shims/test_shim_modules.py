"""`import tensorflow`, `keras` and `tf_keras` load Meshflow, in this process and in others."""

import importlib.metadata
import os
import subprocess
import sys

import pytest

import forked
from meshflow.core.runtime.errors import NotAvailableError
from meshflow.shims import PACKAGE_FOLDER
from meshflow.shims.module_table import MODULES, PACKAGES
from meshflow.version import KERAS_VERSION, VERSION

START = "from meshflow.shims import activate; activate()\n"


PROGRAMS = [
    "import tensorflow as tf; assert tf.__name__ == 'tensorflow' and tf.keras.layers.Dense is meshflow.keras.layers.Dense",
    "import tensorflow.keras.backend as K; assert K.epsilon is meshflow.keras.backend.epsilon; assert K.__name__ == 'tensorflow.keras.backend'",
    "import tensorflow as tf; from tensorflow.keras import layers; assert layers is tf.keras.layers",
    "import tensorflow.compat.v1 as tf; assert tf.to_float is meshflow.compat.v1.to_float and tf.__name__ == 'tensorflow.compat.v1'",
    "from keras.models import Sequential; from tf_keras.src.engine.sequential import Sequential as B; assert B is Sequential is meshflow.keras.Sequential",
    "from keras.layers.core import Dense; from keras.layers.merge import Concatenate; from keras.src.layers.core.dense import Dense as B; assert B is Dense",
    "from keras.utils.np_utils import to_categorical; from tensorflow.python.keras.utils import np_utils; assert np_utils.to_categorical is to_categorical",
    "from tensorflow.python.keras import backend, layers; from tensorflow.python.keras.engine.base_layer import Layer; assert Layer is layers.Layer",
    "from tensorflow.python.framework import ops, dtypes, constant_op, tensor_shape; assert ops.EagerTensor is meshflow.Tensor; assert constant_op.constant is meshflow.constant",
    "from tensorflow.python.ops import array_ops, math_ops, nn, gen_math_ops; assert math_ops.reduce_sum is meshflow.reduce_sum; assert array_ops.where_v2 is meshflow.where",
    "from tensorflow.python.eager import context, function; assert function.defun is meshflow.function; assert context.executing_eagerly() and context.global_seed() is None; meshflow.random.set_seed(3); assert context.global_seed() == 3; meshflow.random.set_seed(None)",
    "from tensorflow.python.data.ops.dataset_ops import DatasetV2; assert DatasetV2 is meshflow.data.Dataset",
    "from tensorflow.python.distribute import distribution_strategy_context as d; assert d.get_strategy is meshflow.distribute.get_strategy",
    "from tensorflow.python.saved_model import signature_constants as s; assert s.DEFAULT_SERVING_SIGNATURE_DEF_KEY == 'serving_default'",
    "from tensorflow.python.platform import gfile, tf_logging, flags; tf_logging.info('x'); flags.DEFINE_string('a', '', ''); assert gfile.GFile",
    "from tensorflow.python.util.tf_export import keras_export; from tensorflow.python.util import nest, tf_inspect\n@keras_export('a')\nclass A: pass\nassert nest.flatten([1, [2]]) == [1, 2]",
    "from tensorflow.core.framework import graph_pb2, types_pb2; assert types_pb2.DT_FLOAT == 1; graph_pb2.GraphDef()",
    "from tensorflow.python.tools import freeze_graph; from tensorflow.python.unknown.module import anything; freeze_graph.freeze_graph",
    "import tensorflow; from tensorflow import *; import sys; assert tensorflow.keras.layers.__file__ == meshflow.keras.layers.__file__",
    "from tensorflow.python.ops.rnn_cell import *; from tensorflow.python.ops.math_ops import *; assert RNNCell is meshflow.compat.v1.nn.rnn_cell.RNNCell; assert reduce_sum is meshflow.reduce_sum",
    "from tensorflow.python.ops import gen_math_ops as g, gen_sparse_ops as s; assert s.sparse_reorder([[1, 0], [0, 0]], [1.0, 2.0], (2, 2)).output_values.numpy().tolist() == [2, 1]; assert g.mat_mul([[1.0]], [[2.0]], False, True).numpy() == [[2]]",
    "from tensorflow.python.ops import rnn_cell_impl as r; import tensorflow as tf; assert r._concat(2, tf.TensorShape([3])).numpy().tolist() == [2, 3] and r._concat(2, [3], static=True) == [2, 3]; r.assert_like_rnncell('cell', r.GRUCell(2))",
    "import importlib.util as u; assert u.find_spec('tensorflow').origin == __import__('tensorflow').__file__; assert u.find_spec('keras') and u.find_spec('tensorflow.keras.layers')",
    "import importlib.metadata as m; assert [m.version(n).rpartition('.')[0] for n in ('tensorflow', 'keras', 'tf-keras')] == ['2.15'] * 3",
    "import tensorflow as tf; assert [int(part) for part in tf.__version__.split('.')][:2] == [2, 15] and tf.version.VERSION == tf.__version__; assert tf.keras.__version__[:4] == '2.15'",
    "from packaging.requirements import Requirement; import importlib.metadata as m; assert m.version('tensorflow') in Requirement('tensorflow>=2.4,<2.16').specifier",
    "from tensorflow.compiler.tf2xla.python import xla; import tensorflow as tf; v = tf.Variable([1.0, 2.0, 3.0]); f = tf.function(lambda i: xla.dynamic_update_slice(v, [9.0], [i])); assert f(1).numpy().tolist() == [1, 9, 3] and f(7).numpy().tolist() == [1, 2, 9]; assert xla.dot_general([[1.0, 2.0]], [[3.0, 4.0]], (((1,), (1,)), ((), ()))).numpy() == [[11]]; assert xla.clamp(0, [-1, 2], 1).numpy().tolist() == [0, 1]; assert xla.rev([1, 2], [0]).numpy().tolist() == xla.slice([3, 2, 1], [1], [3], [1]).numpy().tolist()",
    "import tensorflow as tf\nwith tf.__internal__.FuncGraph('scratch').as_default() as graph:\n    x = tf.compat.v1.placeholder(tf.float32, [None, 2])\n    assert tf.matmul(x, tf.ones([2, 3])).shape.as_list() == [None, 3]\nassert isinstance(graph, tf.Graph) and graph.building_function and graph.name == 'scratch'",
    "import pickle, tensorflow as tf; assert pickle.loads(pickle.dumps(tf.keras.layers.Dense)) is meshflow.keras.layers.Dense; assert pickle.loads(b'ckeras.src.layers.core.dense\\nDense\\n.') is tf.keras.layers.Dense",
    "from unittest import mock; import tensorflow as tf\nwith mock.patch('tensorflow.keras.backend.floatx', lambda: 1):\n    assert meshflow.keras.backend.floatx() == 1\nassert meshflow.keras.backend.floatx() == 'float32'",
    "import tensorflow as tf; m = tf.keras.initializers; m.Any; assert [n for n in dir(m) if n[0] != '_'] == sorted(meshflow.keras.initializers.__all__)",
    "import inspect, tensorflow as tf; assert 'Dense' in dict(inspect.getmembers(tf.keras.layers)) and 'Dense' in vars(tf.keras.layers)",
]  # fmt: skip


def check(program):
    code, output = forked.run(START + program)
    assert code == 0, output


def test_names_are_those_of_meshflow():
    """Run all programs in one process, which loads the API once."""
    code, output = forked.run(f"""{START}
import traceback
import meshflow
for program in {PROGRAMS!r}:
    try:
        exec(program, dict(meshflow=meshflow))
    except BaseException:
        print(program, traceback.format_exc())
""")
    assert (code, output) == (0, "")


def test_classes_of_tensors_belong_to_tensorflow():
    check("""
import copy, pickle, sys
import tensorflow as tf
values = [tf.constant([1]), tf.Variable([1]), tf.sparse.from_dense([1]), tf.ragged.constant([[1]])]
for value in values:
    module = type(value).__module__
    assert module.startswith("tensorflow.python.")
    __import__(module)
    assert getattr(sys.modules[module], type(value).__name__) is type(value), module
    assert type(pickle.loads(pickle.dumps(value))) is type(value) is pickle.loads(pickle.dumps(type(value)))
    copy.deepcopy(value)
    assert b"tensorflow.python" not in pickle.dumps(value)
    assert [type(v) for v in tf.data.Dataset.from_tensors(value)] != [type(None)]
""")


def test_private_names_raise_when_used():
    check("""
from tensorflow.python.framework import ops
from tensorflow.python.framework.ops import Private
from tensorflow.python.keras.utils.tf_utils import private_function
from meshflow.core.runtime.errors import NotAvailableError
from tensorflow_estimator.python.estimator import model_fn
class Derived(Private.Nested): pass
assert not isinstance(1, Private) and not hasattr(Private, "__attribute__")
for use in (lambda: private_function(1), Private.attribute, Private, Derived):
    try:
        use()
    except NotAvailableError as error:
        assert "private to TensorFlow" in str(error)
    else:
        raise AssertionError
try:
    model_fn.EstimatorSpec()
except NotAvailableError as error:
    assert "tf.estimator" in str(error)
else:
    raise AssertionError
""")


@pytest.mark.parametrize(
    "name, message",
    [
        ("tensorflow.contrib", "TensorFlow 2 does not have tf.contrib"),
        ("tensorflow.examples.tutorials.mnist", "tf.keras.datasets"),
        ("tensorflow.keras.engine", "tensorflow.keras.engine"),
        ("keras.unknown", "keras.unknown"),
    ],
)
def test_missing_modules(name, message):
    check(f"""
try:
    import {name}
except ModuleNotFoundError as error:
    assert {message!r} in str(error), error
else:
    raise AssertionError
""")


def test_all_targets_of_the_table_are_public_or_importable():
    missing = forked.run(f"""{START}
import importlib, tensorflow, keras
from meshflow.shims.module_table import MODULES, PACKAGES
from meshflow.shims.shim_modules import _load_object
for key, value in MODULES.items():
    for token in value.split():
        try:
            _load_object(token.rpartition("=")[2])
        except (AttributeError, ImportError):
            print(key, token)
""")[1]
    # These names appear with the rest of TensorFlow's API.
    expected = (
        "meshflow.core.values.composite",
        "tf.__internal__",
        "tf.raw_ops",
        "tf.queue",
        "tf.keras.__internal__",
        "tf.compat.v1",
        "tf.estimator",
    )
    assert not [line for line in missing.splitlines() if not any(e in line for e in expected)]


def test_metadata_has_the_versions_of_meshflow():
    found = {d.name: d.version for d in importlib.metadata.distributions(path=[PACKAGE_FOLDER])}
    assert found == {
        "tensorflow": VERSION.partition("+")[0],
        "keras": KERAS_VERSION,
        "tf_keras": KERAS_VERSION,
    }
    assert issubclass(NotAvailableError, AttributeError) and not set(MODULES) & {"tf"} and PACKAGES


def test_another_tensorflow_is_refused():
    code, output = forked.run(f"""
import sys, types
module = sys.modules["tensorflow"] = types.ModuleType("tensorflow")
module.__file__ = "/site-packages/tensorflow/__init__.py"
{START}""")
    assert code == 1 and "tensorflow is already imported from /site-packages" in output


def test_notebook_extension_and_worker_processes():
    check("""
import subprocess, sys, meshflow
meshflow.load_ipython_extension(None)
program = "import keras, tensorflow; print(tensorflow.__name__, keras.Model.__module__)"
output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
assert output.startswith("tensorflow meshflow.keras"), output
""")


def test_python_of_another_environment_loads_its_own_packages(tmp_path):
    (tmp_path / "tensorflow.py").write_text("import keras\nname = keras.name")

    def run(program):
        return subprocess.run(
            [sys.executable, "-S", "-c", program],
            env={"PYTHONPATH": os.pathsep.join([PACKAGE_FOLDER, str(tmp_path)])},
            cwd=PACKAGE_FOLDER,
            capture_output=True,
            text=True,
        )

    assert "this Python has no package 'meshflow'" in run("import keras").stderr
    assert "No module named 'keras'" in run("import tensorflow").stderr
    (tmp_path / "keras.py").write_text("name = 'installed'")
    assert run("import tensorflow; print(tensorflow.name)").stdout == "installed\n"


def test_modules_without_names():
    # TensorBoard reads event files by this function if it exists.
    check("""
from tensorflow.python import pywrap_tensorflow
assert not hasattr(pywrap_tensorflow, "PyRecordReader_New")
""")
