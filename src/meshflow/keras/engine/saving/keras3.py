"""Weights in HDF5 files in the layout of `.weights.h5` and `.keras` files (Keras 2.13 and later)."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.variables.sharded_variable import whole_variables
from meshflow.keras.engine.saving.group_paths import EARLIER, KERAS_2, KERAS_3, walk
from meshflow.keras.engine.saving.hdf5 import assign


def is_layout(group: Any) -> bool:
    """Whether a file has this layout.

    Args:
      group: an HDF5 file or group.
    """
    return "layer_names" not in group.attrs and "layer_names0" not in group.attrs and len(group) > 0


def can_hold(model: Any) -> bool:
    """Whether the layout reaches every weight of a model.

    Args:
      model: the model.
    """
    reached = {id(w) for _, variables in walk(model, KERAS_2) for w in variables}
    return all(id(w) in reached for w in whole_variables(model._saved_weights))


def write_model(model: Any, group: Any) -> None:
    """Writes a model's weights where Keras 2 looks for them, which Keras 3 finds by its own paths, too.

    Args:
      model: the model.
      group: an HDF5 file or group.
    """
    places: dict[tuple[int, ...], str] = {}
    for path, variables in walk(model, KERAS_2):
        own = group.require_group(path)
        places[tuple(map(id, variables))] = path
        for i, variable in enumerate(variables):
            value = np.asarray(variable.numpy())
            own.create_dataset(
                str(i), data=value.astype("float32") if value.dtype.kind == "V" else value
            )
    for path, variables in walk(model, KERAS_3):
        place = places.get(tuple(map(id, variables)))
        if variables and place is not None and path not in group:
            group[path] = group[place]


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
    walks = [list(walk(model, style)) for style in (KERAS_2, KERAS_3, EARLIER)]
    # Which version wrote the file, the paths in it tell.
    for path, variables in max(walks, key=lambda found: _fitting(found, group)):
        stored = group.get(path, {})
        if len(stored) != len(variables):
            if skip_mismatch:
                continue
            raise ValueError(
                f"Weight count mismatch at {path!r}: model {model.name} has {len(variables)} weights there, the file {len(stored)}."
            )
        values = [np.asarray(stored[str(i)]) for i in range(len(variables))]
        assign(list(zip(variables, values, strict=True)), skip_mismatch, path)


def _fitting(found: list[tuple[str, list[Any]]], group: Any) -> int:
    """How many weights a file has where they are looked for."""
    fits = 0
    for path, variables in found:
        stored = group.get(path, {})
        shapes = [getattr(stored.get(str(i)), "shape", None) for i in range(len(variables))]
        same = shapes == [tuple(v.shape) for v in variables]
        fits += len(variables) if same and len(stored) == len(variables) else 0
    return fits


def write_optimizer(weights: list[Any], group: Any, by_variable: bool) -> None:
    """Writes an optimizer's state, with its names.

    Args:
      weights: what `state_of` or `by_variable` of `optimizer_state` gave.
      group: an HDF5 file or group.
      by_variable: which of them.
    """
    own = group.require_group("optimizer/vars")
    for i, weight in enumerate(weights):
        dataset = own.create_dataset(str(i), data=np.asarray(weight.numpy()))
        # This name of the first says in which order they are.
        first = by_variable and i == 0
        dataset.attrs["name"] = "iteration:0" if first else f"{weight._shared_name}:0"


def write_state(values: list[Any], group: Any) -> None:
    """Writes an optimizer's state as Keras 3 orders it.

    Args:
      values: what `of_keras_3` of `optimizer_state` gave.
      group: an HDF5 file or group.
    """
    own = group.require_group("optimizer/vars")
    for i, value in enumerate(values):
        own.create_dataset(str(i), data=np.asarray(value))


def read_optimizer(group: Any) -> tuple[list[str], list[np.ndarray]]:
    """Names (empty when other programs wrote the file) and values of an optimizer's state.

    Args:
      group: an HDF5 file or group.
    """
    stored = group.get("optimizer/vars", {})
    keys = sorted(stored, key=int)
    names = [str(stored[k].attrs.get("name", "")) for k in keys]
    return names, [np.asarray(stored[k]) for k in keys]
