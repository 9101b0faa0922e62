"""`tf.autograph`: Python control flow on tensors."""

from meshflow.autograph import experimental as experimental
from meshflow.core.autograph import set_verbosity, to_code, to_graph, trace

__all__ = ["experimental", "set_verbosity", "to_code", "to_graph", "trace"]
