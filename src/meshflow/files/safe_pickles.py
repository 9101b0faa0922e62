"""Reader of data in pickles that never runs code.

Some public data sets are pickles: object arrays in .npz files, and batches of dictionaries. The
unpickler resolves only the names that NumPy's arrays and dtypes need. It replaces each call of such
a name by a `_RecordedCall`, which is validated and evaluated after the pickle is read. All other
names are rejected.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from meshflow.core.runtime.errors import DataLossError
from meshflow.environment.types import PyTree, StrPath
from meshflow.files.arrays import parse_dtype

# Maximum depth of nested containers.
_MAX_DEPTH = 50
# Names that pickles of arrays refer to. NumPy 2 renamed its internal package from `core` to
# `_core`.
_ALLOWED_NAMES = {
    ("numpy", "ndarray"): "type",
    ("numpy", "dtype"): "dtype",
    # Pickle protocols below 3 encode bytes, and empty bytes, with these names.
    ("_codecs", "encode"): "bytes",
    ("__builtin__", "bytes"): "nothing",
    **{(f"numpy.{c}.multiarray", "_reconstruct"): "array" for c in ("core", "_core")},
    **{(f"numpy.{c}.multiarray", "scalar"): "scalar" for c in ("core", "_core")},
    **{(f"numpy.{c}.numeric", "_frombuffer"): "buffer" for c in ("core", "_core")},
}


def read_pickle(path: StrPath, encoding: str = "ASCII") -> PyTree:
    """Read numbers, text, bytes and arrays in lists, tuples and dictionaries from a pickle.

    Args:
      path: Path of the file.
      encoding: Encoding of the text that Python 2 wrote; 'bytes' keeps it as bytes.

    Raises:
      DataLossError: The file is damaged or contains other objects.
    """
    return _load_data(Path(path).read_bytes(), encoding, str(path))


def read_arrays(path: StrPath) -> dict[str, Any]:
    """Read the arrays of an .npz file, including object arrays.

    Raises:
      DataLossError: The file is damaged or contains other objects.
    """
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                arrays[name.removesuffix(".npy")] = _parse_npy(
                    archive.read(name), f"{path}: {name}"
                )
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise DataLossError(f"{path} is damaged: {error}") from error
    return arrays


def _parse_npy(data: bytes, name: str) -> np.ndarray:
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    parsers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in parsers:
        raise ValueError(f"{name} has version {version} of the .npy format, which is not supported")
    shape, fortran, dtype = parsers[version](file)
    if dtype.kind == "O":
        array = _load_data(data[file.tell() :], "ASCII", name)
        if not isinstance(array, np.ndarray) or array.shape != shape:
            raise ValueError(f"{name} contains another array than its header declares")
        return array
    if dtype.hasobject:
        raise ValueError(f"{name} contains records with objects")
    return _reshape_exact(np.frombuffer(data[file.tell() :], dtype), shape, fortran)


def _reshape_exact(flat: np.ndarray, shape: tuple[int, ...], fortran: bool) -> np.ndarray:
    if math.prod(shape) != flat.size:
        raise ValueError(f"{flat.size} values do not fit the shape {tuple(shape)}")
    return flat.reshape(shape, order="F" if fortran else "C").copy()


def _load_data(data: bytes, encoding: str, name: str) -> PyTree:
    try:
        return _convert_value(_DataUnpickler(io.BytesIO(data), encoding=encoding).load(), 0)
    except pickle.UnpicklingError as error:
        raise DataLossError(f"{name}: {error}") from None
    except Exception as error:
        # Damaged or malicious pickles raise errors of many types.
        raise DataLossError(f"{name} is damaged: {type(error).__name__}: {error}") from error


class _RecordedCall:
    """A call in a pickle: the type of its result, its arguments and the state that follows."""

    def __init__(self, kind: str, arguments: tuple[Any, ...]) -> None:
        self.kind, self.arguments, self.state = kind, arguments, None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., _RecordedCall]:
        kind = _ALLOWED_NAMES.get((module, name))
        if kind is None:
            raise pickle.UnpicklingError(
                f"names {module}.{name}, which is not run: only numbers, text, bytes and arrays are read"
            )
        # Each call returns a new function, because a pickle may set attributes of the result.
        return lambda *arguments: _RecordedCall(kind, arguments)

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("refers to an object outside of the file")


def _convert_value(value: PyTree, depth: int) -> PyTree:
    """Replace recorded calls by their arrays, and reject values of other types."""
    if depth > _MAX_DEPTH:
        raise ValueError("containers are nested too deep")
    if isinstance(value, _RecordedCall):
        return _evaluate_call(value, depth)
    if type(value) in (list, tuple):
        return type(value)(_convert_value(v, depth + 1) for v in value)
    if type(value) is dict:
        return {
            _convert_value(k, depth + 1): _convert_value(v, depth + 1) for k, v in value.items()
        }
    if value is None or type(value) in (bool, int, float, complex, str, bytes, bytearray):
        return value
    raise ValueError(f"unexpected value of type {type(value).__name__}")


def _evaluate_call(call: _RecordedCall, depth: int) -> np.ndarray | np.generic | np.dtype | bytes:
    if call.kind == "dtype":
        return _parse_dtype(call)
    if call.kind == "bytes":
        text, encoding = call.arguments
        if type(text) is not str or encoding != "latin1":
            raise ValueError("bytes have an unknown encoding")
        return text.encode("latin1")
    if call.kind == "nothing" and not call.arguments:
        return b""
    if call.kind == "scalar":
        dtype, data = call.arguments
        return np.frombuffer(_convert_value(data, depth + 1), _parse_dtype(dtype))[0]
    if call.kind == "buffer":
        data, dtype, shape, order = call.arguments
        return _reshape_exact(
            np.frombuffer(_convert_value(data, depth + 1), _parse_dtype(dtype)), shape, order == "F"
        )
    if call.kind != "array" or call.state is None:
        raise ValueError(f"incomplete {call.kind}")
    _, shape, dtype, fortran, data = call.state
    array_dtype = _parse_dtype(dtype, objects=True)
    if array_dtype.kind != "O":
        return _reshape_exact(
            np.frombuffer(_convert_value(data, depth + 1), array_dtype), shape, fortran
        )
    flat = np.empty(len(data), object)
    for i, item in enumerate(data):
        flat[i] = _convert_value(item, depth + 1)
    return _reshape_exact(flat, shape, fortran)


def _parse_dtype(call: object, objects: bool = False) -> np.dtype:
    """Return a dtype of numbers or fixed-size text, or of objects if `objects` is True."""
    if not isinstance(call, _RecordedCall) or call.kind != "dtype":
        raise ValueError("a dtype is not one of NumPy's number types")
    text = _to_text(call.arguments[0])
    if objects and text in ("O", "O8", "|O"):
        return np.dtype(object)
    dtype = parse_dtype(text)
    if dtype.kind not in "biufcSU" or dtype.fields is not None or dtype.subdtype is not None:
        raise ValueError(f"unexpected values of dtype {dtype}")
    order = _to_text(call.state[1]) if call.state else "="
    return dtype.newbyteorder(">" if order == ">" else "<") if order in "<>" else dtype


def _to_text(value: Any) -> str:
    """Decode text of Python 3, or of Python 2, which the unpickler may have kept as bytes."""
    if type(value) not in (str, bytes):
        raise ValueError("a dtype is not one of NumPy's number types")
    return value.decode("ascii") if isinstance(value, bytes) else value
