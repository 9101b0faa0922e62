"""`tf.strings`: string ops, computed on the host."""

from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.ops import hashing as _hashing
from meshflow.ops import strings as _strings
from meshflow.ops import unicode as _unicode
from meshflow.ops.hashing import (  # noqa: F401
    to_hash_bucket,
    to_hash_bucket_fast,
    to_hash_bucket_strong,
)
from meshflow.ops.strings import *  # noqa: F403
from meshflow.ops.unicode import *  # noqa: F403

__all__ = sorted(
    [n for n in _hashing.__all__ if n != "fingerprint"] + [*_strings.__all__, *_unicode.__all__]
)

__getattr__ = _explain_names("tf.strings")
