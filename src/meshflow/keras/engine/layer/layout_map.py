"""`LayoutMap`: layouts of weights, found by regular expressions on their names."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from meshflow.core.variables.module import Module
from meshflow.distribute.strategy import get_strategy
from meshflow.keras.engine.layer.dimensions import dimensions_of_weight
from meshflow.keras.engine.layer.keywords import layout_of
from meshflow.keras.engine.layer.tracking import attributes
from meshflow.keras.engine.symbolic.call_signature import call_state
from meshflow.placement.layout import Layout
from meshflow.placement.mesh import Mesh

__all__ = ["LayoutMap", "current_map", "laid", "layout_for", "layout_map_scope"]

_current: list[LayoutMap] = []


class LayoutMap(MutableMapping[str, Layout]):
    """Layouts by names of weights such as "dense.kernel"; keys may be regular expressions.

    A name that no key matches has the layout None.

    Args:
      mesh: the mesh for weights without an entry, which are replicated; None leaves them alone.

    Example:
      >>> import meshflow as tf
      >>> dtensor = tf.experimental.dtensor
      >>> mesh = dtensor.create_mesh([("model", 1)], devices=["CPU:0"])
      >>> layouts = tf.keras.dtensor.experimental.LayoutMap(mesh=mesh)
      >>> layouts[".*kernel"] = dtensor.Layout([dtensor.UNSHARDED, "model"], mesh)
      >>> layouts["dense.kernel"].rank
      2
    """

    def __init__(self, mesh: Mesh | None = None) -> None:
        self._mesh = mesh
        self._layouts: dict[str, Layout] = {}
        self._used: set[str] = set()

    def __getitem__(self, key: str) -> Layout | None:  # type: ignore[override]
        found = self._matching(key)
        return None if found is None else self._layouts[found]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._matching(key) is not None

    def pop(self, key: str, *default: Any) -> Any:
        """Takes out the layout of a key, which is compared as it is.

        Args:
          key: the key.
          *default: what to return without it.

        Raises:
          KeyError: without the key and a default.
        """
        return self._layouts.pop(key, *default)

    def _matching(self, key: str) -> str | None:
        if key in self._layouts:
            return key
        return next((pattern for pattern in self._layouts if re.match(pattern, key)), None)

    def of_weight(self, key: str) -> Layout | None:
        """The layout for a new weight, or None; the key it was found by counts as used.

        Args:
          key: the weight's name.
        """
        found = self._matching(key)
        if found is None:
            return None
        self._used.add(found)
        return self._layouts[found]

    def warn_of_unused(self) -> None:
        """Warns once of keys that no weight had: a typing mistake leaves weights whole."""
        unused = [key for key in self._layouts if key not in self._used]
        self._used.update(unused)
        if unused:
            warnings.warn(
                f"LayoutMap: no weight of a model matches {unused}; keys are matched from the start of names "
                "such as 'dense.kernel' or 'encoder.dense.kernel'. What is not matched is replicated.",
                stacklevel=2,
            )

    def get(self, key: str, default: Any = None) -> Any:
        """The layout for a name: of the same key, or of the first expression that matches its start.

        Args:
          key: the name.
          default: what to return without one.
        """
        found = self[key]
        return default if found is None else found

    def __setitem__(self, key: str, layout: Layout) -> None:
        if key in self._layouts:
            raise ValueError(
                f"{key} already exist in the LayoutMap with value {self._layouts[key]}."
            )
        if not isinstance(layout, Layout):
            raise ValueError(f"{layout!r} should be a dtensor.Layout type, got {type(layout)}.")
        self._layouts[key] = layout

    def __delitem__(self, key: str) -> None:
        del self._layouts[key]

    def __len__(self) -> int:
        return len(self._layouts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts)

    def get_default_mesh(self) -> Mesh | None:
        """The mesh of weights without an entry."""
        return self._mesh

    def scope(self) -> Any:
        """`layout_map_scope` of this map."""
        return layout_map_scope(self)


@contextmanager
def layout_map_scope(layout_map: LayoutMap) -> Iterator[None]:
    """Gives weights that layers create inside the layouts of a map.

    A weight is looked up as "layer_name.weight_name", then by the attributes that lead to it from the
    model that is being called: "encoder.dense.kernel", "blocks.0.dense.kernel".

    Args:
      layout_map: the map.

    Example:
      >>> import meshflow as tf
      >>> mesh = tf.experimental.dtensor.create_mesh([("x", 2)], devices=["CPU:0", "CPU:1"])
      >>> layouts = tf.keras.dtensor.experimental.LayoutMap(mesh)
      >>> columns = tf.experimental.dtensor.Layout([tf.experimental.dtensor.UNSHARDED, "x"], mesh)
      >>> layouts["dense.kernel"] = columns
      >>> with tf.keras.dtensor.experimental.layout_map_scope(layouts):
      ...     layer = tf.keras.layers.Dense(4, name="dense")
      ...     layer.build([None, 3])
      >>> tf.experimental.dtensor.fetch_layout(layer.kernel).sharding_specs
      ['unsharded', 'x']
    """
    _current.append(layout_map)
    try:
        yield
    finally:
        _current.pop()


def layout_for(
    layer: Any, name: str | None, shape: Sequence[int], dims: Any = None
) -> Layout | None:
    """The layout of a new weight: the layer's `<name>_layout` argument, or that of the current map, or of rules.

    Args:
      layer: the layer.
      name: the weight's name.
      shape: its shape.
      dims: what its axes are called, if not as the layer's class says.

    Raises:
      ValueError: when the layout has another rank.
    """
    rank = len(shape)
    layout = layout_of(layer, name)
    strategy = get_strategy()
    maps = [layer._layout_map] if getattr(layer, "_layout_map", None) is not None else _current[-1:]
    given = getattr(strategy, "layout_map", None)
    if not maps and given is not None:
        maps = [given]
    if layout is None and not maps and hasattr(strategy, "weight_layout"):
        known = dimensions_of_weight(layer, name, shape, dims)
        layout = strategy.weight_layout(known, shape, f"the weight {name} of layer {layer.name}")
    if layout is None and maps:
        layout = maps[0].of_weight(f"{layer.name}.{name}")
        root = call_state.layers[0] if call_state.layers else None
        if layout is None and len(maps[0]) and isinstance(root, Module):
            found = (maps[0].of_weight(f"{path}.{name}") for path in _paths(root, layer, 0))
            layout = next((one for one in found if one is not None), None)
        mesh = maps[0].get_default_mesh()
        if layout is None and mesh is not None:
            layout = Layout.replicated(mesh, rank)
    if layout is not None and layout.rank != rank:
        raise ValueError(
            f"The weight {name} of layer {layer.name} has {rank} axes, its layout "
            f"{layout.sharding_specs} has {layout.rank}."
        )
    return layout


def laid(layout: Layout | None) -> contextlib.AbstractContextManager[None]:
    """The variable that is made inside lies so from the start, under a strategy that splits variables further."""
    strategy = get_strategy()
    if hasattr(strategy, "laying"):
        return strategy.laying(layout)
    return contextlib.nullcontext()


def _paths(owner: Any, layer: Any, depth: int) -> Iterator[str]:
    """The attributes that lead from one object to another."""
    for name, child in attributes(owner):
        if child is layer:
            yield name
        elif depth < 8 and isinstance(child, Module):
            yield from (f"{name}.{rest}" for rest in _paths(child, layer, depth + 1))


def current_map() -> LayoutMap | None:
    """The map of the innermost `layout_map_scope`; layers keep it for weights they make later."""
    return _current[-1] if _current else None
