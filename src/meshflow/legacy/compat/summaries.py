"""Summaries of `tf.compat.v1.summary`: operations that return serialized messages, and their writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import StrPath
from meshflow.files.paths import to_path_string
from meshflow.io import protos
from meshflow.io.event_files import EventFile
from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.graph.graph import get_default_graph, has_explicit_graph

__all__ = ["FileWriter", "histogram", "merge", "merge_all", "scalar"]

# Limits of the buckets of histograms; each is larger than the last one by a tenth.
_POSITIVE_LIMITS = 1e-12 * 1.1 ** np.arange(774)
_LIMITS = np.concatenate([-_POSITIVE_LIMITS[::-1], [0.0], _POSITIVE_LIMITS, [np.finfo(float).max]])


def _add_summary(
    kind: str,
    name: str,
    values: TensorLike,
    collections: Sequence[object] | None,
    family: str | None,
    make_value: Callable[[np.ndarray], dict[str, Any]],
) -> Tensor:
    if not has_explicit_graph():
        # As in TensorFlow, the default writer of version 2 gets the summary.
        written: Tensor = getattr(tf.summary, kind)(name, values)
        return written
    graph = get_default_graph()
    tag = graph.unique_name(f"{family}/{name}" if family else name)
    tag = f"{family}/{tag}" if family else tag

    def write(array: np.ndarray) -> bytes:
        summary = protos.Summary(value=[protos.Summary.Value(tag=tag, **make_value(array))])
        message: bytes = summary.SerializeToString()
        return message

    result: Tensor = tf.numpy_function(write, [values], tf.string)
    result.set_shape([])
    graph.add_to_collections(["summaries"] if collections is None else collections, result)
    return result


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
        "scalar", name, tensor, collections, family, lambda array: {"simple_value": float(array)}
    )


def histogram(
    name: str,
    values: TensorLike,
    collections: Sequence[object] | None = None,
    family: str | None = None,
) -> Tensor:
    """Return the histogram of the elements of a tensor as a serialized summary; see `scalar`."""
    return _add_summary(
        "histogram", name, values, collections, family, lambda array: {"histo": _count(array)}
    )


def _count(array: np.ndarray) -> Any:
    flat = np.asarray(array, np.float64).ravel()
    if not np.isfinite(flat).all():
        raise tf.errors.InvalidArgumentError(None, None, "Nan in summary histogram")
    counts = np.bincount(np.searchsorted(_LIMITS, flat, "right"), minlength=len(_LIMITS))
    used = np.flatnonzero(counts)
    first, last = (max(used[0] - 1, 0), used[-1] + 1) if used.size else (0, 0)
    return protos.HistogramProto(
        min=float(flat.min(initial=np.inf)),
        max=float(flat.max(initial=-np.inf)),
        num=flat.size,
        sum=float(flat.sum()),
        sum_squares=float((flat**2).sum()),
        bucket_limit=_LIMITS[first:last].tolist(),
        bucket=counts[first:last].astype(float).tolist(),
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
      graph: Ignored: graphs of recorded calls are not drawn.
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
        graph: object = None,
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
        self._folder = to_path_string(logdir)
        self._file: Any = EventFile(self._folder, filename_suffix or "")

    def get_logdir(self) -> str:
        """Return the directory."""
        return self._folder

    def add_summary(self, summary: Any, global_step: int | None = None) -> None:
        """Write a summary, a message or its serialized form."""
        if isinstance(summary, bytes):
            summary = protos.Summary.FromString(summary)
        self._file.add(int(global_step or 0), summary=summary)

    def add_graph(self, graph: object, global_step: int | None = None) -> None:
        """Do nothing: graphs of recorded calls are not drawn."""

    def flush(self) -> None:
        """Write all summaries to the file."""
        self._file.flush()

    def reopen(self) -> None:
        """Do nothing: a writer is open until `close`."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
