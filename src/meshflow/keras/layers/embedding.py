"""Rows of a table by number."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.shapes import TensorShape
from meshflow.keras import constraints, initializers, regularizers
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.layers.core import weight_config
from meshflow.ops import math, nn

__all__ = ["Embedding"]


class Embedding(Layer):
    """Vectors for numbers.

    Args:
      input_dim: how many numbers there are.
      output_dim: size of the vectors.
      embeddings_initializer: initializer of the table, shape (input_dim, output_dim).
      embeddings_regularizer: penalty on the table.
      activity_regularizer: penalty on the output.
      embeddings_constraint: projection of the table.
      mask_zero: whether the number 0 is padding, to be masked.
      input_length: length of sequences, when fixed.
      sparse: accepted.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, ...), integers.

    Output shape:
      (batch, ..., output_dim).

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.Embedding(10, 4, mask_zero=True)
      >>> layer(tf.constant([[7, 2, 0]])).shape
      TensorShape([1, 3, 4])
      >>> layer.compute_mask(tf.constant([[7, 2, 0]])).numpy().tolist()
      [[True, True, False]]
    """

    _weights_with_layouts: tuple[str, ...] = ("embeddings",)

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        activity_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        input_length: Any = None,
        sparse: bool = False,
        **kwargs: Any,
    ) -> None:
        if "input_shape" not in kwargs and "batch_input_shape" not in kwargs:
            kwargs["input_shape"] = (input_length,)
        if input_dim <= 0 or output_dim <= 0:
            raise ValueError(
                f"Both `input_dim` and `output_dim` should be positive, Received input_dim = {input_dim} and output_dim = {output_dim}"
            )
        kwargs["autocast"] = False
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self.input_dim, self.output_dim, self.mask_zero, self.input_length = (
            input_dim,
            output_dim,
            mask_zero,
            input_length,
        )
        self.embeddings_initializer = initializers.get(embeddings_initializer)
        self.embeddings_regularizer = regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = constraints.get(embeddings_constraint)
        self.supports_masking = mask_zero

    def build(self, input_shape: Any = None) -> None:
        """Creates the table."""
        self.embeddings = self.add_weight(
            "embeddings",
            (self.input_dim, self.output_dim),
            initializer=self.embeddings_initializer,
            regularizer=self.embeddings_regularizer,
            constraint=self.embeddings_constraint,
        )
        self.built = True

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """True where the number is not 0, if 0 is padding."""
        return math.not_equal(inputs, 0) if self.mask_zero else None

    def call(self, inputs: Any) -> Any:
        """The vectors."""
        if not inputs.dtype.is_integer:
            inputs = math.cast(inputs, "int32")
        return nn.embedding_lookup(self.embeddings, inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[*input shape, output_dim]."""
        return TensorShape([*TensorShape(input_shape).as_list(), self.output_dim])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            **weight_config(self, "embeddings", activity=True),
            "mask_zero": self.mask_zero,
            "input_length": self.input_length,
        }
