"""`tf.experimental.extension_type`: functions of extension types."""

from __future__ import annotations

from typing import Any

from meshflow.experimental.extension_types import ExtensionType, get_fields

__all__ = ["as_dict"]


def as_dict(value: ExtensionType) -> dict[str, Any]:
    """Return the fields of an extension type as a dictionary.

    Example:
      >>> class Pair(tf.experimental.ExtensionType):
      ...     first: int
      ...     second: str
      >>> tf.experimental.extension_type.as_dict(Pair(1, "x"))
      {'first': 1, 'second': 'x'}
    """
    return {field.name: getattr(value, field.name) for field in get_fields(value)}
