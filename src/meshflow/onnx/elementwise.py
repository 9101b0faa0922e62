"""Lowering rules of elementwise primitives to ONNX nodes."""

from __future__ import annotations

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.onnx.lowering import LoweringError, OnnxLowering, OnnxTensor, register_rule


@register_rule("and", "or", "xor", "max", "min")
def _lower_logical_or_extremum(l: OnnxLowering, e: Equation) -> OnnxTensor:
    x, y = map(l.get_base, e.inputs)
    if x.dtype == np.bool_:
        return l.compute({"max": "or", "min": "and"}.get(e.name, e.name), x, y)
    if e.name in ("and", "or", "xor"):
        return l.emit_binary(f"Bitwise{l.operators[e.name]}", x, y)
    if e.name == "max" and x.dtype.kind == "f":
        for value, limit in ((x, e.inputs[1]), (y, e.inputs[0])):
            if limit.constant is not None and not limit.constant.any():
                return l.emit_unary("Relu", value)
    return l.compute(e.name, x, y)


@register_rule("ne")
def _lower_not_equal(l: OnnxLowering, e: Equation) -> OnnxTensor:
    return l.emit_unary("Not", l.compute("eq", *map(l.get_base, e.inputs)))


@register_rule("not")
def _lower_not(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value = l.get_base(e.inputs[0])
    return l.emit_unary("Not" if value.dtype == np.bool_ else "BitwiseNot", value)


@register_rule("rsqrt", "square", "erfc", "cbrt")
def _lower_composition(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value = l.get_base(e.inputs[0])
    one = l.make_scalar(value, 1)
    if e.name == "rsqrt":
        return l.emit_binary("Div", one, l.emit_unary("Sqrt", value))
    if e.name == "square":
        return l.emit_binary("Mul", value, value)
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


@register_rule("convert_element_type")
def _lower_convert(l: OnnxLowering, e: Equation) -> OnnxTensor:
    return l.cast(l.get_base(e.inputs[0]), e.outputs[0].dtype)


@register_rule("rem")
def _lower_rem(l: OnnxLowering, e: Equation) -> OnnxTensor:
    dividend, divisor = map(l.get_base, e.inputs)
    return l.emit("Mod", [dividend, divisor], e.outputs[0].base.shape, dividend.dtype, fmod=1)


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
