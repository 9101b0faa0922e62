"""The learning phase: whether layers that nobody told behave as in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, is_tensor
from meshflow.keras import settings
from meshflow.keras.engine.symbolic.call_signature import call_state
from meshflow.ops import array
from meshflow.ops.control_flow import cond

__all__ = ["in_test_phase", "in_train_phase", "learning_phase", "switch"]


def learning_phase() -> int | Tensor:
    """1 in training, else 0: as `set_learning_phase` or the layer call in progress says.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.learning_phase()
      0
    """
    chosen = settings.chosen_learning_phase()
    if chosen is not None:
        return chosen
    training = call_state.training[-1] if call_state.training else None
    if training is None:
        return 0
    return training if is_tensor(training) else int(bool(training))


def _value(expression: Any) -> Any:
    return expression() if callable(expression) else expression


def in_train_phase(x: Any, alt: Any, training: Any = None) -> Any:
    """`x` in training, `alt` otherwise; either may be a function without arguments.

    Args:
      x: what to return in training.
      alt: what to return otherwise.
      training: whether it is training, a bool or a scalar tensor; default the learning phase.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.in_train_phase("train", "test", training=True)
      'train'
    """
    training = learning_phase() if training is None else training
    return switch(training, x, alt) if is_tensor(training) else _value(x if training else alt)


def in_test_phase(x: Any, alt: Any, training: Any = None) -> Any:
    """`alt` in training, `x` otherwise; either may be a function without arguments.

    Args:
      x: what to return outside training.
      alt: what to return in training.
      training: whether it is training; default the learning phase.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.in_test_phase("test", "train", training=True)
      'train'
    """
    return in_train_phase(alt, x, training)


def switch(condition: Any, then_expression: Any, else_expression: Any) -> Any:
    """One of two expressions, chosen by a scalar, or element by element by a tensor.

    Args:
      condition: a bool or tensor; with more dimensions than none, it is repeated over the last
        dimensions of the expressions.
      then_expression: a tensor, or a function without arguments.
      else_expression: likewise.

    Returns:
      A tensor.

    Raises:
      ValueError: when the condition has more dimensions than the expressions.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.switch(tf.constant([True, False]), tf.zeros([2, 2]), tf.ones([2, 2])).numpy()
      array([[0., 0.],
             [1., 1.]], dtype=float32)
    """
    chosen = convert_to_tensor(condition)
    chosen = chosen if chosen.dtype.is_bool else array.where(chosen != 0, True, False)
    if chosen.ndim == 0:
        return cond(chosen, _function(then_expression), _function(else_expression))
    one, other = (
        convert_to_tensor(_value(then_expression)),
        convert_to_tensor(_value(else_expression)),
    )
    if chosen.ndim > one.ndim:
        raise ValueError(
            "Rank of `condition` should be less than or equal to rank of `then_expression` and "
            f"`else_expression`. ndim(condition)={chosen.ndim}, ndim(then_expression)={one.ndim}"
        )
    chosen = array.reshape(chosen, [*chosen.shape, *[1] * (one.ndim - chosen.ndim)])
    return array.where(chosen, one, other)


def _function(expression: Any) -> Callable[[], Any]:
    return expression if callable(expression) else lambda: array.identity(expression)
