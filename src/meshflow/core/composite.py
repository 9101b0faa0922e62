"""`IndexedSlices`: gradients of a few rows."""

from __future__ import annotations

from typing import Any

from meshflow.core.convert import convert_to_tensor
from meshflow.core.tensor import Tensor


class IndexedSlices:
    """Rows of a tensor by number; rows given twice add up.

    Args:
      values: tensor of shape [n, ...].
      indices: n row numbers.
      dense_shape: shape of the whole tensor.

    Example:
      >>> import meshflow as tf
      >>> s = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([0, 0]), dense_shape=[2, 1])
      >>> tf.convert_to_tensor(s).numpy()
      array([[3.],
             [0.]], dtype=float32)
    """

    def __init__(self, values: Any, indices: Any, dense_shape: Any = None) -> None:
        self._values, self._indices = convert_to_tensor(values), convert_to_tensor(indices)
        self._dense_shape = None if dense_shape is None else convert_to_tensor(dense_shape)

    @property
    def values(self) -> Tensor:
        """The rows."""
        return self._values

    @property
    def indices(self) -> Tensor:
        """Their numbers."""
        return self._indices

    @property
    def dense_shape(self) -> Tensor | None:
        """Shape of the whole tensor, or None."""
        return self._dense_shape

    @property
    def dtype(self) -> Any:
        """Element type."""
        return self._values.dtype

    @property
    def shape(self) -> Any:
        """Shape of the whole tensor."""
        from meshflow.core.shapes import TensorShape

        return (
            TensorShape(None)
            if self._dense_shape is None
            else TensorShape(self._dense_shape.numpy().tolist())
        )

    def _as_tensor(self) -> Tensor:
        if self._dense_shape is None:
            raise ValueError("Tensor conversion requested for IndexedSlices without dense_shape.")
        from meshflow.ops.array import scatter_nd
        from meshflow.ops.array.shaping import expand_dims

        return scatter_nd(expand_dims(self._indices, -1), self._values, self._dense_shape)

    def __neg__(self) -> IndexedSlices:
        return IndexedSlices(-self._values, self._indices, self._dense_shape)  # type: ignore[operator]

    def __repr__(self) -> str:
        return f"IndexedSlices(indices={self._indices}, values={self._values}, dense_shape={self._dense_shape})"
