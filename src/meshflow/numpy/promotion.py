"""Promotion of operands of different dtypes to a common dtype.

An operand is represented by a NumPy dtype, or by a Python number. Python numbers are weak: they
have a kind, but no
size. The rules are NumPy's own ('legacy'), JAX's lattice ('all'), or the lattice without
conversions that may lose
precision ('safe').
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import ml_dtypes
import numpy as np

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Bits of integers that a floating-point dtype represents exactly.
_EXACT_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


# A NumPy dtype, or a Python number.
Kind: TypeAlias = np.dtype[Any] | bool | int | float | complex


def _promote_numpy(kinds: Sequence[Kind]) -> np.dtype:
    dtypes_only = [k for k in kinds if isinstance(k, np.dtype)]
    if dtypes_only and all(d == _BFLOAT16 for d in dtypes_only):
        # NumPy does not treat Python numbers as weak next to this dtype.
        if any(type(k) is complex for k in kinds):
            return np.dtype(np.complex64)
        return _BFLOAT16
    return np.result_type(*kinds)


def _promote_lattice(kinds: Sequence[Kind]) -> np.dtype:
    numbers = [k for k in kinds if not isinstance(k, np.dtype)]
    if 0 < len(numbers) < len(kinds) and all(
        k == np.bool_ for k in kinds if isinstance(k, np.dtype)
    ):
        # Next to booleans, a Python number has TensorFlow's default dtype.
        return np.result_type(*map(_get_default_dtype, numbers))
    return np.dtype(jnp.result_type(*kinds))


def _get_default_dtype(number: complex) -> np.dtype:
    names = {bool: "bool", int: "int32", float: "float32"}
    return np.dtype(names.get(type(number), "complex128"))


def _promote_safe(kinds: Sequence[Kind]) -> np.dtype:
    for a, b in itertools.combinations(kinds, 2):
        if not _is_safe(a, b):
            names = [k.name if isinstance(k, np.dtype) else type(k).__name__ for k in (a, b)]
            raise TypeError(
                f"Implicit conversion between {names[0]} and {names[1]} is not allowed in the dtype conversion "
                "mode 'safe', as it may lose precision. Use tf.cast or `astype` to convert one of them."
            )
    return _promote_lattice(kinds)


def _is_safe(a: Kind, b: Kind) -> bool:
    """Check whether the mode 'safe' allows to promote two dtypes, or a dtype and a Python number."""
    if isinstance(b, np.dtype) and not isinstance(a, np.dtype):
        a, b = b, a
    if not isinstance(a, np.dtype):
        return True
    if not isinstance(b, np.dtype):
        kind = _get_kind(a)
        if type(b) is complex:
            return kind in "bc" or (a.itemsize == 8) == (kind == "f")
        return not (kind in "iu" and type(b) is float)
    if a == b or "b" in (a.kind, b.kind):
        return True
    first, second = sorted((a, b), key=lambda d: ("uifc".index(_get_kind(d)), d.itemsize))
    kinds = _get_kind(first) + _get_kind(second)
    if kinds in ("uu", "ii", "cc"):
        return True
    if kinds == "ui":
        return first.itemsize < second.itemsize
    if kinds in ("uf", "if"):
        return first.itemsize * 8 <= _EXACT_BITS[second.name]
    if kinds == "ff":
        return {first.name, second.name} != {"float16", "bfloat16"}
    if kinds == "fc":
        return not (first.itemsize == 8 and second.itemsize == 8)
    return first.itemsize < 4 or second.itemsize == 16


def _get_kind(dtype: np.dtype) -> str:
    return "f" if dtype == _BFLOAT16 else dtype.kind


_MODES: dict[str, Callable[[Sequence[Kind]], np.dtype]] = {
    "off": _promote_numpy,
    "legacy": _promote_numpy,
    "all": _promote_lattice,
    "safe": _promote_safe,
}
_promote: Callable[[Sequence[Kind]], np.dtype] = _promote_numpy


def set_mode(mode: str) -> None:
    """Choose the rules: 'off' and 'legacy' are NumPy's, 'all' and 'safe' JAX's.

    Raises:
      ValueError: If the mode is unknown.
    """
    global _promote
    if mode not in _MODES:
        raise ValueError(
            f"dtype_conversion_mode must be one of {sorted(_MODES)}, got {mode!r}. 'legacy' follows NumPy."
        )
    _promote = _MODES[mode]


def common_dtype(kinds: Sequence[Kind], floating: bool = False) -> np.dtype | None:
    """Return the common NumPy dtype of operands, or None if an operand holds strings.

    Args:
      kinds: NumPy dtypes of arrays, and Python numbers.
      floating: Whether to convert integers to floating-point numbers.

    Raises:
      TypeError: If no common dtype exists.
    """
    if not kinds or any(isinstance(k, np.dtype) and k.kind == "O" for k in kinds):
        return None
    dtype = _promote(kinds)
    return np.dtype(np.float64) if floating and _get_kind(dtype) in "biu" else dtype
