"""Convolutions and products with an epilogue, as primitives; kernels may be flipped or packed.

`passes.epilogue_fusion` introduces the primitives. A handler computes one in one pass over memory;
without a handler it is lowered as the equations it represents. Steps are computed in float32, and
the result is rounded once. Derivatives and vmap are those of the equations.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Array
from meshflow.kernels import descriptors, library, lowerings, sizes
from meshflow.kernels.composite_primitives import register as register_composite
from meshflow.kernels.library import Aval, Avals, HandlerCall

# Operands: image, kernel (maybe float32, to be rounded), operands of the epilogue, (the kernel
# again, packed). Parameters: those of the convolution, `epilogue`, `flipped` and `packed`.
convolution_p = jex_core.Primitive("convolution_with_epilogue")
# Operands: left, right, operands of the epilogue. Parameters: those of the product, and `epilogue`.
product_p = jex_core.Primitive("product_with_epilogue")

# Steps that read a vector with one value per feature, or an array of the result's shape.
VECTORS, ARRAYS = ("add", "scale"), ("plus", "relu_mask")


def compute_convolution(
    *operands: Array, epilogue: tuple[str, ...], flipped: bool, packed: bool, **parameters: Any
) -> jax.Array:
    """Compute a fused convolution by JAX's operations."""
    x, w, *rest = operands[:-1] if packed else operands
    layout = parameters["dimension_numbers"]
    w = w.astype(x.dtype)
    if flipped:
        w = jax.lax.rev(w, layout.rhs_spec[2:])
    y = jax.lax.conv_general_dilated_p.bind(x, w, **parameters)
    return _apply_epilogue(y, (layout.out_spec[1],), epilogue, rest)


def compute_product(*operands: Array, epilogue: tuple[str, ...], **parameters: Any) -> jax.Array:
    """Compute a fused product by JAX's operations."""
    y = jax.lax.dot_general_p.bind(*operands[:2], **parameters)
    return _apply_epilogue(y, find_feature_axes(operands[1], y, parameters), epilogue, operands[2:])


def find_feature_axes(
    right: Aval | Array, result: Aval | Array, parameters: dict[str, Any]
) -> tuple[int, ...]:
    """Return the axes of a product's result that belong to its right operand only."""
    sums, batches = (parts[1] for parts in parameters["dimension_numbers"])
    free = right.ndim - len(sums) - len(batches)
    return tuple(range(result.ndim - free, result.ndim))


def _apply_epilogue(
    y: jax.Array, axes: Sequence[int], epilogue: Sequence[str], operands: Iterable[Array]
) -> jax.Array:
    """Apply an epilogue to a result; vectors are broadcast along the feature axes `axes`."""
    dtype, left = y.dtype, iter(operands)
    wide = y.astype(np.float32) if epilogue else y
    for op in epilogue:
        other: Any = next(left).astype(np.float32) if op in (*VECTORS, *ARRAYS) else None
        if op in VECTORS:
            other = jax.lax.broadcast_in_dim(other, y.shape, tuple(axes))
        if op == "scale":
            wide = wide * other
        elif op in ("add", "plus"):
            wide = wide + other
        elif op == "relu_mask":
            wide = jax.lax.select(other > 0, wide, jax.lax.full_like(wide, 0))
        elif op == "relu":
            wide = jax.nn.relu(wide)
        else:
            wide = jax.nn.gelu(wide, approximate=op == "gelu_tanh")
    return wide.astype(dtype)


class ConvolutionCall(NamedTuple):
    """A convolution by a handler.

    Attributes:
      descriptor: The computation, with unpacked weights.
      types: Dtypes of the operands of the handler.
      out: Dtype of the result of the handler.
      flipped_axes: Axes in which the kernel must be flipped before.
      remaining_epilogue: Steps of the epilogue that XLA computes afterwards.
      kernel_dtype: Dtype to which the kernel must be rounded before; None if the handler rounds it.
    """

    descriptor: tuple[int, ...]
    types: tuple[np.dtype, ...]
    out: np.dtype
    flipped_axes: tuple[int, ...] = ()
    remaining_epilogue: tuple[str, ...] = ()
    kernel_dtype: np.dtype | None = None

    def prepare_kernel(self, w: jax.Array) -> jax.Array:
        """Round, flip and cast a kernel for the handler."""
        w = w if self.kernel_dtype is None else w.astype(self.kernel_dtype)
        return (jax.lax.rev(w, self.flipped_axes) if self.flipped_axes else w).astype(self.types[1])


def choose_convolution(
    operands: Avals, out: Aval, parameters: dict[str, Any]
) -> HandlerCall | None:
    """Return a function that computes a fused convolution by one handler, or None.

    `operands` are the types of image, kernel, operands of the epilogue and packed kernel.
    """
    plan = plan_convolution(operands, out, parameters)
    if plan is None:
        return None
    result = jax.ShapeDtypeStruct(out.shape, plan.out)
    axes = (parameters["dimension_numbers"].out_spec[1],)

    def call(x: jax.Array, w: jax.Array, *rest: jax.Array) -> jax.Array:
        descriptor: Any = plan.descriptor
        if parameters["packed"]:
            rest, kernel = rest[:-1], rest[-1]
            descriptor = descriptors.with_packed_weights(
                descriptor, library.TYPE_CODES[plan.types[1].name]
            )
        else:
            kernel = plan.prepare_kernel(w)
        fused, remaining = ((), rest) if plan.remaining_epilogue else (rest, ())
        epilogue_operands = [a.astype(t) for a, t in zip(fused, plan.types[2:], strict=True)]
        y = lowerings.call_handler(
            descriptor, (x.astype(plan.types[0]), kernel, *epilogue_operands), result
        )
        return _apply_epilogue(y.astype(out.dtype), axes, plan.remaining_epilogue, remaining)

    return call


def plan_convolution(
    operands: Avals, out: Aval, parameters: dict[str, Any]
) -> ConvolutionCall | None:
    """Plan a fused convolution by one handler; return None to use XLA's code."""
    if parameters["packed"]:
        operands = operands[:-1]
    image, kernel = operands[:2]
    epilogue, flipped = parameters["epilogue"], parameters["flipped"]
    if not sizes.is_convolution_worth_call(
        lowerings.count_multiply_adds(image, kernel, out, parameters)
    ):
        return None
    if not epilogue and not flipped:
        return _plan_without_epilogue(image, kernel, out, parameters)
    candidates = lowerings.list_descriptors(image, kernel, out, parameters)
    descriptor = next(
        (p for p in candidates if descriptors.get_computation(p) == descriptors.FORWARD), None
    )
    if descriptor is None:
        return None
    plan = _plan_with_epilogue(
        descriptors.with_epilogue(descriptor, epilogue, flipped), operands, out, epilogue
    )
    if plan is not None:
        return plan
    spatial = tuple(parameters["dimension_numbers"].rhs_spec[2:]) if flipped else ()
    if flipped:
        plan = _plan_with_epilogue(
            descriptors.with_epilogue(descriptor, epilogue), operands, out, epilogue
        )
    if plan is None:
        plan = _plan_without_epilogue(image, kernel, out, parameters)
        plan = (
            None
            if plan is None or plan.flipped_axes
            else plan._replace(remaining_epilogue=epilogue)
        )
    return None if plan is None else plan._replace(flipped_axes=spatial)


def choose_product(operands: Avals, out: Aval, parameters: dict[str, Any]) -> HandlerCall | None:
    """Return a function that computes a fused product by one handler, or None."""
    epilogue = parameters["epilogue"]
    descriptor, orders = lowerings.describe_product(
        operands[0], operands[1], parameters["dimension_numbers"]
    )
    # Handlers do not support epilogues of batched products.
    if descriptor is None or descriptor[1] != 2:
        return None
    plan = _plan_with_epilogue(
        descriptors.with_epilogue(descriptor, epilogue), operands, out, epilogue
    )
    if plan is None:
        return None
    result = jax.ShapeDtypeStruct(out.shape, plan.out)

    def run(*arrays: jax.Array) -> jax.Array:
        pairs = zip(arrays[:2], orders, strict=True)
        ready = [x if order is None else jax.lax.transpose(x, order) for x, order in pairs]
        operands = zip((*ready, *arrays[2:]), plan.types, strict=True)
        return lowerings.call_handler(plan.descriptor, [a.astype(t) for a, t in operands], result)

    return run


def _plan_with_epilogue(
    descriptor: Sequence[int], operands: Avals, out: Aval, epilogue: Sequence[str]
) -> ConvolutionCall | None:
    """Plan a computation with an epilogue by our C++ code; return None if there is none."""
    loaded = library.load()
    types = [np.dtype(a.dtype) for a in (*operands, out)]
    is_supported = {types[0].name, types[-1].name, *(t.name for t in types[2:-1])} <= set(
        library.TYPE_CODES
    )
    is_uniform = types[0] == types[-1] and types[1] in (types[0], np.dtype("float32"))
    if loaded is None or not is_supported or not is_uniform:
        return None
    reading_steps = [op for op in epilogue if op in (*VECTORS, *ARRAYS)]
    for i, op in zip(itertools.count(2), reading_steps):
        types[i] = np.dtype("float32") if op in VECTORS else types[i]
    name = loaded.find_implementation(descriptor, [t.name for t in types])
    if name is None or not name.startswith(library.OWN_PREFIX):
        return None
    # XLA fuses the addition of a vector into the consumer, so that blocking would not pay off.
    if name.startswith(library.BLOCKED_PREFIX) and all(op == "add" for op in epilogue):
        return None
    return ConvolutionCall(tuple(descriptor), tuple(types[:-1]), types[-1])


def _plan_without_epilogue(
    image: Aval, kernel: Aval, out: Aval, parameters: dict[str, Any]
) -> ConvolutionCall | None:
    """Plan a convolution without an epilogue."""
    rounded = jax.ShapeDtypeStruct(kernel.shape, image.dtype)
    if lowerings.plan_padding(image, rounded, out, parameters) is not None:
        return None
    code = lowerings.choose_code(image, rounded, out, parameters)
    if code is None or descriptors.get_computation(code[0]) == descriptors.KERNEL_GRADIENT:
        return None
    descriptor, (types, result) = code
    flipped = descriptors.get_computation(descriptor) == descriptors.INPUT_GRADIENT
    spatial = tuple(parameters["dimension_numbers"].rhs_spec[2:]) if flipped else ()
    return ConvolutionCall(
        tuple(descriptor), tuple(types), result, spatial, kernel_dtype=np.dtype(image.dtype)
    )


def _infer_convolution_result(
    *avals: jax.core.ShapedArray,
    epilogue: object,
    flipped: object,
    packed: object,
    **parameters: Any,
) -> jax.core.ShapedArray:
    image, kernel = avals[0], avals[1].update(dtype=avals[0].dtype)
    return jax.lax.conv_general_dilated_p.abstract_eval(image, kernel, **parameters)[0]


def _infer_product_result(
    *avals: jax.core.ShapedArray, epilogue: object, **parameters: Any
) -> jax.core.ShapedArray:
    return jax.lax.dot_general_p.abstract_eval(*avals[:2], **parameters)[0]


def register() -> None:
    """Register the primitives with JAX."""
    register_composite(
        convolution_p,
        compute_convolution,
        _infer_convolution_result,
        lambda xs, ys, ps: choose_convolution(xs, ys[0], ps),
    )
    register_composite(
        product_p,
        compute_product,
        _infer_product_result,
        lambda xs, ys, ps: choose_product(xs, ys[0], ps),
    )
