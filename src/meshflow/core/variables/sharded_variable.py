"""`ShardedVariable`: variables that hold consecutive rows of one table, used as one.

Parameter servers store large tables in this way. A `ShardedVariable` can replace a tensor
everywhere; the complete table is then read. Rows that are selected from it (`tf.gather`,
`tf.nn.embedding_lookup`, indices and slices) are read only from their shards, and their gradients
are `tf.IndexedSlices` of those shards.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.bounds_checks import check_indices
from meshflow.core.runtime.context import ThreadState, context
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.indexing import getitem
from meshflow.core.variables.variable import Variable
from meshflow.core.variables.variable_rows import SCATTER_OPS, RowScatterMethods, part_ops

if TYPE_CHECKING:
    from meshflow.core.values.operator_types import Operators

    _Operators = Operators[Tensor]
else:
    _Operators = object


def _compute_local_indices(operands: Sequence[jax.Array], static: tuple[int, int]) -> jax.Array:
    first, count = static
    indices = operands[0].astype(jax.numpy.promote_types(operands[0].dtype, jax.numpy.int32))
    is_local = (indices >= first) & (indices < first + count)
    return jax.numpy.where(is_local, indices - first, count)


_to_local_op = Op("shard_rows", _compute_local_indices, is_foldable=False)


def to_local_indices(indices: Tensor, first: int, count: int) -> Tensor:
    """Convert row indices of a table to row indices of the shard with `count` rows from `first` on.

    Rows of other shards get the index `count`, at which reads and writes have no effect.
    """
    return apply(_to_local_op, (indices,), (first, count))


class ShardedVariable(RowScatterMethods, _Operators):
    """Variables that hold consecutive rows of one table.

    Strategies with parameter servers create them according to their `variable_partitioner`.

    Args:
      variables: The shards, with the same dtype and the same shape except for the first axis.
      name: Name of the table.

    Raises:
      TypeError: If there are no variables, or an object is not a variable.
      ValueError: If dtypes or shapes differ.

    Example:
      >>> table = tf.distribute.ShardedVariable([tf.Variable([[1.0], [2.0]]), tf.Variable([[3.0]])])
      >>> table.shape, tf.nn.embedding_lookup(table, [2, 0]).numpy().tolist()
      (TensorShape([3, 1]), [[3.0], [1.0]])
      >>> tf.reduce_sum(table.assign_add(tf.ones([3, 1])) * 2.0).numpy()
      np.float32(18.0)
    """

    __array_priority__ = 100
    # Layers, trackers and checkpoints recognize sharded variables by this attribute.
    _is_sharded = True
    layout = None

    def __init__(self, variables: Sequence[Variable], name: str = "ShardedVariable") -> None:
        shards = list(variables)
        if not shards or not all(isinstance(v, Variable) for v in shards):
            raise TypeError(
                f"Argument `variables` should be a non-empty list of `variables.Variable`s. Received {variables!r}"
            )
        dtypes_ = [v.dtype for v in shards]
        if len(set(dtypes_)) > 1:
            raise ValueError(
                f"All elements in argument `variables` must have the same dtype. Received dtypes: {dtypes_}"
            )
        shapes = [v.shape for v in shards]
        if not all(s.rank for s in shapes) or len({tuple(s.as_list()[1:]) for s in shapes}) > 1:
            raise ValueError(
                "All elements in argument `variables` must have the same shapes except for the first axis. "
                f"Received shapes: {shapes}"
            )
        self._shards, self._name = shards, name
        self._sizes = [int(s[0]) for s in shapes]
        self._first_rows = [sum(self._sizes[:i]) for i in range(len(shards))]
        for shard in shards:
            shard._shard_of = self  # type: ignore[attr-defined]

    # ---- properties ------------------------------------------------------------------------

    @property
    def variables(self) -> list[Variable]:
        """Return the shards."""
        return list(self._shards)

    @property
    def is_sharded_variable(self) -> bool:
        """Return True, which distinguishes it from other variables."""
        return True

    @property
    def name(self) -> str:
        """Return the name of the table."""
        return self._name

    @property
    def _shared_name(self) -> str:
        return self._name

    @property
    def _distribute_strategy(self) -> Any:
        return getattr(self._shards[0], "_distribute_strategy", None)

    def _colocation_scope(self) -> AbstractContextManager[None]:
        return self._shards[0]._colocation_scope()

    @property
    def dtype(self) -> dtypes.DType:
        """Return the element type."""
        return self._shards[0].dtype

    @property
    def shape(self) -> TensorShape:
        """Return the shape of the complete table."""
        return TensorShape([sum(self._sizes), *self._shards[0].shape.as_list()[1:]])

    def get_shape(self) -> TensorShape:
        """Return the shape of the complete table."""
        return self.shape

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    @property
    def trainable(self) -> bool:
        """Return whether tapes watch the shards automatically."""
        return any(v.trainable for v in self._shards)

    def __iter__(self) -> Iterator[Variable]:
        return iter(self._shards)

    def __repr__(self) -> str:
        return (
            f"<ShardedVariable '{self._name}' shape={self.shape} dtype={self.dtype.name} "
            f"rows of shards={self._sizes}>"
        )

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[type[ShardedVariable], tuple[Any, ...]]:
        return ShardedVariable, (self._shards, self._name)

    # ---- reading ---------------------------------------------------------------------------

    def _as_tensor(self) -> Tensor:
        if len(self._shards) == 1:
            return self._shards[0].value()
        return part_ops["concat"]([v.value() for v in self._shards], 0)

    def _components(self) -> list[Variable]:
        """Return the variables that a tape watches instead."""
        return self.variables

    def value(self) -> Tensor:
        """Return the complete table as a tensor."""
        return self._as_tensor()

    def read_value(self) -> Tensor:
        """Return the complete table as a tensor."""
        return self._as_tensor()

    def numpy(self) -> np.ndarray:
        """Return the complete table as a NumPy array.

        Raises:
          NotImplementedError: If a function is traced.
        """
        return np.concatenate([np.asarray(v.numpy()) for v in self._shards])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = np.asarray(self.numpy())
        return array if dtype is None else array.astype(dtype, copy=False)

    def sparse_read(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """Return the rows at `indices`.

        Args:
          indices: Row indices, of any shape.
          name: Ignored.
        """
        return part_ops["gather"](self, indices)

    def __getitem__(self, key: Any) -> Tensor:
        items = key if isinstance(key, tuple) else (key,)
        first = items[0] if items else Ellipsis
        if isinstance(first, (int, np.integer)) and not isinstance(first, bool):
            rows = sum(self._sizes)
            if not -rows <= first < rows:
                raise IndexError(
                    f"ShardedVariable: slice index {first} of dimension 0 out of bounds."
                )
            shard_index = self._find_shard(int(first) % rows)
            return getitem(
                self._shards[shard_index].value(),
                (int(first) % rows - self._first_rows[shard_index], *items[1:]),
            )
        if isinstance(first, slice) and all(
            b is None or isinstance(b, (int, np.integer))
            for b in (first.start, first.stop, first.step)
        ):
            return self._read_slice(first, items[1:])
        if isinstance(first, (Tensor, Variable)) and not first.dtype.is_bool:
            raise TypeError("ShardedVariable: using Tensor for indexing is not allowed.")
        return getitem(self._as_tensor(), key)

    def _find_shard(self, row: int) -> int:
        return bisect.bisect_right(self._first_rows, row) - 1

    def _read_slice(self, rows: slice, other_items: tuple[Any, ...]) -> Tensor:
        """Read the rows of a slice from the shards that contain them."""
        indices = range(*rows.indices(sum(self._sizes)))
        step, shard_parts = indices.step, []
        shards = range(len(self._shards))
        for shard_index in shards if step > 0 else reversed(shards):
            first = self._first_rows[shard_index]
            last = first + self._sizes[shard_index] - 1
            nearest, farthest = (first, last) if step > 0 else (last, first)
            start = max(0, -((indices.start - nearest) // step))
            end = min(len(indices) - 1, (farthest - indices.start) // step)
            if start <= end:
                stop = indices[end] - first + (1 if step > 0 else -1)
                part = slice(indices[start] - first, stop if stop >= 0 else None, step)
                tensor = self._shards[shard_index].value()
                shard_parts.append(getitem(tensor, (part, *other_items)))
        if not shard_parts:
            return getitem(self._shards[0].value(), (slice(0, 0), *other_items))
        return shard_parts[0] if len(shard_parts) == 1 else part_ops["concat"](shard_parts, 0)

    # ---- writing ---------------------------------------------------------------------------

    def _split_value(self, value: TensorLike, method: str) -> Iterator[tuple[Variable, Tensor]]:
        """Yield each shard with its part of a value for the complete table."""
        tensor = convert_to_tensor(value, dtype_hint=self.dtype)
        if not self.shape.is_compatible_with(tensor.shape):
            raise InvalidValueError(
                f"Cannot {method} a value of shape {tensor.shape} to the sharded variable {self._name} of "
                f"shape {self.shape}."
            )
        for shard, first, size in zip(self._shards, self._first_rows, self._sizes, strict=True):
            yield shard, getitem(tensor, slice(first, first + size))

    def assign(
        self, value: TensorLike, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Self:
        """Replace the table; each shard gets its rows.

        Args:
          value: The rows of all shards.
          use_locking: Ignored.
          name: Ignored.
          read_value: Ignored.

        Returns:
          The variable.

        Raises:
          ValueError: If the shape or dtype is incompatible.
        """
        for shard, part in self._split_value(value, "assign"):
            shard.assign(part)
        return self

    def assign_add(
        self, delta: TensorLike, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Self:
        """Add a table of the same shape; see `assign` for the arguments."""
        for shard, part in self._split_value(delta, "assign_add"):
            shard.assign_add(part)
        return self

    def assign_sub(
        self, delta: TensorLike, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Self:
        """Subtract a table of the same shape; see `assign` for the arguments."""
        for shard, part in self._split_value(delta, "assign_sub"):
            shard.assign_sub(part)
        return self

    def _apply_scatter(self, method: str, sparse_delta: IndexedSlices) -> Self:
        if not hasattr(sparse_delta, "indices"):
            raise TypeError(f"sparse_delta is not IndexedSlices: {sparse_delta!r}")
        for shard, rows in self._split_rows(sparse_delta):
            # Rows of other shards have an index that is out of range, which is not an error.
            shard._scatter(SCATTER_OPS[method], rows)
        return self

    def _split_rows(self, rows: IndexedSlices) -> Iterator[tuple[Variable, IndexedSlices]]:
        """Yield the shards that contain some of the rows, each with its rows."""
        indices, values = convert_to_tensor(rows.indices), convert_to_tensor(rows.values)
        if indices.ndim != 1:
            raise InvalidValueError(
                "ShardedVariable: indices must be 1D Tensor for sparse operations. Received shape: "
                f"{indices.shape}"
            )
        if context.trace is None:
            yield from self._split_known_rows(np.asarray(indices), values)
            return
        indices = check_indices(indices, sum(self._sizes), is_gather=False)
        for shard, first, size in zip(self._shards, self._first_rows, self._sizes, strict=True):
            yield shard, IndexedSlices(values, to_local_indices(indices, first, size))

    def _split_known_rows(
        self, indices: np.ndarray, values: Tensor
    ) -> Iterator[tuple[Variable, IndexedSlices]]:
        total = sum(self._sizes)
        if indices.size and not (indices.min() >= 0 and indices.max() < total):
            raise InvalidArgumentError(
                f"ShardedVariable {self._name}: rows {indices.tolist()[:8]} are not all in [0, {total})."
            )
        for shard, first, size in zip(self._shards, self._first_rows, self._sizes, strict=True):
            local = np.flatnonzero((indices >= first) & (indices < first + size))
            if local.size:
                yield (
                    shard,
                    IndexedSlices(part_ops["gather"](values, local), indices[local] - first),
                )

    def batch_scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Replace rows of the table by `tf.IndexedSlices`; the indices are a vector."""
        return self._apply_scatter("scatter_update", sparse_delta)


class _ShardingState(ThreadState):
    """Whether sharding is disabled in this thread."""

    is_disabled = False


_sharding = _ShardingState()


@contextmanager
def unsharded_scope() -> Iterator[None]:
    """Create variables without shards, for slots of shards and states of metrics."""
    previous, _sharding.is_disabled = _sharding.is_disabled, True
    try:
        yield
    finally:
        _sharding.is_disabled = previous


def can_shard() -> bool:
    """Check whether new variables may be split into shards."""
    return not _sharding.is_disabled


def merge_shards(variables: Iterable[Any]) -> list[Any]:
    """Replace the shards of each table by the table, at the position of the first shard.

    Args:
      variables: Variables, which may include shards.

    Returns:
      The variables that are not shards, and a `ShardedVariable` for all shards of a table.
    """
    merged: dict[int, Any] = {}
    for variable in variables:
        table = getattr(variable, "_shard_of", None)
        table = variable if table is None else table
        merged.setdefault(id(table), table)
    return list(merged.values())
