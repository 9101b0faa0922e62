"""Lookup tables as resources of TensorFlow's graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshflow.lookup.mutable import MutableHashTable
from meshflow.saved_model.graph.nodes import RESOURCE, Type, add_node, datatype, shape
from meshflow.saved_model.graph.text_nodes import Nodes

__all__ = ["add_table"]

_INT32 = 3


def add_table(
    graph: Any, names: Mapping[str, str], table: Any, handle: str
) -> tuple[dict[str, tuple[str, int, int]], str]:
    """Adds the functions that make, fill and forget a table, and its nodes in the main graph.

    Args:
      graph: the `GraphDef`.
      names: of the functions.
      table: a `StaticHashTable` or `MutableHashTable`.
      handle: the name of the table's node in the main graph.

    Returns:
      Name, count of captured tables and dtype of the result of each function; and the node that fills the table.
    """
    made = {}
    for key, name in names.items():
        function = graph.library.function.add()
        function.signature.name, function.signature.is_stateful = name, True
        given: list[str] = []
        if key == "_create_resource":
            node = _new(function.node_def, "table", table, f"{handle}_made")
            result, kind = f"{node}:table_handle:0", RESOURCE
        else:
            nodes = Nodes(function.node_def, "fill")
            if key == "_initialize":
                function.signature.input_arg.add(name="table", type=RESOURCE)
                given.append("table")
                filled = _filled(nodes, table, "table")
                function.signature.control_output.append(filled)
                function.control_ret[filled] = filled
            result, kind = nodes.constant(np.array(1, np.int32)), _INT32
        add_node(function.node_def, "result", "Identity", [result], T=Type(kind))
        function.signature.output_arg.add(name="output", type=kind)
        function.ret["output"] = "result:output:0"
        made[key] = name, len(given), kind
    _new(graph.node, handle, table, f"{handle}_shared")
    return made, _filled(Nodes(graph.node, f"{handle}_fill", whole_graph=True), table, handle)


def _new(where: Any, name: str, table: Any, shared: str) -> str:
    """Adds the op that makes a table."""
    kinds: dict[str, Any] = {
        "key_dtype": Type(datatype(table.key_dtype)),
        "value_dtype": Type(datatype(table.value_dtype)),
    }
    more: dict[str, Any] = {
        "shared_name": shared.encode(),
        "container": b"",
        "use_node_name_sharing": True,
    }
    if not isinstance(table, MutableHashTable):
        return add_node(where, name, "HashTableV2", **more, **kinds)
    if not table._value_shape:
        return add_node(where, name, "MutableHashTableV2", **more, **kinds)
    rows = shape(table._value_shape)
    return add_node(where, name, "MutableHashTableOfTensorsV2", value_shape=rows, **more, **kinds)


def _filled(nodes: Nodes, table: Any, handle: str) -> str:
    """Adds the op that fills a table with what it holds now; gives its name."""
    keys, values = (nodes.constant(np.asarray(t._value)) for t in table.export())
    kinds = Type(datatype(table.key_dtype)), Type(datatype(table.value_dtype))
    if isinstance(table, MutableHashTable):
        op, types = "LookupTableImportV2", dict(zip(("Tin", "Tout"), kinds, strict=True))
    else:
        op, types = "InitializeTableV2", dict(zip(("Tkey", "Tval"), kinds, strict=True))
    return nodes.add(op, [handle, keys, values], "", **types).split(":")[0]
