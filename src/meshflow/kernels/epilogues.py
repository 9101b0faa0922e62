"""What surrounds a convolution, computed with it: bias, ReLU, the gradient of a ReLU, a kernel turned round
or packed before.

A primitive stands for a convolution and these; `passes.fusing` puts it into programs. Where
a handler of our own does all of it, that is one pass over memory; elsewhere it is lowered as the
equations it stands for. Derivatives and vmap are those of these equations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core as jex_core

from meshflow.kernels import library, lowerings, plans
from meshflow.kernels.composed import register as register_composed

# Operands: image, kernel (also in float32, rounded), (bias), (gate), (the kernel once more, packed); parameters: the
# convolution's, and `finish`, `bias`, `turned` and `packed`.
finished_p = jex_core.Primitive("finished_convolution")


def composed(
    *operands: Any, finish: str | None, bias: bool, turned: bool, packed: bool, **parameters: Any
) -> Any:
    """The equations that a finished convolution stands for."""
    x, w, *rest = operands[:-1] if packed else operands
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


class Code(NamedTuple):
    """How a convolution is computed.

    Attributes:
      plan: what is computed, without packed weights.
      types: of the operands, as the handler takes them.
      out: of the result, as the handler gives it.
      spatial: dimensions in which the kernel is turned round first.
    """

    plan: tuple[int, ...]
    types: tuple[np.dtype, ...]
    out: np.dtype
    spatial: tuple[int, ...] = ()

    def kernel(self, w: Any) -> Any:
        """A kernel as the handler takes it."""
        return (jax.lax.rev(w, self.spatial) if self.spatial else w).astype(self.types[1])


def fast(operands: Any, out: Any, parameters: dict[str, Any]) -> Any:
    """A function that runs a finished convolution by one handler, or None.

    Args:
      operands: shapes and dtypes of image, kernel, bias, gate and packed kernel, as many as there are.
      out: those of the result.
      parameters: of the primitive.
    """
    found = code(operands, out, parameters)
    if found is None:
        return None
    result = jax.ShapeDtypeStruct(out.shape, found.out)

    def call(x: Any, w: Any, *rest: Any) -> Any:
        plan: Any = found.plan
        if parameters["packed"]:
            rest, kernel = rest[:-1], rest[-1]
            plan = plans.with_packed(plan, library.TYPES[found.types[1].name])
        else:
            kernel = found.kernel(w)
        others = [a.astype(t) for a, t in zip(rest, found.types[2:], strict=True)]
        arrays = (x.astype(found.types[0]), kernel, *others)
        return lowerings.run(plan, arrays, result).astype(out.dtype)

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
    image, kernel, *others = operands
    loaded = library.load()
    if loaded is None or lowerings.work(image, kernel, out, parameters) < lowerings.LEAST_WORK:
        return None
    if not others and parameters["finish"] is None and not parameters["turned"]:
        return _alone(image, kernel, out, parameters)
    types = [np.dtype(a.dtype) for a in (*operands, out)]
    plain = {t.name for t in (types[0], *types[2:])}
    if plain != {"bfloat16"} or types[1].name not in ("bfloat16", "float32"):
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
            return Code(tuple(full), tuple(types[:-1]), types[-1])
    return None


def _alone(image: Any, kernel: Any, out: Any, parameters: dict[str, Any]) -> Code | None:
    """How a convolution that nothing surrounds would be computed."""
    rounded = jax.ShapeDtypeStruct(kernel.shape, image.dtype)
    found = lowerings.code(image, rounded, out, parameters)
    if found is None or found[0][0] == plans.KERNEL_GRADIENT:
        return None
    plan, (types, result) = found
    turned = plan[0] == plans.INPUT_GRADIENT
    spatial = tuple(parameters["dimension_numbers"].rhs_spec[2:]) if turned else ()
    return Code(tuple(plan), tuple(types), result, spatial)


def _result(
    *avals: Any, finish: Any, bias: Any, turned: Any, packed: Any, **parameters: Any
) -> Any:
    image, kernel = avals[0], avals[1].update(dtype=avals[0].dtype)
    return jax.lax.conv_general_dilated_p.abstract_eval(image, kernel, **parameters)[0]


def register() -> None:
    """Makes the primitive known to JAX."""
    register_composed(finished_p, composed, _result, lambda xs, ys, ps: fast(xs, ys[0], ps))
