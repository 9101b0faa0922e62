"""The package around this one: what `tf.compat.v1` and `tf.compat.v2` give other names to.

It is looked up, not imported: its face knows this package.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["tf"]

tf: Any = sys.modules["meshflow"]
