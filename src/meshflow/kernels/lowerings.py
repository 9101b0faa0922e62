"""How convolutions and matrix products are compiled for the CPU: by oneDNN where it is fast.

JAX's own primitives keep their meaning (derivatives, vmap, sharding, passes over jaxprs); only
their lowering for the CPU changes. What oneDNN does not do well goes to XLA as before.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.environment.jax_internals import (
    common_lowerings,
    mlir,
    needs_devices_when_lowered,
    platform_lowerings,
)
from meshflow.kernels import descriptors, library, partitioning, sizes

# The widest padding of rows, and no more than half a window, that is left to oneDNN.
_PADDING = 1


def run(
    descriptor: Sequence[int], operands: Sequence[Any], result: Any, target: str = library.TARGET
) -> Any:
    """Calls a handler on JAX arrays."""
    call = jax.ffi.ffi_call(target, result, vmap_method="sequential")
    return call(*operands, descriptor=np.array(descriptor, np.int64))


def element_types(descriptor: Sequence[int], types: Sequence[np.dtype], result: np.dtype) -> Any:
    """The types to compute with: the operands' own, or float32 where there is no code for those.

    Returns:
      Operand types and result type; None when oneDNN has nothing fast.
    """
    loaded = library.load()
    if loaded is None:
        return None
    for candidate in ((*types, result), (np.dtype("float32"),) * (len(types) + 1)):
        names = [np.dtype(t).name for t in candidate]
        if all(n in library.TYPES for n in names) and loaded.implementation(descriptor, names):
            return candidate[:-1], candidate[-1]
    return None


class Whole(NamedTuple):
    """How a convolution is computed of which devices have parts.

    Attributes:
      computation: the descriptor's first number.
      implementation: the name of the code.
      padding: of each spatial dimension, in front and behind.
    """

    computation: int
    implementation: str
    padding: tuple[tuple[int, int], ...]


def convolution_descriptors(
    left: Any,
    right: Any,
    out: Any,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
) -> list[list[int]]:
    """The descriptors that compute one of JAX's general convolutions, the likely fastest first.

    A gradient of a convolution is a general convolution as well: the kernel's gradient slides the
    result's gradient, a large window, over the image; the image's gradient of a strided convolution
    is one of spread-out input, with the kernel turned round.
    """
    left_spec, right_spec, out_spec = dimension_numbers
    low = [a for a, _ in padding]
    x, w = descriptors.view(left.shape, left_spec), descriptors.view(right.shape, right_spec)
    y = descriptors.view(out.shape, out_spec)
    rank = len(window_strides)
    found = []
    if math.prod(lhs_dilation) > 1:
        if math.prod(window_strides) == 1 and batch_group_count == 1:
            pairs = zip(w.dims[2:], rhs_dilation, low, strict=True)
            front = [(k - 1) * d - p for k, d, p in pairs]
            kernel = descriptors.grouped(w, feature_group_count)
            # The places of out and in / groups are each other's.
            at = 1 if feature_group_count > 1 else 0
            order = [*range(at), at + 1, at, *range(at + 2, len(kernel.dims))]
            kernel = descriptors.View(*(tuple(v[i] for i in order) for v in kernel))
            found.append(
                descriptors.convolution(
                    *(descriptors.INPUT_GRADIENT, feature_group_count, y, kernel, x),
                    *(lhs_dilation, rhs_dilation, front),
                )
            )
        return [descriptor for descriptor in found if descriptor is not None]
    if batch_group_count == 1:
        found.append(
            descriptors.convolution(
                *(descriptors.FORWARD, feature_group_count),
                *(x, descriptors.grouped(w, feature_group_count), y),
                *(window_strides, rhs_dilation, low),
            )
        )
    if feature_group_count == 1:
        # Batch and channels of the image change places; with groups the result is [in / groups, out].
        swap = (1, 0, *range(2, rank + 2))
        image, window, kernel = (
            descriptors.View(*(tuple(v[i] for i in swap) for v in part)) for part in (x, w, y)
        )
        found.append(
            descriptors.convolution(
                *(descriptors.KERNEL_GRADIENT, batch_group_count),
                *(image, descriptors.grouped(kernel, batch_group_count), window),
                *(rhs_dilation, window_strides, low),
            )
        )
    if math.prod(w.dims[2:]) > math.prod(y.dims[2:]):
        found.reverse()
    return [descriptor for descriptor in found if descriptor is not None]


def geometry(parameters: dict[str, Any]) -> dict[str, Any]:
    """What `convolution_descriptors` takes of the primitive's parameters."""
    names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation", "dimension_numbers")
    counts = ("feature_group_count", "batch_group_count")
    return {name: parameters[name] for name in (*names, *counts)}


def convolution(
    left: Any, right: Any, out: Any, parameters: dict[str, Any], whole: Whole | None = None
) -> Any:
    """A function of the two operands that runs by oneDNN, or None.

    Args:
      left: the image's shape and dtype.
      right: the kernel's.
      out: the result's.
      parameters: those of the primitive.
      whole: of what the convolution is a part; default of nothing: it is done by the fastest code,
        and by none of ours where the work is small.
    """
    if whole is None and not sizes.convolution_worth_a_call(work(left, right, out, parameters)):
        return None
    padded = padding_before(left, right, out, parameters, whole)
    if padded is not None:
        image, rest, config = padded
        inner = convolution(image, right, out, rest, whole)
        pad = lambda x: jax.lax.pad(x, np.zeros((), x.dtype), config)
        return None if inner is None else lambda x, w: inner(pad(x), w)
    cropped = cropping_after(out, parameters, whole)
    if cropped is not None:
        larger, rest, limits = cropped
        inner = convolution(left, right, larger, rest, whole)
        if inner is not None:
            return lambda x, w: jax.lax.slice(inner(x, w), *limits)
    found = code(left, right, out, parameters, whole)
    if found is None:
        return None
    descriptor, ((left_type, right_type), out_type) = found
    spatial = parameters["dimension_numbers"].rhs_spec[2:]

    def call(x: Any, w: Any) -> Any:
        if descriptors.kind(descriptor) == descriptors.INPUT_GRADIENT:
            w = jax.lax.rev(w, spatial)
        y = run(
            descriptor,
            (x.astype(left_type), w.astype(right_type)),
            jax.ShapeDtypeStruct(out.shape, out_type),
        )
        return y.astype(out.dtype)

    return call


def code(
    left: Any, right: Any, out: Any, parameters: dict[str, Any], whole: Whole | None = None
) -> Any:
    """The descriptor that a convolution runs by, with its element types, or None."""
    for descriptor in placed_descriptors(left, right, out, parameters):
        candidates = [descriptor]
        if whole is not None:
            if descriptors.kind(descriptor) != descriptors.kind([whole.computation]):
                continue
            # A part is computed where the whole would be, and by its code as far as that has the part's sizes.
            descriptor = [whole.computation, *descriptor[1:]]
            candidates = [descriptors.by(descriptor, whole.implementation), descriptor]
        for candidate in candidates:
            chosen = element_types(candidate, (left.dtype, right.dtype), out.dtype)
            if chosen is not None:
                return candidate, chosen
    return None


def padding_before(
    left: Any, right: Any, out: Any, parameters: dict[str, Any], whole: Whole | None = None
) -> Any:
    """How an image is padded before a convolution, which is left with less padding; None where it is not.

    oneDNN divides the rows of a result among threads. Next to wide padding at the ends of a row it sums the elements
    of the window in another order than elsewhere: a part of an image would not have the bits of the whole.

    Returns:
      The padded image's shape and dtype, the parameters that are left, and the padding as `jax.lax.pad` takes it.
    """
    numbers, padding = parameters["dimension_numbers"], list(parameters["padding"])
    window = (right.shape[numbers.rhs_spec[-1]] - 1) * parameters["rhs_dilation"][-1]
    most = min(window // 2, _PADDING)
    widths = [max(0, n - most) for n in padding[-1]]
    found = code(left, right, out, parameters, whole) if any(widths) else None
    if found is None or descriptors.kind(found[0]) != descriptors.FORWARD:
        return None
    by = implementation(found) if whole is None else whole.implementation
    if parameters["feature_group_count"] > 1 or by.startswith(library.OWN):
        return None
    padding[-1] = tuple(n - width for n, width in zip(padding[-1], widths, strict=True))
    axis, shape, config = numbers.lhs_spec[-1], list(left.shape), [(0, 0, 0)] * left.ndim
    shape[axis] += sum(widths)
    config[axis] = (*widths, 0)
    image = jax.ShapeDtypeStruct(shape, left.dtype)
    return image, {**parameters, "padding": tuple(padding)}, config


def cropping_after(out: Any, parameters: dict[str, Any], whole: Whole | None) -> Any:
    """How a part of a spread-out image is convolved with the whole's padding, its result cropped; None where it is not.

    oneDNN's order of sums depends on how much of the result is left out at the ends, everywhere in it.

    Returns:
      The larger result's shape and dtype, the parameters with more padding, and where the part begins and ends in it.
    """
    numbers, spreads = parameters["dimension_numbers"], parameters["lhs_dilation"]
    if whole is None or math.prod(spreads) == 1:
        return None
    pairs = zip(whole.padding, parameters["padding"], strict=True)
    more = [(low - part_low, high - part_high) for (low, high), (part_low, part_high) in pairs]
    aligned = all(low % spread == 0 for (low, _), spread in zip(more, spreads, strict=True))
    if not aligned or not any(map(any, more)) or min(map(min, more)) < 0:
        return None
    shape, start = list(out.shape), [0] * len(out.shape)
    for axis, (low, high) in zip(numbers.out_spec[2:], more, strict=True):
        shape[axis] += low + high
        start[axis] = low
    stop = [first + size for first, size in zip(start, out.shape, strict=True)]
    larger = jax.ShapeDtypeStruct(shape, out.dtype)
    return larger, {**parameters, "padding": whole.padding}, (start, stop)


def implementation(found: Any) -> str:
    """The name of the code that is meant by what `code` returns."""
    loaded, (descriptor, (types, out_type)) = library.load(), found
    names = [np.dtype(t).name for t in (*types, out_type)]
    return (loaded.implementation(descriptor, names) if loaded is not None else None) or ""


def placed_descriptors(
    left: Any, right: Any, out: Any, parameters: dict[str, Any]
) -> list[list[int]]:
    """`convolution_descriptors` of a primitive's parameters that say which thread computes."""
    found = convolution_descriptors(left, right, out, **geometry(parameters))
    count = work(left, right, out, parameters)
    elements = left.size + right.size + out.size
    return [sizes.placed(descriptor, count, elements) for descriptor in found]


def work(left: Any, right: Any, out: Any, parameters: dict[str, Any]) -> float:
    """Multiply-adds of a convolution."""
    _, channels, *window = (right.shape[i] for i in parameters["dimension_numbers"].rhs_spec)
    return out.size * channels * math.prod(window) / math.prod(parameters["lhs_dilation"])


def product_descriptor(
    left: Any, right: Any, dimension_numbers: Any
) -> tuple[list[int] | None, Any]:
    """The descriptor of JAX's general dot product, and how its operands must be transposed first.

    Returns:
      The descriptor, None when it is too small; and for each operand an order of its dimensions, or None
      when it can be read where it lies.
    """
    (left_sum, right_sum), (left_batch, right_batch) = dimension_numbers

    def free(operand: Any, *taken: Sequence[int]) -> list[int]:
        used = {a for axes in taken for a in axes}
        return [i for i in range(operand.ndim) if i not in used]

    def parts(operand: Any, *groups: Sequence[int]) -> tuple[Any, Any]:
        """Size and stride of each group of dimensions, and the transposition that makes them so."""
        found = [descriptors.merged(operand.shape, axes) for axes in groups]
        if all(part is not None for part in found):
            return found, None
        # Dimensions that lie crosswise are brought together.
        order = [a for axes in groups for a in axes]
        shape = [operand.shape[i] for i in order]
        ends = list(itertools.accumulate(len(axes) for axes in groups))
        spans = [range(end - len(axes), end) for end, axes in zip(ends, groups, strict=True)]
        return [descriptors.merged(shape, span) for span in spans], order

    left_free, right_free = free(left, left_sum, left_batch), free(right, right_sum, right_batch)
    (a_batch, a_free, a_sum), left_order = parts(left, left_batch, left_free, left_sum)
    (b_batch, b_sum, b_free), right_order = parts(right, right_batch, right_sum, right_free)
    m, n, k, batch = a_free[0], b_free[0], a_sum[0], a_batch[0]
    if not sizes.worth_a_call(batch * m * n * k):
        return None, None
    a = descriptors.View((batch, m, k), (a_batch[1], a_free[1], a_sum[1]))
    b = descriptors.View((batch, k, n), (b_batch[1], b_sum[1], b_free[1]))
    c = descriptors.View((batch, m, n), (m * n, n, 1))
    views = [descriptors.View(v.dims, _plain(v)) for v in (a, b, c)]
    if batch == 1:
        views = [descriptors.View(v.dims[1:], v.strides[1:]) for v in views]
    elements = batch * (m * k + k * n + m * n)
    descriptor = descriptors.matmul(*views)
    if descriptor is not None:
        descriptor = sizes.placed(descriptor, batch * m * n * k, elements)
    return descriptor, (left_order, right_order)


def _plain(matrix: descriptors.View) -> tuple[int, ...]:
    """Strides with those of dimensions of size 1 as in a dense array, which oneDNN's fast code expects."""
    (batch, rows, columns), strides = matrix.dims, list(matrix.strides)
    if rows == 1:
        strides[1] = columns if strides[2] == 1 else 1
    if columns == 1:
        strides[2] = 1 if strides[1] != 1 else rows
    if batch == 1:
        strides[0] = rows * columns
    return tuple(strides)


def product(left: Any, right: Any, out: Any, parameters: dict[str, Any]) -> Any:
    """A function of the two operands that runs by oneDNN, or None."""
    descriptor, orders = product_descriptor(left, right, parameters["dimension_numbers"])
    if descriptor is None:
        return None
    result = descriptors.result(descriptor)
    if sizes.is_vectors(result, left.size * result[-1], left.dtype):
        return None
    chosen = element_types(descriptor, (left.dtype, right.dtype), out.dtype)
    return None if chosen is None else described_product(descriptor, orders, chosen, out)


def described_product(descriptor: list[int], orders: Any, chosen: Any, out: Any) -> Any:
    """The function of a product's descriptor, for the order of each operand's dimensions and the element types."""
    types, out_type = chosen

    def call(*operands: Any) -> Any:
        ready = [
            (x if order is None else jax.lax.transpose(x, order)).astype(dtype)
            for x, order, dtype in zip(operands, orders, types, strict=True)
        ]
        return run(descriptor, ready, jax.ShapeDtypeStruct(out.shape, out_type)).astype(out.dtype)

    return call


def column_sum(operand: Any, out: Any, parameters: dict[str, Any]) -> Any:
    """A sum over leading axes as a product with a row of ones, or None: the gradient of a bias."""
    axes = tuple(parameters["axes"])
    columns = math.prod(operand.shape[len(axes) :])
    rows = math.prod(operand.shape[: len(axes)])
    if axes != tuple(range(len(axes))) or rows < 64 or columns < 8:
        return None
    left = jax.ShapeDtypeStruct((1, rows), operand.dtype)
    right = jax.ShapeDtypeStruct((rows, columns), operand.dtype)
    descriptor, orders = product_descriptor(left, right, (((1,), (0,)), ((), ())))
    chosen = None if descriptor is None else element_types(descriptor, (left.dtype,) * 2, out.dtype)
    if descriptor is None or chosen is None:
        return None
    call = described_product(descriptor, orders, chosen, out)

    def sums(x: Any) -> Any:
        ones = jax.numpy.ones((1, rows), x.dtype)
        # Not reshaped first: XLA would compute the array once more in its other shape.
        return call(ones, x).reshape(out.shape)

    return sums


def _is_whole(context: Any) -> bool:
    """Whether operands are whole arrays on one device: XLA cannot partition a call of ours."""
    axes = context.module_context.axis_context
    if hasattr(axes, "num_devices"):
        return axes.num_devices == 1
    mesh = getattr(axes, "mesh", None)
    return mesh is None or mesh.size == 1 or axes.manual_axes == frozenset(mesh.axis_names)


def is_ours(context: Any) -> bool:
    """Whether our code may run: not in exported programs, which go where it is not, for any size."""
    exported = context.module_context.lowering_parameters.for_export
    return not exported and _is_whole(context)


def override(primitive: Any, choose: Callable[..., Any], any_types: bool = False) -> None:
    """Makes code of ours the CPU's lowering of a primitive where `choose` finds it.

    Args:
      primitive: the primitive.
      choose: called with shapes and dtypes of operands and result, and the parameters; gives a function of the
        operands, or None.
      any_types: whether it is asked for operands of other types than oneDNN's too.
    """
    common = common_lowerings[primitive].rule
    special = platform_lowerings["cpu"].get(primitive)
    usual = special.rule if special is not None else common

    def rule(context: Any, *operands: Any, **parameters: Any) -> Any:
        avals = (*context.avals_in, *context.avals_out)
        call = None
        known = any_types or {np.dtype(a.dtype).name for a in avals} <= set(library.TYPES)
        if is_ours(context) and known:
            call = choose(*avals, parameters)
        if call is None:
            return usual(context, *operands, **parameters)
        return mlir.lower_fun(call, multiple_results=False)(context, *operands)

    mlir.register_lowering(primitive, rule, platform="cpu")


def _code_of_parts(
    left: Any, right: Any, out: Any, parameters: dict[str, Any]
) -> partitioning.Code:
    """How the parts of a convolution are computed: the same sums as in the whole, the same bits."""
    loaded = library.load()
    types = [np.dtype(a.dtype).name for a in (left, right, out)]
    if loaded is None or not set(types) <= set(library.TYPES):
        return partitioning.Code()
    padded = padding_before(left, right, out, parameters)
    if padded is not None:
        left, parameters, _ = padded
    found = code(left, right, out, parameters)
    if found is None or not sizes.convolution_worth_a_call(work(left, right, out, parameters)):
        return partitioning.Code()
    descriptor, name = found[0], implementation(found)
    tile = (
        2 if descriptors.kind(descriptor) == descriptors.FORWARD and name == library.WINOGRAD else 1
    )
    # oneDNN's code for 16 bits takes other blocks of channels where there are 2 places only.
    least = 1 if types[0] == "float32" else 3
    whole = Whole(descriptor[0], name, tuple(parameters["padding"]))
    choose = functools.partial(convolution, whole=whole)
    text = f"{whole} {tile} {least} {loaded.version()}"
    return partitioning.Code(choose, tile, least, text)


def widen_sums() -> None:
    """Makes sums of 16-bit floats be taken in float32: XLA's code for CPUs rounds after every term."""
    primitive = jax.lax.reduce_sum_p
    usual = common_lowerings[primitive].rule

    def rule(context: Any, operand: Any, **parameters: Any) -> Any:
        dtype = np.dtype(context.avals_in[0].dtype)
        if dtype.name not in ("bfloat16", "float16"):
            return usual(context, operand, **parameters)
        wide = lambda x: primitive.bind(x.astype(np.float32), **parameters).astype(dtype)
        return mlir.lower_fun(wide, multiple_results=False)(context, operand)

    mlir.register_lowering(primitive, rule, platform="cpu")


def divide_convolutions() -> None:
    """Makes this package divide convolutions among the devices of a mesh, on every platform."""
    primitive = jax.lax.conv_general_dilated_p

    def divided(usual: Any, on_cpu: bool) -> Any:
        def rule(context: Any, *operands: Any, **parameters: Any) -> Any:
            exported = context.module_context.lowering_parameters.for_export
            if exported or not partitioning.applies(context):
                return usual(context, *operands, **parameters)
            (left, right), (out,) = context.avals_in, context.avals_out
            by_xla = partitioning.Code()
            code = _code_of_parts(left, right, out, parameters) if on_cpu else by_xla
            call = partitioning.convolution(parameters, code)
            return mlir.lower_fun(call, multiple_results=False)(context, *operands)

        return rule

    lowered = common_lowerings[primitive].rule
    mlir.register_lowering(primitive, divided(lowered, False))
    for platform, rules in platform_lowerings.items():
        if primitive in rules:
            special = divided(rules[primitive].rule, platform == "cpu")
            mlir.register_lowering(primitive, special, platform=platform)
    # The partitioner is told the devices.
    needs_devices_when_lowered.add(primitive)


def register() -> None:
    """Puts oneDNN in place; its library is loaded when the first convolution or product is compiled."""
    override(jax.lax.conv_general_dilated_p, convolution)
    override(jax.lax.dot_general_p, product)
    widen_sums()
    override(jax.lax.reduce_sum_p, column_sum)
    divide_convolutions()
