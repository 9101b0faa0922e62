"""Reads data from pickles without running anything they say.

Some public data sets are pickles: object arrays in .npz files, and batches of dictionaries. Of what a pickle
may name only NumPy's arrays and dtypes are known, and these not as NumPy's own functions but as notes of what
was asked for, which are checked when all is read. Everything else is refused.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import DataLossError

__all__ = ["read_arrays", "read_pickle"]

# How deep lists of lists may go.
_DEEPEST = 50
# What pickles of arrays name, by the names of NumPy's inner package before and since its version 2.
_KNOWN = {
    ("numpy", "ndarray"): "type",
    ("numpy", "dtype"): "dtype",
    # How protocols before 3 say bytes, and empty ones.
    ("_codecs", "encode"): "bytes",
    ("__builtin__", "bytes"): "nothing",
    **{(f"numpy.{c}.multiarray", "_reconstruct"): "array" for c in ("core", "_core")},
    **{(f"numpy.{c}.multiarray", "scalar"): "scalar" for c in ("core", "_core")},
    **{(f"numpy.{c}.numeric", "_frombuffer"): "buffer" for c in ("core", "_core")},
}


def read_pickle(path: Any, encoding: str = "ASCII") -> Any:
    """The data of a pickled file: numbers, text, bytes and arrays in lists, tuples and dictionaries.

    Args:
      path: the file.
      encoding: of texts that Python 2 wrote; 'bytes' keeps them.

    Raises:
      DataLossError: naming the file, for a damaged one, and one that holds anything else.
    """
    return _plain(Path(path).read_bytes(), encoding, str(path))


def read_arrays(path: Any) -> dict[str, Any]:
    """The arrays of an .npz file, also those of lists.

    Args:
      path: the file.

    Raises:
      DataLossError: naming the file, for a damaged one, and one that holds anything else.
    """
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                found[name.removesuffix(".npy")] = _array(archive.read(name), f"{path}: {name}")
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise DataLossError(f"{path} is damaged: {error}") from error
    return found


def _array(data: bytes, name: str) -> np.ndarray:
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in read:
        raise ValueError(f"{name} has version {version} of NumPy's format")
    shape, fortran, dtype = read[version](file)
    if dtype.kind == "O":
        array = _plain(data[file.tell() :], "ASCII", name)
        if not isinstance(array, np.ndarray) or array.shape != shape:
            raise ValueError(f"{name} holds another array than it says")
        return array
    if dtype.hasobject:
        raise ValueError(f"{name} holds records with objects")
    return _shaped(np.frombuffer(data[file.tell() :], dtype), shape, fortran)


def _shaped(flat: np.ndarray, shape: Any, fortran: bool) -> np.ndarray:
    if math.prod(shape) != flat.size:
        raise ValueError(f"{flat.size} values are not an array of shape {tuple(shape)}")
    return flat.reshape(shape, order="F" if fortran else "C").copy()


def _plain(data: bytes, encoding: str, name: str) -> Any:
    try:
        return _value(_Reader(io.BytesIO(data), encoding=encoding).load(), 0)
    except pickle.UnpicklingError as error:
        raise DataLossError(f"{name}: {error}") from None
    except Exception as error:
        # Pickles that are damaged, or made to do damage, fail in many ways.
        raise DataLossError(f"{name} is damaged: {type(error).__name__}: {error}") from error


class _Noted:
    """What a pickle asks for: a kind, with what, and in which state."""

    def __init__(self, kind: str, arguments: tuple[Any, ...]) -> None:
        self.kind, self.arguments, self.state = kind, arguments, None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        kind = _KNOWN.get((module, name))
        if kind is None:
            raise pickle.UnpicklingError(
                f"names {module}.{name}, which is not run: only numbers, text, bytes and arrays are read"
            )
        # A fresh function each time: a pickle may set attributes of what it is given.
        return lambda *arguments: _Noted(kind, arguments)

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("refers to something outside of it")


def _value(found: Any, depth: int) -> Any:
    """What was read, with arrays in the place of notes."""
    if depth > _DEEPEST:
        raise ValueError("lists of lists that go too deep")
    if isinstance(found, _Noted):
        return _made(found, depth)
    if type(found) in (list, tuple):
        return type(found)(_value(v, depth + 1) for v in found)
    if type(found) is dict:
        return {_value(k, depth + 1): _value(v, depth + 1) for k, v in found.items()}
    if found is None or type(found) in (bool, int, float, complex, str, bytes, bytearray):
        return found
    raise ValueError(f"a value of type {type(found).__name__}")


def _made(note: _Noted, depth: int) -> Any:
    if note.kind == "dtype":
        return _dtype(note)
    if note.kind == "bytes":
        text, encoding = note.arguments
        if type(text) is not str or encoding != "latin1":
            raise ValueError("bytes in an unknown encoding")
        return text.encode("latin1")
    if note.kind == "nothing" and not note.arguments:
        return b""
    if note.kind == "scalar":
        dtype, data = note.arguments
        return np.frombuffer(_value(data, depth + 1), _dtype(dtype))[0]
    if note.kind == "buffer":
        data, dtype, shape, order = note.arguments
        return _shaped(np.frombuffer(_value(data, depth + 1), _dtype(dtype)), shape, order == "F")
    if note.kind != "array" or note.state is None:
        raise ValueError(f"a {note.kind} by itself")
    _, shape, dtype, fortran, data = note.state
    known = _dtype(dtype, objects=True)
    if known.kind != "O":
        return _shaped(np.frombuffer(_value(data, depth + 1), known), shape, fortran)
    flat = np.empty(len(data), object)
    for i, item in enumerate(data):
        flat[i] = _value(item, depth + 1)
    return _shaped(flat, shape, fortran)


def _dtype(note: Any, objects: bool = False) -> np.dtype:
    """A dtype of numbers, or of fixed text."""
    if not isinstance(note, _Noted) or note.kind != "dtype":
        raise ValueError("a dtype that is none of NumPy's numbers")
    text = _text(note.arguments[0])
    if objects and text in ("O", "O8", "|O"):
        return np.dtype(object)
    found = np.dtype(text)
    if found.kind not in "biufcSU" or found.fields is not None or found.subdtype is not None:
        raise ValueError(f"values of dtype {found}")
    order = _text(note.state[1]) if note.state else "="
    return found.newbyteorder(">" if order == ">" else "<") if order in "<>" else found


def _text(found: Any) -> str:
    """Text of Python 3, or of Python 2, whose texts may have been kept as bytes."""
    if type(found) not in (str, bytes):
        raise ValueError("a dtype that is none of NumPy's numbers")
    return found.decode("ascii") if isinstance(found, bytes) else found
