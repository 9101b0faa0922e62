"""The ops of StableHLO as functions of JAX; those with blocks of their own are in `stablehlo`."""

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
    Reader,
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

_Op = Any


def _elementwise(name: str, function: Callable[..., Any]) -> None:
    reads(name)(lambda reader, op, given: function(*map(as_array, given)))


def _round(mode: lax.RoundingMethod) -> Callable[[Any], Any]:
    return lambda x: lax.round(x, mode)


def _not(x: Any) -> Any:
    return lax.bitwise_not(x)


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "abs": lax.abs, "add": lax.add, "and": lax.bitwise_and, "atan2": lax.atan2, "cbrt": lax.cbrt, "ceil": lax.ceil,
    "complex": lax.complex, "cosine": lax.cos, "divide": lax.div, "exponential": lax.exp,
    "exponential_minus_one": lax.expm1, "floor": lax.floor, "imag": lax.imag, "is_finite": lax.is_finite,
    "log": lax.log, "log_plus_one": lax.log1p, "logistic": lax.logistic, "maximum": lax.max, "minimum": lax.min,
    "multiply": lax.mul, "negate": lax.neg, "not": _not, "or": lax.bitwise_or, "popcnt": lax.population_count,
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
def _compare(reader: Reader, op: _Op, given: list[Any]) -> Any:
    return _COMPARED[direction_of(op)](*map(as_array, given))


@reads("select")
def _select(reader: Reader, op: _Op, given: list[Any]) -> Any:
    condition, yes, no = map(as_array, given)
    return lax.select_n(condition, no, yes)


@reads("clamp")
def _clamp(reader: Reader, op: _Op, given: list[Any]) -> Any:
    return lax.clamp(*map(as_array, given))


@reads("convert")
def _convert(reader: Reader, op: _Op, given: list[Any]) -> Any:
    return lax.convert_element_type(as_array(given[0]), element_type(op.results[0]))


@reads("optimization_barrier")
def _barrier(reader: Reader, op: _Op, given: list[Any]) -> Any:
    return given


@reads("constant")
def _constant(reader: Reader, op: _Op, given: list[Any]) -> Any:
    attribute, dtype, shape = op.attributes["value"], element_type(op.results[0]), static_shape(op.results[0])  # fmt: skip
    try:
        return np.array(attribute).reshape(shape).astype(dtype)
    except TypeError:
        return np.broadcast_to(_written(str(attribute), dtype), shape or ())


def _written(text: str, dtype: np.dtype) -> np.ndarray:
    """The elements of a constant of a type that NumPy lacks, which is written as numbers or as bits."""
    inside = text[text.index("<") + 1 : text.rindex("> :")]

    def bits(found: re.Match[str]) -> str:
        raw = np.array(int(found[0], 16), f"uint{8 * dtype.itemsize}")
        return (
            repr(float(raw.view(dtype).astype(np.float64)))
            .replace("inf", "1e999")
            .replace("nan", "None")
        )

    values = ast.literal_eval(re.sub(r"0x[0-9A-Fa-f]+", bits, inside))
    return np.array(values, np.float64).astype(dtype)


# ---- shapes ------------------------------------------------------------------------------------


@reads("get_dimension_size")
def _size(reader: Reader, op: _Op, given: list[Any]) -> Any:
    return Known(np.array(given[0].shape[number(op, "dimension")], object), np.dtype(np.int32))


@reads("reshape")
def _reshape(reader: Reader, op: _Op, given: list[Any]) -> Any:
    shape = static_shape(op.results[0])
    assert shape is not None
    return lax.reshape(as_array(given[0]), shape)


@reads("dynamic_reshape")
def _dynamic_reshape(reader: Reader, op: _Op, given: list[Any]) -> Any:
    return lax.reshape(as_array(given[0]), sizes(given[1]))


@reads("broadcast_in_dim", "dynamic_broadcast_in_dim")
def _broadcast(reader: Reader, op: _Op, given: list[Any]) -> Any:
    shape = sizes(given[1]) if len(given) > 1 else static_shape(op.results[0])
    assert shape is not None
    return lax.broadcast_in_dim(as_array(given[0]), shape, numbers(op, "broadcast_dimensions"))


@reads("transpose")
def _transpose(reader: Reader, op: _Op, given: list[Any]) -> Any:
    return lax.transpose(as_array(given[0]), numbers(op, "permutation"))


@reads("reverse")
def _reverse(reader: Reader, op: _Op, given: list[Any]) -> Any:
    return lax.rev(as_array(given[0]), numbers(op, "dimensions"))


@reads("concatenate")
def _concatenate(reader: Reader, op: _Op, given: list[Any]) -> Any:
    return lax.concatenate(list(map(as_array, given)), number(op, "dimension"))


@reads("iota", "dynamic_iota")
def _iota(reader: Reader, op: _Op, given: list[Any]) -> Any:
    shape = sizes(given[0]) if given else static_shape(op.results[0])
    assert shape is not None
    return lax.broadcasted_iota(element_type(op.results[0]), shape, number(op, "iota_dimension"))


@reads("slice")
def _slice(reader: Reader, op: _Op, given: list[Any]) -> Any:
    bounds = (numbers(op, n) for n in ("start_indices", "limit_indices", "strides"))
    return lax.slice(as_array(given[0]), *bounds)


@reads("dynamic_slice")
def _dynamic_slice(reader: Reader, op: _Op, given: list[Any]) -> Any:
    operand, *starts = map(as_array, given)
    return lax.dynamic_slice(operand, starts, numbers(op, "slice_sizes"))


@reads("dynamic_update_slice")
def _update_slice(reader: Reader, op: _Op, given: list[Any]) -> Any:
    operand, update, *starts = map(as_array, given)
    return lax.dynamic_update_slice(operand, update, starts)


@reads("pad", "dynamic_pad")
def _pad(reader: Reader, op: _Op, given: list[Any]) -> Any:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    parts = list(map(sizes, given[2:])) or [numbers(op, n) for n in names]
    return lax.pad(as_array(given[0]), as_array(given[1]), list(zip(*parts, strict=True)))


# ---- products -----------------------------------------------------------------------------------


@reads("dot_general")
def _product(reader: Reader, op: _Op, given: list[Any]) -> Any:
    dims: Any = mlir_hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    contracting = dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions
    batching = dims.lhs_batching_dimensions, dims.rhs_batching_dimensions
    one, other = map(as_array, given)
    kind = element_type(op.results[0])
    return lax.dot_general(one, other, (contracting, batching), preferred_element_type=kind)


@reads("convolution", "dynamic_conv")
def _convolution(reader: Reader, op: _Op, given: list[Any]) -> Any:
    d: Any = mlir_hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    numbers_of = lax.ConvDimensionNumbers(
        (d.input_batch_dimension, d.input_feature_dimension, *d.input_spatial_dimensions),
        (d.kernel_output_feature_dimension, d.kernel_input_feature_dimension, *d.kernel_spatial_dimensions),
        (d.output_batch_dimension, d.output_feature_dimension, *d.output_spatial_dimensions),
    )  # fmt: skip
    rank = len(d.input_spatial_dimensions)
    padding = sizes(given[2]) if len(given) > 2 else numbers(op, "padding", [0] * 2 * rank)
    reversal = op.attributes.get("window_reversal", None)
    if reversal is not None and any(mlir_ir.DenseBoolArrayAttr(reversal)):
        raise Unread("its window is reversed")
    operand, kernel = map(as_array, given[:2])
    return lax.conv_general_dilated(
        operand,
        kernel,
        numbers(op, "window_strides", [1] * rank),
        list(zip(padding[::2], padding[1::2], strict=True)),
        numbers(op, "lhs_dilation", [1] * rank),
        numbers(op, "rhs_dilation", [1] * rank),
        numbers_of,
        number(op, "feature_group_count", 1),
        number(op, "batch_group_count", 1),
        preferred_element_type=element_type(op.results[0]),
    )


# ---- reductions, sorting, picking -----------------------------------------------------------------

_MONOIDS = {
    "stablehlo.add": lax.add, "stablehlo.maximum": lax.max, "stablehlo.minimum": lax.min,
    "stablehlo.multiply": lax.mul, "stablehlo.and": lax.bitwise_and, "stablehlo.or": lax.bitwise_or,
}  # fmt: skip
_SCATTERS = {
    "stablehlo.add": lax.scatter_add, "stablehlo.maximum": lax.scatter_max,
    "stablehlo.minimum": lax.scatter_min, "stablehlo.multiply": lax.scatter_mul,
}  # fmt: skip


def _inside(op: _Op) -> list[str]:
    """The ops of a block, but for its return."""
    return [o.operation.name for o in op.regions[0].blocks[0]][:-1]


def _monoid(op: _Op) -> Any:
    found = _inside(op)
    if len(found) != 1 or found[0] not in _MONOIDS:
        raise Unread(f"what it does to elements is {', '.join(found)}")
    return _MONOIDS[found[0]]


@reads("reduce")
def _reduce(reader: Reader, op: _Op, given: list[Any]) -> Any:
    axes = tuple(numbers(op, "dimensions"))
    half = len(given) // 2
    operands = list(map(as_array, given[:half]))
    if half == 2 and len(axes) == 1:
        first = next(o.operation for o in op.regions[0].blocks[0])
        if first.name == "stablehlo.compare":
            pick = {"GT": lax.argmax, "LT": lax.argmin}.get(direction_of(first))
            if pick is not None:
                place = pick(operands[0], axes[0], element_type(op.results[1]))
                value = (lax.reduce_max if pick is lax.argmax else lax.reduce_min)(operands[0], axes)  # fmt: skip
                return [value, place]
    if half != 1:
        raise Unread("it reduces several tensors at once")
    return lax.reduce(operands[0], as_array(given[1]), _monoid(op), axes)


@reads("reduce_window")
def _reduce_window(reader: Reader, op: _Op, given: list[Any]) -> Any:
    operand, init = as_array(given[0]), as_array(given[1])
    rank = operand.ndim
    window = numbers(op, "window_dimensions")
    padding = numbers(op, "padding", [0] * 2 * rank)
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    strides, base, inner = (
        numbers(op, n, [1] * rank) for n in ("window_strides", "base_dilations", "window_dilations")
    )
    axis = next((i for i, n in enumerate(window) if n != 1), 0)
    whole = [n if i == axis else 1 for i, n in enumerate(operand.shape)]
    sums = {lax.add: lax.cumsum, lax.max: lax.cummax, lax.min: lax.cummin, lax.mul: lax.cumprod}
    running = sums.get(_monoid(op)) if window == whole and {*strides, *base, *inner} == {1} else None  # fmt: skip
    before, after = pairs[axis]
    if running is not None and window[axis] > 1 and {before, after} == {0, window[axis] - 1}:
        return running(operand, axis, reverse=after > 0)
    return lax.reduce_window(operand, init, _monoid(op), window, strides, pairs, base, inner)


@reads("sort")
def _sort(reader: Reader, op: _Op, given: list[Any]) -> Any:
    block = op.regions[0].blocks[0]
    place = {argument: i for i, argument in enumerate(block.arguments)}
    used = {place[v] for o in block for v in o.operation.operands if v in place}
    directions = {
        direction_of(o.operation)
        for o in block
        if o.operation.name == "stablehlo.compare" and direction_of(o.operation) in ("LT", "GT")
    }
    keys = len(used) // 2
    if len(directions) != 1 or used != set(range(2 * keys)):
        raise Unread("it sorts by an order of its own")
    operands = list(map(as_array, given))
    dimension, stable = number(op, "dimension"), _is_true(op, "is_stable")
    if directions == {"GT"}:
        # From the largest on, equal ones as they come: what a reversed sort of the reversed gives.
        operands = [lax.rev(x, [dimension]) for x in operands]
        found = lax.sort(operands, dimension=dimension, is_stable=stable, num_keys=keys)
        return [lax.rev(x, [dimension]) for x in found]
    return list(lax.sort(operands, dimension=dimension, is_stable=stable, num_keys=keys))


def _is_true(op: _Op, name: str) -> bool:
    return name in op.attributes and bool(mlir_ir.BoolAttr(op.attributes[name]).value)


@reads("gather", "dynamic_gather")
def _gather(reader: Reader, op: _Op, given: list[Any]) -> Any:
    d: Any = mlir_hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    indices = as_array(given[1])
    if d.index_vector_dim == indices.ndim:
        indices = indices[..., None]
    elif d.index_vector_dim != indices.ndim - 1:
        indices = jnp.moveaxis(indices, d.index_vector_dim, -1)
    dims = lax.GatherDimensionNumbers(
        tuple(d.offset_dims), tuple(d.collapsed_slice_dims), tuple(d.start_index_map),
        tuple(d.operand_batching_dims), tuple(d.start_indices_batching_dims),
    )  # fmt: skip
    shape = sizes(given[2]) if len(given) > 2 else numbers(op, "slice_sizes")
    # Programs bound their indices themselves before they gather.
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.gather(as_array(given[0]), indices, dims, shape, mode=mode)


@reads("scatter")
def _scatter(reader: Reader, op: _Op, given: list[Any]) -> Any:
    if len(given) != 3:
        raise Unread("it scatters several tensors at once")
    d: Any = mlir_hlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    operand, indices, updates = map(as_array, given)
    if d.index_vector_dim == indices.ndim:
        indices = indices[..., None]
    dims = lax.ScatterDimensionNumbers(
        tuple(d.update_window_dims), tuple(d.inserted_window_dims), tuple(d.scattered_dims_to_operand_dims),
        tuple(d.input_batching_dims), tuple(d.scatter_indices_batching_dims),
    )  # fmt: skip
    inside = _inside(op)
    if len(inside) > 1 or (inside and inside[0] not in _SCATTERS):
        raise Unread(f"what it does to elements is {', '.join(inside)}")
    function = _SCATTERS[inside[0]] if inside else lax.scatter
    # What lies outside is left out.
    return function(operand, indices, updates, dims, mode=lax.GatherScatterMode.FILL_OR_DROP)


@reads("custom_call")
def _custom_call(reader: Reader, op: _Op, given: list[Any]) -> Any:
    name = str(mlir_ir.StringAttr(op.attributes["call_target_name"]).value)
    if name == "shape_assertion":
        return []
    if name in ("Sharding", "annotate_device_placement"):
        return given
    if name == "mhlo.erf":
        return lax.erf(as_array(given[0]))
    if name in ("mhlo.topk", "stablehlo.dynamic_top_k"):
        shape = static_shape(op.results[0])
        count = sizes(given[1])[0] if len(given) > 1 else shape[-1] if shape is not None else None
        if count is not None:
            return list(lax.top_k(as_array(given[0]), count))
    raise Unread(f"it is native code, {name}")
