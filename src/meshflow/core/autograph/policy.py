"""Selection of the functions that AutoGraph converts: the user's own, and none of libraries.

Python's standard library, installed packages and Meshflow itself run unchanged. A package that
applies `tf.function` to its functions opts in: its other functions are converted, too, when called.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from types import FunctionType

_MESHFLOW = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
# Packages in site-packages that passed functions to `tf.function`.
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
    """Check whether a file belongs to Meshflow; its tests are outside of the package."""
    return not filename.startswith("<") and os.path.abspath(filename).startswith(_MESHFLOW)


@functools.cache
def _is_library_file(filename: str) -> bool:
    if filename.startswith("<"):
        return filename.startswith(
            "<frozen"
        )  # Other such names, <stdin> and <doctest ...>, are the user's input.
    return os.path.abspath(filename).startswith(_library_folders())


def is_user_file(filename: str) -> bool:
    """Check whether a file belongs neither to Meshflow nor to a library."""
    return not _is_own_file(filename) and not _is_library_file(filename)


def _get_package(function: FunctionType) -> str:
    return (function.__module__ or "").split(".")[0]


def opt_in_package(function: FunctionType) -> None:
    """Allow the conversion of the package of a function that was passed to `tf.function`."""
    if _is_library_file(function.__code__.co_filename):
        _opted_in.add(_get_package(function))


def is_convertible(function: FunctionType) -> bool:
    """Check whether a function may be converted."""
    filename = function.__code__.co_filename
    if _is_own_file(filename) or getattr(function, "ag_do_not_convert", False):
        return False
    return not _is_library_file(filename) or _get_package(function) in _opted_in
