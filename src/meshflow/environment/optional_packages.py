"""Imports of optional packages at their first use."""

from __future__ import annotations

import importlib
from typing import Any


def import_extra(module: str, extra: str, message: str) -> Any:
    """Import a module of an optional package.

    Args:
      module: Name of the module.
      extra: Extra of Meshflow that installs the package.
      message: Beginning of the error message; it names the feature and the required package.

    Raises:
      ImportError: If the package is not installed.

    Example:
      >>> load("json", "nothing", "This example needs the package json").dumps([1])
      '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{message}: pip install 'meshflow[{extra}]'.") from error
