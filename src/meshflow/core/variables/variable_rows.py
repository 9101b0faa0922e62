"""Reads and writes of rows of a variable, and of values at coordinates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.bounds_checks import check_indices
from meshflow.core.runtime.context import suspend_autocast
from meshflow.core.runtime.tracebacks import explain_errors_of_methods
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike


@explain_errors_of_methods
class RowScatterMethods:
    """The methods that update rows of a variable or table by `tf.IndexedSlices`."""

    def _apply_scatter(self, method: str, sparse_delta: IndexedSlices) -> Self:
        raise NotImplementedError

    def scatter_add(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Add `tf.IndexedSlices` to rows."""
        return self._apply_scatter("scatter_add", sparse_delta)

    def scatter_sub(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Subtract `tf.IndexedSlices` from rows."""
        return self._apply_scatter("scatter_sub", sparse_delta)

    def scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Replace rows by `tf.IndexedSlices`."""
        return self._apply_scatter("scatter_update", sparse_delta)

    def scatter_max(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Compute the maximum of rows and `tf.IndexedSlices`."""
        return self._apply_scatter("scatter_max", sparse_delta)

    def scatter_min(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Compute the minimum of rows and `tf.IndexedSlices`."""
        return self._apply_scatter("scatter_min", sparse_delta)

    def scatter_mul(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Multiply rows by `tf.IndexedSlices`."""
        return self._apply_scatter("scatter_mul", sparse_delta)

    def scatter_div(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Divide rows by `tf.IndexedSlices`."""
        return self._apply_scatter("scatter_div", sparse_delta)


@explain_errors_of_methods
class VariableRowMethods(RowScatterMethods):
    """The methods of `Variable` that read or write parts of its value."""

    @property
    def shape(self) -> TensorShape:
        """Return the shape of the variable."""
        raise NotImplementedError

    def _as_tensor(self) -> Tensor:
        raise NotImplementedError

    def _check_value(self, value: TensorLike, method: str) -> Tensor:
        raise NotImplementedError

    def _set(self, value: Tensor) -> None:
        raise NotImplementedError

    def _apply_scatter(self, method: str, sparse_delta: IndexedSlices) -> Self:
        count = self.shape[0] if self.shape.rank else None
        if count is not None and hasattr(sparse_delta, "indices"):
            indices = convert_to_tensor(sparse_delta.indices)
            checked = check_indices(indices, count, is_gather=False)
            sparse_delta = IndexedSlices(sparse_delta.values, checked)
        return self._scatter(SCATTER_OPS[method], sparse_delta)

    def _scatter(self, op: Op, sparse_delta: IndexedSlices) -> Self:
        if not hasattr(sparse_delta, "indices"):
            raise TypeError(f"sparse_delta is not IndexedSlices: {sparse_delta!r}")
        return self._scatter_rows(op, sparse_delta.indices, sparse_delta.values)

    def _scatter_rows(self, op: Op, indices: TensorLike, updates: TensorLike) -> Self:
        values = self._check_value(updates, "scatter")
        with suspend_autocast():
            self._set(apply(op, (self._as_tensor(), convert_to_tensor(indices), values)))
        return self

    def batch_scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Replace slices along the last dimension of the indices, for each entry of the others.

        Args:
          sparse_delta: Slices with indices of shape [d1, ..., dn, k]: `values[i1, ..., in, j]`
            replaces `variable[i1, ..., in, indices[i1, ..., in, j]]`.
          use_locking: Ignored.
          name: Ignored.

        Raises:
          InvalidArgumentError: If an index is out of range.

        Example:
          >>> v = tf.Variable([[1, 2, 3], [4, 5, 6]])
          >>> print(v.batch_scatter_update(tf.IndexedSlices([[10], [60]], [[0], [2]])).numpy())
          [[10  2  3]
           [ 4  5 60]]
        """
        if not isinstance(sparse_delta, IndexedSlices):
            raise TypeError(
                f"Argument `sparse_delta` must be a `tf.IndexedSlices`. Received arg: {sparse_delta}"
            )
        coordinates = apply(_add_batch_coordinates, (sparse_delta.indices,))
        return self.scatter_nd_update(coordinates, sparse_delta.values)

    def scatter_nd_add(
        self, indices: TensorLike, updates: TensorLike, name: str | None = None
    ) -> Self:
        """Add `updates` at coordinates; the last dimension of `indices` holds the coordinates."""
        return self._scatter_nd("add", indices, updates)

    def scatter_nd_sub(
        self, indices: TensorLike, updates: TensorLike, name: str | None = None
    ) -> Self:
        """Subtract `updates` at coordinates; see `scatter_nd_add`."""
        return self._scatter_nd("sub", indices, updates)

    def scatter_nd_update(
        self, indices: TensorLike, updates: TensorLike, name: str | None = None
    ) -> Self:
        """Replace the values at coordinates; see `scatter_nd_add`."""
        return self._scatter_nd("update", indices, updates)

    def scatter_nd_max(
        self, indices: TensorLike, updates: TensorLike, name: str | None = None
    ) -> Self:
        """Compute the maximum with `updates` at coordinates; see `scatter_nd_add`."""
        return self._scatter_nd("max", indices, updates)

    def scatter_nd_min(
        self, indices: TensorLike, updates: TensorLike, name: str | None = None
    ) -> Self:
        """Compute the minimum with `updates` at coordinates; see `scatter_nd_add`."""
        return self._scatter_nd("min", indices, updates)

    def _scatter_nd(self, kind: str, indices: TensorLike, updates: TensorLike) -> Self:
        values = self._check_value(updates, "scatter")
        with suspend_autocast():
            self._set(part_ops[f"scatter_nd_{kind}"](self._as_tensor(), indices, values))
        return self

    def gather_nd(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """Return the values at coordinates, like `tf.gather_nd`."""
        return part_ops["gather_nd"](self._as_tensor(), indices)

    def sparse_read(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """Return the rows at `indices`, like `tf.gather`."""
        return part_ops["gather"](self._as_tensor(), indices)


# Functions that read and replace parts of a value. `meshflow.ops` sets them, because they are ops.
part_ops: dict[str, Callable[..., Tensor]] = {}


def _stack_coordinates(operands: Sequence[jax.Array], _: object) -> jax.Array:
    indices = operands[0]
    axes = range(indices.ndim - 1)
    batch = [jax.lax.broadcasted_iota(indices.dtype, indices.shape, axis) for axis in axes]
    return jnp.stack([*batch, indices], -1)


_add_batch_coordinates = Op("stack", _stack_coordinates, differentiable=False)


def _make_scatter_op(kind: str) -> Op:
    def call(operands: Sequence[jax.Array], _: object) -> jax.Array:
        array, indices, values = operands
        if kind == "sub":
            return array.at[indices].add(-values)
        # Quotients of integers are integers, rounded towards zero.
        return getattr(array.at[indices], kind)(values).astype(array.dtype)

    return Op(f"scatter_{kind}", call, strings="moves" if kind == "set" else None)


_JAX_NAMES = {"update": "set", "mul": "multiply", "div": "divide"}
SCATTER_OPS = {
    f"scatter_{kind}": _make_scatter_op(_JAX_NAMES.get(kind, kind))
    for kind in ("add", "sub", "update", "max", "min", "mul", "div")
}
