"""Packages that only some programs need: they are imported when they are first used."""

from __future__ import annotations

import importlib
from typing import Any


def load(module: str, extra: str, needs: str, package: str | None = None) -> Any:
    """A module of an optional package.

    Args:
      module: its name.
      extra: the extra of Meshflow that brings the package.
      needs: what needs it, with the verb: the beginning of the error.
      package: the package's name; default that of the module.

    Raises:
      ImportError: when it is not installed.

    Example:
      >>> load("json", "nothing", "This example needs").dumps([1])
      '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = package or module.partition(".")[0]
        raise ImportError(
            f"{needs} the package {name}: pip install 'meshflow[{extra}]'."
        ) from error
