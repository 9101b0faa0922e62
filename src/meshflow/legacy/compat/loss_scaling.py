"""`tf.compat.v1.mixed_precision`: loss scales and the graph rewrite of TensorFlow 1."""

from meshflow.legacy.compat.public_package import tf as _tf

__all__ = [
    "DynamicLossScale",
    "FixedLossScale",
    "LossScale",
    "MixedPrecisionLossScaleOptimizer",
    "disable_mixed_precision_graph_rewrite",
    "enable_mixed_precision_graph_rewrite",
    "experimental",
]

_experimental = _tf.train.experimental
DynamicLossScale = _experimental.DynamicLossScale
FixedLossScale = _experimental.FixedLossScale
LossScale = _experimental.LossScale
MixedPrecisionLossScaleOptimizer = _tf.keras.mixed_precision.experimental.LossScaleOptimizer
disable_mixed_precision_graph_rewrite = _experimental.disable_mixed_precision_graph_rewrite
enable_mixed_precision_graph_rewrite = _experimental.enable_mixed_precision_graph_rewrite
experimental = _tf.mixed_precision.experimental
