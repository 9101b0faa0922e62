"""`tf.mixed_precision`: the automatic rewriting of programs, and the loss scales of TensorFlow 2.2.

`lists` are the operations by precision, sets that may be changed in place for what is compiled
afterwards; `explain` shows what becomes of a function.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from meshflow.core.autograph import convert
from meshflow.core.tracing.trace import trace
from meshflow.keras.optimizers import loss_scale as _scales
from meshflow.passes import Explanation, PrecisionLists, default_lists, explain_jaxpr, lists

__all__ = ["Explanation", "PrecisionLists", "default_lists", "experimental", "explain", "lists"]

experimental = SimpleNamespace(
    DynamicLossScale=_scales.DynamicLossScale,
    FixedLossScale=_scales.FixedLossScale,
    LossScale=_scales.LossScale,
)


def explain(
    fn: Callable[..., Any],
    *args: Any,
    dtype: Any = "bfloat16",
    lists: PrecisionLists | None = None,
    **kwargs: Any,
) -> Explanation:
    """Shows which equations of a function automatic mixed precision would compute how, and why.

    Args:
      fn: a `tf.function`, a model, or a Python function of tensors.
      *args: arguments, or `tf.TensorSpec`s.
      dtype: the low precision.
      lists: what may be computed in it; default `tf.mixed_precision.lists`.
      **kwargs: further arguments.

    Returns:
      A table as an object: `rows`, `count(precision)`, and `print` shows it.

    Example:
      >>> import meshflow as tf
      >>> x = tf.ones([2, 2])
      >>> table = tf.mixed_precision.explain(lambda x: tf.exp(x @ x), x)
      >>> [(row.primitive, row.precision) for row in table.rows]
      [('dot_general', 'bfloat16'), ('exp', 'float32')]
    """
    if hasattr(fn, "get_concrete_function"):
        function: Any = fn
        given = args or kwargs
        concrete = (
            function.concrete_for(args, kwargs) if given else function.get_concrete_function()
        )
        closed = concrete.graph
    else:
        closed = trace(convert(fn), args, kwargs, isolated=True).closed
    return explain_jaxpr(closed, dtype, lists)
