"""Ragged tensors: `tf.RaggedTensor` and the ops of `tf.ragged`."""

from meshflow.ops.ragged.arrays import boolean_mask, stack, stack_dynamic_partitions
from meshflow.ops.ragged.calls import call_op
from meshflow.ops.ragged.construction import convert_values
from meshflow.ops.ragged.crosses import cross, cross_hashed
from meshflow.ops.ragged.data_rows import RaggedRow, make_spec, split_rows, stack_rows
from meshflow.ops.ragged.dynamic_shape import DynamicRaggedShape
from meshflow.ops.ragged.elementwise import map_flat_values
from meshflow.ops.ragged.factories import (
    constant,
    range,
    row_splits_to_segment_ids,
    segment_ids_to_row_splits,
    split_strings,
)
from meshflow.ops.ragged.partition import RowPartition, RowPartitionSpec, concatenate_ranges
from meshflow.ops.ragged.tensor import RaggedTensor, RaggedTensorSpec, merge_dims

__all__ = [
    "DynamicRaggedShape",
    "RaggedRow",
    "RaggedTensor",
    "RaggedTensorSpec",
    "RowPartition",
    "RowPartitionSpec",
    "boolean_mask",
    "call_op",
    "concatenate_ranges",
    "constant",
    "convert_values",
    "cross",
    "cross_hashed",
    "make_spec",
    "map_flat_values",
    "merge_dims",
    "range",
    "row_splits_to_segment_ids",
    "segment_ids_to_row_splits",
    "split_rows",
    "split_strings",
    "stack",
    "stack_dynamic_partitions",
    "stack_rows",
]
