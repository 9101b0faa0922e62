"""`tf.keras.layers.experimental`: layers under the names that they had before they were settled."""

from __future__ import annotations

from typing import Any

from meshflow.keras.layers.einsum_dense import EinsumDense
from meshflow.keras.layers.experimental import preprocessing
from meshflow.keras.layers.normalization import BatchNormalization
from meshflow.keras.layers.random_features import RandomFourierFeatures

__all__ = ["EinsumDense", "RandomFourierFeatures", "SyncBatchNormalization", "preprocessing"]


class SyncBatchNormalization(BatchNormalization):
    """`BatchNormalization(synchronized=True)`: statistics of all replicas' examples.

    Args:
      **kwargs: arguments of `BatchNormalization`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The same.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.experimental.SyncBatchNormalization().synchronized
      True
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "synchronized": True})
