"""Base class of hash tables, and lookups of dense and sparse tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree
from meshflow.ops.ragged import RaggedTensor


def stack_values(values: list[Any], shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Stack scalars or arrays to an array of a shape; strings become an array of objects."""
    if not values or dtype.kind != "O":
        return np.asarray(values, dtype).reshape(shape)
    result = np.empty((len(values), *np.shape(values[0])), dtype)
    for i, value in enumerate(values):
        result[i] = value
    return result.reshape(shape)


class Table:
    """Base class of hash tables.

    Args:
      key_dtype: Dtype of the keys.
      value_dtype: Dtype of the values.
      name: Name of the table.
    """

    def __init__(self, key_dtype: DType, value_dtype: DType, name: str | None = None) -> None:
        self._key_dtype, self._value_dtype, self._name = key_dtype, value_dtype, name

    @property
    def key_dtype(self) -> Any:
        """Dtype of the keys."""
        return self._key_dtype

    @property
    def value_dtype(self) -> DType:
        """Dtype of the values."""
        return self._value_dtype

    @property
    def name(self) -> str | None:
        """Name of the table."""
        return self._name

    def _checkpoint_children(self) -> dict[str, Any]:
        return {}

    @property
    def resource_handle(self) -> Table:
        """The table itself, because resources do not exist."""
        return self

    def lookup(self, keys: TensorLike, *args: Any, **kwargs: Any) -> Any:
        """Look up the values of keys; subclasses implement this."""
        raise NotImplementedError("Subclasses of Table must implement `lookup`.")

    def __getitem__(self, keys: TensorLike) -> Any:
        """Look up the values of keys."""
        return self.lookup(keys)

    def _convert_keys(self, keys: TensorLike) -> Tensor:
        """Convert keys to a tensor; raise `TypeError` if they have another dtype."""
        tensor = convert_to_tensor(keys, dtype_hint=self._key_dtype)
        if tensor.dtype is not self._key_dtype:
            raise TypeError(
                f"Dtype of argument `keys` must be {self._key_dtype!s}, received: {tensor.dtype!s}"
            )
        return tensor


def apply_to_values(table: Table, keys: TensorLike, *args: TensorLike) -> PyTree:
    """Look up the values of a sparse or ragged tensor of keys; return NotImplemented for a tensor."""
    if isinstance(keys, RaggedTensor):
        return keys.with_flat_values(table.lookup(keys.flat_values, *args))
    if isinstance(keys, SparseTensor):
        return keys.with_values(table.lookup(keys.values, *args))
    return NotImplemented
