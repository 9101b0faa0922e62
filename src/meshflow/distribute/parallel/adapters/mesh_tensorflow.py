"""Translation of Mesh-TensorFlow's `mesh_shape` and `layout` flags into a `MeshStrategy`."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.devices import get_default_device_type, list_devices
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.parallel.rules import ShardingRules
from meshflow.distribute.parallel.strategy import MeshStrategy
from meshflow.placement.mesh import Mesh

# Names in Mesh-TensorFlow's transformers for the dimensions that Meshflow's layers name.
_SYNONYMS = {"hidden": "d_ff", "embed": "d_model", "key": "d_kv", "sequence": "length"}


def from_mesh_tensorflow(
    mesh_shape: str | Mapping[str, int], layout: str | Mapping[str, str] = "", **choices: Any
) -> MeshStrategy:
    """Create a strategy from Mesh-TensorFlow's settings.

    As in Mesh-TensorFlow, a rule for a dimension that the mesh does not have splits nothing, so
    that one layout serves several meshes; a warning lists such rules. The names "d_ff", "d_model",
    "d_kv" and "length" refer to the dimensions that Meshflow's layers call "hidden", "embed", "key"
    and "sequence".

    Args:
      mesh_shape: Names and sizes of the mesh dimensions, such as "rows:4;cols:2". An empty string
        is one device.
      layout: Mesh dimension that splits each named dimension, such as "batch:rows;hidden:cols".
      **choices: Fields of `ParallelOptions`.

    Returns:
      A `MeshStrategy` on the first devices of this process.

    Raises:
      ValueError: If `mesh_shape` or `layout` cannot be parsed, or if there are too few devices.

    Example:
      >>> strategy = tf.distribute.from_mesh_tensorflow("rows:2;cols:2", "batch:rows;hidden:cols")
      >>> strategy.mesh.dim_names, strategy.rules.dimensions("hidden")
      (['rows', 'cols'], ('cols',))
    """
    mesh = create_local_mesh(_parse_mesh_shape(mesh_shape))
    rules: dict[str, str] = {}
    unused: list[str] = []
    for name, target in _parse_pairs("layout", layout, "batch:rows;hidden:cols"):
        if target not in mesh:
            unused.append(f"{name}:{target}")
        elif rules.setdefault(name, target) != target:
            raise InvalidValueError(
                f"layout: {name!r} is split over {rules[name]!r} and over {target!r} of the mesh, but one dimension is "
                "allowed. To split it over both, pass the rule 'name:a+b' to MeshStrategy."
            )
    if unused:
        warnings.warn(
            f"from_mesh_tensorflow: the rules {unused} name no dimension of the mesh {mesh_shape!r}; as in "
            "Mesh-TensorFlow, they split nothing.",
            stacklevel=2,
        )
    return MeshStrategy(mesh, ShardingRules(rules, mesh, _SYNONYMS), **choices)


def _parse_mesh_shape(mesh_shape: str | Mapping[str, int]) -> dict[str, int]:
    pairs = _parse_pairs("mesh_shape", mesh_shape, "rows:4;cols:2")
    sizes = {name: int(size) for name, size in pairs if size.isdigit() and int(size)}
    if len(sizes) < len(pairs):
        raise InvalidValueError(
            "mesh_shape must name dimensions and their sizes, 1 or more, once each, as 'rows:4;cols:2'; got "
            f"{mesh_shape!r}."
        )
    return sizes or {"data": 1}


def _parse_pairs(option: str, value: object, example: str) -> list[tuple[str, str]]:
    """Parse (name, value) pairs as Mesh-TensorFlow does; commas, dots, semicolons and blanks separate them."""
    if isinstance(value, Mapping):
        return [(str(name), str(target)) for name, target in value.items()]
    parts = re.sub(r"[,.;\s]+", " ", value).split() if isinstance(value, str) else [value]
    pairs = [tuple(part.split(":")) if isinstance(part, str) else () for part in parts]
    if not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise InvalidValueError(
            f"{option} must be text such as {example!r}, or a dictionary; got {value!r}."
        )
    return [(name, target) for name, target in pairs]


def create_local_mesh(
    sizes: Mapping[str, int], devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """Create a mesh of the first devices of this process.

    Args:
      sizes: Sizes of the mesh dimensions by name.
      devices: Devices to use. By default all devices of the main kind.

    Returns:
      The mesh.

    Raises:
      ValueError: If there are too few devices.
    """
    count = math.prod(sizes.values())
    available = list(list_devices(get_default_device_type()) if devices is None else devices)
    if count > len(available) or count < 1:
        raise InvalidValueError(
            f"A mesh of {dict(sizes)} has {count} devices, there are {len(available)}. Call "
            "tf.config.set_logical_device_configuration before the first op to create virtual CPU devices."
        )
    ids = np.arange(count).reshape(tuple(sizes.values()))
    return Mesh(list(sizes), ids, list(range(count)), available[:count])
