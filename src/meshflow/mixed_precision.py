"""`tf.mixed_precision`: automatic mixed precision, and the loss scales of TensorFlow 2.2.

`lists` holds the sets of operations by precision; changes in place affect functions that are
compiled afterwards. `explain` shows the precision of each equation of a function.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

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
    dtype: str | np.dtype[Any] | type[Any] = "bfloat16",
    lists: PrecisionLists | None = None,
    **kwargs: Any,
) -> Explanation:
    """Show the precision that automatic mixed precision would choose for each equation, and why.

    Args:
      fn: A `tf.function`, a model, or a Python function of tensors.
      *args: Arguments of the function, or `tf.TensorSpec`s.
      dtype: The low precision.
      lists: Operations by precision; default `tf.mixed_precision.lists`.
      **kwargs: Keyword arguments of the function.

    Returns:
      A printable table with the attribute `rows` and the method `count(precision)`.

    Example:
      >>> x = tf.ones([2, 2])
      >>> table = tf.mixed_precision.explain(lambda x: tf.exp(x @ x), x)
      >>> [(row.primitive, row.precision) for row in table.rows]
      [('dot_general', 'bfloat16'), ('exp', 'float32')]
    """
    if hasattr(fn, "get_concrete_function"):
        function: Any = fn
        has_args = args or kwargs
        concrete = (
            function.get_concrete_for(args, kwargs)
            if has_args
            else function.get_concrete_function()
        )
        closed = concrete.closed_jaxpr
    else:
        closed = trace(convert(fn), args, kwargs, isolated=True).closed_jaxpr
    return explain_jaxpr(closed, dtype, lists)
