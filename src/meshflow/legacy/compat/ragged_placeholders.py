"""`tf.compat.v1.ragged.placeholder`."""

from __future__ import annotations

from meshflow.core.runtime.name_scopes import name_scope
from meshflow.core.values.dtypes import DTypeLike, int64
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.legacy.compat import graph_names
from meshflow.ops.ragged import RaggedTensor

__all__ = ["placeholder"]


def placeholder(
    dtype: DTypeLike, ragged_rank: int, value_shape: ShapeLike = None, name: str | None = None
) -> Tensor | RaggedTensor:
    """Create a ragged tensor that `Session.run` must feed.

    Args:
      dtype: Dtype of the values.
      ragged_rank: Number of ragged dimensions; 0 for a tensor.
      value_shape: Shape of the innermost values; None for an unknown rank.
      name: Name scope of the placeholders of the values and row splits; the name of a tensor.

    Raises:
      RuntimeError: Outside of a graph.

    Example:
      >>> import meshflow as tf
      >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
      ...     rows = tf.compat.v1.ragged.placeholder(tf.int32, 1, [])
      ...     value = tf.compat.v1.ragged.constant_value([[1, 2], [3]])
      ...     print(session.run(rows * 2, {rows: value}).to_list())
      [[2, 4], [6]]
    """
    sizes = TensorShape(value_shape)
    if ragged_rank == 0:
        return graph_names.placeholder(dtype, sizes, name)
    with name_scope(name or "RaggedPlaceholder"):
        values = graph_names.placeholder(
            dtype, TensorShape([None]).concatenate(sizes), "flat_values"
        )
        splits = [
            graph_names.placeholder(int64, [None], f"row_splits_{i}") for i in range(ragged_rank)
        ]
    return RaggedTensor.from_nested_row_splits(values, splits, validate=False)
