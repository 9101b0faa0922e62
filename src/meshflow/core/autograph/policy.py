"""What gets converted: the user's own functions, and nothing of a library's.

Python's standard library, installed packages and Meshflow itself run as they are. A package that
itself applies `tf.function` to its functions opts in: its other functions are converted too when
such a function calls them.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from types import FunctionType

_MESHFLOW = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
# Packages installed in site-packages whose functions were given to `tf.function`.
_opted_in: set[str] = set()


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    # A virtual environment uses the standard library of another prefix.
    folders.add(os.path.dirname(os.path.abspath(os.__file__)))
    folders |= {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    return tuple(folder + os.sep for folder in folders)


@functools.cache
def _is_own_file(filename: str) -> bool:
    """Whether a file belongs to Meshflow (its tests, outside the package, do not)."""
    return not filename.startswith("<") and os.path.abspath(filename).startswith(_MESHFLOW)


@functools.cache
def _is_library_file(filename: str) -> bool:
    if filename.startswith("<"):
        return filename.startswith("<frozen")  # else typed by the user: <stdin>, <doctest ...>
    return os.path.abspath(filename).startswith(_library_folders())


def is_users_file(filename: str) -> bool:
    """Whether a file is neither Meshflow's nor that of a library."""
    return not _is_own_file(filename) and not _is_library_file(filename)


def _package(function: FunctionType) -> str:
    return (function.__module__ or "").split(".")[0]


def opt_in(function: FunctionType) -> None:
    """Notes that a function was given to `tf.function`, with the package it comes from."""
    if _is_library_file(function.__code__.co_filename):
        _opted_in.add(_package(function))


def is_convertible(function: FunctionType) -> bool:
    """Whether a function is the user's."""
    filename = function.__code__.co_filename
    if _is_own_file(filename) or getattr(function, "ag_do_not_convert", False):
        return False
    return not _is_library_file(filename) or _package(function) in _opted_in
