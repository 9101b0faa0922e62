"""Lowering rules of elementwise primitives to LiteRT's operators."""

from __future__ import annotations

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.lite.graph import Tensor
from meshflow.lite.lowering import Lowering, Refused, kept_dtype, lowers

__all__: list[str] = []

_BINARY = {
    "add": "ADD", "add_any": "ADD", "sub": "SUB", "mul": "MUL", "div": "DIV", "pow": "POW",
    "eq": "EQUAL", "ne": "NOT_EQUAL", "lt": "LESS", "le": "LESS_EQUAL", "gt": "GREATER",
    "ge": "GREATER_EQUAL", "min": "MINIMUM", "lt_to": "LESS", "le_to": "LESS_EQUAL",
}  # fmt: skip
_UNARY = {
    "abs": "ABS", "neg": "NEG", "exp": "EXP", "log": "LOG", "sqrt": "SQRT", "rsqrt": "RSQRT",
    "square": "SQUARE", "sin": "SIN", "cos": "COS", "tanh": "TANH", "logistic": "LOGISTIC",
    "floor": "FLOOR", "ceil": "CEIL", "sign": "SIGN",
}  # fmt: skip


@lowers(*_BINARY)
def _binary(l: Lowering, e: Equation) -> Tensor:
    x, y = map(l.least, e.inputs)
    if e.name == "min" and x.dtype == np.bool_:
        return l.binary("LOGICAL_AND", x, y)
    # LiteRT's DIV of integers rounds toward zero, as XLA's does.
    return l.binary(_BINARY[e.name], x, y)


@lowers(*_UNARY)
def _unary(l: Lowering, e: Equation) -> Tensor:
    return l.unary(_UNARY[e.name], l.least(e.inputs[0]))


@lowers("max")
def _max(l: Lowering, e: Equation) -> Tensor:
    x, y = map(l.least, e.inputs)
    if x.dtype == np.bool_:
        return l.binary("LOGICAL_OR", x, y)
    for value, limit in ((x, e.inputs[1]), (y, e.inputs[0])):
        if value.dtype == np.float32 and limit.constant is not None and not limit.constant.any():
            return l.unary("RELU", value)
    return l.binary("MAXIMUM", x, y)


@lowers("and", "or", "xor")
def _logical(l: Lowering, e: Equation) -> Tensor:
    x, y = map(l.least, e.inputs)
    if x.dtype != np.bool_ and e.name == "xor":
        return l.emit("BITWISE_XOR", [x, y], e.outputs[0].shape, x.dtype)
    if x.dtype != np.bool_:
        raise Refused(f"LiteRT's operators for it take Booleans, not {x.dtype.name}")
    codes = {"and": "LOGICAL_AND", "or": "LOGICAL_OR", "xor": "NOT_EQUAL"}
    return l.binary(codes[e.name], x, y)


@lowers("shift_right_arithmetic")
def _shift(l: Lowering, e: Equation) -> Tensor:
    x, y = map(l.least, e.inputs)
    return l.emit("RIGHT_SHIFT", [x, y], e.outputs[0].shape, x.dtype)


@lowers("not")
def _not(l: Lowering, e: Equation) -> Tensor:
    value = l.least(e.inputs[0])
    if value.dtype != np.bool_:
        raise Refused(f"LiteRT's operator for it takes Booleans, not {value.dtype.name}")
    return l.unary("LOGICAL_NOT", value)


@lowers("select_n")
def _select(l: Lowering, e: Equation) -> Tensor:
    if len(e.inputs) != 3 or e.inputs[0].dtype != np.bool_:
        raise Refused("LiteRT selects between two tensors by Booleans only")
    condition, if_false, if_true = map(l.least, e.inputs)
    return l.emit("SELECT_V2", [condition, if_true, if_false], e.outputs[0].shape, if_true.dtype, "SelectV2Options")  # fmt: skip


@lowers("clamp")
def _clamp(l: Lowering, e: Equation) -> Tensor:
    low, value, high = map(l.least, e.inputs)
    return l.binary("MINIMUM", l.binary("MAXIMUM", value, low), high)


@lowers("convert_element_type")
def _convert(l: Lowering, e: Equation) -> Tensor:
    value = l.least(e.inputs[0])
    target = kept_dtype(e.outputs[0].dtype)
    if target == np.bool_:
        return l.binary("NOT_EQUAL", value, l.constant(np.zeros((), value.dtype)))
    return l.cast(value, target)


@lowers("integer_pow")
def _integer_pow(l: Lowering, e: Equation) -> Tensor:
    value, power = l.least(e.inputs[0]), e.params["y"]
    if power == 2:
        return l.unary("SQUARE", value)
    if abs(power) > 8:
        return l.binary("POW", value, l.constant(np.asarray(power, value.dtype)))
    result = value
    for _ in range(abs(power) - 1):
        result = l.binary("MUL", result, value)
    return result if power > 0 else l.binary("DIV", _number(l, result, 1), result)


def _number(l: Lowering, like: Tensor, scalar: float) -> Tensor:
    return l.constant(np.asarray(scalar, like.dtype))


@lowers("log1p")
def _log1p(l: Lowering, e: Equation) -> Tensor:
    value = l.least(e.inputs[0])
    return l.unary("LOG", l.binary("ADD", value, _number(l, value, 1)))


@lowers("expm1")
def _expm1(l: Lowering, e: Equation) -> Tensor:
    value = l.unary("EXP", l.least(e.inputs[0]))
    return l.binary("SUB", value, _number(l, value, 1))


@lowers("exp2")
def _exp2(l: Lowering, e: Equation) -> Tensor:
    value = l.least(e.inputs[0])
    return l.unary("EXP", l.binary("MUL", value, _number(l, value, np.log(2.0))))


@lowers("tan")
def _tan(l: Lowering, e: Equation) -> Tensor:
    value = l.least(e.inputs[0])
    return l.binary("DIV", l.unary("SIN", value), l.unary("COS", value))


@lowers("sinh", "cosh")
def _hyperbolic(l: Lowering, e: Equation) -> Tensor:
    value = l.least(e.inputs[0])
    up, down = l.unary("EXP", value), l.unary("EXP", l.unary("NEG", value))
    total = l.binary("SUB" if e.name == "sinh" else "ADD", up, down)
    return l.binary("MUL", total, _number(l, value, 0.5))


@lowers("atan2")
def _atan2(l: Lowering, e: Equation) -> Tensor:
    return l.emit("ATAN2", map(l.least, e.inputs), e.outputs[0].shape, np.float32, "ATan2Options")


@lowers("atan", "asin", "acos")
def _angle(l: Lowering, e: Equation) -> Tensor:
    """Compute the angle of a point on the unit circle or with x = 1."""
    value = l.least(e.inputs[0])
    one = _number(l, value, 1)
    if e.name == "atan":
        second = l.broadcast(l.reshape(one, (1,) * len(value.shape)), value.shape)
    else:
        second = l.unary("SQRT", l.binary("SUB", one, l.unary("SQUARE", value)))
    point = [second, value] if e.name == "acos" else [value, second]
    return l.emit("ATAN2", point, value.shape, np.float32, "ATan2Options")


@lowers("asinh", "acosh", "atanh")
def _area(l: Lowering, e: Equation) -> Tensor:
    value = l.least(e.inputs[0])
    one = _number(l, value, 1)
    if e.name == "atanh":
        ratio = l.binary("DIV", l.binary("ADD", one, value), l.binary("SUB", one, value))
        return l.binary("MUL", l.unary("LOG", ratio), _number(l, value, 0.5))
    size, square = l.unary("ABS", value), l.unary("SQUARE", value)
    root = l.unary("SQRT", l.binary("ADD" if e.name == "asinh" else "SUB", square, one))
    logarithm = l.unary("LOG", l.binary("ADD", size, root))
    return l.binary("MUL", l.unary("SIGN", value), logarithm) if e.name == "asinh" else logarithm


@lowers("round")
def _round(l: Lowering, e: Equation) -> Tensor:
    value = l.least(e.inputs[0])
    if int(e.params["rounding_method"]) == 1:
        return l.unary("ROUND", value)
    half = l.binary("ADD", l.unary("ABS", value), _number(l, value, 0.5))
    return l.binary("MUL", l.unary("SIGN", value), l.unary("FLOOR", half))


@lowers("rem")
def _rem(l: Lowering, e: Equation) -> Tensor:
    """Compute the remainder with the sign of the dividend; LiteRT's has the sign of the divisor."""
    dividend, divisor = map(l.least, e.inputs)
    remainder = l.binary("FLOOR_MOD", l.unary("ABS", dividend), l.unary("ABS", divisor))
    return l.binary("MUL", remainder, l.unary("SIGN", dividend))


@lowers("is_finite")
def _is_finite(l: Lowering, e: Equation) -> Tensor:
    value = l.unary("ABS", l.least(e.inputs[0]))
    return l.binary("LESS_EQUAL", value, _number(l, value, float(np.finfo(np.float32).max)))


@lowers("erf", "erfc")
def _erf(l: Lowering, e: Equation) -> Tensor:
    """Approximate the error function to 3e-7."""
    value = l.least(e.inputs[0])

    def multiply(x: Tensor, factor: float) -> Tensor:
        return l.binary("MUL", x, _number(l, value, factor))

    def add(x: Tensor, term: float) -> Tensor:
        return l.binary("ADD", x, _number(l, value, term))

    size = l.unary("ABS", value)
    # Abramowitz and Stegun, formula 7.1.26.
    t = l.binary("DIV", _number(l, value, 1), add(multiply(size, 0.3275911), 1))
    series = multiply(t, 1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = l.binary("MUL", add(series, coefficient), t)
    tail = l.binary("MUL", series, l.unary("EXP", l.unary("NEG", l.unary("SQUARE", value))))
    error = l.binary("MUL", l.unary("SIGN", value), l.binary("SUB", _number(l, value, 1), tail))
    return error if e.name == "erf" else l.binary("SUB", _number(l, value, 1), error)


@lowers("gelu")
def _gelu(l: Lowering, e: Equation) -> Tensor:
    value = l.least(e.inputs[0])
    return l.emit("GELU", [value], value.shape, value.dtype, "GeluOptions", approximate=e.params["approximate"])  # fmt: skip


@lowers("elu", "hard_swish")
def _activation(l: Lowering, e: Equation) -> Tensor:
    return l.unary(e.name.upper(), l.least(e.inputs[0]))


@lowers("leaky_relu")
def _leaky_relu(l: Lowering, e: Equation) -> Tensor:
    value = l.least(e.inputs[0])
    return l.emit("LEAKY_RELU", [value], value.shape, value.dtype, "LeakyReluOptions", alpha=e.params["alpha"])  # fmt: skip


@lowers("softmax", "log_softmax")
def _softmax(l: Lowering, e: Equation) -> Tensor:
    value, axis = l.full(e.inputs[0]), e.params["axis"]
    rank = len(value.shape)
    order = [i for i in range(rank) if i != axis] + [axis]
    y = l.transpose(value, order)
    if e.name == "softmax":
        result = l.emit("SOFTMAX", [y], y.shape, value.dtype, "SoftmaxOptions", beta=1.0)
    else:
        result = l.emit("LOG_SOFTMAX", [y], y.shape, value.dtype, "LogSoftmaxOptions")
    return l.transpose(result, np.argsort(order).tolist())


@lowers("iota")
def _iota(l: Lowering, e: Equation) -> Tensor:
    result, (zero, one) = e.outputs[0], (l.constant(np.int32(i)) for i in (0, 1))
    indices = l.emit("RANGE", [zero, l.size(e.params["size"]), one], result.shape, np.int32, "RangeOptions")  # fmt: skip
    return l.cast(indices, result.dtype)
