"""The kinds of summaries: each is a tensor in the form in which one part of TensorBoard wants it."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import float32, float64, string, uint8
from meshflow.core.values.tensor import Tensor
from meshflow.ops import math as _math
from meshflow.ops.audio import encode_wav
from meshflow.ops.image import convert_image_dtype, encode_png
from meshflow.summary.recording import metadata_of, record, summary_scope
from meshflow.summary.writers import state

__all__ = ["audio", "graph", "histogram", "image", "scalar", "text"]

# The number of WAV in the data that TensorBoard's audio plugin reads.
_WAV = b"\x10\x0b"


def _ranked(data: Any, rank: int) -> Tensor:
    tensor = convert_to_tensor(data)
    if tensor.shape.rank != rank:
        raise ValueError(
            f"Tensor must have rank {rank}. Received rank {tensor.shape.rank}, shape {tensor.shape}"
        )
    return tensor


def scalar(name: str, data: Any, step: Any = None, description: str | None = None) -> Tensor:
    """Writes a number, which is shown as a point of a curve.

    Args:
      name: the curve's name; the open name scopes are put before it.
      data: a scalar; it is cast to float32.
      step: an integer; default `tf.summary.experimental.get_step()`.
      description: a text shown with the curve, in Markdown.

    Returns:
      A bool scalar: whether it was recorded.

    Raises:
      ValueError: for data that is no scalar, or when there is a default writer and no step.

    Example:
      >>> import tempfile
      >>> import meshflow as tf
      >>> with tf.summary.create_file_writer(tempfile.mkdtemp()).as_default(step=1):
      ...     tf.summary.scalar("loss", 0.5).numpy()
      np.True_
    """

    def number() -> Tensor:
        tensor = convert_to_tensor(data)
        if tensor.shape.rank != 0:
            raise ValueError(f"Expected scalar shape, saw shape: {tensor.shape}.")
        return _math.cast(tensor, float32)

    with summary_scope(name, "scalar_summary") as (tag, _):
        return record(tag, number, step, lambda: metadata_of("scalars", description))


def histogram(
    name: str,
    data: Any,
    step: Any = None,
    buckets: int | None = None,
    description: str | None = None,
) -> Tensor:
    """Writes how the elements of a tensor are distributed.

    Args:
      name: the summary's name; the open name scopes are put before it.
      data: tensor of numbers; those that are not finite are left out.
      step: an integer; default `tf.summary.experimental.get_step()`.
      buckets: into how many ranges of equal width they are counted; default 30.
      description: a text shown with it, in Markdown.

    Returns:
      A bool scalar: whether it was recorded.

    Raises:
      ValueError: when there is a default writer and no step.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder, tf.summary.create_file_writer(folder).as_default():
      ...     bool(tf.summary.histogram("weights", tf.range(10.0), step=0, buckets=5))
      True
    """
    count = 30 if buckets is None else int(buckets)
    with summary_scope(name, "histogram_summary") as (tag, _):
        return record(
            tag,
            lambda: _math.cast(data, float64),
            step,
            lambda: metadata_of("histograms", description),
            lambda values: _counted(values.reshape(-1), count),
        )


def _counted(values: np.ndarray, buckets: int) -> np.ndarray:
    """Rows of left end, right end and count."""
    values = values[np.isfinite(values)]
    rows = np.zeros([buckets, 3])
    if not values.size or not buckets:
        return rows
    low, high = values.min(), values.max()
    if low == high:
        # One value: all is in the last bucket.
        rows[:, :2], rows[-1, 2] = low, values.size
        return rows
    places = np.floor((values - low) / ((high - low) / buckets)).astype(np.int64)
    ends = np.linspace(low, high, buckets + 1)
    counts = np.bincount(np.minimum(places, buckets - 1), minlength=buckets)
    return np.stack([ends[:-1], ends[1:], counts], axis=1)


def image(
    name: str, data: Any, step: Any = None, max_outputs: int = 3, description: str | None = None
) -> Tensor:
    """Writes images.

    Args:
      name: the summary's name; the open name scopes are put before it.
      data: [images, height, width, channels] with 1 to 4 channels; floats from 0 to 1, which are
        clipped, or integers, of which uint8 is written as it is.
      step: an integer; default `tf.summary.experimental.get_step()`.
      max_outputs: how many images are written at most.
      description: a text shown with them, in Markdown.

    Returns:
      A bool scalar: whether they were recorded.

    Raises:
      ValueError: for data of another rank, or when there is a default writer and no step.
      ImportError: when the packages protobuf and Pillow are not installed.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder, tf.summary.create_file_writer(folder).as_default():
      ...     bool(tf.summary.image("black", tf.zeros([1, 4, 4, 3]), step=0))
      True
    """

    def pixels() -> Tensor:
        return convert_image_dtype(_ranked(data, 4), uint8, saturate=True)[:max_outputs]

    with summary_scope(name, "image_summary") as (tag, _):
        return record(tag, pixels, step, lambda: metadata_of("images", description), _as_files)


def _as_files(images: np.ndarray) -> np.ndarray:
    """Width and height as texts, then a PNG file for each image."""
    files = [encode_png(picture).numpy() for picture in images]
    sizes = [str(images.shape[2]).encode(), str(images.shape[1]).encode()]
    return np.array([*sizes, *files], object)


def text(name: str, data: Any, step: Any = None, description: str | None = None) -> Tensor:
    """Writes texts, which are shown as Markdown.

    Args:
      name: the summary's name; the open name scopes are put before it.
      data: string tensor; a matrix is shown as a table.
      step: an integer; default `tf.summary.experimental.get_step()`.
      description: a text shown with it, in Markdown.

    Returns:
      A bool scalar: whether it was recorded.

    Raises:
      TypeError: for data that is no text.
      ValueError: when there is a default writer and no step.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder, tf.summary.create_file_writer(folder).as_default():
      ...     bool(tf.summary.text("note", "A *good* epoch.", step=0))
      True
    """
    tensor = convert_to_tensor(data)
    if tensor.dtype is not string:
        raise TypeError(f"tensor must be of type {string!r}; got {tensor.dtype!r}")
    with summary_scope(name, "text_summary") as (tag, _):
        return record(tag, tensor, step, lambda: metadata_of("text", description))


def audio(
    name: str,
    data: Any,
    sample_rate: int,
    step: Any = None,
    max_outputs: int = 3,
    encoding: str | None = None,
    description: str | None = None,
) -> Tensor:
    """Writes sounds.

    Args:
      name: the summary's name; the open name scopes are put before it.
      data: float32 [sounds, samples, channels] from -1 to 1.
      sample_rate: samples per second.
      step: an integer; default `tf.summary.experimental.get_step()`.
      max_outputs: how many sounds are written at most.
      encoding: 'wav', the default.
      description: a text shown with them, in Markdown.

    Returns:
      A bool scalar: whether they were recorded.

    Raises:
      ValueError: for data of another rank, another encoding, or when there is a default writer and
        no step.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder, tf.summary.create_file_writer(folder).as_default():
      ...     bool(tf.summary.audio("silence", tf.zeros([1, 100, 1]), sample_rate=8000, step=0))
      True
    """
    if encoding not in (None, "wav"):
        raise ValueError(f"Unknown encoding: {encoding!r}")
    rate = int(np.asarray(sample_rate))

    def files(sounds: np.ndarray) -> np.ndarray:
        # Beside each file is a label, which is empty.
        rows = [[encode_wav(sound, rate).numpy(), b""] for sound in sounds]
        return np.array(rows, object).reshape(len(rows), 2)

    with summary_scope(name, "audio_summary") as (tag, _):
        return record(
            tag,
            lambda: _ranked(data, 3)[:max_outputs],
            step,
            lambda: metadata_of("audio", description, _WAV),
            files,
        )


def graph(graph_data: Any) -> Tensor:
    """Writes a graph.

    Args:
      graph_data: a `GraphDef` message of TensorFlow's, or its bytes.

    Returns:
      A bool scalar: whether it was recorded.

    Raises:
      TypeError: for something else: functions here are XLA programs, which have no such graph.
    """
    data = graph_data if isinstance(graph_data, bytes) else None
    if hasattr(graph_data, "SerializeToString"):
        data = graph_data.SerializeToString()
    if data is None:
        raise TypeError(
            "tf.summary.graph: graph_data must be a GraphDef message, got "
            f"{type(graph_data).__name__}. Functions are XLA programs here; "
            "tf.function(...).get_concrete_function(...).graph prints one."
        )
    if state.writer is None:
        return convert_to_tensor(False)
    state.writer.add(0, graph_def=data)
    return convert_to_tensor(True)
