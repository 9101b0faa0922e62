"""`tf.experimental.extension_type`: functions of extension types."""

from __future__ import annotations

from meshflow.experimental.extension_types import as_dict

__all__ = ["as_dict"]
