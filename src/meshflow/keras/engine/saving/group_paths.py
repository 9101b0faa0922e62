"""Which group of an HDF5 file holds an object's weights, as each version of Keras names it.

Groups follow attributes and lists of objects instead of names: `layers/dense_1/vars`. A member of a list is called
after its class, numbered when the class appears again. Versions differ in which way to an object they go first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from meshflow.core.variables.sharded_variable import whole_variables
from meshflow.keras import registry
from meshflow.keras.engine.layer.base_layer import Layer

__all__ = ["EARLIER", "KERAS_2", "KERAS_3", "Style", "owned", "walk"]

_HIDDEN = ("_layers", "_graph", "_inbound_nodes", "_losses", "_own_metrics", "_extras", "layers")


# Of attention, private in Keras 2.
_PUBLIC_IN_KERAS_3 = ("_query_dense", "_key_dense", "_value_dense", "_output_dense")


class Style(NamedTuple):
    """How a version finds and names what an object owns.

    Attributes:
      snake: the name of a class in a list.
      order: names of an object's attributes, in the order in which they are followed.
      counts_seen: whether members that were met before take a number, too.
      is_keras_3: whether lists in lists are followed, and attributes have Keras 3's names.
      repeats: whether a layer's attribute that is a sublayer's weight is the layer's, too.
    """

    snake: Callable[[str], str]
    order: Callable[[Any, list[str]], list[str]]
    counts_seen: bool
    is_keras_3: bool = False
    repeats: bool = True


def snake_case(name: str) -> str:
    """`ConvLSTM1D` -> `conv_lstm1d`: files of Keras spell classes otherwise than it names layers."""
    spaced = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", spaced).lower()


def _layers_first(value: Any, names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: (name != "layers", name))


def _graphs_first(value: Any, names: list[str]) -> list[str]:
    """The layers of graphs and rows first, what is private last."""
    is_graph = hasattr(value, "add") or getattr(value, "_current_graph", bool)()
    first = "layers" if is_graph else ""
    return sorted(names, key=lambda name: (name != first, name.startswith("_"), name))


KERAS_2 = Style(snake_case, lambda _, names: sorted(names, reverse=True), counts_seen=False)
KERAS_3 = Style(snake_case, _graphs_first, counts_seen=True, is_keras_3=True)
# What Meshflow wrote before it followed Keras 2 in this.
EARLIER = (
    KERAS_2._replace(repeats=False),
    Style(registry.snake_case, _layers_first, counts_seen=True, repeats=False),
)


def walk(model: Any, style: Style) -> Iterator[tuple[str, dict[str, Any]]]:
    """Paths of groups and the variables in each, by their names there.

    Args:
      model: a model or layer.
      style: how they are named.
    """
    for path, item in owned(model, style):
        named = getattr(item, "_weights_in_files", None)
        found = named() if named else _by_number(_own_variables(item, style))
        yield f"{path}/vars".lstrip("/"), found


def _by_number(variables: list[Any]) -> dict[str, Any]:
    return {str(i): variable for i, variable in enumerate(variables)}


def owned(model: Any, style: Style) -> Iterator[tuple[str, Any]]:
    """Paths of groups and the objects that they are of, the model itself first.

    Args:
      model: a model or layer.
      style: how they are named.
    """
    return _walk(model, style, "", set())


def _walk(item: Any, style: Style, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    seen.add(id(item))
    yield path, item
    found = _attributes(item)
    for name in style.order(item, list(found)):
        value = found[name]
        if style.is_keras_3 and name in _PUBLIC_IN_KERAS_3:
            name = name.removeprefix("_")
        below = f"{path}/{name}".lstrip("/")
        if isinstance(value, Layer):
            if id(value) not in seen:
                yield from _walk(value, style, below, seen)
        else:
            yield from _in_list(value, style, below, seen)


def _in_list(items: Any, style: Style, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    used: dict[str, int] = {}
    for item in items.values() if isinstance(items, Mapping) else items:
        if isinstance(item, Layer):
            if id(item) in seen and not style.counts_seen:
                continue
            below = f"{path}/{_numbered(style.snake(type(item).__name__), used)}"
            if id(item) not in seen:
                yield from _walk(item, style, below, seen)
        elif style.is_keras_3 and _has_layers(item):
            yield from _in_list(item, style, f"{path}/{_numbered('container', used)}", seen)


def _numbered(name: str, used: dict[str, int]) -> str:
    used[name] = used.get(name, -1) + 1
    return f"{name}_{used[name]}" if used[name] else name


def _attributes(value: Any) -> dict[str, Any]:
    """What an object owns that is, or holds, layers."""
    found = {"layers": value.layers} if hasattr(value, "layers") else {}
    for name, item in getattr(value, "__dict__", {}).items():
        if name not in _HIDDEN and (isinstance(item, Layer) or _has_layers(item)):
            found[name] = item
    return found


def _has_layers(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    return isinstance(value, (list, tuple)) and any(
        isinstance(x, Layer) or _has_layers(x) for x in value
    )


def _own_variables(value: Any, style: Style) -> list[Any]:
    """A layer's variables that no sublayer has, or that it refers to itself, trainable ones first."""
    nested = {id(w) for layer in _sublayers(_attributes(value)) for w in _weights_of(layer)}
    if style.repeats:
        nested -= {id(v) for v in getattr(value, "__dict__", {}).values()}
    weights = _weights_of(value)
    # Of models those of metrics are left out.
    weights = getattr(value, "_saved_weights", weights) if weights else []
    own = [w for w in weights if id(w) not in nested]
    return sorted(whole_variables(own), key=lambda w: not w.trainable)


def _weights_of(layer: Any) -> list[Any]:
    # Models that were never called have none, and say so when they are asked for `weights`.
    return [*layer.trainable_weights, *layer.non_trainable_weights]


def _sublayers(value: Any) -> Iterator[Any]:
    if isinstance(value, Layer):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _sublayers(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _sublayers(item)
