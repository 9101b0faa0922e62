"""Loads Meshflow as `tensorflow`, `keras` or `tf_keras`; see `meshflow.shims`."""

import importlib
import os
import sys


def load(name: str) -> None:
    """Convert the imported package to Meshflow.

    A process of another environment inherits PYTHONPATH. It imports the package that is installed there instead.

    Raises:
      ImportError: If this Python has neither Meshflow nor the package.
    """
    try:
        shims = importlib.import_module("meshflow.shims.shim_modules")
    except ModuleNotFoundError as error:
        folder = os.path.dirname(os.path.realpath(__file__))
        sys.path[:] = [f for f in sys.path if os.path.realpath(f) != folder]
        del sys.modules[name]
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as second:
            if second.name != name:
                raise
            raise ImportError(
                f"{folder} loads Meshflow as `{name}`, but this Python has no package {error.name!r}. "
                "Install meshflow-tf here, or remove the folder from PYTHONPATH."
            ) from error
    else:
        shims.convert_package(name)
