"""The objects of a SavedModel as its manifest describes them: what each is and holds, their arrays and files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshflow.checkpoint.graph import ObjectGraph, stored
from meshflow.core.functions.concrete_function import Signed
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import (
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from meshflow.lookup.table import Table
from meshflow.saved_model.assets import Asset
from meshflow.saved_model.tables import described

__all__ = ["SavedObjects"]

# What others look for in models that TensorFlow loaded, such as layers made of them.
_COLLECTIONS = ("variables", "trainable_variables", "non_trainable_variables")


class SavedObjects:
    """All objects that can be reached from one, and those that only its functions use.

    Args:
      root: the object that is saved.
      files: keys of variables that somebody else writes into the same folder, by the variables' identities.

    Attributes:
      root: the object that is saved.
      graph: what can be reached from it.
      nodes: what the manifest says of each object.
      arrays: name and value by key.
      files: contents of assets by their names in the folder.
    """

    def __init__(self, root: Any, files: Mapping[int, str]) -> None:
        self.root, self._written_elsewhere = root, files
        self.graph = ObjectGraph(root)
        self._reached = len(self.graph.objects)
        # Variables and tables that no object owns.
        self._others: list[Any] = []
        self._places = {id(item): i for i, item in enumerate(self.graph.objects)}
        self._constants: dict[int, tuple[str, Any]] = {}
        self.arrays: dict[str, tuple[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        for node, item in list(zip(self.graph.nodes, self.graph.objects, strict=True)):
            if isinstance(item, tuple):
                # Loaded as a list: the fields of named tuples are in checkpoints alone.
                own = node["children"].items()
                node["children"] = {name: child for name, child in own if name.isdigit()}
            self._add_resources(node["children"], item)
        self.nodes = [
            {"children": node["children"], **self._describe(item, number)}
            for number, (node, item) in enumerate(
                zip(self.graph.nodes, self.graph.objects, strict=True)
            )
        ]

    @property
    def have_grown(self) -> bool:
        """Whether more can be reached by now, such as variables that functions made while they were traced."""
        return len(ObjectGraph(self.root).objects) != self._reached

    # ---- descriptions ----------------------------------------------------------------------

    def _add_resources(self, children: dict[str, int], item: Any) -> None:
        """Adds what checkpoints do not hold: an object's tables and files, and the shards of a table of numbers."""
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

    def _add_child(self, children: dict[str, int], name: str, child: Any, path: str = "") -> None:
        if id(child) not in self._places:
            self._places[id(child)] = len(self.graph.objects)
            self.graph.objects.append(child)
            self.graph.nodes.append({"path": path, "children": {}, "values": {}})
        children[name] = self._places[id(child)]

    def _describe(self, item: Any, number: int) -> dict[str, Any]:
        if isinstance(item, Variable):
            return self._describe_variable(item, number)
        if isinstance(item, ShardedVariable):
            return {"kind": "shards", "name": item.name}
        if isinstance(item, Signed) or hasattr(item, "get_concrete_function"):
            return {"kind": "function"}
        if isinstance(item, Table):
            return self._describe_table(item, number)
        if isinstance(item, Asset):
            return {"kind": "asset", "file": self._add_file(item)}
        if isinstance(item, Mapping):
            return {"kind": "dict"}
        if isinstance(item, (list, tuple)):
            return {"kind": "list"}
        kind: dict[str, Any] = {"kind": "object", "class": type(item).__name__}
        if isinstance(getattr(item, "_name", None), str):
            kind["name"] = item._name
        return kind

    def _describe_variable(self, item: Variable, number: int) -> dict[str, Any]:
        key = self._written_elsewhere.get(id(item))
        if key is None:
            key = f"variable_{number:05d}"
            self.arrays[key] = (item.name, stored(item))
        about: dict[str, Any] = {"name": item._shared_name, "trainable": item.trainable}
        if not item.shape.is_fully_defined():
            about["shape"] = None if item.shape.rank is None else item.shape.as_list()
        if item.synchronization is not VariableSynchronization.AUTO:
            about["synchronization"] = item.synchronization.name
        if item.aggregation is not VariableAggregation.NONE:
            about["aggregation"] = item.aggregation.name
        return {"kind": "variable", "file": key, **about}

    def _add_file(self, asset: Asset) -> str:
        """Copies a file; gives its name in the folder."""
        content, name = asset.content(), os.path.basename(asset.path)
        stem, ending = os.path.splitext(name)
        for number in itertools.count(1):
            if self.files.setdefault(f"assets/{name}", content) == content:
                return name
            name = f"{stem}_{number}{ending}"
        raise AssertionError

    def _describe_table(self, table: Table, number: int) -> dict[str, Any]:
        about = described(table)
        for part in ("keys", "values", "default"):
            array = about.pop(part, None)
            if array is not None:
                about[part] = key = f"table_{part}_{number:05d}"
                self.arrays[key] = (key, array)
        return {"kind": "table", **about}

    # ---- what functions use ----------------------------------------------------------------

    def places_of(self, variables: Any) -> list[int] | None:
        """The object's own variables in their order; it may hold others, such as an optimizer's."""
        if not isinstance(variables, (list, tuple)):
            return None
        return [self._places[id(v)] for v in variables if id(v) in self._places]

    def place(self, item: Any) -> int:
        """An object's number among the nodes; variables and tables that no object owns (of random numbers) get one too."""
        place = self._places.get(id(item))
        if place is None:
            place = self._places[id(item)] = len(self.nodes)
            self._others.append(item)
            self.nodes.append({"children": {}, **self._describe(item, place)})
        return place

    def capture(self, capture: Any) -> Any:
        """How the manifest names what a program captures: a variable, or a constant, which becomes an array."""
        if isinstance(capture, Variable):
            return {"node": self.place(capture)}
        if id(capture) not in self._constants:
            key = f"constant_{len(self._constants):05d}"
            self._constants[id(capture)] = key, capture
            self.arrays[key] = (key, np.asarray(capture._value))
        return {"constant": self._constants[id(capture)][0]}

    def with_hidden(self) -> tuple[list[dict[str, Any]], list[Any]]:
        """Nodes and objects as TensorFlow needs them.

        Those that only functions know are reached from the root; constants are variables that nobody trains.
        """
        nodes = [dict(node) for node in self.nodes]
        objects = [*self.graph.objects, *self._others]
        hidden = list(range(len(self.graph.objects), len(nodes)))
        for key, constant in self._constants.values():
            hidden.append(len(nodes))
            objects.append(constant)
            about = {"kind": "variable", "file": key, "name": key, "trainable": False}
            nodes.append({"children": {}, **about})
        if hidden:
            nodes[0]["children"] = {**nodes[0]["children"], "_captures": len(nodes)}
            named = {str(i): number for i, number in enumerate(hidden)}
            nodes.append({"children": named, "kind": "object"})
            objects.append(None)
        for name in _COLLECTIONS:
            own = self.places_of(getattr(self.root, name, None))
            if own is not None and name not in nodes[0]["children"]:
                nodes[0]["children"] = {**nodes[0]["children"], name: len(nodes)}
                parts = {str(i): number for i, number in enumerate(own)}
                nodes.append({"children": parts, "kind": "list"})
                objects.append(None)
        return nodes, objects
