import functools
import importlib
import importlib.metadata
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import forked
import meshflow as tf

SPACES = [
    "meshflow",
    "meshflow.math",
    "meshflow.linalg",
    "meshflow.nn",
    "meshflow.distribute",
    "meshflow.distribute.cluster_resolver",
    "meshflow.experimental.dtensor",
    "meshflow.keras.dtensor.experimental",
    "meshflow.random",
    "meshflow.nest",
    "meshflow.errors",
    "meshflow.image",
    "meshflow.debugging",
    "meshflow.strings",
    "meshflow.signal",
    "meshflow.bitwise",
    "meshflow.config",
    "meshflow.dtypes",
    "meshflow.io",
    "meshflow.autograph",
    "meshflow.keras",
    *(
        f"meshflow.keras.{m}"
        for m in (
            "activations",
            "backend",
            "callbacks",
            "config",
            "constraints",
            "datasets",
            "initializers",
            "layers",
            "losses",
            "metrics",
            "mixed_precision",
            "models",
            "optimizers",
            "optimizers.schedules",
            "regularizers",
            "saving",
            "utils",
        )
    ),
]


def test_import_starts_no_backend_and_loads_no_extras():
    code = """
import sys
def watch(event, args):
    assert event not in ("socket.connect", "socket.bind"), event
sys.addaudithook(watch)
import meshflow
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
heavy = {"sklearn", "matplotlib", "h5py", "ray", "optax", "rich", "pandas", "torch", "tensorflow", "PIL"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    assert forked.run(code, after="import jax") == [0, ""]


def test_import_paths_are_tensorflows():
    code = """
from meshflow.keras import layers
from meshflow.keras.layers import Dense
from meshflow.keras.models import Sequential
import meshflow.experimental.numpy as tnp
from meshflow.experimental import dtensor
import meshflow.compat.v1 as tf1
import meshflow.compat.v2 as tf2
import meshflow as tf
assert tf.__version__ == tf2.__version__ and tf.losses is tf.keras.losses
"""
    assert forked.run(code, after="import jax") == [0, ""]


@pytest.mark.parametrize("space", SPACES)
def test_public_names_exist_and_are_documented(space):
    module = importlib.import_module(space)
    assert module.__doc__, space
    missing = []
    for name in module.__all__:
        value = getattr(module, name)
        if (inspect.isfunction(value) or inspect.isclass(value)) and not inspect.getdoc(value):
            missing.append(name)
    assert not missing


@functools.cache
def _functions():
    seen = {}
    for space in SPACES:
        module = importlib.import_module(space)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value) and "Args:" in (value.__doc__ or ""):
                seen[f"{value.__module__}.{value.__qualname__}"] = value
    return seen


@pytest.mark.parametrize("name", sorted(_functions()))
def test_documented_arguments_are_the_signatures(name):
    function = _functions()[name]
    lines = inspect.getdoc(function).split("Args:")[1].splitlines()[1:]
    indent = len(lines[0]) - len(lines[0].lstrip())
    documented = []
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) < indent:
            break
        if len(line) - len(line.lstrip()) == indent and ":" in line:
            documented.append(line.split(":")[0].strip().lstrip("*"))
    assert documented == list(inspect.signature(function).parameters)


def test_missing_names_are_errors():
    with pytest.raises(NotImplementedError, match=r"use tf\.keras"):
        _ = tf.estimator
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = tf.no_such_name


def test_versions_name_the_api_that_is_followed():
    from packaging import version

    from meshflow._version import __version__ as own

    found = version.parse(tf.__version__)
    assert version.parse("2.15") <= found < version.parse("2.16")
    assert tf.__version__ >= "2.0" and found.local == f"meshflow.{own}"
    assert tf.__version__ == tf.version.VERSION and tf.keras.__version__ == "2.15.0"
    assert tf.__git_version__ == tf.version.GIT_VERSION and own in tf.__git_version__
    assert tf.__compiler_version__ == tf.version.COMPILER_VERSION
    assert tf.version.GRAPH_DEF_VERSION == 1645 and tf.version.GRAPH_DEF_VERSION_MIN_PRODUCER == 0
    assert importlib.metadata.version("meshflow-tf") != tf.__version__


def test_sysconfig_returns_header_paths():
    assert Path(tf.sysconfig.get_lib(), "__init__.py").exists()
    include = Path(tf.sysconfig.get_include())
    assert (include / "xla" / "ffi" / "api" / "ffi.h").exists()
    assert f"-I{include}" in tf.sysconfig.get_compile_flags()
    assert (
        tf.sysconfig.get_link_flags() == [] and tf.__cxx11_abi_flag__ == tf.sysconfig.CXX11_ABI_FLAG
    )
    assert tf.sysconfig.get_build_info()["is_cuda_build"] in (True, False)


def test_jax_default_dtype_remains_float32():
    code = """
import warnings
import jax
import jax.numpy as jnp
from meshflow import passes
import meshflow
assert jnp.ones(3).dtype == "float32" and jnp.arange(3).dtype == "int32"
half = passes.mixed_precision(lambda w, x: x @ w)
w, x = jnp.ones((4, 2)), jnp.ones((3, 4))
kinds = [e.outvars[0].aval.dtype.name for e in jax.make_jaxpr(half)(w, x).eqns]
assert kinds == ["bfloat16"] * 3 + ["float32"], kinds
assert half(w, x).dtype == "float32" and jnp.ones(3).dtype == "float32"
assert not jax.config.jax_enable_x64
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert meshflow.constant(1.0).dtype == meshflow.float32 and jax.config.jax_enable_x64
assert [str(w.message)[:41] for w in caught] == ["Meshflow turns on JAX's 64-bit types in t"], caught
assert meshflow.constant([1], meshflow.int64).numpy().dtype == "int64"
"""
    assert forked.run(code, after="import jax") == [0, ""]


def test_64_bit_warning_requires_jax_arrays():
    code = "import meshflow as tf; assert tf.constant(1.0).dtype == tf.float32"
    command = [sys.executable, "-W", "error", "-c", code]
    subprocess.run(command, check=True, timeout=120)
