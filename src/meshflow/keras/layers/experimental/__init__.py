"""Layers under their earlier names: `tf.keras.layers.experimental`."""

from __future__ import annotations

from typing import Any

from meshflow.keras.layers.einsum_dense import EinsumDense
from meshflow.keras.layers.experimental import preprocessing
from meshflow.keras.layers.normalization import BatchNormalization
from meshflow.keras.layers.random_features import RandomFourierFeatures

__all__ = ["EinsumDense", "RandomFourierFeatures", "SyncBatchNormalization", "preprocessing"]


class SyncBatchNormalization(BatchNormalization):
    """Batch normalization with statistics over all replicas: `BatchNormalization(synchronized=True)`.

    Args:
      **kwargs: Arguments of `BatchNormalization`.

    Input shape:
      (batch, ...), of any rank.

    Output shape:
      The same as the input shape.

    Example:
      >>> tf.keras.layers.experimental.SyncBatchNormalization().synchronized
      True
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "synchronized": True})
