"""Attention without projections: dot products and sums of queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Config, PyTree
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.float8_products import compute_product
from meshflow.keras.layers.blockwise_attention import (
    attend_additively,
    compute_blockwise_attention,
)
from meshflow.keras.layers.keyword_arguments import AttentionArguments
from meshflow.keras.layers.regularization import Dropout
from meshflow.ops import array, math, nn

__all__ = ["AdditiveAttention", "Attention"]


class BaseDenseAttention(Layer):
    """Base class of attention over [query, value] or [query, value, key]."""

    def __init__(self, dropout: float = 0.0, **kwargs: Any) -> None:
        self.causal = bool(kwargs.pop("causal", False))
        super().__init__(**kwargs)
        self.dropout = dropout
        self.supports_masking = True
        self._dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def _check_inputs(self, inputs: PyTree, mask: PyTree) -> None:
        """Raise a `ValueError` unless inputs and masks are lists of valid lengths."""
        lists = {"inputs": inputs} if mask is None else {"inputs": inputs, "masks": mask}
        for label, items in lists.items():
            if not isinstance(items, (list, tuple)):
                raise ValueError(
                    f"{type(self).__name__} layer must be called on a list of {label}, namely [query, value] or "
                    f"[query, value, key]. Received: {items!r}"
                )
            if not 2 <= len(items) <= 3:
                raise ValueError(
                    f"{type(self).__name__} layer accepts {label} as a list of length 2 or 3, namely [query, value] "
                    f"or [query, value, key]. Received length: {len(items)}"
                )

    def call(
        self,
        inputs: Sequence[Tensor],
        mask: Sequence[Tensor | None] | None = None,
        training: Any = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> PyTree:
        """Compute the outputs for [query, value] or [query, value, key]."""
        self._check_inputs(inputs, mask)
        query, value = inputs[0], inputs[1]
        key = inputs[2] if len(inputs) > 2 else value
        value_mask = mask[1] if isinstance(mask, (list, tuple)) and len(mask) > 1 else None
        masks = [] if value_mask is None else [array.expand_dims(math.cast(value_mask, "bool"), 1)]
        causal = use_causal_mask or self.causal
        outputs = self._attend_blockwise(
            query, key, value, masks, causal, training, return_attention_scores
        )
        if outputs is not None:
            return self._mask_queries(outputs, mask)
        scores = self._calculate_scores(query, key)
        if value_mask is not None:
            scores = scores - 1e9 * math.cast(
                math.logical_not(array.expand_dims(value_mask, 1)), scores.dtype
            )
        if causal:
            t, s = scores.shape[-2], scores.shape[-1]
            later = array.reshape(array.range(t), [-1, 1]) < array.reshape(array.range(s), [1, -1])
            scores = scores - 1e9 * math.cast(later, scores.dtype)
        weights = self._dropout_layer(nn.softmax(scores), training=training)
        outputs = compute_product(self, math.matmul, weights, value, "values")
        outputs = self._mask_queries(outputs, mask)
        return (outputs, weights) if return_attention_scores else outputs

    def _mask_queries(self, outputs: Tensor, mask: Sequence[Tensor | None] | None) -> Tensor:
        """Set the outputs of masked queries to zero."""
        if isinstance(mask, (list, tuple)) and mask[0] is not None:
            outputs = outputs * array.expand_dims(math.cast(mask[0], outputs.dtype), -1)
        return outputs

    def _attend_blockwise(
        self, query: Tensor, key: Tensor, value: Tensor, *args: Any
    ) -> Tensor | None:
        """Compute the outputs without a matrix of scores, or return None if it is not possible."""
        return None

    def _calculate_scores(self, query: Tensor, key: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Return the mask of the queries."""
        return mask[0] if isinstance(mask, (list, tuple)) else None

    def get_config(self) -> Config:
        """Return the configuration."""
        causal = {"causal": True} if self.causal else {}
        return {**super().get_config(), "dropout": self.dropout, **causal}


class Attention(BaseDenseAttention):
    """Dot-product attention (Luong et al. 2015).

    Args:
      use_scale: Whether to multiply the scores by a trained scalar.
      score_mode: 'dot' or 'concat'.
      dropout: Dropout rate of the attention weights.
      **kwargs: `causal`, whether positions attend only to earlier ones in all calls, as in
        TensorFlow up to 2.9; arguments of `Layer`.

    Input shape:
      A list of queries (batch, queries, dim), values (batch, keys, value_dim) and, if they differ,
      keys (batch, keys, dim).

    Output shape:
      (batch, queries, value_dim); with `return_attention_scores` also (batch, queries, keys).

    Example:
      >>> query, value = tf.zeros([1, 1, 2]), tf.constant([[[0.0, 2.0], [4.0, 6.0]]])
      >>> output, scores = tf.keras.layers.Attention()([query, value], return_attention_scores=True)
      >>> output.numpy().tolist(), scores.numpy().tolist()
      ([[[2.0, 4.0]]], [[[0.5, 0.5]]])
    """

    _weights_with_layouts: tuple[str, ...] = ("scale", "concat_score_weight")

    def __init__(
        self,
        use_scale: bool = False,
        score_mode: str = "dot",
        dropout: float = 0.0,
        **kwargs: Unpack[AttentionArguments],
    ) -> None:
        super().__init__(dropout, **kwargs)
        if score_mode not in ("dot", "concat"):
            raise ValueError(
                f"Invalid value for argument score_mode. Expected one of {{'dot', 'concat'}}. Received: score_mode={score_mode}"
            )
        self.use_scale, self.score_mode = use_scale, score_mode

    def build(self, input_shape: PyTree) -> None:
        """Create the scales."""
        add = lambda name: self.add_weight(name, (), initializer="ones")
        self.scale = add("scale") if self.use_scale else None
        self.concat_score_weight = (
            add("concat_score_weight") if self.score_mode == "concat" else None
        )
        self.built = True

    def _attend_blockwise(
        self, query: Tensor, key: Tensor, value: Tensor, *args: Any
    ) -> Tensor | None:
        if self.score_mode == "concat":
            factors = self.scale, self.concat_score_weight
            return attend_additively(self, (query, key, value), factors, *args)
        if not len(query.shape) == len(value.shape) == 3:
            return None
        query = query if self.scale is None else query * self.scale
        masks, causal, training, return_scores = args
        query, key, value = (array.expand_dims(x, 2) for x in (query, key, value))
        outputs = compute_blockwise_attention(
            *(self, query, key, value, masks, None, causal, training, return_scores),
            masking="add_each",
        )
        return None if outputs is None else array.squeeze(outputs, 2)

    def _calculate_scores(self, query: Tensor, key: Tensor) -> Tensor:
        if self.score_mode == "dot":
            pairs = lambda q, k: math.matmul(q, k, transpose_b=True)
            scores = compute_product(self, pairs, query, key, "scores")
            return scores if self.scale is None else scores * self.scale
        sums = array.expand_dims(query, -2) + array.expand_dims(key, -3)
        sums = sums if self.scale is None else sums * self.scale
        return self.concat_score_weight * math.reduce_sum(math.tanh(sums), axis=-1)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "use_scale": self.use_scale, "score_mode": self.score_mode}


class AdditiveAttention(BaseDenseAttention):
    """Attention with scores `sum(scale * tanh(query + key))` (Bahdanau et al. 2014).

    Args:
      use_scale: Whether to multiply the features by a trained vector.
      dropout: Dropout rate of the attention weights.
      **kwargs: `causal`, whether positions attend only to earlier ones in all calls, as in
        TensorFlow up to 2.9; arguments of `Layer`.

    Input shape:
      A list of queries (batch, queries, dim), values (batch, keys, value_dim) and, if they differ,
      keys (batch, keys, dim).

    Output shape:
      (batch, queries, value_dim); with `return_attention_scores` also (batch, queries, keys).

    Example:
      >>> query, value = tf.ones([1, 2, 8]), tf.ones([1, 5, 8])
      >>> tf.keras.layers.AdditiveAttention()([query, value]).shape
      TensorShape([1, 2, 8])
    """

    _weights_with_layouts: tuple[str, ...] = ("scale",)

    def __init__(
        self, use_scale: bool = True, dropout: float = 0.0, **kwargs: Unpack[AttentionArguments]
    ) -> None:
        super().__init__(dropout, **kwargs)
        self.use_scale = use_scale

    def build(self, input_shape: PyTree) -> None:
        """Create the scale."""
        add_scale = lambda: self.add_weight(
            "scale", (TensorShape(input_shape[1])[-1],), initializer="glorot_uniform"
        )
        self.scale = add_scale() if self.use_scale else None
        self.built = True

    def _attend_blockwise(
        self, query: Tensor, key: Tensor, value: Tensor, *args: Any
    ) -> Tensor | None:
        return attend_additively(self, (query, key, value), (None, self.scale), *args)

    def _calculate_scores(self, query: Tensor, key: Tensor) -> Tensor:
        features = math.tanh(array.expand_dims(query, -2) + array.expand_dims(key, -3))
        return math.reduce_sum(features if self.scale is None else features * self.scale, axis=-1)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "use_scale": self.use_scale}
