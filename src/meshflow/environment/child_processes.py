"""Python processes that import the packages of this one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_SOURCE_FOLDER = str(Path(__file__).parents[2])


def make_python_command(source: str) -> list[str]:
    """Return the command of a Python process.

    The process does not import modules of the current folder: it may be the folder of a foreign file,
    with a module that has the name of one of Python's modules.

    Args:
      source: Source code that the process runs.
    """
    return [sys.executable, "-P", "-c", source]


def get_import_path() -> str:
    """Return the value of PYTHONPATH for a process that `make_python_command` starts.

    It has all folders from which this process imports, because Meshflow may not be installed. An empty
    name means the current folder.
    """
    return os.pathsep.join([*filter(None, sys.path), _SOURCE_FOLDER])
