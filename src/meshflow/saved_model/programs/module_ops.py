"""StableHLO ops as functions of JAX; ops with nested blocks are in `module_reader`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.environment.jax_internals import mlir_hlo, mlir_ir
from meshflow.environment.types import Array, ClosedJaxpr, JaxprEqn
from meshflow.saved_model.programs.module_reader import (
    StaticValue,
    UnsupportedOpError,
    as_array,
    get_comparison_direction,
    get_element_type,
    get_integer,
    get_integers,
    get_sizes,
    get_static_shape,
    read_jaxpr,
    register_op,
    slice_rows,
)

_Op = Any


def _register_elementwise(name: str, compute: Callable[..., Any]) -> None:
    register_op(name)(lambda op, inputs: compute(*map(as_array, inputs)))


def _make_round(mode: lax.RoundingMethod) -> Callable[[Array], Array]:
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
    "xor": lax.bitwise_xor, "round_nearest_even": _make_round(lax.RoundingMethod.TO_NEAREST_EVEN),
    "round_nearest_afz": _make_round(lax.RoundingMethod.AWAY_FROM_ZERO),
}  # fmt: skip
for _name, _function in _ELEMENTWISE.items():
    _register_elementwise(_name, _function)

_COMPARISONS = {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}


@register_op("compare")
def _read_compare(op: _Op, inputs: list[Any]) -> Array:
    return _COMPARISONS[get_comparison_direction(op)](*map(as_array, inputs))


@register_op("select")
def _read_select(op: _Op, inputs: list[Any]) -> Array:
    condition, true_case, false_case = map(as_array, inputs)
    return lax.select_n(condition, false_case, true_case)


@register_op("clamp")
def _read_clamp(op: _Op, inputs: list[Any]) -> Array:
    return lax.clamp(*map(as_array, inputs))


@register_op("convert")
def _read_convert(op: _Op, inputs: list[Any]) -> Array:
    return lax.convert_element_type(as_array(inputs[0]), get_element_type(op.results[0]))


@register_op("optimization_barrier")
def _read_barrier(op: _Op, inputs: list[Any]) -> list[Array]:
    return inputs


@register_op("constant")
def _read_constant(op: _Op, inputs: list[Any]) -> Array:
    dtype, shape = get_element_type(op.results[0]), get_static_shape(op.results[0]) or ()
    try:
        attribute = op.attributes["value"]
    except TypeError:
        # MLIR has no Python object for an array of complex numbers.
        return _parse_elements(op.operation.get_asm(), dtype, shape)
    try:
        return np.array(attribute).reshape(shape).astype(dtype)
    except TypeError:
        return _parse_elements(str(attribute), dtype, shape)


def _parse_elements(text: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Parse printed elements, numbers or hex bits, of a dtype that NumPy lacks, or complex numbers."""
    elements = text[text.index("<") + 1 : text.rindex("> :")]
    is_complex = dtype.kind == "c"
    if elements.startswith('"0x'):
        # Many elements are printed as their bytes.
        return np.frombuffer(bytes.fromhex(elements[3:-1]), dtype).reshape(shape)
    part = np.dtype(f"f{dtype.itemsize // 2}") if is_complex else dtype

    def format_bits(match: re.Match[str]) -> str:
        raw = np.array(int(match[0], 16), f"uint{8 * part.itemsize}")
        return (
            repr(float(raw.view(part).astype(np.float64)))
            .replace("inf", "1e999")
            .replace("nan", "None")
        )

    values = ast.literal_eval(re.sub(r"0x[0-9A-Fa-f]+", format_bits, elements))
    numbers = np.array(values, np.float64).astype(part)
    return np.broadcast_to(numbers.view(dtype)[..., 0] if is_complex else numbers, shape)


# ---- shapes ------------------------------------------------------------------------------------


@register_op("get_dimension_size")
def _read_dimension_size(op: _Op, inputs: list[Any]) -> StaticValue:
    return StaticValue(
        np.array(inputs[0].shape[get_integer(op, "dimension")], object), np.dtype(np.int32)
    )


@register_op("reshape")
def _read_reshape(op: _Op, inputs: list[Any]) -> Array:
    shape = get_static_shape(op.results[0])
    assert shape is not None
    return lax.reshape(as_array(inputs[0]), shape)


@register_op("dynamic_reshape")
def _read_dynamic_reshape(op: _Op, inputs: list[Any]) -> Array:
    return lax.reshape(as_array(inputs[0]), get_sizes(inputs[1]))


@register_op("broadcast_in_dim", "dynamic_broadcast_in_dim")
def _read_broadcast(op: _Op, inputs: list[Any]) -> Array:
    shape = get_sizes(inputs[1]) if len(inputs) > 1 else get_static_shape(op.results[0])
    assert shape is not None
    return lax.broadcast_in_dim(
        as_array(inputs[0]), shape, get_integers(op, "broadcast_dimensions")
    )


@register_op("transpose")
def _read_transpose(op: _Op, inputs: list[Any]) -> Array:
    return lax.transpose(as_array(inputs[0]), get_integers(op, "permutation"))


@register_op("reverse")
def _read_reverse(op: _Op, inputs: list[Any]) -> Array:
    return lax.rev(as_array(inputs[0]), get_integers(op, "dimensions"))


@register_op("concatenate")
def _read_concatenate(op: _Op, inputs: list[Any]) -> Array:
    return lax.concatenate(list(map(as_array, inputs)), get_integer(op, "dimension"))


@register_op("iota", "dynamic_iota")
def _read_iota(op: _Op, inputs: list[Any]) -> Array:
    shape = get_sizes(inputs[0]) if inputs else get_static_shape(op.results[0])
    assert shape is not None
    return lax.broadcasted_iota(
        get_element_type(op.results[0]), shape, get_integer(op, "iota_dimension")
    )


@register_op("slice")
def _read_slice(op: _Op, inputs: list[Any]) -> Array:
    bounds = (get_integers(op, n) for n in ("start_indices", "limit_indices", "strides"))
    return lax.slice(as_array(inputs[0]), *bounds)


@register_op("dynamic_slice")
def _read_dynamic_slice(op: _Op, inputs: list[Any]) -> Array:
    operand, *starts = map(as_array, inputs)
    return slice_rows(operand, starts, get_integers(op, "slice_sizes"))


@register_op("dynamic_update_slice")
def _read_dynamic_update_slice(op: _Op, inputs: list[Any]) -> Array:
    operand, update, *starts = map(as_array, inputs)
    if operand.size == 0:
        return operand
    return lax.dynamic_update_slice(operand, update, starts)


@register_op("pad", "dynamic_pad")
def _read_pad(op: _Op, inputs: list[Any]) -> Array:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    parts = list(map(get_sizes, inputs[2:])) or [get_integers(op, n) for n in names]
    return lax.pad(as_array(inputs[0]), as_array(inputs[1]), list(zip(*parts, strict=True)))


# ---- products -----------------------------------------------------------------------------------


@register_op("dot_general")
def _read_dot_general(op: _Op, inputs: list[Any]) -> Array:
    dims: Any = mlir_hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    contracting = dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions
    batching = dims.lhs_batching_dimensions, dims.rhs_batching_dimensions
    lhs, rhs = map(as_array, inputs)
    dtype = get_element_type(op.results[0])
    return lax.dot_general(lhs, rhs, (contracting, batching), preferred_element_type=dtype)


@register_op("convolution", "dynamic_conv")
def _read_convolution(op: _Op, inputs: list[Any]) -> Array:
    d: Any = mlir_hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    dimensions = lax.ConvDimensionNumbers(
        (d.input_batch_dimension, d.input_feature_dimension, *d.input_spatial_dimensions),
        (d.kernel_output_feature_dimension, d.kernel_input_feature_dimension, *d.kernel_spatial_dimensions),
        (d.output_batch_dimension, d.output_feature_dimension, *d.output_spatial_dimensions),
    )  # fmt: skip
    rank = len(d.input_spatial_dimensions)
    padding = (
        get_sizes(inputs[2]) if len(inputs) > 2 else get_integers(op, "padding", [0] * 2 * rank)
    )
    reversal = op.attributes.get("window_reversal", None)
    if reversal is not None and any(mlir_ir.DenseBoolArrayAttr(reversal)):
        raise UnsupportedOpError("its window is reversed")
    dtype = get_element_type(op.results[0])
    # `lax.conv_general_dilated` refuses symbolic sizes.
    return lax.conv_general_dilated_p.bind(
        *map(as_array, inputs[:2]),
        window_strides=tuple(get_integers(op, "window_strides", [1] * rank)),
        padding=tuple(zip(padding[::2], padding[1::2], strict=True)),
        lhs_dilation=tuple(get_integers(op, "lhs_dilation", [1] * rank)),
        rhs_dilation=tuple(get_integers(op, "rhs_dilation", [1] * rank)),
        dimension_numbers=dimensions,
        feature_group_count=get_integer(op, "feature_group_count", 1),
        batch_group_count=get_integer(op, "batch_group_count", 1),
        precision=None,
        preferred_element_type=dtype,
        out_sharding=None,
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


def _list_block_ops(op: _Op) -> list[str]:
    """Return the names of the ops of a block without its return."""
    return _list_ops(op.regions[0].blocks[0])


def _list_ops(block: Iterable[Any]) -> list[str]:
    return [o.operation.name for o in block][:-1]


def _find_monoid(names: Sequence[str]) -> Callable[..., Array]:
    if len(names) != 1 or names[0] not in _MONOIDS:
        raise UnsupportedOpError(f"its reduction computes {', '.join(names)}")
    return _MONOIDS[names[0]]


@register_op("reduce")
def _read_reduce(op: _Op, inputs: list[Any]) -> list[Array] | Array:
    axes = tuple(get_integers(op, "dimensions"))
    half = len(inputs) // 2
    operands = list(map(as_array, inputs[:half]))
    if half == 2 and len(axes) == 1:
        first = next(o.operation for o in op.regions[0].blocks[0])
        if first.name == "stablehlo.compare":
            arg_reduce = {"GT": lax.argmax, "LT": lax.argmin}.get(get_comparison_direction(first))
            if arg_reduce is not None:
                index = arg_reduce(operands[0], axes[0], get_element_type(op.results[1]))
                value = (lax.reduce_max if arg_reduce is lax.argmax else lax.reduce_min)(operands[0], axes)  # fmt: skip
                return [value, index]
    if half != 1:
        raise UnsupportedOpError("it reduces several tensors at once")
    monoid = _find_monoid(_list_block_ops(op))
    return lax.reduce(operands[0], as_array(inputs[1]), monoid, axes)


@register_op("reduce_window")
def _read_reduce_window(op: _Op, inputs: list[Any]) -> Array:
    ones = [1] * as_array(inputs[0]).ndim
    names = ("window_strides", "base_dilations", "window_dilations")
    return _reduce_windows(
        inputs,
        _list_block_ops(op),
        get_integers(op, "window_dimensions"),
        [get_integers(op, n, ones) for n in names],
        get_integers(op, "padding", [0] * 2 * len(ones)),
    )


def _reduce_windows(
    inputs: Sequence[Any],
    reducer: Sequence[str],
    window: list[Any],
    steps: Sequence[list[int]],
    padding: list[Any],
) -> Array:
    """Reduce windows of the first input, given the names of the reducer's ops and the windows as StableHLO has them."""
    operand, init = as_array(inputs[0]), as_array(inputs[1])
    strides, base, inner = steps
    monoid = _find_monoid(reducer)
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    axis = next((i for i, n in enumerate(window) if n != 1), 0)
    full_window = [n if i == axis else 1 for i, n in enumerate(operand.shape)]
    scans: dict[Any, Callable[..., Array]] = {
        lax.add: lax.cumsum, lax.max: lax.cummax, lax.min: lax.cummin, lax.mul: lax.cumprod,
    }  # fmt: skip
    cumulate = scans.get(monoid) if window == full_window and {*strides, *base, *inner} == {1} else None  # fmt: skip
    before, after = pairs[axis]
    if cumulate is not None and window[axis] != 1 and {before, after} == {0, window[axis] - 1}:
        return cumulate(operand, axis, reverse=after > 0)
    return lax.reduce_window(operand, init, monoid, window, strides, pairs, base, inner)


@register_op("sort")
def _read_sort(op: _Op, inputs: list[Any]) -> list[Array]:
    block = op.regions[0].blocks[0]
    arguments = {argument: i for i, argument in enumerate(block.arguments)}
    compared = {arguments[v] for o in block for v in o.operation.operands if v in arguments}
    directions = {
        get_comparison_direction(o.operation)
        for o in block
        if o.operation.name == "stablehlo.compare"
        and get_comparison_direction(o.operation) in ("LT", "GT")
    }
    num_keys = len(compared) // 2
    if len(directions) != 1 or compared != set(range(2 * num_keys)):
        raise UnsupportedOpError("its comparison is not a lexicographic order")
    operands = list(map(as_array, inputs))
    dimension, stable = get_integer(op, "dimension"), _get_flag(op, "is_stable")
    if directions == {"GT"}:
        # Reversing an ascending sort of the reversed operands keeps equal elements in their order.
        operands = [lax.rev(x, [dimension]) for x in operands]
        ascending = lax.sort(operands, dimension=dimension, is_stable=stable, num_keys=num_keys)
        return [lax.rev(x, [dimension]) for x in ascending]
    return list(lax.sort(operands, dimension=dimension, is_stable=stable, num_keys=num_keys))


def _get_flag(op: _Op, name: str) -> bool:
    return name in op.attributes and bool(mlir_ir.BoolAttr(op.attributes[name]).value)


@register_op("gather", "dynamic_gather")
def _read_gather(op: _Op, inputs: list[Any]) -> Array:
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
    shape = get_sizes(inputs[2]) if len(inputs) > 2 else get_integers(op, "slice_sizes")
    operand = as_array(inputs[0])
    if 0 in operand.shape:
        # A program for unknown sizes gathers no slice, or filled ones, from an empty array.
        sizes = zip(shape, operand.shape, strict=True)
        operand = jnp.pad(operand, [(0, 0 if size else n) for n, size in sizes])
    # Programs clamp their indices before they gather.
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.gather(operand, indices, dims, shape, mode=mode)


@register_op("scatter")
def _read_scatter(op: _Op, inputs: list[Any]) -> Array:
    if len(inputs) != 3:
        raise UnsupportedOpError("it scatters several tensors at once")
    d: Any = mlir_hlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    operand, indices, updates = map(as_array, inputs)
    if d.index_vector_dim == indices.ndim:
        indices = indices[..., None]
    dims = lax.ScatterDimensionNumbers(
        tuple(d.update_window_dims), tuple(d.inserted_window_dims), tuple(d.scattered_dims_to_operand_dims),
        tuple(d.input_batching_dims), tuple(d.scatter_indices_batching_dims),
    )  # fmt: skip
    names = _list_block_ops(op)
    if len(names) > 1 or (names and names[0] not in _SCATTERS):
        raise UnsupportedOpError(f"its update computes {', '.join(names)}")
    function = _SCATTERS[names[0]] if names else lax.scatter
    # XLA drops updates out of bounds.
    return function(operand, indices, updates, dims, mode=lax.GatherScatterMode.FILL_OR_DROP)


@register_op("custom_call")
def _read_custom_call(op: _Op, inputs: list[Any]) -> list[Array] | Array:
    name = str(mlir_ir.StringAttr(op.attributes["call_target_name"]).value)
    if name == "shape_assertion":
        return []
    if name in ("Sharding", "annotate_device_placement"):
        return inputs
    if name == "stablehlo.dynamic_reduce_window":
        reducer = mlir_ir.FlatSymbolRefAttr(op.attributes["called_computations"][0]).value
        module = op
        while module.parent is not None:
            module = module.parent
        function: Any = mlir_ir.SymbolTable(module)[reducer]
        window, *steps, padding = map(get_sizes, inputs[2:])
        return _reduce_windows(inputs, _list_ops(function.entry_block), window, steps, padding)
    if name == "mhlo.erf":
        return lax.erf(as_array(inputs[0]))
    if name in ("mhlo.topk", "stablehlo.dynamic_top_k"):
        shape = get_static_shape(op.results[0])
        count = (
            get_sizes(inputs[1])[0] if len(inputs) > 1 else shape[-1] if shape is not None else None
        )
        if count is not None:
            return list(lax.top_k(as_array(inputs[0]), count))
    raise UnsupportedOpError(f"it calls native code, {name}")


def expand_call(eqn: JaxprEqn) -> ClosedJaxpr:
    """Return the equations of the saved program that an equation calls; see `read_jaxpr`."""
    exported, avals = eqn.params["exported"], [v.aval for v in eqn.invars]
    # The interpreter needs it twice, for the plan and for its costs.
    cache = exported.__dict__.setdefault("_expansion", {})
    key = tuple([(a.shape, a.dtype) for a in avals])  # type: ignore[attr-defined]
    if cache.get("key") != key:
        cache.update(key=key, closed=read_jaxpr(exported, avals))
    return cache["closed"]
