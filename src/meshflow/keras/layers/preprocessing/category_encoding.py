"""`CategoryEncoding`: numbers of categories as vectors."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.keras import settings
from meshflow.keras.layers.preprocessing.adapting import EncodingLayer
from meshflow.keras.layers.preprocessing.encoding import (
    encoded,
    encoded_shape,
    mode_of,
    refuse_sparse,
)
from meshflow.ops import math

__all__ = ["CategoryEncoding"]


class CategoryEncoding(EncodingLayer):
    """Vectors for numbers of categories.

    Args:
      num_tokens: how many categories there are.
      output_mode: 'multi_hot' (1 for each category of a row), 'one_hot' (a vector for each number) or
        'count' (how often each category occurs in a row).
      sparse: not available.
      **kwargs: arguments of `Layer`; `max_tokens` is the old name of `num_tokens`.

    Input shape:
      (batch, size) or (size,), integers.

    Output shape:
      (batch, num_tokens), or (num_tokens,) without a batch; with 'one_hot' the last size, where it is 1, becomes
      num_tokens, and otherwise a dimension of num_tokens is added.

    Raises:
      ValueError: without `num_tokens`, for an unknown mode, for weights without 'count'.
      InvalidArgumentError: when called with numbers outside [0, num_tokens) that are known.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.CategoryEncoding(3)([[0, 1], [2, 2]]).numpy()
      array([[1., 1., 0.],
             [0., 0., 1.]], dtype=float32)
    """

    def __init__(
        self,
        num_tokens: int | None = None,
        output_mode: str = "multi_hot",
        sparse: bool = False,
        **kwargs: Any,
    ) -> None:
        if "max_tokens" in kwargs:
            num_tokens = kwargs.pop("max_tokens")
        mode = mode_of(output_mode, ("count", "one_hot", "multi_hot"), "CategoryEncoding")
        refuse_sparse(sparse, mode)
        # As the other encoding layers it has its own dtype, whatever the global policy is.
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

    def call(self, inputs: Any, count_weights: Any = None) -> Any:
        """The vectors.

        Args:
          inputs: numbers, rank 0 to 2.
          count_weights: what each number counts, for 'count'.
        """
        if count_weights is not None and self.output_mode != "count":
            raise ValueError(
                "`count_weights` is not used when `output_mode` is not `'count'`. "
                f"Received `count_weights={count_weights}`."
            )
        numbers = math.cast(inputs, "int64")
        if not isinstance(numbers._value, jax.core.Tracer):
            known = np.asarray(numbers._value)
            if known.size and (known.min() < 0 or known.max() >= self.num_tokens):
                raise InvalidArgumentError(
                    "Input values must be in the range 0 <= values < num_tokens with "
                    f"num_tokens={self.num_tokens}"
                )
        return encoded(
            numbers, self.output_mode, self.num_tokens, self.output_dtype(), count_weights
        )

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the vectors."""
        return encoded_shape(input_shape, self.output_mode, self.num_tokens)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            **super().get_config(),
            "num_tokens": self.num_tokens,
            "output_mode": self.output_mode,
            "sparse": self.sparse,
        }
