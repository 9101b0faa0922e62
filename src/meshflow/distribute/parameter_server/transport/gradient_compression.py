"""Compression of gradients before they are sent to parameter servers.

Gradients are sent as bfloat16, or only their largest elements are sent. In the second case,
elements that are left out are added to the next gradient of the same variable (error feedback).
"""

from __future__ import annotations

from typing import TypeAlias

import ml_dtypes
import numpy as np

from meshflow.core.runtime import transfers
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.parameter_server.transport.messages import (
    OptimizerStep,
    Push,
    SentGradient,
    TopElements,
    VariableRows,
)
from meshflow.environment.types import Array

Compression: TypeAlias = str | float | None


def check_compression(compression: Compression) -> Compression:
    """Validate the argument `compression` of `ParameterServerStrategy` and return it.

    Args:
      compression: None, "bfloat16", or the fraction of the elements to send.

    Raises:
      ValueError: For any other value.
    """
    is_fraction = (
        isinstance(compression, (int, float))
        and not isinstance(compression, bool)
        and 0 < compression <= 1
    )
    if compression in (None, "bfloat16") or is_fraction:
        return compression
    raise InvalidValueError(
        "ParameterServerStrategy: compression must be None, 'bfloat16' or a fraction between 0 and 1, got "
        f"{compression!r}."
    )


class Compressor:
    """Compressor of the gradients of one worker, with the residuals that it has not sent yet.

    Args:
      compression: None, "bfloat16", or the fraction of the elements to send; see
        `check_compression`.
    """

    def __init__(self, compression: Compression) -> None:
        self._compression = compression
        # The part of earlier gradients that was not sent, flattened, by variable key.
        self._residuals: dict[int, np.ndarray] = {}

    def __call__(self, pushes: list[Push | None]) -> None:
        """Compress the gradients of one closure in place.

        Args:
          pushes: The closure's push for each server, or None where a server has nothing to do.
        """
        if self._compression is None:
            return
        for push in pushes:
            if push is not None:
                push.steps = [self._compress_step(step) for step in push.steps]

    def _compress_step(self, step: OptimizerStep) -> OptimizerStep:
        gradients = [
            self._compress_gradient(k, g) for k, g in zip(step.keys, step.gradients, strict=True)
        ]
        return step._replace(gradients=tuple(gradients))

    def _compress_gradient(self, key: int, gradient: SentGradient) -> SentGradient:
        if isinstance(gradient, TopElements):
            return gradient
        values = np.asarray(gradient.values if type(gradient) is VariableRows else gradient)
        if values.dtype != np.float32:
            return gradient
        if self._compression == "bfloat16":
            halves = values.astype(ml_dtypes.bfloat16)
            return (
                VariableRows(halves, gradient.indices) if type(gradient) is VariableRows else halves
            )
        count = int(np.ceil(values.size * float(self._compression or 1)))
        if type(gradient) is VariableRows or count >= values.size:
            return gradient
        total = values.reshape(-1) + self._residuals.get(key, np.float32(0))
        largest = np.sort(np.argpartition(np.abs(total), -count)[-count:])
        residual = self._residuals[key] = total.copy()
        residual[largest] = 0
        return TopElements(total[largest], largest.astype(np.int64))


def decompress_gradient(
    gradient: SentGradient, shape: tuple[int, ...], dtype: np.dtype
) -> Array | VariableRows:
    """Convert a received gradient to the form that optimizers take.

    Args:
      gradient: The gradient as it was sent.
      shape: Shape of the variable.
      dtype: Dtype of the variable.

    Returns:
      A dense array, or rows, of the variable's dtype.
    """
    if isinstance(gradient, TopElements):
        full = np.zeros(int(np.prod(shape)), dtype)
        full[gradient.indices] = gradient.values
        return full.reshape(shape)
    if isinstance(gradient, VariableRows):
        return VariableRows(_cast_from_bfloat16(gradient.values, dtype), gradient.indices)
    array = _cast_from_bfloat16(gradient, dtype)
    # The transfer makes no copy: received arrays are in memory that a CPU device can share.
    return transfers.to_device(array) if type(array) is np.ndarray else array


def _cast_from_bfloat16(array: Array, dtype: np.dtype) -> Array:
    return array.astype(dtype) if array.dtype == ml_dtypes.bfloat16 != dtype else array
