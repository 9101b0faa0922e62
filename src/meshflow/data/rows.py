"""Rows of the leaves of batches: of tensors, arrays and composite tensors, which may be traced.

An extension type is encoded as for `Dataset.batch`, so all of its components have the rows along their first axis.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values import nest
from meshflow.core.values.composite import get_batch_encoder, is_extension
from meshflow.core.values.specs import type_spec_from_value
from meshflow.environment.types import PyTree
from meshflow.ops import sparse_elements
from meshflow.ops.array import concat


def has_rows(leaf: PyTree) -> bool:
    """Check whether a leaf is not a scalar."""
    return is_extension(leaf) or bool(len(leaf.shape))


def count_rows(leaf: PyTree) -> Any:
    """Return the number of rows of a leaf: an integer, or a symbol if it is traced."""
    if not is_extension(leaf):
        return leaf.shape[0]
    spec: PyTree = type_spec_from_value(leaf)
    return count_rows(nest.flatten(get_batch_encoder(spec).encode(spec, leaf, 1))[0])


def slice_rows(leaf: PyTree, start: Any, stop: Any) -> PyTree:
    """Return the rows from `start` to `stop` (exclusive) of a leaf.

    Args:
      leaf: An array, a tensor or a composite tensor.
      start: Index of the first row, not negative.
      stop: Index after the last row, at least `start` and at most the number of rows.
    """
    if is_extension(leaf):
        take = lambda columns: slice_rows(columns[0], start, stop)
        return _map_components([leaf], take, stop - start)
    if not isinstance(leaf, SparseTensor):
        return leaf[start:stop]
    sizes = leaf.shape.as_list()
    first = [start, *[0] * (len(sizes) - 1)]
    return sparse_elements.slice(leaf, first, [stop - start, *sizes[1:]])


def split_rows_evenly(leaf: PyTree, count: int) -> list[Any]:
    """Split the rows of a leaf into parts, of which the first are larger, as in TensorFlow.

    Args:
      leaf: An array, a tensor or a composite tensor.
      count: Number of parts; the last ones may be empty.
    """
    total = count_rows(leaf)
    size = -(-total // count)
    ends = [min(i * size, total) for i in range(count + 1)]
    return [slice_rows(leaf, ends[i], ends[i + 1]) for i in range(count)]


def concat_rows(leaves: Sequence[Any]) -> PyTree:
    """Concatenate the rows of leaves of the same type.

    The other sizes of a sparse tensor are the largest of the parts.
    """
    first = leaves[0]
    if is_extension(first):
        return _map_components(leaves, concat_rows, sum(map(count_rows, leaves)))
    if isinstance(first, SparseTensor):
        return sparse_elements.concat(0, leaves, expand_nonconcat_dims=True)
    if all(isinstance(leaf, np.ndarray) for leaf in leaves):
        return np.concatenate(leaves)
    return concat(leaves, 0)


def _map_components(values: Sequence[Any], function: Callable[[Any], Any], size: Any) -> PyTree:
    """Apply a function to the corresponding components of values of an extension type.

    Args:
      values: The values.
      function: Function of a sequence of components, which returns one with `size` rows.
      size: Number of rows of the result.
    """
    specs: list[Any] = list(map(type_spec_from_value, values))
    encoder = get_batch_encoder(specs[0])
    encoded = [encoder.encode(s, value, 1) for s, value in zip(specs, values, strict=True)]
    columns = zip(*map(nest.flatten, encoded), strict=True)
    components = nest.pack_sequence_as(encoded[0], list(map(function, columns)))
    row_specs = map(encoder.unbatch, specs)
    row_spec = functools.reduce(lambda a, b: a.most_specific_compatible_type(b), row_specs)
    return encoder.decode(encoder.batch(row_spec, size), components)
