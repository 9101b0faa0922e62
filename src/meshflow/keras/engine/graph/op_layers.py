"""Layers that represent ops on symbolic tensors.

Each API call creates one layer: `tf.nn.relu(x)` on a symbolic `x` creates a `TFOpLambda` that calls
`tf.nn.relu`; its configuration stores the public name of the function. Indexing creates a
`SlicingOpLambda`.
"""

from __future__ import annotations

import contextvars
import functools
import warnings
from collections.abc import Callable
from typing import Any

from meshflow.core.dispatch import symbolic_calls
from meshflow.core.runtime.tracebacks import hide_frames
from meshflow.core.values import nest
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.variables.indexing import getitem
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config, PyTree
from meshflow.keras import settings
from meshflow.keras.engine.graph import op_table
from meshflow.keras.engine.graph.public_calls import to_public_call
from meshflow.keras.engine.layer import shape_inference
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.call_errors import LayerCall, make_symbolic_error
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor, Node
from meshflow.keras.safe_mode import BoundName
from meshflow.ops.operators import OPERATOR_METHODS, install_operators

# Keras names the layers of these ops by another of their public names.
_KERAS_NAMES = {
    "linalg.einsum": "einsum",
    "math.mod": "math.floormod",
    "linalg.l2_normalize": "math.l2_normalize",
    "linalg.norm": "norm",
    "nn.avg_pool": "nn.avg_pool2d",
    "nn.log_sigmoid": "math.log_sigmoid",
    "nn.max_pool": "nn.max_pool2d",
    "nn.sigmoid": "math.sigmoid",
    "nn.softplus": "math.softplus",
    "nn.swish": "nn.silu",
    "nn.tanh": "math.tanh",
    "nn.top_k": "math.top_k",
    **{
        f"math.{name}": name
        for name in ("cast", "clip_by_global_norm", "clip_by_norm", "clip_by_value", "complex")
    },
    **{f"math.{name}": name for name in ("saturate_cast", "realdiv", "truncatediv", "truncatemod")},
}
# Keras creates layers of the version 1 functions for these ops; those accept additional arguments.
_V1_NAMES = {
    "math.floordiv": "floor_div",
    **{name: name for name in ("gather", "norm", "pad", "shape", "size", "squeeze", "transpose")},
}
# Keras files store `name: null` for calls of these ops, because TensorFlow generates their Python
# wrappers.
_OPS_WITH_NULL_NAME = {
    "": "band_part gather norm pad realdiv shape size squeeze tile truncatediv truncatemod",
    "bitwise": "bitwise_and bitwise_or bitwise_xor invert left_shift right_shift",
    "image": "hsv_to_rgb rgb_to_hsv",
    "linalg": "band_part cholesky det inv lu qr solve sqrtm tensor_diag",
    "math": """
        acosh asin asinh atan atan2 atanh cos cosh digamma erf erfc expm1 floormod greater greater_equal igamma
        igammac is_finite is_inf is_nan less less_equal lgamma log log1p logical_and logical_not logical_or maximum
        minimum negative nextafter polygamma reciprocal rint sin sinh square squared_difference tan tanh xlogy zeta""",
    "nn": "conv1d crelu elu l2_loss relu selu sigmoid_cross_entropy_with_logits softsign",
    "strings": "as_string lower strip upper",
}


@functools.cache
def _has_null_name(symbol: str) -> bool:
    space, _, plain = symbol.rpartition(".")
    return plain in _OPS_WITH_NULL_NAME.get(space, "").split()


def _get_symbol(function: Callable[..., Any]) -> str:
    """Return the name of an op in files: TensorFlow's name if TensorFlow has the op."""
    symbol = op_table.get_public_name(function)
    return _KERAS_NAMES.get(symbol, symbol)


def _make_layer_name(symbol: str) -> str:
    """Return the name that Keras uses for the layer of an op, for example 'tf.math.reduce_mean'."""
    if symbol.startswith("ops."):  # The symbol names an internal op of a public function.
        public = next(
            iter(op_table.find_ops_by_suffix(symbol.rpartition(".")[2].strip("_"))), symbol
        )
        symbol = _KERAS_NAMES.get(public, public)
    if symbol in _V1_NAMES:
        return f"tf.compat.v1.{_V1_NAMES[symbol]}"
    return f"tf.{symbol}"


class TFOpLambda(Layer):
    """Layer that calls one op, created when the op is called on a symbolic tensor.

    Args:
      function: The op or its public name.
      **kwargs: `name` and other arguments of `Layer`.
    """

    def __init__(self, function: Callable[..., Any] | str, **kwargs: Any) -> None:
        if isinstance(function, str):
            self._function = (
                function.value
                if isinstance(function, BoundName)
                else op_table.find_function(function)
            )
            self._symbol = function.removeprefix("tf.")
        else:
            self._function, self._symbol = function, _get_symbol(function)
        # A one-element tuple holds the `name` argument of the call: files store it, the op does not
        # use it.
        self._call_name: tuple[Any, ...] = ()
        if "name" not in kwargs:
            kwargs["name"] = settings.make_unreserved_name(_make_layer_name(self._symbol))
        kwargs["autocast"] = False
        super().__init__(**kwargs)
        self.built = True

    def call_function(self, *args: Any, **kwargs: Any) -> Any:
        """Call the op."""
        return self._function(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the op, or add the call to the graph if an argument is symbolic."""
        if not symbolic_calls.has_symbolic(args, kwargs, KerasTensor):
            return self.call_function(*args, **kwargs)
        if "name" in kwargs:
            self._call_name = (kwargs.pop("name"),)
        try:
            outputs = shape_inference.infer_op_outputs(self.call_function, args, kwargs)
        except Exception as error:
            described = make_symbolic_error(error, LayerCall(self, self._function, args, kwargs))
            if described is error:
                raise
            raise described from None
        Node(self, args, kwargs, outputs)
        self._build_input_shape = _get_build_shapes(args[0]) if args else None
        return outputs

    def get_config(self) -> Config:
        """Return the configuration, which contains the name of the layer and of the op."""
        return {
            "name": self.name,
            "trainable": self.trainable,
            "dtype": self.dtype,
            "function": BoundName(self._symbol, self._function),
        }

    @classmethod
    def from_config(cls, config: Config) -> TFOpLambda:
        """Create the layer from its configuration."""
        config = dict(config)
        return cls(config.pop("function"), **config)


class SlicingOpLambda(TFOpLambda):
    """Layer that indexes its input, `x[...]`.

    Args:
      function: Ignored; accepted because the configurations of all op layers contain it.
      **kwargs: `name` and other arguments of `Layer`.
    """

    def __init__(self, function: object = None, **kwargs: Any) -> None:
        if "name" not in kwargs:
            kwargs["name"] = settings.make_unreserved_name("tf.__operators__.getitem")
        super().__init__(_apply_index, **kwargs)
        self._symbol = "__operators__.getitem"

    @classmethod
    def from_config(cls, config: Config) -> SlicingOpLambda:
        """Create the layer from its configuration."""
        return cls(**{k: v for k, v in config.items() if k != "function"})


def _get_build_shapes(first: PyTree) -> PyTree:
    """Return the shapes of the first argument of a call, which Keras stores in configurations."""
    if any(isinstance(v, (str, bool)) or v is None for v in nest.flatten(first)):
        return None
    shape = lambda v: TensorShape(v.shape if hasattr(v, "shape") else [])
    return nest.map_structure(shape, first)


def _apply_index(x: Any, slice_spec: Any) -> Any:
    key = decode_index(slice_spec)
    return x[key] if isinstance(x, CompositeTensor) else getitem(x, key)  # type: ignore[index]


def encode_index(key: Any, rank: int | None) -> Any:
    """Encode an index as plain lists and dictionaries, which a configuration can hold.

    Args:
      key: The index: an integer, a slice, a tensor, or a tuple of these.
      rank: Rank of the indexed tensor; if it is known, `...` is expanded to slices.
    """
    items = list(key) if isinstance(key, tuple) else [key]
    ellipsis_index = next((i for i, item in enumerate(items) if item is Ellipsis), None)
    if ellipsis_index is not None and rank is not None:
        num_axes = sum(item is not None for item in items) - 1
        items[ellipsis_index : ellipsis_index + 1] = [slice(None)] * max(rank - num_axes, 0)
    encoded: list[Any] = []
    for item in items:
        if isinstance(item, slice):
            encoded.append({"start": item.start, "stop": item.stop, "step": item.step})
        elif item is Ellipsis:
            encoded.append("...")
        else:
            encoded.append(item)
    # Keras writes a single index without a list, unless it is a list of indices itself.
    return encoded[0] if isinstance(key, (int, slice)) else encoded


def decode_index(encoded: Any) -> tuple[Any, ...]:
    """Decode an index that `encode_index` or Keras encoded."""
    return tuple(map(_decode_item, encoded if isinstance(encoded, (list, tuple)) else [encoded]))


def _decode_item(item: Any) -> Any:
    if isinstance(item, dict):
        return slice(item["start"], item["stop"], item["step"])
    return Ellipsis if isinstance(item, str) and item == "..." else item


def call_op(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    """Add an op call on symbolic tensors to the graph; the dispatcher calls this function."""
    captured = [v for v in nest.flatten((args, kwargs)) if isinstance(v, Variable)]
    if captured:
        warnings.warn(
            f"The following Variables were used in a Lambda layer's call (tf.{op_table.get_public_name(function)}), but are not "
            f"present in its tracked objects: {[v.name for v in captured]}. This is a strong indication that the "
            "Lambda layer should be rewritten as a subclassed Layer.",
            stacklevel=3,
        )
    call_name = {"name": kwargs.pop("name")} if "name" in kwargs else {}
    function, args, kwargs = to_public_call(function, args, kwargs)
    operator = op_table.get_operator_name(_get_symbol(function)) if _in_operator.get() else None
    if _in_operator.get() and operator not in _OPERATORS_WITHOUT_NAME:
        call_name = {"name": None}
    if operator is None and _has_null_name(_get_symbol(function)):
        call_name = {"name": None, **call_name}
    return TFOpLambda(operator or function)(*args, **kwargs, **call_name)


# Python operators set this flag while they call an op, because Keras creates other layers for some
# of them.
_in_operator: contextvars.ContextVar[bool] = contextvars.ContextVar("in_operator", default=False)
_OPERATORS_WITHOUT_NAME = ("__operators__.eq", "__operators__.ne")


def _mark_as_operator(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def operator(*operands: Any) -> Any:
        token = _in_operator.set(True)
        try:
            return method(*operands)
        except Exception as error:
            hide_frames(error)
            raise
        finally:
            _in_operator.reset(token)

    return operator


def _getitem(self: KerasTensor, key: Any) -> PyTree:
    return SlicingOpLambda()(self, slice_spec=encode_index(key, self.shape.rank))


KerasTensor.__getitem__ = _getitem  # type: ignore[method-assign, assignment]
_unhashable = KerasTensor.__hash__
install_operators(KerasTensor)
for _name in OPERATOR_METHODS:
    setattr(KerasTensor, _name, _mark_as_operator(getattr(KerasTensor, _name)))
KerasTensor.__hash__ = _unhashable  # type: ignore[method-assign]
symbolic_calls.register_symbolic_type(KerasTensor, call_op)
