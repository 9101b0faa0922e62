"""Fusion of the bias gradient of a convolution into its kernel gradient.

Both read the gradient of the convolution's result; the fused primitive reads it once. The pass runs
after all derivatives are taken.
"""

from __future__ import annotations

import math

from meshflow.environment.types import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from meshflow.kernels.kernel_and_bias_gradient import find_summed_axes, kernel_and_bias_p
from meshflow.passes.jaxprs import get_aval, rewrite_equations


def fuse_bias_gradients(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Fuse gradients of kernels and biases; return the same object if there are none."""
    return rewrite_equations(closed, _fuse_in_jaxpr, ("conv_general_dilated",))


def _fuse_in_jaxpr(jaxpr: Jaxpr, eqns: list[JaxprEqn]) -> list[JaxprEqn]:
    sums: dict[Atom, list[int]] = {}
    for i, eqn in enumerate(eqns):
        if eqn.primitive.name == "reduce_sum":
            sums.setdefault(eqn.invars[0], []).append(i)
    if not sums:
        return eqns
    producers: dict[Atom, int] = {
        variable: i for i, eqn in enumerate(eqns) for variable in eqn.outvars
    }
    fused: list[JaxprEqn | None] = list(eqns)
    for i, conv in enumerate(eqns):
        if not _is_kernel_gradient(conv):
            continue
        axes = find_summed_axes(conv.params)
        # The fused equation replaces the earlier of the two, so both operands must exist by then.
        first = producers.get(conv.invars[0], -1) + 1
        candidates = [
            j for j in sums.get(conv.invars[1], []) if j >= first and _is_sum_over(eqns[j], axes)
        ]
        if not candidates:
            continue
        total = candidates[0]
        sums[conv.invars[1]].remove(total)
        fused[total] = fused[i] = None
        fused[min(total, i)] = conv.replace(
            primitive=kernel_and_bias_p, outvars=[conv.outvars[0], eqns[total].outvars[0]]
        )
    return [eqn for eqn in fused if eqn is not None]


def _is_sum_over(eqn: JaxprEqn, axes: tuple[int, ...]) -> bool:
    return tuple(sorted(eqn.params["axes"])) == axes


def _is_kernel_gradient(conv: JaxprEqn) -> bool:
    """Check whether an equation is a kernel gradient that the fused primitive supports."""
    if conv.primitive.name != "conv_general_dilated":
        return False
    if any(isinstance(v, Literal) for v in conv.invars):
        return False
    layout = conv.params["dimension_numbers"]
    (image, window), kernel = map(get_aval, conv.invars), get_aval(conv.outvars[0])
    is_dense = conv.params["feature_group_count"] == conv.params["batch_group_count"] == 1
    dtypes = {aval.dtype.name for aval in (image, window, kernel)}
    # A window larger than the result distinguishes a kernel's gradient from a forward convolution.
    window_size = math.prod(window.shape[i] for i in layout.rhs_spec[2:])
    result_size = math.prod(kernel.shape[i] for i in layout.out_spec[2:])
    return is_dense and kernel.ndim == 4 and dtypes == {"bfloat16"} and window_size > result_size
