"""Calling Python from a compiled function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from meshflow.core import nest
from meshflow.core.context import context
from meshflow.core.convert import convert_to_tensor
from meshflow.core.dispatch import Op, apply
from meshflow.core.dtypes import as_dtype
from meshflow.core.specs import TensorSpec
from meshflow.core.tensor import Tensor

__all__ = ["numpy_function", "py_function"]


def _specs(Tout: Any, name: str) -> list[TensorSpec]:
    specs = []
    for item in Tout if isinstance(Tout, (list, tuple)) else [Tout]:
        if isinstance(item, TensorSpec):
            if not item.shape.is_fully_defined():
                raise ValueError(f"{name}: XLA needs the full shape of each result, got {item}.")
            specs.append(item)
        else:
            # TensorFlow learns the shape when the function runs; a compiled program needs it before.
            specs.append(TensorSpec([], as_dtype(item)))
    return specs


def _call(
    name: str, func: Callable[..., Any], inp: Any, Tout: Any, wrap: Callable[[Any], Any], pure: bool
) -> Any:
    if context.trace is None:
        results = func(
            *[
                wrap(np.asarray(convert_to_tensor(i).numpy()))
                if wrap is not _identity_tensor
                else convert_to_tensor(i)
                for i in inp
            ]
        )
        return _checked(name, results, Tout)
    specs = _specs(Tout, name)
    shapes = [jax.ShapeDtypeStruct(tuple(s.shape.as_list()), s.dtype.dtype) for s in specs]

    def host(*arrays: Any) -> Any:
        results = func(*[wrap(np.asarray(a)) for a in arrays])
        flat = [np.asarray(convert_to_tensor(r).numpy()) for r in nest.flatten(results)]
        for got, spec in zip(flat, specs, strict=True):
            if got.shape != tuple(spec.shape.as_list()):
                raise ValueError(
                    f"{name}: the Python function returned a result of shape {got.shape} where {tuple(spec.shape.as_list())} was "
                    "declared. In a compiled function give the shapes: Tout=tf.TensorSpec(shape, dtype)."
                )
        return [g.astype(s.dtype.dtype) for g, s in zip(flat, specs, strict=True)]

    callback = jax.pure_callback if pure else jax.experimental.io_callback
    op = Op(name, lambda operands, _: callback(host, shapes, *operands[0]), differentiable=False)
    outputs = list(apply(op, ([convert_to_tensor(i) for i in inp],)))
    return outputs if isinstance(Tout, (list, tuple)) else outputs[0]


def _identity_tensor(array: Any) -> Any:
    return Tensor(array)


def _checked(name: str, results: Any, Tout: Any) -> Any:
    if Tout is None or (isinstance(Tout, (list, tuple)) and not Tout):
        return []
    many = isinstance(Tout, (list, tuple))
    kinds = [
        i.dtype if isinstance(i, TensorSpec) else as_dtype(i) for i in (Tout if many else [Tout])
    ]
    flat = list(results) if many else [results]
    tensors = [convert_to_tensor(r, dtype_hint=k) for r, k in zip(flat, kinds, strict=True)]
    for tensor, kind in zip(tensors, kinds, strict=True):
        if tensor.dtype is not kind:
            raise ValueError(
                f"{name}: the Python function returned {tensor.dtype.name}, expected {kind.name}."
            )
    return tensors if many else tensors[0]


def py_function(func: Callable[..., Any], inp: Any, Tout: Any, name: str | None = None) -> Any:
    """Calls a Python function of tensors, also from a compiled function.

    Eagerly the call is plain Python and differentiable. In a compiled function the results' shapes
    must be declared; a dtype alone means a scalar.

    Args:
      func: takes tensors, returns a tensor or list of tensors.
      inp: the arguments.
      Tout: dtype or `TensorSpec` of the result, or a list of them.
      name: ignored.

    Returns:
      A tensor, or a list when Tout is one.

    Raises:
      ValueError: when a result has another shape or dtype than declared.
    """
    return _call("py_function", func, inp, Tout, _identity_tensor, pure=False)


def numpy_function(
    func: Callable[..., Any], inp: Any, Tout: Any, stateful: bool = True, name: str | None = None
) -> Any:
    """Calls a Python function of NumPy arrays; otherwise like `py_function`, without gradients.

    Args:
      func: takes NumPy arrays, returns an array or list of arrays.
      inp: the arguments.
      Tout: dtype or `TensorSpec` of the result, or a list of them.
      stateful: False lets the compiler drop or repeat calls.
      name: ignored.
    """
    return _call("numpy_function", func, inp, Tout, lambda a: a, pure=not stateful)
