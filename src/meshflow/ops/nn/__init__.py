"""`tf.nn`: activations, losses on logits, convolution, pooling, normalization."""

from meshflow.ops.nn.activation import *
from meshflow.ops.nn.activation import __all__ as _activation
from meshflow.ops.nn.convolution import *
from meshflow.ops.nn.convolution import __all__ as _convolution
from meshflow.ops.nn.cross_entropy import *
from meshflow.ops.nn.cross_entropy import __all__ as _cross_entropy
from meshflow.ops.nn.ctc import *
from meshflow.ops.nn.ctc import __all__ as _ctc
from meshflow.ops.nn.ctc_decoding import *
from meshflow.ops.nn.ctc_decoding import __all__ as _ctc_decoding
from meshflow.ops.nn.depthwise_convolution import *
from meshflow.ops.nn.depthwise_convolution import __all__ as _depthwise_convolution
from meshflow.ops.nn.embedding import *
from meshflow.ops.nn.embedding import __all__ as _embedding
from meshflow.ops.nn.fractional_pooling import *
from meshflow.ops.nn.fractional_pooling import __all__ as _fractional_pooling
from meshflow.ops.nn.isotonic import *
from meshflow.ops.nn.isotonic import __all__ as _isotonic
from meshflow.ops.nn.morphology import *
from meshflow.ops.nn.morphology import __all__ as _morphology
from meshflow.ops.nn.normalization import *
from meshflow.ops.nn.normalization import __all__ as _normalization
from meshflow.ops.nn.pooling import *
from meshflow.ops.nn.pooling import __all__ as _pooling
from meshflow.ops.nn.sampling import *
from meshflow.ops.nn.sampling import __all__ as _sampling
from meshflow.ops.nn.transposed_convolution import *
from meshflow.ops.nn.transposed_convolution import __all__ as _transposed_convolution

__all__ = [
    *_activation,
    *_convolution,
    *_cross_entropy,
    *_ctc,
    *_ctc_decoding,
    *_depthwise_convolution,
    *_embedding,
    *_fractional_pooling,
    *_isotonic,
    *_morphology,
    *_normalization,
    *_pooling,
    *_sampling,
    *_transposed_convolution,
]
