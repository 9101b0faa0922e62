"""Lowering rules of elementwise primitives to LiteRT's operators."""

from __future__ import annotations

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.deployment.lowering import LoweringError
from meshflow.lite.graph import LiteTensor
from meshflow.lite.lowering import LiteLowering, register_rule


@register_rule("min")
def _lower_min(l: LiteLowering, e: Equation) -> LiteTensor:
    x, y = map(l.get_base, e.inputs)
    return l.emit_binary("LOGICAL_AND" if x.dtype == np.bool_ else "MINIMUM", x, y)


@register_rule("max")
def _lower_max(l: LiteLowering, e: Equation) -> LiteTensor:
    x, y = map(l.get_base, e.inputs)
    if x.dtype == np.bool_:
        return l.emit_binary("LOGICAL_OR", x, y)
    for value, limit in ((x, e.inputs[1]), (y, e.inputs[0])):
        if value.dtype == np.float32 and limit.constant is not None and not limit.constant.any():
            return l.emit_unary("RELU", value)
    return l.emit_binary("MAXIMUM", x, y)


@register_rule("and", "or", "xor")
def _lower_logical(l: LiteLowering, e: Equation) -> LiteTensor:
    x, y = map(l.get_base, e.inputs)
    if x.dtype != np.bool_ and e.name == "xor":
        return l.emit("BITWISE_XOR", [x, y], e.outputs[0].shape, x.dtype)
    if x.dtype != np.bool_:
        raise LoweringError(f"LiteRT's operators for it take Booleans, not {x.dtype.name}")
    codes = {"and": "LOGICAL_AND", "or": "LOGICAL_OR", "xor": "NOT_EQUAL"}
    return l.emit_binary(codes[e.name], x, y)


@register_rule("shift_right_arithmetic")
def _lower_right_shift(l: LiteLowering, e: Equation) -> LiteTensor:
    x, y = map(l.get_base, e.inputs)
    return l.emit("RIGHT_SHIFT", [x, y], e.outputs[0].shape, x.dtype)


@register_rule("not")
def _lower_not(l: LiteLowering, e: Equation) -> LiteTensor:
    value = l.get_base(e.inputs[0])
    if value.dtype != np.bool_:
        raise LoweringError(f"LiteRT's operator for it takes Booleans, not {value.dtype.name}")
    return l.emit_unary("LOGICAL_NOT", value)


@register_rule("select_n")
def _lower_select(l: LiteLowering, e: Equation) -> LiteTensor:
    if len(e.inputs) != 3 or e.inputs[0].dtype != np.bool_:
        raise LoweringError("LiteRT selects between two tensors by Booleans only")
    condition, if_false, if_true = map(l.get_base, e.inputs)
    return l.emit("SELECT_V2", [condition, if_true, if_false], e.outputs[0].shape, if_true.dtype, "SelectV2Options")  # fmt: skip


@register_rule("convert_element_type")
def _lower_convert(l: LiteLowering, e: Equation) -> LiteTensor:
    value = l.get_base(e.inputs[0])
    target = l.to_supported_dtype(e.outputs[0].dtype)
    if target == np.bool_:
        return l.emit_binary("NOT_EQUAL", value, l.get_constant(np.zeros((), value.dtype)))
    return l.cast(value, target)


@register_rule("integer_pow")
def _lower_integer_pow(l: LiteLowering, e: Equation) -> LiteTensor:
    value, power = l.get_base(e.inputs[0]), e.params["y"]
    if power == 2:
        return l.emit_unary("SQUARE", value)
    if abs(power) > 8:
        return l.emit_binary("POW", value, l.get_constant(np.asarray(power, value.dtype)))
    result = value
    for _ in range(abs(power) - 1):
        result = l.emit_binary("MUL", result, value)
    return result if power > 0 else l.emit_binary("DIV", l.make_scalar(result, 1), result)


@register_rule("tan")
def _lower_tan(l: LiteLowering, e: Equation) -> LiteTensor:
    value = l.get_base(e.inputs[0])
    return l.emit_binary("DIV", l.emit_unary("SIN", value), l.emit_unary("COS", value))


@register_rule("sinh", "cosh")
def _lower_hyperbolic(l: LiteLowering, e: Equation) -> LiteTensor:
    value = l.get_base(e.inputs[0])
    up, down = l.emit_unary("EXP", value), l.emit_unary("EXP", l.emit_unary("NEG", value))
    total = l.emit_binary("SUB" if e.name == "sinh" else "ADD", up, down)
    return l.emit_binary("MUL", total, l.make_scalar(value, 0.5))


@register_rule("atan2")
def _lower_atan2(l: LiteLowering, e: Equation) -> LiteTensor:
    return l.emit(
        "ATAN2", map(l.get_base, e.inputs), e.outputs[0].shape, np.float32, "ATan2Options"
    )


@register_rule("atan", "asin", "acos")
def _lower_inverse_trigonometric(l: LiteLowering, e: Equation) -> LiteTensor:
    """Compute the angle of a point on the unit circle or with x = 1."""
    value = l.get_base(e.inputs[0])
    one = l.make_scalar(value, 1)
    if e.name == "atan":
        second = l.broadcast(l.reshape(one, (1,) * len(value.shape)), value.shape)
    else:
        second = l.emit_unary("SQRT", l.emit_binary("SUB", one, l.emit_unary("SQUARE", value)))
    point = [second, value] if e.name == "acos" else [value, second]
    return l.emit("ATAN2", point, value.shape, np.float32, "ATan2Options")


@register_rule("asinh", "acosh", "atanh")
def _lower_inverse_hyperbolic(l: LiteLowering, e: Equation) -> LiteTensor:
    value = l.get_base(e.inputs[0])
    one = l.make_scalar(value, 1)
    if e.name == "atanh":
        ratio = l.emit_binary(
            "DIV", l.emit_binary("ADD", one, value), l.emit_binary("SUB", one, value)
        )
        return l.emit_binary("MUL", l.emit_unary("LOG", ratio), l.make_scalar(value, 0.5))
    size, square = l.emit_unary("ABS", value), l.emit_unary("SQUARE", value)
    root = l.emit_unary("SQRT", l.emit_binary("ADD" if e.name == "asinh" else "SUB", square, one))
    logarithm = l.emit_unary("LOG", l.emit_binary("ADD", size, root))
    return (
        l.emit_binary("MUL", l.emit_unary("SIGN", value), logarithm)
        if e.name == "asinh"
        else logarithm
    )


@register_rule("rem")
def _lower_rem(l: LiteLowering, e: Equation) -> LiteTensor:
    """Compute the remainder with the sign of the dividend; LiteRT's has the sign of the divisor."""
    dividend, divisor = map(l.get_base, e.inputs)
    remainder = l.emit_binary(
        "FLOOR_MOD", l.emit_unary("ABS", dividend), l.emit_unary("ABS", divisor)
    )
    return l.emit_binary("MUL", remainder, l.emit_unary("SIGN", dividend))


@register_rule("erf", "erfc")
def _lower_erf(l: LiteLowering, e: Equation) -> LiteTensor:
    """Approximate the error function to 3e-7."""
    value = l.get_base(e.inputs[0])

    def multiply(x: LiteTensor, factor: float) -> LiteTensor:
        return l.emit_binary("MUL", x, l.make_scalar(value, factor))

    def add(x: LiteTensor, term: float) -> LiteTensor:
        return l.emit_binary("ADD", x, l.make_scalar(value, term))

    size = l.emit_unary("ABS", value)
    # Abramowitz and Stegun, formula 7.1.26.
    t = l.emit_binary("DIV", l.make_scalar(value, 1), add(multiply(size, 0.3275911), 1))
    series = multiply(t, 1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = l.emit_binary("MUL", add(series, coefficient), t)
    tail = l.emit_binary(
        "MUL", series, l.emit_unary("EXP", l.emit_unary("NEG", l.emit_unary("SQUARE", value)))
    )
    error = l.emit_binary(
        "MUL", l.emit_unary("SIGN", value), l.emit_binary("SUB", l.make_scalar(value, 1), tail)
    )
    return error if e.name == "erf" else l.emit_binary("SUB", l.make_scalar(value, 1), error)


@register_rule("gelu")
def _lower_gelu(l: LiteLowering, e: Equation) -> LiteTensor:
    value = l.get_base(e.inputs[0])
    return l.emit("GELU", [value], value.shape, value.dtype, "GeluOptions", approximate=e.params["approximate"])  # fmt: skip


@register_rule("leaky_relu")
def _lower_leaky_relu(l: LiteLowering, e: Equation) -> LiteTensor:
    value = l.get_base(e.inputs[0])
    return l.emit("LEAKY_RELU", [value], value.shape, value.dtype, "LeakyReluOptions", alpha=e.params["alpha"])  # fmt: skip


@register_rule("softmax", "log_softmax")
def _lower_softmax(l: LiteLowering, e: Equation) -> LiteTensor:
    value, axis = l.get_tensor(e.inputs[0]), e.params["axis"]
    rank = len(value.shape)
    order = [i for i in range(rank) if i != axis] + [axis]
    y = l.transpose(value, order)
    if e.name == "softmax":
        result = l.emit("SOFTMAX", [y], y.shape, value.dtype, "SoftmaxOptions", beta=1.0)
    else:
        result = l.emit("LOG_SOFTMAX", [y], y.shape, value.dtype, "LogSoftmaxOptions")
    return l.transpose(result, np.argsort(order).tolist())


@register_rule("iota")
def _lower_iota(l: LiteLowering, e: Equation) -> LiteTensor:
    result, (zero, one) = e.outputs[0], (l.get_constant(np.int32(i)) for i in (0, 1))
    indices = l.emit("RANGE", [zero, l.get_size(e.params["size"]), one], result.shape, np.int32, "RangeOptions")  # fmt: skip
    return l.cast(indices, result.dtype)
