"""Bitwise equal results in every run: what has to be asked of XLA, and what is refused.

Programs compiled for the CPU always give the same bits. On a GPU XLA is told to leave out code
that adds in no fixed order, which must happen before its first program. Numbers without a seed
cannot be the same twice, so they are refused.
"""

from __future__ import annotations

import os

import jax

from meshflow.core.runtime.devices import backend_started

_FLAG = "--xla_gpu_deterministic_ops=true"
_state = {"enabled": False}


def enable() -> None:
    """Turns determinism on, for the whole process.

    Raises:
      RuntimeError: when a GPU was used before without it.
    """
    if _state["enabled"]:
        return
    if _FLAG not in os.environ.get("XLA_FLAGS", ""):
        if backend_started() and _on_gpu():
            raise RuntimeError(
                "Op determinism must be enabled before the first op runs on a GPU: call "
                "tf.config.experimental.enable_op_determinism() first, or set TF_DETERMINISTIC_OPS=1."
            )
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()
    _state["enabled"] = True


def enabled() -> bool:
    """Whether determinism is on."""
    return _state["enabled"]


def from_environment() -> None:
    """Turns determinism on when TF_DETERMINISTIC_OPS says so."""
    if os.environ.get("TF_DETERMINISTIC_OPS", "").lower() in ("1", "true"):
        enable()


def require_seed(what: str) -> None:
    """Refuses what takes its seed from the system.

    Args:
      what: its name.

    Raises:
      RuntimeError: when determinism is on.
    """
    if _state["enabled"]:
        raise RuntimeError(
            f"{what} require a seed to be set when determinism is enabled. Please set a seed before "
            "running the op, e.g. by calling tf.random.set_seed(1)."
        )


def _on_gpu() -> bool:
    return jax.default_backend() == "gpu"
