"""Saving of tensors and variables that are split over a mesh, and restoring on another mesh.

The files contain full arrays and no layouts, so a checkpoint of one mesh can be restored on any
other mesh, and by `tf.train.Checkpoint`.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from meshflow.checkpoint.assignment import shard_array
from meshflow.checkpoint.checkpoint import Checkpoint
from meshflow.checkpoint.formats import open_checkpoint, write_checkpoint
from meshflow.checkpoint.object_graph import get_stored_value
from meshflow.checkpoint.slices import ArrayParts
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.dtensor.values import DVariable
from meshflow.environment.types import Array, StrPath
from meshflow.placement.file_store import FileArray
from meshflow.placement.layout import find_layout
from meshflow.placement.mesh import Mesh

__all__ = [
    "DTensorCheckpoint",
    "enable_save_as_bf16",
    "name_based_restore",
    "name_based_save",
    "sharded_save",
]

# A path, a name, or a list or tensor of names.
_Names: TypeAlias = StrPath | bytes | Tensor | Variable | Sequence[StrPath | bytes]


class DTensorCheckpoint(Checkpoint):
    """`tf.train.Checkpoint` for variables on a mesh.

    The shard of each device is written to and read from its own range of the file. Variables can be
    restored in other layouts and on other meshes.

    Args:
      mesh: Mesh of the variables.
      root: Object with children that are saved as children of this object.
      **kwargs: Objects to save.

    Raises:
      ValueError: For the same reasons as `tf.train.Checkpoint`.

    Example:
      >>> import tempfile
      >>> dtensor = tf.experimental.dtensor
      >>> mesh = dtensor.create_mesh([("x", 1)], devices=["CPU:0"])
      >>> v = dtensor.DVariable(tf.ones([4]), layout=dtensor.Layout(["x"], mesh))
      >>> checkpoint = dtensor.DTensorCheckpoint(mesh, v=v)
      >>> path = checkpoint.save(tempfile.mkdtemp() + "/ckpt")
      >>> _ = v.assign(tf.zeros([4])), checkpoint.restore(path).assert_consumed()
      >>> v.numpy()
      array([1., 1., 1., 1.], dtype=float32)
    """

    def __init__(self, mesh: Mesh, root: object = None, **kwargs: object) -> None:
        if not isinstance(mesh, Mesh):
            raise InvalidValueError(f"DTensorCheckpoint: expected a Mesh, got {mesh!r}.")
        super().__init__(root, **kwargs)
        self._mesh = mesh


def enable_save_as_bf16(variables: Sequence[Variable]) -> None:
    """Store float32 variables as bfloat16 in checkpoints: half the size, 8 bits of precision."""
    for variable in variables:
        if isinstance(variable, DVariable) or variable.layout is not None:
            variable.save_as_bf16 = True  # type: ignore[attr-defined]


def sharded_save(
    mesh: Mesh,
    file_prefix: _Names,
    tensor_names: _Names,
    shape_and_slices: _Names,
    tensors: Sequence[TensorLike],
) -> None:
    """Save tensors under names; every process of the mesh must call this function.

    Args:
      mesh: Mesh of the tensors.
      file_prefix: Path of the checkpoint.
      tensor_names: Name of each tensor.
      shape_and_slices: "" for each tensor; slices of tensors are not supported.
      tensors: Tensors or variables.

    Raises:
      ValueError: If the lengths differ, or if a slice is passed.
      RuntimeError: If a function is being traced.
    """
    del mesh
    if context.trace is not None:
        raise RuntimeError("sharded_save must run eagerly, not inside a tf.function.")
    names, slices = _to_strings(tensor_names), _to_strings(shape_and_slices)
    if not len(names) == len(slices) == len(tensors):
        raise InvalidValueError(
            f"sharded_save: got {len(names)} names, {len(slices)} slices and {len(tensors)} tensors; pass one name "
            "and one slice for each tensor."
        )
    if any(slices):
        raise InvalidValueError('sharded_save: the only shape_and_slices supported is "".')
    path = _to_strings(file_prefix)[0]
    write_checkpoint(path, {name: _get_value(t) for name, t in zip(names, tensors, strict=True)})


def name_based_save(
    mesh: Mesh, checkpoint_prefix: _Names, name_tensor_dict: Mapping[str, TensorLike]
) -> None:
    """Save tensors under names.

    Args:
      mesh: Mesh of the tensors.
      checkpoint_prefix: Path of the checkpoint.
      name_tensor_dict: Tensors or variables by name.

    Example:
      >>> import os, tempfile
      >>> mesh = tf.experimental.dtensor.create_mesh([("x", 2)], devices=["CPU:0", "CPU:1"])
      >>> layout = tf.experimental.dtensor.Layout(["x"], mesh)
      >>> w = tf.experimental.dtensor.call_with_layout(tf.ones, layout, shape=[4])
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     tf.experimental.dtensor.name_based_save(mesh, os.path.join(folder, "ckpt"), {"w": w})
      ...     tf.train.load_variable(os.path.join(folder, "ckpt"), "w").tolist()
      [1.0, 1.0, 1.0, 1.0]
    """
    names = list(name_tensor_dict)
    tensors = list(name_tensor_dict.values())
    sharded_save(mesh, checkpoint_prefix, names, [""] * len(names), tensors)


def name_based_restore(
    mesh: Mesh, checkpoint_prefix: _Names, name_tensor_dict: Mapping[str, TensorLike]
) -> OrderedDict[str, Tensor]:
    """Read a checkpoint that `name_based_save` or `sharded_save` has written.

    Args:
      mesh: Mesh of the results.
      checkpoint_prefix: Path of the checkpoint.
      name_tensor_dict: By name, a tensor or variable with the shape, dtype and layout of the
        result.

    Returns:
      New tensors by name; `name_tensor_dict` is not changed.

    Raises:
      ValueError: If a tensor is not on a mesh, or if its shape differs from the stored shape.
      NotFoundError: If the checkpoint or a name in it does not exist.
    """
    del mesh
    folder = open_checkpoint(_to_strings(checkpoint_prefix)[0])
    restored: OrderedDict[str, Tensor] = OrderedDict()
    for name, target in name_tensor_dict.items():
        layout = find_layout(target) if isinstance(target, (Tensor, Variable)) else None
        if layout is None:
            raise InvalidValueError(
                f"Saving/Restoring tensor must be a DTensor: {name} is not on a mesh."
            )
        value = folder.open(name)
        if tuple(value.shape) != tuple(target.shape):
            raise InvalidValueError(
                f"name_based_restore: {name} was saved with shape {tuple(value.shape)}, the tensor to read into has "
                f"{tuple(target.shape)}."
            )
        restored[name] = shard_array(value, layout, target.dtype.dtype)
    return restored


def _to_strings(value: Any) -> list[str]:
    if isinstance(value, (str, bytes, os.PathLike)):
        return [os.fsdecode(value)]
    if isinstance(value, (Tensor, Variable)):
        value = value.numpy()
        if isinstance(value, (str, bytes)):
            return [os.fsdecode(value)]
    return [os.fsdecode(v) for v in value]


def _get_value(tensor: TensorLike) -> Array | FileArray | ArrayParts:
    if isinstance(tensor, Variable):
        return get_stored_value(tensor)
    return convert_to_tensor(tensor).array
