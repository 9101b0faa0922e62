"""`CategoryEncoding`: category ids as vectors."""

from __future__ import annotations

from typing import Unpack

import jax
import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras import settings
from meshflow.keras.layers.keyword_arguments import EncodingArguments
from meshflow.keras.layers.preprocessing.encoding import (
    check_sparse,
    compute_encoded_shape,
    encode_ids,
    parse_output_mode,
)
from meshflow.keras.layers.preprocessing.preprocessing_layer import EncodingLayer
from meshflow.keras.literals import OutputMode
from meshflow.ops import math
from meshflow.ops.ragged import RaggedTensor

__all__ = ["CategoryEncoding"]


class CategoryEncoding(EncodingLayer):
    """Encoding of category ids as vectors.

    Args:
      num_tokens: Number of categories.
      output_mode: 'multi_hot' (1 for each category in a row), 'one_hot' (one vector per id) or
        'count' (the number of occurrences of each category in a row).
      sparse: Whether vectors are returned as a `tf.SparseTensor`.
      **kwargs: Arguments of `Layer`; `max_tokens` is an earlier name of `num_tokens`.

    Input shape:
      (batch, size) or (size,), integers.

    Output shape:
      (batch, num_tokens), or (num_tokens,) without a batch. With 'one_hot', a last axis of size 1
      becomes num_tokens; otherwise an axis of num_tokens is appended.

    Raises:
      ValueError: If `num_tokens` is missing, the mode is unknown, or weights are passed without
        'count'.
      InvalidArgumentError: If an id is outside of [0, num_tokens) in an eager call.

    Example:
      >>> tf.keras.layers.CategoryEncoding(3)([[0, 1], [2, 2]]).numpy()
      array([[1., 1., 0.],
             [0., 0., 1.]], dtype=float32)
    """

    def __init__(
        self,
        num_tokens: int | None = None,
        output_mode: OutputMode = "multi_hot",
        sparse: bool = False,
        **kwargs: Unpack[EncodingArguments],
    ) -> None:
        if "max_tokens" in kwargs:
            num_tokens = kwargs.pop("max_tokens")
        mode = parse_output_mode(output_mode, ("count", "one_hot", "multi_hot"), "CategoryEncoding")
        check_sparse(sparse, mode)
        # As in the other encoding layers, the default dtype does not depend on the global policy.
        kwargs.setdefault("dtype", settings.floatx())
        super().__init__(**kwargs)
        if num_tokens is None:
            raise ValueError(
                "num_tokens must be set to use this layer. If the number of tokens is not known beforehand, use the "
                "IntegerLookup layer instead."
            )
        if num_tokens < 1:
            raise ValueError(f"`num_tokens` must be >= 1. Received: num_tokens={num_tokens}.")
        self.num_tokens, self.output_mode, self.sparse = num_tokens, mode, sparse

    def call(
        self,
        inputs: TensorLike | SparseTensor,
        count_weights: TensorLike | SparseTensor = None,
    ) -> Tensor | SparseTensor:
        """Encode the ids.

        Args:
          inputs: Ids, of rank 0 to 2.
          count_weights: Weight of each id, for 'count'.
        """
        if count_weights is not None and self.output_mode != "count":
            raise ValueError(
                "`count_weights` is not used when `output_mode` is not `'count'`. "
                f"Received `count_weights={count_weights}`."
            )
        ids = math.cast(inputs, "int64")
        values = ids.flat_values if isinstance(ids, RaggedTensor) else ids
        id_array = (ids.values if isinstance(ids, SparseTensor) else values).array
        if not isinstance(id_array, jax.core.Tracer):
            host_ids = np.asarray(id_array)
            if host_ids.size and (host_ids.min() < 0 or host_ids.max() >= self.num_tokens):
                raise InvalidArgumentError(
                    "Input values must be in the range 0 <= values < num_tokens with "
                    f"num_tokens={self.num_tokens}"
                )
        return encode_ids(
            ids,
            self.output_mode,
            self.num_tokens,
            self.get_output_dtype(),
            count_weights,
            self.sparse,
        )

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the shape of the encoded outputs."""
        return compute_encoded_shape(input_shape, self.output_mode, self.num_tokens)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            "num_tokens": self.num_tokens,
            "output_mode": self.output_mode,
            "sparse": self.sparse,
        }
