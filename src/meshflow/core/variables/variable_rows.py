"""Reading and writing rows of a variable, and values at coordinates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import as_stored
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike


class VariableRows:
    """The methods of `Variable` that touch parts of its value."""

    def _as_tensor(self) -> Tensor:
        raise NotImplementedError

    def _checked(self, value: TensorLike, method: str) -> Tensor:
        raise NotImplementedError

    def _set(self, value: Tensor) -> None:
        raise NotImplementedError

    def _scatter(self, op: Op, sparse_delta: Any) -> Self:
        if not hasattr(sparse_delta, "indices"):
            raise TypeError(f"sparse_delta is not IndexedSlices: {sparse_delta!r}")
        return self._scatter_rows(op, sparse_delta.indices, sparse_delta.values)

    def _scatter_rows(self, op: Op, indices: Any, updates: Any) -> Self:
        values = self._checked(updates, "scatter")
        with as_stored():
            self._set(apply(op, (self._as_tensor(), convert_to_tensor(indices), values)))
        return self

    def scatter_add(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Adds `tf.IndexedSlices` to rows of the variable."""
        return self._scatter(_SCATTERS["add"], sparse_delta)

    def scatter_sub(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Subtracts `tf.IndexedSlices` from rows of the variable."""
        return self._scatter(_SCATTERS["sub"], sparse_delta)

    def scatter_update(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Replaces rows of the variable by `tf.IndexedSlices`."""
        return self._scatter(_SCATTERS["set"], sparse_delta)

    def scatter_max(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Takes the maximum of rows and `tf.IndexedSlices`."""
        return self._scatter(_SCATTERS["max"], sparse_delta)

    def scatter_min(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Takes the minimum of rows and `tf.IndexedSlices`."""
        return self._scatter(_SCATTERS["min"], sparse_delta)

    def scatter_mul(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Multiplies rows by `tf.IndexedSlices`."""
        return self._scatter(_SCATTERS["multiply"], sparse_delta)

    def scatter_div(
        self, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Self:
        """Divides rows by `tf.IndexedSlices`."""
        return self._scatter(_SCATTERS["divide"], sparse_delta)

    def scatter_nd_add(self, indices: Any, updates: Any, name: str | None = None) -> Self:
        """Adds `updates` at coordinates `indices`, whose last dimension holds one coordinate each."""
        return self._scatter_nd("add", indices, updates)

    def scatter_nd_sub(self, indices: Any, updates: Any, name: str | None = None) -> Self:
        """Subtracts `updates` at coordinates; see `scatter_nd_add`."""
        return self._scatter_nd("sub", indices, updates)

    def scatter_nd_update(self, indices: Any, updates: Any, name: str | None = None) -> Self:
        """Replaces what is at coordinates; see `scatter_nd_add`."""
        return self._scatter_nd("update", indices, updates)

    def scatter_nd_max(self, indices: Any, updates: Any, name: str | None = None) -> Self:
        """Takes the maximum with `updates` at coordinates; see `scatter_nd_add`."""
        return self._scatter_nd("max", indices, updates)

    def scatter_nd_min(self, indices: Any, updates: Any, name: str | None = None) -> Self:
        """Takes the minimum with `updates` at coordinates; see `scatter_nd_add`."""
        return self._scatter_nd("min", indices, updates)

    def _scatter_nd(self, kind: str, indices: Any, updates: Any) -> Self:
        values = self._checked(updates, "scatter")
        with as_stored():
            self._set(parts[f"scatter_nd_{kind}"](self._as_tensor(), indices, values))
        return self

    def gather_nd(self, indices: Any, name: str | None = None) -> Tensor:
        """The values at coordinates, as `tf.gather_nd` gives them."""
        return parts["gather_nd"](self._as_tensor(), indices)

    def sparse_read(self, indices: Any, name: str | None = None) -> Tensor:
        """The rows at `indices`, as `tf.gather` gives them."""
        return parts["gather"](self._as_tensor(), indices)


# How parts of a value are read and replaced; set by `meshflow.ops`, because these are ops themselves.
parts: dict[str, Callable[..., Tensor]] = {}


def _scatter_op(kind: str) -> Op:
    def call(operands: Any, _: Any) -> Any:
        array, indices, values = operands
        if kind == "sub":
            return array.at[indices].add(-values)
        # Quotients of integers stay integers, rounded towards zero.
        return getattr(array.at[indices], kind)(values).astype(array.dtype)

    return Op(f"scatter_{kind}", call)


_SCATTERS = {
    kind: _scatter_op(kind) for kind in ("add", "sub", "set", "max", "min", "multiply", "divide")
}
