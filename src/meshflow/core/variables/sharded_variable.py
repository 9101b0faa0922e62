"""`ShardedVariable`: variables that hold consecutive rows of one table, used as one.

Parameter servers share large tables in this way. Whatever takes a tensor takes a `ShardedVariable`, which is
then read as a whole; rows that are picked from it (`tf.gather`, `tf.nn.embedding_lookup`, indices and slices) are
read from the shards that have them, and their gradients go to those shards as rows.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.indexing import getitem
from meshflow.core.variables.variable import Variable
from meshflow.core.variables.variable_rows import parts

if TYPE_CHECKING:
    from meshflow.core.values.operator_types import Operators

    _Operators = Operators[Tensor]
else:
    _Operators = object

__all__ = ["ShardedVariable", "kept_whole", "local_numbers", "may_be_cut", "whole_variables"]


def _local(operands: Any, static: tuple[int, int]) -> Any:
    first, count = static
    numbers = operands[0].astype(jax.numpy.promote_types(operands[0].dtype, jax.numpy.int32))
    here = (numbers >= first) & (numbers < first + count)
    return jax.numpy.where(here, numbers - first, count)


_local_numbers = Op("shard_rows", _local, is_foldable=False)


def local_numbers(numbers: Tensor, first: int, count: int) -> Tensor:
    """Numbers of a table's rows as numbers in one shard.

    Args:
      numbers: row numbers, of any shape.
      first: the number of the shard's first row.
      count: how many rows it has.

    Returns:
      Numbers in the shard; `count` for rows of other shards, where reading and writing do nothing.
    """
    return apply(_local_numbers, (numbers,), (first, count))


class ShardedVariable(_Operators):
    """Variables that hold consecutive rows of one table.

    Strategies with parameter servers make them where their `variable_partitioner` says so.

    Args:
      variables: the shards, of one dtype, and of one shape but for the first axis.
      name: the table's name.

    Raises:
      TypeError: when there are no variables, or something that is none.
      ValueError: when dtypes or shapes differ.

    Example:
      >>> import meshflow as tf
      >>> table = tf.distribute.ShardedVariable([tf.Variable([[1.0], [2.0]]), tf.Variable([[3.0]])])
      >>> table.shape, tf.nn.embedding_lookup(table, [2, 0]).numpy().tolist()
      (TensorShape([3, 1]), [[3.0], [1.0]])
      >>> tf.reduce_sum(table.assign_add(tf.ones([3, 1])) * 2.0).numpy()
      np.float32(18.0)
    """

    __array_priority__ = 100
    # How layers, trackers and checkpoints tell it from other values.
    _is_sharded = True
    layout = None

    def __init__(self, variables: Sequence[Variable], name: str = "ShardedVariable") -> None:
        shards = list(variables)
        if not shards or not all(isinstance(v, Variable) for v in shards):
            raise TypeError(
                f"Argument `variables` should be a non-empty list of `variables.Variable`s. Received {variables!r}"
            )
        kinds = [v.dtype for v in shards]
        if len(set(kinds)) > 1:
            raise ValueError(
                f"All elements in argument `variables` must have the same dtype. Received dtypes: {kinds}"
            )
        shapes = [v.shape for v in shards]
        if not all(s.rank for s in shapes) or len({tuple(s.as_list()[1:]) for s in shapes}) > 1:
            raise ValueError(
                "All elements in argument `variables` must have the same shapes except for the first axis. "
                f"Received shapes: {shapes}"
            )
        self._shards, self._name = shards, name
        self._sizes = [int(s[0]) for s in shapes]
        self._firsts = [sum(self._sizes[:i]) for i in range(len(shards))]
        for shard in shards:
            shard._shard_of = self  # type: ignore[attr-defined]

    # ---- what it is ------------------------------------------------------------------------

    @property
    def variables(self) -> list[Variable]:
        """The shards."""
        return list(self._shards)

    @property
    def is_sharded_variable(self) -> bool:
        """True: how programs tell it from variables in one piece."""
        return True

    @property
    def name(self) -> str:
        """The table's name."""
        return self._name

    @property
    def _shared_name(self) -> str:
        return self._name

    @property
    def _distribute_strategy(self) -> Any:
        return getattr(self._shards[0], "_distribute_strategy", None)

    def _beside(self) -> AbstractContextManager[None]:
        return self._shards[0]._beside()

    @property
    def dtype(self) -> dtypes.DType:
        """The element type."""
        return self._shards[0].dtype

    @property
    def shape(self) -> TensorShape:
        """The shape of the whole table."""
        return TensorShape([sum(self._sizes), *self._shards[0].shape.as_list()[1:]])

    def get_shape(self) -> TensorShape:
        """The shape of the whole table."""
        return self.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def trainable(self) -> bool:
        """Whether tapes watch the shards by themselves."""
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

    def __reduce__(self) -> Any:
        return ShardedVariable, (self._shards, self._name)

    # ---- reading ---------------------------------------------------------------------------

    def _as_tensor(self) -> Tensor:
        if len(self._shards) == 1:
            return self._shards[0]._as_tensor()
        return parts["concat"]([v._as_tensor() for v in self._shards], 0)

    def _components(self) -> list[Variable]:
        """What a tape watches in its place."""
        return self.variables

    def value(self) -> Tensor:
        """The whole table as a tensor."""
        return self._as_tensor()

    def read_value(self) -> Tensor:
        """The whole table as a tensor."""
        return self._as_tensor()

    def numpy(self) -> Any:
        """The whole table as a NumPy array.

        Raises:
          NotImplementedError: while a function is traced.
        """
        return np.concatenate([np.asarray(v.numpy()) for v in self._shards])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = np.asarray(self.numpy())
        return array if dtype is None else array.astype(dtype, copy=False)

    def sparse_read(self, indices: Any, name: str | None = None) -> Tensor:
        """The rows at `indices`.

        Args:
          indices: row numbers, of any shape.
          name: ignored.
        """
        return parts["gather"](self, indices)

    def __getitem__(self, key: Any) -> Tensor:
        items = key if isinstance(key, tuple) else (key,)
        first = items[0] if items else Ellipsis
        if isinstance(first, (int, np.integer)) and not isinstance(first, bool):
            rows = sum(self._sizes)
            if not -rows <= first < rows:
                raise IndexError(
                    f"ShardedVariable: slice index {first} of dimension 0 out of bounds."
                )
            at = self._shard_with(int(first) % rows)
            return getitem(
                self._shards[at]._as_tensor(),
                (int(first) % rows - self._firsts[at], *items[1:]),
            )
        if isinstance(first, slice) and all(
            b is None or isinstance(b, (int, np.integer))
            for b in (first.start, first.stop, first.step)
        ):
            return self._sliced(first, items[1:])
        if isinstance(first, (Tensor, Variable)) and not first.dtype.is_bool:
            raise TypeError("ShardedVariable: using Tensor for indexing is not allowed.")
        return getitem(self._as_tensor(), key)

    def _shard_with(self, row: int) -> int:
        return bisect.bisect_right(self._firsts, row) - 1

    def _sliced(self, rows: slice, others: tuple[Any, ...]) -> Tensor:
        """Rows of a slice, read from the shards that have some of them."""
        wanted = range(*rows.indices(sum(self._sizes)))
        step, found = wanted.step, []
        shards = range(len(self._shards))
        for at in shards if step > 0 else reversed(shards):
            first, last = self._firsts[at], self._firsts[at] + self._sizes[at] - 1
            nearest, farthest = (first, last) if step > 0 else (last, first)
            begin = max(0, -((wanted.start - nearest) // step))
            end = min(len(wanted) - 1, (farthest - wanted.start) // step)
            if begin <= end:
                stop = wanted[end] - first + (1 if step > 0 else -1)
                part = slice(wanted[begin] - first, stop if stop >= 0 else None, step)
                found.append(getitem(self._shards[at]._as_tensor(), (part, *others)))
        if not found:
            return getitem(self._shards[0]._as_tensor(), (slice(0, 0), *others))
        return found[0] if len(found) == 1 else parts["concat"](found, 0)

    # ---- writing ---------------------------------------------------------------------------

    def _divided(self, value: Any, method: str) -> Iterator[tuple[Variable, Tensor]]:
        """Each shard with its part of a value of the whole table's shape."""
        tensor = convert_to_tensor(value, dtype_hint=self.dtype)
        if not self.shape.is_compatible_with(tensor.shape):
            raise InvalidValueError(
                f"Cannot {method} a value of shape {tensor.shape} to the sharded variable {self._name} of "
                f"shape {self.shape}."
            )
        for shard, first, size in zip(self._shards, self._firsts, self._sizes, strict=True):
            yield shard, getitem(tensor, slice(first, first + size))

    def assign(
        self, value: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Self:
        """Replaces the table; each shard gets its rows.

        Args:
          value: the rows of all shards.
          use_locking: ignored.
          name: ignored.
          read_value: ignored.

        Returns:
          The variable.

        Raises:
          ValueError: when shape or dtype do not fit.
        """
        for shard, part in self._divided(value, "assign"):
            shard.assign(part)
        return self

    def assign_add(
        self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Self:
        """Adds a table of the same shape; arguments as in `assign`."""
        for shard, part in self._divided(delta, "assign_add"):
            shard.assign_add(part)
        return self

    def assign_sub(
        self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Self:
        """Subtracts a table of the same shape; arguments as in `assign`."""
        for shard, part in self._divided(delta, "assign_sub"):
            shard.assign_sub(part)
        return self

    def _scatter(self, method: str, sparse_delta: Any, **kwargs: Any) -> Self:
        if not hasattr(sparse_delta, "indices"):
            raise TypeError(f"sparse_delta is not IndexedSlices: {sparse_delta!r}")
        for shard, rows in self._divided_rows(sparse_delta):
            getattr(shard, method)(rows, **kwargs)
        return self

    def _divided_rows(self, rows: Any) -> Iterator[tuple[Variable, IndexedSlices]]:
        """The shards that some rows belong to, and which of them each gets."""
        numbers, values = convert_to_tensor(rows.indices), convert_to_tensor(rows.values)
        if numbers.ndim != 1:
            raise InvalidValueError(
                "ShardedVariable: indices must be 1D Tensor for sparse operations. Received shape: "
                f"{numbers.shape}"
            )
        if context.trace is None:
            yield from self._known_rows(np.asarray(numbers), values)
            return
        for shard, first, size in zip(self._shards, self._firsts, self._sizes, strict=True):
            yield shard, IndexedSlices(values, local_numbers(numbers, first, size))

    def _known_rows(
        self, numbers: np.ndarray, values: Tensor
    ) -> Iterator[tuple[Variable, IndexedSlices]]:
        total = sum(self._sizes)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < total):
            raise InvalidArgumentError(
                f"ShardedVariable {self._name}: rows {numbers.tolist()[:8]} are not all in [0, {total})."
            )
        for shard, first, size in zip(self._shards, self._firsts, self._sizes, strict=True):
            here = np.flatnonzero((numbers >= first) & (numbers < first + size))
            if here.size:
                yield shard, IndexedSlices(parts["gather"](values, here), numbers[here] - first)

    def scatter_add(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Self:
        """Adds `tf.IndexedSlices` to rows of the table."""
        return self._scatter("scatter_add", sparse_delta)

    def scatter_sub(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Self:
        """Subtracts `tf.IndexedSlices` from rows of the table."""
        return self._scatter("scatter_sub", sparse_delta)

    def scatter_update(
        self, sparse_delta: Any, use_locking: bool = False, name: Any = None
    ) -> Self:
        """Replaces rows of the table by `tf.IndexedSlices`."""
        return self._scatter("scatter_update", sparse_delta)

    def scatter_max(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Self:
        """Takes the maximum of rows and `tf.IndexedSlices`."""
        return self._scatter("scatter_max", sparse_delta)

    def scatter_min(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Self:
        """Takes the minimum of rows and `tf.IndexedSlices`."""
        return self._scatter("scatter_min", sparse_delta)

    def scatter_mul(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Self:
        """Multiplies rows by `tf.IndexedSlices`."""
        return self._scatter("scatter_mul", sparse_delta)

    def scatter_div(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Self:
        """Divides rows by `tf.IndexedSlices`."""
        return self._scatter("scatter_div", sparse_delta)

    def batch_scatter_update(
        self, sparse_delta: Any, use_locking: bool = False, name: Any = None
    ) -> Self:
        """Replaces rows of the table by `tf.IndexedSlices`, whose row numbers are a vector."""
        return self._scatter("scatter_update", sparse_delta)


class _Whole(threading.local):
    """Whether this thread makes variables that go with shards."""

    kept = False


_whole = _Whole()


@contextmanager
def kept_whole() -> Iterator[None]:
    """Inside, variables are not cut into shards: slots of a shard have its size, and metrics count on whole state."""
    before, _whole.kept = _whole.kept, True
    try:
        yield
    finally:
        _whole.kept = before


def may_be_cut() -> bool:
    """Whether variables made now may be cut into shards."""
    return not _whole.kept


def whole_variables(variables: Iterable[Any]) -> list[Any]:
    """Variables with each table in the place of its first shard.

    Args:
      variables: variables, shards among them.

    Returns:
      The variables that are no shards, and a `ShardedVariable` for all shards of a table.
    """
    found: dict[int, Any] = {}
    for variable in variables:
        whole = getattr(variable, "_shard_of", None)
        whole = variable if whole is None else whole
        found.setdefault(id(whole), whole)
    return list(found.values())
