"""`tf.print`, and tensors as text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.tracing.host_callbacks import callbacks_are_ordered, keeping_errors
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, is_tensor

__all__ = ["print", "value_text"]


def value_text(value: Any, summarize: int = 3) -> str:
    """An array as TensorFlow prints it: `[[1 2.5]\\n [3 4]]`.

    Args:
      value: an array or number.
      summarize: how many elements at each end of a dimension are shown; -1 for all.

    Returns:
      The text.
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
    # As few digits as give the number back: 6 (15) if they do, else 9 (17).
    short, full = ("%.15g", "%.17g") if value.dtype == np.float64 else ("%.6g", "%.9g")
    text = short % float(value)
    return text if value.dtype.type(float(text)) == value else full % float(value)


class _Text(str):
    """Text that prints as it is inside containers."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def print(
    *inputs: Any,
    output_stream: Any = None,
    summarize: int = 3,
    sep: str = " ",
    end: str = "\n",
    name: str | None = None,
) -> None:
    """Prints values, in a compiled function every time it runs.

    Args:
      *inputs: tensors, nested structures of them, and other objects.
      output_stream: `sys.stderr` (default), `sys.stdout`, another object with `write`, or a path as
        'file://...'.
      summarize: how many elements at each end of a dimension are shown; -1 for all.
      sep: between the inputs.
      end: at the end.
      name: ignored.

    Raises:
      ValueError: for another kind of stream.

    Example:
      >>> import sys
      >>> import meshflow as tf
      >>> tf.print("values:", tf.range(10), output_stream=sys.stdout)
      values: [0 1 2 ... 7 8 9]
    """
    to_file = isinstance(output_stream, str) and output_stream.startswith("file://")
    if output_stream is not None and not to_file and not hasattr(output_stream, "write"):
        raise ValueError(
            f"tf.print: output_stream must be sys.stderr, sys.stdout or 'file://path', got {output_stream!r}."
        )
    leaves = [v for item in inputs for v in nest.flatten(item) if is_tensor(v)]
    tensors = [convert_to_tensor(v) for v in leaves]
    tracing = context.trace is not None
    known = [_known(t) if tracing else np.asarray(t._value) for t in tensors]

    def write(*arrays: Any) -> None:
        unknown = iter(arrays)
        values = iter([next(unknown) if v is None else v for v in known])

        def shown(leaf: Any) -> Any:
            return _Text(value_text(next(values), summarize)) if is_tensor(leaf) else leaf

        filled = [nest.map_structure(shown, item) for item in inputs]
        text = sep.join(str(f) if isinstance(f, str) else repr(f) for f in filled) + end
        if to_file:
            with open(output_stream.removeprefix("file://"), "a") as file:
                file.write(text)
        else:
            stream = output_stream or sys.stderr
            stream.write(text)
            stream.flush()

    if tracing:
        values = [
            context.trace.value_of(t)  # type: ignore[union-attr]
            for t, v in zip(tensors, known, strict=True)
            if v is None
        ]
        jax.debug.callback(keeping_errors(write), *values, ordered=callbacks_are_ordered())
    else:
        write()


def _known(tensor: Tensor) -> Any:
    """The value of a constant while tracing; None for what a run gives."""
    return tensor._value if type(tensor._value) is np.ndarray else None
