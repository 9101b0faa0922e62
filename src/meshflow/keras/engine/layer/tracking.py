"""Tracking of the variables, layers and metrics among an object's attributes.

The result of a walk is cached in the object until one of its attributes is set or deleted, or until
the contents of a visited list or dictionary differ: plain containers do not report changes, so
their items are compared.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

from meshflow.core.variables.module import Module
from meshflow.core.variables.variable import Variable

# Attributes that refer to objects that the layer does not own, or that it tracks otherwise.
_UNTRACKED_ATTRIBUTES = frozenset(
    (
        *(
            "_own_weights",
            "_regularized",
            "_losses",
            "_inferred_losses",
            "_own_metrics",
            "_inbound_nodes",
            "_dtype_policy",
        ),
        *("optimizer", "compiled_loss", "compiled_metrics", "history", "_input_spec", "_untracked"),
        *("_tracker", "_compile_arguments", "_step_counters"),
    )
)


# A list with a first item of these types is data, so its other items are not inspected.
_DATA_TYPES = (int, float, str, bytes)
# Changes between values of these types cannot add or remove a variable, layer or metric.
_LEAF_TYPES = frozenset((int, float, str, bytes, bool, type(None)))


class TrackedLayer:
    """Base class by which the tracker recognizes layers."""

    _own_weights: list[Variable]


class Tracker:
    """Variables, layers and metrics of one layer, in the order in which its attributes were set.

    Attributes:
      variables: Variables of the layer itself: from `add_weight`, then from attributes.
      layers: Sublayers.
      metrics: Metric objects.
      groups: Layers and metrics, grouped by the attribute that holds them.
    """

    def __init__(self, owner: TrackedLayer) -> None:
        self.variables: list[Variable] = list(owner._own_weights)
        self.layers: list[Any] = []
        self.groups: list[list[Any]] = []
        self.metrics: list[Any] = []
        self._owner_id = id(owner)
        self._has_modules = False
        self._containers: list[Any] = [(owner._own_weights, self.variables.copy())]
        seen = {id(v) for v in self.variables} | {id(owner)}
        for values in self._iterate_attributes(owner):
            group: list[Any] = []
            for value in values:
                if id(value) in seen:
                    continue
                seen.add(id(value))
                if isinstance(value, Variable):
                    self.variables.append(value)
                elif isinstance(value, TrackedLayer):
                    self.layers.append(value)
                    group.append(value)
                elif getattr(value, "_is_metric", False):
                    self.metrics.append(value)
                    group.append(value)
                elif isinstance(value, Module):
                    self._has_modules = True
                    self.variables.extend(v for v in value.variables if id(v) not in seen)
            if group:
                self.groups.append(group)

    def _iterate_attributes(self, owner: TrackedLayer) -> Iterator[Iterator[Any]]:
        """Iterate over the tracked objects of each attribute."""
        # Another thread that calls the layer may set attributes meanwhile.
        for name, value in owner.__dict__.copy().items():
            if name not in _UNTRACKED_ATTRIBUTES:
                yield self._iterate_leaves(value, 0)

    def _iterate_leaves(self, value: Any, depth: int) -> Iterator[Any]:
        if isinstance(value, (Variable, Module)) or getattr(value, "_is_metric", False):
            yield value
        elif getattr(value, "_is_sharded", False):
            yield from value.variables
        elif isinstance(value, (list, tuple, Mapping)) and depth < 8:
            items = _list_items(value)
            if type(value) is not tuple:
                self._containers.append((value, items))
            for item in items or ():
                yield from self._iterate_leaves(item, depth + 1)

    def is_current(self, owner: TrackedLayer) -> bool:
        """Check whether a new walk would find the same objects, if no attribute was set."""
        if self._has_modules or self._owner_id != id(owner):
            # Variables of modules that are not layers can change without notice.
            return False
        for container, before in self._containers:
            now = _list_items(container)
            if before is None or now is None:
                if now is not before:
                    return False
            elif len(now) != len(before) or not all(map(operator.is_, now, before)):
                return False
        return True


def _list_items(container: Any) -> list[Any] | None:
    """Return the items of a container, or None for data, which can be long."""
    if isinstance(container, Mapping):
        return list(container.values())
    return None if container and isinstance(container[0], _DATA_TYPES) else list(container)


def are_leaf_values(before: object, after: object) -> bool:
    """Check whether an attribute can change between two values without effect on tracking."""
    return type(before) in _LEAF_TYPES and type(after) in _LEAF_TYPES


def iterate_modules(owner: object) -> Iterator[tuple[str, Module]]:
    """Iterate over the modules among an object's attributes, with their attribute paths."""
    for name, value in owner.__dict__.copy().items():
        if name not in _UNTRACKED_ATTRIBUTES and name[:1] != "_":
            yield from _iterate_named_modules(name, value, 0)


def _iterate_named_modules(name: str, value: object, depth: int) -> Iterator[tuple[str, Module]]:
    if isinstance(value, Module):
        yield name, value
    elif isinstance(value, (list, tuple, Mapping)) and depth < 8:
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in pairs:
            yield from _iterate_named_modules(f"{name}.{key}", item, depth + 1)
