"""Ops between layers, as Keras 3 writes them: calls of objects of its classes, one for each function of `keras.ops`."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.dispatch import op_names
from meshflow.keras import ops
from meshflow.keras.engine.layer.helpers import snake_case
from meshflow.keras.ops import transforms
from meshflow.keras.settings import image_data_format

__all__ = ["function_of", "operation"]


class _Form(NamedTuple):
    """How Keras 3 has an op.

    Attributes:
      module: of its class, in `keras.src.ops`.
      name: its class.
      operands: names of what it is called with, in order; here these are TensorFlow's.
      settings: what it is made with, by TensorFlow's names.
    """

    module: str
    name: str
    operands: tuple[str, ...]
    settings: dict[str, str]


# TensorFlow's op, Keras 3's class, what it is called with, and what it is made with (renamed where they differ).
_SAME = """
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
# What TensorFlow means where a setting is not given, and Keras 3 does not.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "nn.gelu": {"approximate": False},
    "gather": {"axis": 0},
    "math.cumsum": {"axis": 0},
}
# Arguments that change nothing.
_USUAL = {("keeps_dtype", True), ("on_value", 1.0), ("off_value", 0.0)}
_OF_NN = ("hard_sigmoid", "hard_silu", "hard_tanh", "sparse_plus", "sparse_sigmoid", "tanh_shrink")
_MADE, _REDUCED = "keras.ops.making.", "keras.ops.reductions."


_OWN = "keras.ops."
# Classes of Keras 3 whose names are not those of their functions in other letters.
_CLASSES = {
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
# What a class is called with besides tensors of the graph.
_FED: dict[str, tuple[str, ...]] = {
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


# Keras 3's modules with the functions whose classes they hold; `core` has the others.
_MODULES = {
    "image": frozenset(ops.image.__all__),
    "linalg": frozenset(ops.linalg.__all__),
    "math": frozenset(transforms.__all__) | {"cdist", "view_as_complex", "view_as_real"},
    "numpy": frozenset(ops.numpy.__all__),
    "nn": frozenset(ops.nn.__all__),
}


@functools.cache
def _forms() -> dict[str, _Form]:
    found = {}
    for row in _SAME.replace("\n", " | ").split(" | "):
        if not row.strip():
            continue
        parts = re.fullmatch(r"\s*(\S+) (\w+)\.(\w+)\(([^;)]*)(?:; ([^)]*))?\)\s*", row)
        assert parts is not None, row
        symbol, module, name, operands, settings = parts.groups()
        pairs = [p.partition("=") for p in (settings or "").split(", ") if p]
        named = {old: new or old for old, _, new in pairs}
        found[symbol] = _Form(module, name, tuple(operands.split(", ")), named)
    return found


def _form(symbol: str) -> _Form | None:
    """The form of a function of TensorFlow, or of one of `keras.ops` alone."""
    plain = symbol.rpartition(".")[2]
    name = "".join(part.capitalize() for part in plain.split("_"))
    if symbol.startswith(_MADE):
        return _Form("nn" if plain in _OF_NN else "numpy", name, ("x1", "x2"), {})
    if symbol.startswith(_REDUCED):
        settings = {"axis": "axis"} if "cum" in plain else {"axis": "axis", "keepdims": "keepdims"}
        return _Form("numpy", name, ("x",), settings)
    return _forms().get(symbol)


def function_of(class_name: str) -> Any:
    """The function of `keras.ops` that a class of Keras 3 stands for, or None.

    Args:
      class_name: such as 'NotEqual'.
    """
    plain = {known: name for name, known in _CLASSES.items()}.get(class_name) or snake_case(
        class_name
    )
    if plain in ops.__all__:
        return getattr(ops, plain)
    return getattr(ops.image, plain) if plain in ops.image.__all__ else None


def operation(entry: dict[str, Any], calls: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The entry of an op in a graph; None for that of a layer.

    Args:
      entry: an entry of `layers` of a model's configuration.
      calls: its calls in Keras 3's form.

    Raises:
      ValueError: for an op that Keras 3 does not have with these arguments.
    """
    if entry["class_name"] not in ("TFOpLambda", "SlicingOpLambda"):
        return None
    name, symbol = entry["config"]["name"], entry["config"]["function"]
    if len(calls) != 1:
        raise ValueError(
            f"Op tf.{symbol} ({name!r}) is called {len(calls)} times; Keras 3's are called once."
        )
    args, kwargs = calls[0]["args"], calls[0]["kwargs"]
    if symbol == "ops.linalg.products._einsum":
        return _entry(name, "numpy", "Einsum", {"subscripts": kwargs["equation"]}, args[0])
    if symbol.startswith(_OWN) and not symbol.startswith((_MADE, _REDUCED)):
        return _own(name, symbol, args, kwargs)
    form = _form(symbol)
    if form is None or not args:
        raise ValueError(
            f"Op tf.{symbol} ({name!r}) between layers has no form in files of Keras 3: call a function of "
            "tf.keras.ops there, or put it into a layer of your own."
        )
    given = dict(zip(form.operands, args, strict=False)) | kwargs
    operands = [
        _key(given.pop(key)) if key == "slice_spec" else given.pop(key)
        for key in form.operands
        if key in given
    ]
    said = {new: given.pop(old) for old, new in form.settings.items() if old in given}
    settings = _DEFAULTS.get(symbol, {}) | {key: v for key, v in said.items() if v is not None}
    left = [key for key, value in given.items() if value and (key, _number(value)) not in _USUAL]
    if left or _has_tensors(settings) or isinstance(settings.get("indices_or_sections"), list):
        what = ", ".join(left) or "arguments that depend on inputs, or sizes of parts"
        raise ValueError(f"Op tf.{symbol} ({name!r}) with {what} has no form in files of Keras 3.")
    return _entry(name, form.module, form.name, settings, operands)


def _own(name: str, symbol: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The entry of a function of `keras.ops`, whose class takes the tensors, and is made with the rest."""
    *_, plain = symbol.split(".")
    function: Any = op_names.find(symbol)
    module = next((m for m, known in _MODULES.items() if plain in known), "core")
    class_name = _CLASSES.get(plain) or "".join(p.capitalize() for p in plain.split("_"))
    if plain == "einsum":
        return _entry(name, module, class_name, {"subscripts": args[0]}, args[1:])
    signature = inspect.signature(function)
    given = signature.bind(*args, **kwargs)
    given.apply_defaults()
    named = {k: v for k, v in given.arguments.items() if k in _named_parameters(signature)}
    fed = (next(iter(named)), *_FED.get(plain, ()))
    operands = {k: v for k, v in named.items() if k in fed or _has_tensors(v)}
    settings = {k: v for k, v in named.items() if k not in operands}
    if "data_format" in settings:
        settings["data_format"] = settings["data_format"] or image_data_format()
    if "pool_size" in settings:
        settings["strides"] = settings["strides"] or settings["pool_size"]
    # Names, as between two operands of a function its settings may stand.
    ahead = [k for k, known in zip(operands, named, strict=False) if k == known]
    by_name = {k: _constant(v) for k, v in operands.items() if k not in ahead}
    return _entry(
        name, module, class_name, settings, [_constant(operands[k]) for k in ahead], by_name
    )


def _constant(value: Any) -> Any:
    """An operand that is no tensor of the graph; Keras 3's classes ask arrays for their shapes."""
    if not isinstance(value, list) or _has_tensors(value):
        return value
    array = np.asarray(value)
    kind = "float32" if array.dtype.kind == "f" else "int32"
    return {"class_name": "__tensor__", "config": {"value": value, "dtype": kind}}


def _named_parameters(signature: inspect.Signature) -> set[str]:
    return {p.name for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD}


def _entry(
    name: str,
    module: str,
    class_name: str,
    settings: dict[str, Any],
    operands: list[Any],
    by_name: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "module": f"keras.src.ops.{module}",
        "class_name": class_name,
        "config": {"name": name.replace(".", "_"), **settings},
        "registered_name": class_name,
        "name": name,
        "inbound_nodes": [{"args": operands, "kwargs": by_name or {}}],
    }


def _has_tensors(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("class_name") == "__keras_tensor__" or any(
            map(_has_tensors, value.values())
        )
    return isinstance(value, list) and any(map(_has_tensors, value))


def _number(value: Any) -> Any:
    constant = isinstance(value, dict) and value.get("class_name") == "__tensor__"
    value = value["config"]["value"] if constant else value
    return value if isinstance(value, (bool, int, float)) else None


def _key(spec: list[Any]) -> list[Any]:
    """What stands in brackets, from lists and dictionaries."""
    items: list[Any] = []
    for item in spec:
        if isinstance(item, dict) and set(item) == {"start", "step", "stop"}:
            items.append({"class_name": "__slice__", "config": item})
        elif item == "...":
            items.append({"class_name": "__ellipsis__", "config": {}})
        else:
            items.append(item)
    return items
