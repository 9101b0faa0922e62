"""`LayoutMap`: layouts of weights, which are found by regular expressions that match their names."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from meshflow.core.variables.module import Module
from meshflow.distribute.strategy import get_strategy
from meshflow.keras.engine.layer.dimensions import get_weight_dimensions
from meshflow.keras.engine.layer.keywords import find_layout
from meshflow.keras.engine.layer.tracking import iterate_modules
from meshflow.keras.engine.symbolic.call_signature import call_state
from meshflow.placement.layout import Layout
from meshflow.placement.mesh import Mesh

_scopes: list[LayoutMap] = []


class LayoutMap(MutableMapping[str, Layout]):
    """Mapping from weight names such as "dense.kernel" to layouts; keys may be regular expressions.

    The layout of a name that no key matches is None.

    Args:
      mesh: Mesh on which weights without an entry are replicated; None does not place them.

    Example:
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
        pattern = self._match_key(key)
        return None if pattern is None else self._layouts[pattern]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._match_key(key) is not None

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a key, which is compared literally, and return its layout.

        Args:
          key: The key.
          *default: Value to return if the key is missing.

        Raises:
          KeyError: If the key is missing and there is no default.
        """
        return self._layouts.pop(key, *default)

    def _match_key(self, key: str) -> str | None:
        if key in self._layouts:
            return key
        return next((pattern for pattern in self._layouts if re.match(pattern, key)), None)

    def get_weight_layout(self, key: str) -> Layout | None:
        """Return the layout for a new weight, or None; mark the matching key as used."""
        pattern = self._match_key(key)
        if pattern is None:
            return None
        self._used.add(pattern)
        return self._layouts[pattern]

    def warn_of_unused(self) -> None:
        """Warn once about keys that match no weight, for example misspelled ones."""
        unused = [key for key in self._layouts if key not in self._used]
        self._used.update(unused)
        if unused:
            warnings.warn(
                f"LayoutMap: no weight of a model matches {unused}; keys are matched from the start of names "
                "such as 'dense.kernel' or 'encoder.dense.kernel'. Unmatched weights are replicated.",
                stacklevel=2,
            )

    def get(self, key: str, default: Any = None) -> Any:
        """Return the layout for a name: of an equal key, or of the first matching expression."""
        layout = self[key]
        return default if layout is None else layout

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
        """Return the mesh on which weights without an entry are replicated."""
        return self._mesh

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Return `layout_map_scope(self)`."""
        return layout_map_scope(self)


@contextmanager
def layout_map_scope(layout_map: LayoutMap) -> Iterator[None]:
    """Apply the layouts of a map to weights that layers create in the scope.

    A weight is looked up as "layer_name.weight_name", then by its attribute path from the model
    that is being called: "encoder.dense.kernel", "blocks.0.dense.kernel".

    Args:
      layout_map: The map.

    Example:
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
    _scopes.append(layout_map)
    try:
        yield
    finally:
        _scopes.pop()


def choose_layout(
    layer: Any, name: str | None, shape: Sequence[int], dims: Sequence[str] | None = None
) -> Layout | None:
    """Choose the layout of a new weight: from an argument, the current map, or rules.

    Args:
      layer: The layer.
      name: Name of the weight.
      shape: Shape of the weight.
      dims: Names of the axes, if they differ from those that the class of the layer defines.

    Raises:
      ValueError: If the rank of the layout differs.
    """
    rank = len(shape)
    layout = find_layout(layer, name)
    strategy = get_strategy()
    maps = [layer._layout_map] if getattr(layer, "_layout_map", None) is not None else _scopes[-1:]
    strategy_map = getattr(strategy, "layout_map", None)
    if not maps and strategy_map is not None:
        maps = [strategy_map]
    if layout is None and not maps and hasattr(strategy, "resolve_weight_layout"):
        names = get_weight_dimensions(layer, name, shape, dims)
        layout = strategy.resolve_weight_layout(
            names, shape, f"the weight {name} of layer {layer.name}"
        )
    if layout is None and maps:
        layout = maps[0].get_weight_layout(f"{layer.name}.{name}")
        root = call_state.layers[0] if call_state.layers else None
        if layout is None and len(maps[0]) and isinstance(root, Module):
            layouts = (
                maps[0].get_weight_layout(f"{path}.{name}") for path in _find_paths(root, layer, 0)
            )
            layout = next((found for found in layouts if found is not None), None)
        mesh = maps[0].get_default_mesh()
        if layout is None and mesh is not None:
            layout = Layout.replicated(mesh, rank)
    if layout is not None and layout.rank != rank:
        raise ValueError(
            f"The weight {name} of layer {layer.name} has {rank} axes, its layout "
            f"{layout.sharding_specs} has {layout.rank}. Pass a layout of rank {rank}."
        )
    return layout


def variable_layout_scope(layout: Layout | None) -> contextlib.AbstractContextManager[None]:
    """Create variables within the scope with this layout, if the strategy shards variables further."""
    strategy = get_strategy()
    if hasattr(strategy, "variable_layout_scope"):
        return strategy.variable_layout_scope(layout)
    return contextlib.nullcontext()


def _find_paths(owner: Module, layer: Module, depth: int) -> Iterator[str]:
    """Iterate over the attribute paths from an object to a layer."""
    for name, child in iterate_modules(owner):
        if child is layer:
            yield name
        elif depth < 8 and isinstance(child, Module):
            yield from (f"{name}.{rest}" for rest in _find_paths(child, layer, depth + 1))


def get_current_map() -> LayoutMap | None:
    """Return the map of the innermost `layout_map_scope`; layers keep it for later weights."""
    return _scopes[-1] if _scopes else None
