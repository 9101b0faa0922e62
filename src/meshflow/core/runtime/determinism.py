"""Op determinism: bitwise equal results in every run.

CPU programs are deterministic already. For GPUs this module sets an XLA flag that avoids reductions
in an undefined order; it must be set before the first program is compiled. Random ops without a
seed draw from the operating system and raise an error in this mode.
"""

from __future__ import annotations

import os

import jax

from meshflow.core.runtime.devices import is_backend_started

_FLAG = "--xla_gpu_deterministic_ops=true"
_state = {"enabled": False}


def enable() -> None:
    """Enable op determinism for this process.

    Raises:
      RuntimeError: If a GPU was already used without it.
    """
    if _state["enabled"]:
        return
    if _FLAG not in os.environ.get("XLA_FLAGS", ""):
        if is_backend_started() and _runs_on_gpu():
            raise RuntimeError(
                "Op determinism must be enabled before the first op runs on a GPU: call "
                "tf.config.experimental.enable_op_determinism() first, or set TF_DETERMINISTIC_OPS=1."
            )
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()
    _state["enabled"] = True


def disable() -> None:
    """Let random ops draw from the operating system again; XLA's flag for GPUs remains set."""
    _state["enabled"] = False


def is_enabled() -> bool:
    """Check whether op determinism is enabled."""
    return _state["enabled"]


def enable_from_environment() -> None:
    """Enable op determinism if the environment variable TF_DETERMINISTIC_OPS is set to 1 or true."""
    if os.environ.get("TF_DETERMINISTIC_OPS", "").lower() in ("1", "true"):
        enable()


def require_seed(name: str) -> None:
    """Raise an error if op determinism is enabled, for an op that has no seed.

    Args:
      name: Name of the op, as the subject of the message.

    Raises:
      RuntimeError: If op determinism is enabled.
    """
    if _state["enabled"]:
        raise RuntimeError(
            f"{name} require a seed to be set when determinism is enabled. Please set a seed before "
            "running the op, e.g. by calling tf.random.set_seed(1)."
        )


def _runs_on_gpu() -> bool:
    return jax.default_backend() == "gpu"
