"""Host functions that saved functions may call for strings and tables.

A saved function runs as a program where XLA has its ops, and calls the host where it does not. Each
host call must be one
of the functions in `HOST_CALLS`, for which TensorFlow has an equivalent op.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.dtypes import (
    DType,
    DTypeLike,
    as_dtype,
    bool_,
    int8,
    int32,
    int64,
    string,
)
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import compute_on_host, host_function
from meshflow.io.parsing import parse_feature
from meshflow.io.tensors import serialize_tensor
from meshflow.lookup.mutable_tables import MutableHashTable
from meshflow.lookup.static_tables import StaticHashTable
from meshflow.lookup.table import Table
from meshflow.ops import array, debugging, files, hashing, strings, unicode
from meshflow.ops import math as _math
from meshflow.ops.array import gather_scatter, ordering
from meshflow.ops.image import boxes
from meshflow.saved_model.host_steps.text_steps import Steps, apply_steps
from meshflow.saved_model.programs.stablehlo import make_data_dependent_size


@dataclasses.dataclass(frozen=True)
class PlanValue:
    """Reference to a value of a plan.

    Attributes:
      index: Index of the value.
    """

    index: int


@dataclasses.dataclass(frozen=True)
class HostCall:
    """Function that runs on the host.

    Attributes:
      function: The function.
      parameters: Names of the relevant parameters after the first one.
      dtype: Dtype of the result, or a function of the other arguments that returns it. None for the
        dtype of the first argument.
      make_example: Function that returns an array with the shape of the result, given example
        arrays of the arguments. Default:
        the first argument.
    """

    function: Callable[..., Any]
    parameters: tuple[str, ...] = ()
    dtype: DTypeLike | Callable[[Mapping[str, Any]], DTypeLike] | None = None
    make_example: Callable[..., Any] | None = None

    def bind_arguments(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Return the first argument of a call, and the other arguments by name.

        Args:
          function: The function, or the op that it calls, with the same parameter names.
          args: Arguments of the call.
          kwargs: Keyword arguments of the call.
        """
        parameters = inspect.signature(self.function).parameters
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        first, *_ = bound.arguments.values()
        explicit = bound.arguments
        return first, {
            k: explicit[k] if k in explicit else parameters[k].default for k in self.parameters
        }

    def infer_spec(
        self, first: Any, more: Mapping[str, Any], own_dtype: DTypeLike | None = None
    ) -> TensorSpec:
        """Infer the spec of the result from example arrays, which have integers in place of strings.

        Args:
          first: Example of the first argument.
          more: Examples of the other arguments, by name.
          own_dtype: Dtype of the first argument, for functions that also take numbers.
        """
        if self.make_example is not None:
            example = self.make_example(first, **more)
        else:
            example = _broadcast_examples(first)
        dtype = self.dtype(more) if callable(self.dtype) else self.dtype
        if dtype is None:
            return TensorSpec(example.shape, own_dtype or string)
        return TensorSpec(example.shape, as_dtype(dtype))


def _broadcast_examples(values: Any) -> Any:
    """Return an array with the broadcast shape of one or several arrays."""
    if not isinstance(values, (list, tuple)):
        return values
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def get_item(value: Any, key: Any) -> Any:
    """Return `value[key]`."""
    return value[key]


def look_up(keys: TensorLike, table: Table, default: TensorLike | None = None) -> Tensor:
    """Look up keys in a table."""
    return table.lookup(keys) if default is None else table.lookup(keys, default)


def insert_into_table(keys: TensorLike, table: MutableHashTable, values: TensorLike) -> Tensor:
    """Insert keys with their values into a table and return its size."""
    table.insert(keys, values)
    return table.size()


def remove_from_table(keys: TensorLike, table: MutableHashTable) -> Tensor:
    """Remove keys from a table and return its size."""
    table.remove(keys)
    return table.size()


def get_table_size(table: StaticHashTable | MutableHashTable) -> Tensor:
    """Return the number of keys in a table."""
    return table.size()


def run_text_steps(texts: Tensor, steps: Steps, dtype: DTypeLike = "int64") -> Tensor:
    """Run text steps (`text_steps.py`) on strings."""
    if context.host_recorder is not None and context.host_recorder.should_record((texts,), {}):
        return context.host_recorder.call(run_text_steps, (texts, steps, dtype), {})
    return Tensor(apply_steps(np.asarray(texts.array, object), steps))


def _make_steps_example(first: Any, steps: Steps, **_: Any) -> jax.ShapeDtypeStruct:
    shape = first.shape
    for name, *more in steps:
        if name == "flat":
            shape = shape[:-1]
        elif name == "pad":
            shape = (*shape, make_data_dependent_size() if more[0] is None else more[0])
    return jax.ShapeDtypeStruct(shape, np.int32)


_UNICODE_OPTIONS = ("input_encoding", "errors", "replacement_char")


def _make_unknown_size_example(*sizes: int) -> Callable[..., jax.ShapeDtypeStruct]:
    """Return a function that makes examples with a data-dependent first size and static further sizes."""
    return lambda first, **_: jax.ShapeDtypeStruct((make_data_dependent_size(), *sizes), np.int32)


def _make_indices_example(first: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((make_data_dependent_size(), first.ndim), np.int64)


def make_sizes(value: Tensor, known: Sequence[Any]) -> Tensor:
    """Return an empty array, so that a program reads computed sizes from its shape.

    Args:
      value: The sizes, a scalar or vector.
      known: For each size, an integer or a symbol of the traced function that it is equal to, or None.
    """
    recorder = context.host_recorder
    if recorder is not None and recorder.should_record_values([value]):
        recorded: Tensor = recorder.record("sizes", value, {"known": known})
        return recorded
    shape = (*[None] * int(np.prod(value.array.shape)), 0)
    return compute_on_host(_make_empty_array, [value], [(shape, np.int8)], "a size")[0]


@host_function
def _make_empty_array(value: np.ndarray) -> list[np.ndarray]:
    sizes = np.atleast_1d(value).tolist()
    if min(sizes, default=0) < 0:
        raise InvalidValueError(f"a computed shape has the negative size {min(sizes)}")
    return [np.empty((*sizes, 0), np.int8)]


def make_shape(value: Tensor) -> Tensor:
    """Return an empty array with the sizes of a tensor, so that a program reads them from its shape."""
    recorder = context.host_recorder
    if recorder is not None and recorder.should_record_values([value]):
        recorded: Tensor = recorder.record("shape", value, {})
        return recorded
    return Tensor(np.empty((*value.array.shape, 0), np.int8))


def _make_shape_example(first: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*first.shape, 0), np.int8)


def _make_sizes_example(first: jax.Array, known: Sequence[Any]) -> jax.ShapeDtypeStruct:
    sizes = [n if isinstance(n, int) else make_data_dependent_size(n) for n in known]
    return jax.ShapeDtypeStruct((*sizes, 0), np.int8)


def _make_scalar_example(*_: Any, **__: Any) -> jax.Array:
    return jnp.zeros((), np.int32)


def _get_table_dtype(more: Mapping[str, Any]) -> DType:
    return more["table"].value_dtype


def _get_out_type(more: Mapping[str, Any]) -> DTypeLike:
    return more["out_type"]


def _get_index_dtype(more: Mapping[str, Any]) -> DTypeLike:
    return more["out_idx"]


def _to_tensors(first: Any) -> Tensor | list[Tensor]:
    """Convert example arrays to tensors."""
    if isinstance(first, (list, tuple)):
        return [Tensor(v) for v in first]
    return Tensor(first)


def _make_example_by(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes examples by calling the op on examples of its arguments."""
    return lambda first, **more: function(_to_tensors(first), **more).array


def _make_reduced_example(
    first: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False, **_: Any
) -> jax.Array:
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
    "tile": HostCall(array.tile, ("multiples",), make_example=_make_example_by(array.tile)),
    "true_places": HostCall(gather_scatter.find_true_indices, (), int64, _make_indices_example),
    "unique_values": HostCall(
        ordering.find_unique_values, (), make_example=_make_unknown_size_example()
    ),
    "unique_places": HostCall(ordering.find_unique_indices, ("out_idx",), _get_index_dtype),
    "unique_counts": HostCall(
        ordering.count_unique_values,
        ("values", "out_idx"),
        _get_index_dtype,
        lambda first, values, out_idx: values,
    ),
    "non_max_suppression": HostCall(
        boxes.non_max_suppression,
        ("scores", "max_output_size", "iou_threshold", "score_threshold"),
        int32,
        _make_unknown_size_example(),
    ),
    "to_number": HostCall(strings.to_number, ("out_type",), _get_out_type),
    "as_string": HostCall(
        strings.as_string,
        ("precision", "scientific", "shortest", "width", "fill"),
        string,
    ),
    "serialize_tensor": HostCall(
        serialize_tensor, (), string, make_example=lambda first: jnp.zeros(())
    ),
    "join": HostCall(strings.join, ("separator",)),
    "join_rows": HostCall(
        strings.join_rows,
        ("segment_ids", "lengths", "separator"),
        make_example=lambda first, segment_ids, lengths, separator: jnp.zeros(
            (lengths.shape[0], *first.shape[1:])
        ),
    ),
    "place_strings": HostCall(
        strings.place_strings,
        ("indices", "like", "default"),
        make_example=lambda first, indices, like, default: jnp.zeros(like.shape),
    ),
    "reduce_join": HostCall(
        strings.reduce_join,
        ("axis", "keepdims", "separator"),
        make_example=_make_reduced_example,
    ),
    "feature": HostCall(
        parse_feature,
        ("feature", "shape", "dtype", "default"),
        lambda more: more["dtype"],
        lambda first, feature, shape, dtype, default: jnp.zeros((*first.shape, *shape)),
    ),
    "reshape": HostCall(array.reshape, ("shape",), make_example=_make_example_by(array.reshape)),
    "expand_dims": HostCall(
        array.expand_dims, ("axis",), make_example=_make_example_by(array.expand_dims)
    ),
    "squeeze": HostCall(array.squeeze, ("axis",), make_example=_make_example_by(array.squeeze)),
    "concat": HostCall(array.concat, ("axis",), make_example=_make_example_by(array.concat)),
    "stack": HostCall(array.stack, ("axis",), make_example=_make_example_by(array.stack)),
    "gather": HostCall(
        array.gather,
        ("indices", "axis", "batch_dims"),
        make_example=lambda first, indices, axis, batch_dims: (
            array.gather(
                Tensor(first), Tensor(jnp.asarray(indices)), axis=axis, batch_dims=batch_dims
            ).array
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
    "item": HostCall(get_item, ("key",), make_example=lambda first, key: first[key]),
    "lookup": HostCall(look_up, ("table", "default"), _get_table_dtype),
    "insert": HostCall(insert_into_table, ("table", "values"), int64, _make_scalar_example),
    "remove": HostCall(remove_from_table, ("table",), int64, _make_scalar_example),
    "shape": HostCall(make_shape, (), int8, _make_shape_example),
    "list_parts": HostCall(
        strings.list_parts, ("sep", "maxsplit"), make_example=_make_unknown_size_example()
    ),
    "count_parts": HostCall(strings.count_parts, ("sep", "maxsplit"), int64),
    "list_characters": HostCall(
        unicode.list_characters, _UNICODE_OPTIONS, make_example=_make_unknown_size_example()
    ),
    "count_characters": HostCall(unicode.count_characters, _UNICODE_OPTIONS, int64),
    "check_assertion": HostCall(
        debugging.check_assertion, ("data", "message", "summarize"), bool_, _make_scalar_example
    ),
    "sizes": HostCall(make_sizes, ("known",), int8, _make_sizes_example),
    "size": HostCall(get_table_size, (), int64, _make_scalar_example),
    "steps": HostCall(
        run_text_steps, ("steps", "dtype"), lambda more: more["dtype"], _make_steps_example
    ),
}
