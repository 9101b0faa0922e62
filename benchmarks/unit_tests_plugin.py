"""Plugin of pytest for `unit_tests.py`: helpers of TensorFlow's unit tests, and a journal of their outcomes.

TensorFlow's wheel lacks many modules that only its tests import; they are loaded from its source. Tests are run
by Bazel, so that `absl.flags` are parsed first, and were written for NumPy 1.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import re
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

import numpy as np

SOURCE = Path(os.environ["UNIT_TESTS_SOURCE"])
JOURNAL = Path(os.environ["UNIT_TESTS_JOURNAL"])
# The last parts of the names of modules that both Meshflow and TensorFlow's wheel have.
PROVIDED = {"benchmark", "googletest", "test", "test_combinations", "test_util"}
LOADED = {"tensorflow.python.ops.parallel_for.test_util"}
IMPORT = re.compile(r"^\s*from (tensorflow\.python[\w.]*) import (\w+)", re.MULTILINE)
NUMPY_NAMES = {
    "float_": np.float64,
    "complex_": np.complex128,
    "string_": np.bytes_,
    "unicode_": np.str_,
    "bool8": np.bool_,
    "Inf": np.inf,
    "infty": np.inf,
    "NaN": np.nan,
    "product": np.prod,
    "cumproduct": np.cumprod,
    "row_stack": np.vstack,
    "in1d": lambda *args, **kwargs: np.isin(*args, **kwargs).reshape(-1),
    "asfarray": lambda a: np.asarray(a, float),
}


class HelperFinder(MetaPathFinder):
    """A finder of the helpers of tests in TensorFlow's source."""

    def find_spec(self, fullname, path=None, target=None):
        if not fullname.startswith("tensorflow.python."):
            return None
        parts = fullname.split(".")
        is_provided = parts[-1] in PROVIDED and fullname not in LOADED
        if is_provided or not any("test" in part for part in parts):
            return None
        folder = SOURCE.joinpath(*parts)
        file = folder.with_suffix(".py")
        if file.is_file():
            return importlib.util.spec_from_file_location(fullname, file)
        if folder.is_dir():
            return importlib.util.spec_from_loader(fullname, None, is_package=True)
        return None


def load_helpers(file, finder, seen):
    """Load the helpers that a file imports, because Meshflow's private modules answer for every name."""
    for module_name, attribute in IMPORT.findall(file.read_text()):
        # The module itself may be a helper, or one of its attributes.
        for name in (module_name, f"{module_name}.{attribute}"):
            spec = None if name in seen else finder.find_spec(name)
            seen.add(name)
            if spec is None or not spec.origin:
                continue
            load_helpers(Path(spec.origin), finder, seen)
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
                parent, _, base = name.rpartition(".")
                setattr(importlib.import_module(parent), base, module)
            except Exception as error:
                del sys.modules[name]
                print(f"The helper {name} was not loaded: {error!r}")


def pytest_configure(config):
    for name, value in NUMPY_NAMES.items():
        if name not in vars(np):
            setattr(np, name, value)
    finder = HelperFinder()
    sys.meta_path.insert(0, finder)
    for argument in config.args:
        file = Path(argument.partition("::")[0])
        load_helpers(file, finder, set())
        if "np_math_ops.enable_numpy_methods_on_tensor()" in file.read_text():
            # The main block of these files, which pytest does not run, calls it.
            from tensorflow.python.ops.numpy_ops import np_math_ops

            np_math_ops.enable_numpy_methods_on_tensor()
    # Version 2.15 moved the class.
    framework = importlib.import_module("tensorflow.python.framework.ops")
    if not hasattr(framework, "Tensor"):
        framework.Tensor = importlib.import_module("tensorflow.python.framework.tensor").Tensor
    with contextlib.suppress(ImportError):
        from absl import flags

        if not flags.FLAGS.is_parsed():
            flags.FLAGS(["pytest"])


def write(name, report):
    """Append an outcome to the journal; a failure has the first line of its error."""
    lines = str(report.longrepr).strip().splitlines() if report.failed else []
    errors = [line[1:].strip() for line in lines if line.startswith("E ")] or lines[-1:]
    record = {"name": name, "outcome": report.outcome, "error": errors[0][:300] if errors else ""}
    with JOURNAL.open("a") as file:
        file.write(json.dumps(record) + "\n")


def pytest_runtest_logreport(report):
    if report.failed or report.skipped or report.when == "call":
        write(report.nodeid.partition("::")[2], report)


def pytest_collectreport(report):
    if report.failed:
        write("collection", report)
