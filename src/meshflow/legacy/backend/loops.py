"""Loops over the elements of tensors, and over the steps of sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from meshflow.keras.layers.steps import rnn
from meshflow.ops import functional

__all__ = ["foldl", "foldr", "map_fn", "rnn"]

T = TypeVar("T")


def map_fn(fn: Callable[..., T], elems: Any, name: str | None = None, dtype: Any = None) -> T:
    """Applies `fn` to each slice of the first dimension; see `tf.map_fn`.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.map_fn(tf.reduce_sum, tf.constant([[1.0, 2.0], [3.0, 4.0]])).numpy().tolist()
      [3.0, 7.0]
    """
    return functional.map_fn(fn, elems, dtype=dtype, name=name)


def foldl(fn: Callable[..., T], elems: Any, initializer: Any = None, name: str | None = None) -> T:
    """Combines the slices of the first dimension from the first on; see `tf.foldl`.

    Example:
      >>> import meshflow as tf
      >>> float(tf.keras.backend.foldl(lambda total, x: 10 * total + x, tf.constant([1.0, 2.0, 3.0])))
      123.0
    """
    return functional.foldl(fn, elems, initializer, name=name)


def foldr(fn: Callable[..., T], elems: Any, initializer: Any = None, name: str | None = None) -> T:
    """Combines the slices of the first dimension from the last on; see `tf.foldr`.

    Example:
      >>> import meshflow as tf
      >>> float(tf.keras.backend.foldr(lambda total, x: 10 * total + x, tf.constant([1.0, 2.0, 3.0])))
      321.0
    """
    return functional.foldr(fn, elems, initializer, name=name)
