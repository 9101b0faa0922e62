"""Summaries of `tf.compat.v1.summary`: operations that return serialized messages, and their writer."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree, StrPath
from meshflow.files.paths import to_path_string
from meshflow.io import protos
from meshflow.io.event_files import EventFile
from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.graph.graph import Graph, get_default_graph, has_explicit_graph

__all__ = [
    "FileWriter",
    "FileWriterCache",
    "audio",
    "histogram",
    "image",
    "merge",
    "merge_all",
    "scalar",
    "text",
]

# Limits of the buckets of histograms; each is larger than the last one by a tenth.
_POSITIVE_LIMITS = 1e-12 * 1.1 ** np.arange(774)
_LIMITS = np.concatenate([-_POSITIVE_LIMITS[::-1], [0.0], _POSITIVE_LIMITS, [np.finfo(float).max]])


def _add_summary(
    kind: str,
    name: str,
    inputs: Sequence[TensorLike],
    collections: Sequence[object] | None,
    family: str | None,
    make_values: Callable[..., Iterable[tuple[str, dict[str, Any]]]],
    **options: Any,
) -> Tensor:
    """Add an operation that returns a summary.

    Args:
      kind: Name of the function.
      name: Tag.
      inputs: The tensor, and further ones that `make_values` takes.
      collections: See `scalar`.
      family: See `scalar`.
      make_values: Returns the ends of tags and the fields of the values of a summary.
      **options: Other arguments of the function in version 2.
    """
    if not has_explicit_graph():
        # As in TensorFlow, the default writer of version 2 gets the summary.
        written: Tensor = getattr(tf.summary, kind)(name, inputs[0], **options)
        return written
    scoped = f"{_clean(family)}/{_clean(name)}" if family else _clean(name)

    def write(*arrays: np.ndarray) -> bytes:
        found = [protos.Summary.Value(tag=tag + end, **f) for end, f in make_values(*arrays)]
        message: bytes = protos.Summary(value=found).SerializeToString()
        return message

    result: Tensor = tf.numpy_function(write, list(inputs), tf.string, name=scoped)
    tag = str(result.op.name)  # type: ignore[attr-defined]
    tag = f"{_clean(family)}/{tag}" if family else tag
    result.set_shape([])
    default = ["summaries"] if collections is None else collections
    get_default_graph().add_to_collections(default, result)
    return result


def _clean(name: str) -> str:
    """Return a name with underscores in place of characters that names of operations cannot have."""
    return re.sub(r"[^-/\w.]", "_", name).lstrip("/")


def _encode_each(
    kind: str, max_outputs: int, encode: Callable[..., dict[str, Any]]
) -> Callable[..., Iterator[tuple[str, dict[str, Any]]]]:
    """Return a function that yields the end of the tag and the fields of each of the first elements.

    Raises:
      ValueError: If `max_outputs` is not positive.
    """
    if max_outputs < 1:
        raise ValueError(f"summary.{kind}: expected max_outputs of at least 1, got {max_outputs}.")

    def make_values(
        array: np.ndarray, *options: np.ndarray
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        for k, element in enumerate(array[:max_outputs]):
            yield f"/{kind}" if max_outputs == 1 else f"/{kind}/{k}", encode(element, *options)

    return make_values


def scalar(
    name: str,
    tensor: TensorLike,
    collections: Sequence[object] | None = None,
    family: str | None = None,
) -> Tensor:
    """Return a scalar as a serialized summary.

    Args:
      name: Tag, below the current name scope.
      tensor: Real scalar.
      collections: Collections of the graph that get the summary; default: that of `merge_all`.
      family: Prefix of the tag.

    In eager execution, the default writer of `tf.summary` gets the summary.
    """
    return _add_summary(
        "scalar", name, [tensor], collections, family, lambda x: [("", {"simple_value": float(x)})]
    )


def histogram(
    name: str,
    values: TensorLike,
    collections: Sequence[object] | None = None,
    family: str | None = None,
) -> Tensor:
    """Return the histogram of the elements of a tensor as a serialized summary; see `scalar`."""
    return _add_summary(
        "histogram", name, [values], collections, family, lambda x: [("", {"histo": _count(x)})]
    )


def image(
    name: str,
    tensor: TensorLike,
    max_outputs: int = 3,
    collections: Sequence[object] | None = None,
    family: str | None = None,
) -> Tensor:
    """Return images as a serialized summary; see `scalar`.

    Args:
      name: Start of the tags.
      tensor: Images [batch, height, width, channels] with 1, 3 or 4 channels: uint8, or floating-point numbers. Each
        image of these is scaled: the largest number to 255 or, if there are negative numbers, zero to 128 and the
        largest absolute value to 127 more. Pixels with infinite numbers or NaN are red.
      max_outputs: Maximum number of images.
      collections: See `scalar`.
      family: See `scalar`.
    """

    def encode(array: np.ndarray) -> dict[str, Any]:
        if array.ndim != 3 or array.shape[-1] not in (1, 3, 4) or array.dtype.kind not in "fuV":
            raise tf.errors.InvalidArgumentError(
                None, None,
                "summary.image: expected uint8 or floating-point images [batch, height, width, channels] with 1, 3 "
                f"or 4 channels, got elements of shape {array.shape} and dtype {array.dtype.name}.",
            )  # fmt: skip
        height, width, depth = array.shape
        content = tf.io.encode_png(_scale_image(array)).numpy()
        size = {"height": height, "width": width, "colorspace": depth}
        return {"image": protos.Summary.Image(encoded_image_string=content, **size)}

    return _add_summary(
        *("image", name, [tensor], collections, family),
        _encode_each("image", max_outputs, encode),
        max_outputs=max_outputs,
    )


def _scale_image(array: np.ndarray) -> np.ndarray:
    """Convert an image to uint8; see `image`."""
    if array.dtype == np.uint8:
        return array
    pixels = array.astype(np.float32)
    is_finite: np.ndarray = np.asarray(np.isfinite(pixels).all(axis=-1))
    low, high = (f(pixels[is_finite], initial=0.0) for f in (np.min, np.max))
    offset, span = (128.0, max(-low, high)) if low < 0 else (0.0, high)
    scale = 0.0 if span < 1e-6 else (127.0 if low < 0 else 255.0) / span
    scaled = np.where(is_finite[..., None], pixels * scale + offset, 0.0).astype(np.uint8)
    scaled[~is_finite] = [255, 0, 0, 255][: array.shape[-1]]
    return scaled


def audio(
    name: str,
    tensor: TensorLike,
    sample_rate: TensorLike,
    max_outputs: int = 3,
    collections: Sequence[object] | None = None,
    family: str | None = None,
) -> Tensor:
    """Return audio clips as a serialized summary; see `scalar`.

    Args:
      name: Start of the tags.
      tensor: float32 [batch, samples] or [batch, samples, channels] in [-1, 1].
      sample_rate: Samples per second, a scalar.
      max_outputs: Maximum number of clips.
      collections: See `scalar`.
      family: See `scalar`.
    """
    rate = tf.convert_to_tensor(sample_rate, tf.float32)

    def encode(array: np.ndarray, rate: np.ndarray) -> dict[str, Any]:
        if array.ndim not in (1, 2) or rate.ndim:
            raise tf.errors.InvalidArgumentError(
                None, None,
                "summary.audio: expected clips [batch, samples] or [batch, samples, channels] and a scalar as "
                f"sample_rate, got elements of shape {array.shape} and a rate of shape {rate.shape}.",
            )  # fmt: skip
        clip = array.reshape(len(array), -1)
        content = tf.audio.encode_wav(clip, max(int(rate), 1)).numpy()
        sizes = {"length_frames": len(clip), "num_channels": clip.shape[1]}
        sound = protos.Summary.Audio(
            encoded_audio_string=content, content_type="audio/wav", sample_rate=float(rate), **sizes
        )
        return {"audio": sound}

    return _add_summary(
        *("audio", name, [tensor, rate], collections, family),
        _encode_each("audio", max_outputs, encode),
        sample_rate=sample_rate,
        max_outputs=max_outputs,
    )


def text(name: str, tensor: TensorLike, collections: Sequence[object] | None = None) -> Tensor:
    """Return strings as a serialized summary; see `scalar`.

    Args:
      name: Tag.
      tensor: Strings of any shape.
      collections: See `scalar`.

    Raises:
      ValueError: If the dtype is not string.
    """
    strings = tf.convert_to_tensor(tensor)
    if strings.dtype != tf.string:
        raise ValueError(
            f"Expected tensor {strings!r} to have dtype string, got {strings.dtype.name}."
        )

    def make_value(array: np.ndarray) -> dict[str, Any]:
        plugin = protos.SummaryMetadata.PluginData(plugin_name="text")
        value = protos.Summary.Value(metadata=protos.SummaryMetadata(plugin_data=plugin))
        value.tensor.MergeFromString(tf.make_tensor_proto(array).SerializeToString())
        return {"metadata": value.metadata, "tensor": value.tensor}

    return _add_summary(
        "text", name, [strings], collections, None, lambda x: [("", make_value(np.asarray(x)))]
    )


def _count(array: np.ndarray) -> Any:
    flat = np.asarray(array, np.float64).ravel()
    if not np.isfinite(flat).all():
        raise tf.errors.InvalidArgumentError(None, None, "Nan in summary histogram")
    counts = np.bincount(np.searchsorted(_LIMITS, flat, "right"), minlength=len(_LIMITS))
    # Each run of empty buckets is one bucket.
    is_kept = (counts > 0) | np.append(counts[1:] > 0, True)
    return protos.HistogramProto(
        min=float(flat.min(initial=np.inf)),
        max=float(flat.max(initial=-np.inf)),
        num=flat.size,
        sum=float(flat.sum()),
        sum_squares=float((flat**2).sum()),
        bucket_limit=_LIMITS[is_kept].tolist(),
        bucket=counts[is_kept].astype(float).tolist(),
    )


def merge(
    inputs: Sequence[Any], collections: Sequence[object] | None = None, name: str | None = None
) -> Tensor:
    """Return one serialized summary with the values of several ones.

    Args:
      inputs: Serialized summaries.
      collections: Collections of the graph that get the result.
      name: Name of the operation.
    """

    def join(*messages: bytes) -> bytes:
        return b"".join(messages)  # The concatenation of two messages merges them.

    result: Tensor = tf.numpy_function(join, list(inputs), tf.string, name=name or "Merge")
    result.set_shape([])
    get_default_graph().add_to_collections(collections or [], result)
    return result


def merge_all(
    key: object = "summaries", scope: str | None = None, name: str | None = None
) -> Tensor | None:
    """Return one serialized summary with the values of all summaries of a collection; None if it is empty.

    Args:
      key: Name of the collection.
      scope: Regular expression; only summaries with names that start with a match are merged.
      name: Name of the operation.
    """
    found = get_default_graph().get_collection(key, scope) if has_explicit_graph() else []
    return merge(found, name=name) if found else None


class FileWriter:
    """Writer of event files.

    Args:
      logdir: Directory of the file.
      graph: A graph to write, which TensorBoard draws, or None.
      max_queue: Ignored.
      flush_secs: Ignored.
      graph_def: Ignored.
      filename_suffix: Suffix of the name of the file.
      session: Ignored.

    Raises:
      RuntimeError: Outside of a graph.
    """

    def __init__(
        self,
        logdir: StrPath,
        graph: Any = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        graph_def: object = None,
        filename_suffix: str | None = None,
        session: object = None,
    ) -> None:
        if not has_explicit_graph() and graph is None:
            raise RuntimeError(
                "tf.summary.FileWriter is not compatible with eager execution. Use `tf.summary.create_file_writer`."
            )
        self._folder, self._suffix = to_path_string(logdir), filename_suffix or ""
        self._file: EventFile | None = EventFile(self._folder, self._suffix)
        self._metadata_tags: set[str] = set()
        self._summary_tags: set[str] = set()
        if graph is not None:
            self.add_graph(graph)

    def get_logdir(self) -> str:
        """Return the directory."""
        return self._folder

    def add_summary(self, summary: Any, global_step: int | None = None) -> None:
        """Write a summary, a message or its serialized form; a closed writer only warns.

        As in TensorFlow, only the first summary of a tag keeps its metadata.
        """
        data = summary if isinstance(summary, bytes) else summary.SerializeToString()
        summary = protos.Summary.FromString(data)
        for value in summary.value:
            if value.tag in self._summary_tags:
                value.ClearField("metadata")
        if (file := self._get_file()) is not None:
            self._summary_tags.update(value.tag for value in summary.value)
            file.add(int(global_step or 0), summary=summary)

    def add_event(self, event: PyTree) -> None:
        """Write an event, a message with its own time and step; a closed writer only warns."""
        if (file := self._get_file()) is not None:
            file.write(event.SerializeToString())

    def add_session_log(self, session_log: PyTree, global_step: int | None = None) -> None:
        """Write a `SessionLog`: the start or the end of a session, or a checkpoint; a closed writer only warns."""
        if (file := self._get_file()) is not None:
            content = protos.SessionLog.FromString(session_log.SerializeToString())
            file.add(int(global_step or 0), session_log=content)

    def add_run_metadata(
        self, run_metadata: PyTree, tag: str, global_step: int | None = None
    ) -> None:
        """Write the `RunMetadata` of a step; a closed writer only warns.

        Raises:
          ValueError: If there is one with this tag already.
        """
        if tag in self._metadata_tags:
            raise ValueError("The provided tag was already used for this event type")
        self._metadata_tags.add(tag)
        if (file := self._get_file()) is not None:
            content = {"tag": tag, "run_metadata": run_metadata.SerializeToString()}
            file.add(int(global_step or 0), tagged_run_metadata=content)

    def _get_file(self) -> EventFile | None:
        """Return the open file; warn that there is none."""
        if self._file is None:
            warnings.warn(
                "Attempting to use a closed FileWriter. The operation will be a noop unless the FileWriter is "
                "explicitly reopened.",
                stacklevel=3,
            )
        return self._file

    def add_graph(
        self, graph: object, global_step: int | None = None, graph_def: object = None
    ) -> None:
        """Write the operations of a graph, which TensorBoard draws; a closed writer only warns.

        Raises:
          TypeError: If `graph` is no graph.
        """
        if not isinstance(graph, Graph):
            raise TypeError(
                f"The passed graph must be an instance of `tf.Graph`, got {type(graph).__name__}."
            )
        if (file := self._get_file()) is not None:
            definition = graph.as_graph_def().SerializeToString()
            file.add(int(global_step or 0), graph_def=definition)

    def flush(self) -> None:
        """Write all summaries to the file; a closed writer only warns."""
        if (file := self._get_file()) is not None:
            file.flush()

    def reopen(self) -> None:
        """Open a new file in the same directory if the writer is closed."""
        if self._file is None:
            self._file = EventFile(self._folder, self._suffix)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_shared_writers: dict[str, FileWriter] = {}
_shared_writers_lock = threading.Lock()


class FileWriterCache:
    """Writers that all callers of `get` share, one for each directory."""

    @staticmethod
    def get(logdir: StrPath) -> FileWriter:
        """Return the writer of a directory, which the first call creates.

        Args:
          logdir: The directory.

        Raises:
          RuntimeError: Outside of a graph, if there is no writer.
        """
        path = to_path_string(logdir)
        with _shared_writers_lock:
            if path not in _shared_writers:
                _shared_writers[path] = FileWriter(path)
            return _shared_writers[path]

    @staticmethod
    def clear() -> None:
        """Close and forget all writers."""
        with _shared_writers_lock:
            for writer in _shared_writers.values():
                writer.close()
            _shared_writers.clear()
