"""The gradient of a convolution's kernel takes in that of the bias, where both are read from one array.

Like fusing, it comes when no derivative is taken any more.
"""

from __future__ import annotations

import math
from typing import Any

from meshflow.environment.jax_internals import jex_core
from meshflow.kernels.kernel_and_bias_gradient import kernel_and_bias_p, summed_axes
from meshflow.passes.jaxprs import everywhere

__all__ = ["fuse_bias_gradients"]


def fuse_bias_gradients(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """The program with gradients of kernels and biases computed together; the same object when there are none.

    Args:
      closed: a `ClosedJaxpr`.
    """
    return everywhere(closed, _joined, ("conv_general_dilated",))


def _joined(jaxpr: Any, eqns: list[Any]) -> list[Any]:
    """The equations of one jaxpr, joined."""
    sums: dict[Any, list[int]] = {}
    for i, eqn in enumerate(eqns):
        if eqn.primitive.name == "reduce_sum":
            sums.setdefault(eqn.invars[0], []).append(i)
    if not sums:
        return eqns
    made = {variable: i for i, eqn in enumerate(eqns) for variable in eqn.outvars}
    found: list[Any] = list(eqns)
    for i, conv in enumerate(eqns):
        if not _is_kernel_gradient(conv):
            continue
        axes = summed_axes(conv.params)
        # At the first of the two both operands must be known.
        first = made.get(conv.invars[0], -1) + 1
        same = [j for j in sums.get(conv.invars[1], []) if j >= first and _sums(eqns[j], axes)]
        if not same:
            continue
        total = same[0]
        sums[conv.invars[1]].remove(total)
        found[total] = found[i] = None
        found[min(total, i)] = conv.replace(
            primitive=kernel_and_bias_p, outvars=[conv.outvars[0], eqns[total].outvars[0]]
        )
    return [eqn for eqn in found if eqn is not None]


def _sums(eqn: Any, axes: tuple[int, ...]) -> bool:
    """Whether a sum is over these dimensions."""
    return tuple(sorted(eqn.params["axes"])) == axes


def _is_kernel_gradient(conv: Any) -> bool:
    """Whether there is code for an equation together with the gradient of a bias."""
    if conv.primitive.name != "conv_general_dilated":
        return False
    if any(isinstance(v, jex_core.Literal) for v in conv.invars):
        return False
    layout, (_, window), (kernel,) = conv.params["dimension_numbers"], conv.invars, conv.outvars
    plain = conv.params["feature_group_count"] == conv.params["batch_group_count"] == 1
    types = {v.aval.dtype.name for v in (*conv.invars, kernel)}
    # What slides over the image is larger than where it comes to: a result's gradient, no kernel.
    size = math.prod(window.aval.shape[i] for i in layout.rhs_spec[2:])
    places = math.prod(kernel.aval.shape[i] for i in layout.out_spec[2:])
    return plain and kernel.aval.ndim == 4 and types == {"bfloat16"} and size > places
