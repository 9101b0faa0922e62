"""Weights in HDF5 files in the layout of `.weights.h5` and `.keras` files (Keras 2.13 and later)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshflow.core.variables.sharded_variable import merge_shards
from meshflow.keras.engine.saving.group_paths import (
    KERAS_2_STYLE,
    KERAS_3_STYLE,
    LEGACY_STYLES,
    AnyVariable,
    iterate_variables,
)
from meshflow.keras.engine.saving.hdf5 import (
    assign_values,
    format_weight_names,
    read_dataset,
    to_storable,
    warn_skipped,
)
from meshflow.keras.engine.saving.user_state import find_stores

if TYPE_CHECKING:
    from h5py import Dataset as HDF5Dataset
    from h5py import Group as HDF5Group


def has_keras3_layout(group: HDF5Group) -> bool:
    """Check whether a file has this layout.

    Args:
      group: An HDF5 file or group.
    """
    return "layer_names" not in group.attrs and "layer_names0" not in group.attrs and len(group) > 0


def can_store_model(model: Any) -> bool:
    """Check whether the layout has a path for every weight of a model.

    Args:
      model: The model.
    """
    reached = {
        id(w)
        for _, variables in iterate_variables(model, KERAS_2_STYLE)
        for w in variables.values()
    }
    return all(id(w) in reached for w in merge_shards(model._saved_weights))


def write_model(model: Any, group: HDF5Group) -> None:
    """Write a model's weights under the paths of Keras 2, and link the paths of Keras 3 to them.

    Args:
      model: The model.
      group: An HDF5 file or group.
    """
    paths: dict[tuple[int, ...], str] = {}
    stores = find_stores(model, KERAS_2_STYLE)
    for path, variables in iterate_variables(model, KERAS_2_STYLE):
        subgroup = group.require_group(path)
        if path in stores:
            values: dict[str, np.ndarray] = {}
            stores[path].save_own_variables(values)
            for key, value in values.items():
                subgroup.create_dataset(key, data=np.asarray(value))
            continue
        paths[_get_ids(variables)] = path
        for key, variable in variables.items():
            subgroup.create_dataset(key, data=to_storable(variable))
    for path, variables in iterate_variables(model, KERAS_3_STYLE):
        existing = paths.get(_get_ids(variables))
        if variables and existing is not None and path not in group:
            group[path] = group[existing]


def _get_ids(variables: dict[str, AnyVariable]) -> tuple[int, ...]:
    return tuple(map(id, variables.values()))


def read_model(model: Any, group: HDF5Group, skip_mismatch: bool = False) -> None:
    """Read a model's weights.

    Args:
      model: The model; its weights must exist.
      group: An HDF5 file or group.
      skip_mismatch: Whether to skip layers that do not fit.

    Raises:
      ValueError: if the file lacks a layer's weights, or a number or shape differs.
    """
    if "layers" not in group and "_layer_checkpoint_dependencies" in group:
        raise ValueError(
            "The file has the layout of Keras 2.12, which only that version can read. Load it there and save it as .h5."
        )
    styles = (KERAS_2_STYLE, KERAS_3_STYLE, *LEGACY_STYLES)
    walks = [list(iterate_variables(model, style)) for style in styles]
    counts = [_count_matching_weights(entries, group) for entries in walks]
    # The file does not declare which version wrote it, so the style that matches the most weights is used.
    best = counts.index(max(counts))
    stores = find_stores(model, styles[best])
    for path, variables in walks[best]:
        if path in stores:
            part = group.get(path, {})
            values = {key: read_dataset(part[key]) for key in part}
            try:
                stores[path].load_own_variables(values)
            except Exception as error:
                if not skip_mismatch:
                    raise
                warn_skipped(f"`load_own_variables` at {path!r} failed: {error}")
            continue
        datasets = _select_datasets(group, path, variables)
        if set(datasets) != set(variables):
            # Weights with names, unlike those with indices, are in the configuration, too.
            if skip_mismatch or not (datasets or any(key.isdigit() for key in variables)):
                continue
            raise ValueError(
                f"Weight count mismatch at {path!r}: model {model.name} expected {len(variables)} variables there, but "
                f"received {len(datasets)} variables from the file."
            )
        pairs = [(variable, read_dataset(datasets[key])) for key, variable in variables.items()]
        assign_values(pairs, skip_mismatch, path)


def _count_matching_weights(
    entries: list[tuple[str, dict[str, AnyVariable]]], group: HDF5Group
) -> int:
    """Count the weights that a file holds under the given paths."""
    count = 0
    for path, variables in entries:
        datasets = _select_datasets(group, path, variables)
        if set(datasets) == set(variables) and all(
            variable.shape.is_compatible_with(getattr(datasets[key], "shape", None))
            for key, variable in variables.items()
        ):
            count += len(variables)
    return count


def _select_datasets(
    group: HDF5Group, path: str, names: dict[str, AnyVariable]
) -> dict[str, HDF5Dataset]:
    """Return the data sets of a group that are weights; an unknown name belongs to a vocabulary."""
    part = group.get(path, {})
    if not hasattr(part, "items"):
        raise ValueError(
            f"{path!r} of the file is an array. Expected a group with the weights of a layer."
        )
    return {name: value for name, value in part.items() if name.isdigit() or name in names}


# Group of the state that Keras 2 has no slot for, such as a loss scale.
_EXTRA_STATE_GROUP = "optimizer/beside"


def write_optimizer(slots: Sequence[Any], group: HDF5Group, extra: Sequence[Any] = ()) -> None:
    """Write an optimizer's state with its names.

    Args:
      slots: Result of `optimizer_state.order_state`, or the optimizer's weights.
      group: An HDF5 file or group.
      extra: State that this order has no slot for, such as a loss scale.
    """
    for path, entries in (("optimizer/vars", slots), (_EXTRA_STATE_GROUP, extra)):
        for i, (slot, name) in enumerate(zip(entries, format_weight_names(entries), strict=True)):
            dataset = group.require_group(path).create_dataset(str(i), data=to_storable(slot))
            # The reader recognizes the order of the slots by the first name.
            dataset.attrs["name"] = name


def read_optimizer(group: HDF5Group) -> tuple[list[str], list[np.ndarray]]:
    """Read the names and values of an optimizer's state.

    Args:
      group: An HDF5 file or group.

    Returns:
      Names and arrays. The names are empty strings if another program wrote the file.
    """
    datasets = [
        part[k]
        for part in (group.get("optimizer/vars", {}), group.get(_EXTRA_STATE_GROUP, {}))
        for k in (sorted(part, key=int) if hasattr(part, "items") else ())
    ]
    return [str(d.attrs.get("name", "")) for d in datasets], [read_dataset(d) for d in datasets]
