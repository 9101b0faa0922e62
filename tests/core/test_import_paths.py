"""Public names are imported by TensorFlow's paths, wherever their files are."""

import importlib

import pytest

import forked
import meshflow as tf

PATHS = [
    "autograph.experimental",
    "compat.v1.keras.backend",
    "compat.v2.keras.layers",
    "config.experimental",
    "config.optimizer",
    "config.threading",
    "initializers",
    "keras.dtensor.experimental.optimizers",
    "keras.mixed_precision.experimental",
    "losses",
    "math.special",
    "metrics",
    "nn.experimental",
    "optimizers.schedules",
    "random.experimental",
    "train.experimental",
    "types.experimental",
]


@pytest.mark.parametrize("path", PATHS)
def test_import_path_equals_attribute_path(path):
    module = importlib.import_module(f"meshflow.{path}")
    found = tf
    for name in path.split("."):
        found = getattr(found, name)
    assert module is found
    assert module.__spec__.name == module.__name__


def test_no_file_is_loaded_twice():
    """Run code in a process without earlier imports."""
    program = (
        "from meshflow.optimizers.schedules import ExponentialDecay\n"
        "from meshflow.keras.optimizers import schedules\n"
        "from meshflow.keras.optimizers.schedules import ExponentialDecay as again\n"
        "assert schedules.ExponentialDecay is ExponentialDecay is again"
    )
    assert forked.run(program, after="import jax") == [0, ""]


@pytest.mark.parametrize("first", ["core.dispatch.operands", "numpy.behavior", "data.structure"])
def test_no_file_is_loaded_twice_in_any_import_order(first):
    program = f"""
import collections, sys
runs = collections.Counter()
def seen(event, args):
    if event == "exec" and args[0].co_name == "<module>":
        runs[args[0].co_filename] += args[0].co_filename.endswith(".py")
sys.addaudithook(seen)
import meshflow.{first}
import meshflow as tf
tf.constant(1)
again = [name for name, times in runs.items() if times > 1]
assert runs and not again, again
"""
    assert forked.run(program, after="import jax") == [0, ""]


@pytest.mark.parametrize(
    "path", ["nothing", "config.nothing", "optimizers.nothing", "keras.nothing"]
)
def test_missing_modules_are_not_found(path):
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"meshflow.{path}")


def test_a_class_is_no_module():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("meshflow.config.LogicalDevice")
