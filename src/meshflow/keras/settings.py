"""Global settings: float type, epsilon, image layout, learning phase and unique names."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from meshflow.core.dispatch.memory_release import free_memory
from meshflow.core.runtime.context import context
from meshflow.core.values.dtypes import as_dtype

__all__ = [
    "backend",
    "clear_session",
    "epsilon",
    "floatx",
    "get_uid",
    "image_data_format",
    "learning_phase_scope",
    "manual_variable_initialization",
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
}
_uids: collections.Counter[str] = collections.Counter()
_reserved_names: set[str] = set()
# The learning phase that the user set, followed by those of active `with` blocks; None if unset.
_phases: list[int | None] = [None]


def floatx() -> str:
    """Return the default float type of layers and of NumPy input, `'float32'` unless changed.

    Example:
      >>> tf.keras.backend.floatx()
      'float32'
    """
    return _settings["floatx"]


def as_floatx(value: float) -> float:
    """Round a number to the default float type, as Keras 2 does for some settings."""
    return float(np.asarray(value, as_dtype(_settings["floatx"]).as_numpy_dtype))


def set_floatx(value: str) -> None:
    """Set the default float type.

    Args:
      value: 'float16', 'float32', 'float64' or 'bfloat16'.

    Raises:
      ValueError: For another type.

    Example:
      >>> tf.keras.backend.set_floatx("float64")
      >>> tf.keras.layers.Dense(2).dtype
      'float64'
      >>> tf.keras.backend.set_floatx("float32")
    """
    accepted = ("float16", "float32", "float64", "bfloat16")
    if value not in accepted:
        raise ValueError(f"Unknown `floatx` value: {value!r}. Expected one of {accepted}.")
    _settings["floatx"] = str(value)


def epsilon() -> float:
    """Return the small number that prevents divisions by zero, 1e-7 unless changed.

    Example:
      >>> tf.keras.backend.epsilon()
      1e-07
    """
    return _settings["epsilon"]


def set_epsilon(value: float) -> None:
    """Set the small number that prevents divisions by zero.

    Args:
      value: A small positive number.

    Example:
      >>> tf.keras.backend.set_epsilon(1e-5)
      >>> tf.keras.backend.epsilon()
      1e-05
      >>> tf.keras.backend.set_epsilon(1e-7)
    """
    _settings["epsilon"] = float(value)


def image_data_format() -> str:
    """Return the default layout of images, `'channels_last'` unless changed.

    Example:
      >>> tf.keras.backend.image_data_format()
      'channels_last'
    """
    return _settings["image_data_format"]


def normalize_data_format(data_format: str | None) -> str:
    """Normalize the `data_format` argument of a layer.

    Args:
      data_format: 'channels_last' or 'channels_first' in upper or lower case, or None for the
        default.

    Raises:
      ValueError: For another layout.
    """
    layout = image_data_format() if data_format is None else str(data_format).lower()
    if layout not in ("channels_last", "channels_first"):
        raise ValueError(
            f"The `data_format` argument must be one of 'channels_first', 'channels_last'. Received: {data_format}"
        )
    return layout


def set_image_data_format(data_format: str) -> None:
    """Set the default layout of images.

    Args:
      data_format: 'channels_last' or 'channels_first'.

    Raises:
      ValueError: For another layout.

    Example:
      >>> tf.keras.backend.set_image_data_format("channels_first")
      >>> tf.keras.layers.GlobalMaxPooling2D()(tf.ones([1, 3, 4, 6])).shape
      TensorShape([1, 3])
      >>> tf.keras.backend.set_image_data_format("channels_last")
    """
    if data_format not in ("channels_last", "channels_first"):
        raise ValueError(
            f"Unknown `data_format`: {data_format!r}. Expected 'channels_last' or 'channels_first'."
        )
    _settings["image_data_format"] = data_format


def get_explicit_learning_phase() -> int | None:
    """Return the learning phase that the user set, or None."""
    return _phases[-1]


def _check_phase(value: int) -> int:
    if value not in (0, 1):
        raise ValueError(f"Expected learning phase to be 0 or 1, got {value!r}.")
    return int(value)


def set_learning_phase(value: int) -> None:
    """Set the default of `training` for layers that are called outside `fit`.

    Args:
      value: 0 (test) or 1 (train).

    Raises:
      ValueError: For another value.

    Example:
      >>> tf.keras.backend.set_learning_phase(1)
      >>> tf.keras.backend.in_train_phase("train", "test")
      'train'
      >>> tf.keras.backend.clear_session()
    """
    _phases[-1] = _check_phase(value)


@contextlib.contextmanager
def learning_phase_scope(value: int) -> Iterator[None]:
    """Set the learning phase within a `with` block.

    Args:
      value: 0 (test) or 1 (train).

    Raises:
      ValueError: For another value.

    Example:
      >>> with tf.keras.backend.learning_phase_scope(1):
      ...     tf.keras.layers.Dropout(0.5)(tf.ones([4])).shape
      TensorShape([4])
    """
    _phases.append(_check_phase(value))
    try:
        yield
    finally:
        _phases.pop()


def get_uid(prefix: str = "") -> int:
    """Return the next number for a prefix, from 1.

    Args:
      prefix: Any string.

    Returns:
      The number of calls with this prefix since the last `clear_session`. While a function is
      traced or a layer is called on symbolic tensors, only the calls of this trace count.

    Example:
      >>> [tf.keras.backend.get_uid(name) for name in ("thing", "thing", "other")]
      [1, 2, 1]
    """
    counts = _uids if context.name_counts is None else context.name_counts
    counts[prefix] += 1
    return counts[prefix]


def reset_uids() -> None:
    """Restart the numbers of automatic names.

    Example:
      >>> tf.keras.backend.get_uid("thing")
      1
      >>> tf.keras.backend.reset_uids()
      >>> tf.keras.backend.get_uid("thing")
      1
    """
    _uids.clear()
    _reserved_names.clear()


def clear_session() -> None:
    """Reset automatic layer names and the learning phase, and release caches.

    Compiled programs, large buffers for the next step, and unreferenced models are freed. Models
    that are still referenced keep working; their next step compiles again.

    Example:
      >>> first = tf.keras.layers.Dense(2).name
      >>> tf.keras.backend.clear_session()
      >>> tf.keras.layers.Dense(2).name == first
      True
    """
    reset_uids()
    _phases[:] = [None]
    free_memory()


def make_unique_name(base: str, zero_based: bool = True) -> str:
    """Return `base` (only if `zero_based`), then `base_1`, `base_2`, and so on."""
    count = get_uid(base) - (1 if zero_based else 0)
    return base if count == 0 else f"{base}_{count}"


def reserve_name(name: str) -> None:
    """Exclude a name that the user chose from `make_unreserved_name`."""
    _reserved_names.add(name)


def make_unreserved_name(base: str) -> str:
    """Return a unique name that the user has not chosen, for a layer without an explicit name."""
    name = make_unique_name(base)
    while name in _reserved_names:
        name = make_unique_name(base)
    return name


def backend() -> str:
    """Return `'tensorflow'`, because programs that check the backend expect its behavior.

    Example:
      >>> tf.keras.backend.backend()
      'tensorflow'
    """
    return "tensorflow"


def manual_variable_initialization(value: bool) -> None:
    """Do nothing: variables always have their initial values."""
    del value
