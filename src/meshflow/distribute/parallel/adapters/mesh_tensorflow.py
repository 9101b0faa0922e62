"""Mesh-TensorFlow's `mesh_shape` and `layout`, as its flags say them."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.devices import devices_of, main_kind
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.parallel.rules import Rules
from meshflow.distribute.parallel.strategy import MeshStrategy
from meshflow.placement.mesh import Mesh

__all__ = ["from_mesh_tensorflow", "mesh_of_sizes"]


# What layers call the dimensions of its transformers.
_SYNONYMS = {"hidden": "d_ff", "embed": "d_model", "key": "d_kv", "sequence": "length"}


def from_mesh_tensorflow(
    mesh_shape: str | Mapping[str, int], layout: str | Mapping[str, str] = "", **choices: Any
) -> MeshStrategy:
    """A strategy of Mesh-TensorFlow's settings.

    As there, a rule for a dimension that the mesh has not does nothing (but is warned of), so that one layout serves
    meshes with and without it. "d_ff", "d_model", "d_kv" and "length" are what layers here call "hidden", "embed",
    "key" and "sequence".

    Args:
      mesh_shape: names and sizes of the mesh's dimensions, "rows:4;cols:2"; "" is one device.
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
    mesh = mesh_of_sizes(_sizes(mesh_shape))
    rules: dict[str, str] = {}
    left: list[str] = []
    for name, target in _pairs("layout", layout, "batch:rows;hidden:cols"):
        if target not in mesh:
            left.append(f"{name}:{target}")
        elif rules.setdefault(name, target) != target:
            raise InvalidValueError(
                f"layout: {name!r} is split over {rules[name]!r} and over {target!r} of the mesh; one of them can. To "
                "split it over both, give MeshStrategy the rule 'name:a+b'."
            )
    if left:
        warnings.warn(
            f"from_mesh_tensorflow: the rules {left} name no dimension of the mesh {mesh_shape!r}; as in "
            "Mesh-TensorFlow, they split nothing.",
            stacklevel=2,
        )
    return MeshStrategy(mesh, Rules(rules, mesh, _SYNONYMS), **choices)


def _sizes(mesh_shape: Any) -> dict[str, int]:
    pairs = _pairs("mesh_shape", mesh_shape, "rows:4;cols:2")
    sizes = {name: int(size) for name, size in pairs if size.isdigit() and int(size)}
    if len(sizes) < len(pairs):
        raise InvalidValueError(
            "mesh_shape must name dimensions and their sizes, 1 or more, once each, as 'rows:4;cols:2'; got "
            f"{mesh_shape!r}."
        )
    return sizes or {"data": 1}


def _pairs(what: str, given: Any, example: str) -> list[tuple[str, str]]:
    """What a text as that of Mesh-TensorFlow's flags says; commas, dots, semicolons and blanks separate."""
    if isinstance(given, Mapping):
        return [(str(name), str(value)) for name, value in given.items()]
    parts = re.sub(r"[,.;\s]+", " ", given).split() if isinstance(given, str) else [given]
    pairs = [tuple(part.split(":")) if isinstance(part, str) else () for part in parts]
    if not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise InvalidValueError(
            f"{what} must be text such as {example!r}, or a dictionary; got {given!r}."
        )
    return [(name, value) for name, value in pairs]


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
