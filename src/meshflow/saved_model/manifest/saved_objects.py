"""Objects of a SavedModel as the manifest describes them, with their arrays and files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshflow.checkpoint.object_graph import ObjectGraph, Trackable, get_stored_value
from meshflow.core.functions.signed_function import SignedFunction
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import (
    Variable,
    VariableAggregation,
    VariableSynchronization,
    get_full_name,
)
from meshflow.lookup.table import Table
from meshflow.saved_model.manifest.assets import Asset
from meshflow.saved_model.manifest.lookup_tables import describe_table

# Attributes that other programs expect in loaded models, such as layers that wrap them.
_VARIABLE_COLLECTIONS = ("variables", "trainable_variables", "non_trainable_variables")


class SavedObjects:
    """All objects that can be reached from a root, and the objects that only its functions use.

    Args:
      root: Object to save.
      files: Keys of variables that the caller writes to the same folder, by the variables' ids.

    Attributes:
      root: Object to save.
      graph: Object graph of the root.
      nodes: Description of each object in the manifest.
      arrays: Name and value of each array, by key.
      files: Contents of assets, by their names in the folder.
    """

    def __init__(self, root: Trackable, files: Mapping[int, str]) -> None:
        self.root, self._external_keys = root, files
        self.graph = ObjectGraph(root)
        self._num_reachable = len(self.graph.objects)
        # Variables and tables that no object owns.
        self._unowned: list[Any] = []
        self._indices = {id(item): i for i, item in enumerate(self.graph.objects)}
        self._constants: dict[int, tuple[str, Any]] = {}
        self.arrays: dict[str, tuple[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        for node, item in list(zip(self.graph.nodes, self.graph.objects, strict=True)):
            if isinstance(item, tuple):
                # A tuple is loaded as a list. Only checkpoints hold the field names of named tuples.
                named = node["children"].items()
                node["children"] = {name: child for name, child in named if name.isdigit()}
            self._add_resources(node["children"], item)
        self.nodes = [
            {"children": node["children"], **self._describe(item, index)}
            for index, (node, item) in enumerate(
                zip(self.graph.nodes, self.graph.objects, strict=True)
            )
        ]

    @property
    def has_new_objects(self) -> bool:
        """Check whether more objects can be reached now than at first.

        Functions may create variables while they are traced.
        """
        return len(ObjectGraph(self.root).objects) != self._num_reachable

    # ---- Descriptions ----------------------------------------------------------------------

    def _add_resources(self, children: dict[str, int], item: Trackable) -> None:
        """Add children that are not in checkpoints: tables, assets, and shards of variables."""
        for name, child in getattr(item, "__dict__", {}).items():
            if (
                isinstance(child, (Asset, Table))
                and name not in children
                and not name.startswith("_")
            ):
                self._add_child(children, name, child, name)
        if isinstance(item, ShardedVariable):
            for i, shard in enumerate(item.variables):
                self._add_child(children, str(i), shard)

    def _add_child(
        self, children: dict[str, int], name: str, child: Trackable, path: str = ""
    ) -> None:
        if id(child) not in self._indices:
            self._indices[id(child)] = len(self.graph.objects)
            self.graph.objects.append(child)
            self.graph.nodes.append({"path": path, "children": {}, "values": {}})
        children[name] = self._indices[id(child)]

    def _describe(self, item: Trackable, index: int) -> dict[str, Any]:
        if isinstance(item, Variable):
            return self._describe_variable(item, index)
        if isinstance(item, ShardedVariable):
            return {"kind": "shards", "name": item.name}
        if isinstance(item, SignedFunction) or hasattr(item, "get_concrete_function"):
            return {"kind": "function"}
        if isinstance(item, Table):
            return self._describe_table(item, index)
        if isinstance(item, Asset):
            return {"kind": "asset", "file": self._add_file(item)}
        if isinstance(item, Mapping):
            return {"kind": "dict"}
        if isinstance(item, (list, tuple)):
            return {"kind": "list"}
        description: dict[str, Any] = {"kind": "object", "class": type(item).__name__}
        if isinstance(getattr(item, "_name", None), str):
            description["name"] = item._name
        return description

    def _describe_variable(self, item: Variable, index: int) -> dict[str, Any]:
        key = self._external_keys.get(id(item))
        if key is None:
            key = f"variable_{index:05d}"
            self.arrays[key] = (item.name, get_stored_value(item))
        description: dict[str, Any] = {"name": get_full_name(item), "trainable": item.trainable}
        if not item.shape.is_fully_defined():
            description["shape"] = None if item.shape.rank is None else item.shape.as_list()
        if item.synchronization is not VariableSynchronization.AUTO:
            description["synchronization"] = item.synchronization.name
        if item.aggregation is not VariableAggregation.NONE:
            description["aggregation"] = item.aggregation.name
        return {"kind": "variable", "file": key, **description}

    def _add_file(self, asset: Asset) -> str:
        """Add the file of an asset and return its name in the folder."""
        content, name = asset.read_content(), os.path.basename(asset.path)
        stem, suffix = os.path.splitext(name)
        for number in itertools.count(1):
            if self.files.setdefault(f"assets/{name}", content) == content:
                return name
            name = f"{stem}_{number}{suffix}"
        raise AssertionError

    def _describe_table(self, table: Table, index: int) -> dict[str, Any]:
        description = describe_table(table)
        for part in ("keys", "values", "default"):
            array = description.pop(part, None)
            if array is not None:
                description[part] = key = f"table_{part}_{index:05d}"
                self.arrays[key] = (key, array)
        return {"kind": "table", **description}

    # ---- Objects that functions use ----------------------------------------------------------

    def get_indices(self, variables: object) -> list[int] | None:
        """Return the indices of variables, or None if the value is not a list or tuple.

        Variables that are not in the graph are skipped; an optimizer may hold them.
        """
        if not isinstance(variables, (list, tuple)):
            return None
        return [self._indices[id(v)] for v in variables if id(v) in self._indices]

    def get_index(self, item: Trackable) -> int:
        """Return the index of an object; add variables and tables that no object owns, such as random states."""
        index = self._indices.get(id(item))
        if index is None:
            index = self._indices[id(item)] = len(self.nodes)
            self._unowned.append(item)
            self.nodes.append({"children": {}, **self._describe(item, index)})
        return index

    def describe_capture(self, capture: Variable | Tensor) -> dict[str, Any]:
        """Describe a capture of a program: the node of a variable, or the key of a constant."""
        if isinstance(capture, Variable):
            return {"node": self.get_index(capture)}
        if id(capture) not in self._constants:
            key = f"constant_{len(self._constants):05d}"
            self._constants[id(capture)] = key, capture
            self.arrays[key] = (key, np.asarray(capture.array))
        return {"constant": self._constants[id(capture)][0]}

    def list_tensorflow_nodes(self) -> tuple[list[dict[str, Any]], list[Any]]:
        """Return nodes and objects in the form that TensorFlow needs.

        Objects that only functions use become children of the root. Constants become non-trainable
        variables.
        """
        nodes = [dict(node) for node in self.nodes]
        objects = [*self.graph.objects, *self._unowned]
        hidden = list(range(len(self.graph.objects), len(nodes)))
        for key, constant in self._constants.values():
            hidden.append(len(nodes))
            objects.append(constant)
            description = {"kind": "variable", "file": key, "name": key, "trainable": False}
            nodes.append({"children": {}, **description})
        if hidden:
            nodes[0]["children"] = {**nodes[0]["children"], "_captures": len(nodes)}
            children = {str(i): index for i, index in enumerate(hidden)}
            nodes.append({"children": children, "kind": "object"})
            objects.append(None)
        for name in _VARIABLE_COLLECTIONS:
            indices = self.get_indices(getattr(self.root, name, None))
            if indices is not None and name not in nodes[0]["children"]:
                nodes[0]["children"] = {**nodes[0]["children"], name: len(nodes)}
                parts = {str(i): index for i, index in enumerate(indices)}
                nodes.append({"children": parts, "kind": "list"})
                objects.append(None)
        return nodes, objects
