"""`tf.io.parse_example` and related functions, which parse serialized `tf.train.Example` messages."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor, SparseTensorSpec
from meshflow.core.dispatch.shape_probing import vary_sizes
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree
from meshflow.io import protos
from meshflow.io.features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from meshflow.ops import array
from meshflow.ops.deferred_host_values import (
    DeferredValue,
    FullSparseVector,
    UnrecordableError,
)
from meshflow.ops.files import to_host_strings
from meshflow.ops.ragged import RaggedTensor


class _FeatureType(NamedTuple):
    """A dtype of features: its name, the field of the message that holds it, and its NumPy type."""

    name: str
    field: str
    numpy: type[Any]


_Parsed: TypeAlias = Tensor | SparseTensor | RaggedTensor

_FEATURE_TYPES = {
    "int64": _FeatureType("int64", "int64_list", np.int64),
    "float32": _FeatureType("float", "float_list", np.float32),
    "string": _FeatureType("string", "bytes_list", object),
}


def _get_feature_type(key: str, dtype: DTypeLike | None) -> _FeatureType:
    if dtype is None:
        raise ValueError(f"Missing type for feature {key}.")
    name = as_dtype(dtype).name
    if name not in _FEATURE_TYPES:
        raise InvalidValueError(
            f"Feature {key!r} has dtype {name}, but records hold int64, float32 and string: read it as "
            "one of these and convert it with tf.cast."
        )
    return _FEATURE_TYPES[name]


def _get_static_shape(key: str, shape: ShapeLike) -> list[int]:
    if shape is None:
        raise ValueError(
            f"Missing shape for feature {key}. Pass the shape of a value, [] for a scalar."
        )
    sizes = TensorShape(shape).as_list()
    if None in sizes:
        raise ValueError(
            f"First dimension of shape for feature {key} unknown. Consider using FixedLenSequenceFeature."
        )
    return sizes


def _to_array(values: Sequence[Any], kind: _FeatureType) -> np.ndarray:
    if kind.numpy is object:
        array = np.empty(len(values), object)
        array[:] = list(values)
        return array
    return np.fromiter(values, kind.numpy, len(values))


# The messages of a block are deleted at once, during which no other thread runs.
_BLOCK_RECORDS = 4096


class _ParsedRecord:
    """The features of a record.

    Args:
      features: Map from names to `tf.train.Feature` messages.
      name: Name of the record for error messages.
    """

    def __init__(self, features: Mapping[str, Any], name: str) -> None:
        self.features, self._name = features, name

    def values(self, key: str, kind: _FeatureType) -> Sequence[Any] | None:
        """Return the values of a feature; None if the record lacks it.

        Raises:
          InvalidArgumentError: The values have another dtype.
        """
        feature = self.features.get(key)
        if feature is None:
            return None
        return getattr(feature, kind.field).value or get_feature_values(
            feature, key, kind, self._name
        )

    def make_missing_error(self, key: str, kind: _FeatureType) -> InvalidArgumentError:
        """Return the error for a required feature that the record lacks."""
        present = ", ".join(sorted(self.features)) or "none"
        return InvalidArgumentError(
            f"Name: {self._name}, Feature: {key} (data type: {kind.name}) is required but could not be found. "
            f"The record has: {present}."
        )

    def make_size_error(
        self, key: str, kind: _FeatureType, count: int, shape: Any
    ) -> InvalidArgumentError:
        """Return the error for an unexpected number of values."""
        return InvalidArgumentError(
            f"Name: {self._name}, Key: {key}.  Number of {kind.name} values != expected.  "
            f"Values size: {count} but output shape: {list(shape)}"
        )


def get_feature_values(feature: Any, key: str, kind: _FeatureType, name: str) -> Any:
    """Return the values of a `tf.train.Feature`; None if it is empty."""
    field = feature.WhichOneof("kind")
    if field is None:
        return None
    if field != kind.field:
        raise InvalidArgumentError(
            f"Name: {name}, Key: {key}.  Data types don't match. Expected type: {kind.name}, but the record has "
            f"a {field}."
        )
    return getattr(feature, field).value


def _parse_messages(message: Any, texts: Sequence[bytes], names: Sequence[str]) -> list[Any]:
    parsed = []
    for text, name in zip(texts, names, strict=True):
        try:
            parsed.append(message.FromString(text))
        except protos.DecodeError:
            raise InvalidArgumentError(
                f"Name: {name}, Could not parse example input, value: {text[:40]!r}"
            ) from None
    return parsed


def _make_records(texts: Sequence[bytes], names: Sequence[str]) -> list[_ParsedRecord]:
    examples = _parse_messages(protos.Example, texts, names)
    return [_ParsedRecord(e.features.feature, n) for e, n in zip(examples, names, strict=True)]


def _get_record_names(names: Any, count: int) -> list[str]:
    if names is None:
        return ["<unknown>"] * count
    flat = to_host_strings(names, "names of examples").reshape(-1).tolist()
    return [n.decode() for n in flat] if len(flat) == count else ["<unknown>"] * count


def _make_default(key: str, value: Any, shape: Sequence[int], kind: _FeatureType) -> np.ndarray:
    """Return the default value of a feature with the given shape."""
    array = np.asarray(convert_to_tensor(value).array)
    if (array.dtype == object) != (kind.numpy is object):
        raise InvalidValueError(
            f"default_value of feature {key!r} must have type {kind.name}, got {value!r}."
        )
    if array.size != np.prod(shape):
        raise InvalidArgumentError(
            f"default_value of feature {key!r} has shape {list(array.shape)}, expected {list(shape)}."
        )
    return array.astype(kind.numpy).reshape(shape)


def _parse_fixed(records: list[_ParsedRecord], key: str, feature: FixedLenFeature) -> np.ndarray:
    kind, shape = _get_feature_type(key, feature.dtype), _get_static_shape(key, feature.shape)
    count = int(np.prod(shape, dtype=np.int64))
    default = feature.default_value
    if default is not None:
        default = _make_default(key, default, shape, kind).reshape(-1).tolist()
    flat: list[Any] = []
    get_values = operator.attrgetter(f"{kind.field}.value")
    for record in records:
        feature_message = record.features.get(key)
        values = None if feature_message is None else get_values(feature_message)
        if not values and (values := record.values(key, kind)) is None:
            if default is None:
                raise record.make_missing_error(key, kind)
            values = default
        elif len(values) != count:
            raise record.make_size_error(key, kind, len(values), shape)
        flat.extend(values)
    return _to_array(flat, kind).reshape(len(records), *shape)


def _pad_sequences(rows: list[np.ndarray], shape: Sequence[int], kind: _FeatureType, value: Any, key: str) -> np.ndarray:  # fmt: skip
    """Stack sequences of rows, padded to the longest with `value`."""
    longest = max((len(r) for r in rows), default=0)
    if value is None:
        value = b"" if kind.numpy is object else 0
    padding = _make_default(key, value, [], kind)[()]
    result = np.full((len(rows), longest, *shape), padding, kind.numpy)
    for target, row in zip(result, rows, strict=True):
        target[: len(row)] = row
    return result


def _parse_sequences(
    records: list[_ParsedRecord], key: str, feature: FixedLenSequenceFeature
) -> list[np.ndarray]:
    kind, shape = _get_feature_type(key, feature.dtype), _get_static_shape(key, feature.shape)
    if not feature.allow_missing:
        raise ValueError("Unsupported: FixedLenSequenceFeature requires allow_missing to be True.")
    stride = int(np.prod(shape, dtype=np.int64))
    rows = []
    for record in records:
        values = record.values(key, kind) or ()
        if stride == 0 or len(values) % stride:
            raise record.make_size_error(key, kind, len(values), [None, *shape])
        rows.append(vary_sizes(_to_array(values, kind).reshape(-1, *shape), 0))
    return rows


def _make_sparse_rows(lists: list[np.ndarray], kind: _FeatureType, single: bool) -> SparseTensor:
    """Return lists of values as rows of a sparse matrix, or as a sparse vector if `single` is True."""
    lists = [vary_sizes(values, 0) for values in lists]
    lengths = [len(v) for v in lists]
    if single:
        (values,) = lists
        columns = np.arange(len(values), dtype=np.int64)[:, None]
        shape = np.array(lengths, np.int64)
        return SparseTensor(Tensor(columns), Tensor(values.astype(kind.numpy)), Tensor(shape))
    values = np.concatenate([*lists, np.empty(0, kind.numpy)]).astype(kind.numpy)
    indices = np.empty((len(values), 2), np.int64)
    indices[:, 0] = np.repeat(np.arange(len(lists)), lengths)
    indices[:, 1] = np.arange(len(values)) - np.repeat(np.cumsum([0, *lengths])[:-1], lengths)
    return SparseTensor(indices, values, [len(lists), max(lengths, default=0)])


def _parse_ragged(
    records: list[_ParsedRecord], key: str, feature: RaggedFeature, single: bool
) -> Tensor | RaggedTensor:
    kind = _get_feature_type(key, feature.dtype)
    lists = [_to_array(r.values(feature.value_key or key, kind) or (), kind) for r in records]
    if not feature.partitions:
        lists = [vary_sizes(row, 0) for row in lists]
    values = np.concatenate([*lists, np.empty(0, kind.numpy)]).astype(kind.numpy)
    dtype = dtypes.as_dtype(feature.row_splits_dtype).as_numpy_dtype
    rows: Tensor | RaggedTensor = convert_to_tensor(values)
    counts = [len(row) for row in lists]
    for partition in reversed(feature.partitions):
        if not hasattr(partition, "key") and not hasattr(partition, "length"):
            raise TypeError(
                f"RaggedFeature {key!r}: partitions must be a list of partition objects such as "
                f"tf.io.RaggedFeature.RowLengths(key), got {partition!r}."
            )
        if hasattr(partition, "length"):
            length = partition.length
            if isinstance(rows, RaggedTensor):
                rows = RaggedTensor.from_uniform_row_length(rows, np.array(length, dtype))
            else:
                rows = array.reshape(rows, [-1, length, *rows.shape[1:]])
            counts = [count // max(length, 1) for count in counts]
            continue
        integers = _get_feature_type(partition.key, dtypes.int64)
        lengths = [
            partition.compute_lengths(
                np.array(r.values(partition.key, integers) or (), dtype), count
            )
            for r, count in zip(records, counts, strict=True)
        ]
        rows = RaggedTensor.from_row_lengths(rows, np.concatenate(lengths).astype(dtype))
        counts = [len(row) for row in lengths]
    return rows if single else RaggedTensor.from_row_lengths(rows, np.array(counts, dtype))


def _parse_sparse(
    records: list[_ParsedRecord], key: str, feature: SparseFeature, single: bool
) -> SparseTensor:
    is_list = isinstance(feature.index_key, (list, tuple))
    index_keys = list(feature.index_key) if is_list else [str(feature.index_key)]
    size_list: Any = feature.size if isinstance(feature.size, (list, tuple)) else [feature.size]
    sizes = [int(n) for n in size_list]
    kind, integers = _get_feature_type(key, feature.dtype), _FEATURE_TYPES["int64"]
    indices, values = [], []
    for row, record in enumerate(records):
        row_values = _to_array(record.values(feature.value_key, kind) or (), kind)
        coordinates = [_to_array(record.values(k, integers) or (), integers) for k in index_keys]
        for name, index, size in zip(index_keys, coordinates, sizes, strict=True):
            if len(index) != len(row_values):
                raise InvalidArgumentError(
                    f"Feature {key!r} has {len(index)} indices in {name!r}, but {len(row_values)} values in "
                    f"{feature.value_key!r}; the numbers must be equal."
                )
            if len(index) and not 0 <= index.min() <= index.max() < size:
                raise InvalidArgumentError(
                    f"Feature {key!r}: an index in {name!r} is outside of [0, {size})."
                )
        order: Any = slice(None) if feature.already_sorted else np.lexsort(coordinates[::-1])
        columns = [c[order] for c in coordinates]
        if not single:
            columns.insert(0, np.full(len(row_values), row, np.int64))
        indices.append(np.stack(columns, axis=1))
        values.append(row_values[order])
    width = len(sizes) + (not single)
    return SparseTensor(
        np.concatenate([*indices, np.empty((0, width), np.int64)]),
        np.concatenate([*values, np.empty(0, kind.numpy)]).astype(kind.numpy),
        sizes if single else [len(records), *sizes],
    )


def _parse_features(records: list[_ParsedRecord], features: Mapping[str, Any], single: bool) -> dict[str, _Parsed]:  # fmt: skip
    """Parse all features of records; `single` drops the dimension of records."""
    if not features:
        raise ValueError("Missing features: `features` is empty.")
    parsed: dict[str, _Parsed] = {}
    for key, feature in _sort_features(features):
        if isinstance(feature, FixedLenFeature):
            array = _parse_fixed(records, key, feature)
            parsed[key] = convert_to_tensor(array[0] if single else array)
        elif isinstance(feature, FixedLenSequenceFeature):
            kind = _get_feature_type(key, feature.dtype)
            rows = _parse_sequences(records, key, feature)
            shape = _get_static_shape(key, feature.shape)
            parsed[key] = convert_to_tensor(
                rows[0] if single else _pad_sequences(rows, shape, kind, feature.default_value, key)
            )
        elif isinstance(feature, VarLenFeature):
            kind = _get_feature_type(key, feature.dtype)
            lists = [_to_array(r.values(key, kind) or (), kind) for r in records]
            parsed[key] = _make_sparse_rows(lists, kind, single)
        elif isinstance(feature, SparseFeature):
            parsed[key] = _parse_sparse(records, key, feature, single)
        elif isinstance(feature, RaggedFeature):
            parsed[key] = _parse_ragged(records, key, feature, single)
        else:
            raise ValueError(
                f"Invalid feature {key}:{feature}: expected tf.io.FixedLenFeature, FixedLenSequenceFeature, "
                "VarLenFeature or SparseFeature."
            )
    return parsed


def _check_keys(features: Mapping[str, Any]) -> None:
    """Raise a ValueError if features of two kinds read the same key of an example."""
    keys: dict[str, set[str]] = {"dense": set(), "ragged": set(), "sparse": set()}
    for key, feature in features.items():
        if isinstance(feature, RaggedFeature):
            partitions = [p.key for p in feature.partitions if hasattr(p, "key")]
            keys["ragged"].update([feature.value_key or key, *partitions])
        elif isinstance(feature, SparseFeature):
            index_keys = feature.index_key
            index_keys = [index_keys] if isinstance(index_keys, str) else index_keys
            keys["sparse"].update([feature.value_key, *index_keys])
        else:
            keys["sparse" if isinstance(feature, VarLenFeature) else "dense"].add(key)
    for first, second in itertools.combinations(keys, 2):
        common = sorted(keys[first] & keys[second])
        if common:
            raise ValueError(
                f"{first.capitalize()} and {second} keys must not intersect, but features of both kinds read {common}. "
                "Parse the examples twice, or convert one tensor to the other form."
            )


def _sort_features(features: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Sort features in the order of TensorFlow's results: variable-length, dense, sparse."""
    _check_keys(features)

    def sort_key(item: tuple[str, Any]) -> tuple[int, str]:
        key, feature = item
        return (
            0 if isinstance(feature, VarLenFeature) else 2 * isinstance(feature, SparseFeature) or 1
        ), key

    return sorted(features.items(), key=sort_key)


def parse_example(
    serialized: TensorLike,
    features: Mapping[str, Any],
    example_names: Any = None,
    name: str | None = None,
) -> dict[str, Any]:
    """Parse a batch of serialized `tf.train.Example` messages.

    Args:
      serialized: Vector of strings; a scalar is parsed like `parse_single_example`.
      features: Maps names to `FixedLenFeature`, `FixedLenSequenceFeature`, `VarLenFeature` or
        `SparseFeature`.
      example_names: Name of each example for error messages.
      name: Ignored.

    Returns:
      A dictionary of tensors with a leading dimension of records, and `tf.SparseTensor`s for
      features of variable length.

    Raises:
      InvalidArgumentError: A feature is missing, or has another dtype or size.
      ValueError: `features` is empty or invalid.

    Example:
      >>> feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[3, 4]))
      >>> example = tf.train.Example(features=tf.train.Features(feature={"n": feature}))
      >>> parsed = tf.io.parse_example(
      ...     [example.SerializeToString()] * 2, {"n": tf.io.FixedLenFeature([2], tf.int64)})
      >>> parsed["n"].numpy().tolist()
      [[3, 4], [3, 4]]
    """
    if isinstance(serialized, DeferredValue):
        return _parse_deferred(serialized, features)
    texts = to_host_strings(serialized, "a serialized example")
    if texts.ndim > 1:
        raise InvalidArgumentError(
            f"serialized must be a vector of strings, got shape {list(texts.shape)}."
        )
    flat = texts.reshape(-1).tolist()
    records = _make_records(flat, _get_record_names(example_names, len(flat)))
    return _parse_features(records, features, single=texts.ndim == 0)


def parse_single_example(
    serialized: TensorLike,
    features: Mapping[str, Any],
    example_names: Any = None,
    name: str | None = None,
) -> dict[str, Any]:
    """Parse one serialized `tf.train.Example` message.

    Args:
      serialized: String scalar.
      features: As for `parse_example`.
      example_names: Name of the example for error messages.
      name: Ignored.

    Returns:
      A dictionary of tensors, and `tf.SparseTensor`s for features of variable length.

    Raises:
      InvalidArgumentError: A feature is missing, or has another dtype or size.
      ValueError: `features` is empty or invalid.

    Example:
      >>> feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"tea"]))
      >>> record = tf.train.Example(features=tf.train.Features(feature={"name": feature}))
      >>> features = {"name": tf.io.FixedLenFeature([], tf.string)}
      >>> tf.io.parse_single_example(record.SerializeToString(), features)["name"].numpy()
      b'tea'
    """
    if isinstance(serialized, DeferredValue):
        return _parse_deferred(serialized, features)
    texts = to_host_strings(serialized, "a serialized example")
    if texts.ndim:
        raise InvalidValueError(f"serialized must be a scalar, got shape {list(texts.shape)}.")
    return parse_example(serialized, features, example_names)


def _parse_deferred(serialized: DeferredValue, features: Mapping[str, Any]) -> dict[str, Any]:
    """Record the parsing of strings that are unknown while a map function is traced."""

    def parse(texts: Tensor) -> dict[str, PyTree]:
        flat = texts.array.tolist()
        return _parse_rows(_make_records(flat, _get_record_names(None, len(flat))), features)

    placeholders: dict[str, Any] = context.host_recorder.parse_examples(
        serialized, features, parse, lambda: _make_single_specs(features)
    )
    return _wrap_sparse(placeholders, features)


def _wrap_sparse(values: Mapping[str, Any], features: Mapping[str, Any]) -> dict[str, Any]:
    """Replace recorded values of features of variable length by sparse vectors."""
    return {
        key: FullSparseVector(value) if isinstance(features[key], VarLenFeature) else value
        for key, value in values.items()
    }


def _make_rows(values: np.ndarray, lengths: Sequence[int]) -> RaggedTensor:
    return RaggedTensor.from_row_lengths(Tensor(values), np.array(lengths), validate=False)


def _parse_rows(records: list[_ParsedRecord], features: Mapping[str, Any]) -> dict[str, PyTree]:
    """Parse features of single examples, one row for each: stacked, or ragged where sizes differ."""
    parsed: dict[str, PyTree] = {}
    for key, feature in _sort_features(features):
        if isinstance(feature, FixedLenFeature):
            parsed[key] = Tensor(_parse_fixed(records, key, feature))
            continue
        if isinstance(feature, FixedLenSequenceFeature):
            rows = _parse_sequences(records, key, feature)
        else:
            kind = _get_feature_type(key, feature.dtype)
            name = getattr(feature, "value_key", None) or key
            rows = [_to_array(r.values(name, kind) or (), kind) for r in records]
        parsed[key] = _make_rows(np.concatenate(rows), list(map(len, rows)))
    return parsed


def parse_feature(serialized: TensorLike, feature: str, shape: Sequence[int], dtype: DTypeLike, default: Any) -> Tensor:  # fmt: skip
    """Parse one feature of fixed size from serialized examples.

    Args:
      serialized: Vector of strings, or a scalar.
      feature: Name of the feature.
      shape: Shape of the feature.
      dtype: int64, float32 or string.
      default: Value for examples that lack the feature, or None.
    """
    fixed, texts = (
        FixedLenFeature(shape, dtype, default),
        to_host_strings(serialized, "a serialized example"),
    )
    if texts.ndim != 1 or texts.size <= _BLOCK_RECORDS:
        parsed: Tensor = parse_example(serialized, {feature: fixed})[feature]
        return parsed
    blocks = []
    for start in range(0, texts.size, _BLOCK_RECORDS):
        flat = texts[start : start + _BLOCK_RECORDS].tolist()
        blocks.append(
            _parse_fixed(_make_records(flat, _get_record_names(None, len(flat))), feature, fixed)
        )
    return convert_to_tensor(np.concatenate(blocks))


def _make_single_specs(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specs of features of a single example.

    Raises:
      UnrecordableError: A feature has several parts.
    """

    def make_spec(key: str, feature: PyTree) -> TensorSpec:
        if isinstance(feature, SparseFeature) or getattr(feature, "partitions", None):
            raise UnrecordableError("a feature with several parts")
        kind = _get_feature_type(key, feature.dtype).numpy
        sizes: list[int | None] = [] if isinstance(feature, FixedLenFeature) else [None]
        if isinstance(feature, (FixedLenFeature, FixedLenSequenceFeature)):
            sizes += _get_static_shape(key, feature.shape)
        return TensorSpec(sizes, dtypes.string if kind is object else kind)

    return {key: make_spec(key, feature) for key, feature in _sort_features(features)}


def make_feature_specs(
    features: Mapping[str, Any], batch: Sequence[int | None] = ()
) -> dict[str, Any]:
    """Return the specs of parsed features.

    Args:
      features: As for `parse_example`.
      batch: Leading dimensions of the parsed features.
    """

    def make_spec(key: str, feature: Any) -> TensorSpec | SparseTensorSpec:
        kind = as_dtype(feature.dtype)
        if isinstance(feature, VarLenFeature):
            return SparseTensorSpec([*batch, None], kind)
        if isinstance(feature, RaggedFeature):
            raise UnrecordableError("a ragged tensor")
        if isinstance(feature, SparseFeature):
            sizes = feature.size if isinstance(feature.size, (list, tuple)) else [feature.size]
            return SparseTensorSpec([*batch, *sizes], kind)
        steps = [None] if isinstance(feature, FixedLenSequenceFeature) else []
        return TensorSpec([*batch, *steps, *_get_static_shape(key, feature.shape)], kind)

    return {key: make_spec(key, feature) for key, feature in _sort_features(features)}


def parse_single_sequence_example(
    serialized: TensorLike,
    context_features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
    example_name: Any = None,
    name: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse one serialized `tf.train.SequenceExample` message.

    Args:
      serialized: String scalar.
      context_features: Features of the entire sequence, as for `parse_example`.
      sequence_features: Features of every step: `FixedLenSequenceFeature` with the shape of a step,
        `VarLenFeature` or `RaggedFeature`.
      example_name: Name of the example for error messages.
      name: Ignored.

    Returns:
      Dictionaries of tensors of the sequence, and of its steps with a leading dimension of steps.

    Raises:
      InvalidArgumentError: A feature is missing, or has another dtype or size.
      ValueError: No features are requested.

    Example:
      >>> steps = [tf.train.Feature(int64_list=tf.train.Int64List(value=[v])) for v in (5, 6)]
      >>> lists = tf.train.FeatureLists(feature_list={"x": tf.train.FeatureList(feature=steps)})
      >>> record = tf.train.SequenceExample(feature_lists=lists).SerializeToString()
      >>> features = {"x": tf.io.FixedLenSequenceFeature([], tf.int64)}
      >>> _, parsed = tf.io.parse_single_sequence_example(record, sequence_features=features)
      >>> print(parsed["x"].numpy())
      [5 6]
    """
    if isinstance(serialized, DeferredValue):
        return _parse_deferred_sequence(serialized, context_features or {}, sequence_features or {})
    texts = to_host_strings(serialized, "a serialized example")
    if texts.ndim:
        raise InvalidValueError(f"serialized must be a scalar, got shape {list(texts.shape)}.")
    context, steps, _ = _parse_sequence_examples(
        texts, context_features, sequence_features, example_name, single=True
    )
    return context, steps


def _parse_deferred_sequence(
    serialized: DeferredValue,
    context_features: Mapping[str, Any],
    sequence: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Record the parsing of a sequence that is unknown while a map function is traced."""
    if not (context_features or sequence) or not all(
        isinstance(feature, FixedLenSequenceFeature) for feature in sequence.values()
    ):
        raise UnrecordableError("sequences with features of variable length")

    def parse(texts: Tensor) -> PyTree:
        flat = texts.array.tolist()
        names = _get_record_names(None, len(flat))
        examples = _parse_messages(protos.SequenceExample, flat, names)
        records = [
            _ParsedRecord(e.context.feature, n) for e, n in zip(examples, names, strict=True)
        ]
        steps = {
            key: _make_rows(*_parse_fixed_steps(examples, key, feature, names))
            for key, feature in sequence.items()
        }
        parsed = _parse_rows(records, context_features) if context_features else {}
        return parsed, steps

    specs = _make_single_specs(context_features) if context_features else {}
    placeholders = context.host_recorder.parse(
        serialized, parse, (specs, _make_single_specs(sequence) if sequence else {})
    )
    return _wrap_sparse(placeholders[0], context_features), placeholders[1]


def parse_sequence_example(
    serialized: TensorLike,
    context_features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
    example_names: Any = None,
    name: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Parse a batch of serialized `tf.train.SequenceExample` messages.

    Args:
      serialized: Vector of strings.
      context_features: Features of entire sequences, as for `parse_example`.
      sequence_features: Features of every step, as for `parse_single_sequence_example`.
      example_names: Name of each example for error messages.
      name: Ignored.

    Returns:
      Three dictionaries of tensors: of entire sequences, of steps [records, steps, ...] padded to
      the longest sequence, and of the lengths [records] of `FixedLenSequenceFeature`s.

    Raises:
      InvalidArgumentError: A feature is missing, or has another dtype or size.
      ValueError: No features are requested.

    Example:
      >>> steps = [tf.train.Feature(int64_list=tf.train.Int64List(value=[v])) for v in (5, 6)]
      >>> lists = tf.train.FeatureLists(feature_list={"x": tf.train.FeatureList(feature=steps)})
      >>> record = tf.train.SequenceExample(feature_lists=lists).SerializeToString()
      >>> features = {"x": tf.io.FixedLenSequenceFeature([], tf.int64)}
      >>> _, parsed, lengths = tf.io.parse_sequence_example([record], sequence_features=features)
      >>> print(parsed["x"].numpy(), lengths["x"].numpy())
      [[5 6]] [2]
    """
    texts = to_host_strings(serialized, "a serialized example")
    return _parse_sequence_examples(
        texts, context_features, sequence_features, example_names, single=False
    )


def _parse_sequence_examples(
    texts: np.ndarray, context_features: Any, sequence_features: Any, names: Any, single: bool
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    if not context_features and not sequence_features:
        raise ValueError("Missing features: pass context_features or sequence_features.")
    flat = texts.reshape(-1).tolist()
    labels = _get_record_names(names, len(flat))
    examples = _parse_messages(protos.SequenceExample, flat, labels)
    records = [_ParsedRecord(e.context.feature, n) for e, n in zip(examples, labels, strict=True)]
    context = _parse_features(records, context_features, single) if context_features else {}
    steps: dict[str, Any] = {}
    lengths: dict[str, Any] = {}
    for key, feature in (sequence_features or {}).items():
        if isinstance(feature, RaggedFeature):
            steps[key] = _parse_ragged_steps(examples, key, feature, labels, single)
            continue
        if not isinstance(feature, (FixedLenSequenceFeature, VarLenFeature)):
            raise ValueError(
                f"Invalid sequence feature {key}:{feature}: expected tf.io.FixedLenSequenceFeature, VarLenFeature or "
                "RaggedFeature."
            )
        kind = _get_feature_type(key, feature.dtype)
        if isinstance(feature, VarLenFeature):
            lists = [_parse_steps(e, key, kind, n) for e, n in zip(examples, labels, strict=True)]
            steps[key] = (
                _make_sparse_rows(lists[0], kind, False)
                if single
                else _make_sparse_steps(lists, kind)
            )
            continue
        values, counts = _parse_fixed_steps(examples, key, feature, labels)
        lengths[key] = convert_to_tensor(np.array(counts, np.int64))
        shape = _get_static_shape(key, feature.shape)
        ends = [0, *itertools.accumulate(counts)]
        arrays = [vary_sizes(values[i:j], 0) for i, j in itertools.pairwise(ends)]
        steps[key] = convert_to_tensor(
            arrays[0] if single else _pad_sequences(arrays, shape, kind, feature.default_value, key)
        )
    return context, steps, lengths


def _make_place(key: str, index: int) -> str:
    return f"{key}, Feature list: {key}, Index: {index}"


def _parse_steps(example: Any, key: str, kind: _FeatureType, name: str) -> list[np.ndarray]:
    """Return the values of every step of one record."""
    lists = example.feature_lists.feature_list
    steps = lists[key].feature if key in lists else ()
    return [
        _to_array(get_feature_values(step, _make_place(key, i), kind, name) or (), kind)
        for i, step in enumerate(steps)
    ]


def _parse_fixed_steps(
    examples: Sequence[Any], key: str, feature: FixedLenSequenceFeature, names: Sequence[str]
) -> tuple[np.ndarray, list[int]]:
    """Return the values [steps, ...] of the steps of all records, and the number of steps of each record."""
    kind, shape = _get_feature_type(key, feature.dtype), _get_static_shape(key, feature.shape)
    size = math.prod(shape)
    flat: list[Any] = []
    counts = []
    for example, name in zip(examples, names, strict=True):
        lists = example.feature_lists.feature_list
        if key not in lists and not feature.allow_missing:
            raise InvalidArgumentError(
                f"Name: {name}, Feature list '{key}' is required but could not be found.  Did you mean to include it "
                "in feature_list_dense_missing_assumed_empty or feature_list_dense_defaults? Pass allow_missing=True."
            )
        steps = lists[key].feature if key in lists else ()
        for index, step in enumerate(steps):
            if step.WhichOneof("kind") == kind.field:
                values = getattr(step, kind.field).value
            else:
                # The step is empty, or the function raises an error.
                values = get_feature_values(step, _make_place(key, index), kind, name) or ()
            if len(values) != size:
                raise InvalidArgumentError(
                    f"Name: {name}, Key: {key}, Index: {index}.  Number of {kind.name} values != expected.  values "
                    f"size: {len(values)} but output shape: {list(shape)}"
                )
            flat.extend(values)
        counts.append(len(steps))
    return _to_array(flat, kind).reshape(sum(counts), *shape), counts


def _parse_ragged_steps(
    examples: Sequence[Any], key: str, feature: RaggedFeature, names: Sequence[str], single: bool
) -> Tensor | RaggedTensor:
    """Parse each step of records like an example; the steps are a further dimension of the result."""
    value_key = feature.value_key or key
    keys = [value_key, *(p.key for p in feature.partitions if hasattr(p, "key"))]
    steps, counts = [], []
    for example, name in zip(examples, names, strict=True):
        lists = example.feature_lists.feature_list
        columns = [lists[k].feature if k in lists else () for k in keys]
        counts.append(len(columns[0]))
        if any(len(column) != counts[-1] for column in columns):
            raise InvalidArgumentError(
                f"Name: {name}, Feature {key}: values and partitions are not aligned, because the feature lists {keys} "
                f"have {[len(column) for column in columns]} steps."
            )
        steps += [
            _ParsedRecord(dict(zip(keys, step, strict=True)), name)
            for step in zip(*columns, strict=True)
        ]
    rows = _parse_ragged(steps, key, feature, False)
    if single:
        return rows
    dtype = dtypes.as_dtype(feature.row_splits_dtype).as_numpy_dtype
    return RaggedTensor.from_row_lengths(rows, np.array(counts, dtype))


def _make_sparse_steps(lists: list[list[np.ndarray]], kind: _FeatureType) -> SparseTensor:
    indices = [
        (record, step, column)
        for record, rows in enumerate(lists)
        for step, row in enumerate(rows)
        for column in range(len(row))
    ]
    flat = [row for rows in lists for row in rows]
    values = np.concatenate([*flat, np.empty(0, kind.numpy)]).astype(kind.numpy)
    steps = max((len(rows) for rows in lists), default=0)
    longest = max((len(row) for row in flat), default=0)
    return SparseTensor(
        np.array(indices, np.int64).reshape(-1, 3), values, [len(lists), steps, longest]
    )
