"""Ops between layers in the form of Keras 3.

Keras 3 has a class for each `keras.ops` function, and writes an op as a call of an object of that
class.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.dispatch import op_names
from meshflow.environment.types import Config, Json
from meshflow.keras import ops
from meshflow.keras.engine.layer.helpers import to_snake_case
from meshflow.keras.ops import transforms
from meshflow.keras.settings import image_data_format

__all__ = ["find_function", "make_operation_entry"]


class _OperationForm(NamedTuple):
    """The form of an op in Keras 3.

    Attributes:
      module: Module of its class in `keras.src.ops`.
      name: Name of its class.
      operands: TensorFlow's names of the arguments of the call, in order.
      settings: Arguments of the constructor, as a mapping from TensorFlow's names to those of Keras
        3.
    """

    module: str
    name: str
    operands: tuple[str, ...]
    settings: dict[str, str]


# Each entry holds TensorFlow's op, Keras 3's class, the operands and, after a semicolon, the
# settings. A setting that Keras 3 names differently is written as old=new.
_OPERATION_TABLE = """
__operators__.add numpy.Add(x, y) | math.add numpy.Add(x, y) | math.subtract numpy.Subtract(x, y)
math.multiply numpy.Multiply(x, y) | math.truediv numpy.TrueDivide(x, y) | math.divide numpy.TrueDivide(x, y)
math.floordiv numpy.FloorDivide(x, y) | math.floormod numpy.Mod(x, y) | math.pow numpy.Power(x, y)
math.maximum numpy.Maximum(x, y) | math.minimum numpy.Minimum(x, y) | __operators__.eq numpy.Equal(x, y)
math.equal numpy.Equal(x, y) | math.not_equal numpy.NotEqual(x, y) | __operators__.ne numpy.NotEqual(x, y)
math.less numpy.Less(x, y) | math.less_equal numpy.LessEqual(x, y) | math.greater numpy.Greater(x, y)
math.greater_equal numpy.GreaterEqual(x, y) | math.logical_and numpy.LogicalAnd(x, y)
math.logical_or numpy.LogicalOr(x, y) | math.logical_not numpy.LogicalNot(x) | math.abs numpy.Abs(x)
math.negative numpy.Negative(x) | math.exp numpy.Exp(x) | math.expm1 numpy.Expm1(x) | math.log numpy.Log(x)
math.log1p numpy.Log1p(x) | math.sqrt numpy.Sqrt(x) | math.rsqrt math.Rsqrt(x) | math.square numpy.Square(x)
math.reciprocal numpy.Reciprocal(x) | math.sign numpy.Sign(x) | math.floor numpy.Floor(x) | math.ceil numpy.Ceil(x)
math.sin numpy.Sin(x) | math.cos numpy.Cos(x) | math.tan numpy.Tan(x) | math.sinh numpy.Sinh(x)
math.cosh numpy.Cosh(x) | math.tanh numpy.Tanh(x) | math.erf math.Erf(x) | math.sigmoid nn.Sigmoid(x)
math.softplus nn.Softplus(features) | math.log_sigmoid nn.LogSigmoid(x) | nn.relu nn.Relu(features)
nn.relu6 nn.Relu6(features) | nn.elu nn.Elu(features) | nn.selu nn.Selu(features) | nn.silu nn.Silu(features)
nn.softsign nn.Softsign(features) | nn.gelu nn.Gelu(features; approximate) | nn.softmax nn.Softmax(logits; axis)
nn.log_softmax nn.LogSoftmax(logits; axis) | nn.leaky_relu nn.LeakyRelu(features; alpha=negative_slope)
math.reduce_mean numpy.Mean(input_tensor; axis, keepdims) | math.reduce_sum numpy.Sum(input_tensor; axis, keepdims)
math.reduce_max numpy.Max(input_tensor; axis, keepdims) | math.reduce_min numpy.Min(input_tensor; axis, keepdims)
math.reduce_prod numpy.Prod(input_tensor; axis, keepdims) | math.reduce_std numpy.Std(input_tensor; axis, keepdims)
math.reduce_variance numpy.Var(input_tensor; axis, keepdims) | math.reduce_any numpy.Any(input_tensor; axis, keepdims)
math.reduce_all numpy.All(input_tensor; axis, keepdims) | math.cumsum numpy.Cumsum(x; axis)
math.reduce_logsumexp math.Logsumexp(input_tensor; axis, keepdims) | linalg.matmul numpy.Matmul(a, b)
cast core.Cast(x; dtype) | concat numpy.Concatenate(values; axis) | stack numpy.Stack(values; axis)
reshape numpy.Reshape(tensor; shape=newshape) | transpose numpy.Transpose(a; perm=axes)
expand_dims numpy.ExpandDims(input; axis) | squeeze numpy.Squeeze(input; axis) | identity numpy.Copy(input)
tile numpy.Tile(input; multiples=repeats) | repeat numpy.Repeat(input; repeats, axis) | one_hot nn.OneHot(indices; depth=num_classes, axis)
gather numpy.Take(params, indices; axis) | where numpy.Where(condition, x, y) | zeros_like numpy.ZerosLike(input)
ones_like numpy.OnesLike(input) | clip_by_value numpy.Clip(t; clip_value_min=x_min, clip_value_max=x_max)
stop_gradient core.StopGradient(input) | split numpy.Split(value; num_or_size_splits=indices_or_sections, axis)
__operators__.getitem numpy.GetItem(x, slice_spec)
"""
# TensorFlow's default values of settings for which Keras 3 has other defaults.
_TENSORFLOW_DEFAULTS: dict[str, dict[str, Any]] = {
    "nn.gelu": {"approximate": False},
    "gather": {"axis": 0},
    "math.cumsum": {"axis": 0},
}
# Arguments that have no effect, with these values.
_NEUTRAL_ARGUMENTS = {("keeps_dtype", True), ("on_value", 1.0), ("off_value", 0.0)}
_NN_FUNCTIONS = (
    "hard_sigmoid",
    "hard_silu",
    "hard_tanh",
    "sparse_plus",
    "sparse_sigmoid",
    "tanh_shrink",
)
_MAKING_PREFIX, _REDUCTIONS_PREFIX = "keras.ops.making.", "keras.ops.reductions."


_KERAS_OPS_PREFIX = "keras.ops."
# Classes of Keras 3 that are not named after their functions in camel case.
_CLASS_NAMES = {
    "batch_normalization": "BatchNorm",
    "allclose": "AllClose",
    "cdist": "CDist",
    "ctc_decode": "CTCDecode",
    "ctc_loss": "CTCLoss",
    "psnr": "PSNR",
    "rms_normalization": "RMSNorm",
    "isin": "IsIn",
    "layer_normalization": "LayerNorm",
    "searchsorted": "SearchSorted",
    **{
        name: name.upper()
        for name in ("fft", "fft2", "ifft2", "rfft", "irfft", "stft", "istft", "svd")
    },
    **{
        f"{a}_to_{b}": f"{a.upper()}To{c}"
        for a, b, c in (
            ("rgb", "hsv", "HSV"),
            ("hsv", "rgb", "RGB"),
            ("rgb", "grayscale", "Grayscale"),
        )
    },
}
# Arguments that a class takes in its call and not in its constructor, in addition to tensors of the
# graph.
_CALL_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "affine_transform": ("images", "transform"),
    "average": ("weights",),
    "batch_normalization": ("mean", "variance", "offset", "scale"),
    "digitize": ("bins",),
    "dot_product_attention": ("bias", "mask", "scale"),
    "in_top_k": ("targets", "predictions"),
    "isclose": ("x1", "x2", "rtol", "atol"),
    "layer_normalization": ("gamma", "beta"),
    "map_coordinates": ("inputs", "coordinates"),
    "nanquantile": ("q",),
    "pad": ("constant_values",),
    "quantile": ("q",),
    "scatter": ("indices", "values"),
    "scatter_update": ("inputs", "indices", "updates"),
    "searchsorted": ("sorted_sequence", "values"),
    "slice_update": ("inputs", "start_indices", "updates"),
    "take_along_axis": ("indices",),
    **dict.fromkeys(("conv", "depthwise_conv", "conv_transpose"), ("inputs", "kernel")),
    "separable_conv": ("inputs", "depthwise_kernel", "pointwise_kernel"),
    **dict.fromkeys(("correlate", "cross", "isin", "ldexp", "tensordot"), ("x1", "x2")),
    **dict.fromkeys(("cdist",), ("x", "y")),
    "lstsq": ("a", "b"),
}


# Modules of Keras 3 with the functions that their classes implement. Other classes are in `core`.
_MODULES = {
    "image": frozenset(ops.image.__all__),
    "linalg": frozenset(ops.linalg.__all__),
    "math": frozenset(transforms.__all__) | {"cdist", "view_as_complex", "view_as_real"},
    "numpy": frozenset(ops.numpy.__all__),
    "nn": frozenset(ops.nn.__all__),
}


@functools.cache
def _parse_operation_table() -> dict[str, _OperationForm]:
    forms = {}
    for row in _OPERATION_TABLE.replace("\n", " | ").split(" | "):
        if not row.strip():
            continue
        parts = re.fullmatch(r"\s*(\S+) (\w+)\.(\w+)\(([^;)]*)(?:; ([^)]*))?\)\s*", row)
        assert parts is not None, row
        symbol, module, name, operands, settings = parts.groups()
        pairs = [p.partition("=") for p in (settings or "").split(", ") if p]
        renamed = {old: new or old for old, _, new in pairs}
        forms[symbol] = _OperationForm(module, name, tuple(operands.split(", ")), renamed)
    return forms


def _find_form(symbol: str) -> _OperationForm | None:
    """Return Keras 3's form of an op of TensorFlow or of `keras.ops`, or None."""
    function_name = symbol.rpartition(".")[2]
    name = "".join(part.capitalize() for part in function_name.split("_"))
    if symbol.startswith(_MAKING_PREFIX):
        return _OperationForm(
            "nn" if function_name in _NN_FUNCTIONS else "numpy", name, ("x1", "x2"), {}
        )
    if symbol.startswith(_REDUCTIONS_PREFIX):
        settings = (
            {"axis": "axis"} if "cum" in function_name else {"axis": "axis", "keepdims": "keepdims"}
        )
        return _OperationForm("numpy", name, ("x",), settings)
    return _parse_operation_table().get(symbol)


def find_function(class_name: str) -> Callable[..., Any] | None:
    """Find the `keras.ops` function that a class of Keras 3 represents.

    Args:
      class_name: Name of the class, such as 'NotEqual'.

    Returns:
      The function, or None if there is no such class.
    """
    names = {known: name for name, known in _CLASS_NAMES.items()}
    name = names.get(class_name) or to_snake_case(class_name)
    module = ops if name in ops.__all__ else ops.image if name in ops.image.__all__ else None
    return getattr(module, name) if module is not None else None


def make_operation_entry(entry: Config, calls: list[dict[str, Any]]) -> Config | None:
    """Convert the entry of an op in a graph's configuration.

    Args:
      entry: An entry of `layers` of a model's configuration.
      calls: The entry's calls, in Keras 3's form.

    Returns:
      The entry in Keras 3's form, or None if it is the entry of a layer.

    Raises:
      ValueError: if Keras 3 does not have the op with these arguments.
    """
    if entry["class_name"] not in ("TFOpLambda", "SlicingOpLambda"):
        return None
    name, symbol = entry["config"]["name"], entry["config"]["function"]
    if len(calls) != 1:
        raise ValueError(
            f"Op tf.{symbol} ({name!r}) is called {len(calls)} times, but an op of Keras 3 is called once."
        )
    args, kwargs = calls[0]["args"], calls[0]["kwargs"]
    if symbol == "ops.linalg.products._einsum":
        return _make_entry(name, "numpy", "Einsum", {"subscripts": kwargs["equation"]}, args[0])
    if symbol.startswith(_KERAS_OPS_PREFIX) and not symbol.startswith(
        (_MAKING_PREFIX, _REDUCTIONS_PREFIX)
    ):
        return _make_keras_op_entry(name, symbol, args, kwargs)
    form = _find_form(symbol)
    if form is None or not args:
        raise ValueError(
            f"Op tf.{symbol} ({name!r}) between layers cannot be written to a file of Keras 3: call a function of "
            "tf.keras.ops instead, or move the op into a custom layer."
        )
    arguments = dict(zip(form.operands, args, strict=False)) | kwargs
    operands = [
        _convert_slice(arguments.pop(key)) if key == "slice_spec" else arguments.pop(key)
        for key in form.operands
        if key in arguments
    ]
    explicit = {new: arguments.pop(old) for old, new in form.settings.items() if old in arguments}
    settings = _TENSORFLOW_DEFAULTS.get(symbol, {}) | {
        k: v for k, v in explicit.items() if v is not None
    }
    unsupported = [
        k
        for k, value in arguments.items()
        if value and (k, _get_constant_number(value)) not in _NEUTRAL_ARGUMENTS
    ]
    if (
        unsupported
        or _has_tensors(settings)
        or isinstance(settings.get("indices_or_sections"), list)
    ):
        reason = ", ".join(unsupported) or "arguments that depend on inputs, or a list of sizes"
        raise ValueError(
            f"Op tf.{symbol} ({name!r}) with {reason} cannot be written to a file of Keras 3: call a function of "
            "tf.keras.ops instead, or move the op into a custom layer."
        )
    return _make_entry(name, form.module, form.name, settings, operands)


def _make_keras_op_entry(
    name: str, symbol: str, args: list[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Create the entry of a `keras.ops` function.

    The call of the function's class takes the tensors, and its constructor the other arguments.
    """
    *_, function_name = symbol.split(".")
    function: Any = op_names.find_function(symbol)
    module = next((m for m, known in _MODULES.items() if function_name in known), "core")
    class_name = _CLASS_NAMES.get(function_name) or "".join(
        p.capitalize() for p in function_name.split("_")
    )
    if function_name == "einsum":
        return _make_entry(name, module, class_name, {"subscripts": args[0]}, args[1:])
    signature = inspect.signature(function)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    named = {k: v for k, v in bound.arguments.items() if k in _list_named_parameters(signature)}
    call_arguments = (next(iter(named)), *_CALL_ARGUMENTS.get(function_name, ()))
    operands = {k: v for k, v in named.items() if k in call_arguments or _has_tensors(v)}
    settings = {k: v for k, v in named.items() if k not in operands}
    if "data_format" in settings:
        settings["data_format"] = settings["data_format"] or image_data_format()
    if "pool_size" in settings:
        settings["strides"] = settings["strides"] or settings["pool_size"]
    # Operands after a setting in the signature must be passed by name.
    positional = [k for k, known in zip(operands, named, strict=False) if k == known]
    by_name = {k: _convert_constant(v) for k, v in operands.items() if k not in positional}
    return _make_entry(
        name,
        module,
        class_name,
        settings,
        [_convert_constant(operands[k]) for k in positional],
        by_name,
    )


def _convert_constant(value: Json) -> Json:
    """Convert an operand that is not a tensor of the graph; Keras 3's classes read the shape of arrays."""
    if not isinstance(value, list) or _has_tensors(value):
        return value
    array = np.asarray(value)
    dtype = "float32" if array.dtype.kind == "f" else "int32"
    return {"class_name": "__tensor__", "config": {"value": value, "dtype": dtype}}


def _list_named_parameters(signature: inspect.Signature) -> set[str]:
    return {p.name for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD}


def _make_entry(
    name: str,
    module: str,
    class_name: str,
    settings: dict[str, Any],
    operands: list[Any],
    by_name: dict[str, Any] | None = None,
) -> Config:
    return {
        "module": f"keras.src.ops.{module}",
        "class_name": class_name,
        "config": {"name": name.replace(".", "_"), **settings},
        "registered_name": class_name,
        "name": name,
        "inbound_nodes": [{"args": operands, "kwargs": by_name or {}}],
    }


def _has_tensors(value: Json) -> bool:
    if isinstance(value, dict):
        return value.get("class_name") == "__keras_tensor__" or any(
            map(_has_tensors, value.values())
        )
    return isinstance(value, list) and any(map(_has_tensors, value))


def _get_constant_number(value: Json) -> float | None:
    """Return a number, or the number in a constant tensor; None for other values."""
    constant = isinstance(value, dict) and value.get("class_name") == "__tensor__"
    value = value["config"]["value"] if constant else value
    return value if isinstance(value, (bool, int, float)) else None


def _convert_slice(spec: list[Any]) -> list[Any]:
    """Convert the arguments of an indexing operation from Meshflow's form."""
    items: list[Any] = []
    for item in spec:
        if isinstance(item, dict) and set(item) == {"start", "step", "stop"}:
            items.append({"class_name": "__slice__", "config": item})
        elif item == "...":
            items.append({"class_name": "__ellipsis__", "config": {}})
        else:
            items.append(item)
    return items
