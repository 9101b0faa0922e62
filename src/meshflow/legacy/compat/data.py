"""Names of `tf.compat.v1.data` that TensorFlow 2 does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.environment.types import PyTree
from meshflow.legacy.compat.public_package import tf as _tf

__all__ = [
    "get_output_classes",
    "get_output_shapes",
    "get_output_types",
    "make_initializable_iterator",
    "make_one_shot_iterator",
]


def _map_element_spec(dataset_or_iterator: Any, function: Callable[[Any], object]) -> PyTree:
    """Apply a function to the spec of each component of the elements."""
    return _tf.nest.map_structure(function, dataset_or_iterator.element_spec)


def get_output_types(dataset_or_iterator: Any) -> PyTree:
    """Return the dtypes of the elements of a dataset or iterator."""
    return _map_element_spec(dataset_or_iterator, lambda spec: spec.dtype)


def get_output_shapes(dataset_or_iterator: Any) -> PyTree:
    """Return the shapes of the elements of a dataset or iterator."""
    return _map_element_spec(dataset_or_iterator, lambda spec: spec.shape)


def get_output_classes(dataset_or_iterator: Any) -> PyTree:
    """Return the classes of the elements of a dataset or iterator."""
    return _map_element_spec(dataset_or_iterator, lambda spec: spec.value_type)


def make_one_shot_iterator(dataset: Any) -> Any:
    """Return an iterator over a dataset."""
    return iter(dataset)


def make_initializable_iterator(dataset: Any, shared_name: str | None = None) -> Any:
    """Return an iterator over a dataset, which needs no initialization.

    Args:
      dataset: The dataset.
      shared_name: Ignored.
    """
    return iter(dataset)
