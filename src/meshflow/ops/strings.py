"""String ops. XLA has no strings: these work on values known on the host."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.convert import convert_to_tensor
from meshflow.core.dtypes import as_dtype, float32
from meshflow.core.tensor import Tensor

__all__ = [
    "as_string",
    "format",
    "join",
    "length",
    "lower",
    "regex_full_match",
    "regex_replace",
    "strip",
    "substr",
    "to_number",
    "upper",
]


def _map(function: Callable[[bytes], Any], input: Any, dtype: Any = object) -> Tensor:
    array = convert_to_tensor(input)._concrete("a string (string ops need known values)")
    result = np.empty(array.shape, object)
    flat = [function(v) for v in array.reshape(-1)]
    result.reshape(-1)[:] = flat
    return Tensor(result if dtype is object else result.astype(dtype))


def lower(input: Any, encoding: str = "", name: str | None = None) -> Tensor:
    """Lower-case letters."""
    return _map(lambda s: s.lower(), input)


def upper(input: Any, encoding: str = "", name: str | None = None) -> Tensor:
    """Upper-case letters."""
    return _map(lambda s: s.upper(), input)


def strip(input: Any, name: str | None = None) -> Tensor:
    """Without white space at the ends."""
    return _map(lambda s: s.strip(), input)


def length(input: Any, unit: str = "BYTE", name: str | None = None) -> Tensor:
    """Lengths in bytes or (unit 'UTF8_CHAR') characters, int32."""
    return _map(lambda s: len(s) if unit == "BYTE" else len(s.decode()), input, np.int32)


def substr(input: Any, pos: Any, len: Any, unit: str = "BYTE", name: str | None = None) -> Tensor:
    """Parts of strings, from a position and of a length."""
    start, count = int(convert_to_tensor(pos)), int(convert_to_tensor(len))
    if unit == "BYTE":
        return _map(lambda s: s[start:][:count], input)
    return _map(lambda s: s.decode()[start:][:count].encode(), input)


def regex_replace(
    input: Any, pattern: str, rewrite: str, replace_global: bool = True, name: str | None = None
) -> Tensor:
    """Matches of a pattern replaced."""
    return _map(
        lambda s: re.sub(pattern, rewrite, s.decode(), count=0 if replace_global else 1).encode(),
        input,
    )


def regex_full_match(input: Any, pattern: str, name: str | None = None) -> Tensor:
    """Whether whole strings match a pattern."""
    return _map(lambda s: re.fullmatch(pattern, s.decode()) is not None, input, np.bool_)


def to_number(input: Any, out_type: Any = float32, name: str | None = None) -> Tensor:
    """Numbers from text."""
    kind = as_dtype(out_type)
    return _map(lambda s: int(s) if kind.is_integer else float(s), input, kind.dtype)


def as_string(input: Any, precision: int = -1, name: str | None = None) -> Tensor:
    """Text of numbers."""
    array = convert_to_tensor(input)._concrete("a number to be printed")

    def text(v: Any) -> bytes:
        if array.dtype.kind == "f":
            return (f"{v:.{precision}f}" if precision >= 0 else f"{v:f}").encode()
        return str(v).lower().encode() if array.dtype.kind == "b" else str(v).encode()

    result = np.empty(array.shape, object)
    result.reshape(-1)[:] = [text(v) for v in array.reshape(-1)]
    return Tensor(result)


def join(inputs: Any, separator: str = "", name: str | None = None) -> Tensor:
    """Strings of several tensors joined, element by element."""
    arrays = np.broadcast_arrays(*[convert_to_tensor(i)._concrete("a string") for i in inputs])
    result = np.empty(arrays[0].shape, object)
    result.reshape(-1)[:] = [
        separator.encode().join(parts)
        for parts in zip(*[a.reshape(-1) for a in arrays], strict=True)
    ]
    return Tensor(result)


def format(
    template: str, inputs: Any, placeholder: str = "{}", summarize: int = 3, name: str | None = None
) -> Tensor:
    """A template with tensors in place of its placeholders."""
    from meshflow.ops.debugging import _value_text

    parts = template.split(placeholder)
    values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    if len(parts) - 1 != len(values):
        raise ValueError(
            f"{len(parts) - 1} placeholder(s) in template does not match {len(values)} tensor(s) provided as input"
        )
    texts = [_value_text(convert_to_tensor(v)._concrete("text"), summarize) for v in values]
    return convert_to_tensor("".join(p + t for p, t in zip(parts, [*texts, ""], strict=True)))
