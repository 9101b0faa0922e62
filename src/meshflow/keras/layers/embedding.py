"""Embedding layer: rows of a table, selected by index."""

from __future__ import annotations

from typing import Unpack

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config, PyTree
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.helpers import Identifier
from meshflow.keras.layers.keyword_arguments import EmbeddingArguments
from meshflow.keras.layers.weight_options import (
    add_weight,
    make_weight_config,
    set_weight_options,
)
from meshflow.ops import array, math, nn
from meshflow.ops.coordinates import add_elements
from meshflow.ops.ragged import RaggedTensor

__all__ = ["Embedding"]


class Embedding(Layer):
    """Table of vectors, from which integer indices select.

    Args:
      input_dim: Number of indices; valid indices are 0 to `input_dim - 1`.
      output_dim: Size of the vectors.
      embeddings_initializer: Initializer of the table, shape (input_dim, output_dim).
      embeddings_regularizer: Regularizer of the table.
      activity_regularizer: Regularizer of the output.
      embeddings_constraint: Constraint on the table.
      mask_zero: Whether index 0 is padding, which the output mask marks as False.
      input_length: Length of the sequences, if it is fixed.
      sparse: Ignored.
      **kwargs: Arguments of `Layer`, and the layout `embeddings_layout`.

    Input shape:
      (batch, ...), integers.

    Output shape:
      (batch, ..., output_dim).

    Example:
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
        embeddings_initializer: Identifier = "uniform",
        embeddings_regularizer: Identifier = None,
        activity_regularizer: Identifier = None,
        embeddings_constraint: Identifier = None,
        mask_zero: bool = False,
        input_length: int | None = None,
        sparse: bool = False,
        **kwargs: Unpack[EmbeddingArguments],
    ) -> None:
        if "input_shape" not in kwargs and "batch_input_shape" not in kwargs:
            kwargs["input_shape"] = (input_length,)
        if input_dim <= 0 or output_dim <= 0:
            raise ValueError(
                f"Both `input_dim` and `output_dim` should be positive, Received input_dim = {input_dim} and output_dim = {output_dim}"
            )
        kwargs["autocast"] = False
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self.input_dim, self.output_dim = input_dim, output_dim
        self.mask_zero, self.input_length = mask_zero, input_length
        set_weight_options(self, locals(), "embeddings")
        self.supports_masking = mask_zero

    def build(self, input_shape: ShapeLike = None) -> None:
        """Create the table."""
        self.embeddings = add_weight(self, "embeddings", (self.input_dim, self.output_dim))
        self.built = True

    def compute_mask(self, inputs: TensorLike, mask: Tensor | None = None) -> PyTree:
        """Compute the mask of the indices that are not padding; None without `mask_zero`."""
        return math.not_equal(inputs, 0) if self.mask_zero else None

    def call(self, inputs: TensorLike | SparseTensor | RaggedTensor) -> PyTree:
        """Look up the vectors; they are zero where a sparse input has no element."""
        if isinstance(inputs, RaggedTensor):
            return inputs.with_flat_values(self.call(inputs.flat_values))
        if isinstance(inputs, SparseTensor):
            vectors = self.call(inputs.values)
            zeros = array.zeros([*inputs.shape.as_list(), self.output_dim], vectors.dtype)
            return add_elements(zeros, inputs.check_indices(), vectors, True)
        if not inputs.dtype.is_integer:
            inputs = math.cast(inputs, "int32")
        return nn.embedding_lookup(self.embeddings, inputs)

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Append `output_dim` to the input shape."""
        return TensorShape([*TensorShape(input_shape).as_list(), self.output_dim])

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            **make_weight_config(self, "embeddings", activity=True),
            "mask_zero": self.mask_zero,
            "input_length": self.input_length,
        }
