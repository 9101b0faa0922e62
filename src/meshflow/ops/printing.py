"""`tf.print`, and the text format of arrays."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import jax
import numpy as np

from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.runtime.context import context
from meshflow.core.tracing.host_callbacks import are_callbacks_ordered, store_errors
from meshflow.core.values import nest
from meshflow.core.values.composite import split_value
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, is_tensor
from meshflow.environment.types import ArrayLike, PyTree


def format_value(value: ArrayLike, summarize: int = 3) -> str:
    r"""Format an array like TensorFlow: `[[1 2.5]\\n [3 4]]`.

    Args:
      value: An array or number.
      summarize: Number of elements to show at each end of a dimension; -1 for all.
    """
    return _format_block(np.asarray(value), summarize, 0)


def _format_block(array: Any, summarize: int, depth: int) -> str:
    if not isinstance(array, np.ndarray) or not array.ndim:
        return _format_element(array[()] if isinstance(array, np.ndarray) else array)
    parts = [_format_block(a, summarize, depth + 1) for a in _iter_shown(array, summarize)]
    if 0 <= 2 * summarize < len(array):
        parts.insert(summarize, "...")
    separator = " " if array.ndim == 1 else "\n" * (array.ndim - 1) + " " * (depth + 1)
    return f"[{separator.join(parts)}]"


def _iter_shown(array: np.ndarray, summarize: int) -> Iterator[Any]:
    if 0 <= 2 * summarize < len(array):
        yield from array[:summarize]
        yield from array[len(array) - summarize :]
    else:
        yield from array


def _format_element(value: Any) -> str:
    if isinstance(value, bytes):
        return '"' + value.decode(errors="backslashreplace") + '"'
    value = np.asarray(value)[()]
    if value.dtype.kind == "b":
        return str(int(value))
    if value.dtype.kind in "iu":
        return str(value)
    if value.dtype.kind == "c":
        return f"({_format_element(value.real)},{_format_element(value.imag)})"
    # The format uses 6 (15) digits if they represent the number exactly, and otherwise 9 (17).
    short, full = ("%.15g", "%.17g") if value.dtype == np.float64 else ("%.6g", "%.9g")
    text = short % float(value)
    return text if value.dtype.type(float(text)) == value else full % float(value)


def format_rows(flat: np.ndarray, splits: Sequence[np.ndarray], summarize: int) -> str:
    """Format ragged rows; strings are quoted, and numbers have 6 decimals."""

    def format_item(item: object) -> str:
        if isinstance(item, list):
            texts = [format_item(part) for part in item]
            if 0 <= summarize < len(texts) / 2:
                texts = [*texts[:summarize], "...", *texts[len(texts) - summarize :]]
            return f"[{', '.join(texts)}]"
        if isinstance(item, bytes):
            return repr(item.decode(errors="replace"))
        return f"{item:.6f}" if isinstance(item, float) else str(item).lower()

    rows: list[object] = flat.tolist()
    for split in reversed(splits):
        rows = [rows[a:b] for a, b in itertools.pairwise(split.tolist())]
    return format_item(rows)


def _is_ragged(value: object) -> bool:
    return hasattr(value, "nested_row_splits")


def _is_sparse(value: object) -> bool:
    return hasattr(value, "dense_shape") and hasattr(value, "indices")


def _split_leaf(value: Any) -> list[Any]:
    """Return the tensors that are printed for a value."""
    if _is_ragged(value):
        return list(split_value(value))
    if _is_sparse(value):
        return [value.indices, value.values, value.dense_shape]
    return [value]


class _UnquotedText(str):
    """String that containers print without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@record_in_graph
def print(
    *inputs: PyTree,
    output_stream: TextIO | str | Callable[..., Any] | None = None,
    summarize: int = 3,
    sep: str = " ",
    end: str = "\n",
    name: str | None = None,
) -> None:
    """Print values; a compiled function prints them in every call.

    Args:
      *inputs: Tensors, nested structures of them, and other objects.
      output_stream: `sys.stderr` (default), `sys.stdout`, another object with `write`, a path
        'file://...', or a method of a logger, such as `tf.compat.v1.logging.info`.
      summarize: Number of elements to show at each end of a dimension; -1 for all.
      sep: Separator of the inputs.
      end: Text at the end.
      name: Ignored.

    Raises:
      ValueError: For another type of stream.

    Example:
      >>> import sys
      >>> tf.print("values:", tf.range(10), output_stream=sys.stdout)
      values: [0 1 2 ... 7 8 9]
    """
    path = None
    if isinstance(output_stream, str) and output_stream.startswith("file://"):
        path = output_stream.removeprefix("file://")
    is_method = isinstance(getattr(output_stream, "__self__", None), logging.Logger)
    log: Any = output_stream if is_method else None
    is_stream = hasattr(output_stream, "write")
    if output_stream is not None and path is None and log is None and not is_stream:
        raise ValueError(
            f"tf.print: output_stream must be sys.stderr, sys.stdout or 'file://path', got {output_stream!r}."
        )
    leaves = [v for item in inputs for v in nest.flatten(item) if is_tensor(v)]
    parts = [t for v in leaves for t in _split_leaf(v)]
    tensors = [convert_to_tensor(v) for v in parts]
    tracing = context.trace is not None
    constants = [_get_constant(t) if tracing else np.asarray(t.array) for t in tensors]

    def write(*arrays: np.ndarray) -> None:
        runtime_arrays = iter(arrays)
        values = iter([next(runtime_arrays) if v is None else v for v in constants])

        def format_leaf(leaf: Any) -> Any:
            if _is_ragged(leaf):
                flat, *splits = [next(values) for _ in split_value(leaf)]
                return _UnquotedText(format_rows(flat, splits, summarize))
            if _is_sparse(leaf):
                texts = [format_value(next(values), summarize) for _ in _split_leaf(leaf)]
                return _UnquotedText(
                    "'SparseTensor(indices={}, values={}, shape={})'".format(*texts)
                )
            return _UnquotedText(format_value(next(values), summarize)) if is_tensor(leaf) else leaf

        formatted = [nest.map_structure(format_leaf, item) for item in inputs]
        text = sep.join(str(f) if isinstance(f, str) else repr(f) for f in formatted) + end
        if path is not None:
            with open(path, "a") as file:
                file.write(text)
        elif log is not None:
            log("%s", text.removesuffix("\n"))
        else:
            stream: Any = output_stream or sys.stderr
            stream.write(text)
            stream.flush()

    if tracing:
        values = [
            context.trace.lookup(t)  # type: ignore[union-attr]
            for t, v in zip(tensors, constants, strict=True)
            if v is None
        ]
        jax.debug.callback(store_errors(write), *values, ordered=are_callbacks_ordered())
    else:
        write()


def _get_constant(tensor: Tensor) -> np.ndarray | None:
    """Return the value of a constant while tracing; None if it is only known at run time."""
    return tensor.array if type(tensor.array) is np.ndarray else None
