"""Weights in HDF5 files in the layout of `.weights.h5` and `.keras` files (Keras 2.13 and later).

Groups follow attributes and lists of objects instead of names: `layers/dense_1/vars/0`. A member of a
list is called after its class, numbered when the class appears again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from meshflow.core.variables.sharded_variable import whole_variables
from meshflow.keras import registry
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.saving.hdf5 import assign
from meshflow.keras.engine.saving.optimizer_state import state_of


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object owns, by path below its group."""
    if hasattr(value, "layers"):
        yield from _numbered("layers", value.layers)
    hidden = ("_layers", "_graph", "_inbound_nodes", "_losses", "_own_metrics", "_extras")
    for name, item in sorted(getattr(value, "__dict__", {}).items()):
        if name in hidden or (hasattr(value, "layers") and name == "layers"):
            continue
        if isinstance(item, Layer):
            yield name, item
        elif isinstance(item, (list, tuple)) and any(isinstance(x, Layer) for x in item):
            yield from _numbered(name, item)
        elif isinstance(item, Mapping) and any(isinstance(x, Layer) for x in item.values()):
            yield from _numbered(name, list(item.values()))


def _numbered(group: str, items: Any) -> Iterator[tuple[str, Any]]:
    used: dict[str, int] = {}
    for item in items:
        name = registry.snake_case(type(item).__name__)
        used[name] = used.get(name, -1) + 1
        yield f"{group}/{name}_{used[name]}" if used[name] else f"{group}/{name}", item


def _own_variables(value: Any) -> list[Any]:
    """A layer's variables that no sublayer has, trainable ones first."""
    nested = {id(w) for _, item in _members(value) for w in item.weights}
    # Of models those of metrics are left out.
    weights = getattr(value, "_saved_weights", None)
    own = [w for w in (value.weights if weights is None else weights) if id(w) not in nested]
    return sorted(whole_variables(own), key=lambda w: not w.trainable)


def _walk(model: Any) -> Iterator[tuple[str, list[Any]]]:
    """Paths of groups and the variables in each."""
    seen: set[int] = set()
    queue: list[tuple[str, Any]] = [("", model)]
    while queue:
        path, item = queue.pop(0)
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield f"{path}/vars".lstrip("/"), _own_variables(item)
        queue += [(f"{path}/{name}".lstrip("/"), child) for name, child in _members(item)]


def is_layout(group: Any) -> bool:
    """Whether a file has this layout.

    Args:
      group: an HDF5 file or group.
    """
    return (
        "layer_names" not in group.attrs
        and "layer_names0" not in group.attrs
        and ("layers" in group or "vars" in group or "_layer_checkpoint_dependencies" in group)
    )


def can_hold(model: Any) -> bool:
    """Whether the layout reaches every weight of a model.

    Args:
      model: the model.
    """
    reached = {id(w) for _, variables in _walk(model) for w in variables}
    return all(id(w) in reached for w in whole_variables(model._saved_weights))


def write_model(model: Any, group: Any) -> None:
    """Writes a model's weights.

    Args:
      model: the model.
      group: an HDF5 file or group.
    """
    for path, variables in _walk(model):
        own = group.require_group(path)
        for i, variable in enumerate(variables):
            value = np.asarray(variable.numpy())
            own.create_dataset(
                str(i), data=value.astype("float32") if value.dtype.kind == "V" else value
            )


def read_model(model: Any, group: Any, skip_mismatch: bool = False) -> None:
    """Reads a model's weights.

    Args:
      model: the model, with its weights made.
      group: an HDF5 file or group.
      skip_mismatch: whether layers that do not fit are left out.

    Raises:
      ValueError: when the file lacks a layer's weights, or numbers or shapes differ.
    """
    if "layers" not in group and "_layer_checkpoint_dependencies" in group:
        raise ValueError(
            "The file has the layout of Keras 2.12, which only that version reads: save it again as .h5."
        )
    for path, variables in _walk(model):
        stored = group.get(path, {})
        if len(stored) != len(variables):
            if skip_mismatch:
                continue
            raise ValueError(
                f"Weight count mismatch at {path!r}: model {model.name} has {len(variables)} weights there, the file {len(stored)}."
            )
        values = [np.asarray(stored[str(i)]) for i in range(len(variables))]
        assign(list(zip(variables, values, strict=True)), skip_mismatch, path)


def write_optimizer(optimizer: Any, group: Any) -> None:
    """Writes an optimizer's state, with its names.

    Args:
      optimizer: the optimizer.
      group: an HDF5 file or group.
    """
    own = group.require_group("optimizer/vars")
    weights = state_of(optimizer)
    for i, weight in enumerate(weights):
        dataset = own.create_dataset(str(i), data=np.asarray(weight.numpy()))
        dataset.attrs["name"] = f"{weight._shared_name}:0"


def read_optimizer(group: Any) -> tuple[list[str], list[np.ndarray]]:
    """Names (empty when other programs wrote the file) and values of an optimizer's state.

    Args:
      group: an HDF5 file or group.
    """
    stored = group.get("optimizer/vars", {})
    keys = sorted(stored, key=int)
    names = [str(stored[k].attrs.get("name", "")) for k in keys]
    return names, [np.asarray(stored[k]) for k in keys]
