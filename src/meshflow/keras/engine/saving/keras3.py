"""Weights in HDF5 files in the layout of `.weights.h5` and `.keras` files (Keras 2.13 and later)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.variables.sharded_variable import whole_variables
from meshflow.keras.engine.saving.group_paths import EARLIER, KERAS_2, KERAS_3, walk
from meshflow.keras.engine.saving.hdf5 import assign, names_of, storable, stored


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
    reached = {id(w) for _, variables in walk(model, KERAS_2) for w in variables.values()}
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
        places[_identity(variables)] = path
        for key, variable in variables.items():
            own.create_dataset(key, data=storable(variable))
    for path, variables in walk(model, KERAS_3):
        place = places.get(_identity(variables))
        if variables and place is not None and path not in group:
            group[path] = group[place]


def _identity(variables: dict[str, Any]) -> tuple[int, ...]:
    return tuple(map(id, variables.values()))


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
    walks = [list(walk(model, style)) for style in (KERAS_2, KERAS_3, *EARLIER)]
    # Which version wrote the file, the paths in it tell.
    for path, variables in max(walks, key=lambda found: _fitting(found, group)):
        found = _stored(group, path, variables)
        if set(found) != set(variables):
            # What has a name is in the configuration, too.
            if skip_mismatch or not (found or any(key.isdigit() for key in variables)):
                continue
            raise ValueError(
                f"Weight count mismatch at {path!r}: model {model.name} expected {len(variables)} variables there, but "
                f"received {len(found)} variables from the file."
            )
        pairs = [(variable, stored(found[key])) for key, variable in variables.items()]
        assign(pairs, skip_mismatch, path)


def _fitting(found: list[tuple[str, dict[str, Any]]], group: Any) -> int:
    """How many weights a file has where they are looked for."""
    fits = 0
    for path, variables in found:
        own = _stored(group, path, variables)
        if set(own) == set(variables) and all(
            variable.shape.is_compatible_with(own[key].shape) for key, variable in variables.items()
        ):
            fits += len(variables)
    return fits


def _stored(group: Any, path: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """The weights of a place; another one with a name belongs to a vocabulary."""
    found = group.get(path, {}).items()
    return {name: value for name, value in found if name.isdigit() or name in wanted}


# Where that is which Keras 2 has no place for, as a loss scale.
_BESIDE = "optimizer/beside"


def write_optimizer(places: Sequence[Any], group: Any, beside: Sequence[Any] = ()) -> None:
    """Writes an optimizer's state, with its names.

    Args:
      places: what `in_order` of `optimizer_state` gave, or the optimizer's weights.
      group: an HDF5 file or group.
      beside: what that order has no place for, as a loss scale.
    """
    for path, written in (("optimizer/vars", places), (_BESIDE, beside)):
        for i, (place, name) in enumerate(zip(written, names_of(written), strict=True)):
            dataset = group.require_group(path).create_dataset(str(i), data=storable(place))
            # The first one's tells in which order they are.
            dataset.attrs["name"] = name


def read_optimizer(group: Any) -> tuple[list[str], list[np.ndarray]]:
    """Names (empty when other programs wrote the file) and values of an optimizer's state.

    Args:
      group: an HDF5 file or group.
    """
    found = [
        part[k]
        for part in (group.get("optimizer/vars", {}), group.get(_BESIDE, {}))
        for k in sorted(part, key=int)
    ]
    return [str(d.attrs.get("name", "")) for d in found], [stored(d) for d in found]
