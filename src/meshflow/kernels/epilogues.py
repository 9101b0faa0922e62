"""What surrounds convolutions and products, computed with them: steps that follow, a kernel turned round or
packed before.

Primitives stand for a convolution or a product and these; `passes.epilogue_fusion` puts them into programs. Where
handlers of our own do all of it, that is one pass over memory; elsewhere it is lowered as equations.
Steps are done in float32, and the result is rounded once. Derivatives and vmap are those of the
equations.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.kernels import descriptors, library, lowerings, sizes
from meshflow.kernels.composite_primitives import register as register_composed

# Operands: image, kernel (also in float32, rounded), what the steps read, (the kernel once more, packed); parameters:
# the convolution's, and `steps`, `turned` and `packed`.
finished_p = jex_core.Primitive("finished_convolution")
# Operands: left, right, what the steps read; parameters: the product's, and `steps`.
product_p = jex_core.Primitive("finished_product")

# Steps that read a vector with a value for each feature, or an array of the result's shape.
VECTORS, ARRAYS = ("add", "scale"), ("plus", "gate")


def composed(
    *operands: Any, steps: tuple[str, ...], turned: bool, packed: bool, **parameters: Any
) -> Any:
    """The equations that a finished convolution stands for."""
    x, w, *rest = operands[:-1] if packed else operands
    layout = parameters["dimension_numbers"]
    w = w.astype(x.dtype)
    if turned:
        w = jax.lax.rev(w, layout.rhs_spec[2:])
    y = jax.lax.conv_general_dilated_p.bind(x, w, **parameters)
    return _after(y, (layout.out_spec[1],), steps, rest)


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


class Code(NamedTuple):
    """How a convolution is computed.

    Attributes:
      plan: what is computed, without packed weights.
      types: of the operands, as the handler takes them.
      out: of the result, as the handler gives it.
      spatial: dimensions in which the kernel is turned round first.
      after: steps that are left to XLA.
      rounded: to what the kernel is rounded first; None where the handler does so.
    """

    plan: tuple[int, ...]
    types: tuple[np.dtype, ...]
    out: np.dtype
    spatial: tuple[int, ...] = ()
    after: tuple[str, ...] = ()
    rounded: np.dtype | None = None

    def kernel(self, w: Any) -> Any:
        """A kernel as the handler takes it."""
        w = w if self.rounded is None else w.astype(self.rounded)
        return (jax.lax.rev(w, self.spatial) if self.spatial else w).astype(self.types[1])


def fast(operands: Any, out: Any, parameters: dict[str, Any]) -> Any:
    """A function that runs a finished convolution by one handler, or None.

    Args:
      operands: shapes and dtypes of image, kernel, what the steps read and packed kernel, as many as there are.
      out: those of the result.
      parameters: of the primitive.
    """
    found = code(operands, out, parameters)
    if found is None:
        return None
    result = jax.ShapeDtypeStruct(out.shape, found.out)
    axes = (parameters["dimension_numbers"].out_spec[1],)

    def call(x: Any, w: Any, *rest: Any) -> Any:
        plan: Any = found.plan
        if parameters["packed"]:
            rest, kernel = rest[:-1], rest[-1]
            plan = descriptors.with_packed(plan, library.TYPES[found.types[1].name])
        else:
            kernel = found.kernel(w)
        taken, left = ((), rest) if found.after else (rest, ())
        others = [a.astype(t) for a, t in zip(taken, found.types[2:], strict=True)]
        y = lowerings.run(plan, (x.astype(found.types[0]), kernel, *others), result)
        return _after(y.astype(out.dtype), axes, found.after, left)

    return call


def code(operands: Any, out: Any, parameters: dict[str, Any]) -> Code | None:
    """How a finished convolution would be computed by one handler; None where it would not.

    Args:
      operands: shapes and dtypes, as `fast` takes them.
      out: those of the result.
      parameters: of the primitive.
    """
    if parameters["packed"]:
        operands = operands[:-1]
    image, kernel = operands[:2]
    steps, turned = parameters["steps"], parameters["turned"]
    if not sizes.worth_a_call(lowerings.work(image, kernel, out, parameters)):
        return None
    if not steps and not turned:
        return _alone(image, kernel, out, parameters)
    candidates = lowerings.placed_plans(image, kernel, out, parameters)
    plan = next((p for p in candidates if descriptors.kind(p) == descriptors.FORWARD), None)
    if plan is None:
        return None
    found = _by_handler(descriptors.finished(plan, steps, turned), operands, out, steps)
    if found is not None:
        return found
    spatial = tuple(parameters["dimension_numbers"].rhs_spec[2:]) if turned else ()
    if turned:
        found = _by_handler(descriptors.finished(plan, steps), operands, out, steps)
    if found is None:
        found = _alone(image, kernel, out, parameters)
        found = None if found is None or found.spatial else found._replace(after=steps)
    return None if found is None else found._replace(spatial=spatial)


def fast_product(operands: Any, out: Any, parameters: dict[str, Any]) -> Any:
    """A function that runs a finished product by one handler, or None; see `fast`."""
    steps = parameters["steps"]
    plan, orders = lowerings.product_plan(operands[0], operands[1], parameters["dimension_numbers"])
    # Products of two matrices only.
    if plan is None or plan[1] != 2:
        return None
    found = _by_handler(descriptors.finished(plan, steps), operands, out, steps)
    if found is None:
        return None
    result = jax.ShapeDtypeStruct(out.shape, found.out)

    def run(*arrays: Any) -> Any:
        pairs = zip(arrays[:2], orders, strict=True)
        ready = [x if order is None else jax.lax.transpose(x, order) for x, order in pairs]
        operands = zip((*ready, *arrays[2:]), found.types, strict=True)
        return lowerings.run(found.plan, [a.astype(t) for a, t in operands], result)

    return run


def _by_handler(plan: Sequence[int], operands: Any, out: Any, steps: Sequence[str]) -> Code | None:
    """How a plan with steps is computed by code of our own; None where there is none."""
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
    if name is None or not name.startswith(library.OWN):
        return None
    # XLA adds a vector where the result is read: no reason to take it in pieces.
    if name.startswith(library.PIECES) and all(step == "add" for step in steps):
        return None
    return Code(tuple(plan), tuple(types[:-1]), types[-1])


def _alone(image: Any, kernel: Any, out: Any, parameters: dict[str, Any]) -> Code | None:
    """How a convolution that nothing surrounds would be computed."""
    rounded = jax.ShapeDtypeStruct(kernel.shape, image.dtype)
    if lowerings.padding_before(image, rounded, out, parameters) is not None:
        return None
    found = lowerings.code(image, rounded, out, parameters)
    if found is None or descriptors.kind(found[0]) == descriptors.KERNEL_GRADIENT:
        return None
    plan, (types, result) = found
    turned = descriptors.kind(plan) == descriptors.INPUT_GRADIENT
    spatial = tuple(parameters["dimension_numbers"].rhs_spec[2:]) if turned else ()
    return Code(tuple(plan), tuple(types), result, spatial, rounded=np.dtype(image.dtype))


def _result(*avals: Any, steps: Any, turned: Any, packed: Any, **parameters: Any) -> Any:
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
