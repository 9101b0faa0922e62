"""Control flow: the learning phase, conditionals and loops.

The learning phase determines whether a layer without a `training` argument behaves as in training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike, is_tensor
from meshflow.environment.types import PyTree
from meshflow.keras import settings
from meshflow.keras.engine.symbolic.call_signature import call_state
from meshflow.keras.layers.rnn_loop import rnn
from meshflow.legacy.graph.graph import get_default_graph, has_explicit_graph
from meshflow.ops import array, functional
from meshflow.ops.control_flow import cond

__all__ = [
    "foldl",
    "foldr",
    "in_test_phase",
    "in_train_phase",
    "learning_phase",
    "map_fn",
    "rnn",
    "switch",
]

T = TypeVar("T")


def learning_phase() -> int | Tensor:
    """Return 1 in training, else 0, by `set_learning_phase` or the current layer call.

    In a `tf.Graph`, outside of layer calls, it is a boolean tensor, by default False. A session may feed it, and
    layers without a `training` argument then use this value.

    Example:
      >>> tf.keras.backend.learning_phase()
      0
    """
    explicit = settings.get_explicit_learning_phase()
    if explicit is not None:
        return explicit
    training = call_state.training[-1] if call_state.training else None
    if training is None:
        return get_default_graph().learning_phase if has_explicit_graph() else 0
    return training if is_tensor(training) else int(bool(training))


def _evaluate(expression: Any) -> Any:
    return expression() if callable(expression) else expression


def in_train_phase(x: TensorLike, alt: Any, training: Any = None) -> Any:
    """Return `x` in training and `alt` otherwise; either may be a function without arguments.

    Args:
      x: Value in training.
      alt: Value outside training.
      training: Boolean or scalar tensor; default the learning phase.

    Example:
      >>> tf.keras.backend.in_train_phase("train", "test", training=True)
      'train'
    """
    training = learning_phase() if training is None else training
    return switch(training, x, alt) if is_tensor(training) else _evaluate(x if training else alt)


def in_test_phase(x: TensorLike, alt: Any, training: Any = None) -> Any:
    """Return `alt` in training and `x` otherwise; either may be a function without arguments.

    Args:
      x: Value outside training.
      alt: Value in training.
      training: Boolean or scalar tensor; default the learning phase.

    Example:
      >>> tf.keras.backend.in_test_phase("test", "train", training=True)
      'train'
    """
    return in_train_phase(alt, x, training)


def switch(condition: TensorLike, then_expression: Any, else_expression: Any) -> Any:
    """Select one of two expressions by a scalar, or element by element by a tensor.

    Args:
      condition: Boolean or tensor. If it is not a scalar, it broadcasts over the trailing
        dimensions of the expressions.
      then_expression: Tensor, or a function without arguments.
      else_expression: Tensor, or a function without arguments.

    Raises:
      ValueError: If the condition has more dimensions than the expressions.

    Example:
      >>> tf.keras.backend.switch(tf.constant([True, False]), tf.zeros([2, 2]), tf.ones([2, 2])).numpy()
      array([[0., 0.],
             [1., 1.]], dtype=float32)
    """
    condition = convert_to_tensor(condition)
    if not condition.dtype.is_bool:
        condition = array.where(condition != 0, True, False)
    if condition.ndim == 0:
        return cond(condition, _as_function(then_expression), _as_function(else_expression))
    x = convert_to_tensor(_evaluate(then_expression))
    y = convert_to_tensor(_evaluate(else_expression))
    if condition.ndim > x.ndim:
        raise ValueError(
            "Rank of `condition` should be less than or equal to rank of `then_expression` and "
            f"`else_expression`. ndim(condition)={condition.ndim}, ndim(then_expression)={x.ndim}"
        )
    condition = array.reshape(condition, [*condition.shape, *[1] * (x.ndim - condition.ndim)])
    return array.where(condition, x, y)


def _as_function(expression: Any) -> Callable[[], Any]:
    return expression if callable(expression) else lambda: array.identity(expression)


def map_fn(fn: Callable[..., T], elems: PyTree, name: str | None = None, dtype: PyTree = None) -> T:
    """Apply `fn` to each slice of the first dimension; see `tf.map_fn`.

    Example:
      >>> tf.keras.backend.map_fn(tf.reduce_sum, tf.constant([[1.0, 2.0], [3.0, 4.0]])).numpy().tolist()
      [3.0, 7.0]
    """
    return functional.map_fn(fn, elems, dtype=dtype, name=name)


def foldl(
    fn: Callable[..., T], elems: PyTree, initializer: PyTree = None, name: str | None = None
) -> T:
    """Fold the slices of the first dimension, starting with the first; see `tf.foldl`.

    Example:
      >>> float(tf.keras.backend.foldl(lambda total, x: 10 * total + x, tf.constant([1.0, 2.0, 3.0])))
      123.0
    """
    return functional.foldl(fn, elems, initializer, name=name)


def foldr(
    fn: Callable[..., T], elems: PyTree, initializer: PyTree = None, name: str | None = None
) -> T:
    """Fold the slices of the first dimension, starting with the last; see `tf.foldr`.

    Example:
      >>> float(tf.keras.backend.foldr(lambda total, x: 10 * total + x, tf.constant([1.0, 2.0, 3.0])))
      321.0
    """
    return functional.foldr(fn, elems, initializer, name=name)
