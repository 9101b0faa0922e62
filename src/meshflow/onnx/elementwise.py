"""Lowering rules of elementwise primitives to ONNX nodes."""

from __future__ import annotations

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.onnx.lowering import (
    LoweringError,
    OnnxLowering,
    OnnxTensor,
    register_rule,
    to_supported_dtype,
)

_BINARY = {
    "add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "xor": "Xor",
    "and": "And", "or": "Or", "max": "Max", "min": "Min",
}  # fmt: skip
_COMPARISONS = {
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


@register_rule(*_BINARY)
def _lower_binary(l: OnnxLowering, e: Equation) -> OnnxTensor:
    x, y = map(l.get_base, e.inputs)
    logical = e.name in ("and", "or", "xor", "max", "min") and x.dtype == np.bool_
    if e.name in ("and", "or", "xor") and not logical:
        code = {"and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor"}[e.name]
        return l.emit_binary(code, x, y)
    if logical and e.name in ("max", "min"):
        return l.emit_binary("Or" if e.name == "max" else "And", x, y)
    if e.name == "max" and x.dtype.kind == "f":
        for value, limit in ((x, e.inputs[1]), (y, e.inputs[0])):
            if limit.constant is not None and not limit.constant.any():
                return l.emit_unary("Relu", value)
    return l.emit_binary(_BINARY[e.name], x, y)


@register_rule(*_COMPARISONS)
def _lower_comparison(l: OnnxLowering, e: Equation) -> OnnxTensor:
    x, y = map(l.get_base, e.inputs)
    result = l.emit_binary(_COMPARISONS[e.name], x, y, np.bool_)
    return l.emit_unary("Not", result) if e.name == "ne" else result


@register_rule(*_UNARY)
def _lower_unary(l: OnnxLowering, e: Equation) -> OnnxTensor:
    return l.emit_unary(_UNARY[e.name], l.get_base(e.inputs[0]))


@register_rule("not")
def _lower_not(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value = l.get_base(e.inputs[0])
    return l.emit_unary("Not" if value.dtype == np.bool_ else "BitwiseNot", value)


@register_rule("rsqrt", "square", "log1p", "expm1", "exp2", "erfc", "cbrt")
def _lower_composition(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value = l.get_base(e.inputs[0])
    one = l.make_scalar(value, 1)
    if e.name == "rsqrt":
        return l.emit_binary("Div", one, l.emit_unary("Sqrt", value))
    if e.name == "square":
        return l.emit_binary("Mul", value, value)
    if e.name == "log1p":
        return l.emit_unary("Log", l.emit_binary("Add", value, one))
    if e.name == "expm1":
        return l.emit_binary("Sub", l.emit_unary("Exp", value), one)
    if e.name == "exp2":
        return l.emit_unary(
            "Exp", l.emit_binary("Mul", value, l.make_scalar(value, float(np.log(2.0))))
        )
    if e.name == "erfc":
        return l.emit_binary("Sub", one, l.emit_unary("Erf", value))
    size = l.emit_binary("Pow", l.emit_unary("Abs", value), l.make_scalar(value, 1 / 3))
    return l.emit_binary("Mul", l.emit_unary("Sign", value), size)


@register_rule("integer_pow")
def _lower_integer_pow(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value, power = l.get_base(e.inputs[0]), e.params["y"]
    if power == 2:
        return l.emit_binary("Mul", value, value)
    return l.emit_binary("Pow", value, l.make_scalar(value, power))


@register_rule("select_n")
def _lower_select(l: OnnxLowering, e: Equation) -> OnnxTensor:
    if len(e.inputs) != 3 or e.inputs[0].dtype != np.bool_:
        raise LoweringError("ONNX selects between two tensors by Booleans only")
    condition, if_false, if_true = map(l.get_base, e.inputs)
    return l.emit("Where", [condition, if_true, if_false], e.outputs[0].base.shape, if_true.dtype)


@register_rule("clamp")
def _lower_clamp(l: OnnxLowering, e: Equation) -> OnnxTensor:
    low, value, high = map(l.get_base, e.inputs)
    return l.emit_binary("Min", l.emit_binary("Max", value, low), high)


@register_rule("convert_element_type")
def _lower_convert(l: OnnxLowering, e: Equation) -> OnnxTensor:
    return l.cast(l.get_base(e.inputs[0]), to_supported_dtype(e.outputs[0].dtype))


@register_rule("round")
def _lower_round(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value = l.get_base(e.inputs[0])
    if int(e.params["rounding_method"]) == 1:
        return l.emit_unary("Round", value)
    half = l.emit_binary("Add", l.emit_unary("Abs", value), l.make_scalar(value, 0.5))
    return l.emit_binary("Mul", l.emit_unary("Sign", value), l.emit_unary("Floor", half))


@register_rule("rem")
def _lower_rem(l: OnnxLowering, e: Equation) -> OnnxTensor:
    dividend, divisor = map(l.get_base, e.inputs)
    return l.emit("Mod", [dividend, divisor], e.outputs[0].base.shape, dividend.dtype, fmod=1)


@register_rule("is_finite")
def _lower_is_finite(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value = l.emit_unary("Abs", l.get_base(e.inputs[0]))
    return l.emit_binary("LessOrEqual", value, l.make_scalar(value, float(np.finfo(value.dtype).max)), np.bool_)  # fmt: skip


@register_rule("gelu")
def _lower_gelu(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value = l.get_base(e.inputs[0])
    if e.params["approximate"]:
        cube = l.emit_binary("Mul", l.emit_binary("Mul", value, value), value)
        inner = l.emit_binary(
            "Add", value, l.emit_binary("Mul", cube, l.make_scalar(value, 0.044715))
        )
        gate = l.emit_unary(
            "Tanh", l.emit_binary("Mul", inner, l.make_scalar(value, float(np.sqrt(2 / np.pi))))
        )
    else:
        gate = l.emit_unary(
            "Erf", l.emit_binary("Mul", value, l.make_scalar(value, float(np.sqrt(0.5))))
        )
    half = l.emit_binary("Mul", value, l.make_scalar(value, 0.5))
    return l.emit_binary("Mul", half, l.emit_binary("Add", gate, l.make_scalar(value, 1)))


@register_rule("elu")
def _lower_elu(l: OnnxLowering, e: Equation) -> OnnxTensor:
    return l.emit_unary("Elu", l.get_base(e.inputs[0]))


@register_rule("leaky_relu")
def _lower_leaky_relu(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value = l.get_base(e.inputs[0])
    return l.emit("LeakyRelu", [value], value.shape, value.dtype, alpha=float(e.params["alpha"]))


@register_rule("hard_swish")
def _lower_hard_swish(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value = l.get_base(e.inputs[0])
    gate = l.emit("HardSigmoid", [value], value.shape, value.dtype, alpha=1 / 6, beta=0.5)
    return l.emit_binary("Mul", value, gate)


@register_rule("softmax", "log_softmax")
def _lower_softmax(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value = l.get_tensor(e.inputs[0])
    code = "Softmax" if e.name == "softmax" else "LogSoftmax"
    return l.emit(code, [value], value.shape, value.dtype, axis=int(e.params["axis"]))


@register_rule("iota")
def _lower_iota(l: OnnxLowering, e: Equation) -> OnnxTensor:
    zero, one = (l.get_constant(np.asarray(i, np.int64)) for i in (0, 1))
    indices = l.emit(
        "Range", [zero, l.get_size(e.params["size"]), one], e.outputs[0].shape, np.int64
    )
    return l.cast(indices, e.outputs[0].dtype)
