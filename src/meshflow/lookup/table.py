"""What tables have in common: keys on the host, lookups of dense and sparse tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor

__all__ = ["Table", "filled"]


def filled(values: list[Any], shape: Any, dtype: np.dtype) -> np.ndarray:
    """Values, each a scalar or an array, as an array of the given shape."""
    if not values or dtype.kind != "O":
        return np.asarray(values, dtype).reshape(shape)
    result = np.empty((len(values), *np.shape(values[0])), dtype)
    for i, value in enumerate(values):
        result[i] = value
    return result.reshape(shape)


class Table:
    """Base class of tables.

    Args:
      key_dtype: the keys' dtype.
      value_dtype: the values' dtype.
      name: the table's name.
    """

    def __init__(self, key_dtype: Any, value_dtype: Any, name: str | None = None) -> None:
        self._key_dtype, self._value_dtype, self._name = key_dtype, value_dtype, name

    @property
    def key_dtype(self) -> Any:
        """The keys' dtype."""
        return self._key_dtype

    @property
    def value_dtype(self) -> Any:
        """The values' dtype."""
        return self._value_dtype

    @property
    def name(self) -> str | None:
        """The table's name."""
        return self._name

    @property
    def resource_handle(self) -> Table:
        """The table itself, as there are no resources."""
        return self

    def lookup(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        """Values of keys. Subclasses define it."""
        raise NotImplementedError("Tables define `lookup`.")

    def __getitem__(self, keys: Any) -> Any:
        """`lookup(keys)`."""
        return self.lookup(keys)

    def _keys(self, keys: Any, dtype: Any = None) -> Tensor:
        """Keys as a tensor of the keys' dtype.

        Raises:
          TypeError: for another dtype.
        """
        wanted = self._key_dtype if dtype is None else dtype
        tensor = convert_to_tensor(keys, dtype_hint=wanted)
        if tensor.dtype is not wanted:
            raise TypeError(
                f"Dtype of argument `keys` must be {wanted!s}, received: {tensor.dtype!s}"
            )
        return tensor


def of_elements(look: Callable[..., Any], keys: Any, *more: Any) -> Any:
    """A lookup of a tensor, or of the elements of a sparse one."""
    if isinstance(keys, SparseTensor):
        return keys.with_values(look(keys.values, *more))
    return look(keys, *more)
