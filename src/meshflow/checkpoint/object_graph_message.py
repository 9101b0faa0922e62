"""The object graph of a bundle: a protocol buffer, stored as a string under its own key."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from meshflow.checkpoint.bundle_messages import (
    ObjectAttribute,
    ObjectNode,
    SlotReference,
    decode_graph,
    encode_graph,
)
from meshflow.checkpoint.object_graph import (
    VARIABLE_VALUE,
    ObjectGraph,
    Trackable,
    is_sequential,
    resolve_root,
)
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable, get_full_name

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
ChildT = TypeVar("ChildT")


def collect_arrays(root: Trackable, owners: dict[str, Any] | None = None) -> dict[str, Any]:
    """Collect the arrays of a checkpoint by key: the values below a root, and the object graph.

    Args:
      root: The root.
      owners: Optional dictionary that is filled with the object of each key.
    """
    graph = ObjectGraph(root)
    values = {key: (array, item) for key, array, item in graph.iterate_values()}
    arrays = {key: array for key, (array, _) in values.items()}
    if owners is not None:
        owners.update({key: item for key, (_, item) in values.items()})
    nodes = [
        ObjectNode(dict(node["children"]), _make_attributes(node["values"], item))
        for node, item in zip(graph.nodes, graph.objects, strict=True)
    ]
    for description, array in graph.iterate_slots():
        arrays[description["key"]] = array
        slot = SlotReference(description["variable"], description["name"], len(nodes))
        nodes[description["optimizer"]].slots.append(slot)
        nodes.append(
            ObjectNode(
                attributes=[
                    ObjectAttribute(VARIABLE_VALUE, description["full_name"], description["key"])
                ]
            )
        )
    for position, item in enumerate(graph.objects):
        _add_keras_3_aliases(nodes, position, item)
    arrays[GRAPH_KEY] = np.array(encode_graph(nodes), object)
    return arrays


def _make_attributes(values: dict[str, str], item: Trackable) -> list[ObjectAttribute]:
    item = resolve_root(item)
    has_name = isinstance(item, (Variable, ShardedVariable))
    return [
        ObjectAttribute(a, get_full_name(item) if has_name else "", key)
        for a, key in values.items()
    ]


def _add_keras_3_aliases(nodes: list[ObjectNode], index: int, item: Trackable) -> None:
    """Add the names under which Keras 3 looks for the weights and layers of an object."""
    item = resolve_root(item)
    if not hasattr(item, "_own_weights"):
        return
    named_children = nodes[index].children
    for name in KERAS_3_WEIGHTS:
        if name in named_children:
            named_children.setdefault(f"_{name}", named_children[name])
    layers = number_layers(item, named_children)
    if layers:
        nodes.append(ObjectNode({str(number): child for number, child in layers.items()}))
        named_children.setdefault("_operations", len(nodes) - 1)
        nodes.append(ObjectNode({"_operations": len(nodes) - 1}))
        named_children.setdefault("_functional", len(nodes) - 1)


# Weights with an underscore before their names in Keras 3.
KERAS_3_WEIGHTS = ("kernel", "embeddings")


def number_layers(model: Trackable, own: dict[str, ChildT]) -> dict[int, ChildT]:
    """Return the layers of a model by their numbers in Keras 3.

    Keras 3 counts the input of a sequential model as layer 0.

    Args:
      model: Any object.
      own: Children of the object by name.
    """
    first_number = 1 if is_sequential(model) else 0
    prefix = "layer-"
    return {
        int(name[len(prefix) :]) + first_number: child
        for name, child in own.items()
        if name.startswith(prefix) and name[len(prefix) :].isdigit()
    }


def map_full_names_to_keys(message: bytes) -> dict[str, str]:
    """Return the keys of variables by the names of the variables.

    Args:
      message: String that a bundle stores under `GRAPH_KEY`.
    """
    attributes = [attribute for node in decode_graph(message) for attribute in node.attributes]
    return {a.full_name: a.key for a in attributes if a.full_name}


def parse_object_graph(message: bytes) -> dict[str, Any]:
    """Parse the nodes and slots of a stored graph.

    Args:
      message: String that a bundle stores under `GRAPH_KEY`.

    Returns:
      A dictionary. `nodes`: for each object the indices of its children, and the keys of its values
      by attribute, and the name of a variable. `slots`: for each slot the indices of the optimizer and the variable, its name and its key.

    Raises:
      ValueError: If the bytes are not such a message.
    """
    nodes = decode_graph(message)
    slots: list[dict[str, Any]] = []
    slot_nodes = set()
    for index, node in enumerate(nodes):
        for slot in node.slots:
            slot_nodes.add(slot.node)
            key = next((a.key for a in nodes[slot.node].attributes if a.name == VARIABLE_VALUE), "")
            slots.append(
                {"optimizer": index, "variable": slot.variable, "name": slot.name, "key": key}
            )
    plain_nodes = [
        {
            "children": node.children,
            # The value of a slot is described in `slots`.
            "values": {} if i in slot_nodes else {a.name: a.key for a in node.attributes},
            "full_name": next((a.full_name for a in node.attributes if a.full_name), ""),
        }
        for i, node in enumerate(nodes)
    ]
    return {"nodes": plain_nodes, "slots": slots}
