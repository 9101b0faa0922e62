"""Mesh-TensorFlow's `mesh_shape` and `layout`, as its flags say them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.devices import devices_of, main_kind
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.parallel.strategy import MeshStrategy
from meshflow.placement.mesh import Mesh

__all__ = ["from_mesh_tensorflow", "mesh_of_sizes"]


def from_mesh_tensorflow(
    mesh_shape: str | Mapping[str, int], layout: str | Mapping[str, str], **choices: Any
) -> MeshStrategy:
    """A strategy of Mesh-TensorFlow's settings.

    Args:
      mesh_shape: names and sizes of the mesh's dimensions, "rows:4;cols:2".
      layout: which of them splits which named dimension, "batch:rows;hidden:cols".
      **choices: fields of `ParallelOptions`.

    Returns:
      A `MeshStrategy` on the first devices.

    Raises:
      ValueError: for what is no mesh shape or layout, and when there are too few devices.

    Example:
      >>> import meshflow as tf
      >>> strategy = tf.distribute.from_mesh_tensorflow("rows:2;cols:2", "batch:rows;hidden:cols")
      >>> strategy.mesh.dim_names, strategy.rules.dimensions("hidden")
      (['rows', 'cols'], ('cols',))
    """
    return MeshStrategy(mesh_of_sizes(_sizes(mesh_shape)), layout, **choices)


def _sizes(mesh_shape: Any) -> dict[str, int]:
    if isinstance(mesh_shape, Mapping):
        return {str(name): int(size) for name, size in mesh_shape.items()}
    pairs = [
        part.partition(":") for part in str(mesh_shape).replace(",", ";").split(";") if part.strip()
    ]
    sizes = {name.strip(): size.strip() for name, _, size in pairs}
    if not sizes or len(sizes) < len(pairs) or not all(size.isdigit() for size in sizes.values()):
        raise InvalidValueError(
            f"mesh_shape must name dimensions and their sizes once each, as 'rows:4;cols:2'; got {mesh_shape!r}."
        )
    return {name: int(size) for name, size in sizes.items()}


def mesh_of_sizes(sizes: Mapping[str, int], devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of the first devices of this process.

    Args:
      sizes: the mesh's dimensions.
      devices: the devices; default all of the main kind.

    Raises:
      ValueError: when there are too few.
    """
    count = math.prod(sizes.values())
    known = list(devices_of(main_kind()) if devices is None else devices)
    if count > len(known) or count < 1:
        raise InvalidValueError(
            f"A mesh of {dict(sizes)} has {count} devices, there are {len(known)}. Virtual CPU devices are made by "
            "tf.config.set_logical_device_configuration before the first op."
        )
    ids = np.arange(count).reshape(tuple(sizes.values()))
    return Mesh(list(sizes), ids, list(range(count)), known[:count])
