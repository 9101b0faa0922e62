"""Imports of packages at their first use: optional ones, and slow ones of the base install."""

from __future__ import annotations

import importlib
from typing import Any


def import_extra(module: str, extra: str | None, message: str) -> Any:
    """Import a module of a package that may be missing.

    Args:
      module: Name of the module.
      extra: Extra of Meshflow that installs the package; None if the base install has it.
      message: Beginning of the error message; it names the feature and the required package.

    Raises:
      ImportError: If the package is not installed.

    Example:
      >>> import_extra("json", "nothing", "This example needs the package json").dumps([1])
      '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        requirement = "meshflow-tf" if extra is None else f"'meshflow-tf[{extra}]'"
        raise ImportError(f"{message}: pip install {requirement}.") from error
