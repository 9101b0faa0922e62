"""Putting a stored array into a variable."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from meshflow.checkpoint.containers import Stored
from meshflow.core.runtime import transfers
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable

__all__ = ["parts_of", "put"]


def put(
    folder: Stored, key: str, variable: Variable | ShardedVariable, reshape: bool = False
) -> None:
    """Gives a variable a stored value.

    Args:
      folder: the checkpoint.
      key: the value's.
      variable: the variable.
      reshape: whether a value of as many elements is given the variable's shape.

    Raises:
      ValueError: when shape or dtype do not fit.
      NotFoundError: when there is no such value.
    """
    layout = variable.layout
    split = layout is not None and not layout.is_fully_replicated()
    # Each device takes its part from the file, however the array was split when it was saved.
    value = folder.open(key) if split else folder.lent(key)
    if reshape:
        value = np.reshape(value[...], variable.shape.as_list())
    fits = variable.shape.is_compatible_with(value.shape)
    if not fits and getattr(variable, "_of_its_mesh", False):
        # It says something of the devices that it was on, of which there are others now.
        with init_scope():
            variable.assign(np.zeros(variable.shape.as_list(), variable.dtype.dtype))
        return
    if not fits:
        raise ValueError(
            f"Received incompatible tensor with shape {tuple(value.shape)} when attempting to restore variable "
            f"with shape {tuple(variable.shape)} and name {variable.name} (key {key} of {folder.path})."
        )
    dtype = variable.dtype.dtype
    kinds = np.dtype(dtype).kind, value.dtype.kind
    if (kinds[0] in "biu" and kinds[1] not in "biu") or (kinds[0] == "O") != (kinds[1] == "O"):
        raise InvalidValueError(
            f"Variable {variable.name} of dtype {variable.dtype.name} cannot hold the stored dtype "
            f"{value.dtype} (key {key} of {folder.path})."
        )
    with init_scope():
        if split:
            variable.assign(parts_of(value, layout, dtype))
        elif layout is None and value.dtype == dtype and transfers.is_ours(value):
            variable.assign(Tensor(transfers.to_device(value)))
        else:
            variable.assign(value.astype(dtype, copy=False))


def parts_of(value: np.ndarray, layout: Any, dtype: Any) -> Tensor:
    """A tensor in a layout whose devices take their parts of a host array.

    Args:
      value: the array, which may lie in a file.
      layout: a `Layout`.
      dtype: the tensor's NumPy dtype.
    """
    layout.check(value.shape)
    part = lambda index: np.asarray(value[index]).astype(dtype, copy=False)
    return Tensor(jax.make_array_from_callback(value.shape, layout.sharding(), part))
