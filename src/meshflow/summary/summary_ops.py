"""Functions that write summaries, each in the encoding of one TensorBoard plugin."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import float32, float64, string, uint8
from meshflow.core.values.tensor import Tensor
from meshflow.ops import math as _math
from meshflow.ops.audio import encode_wav
from meshflow.ops.image import convert_image_dtype, encode_png
from meshflow.summary.recording import make_metadata, record, summary_scope
from meshflow.summary.writers import StepLike, state

# Serialized metadata of TensorBoard's audio plugin for the encoding WAV.
_WAV_METADATA = b"\x10\x0b"


def _require_rank(data: Any, rank: int) -> Tensor:
    tensor = convert_to_tensor(data)
    if tensor.shape.rank != rank:
        raise ValueError(
            f"Tensor must have rank {rank}. Received rank {tensor.shape.rank}, shape {tensor.shape}"
        )
    return tensor


def scalar(name: str, data: Any, step: StepLike = None, description: str | None = None) -> Tensor:
    """Write a scalar, shown as a point of a curve, and return whether it was recorded.

    Args:
      name: Name of the summary, prefixed by the current name scopes.
      data: A scalar; it is cast to float32.
      step: Training step; default `tf.summary.experimental.get_step()`.
      description: Markdown text to show with the curve.

    Raises:
      ValueError: `data` is not a scalar, or there is a default writer but no step.

    Example:
      >>> import tempfile
      >>> with tf.summary.create_file_writer(tempfile.mkdtemp()).as_default(step=1):
      ...     tf.summary.scalar("loss", 0.5).numpy()
      np.True_
    """

    def make_scalar() -> Tensor:
        tensor = convert_to_tensor(data)
        if tensor.shape.rank != 0:
            raise ValueError(f"Expected scalar shape, saw shape: {tensor.shape}.")
        return _math.cast(tensor, float32)

    with summary_scope(name, "scalar_summary") as (tag, _):
        return record(tag, make_scalar, step, lambda: make_metadata("scalars", description))


def histogram(
    name: str,
    data: Any,
    step: StepLike = None,
    buckets: int | None = None,
    description: str | None = None,
) -> Tensor:
    """Write a histogram of the elements of a tensor, and return whether it was recorded.

    Args:
      name: Name of the summary, prefixed by the current name scopes.
      data: Tensor of numbers; values that are not finite are ignored.
      step: Training step; default `tf.summary.experimental.get_step()`.
      buckets: Number of buckets of equal width; default 30.
      description: Markdown text to show with the histogram.

    Raises:
      ValueError: There is a default writer but no step.

    Example:
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
            lambda: make_metadata("histograms", description),
            lambda values: _count_buckets(values.reshape(-1), count),
        )


def _count_buckets(values: np.ndarray, buckets: int) -> np.ndarray:
    """Return rows of left edge, right edge and count, one per bucket."""
    values = values[np.isfinite(values)]
    rows = np.zeros([buckets, 3])
    if not values.size or not buckets:
        return rows
    low, high = values.min(), values.max()
    if low == high:
        # If all values are equal, TensorBoard expects them in the last bucket.
        rows[:, :2], rows[-1, 2] = low, values.size
        return rows
    indices = np.floor((values - low) / ((high - low) / buckets)).astype(np.int64)
    edges = np.linspace(low, high, buckets + 1)
    counts = np.bincount(np.minimum(indices, buckets - 1), minlength=buckets)
    return np.stack([edges[:-1], edges[1:], counts], axis=1)


def image(
    name: str,
    data: Any,
    step: StepLike = None,
    max_outputs: int = 3,
    description: str | None = None,
) -> Tensor:
    """Write images, and return whether they were recorded.

    Args:
      name: Name of the summary, prefixed by the current name scopes.
      data: Images [batch, height, width, channels] with 1 to 4 channels: floats, clipped to [0, 1],
        or integers. uint8 is written unchanged.
      step: Training step; default `tf.summary.experimental.get_step()`.
      max_outputs: Maximum number of images to write.
      description: Markdown text to show with the images.

    Raises:
      ValueError: `data` has another rank, or there is a default writer but no step.
      ImportError: The packages protobuf and Pillow are not installed.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder, tf.summary.create_file_writer(folder).as_default():
      ...     bool(tf.summary.image("black", tf.zeros([1, 4, 4, 3]), step=0))
      True
    """

    def make_pixels() -> Tensor:
        return convert_image_dtype(_require_rank(data, 4), uint8, saturate=True)[:max_outputs]

    with summary_scope(name, "image_summary") as (tag, _):
        return record(
            tag, make_pixels, step, lambda: make_metadata("images", description), _encode_images
        )


def _encode_images(images: np.ndarray) -> np.ndarray:
    """Return width and height as text, followed by a PNG file for each image."""
    files = [encode_png(picture).numpy() for picture in images]
    sizes = [str(images.shape[2]).encode(), str(images.shape[1]).encode()]
    return np.array([*sizes, *files], object)


def text(name: str, data: Any, step: StepLike = None, description: str | None = None) -> Tensor:
    """Write text, shown as Markdown, and return whether it was recorded.

    Args:
      name: Name of the summary, prefixed by the current name scopes.
      data: String tensor; a matrix is shown as a table.
      step: Training step; default `tf.summary.experimental.get_step()`.
      description: Markdown text to show with the summary.

    Raises:
      TypeError: `data` is not a string tensor.
      ValueError: There is a default writer but no step.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder, tf.summary.create_file_writer(folder).as_default():
      ...     bool(tf.summary.text("note", "A *good* epoch.", step=0))
      True
    """
    tensor = convert_to_tensor(data)
    if tensor.dtype is not string:
        raise TypeError(f"tensor must be of type {string!r}; got {tensor.dtype!r}")
    with summary_scope(name, "text_summary") as (tag, _):
        return record(tag, tensor, step, lambda: make_metadata("text", description))


def audio(
    name: str,
    data: Any,
    sample_rate: int,
    step: StepLike = None,
    max_outputs: int = 3,
    encoding: str | None = None,
    description: str | None = None,
) -> Tensor:
    """Write audio clips, and return whether they were recorded.

    Args:
      name: Name of the summary, prefixed by the current name scopes.
      data: float32 [clips, samples, channels] in [-1, 1].
      sample_rate: Samples per second.
      step: Training step; default `tf.summary.experimental.get_step()`.
      max_outputs: Maximum number of clips to write.
      encoding: 'wav', the default.
      description: Markdown text to show with the clips.

    Raises:
      ValueError: `data` has another rank, the encoding is unknown, or there is a default writer but
        no step.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder, tf.summary.create_file_writer(folder).as_default():
      ...     bool(tf.summary.audio("silence", tf.zeros([1, 100, 1]), sample_rate=8000, step=0))
      True
    """
    if encoding not in (None, "wav"):
        raise ValueError(f"Unknown encoding: {encoding!r}")
    rate = int(np.asarray(sample_rate))

    def encode_clips(sounds: np.ndarray) -> np.ndarray:
        # TensorBoard expects a label with each file; here it is empty.
        rows = [[encode_wav(sound, rate).numpy(), b""] for sound in sounds]
        return np.array(rows, object).reshape(len(rows), 2)

    with summary_scope(name, "audio_summary") as (tag, _):
        return record(
            tag,
            lambda: _require_rank(data, 3)[:max_outputs],
            step,
            lambda: make_metadata("audio", description, _WAV_METADATA),
            encode_clips,
        )


def graph(graph_data: Any) -> Tensor:
    """Write a graph, and return whether it was recorded.

    Args:
      graph_data: The graph of a concrete function, a `GraphDef` message of TensorFlow, or its
        bytes.

    Raises:
      TypeError: `graph_data` has another type.
    """
    if hasattr(graph_data, "as_graph_def"):
        graph_data = graph_data.as_graph_def()
    data = graph_data if isinstance(graph_data, bytes) else None
    if hasattr(graph_data, "SerializeToString"):
        data = graph_data.SerializeToString()
    if data is None:
        raise TypeError(
            "tf.summary.graph: graph_data must be a GraphDef message, got "
            f"{type(graph_data).__name__}. Pass tf.function(...).get_concrete_function(...).graph."
        )
    if state.writer is None:
        return convert_to_tensor(False)
    state.writer.add(0, graph_def=data)
    return convert_to_tensor(True)
