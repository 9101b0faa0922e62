"""Where float8 products exist."""

from __future__ import annotations

import jax


def unavailable() -> str | None:
    """Why the default device has no float8 matrix units; None when it has them."""
    device = jax.devices()[0]
    if device.platform == "gpu":
        capability = str(getattr(device, "compute_capability", "0"))
        if float(capability) >= 8.9:
            return None
        return f"needs compute capability 8.9 or newer, {device.device_kind} has {capability}"
    return f"needs a GPU with float8 matrix units, found {device.device_kind}"
