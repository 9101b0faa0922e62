"""The public package that contains this one; `tf.compat.v1` and `tf.compat.v2` re-export its names.

It is looked up instead of imported, because it imports this package.
"""

from __future__ import annotations

from typing import Any

from meshflow.core.runtime.import_paths import get_public_package

tf: Any = get_public_package()
