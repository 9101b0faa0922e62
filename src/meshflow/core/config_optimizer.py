"""`tf.config.optimizer`: options of the graph optimizer, kept for the passes that read them."""

from __future__ import annotations

from typing import Any

__all__ = ["get_experimental_options", "get_jit", "set_experimental_options", "set_jit"]

_options: dict[str, Any] = {"disable_model_pruning": False, "disable_meta_optimizer": False}
_jit = {"enabled": ""}


def set_experimental_options(options: dict[str, Any]) -> None:
    """Sets options.

    Args:
      options: option names and values.

    Raises:
      NotImplementedError: for automatic mixed precision, which is not available yet.
    """
    if any(k.startswith("auto_mixed_precision") and v for k, v in options.items()):
        raise NotImplementedError(
            "Automatic mixed precision rewriting is not available yet: use tf.keras.mixed_precision policies."
        )
    _options.update(options)


def get_experimental_options() -> dict[str, Any]:
    """The options set so far."""
    return dict(_options)


def set_jit(enabled: Any) -> None:
    """Accepted: everything is compiled by XLA anyway."""
    _jit["enabled"] = "autoclustering" if enabled is True else enabled or ""


def get_jit() -> str:
    """What `set_jit` set; empty before."""
    return _jit["enabled"]
