"""Host calls of plans (`saved_model/host_calls.py`) as TensorFlow's ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype, float32, int32, int64, string
from meshflow.lookup.mutable import MutableHashTable
from meshflow.lookup.static import StaticHashTable, StaticVocabularyTable
from meshflow.saved_model.assets import Asset
from meshflow.saved_model.graph.messages import Message
from meshflow.saved_model.graph.nodes import STRING, Type, datatype, put_shape
from meshflow.saved_model.graph.text_nodes import Nodes, add_steps
from meshflow.saved_model.host_calls import Value
from meshflow.saved_model.structures import Unsaved
from meshflow.saved_model.text import Steps

# An argument of a host call. Its lists may contain `PlanValue`s.
Argument: TypeAlias = Value | Asset | npt.ArrayLike | Sequence[Any] | None

__all__ = ["HostNodes"]

_INT32 = 3


class HostNodes:
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
        self._last: dict[int, str] = {}
        self._count = 0
        self.nodes = Nodes(function.node_def, "host")

    def add(self, name: str, first: Argument, more: Any) -> str:
        """Add the nodes of a host call, and return the output with its result.

        Raises:
          UnsavableError: If TensorFlow's op does not support an argument.
        """
        self._count += 1
        output: str = _ADDED[name](self, first, **more)
        return output

    # ---- arguments -------------------------------------------------------------------------

    def ref(self, value: Argument, dtype: np.dtype | type | None = None) -> str:
        """Return the output of an argument. Constants are added as nodes, optionally with a dtype."""
        if isinstance(value, Value):
            return self._outputs[value.number]
        if isinstance(value, (list, tuple)) and any(isinstance(v, Value) for v in value):
            parts = [self.cast(v, dtype or np.int32) for v in value]
            enum = Type(datatype(dtype or np.int32))
            return self.op("Pack", parts, N=len(parts), T=enum, axis=0)
        if isinstance(value, Asset):
            return self._get_handle(value)
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, bytes):
            return self.nodes.constant(value)
        array = np.asarray(value)
        if array.dtype.kind in "US":
            texts = np.empty(array.size, object)
            texts[:] = [v.encode() if isinstance(v, str) else v for v in array.reshape(-1).tolist()]
            array = texts.reshape(array.shape)
        return self.nodes.constant(array if dtype is None else array.astype(dtype))

    def kind(self, value: Argument) -> DType:
        """Return the dtype of an argument."""
        if isinstance(value, Value):
            return self._dtypes[value.number]
        if isinstance(value, (list, tuple)) and value:
            return self.kind(value[0])
        if isinstance(value, (Asset, str, bytes)):
            return string
        array = np.asarray(value)
        return string if array.dtype.kind in "OSU" else as_dtype(array.dtype)

    def cast(self, value: Argument, dtype: np.dtype | type) -> str:
        """Return the output of an argument, cast to another dtype if necessary."""
        if not isinstance(value, Value):
            return self.ref(value, dtype)
        source, target = self.kind(value), as_dtype(dtype)
        if source is target:
            return self.ref(value)
        types: dict[str, Any] = {"SrcT": Type(datatype(source)), "DstT": Type(datatype(target))}
        return self.op("Cast", [self.ref(value)], output="y", **types)

    def op(self, op: str, inputs: list[str], output: str = "output", **attributes: Any) -> str:
        """Add a node and return its output."""
        return self.nodes.add(op, inputs, output, **attributes)

    # ---- tables ----------------------------------------------------------------------------

    def of_table(self, op: str, table: object, inputs: list[str], output: str, **kinds: Any) -> str:
        """Add an op on a table, ordered after the previous op on the same table."""
        previous = self._last.get(id(table))
        control = [] if previous is None else [f"^{previous}"]
        result = self.op(op, [self._get_handle(table), *inputs, *control], output, **kinds)
        self._last[id(table)] = result.split(":")[0]
        return result

    def must_run(self, output: str) -> None:
        """Make a node run even if no result depends on it."""
        name = output.split(":")[0]
        self.function.signature.control_output.append(name)
        self.function.control_ret[name] = name


def _plain(op: str, **fixed: Any) -> Callable[..., str]:
    """Return a function that adds an op on one string tensor, with settings as attributes."""

    def add(nodes: HostNodes, first: Argument, **more: Any) -> str:
        return nodes.op(
            op, [nodes.ref(first)], **{k: _attribute(v) for k, v in {**more, **fixed}.items()}
        )

    return add


def _attribute(value: Argument) -> Any:
    if isinstance(value, (Value, list)):
        raise Unsaved("a setting of an op that is computed at run time")
    if isinstance(value, np.ndarray):
        value = value.item()
    if isinstance(value, str):
        return value.encode()
    return value


def _substr(nodes: HostNodes, first: Argument, pos: Argument, len: Argument, unit: str) -> str:
    inputs = [nodes.ref(first), nodes.cast(pos, np.int32), nodes.cast(len, np.int32)]
    return nodes.op("Substr", inputs, T=Type(_INT32), unit=unit.encode())


def _to_number(nodes: HostNodes, first: Argument, out_type: DTypeLike) -> str:
    return nodes.op(
        "StringToNumber", [nodes.ref(first)], out_type=Type(datatype(as_dtype(out_type)))
    )


def _as_string(nodes: HostNodes, first: Argument, **more: Any) -> str:
    if nodes.kind(first) is string:
        return nodes.ref(first)
    attributes = {k: _attribute(v) for k, v in more.items()}
    return nodes.op(
        "AsString", [nodes.ref(first)], T=Type(datatype(nodes.kind(first))), **attributes
    )


def _join(nodes: HostNodes, first: Sequence[Argument], separator: Argument) -> str:
    parts = [nodes.ref(v) for v in first]
    return nodes.op("StringJoin", parts, N=len(parts), separator=_attribute(separator))


def _reduce_join(
    nodes: HostNodes, first: Argument, axis: Argument, keepdims: bool, separator: Argument
) -> str:
    text = nodes.ref(first)
    if axis is None and keepdims:
        raise Unsaved("tf.strings.reduce_join over all axes with keepdims=True")
    if axis is None:
        text, axis = _reshape(nodes, first, [-1]), 0
    inputs = [text, nodes.ref(axis, np.int32)]
    return nodes.op("ReduceJoin", inputs, keep_dims=keepdims, separator=_attribute(separator))


def _reshape(nodes: HostNodes, first: Argument, shape: Argument) -> str:
    kind = nodes.kind(shape) if isinstance(shape, Value) else np.int32
    inputs = [
        nodes.ref(first),
        nodes.ref(shape) if isinstance(shape, Value) else nodes.ref(shape, np.int32),
    ]
    return nodes.op("Reshape", inputs, T=Type(STRING), Tshape=Type(datatype(kind)))


def _expand(nodes: HostNodes, first: Argument, axis: Argument) -> str:
    inputs = [nodes.ref(first), nodes.ref(axis, np.int32)]
    return nodes.op("ExpandDims", inputs, T=Type(STRING), Tdim=Type(_INT32))


def _squeeze(nodes: HostNodes, first: Argument, axis: int | Sequence[int] | None) -> str:
    axes = [] if axis is None else [int(a) for a in np.atleast_1d(axis)]
    return nodes.op(
        "Squeeze", [nodes.ref(first)], T=Type(STRING), squeeze_dims=lambda a: a.list.i.extend(axes)
    )


def _concat(nodes: HostNodes, first: Sequence[Argument], axis: Argument) -> str:
    parts = [nodes.ref(v) for v in first]
    inputs = [*parts, nodes.ref(axis, np.int32)]
    return nodes.op("ConcatV2", inputs, N=len(parts), T=Type(STRING), Tidx=Type(_INT32))


def _stack(nodes: HostNodes, first: Sequence[Argument], axis: int) -> str:
    parts = [nodes.ref(v) for v in first]
    return nodes.op("Pack", parts, N=len(parts), T=Type(STRING), axis=int(axis))


def _gather(
    nodes: HostNodes, first: Argument, indices: Argument, axis: int | None, batch_dims: int
) -> str:
    position = batch_dims if axis is None else axis
    inputs = [nodes.ref(first), nodes.cast(indices, np.int64), nodes.ref(position, np.int32)]
    return nodes.op(
        "GatherV2",
        inputs,
        batch_dims=int(batch_dims),
        Tparams=Type(STRING),
        Tindices=Type(datatype(int64)),
        Taxis=Type(_INT32),
    )


def _where(nodes: HostNodes, first: Argument, x: Argument, y: Argument) -> str:
    inputs = [nodes.ref(v) for v in (first, x, y)]
    return nodes.op("SelectV2", inputs, T=Type(datatype(nodes.kind(x))))


def _compared(op: str) -> Callable[..., str]:
    def add(nodes: HostNodes, first: Argument, y: Argument) -> str:
        inputs = [nodes.ref(first), nodes.ref(y)]
        return nodes.op(op, inputs, "z", T=Type(STRING), incompatible_shape_error=True)

    return add


def _item(nodes: HostNodes, first: Argument, key: Any) -> str:
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
            raise Unsaved(f"strings indexed by a value that is computed at run time: {part!r}")
        begin.append(low)
        end.append(high)
        step.append(by)
    inputs = [nodes.ref(first), *(nodes.ref(v, np.int32) for v in (begin, end, step))]
    attributes: dict[str, Any] = {f"{k}_mask": v for k, v in masks.items()}
    return nodes.op("StridedSlice", inputs, T=Type(STRING), Index=Type(_INT32), **attributes)


def _feature(
    nodes: HostNodes,
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
        nodes.ref(first),
        *(nodes.nodes.constant(v) for v in (empty, empty, key, empty, padding)),
    ]
    attributes: dict[str, Any] = {
        name: lambda a: a.list.SetInParent()
        for name in ("sparse_types", "ragged_value_types", "ragged_split_types")
    }
    return nodes.op(
        "ParseExampleV2",
        inputs,
        "dense_values",
        num_sparse=0,
        Tdense=lambda a: a.list.type.append(datatype(feature_dtype)),
        dense_shapes=lambda a: put_shape(a.list.shape.add(), shape),
        **attributes,
    )


def _lookup(nodes: HostNodes, first: Argument, table: Any, default: Argument) -> str:
    if isinstance(table, StaticVocabularyTable):
        return _word(nodes, first, table)
    fallback = nodes.ref(table._default.numpy() if default is None else default)
    return _find(nodes, nodes.ref(first), table, fallback)


def _find(
    nodes: HostNodes, keys: str, table: StaticHashTable | MutableHashTable, default: str
) -> str:
    kinds = {"Tin": Type(datatype(table.key_dtype)), "Tout": Type(datatype(table.value_dtype))}
    return nodes.of_table("LookupTableFindV2", table, [keys, default], "values", **kinds)


def _word(nodes: HostNodes, first: Argument, table: StaticVocabularyTable) -> str:
    """Return the index of a word, or that of its hash bucket if the word is not in the vocabulary."""
    keys = nodes.ref(first)
    strings = keys if nodes.kind(first) is string else _as_string(nodes, first, fill="")
    dtype = Type(datatype(int64))
    bucket = nodes.op("StringToHashBucketFast", [strings], num_buckets=table._buckets)
    if table._table is None:
        return bucket
    shift = nodes.ref(np.int64(table._known()))
    hashed, missing_value = (
        nodes.op("AddV2", [bucket, shift], "z", T=dtype),
        nodes.ref(np.int64(-1)),
    )
    key_dtype = table._table.key_dtype
    indices = _find(nodes, nodes.cast(first, key_dtype), table._table, missing_value)
    is_missing = nodes.op(
        "Equal", [indices, missing_value], "z", T=dtype, incompatible_shape_error=True
    )
    return nodes.op("SelectV2", [is_missing, hashed, indices], T=dtype)


def _size(nodes: HostNodes, first: MutableHashTable) -> str:
    return nodes.of_table("LookupTableSizeV2", first, [], "size")


def _insert(nodes: HostNodes, first: Argument, table: MutableHashTable, values: Argument) -> str:
    kinds = {"Tin": Type(datatype(table.key_dtype)), "Tout": Type(datatype(table.value_dtype))}
    inputs = [
        nodes.ref(first),
        nodes.cast(values, table.value_dtype.as_numpy_dtype)
        if table.value_dtype is not string
        else nodes.ref(values),
    ]
    nodes.must_run(nodes.of_table("LookupTableInsertV2", table, inputs, "", **kinds))
    return _size(nodes, table)


def _remove(nodes: HostNodes, first: Argument, table: MutableHashTable) -> str:
    kind = {"Tin": Type(datatype(table.key_dtype))}
    nodes.must_run(nodes.of_table("LookupTableRemoveV2", table, [nodes.ref(first)], "", **kind))
    return _size(nodes, table)


def _stepped(nodes: HostNodes, first: Argument, steps: Steps, dtype: DTypeLike) -> str:
    return add_steps(nodes.function, f"steps_{nodes._count}", nodes.ref(first), steps)


def _strong(nodes: HostNodes, first: Argument, num_buckets: int, key: Sequence[int]) -> str:
    key_words = [int(k) for k in key]
    return nodes.op(
        "StringToHashBucketStrong",
        [nodes.ref(first)],
        num_buckets=int(num_buckets),
        key=lambda a: a.list.i.extend(key_words),
    )


def _hashed(nodes: HostNodes, first: Argument, num_buckets: int) -> str:
    return nodes.op("StringToHashBucket", [nodes.ref(first)], num_buckets=int(num_buckets))


def _tile(nodes: HostNodes, first: Argument, multiples: Argument) -> str:
    inputs = [nodes.ref(first), nodes.cast(multiples, np.int32)]
    return nodes.op("Tile", inputs, T=Type(STRING), Tmultiples=Type(_INT32))


def _true_places(nodes: HostNodes, first: Argument) -> str:
    return nodes.op("Where", [nodes.ref(first)], "index", T=Type(datatype(nodes.kind(first))))


def _unique(output: str, op: str = "Unique") -> Callable[..., str]:
    def add(
        nodes: HostNodes, first: Argument, out_idx: DTypeLike = int32, values: Argument = None
    ) -> str:
        kinds = {
            "T": Type(datatype(nodes.kind(first))),
            "out_idx": Type(datatype(as_dtype(out_idx))),
        }
        return nodes.op(op, [nodes.ref(first)], output, **kinds)

    return add


def _non_max_suppression(
    nodes: HostNodes,
    first: Argument,
    scores: Argument,
    max_output_size: Argument,
    iou_threshold: Argument,
    score_threshold: Argument,
) -> str:
    dtype = nodes.kind(first).as_numpy_dtype
    inputs = [
        nodes.ref(first),
        nodes.cast(scores, dtype),
        nodes.cast(max_output_size, np.int32),
        *(nodes.cast(v, np.float32) for v in (iou_threshold, score_threshold)),
    ]
    kinds = {"T": Type(datatype(nodes.kind(first))), "T_threshold": Type(datatype(float32))}
    return nodes.op("NonMaxSuppressionV3", inputs, "selected_indices", **kinds)


_ADDED: dict[str, Callable[..., str]] = {
    "lower": _plain("StringLower"),
    "upper": _plain("StringUpper"),
    "strip": _plain("StringStrip"),
    "length": _plain("StringLength"),
    "substr": _substr,
    "regex_replace": _plain("StaticRegexReplace"),
    "regex_full_match": _plain("StaticRegexFullMatch"),
    "encode_base64": _plain("EncodeBase64"),
    "decode_base64": _plain("DecodeBase64"),
    "unicode_transcode": _plain("UnicodeTranscode"),
    "to_hash_bucket_fast": _plain("StringToHashBucketFast"),
    "to_hash_bucket": _hashed,
    "to_hash_bucket_strong": _strong,
    "tile": _tile,
    "true_places": _true_places,
    "unique_values": _unique("y"),
    "unique_places": _unique("idx"),
    "unique_counts": _unique("count", "UniqueWithCounts"),
    "non_max_suppression": _non_max_suppression,
    "to_number": _to_number,
    "as_string": _as_string,
    "join": _join,
    "reduce_join": _reduce_join,
    "feature": _feature,
    "reshape": _reshape,
    "expand_dims": _expand,
    "squeeze": _squeeze,
    "concat": _concat,
    "stack": _stack,
    "gather": _gather,
    "where": _where,
    "equal": _compared("Equal"),
    "not_equal": _compared("NotEqual"),
    "item": _item,
    "lookup": _lookup,
    "insert": _insert,
    "remove": _remove,
    "size": _size,
    "steps": _stepped,
}
