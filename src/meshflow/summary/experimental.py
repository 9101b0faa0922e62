"""`tf.summary.experimental`: the default step, summary scopes, and serialized summaries."""

from meshflow.summary.recording import summary_scope, write_raw_pb
from meshflow.summary.writers import get_step, set_step

__all__ = ["get_step", "set_step", "summary_scope", "write_raw_pb"]
