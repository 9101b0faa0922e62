"""NumPy's promotion, indexing and methods for tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.dispatch.operands import NumpyRules
from meshflow.core.values import nest
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, ndarray_attributes
from meshflow.environment.types import PyTree
from meshflow.numpy import elementwise, inspection, manipulation, products, promotion, reductions
from meshflow.numpy.conversion import DefaultDtypes, copy, promote
from meshflow.numpy.value_dependent_shapes import nonzero
from meshflow.ops.math import cast


def _reshape(self: Tensor, *shape: Any, order: str = "C") -> Tensor:
    return manipulation.reshape(self, shape[0] if len(shape) == 1 else shape, order=order)


def _transpose(self: Tensor, *axes: Any) -> Tensor:
    permutation = axes[0] if len(axes) == 1 else axes or None
    return manipulation.transpose(self, permutation)


def _astype(self: Tensor, dtype: DTypeLike) -> Tensor:
    return cast(self, dtype)


def _tolist(self: Tensor) -> Any:
    return self.numpy().tolist()


def _item(self: Tensor, *index: int) -> Any:
    return np.asarray(self.numpy()).item(*index)


def _matmul(self: Tensor, other: Any) -> Tensor:
    return products.matmul(self, other)


def _rmatmul(self: Tensor, other: Any) -> Tensor:
    return products.matmul(other, self)


def _call_numpy_function(
    self: Tensor,
    function: Callable[..., PyTree],
    types: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> PyTree:
    """Call a function of NumPy with arrays in place of tensors."""
    args, kwargs = nest.map_structure(
        lambda v: np.asarray(v) if isinstance(v, Tensor) else v, (args, kwargs)
    )
    return function(*args, **kwargs)


_METHODS: dict[str, Callable[..., Any]] = {
    "__matmul__": _matmul,
    "__rmatmul__": _rmatmul,
    "__array_function__": _call_numpy_function,
    "reshape": _reshape,
    "transpose": _transpose,
    "astype": _astype,
    "tolist": _tolist,
    "item": _item,
    "copy": copy,
    "nonzero": nonzero,
    "dot": products.dot,
    "trace": products.trace,
    "round": elementwise.round,
    "clip": elementwise.clip,
    "conj": elementwise.conj,
    **{
        name: getattr(manipulation, name)
        for name in (
            *("argsort", "diagonal", "flatten", "ravel", "repeat", "squeeze", "swapaxes", "take"),
        )
    },
    **{
        name: getattr(reductions, name)
        for name in (
            *("all", "any", "argmax", "argmin", "cumprod", "cumsum", "max", "mean", "min", "prod"),
            *("ptp", "std", "sum", "var"),
        )
    },
}
_PROPERTIES: dict[str, Callable[[Tensor], Any]] = {
    "T": manipulation.transpose,
    "data": lambda self: self,
    "real": elementwise.real,
    "imag": elementwise.imag,
    "size": inspection.size,
    "itemsize": lambda self: self.dtype.size,
    "nbytes": lambda self: self.dtype.size * inspection.size(self),
}

ndarray_attributes.update(
    {name: functools.partial(functools.partial, method) for name, method in _METHODS.items()},
    **_PROPERTIES,
)


def experimental_enable_numpy_behavior(
    prefer_float32: bool = False, dtype_conversion_mode: str = "legacy"
) -> None:
    """Make tensors behave as NumPy's arrays, permanently and in the entire process.

    Operators convert operands of different dtypes to a common one. Indices may contain masks and
    arrays of
    integers. Tensors get NumPy's methods (`T`, `reshape`, `astype`, `clip`, `sum`, ...). In the modes
    'all' and 'safe', functions such as `tf.add` convert their operands, too.

    Args:
      prefer_float32: Whether `asarray` converts Python floats to float32 instead of float64.
      dtype_conversion_mode: 'legacy' for NumPy's promotion, 'all' for JAX's lattice, 'safe' for
        that lattice without conversions that may lose precision, 'off' for TensorFlow's strict
        operators.

    Raises:
      ValueError: If the mode is unknown.

    Example:
      >>> callable(tnp.experimental_enable_numpy_behavior)
      True
    """
    promotion.set_mode(dtype_conversion_mode)
    DefaultDtypes.floating = np.dtype(np.float32 if prefer_float32 else np.float64)
    NumpyRules.promote = (
        None if dtype_conversion_mode == "off" else functools.partial(promote, weak_lists=True)
    )
    NumpyRules.has_lattice = dtype_conversion_mode in ("all", "safe")
    NumpyRules.indexing = True
    for name, method in _METHODS.items():
        setattr(Tensor, name, method)
    for name, getter in _PROPERTIES.items():
        setattr(Tensor, name, property(getter))
