"""The graph of objects as a bundle holds it: a message under a key of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.checkpoint.graph import VARIABLE, ObjectGraph, full_name, owner
from meshflow.checkpoint.wire import Attribute, Node, Slot, read_graph, write_graph
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable

__all__ = ["GRAPH", "contents", "keys_by_full_name", "read_objects"]

GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def contents(root: Any, owners: dict[str, Any] | None = None) -> dict[str, Any]:
    """All that a checkpoint holds: the arrays below an object by key, and the message of the graph.

    Args:
      root: the object.
      owners: if given, it gets the object of each key.
    """
    graph = ObjectGraph(root)
    found = {key: (array, item) for key, array, item in graph.values()}
    arrays = {key: array for key, (array, _) in found.items()}
    if owners is not None:
        owners.update({key: item for key, (_, item) in found.items()})
    nodes = [
        Node(dict(node["children"]), _attributes(node["values"], item))
        for node, item in zip(graph.nodes, graph.objects, strict=True)
    ]
    for about, array in graph.slots():
        arrays[about["key"]] = array
        slot = Slot(about["variable"], about["name"], len(nodes))
        nodes[about["optimizer"]].slots.append(slot)
        nodes.append(Node(attributes=[Attribute(VARIABLE, about["full_name"], about["key"])]))
    for position, item in enumerate(graph.objects):
        _add_aliases(nodes, position, item)
    arrays[GRAPH] = np.array(write_graph(nodes), object)
    return arrays


def _attributes(values: dict[str, str], item: Any) -> list[Attribute]:
    item = owner(item)
    named = isinstance(item, (Variable, ShardedVariable))
    return [Attribute(a, full_name(item) if named else "", key) for a, key in values.items()]


def _add_aliases(nodes: list[Node], position: int, item: Any) -> None:
    """Adds the names by which Keras 3 looks for what models and layers own."""
    item = owner(item)
    if not hasattr(item, "_own_weights"):
        return
    own = nodes[position].children
    for name in KERAS_3_WEIGHTS:
        if name in own:
            own.setdefault(f"_{name}", own[name])
    layers = operations(item, own)
    if layers:
        nodes.append(Node({str(i): at for i, at in layers.items()}))
        own.setdefault("_operations", len(nodes) - 1)
        nodes.append(Node({"_operations": len(nodes) - 1}))
        own.setdefault("_functional", len(nodes) - 1)


# Weights that have an underscore in Keras 3.
KERAS_3_WEIGHTS = ("kernel", "embeddings")


def operations(model: Any, own: dict[str, Any]) -> dict[int, Any]:
    """A model's layers by their numbers in Keras 3, where the input of a sequential one is the first.

    Args:
      model: any object.
      own: its children by name.
    """
    first = 1 if hasattr(model, "add") else 0
    prefix = "layer-"
    return {
        int(name[len(prefix) :]) + first: child
        for name, child in own.items()
        if name.startswith(prefix) and name[len(prefix) :].isdigit()
    }


def keys_by_full_name(message: bytes) -> dict[str, str]:
    """Keys of variables by the names that these had.

    Args:
      message: what a bundle has under `GRAPH`.
    """
    attributes = [attribute for node in read_graph(message) for attribute in node.attributes]
    return {a.full_name: a.key for a in attributes if a.full_name}


def read_objects(message: bytes) -> dict[str, Any]:
    """The nodes and slots of a stored graph.

    Args:
      message: what a bundle has under `GRAPH`.

    Returns:
      `nodes`: for each object its children's positions, and the keys of its values by attribute;
      `slots`: positions of the optimizer and the variable, the slot's name, and its key.

    Raises:
      ValueError: for bytes that are no such message.
    """
    nodes = read_graph(message)
    slots = []
    owned = set()
    for position, node in enumerate(nodes):
        for slot in node.slots:
            owned.add(slot.node)
            key = next((a.key for a in nodes[slot.node].attributes if a.name == VARIABLE), "")
            about = {"optimizer": position, "variable": slot.variable}
            slots.append({**about, "name": slot.name, "key": key})
    found = [
        {
            "children": node.children,
            # What a slot holds is told with its slot.
            "values": {} if i in owned else {a.name: a.key for a in node.attributes},
        }
        for i, node in enumerate(nodes)
    ]
    return {"nodes": found, "slots": slots}
