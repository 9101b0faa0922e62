"""Packages that only some programs need: they are imported when they are first used."""

from __future__ import annotations

import importlib
from typing import Any


def load(module: str, extra: str, message: str) -> Any:
    """A module of an optional package.

    Args:
      module: its name.
      extra: the extra of Meshflow that brings the package.
      message: what needs which package, for the error.

    Raises:
      ImportError: when it is not installed.

    Example:
      >>> load("json", "nothing", "This example needs the package json").dumps([1])
      '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{message}: pip install 'meshflow[{extra}]'.") from error
