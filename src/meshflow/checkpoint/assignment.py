"""Assignment of stored arrays to variables."""

from __future__ import annotations

import jax
import numpy as np

from meshflow.checkpoint.formats import StoredCheckpoint
from meshflow.checkpoint.slices import SlicedArray
from meshflow.core.runtime import transfers
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable
from meshflow.files.arrays import can_hold
from meshflow.placement.layout import Layout


def assign_stored_value(
    checkpoint: StoredCheckpoint,
    key: str,
    variable: Variable | ShardedVariable,
    reshape: bool = False,
) -> None:
    """Assign a stored value to a variable.

    Args:
      checkpoint: Opened checkpoint.
      key: Key of the value in the checkpoint.
      variable: Variable to assign to.
      reshape: Whether to reshape a value with the same number of elements to the shape of the
        variable.

    Raises:
      InvalidValueError: If the variable cannot hold the stored dtype.
      NotFoundError: If the checkpoint has no value with this key.
      ValueError: If the shapes differ.
    """
    layout = variable.layout
    split = layout is not None and not layout.is_fully_replicated()
    # Each device reads its part of the file, so the sharding that was in force while saving does
    # not matter.
    value = checkpoint.open(key) if split else checkpoint.read_shareable(key)
    if reshape:
        value = np.reshape(value[(slice(None),) * value.ndim], variable.shape.as_list())
    fits = variable.shape.is_compatible_with(value.shape)
    if not fits and getattr(variable, "_of_its_mesh", False):
        # The value describes the devices of an earlier mesh (for example the errors of compressed
        # gradients). The devices are different now, so the variable starts from zeros.
        with init_scope():
            variable.assign(np.zeros(variable.shape.as_list(), variable.dtype.dtype))
        return
    if not fits:
        raise ValueError(
            f"Received incompatible tensor with shape {tuple(value.shape)} when attempting to restore variable "
            f"with shape {tuple(variable.shape)} and name {variable.name} (key {key} of {checkpoint.path})."
        )
    dtype = variable.dtype.dtype
    are_strings = np.dtype(dtype).kind == "O", value.dtype.kind == "O"
    if are_strings[0] != are_strings[1] or not can_hold(dtype, value.dtype):
        raise InvalidValueError(
            f"Variable {variable.name} of dtype {variable.dtype.name} cannot hold the stored dtype "
            f"{value.dtype} (key {key} of {checkpoint.path})."
        )
    with init_scope():
        if split:
            assert layout is not None
            variable.assign(shard_array(value, layout, dtype))
            return
        assert isinstance(value, np.ndarray)  # only `open` returns an array that is read in parts
        if layout is None and value.dtype == dtype and transfers.is_immutable(value):
            variable.assign(Tensor(transfers.to_device(value)))
        else:
            variable.assign(value.astype(dtype, copy=False))


def shard_array(value: np.ndarray | SlicedArray, layout: Layout, dtype: np.dtype) -> Tensor:
    """Return a tensor with a layout, where each device reads its shard of a host array.

    Args:
      value: Array, which may be in a file that is read where it is used.
      layout: Layout of the tensor.
      dtype: NumPy dtype of the tensor.
    """
    layout.check_shape(value.shape)
    part = lambda index: np.asarray(value[index]).astype(dtype, copy=False)
    return Tensor(jax.make_array_from_callback(value.shape, layout.to_sharding(), part))
