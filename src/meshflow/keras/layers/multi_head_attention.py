"""Attention with several heads.

Letters in the equations: b batch, t query positions, s key positions, d features of a query, n
heads, h features of a head, o features of the output; capital letters denote further axes of inputs
and outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from string import ascii_uppercase
from typing import Any, NamedTuple, Unpack, cast

from meshflow.core.runtime.context import suspend_autocast
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config, PyTree
from meshflow.keras import initializers
from meshflow.keras.engine.layer.base_layer import Layer, build_sublayer
from meshflow.keras.engine.layer.float8_products import compute_product
from meshflow.keras.engine.layer.helpers import Identifier
from meshflow.keras.engine.layer.sharded_layer_products import (
    make_sharded_product,
    project_sharded,
    read_for_positions,
)
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.layers.activation import Softmax
from meshflow.keras.layers.blockwise_attention import (
    compute_blockwise_attention,
)
from meshflow.keras.layers.keyword_arguments import (
    CONVOLUTION_ORDER,
    ProjectionArguments,
    accept_positional,
)
from meshflow.keras.layers.regularization import Dropout
from meshflow.keras.layers.weight_options import (
    add_weight,
    make_weight_config,
    set_weight_options,
)
from meshflow.ops import array, math
from meshflow.ops.linalg import einsum

__all__ = ["MultiHeadAttention"]

_WEIGHT_SETTINGS = ("initializer", "regularizer", "constraint")
# Keys of a configuration from which Keras builds the layer.
_BUILD_SHAPES = ("query_shape", "key_shape", "value_shape")
# Methods between the projections, which subclasses override.
_STEPS = ("_build_attention", "_compute_attention", "_compute_attention_mask", "_masked_softmax")


class _Projection(Layer):
    """Linear map that is defined by an einsum equation, with a bias."""

    _weights_with_layouts: tuple[str, ...] = ("kernel", "bias")
    bias: Variable | None = None

    def __init__(
        self,
        equation: str,
        kernel_shape: tuple[int, ...],
        bias_shape: tuple[int, ...] | None,
        settings: Config,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._equation, self._kernel_shape, self._bias_shape = equation, kernel_shape, bias_shape
        self._settings = settings

    def build(self, input_shape: PyTree) -> None:
        """Create kernel and bias."""
        set_weight_options(self, self._settings, "kernel", "bias")
        self.kernel = add_weight(self, "kernel", self._kernel_shape)
        if self._bias_shape is not None:
            self.bias = add_weight(self, "bias", self._bias_shape)
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        """Compute the output."""
        compute = make_sharded_product(self, inputs, self._equation) or (
            lambda x, w: einsum(self._equation, x, w)
        )
        return self.add_bias(compute_product(self, compute, inputs, self.kernel))

    def add_bias(self, outputs: Tensor) -> Tensor:
        """Add the bias, if there is one."""
        if self.bias is None:
            return outputs
        bias = read_for_positions(self.bias, outputs)
        return outputs + (self.bias if bias is None else bias)


class _Equations(NamedTuple):
    """Einsum equations of attention over some axes of the inputs."""

    query: str
    key: str
    scores: str
    values: str
    output: str

    @classmethod
    def from_axes(cls, rank: int, axes: tuple[int, ...], num_output_axes: int) -> _Equations:
        """Return the equations for inputs of `rank`, with attention over `axes`."""
        letters = iter(ascii_uppercase)
        batch_letters = ["b", *(next(letters) for _ in range(rank - 2))]
        queries, keys = list(batch_letters), list(batch_letters)
        for axis in axes:
            is_first = axis == axes[0]
            queries[axis], keys[axis] = ("t", "s") if is_first else (next(letters), next(letters))
        shared = "".join(p for i, p in enumerate(batch_letters) if i not in axes)
        pairs = shared + "n" + "".join(queries[i] for i in axes) + "".join(keys[i] for i in axes)
        t, s = "".join(queries), "".join(keys)
        size = "o" + "".join(next(letters) for _ in range(num_output_axes - 1))
        return cls(
            f"{t}d,dnh->{t}nh",
            f"{s}d,dnh->{s}nh",
            f"{s}nh,{t}nh->{pairs}",
            f"{pairs},{s}nh->{t}nh",
            f"{t}nh,nh{size}->{t}{size}",
        )


class MultiHeadAttention(Layer):
    """Multi-head attention (Vaswani et al. 2017, arXiv:1706.03762).

    Args:
      num_heads: Number of heads.
      key_dim: Size of the queries and keys of each head.
      value_dim: Size of the values of each head; default `key_dim`.
      dropout: Dropout rate of the attention weights.
      use_bias: Whether the projections have biases.
      output_shape: Size or sizes of the output features; default that of the query.
      attention_axes: Axis or axes over which attention runs; default all between batch and
        features.
      kernel_initializer: Initializer of the kernels.
      bias_initializer: Initializer of the biases.
      **kwargs: Regularizers and constraints of kernels and biases; arguments of `Layer`.

    Input shape:
      Queries (batch, queries, features), values and keys (batch, keys, features). Further axes
      between batch and features, over which attention does not run, have the same sizes for all.

    Output shape:
      (batch, queries, *output_shape), by default with the features of the queries; with
      `return_attention_scores` also (batch, heads, queries, keys).

    Raises:
      ValueError: In a call, if `attention_axes` are not between batch and features.

    Example:
      >>> layer = tf.keras.layers.MultiHeadAttention(num_heads=2, key_dim=4)
      >>> layer(tf.ones([1, 3, 8]), tf.ones([1, 5, 8])).shape
      TensorShape([1, 3, 8])
    """

    _weights_with_layouts: tuple[str, ...] = ("kernel", "bias")

    @accept_positional(CONVOLUTION_ORDER[2:])
    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        attention_axes: int | Sequence[int] | None = None,
        kernel_initializer: Identifier = "glorot_uniform",
        bias_initializer: Identifier = "zeros",
        **kwargs: Unpack[ProjectionArguments],
    ) -> None:
        options = cast(Config, kwargs)
        weight_options = {
            f"{n}_{k}": options.pop(f"{n}_{k}", None)
            for n in ("kernel", "bias")
            for k in ("regularizer", "constraint")
        }
        super().__init__(**options)
        self.supports_masking = True
        self._num_heads, self._key_dim, self._value_dim = num_heads, key_dim, value_dim or key_dim
        self._dropout, self._use_bias, self._output_shape = dropout, use_bias, output_shape
        is_single_axis = attention_axes is not None and not isinstance(
            attention_axes, (list, tuple)
        )
        self._attention_axes: Any = (attention_axes,) if is_single_axis else attention_axes
        set_weight_options(self, locals() | weight_options, "kernel", "bias", prefix="_")
        self._built_from_signature = False
        self._query_shape: TensorShape | None = None
        self._key_shape: TensorShape | None = None
        self._value_shape: TensorShape | None = None

    @classmethod
    def from_config(cls, config: Config) -> Any:
        """Create the layer from its configuration; build shapes that it may contain are ignored."""
        ignored = (*_BUILD_SHAPES, "softmax_robust_masking")
        return super().from_config({k: v for k, v in config.items() if k not in ignored})

    def _get_common_kwargs_for_sublayer(self) -> Config:
        """Return initializers, regularizers and constraints for a sublayer of its own."""
        names = [f"{n}_{k}" for n in ("kernel", "bias") for k in _WEIGHT_SETTINGS]
        settings = {n: initializers.copy_unseeded(getattr(self, f"_{n}")) for n in names}
        settings["activity_regularizer"] = self.activity_regularizer
        return {**settings, "dtype": self.dtype_policy}

    def _make_projection(
        self,
        name: str | None,
        equation: str,
        kernel: tuple[int, ...],
        bias: tuple[int, ...],
        settings: Config | None = None,
    ) -> _Projection:
        return _Projection(
            equation,
            kernel,
            bias if self._use_bias else None,
            self._get_common_kwargs_for_sublayer() if settings is None else settings,
            name=name,
            dtype=self.dtype_policy,
            **self.__dict__.get("_layouts", {}),
        )

    def _make_output_dense(
        self, free_dims: int, common_kwargs: Config, name: str | None = None
    ) -> _Projection:
        """Return a layer that projects the heads to the output.

        Args:
          free_dims: Number of dimensions of the queries without their features.
          common_kwargs: Initializers, regularizers and constraints of the layer.
          name: Name of the layer.
        """
        query = cast(TensorShape, self._query_shape)
        requested = query[-1] if self._output_shape is None else self._output_shape
        size = tuple(requested) if isinstance(requested, (list, tuple)) else (requested,)
        equation = _Equations.from_axes(free_dims + 1, self._attention_axes, len(size)).output
        heads = self._num_heads, self._value_dim
        layer = self._make_projection(name, equation, (*heads, *size), size, common_kwargs)
        build_sublayer(layer, _ShapeOnly(TensorShape([*query[:-1], *heads])))
        return layer

    def _build_from_signature(self, query: PyTree, value: PyTree, key: PyTree = None) -> None:
        """Build the layer for inputs, or for their shapes."""
        self._built_from_signature = True
        self._query_shape, self._value_shape, self._key_shape = shapes = [
            TensorShape(getattr(x, "shape", x))
            for x in (query, value, value if key is None else key)
        ]
        with suspend_autocast(), init_scope():
            self._build_from_shapes(*shapes)

    def _build_from_shapes(self, query: TensorShape, value: TensorShape, key: TensorShape) -> None:
        n, h, v = self._num_heads, self._key_dim, self._value_dim
        self._build_attention(len(query) + 1)

        def project(name: str, shape: TensorShape, size: int) -> _Projection:
            # Keys and values have another rank if a subclass computes the scores.
            rank = len(shape)
            axes = self._attention_axes if rank == len(query) else tuple(range(1, rank - 1))
            equations = _Equations.from_axes(rank, axes, 1)
            equation = equations.query if name == "query" else equations.key
            return self._make_projection(name, equation, (shape[-1], n, size), (n, size))

        self._query_dense = project("query", query, h)
        self._key_dense = project("key", key, h)
        self._value_dense = project("value", value, v)
        for layer, shape in (
            (self._query_dense, query),
            (self._key_dense, key),
            (self._value_dense, value),
        ):
            build_sublayer(layer, _ShapeOnly(shape))
        self._output_dense = self._make_output_dense(
            len(query) - 1, self._get_common_kwargs_for_sublayer(), "attention_output"
        )
        self._build_input_shape = query

    def _build_attention(self, rank: int) -> None:
        """Create the equations, the softmax and the dropout, which a subclass may replace.

        Args:
          rank: Number of dimensions of the queries of all heads.
        """
        self._attention_axes = axes = self._resolve_axes(rank - 1)
        equations = _Equations.from_axes(rank - 1, axes, 1)
        self._dot_product_equation = equations.scores
        self._combine_equation = equations.values
        over = [-1 - i for i in reversed(range(len(axes)))]
        self._softmax = Softmax(axis=over, dtype=self.dtype_policy)
        self._dropout_layer = Dropout(self._dropout, dtype=self.dtype_policy)

    def _resolve_axes(self, rank: int) -> tuple[int, ...]:
        between = range(1, rank - 1)
        axes = tuple(between if self._attention_axes is None else self._attention_axes)
        if not axes or any(axis not in between for axis in axes):
            raise ValueError(
                f"MultiHeadAttention {self.name}: attention_axes={axes} must lie between batch and features, within "
                f"{list(between)} for queries of {rank} dimensions."
            )
        return axes

    def _maybe_build(self, inputs: PyTree, args: tuple = (), kwargs: dict | None = None) -> None:
        self.built = True

    def _infer_outputs(self, inputs: PyTree, args: tuple, kwargs: dict) -> PyTree:
        named = signature(self.call).bind_partial(inputs, *args, **kwargs).arguments
        if "value" in named:
            with self._call_scope(None):
                self._ensure_built(inputs, named["value"], named.get("key"))
        return super()._infer_outputs(inputs, args, kwargs)

    def _ensure_built(
        self,
        query: Tensor | KerasTensor,
        value: Tensor | KerasTensor,
        key: Tensor | KerasTensor | None,
    ) -> None:
        if not self._built_from_signature:
            self._build_from_signature(query=query, value=value, key=key)

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: Any = None,
        use_causal_mask: bool = False,
    ) -> PyTree:
        """Compute the outputs.

        Args:
          query: Tensor [b, t, d].
          value: Tensor [b, s, d].
          key: Tensor [b, s, d]; default `value`.
          attention_mask: Bool tensor [b, t, s], or [b, *t, *s] for several axes; True where a query
            may attend to a key.
          return_attention_scores: Whether to return the attention weights [b, n, t, s] as well.
          training: Whether to apply dropout.
          use_causal_mask: Whether queries attend only to the same and earlier positions.

        Returns:
          Tensor [b, t, output size], or a tuple of it and the weights.
        """
        key = value if key is None else key
        if self._autocast:
            value, key = (self._cast_inputs(v) for v in (value, key))
        self._ensure_built(query, value, key)
        q, k, v = self._project_inputs(query, key, value)
        if len(q.shape) == 4 and not self._is_customized():
            masks = self._collect_masks(None, value, key, attention_mask)
            query_mask = getattr(query, "_keras_mask", None)
            query_mask = None if query_mask is None else math.cast(query_mask, "bool")
            options = (use_causal_mask, training, return_attention_scores)
            scaled = q * (1.0 / self._key_dim**0.5)
            outputs = compute_blockwise_attention(self, scaled, k, v, masks, query_mask, *options)
            if outputs is not None:
                return self._output_dense(outputs)
        mask = self._compute_attention_mask(query, value, key, attention_mask, use_causal_mask)
        outputs, weights = self._compute_attention(q, k, v, mask, training)
        outputs = self._output_dense(outputs)
        return (outputs, weights) if return_attention_scores else outputs

    def _is_customized(self) -> bool:
        """Check whether a subclass replaces a step between the projections."""
        own, base = type(self), MultiHeadAttention
        return own is not base and any(getattr(own, n) is not getattr(base, n) for n in _STEPS)

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        training: Any = None,
    ) -> tuple[Tensor, Tensor]:
        """Return outputs of all heads and attention weights, for projected inputs.

        Args:
          query: Tensor [b, t, n, h].
          key: Tensor [b, s, n, h].
          value: Tensor [b, s, n, h].
          attention_mask: Bool tensor [b, t, s]; True where a query may attend to a key.
          training: Whether to apply dropout.
        """
        scaled = query * (1.0 / self._key_dim**0.5)
        pairs = lambda k, q: einsum(self._dot_product_equation, k, q)
        weights = self._masked_softmax(
            compute_product(self, pairs, key, scaled, "scores"), attention_mask
        )
        dropped = self._dropout_layer(weights, training=training)
        mixed = lambda w, v: einsum(self._combine_equation, w, v)
        return compute_product(self, mixed, dropped, value, "values"), weights

    def _masked_softmax(
        self, attention_scores: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Return attention weights; the mask may lack the dimension of the heads."""
        while attention_mask is not None and len(attention_mask.shape) < len(
            attention_scores.shape
        ):
            attention_mask = array.expand_dims(attention_mask, -2 * len(self._softmax.axis) - 1)
        return self._softmax(attention_scores, mask=attention_mask)

    def _project_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        layers = [self._query_dense, self._key_dense, self._value_dense]
        operands, results = (query, key, value), list[Tensor | None]([None] * 3)
        for x in operands:
            # Devices add the gradients of an input with several projections before they sum them.
            group = [i for i, other in enumerate(operands) if other is x and results[i] is None]
            if len(group) > 1 and isinstance(x, Tensor) and not self.dtype_policy.uses_float8:
                projections = [layers[i] for i in group]
                products = project_sharded(projections, x, projections[0]._equation)
                for i, outputs in zip(group, products or (), strict=False):
                    results[i] = layers[i].add_bias(outputs)
        return [
            layer(x) if result is None else result
            for layer, x, result in zip(layers, operands, results, strict=True)
        ]

    def _collect_masks(
        self, query: Tensor | None, value: Tensor, key: Tensor, mask: Tensor | None
    ) -> list[Tensor]:
        parts = [] if mask is None else [math.cast(mask, "bool")]
        for tensor, axis in ((query, -1), (value, 1), (key, 1)):
            keras_mask = getattr(tensor, "_keras_mask", None)
            if keras_mask is not None:
                parts.append(array.expand_dims(math.cast(keras_mask, "bool"), axis))
        return parts

    def _compute_attention_mask(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
    ) -> Tensor | None:
        """Return the conjunction of all masks, or None without any."""
        parts = self._collect_masks(query, value, value if key is None else key, attention_mask)
        if use_causal_mask:
            parts.append(self._compute_causal_mask(query, value))
        result = None
        for part in parts:
            result = part if result is None else math.logical_and(result, part)
        return result

    def _compute_causal_mask(self, query: Tensor, value: Tensor | None = None) -> Tensor:
        """Return a mask [1, t, s] in which queries attend to the same and earlier positions."""
        t, s = query.shape[1], (query if value is None else value).shape[1]
        past = array.reshape(array.range(t), [-1, 1]) >= array.reshape(array.range(s), [1, -1])
        return array.expand_dims(past, 0)

    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Return the mask of the queries."""
        return mask[0] if isinstance(mask, (list, tuple)) else mask

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            **{
                name: getattr(self, f"_{name}")
                for name in (
                    "num_heads",
                    "key_dim",
                    "value_dim",
                    "dropout",
                    "use_bias",
                    "output_shape",
                    "attention_axes",
                )
            },
            **{
                k.removeprefix("_"): v
                for k, v in make_weight_config(self, "_kernel", "_bias", activity=True).items()
            },
            **{name: _clear_batch_size(getattr(self, f"_{name}")) for name in _BUILD_SHAPES},
        }


def _clear_batch_size(shape: TensorShape | None) -> list[int | None] | None:
    return (
        None if shape is None else [None, *(n if isinstance(n, int) else None for n in shape[1:])]
    )


class _ShapeOnly:
    """Placeholder for a tensor of which only the shape is used."""

    def __init__(self, shape: TensorShape) -> None:
        self.shape = shape
