"""`tf.summary`: summaries for TensorBoard, written to event files."""

from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.summary import experimental
from meshflow.summary.recording import record_if, should_record_summaries, write
from meshflow.summary.summary_ops import audio, graph, histogram, image, scalar, text
from meshflow.summary.tracing import trace_export, trace_off, trace_on
from meshflow.summary.writers import SummaryWriter, create_file_writer, create_noop_writer, flush

__all__ = [
    "SummaryWriter",
    "audio",
    "create_file_writer",
    "create_noop_writer",
    "experimental",
    "flush",
    "graph",
    "histogram",
    "image",
    "record_if",
    "scalar",
    "should_record_summaries",
    "text",
    "trace_export",
    "trace_off",
    "trace_on",
    "write",
]

_hide_frames(globals())
