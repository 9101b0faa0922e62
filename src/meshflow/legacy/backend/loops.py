"""Loops over the elements of tensors, and over the steps of sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.keras.layers.steps import rnn
from meshflow.ops import functional

__all__ = ["foldl", "foldr", "map_fn", "rnn"]


def map_fn(fn: Callable[..., Any], elems: Any, name: str | None = None, dtype: Any = None) -> Any:
    """Applies `fn` to each slice of the first dimension; see `tf.map_fn`.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.map_fn(tf.reduce_sum, tf.constant([[1.0, 2.0], [3.0, 4.0]])).numpy().tolist()
      [3.0, 7.0]
    """
    return functional.map_fn(fn, elems, dtype=dtype, name=name)


def foldl(
    fn: Callable[..., Any], elems: Any, initializer: Any = None, name: str | None = None
) -> Any:
    """Combines the slices of the first dimension from the first on; see `tf.foldl`.

    Example:
      >>> import meshflow as tf
      >>> float(tf.keras.backend.foldl(lambda total, x: 10 * total + x, tf.constant([1.0, 2.0, 3.0])))
      123.0
    """
    return functional.foldl(fn, elems, initializer, name=name)


def foldr(
    fn: Callable[..., Any], elems: Any, initializer: Any = None, name: str | None = None
) -> Any:
    """Combines the slices of the first dimension from the last on; see `tf.foldr`.

    Example:
      >>> import meshflow as tf
      >>> float(tf.keras.backend.foldr(lambda total, x: 10 * total + x, tf.constant([1.0, 2.0, 3.0])))
      321.0
    """
    return functional.foldr(fn, elems, initializer, name=name)
