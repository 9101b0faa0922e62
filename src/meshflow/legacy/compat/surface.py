"""The package around this one: what `tf.compat.v1` and `tf.compat.v2` give other names to.

It is looked up, not imported: its face knows this package.
"""

from __future__ import annotations

from typing import Any

from meshflow.core.runtime.import_paths import public_face

__all__ = ["tf"]

tf: Any = public_face()
