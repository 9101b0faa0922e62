"""`tf.config.optimizer`: options of the graph optimizer, kept for the passes that read them."""

from __future__ import annotations

from typing import Any

import jax

from meshflow import passes
from meshflow.core.tracing import pass_pipeline

__all__ = ["get_experimental_options", "get_jit", "set_experimental_options", "set_jit"]

_options: dict[str, Any] = {"disable_model_pruning": False, "disable_meta_optimizer": False}
_jit = {"enabled": ""}

# The options that ask for mixed precision, and the low precision; None goes by the device.
_PRECISIONS: dict[str, str | None] = {
    "auto_mixed_precision": None,
    "auto_mixed_precision_mkl": "bfloat16",
    "auto_mixed_precision_onednn_bfloat16": "bfloat16",
    "auto_mixed_precision_cpu": "bfloat16",
}


def set_experimental_options(options: dict[str, Any]) -> None:
    """Sets options.

    Args:
      options: option names and values. `auto_mixed_precision` (float16 on GPUs, bfloat16 elsewhere)
        and `auto_mixed_precision_onednn_bfloat16` (bfloat16) rewrite every `tf.function` and Keras
        step to compute in mixed precision where that is safe; other options are only kept, as XLA
        optimizes programs itself.

    Raises:
      ValueError: for both kinds of mixed precision at once.

    Example:
      >>> import meshflow as tf
      >>> tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
      >>> tf.config.optimizer.get_experimental_options()["auto_mixed_precision"]
      True
      >>> tf.config.optimizer.set_experimental_options({"auto_mixed_precision": False})
    """
    merged = {**_options, **options}
    dtypes = [dtype for name, dtype in _PRECISIONS.items() if merged.get(name)]
    if len(dtypes) > 1:
        raise ValueError(
            f"Only one of {[n for n in _PRECISIONS if merged.get(n)]} can be on at a time."
        )
    _options.update(options)
    pass_pipeline.install("mixed_precision", _mixed_precision(dtypes[0]) if dtypes else None)


def _mixed_precision(dtype: str | None) -> Any:
    def rewrite(closed: Any) -> Any:
        # The device is asked when the first function is compiled, which starts it anyway.
        low = dtype or ("float16" if jax.default_backend() == "gpu" else "bfloat16")
        return passes.rewrite(closed, dtype=low)

    return rewrite


def get_experimental_options() -> dict[str, Any]:
    """The options set so far."""
    return dict(_options)


def set_jit(enabled: Any) -> None:
    """Accepted: everything is compiled by XLA anyway."""
    _jit["enabled"] = "autoclustering" if enabled is True else enabled or ""


def get_jit() -> str:
    """What `set_jit` set; empty before."""
    return _jit["enabled"]
