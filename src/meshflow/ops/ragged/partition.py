"""`RowPartition`: the division of values into rows.

The array functions of partitions run with NumPy on the host if the values of their operands are known,
and are traced otherwise. Results with a size that depends on values, such as the positions of the values
of selected rows, need known values, or become symbols of the trace (decision 40).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operands import cast_numpy
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError, SymbolicArrayError
from meshflow.core.values.composite import CompositeSpec, CompositeTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype, int32, int64
from meshflow.core.values.specs import TensorSpec, TypeSpec, type_spec_from_value
from meshflow.core.values.symbolic_sizes import (
    get_sizes,
    has_symbolic_size,
    make_sizes_tensor,
    pad_for_gather,
)
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import compute_size, read_sizes
from meshflow.environment.types import Array, PyTree

# A size: an integer, a symbol of `jax.export`, or None if it is unknown.
Size: TypeAlias = Any
# NumPy or `jax.numpy`.
Namespace: TypeAlias = Any
# Use of row splits on the host, for errors.
SPLITS_USE = "row splits, which determine the size of a result"


def define_array_function(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """Make a function of tensors of a function of NumPy or `jax.numpy`, arrays and static values."""
    op = Op(
        function.__name__.strip("_"),
        lambda operands, static: function(jnp, *operands, *static),
        differentiable=False,
    )

    def run(*operands: Tensor, static: tuple[Any, ...] = ()) -> Tensor:
        arrays = [find_value(t) for t in operands]
        if any(a is None for a in arrays) or has_symbolic_size(s for s in static if s is not None):
            return apply(op, operands, static)
        return Tensor(function(np, *arrays, *static))

    return run


def find_value(tensor: Tensor) -> np.ndarray | None:
    """Return the value of a tensor on the host, or None if only the running program or session knows it."""
    if not getattr(tensor, "is_constant", True):
        return None
    array = tensor.array
    if type(array) is np.ndarray:
        return array
    return tensor.find_known_value() if isinstance(array, jax.core.Tracer) else np.asarray(array)


def have_different_values(first: Tensor, second: Tensor) -> bool:
    """Check whether the values of two tensors differ; return False if one of them is not known."""
    x, y = find_value(first), find_value(second)
    return x is not None and y is not None and not np.array_equal(x, y)


def convert_integers(
    value: TensorLike, dtype: DType | None = None, name: str = "row partition"
) -> Tensor:
    """Convert to a tensor of int32 or int64, by default int64 for Python values.

    Args:
      value: The integers.
      dtype: The dtype.
      name: Name of the argument, for errors.

    Raises:
      ValueError: If a tensor has another dtype.
    """
    if isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
        value = convert_to_tensor(value)
    value = cast_numpy(value, int64)
    if isinstance(value, np.ndarray | np.generic) or not hasattr(value, "dtype"):
        try:
            array = np.asarray(value)
        except SymbolicArrayError:
            # A list contains a size that the running program computes.
            return convert_integers(
                convert_to_tensor(value, dtype_hint=dtype or int64), dtype, name
            )
        if array.dtype == object:
            value = convert_to_tensor(value)
        else:
            is_exact = array.dtype in (np.int32, np.int64) and hasattr(value, "dtype")
            if array.size and array.dtype.kind not in "iu":
                raise _make_dtype_error(name, array.dtype)
            return Tensor(
                array.astype((dtype or int64).dtype if dtype or not is_exact else array.dtype)
            )
    tensor = convert_to_tensor(value)
    if tensor.dtype not in (int32, int64):
        raise _make_dtype_error(name, tensor.dtype.name)
    return (
        tensor if dtype is None or tensor.dtype is dtype else _cast(tensor, static=(dtype.dtype,))
    )


def _make_dtype_error(name: str, dtype: object) -> InvalidValueError:
    return InvalidValueError(
        f"Argument `tensor` (name: {name}) must be of type integer, int32 or int64, got {dtype}."
    )


def read_integers(value: TensorLike, use: str) -> np.ndarray:
    """Return integers on the host, which the size of a result depends on."""
    return convert_integers(value).require_value(use)


def make_size(size: Size, dtype: DType = int64) -> Tensor:
    """Return a size, which may be a symbol, as a tensor."""
    if has_symbolic_size([size]):
        return make_sizes_tensor(size, dtype.dtype)
    return Tensor(np.array(size, dtype.dtype))


def get_namespace(*arrays: Array) -> Namespace:
    """Return `jax.numpy` if an array is traced, as in a function that is being saved, or NumPy."""
    return jnp if any(isinstance(a, jax.core.Tracer) for a in arrays) else np


def expand_rows(lengths: Array) -> tuple[Array, Array]:
    """Return the row of each value, and its index in the row, for the lengths of rows."""
    if isinstance(lengths, np.ndarray):
        rows = np.repeat(np.arange(len(lengths)), lengths)
        return rows, np.arange(len(rows)) - (np.cumsum(lengths) - lengths)[rows]
    splits = jnp.cumsum(jnp.concatenate([jnp.zeros((1,), np.int64), lengths]))
    count = compute_size(lambda splits: splits[-1], [Tensor(splits)], SPLITS_USE)
    ids = _locate_rows(splits, count)
    return ids, jnp.arange(count) - splits[ids]


def find_true(flags: Array) -> Array:
    """Return the indices of the true elements of a vector."""
    if isinstance(flags, np.ndarray):
        return np.flatnonzero(flags)
    ends = jnp.cumsum(jnp.concatenate([jnp.zeros((1,), np.int64), flags]))
    count = compute_size(lambda ends: ends[-1], [Tensor(ends)], SPLITS_USE)
    targets = jnp.where(flags, ends[:-1], count)
    return jnp.zeros((count,), np.int64).at[targets].set(jnp.arange(flags.shape[0]), mode="drop")


def concatenate_ranges(starts: Array, lengths: Array) -> Array:
    """Return the positions of consecutive values in rows with some starts and lengths."""
    rows, offsets = expand_rows(lengths)
    return take(starts, rows) + offsets


def take(values: Array, indices: Array) -> Array:
    """Return the values at some valid indices."""
    if isinstance(values, np.ndarray) and isinstance(indices, np.ndarray):
        return values[indices]
    # NumPy cannot index with a traced array.
    return jnp.asarray(pad_for_gather(values, 0))[indices]


@define_array_function
def _cast(xp: Namespace, values: Array, dtype: np.dtype) -> Array:
    return values.astype(dtype)


@define_array_function
def _subtract_neighbors(xp: Namespace, splits: Array) -> Array:
    return splits[1:] - splits[:-1]


@define_array_function
def _drop_last(xp: Namespace, splits: Array) -> Array:
    return splits[:-1]


@define_array_function
def _drop_first(xp: Namespace, splits: Array) -> Array:
    return splits[1:]


@define_array_function
def _sum_lengths(xp: Namespace, lengths: Array) -> Array:
    zero = xp.zeros((1,), lengths.dtype)
    return xp.cumsum(xp.concatenate([zero, lengths]), dtype=lengths.dtype)


@define_array_function
def _find_rows(xp: Namespace, splits: Array, num_values: Size) -> Array:
    """Return the row of each value."""
    if xp is np:
        ids = np.arange(splits.shape[0] - 1, dtype=splits.dtype)
        return np.repeat(ids, np.diff(np.asarray(splits)))
    return _locate_rows(splits, num_values)


def _locate_rows(splits: Array, num_values: Size) -> Array:
    # XLA computes prefix sums of at least one element.
    ends = jnp.zeros((num_values + 1,), splits.dtype).at[splits[1:]].add(1, mode="drop")
    return jnp.cumsum(ends, dtype=splits.dtype)[:-1]


@define_array_function
def _find_splits(xp: Namespace, ids: Array, num_rows: Size) -> Array:
    """Return the row splits for the ascending rows of values."""
    if xp is np:
        host = np.asarray(ids)
        counts = np.bincount(host, minlength=num_rows) if host.size else np.zeros(num_rows, int)
        return np.concatenate([[0], np.cumsum(counts)]).astype(ids.dtype)
    sizes = jnp.zeros((num_rows + 1,), ids.dtype).at[ids + 1].add(1, mode="drop")
    return jnp.cumsum(sizes, dtype=ids.dtype)


@define_array_function
def _find_columns(xp: Namespace, splits: Array, ids: Array) -> Array:
    """Return the index of each value in its row."""
    return xp.arange(ids.shape[0], dtype=splits.dtype) - splits[ids]


@define_array_function
def _make_uniform_splits(xp: Namespace, length: Array, num_rows: Size) -> Array:
    return xp.arange(num_rows + 1, dtype=length.dtype) * length


@define_array_function
def _append(xp: Namespace, starts: Array, num_values: Size) -> Array:
    last = xp.zeros((1,), starts.dtype) + num_values
    return xp.concatenate([starts, last.astype(starts.dtype)])


@define_array_function
def _prepend_zero(xp: Namespace, limits: Array) -> Array:
    return xp.concatenate([xp.zeros((1,), limits.dtype), limits])


@define_array_function
def _find_largest(xp: Namespace, lengths: Array) -> Array:
    return xp.max(lengths, initial=0).astype(lengths.dtype)


find_largest, sum_lengths = _find_largest, _sum_lengths


class RowPartition(CompositeTensor):
    """A division of values into rows.

    Create one with `from_row_splits` and its siblings.

    Example:
      >>> rows = tf.experimental.RowPartition.from_row_lengths([2, 0, 1])
      >>> rows.row_splits().numpy().tolist(), rows.value_rowids().numpy().tolist()
      ([0, 2, 2, 3], [0, 0, 2])
    """

    _is_extension = False

    def __init__(
        self,
        row_splits: Tensor,
        uniform_row_length: int | None = None,
        num_values: Size = None,
        internal: bool = False,
    ) -> None:
        if not internal:
            raise ValueError(
                "RowPartition constructor is private: use a class method such as RowPartition.from_row_splits."
            )
        self._splits = row_splits
        self.static_uniform_row_length = uniform_row_length
        self._num_values = num_values
        self._cache: dict[str, tuple[object, Tensor]] = {}

    # ---- construction ----------------------------------------------------------------------

    @classmethod
    def from_row_splits(
        cls,
        row_splits: TensorLike,
        validate: bool = True,
        dtype: DTypeLike | None = None,
        dtype_hint: DTypeLike | None = None,
        num_values: Size = None,
    ) -> RowPartition:
        """Create rows from the positions in the values at which they start, and the last end."""
        splits = _convert(row_splits, dtype)
        _check_rank(splits, 1, "row_splits")
        if splits.shape[0] == 0:
            raise ValueError("row_splits tensor may not be empty.")
        known = find_value(splits) if validate else None
        if known is not None:
            if known[0] != 0 or (np.diff(known) < 0).any():
                raise _make_error(f"row_splits={known.tolist()} must ascend from 0")
            if num_values is not None and not has_symbolic_size([num_values]):
                _check_count(known[-1], num_values)
        return cls(splits, None, num_values, internal=True)

    @classmethod
    def from_row_lengths(
        cls,
        row_lengths: TensorLike,
        validate: bool = True,
        dtype: DTypeLike | None = None,
        dtype_hint: DTypeLike | None = None,
        num_values: Size = None,
    ) -> RowPartition:
        """Create rows from their lengths."""
        lengths = _convert(row_lengths, dtype)
        _check_rank(lengths, 1, "row_lengths")
        known = find_value(lengths) if validate else None
        if known is not None:
            if (known < 0).any():
                raise _make_error(f"row_lengths={known.tolist()} must not be negative")
            if num_values is not None and not has_symbolic_size([num_values]):
                _check_count(known.sum(), num_values)
        partition = cls(_sum_lengths(lengths), None, num_values, internal=True)
        partition.store("lengths", lengths)
        return partition

    @classmethod
    def from_value_rowids(
        cls,
        value_rowids: TensorLike,
        nrows: TensorLike | None = None,
        validate: bool = True,
        dtype: DTypeLike | None = None,
        dtype_hint: DTypeLike | None = None,
    ) -> RowPartition:
        """Create rows from the row of each value, in ascending order."""
        ids = _convert(value_rowids, dtype)
        _check_rank(ids, 1, "value_rowids")
        known = find_value(ids)
        if nrows is None:
            use = "value_rowids of a RaggedTensor without nrows"
            count: Size = compute_size(lambda ids: ids.max(initial=-1) + 1, [ids], use)
        else:
            count = _read_count(nrows, "nrows")
        if validate and known is not None and not _is_ascending(known, count):
            raise _make_error(
                f"value_rowids={known.tolist()} must ascend and be less than nrows={count}"
            )
        num_values = ids.array.shape[0]
        partition = cls(_find_splits(ids, static=(count,)), None, num_values, internal=True)
        partition.store("value_rowids", ids)
        return partition

    @classmethod
    def from_row_starts(
        cls,
        row_starts: TensorLike,
        nvals: TensorLike,
        validate: bool = True,
        dtype: DTypeLike | None = None,
        dtype_hint: DTypeLike | None = None,
    ) -> RowPartition:
        """Create rows from the positions in the values at which they start."""
        starts = _convert(row_starts, dtype)
        _check_rank(starts, 1, "row_starts")
        count = _read_count(nvals, "nvals")
        splits = _append(starts, static=(count,))
        if not starts.array.shape[0]:
            return cls(Tensor(np.zeros(1, starts.array.dtype)), None, count, internal=True)
        return cls.from_row_splits(splits, validate, num_values=count)

    @classmethod
    def from_row_limits(
        cls,
        row_limits: TensorLike,
        validate: bool = True,
        dtype: DTypeLike | None = None,
        dtype_hint: DTypeLike | None = None,
        num_values: Size = None,
    ) -> RowPartition:
        """Create rows from the positions in the values at which they end."""
        limits = _convert(row_limits, dtype)
        _check_rank(limits, 1, "row_limits")
        return cls.from_row_splits(_prepend_zero(limits), validate, num_values=num_values)

    @classmethod
    def from_uniform_row_length(
        cls,
        uniform_row_length: TensorLike,
        nvals: TensorLike | None = None,
        nrows: TensorLike | None = None,
        validate: bool = True,
        dtype: DTypeLike | None = None,
        dtype_hint: DTypeLike | None = None,
    ) -> RowPartition:
        """Create rows of one length."""
        if nvals is None and nrows is None:
            raise ValueError("Either (or both) of nvals and nrows must be specified")
        length = _convert(uniform_row_length, dtype)
        _check_rank(length, 0, "uniform_row_length")
        values: Size = None if nvals is None else _read_count(nvals, "nvals")
        if find_value(length) is None:
            # Only the program knows the length, so the rows are those of computed row splits.
            use = "uniform_row_length of a RaggedTensor"
            count = lambda size, values: values // size
            rows = (
                compute_size(count, [length, make_size(values)], use)
                if nrows is None
                else _read_count(nrows, "nrows")
            )
            splits = _make_uniform_splits(length, static=(rows,))
            return cls(splits, None, values, internal=True)
        size = int(length.require_value("uniform_row_length of a RaggedTensor"))
        if size < 0:
            raise _make_error(f"uniform_row_length={size} must not be negative")
        if nrows is not None:
            rows = _read_count(nrows, "nrows")
        else:
            rows = values // size if size else 0
        is_known = values is not None and not has_symbolic_size([rows, values])
        if validate and is_known and rows * size != values:
            raise _make_error(
                f"{values} values do not form {rows} rows of uniform_row_length={size}"
            )
        splits = _make_uniform_splits(length, static=(rows,))
        return cls(splits, size, rows * size if values is None else values, internal=True)

    # ---- parts -----------------------------------------------------------------------------

    def store(self, name: str, tensor: Tensor) -> Tensor:
        """Cache a property, and return it."""
        self._cache[name] = context.trace, tensor
        return tensor

    def _compute(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """Return a cached property; a traced one is valid in its trace only."""
        trace, tensor = self._cache.get(name, (None, None))
        if tensor is None or (
            isinstance(tensor.array, jax.core.Tracer) and trace is not context.trace
        ):
            tensor = self.store(name, compute())
        return tensor

    @property
    def dtype(self) -> DType:
        """Return the dtype of the row splits."""
        return self._splits.dtype

    @property
    def static_nrows(self) -> Size:
        """Return the number of rows, or None if only a session knows it."""
        size = self._splits.shape[0]
        return None if size is None else size - 1

    @property
    def static_nvals(self) -> Size:
        """Return the number of values, or None if it is unknown."""
        if self._num_values is None:
            known = find_value(self._splits)
            self._num_values = None if known is None else int(known[-1])
        return self._num_values

    def require_num_values(self) -> Size:
        """Return the number of values."""
        if self.static_nvals is None:
            use = "the number of values of rows"
            self._num_values = compute_size(lambda splits: splits[-1], [self._splits], use)
        return self._num_values

    def read_splits(self) -> np.ndarray:
        """Return the row splits on the host."""
        return self._splits.require_value(SPLITS_USE)

    def row_splits(self) -> Tensor:
        """Return the positions in the values at which rows start, and the last end."""
        return self._splits

    def value_rowids(self) -> Tensor:
        """Return the row of each value."""
        return self._compute(
            "value_rowids",
            lambda: _find_rows(self._splits, static=(self._get_trace_size(),)),
        )

    def _get_trace_size(self) -> Size:
        """Return the number of values where a traced function needs it."""
        return None if find_value(self._splits) is not None else self.require_num_values()

    def offsets_in_rows(self) -> Tensor:
        """Return the index of each value in its row."""
        return self._compute("offsets", lambda: _find_columns(self._splits, self.value_rowids()))

    def nrows(self) -> Tensor:
        """Return the number of rows."""
        return make_size(self.static_nrows, self.dtype)

    def nvals(self) -> Tensor:
        """Return the number of values."""
        return self._splits[-1]

    def row_lengths(self) -> Tensor:
        """Return the length of each row."""
        return self._compute("lengths", lambda: _subtract_neighbors(self._splits))

    def row_starts(self) -> Tensor:
        """Return the position in the values at which each row starts."""
        return _drop_last(self._splits)

    def row_limits(self) -> Tensor:
        """Return the position in the values at which each row ends."""
        return _drop_first(self._splits)

    def uniform_row_length(self) -> Tensor | None:
        """Return the length of all rows if they were created with one length, or None."""
        length = self.static_uniform_row_length
        return None if length is None else Tensor(np.array(length, self.dtype.dtype))

    def is_uniform(self) -> bool:
        """Check whether the rows were created with one length."""
        return self.static_uniform_row_length is not None

    def with_dtype(self, dtype: DTypeLike) -> RowPartition:
        """Return the same rows with row splits of another dtype."""
        target = as_dtype(dtype)
        if target not in (int32, int64):
            raise ValueError(f"dtype must be int32 or int64, got {target.name}.")
        if target is self.dtype:
            return self
        splits = _cast(self._splits, static=(target.dtype,))
        return RowPartition(splits, self.static_uniform_row_length, self._num_values, internal=True)

    with_row_splits_dtype = with_dtype

    # ---- composite -------------------------------------------------------------------------

    def _split(self) -> tuple[list[Tensor], Hashable]:
        return [self._splits], self.static_uniform_row_length

    @classmethod
    def _join(cls, parts: Sequence[Any], static: int | None) -> RowPartition:
        return cls(parts[0], static, internal=True)

    @property
    def _type_spec(self) -> RowPartitionSpec:
        return RowPartitionSpec(
            self.static_nrows, self.static_nvals, self.static_uniform_row_length, self.dtype
        )

    def __repr__(self) -> str:
        if self.is_uniform():
            return f"tf.RowPartition(nrows={self.static_nrows}, uniform_row_length={self.static_uniform_row_length})"
        known = find_value(self._splits)
        return f"tf.RowPartition(row_splits={self._splits if known is None else known})"


class RowPartitionSpec(CompositeSpec):
    """The spec of a `RowPartition`.

    Args:
      nrows: Number of rows, or None. It is inferred from the other sizes if possible.
      nvals: Number of values, or None; inferred in the same way.
      uniform_row_length: Length of all rows, or None.
      dtype: Dtype of the row splits.

    Raises:
      ValueError: If the sizes contradict each other, or the dtype is not int32 or int64.
    """

    value_type = RowPartition

    def __init__(
        self,
        nrows: int | None = None,
        nvals: int | None = None,
        uniform_row_length: int | None = None,
        dtype: DTypeLike = int64,
    ) -> None:
        self._dtype = as_dtype(dtype)
        if self._dtype not in (int32, int64):
            raise ValueError(f"dtype must be tf.int32 or tf.int64, got {self._dtype.name}.")
        count = nrows
        if uniform_row_length and nvals is not None and nrows is None:
            count = nvals // uniform_row_length
        product: int | None = None
        if count == 0 or uniform_row_length == 0:
            product = 0
        elif count is not None and uniform_row_length is not None:
            product = count * uniform_row_length
        if product is not None and nvals not in (None, product):
            raise ValueError(
                f"nrows={nrows}, nvals={nvals} and uniform_row_length={uniform_row_length} are not compatible with each "
                "other."
            )
        self.nrows, self.uniform_row_length = count, uniform_row_length
        self.nvals = nvals if product is None else product

    @classmethod
    def from_value(cls, value: RowPartition) -> RowPartitionSpec:
        """Return the spec of a partition."""
        return value._type_spec

    @property
    def dtype(self) -> DType:
        """Return the dtype of the row splits."""
        return self._dtype

    def with_dtype(self, dtype: DTypeLike) -> RowPartitionSpec:
        """Return the spec with another dtype."""
        return RowPartitionSpec(self.nrows, self.nvals, self.uniform_row_length, dtype)

    def __repr__(self) -> str:
        sizes = (
            f"nrows={self.nrows}, nvals={self.nvals}, uniform_row_length={self.uniform_row_length}"
        )
        return f"RowPartitionSpec({sizes}, dtype={self._dtype!r})"

    @property
    def _component_specs(self) -> PyTree:
        return [TensorSpec([None if self.nrows is None else self.nrows + 1], self._dtype)]

    def _to_components(self, value: RowPartition) -> PyTree:
        return [value.row_splits()]

    def _from_components(self, components: PyTree) -> RowPartition:
        return RowPartition(components[0], self.uniform_row_length, internal=True)

    def _serialize(self) -> tuple[Any, ...]:
        return self.nrows, self.nvals, self.uniform_row_length, self._dtype

    def is_compatible_with(self, value: object) -> bool:
        """Check whether a partition, or the spec of one, has the known properties."""
        other = type_spec_from_value(value) if isinstance(value, RowPartition) else value
        if not isinstance(other, RowPartitionSpec):
            return False
        merged = []
        for a, b in zip(self._serialize(), other._serialize(), strict=True):
            if None not in (a, b) and a != b:
                return False
            merged.append(b if a is None else a)
        try:
            RowPartitionSpec(*merged)
        except ValueError:
            return False
        return True

    def most_specific_compatible_type(self, other: TypeSpec) -> RowPartitionSpec:
        """Return the spec with the properties that both have.

        Raises:
          ValueError: If the dtypes differ.
        """
        if not isinstance(other, RowPartitionSpec) or other.dtype is not self._dtype:
            raise ValueError(f"No TypeSpec is compatible with both {self} and {other}")
        pairs = zip(self._serialize()[:3], other._serialize()[:3], strict=True)
        nrows, nvals, length = (a if a == b else None for a, b in pairs)
        return RowPartitionSpec(nrows, nvals, length, self._dtype)


def _convert(value: TensorLike, dtype: DTypeLike | None) -> Tensor:
    return convert_integers(value, None if dtype is None else as_dtype(dtype))


def _read_count(value: TensorLike, name: str) -> Size:
    sizes = get_sizes(value)
    if sizes is not None and not sizes.ndim and has_symbolic_size([sizes.item()]):
        return sizes.item()
    if has_symbolic_size([value]):
        return value
    count = read_sizes(convert_integers(value), f"{name} of a RaggedTensor")
    if isinstance(count, int) and count < 0:
        raise InvalidValueError(f"Expected {name} >= 0; got {count}: it must not be negative.")
    return count


def _is_ascending(ids: np.ndarray, count: int) -> bool:
    return bool((np.diff(ids) >= 0).all() and (ids >= 0).all() and (ids < count).all())


def _check_rank(tensor: Tensor, rank: int, name: str) -> None:
    if tensor.shape.rank not in (None, rank):
        raise ValueError(f"{name}: shape {tensor.shape} must have rank {rank}")


def _check_count(expected: Size, count: Size) -> None:
    if expected != count:
        raise _make_error(f"the rows contain {expected} values, but there are {count}")


def _make_error(problem: str) -> InvalidValueError:
    return InvalidValueError(f"Arguments to from_* do not form a valid RaggedTensor: {problem}.")
