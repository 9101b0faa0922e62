"""Finds the variables, layers and metrics among an object's attributes, and remembers them.

What was found stays with the object until one of its attributes is set or deleted, or a list or dictionary that
was looked into holds something else: plain containers tell nobody that they change, so they are compared.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

from meshflow.core.variables.module import Module
from meshflow.core.variables.variable import Variable

# Attributes that refer to things the layer does not own.
_SKIPPED = frozenset(
    (
        *(
            "_own_weights",
            "_regularized",
            "_losses",
            "_symbolic_losses",
            "_own_metrics",
            "_inbound_nodes",
            "_dtype_policy",
        ),
        *("optimizer", "compiled_loss", "compiled_metrics", "history", "_input_spec", "_untracked"),
        *("_tracker", "_compile_arguments"),
    )
)


# Data that a list which begins with it holds all along: looking at its first item is enough.
_DATA = (int, float, str, bytes)
# Values of attributes of which none leads to another variable, layer or metric than the one before.
_PLAIN = frozenset((int, float, str, bytes, bool, type(None)))


class Tracks:
    """A layer, as far as a walk over attributes knows one."""

    _own_weights: list[Variable]


class Tracker:
    """What one layer refers to, in the order the attributes were made.

    Attributes:
      variables: the layer's own variables: from `add_weight`, then from attributes.
      layers: sublayers.
      metrics: metric objects.
      groups: the layers and metrics, those of one list, tuple or dictionary together.
    """

    def __init__(self, owner: Tracks) -> None:
        self.variables: list[Variable] = list(owner._own_weights)
        self.layers: list[Any] = []
        self.groups: list[list[Any]] = []
        self.metrics: list[Any] = []
        self._owner = id(owner)
        self._modules = False
        self._containers: list[Any] = [(owner._own_weights, self.variables.copy())]
        seen = {id(v) for v in self.variables} | {id(owner)}
        for values in self._values(owner):
            group: list[Any] = []
            for value in values:
                if id(value) in seen:
                    continue
                seen.add(id(value))
                if isinstance(value, Variable):
                    self.variables.append(value)
                elif isinstance(value, Tracks):
                    self.layers.append(value)
                    group.append(value)
                elif getattr(value, "_is_metric", False):
                    self.metrics.append(value)
                    group.append(value)
                elif isinstance(value, Module):
                    self._modules = True
                    self.variables.extend(v for v in value.variables if id(v) not in seen)
            if group:
                self.groups.append(group)

    def _values(self, owner: Any) -> Iterator[Iterator[Any]]:
        """What each attribute holds."""
        for name, value in owner.__dict__.items():
            if name not in _SKIPPED:
                yield self._leaves(value, 0)

    def _leaves(self, value: Any, depth: int) -> Iterator[Any]:
        if isinstance(value, (Variable, Module)) or getattr(value, "_is_metric", False):
            yield value
        elif getattr(value, "_is_sharded", False):
            yield from value.variables
        elif isinstance(value, (list, tuple, Mapping)) and depth < 8:
            items = _items(value)
            if type(value) is not tuple:
                self._containers.append((value, items))
            for item in items or ():
                yield from self._leaves(item, depth + 1)

    def is_current(self, owner: Tracks) -> bool:
        """Whether a walk now would find the same, provided that no attribute was set since.

        Args:
          owner: the object; a copy of the one that was walked is another.
        """
        if self._modules or self._owner != id(owner):
            # The variables of a module that is no layer are looked for each time.
            return False
        for container, before in self._containers:
            now = _items(container)
            if before is None or now is None:
                if now is not before:
                    return False
            elif len(now) != len(before) or not all(map(operator.is_, now, before)):
                return False
        return True


def _items(container: Any) -> list[Any] | None:
    """What a container holds; None for plain data, which is common and can be long."""
    if isinstance(container, Mapping):
        return list(container.values())
    return None if container and isinstance(container[0], _DATA) else list(container)


def leads_nowhere(before: Any, after: Any) -> bool:
    """Whether an attribute may change from one value to the other without a walk finding anything else."""
    return type(before) in _PLAIN and type(after) in _PLAIN


def attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    """Modules among an object's attributes, with the path that leads to each."""
    for name, value in owner.__dict__.items():
        if name not in _SKIPPED and name[:1] != "_":
            yield from _named(name, value, 0)


def _named(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Module):
        yield name, value
    elif isinstance(value, (list, tuple, Mapping)) and depth < 8:
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in pairs:
            yield from _named(f"{name}.{key}", item, depth + 1)
