"""The error for operands of one computation that are on different devices or meshes."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from meshflow.core.runtime.devices import get_device_type, get_local_index
from meshflow.core.runtime.errors import InvalidValueError

# Parts of JAX's messages about incompatible devices.
_JAX_MESSAGES = (
    "Received incompatible devices",
    "mesh should be the same across the entire program",
)


def is_placement_error(error: Exception) -> bool:
    """Check whether an error is JAX's error about incompatible devices or meshes."""
    return isinstance(error, ValueError) and any(s in str(error) for s in _JAX_MESSAGES)


def make_placement_error(name: str, values: Sequence[tuple[str, object]]) -> InvalidValueError:
    """Return an error that describes the location of each operand of a computation.

    Args:
      name: Name of the computation.
      values: Pairs of a name and an array; the name is empty for unnamed operands.
    """
    groups: dict[str, list[str]] = {}
    for label, value in values:
        if isinstance(value, jax.Array) and value.committed:
            shape = f"{value.dtype}{list(value.shape)}"
            groups.setdefault(_describe_location(value), []).append(f"{label} {shape}".strip())
    parts = []
    for location, arrays in groups.items():
        more = f" and {len(arrays) - 3} others" if len(arrays) > 3 else ""
        parts.append(f"{', '.join(arrays[:3])}{more} on {location}")
    return InvalidValueError(
        f"{name}: its tensors are on different meshes: {'; '.join(parts)}. Bring them to one mesh, with "
        "dtensor.relayout or dtensor.copy_to_mesh, or give variables layouts on one mesh. "
        f"[Op:{name}]"
    )


def _describe_location(value: jax.Array) -> str:
    sharding = value.sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        devices = sharding.mesh.devices.ravel().tolist()
        dims = ", ".join(f"{n}={s}" for n, s in sharding.mesh.shape.items())
        return f"the mesh ({dims}) of {_format_devices(devices)}"
    return _format_devices(sorted(sharding.device_set, key=lambda d: d.id))


def _format_devices(devices: Sequence[jax.Device]) -> str:
    own_process = jax.process_index()
    names = [
        f"{get_device_type(d)}:{get_local_index(d) if d.process_index == own_process else d.id}"
        for d in devices
    ]
    return ", ".join(names) if len(names) <= 8 else f"{names[0]} ... {names[-1]}"
