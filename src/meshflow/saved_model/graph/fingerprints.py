"""Fingerprints of models by TensorFlow's rules, so that both programs tell the same models apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshflow.ops.hashing import crossed_from, farm_fingerprint
from meshflow.saved_model.fingerprint import Fingerprint
from meshflow.saved_model.graph.messages import SavedModel
from meshflow.saved_model.graph.nodes import STRING

__all__ = ["fingerprint_of"]

# The version of the rules, which are those of TensorFlow 2.15.
_PRODUCER = 1
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_COUNTED = re.compile(r"(.*?)(\d+)")


def fingerprint_of(model: bytes, index: bytes | None) -> Fingerprint:
    """The fingerprint of a model.

    Args:
      model: the content of its `saved_model.pb`.
      index: the content of the index of its variables, or None where it has none.
    """
    meta = SavedModel.FromString(model).meta_graphs[0]
    return Fingerprint(
        farm_fingerprint(model),
        _hash_of_graph(meta.graph_def),
        _hash_of_parts({name: (name, part) for name, part in meta.signature_def.items()}),
        _hash_of_parts(_by_count(meta.object_graph_def.concrete_functions)),
        0 if index is None else farm_fingerprint(index),
        _PRODUCER,
    )


def _hash_of_graph(graph: Any) -> int:
    """The hash of the nodes of the main graph, without what depends on the machine and on counts of functions."""
    graph.ClearField("library")
    graph.ClearField("versions")
    for node in graph.node:
        if node.op in _CALLS:
            called = node.attr["f"].func
            called.name = _split(called.name)[0]
            if "config_proto" in node.attr:
                node.attr["config_proto"].s = b""
        elif node.op == "Const" and node.attr["dtype"].type == STRING:
            node.attr["value"].Clear()
    return farm_fingerprint(graph.SerializeToString(deterministic=True))


def _split(name: str) -> tuple[str, int | None]:
    """A function's name without the number behind it, and that number."""
    found = _COUNTED.fullmatch(name)
    return (found[1], int(found[2])) if found else (name, None)


def _by_count(functions: Mapping[str, Any]) -> dict[int, tuple[str, Any]]:
    """Functions with their names without numbers, by these numbers."""
    numbered = ((*_split(name), part) for name, part in functions.items())
    return {count or 0: (base, part) for base, count, part in numbered}


def _hash_of_parts(parts: Mapping[Any, tuple[str, Any]]) -> int:
    """One hash of messages with names, in the order of their keys."""
    found = 0
    for key in sorted(parts):
        name, part = parts[key]
        content = part.SerializeToString(deterministic=True)
        found = crossed_from(found, [farm_fingerprint(name.encode()), farm_fingerprint(content)])
    return found
