"""Formats of checkpoints: TensorFlow's tensor bundles, and Meshflow's older folders of arrays."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from meshflow.checkpoint import array_folder
from meshflow.checkpoint.bundle import BundleReader, get_index_path, is_bundle
from meshflow.checkpoint.bundle_writer import (
    has_remote_shards,
    remove_bundle,
    remove_leftover_files,
    write_bundle,
    write_files,
)
from meshflow.checkpoint.object_graph import PYTHON_STATE, VARIABLE_VALUE
from meshflow.checkpoint.object_graph_message import GRAPH_KEY, parse_object_graph
from meshflow.checkpoint.sharding import ShardByTaskPolicy, ShardingCallback, partition_arrays
from meshflow.checkpoint.slices import SlicedArray
from meshflow.core.runtime.errors import DataLossError, UnimplementedError
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.paths import to_path_string


class StoredCheckpoint(Protocol):
    """Interface of an opened checkpoint in any format."""

    path: str

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """Return name, dtype and shape of each array, by key."""

    def read(self, name: str) -> np.ndarray:
        """Return an array by its key."""

    def read_shareable(self, name: str) -> np.ndarray:
        """Return an array that must not be modified, in memory that device arrays may share."""

    def open(self, name: str) -> np.ndarray | SlicedArray:
        """Return an array that is read from its file where it is indexed."""


def is_checkpoint(path: StrPath) -> bool:
    """Check whether a checkpoint exists at a path.

    Args:
      path: Path that was passed to `Checkpoint.write` or returned by `save`.
    """
    return array_folder.is_array_folder(path) or is_bundle(path)


def open_checkpoint(path: StrPath) -> StoredCheckpoint:
    """Open a checkpoint.

    Args:
      path: Path that was passed to `Checkpoint.write` or returned by `save`.

    Raises:
      NotFoundError: If there is no checkpoint.
      DataLossError: If it is damaged.
    """
    if is_bundle(path) or not array_folder.is_array_folder(path):
        return BundleReader(path)
    return array_folder.ArrayFolder(path)


def read_object_graph(checkpoint: StoredCheckpoint) -> dict[str, Any]:
    """Read the object graph of a checkpoint.

    Args:
      checkpoint: Opened checkpoint.

    Returns:
      `nodes` and `slots`, as in `parse_object_graph`.

    Raises:
      ValueError: If the checkpoint holds only arrays.
      DataLossError: If the graph is damaged.
    """
    if isinstance(checkpoint, BundleReader):
        if GRAPH_KEY not in checkpoint:
            raise ValueError(_format_no_graph_error(checkpoint))
        try:
            return parse_object_graph(checkpoint.read(GRAPH_KEY).item())
        except (ValueError, TypeError, AttributeError) as error:
            raise DataLossError(
                f"{checkpoint.path} is damaged: its object graph is not valid: {error}."
            ) from None
    assert isinstance(checkpoint, array_folder.ArrayFolder)
    graph = checkpoint.manifest.get("graph")
    if graph is None:
        raise ValueError(_format_no_graph_error(checkpoint))
    if not _is_valid_graph(graph):
        raise DataLossError(f"{checkpoint.path} is damaged: its object graph is not valid.")
    nodes = [
        {"children": n["children"], "values": _map_attribute(n.get("key"))} for n in graph["nodes"]
    ]
    return {"nodes": nodes, "slots": graph["slots"]}


def _format_no_graph_error(stored: StoredCheckpoint) -> str:
    return f"{stored.path} holds arrays but no objects: it was not written by tf.train.Checkpoint."


def _map_attribute(key: str | None) -> dict[str, str]:
    if key is None:
        return {}
    return {PYTHON_STATE if key.endswith(PYTHON_STATE) else VARIABLE_VALUE: key}


def _is_valid_graph(graph: object) -> bool:
    """Check whether a manifest's graph has a list of valid nodes and a list of slots."""
    if not isinstance(graph, dict):
        return False
    try:
        nodes, slots = graph["nodes"], graph["slots"]
        indices = [index for node in nodes for index in node["children"].values()]
        keys = [node.get("key") or "" for node in nodes]
        return (
            isinstance(nodes, list)
            and len(nodes) > 0
            and all(isinstance(key, str) for key in keys)
            and all(type(index) is int and 0 <= index < len(nodes) for index in indices)
            and all(type(slot[end]) is int for slot in slots for end in ("optimizer", "variable"))
            and all(isinstance(slot[field], str) for slot in slots for field in ("name", "key"))
        )
    except (TypeError, KeyError, AttributeError):
        return False


def write_checkpoint(
    path: StrPath,
    arrays: dict[str, Any],
    policy: ShardingCallback | None = None,
    owners: dict[str, Any] | None = None,
) -> None:
    """Write arrays as a bundle and remove a checkpoint in the older format that has the same path.

    Args:
      path: Path of the checkpoint.
      arrays: Arrays by key.
      policy: Policy that partitions the arrays over data files. Default: one data file for each
        writing process.
      owners: Object of each key, for the policy.

    Raises:
      UnimplementedError: If there is a policy and several processes hold shards of an array.
      InvalidArgumentError, ResourceExhaustedError, ...: As in `write_bundle`.
    """
    # A folder with a manifest at this path may also be a SavedModel. Only an older checkpoint has
    # an index file, too.
    replaces_array_folder = not is_bundle(path) and gfile.exists(get_index_path(path))
    if policy is None or type(policy) is ShardByTaskPolicy:
        write_bundle(path, arrays)
    elif has_remote_shards(arrays.values()):
        raise UnimplementedError(
            f"{to_path_string(path)}: Several processes hold shards of its arrays, and each process writes one data file. Remove "
            f"`experimental_sharding_callback` ({policy.description!r}) from the options."
        )
    else:
        write_files(path, partition_arrays(arrays, owners or {}, policy))
    if replaces_array_folder and array_folder.is_array_folder(path):
        array_folder.remove_array_folder(path)


def remove_leftovers(path: StrPath) -> None:
    """Delete files that killed writers of a checkpoint left. The checkpoint itself is kept.

    Args:
      path: Path of the checkpoint.
    """
    array_folder.remove_leftovers(path)
    remove_leftover_files(path)


def delete_checkpoint(path: StrPath) -> None:
    """Delete a checkpoint. Does nothing if there is none.

    Args:
      path: Path of the checkpoint.
    """
    if array_folder.is_array_folder(path) and not is_bundle(path):
        array_folder.remove_array_folder(path)
    remove_bundle(path)
