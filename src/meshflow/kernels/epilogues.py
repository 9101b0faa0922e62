"""What surrounds convolutions and products, computed with them: an epilogue, a kernel turned round or
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
from meshflow.kernels.composite_primitives import register as register_composite

# Operands: image, kernel (also in float32, rounded), what the epilogue reads, (the kernel once more, packed); parameters:
# the convolution's, and `epilogue`, `flipped` and `packed`.
convolution_p = jex_core.Primitive("convolution_with_epilogue")
# Operands: left, right, what the epilogue reads; parameters: the product's, and `epilogue`.
product_p = jex_core.Primitive("product_with_epilogue")

# Steps that read a vector with a value for each feature, or an array of the result's shape.
VECTORS, ARRAYS = ("add", "scale"), ("plus", "relu_mask")


def composite(
    *operands: Any, epilogue: tuple[str, ...], flipped: bool, packed: bool, **parameters: Any
) -> Any:
    """The equations that a fused convolution stands for."""
    x, w, *rest = operands[:-1] if packed else operands
    layout = parameters["dimension_numbers"]
    w = w.astype(x.dtype)
    if flipped:
        w = jax.lax.rev(w, layout.rhs_spec[2:])
    y = jax.lax.conv_general_dilated_p.bind(x, w, **parameters)
    return _with_epilogue(y, (layout.out_spec[1],), epilogue, rest)


def composite_product(*operands: Any, epilogue: tuple[str, ...], **parameters: Any) -> Any:
    """The equations that a fused product stands for."""
    y = jax.lax.dot_general_p.bind(*operands[:2], **parameters)
    return _with_epilogue(y, features(operands[1], y, parameters), epilogue, operands[2:])


def features(right: Any, result: Any, parameters: dict[str, Any]) -> tuple[int, ...]:
    """The dimensions of a product that come from its right operand only."""
    sums, batches = (parts[1] for parts in parameters["dimension_numbers"])
    free = right.ndim - len(sums) - len(batches)
    return tuple(range(result.ndim - free, result.ndim))


def _with_epilogue(
    y: Any, axes: Sequence[int], epilogue: Sequence[str], operands: Sequence[Any]
) -> Any:
    """A result after an epilogue, vectors lying along some of its dimensions."""
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


class Code(NamedTuple):
    """How a convolution is computed.

    Attributes:
      descriptor: what is computed, without packed weights.
      types: of the operands, as the handler takes them.
      out: of the result, as the handler gives it.
      spatial: dimensions in which the kernel is turned round first.
      after: the part of the epilogue that is left to XLA.
      rounded: to what the kernel is rounded first; None where the handler does so.
    """

    descriptor: tuple[int, ...]
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
    """A function that runs a fused convolution by one handler, or None.

    Args:
      operands: shapes and dtypes of image, kernel, what the epilogue reads and packed kernel, as many as there are.
      out: those of the result.
      parameters: of the primitive.
    """
    found = code(operands, out, parameters)
    if found is None:
        return None
    result = jax.ShapeDtypeStruct(out.shape, found.out)
    axes = (parameters["dimension_numbers"].out_spec[1],)

    def call(x: Any, w: Any, *rest: Any) -> Any:
        descriptor: Any = found.descriptor
        if parameters["packed"]:
            rest, kernel = rest[:-1], rest[-1]
            descriptor = descriptors.with_packed(descriptor, library.TYPES[found.types[1].name])
        else:
            kernel = found.kernel(w)
        taken, left = ((), rest) if found.after else (rest, ())
        others = [a.astype(t) for a, t in zip(taken, found.types[2:], strict=True)]
        y = lowerings.run(descriptor, (x.astype(found.types[0]), kernel, *others), result)
        return _with_epilogue(y.astype(out.dtype), axes, found.after, left)

    return call


def code(operands: Any, out: Any, parameters: dict[str, Any]) -> Code | None:
    """How a fused convolution would be computed by one handler; None where it would not.

    Args:
      operands: shapes and dtypes, as `fast` takes them.
      out: those of the result.
      parameters: of the primitive.
    """
    if parameters["packed"]:
        operands = operands[:-1]
    image, kernel = operands[:2]
    epilogue, flipped = parameters["epilogue"], parameters["flipped"]
    if not sizes.convolution_worth_a_call(lowerings.work(image, kernel, out, parameters)):
        return None
    if not epilogue and not flipped:
        return _alone(image, kernel, out, parameters)
    candidates = lowerings.placed_descriptors(image, kernel, out, parameters)
    descriptor = next((p for p in candidates if descriptors.kind(p) == descriptors.FORWARD), None)
    if descriptor is None:
        return None
    found = _by_handler(
        descriptors.with_epilogue(descriptor, epilogue, flipped), operands, out, epilogue
    )
    if found is not None:
        return found
    spatial = tuple(parameters["dimension_numbers"].rhs_spec[2:]) if flipped else ()
    if flipped:
        found = _by_handler(
            descriptors.with_epilogue(descriptor, epilogue), operands, out, epilogue
        )
    if found is None:
        found = _alone(image, kernel, out, parameters)
        found = None if found is None or found.spatial else found._replace(after=epilogue)
    return None if found is None else found._replace(spatial=spatial)


def fast_product(operands: Any, out: Any, parameters: dict[str, Any]) -> Any:
    """A function that runs a fused product by one handler, or None; see `fast`."""
    epilogue = parameters["epilogue"]
    descriptor, orders = lowerings.product_descriptor(
        operands[0], operands[1], parameters["dimension_numbers"]
    )
    # Products of two matrices only.
    if descriptor is None or descriptor[1] != 2:
        return None
    found = _by_handler(descriptors.with_epilogue(descriptor, epilogue), operands, out, epilogue)
    if found is None:
        return None
    result = jax.ShapeDtypeStruct(out.shape, found.out)

    def run(*arrays: Any) -> Any:
        pairs = zip(arrays[:2], orders, strict=True)
        ready = [x if order is None else jax.lax.transpose(x, order) for x, order in pairs]
        operands = zip((*ready, *arrays[2:]), found.types, strict=True)
        return lowerings.run(found.descriptor, [a.astype(t) for a, t in operands], result)

    return run


def _by_handler(
    descriptor: Sequence[int], operands: Any, out: Any, epilogue: Sequence[str]
) -> Code | None:
    """How a descriptor with an epilogue is computed by code of our own; None where there is none."""
    loaded = library.load()
    types = [np.dtype(a.dtype) for a in (*operands, out)]
    known = {types[0].name, types[-1].name, *(t.name for t in types[2:-1])} <= set(library.TYPES)
    same = types[0] == types[-1] and types[1] in (types[0], np.dtype("float32"))
    if loaded is None or not known or not same:
        return None
    reading = [op for op in epilogue if op in (*VECTORS, *ARRAYS)]
    for i, op in zip(itertools.count(2), reading):
        types[i] = np.dtype("float32") if op in VECTORS else types[i]
    name = loaded.implementation(descriptor, [t.name for t in types])
    if name is None or not name.startswith(library.OWN):
        return None
    # XLA adds a vector where the result is read: no reason to take it in pieces.
    if name.startswith(library.BLOCKED) and all(op == "add" for op in epilogue):
        return None
    return Code(tuple(descriptor), tuple(types[:-1]), types[-1])


def _alone(image: Any, kernel: Any, out: Any, parameters: dict[str, Any]) -> Code | None:
    """How a convolution that nothing surrounds would be computed."""
    rounded = jax.ShapeDtypeStruct(kernel.shape, image.dtype)
    if lowerings.padding_before(image, rounded, out, parameters) is not None:
        return None
    found = lowerings.code(image, rounded, out, parameters)
    if found is None or descriptors.kind(found[0]) == descriptors.KERNEL_GRADIENT:
        return None
    descriptor, (types, result) = found
    flipped = descriptors.kind(descriptor) == descriptors.INPUT_GRADIENT
    spatial = tuple(parameters["dimension_numbers"].rhs_spec[2:]) if flipped else ()
    return Code(tuple(descriptor), tuple(types), result, spatial, rounded=np.dtype(image.dtype))


def _result(*avals: Any, epilogue: Any, flipped: Any, packed: Any, **parameters: Any) -> Any:
    image, kernel = avals[0], avals[1].update(dtype=avals[0].dtype)
    return jax.lax.conv_general_dilated_p.abstract_eval(image, kernel, **parameters)[0]


def _product(*avals: Any, epilogue: Any, **parameters: Any) -> Any:
    return jax.lax.dot_general_p.abstract_eval(*avals[:2], **parameters)[0]


def register() -> None:
    """Makes the primitives known to JAX."""
    register_composite(convolution_p, composite, _result, lambda xs, ys, ps: fast(xs, ys[0], ps))
    register_composite(
        product_p, composite_product, _product, lambda xs, ys, ps: fast_product(xs, ys[0], ps)
    )
