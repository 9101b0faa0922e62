"""Where a checkpoint lies: a bundle, TensorFlow's format, or a folder of arrays, our older one."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from meshflow.checkpoint import storage
from meshflow.checkpoint.bundle import Bundle, index_file, is_bundle
from meshflow.checkpoint.bundle_writer import (
    clear_bundle,
    held_apart,
    remove_bundle,
    write_bundle,
    write_files,
)
from meshflow.checkpoint.graph import STATE, VARIABLE
from meshflow.checkpoint.graph_message import GRAPH, read_objects
from meshflow.checkpoint.sharding import ShardByTaskPolicy, ShardingCallback, divided
from meshflow.core.runtime.errors import DataLossError, UnimplementedError
from meshflow.files import gfile
from meshflow.files.paths import text

__all__ = [
    "Stored",
    "clear",
    "is_checkpoint",
    "open_checkpoint",
    "remove",
    "stored_objects",
    "written",
]


class Stored(Protocol):
    """What can be read from a checkpoint."""

    path: str

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """Dtype and shape by key."""

    def read(self, name: str) -> np.ndarray:
        """An array by its key."""

    def lent(self, name: str) -> np.ndarray:
        """An array that nobody may change, so that devices may share its memory."""

    def open(self, name: str) -> Any:
        """An array that is read where it is used."""


def is_checkpoint(path: Any) -> bool:
    """Whether a checkpoint lies at a path.

    Args:
      path: the path given to `Checkpoint.write`, or returned by `save`.
    """
    return storage.is_checkpoint(path) or is_bundle(path)


def open_checkpoint(path: Any) -> Stored:
    """A checkpoint by its path.

    Args:
      path: the path given to `Checkpoint.write`, or returned by `save`.

    Raises:
      NotFoundError: when there is none.
      DataLossError: when it is damaged.
    """
    if is_bundle(path) or not storage.is_checkpoint(path):
        return Bundle(path)
    return storage.Folder(path)


def stored_objects(stored: Stored) -> dict[str, Any]:
    """The graph of objects of a checkpoint, as `read_objects` gives it.

    Args:
      stored: the checkpoint.

    Raises:
      ValueError: when it holds arrays alone.
      DataLossError: when the graph is damaged.
    """
    if isinstance(stored, Bundle):
        if GRAPH not in stored:
            raise ValueError(_no_objects(stored))
        try:
            return read_objects(stored.read(GRAPH).item())
        except (ValueError, TypeError, AttributeError) as error:
            raise DataLossError(
                f"{stored.path} is damaged: its objects make no sense: {error}."
            ) from None
    assert isinstance(stored, storage.Folder)
    graph = stored.manifest.get("graph")
    if graph is None:
        raise ValueError(_no_objects(stored))
    if not _is_graph(graph):
        raise DataLossError(f"{stored.path} is damaged: its objects make no sense.")
    nodes = [
        {"children": n["children"], "values": _attribute(n.get("key"))} for n in graph["nodes"]
    ]
    return {"nodes": nodes, "slots": graph["slots"]}


def _no_objects(stored: Stored) -> str:
    return f"{stored.path} holds arrays but no objects: it was not written by tf.train.Checkpoint."


def _attribute(key: str | None) -> dict[str, str]:
    if key is None:
        return {}
    return {STATE if key.endswith(STATE) else VARIABLE: key}


def _is_graph(stored: Any) -> bool:
    """Whether a manifest's objects are nodes with children among them, and slots."""
    try:
        nodes, slots = stored["nodes"], stored["slots"]
        places = [place for node in nodes for place in node["children"].values()]
        keys = [node.get("key") or "" for node in nodes]
        return (
            isinstance(nodes, list)
            and len(nodes) > 0
            and all(isinstance(key, str) for key in keys)
            and all(type(place) is int and 0 <= place < len(nodes) for place in places)
            and all(type(slot[end]) is int for slot in slots for end in ("optimizer", "variable"))
            and all(isinstance(slot[said], str) for slot in slots for said in ("name", "key"))
        )
    except (TypeError, KeyError, AttributeError):
        return False


def written(
    path: Any,
    arrays: dict[str, Any],
    policy: ShardingCallback | None = None,
    owners: dict[str, Any] | None = None,
) -> None:
    """Writes arrays as a bundle, in the place of whatever checkpoint was there.

    Args:
      path: the checkpoint's path; errors as for `write_bundle`.
      arrays: by key.
      policy: how they are divided over data files; default one for each process that writes.
      owners: the objects whose they are, for the policy.

    Raises:
      UnimplementedError: for a policy where several processes hold parts of an array.
    """
    # Another folder with a manifest, a saved model's, may have the name too: an older checkpoint has an index.
    older = not is_bundle(path) and gfile.exists(index_file(path))
    if policy is None or type(policy) is ShardByTaskPolicy:
        write_bundle(path, arrays)
    elif held_apart(arrays.values()):
        raise UnimplementedError(
            f"{text(path)}: several processes hold parts of its arrays, and each writes a data file: leave "
            f"`experimental_sharding_callback` out ({policy.description!r})."
        )
    else:
        write_files(path, divided(arrays, owners or {}, policy))
    if older and storage.is_checkpoint(path):
        storage.remove(path)


def clear(path: Any) -> None:
    """Deletes what processes left that were killed while they wrote a checkpoint; the checkpoint stays.

    Args:
      path: the checkpoint's path.
    """
    storage.clear(path)
    clear_bundle(path)


def remove(path: Any) -> None:
    """Deletes a checkpoint; nothing happens when there is none.

    Args:
      path: its path.
    """
    if storage.is_checkpoint(path) and not is_bundle(path):
        storage.remove(path)
    remove_bundle(path)
