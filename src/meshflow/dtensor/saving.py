"""Saving tensors and variables that are split over a mesh, and restoring them on another.

Files hold whole arrays and do not tell how they were split, so that what was saved on one mesh is
restored on any other, by `tf.train.Checkpoint` as well.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from meshflow.checkpoint.assigning import parts_of
from meshflow.checkpoint.checkpoint import Checkpoint
from meshflow.checkpoint.containers import open_checkpoint, written
from meshflow.checkpoint.graph import stored
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.dtensor.values import DVariable
from meshflow.placement.layout import layout_of
from meshflow.placement.mesh import Mesh

__all__ = [
    "DTensorCheckpoint",
    "enable_save_as_bf16",
    "name_based_restore",
    "name_based_save",
    "sharded_save",
]


class DTensorCheckpoint(Checkpoint):
    """`tf.train.Checkpoint` for variables on a mesh.

    Each device's part is written to and read from its place in the file. Variables may be restored
    in other layouts and on other meshes than they were saved in.

    Args:
      mesh: the mesh of the variables.
      root: an object whose children are saved as this object's own.
      **kwargs: objects to save.

    Raises:
      ValueError: as for `tf.train.Checkpoint`.

    Example:
      >>> import tempfile
      >>> import meshflow as tf
      >>> dtensor = tf.experimental.dtensor
      >>> mesh = dtensor.create_mesh([("x", 1)], devices=["CPU:0"])
      >>> v = dtensor.DVariable(tf.ones([4]), layout=dtensor.Layout(["x"], mesh))
      >>> checkpoint = dtensor.DTensorCheckpoint(mesh, v=v)
      >>> path = checkpoint.save(tempfile.mkdtemp() + "/ckpt")
      >>> _ = v.assign(tf.zeros([4])), checkpoint.restore(path).assert_consumed()
      >>> v.numpy()
      array([1., 1., 1., 1.], dtype=float32)
    """

    def __init__(self, mesh: Mesh, root: Any = None, **kwargs: Any) -> None:
        if not isinstance(mesh, Mesh):
            raise InvalidValueError(f"DTensorCheckpoint: expected a Mesh, got {mesh!r}.")
        super().__init__(root, **kwargs)
        self._mesh = mesh


def enable_save_as_bf16(variables: Sequence[Variable]) -> None:
    """Makes checkpoints keep float32 variables as bfloat16: half the size, 8 bits of precision.

    Args:
      variables: variables; those without a layout are left alone.
    """
    for variable in variables:
        if isinstance(variable, DVariable) or variable.layout is not None:
            variable.save_as_bf16 = True  # type: ignore[attr-defined]


def sharded_save(
    mesh: Mesh,
    file_prefix: Any,
    tensor_names: Any,
    shape_and_slices: Any,
    tensors: Sequence[Any],
) -> None:
    """Saves tensors under names; every process of the mesh calls it.

    Args:
      mesh: their mesh.
      file_prefix: path of the checkpoint.
      tensor_names: a name for each.
      shape_and_slices: "" for each; parts of tensors are not saved.
      tensors: tensors or variables.

    Raises:
      ValueError: when the numbers differ, or a slice is given.
      RuntimeError: while a function is traced.
    """
    del mesh
    if context.trace is not None:
        raise RuntimeError("sharded_save must run eagerly, not inside a tf.function.")
    names, slices = _texts(tensor_names), _texts(shape_and_slices)
    if not len(names) == len(slices) == len(tensors):
        raise InvalidValueError(
            f"sharded_save: got {len(names)} names, {len(slices)} slices and {len(tensors)} tensors; there must be "
            "one of each for each tensor."
        )
    if any(slices):
        raise InvalidValueError('sharded_save: the only shape_and_slices supported is "".')
    path = _texts(file_prefix)[0]
    written(path, {name: _value(t) for name, t in zip(names, tensors, strict=True)})


def name_based_save(
    mesh: Mesh, checkpoint_prefix: Any, name_tensor_dict: Mapping[str, Any]
) -> None:
    """Saves tensors under names.

    Args:
      mesh: their mesh.
      checkpoint_prefix: path of the checkpoint.
      name_tensor_dict: tensors or variables by name.

    Example:
      >>> import meshflow as tf
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
    mesh: Mesh, checkpoint_prefix: Any, name_tensor_dict: Mapping[str, Any]
) -> OrderedDict[str, Tensor]:
    """Reads what `name_based_save` or `sharded_save` wrote.

    Args:
      mesh: the mesh of the results.
      checkpoint_prefix: path of the checkpoint.
      name_tensor_dict: by name a tensor or variable of the shape, dtype and layout to read into.

    Returns:
      New tensors by name; the given ones keep their values.

    Raises:
      ValueError: for a tensor that is not on a mesh, or whose shape is not that of the stored one.
      NotFoundError: when there is no such checkpoint or name.
    """
    del mesh
    folder = open_checkpoint(_texts(checkpoint_prefix)[0])
    found: OrderedDict[str, Tensor] = OrderedDict()
    for name, like in name_tensor_dict.items():
        layout = layout_of(like) if isinstance(like, (Tensor, Variable)) else None
        if layout is None:
            raise InvalidValueError(
                f"Saving/Restoring tensor must be a DTensor: {name} is not on a mesh."
            )
        value = folder.open(name)
        if tuple(value.shape) != tuple(like.shape):
            raise InvalidValueError(
                f"name_based_restore: {name} was saved with shape {tuple(value.shape)}, the tensor to read into has "
                f"{tuple(like.shape)}."
            )
        found[name] = parts_of(value, layout, like.dtype.dtype)
    return found


def _texts(value: Any) -> list[str]:
    if isinstance(value, (str, bytes, os.PathLike)):
        return [os.fsdecode(value)]
    if isinstance(value, (Tensor, Variable)):
        value = value.numpy()
        if isinstance(value, (str, bytes)):
            return [os.fsdecode(value)]
    return [os.fsdecode(v) for v in value]


def _value(tensor: Any) -> Any:
    if isinstance(tensor, Variable):
        return stored(tensor)
    return convert_to_tensor(tensor)._value
