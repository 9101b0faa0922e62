"""`tf.nn`: activations, losses on logits, convolution, pooling, normalization."""

from meshflow.ops.nn.activation import *
from meshflow.ops.nn.activation import __all__ as _activation
from meshflow.ops.nn.convolution import *
from meshflow.ops.nn.convolution import __all__ as _convolution
from meshflow.ops.nn.cross_entropy import *
from meshflow.ops.nn.cross_entropy import __all__ as _cross_entropy
from meshflow.ops.nn.normalization import *
from meshflow.ops.nn.normalization import __all__ as _normalization
from meshflow.ops.nn.pooling import *
from meshflow.ops.nn.pooling import __all__ as _pooling

__all__ = [*_activation, *_convolution, *_cross_entropy, *_normalization, *_pooling]
