"""Paths of the HDF5 groups that hold each object's weights, as each version of Keras names them.

Groups follow attributes and lists of objects instead of layer names: `layers/dense_1/vars`. A
member of a list is named after its class, with an index when the class occurs again. An object that
can be reached in several ways belongs to the path that is visited first, and the versions visit
attributes in different orders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from meshflow.checkpoint.object_graph import is_sequential
from meshflow.core.variables.sharded_variable import ShardedVariable, merge_shards
from meshflow.core.variables.variable import Variable
from meshflow.keras import registry
from meshflow.keras.engine.graph.graph import get_graph
from meshflow.keras.engine.layer.base_layer import Layer

# A variable, or one that is stored in shards.
AnyVariable: TypeAlias = Variable | ShardedVariable

# Attributes that hold layers, but that Keras does not follow.
_HIDDEN_ATTRIBUTES = (
    "_layers",
    "_graph",
    "_inbound_nodes",
    "_losses",
    "_own_metrics",
    "layers",
)


# Layers of attention that are private attributes in Keras 2, and public ones in Keras 3.
_PUBLIC_IN_KERAS_3 = ("_query_dense", "_key_dense", "_value_dense", "_output_dense")


class PathStyle(NamedTuple):
    """The rules by which a version of Keras finds and names the layers that an object owns.

    Attributes:
      format_class_name: Function that converts the name of a class in a list.
      sort_attributes: Function that sorts the names of an object's attributes into the order of visiting.
      counts_visited: Whether members of lists that were visited before also take an index.
      is_keras_3: Whether lists in lists are followed, and attributes have Keras 3's names.
      includes_shared: Whether a layer also stores a sublayer's weight that one of its own attributes refers
        to.
    """

    format_class_name: Callable[[str], str]
    sort_attributes: Callable[[Any, list[str]], list[str]]
    counts_visited: bool
    is_keras_3: bool = False
    includes_shared: bool = True


def to_snake_case(name: str) -> str:
    """Convert a class name to Keras's spelling in files: `ConvLSTM1D` becomes `conv_lstm1d`.

    Names of layers have another spelling, which `registry.to_snake_case` returns.
    """
    spaced = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", spaced).lower()


def _sort_layers_first(value: object, names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: (name != "layers", name))


def _sort_graphs_first(value: object, names: list[str]) -> list[str]:
    """Sort the attribute `layers` of graphs and `Sequential` first, and private attributes last."""
    is_graph = is_sequential(value) or get_graph(value) is not None
    first = "layers" if is_graph else ""
    return sorted(names, key=lambda name: (name != first, name.startswith("_"), name))


KERAS_2_STYLE = PathStyle(
    to_snake_case, lambda _, names: sorted(names, reverse=True), counts_visited=False
)
KERAS_3_STYLE = PathStyle(to_snake_case, _sort_graphs_first, counts_visited=True, is_keras_3=True)
# Styles that Meshflow wrote before it followed Keras 2.
LEGACY_STYLES = (
    KERAS_2_STYLE._replace(includes_shared=False),
    PathStyle(
        registry.to_snake_case, _sort_layers_first, counts_visited=True, includes_shared=False
    ),
)


def iterate_variables(
    model: Layer, style: PathStyle
) -> Iterator[tuple[str, dict[str, AnyVariable]]]:
    """Yield the path of each group with its variables, by their names in the group.

    Args:
      model: A model or layer.
      style: Rules for the paths.
    """
    for path, item in iterate_objects(model, style):
        get_weights = getattr(item, "_weights_in_files", None)
        variables = (
            get_weights() if get_weights else _key_by_index(_find_own_variables(item, style))
        )
        yield f"{path}/vars".lstrip("/"), variables


def _key_by_index(variables: list[AnyVariable]) -> dict[str, AnyVariable]:
    return {str(i): variable for i, variable in enumerate(variables)}


def iterate_objects(model: Layer, style: PathStyle) -> Iterator[tuple[str, Layer]]:
    """Yield paths of groups and the objects that they belong to, starting with the model itself.

    Args:
      model: A model or layer.
      style: Rules for the paths.
    """
    return _visit_object(model, style, "", set())


def _visit_object(
    item: Layer, style: PathStyle, path: str, seen: set[int]
) -> Iterator[tuple[str, Layer]]:
    seen.add(id(item))
    yield path, item
    attributes = _find_layer_attributes(item)
    for name in style.sort_attributes(item, list(attributes)):
        value = attributes[name]
        if style.is_keras_3 and name in _PUBLIC_IN_KERAS_3:
            name = name.removeprefix("_")
        child_path = f"{path}/{name}".lstrip("/")
        if isinstance(value, Layer):
            if id(value) not in seen:
                yield from _visit_object(value, style, child_path, seen)
        else:
            yield from _visit_list(value, style, child_path, seen)


def _visit_list(
    items: Any, style: PathStyle, path: str, seen: set[int]
) -> Iterator[tuple[str, Layer]]:
    counts: dict[str, int] = {}
    for item in items.values() if isinstance(items, Mapping) else items:
        if isinstance(item, Layer):
            if id(item) in seen and not style.counts_visited:
                continue
            child_path = (
                f"{path}/{_number_name(style.format_class_name(type(item).__name__), counts)}"
            )
            if id(item) not in seen:
                yield from _visit_object(item, style, child_path, seen)
        elif style.is_keras_3 and _has_layers(item):
            yield from _visit_list(item, style, f"{path}/{_number_name('container', counts)}", seen)


def _number_name(name: str, counts: dict[str, int]) -> str:
    counts[name] = counts.get(name, -1) + 1
    return f"{name}_{counts[name]}" if counts[name] else name


def _find_layer_attributes(value: object) -> dict[str, Any]:
    """Return the attributes of an object that are layers, or contain layers."""
    attributes: dict[str, Any] = {"layers": value.layers} if hasattr(value, "layers") else {}
    for name, item in getattr(value, "__dict__", {}).items():
        if name not in _HIDDEN_ATTRIBUTES and (isinstance(item, Layer) or _has_layers(item)):
            attributes[name] = item
    return attributes


def _has_layers(value: object) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    return isinstance(value, (list, tuple)) and any(
        isinstance(x, Layer) or _has_layers(x) for x in value
    )


def _find_own_variables(value: Layer, style: PathStyle) -> list[AnyVariable]:
    """Return a layer's variables that no sublayer stores, trainable ones first.

    They include a sublayer's variables that the layer's own attributes refer to, if the style
    requires it.
    """
    nested = {
        id(w)
        for layer in _iterate_layers(_find_layer_attributes(value))
        for w in _list_weights(layer)
    }
    if style.includes_shared:
        nested -= {id(v) for v in getattr(value, "__dict__", {}).values()}
    weights = _list_weights(value)
    # Variables of a model's metrics are not saved.
    weights = getattr(value, "_saved_weights", weights) if weights else []
    own_weights = [w for w in weights if id(w) not in nested]
    return sorted(merge_shards(own_weights), key=lambda w: not w.trainable)


def _list_weights(layer: Layer) -> list[Variable]:
    # `weights` raises an error for a model that was never called; these lists are empty then.
    return [*layer.trainable_weights, *layer.non_trainable_weights]


def _iterate_layers(value: object) -> Iterator[Layer]:
    if isinstance(value, Layer):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _iterate_layers(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _iterate_layers(item)
