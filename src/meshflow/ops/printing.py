"""`tf.print`, and the text format of arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, TextIO

import jax
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.tracing.host_callbacks import callbacks_are_ordered, keeping_errors
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, is_tensor
from meshflow.environment.types import ArrayLike, PyTree

__all__ = ["print", "value_text"]


def value_text(value: ArrayLike, summarize: int = 3) -> str:
    r"""Format an array like TensorFlow: `[[1 2.5]\\n [3 4]]`.

    Args:
      value: An array or number.
      summarize: Number of elements to show at each end of a dimension; -1 for all.
    """
    return _block(np.asarray(value), summarize, 0)


def _block(array: Any, summarize: int, depth: int) -> str:
    if not isinstance(array, np.ndarray) or not array.ndim:
        return _element(array[()] if isinstance(array, np.ndarray) else array)
    parts = [_block(a, summarize, depth + 1) for a in _ends(array, summarize)]
    if 0 <= 2 * summarize < len(array):
        parts.insert(summarize, "...")
    separator = " " if array.ndim == 1 else "\n" * (array.ndim - 1) + " " * (depth + 1)
    return f"[{separator.join(parts)}]"


def _ends(array: np.ndarray, summarize: int) -> Iterator[Any]:
    if 0 <= 2 * summarize < len(array):
        yield from array[:summarize]
        yield from array[len(array) - summarize :]
    else:
        yield from array


def _element(value: Any) -> str:
    if isinstance(value, bytes):
        return '"' + value.decode(errors="backslashreplace") + '"'
    value = np.asarray(value)[()]
    if value.dtype.kind == "b":
        return str(int(value))
    if value.dtype.kind in "iu":
        return str(value)
    if value.dtype.kind == "c":
        return f"({_element(value.real)},{_element(value.imag)})"
    # The format uses 6 (15) digits if they represent the number exactly, and otherwise 9 (17).
    short, full = ("%.15g", "%.17g") if value.dtype == np.float64 else ("%.6g", "%.9g")
    text = short % float(value)
    return text if value.dtype.type(float(text)) == value else full % float(value)


class _Text(str):
    """String that containers print without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def print(
    *inputs: PyTree,
    output_stream: TextIO | str | None = None,
    summarize: int = 3,
    sep: str = " ",
    end: str = "\n",
    name: str | None = None,
) -> None:
    """Print values; a compiled function prints them in every call.

    Args:
      *inputs: Tensors, nested structures of them, and other objects.
      output_stream: `sys.stderr` (default), `sys.stdout`, another object with `write`, or a path
        'file://...'.
      summarize: Number of elements to show at each end of a dimension; -1 for all.
      sep: Separator of the inputs.
      end: Text at the end.
      name: Ignored.

    Raises:
      ValueError: For another type of stream.

    Example:
      >>> import sys
      >>> import meshflow as tf
      >>> tf.print("values:", tf.range(10), output_stream=sys.stdout)
      values: [0 1 2 ... 7 8 9]
    """
    path = None
    if isinstance(output_stream, str) and output_stream.startswith("file://"):
        path = output_stream.removeprefix("file://")
    if output_stream is not None and path is None and not hasattr(output_stream, "write"):
        raise ValueError(
            f"tf.print: output_stream must be sys.stderr, sys.stdout or 'file://path', got {output_stream!r}."
        )
    leaves = [v for item in inputs for v in nest.flatten(item) if is_tensor(v)]
    tensors = [convert_to_tensor(v) for v in leaves]
    tracing = context.trace is not None
    constants = [_known(t) if tracing else np.asarray(t.array) for t in tensors]

    def write(*arrays: np.ndarray) -> None:
        runtime_arrays = iter(arrays)
        values = iter([next(runtime_arrays) if v is None else v for v in constants])

        def format_leaf(leaf: Any) -> Any:
            return _Text(value_text(next(values), summarize)) if is_tensor(leaf) else leaf

        formatted = [nest.map_structure(format_leaf, item) for item in inputs]
        text = sep.join(str(f) if isinstance(f, str) else repr(f) for f in formatted) + end
        if path is not None:
            with open(path, "a") as file:
                file.write(text)
        else:
            stream: Any = output_stream or sys.stderr
            stream.write(text)
            stream.flush()

    if tracing:
        values = [
            context.trace.value_of(t)  # type: ignore[union-attr]
            for t, v in zip(tensors, constants, strict=True)
            if v is None
        ]
        jax.debug.callback(keeping_errors(write), *values, ordered=callbacks_are_ordered())
    else:
        write()


def _known(tensor: Tensor) -> np.ndarray | None:
    """Return the value of a constant while tracing; None if it is only known at run time."""
    return tensor.array if type(tensor.array) is np.ndarray else None
