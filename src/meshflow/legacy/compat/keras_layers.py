"""`tf.compat.v1.keras.layers`: classes that version 2 does not have, such as layers that used cuDNN."""

from __future__ import annotations

from typing import Any

from meshflow.keras import layers
from meshflow.keras.layers import GRU, LSTM

__all__ = ["CuDNNGRU", "CuDNNLSTM", "DenseFeatures"]


class CuDNNGRU(GRU):
    """GRU with sigmoid gates that applies the reset gate after the matrix product.

    Args:
      units: Size of the output.
      **kwargs: Arguments of `tf.keras.layers.GRU`.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(units, reset_after=True, **kwargs)


class CuDNNLSTM(LSTM):
    """LSTM with sigmoid gates.

    Args:
      units: Size of the output.
      **kwargs: Arguments of `tf.keras.layers.LSTM`.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(units, **kwargs)


# Libraries compare the types of layers with the classes of both versions.
DenseFeatures = type(
    "DenseFeatures", (layers.DenseFeatures,), {"__doc__": layers.DenseFeatures.__doc__}
)
