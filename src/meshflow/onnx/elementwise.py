"""Lowering rules of elementwise primitives to ONNX nodes."""

from __future__ import annotations

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.onnx.lowering import Lowering, Refused, Tensor, kept_dtype, lowers

__all__: list[str] = []

_BINARY = {
    "add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "xor": "Xor",
    "and": "And", "or": "Or", "max": "Max", "min": "Min",
}  # fmt: skip
_TESTS = {
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "ne": "Equal",
    # Comparisons in searches.
    "lt_to": "Less", "le_to": "LessOrEqual",
}  # fmt: skip
_UNARY = {
    "abs": "Abs", "neg": "Neg", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos",
    "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh",
    "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "tanh": "Tanh", "logistic": "Sigmoid",
    "floor": "Floor", "ceil": "Ceil", "sign": "Sign", "erf": "Erf",
}  # fmt: skip


@lowers(*_BINARY)
def _binary(l: Lowering, e: Equation) -> Tensor:
    x, y = map(l.least, e.inputs)
    logical = e.name in ("and", "or", "xor", "max", "min") and x.dtype == np.bool_
    if e.name in ("and", "or", "xor") and not logical:
        code = {"and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor"}[e.name]
        return l.binary(code, x, y)
    if logical and e.name in ("max", "min"):
        return l.binary("Or" if e.name == "max" else "And", x, y)
    if e.name == "max" and x.dtype.kind == "f":
        for value, limit in ((x, e.inputs[1]), (y, e.inputs[0])):
            if limit.constant is not None and not limit.constant.any():
                return l.unary("Relu", value)
    return l.binary(_BINARY[e.name], x, y)


@lowers(*_TESTS)
def _test(l: Lowering, e: Equation) -> Tensor:
    x, y = map(l.least, e.inputs)
    result = l.binary(_TESTS[e.name], x, y, np.bool_)
    return l.unary("Not", result) if e.name == "ne" else result


@lowers(*_UNARY)
def _unary(l: Lowering, e: Equation) -> Tensor:
    return l.unary(_UNARY[e.name], l.least(e.inputs[0]))


@lowers("not")
def _not(l: Lowering, e: Equation) -> Tensor:
    value = l.least(e.inputs[0])
    return l.unary("Not" if value.dtype == np.bool_ else "BitwiseNot", value)


@lowers("rsqrt", "square", "log1p", "expm1", "exp2", "erfc", "cbrt")
def _composed(l: Lowering, e: Equation) -> Tensor:
    value = l.least(e.inputs[0])
    one = l.number(value, 1)
    if e.name == "rsqrt":
        return l.binary("Div", one, l.unary("Sqrt", value))
    if e.name == "square":
        return l.binary("Mul", value, value)
    if e.name == "log1p":
        return l.unary("Log", l.binary("Add", value, one))
    if e.name == "expm1":
        return l.binary("Sub", l.unary("Exp", value), one)
    if e.name == "exp2":
        return l.unary("Exp", l.binary("Mul", value, l.number(value, float(np.log(2.0)))))
    if e.name == "erfc":
        return l.binary("Sub", one, l.unary("Erf", value))
    size = l.binary("Pow", l.unary("Abs", value), l.number(value, 1 / 3))
    return l.binary("Mul", l.unary("Sign", value), size)


@lowers("integer_pow")
def _integer_pow(l: Lowering, e: Equation) -> Tensor:
    value, power = l.least(e.inputs[0]), e.params["y"]
    if power == 2:
        return l.binary("Mul", value, value)
    return l.binary("Pow", value, l.number(value, power))


@lowers("select_n")
def _select(l: Lowering, e: Equation) -> Tensor:
    if len(e.inputs) != 3 or e.inputs[0].dtype != np.bool_:
        raise Refused("ONNX selects between two tensors by Booleans only")
    condition, if_false, if_true = map(l.least, e.inputs)
    return l.emit("Where", [condition, if_true, if_false], e.outputs[0].least.shape, if_true.dtype)


@lowers("clamp")
def _clamp(l: Lowering, e: Equation) -> Tensor:
    low, value, high = map(l.least, e.inputs)
    return l.binary("Min", l.binary("Max", value, low), high)


@lowers("convert_element_type")
def _convert(l: Lowering, e: Equation) -> Tensor:
    return l.cast(l.least(e.inputs[0]), kept_dtype(e.outputs[0].dtype))


@lowers("round")
def _round(l: Lowering, e: Equation) -> Tensor:
    value = l.least(e.inputs[0])
    if int(e.params["rounding_method"]) == 1:
        return l.unary("Round", value)
    half = l.binary("Add", l.unary("Abs", value), l.number(value, 0.5))
    return l.binary("Mul", l.unary("Sign", value), l.unary("Floor", half))


@lowers("rem")
def _rem(l: Lowering, e: Equation) -> Tensor:
    dividend, divisor = map(l.least, e.inputs)
    return l.emit("Mod", [dividend, divisor], e.outputs[0].least.shape, dividend.dtype, fmod=1)


@lowers("is_finite")
def _is_finite(l: Lowering, e: Equation) -> Tensor:
    value = l.unary("Abs", l.least(e.inputs[0]))
    return l.binary("LessOrEqual", value, l.number(value, float(np.finfo(value.dtype).max)), np.bool_)  # fmt: skip


@lowers("gelu")
def _gelu(l: Lowering, e: Equation) -> Tensor:
    value = l.least(e.inputs[0])
    if e.params["approximate"]:
        cube = l.binary("Mul", l.binary("Mul", value, value), value)
        inner = l.binary("Add", value, l.binary("Mul", cube, l.number(value, 0.044715)))
        gate = l.unary("Tanh", l.binary("Mul", inner, l.number(value, float(np.sqrt(2 / np.pi)))))
    else:
        gate = l.unary("Erf", l.binary("Mul", value, l.number(value, float(np.sqrt(0.5)))))
    half = l.binary("Mul", value, l.number(value, 0.5))
    return l.binary("Mul", half, l.binary("Add", gate, l.number(value, 1)))


@lowers("elu")
def _elu(l: Lowering, e: Equation) -> Tensor:
    return l.unary("Elu", l.least(e.inputs[0]))


@lowers("leaky_relu")
def _leaky_relu(l: Lowering, e: Equation) -> Tensor:
    value = l.least(e.inputs[0])
    return l.emit("LeakyRelu", [value], value.shape, value.dtype, alpha=float(e.params["alpha"]))


@lowers("hard_swish")
def _hard_swish(l: Lowering, e: Equation) -> Tensor:
    value = l.least(e.inputs[0])
    gate = l.emit("HardSigmoid", [value], value.shape, value.dtype, alpha=1 / 6, beta=0.5)
    return l.binary("Mul", value, gate)


@lowers("softmax", "log_softmax")
def _softmax(l: Lowering, e: Equation) -> Tensor:
    value = l.full(e.inputs[0])
    code = "Softmax" if e.name == "softmax" else "LogSoftmax"
    return l.emit(code, [value], value.shape, value.dtype, axis=int(e.params["axis"]))


@lowers("iota")
def _iota(l: Lowering, e: Equation) -> Tensor:
    zero, one = (l.constant(np.asarray(i, np.int64)) for i in (0, 1))
    indices = l.emit("Range", [zero, l.size(e.params["size"]), one], e.outputs[0].shape, np.int64)
    return l.cast(indices, e.outputs[0].dtype)
