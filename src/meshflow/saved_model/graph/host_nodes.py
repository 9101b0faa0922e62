"""Calls of the host (`saved_model/host_calls.py`) as TensorFlow's ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meshflow.core.values.dtypes import DType, as_dtype, float32, int32, int64, string
from meshflow.lookup.static import StaticVocabularyTable
from meshflow.saved_model.assets import Asset
from meshflow.saved_model.graph.nodes import STRING, Type, datatype, put_shape
from meshflow.saved_model.graph.text_nodes import Nodes, add_steps
from meshflow.saved_model.host_calls import Value
from meshflow.saved_model.structures import Unsaved

__all__ = ["HostNodes"]

_INT32 = 3


class HostNodes:
    """Adds the nodes of calls to a function.

    Args:
      function: the `FunctionDef`.
      outputs: the output of the graph that each value is.
      kinds: the dtype of each value.
      handles: gives the argument of the function that a table is.
    """

    def __init__(
        self,
        function: Any,
        outputs: dict[int, str],
        kinds: dict[int, DType],
        handles: Callable[[Any], str],
    ) -> None:
        self._function, self._outputs, self._kinds, self._handles = (
            function,
            outputs,
            kinds,
            handles,
        )
        self._last: dict[int, str] = {}
        self._count = 0
        self.nodes = Nodes(function.node_def, "host")

    def add(self, name: str, first: Any, more: Mapping[str, Any]) -> str:
        """Adds a call; gives its output.

        Raises:
          Unsaved: for arguments that TensorFlow's op does not take.
        """
        self._count += 1
        found: str = _ADDED[name](self, first, **more)
        return found

    # ---- arguments -------------------------------------------------------------------------

    def ref(self, value: Any, kind: Any = None) -> str:
        """The output that an argument is; a constant where it is known."""
        if isinstance(value, Value):
            return self._outputs[value.number]
        if isinstance(value, (list, tuple)) and any(isinstance(v, Value) for v in value):
            parts = [self.cast(v, kind or np.int32) for v in value]
            return self.op("Pack", parts, N=len(parts), T=Type(datatype(kind or np.int32)), axis=0)
        if isinstance(value, Asset):
            return self._handles(value)
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, bytes):
            return self.nodes.constant(value)
        array = np.asarray(value)
        if array.dtype.kind in "US":
            texts = np.empty(array.size, object)
            texts[:] = [v.encode() if isinstance(v, str) else v for v in array.reshape(-1).tolist()]
            array = texts.reshape(array.shape)
        return self.nodes.constant(array if kind is None else array.astype(kind))

    def kind(self, value: Any) -> DType:
        """The dtype of an argument."""
        if isinstance(value, Value):
            return self._kinds[value.number]
        if isinstance(value, (list, tuple)) and value:
            return self.kind(value[0])
        if isinstance(value, (Asset, str, bytes)):
            return string
        array = np.asarray(value)
        return string if array.dtype.kind in "OSU" else as_dtype(array.dtype)

    def cast(self, value: Any, kind: Any) -> str:
        """An argument as another dtype."""
        if not isinstance(value, Value):
            return self.ref(value, kind)
        own, wanted = self.kind(value), as_dtype(kind)
        if own is wanted:
            return self.ref(value)
        types: dict[str, Any] = {"SrcT": Type(datatype(own)), "DstT": Type(datatype(wanted))}
        return self.op("Cast", [self.ref(value)], output="y", **types)

    def op(self, op: str, inputs: list[str], output: str = "output", **attributes: Any) -> str:
        """Adds a node; gives its output."""
        return self.nodes.add(op, inputs, output, **attributes)

    # ---- tables ----------------------------------------------------------------------------

    def of_table(self, op: str, table: Any, inputs: list[str], output: str, **kinds: Any) -> str:
        """Adds an op of a table, which runs after what was done with it before."""
        before = self._last.get(id(table))
        after = [] if before is None else [f"^{before}"]
        made = self.op(op, [self._handles(table), *inputs, *after], output, **kinds)
        self._last[id(table)] = made.split(":")[0]
        return made

    def must_run(self, output: str) -> None:
        """Has a node run though no result needs it."""
        name = output.split(":")[0]
        self._function.signature.control_output.append(name)
        self._function.control_ret[name] = name


def _plain(op: str, **fixed: Any) -> Callable[..., str]:
    """An op of one tensor of strings, whose attributes are the call's other arguments."""

    def add(nodes: HostNodes, first: Any, **more: Any) -> str:
        return nodes.op(
            op, [nodes.ref(first)], **{k: _attribute(v) for k, v in {**more, **fixed}.items()}
        )

    return add


def _attribute(value: Any) -> Any:
    if isinstance(value, (Value, list)):
        raise Unsaved("a setting of an op that is computed")
    if isinstance(value, np.ndarray):
        value = value.item()
    if isinstance(value, str):
        return value.encode()
    return value


def _substr(nodes: HostNodes, first: Any, pos: Any, len: Any, unit: str) -> str:
    inputs = [nodes.ref(first), nodes.cast(pos, np.int32), nodes.cast(len, np.int32)]
    return nodes.op("Substr", inputs, T=Type(_INT32), unit=unit.encode())


def _to_number(nodes: HostNodes, first: Any, out_type: Any) -> str:
    return nodes.op(
        "StringToNumber", [nodes.ref(first)], out_type=Type(datatype(as_dtype(out_type)))
    )


def _as_string(nodes: HostNodes, first: Any, **more: Any) -> str:
    if nodes.kind(first) is string:
        return nodes.ref(first)
    attributes = {k: _attribute(v) for k, v in more.items()}
    return nodes.op(
        "AsString", [nodes.ref(first)], T=Type(datatype(nodes.kind(first))), **attributes
    )


def _join(nodes: HostNodes, first: Any, separator: Any) -> str:
    parts = [nodes.ref(v) for v in first]
    return nodes.op("StringJoin", parts, N=len(parts), separator=_attribute(separator))


def _reduce_join(nodes: HostNodes, first: Any, axis: Any, keepdims: bool, separator: Any) -> str:
    text = nodes.ref(first)
    if axis is None and keepdims:
        raise Unsaved("tf.strings.reduce_join of all axes, which are kept")
    if axis is None:
        text, axis = _reshape(nodes, first, [-1]), 0
    inputs = [text, nodes.ref(axis, np.int32)]
    return nodes.op("ReduceJoin", inputs, keep_dims=keepdims, separator=_attribute(separator))


def _reshape(nodes: HostNodes, first: Any, shape: Any) -> str:
    kind = nodes.kind(shape) if isinstance(shape, Value) else np.int32
    inputs = [
        nodes.ref(first),
        nodes.ref(shape) if isinstance(shape, Value) else nodes.ref(shape, np.int32),
    ]
    return nodes.op("Reshape", inputs, T=Type(STRING), Tshape=Type(datatype(kind)))


def _expand(nodes: HostNodes, first: Any, axis: Any) -> str:
    inputs = [nodes.ref(first), nodes.ref(axis, np.int32)]
    return nodes.op("ExpandDims", inputs, T=Type(STRING), Tdim=Type(_INT32))


def _squeeze(nodes: HostNodes, first: Any, axis: Any) -> str:
    axes = [] if axis is None else [int(a) for a in np.atleast_1d(axis)]
    return nodes.op(
        "Squeeze", [nodes.ref(first)], T=Type(STRING), squeeze_dims=lambda a: a.list.i.extend(axes)
    )


def _concat(nodes: HostNodes, first: Any, axis: Any) -> str:
    parts = [nodes.ref(v) for v in first]
    inputs = [*parts, nodes.ref(axis, np.int32)]
    return nodes.op("ConcatV2", inputs, N=len(parts), T=Type(STRING), Tidx=Type(_INT32))


def _stack(nodes: HostNodes, first: Any, axis: int) -> str:
    parts = [nodes.ref(v) for v in first]
    return nodes.op("Pack", parts, N=len(parts), T=Type(STRING), axis=int(axis))


def _gather(nodes: HostNodes, first: Any, indices: Any, axis: Any, batch_dims: int) -> str:
    place = batch_dims if axis is None else axis
    inputs = [nodes.ref(first), nodes.cast(indices, np.int64), nodes.ref(place, np.int32)]
    return nodes.op(
        "GatherV2",
        inputs,
        batch_dims=int(batch_dims),
        Tparams=Type(STRING),
        Tindices=Type(datatype(int64)),
        Taxis=Type(_INT32),
    )


def _where(nodes: HostNodes, first: Any, x: Any, y: Any) -> str:
    inputs = [nodes.ref(v) for v in (first, x, y)]
    return nodes.op("SelectV2", inputs, T=Type(datatype(nodes.kind(x))))


def _compared(op: str) -> Callable[..., str]:
    def add(nodes: HostNodes, first: Any, y: Any) -> str:
        inputs = [nodes.ref(first), nodes.ref(y)]
        return nodes.op(op, inputs, "z", T=Type(STRING), incompatible_shape_error=True)

    return add


def _item(nodes: HostNodes, first: Any, key: Any) -> str:
    keys = list(key) if isinstance(key, (list, tuple)) else [key]
    begin, end, step, masks = (
        [],
        [],
        [],
        dict.fromkeys(("begin", "end", "ellipsis", "new_axis", "shrink_axis"), 0),
    )
    for place, part in enumerate(keys):
        bit, (low, high, by) = 1 << place, (0, 0, 1)
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
            raise Unsaved(f"strings at a place that is computed: {part!r}")
        begin.append(low)
        end.append(high)
        step.append(by)
    inputs = [nodes.ref(first), *(nodes.ref(v, np.int32) for v in (begin, end, step))]
    attributes: dict[str, Any] = {f"{k}_mask": v for k, v in masks.items()}
    return nodes.op("StridedSlice", inputs, T=Type(STRING), Index=Type(_INT32), **attributes)


def _feature(
    nodes: HostNodes, first: Any, feature: str, shape: Any, dtype: Any, default: Any
) -> str:
    kind = as_dtype(dtype)
    held = object if kind is string else kind.as_numpy_dtype
    # Nothing as default means that the feature must be there.
    filler: np.ndarray = np.empty(0, held) if default is None else np.asarray(default, held)
    none, own = np.empty(0, object), np.array([feature.encode()], object)
    inputs = [nodes.ref(first), *(nodes.nodes.constant(v) for v in (none, none, own, none, filler))]
    attributes: dict[str, Any] = {
        name: lambda a: a.list.SetInParent()
        for name in ("sparse_types", "ragged_value_types", "ragged_split_types")
    }
    return nodes.op(
        "ParseExampleV2",
        inputs,
        "dense_values",
        num_sparse=0,
        Tdense=lambda a: a.list.type.append(datatype(kind)),
        dense_shapes=lambda a: put_shape(a.list.shape.add(), shape),
        **attributes,
    )


def _lookup(nodes: HostNodes, first: Any, table: Any, default: Any) -> str:
    if isinstance(table, StaticVocabularyTable):
        return _word(nodes, first, table)
    other = nodes.ref(table._default.numpy() if default is None else default)
    return _find(nodes, nodes.ref(first), table, other)


def _find(nodes: HostNodes, keys: str, table: Any, default: str) -> str:
    kinds = {"Tin": Type(datatype(table.key_dtype)), "Tout": Type(datatype(table.value_dtype))}
    return nodes.of_table("LookupTableFindV2", table, [keys, default], "values", **kinds)


def _word(nodes: HostNodes, first: Any, table: StaticVocabularyTable) -> str:
    """The number of a word, or of the bucket of one that is not known."""
    keys = nodes.ref(first)
    text = keys if nodes.kind(first) is string else _as_string(nodes, first, fill="")
    kind = Type(datatype(int64))
    bucket = nodes.op("StringToHashBucketFast", [text], num_buckets=table._buckets)
    if table._table is None:
        return bucket
    shift = nodes.ref(np.int64(table._known()))
    other, none = nodes.op("AddV2", [bucket, shift], "z", T=kind), nodes.ref(np.int64(-1))
    own = table._table.key_dtype
    found = _find(nodes, nodes.cast(first, own), table._table, none)
    missing = nodes.op("Equal", [found, none], "z", T=kind, incompatible_shape_error=True)
    return nodes.op("SelectV2", [missing, other, found], T=kind)


def _size(nodes: HostNodes, first: Any) -> str:
    return nodes.of_table("LookupTableSizeV2", first, [], "size")


def _insert(nodes: HostNodes, first: Any, table: Any, values: Any) -> str:
    kinds = {"Tin": Type(datatype(table.key_dtype)), "Tout": Type(datatype(table.value_dtype))}
    given = [
        nodes.ref(first),
        nodes.cast(values, table.value_dtype.as_numpy_dtype)
        if table.value_dtype is not string
        else nodes.ref(values),
    ]
    nodes.must_run(nodes.of_table("LookupTableInsertV2", table, given, "", **kinds))
    return _size(nodes, table)


def _remove(nodes: HostNodes, first: Any, table: Any) -> str:
    kind = {"Tin": Type(datatype(table.key_dtype))}
    nodes.must_run(nodes.of_table("LookupTableRemoveV2", table, [nodes.ref(first)], "", **kind))
    return _size(nodes, table)


def _stepped(nodes: HostNodes, first: Any, steps: Any, dtype: Any) -> str:
    return add_steps(nodes._function, f"steps_{nodes._count}", nodes.ref(first), steps)


def _strong(nodes: HostNodes, first: Any, num_buckets: int, key: Any) -> str:
    numbers = [int(k) for k in key]
    return nodes.op(
        "StringToHashBucketStrong",
        [nodes.ref(first)],
        num_buckets=int(num_buckets),
        key=lambda a: a.list.i.extend(numbers),
    )


def _hashed(nodes: HostNodes, first: Any, num_buckets: int) -> str:
    return nodes.op("StringToHashBucket", [nodes.ref(first)], num_buckets=int(num_buckets))


def _tile(nodes: HostNodes, first: Any, multiples: Any) -> str:
    inputs = [nodes.ref(first), nodes.cast(multiples, np.int32)]
    return nodes.op("Tile", inputs, T=Type(STRING), Tmultiples=Type(_INT32))


def _true_places(nodes: HostNodes, first: Any) -> str:
    return nodes.op("Where", [nodes.ref(first)], "index", T=Type(datatype(nodes.kind(first))))


def _unique(output: str, op: str = "Unique") -> Callable[..., str]:
    def add(nodes: HostNodes, first: Any, out_idx: Any = int32, values: Any = None) -> str:
        kinds = {
            "T": Type(datatype(nodes.kind(first))),
            "out_idx": Type(datatype(as_dtype(out_idx))),
        }
        return nodes.op(op, [nodes.ref(first)], output, **kinds)

    return add


def _non_max_suppression(
    nodes: HostNodes,
    first: Any,
    scores: Any,
    max_output_size: Any,
    iou_threshold: Any,
    score_threshold: Any,
) -> str:
    own = nodes.kind(first).as_numpy_dtype
    inputs = [
        nodes.ref(first),
        nodes.cast(scores, own),
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
