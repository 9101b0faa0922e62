"""Gradients made smaller before they are sent."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from meshflow.core.runtime import transfers
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.parameter_server.messages import Largest, Push, Rows, Step

__all__ = ["Compressor", "checked", "whole"]


def checked(compression: Any) -> Any:
    """A setting for `Compressor`.

    Args:
      compression: None, "bfloat16", or the share of the elements that are sent.

    Raises:
      ValueError: for anything else.
    """
    share = isinstance(compression, (int, float)) and not isinstance(compression, bool)
    if compression in (None, "bfloat16") or (share and 0 < compression <= 1):
        return compression
    raise InvalidValueError(
        f"ParameterServerStrategy: compression must be None, 'bfloat16' or a share between 0 and 1, got {compression!r}."
    )


class Compressor:
    """Makes the gradients of one worker smaller, and keeps what it leaves out for its next ones.

    Args:
      compression: see `checked`.
    """

    def __init__(self, compression: str | float | None) -> None:
        self._compression = compression
        # By variable, what was not sent yet.
        self._rest: dict[int, np.ndarray] = {}

    def __call__(self, pushes: list[Push | None]) -> None:
        """Compresses the gradients in place.

        Args:
          pushes: the messages of one closure.
        """
        if self._compression is None:
            return
        for push in pushes:
            if push is not None:
                push.steps = [self._smaller(step) for step in push.steps]

    def _smaller(self, step: Step) -> Step:
        made = [self._one(k, g) for k, g in zip(step.keys, step.gradients, strict=True)]
        return step._replace(gradients=tuple(made))

    def _one(self, key: int, gradient: Any) -> Any:
        values = np.asarray(gradient.values if type(gradient) is Rows else gradient)
        if values.dtype != np.float32:
            return gradient
        if self._compression == "bfloat16":
            short = values.astype(ml_dtypes.bfloat16)
            return Rows(short, gradient.indices) if type(gradient) is Rows else short
        count = int(np.ceil(values.size * float(self._compression or 1)))
        if type(gradient) is Rows or count >= values.size:
            return gradient
        total = values.reshape(-1) + self._rest.get(key, np.float32(0))
        kept = np.sort(np.argpartition(np.abs(total), -count)[-count:])
        left = self._rest[key] = total.copy()
        left[kept] = 0
        return Largest(total[kept], kept.astype(np.int64))


def whole(gradient: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A gradient as optimizers take it.

    Args:
      gradient: as it was sent.
      shape: the variable's shape.
      dtype: the variable's dtype.
    """
    if type(gradient) is Largest:
        full = np.zeros(int(np.prod(shape)), dtype)
        full[gradient.indices] = gradient.values
        return full.reshape(shape)
    if type(gradient) is Rows:
        return Rows(_as(gradient.values, dtype), gradient.indices)
    gradient = _as(gradient, dtype)
    # What has arrived lies where the device can use it: no copy.
    return transfers.to_device(gradient) if type(gradient) is np.ndarray else gradient


def _as(array: Any, dtype: Any) -> Any:
    return array.astype(dtype) if array.dtype == ml_dtypes.bfloat16 != dtype else array
