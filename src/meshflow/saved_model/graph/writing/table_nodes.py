"""Lookup tables as resources of TensorFlow's graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from meshflow.core.values.dtypes import int32
from meshflow.lookup.mutable_tables import MutableHashTable
from meshflow.lookup.static_tables import StaticHashTable
from meshflow.saved_model.graph.format.messages import Message
from meshflow.saved_model.graph.format.nodes import RESOURCE, RESOURCE_DTYPE, add_node, make_shape
from meshflow.saved_model.graph.writing.text_nodes import NodeBuilder

HashTable: TypeAlias = StaticHashTable | MutableHashTable


def add_table(
    graph: Message, names: Mapping[str, str], table: HashTable, handle: str
) -> tuple[dict[str, tuple[str, int, int]], str]:
    """Add the functions that create, fill and destroy a table, and its nodes in the main graph.

    Args:
      graph: The `GraphDef`.
      names: Names of the functions, by the method names of TensorFlow's resources.
      table: The table.
      handle: Name of the table's node in the main graph.

    Returns:
      (name, number of captured tables, dtype of the result) of each function, and the name of the
      node that fills the table.
    """
    functions = {}
    for key, name in names.items():
        function = graph.library.function.add()
        function.signature.name, function.signature.is_stateful = name, True
        captures: list[str] = []
        if key == "_create_resource":
            node = _add_table_node(function.node_def, "table", table, f"{handle}_made")
            result, dtype = f"{node}:table_handle:0", RESOURCE_DTYPE
        else:
            nodes = NodeBuilder(function.node_def, "fill")
            if key == "_initialize":
                function.signature.input_arg.add(name="table", type=RESOURCE)
                captures.append("table")
                filled = _add_fill_node(nodes, table, "table")
                function.signature.control_output.append(filled)
                function.control_ret[filled] = filled
            result, dtype = nodes.add_constant(np.array(1, np.int32)), int32
        add_node(function.node_def, "result", "Identity", [result], T=dtype)
        function.signature.output_arg.add(name="output", type=dtype.as_datatype_enum)
        function.ret["output"] = "result:output:0"
        functions[key] = name, len(captures), dtype.as_datatype_enum
    _add_table_node(graph.node, handle, table, f"{handle}_shared")
    return functions, _add_fill_node(
        NodeBuilder(graph.node, f"{handle}_fill", in_main_graph=True), table, handle
    )


def _add_table_node(nodes: Message, name: str, table: HashTable, shared: str) -> str:
    """Add the node that creates a table."""
    attributes: dict[str, Any] = {
        "shared_name": shared.encode(),
        "container": b"",
        "use_node_name_sharing": True,
        "key_dtype": table.key_dtype,
        "value_dtype": table.value_dtype,
    }
    if not isinstance(table, MutableHashTable):
        return add_node(nodes, name, "HashTableV2", **attributes)
    if not table.value_shape:
        return add_node(nodes, name, "MutableHashTableV2", **attributes)
    attributes["value_shape"] = make_shape(table.value_shape)
    return add_node(nodes, name, "MutableHashTableOfTensorsV2", **attributes)


def _add_fill_node(nodes: NodeBuilder, table: HashTable, handle: str) -> str:
    """Add the node that fills a table with its current content, and return the name of the node."""
    keys, values = (nodes.add_constant(np.asarray(t.array)) for t in table.export())
    kinds = table.key_dtype, table.value_dtype
    if isinstance(table, MutableHashTable):
        op, types = "LookupTableImportV2", dict(zip(("Tin", "Tout"), kinds, strict=True))
    else:
        op, types = "InitializeTableV2", dict(zip(("Tkey", "Tval"), kinds, strict=True))
    return nodes.add(op, [handle, keys, values], "", **types).split(":")[0]
