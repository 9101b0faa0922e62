"""`tf.config.optimizer`: options of the graph optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from meshflow import passes
from meshflow.core.tracing import pass_pipeline
from meshflow.environment.types import ClosedJaxpr

__all__ = ["get_experimental_options", "get_jit", "set_experimental_options", "set_jit"]

_options: dict[str, Any] = {"disable_model_pruning": False, "disable_meta_optimizer": False}
_jit = {"enabled": ""}

# Options that enable mixed precision, with the low-precision dtype; None selects it by the device.
_PRECISIONS: dict[str, str | None] = {
    "auto_mixed_precision": None,
    "auto_mixed_precision_mkl": "bfloat16",
    "auto_mixed_precision_onednn_bfloat16": "bfloat16",
    "auto_mixed_precision_cpu": "bfloat16",
}


def set_experimental_options(options: dict[str, Any]) -> None:
    """Set options of the graph optimizer.

    Args:
      options: Names and values of options. `auto_mixed_precision` (float16 on GPUs, bfloat16 on
        other devices) and `auto_mixed_precision_onednn_bfloat16` (bfloat16) rewrite every
        `tf.function` and Keras step to compute in mixed precision where that is safe. Other options
        are stored without effect, because XLA has its own optimizations.

    Raises:
      ValueError: If several mixed-precision options are enabled at once.

    Example:
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
    pass_pipeline.install_pass(
        "mixed_precision", _make_mixed_precision_pass(dtypes[0]) if dtypes else None
    )


def _make_mixed_precision_pass(dtype: str | None) -> Callable[[ClosedJaxpr], ClosedJaxpr]:
    def rewrite(closed: ClosedJaxpr) -> ClosedJaxpr:
        # The query starts the backend. It is deferred until the first function is compiled, which
        # starts the backend anyway.
        low = dtype or ("float16" if jax.default_backend() == "gpu" else "bfloat16")
        return passes.rewrite(closed, dtype=low)

    return rewrite


def get_experimental_options() -> dict[str, Any]:
    """Return the options that were set."""
    return dict(_options)


def set_jit(enabled: bool | str) -> None:
    """Store the setting; it has no effect, because XLA compiles everything."""
    _jit["enabled"] = "autoclustering" if enabled is True else enabled or ""


def get_jit() -> str:
    """Return the value that `set_jit` set, or an empty string."""
    return _jit["enabled"]
