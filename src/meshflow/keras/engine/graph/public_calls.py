"""Translation of calls of internal ops to calls of the public functions that contain them.

`tf.cast` checks its arguments and calls an internal op, and the internal op is dispatched on
symbolic tensors. Model files store `cast` and its arguments, which every version of Keras 2 reads.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from meshflow.core.dispatch import op_names
from meshflow.keras.engine.graph import op_table

_OPS_PREFIX = "ops."


def to_public_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return a public function and arguments that compute the result of an op.

    Args:
      function: The op.
      args: Positional arguments of the op.
      kwargs: Keyword arguments of the op.

    Returns:
      (function, args, kwargs), unchanged if the op is public or no public function is equivalent.
    """
    name = op_names.get_name(function) or ""
    is_internal = name.startswith(_OPS_PREFIX) and not op_table.has_public_name(function)
    if not is_internal and name not in _TRANSLATORS:
        return function, args, kwargs
    bound = inspect.signature(function).bind(*args, **kwargs).arguments
    bound.pop("name", None)
    translate = _TRANSLATORS.get(name, functools.partial(_match_namesake, name))
    call = translate(**bound)
    if call is None:
        return function, args, kwargs
    symbol, arguments = call
    first, *rest = arguments
    return (
        op_table.find_function(symbol),
        (arguments[first],),
        {key: arguments[key] for key in rest},
    )


_Call = tuple[str, dict[str, Any]]


def _match_namesake(op: str, **arguments: Any) -> _Call | None:
    """Return a call of the public function with the op's name and parameters, or None."""
    symbol = _find_symbol(op.rpartition(".")[2].strip("_"), frozenset(arguments))
    return None if symbol is None else (symbol, arguments)


@functools.cache
def _find_symbol(plain: str, names: frozenset[str]) -> str | None:
    for symbol, function in op_table.find_ops_by_suffix(plain).items():
        parameters = inspect.signature(function).parameters.values()
        if names <= {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}:
            return symbol
    return None


# ---- ops that public functions call with other arguments -------------------------------------


def _rename_arguments(symbol: str, **names: str) -> Callable[..., _Call]:
    """Make a translator to a public function that has other names for the same arguments."""

    def translate(**arguments: Any) -> _Call:
        return symbol, {names.get(key, key): value for key, value in arguments.items()}

    return translate


def _choose_logical_or_bitwise(kind: str) -> Callable[..., _Call]:
    def translate(**arguments: Any) -> _Call:
        logical = arguments["x"].dtype.is_bool if hasattr(arguments["x"], "dtype") else None
        if logical is None:
            logical = arguments["y"].dtype.is_bool
        plain = {"not": "invert"}.get(kind, f"bitwise_{kind}")
        return f"math.logical_{kind}" if logical else f"bitwise.{plain}", arguments

    return translate


def _translate_like(input: Any, dtype: Any, value: int) -> _Call:
    symbol = "ones_like" if value else "zeros_like"
    return symbol, {"input": input} if dtype is None else {"input": input, "dtype": dtype}


def _translate_pad(tensor: Any, constant_values: Any, paddings: Any) -> _Call:
    return "pad", {"tensor": tensor, "paddings": paddings, "constant_values": constant_values}


def _translate_resize(images: Any, height: int, width: int, method: str, antialias: bool) -> _Call:
    settings = {"size": [height, width], "method": method, "antialias": antialias}
    return "image.resize", {"images": images, **settings}


def _translate_convolution(
    input: Any, filters: Any, strides: Any, padding: Any, dilations: Any, channels_first: bool, groups: int
) -> _Call | None:  # fmt: skip
    del groups  # The shape of the filters determines the number of groups.
    if not isinstance(padding, str):
        return None
    axes = ("W", "HW", "DHW")[len(strides) - 1]
    return "nn.convolution", {
        **{"input": input, "filters": filters, "strides": list(strides), "padding": padding},
        "data_format": f"NC{axes}" if channels_first else f"N{axes}C",
        "dilations": list(dilations),
    }


_TRANSLATORS: dict[str, Callable[..., _Call | None]] = {
    "ops.array.blocks._depth_to_space": _rename_arguments("nn.depth_to_space", block="block_size"),
    "ops.array.blocks._space_to_depth": _rename_arguments("nn.space_to_depth", block="block_size"),
    "ops.array.creation._like": _translate_like,
    "ops.array.gather_scatter._select": _rename_arguments("where"),
    "ops.array.gather_scatter.true_places": _rename_arguments("where"),
    "ops.array.inspection.shape_of_symbolic": _rename_arguments("shape"),
    "ops.array.inspection.size_of_symbolic": _rename_arguments("size"),
    "ops.array.joining._split": _rename_arguments("split", sizes="num_or_size_splits"),
    "ops.array.repeating._pad_constant": _translate_pad,
    "ops.array.repeating._pad_mirror": _rename_arguments("pad"),
    "ops.array.repeating._rolled": _rename_arguments("roll"),
    "ops.image.geometry._resize": _translate_resize,
    "ops.math.division._floormod": _rename_arguments("math.floormod"),
    "ops.nn.convolution.conv": _translate_convolution,
    "ops.nn.cross_entropy._sigmoid_cross_entropy": _rename_arguments(
        "nn.sigmoid_cross_entropy_with_logits"
    ),
    "ops.nn.cross_entropy._softmax_cross_entropy": _rename_arguments(
        "nn.softmax_cross_entropy_with_logits"
    ),
    "ops.nn.cross_entropy._sparse_softmax_cross_entropy": _rename_arguments(
        "nn.sparse_softmax_cross_entropy_with_logits"
    ),
    **{
        f"ops.math.comparison.logical_or_bitwise_{kind}": _choose_logical_or_bitwise(kind)
        for kind in ("and", "or", "xor", "not")
    },
}
