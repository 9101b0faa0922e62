"""The error for values that lie on different devices or meshes and meet in one computation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from meshflow.core.runtime.devices import local_index, type_of
from meshflow.core.runtime.errors import InvalidValueError

# How JAX's messages begin.
_SIGNS = ("Received incompatible devices", "mesh should be the same across the entire program")


def is_placement_error(error: Exception) -> bool:
    """Whether JAX complains about devices or meshes."""
    return isinstance(error, ValueError) and any(s in str(error) for s in _SIGNS)


def placement_error(name: str, values: Sequence[tuple[str, Any]]) -> InvalidValueError:
    """The error, naming the computation and where its values lie.

    Args:
      name: the computation.
      values: arrays with what they are called, "" where they have no name.
    """
    groups: dict[str, list[str]] = {}
    for label, value in values:
        if isinstance(value, jax.Array) and value.committed:
            shape = f"{value.dtype}{list(value.shape)}"
            groups.setdefault(_place(value), []).append(f"{label} {shape}".strip())
    parts = []
    for place, found in groups.items():
        more = f" and {len(found) - 3} others" if len(found) > 3 else ""
        parts.append(f"{', '.join(found[:3])}{more} on {place}")
    return InvalidValueError(
        f"{name}: its tensors lie on different meshes: {'; '.join(parts)}. Bring them to one mesh, with "
        "dtensor.relayout or dtensor.copy_to_mesh, or give variables layouts on one mesh. "
        f"[Op:{name}]"
    )


def _place(value: jax.Array) -> str:
    sharding = value.sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        devices = sharding.mesh.devices.ravel().tolist()
        dims = ", ".join(f"{n}={s}" for n, s in sharding.mesh.shape.items())
        return f"the mesh ({dims}) of {_names(devices)}"
    return _names(sorted(sharding.device_set, key=lambda d: d.id))


def _names(devices: Sequence[Any]) -> str:
    own = jax.process_index()
    names = [f"{type_of(d)}:{local_index(d) if d.process_index == own else d.id}" for d in devices]
    return ", ".join(names) if len(names) <= 8 else f"{names[0]} ... {names[-1]}"
