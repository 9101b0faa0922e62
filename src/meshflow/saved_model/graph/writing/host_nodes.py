"""Host calls of plans (`saved_model/host_steps/host_calls.py`) as TensorFlow's ops."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from meshflow.core.values.dtypes import (
    DType,
    DTypeLike,
    as_dtype,
    float32,
    int8,
    int32,
    int64,
    string,
)
from meshflow.lookup.mutable_tables import MutableHashTable
from meshflow.lookup.static_tables import StaticHashTable, StaticVocabularyTable
from meshflow.saved_model.graph.format.messages import Message
from meshflow.saved_model.graph.format.nodes import make_type_list, to_dtype_enum, write_shape
from meshflow.saved_model.graph.writing.text_nodes import NodeBuilder, add_text_steps
from meshflow.saved_model.host_steps.host_calls import PlanValue
from meshflow.saved_model.host_steps.text_steps import Steps
from meshflow.saved_model.manifest.assets import Asset
from meshflow.saved_model.manifest.json_structures import UnsavableError

# An argument of a host call. Its lists may contain `PlanValue`s.
Argument: TypeAlias = PlanValue | Asset | npt.ArrayLike | Sequence[Any] | None


class HostNodeWriter:
    """Writer of the nodes of host calls.

    Args:
      function: The `FunctionDef` to which nodes are added.
      outputs: Output of the graph by the index of each value of the plan.
      dtypes: Dtype of each value.
      get_handle: Function that returns the argument of the graph's function for a table or an
        asset.
    """

    def __init__(
        self,
        function: Message,
        outputs: dict[int, str],
        dtypes: dict[int, DType],
        get_handle: Callable[[object], str],
    ) -> None:
        self.function, self._outputs = function, outputs
        self._dtypes, self._get_handle = dtypes, get_handle
        # Name of the last node that used each table, by the table's id.
        self._last_nodes: dict[Hashable, str] = {}
        self.num_calls = 0
        self.builder = NodeBuilder(function.node_def, "host")

    def add(self, name: str, first: Argument, more: Any) -> str:
        """Add the nodes of a host call, and return the output with its result.

        Raises:
          UnsavableError: If TensorFlow's op does not support an argument.
        """
        self.num_calls += 1
        output: str = _HOST_CALL_WRITERS[name](self, first, **more)
        return output

    # ---- arguments -------------------------------------------------------------------------

    def get_output(self, value: Argument, dtype: np.dtype | type | None = None) -> str:
        """Return the output of an argument. Constants are added as nodes, optionally with a dtype."""
        if isinstance(value, PlanValue):
            return self._outputs[value.index]
        if isinstance(value, (list, tuple)) and any(isinstance(v, PlanValue) for v in value):
            parts = [self.cast(v, dtype or np.int32) for v in value]
            return self.add_op("Pack", parts, N=len(parts), T=as_dtype(dtype or np.int32), axis=0)
        if isinstance(value, Asset):
            return self._get_handle(value)
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, bytes):
            return self.builder.add_constant(value)
        array = np.asarray(value)
        if array.dtype.kind in "US":
            texts = np.empty(array.size, object)
            texts[:] = [v.encode() if isinstance(v, str) else v for v in array.reshape(-1).tolist()]
            array = texts.reshape(array.shape)
        return self.builder.add_constant(array if dtype is None else array.astype(dtype))

    def get_dtype(self, value: Argument) -> DType:
        """Return the dtype of an argument."""
        if isinstance(value, PlanValue):
            return self._dtypes[value.index]
        if isinstance(value, (list, tuple)) and value:
            return self.get_dtype(value[0])
        if isinstance(value, (Asset, str, bytes)):
            return string
        array = np.asarray(value)
        return string if array.dtype.kind in "OSU" else as_dtype(array.dtype)

    def cast(self, value: Argument, dtype: np.dtype | type) -> str:
        """Return the output of an argument, cast to another dtype if necessary."""
        if not isinstance(value, PlanValue):
            return self.get_output(value, dtype)
        source, target = self.get_dtype(value), as_dtype(dtype)
        if source is target:
            return self.get_output(value)
        types: dict[str, Any] = {"SrcT": source, "DstT": target}
        return self.add_op("Cast", [self.get_output(value)], output="y", **types)

    def add_op(self, op: str, inputs: list[str], output: str = "output", **attributes: Any) -> str:
        """Add a node and return its output."""
        return self.builder.add(op, inputs, output, **attributes)

    # ---- tables ----------------------------------------------------------------------------

    def add_table_op(
        self, op: str, table: object, inputs: list[str], output: str, **kinds: Any
    ) -> str:
        """Add an op on a table, ordered after the previous op on the same table."""
        return self.add_ordered_op(
            op, id(table), [self._get_handle(table), *inputs], output, **kinds
        )

    def add_ordered_op(
        self, op: str, group: Hashable, inputs: list[str], output: str, **kinds: Any
    ) -> str:
        """Add an op, ordered after the previous op of a group."""
        previous = self._last_nodes.get(group)
        control = [] if previous is None else [f"^{previous}"]
        result = self.add_op(op, [*inputs, *control], output, **kinds)
        self._last_nodes[group] = result.split(":")[0]
        return result

    def require_node(self, output: str) -> None:
        """Make a node run even if no result depends on it."""
        name = output.split(":")[0]
        self.function.signature.control_output.append(name)
        self.function.control_ret[name] = name


def _make_string_op(op: str, **fixed: Any) -> Callable[..., str]:
    """Return a function that adds an op on one string tensor, with settings as attributes."""

    def add(nodes: HostNodeWriter, first: Argument, **more: Any) -> str:
        return nodes.add_op(
            op,
            [nodes.get_output(first)],
            **{k: _to_attribute(v) for k, v in {**more, **fixed}.items()},
        )

    return add


def _to_attribute(value: Argument) -> Any:
    if isinstance(value, (PlanValue, list)):
        raise UnsavableError("a setting of an op that is computed at run time")
    if isinstance(value, np.ndarray):
        value = value.item()
    if isinstance(value, str):
        return value.encode()
    return value


def _add_substring(
    nodes: HostNodeWriter, first: Argument, pos: Argument, len: Argument, unit: str
) -> str:
    inputs = [nodes.get_output(first), nodes.cast(pos, np.int32), nodes.cast(len, np.int32)]
    return nodes.add_op("Substr", inputs, T=int32, unit=unit.encode())


def _parse_number(nodes: HostNodeWriter, first: Argument, out_type: DTypeLike) -> str:
    return nodes.add_op("StringToNumber", [nodes.get_output(first)], out_type=as_dtype(out_type))


def _convert_to_string(nodes: HostNodeWriter, first: Argument, **more: Any) -> str:
    if nodes.get_dtype(first) is string:
        return nodes.get_output(first)
    attributes = {k: _to_attribute(v) for k, v in more.items()}
    return nodes.add_op(
        "AsString", [nodes.get_output(first)], T=nodes.get_dtype(first), **attributes
    )


def _serialize(nodes: HostNodeWriter, first: Argument) -> str:
    return nodes.add_op("SerializeTensor", [nodes.get_output(first)], T=nodes.get_dtype(first))


def _join(nodes: HostNodeWriter, first: Sequence[Argument], separator: Argument) -> str:
    parts = [nodes.get_output(v) for v in first]
    return nodes.add_op("StringJoin", parts, N=len(parts), separator=_to_attribute(separator))


def _join_rows(
    nodes: HostNodeWriter, first: Argument, segment_ids: Argument, lengths: Argument, separator: str
) -> str:
    dtype = nodes.get_dtype(lengths)
    count = nodes.add_op("Size", [nodes.get_output(lengths)], T=dtype, out_type=int32)
    return nodes.add_op(
        "UnsortedSegmentJoin",
        [nodes.get_output(first), nodes.cast(segment_ids, np.int64), count],
        separator=_to_attribute(separator),
        Tindices=int64,
        Tnumsegments=int32,
    )


def _place_strings(
    nodes: HostNodeWriter, first: Argument, indices: Argument, like: Argument, default: Argument
) -> str:
    shape = nodes.add_op("Shape", [nodes.get_output(like)], T=nodes.get_dtype(like), out_type=int64)
    inputs = [nodes.cast(indices, np.int64), shape, nodes.get_output(first)]
    return nodes.add_op(
        "SparseToDense",
        [*inputs, nodes.get_output(default)],
        "dense",
        validate_indices=True,
        T=string,
        Tindices=int64,
    )


def _reduce_join(
    nodes: HostNodeWriter, first: Argument, axis: Argument, keepdims: bool, separator: Argument
) -> str:
    text = nodes.get_output(first)
    if axis is None and keepdims:
        raise UnsavableError("tf.strings.reduce_join over all axes with keepdims=True")
    if axis is None:
        text, axis = _reshape(nodes, first, [-1]), 0
    inputs = [text, nodes.get_output(axis, np.int32)]
    return nodes.add_op(
        "ReduceJoin", inputs, keep_dims=keepdims, separator=_to_attribute(separator)
    )


def _reshape(nodes: HostNodeWriter, first: Argument, shape: Argument) -> str:
    kind = nodes.get_dtype(shape) if isinstance(shape, PlanValue) else np.int32
    inputs = [
        nodes.get_output(first),
        nodes.get_output(shape)
        if isinstance(shape, PlanValue)
        else nodes.get_output(shape, np.int32),
    ]
    return nodes.add_op("Reshape", inputs, T=string, Tshape=as_dtype(kind))


def _expand_dims(nodes: HostNodeWriter, first: Argument, axis: Argument) -> str:
    inputs = [nodes.get_output(first), nodes.get_output(axis, np.int32)]
    return nodes.add_op("ExpandDims", inputs, T=string, Tdim=int32)


def _squeeze(nodes: HostNodeWriter, first: Argument, axis: int | Sequence[int] | None) -> str:
    axes = [] if axis is None else [int(a) for a in np.atleast_1d(axis)]
    return nodes.add_op(
        "Squeeze", [nodes.get_output(first)], T=string, squeeze_dims=lambda a: a.list.i.extend(axes)
    )


def _concat(nodes: HostNodeWriter, first: Sequence[Argument], axis: Argument) -> str:
    parts = [nodes.get_output(v) for v in first]
    inputs = [*parts, nodes.get_output(axis, np.int32)]
    return nodes.add_op("ConcatV2", inputs, N=len(parts), T=string, Tidx=int32)


def _stack(nodes: HostNodeWriter, first: Sequence[Argument], axis: int) -> str:
    parts = [nodes.get_output(v) for v in first]
    return nodes.add_op("Pack", parts, N=len(parts), T=string, axis=int(axis))


def _gather(
    nodes: HostNodeWriter, first: Argument, indices: Argument, axis: int | None, batch_dims: int
) -> str:
    position = batch_dims if axis is None else axis
    inputs = [
        nodes.get_output(first),
        nodes.cast(indices, np.int64),
        nodes.get_output(position, np.int32),
    ]
    return nodes.add_op(
        "GatherV2", inputs, batch_dims=int(batch_dims), Tparams=string, Tindices=int64, Taxis=int32
    )


def _select(nodes: HostNodeWriter, first: Argument, x: Argument, y: Argument) -> str:
    inputs = [nodes.get_output(v) for v in (first, x, y)]
    return nodes.add_op("SelectV2", inputs, T=nodes.get_dtype(x))


def _make_comparison(op: str) -> Callable[..., str]:
    def add(nodes: HostNodeWriter, first: Argument, y: Argument) -> str:
        inputs = [nodes.get_output(first), nodes.get_output(y)]
        return nodes.add_op(op, inputs, "z", T=string, incompatible_shape_error=True)

    return add


def _make_sizes(nodes: HostNodeWriter, first: Argument, known: Argument) -> str:
    """Add an empty array, because a program reads sizes from shapes."""
    inputs = [nodes.cast(first, np.int64), nodes.get_output([-1], np.int32)]
    return _fill_shape(nodes, nodes.add_op("Reshape", inputs, T=int64, Tshape=int32))


def _fill_shape(nodes: HostNodeWriter, sizes: str) -> str:
    inputs = [sizes, nodes.get_output([0], np.int64), nodes.get_output(0, np.int32)]
    shape = nodes.add_op("ConcatV2", inputs, N=2, T=int64, Tidx=int32)
    zero = nodes.get_output(0, np.int8)
    return nodes.add_op("Fill", [shape, zero], T=int8, index_type=int64)


def _make_shape(nodes: HostNodeWriter, first: Argument) -> str:
    types: dict[str, Any] = {"T": string, "out_type": int64}
    return _fill_shape(nodes, nodes.add_op("Shape", [nodes.get_output(first)], **types))


def _split(
    nodes: HostNodeWriter, first: Argument, sep: Argument, maxsplit: int, output: str = "values"
) -> str:
    inputs = [nodes.get_output(first), nodes.get_output(b"" if sep is None else sep)]
    return nodes.add_op("StringSplitV2", inputs, output, maxsplit=int(maxsplit))


def _count_parts(nodes: HostNodeWriter, first: Argument, sep: Argument, maxsplit: int) -> str:
    """Add the counts of the rows in the coordinates of parts."""
    indices = _split(nodes, first, sep, maxsplit, "indices")
    # The first column of the coordinates.
    bounds = [nodes.get_output(v, np.int32) for v in ([0, 0], [0, 1], [1, 1])]
    masks: dict[str, Any] = {"begin_mask": 1, "end_mask": 1, "shrink_axis_mask": 2}
    rows = nodes.add_op("StridedSlice", [indices, *bounds], T=int64, Index=int32, **masks)
    size = nodes.add_op("Size", [nodes.get_output(first)], T=string, out_type=int64)
    ones = nodes.add_op("OnesLike", [rows], "y", T=int64)
    types: dict[str, Any] = {"T": int64, "Tindices": int64, "Tnumsegments": int64}
    return nodes.add_op("UnsortedSegmentSum", [ones, rows, size], **types)


def _decode_unicode(
    nodes: HostNodeWriter,
    first: Argument,
    input_encoding: str,
    errors: str,
    replacement_char: int,
    output: str,
) -> str:
    return nodes.add_op(
        "UnicodeDecode",
        [nodes.get_output(first)],
        output,
        input_encoding=input_encoding.encode(),
        errors=errors.encode(),
        replacement_char=int(replacement_char),
        replace_control_characters=False,
        Tsplits=int64,
    )


def _list_characters(
    nodes: HostNodeWriter, first: Argument, input_encoding: str, errors: str, replacement_char: int
) -> str:
    points = _decode_unicode(nodes, first, input_encoding, errors, replacement_char, "char_values")
    size = nodes.add_op("Size", [points], T=int32, out_type=int64)
    start, one = (nodes.get_output(n, np.int64) for n in (0, 1))
    end = nodes.add_op("AddV2", [size, one], "z", T=int64)
    # Each code point is a string.
    splits = nodes.add_op("Range", [start, end, one], Tidx=int64)
    options: dict[str, Any] = {"errors": errors.encode(), "replacement_char": int(replacement_char)}
    return nodes.add_op(
        "UnicodeEncode",
        [points, splits],
        output_encoding=input_encoding.encode(),
        Tsplits=int64,
        **options,
    )


def _count_characters(
    nodes: HostNodeWriter, first: Argument, input_encoding: str, errors: str, replacement_char: int
) -> str:
    splits = _decode_unicode(nodes, first, input_encoding, errors, replacement_char, "row_splits")
    zero, one, last = (nodes.get_output([n], np.int32) for n in (0, 1, -1))
    types: dict[str, Any] = {"T": int64, "Index": int32}
    ends = nodes.add_op("StridedSlice", [splits, one, zero, one], end_mask=1, **types)
    starts = nodes.add_op("StridedSlice", [splits, zero, last, one], begin_mask=1, **types)
    return nodes.add_op("Sub", [ends, starts], "z", T=int64)


def _get_item(nodes: HostNodeWriter, first: Argument, key: Any) -> str:
    keys = list(key) if isinstance(key, (list, tuple)) else [key]
    begin, end, step = [], [], []
    masks = dict.fromkeys(("begin", "end", "ellipsis", "new_axis", "shrink_axis"), 0)
    for axis, part in enumerate(keys):
        bit, (low, high, by) = 1 << axis, (0, 0, 1)
        if part is Ellipsis:
            masks["ellipsis"] |= bit
        elif part is None:
            masks["new_axis"] |= bit
        elif isinstance(part, slice) and all(
            v is None or isinstance(v, int) for v in (part.start, part.stop, part.step)
        ):
            masks["begin"] |= bit * (part.start is None)
            masks["end"] |= bit * (part.stop is None)
            low, high, by = part.start or 0, part.stop or 0, part.step or 1
        elif isinstance(part, (int, np.integer)):
            masks["shrink_axis"] |= bit
            low, high = int(part), int(part) + 1 or np.iinfo(np.int32).max
        else:
            raise UnsavableError(
                f"strings indexed by a value that is computed at run time: {part!r}"
            )
        begin.append(low)
        end.append(high)
        step.append(by)
    inputs = [nodes.get_output(first), *(nodes.get_output(v, np.int32) for v in (begin, end, step))]
    attributes: dict[str, Any] = {f"{k}_mask": v for k, v in masks.items()}
    return nodes.add_op("StridedSlice", inputs, T=string, Index=int32, **attributes)


def _parse_feature(
    nodes: HostNodeWriter,
    first: Argument,
    feature: str,
    shape: Sequence[Any],
    dtype: DTypeLike,
    default: Argument,
) -> str:
    feature_dtype = as_dtype(dtype)
    array_dtype = object if feature_dtype is string else feature_dtype.as_numpy_dtype
    # An empty default means that the feature is required.
    padding: np.ndarray = np.asarray([] if default is None else default, array_dtype)
    empty, key = np.empty(0, object), np.array([feature.encode()], object)
    inputs = [
        nodes.get_output(first),
        *(nodes.builder.add_constant(v) for v in (empty, empty, key, empty, padding)),
    ]
    attributes: dict[str, Any] = {
        name: lambda a: a.list.SetInParent()
        for name in ("sparse_types", "ragged_value_types", "ragged_split_types")
    }
    return nodes.add_op(
        "ParseExampleV2",
        inputs,
        "dense_values",
        num_sparse=0,
        Tdense=lambda a: a.list.type.append(to_dtype_enum(feature_dtype)),
        dense_shapes=lambda a: write_shape(a.list.shape.add(), shape),
        **attributes,
    )


def _look_up(nodes: HostNodeWriter, first: Argument, table: Any, default: Argument) -> str:
    if isinstance(table, StaticVocabularyTable):
        return _look_up_word(nodes, first, table)
    fallback = nodes.get_output(table.default.numpy() if default is None else default)
    return _find(nodes, nodes.get_output(first), table, fallback)


def _find(
    nodes: HostNodeWriter, keys: str, table: StaticHashTable | MutableHashTable, default: str
) -> str:
    kinds = {"Tin": table.key_dtype, "Tout": table.value_dtype}
    return nodes.add_table_op("LookupTableFindV2", table, [keys, default], "values", **kinds)


def _look_up_word(nodes: HostNodeWriter, first: Argument, table: StaticVocabularyTable) -> str:
    """Return the index of a word, or that of its hash bucket if the word is not in the vocabulary."""
    keys = nodes.get_output(first)
    strings = (
        keys if nodes.get_dtype(first) is string else _convert_to_string(nodes, first, fill="")
    )
    bucket = nodes.add_op("StringToHashBucketFast", [strings], num_buckets=table.num_oov_buckets)
    if table.static_table is None:
        return bucket
    shift = nodes.get_output(np.int64(table.count_keys()))
    hashed, missing_value = (
        nodes.add_op("AddV2", [bucket, shift], "z", T=int64),
        nodes.get_output(np.int64(-1)),
    )
    key_dtype = table.static_table.key_dtype
    indices = _find(nodes, nodes.cast(first, key_dtype), table.static_table, missing_value)
    is_missing = nodes.add_op(
        "Equal", [indices, missing_value], "z", T=int64, incompatible_shape_error=True
    )
    return nodes.add_op("SelectV2", [is_missing, hashed, indices], T=int64)


def _get_table_size(nodes: HostNodeWriter, first: MutableHashTable) -> str:
    return nodes.add_table_op("LookupTableSizeV2", first, [], "size")


def _insert(
    nodes: HostNodeWriter, first: Argument, table: MutableHashTable, values: Argument
) -> str:
    kinds = {"Tin": table.key_dtype, "Tout": table.value_dtype}
    inputs = [
        nodes.get_output(first),
        nodes.cast(values, table.value_dtype.as_numpy_dtype)
        if table.value_dtype is not string
        else nodes.get_output(values),
    ]
    nodes.require_node(nodes.add_table_op("LookupTableInsertV2", table, inputs, "", **kinds))
    return _get_table_size(nodes, table)


def _remove(nodes: HostNodeWriter, first: Argument, table: MutableHashTable) -> str:
    kind = {"Tin": table.key_dtype}
    nodes.require_node(
        nodes.add_table_op("LookupTableRemoveV2", table, [nodes.get_output(first)], "", **kind)
    )
    return _get_table_size(nodes, table)


def _run_text_steps(nodes: HostNodeWriter, first: Argument, steps: Steps, dtype: DTypeLike) -> str:
    return add_text_steps(
        nodes.function, f"steps_{nodes.num_calls}", nodes.get_output(first), steps
    )


def _hash_strong(
    nodes: HostNodeWriter, first: Argument, num_buckets: int, key: Sequence[int]
) -> str:
    key_words = [int(k) for k in key]
    return nodes.add_op(
        "StringToHashBucketStrong",
        [nodes.get_output(first)],
        num_buckets=int(num_buckets),
        key=lambda a: a.list.i.extend(key_words),
    )


def _hash_to_bucket(nodes: HostNodeWriter, first: Argument, num_buckets: int) -> str:
    return nodes.add_op(
        "StringToHashBucket", [nodes.get_output(first)], num_buckets=int(num_buckets)
    )


def _tile(nodes: HostNodeWriter, first: Argument, multiples: Argument) -> str:
    inputs = [nodes.get_output(first), nodes.cast(multiples, np.int32)]
    return nodes.add_op("Tile", inputs, T=string, Tmultiples=int32)


def _find_true_indices(nodes: HostNodeWriter, first: Argument) -> str:
    return nodes.add_op("Where", [nodes.get_output(first)], "index", T=nodes.get_dtype(first))


def _make_unique_op(output: str, op: str = "Unique") -> Callable[..., str]:
    def add(
        nodes: HostNodeWriter, first: Argument, out_idx: DTypeLike = int32, values: Argument = None
    ) -> str:
        kinds = {"T": nodes.get_dtype(first), "out_idx": as_dtype(out_idx)}
        return nodes.add_op(op, [nodes.get_output(first)], output, **kinds)

    return add


def _suppress_non_max(
    nodes: HostNodeWriter,
    first: Argument,
    scores: Argument,
    max_output_size: Argument,
    iou_threshold: Argument,
    score_threshold: Argument,
) -> str:
    dtype = nodes.get_dtype(first).as_numpy_dtype
    inputs = [
        nodes.get_output(first),
        nodes.cast(scores, dtype),
        nodes.cast(max_output_size, np.int32),
        *(nodes.cast(v, np.float32) for v in (iou_threshold, score_threshold)),
    ]
    kinds = {"T": nodes.get_dtype(first), "T_threshold": float32}
    return nodes.add_op("NonMaxSuppressionV3", inputs, "selected_indices", **kinds)


def _check_assertion(
    nodes: HostNodeWriter,
    first: Argument,
    data: Sequence[Argument],
    message: str | None,
    summarize: int,
) -> str:
    shown = [v for v in (message, *data) if v is not None] or ["assertion failed"]
    dtypes = [to_dtype_enum(nodes.get_dtype(v)) for v in shown]
    inputs = [nodes.get_output(v) for v in (first, *shown)]
    kinds: dict[str, Any] = {"T": make_type_list(dtypes), "summarize": int(summarize)}
    # The first violated assertion of the program is reported.
    node = nodes.add_ordered_op("Assert", "assertions", inputs, "", **kinds)
    nodes.require_node(node)
    return inputs[0]


_HOST_CALL_WRITERS: dict[str, Callable[..., str]] = {
    "shape": _make_shape,
    "list_parts": _split,
    "count_parts": _count_parts,
    "list_characters": _list_characters,
    "count_characters": _count_characters,
    "sizes": _make_sizes,
    "lower": _make_string_op("StringLower"),
    "upper": _make_string_op("StringUpper"),
    "strip": _make_string_op("StringStrip"),
    "length": _make_string_op("StringLength"),
    "substr": _add_substring,
    "regex_replace": _make_string_op("StaticRegexReplace"),
    "regex_full_match": _make_string_op("StaticRegexFullMatch"),
    "encode_base64": _make_string_op("EncodeBase64"),
    "decode_base64": _make_string_op("DecodeBase64"),
    "unicode_transcode": _make_string_op("UnicodeTranscode"),
    "to_hash_bucket_fast": _make_string_op("StringToHashBucketFast"),
    "to_hash_bucket": _hash_to_bucket,
    "to_hash_bucket_strong": _hash_strong,
    "tile": _tile,
    "true_places": _find_true_indices,
    "unique_values": _make_unique_op("y"),
    "unique_places": _make_unique_op("idx"),
    "unique_counts": _make_unique_op("count", "UniqueWithCounts"),
    "non_max_suppression": _suppress_non_max,
    "to_number": _parse_number,
    "as_string": _convert_to_string,
    "serialize_tensor": _serialize,
    "join": _join,
    "join_rows": _join_rows,
    "place_strings": _place_strings,
    "reduce_join": _reduce_join,
    "feature": _parse_feature,
    "reshape": _reshape,
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "concat": _concat,
    "stack": _stack,
    "gather": _gather,
    "where": _select,
    "equal": _make_comparison("Equal"),
    "not_equal": _make_comparison("NotEqual"),
    "item": _get_item,
    "lookup": _look_up,
    "insert": _insert,
    "remove": _remove,
    "size": _get_table_size,
    "check_assertion": _check_assertion,
    "steps": _run_text_steps,
}
