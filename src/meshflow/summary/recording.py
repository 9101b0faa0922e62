"""Writing a summary: when it is recorded, by whom, and how a compiled program does it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.names import get_current_name_scope, name_scope
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import bool_, int64, string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.distribute import get_replica_context
from meshflow.io import protos
from meshflow.io.tensors import tensor_proto
from meshflow.ops import math as _math
from meshflow.ops.python_function import numpy_function
from meshflow.summary.writers import SummaryWriter, _NoopWriter, state

__all__ = [
    "metadata_of",
    "record",
    "record_if",
    "should_record_summaries",
    "summary_scope",
    "write",
    "write_raw_pb",
]


@contextmanager
def record_if(condition: Any) -> Iterator[None]:
    """A context in which summaries are recorded only if a condition holds.

    Args:
      condition: a bool, a bool tensor, or a function that returns one and is called for each summary.

    Example:
      >>> import meshflow as tf
      >>> with tf.summary.record_if(lambda: tf.equal(tf.summary.experimental.get_step() % 100, 0)):
      ...     pass
    """
    before, state.recording = state.recording, condition
    try:
        yield
    finally:
        state.recording = before


def should_record_summaries() -> Tensor:
    """Whether a summary would be recorded now: False without a default writer.

    Returns:
      A bool scalar.

    Example:
      >>> import meshflow as tf
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
    if context.replicas is None:
        return allowed
    # Of the replicas the first one speaks for all.
    replica = get_replica_context().replica_id_in_sync_group  # type: ignore[union-attr]
    return _math.logical_and(allowed, _math.equal(replica, 0))


@contextmanager
def summary_scope(
    name: str, default_name: str = "summary", values: Any = None
) -> Iterator[tuple[str, str]]:
    """A context in which a summary is made: a name scope, and the summary's tag.

    Args:
      name: the summary's name.
      default_name: what stands for an empty one.
      values: accepted.

    Returns:
      A context that gives the tag, with the name scopes around it, and the scope.

    Example:
      >>> import meshflow as tf
      >>> with tf.name_scope("train"), tf.summary.experimental.summary_scope("loss") as (tag, scope):
      ...     tag, scope
      ('train/loss', 'train/loss/')
    """
    own = name or default_name
    outer = get_current_name_scope()
    with name_scope(own) as scope:
        yield (f"{outer}/{own}" if outer else own), scope


def metadata_of(plugin: str, description: str | None = None, content: bytes = b"") -> Any:
    """What tells TensorBoard how to show a summary.

    Args:
      plugin: the name of the part of TensorBoard that shows it.
      description: a text shown with it.
      content: what the plugin wants to know.
    """
    # Here, as it needs packages that are extras.
    return protos.SummaryMetadata(
        plugin_data={"plugin_name": plugin, "content": content},
        summary_description=description or "",
    )


def write(
    tag: str, tensor: Any, step: Any = None, metadata: Any = None, name: str | None = None
) -> Tensor:
    """Writes a tensor to the default writer.

    Args:
      tag: the summary's name, which the open name scopes do not change.
      tensor: the tensor, or a function that returns it and is called if the summary is recorded.
      step: an integer; default `tf.summary.experimental.get_step()`.
      metadata: a `SummaryMetadata` message.
      name: ignored.

    Returns:
      A bool scalar: whether the summary was recorded.

    Raises:
      ValueError: when there is a default writer and no step.

    Example:
      >>> import meshflow as tf
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
    step: Any,
    metadata: Callable[[], Any],
    encode: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> Tensor:
    """Writes what a function makes of a tensor's value on the host.

    Args:
      tag: the summary's name.
      tensor: the tensor, or a function that returns it.
      step: an integer, or None.
      metadata: gives a `SummaryMetadata` message, or None.
      encode: from the value to what is written.

    Raises:
      ValueError: when there is a default writer and no step.
    """
    writer = state.writer
    if writer is None or isinstance(writer, _NoopWriter):
        return convert_to_tensor(False)
    found = state.step if step is None else step
    if found is None:
        raise ValueError(
            "No step set. Please specify one either through the `step` argument or through "
            "tf.summary.experimental.set_step()"
        )
    number = convert_to_tensor(found, None if hasattr(found, "dtype") else int64)
    if not number.dtype.is_integer:
        raise TypeError(f"The step of a summary must be an integer, got {number.dtype.name}.")
    allowed = should_record_summaries()
    if not isinstance(allowed._value, jax.core.Tracer) and not allowed:
        return allowed
    value = convert_to_tensor(tensor() if callable(tensor) else tensor)
    put = functools.partial(_put, writer, tag, metadata, encode)
    if context.trace is None:
        put(*(np.asarray(t._concrete("a summary")) for t in (allowed, number, value)))
        return allowed
    operands = [allowed, number, value]
    if value.dtype is string:
        known = value._concrete("a summary (XLA has no strings)")
        put, operands = functools.partial(_put_known, put, known), [allowed, number]
    numpy_function(put, operands, TensorSpec([], bool_))
    return allowed


def _put(
    writer: SummaryWriter,
    tag: str,
    metadata: Callable[[], Any],
    encode: Callable[[np.ndarray], np.ndarray],
    allowed: np.ndarray,
    step: np.ndarray,
    value: np.ndarray,
) -> np.ndarray:
    # Here, as it needs packages that are extras.
    if allowed:
        content = {"tag": tag, "tensor": tensor_proto(encode(value)), "metadata": metadata()}
        writer.add(int(step), summary={"value": [content]})
    return np.asarray(allowed)


def _put_known(put: Any, value: np.ndarray, allowed: np.ndarray, step: np.ndarray) -> np.ndarray:
    return put(allowed, step, value)


def write_raw_pb(tensor: Any, step: Any = None, name: str | None = None) -> Tensor:
    """Writes a serialized `Summary` message to the default writer.

    Args:
      tensor: the message's bytes.
      step: an integer; default `tf.summary.experimental.get_step()`.
      name: ignored.

    Returns:
      A bool scalar: whether it was recorded.

    Raises:
      ValueError: when there is a default writer and no step.
    """
    writer = state.writer
    found = state.step if step is None else step
    if writer is None:
        return convert_to_tensor(False)
    if found is None:
        raise ValueError("No step set. Please specify one through the `step` argument.")
    if should_record_summaries():
        writer.add(int(found), summary=protos.Summary.FromString(convert_to_tensor(tensor).numpy()))
    return should_record_summaries()
