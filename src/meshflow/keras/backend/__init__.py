"""Keras' global settings: float type, epsilon, image layout, unique names."""

from __future__ import annotations

import collections
from typing import Any

from meshflow.core.names import name_scope
from meshflow.keras.backend import experimental

__all__ = [
    "clear_session",
    "epsilon",
    "experimental",
    "floatx",
    "get_uid",
    "image_data_format",
    "is_keras_tensor",
    "learning_phase",
    "name_scope",
    "reset_uids",
    "set_epsilon",
    "set_floatx",
    "set_image_data_format",
    "set_learning_phase",
]

_settings: dict[str, Any] = {
    "floatx": "float32",
    "epsilon": 1e-7,
    "image_data_format": "channels_last",
    "learning_phase": None,
}
_uids: collections.Counter[str] = collections.Counter()
_seen_names: set[str] = set()


def floatx() -> str:
    """The default float type of layers and of NumPy input, `'float32'` unless changed.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.floatx()
      'float32'
    """
    return _settings["floatx"]


def set_floatx(value: str) -> None:
    """Sets the default float type.

    Args:
      value: 'float16', 'float32', 'float64' or 'bfloat16'.

    Raises:
      ValueError: for another type.
    """
    accepted = ("float16", "float32", "float64", "bfloat16")
    if value not in accepted:
        raise ValueError(f"Unknown `floatx` value: {value!r}. Expected one of {accepted}.")
    _settings["floatx"] = str(value)


def epsilon() -> float:
    """The fuzz factor used against division by zero, 1e-7 unless changed."""
    return _settings["epsilon"]


def set_epsilon(value: float) -> None:
    """Sets the fuzz factor.

    Args:
      value: a small positive number.
    """
    _settings["epsilon"] = float(value)


def image_data_format() -> str:
    """The default layout of images, `'channels_last'` unless changed."""
    return _settings["image_data_format"]


def standard_data_format(data_format: str | None) -> str:
    """The layout that a layer's `data_format` argument means.

    Args:
      data_format: 'channels_last', 'channels_first', in any case, or None for the default.

    Raises:
      ValueError: for another layout.
    """
    found = image_data_format() if data_format is None else str(data_format).lower()
    if found not in ("channels_last", "channels_first"):
        raise ValueError(
            f"The `data_format` argument must be one of 'channels_first', 'channels_last'. Received: {data_format}"
        )
    return found


def set_image_data_format(data_format: str) -> None:
    """Sets the default layout of images.

    Args:
      data_format: 'channels_last' or 'channels_first'.

    Raises:
      ValueError: for another layout.
    """
    if data_format not in ("channels_last", "channels_first"):
        raise ValueError(
            f"Unknown `data_format`: {data_format!r}. Expected 'channels_last' or 'channels_first'."
        )
    _settings["image_data_format"] = data_format


def learning_phase() -> int:
    """1 when `set_learning_phase(1)` was called, else 0."""
    return _settings["learning_phase"] or 0


def set_learning_phase(value: int) -> None:
    """Sets the default of `training` for layers called outside `fit`.

    Args:
      value: 0 (test) or 1 (train).

    Raises:
      ValueError: for another value.
    """
    if value not in (0, 1):
        raise ValueError(f"Expected learning phase to be 0 or 1, got {value!r}.")
    _settings["learning_phase"] = int(value)


def chosen_learning_phase() -> int | None:
    """The learning phase if the user set one, else None."""
    return _settings["learning_phase"]


def get_uid(prefix: str = "") -> int:
    """Counts up for each prefix, from 1.

    Args:
      prefix: any string.

    Returns:
      How often this prefix was asked for since the last `clear_session`.
    """
    _uids[prefix] += 1
    return _uids[prefix]


def reset_uids() -> None:
    """Starts automatic names from the beginning."""
    _uids.clear()
    _seen_names.clear()


def clear_session() -> None:
    """Resets automatic layer names and frees compiled programs."""
    import jax

    reset_uids()
    _settings["learning_phase"] = None
    jax.clear_caches()


def unique_name(base: str, zero_based: bool = True) -> str:
    """`base`, then `base_1`, `base_2`, ..."""
    number = get_uid(base) - (1 if zero_based else 0)
    return base if number == 0 else f"{base}_{number}"


def see_name(name: str) -> None:
    """Keeps a name that the user gave away from `unseen_name`."""
    _seen_names.add(name)


def unseen_name(base: str) -> str:
    """`unique_name` without the names that the user gave: for layers that nobody named on purpose."""
    name = unique_name(base)
    while name in _seen_names:
        name = unique_name(base)
    return name


def is_keras_tensor(x: Any) -> bool:
    """Whether `x` is a symbolic tensor of the Functional API.

    Args:
      x: a tensor.

    Returns:
      A bool.

    Raises:
      ValueError: when `x` is no tensor at all.
    """
    from meshflow.core.tensor import is_tensor

    if not is_tensor(x):
        raise ValueError(
            f"Unexpectedly found an instance of type `{type(x)}`. Expected a symbolic tensor."
        )
    return hasattr(x, "_keras_history")
