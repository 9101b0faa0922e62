"""`tf.ragged`: ops on rows of different lengths."""

from meshflow.ops.ragged import (
    boolean_mask,
    constant,
    map_flat_values,
    range,
    row_splits_to_segment_ids,
    stack,
)

__all__ = [
    "boolean_mask",
    "constant",
    "map_flat_values",
    "range",
    "row_splits_to_segment_ids",
    "stack",
]
