"""What surrounds a convolution, computed with it: bias, ReLU, the gradient of a ReLU, a kernel turned round.

A primitive stands for a convolution and these; `passes.fusing` puts it into programs. Where
a handler of our own does all of it, that is one pass over memory; elsewhere it is lowered as the
equations it stands for. Derivatives and vmap are those of these equations.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

from meshflow.kernels import library, lowerings, plans
from meshflow.kernels.composed import register as register_composed

# Operands: image, kernel (also in float32, rounded), (bias), (gate); parameters: the convolution's, and `finish`, `bias` and `turned`.
finished_p = jex_core.Primitive("finished_convolution")


def composed(
    *operands: Any, finish: str | None, bias: bool, turned: bool, **parameters: Any
) -> Any:
    """The equations that a finished convolution stands for."""
    x, w, *rest = operands
    w = w.astype(x.dtype)
    if turned:
        w = jax.lax.rev(w, parameters["dimension_numbers"].rhs_spec[2:])
    y = jax.lax.conv_general_dilated_p.bind(x, w, **parameters)
    if bias:
        axis = parameters["dimension_numbers"].out_spec[1]
        y = y + jax.lax.broadcast_in_dim(rest[0], y.shape, (axis,))
    zero = np.zeros((), y.dtype)
    if finish == "relu":
        return jax.lax.max(y, zero)
    if finish == "gate":
        return jax.lax.select(rest[-1] > zero, y, jax.lax.full_like(y, 0))
    return y


def fast(operands: Any, out: Any, parameters: dict[str, Any]) -> Any:
    """A function that runs a finished convolution by one handler, or None.

    Args:
      operands: shapes and dtypes of image, kernel, bias and gate, as many as there are.
      out: those of the result.
      parameters: of the primitive.
    """
    image, kernel = operands[:2]
    if lowerings.work(image, kernel, out, parameters) < lowerings.LEAST_WORK:
        return None
    loaded = library.load()
    types = [np.dtype(a.dtype) for a in (*operands, out)]
    others = {t.name for t in (types[0], *types[2:])}
    known = others == {"bfloat16"} and types[1].name in ("bfloat16", "float32")
    if loaded is None or not known:
        return None
    if parameters["bias"]:
        types[2] = np.dtype("float32")
    for plan in lowerings.convolution_plans(image, kernel, out, **lowerings.geometry(parameters)):
        if plan[0] != plans.FORWARD:
            continue
        full = plans.finished(plan, *(parameters[name] for name in ("finish", "bias", "turned")))
        name = loaded.implementation(full, [t.name for t in types])
        # oneDNN's ReLU turns NaN to zero.
        if name is not None and name.startswith("meshflow"):
            result = jax.ShapeDtypeStruct(out.shape, out.dtype)
            return lambda *arrays: lowerings.run(
                full, [a.astype(t) for a, t in zip(arrays, types, strict=False)], result
            )
    return None


def _result(*avals: Any, finish: Any, bias: Any, turned: Any, **parameters: Any) -> Any:
    image, kernel = avals[0], avals[1].update(dtype=avals[0].dtype)
    return jax.lax.conv_general_dilated_p.abstract_eval(image, kernel, **parameters)[0]


def register() -> None:
    """Makes the primitive known to JAX."""
    register_composed(finished_p, composed, _result, lambda xs, ys, ps: fast(xs, ys[0], ps))
