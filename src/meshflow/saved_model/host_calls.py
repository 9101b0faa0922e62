"""What saved functions may do with strings and tables: by which function here, and by which op in TensorFlow.

A function that is saved runs on devices where XLA has what it does, and on the host where it has not. Each call on the
host is one of this table's.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.values.dtypes import as_dtype, bool_, int32, int64, string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.io.parsing import parse_feature
from meshflow.ops import array, files, hashing, strings, unicode
from meshflow.ops import math as _math
from meshflow.ops.array import gather_scatter, ordering
from meshflow.ops.image import boxes
from meshflow.saved_model.programs import size_of_values
from meshflow.saved_model.text import after

__all__ = ["HOST_CALLS", "HostCall", "Value", "item", "looked_up", "stepped"]


@dataclasses.dataclass(frozen=True)
class Value:
    """A value of a plan.

    Attributes:
      number: which.
    """

    number: int


@dataclasses.dataclass(frozen=True)
class HostCall:
    """A function that runs on the host.

    Attributes:
      function: the function.
      parameters: names of what counts after its first argument.
      dtype: of the result; None where it is that of the first argument.
      like: gives an array as large as the result for arrays as large as the arguments; default: as the first argument.
    """

    function: Callable[..., Any]
    parameters: tuple[str, ...] = ()
    dtype: Any = None
    like: Callable[..., Any] | None = None

    def bound(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """The first argument of a call, and the others by name.

        Args:
          function: the function or the op that it ends in, with the same names of parameters.
          args: the call's arguments.
          kwargs: its keyword arguments.
        """
        own = inspect.signature(self.function).parameters
        found = inspect.signature(function).bind(*args, **kwargs)
        found.apply_defaults()
        first, *_ = found.arguments.values()
        given = found.arguments
        return first, {k: given[k] if k in given else own[k].default for k in self.parameters}

    def spec(self, first: Any, more: Mapping[str, Any], own: Any = None) -> TensorSpec:
        """The result's spec, for arrays of integers in the place of strings.

        Args:
          first: the first argument.
          more: the other arguments by name.
          own: the first argument's dtype, where it may be of numbers.
        """
        found = self.like(first, **more) if self.like is not None else _joined_shape(first)
        kind = self.dtype(more) if callable(self.dtype) else self.dtype
        return TensorSpec(found.shape, (own or string) if kind is None else as_dtype(kind))


def _joined_shape(values: Any) -> Any:
    """Of several arrays: as large as what they give element by element."""
    if not isinstance(values, (list, tuple)):
        return values
    found = values[0]
    for value in values[1:]:
        found = found + value
    return found


def item(value: Any, key: Any) -> Any:
    """`value[key]`."""
    return value[key]


def looked_up(keys: Any, table: Any, default: Any = None) -> Any:
    """What a table has for keys."""
    return table.lookup(keys) if default is None else table.lookup(keys, default)


def inserted(keys: Any, table: Any, values: Any) -> Any:
    """Puts keys with their values into a table; gives how many it has."""
    table.insert(keys, values)
    return table.size()


def removed(keys: Any, table: Any) -> Any:
    """Takes keys out of a table; gives how many it has."""
    table.remove(keys)
    return table.size()


def sized(table: Any) -> Any:
    """How many keys a table has."""
    return table.size()


def stepped(texts: Any, steps: Any, dtype: Any = "int64") -> Any:
    """What steps of layers of strings give (`saved_model/text.py`)."""
    if context.recording is not None and context.recording.takes((texts,), {}):
        return context.recording.call(stepped, (texts, steps, dtype), {})
    return Tensor(after(np.asarray(texts._value, object), steps))


def _stepped_shape(first: Any, steps: Any, **_: Any) -> Any:
    shape = first.shape
    for name, *more in steps:
        if name == "flat":
            shape = shape[:-1]
        elif name == "pad":
            shape = (*shape, size_of_values() if more[0] is None else more[0])
    return jax.ShapeDtypeStruct(shape, np.int32)


def _found(*more: int) -> Callable[..., Any]:
    """As many as values say, each of some sizes."""
    return lambda first, **_: jax.ShapeDtypeStruct((size_of_values(), *more), np.int32)


def _places(first: Any) -> Any:
    return jax.ShapeDtypeStruct((size_of_values(), first.ndim), np.int64)


def _scalar(*_: Any, **__: Any) -> Any:
    return jnp.zeros((), np.int32)


def _of_table(more: Mapping[str, Any]) -> Any:
    return more["table"].value_dtype


def _out_type(more: Mapping[str, Any]) -> Any:
    return more["out_type"]


def _of_places(more: Mapping[str, Any]) -> Any:
    return more["out_idx"]


def _numbers(first: Any) -> Any:
    """What stands for strings as tensors of ops."""
    if isinstance(first, (list, tuple)):
        return [Tensor(v) for v in first]
    return Tensor(first)


def _like(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda first, **more: function(_numbers(first), **more)._value


def _without_axis(first: Any, axis: Any = None, keepdims: bool = False, **_: Any) -> Any:
    return jnp.sum(
        first, axis=axis if axis is None else tuple(np.atleast_1d(axis).tolist()), keepdims=keepdims
    )


HOST_CALLS: dict[str, HostCall] = {
    "lower": HostCall(strings.lower, ("encoding",)),
    "upper": HostCall(strings.upper, ("encoding",)),
    "strip": HostCall(strings.strip),
    "length": HostCall(strings.length, ("unit",), int32),
    "substr": HostCall(strings.substr, ("pos", "len", "unit")),
    "regex_replace": HostCall(strings.regex_replace, ("pattern", "rewrite", "replace_global")),
    "regex_full_match": HostCall(strings.regex_full_match, ("pattern",), bool_),
    "encode_base64": HostCall(files.encode_base64, ("pad",)),
    "decode_base64": HostCall(files.decode_base64),
    "unicode_transcode": HostCall(
        unicode.unicode_transcode,
        ("input_encoding", "output_encoding", "errors", "replacement_char")
        + ("replace_control_characters",),
    ),
    "to_hash_bucket_fast": HostCall(hashing.to_hash_bucket_fast, ("num_buckets",), int64),
    "to_hash_bucket": HostCall(hashing.to_hash_bucket, ("num_buckets",), int64),
    "to_hash_bucket_strong": HostCall(hashing.to_hash_bucket_strong, ("num_buckets", "key"), int64),
    "tile": HostCall(array.tile, ("multiples",), like=_like(array.tile)),
    "true_places": HostCall(gather_scatter.true_places, (), int64, _places),
    "unique_values": HostCall(ordering.unique_values, (), like=_found()),
    "unique_places": HostCall(ordering.unique_places, ("out_idx",), _of_places),
    "unique_counts": HostCall(
        ordering.unique_counts,
        ("values", "out_idx"),
        _of_places,
        lambda first, values, out_idx: values,
    ),
    "non_max_suppression": HostCall(
        boxes.non_max_suppression,
        ("scores", "max_output_size", "iou_threshold", "score_threshold"),
        int32,
        _found(),
    ),
    "to_number": HostCall(strings.to_number, ("out_type",), _out_type),
    "as_string": HostCall(
        strings.as_string,
        ("precision", "scientific", "shortest", "width", "fill"),
        string,
    ),
    "join": HostCall(strings.join, ("separator",)),
    "reduce_join": HostCall(
        strings.reduce_join,
        ("axis", "keepdims", "separator"),
        like=_without_axis,
    ),
    "feature": HostCall(
        parse_feature,
        ("feature", "shape", "dtype", "default"),
        lambda more: more["dtype"],
        lambda first, feature, shape, dtype, default: jnp.zeros((*first.shape, *shape)),
    ),
    "reshape": HostCall(array.reshape, ("shape",), like=_like(array.reshape)),
    "expand_dims": HostCall(array.expand_dims, ("axis",), like=_like(array.expand_dims)),
    "squeeze": HostCall(array.squeeze, ("axis",), like=_like(array.squeeze)),
    "concat": HostCall(array.concat, ("axis",), like=_like(array.concat)),
    "stack": HostCall(array.stack, ("axis",), like=_like(array.stack)),
    "gather": HostCall(
        array.gather,
        ("indices", "axis", "batch_dims"),
        like=lambda first, indices, axis, batch_dims: (
            array.gather(
                Tensor(first), Tensor(jnp.asarray(indices)), axis=axis, batch_dims=batch_dims
            )._value
        ),
    ),
    "where": HostCall(
        array.where,
        ("x", "y"),
        string,
        lambda first, x, y: jnp.where(first, x, y),
    ),
    "equal": HostCall(_math.equal, ("y",), bool_, lambda first, y: first == y),
    "not_equal": HostCall(_math.not_equal, ("y",), bool_, lambda first, y: first != y),
    "item": HostCall(item, ("key",), like=lambda first, key: first[key]),
    "lookup": HostCall(looked_up, ("table", "default"), _of_table),
    "insert": HostCall(inserted, ("table", "values"), int64, _scalar),
    "remove": HostCall(removed, ("table",), int64, _scalar),
    "size": HostCall(sized, (), int64, _scalar),
    "steps": HostCall(stepped, ("steps", "dtype"), lambda more: more["dtype"], _stepped_shape),
}
