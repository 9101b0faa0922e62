"""Set the environment variables by which XLA's GPU client decides how to take memory when it starts."""

from __future__ import annotations

import os

import jax

from meshflow.core.runtime import transfers
from meshflow.core.runtime.devices import DeviceState, is_backend_started, restart_backend
from meshflow.environment import jax_internals

_PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
# XLA refuses to be given both; the second is the older name.
_FRACTION, _OLD_FRACTION = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
# The share of a GPU's memory that XLA allocates by default.
_USUAL_FRACTION = 0.75
_INITIALIZED = "Physical devices cannot be modified after being initialized"


def grow(enable: bool) -> None:
    """Take memory as it is needed, or most of it at once.

    Args:
      enable: whether it is taken as it is needed.

    Raises:
      RuntimeError: when GPUs are in use already.
    """
    _renew({_PREALLOCATE: "false" if enable else "true"})


def limit(megabytes: int) -> None:
    """Limit the memory that is taken of each GPU.

    Args:
      megabytes: the limit.

    Raises:
      RuntimeError: when GPUs are in use already.
    """
    share = megabytes * (1 << 20) / _total_bytes()
    _renew({_FRACTION: f"{min(share, 1.0):.6f}", _OLD_FRACTION: None})


def _total_bytes() -> float:
    """Return the memory of the first GPU, which its client reports."""
    listed = DeviceState.only_listed or not is_backend_started()
    stats = jax.local_devices()[0].memory_stats() or {}
    DeviceState.only_listed = listed
    given = os.environ.get(_FRACTION) or os.environ.get(_OLD_FRACTION)
    most = stats.get("bytes_limit", 0)
    if not most:
        raise RuntimeError("The GPU does not report its memory, so it cannot be limited.")
    return most / (float(given) if given else _USUAL_FRACTION)


def _renew(wanted: dict[str, str | None]) -> None:
    """Set variables, and start GPUs that were only listed again with them."""
    if all(os.environ.get(name) == value for name, value in wanted.items()):
        return
    if not restart_backend():
        raise RuntimeError(_INITIALIZED)
    for name, value in wanted.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    jax_internals.renew_gpu_options()
    transfers.forget_place()
