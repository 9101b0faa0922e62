"""`tf.nn`: neural network ops."""

from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.ops import nn as _nn
from meshflow.ops.array import depth_to_space as depth_to_space
from meshflow.ops.array import space_to_batch as space_to_batch
from meshflow.ops.array import space_to_depth as space_to_depth
from meshflow.ops.math import approx_max_k as approx_max_k
from meshflow.ops.math import approx_min_k as approx_min_k
from meshflow.ops.nn import *  # noqa: F403
from meshflow.ops.nn import experimental as experimental

# TensorFlow has these two samplers only in tf.random.
_RANDOM = ("log_uniform_candidate_sampler", "uniform_candidate_sampler")
# `__path__` makes the namespaces importable by their paths.
__path__: list[str] = []

__all__ = sorted(
    [n for n in _nn.__all__ if n not in _RANDOM]
    + ["approx_max_k", "approx_min_k", "depth_to_space", "experimental"]
    + ["space_to_batch", "space_to_depth"]
)

_WRAPPERS = {
    f"RNNCell{name}": f"meshflow.legacy.rnn_cells:{name}"
    for name in ("DeviceWrapper", "DropoutWrapper", "ResidualWrapper")
}
__getattr__ = _explain_names("tf.nn", _WRAPPERS)
