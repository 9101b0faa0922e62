"""StableHLO ops as functions of JAX; ops with nested blocks are in `stablehlo`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.deployment.stablehlo import (
    Known,
    Unread,
    as_array,
    direction_of,
    element_type,
    number,
    numbers,
    reads,
    sizes,
    static_shape,
)
from meshflow.environment.jax_internals import mlir_hlo, mlir_ir
from meshflow.environment.types import Array

_Op = Any


def _elementwise(name: str, compute: Callable[..., Any]) -> None:
    reads(name)(lambda op, inputs: compute(*map(as_array, inputs)))


def _round(mode: lax.RoundingMethod) -> Callable[[Array], Array]:
    return lambda x: lax.round(x, mode)


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "abs": lax.abs, "add": lax.add, "and": lax.bitwise_and, "atan2": lax.atan2, "cbrt": lax.cbrt, "ceil": lax.ceil,
    "complex": lax.complex, "cosine": lax.cos, "divide": lax.div, "exponential": lax.exp,
    "exponential_minus_one": lax.expm1, "floor": lax.floor, "imag": lax.imag, "is_finite": lax.is_finite,
    "log": lax.log, "log_plus_one": lax.log1p, "logistic": lax.logistic, "maximum": lax.max, "minimum": lax.min,
    "multiply": lax.mul, "negate": lax.neg, "not": lax.bitwise_not, "or": lax.bitwise_or, "popcnt": lax.population_count,
    "power": lax.pow, "real": lax.real, "remainder": lax.rem, "rsqrt": lax.rsqrt, "shift_left": lax.shift_left,
    "shift_right_arithmetic": lax.shift_right_arithmetic, "shift_right_logical": lax.shift_right_logical,
    "sign": lax.sign, "sine": lax.sin, "sqrt": lax.sqrt, "subtract": lax.sub, "tan": lax.tan, "tanh": lax.tanh,
    "xor": lax.bitwise_xor, "round_nearest_even": _round(lax.RoundingMethod.TO_NEAREST_EVEN),
    "round_nearest_afz": _round(lax.RoundingMethod.AWAY_FROM_ZERO),
}  # fmt: skip
for _name, _function in _ELEMENTWISE.items():
    _elementwise(_name, _function)

_COMPARED = {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}


@reads("compare")
def _compare(op: _Op, inputs: list[Any]) -> Array:
    return _COMPARED[direction_of(op)](*map(as_array, inputs))


@reads("select")
def _select(op: _Op, inputs: list[Any]) -> Array:
    condition, true_case, false_case = map(as_array, inputs)
    return lax.select_n(condition, false_case, true_case)


@reads("clamp")
def _clamp(op: _Op, inputs: list[Any]) -> Array:
    return lax.clamp(*map(as_array, inputs))


@reads("convert")
def _convert(op: _Op, inputs: list[Any]) -> Array:
    return lax.convert_element_type(as_array(inputs[0]), element_type(op.results[0]))


@reads("optimization_barrier")
def _barrier(op: _Op, inputs: list[Any]) -> list[Array]:
    return inputs


@reads("constant")
def _constant(op: _Op, inputs: list[Any]) -> Array:
    attribute, dtype, shape = op.attributes["value"], element_type(op.results[0]), static_shape(op.results[0])  # fmt: skip
    try:
        return np.array(attribute).reshape(shape).astype(dtype)
    except TypeError:
        return np.broadcast_to(_written(str(attribute), dtype), shape or ())


def _written(text: str, dtype: np.dtype) -> np.ndarray:
    """Parse printed elements, numbers or hex bits, of a dtype that NumPy lacks."""
    elements = text[text.index("<") + 1 : text.rindex("> :")]

    def format_bits(match: re.Match[str]) -> str:
        raw = np.array(int(match[0], 16), f"uint{8 * dtype.itemsize}")
        return (
            repr(float(raw.view(dtype).astype(np.float64)))
            .replace("inf", "1e999")
            .replace("nan", "None")
        )

    values = ast.literal_eval(re.sub(r"0x[0-9A-Fa-f]+", format_bits, elements))
    return np.array(values, np.float64).astype(dtype)


# ---- shapes ------------------------------------------------------------------------------------


@reads("get_dimension_size")
def _size(op: _Op, inputs: list[Any]) -> Known:
    return Known(np.array(inputs[0].shape[number(op, "dimension")], object), np.dtype(np.int32))


@reads("reshape")
def _reshape(op: _Op, inputs: list[Any]) -> Array:
    shape = static_shape(op.results[0])
    assert shape is not None
    return lax.reshape(as_array(inputs[0]), shape)


@reads("dynamic_reshape")
def _dynamic_reshape(op: _Op, inputs: list[Any]) -> Array:
    return lax.reshape(as_array(inputs[0]), sizes(inputs[1]))


@reads("broadcast_in_dim", "dynamic_broadcast_in_dim")
def _broadcast(op: _Op, inputs: list[Any]) -> Array:
    shape = sizes(inputs[1]) if len(inputs) > 1 else static_shape(op.results[0])
    assert shape is not None
    return lax.broadcast_in_dim(as_array(inputs[0]), shape, numbers(op, "broadcast_dimensions"))


@reads("transpose")
def _transpose(op: _Op, inputs: list[Any]) -> Array:
    return lax.transpose(as_array(inputs[0]), numbers(op, "permutation"))


@reads("reverse")
def _reverse(op: _Op, inputs: list[Any]) -> Array:
    return lax.rev(as_array(inputs[0]), numbers(op, "dimensions"))


@reads("concatenate")
def _concatenate(op: _Op, inputs: list[Any]) -> Array:
    return lax.concatenate(list(map(as_array, inputs)), number(op, "dimension"))


@reads("iota", "dynamic_iota")
def _iota(op: _Op, inputs: list[Any]) -> Array:
    shape = sizes(inputs[0]) if inputs else static_shape(op.results[0])
    assert shape is not None
    return lax.broadcasted_iota(element_type(op.results[0]), shape, number(op, "iota_dimension"))


@reads("slice")
def _slice(op: _Op, inputs: list[Any]) -> Array:
    bounds = (numbers(op, n) for n in ("start_indices", "limit_indices", "strides"))
    return lax.slice(as_array(inputs[0]), *bounds)


@reads("dynamic_slice")
def _dynamic_slice(op: _Op, inputs: list[Any]) -> Array:
    operand, *starts = map(as_array, inputs)
    return lax.dynamic_slice(operand, starts, numbers(op, "slice_sizes"))


@reads("dynamic_update_slice")
def _update_slice(op: _Op, inputs: list[Any]) -> Array:
    operand, update, *starts = map(as_array, inputs)
    return lax.dynamic_update_slice(operand, update, starts)


@reads("pad", "dynamic_pad")
def _pad(op: _Op, inputs: list[Any]) -> Array:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    parts = list(map(sizes, inputs[2:])) or [numbers(op, n) for n in names]
    return lax.pad(as_array(inputs[0]), as_array(inputs[1]), list(zip(*parts, strict=True)))


# ---- products -----------------------------------------------------------------------------------


@reads("dot_general")
def _product(op: _Op, inputs: list[Any]) -> Array:
    dims: Any = mlir_hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    contracting = dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions
    batching = dims.lhs_batching_dimensions, dims.rhs_batching_dimensions
    lhs, rhs = map(as_array, inputs)
    dtype = element_type(op.results[0])
    return lax.dot_general(lhs, rhs, (contracting, batching), preferred_element_type=dtype)


@reads("convolution", "dynamic_conv")
def _convolution(op: _Op, inputs: list[Any]) -> Array:
    d: Any = mlir_hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    dimensions = lax.ConvDimensionNumbers(
        (d.input_batch_dimension, d.input_feature_dimension, *d.input_spatial_dimensions),
        (d.kernel_output_feature_dimension, d.kernel_input_feature_dimension, *d.kernel_spatial_dimensions),
        (d.output_batch_dimension, d.output_feature_dimension, *d.output_spatial_dimensions),
    )  # fmt: skip
    rank = len(d.input_spatial_dimensions)
    padding = sizes(inputs[2]) if len(inputs) > 2 else numbers(op, "padding", [0] * 2 * rank)
    reversal = op.attributes.get("window_reversal", None)
    if reversal is not None and any(mlir_ir.DenseBoolArrayAttr(reversal)):
        raise Unread("its window is reversed")
    operand, kernel = map(as_array, inputs[:2])
    return lax.conv_general_dilated(
        operand,
        kernel,
        numbers(op, "window_strides", [1] * rank),
        list(zip(padding[::2], padding[1::2], strict=True)),
        numbers(op, "lhs_dilation", [1] * rank),
        numbers(op, "rhs_dilation", [1] * rank),
        dimensions,
        number(op, "feature_group_count", 1),
        number(op, "batch_group_count", 1),
        preferred_element_type=element_type(op.results[0]),
    )


# ---- reductions, sorting, gathering --------------------------------------------------------------

_MONOIDS = {
    "stablehlo.add": lax.add, "stablehlo.maximum": lax.max, "stablehlo.minimum": lax.min,
    "stablehlo.multiply": lax.mul, "stablehlo.and": lax.bitwise_and, "stablehlo.or": lax.bitwise_or,
}  # fmt: skip
_SCATTERS = {
    "stablehlo.add": lax.scatter_add, "stablehlo.maximum": lax.scatter_max,
    "stablehlo.minimum": lax.scatter_min, "stablehlo.multiply": lax.scatter_mul,
}  # fmt: skip


def _inside(op: _Op) -> list[str]:
    """Return the names of the ops of a block without its return."""
    return [o.operation.name for o in op.regions[0].blocks[0]][:-1]


def _monoid(op: _Op) -> Callable[..., Array]:
    names = _inside(op)
    if len(names) != 1 or names[0] not in _MONOIDS:
        raise Unread(f"its reduction computes {', '.join(names)}")
    return _MONOIDS[names[0]]


@reads("reduce")
def _reduce(op: _Op, inputs: list[Any]) -> list[Array] | Array:
    axes = tuple(numbers(op, "dimensions"))
    half = len(inputs) // 2
    operands = list(map(as_array, inputs[:half]))
    if half == 2 and len(axes) == 1:
        first = next(o.operation for o in op.regions[0].blocks[0])
        if first.name == "stablehlo.compare":
            arg_reduce = {"GT": lax.argmax, "LT": lax.argmin}.get(direction_of(first))
            if arg_reduce is not None:
                index = arg_reduce(operands[0], axes[0], element_type(op.results[1]))
                value = (lax.reduce_max if arg_reduce is lax.argmax else lax.reduce_min)(operands[0], axes)  # fmt: skip
                return [value, index]
    if half != 1:
        raise Unread("it reduces several tensors at once")
    return lax.reduce(operands[0], as_array(inputs[1]), _monoid(op), axes)


@reads("reduce_window")
def _reduce_window(op: _Op, inputs: list[Any]) -> Array:
    operand, init = as_array(inputs[0]), as_array(inputs[1])
    rank = operand.ndim
    window = numbers(op, "window_dimensions")
    padding = numbers(op, "padding", [0] * 2 * rank)
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    strides, base, inner = (
        numbers(op, n, [1] * rank) for n in ("window_strides", "base_dilations", "window_dilations")
    )
    axis = next((i for i, n in enumerate(window) if n != 1), 0)
    full_window = [n if i == axis else 1 for i, n in enumerate(operand.shape)]
    scans: dict[Any, Callable[..., Array]] = {
        lax.add: lax.cumsum, lax.max: lax.cummax, lax.min: lax.cummin, lax.mul: lax.cumprod,
    }  # fmt: skip
    cumulate = scans.get(_monoid(op)) if window == full_window and {*strides, *base, *inner} == {1} else None  # fmt: skip
    before, after = pairs[axis]
    if cumulate is not None and window[axis] > 1 and {before, after} == {0, window[axis] - 1}:
        return cumulate(operand, axis, reverse=after > 0)
    return lax.reduce_window(operand, init, _monoid(op), window, strides, pairs, base, inner)


@reads("sort")
def _sort(op: _Op, inputs: list[Any]) -> list[Array]:
    block = op.regions[0].blocks[0]
    arguments = {argument: i for i, argument in enumerate(block.arguments)}
    compared = {arguments[v] for o in block for v in o.operation.operands if v in arguments}
    directions = {
        direction_of(o.operation)
        for o in block
        if o.operation.name == "stablehlo.compare" and direction_of(o.operation) in ("LT", "GT")
    }
    num_keys = len(compared) // 2
    if len(directions) != 1 or compared != set(range(2 * num_keys)):
        raise Unread("its comparison is not a lexicographic order")
    operands = list(map(as_array, inputs))
    dimension, stable = number(op, "dimension"), _is_true(op, "is_stable")
    if directions == {"GT"}:
        # Reversing an ascending sort of the reversed operands keeps equal elements in their order.
        operands = [lax.rev(x, [dimension]) for x in operands]
        ascending = lax.sort(operands, dimension=dimension, is_stable=stable, num_keys=num_keys)
        return [lax.rev(x, [dimension]) for x in ascending]
    return list(lax.sort(operands, dimension=dimension, is_stable=stable, num_keys=num_keys))


def _is_true(op: _Op, name: str) -> bool:
    return name in op.attributes and bool(mlir_ir.BoolAttr(op.attributes[name]).value)


@reads("gather", "dynamic_gather")
def _gather(op: _Op, inputs: list[Any]) -> Array:
    d: Any = mlir_hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    indices = as_array(inputs[1])
    if d.index_vector_dim == indices.ndim:
        indices = indices[..., None]
    elif d.index_vector_dim != indices.ndim - 1:
        indices = jnp.moveaxis(indices, d.index_vector_dim, -1)
    dims = lax.GatherDimensionNumbers(
        tuple(d.offset_dims), tuple(d.collapsed_slice_dims), tuple(d.start_index_map),
        tuple(d.operand_batching_dims), tuple(d.start_indices_batching_dims),
    )  # fmt: skip
    shape = sizes(inputs[2]) if len(inputs) > 2 else numbers(op, "slice_sizes")
    # Programs clamp their indices before they gather.
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.gather(as_array(inputs[0]), indices, dims, shape, mode=mode)


@reads("scatter")
def _scatter(op: _Op, inputs: list[Any]) -> Array:
    if len(inputs) != 3:
        raise Unread("it scatters several tensors at once")
    d: Any = mlir_hlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    operand, indices, updates = map(as_array, inputs)
    if d.index_vector_dim == indices.ndim:
        indices = indices[..., None]
    dims = lax.ScatterDimensionNumbers(
        tuple(d.update_window_dims), tuple(d.inserted_window_dims), tuple(d.scattered_dims_to_operand_dims),
        tuple(d.input_batching_dims), tuple(d.scatter_indices_batching_dims),
    )  # fmt: skip
    names = _inside(op)
    if len(names) > 1 or (names and names[0] not in _SCATTERS):
        raise Unread(f"its update computes {', '.join(names)}")
    function = _SCATTERS[names[0]] if names else lax.scatter
    # XLA drops updates out of bounds.
    return function(operand, indices, updates, dims, mode=lax.GatherScatterMode.FILL_OR_DROP)


@reads("custom_call")
def _custom_call(op: _Op, inputs: list[Any]) -> list[Array] | Array:
    name = str(mlir_ir.StringAttr(op.attributes["call_target_name"]).value)
    if name == "shape_assertion":
        return []
    if name in ("Sharding", "annotate_device_placement"):
        return inputs
    if name == "mhlo.erf":
        return lax.erf(as_array(inputs[0]))
    if name in ("mhlo.topk", "stablehlo.dynamic_top_k"):
        shape = static_shape(op.results[0])
        count = sizes(inputs[1])[0] if len(inputs) > 1 else shape[-1] if shape is not None else None
        if count is not None:
            return list(lax.top_k(as_array(inputs[0]), count))
    raise Unread(f"it calls native code, {name}")
