"""CPU lowerings of convolutions and matrix products to oneDNN and our C++ code.

JAX's primitives keep their semantics (derivatives, vmap, sharding, jaxpr passes); only their
lowering for the CPU changes. XLA compiles the cases in which it is faster, as before.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import numpy as np
from jax.lax import ConvDimensionNumbers

from meshflow.environment.jax_internals import (
    common_lowerings,
    mlir,
    needs_devices_when_lowered,
    platform_lowerings,
    reductions_over_devices,
)
from meshflow.environment.types import Primitive
from meshflow.kernels import descriptors, library, partitioning, sizes
from meshflow.kernels.library import Aval, Avals, HandlerCall

# Maximum padding of rows that oneDNN adds itself, which must also be at most half a window.
_MAX_PADDING = 1

# Sums over rows: minimum numbers of rows, columns, and elements of fused terms.
MIN_SUM_ROWS, MIN_SUM_COLUMNS, MIN_SUM_ELEMENTS = 64, 8, 1 << 15

# The dtypes of the operands and of the result of a handler.
_Dtypes: TypeAlias = tuple[Sequence[np.dtype], np.dtype]
# A descriptor with its dtypes.
_Code: TypeAlias = tuple[list[int], _Dtypes]


def call_handler(
    descriptor: Sequence[int], operands: Sequence[Any], result: Any, target: str = library.TARGET
) -> Any:
    """Call a handler with JAX arrays."""
    call = jax.ffi.ffi_call(target, result, vmap_method="sequential")
    return call(*operands, descriptor=np.array(descriptor, np.int64))


def choose_element_types(
    descriptor: Sequence[int], types: Sequence[np.dtype], result: np.dtype
) -> _Dtypes | None:
    """Choose the dtypes of a computation: those of its operands or, as a fallback, float32.

    Returns:
      Operand dtypes and result dtype, or None if oneDNN has no fast code.
    """
    loaded = library.load()
    if loaded is None:
        return None
    for candidate in ((*types, result), (np.dtype("float32"),) * (len(types) + 1)):
        names = [np.dtype(t).name for t in candidate]
        if all(n in library.TYPE_CODES for n in names) and loaded.find_implementation(
            descriptor, names
        ):
            return candidate[:-1], candidate[-1]
    return None


class FullConvolution(NamedTuple):
    """Implementation of a convolution that is partitioned over devices.

    Attributes:
      computation: First integer of the descriptor.
      implementation: Name of the implementation.
      padding: Leading and trailing padding of each spatial dimension.
    """

    computation: int
    implementation: str
    padding: tuple[tuple[int, int], ...]


def list_convolution_descriptors(
    left: Aval,
    right: Aval,
    out: Aval,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
) -> list[list[int]]:
    """Return the descriptors for a general convolution, the one expected to be fastest first.

    A gradient of a convolution is also a general convolution: the kernel's gradient moves the
    result's gradient, a large window, over the image; the image's gradient of a strided convolution
    has a dilated input and a flipped kernel; the kernel's gradient of a transposed convolution moves
    the result's gradient over a dilated image.
    """
    left_spec, right_spec, out_spec = dimension_numbers
    low = [a for a, _ in padding]
    x, w = (
        descriptors.make_view(left.shape, left_spec),
        descriptors.make_view(right.shape, right_spec),
    )
    y = descriptors.make_view(out.shape, out_spec)
    rank = len(window_strides)
    candidates = []
    # Exchange batch and channels.
    swap = (1, 0, *range(2, rank + 2))
    swapped = [descriptors.View(*(tuple(v[i] for i in swap) for v in part)) for part in (x, w, y)]
    is_window_larger = math.prod(w.dims[2:]) > math.prod(y.dims[2:])
    if math.prod(lhs_dilation) > 1:
        if math.prod(window_strides) == 1 and batch_group_count == 1:
            if is_window_larger and feature_group_count == math.prod(rhs_dilation) == 1:
                # The gradient of the kernel with reversed positions: `w` is the image.
                before = [k - 1 - p for k, p in zip(y.dims[2:], low, strict=True)]
                candidates.append(
                    descriptors.describe_convolution(
                        *(descriptors.KERNEL_GRADIENT, 1, swapped[1], y, swapped[0]),
                        *(lhs_dilation, rhs_dilation, before),
                    )
                )
            pairs = zip(w.dims[2:], rhs_dilation, low, strict=True)
            before = [(k - 1) * d - p for k, d, p in pairs]
            kernel = descriptors.split_groups(w, feature_group_count)
            # Exchange the dimensions of out and in / groups.
            offset = 1 if feature_group_count > 1 else 0
            order = [*range(offset), offset + 1, offset, *range(offset + 2, len(kernel.dims))]
            kernel = descriptors.View(*(tuple(v[i] for i in order) for v in kernel))
            candidates.append(
                descriptors.describe_convolution(
                    *(descriptors.INPUT_GRADIENT, feature_group_count, y, kernel, x),
                    *(lhs_dilation, rhs_dilation, before),
                )
            )
        return [descriptor for descriptor in candidates if descriptor is not None]
    if batch_group_count == 1:
        candidates.append(
            descriptors.describe_convolution(
                *(descriptors.FORWARD, feature_group_count),
                *(x, descriptors.split_groups(w, feature_group_count), y),
                *(window_strides, rhs_dilation, low),
            )
        )
    if feature_group_count == 1:
        # With groups, the result is [in / groups, out].
        image, window, kernel = swapped
        candidates.append(
            descriptors.describe_convolution(
                *(descriptors.KERNEL_GRADIENT, batch_group_count),
                *(image, descriptors.split_groups(kernel, batch_group_count), window),
                *(rhs_dilation, window_strides, low),
            )
        )
    # oneDNN's gradient is slower than a convolution if the result of a strided one is small.
    is_small = math.prod(rhs_dilation) > 1 and not is_window_larger
    if is_kernel_gradient(left, dimension_numbers) and not is_small:
        candidates.reverse()
    return [descriptor for descriptor in candidates if descriptor is not None]


def is_kernel_gradient(image: Aval, dimension_numbers: ConvDimensionNumbers) -> bool:
    """Check whether a convolution is the gradient of a kernel: its channels are the examples of a batch."""
    batch, channels, *_ = descriptors.make_view(image.shape, dimension_numbers.lhs_spec).strides
    return batch < channels


def select_geometry(parameters: dict[str, Any]) -> dict[str, Any]:
    """Select the primitive's parameters that `list_convolution_descriptors` takes."""
    names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation", "dimension_numbers")
    counts = ("feature_group_count", "batch_group_count")
    return {name: parameters[name] for name in (*names, *counts)}


def choose_convolution(
    left: Aval,
    right: Aval,
    out: Aval,
    parameters: dict[str, Any],
    full: FullConvolution | None = None,
) -> HandlerCall | None:
    """Return a function of image and kernel that calls a handler, or None.

    Args:
      left: Type of the image.
      right: Type of the kernel.
      out: Type of the result.
      parameters: Parameters of the primitive.
      full: The convolution of which this is a shard; default: it is complete, uses the fastest
        code, and XLA's if it is small.
    """
    if full is None and not sizes.is_convolution_worth_call(
        count_multiply_adds(left, right, out, parameters)
    ):
        return None
    padding = plan_padding(left, right, out, parameters, full)
    if padding is not None:
        image, remaining, config = padding
        padded = choose_convolution(image, right, out, remaining, full)
        pad = lambda x: jax.lax.pad(x, np.zeros((), x.dtype), config)
        return None if padded is None else lambda x, w: padded(pad(x), w)
    cropping = plan_cropping(out, parameters, full)
    if cropping is not None:
        larger, remaining, limits = cropping
        inner = choose_convolution(left, right, larger, remaining, full)
        if inner is not None:
            return lambda x, w: jax.lax.slice(inner(x, w), *limits)
    chosen = choose_code(left, right, out, parameters, full)
    if chosen is None:
        return None
    descriptor, ((left_type, right_type), out_type) = chosen
    numbers, computation = parameters["dimension_numbers"], descriptors.get_computation(descriptor)
    is_transposed = is_transposed_gradient(descriptor, parameters)

    def call(x: jax.Array, w: jax.Array) -> jax.Array:
        if computation == descriptors.INPUT_GRADIENT:
            w = jax.lax.rev(w, numbers.rhs_spec[2:])
        operands = x.astype(left_type), w.astype(right_type)
        result = jax.ShapeDtypeStruct(out.shape, out_type)
        y = call_handler(descriptor, operands[::-1] if is_transposed else operands, result)
        y = y.astype(out.dtype)
        return jax.lax.rev(y, numbers.out_spec[2:]) if is_transposed else y

    return call


def is_dilated(parameters: dict[str, Any]) -> bool:
    """Check whether the left operand of a convolution is dilated."""
    return math.prod(parameters["lhs_dilation"]) > 1


def is_transposed_gradient(descriptor: Sequence[int], parameters: dict[str, Any]) -> bool:
    """Check whether a handler computes the kernel's gradient of a transposed convolution.

    It takes the operands in the other order, and its result has reversed positions.
    """
    is_gradient = descriptors.get_computation(descriptor) == descriptors.KERNEL_GRADIENT
    return is_gradient and is_dilated(parameters)


def choose_code(
    left: Aval,
    right: Aval,
    out: Aval,
    parameters: dict[str, Any],
    full: FullConvolution | None = None,
) -> _Code | None:
    """Return the descriptor of a convolution with its dtypes, or None."""
    for descriptor in list_descriptors(left, right, out, parameters):
        candidates = [descriptor]
        if full is not None:
            if descriptors.get_computation(descriptor) != descriptors.get_computation(
                [full.computation]
            ):
                continue
            # A shard uses the same threads as the full convolution, and the same implementation if
            # it supports the shard's sizes.
            descriptor = [full.computation, *descriptor[1:]]
            candidates = [
                descriptors.with_implementation(descriptor, full.implementation),
                descriptor,
            ]
        for candidate in candidates:
            chosen = choose_element_types(candidate, (left.dtype, right.dtype), out.dtype)
            if chosen is not None:
                return candidate, chosen
    return None


def plan_padding(
    left: Aval,
    right: Aval,
    out: Aval,
    parameters: dict[str, Any],
    full: FullConvolution | None = None,
) -> tuple[jax.ShapeDtypeStruct, dict[str, Any], list[tuple[int, int, int]]] | None:
    """Plan the padding of an image before a convolution; return None if none is needed.

    oneDNN splits the rows of a result among threads. Near wide padding at the ends of a row it sums
    the elements of the window in a different order, so a shard of an image would not have the bits
    of the full one.

    Returns:
      Type of the padded image, parameters with the remaining padding, and the padding for
      `jax.lax.pad`.
    """
    numbers, padding = parameters["dimension_numbers"], list(parameters["padding"])
    window = (right.shape[numbers.rhs_spec[-1]] - 1) * parameters["rhs_dilation"][-1]
    max_width = min(window // 2, _MAX_PADDING)
    widths = [max(0, n - max_width) for n in padding[-1]]
    chosen = choose_code(left, right, out, parameters, full) if any(widths) else None
    if chosen is None or descriptors.get_computation(chosen[0]) != descriptors.FORWARD:
        return None
    name = find_implementation_name(chosen) if full is None else full.implementation
    if parameters["feature_group_count"] > 1 or name.startswith(library.OWN_PREFIX):
        return None
    padding[-1] = tuple(n - width for n, width in zip(padding[-1], widths, strict=True))
    axis, shape, config = numbers.lhs_spec[-1], list(left.shape), [(0, 0, 0)] * left.ndim
    shape[axis] += sum(widths)
    config[axis] = (*widths, 0)
    image = jax.ShapeDtypeStruct(shape, left.dtype)
    return image, {**parameters, "padding": tuple(padding)}, config


def plan_cropping(
    out: Aval, parameters: dict[str, Any], full: FullConvolution | None
) -> tuple[jax.ShapeDtypeStruct, dict[str, Any], tuple[list[int], list[int]]] | None:
    """Plan a shard's convolution with the padding of the full image; return None if not needed.

    oneDNN's order of summation in the entire result of a dilated image depends on the number of
    elements omitted at its ends. So the shard's convolution computes more, and its result is
    cropped.

    Returns:
      Type of the larger result, the parameters with more padding, and the shard's start and stop
      indices.
    """
    numbers, dilations = parameters["dimension_numbers"], parameters["lhs_dilation"]
    if full is None or not is_dilated(parameters):
        return None
    pairs = zip(full.padding, parameters["padding"], strict=True)
    extra = [(low - part_low, high - part_high) for (low, high), (part_low, part_high) in pairs]
    aligned = all(low % dilation == 0 for (low, _), dilation in zip(extra, dilations, strict=True))
    if not aligned or not any(map(any, extra)) or min(map(min, extra)) < 0:
        return None
    shape, start = list(out.shape), [0] * len(out.shape)
    for axis, (low, high) in zip(numbers.out_spec[2:], extra, strict=True):
        shape[axis] += low + high
        start[axis] = low
    stop = [first + size for first, size in zip(start, out.shape, strict=True)]
    larger = jax.ShapeDtypeStruct(shape, out.dtype)
    return larger, {**parameters, "padding": full.padding}, (start, stop)


def find_implementation_name(code: _Code) -> str:
    """Return the name of the implementation of a descriptor and its dtypes, empty if there is none."""
    loaded, (descriptor, (types, out_type)) = library.load(), code
    names = [np.dtype(t).name for t in (*types, out_type)]
    return (loaded.find_implementation(descriptor, names) if loaded is not None else None) or ""


def list_descriptors(
    left: Aval, right: Aval, out: Aval, parameters: dict[str, Any]
) -> list[list[int]]:
    """Return the descriptors of a convolution with their choice of threads; likely fastest first."""
    candidates = list_convolution_descriptors(left, right, out, **select_geometry(parameters))
    multiply_adds = count_multiply_adds(left, right, out, parameters)
    elements = left.size + right.size + out.size
    return [
        sizes.choose_threading(descriptor, multiply_adds, elements) for descriptor in candidates
    ]


def count_multiply_adds(left: Aval, right: Aval, out: Aval, parameters: dict[str, Any]) -> float:
    """Return the number of multiply-adds of a convolution."""
    _, channels, *window = (right.shape[i] for i in parameters["dimension_numbers"].rhs_spec)
    return out.size * channels * math.prod(window) / math.prod(parameters["lhs_dilation"])


def describe_product(
    left: Aval, right: Aval, dimension_numbers: Any
) -> tuple[list[int] | None, Sequence[Sequence[int] | None]]:
    """Return the descriptor of JAX's general dot product and the permutations of its operands.

    Returns:
      The descriptor, or None if it is too small; for each operand the permutation with which it
      must be transposed, or None if it can be read in place.
    """
    (left_sum, right_sum), (left_batch, right_batch) = dimension_numbers

    def find_free_axes(operand: Aval, *groups: Sequence[int]) -> list[int]:
        used = {a for axes in groups for a in axes}
        return [i for i in range(operand.ndim) if i not in used]

    def merge_groups(operand: Aval, *groups: Sequence[int]) -> tuple[Any, Any]:
        """Return size and stride of each group of axes, and the permutation that is required."""
        merged = [descriptors.merge_dimensions(operand.shape, axes) for axes in groups]
        if all(part is not None for part in merged):
            return merged, None
        # The axes of each group must be adjacent, so transpose the operand.
        order = [a for axes in groups for a in axes]
        shape = [operand.shape[i] for i in order]
        ends = list(itertools.accumulate(len(axes) for axes in groups))
        spans = [range(end - len(axes), end) for end, axes in zip(ends, groups, strict=True)]
        return [descriptors.merge_dimensions(shape, span) for span in spans], order

    left_free, right_free = (
        find_free_axes(left, left_sum, left_batch),
        find_free_axes(right, right_sum, right_batch),
    )
    (a_batch, a_free, a_sum), left_order = merge_groups(left, left_batch, left_free, left_sum)
    (b_batch, b_sum, b_free), right_order = merge_groups(right, right_batch, right_sum, right_free)
    m, n, k, batch = a_free[0], b_free[0], a_sum[0], a_batch[0]
    if not sizes.is_product_worth_call(batch * m * n * k):
        return None, (None, None)
    a = descriptors.View((batch, m, k), (a_batch[1], a_free[1], a_sum[1]))
    b = descriptors.View((batch, k, n), (b_batch[1], b_sum[1], b_free[1]))
    c = descriptors.View((batch, m, n), (m * n, n, 1))
    views = [descriptors.View(v.dims, _normalize_strides(v)) for v in (a, b, c)]
    if batch == 1:
        views = [descriptors.View(v.dims[1:], v.strides[1:]) for v in views]
    elements = batch * (m * k + k * n + m * n)
    descriptor = descriptors.describe_matmul(*views)
    if descriptor is not None:
        descriptor = sizes.choose_threading(descriptor, batch * m * n * k, elements)
    return descriptor, (left_order, right_order)


def _normalize_strides(matrix: descriptors.View) -> tuple[int, ...]:
    """Return strides with those of dimensions of size 1 as in a dense array.

    oneDNN's fast code expects this.
    """
    (batch, rows, columns), strides = matrix.dims, list(matrix.strides)
    if rows == 1:
        strides[1] = columns if strides[2] == 1 else 1
    if columns == 1:
        strides[2] = 1 if strides[1] != 1 else rows
    if batch == 1:
        strides[0] = rows * columns
    return tuple(strides)


def choose_product(
    left: Aval, right: Aval, out: Aval, parameters: dict[str, Any]
) -> HandlerCall | None:
    """Return a function of both operands that calls oneDNN, or None."""
    descriptor, orders = describe_product(left, right, parameters["dimension_numbers"])
    if descriptor is None:
        return None
    result = descriptors.get_result_shape(descriptor)
    if sizes.is_vector_product(result, left.size * result[-1], left.dtype):
        return None
    chosen = choose_element_types(descriptor, (left.dtype, right.dtype), out.dtype)
    return None if chosen is None else make_product(descriptor, orders, chosen, out)


def make_product(
    descriptor: list[int], orders: Sequence[Sequence[int] | None], dtypes: _Dtypes, out: Aval
) -> HandlerCall:
    """Return the function of a product's descriptor, given operand permutations and dtypes."""
    types, out_type = dtypes

    def call(*operands: jax.Array) -> jax.Array:
        prepared = [
            (x if order is None else jax.lax.transpose(x, order)).astype(dtype)
            for x, order, dtype in zip(operands, orders, types, strict=True)
        ]
        result = jax.ShapeDtypeStruct(out.shape, out_type)
        return call_handler(descriptor, prepared, result).astype(out.dtype)

    return call


def choose_column_sum(operand: Aval, out: Aval, parameters: dict[str, Any]) -> HandlerCall | None:
    """Return a function that sums leading axes, or None.

    Such sums are the gradients of biases. Without AVX2, oneDNN multiplies by a row of ones.
    """
    axes, count = tuple(parameters["axes"]), len(parameters["axes"])
    columns, rows = math.prod(operand.shape[count:]), math.prod(operand.shape[:count])
    if axes != tuple(range(count)):
        return None
    call = choose_sum((operand,), out, "elements", False, sizes.MIN_PRODUCT_WORK)
    if call is not None or rows < MIN_SUM_ROWS or columns < MIN_SUM_COLUMNS:
        return call
    left = jax.ShapeDtypeStruct((1, rows), operand.dtype)
    right = jax.ShapeDtypeStruct((rows, columns), operand.dtype)
    descriptor, orders = describe_product(left, right, (((1,), (0,)), ((), ())))
    chosen = (
        None
        if descriptor is None
        else choose_element_types(descriptor, (left.dtype,) * 2, out.dtype)
    )
    if descriptor is None or chosen is None:
        return None
    multiply = make_product(descriptor, orders, chosen, out)

    def sum_columns(x: jax.Array) -> jax.Array:
        ones = jax.numpy.ones((1, rows), x.dtype)
        # The operand is not reshaped first: XLA would compute it once more in the other shape.
        return multiply(ones, x).reshape(out.shape)

    return sum_columns


def choose_sum(
    operands: Avals, out: Aval, terms: str, is_by_row: bool, min_elements: int = MIN_SUM_ELEMENTS
) -> HandlerCall | None:
    """Return a function that sums terms over the leading or trailing axes of its operands, or None.

    Args:
      operands: Types of the operands; the first has the axes of the sum and those of the result.
      out: Type of the result.
      terms: One of `descriptors.SUM_TERMS`.
      is_by_row: Whether the axes of the sum follow those of the result.
      min_elements: Number of elements below which XLA's code is used.
    """
    loaded, size, sums = library.load(), operands[0].size, math.prod(out.shape)
    rest = size // sums if sums else 0
    rows, columns = (sums, rest) if is_by_row else (rest, sums)
    types = [np.dtype(a.dtype).name for a in (*operands, out)]
    if loaded is None or size < min_elements or not set(types) <= set(library.TYPE_CODES):
        return None
    if rows < MIN_SUM_ROWS or columns < MIN_SUM_COLUMNS:
        return None
    code = descriptors.SUM_TERMS.index(terms)
    descriptor = sizes.choose_threading(
        [descriptors.SUMS, rows, columns, code, int(is_by_row)], size, len(operands) * size
    )
    if not loaded.find_implementation(descriptor, types):
        return None
    result = jax.ShapeDtypeStruct(out.shape, out.dtype)
    return lambda *arrays: call_handler(descriptor, arrays, result)


def is_sharded(context: mlir.LoweringRuleContext) -> bool:
    """Check whether XLA splits operands over devices; it cannot partition handler calls."""
    axes: Any = context.module_context.axis_context
    if hasattr(axes, "num_devices"):
        return axes.num_devices > 1
    mesh = getattr(axes, "mesh", None)
    if mesh is None or mesh.size == 1:
        return False
    return axes.manual_axes != frozenset(mesh.axis_names)


def is_exported(context: mlir.LoweringRuleContext) -> bool:
    """Check whether a program is exported: it must run without the library."""
    return context.module_context.lowering_parameters.for_export


def can_use_handlers(context: mlir.LoweringRuleContext) -> bool:
    """Check whether handlers may run on complete arrays of one device."""
    return not is_exported(context) and not is_sharded(context)


def override_lowering(
    primitive: Primitive, choose: Callable[..., HandlerCall | None], any_types: bool = False
) -> None:
    """Override the CPU lowering of a primitive by a handler where `choose` finds one.

    Args:
      primitive: The primitive.
      choose: Called with the types of operands and result, and the parameters; returns a function
        of the operands, or None.
      any_types: Whether `choose` is called for dtypes that oneDNN does not support, too.
    """
    default = common_lowerings[primitive].rule
    cpu_rule = platform_lowerings["cpu"].get(primitive)
    fallback = cpu_rule.rule if cpu_rule is not None else default

    def rule(context: mlir.LoweringRuleContext, *operands: Any, **parameters: Any) -> Any:
        avals: Any = (*context.avals_in, *context.avals_out)
        call = None
        is_supported = any_types or {np.dtype(a.dtype).name for a in avals} <= set(
            library.TYPE_CODES
        )
        if can_use_handlers(context) and is_supported:
            call = choose(*avals, parameters)
        if call is None:
            return fallback(context, *operands, **parameters)
        return mlir.lower_fun(call, multiple_results=False)(context, *operands)

    mlir.register_lowering(primitive, rule, platform="cpu")


def _choose_shard_code(
    left: Aval, right: Aval, out: Aval, parameters: dict[str, Any]
) -> partitioning.ShardCode:
    """Choose the code for the shards of a convolution, so that they have the bits of the full one."""
    loaded = library.load()
    types = [np.dtype(a.dtype).name for a in (left, right, out)]
    if loaded is None or not set(types) <= set(library.TYPE_CODES):
        return partitioning.ShardCode()
    padding = plan_padding(left, right, out, parameters)
    if padding is not None:
        left, parameters, _ = padding
    chosen = choose_code(left, right, out, parameters)
    if chosen is None or not sizes.is_convolution_worth_call(
        count_multiply_adds(left, right, out, parameters)
    ):
        return partitioning.ShardCode()
    descriptor, name = chosen[0], find_implementation_name(chosen)
    tile = (
        2
        if descriptors.get_computation(descriptor) == descriptors.FORWARD
        and name == library.WINOGRAD
        else 1
    )
    # oneDNN's 16-bit code uses different channel blocks if there are only 2 positions.
    min_size = 1 if types[0] == "float32" else 3
    full = FullConvolution(descriptor[0], name, tuple(parameters["padding"]))
    choose = functools.partial(choose_convolution, full=full)
    text = f"{full} {tile} {min_size} {loaded.read_version()}"
    return partitioning.ShardCode(choose, tile, min_size, text)


def widen_sums() -> None:
    """Compute reductions of 16-bit floats in float32 where XLA's CPU compiler does not.

    Its code for sums over axes rounds after every addition. Its pass that widens reductions over devices ends the process
    if they are in bfloat16 and XLA partitions other mesh dimensions (jax 0.10.2).
    """
    _widen(jax.lax.reduce_sum_p, ("bfloat16", "float16"), lambda _: True)
    for primitive in reductions_over_devices:
        _widen(primitive, ("bfloat16",), _is_partly_manual)


def _is_partly_manual(context: mlir.LoweringRuleContext) -> bool:
    """Check whether a `jax.shard_map` leaves mesh dimensions to XLA's partitioner."""
    axes: Any = context.module_context.axis_context
    manual: Any = getattr(axes, "manual_axes", ())
    return bool(manual) and {*axes.mesh.axis_names} != {*manual}


def _widen(
    primitive: Primitive, names: Sequence[str], applies: Callable[[mlir.LoweringRuleContext], bool]
) -> None:
    """Lower a reduction of some dtypes in float32 on CPUs."""
    fallback = common_lowerings[primitive].rule

    def rule(context: mlir.LoweringRuleContext, operand: Any, **parameters: Any) -> Any:
        aval: Any = context.avals_in[0]
        dtype = np.dtype(aval.dtype)
        if dtype.name not in names or not applies(context):
            return fallback(context, operand, **parameters)
        wide = lambda x: primitive.bind(x.astype(np.float32), **parameters).astype(dtype)
        return mlir.lower_fun(wide, multiple_results=False)(context, operand)

    mlir.register_lowering(primitive, rule, platform="cpu")


def partition_convolutions() -> None:
    """Make this package partition convolutions over the devices of a mesh, on every platform."""
    primitive = jax.lax.conv_general_dilated_p

    def make_rule(fallback: Callable[..., Any], on_cpu: bool) -> Callable[..., Any]:
        def rule(context: mlir.LoweringRuleContext, *operands: Any, **parameters: Any) -> Any:
            exported = context.module_context.lowering_parameters.for_export
            if exported or not partitioning.is_partitioned(context):
                return fallback(context, *operands, **parameters)
            left, right, out, *_ = cast(Avals, (*context.avals_in, *context.avals_out))
            xla_code = partitioning.ShardCode()
            code = _choose_shard_code(left, right, out, parameters) if on_cpu else xla_code
            call = partitioning.partition_convolution(parameters, code)
            return mlir.lower_fun(call, multiple_results=False)(context, *operands)

        return rule

    default = common_lowerings[primitive].rule
    mlir.register_lowering(primitive, make_rule(default, False))
    for platform, rules in platform_lowerings.items():
        if primitive in rules:
            cpu_rule = make_rule(rules[primitive].rule, platform == "cpu")
            mlir.register_lowering(primitive, cpu_rule, platform=platform)
    # The partitioner needs the devices.
    needs_devices_when_lowered.add(primitive)


def crop_before_convolutions() -> None:
    """Crop the image before a convolution with negative leading padding.

    XLA's CPU code of a convolution over one axis is wrong with negative leading and positive
    trailing padding: its last windows read past the end of the image (JAX 0.10.2).
    """
    primitive = jax.lax.conv_general_dilated_p
    fallback = platform_lowerings["cpu"][primitive].rule

    def rule(context: mlir.LoweringRuleContext, *operands: Any, **parameters: Any) -> Any:
        padding, dilations = parameters["padding"], parameters["lhs_dilation"]
        if all(low >= 0 for low, _ in padding):
            return fallback(context, *operands, **parameters)
        # Dilated images are cropped by complete elements; zeros between elements remain as padding.
        counts = [max(0, -(low // d)) for (low, _), d in zip(padding, dilations, strict=True)]
        pairs = zip(padding, counts, dilations, strict=True)
        remaining = tuple((low + count * d, high) for (low, high), count, d in pairs)

        (out,) = cast(Avals, context.avals_out)
        axes = parameters["dimension_numbers"].lhs_spec[2:]

        def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
            for axis, count in zip(axes, counts, strict=True):
                if isinstance(x.shape[axis], int) and x.shape[axis] <= count:
                    return jax.lax.full(out.shape, 0, out.dtype)
                x = jax.lax.slice_in_dim(x, count, None, axis=axis)
            return primitive.bind(x, w, **{**parameters, "padding": remaining})

        return mlir.lower_fun(convolve, multiple_results=False)(context, *operands)

    mlir.register_lowering(primitive, rule, platform="cpu")


def register() -> None:
    """Register the lowerings; the library is loaded when the first one is used."""
    override_lowering(jax.lax.conv_general_dilated_p, choose_convolution)
    override_lowering(jax.lax.dot_general_p, choose_product)
    widen_sums()
    override_lowering(jax.lax.reduce_sum_p, choose_column_sum)
    partition_convolutions()
    crop_before_convolutions()
