"""Leaves of elements that consist of several arrays, as arrays and sparse tensors in files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from meshflow.core.values import nest
from meshflow.core.values.composite import is_extension, is_extension_spec
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import type_spec_from_value
from meshflow.data import structure
from meshflow.data.optional import Optional, OptionalSpec
from meshflow.environment.types import PyTree
from meshflow.ops.ragged import RaggedRow, RaggedTensor, RaggedTensorSpec
from meshflow.ops.tensor_array import TensorArray, TensorArraySpec


def split_leaf(leaf: PyTree) -> list[Any]:
    """Return the arrays and sparse tensors that a leaf consists of."""
    if isinstance(leaf, RaggedRow):
        return [leaf.array]
    if isinstance(leaf, RaggedTensor):
        return [leaf.flat_values, *leaf.nested_row_splits]
    if isinstance(leaf, Optional):
        is_present = bool(leaf.has_value())
        return [np.array(is_present), *(_split_all([leaf.get_value()]) if is_present else [])]
    if isinstance(leaf, TensorArray):
        elements = leaf._list_elements()
        written = [e.numpy() for e in elements if e is not None]
        return [np.array([e is not None for e in elements], bool), *written]
    if is_extension(leaf):
        return _split_all(type_spec_from_value(leaf)._to_components(leaf))
    return [leaf]


def _split_all(values: PyTree) -> list[Any]:
    leaves = nest.flatten(structure.to_arrays(tuple(values)))
    return [part for leaf in leaves for part in split_leaf(leaf)]


def join_leaf(spec: PyTree, parts: Iterator[Any]) -> PyTree:
    """Return a leaf, given the results of `split_leaf`.

    Args:
      spec: Spec of the leaf.
      parts: Supply of the parts.
    """
    if isinstance(spec, RaggedTensorSpec):
        values, splits = next(parts), [next(parts) for _ in range(spec.ragged_rank)]
        if not splits:
            return RaggedRow(values, spec.row_splits_dtype)
        return RaggedTensor.from_nested_row_splits(convert_to_tensor(values), splits)
    if isinstance(spec, OptionalSpec):
        if not next(parts):
            return Optional.empty(spec.element_spec)
        return Optional(_join_all(spec.element_spec, parts), spec=spec.element_spec)
    if isinstance(spec, TensorArraySpec):
        return spec.make_array([convert_to_tensor(next(parts)) if w else None for w in next(parts)])
    if is_extension_spec(spec):
        return spec.fill_components(lambda part: structure.to_tensor(join_leaf(part, parts)))
    return next(parts)


def _join_all(spec: PyTree, parts: Iterator[Any]) -> PyTree:
    return structure.map_specs(lambda s: structure.to_tensor(join_leaf(s, parts)), spec)


def join_leaves(specs: Sequence[Any], parts: Sequence[Any]) -> list[Any]:
    """Return the leaves of an element, given the results of `split_leaf` for them.

    Raises:
      ValueError: If there are more parts, or fewer.
    """
    supply = iter(parts)
    try:
        leaves = [join_leaf(spec, supply) for spec in specs]
    except StopIteration:
        raise ValueError("an element has fewer parts than its spec") from None
    if next(supply, None) is not None:
        raise ValueError("an element has more parts than its spec")
    return leaves
