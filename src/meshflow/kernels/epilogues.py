"""What surrounds convolutions and products, computed with them: steps that follow, a kernel turned round.

Primitives stand for a convolution or a product and these; `passes.fusing` puts them into programs. Where
handlers of our own do all of it, that is one pass over memory; elsewhere it is lowered as equations.
Steps are done in float32, and the result is rounded once. Derivatives and vmap are those of the
equations.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

from meshflow.kernels import library, lowerings, plans
from meshflow.kernels.composed import register as register_composed

# Operands: image, kernel (also in float32, rounded), what the steps read; parameters: the convolution's, and `steps` and `turned`.
finished_p = jex_core.Primitive("finished_convolution")
# Operands: left, right, what the steps read; parameters: the product's, and `steps`.
product_p = jex_core.Primitive("finished_product")

# Steps that read a vector with a value for each feature, or an array of the result's shape.
VECTORS, ARRAYS = ("add", "scale"), ("plus", "gate")


def composed(*operands: Any, steps: tuple[str, ...], turned: bool, **parameters: Any) -> Any:
    """The equations that a finished convolution stands for."""
    x, w, *rest = operands
    layout = parameters["dimension_numbers"]
    y = jax.lax.conv_general_dilated_p.bind(x, _kernel(x, w, layout, turned), **parameters)
    return _after(y, (layout.out_spec[1],), steps, rest)


def _kernel(x: Any, w: Any, layout: Any, turned: bool) -> Any:
    """A kernel as the convolution takes it: rounded, turned round."""
    w = w.astype(x.dtype)
    return jax.lax.rev(w, layout.rhs_spec[2:]) if turned else w


def composed_product(*operands: Any, steps: tuple[str, ...], **parameters: Any) -> Any:
    """The equations that a finished product stands for."""
    y = jax.lax.dot_general_p.bind(*operands[:2], **parameters)
    return _after(y, features(operands[1], y, parameters), steps, operands[2:])


def features(right: Any, result: Any, parameters: dict[str, Any]) -> tuple[int, ...]:
    """The dimensions of a product that come from its right operand only."""
    sums, batches = (parts[1] for parts in parameters["dimension_numbers"])
    free = right.ndim - len(sums) - len(batches)
    return tuple(range(result.ndim - free, result.ndim))


def _after(y: Any, axes: Sequence[int], steps: Sequence[str], operands: Sequence[Any]) -> Any:
    """A result after steps, vectors lying along some of its dimensions."""
    dtype, left = y.dtype, iter(operands)
    wide = y.astype(np.float32) if steps else y
    for step in steps:
        other: Any = next(left).astype(np.float32) if step in (*VECTORS, *ARRAYS) else None
        if step in VECTORS:
            other = jax.lax.broadcast_in_dim(other, y.shape, tuple(axes))
        if step == "scale":
            wide = wide * other
        elif step in ("add", "plus"):
            wide = wide + other
        elif step == "gate":
            wide = jax.lax.select(other > 0, wide, jax.lax.full_like(wide, 0))
        elif step == "relu":
            wide = jax.nn.relu(wide)
        else:
            wide = jax.nn.gelu(wide, approximate=step == "gelu_tanh")
    return wide.astype(dtype)


def fast(operands: Any, out: Any, parameters: dict[str, Any]) -> Any:
    """A function that runs a finished convolution by one handler, or None.

    Args:
      operands: shapes and dtypes of image, kernel and what the steps read.
      out: those of the result.
      parameters: of the primitive.
    """
    image, kernel = operands[:2]
    steps, turned = parameters["steps"], parameters["turned"]
    if lowerings.work(image, kernel, out, parameters) < lowerings.LEAST_WORK:
        return None
    candidates = lowerings.convolution_plans(image, kernel, out, **lowerings.geometry(parameters))
    plan = next((p for p in candidates if p[0] == plans.FORWARD), None)
    if plan is None:
        return None
    whole = _by_handler(plans.finished(plan, steps, turned), operands, out, steps)
    if whole is not None:
        return whole
    pieces = _by_handler(plans.finished(plan, steps), operands, out, steps) if turned else None
    if pieces is None:
        return None
    axes = parameters["dimension_numbers"].rhs_spec[2:]
    return lambda x, w, *rest: pieces(x, jax.lax.rev(w, axes), *rest)


def fast_product(operands: Any, out: Any, parameters: dict[str, Any]) -> Any:
    """A function that runs a finished product by one handler, or None; see `fast`."""
    steps = parameters["steps"]
    plan, orders = lowerings.product_plan(operands[0], operands[1], parameters["dimension_numbers"])
    # Products of two matrices only.
    if plan is None or plan[1] != 2:
        return None
    call = _by_handler(plans.finished(plan, steps), operands, out, steps)
    if call is None:
        return None

    def run(*arrays: Any) -> Any:
        pairs = zip(arrays[:2], orders, strict=True)
        ready = [x if order is None else jax.lax.transpose(x, order) for x, order in pairs]
        return call(*ready, *arrays[2:])

    return run


def _by_handler(plan: Sequence[int], operands: Any, out: Any, steps: Sequence[str]) -> Any:
    """A function that runs a plan by code of our own, or None where there is none."""
    loaded = library.load()
    types = [np.dtype(a.dtype) for a in (*operands, out)]
    known = {types[0].name, types[-1].name, *(t.name for t in types[2:-1])} <= set(library.TYPES)
    same = types[0] == types[-1] and types[1] in (types[0], np.dtype("float32"))
    if loaded is None or not known or not same:
        return None
    reading = [step for step in steps if step in (*VECTORS, *ARRAYS)]
    for i, step in zip(itertools.count(2), reading):
        types[i] = np.dtype("float32") if step in VECTORS else types[i]
    name = loaded.implementation(plan, [t.name for t in types])
    if name is None or not name.startswith("meshflow"):
        return None
    # XLA adds a vector where the result is read: no reason to take it in pieces.
    if name.startswith(library.PIECES) and all(step == "add" for step in steps):
        return None
    result = jax.ShapeDtypeStruct(out.shape, out.dtype)
    return lambda *arrays: lowerings.run(
        plan, [a.astype(t) for a, t in zip(arrays, types, strict=False)], result
    )


def _result(*avals: Any, steps: Any, turned: Any, **parameters: Any) -> Any:
    image, kernel = avals[0], avals[1].update(dtype=avals[0].dtype)
    return jax.lax.conv_general_dilated_p.abstract_eval(image, kernel, **parameters)[0]


def _product(*avals: Any, steps: Any, **parameters: Any) -> Any:
    return jax.lax.dot_general_p.abstract_eval(*avals[:2], **parameters)[0]


def register() -> None:
    """Makes the primitives known to JAX."""
    register_composed(finished_p, composed, _result, lambda xs, ys, ps: fast(xs, ys[0], ps))
    register_composed(
        product_p, composed_product, _product, lambda xs, ys, ps: fast_product(xs, ys[0], ps)
    )
