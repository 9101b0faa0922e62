"""Which dtype operands of different dtypes meet in.

Operands are given by their kinds: a NumPy dtype, or a Python number. The rules are NumPy's own (`legacy`), or JAX's lattice (`all`, and `safe`, which refuses what may lose
digits). Python numbers are weak: they have a kind, not a size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Bits that a float keeps exactly.
_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def _numpy_result(kinds: Sequence[Any]) -> np.dtype:
    dtypes_only = [k for k in kinds if isinstance(k, np.dtype)]
    if dtypes_only and all(d == _BFLOAT16 for d in dtypes_only):
        # NumPy does not know that Python numbers are weak beside this dtype.
        if any(type(k) is complex for k in kinds):
            return np.dtype(np.complex64)
        return _BFLOAT16
    return np.result_type(*kinds)


def _lattice_result(kinds: Sequence[Any]) -> np.dtype:
    return np.dtype(jnp.result_type(*kinds))


def _safe_result(kinds: Sequence[Any]) -> np.dtype:
    for one, other in itertools.combinations(kinds, 2):
        if not _loses_nothing(one, other):
            names = [k.name if isinstance(k, np.dtype) else type(k).__name__ for k in (one, other)]
            raise TypeError(
                f"Implicit conversion between {names[0]} and {names[1]} is not allowed in the dtype conversion "
                "mode 'safe', as it may lose precision. Use tf.cast or `astype` to convert one of them."
            )
    return _lattice_result(kinds)


def _loses_nothing(one: Any, other: Any) -> bool:
    """Whether the mode 'safe' lets two dtypes, or a dtype and a Python number, meet."""
    if isinstance(other, np.dtype) and not isinstance(one, np.dtype):
        one, other = other, one
    if not isinstance(one, np.dtype):
        return True
    if not isinstance(other, np.dtype):
        kind = _kind(one)
        return not (kind in "iu" and isinstance(other, (float, complex)))
    if one == other or "b" in (one.kind, other.kind):
        return True
    first, second = sorted((one, other), key=lambda d: ("uifc".index(_kind(d)), d.itemsize))
    kinds = _kind(first) + _kind(second)
    if kinds in ("uu", "ii", "cc"):
        return True
    if kinds == "ui":
        return first.itemsize < second.itemsize
    if kinds in ("uf", "if"):
        return first.itemsize * 8 <= _DIGITS[second.name]
    if kinds == "ff":
        return {first.name, second.name} != {"float16", "bfloat16"}
    if kinds == "fc":
        return not (first.itemsize == 8 and second.itemsize == 8)
    return first.itemsize < 4 or second.itemsize == 16


def _kind(dtype: np.dtype) -> str:
    return "f" if dtype == _BFLOAT16 else dtype.kind


_MODES: dict[str, Callable[[Sequence[Any]], np.dtype]] = {
    "off": _numpy_result,
    "legacy": _numpy_result,
    "all": _lattice_result,
    "safe": _safe_result,
}
_result: Callable[[Sequence[Any]], np.dtype] = _numpy_result


def set_mode(mode: str) -> None:
    """Chooses the rules: 'off' and 'legacy' are NumPy's, 'all' and 'safe' JAX's.

    Raises:
      ValueError: for another mode, naming the known ones.
    """
    global _result
    if mode not in _MODES:
        raise ValueError(
            f"dtype_conversion_mode must be one of {sorted(_MODES)}, got {mode!r}. 'legacy' follows NumPy."
        )
    _result = _MODES[mode]


def common_dtype(kinds: Sequence[Any], floating: bool = False) -> np.dtype | None:
    """The NumPy dtype in which operands meet; None when one of them is of strings.

    Args:
      kinds: NumPy dtypes of arrays, and Python numbers.
      floating: whether integers become floating-point numbers.

    Raises:
      TypeError: when the dtypes have no common one.
    """
    if not kinds or any(isinstance(k, np.dtype) and k.kind == "O" for k in kinds):
        return None
    found = _result(kinds)
    return np.dtype(np.float64) if floating and _kind(found) in "biu" else found
