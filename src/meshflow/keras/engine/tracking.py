"""Finds the variables, layers and metrics among an object's attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from meshflow.core.module import Module
from meshflow.core.variable import Variable

if TYPE_CHECKING:
    from meshflow.keras.engine.layer_weights import LayerWeights

# Attributes that refer to things the layer does not own.
_SKIPPED = frozenset(
    (
        *(
            "_own_weights",
            "_regularized",
            "_losses",
            "_own_metrics",
            "_inbound_nodes",
            "_dtype_policy",
        ),
        *("optimizer", "compiled_loss", "compiled_metrics", "history", "_input_spec", "_untracked"),
    )
)


class Tracker:
    """What one layer refers to, in the order the attributes were made.

    Attributes:
      variables: the layer's own variables: from `add_weight`, then from attributes.
      layers: sublayers.
      metrics: metric objects.
      groups: the layers and metrics, those of one list, tuple or dictionary together.
    """

    def __init__(self, owner: LayerWeights) -> None:
        from meshflow.keras.engine.base_layer import Layer as LayerClass

        self.variables: list[Variable] = list(owner._own_weights)
        self.layers: list[Any] = []
        self.groups: list[list[Any]] = []
        self.metrics: list[Any] = []
        seen = {id(v) for v in self.variables} | {id(owner)}
        for values in _values(owner):
            group: list[Any] = []
            for value in values:
                if id(value) in seen:
                    continue
                seen.add(id(value))
                if isinstance(value, Variable):
                    self.variables.append(value)
                elif isinstance(value, LayerClass):
                    self.layers.append(value)
                    group.append(value)
                elif getattr(value, "_is_metric", False):
                    self.metrics.append(value)
                    group.append(value)
                elif isinstance(value, Module):
                    self.variables.extend(v for v in value.variables if id(v) not in seen)
            if group:
                self.groups.append(group)


def _values(owner: Any) -> Iterator[Iterator[Any]]:
    """What each attribute holds."""
    for name, value in owner.__dict__.items():
        if name not in _SKIPPED:
            yield _leaves(value, 0)


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


def _leaves(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, (Variable, Module)) or getattr(value, "_is_metric", False):
        yield value
    elif isinstance(value, (list, tuple)):
        # Containers of plain data are common and can be long: looking at the ends is enough to
        # tell that a list holds numbers.
        if value and depth < 8 and not isinstance(value[0], (int, float, str, bytes)):
            for item in value:
                yield from _leaves(item, depth + 1)
    elif isinstance(value, Mapping) and depth < 8:
        for item in value.values():
            yield from _leaves(item, depth + 1)
