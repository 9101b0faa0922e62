"""Recording of summaries, eagerly and in compiled programs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.name_scopes import get_current_name_scope, name_scope
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import bool_, int64, string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.distribute import get_replica_context
from meshflow.io import protos
from meshflow.io.tensors import to_tensor_proto
from meshflow.ops import math as _math
from meshflow.ops.python_function import numpy_function
from meshflow.summary.writers import StepLike, SummaryWriter, _NoopWriter, state


@contextmanager
def record_if(condition: Any) -> Iterator[None]:
    """Record summaries in the block only if a condition holds.

    Args:
      condition: A bool, a Boolean tensor, or a function that returns one for each summary.

    Example:
      >>> with tf.summary.record_if(lambda: tf.equal(tf.summary.experimental.get_step() % 100, 0)):
      ...     pass
    """
    before, state.recording = state.recording, condition
    try:
        yield
    finally:
        state.recording = before


def should_record_summaries() -> Tensor:
    """Return whether a summary would be recorded now, as a Boolean scalar.

    Without a default writer, the result is False.

    Example:
      >>> import tempfile
      >>> bool(tf.summary.should_record_summaries())
      False
      >>> with tempfile.TemporaryDirectory() as folder, tf.summary.create_file_writer(folder).as_default():
      ...     bool(tf.summary.should_record_summaries())
      True
    """
    if state.writer is None:
        return convert_to_tensor(False)
    condition = state.recording
    if callable(condition):
        condition = condition()
    allowed = convert_to_tensor(True if condition is None else condition, bool_)
    if context.replica_program is None:
        return allowed
    # Only the first replica records summaries.
    replica = get_replica_context().replica_id_in_sync_group
    return _math.logical_and(allowed, _math.equal(replica, 0))


@contextmanager
def summary_scope(
    name: str, default_name: str = "summary", values: Any = None
) -> Iterator[tuple[str, str]]:
    """Open a name scope for a summary.

    Args:
      name: Name of the summary.
      default_name: Replacement for an empty name.
      values: Ignored.

    Yields:
      The tag of the summary, which includes the enclosing name scopes, and the name scope.

    Example:
      >>> with tf.name_scope("train"), tf.summary.experimental.summary_scope("loss") as (tag, scope):
      ...     tag, scope
      ('train/loss', 'train/loss/')
    """
    inner = name or default_name
    outer = get_current_name_scope()
    with name_scope(inner) as scope:
        yield (f"{outer}/{inner}" if outer else inner), scope


def make_metadata(plugin: str, description: str | None = None, content: bytes = b"") -> Any:
    """Return a `SummaryMetadata` message, by which TensorBoard selects the plugin.

    Args:
      plugin: Name of the TensorBoard plugin.
      description: Markdown text to show with the summary.
      content: Serialized metadata of the plugin.
    """
    return protos.SummaryMetadata(
        plugin_data={"plugin_name": plugin, "content": content},
        summary_description=description or "",
    )


def write(
    tag: str, tensor: Any, step: StepLike = None, metadata: Any = None, name: str | None = None
) -> Tensor:
    """Write a tensor to the default writer, and return whether it was recorded.

    Args:
      tag: Tag of the summary, without name scopes.
      tensor: The tensor, or a function that returns it and is called if the summary is recorded.
      step: Training step; default `tf.summary.experimental.get_step()`.
      metadata: A `SummaryMetadata` message.
      name: Ignored.

    Raises:
      ValueError: There is a default writer but no step.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder, tf.summary.create_file_writer(folder).as_default():
      ...     bool(tf.summary.write("tag", tf.constant([1.0, 2.0]), step=0))
      True
    """
    if metadata is not None:
        metadata = protos.SummaryMetadata.FromString(metadata.SerializeToString())
    return record(tag, tensor, step, lambda: metadata)


def record(
    tag: str,
    tensor: Any,
    step: StepLike,
    metadata: Callable[[], Any],
    encode: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> Tensor:
    """Write the encoded value of a tensor, and return whether it was recorded.

    Args:
      tag: Tag of the summary.
      tensor: The tensor, or a function that returns it.
      step: Training step; None for the default step.
      metadata: Function that returns a `SummaryMetadata` message or None.
      encode: Function from the tensor's value to the array to write.

    Raises:
      ValueError: There is a default writer but no step.
    """
    writer = state.writer
    if writer is None or isinstance(writer, _NoopWriter):
        return convert_to_tensor(False)
    current = state.step if step is None else step
    if current is None:
        raise ValueError(
            "No step set. Please specify one either through the `step` argument or through "
            "tf.summary.experimental.set_step()"
        )
    index = convert_to_tensor(current, None if hasattr(current, "dtype") else int64)
    if not index.dtype.is_integer:
        raise TypeError(f"The step of a summary must be an integer, got {index.dtype.name}.")
    allowed = should_record_summaries()
    if not isinstance(allowed.array, jax.core.Tracer) and not allowed:
        return allowed
    value = convert_to_tensor(tensor() if callable(tensor) else tensor)
    put = functools.partial(_write_summary, writer, tag, metadata, encode)
    if context.trace is None:
        put(*(np.asarray(t.require_value("a summary")) for t in (allowed, index, value)))
        return allowed
    operands = [allowed, index, value]
    if value.dtype is string:
        text = value.require_value("a summary (XLA has no strings)")
        put, operands = functools.partial(_write_known_summary, put, text), [allowed, index]
    numpy_function(put, operands, TensorSpec([], bool_))
    return allowed


def _write_summary(
    writer: SummaryWriter,
    tag: str,
    metadata: Callable[[], Any],
    encode: Callable[[np.ndarray], np.ndarray],
    allowed: np.ndarray,
    step: np.ndarray,
    value: np.ndarray,
) -> np.ndarray:
    if allowed:
        content = {"tag": tag, "tensor": to_tensor_proto(encode(value)), "metadata": metadata()}
        writer.add(int(step), summary={"value": [content]})
    return np.asarray(allowed)


def _write_known_summary(
    put: Callable[..., Any], value: np.ndarray, allowed: np.ndarray, step: np.ndarray
) -> np.ndarray:
    return put(allowed, step, value)


def write_raw_pb(tensor: Any, step: StepLike = None, name: str | None = None) -> Tensor:
    """Write a serialized `Summary` message, and return whether it was recorded.

    Args:
      tensor: The serialized message.
      step: Training step; default `tf.summary.experimental.get_step()`.
      name: Ignored.

    Raises:
      ValueError: There is a default writer but no step.
    """
    writer = state.writer
    current = state.step if step is None else step
    if writer is None:
        return convert_to_tensor(False)
    if current is None:
        raise ValueError("No step set. Please specify one through the `step` argument.")
    if should_record_summaries():
        writer.add(
            int(current), summary=protos.Summary.FromString(convert_to_tensor(tensor).numpy())
        )
    return should_record_summaries()
