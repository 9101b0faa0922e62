"""Fingerprints of SavedModels, computed as by TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshflow.ops.hashing import cross_fingerprints_from, farm_fingerprint
from meshflow.saved_model.graph.format.messages import Message, SavedModel
from meshflow.saved_model.graph.format.nodes import STRING
from meshflow.saved_model.manifest.fingerprint import Fingerprint

# The algorithm is version 1, that of TensorFlow 2.15 and later.
_FINGERPRINT_VERSION = 1
_CALL_OPS = ("PartitionedCall", "StatefulPartitionedCall")
_NUMBERED_NAME = re.compile(r"(.*?)(\d+)")


def compute_fingerprint(model: bytes, index: bytes | None) -> Fingerprint:
    """Compute the fingerprint of a model.

    Args:
      model: Content of `saved_model.pb`.
      index: Content of the index file of the variables, or None if there is none.
    """
    meta = SavedModel.FromString(model).meta_graphs[0]
    return Fingerprint(
        farm_fingerprint(model),
        _hash_graph(meta.graph_def),
        _hash_messages({name: (name, part) for name, part in meta.signature_def.items()}),
        _hash_messages(_index_by_number(meta.object_graph_def.concrete_functions)),
        0 if index is None else farm_fingerprint(index),
        _FINGERPRINT_VERSION,
    )


def _hash_graph(graph: Message) -> int:
    """Hash the nodes of the main graph without attributes that depend on the process. Clears them."""
    graph.ClearField("library")
    graph.ClearField("versions")
    for node in graph.node:
        if node.op in _CALL_OPS:
            called = node.attr["f"].func
            called.name = _split_number(called.name)[0]
            if "config_proto" in node.attr:
                node.attr["config_proto"].s = b""
        elif node.op == "Const" and node.attr["dtype"].type == STRING:
            node.attr["value"].Clear()
    return farm_fingerprint(graph.SerializeToString(deterministic=True))


def _split_number(name: str) -> tuple[str, int | None]:
    """Split a name into the part before its trailing number, and the number."""
    match = _NUMBERED_NAME.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, None)


def _index_by_number(functions: Mapping[str, Message]) -> dict[int, tuple[str, Message]]:
    """Return (name without its number, function) by the number."""
    numbered = ((*_split_number(name), part) for name, part in functions.items())
    return {count or 0: (base, part) for base, count, part in numbered}


def _hash_messages(parts: Mapping[Any, tuple[str, Message]]) -> int:
    """Combine the hashes of named messages, in the order of their keys."""
    result = 0
    for key in sorted(parts):
        name, part = parts[key]
        content = part.SerializeToString(deterministic=True)
        result = cross_fingerprints_from(
            result, [farm_fingerprint(name.encode()), farm_fingerprint(content)]
        )
    return result
