"""Weights in HDF5 files in Keras 2's layout: a group per layer, and weight names in attributes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from meshflow.core.variables.sharded_variable import merge_shards
from meshflow.core.variables.variable import get_full_name
from meshflow.environment.limits import spend_for_repeated_read
from meshflow.files.arrays import cast_weight
from meshflow.keras.engine.saving.archives import get_object_address
from meshflow.keras.engine.saving.group_paths import AnyVariable
from meshflow.keras.engine.saving.model_configuration import KERAS_VERSION
from meshflow.keras.engine.saving.older_weights import convert_weights

if TYPE_CHECKING:
    from h5py import Dataset as HDF5Dataset
    from h5py import Group as HDF5Group

    from meshflow.keras.engine.layer.base_layer import Layer

# HDF5 stores at most 64 kB of attributes for an object, so longer lists of names are split.
_MAX_ATTRIBUTE_BYTES = 64512
# Text that HDF5 cannot hold: NUL and halves of surrogate pairs.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

# Dtypes that HDF5 does not know, and that Keras 3 stores as bytes.
_OPAQUE_DTYPES = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4")
}


def write_names(group: HDF5Group, key: str, names: Sequence[str]) -> None:
    """Write a list of names as an attribute, in several pieces if it is long.

    Args:
      group: An HDF5 group.
      key: Name of the attribute.
      names: Names to write.

    Raises:
      RuntimeError: if a name is too long for HDF5.
      ValueError: if HDF5 cannot hold a name.
    """
    for name in names:
        if _UNSTORABLE.search(name):
            raise ValueError(
                f"The name {name!r:.100} contains a NUL or half a surrogate pair, which HDF5 cannot hold. Rename the "
                "layer, or save the model as .keras."
            )
    data = [name.encode() for name in names]
    if any(len(name) > _MAX_ATTRIBUTE_BYTES for name in data):
        raise RuntimeError(
            f"A name in {key!r} is longer than {_MAX_ATTRIBUTE_BYTES} bytes, the limit of HDF5. Use shorter names."
        )
    pieces = 1
    while any(
        np.asarray(p).nbytes > _MAX_ATTRIBUTE_BYTES for p in np.array_split(data, pieces) if data
    ):
        pieces += 1
    if pieces == 1:
        group.attrs[key] = np.asarray(data) if data else []
        return
    for i, piece in enumerate(np.array_split(data, pieces)):
        group.attrs[f"{key}{i}"] = piece


def read_names(group: HDF5Group, key: str) -> list[str]:
    """Read a list of names that `write_names` wrote.

    Args:
      group: An HDF5 group.
      key: Name of the attribute.

    Returns:
      The names; an empty list if there is no such attribute.

    Raises:
      ValueError: if the names are not valid text.
    """
    if key in group.attrs:
        raw = list(group.attrs[key])
    else:
        raw, i = [], 0
        while f"{key}{i}" in group.attrs:
            raw += list(group.attrs[f"{key}{i}"])
            i += 1
    try:
        return [n.decode() if isinstance(n, bytes) else str(n) for n in raw]
    except UnicodeDecodeError as error:
        raise ValueError(
            f"The file is damaged: the names in {key!r} are not valid text: {error}."
        ) from None


def list_layer_weights(layer: Layer) -> list[AnyVariable]:
    """Return the weights of a layer and its sublayers in the order of the files: trainable ones first.

    Args:
      layer: A layer or model.
    """
    return merge_shards([*layer.trainable_weights, *layer.non_trainable_weights])


def format_weight_names(weights: Sequence[Any]) -> list[str]:
    """Return the names of weights in files; a sharded table has the name of the unsharded table.

    Args:
      weights: Variables, or slots of an optimizer's state.
    """
    return [f"{get_full_name(w)}:0" for w in weights]


def assign_values(
    pairs: Sequence[tuple[AnyVariable, HDF5Dataset | np.ndarray]],
    skip_mismatch: bool,
    location: str,
) -> None:
    """Assign stored values to variables.

    Args:
      pairs: Variables and their values.
      skip_mismatch: Whether to skip values of another shape with a warning instead of an error.
      location: Name of the layer or group in messages.

    Raises:
      ValueError: if a value has another shape than its variable.
    """
    for variable, value in pairs:
        if not variable.shape.is_compatible_with(value.shape):
            message = (
                f"Shape mismatch in {location}: weight {variable.name} has shape {tuple(variable.shape)}, the stored "
                f"value has shape {tuple(value.shape)}."
            )
            if not skip_mismatch:
                raise ValueError(message)
            warn_skipped(message)
            continue
        label = f"The stored value of {variable.name} in {location}"
        variable.assign(cast_weight(np.asarray(value), variable.dtype.dtype, label))


def warn_skipped(message: str) -> None:
    """Warn that a part of a file is not loaded.

    Args:
      message: The reason.
    """
    warnings.warn(f"Skipping loading: {message}", stacklevel=4)


def _write_group(group: HDF5Group, weights: Sequence[Any], names: Sequence[str]) -> None:
    # A name may occur twice, and HDF5 cannot hold two data sets of one name.
    counts: dict[str, int] = {}
    unique = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        unique.append(name if counts[name] == 1 else f"{name}_{counts[name] - 1}")
    write_names(group, "weight_names", unique)
    for name, weight in zip(unique, weights, strict=True):
        group.create_dataset(name, data=to_storable(weight))


def _read_group(group: HDF5Group) -> list[np.ndarray]:
    return [read_dataset(group[name]) for name in read_names(group, "weight_names")]


def to_storable(weight: Any) -> np.ndarray:
    """Convert a weight's value to an array that HDF5 can hold; bfloat16 becomes float32.

    Args:
      weight: A variable, or a slot of an optimizer's state.
    """
    value = np.asarray(weight.numpy())
    return value.astype("float32") if value.dtype.kind == "V" else value


def read_dataset(dataset: HDF5Dataset) -> np.ndarray:
    """Read a data set.

    Keras 3 stores some dtypes, such as bfloat16, as bytes with the dtype's name in an attribute.

    Args:
      dataset: Data set of an HDF5 file.

    Raises:
      ValueError: if it is a group, holds strings or references, or has an unknown dtype.
    """
    if getattr(dataset, "shape", None) is None or dataset.dtype.hasobject:
        raise ValueError(
            f"{dataset.name} of the file is no array of numbers. Expected a data set with the values of a weight."
        )
    # Names in a file may refer to one data set many times.
    key = dataset.file.id.id, get_object_address(dataset)
    spend_for_repeated_read(
        key, dataset.size * dataset.dtype.itemsize, f"the weight {dataset.name}"
    )
    value = np.asarray(dataset)
    if value.dtype.kind != "V":
        return value
    # Keras 3 omits the name in .h5 files; bfloat16 is its only such dtype with two bytes.
    name = dataset.attrs.get("dtype", "bfloat16")
    name = name.decode() if isinstance(name, bytes) else name
    dtype = _OPAQUE_DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None or dtype.itemsize != value.dtype.itemsize:
        raise ValueError(
            f"The stored value {dataset.name!r} has {value.dtype.itemsize} bytes per element, but declares dtype "
            f"{name!r}. Expected one of {', '.join(_OPAQUE_DTYPES)} with its size."
        )
    return value.view(dtype)


def write_model(model: Any, group: HDF5Group) -> None:
    """Write a model's weights.

    Args:
      model: The model.
      group: An HDF5 file or group.
    """
    layers = list(model.layers)
    write_names(group, "layer_names", [layer.name for layer in layers])
    group.attrs["backend"] = b"jax"
    group.attrs["keras_version"] = KERAS_VERSION.encode()
    for layer in layers:
        weights = list_layer_weights(layer)
        # A name may lead into the group of another layer, such as `conv/pointwise` next to `conv`.
        _write_group(group.require_group(layer.name), weights, format_weight_names(weights))
    top_level_weights = _find_top_level_weights(model)
    _write_group(
        group.create_group("top_level_model_weights"),
        top_level_weights,
        format_weight_names(top_level_weights),
    )


def _find_top_level_weights(model: Any) -> list[AnyVariable]:
    """Return the model's weights that belong to none of its layers."""
    layer_weight_ids = {id(w) for layer in model.layers for w in layer.weights}
    return merge_shards(w for w in model._saved_weights if id(w) not in layer_weight_ids)


def read_model(
    model: Any, group: HDF5Group, by_name: bool = False, skip_mismatch: bool = False
) -> None:
    """Read a model's weights.

    Args:
      model: The model; its weights must exist.
      group: An HDF5 file or group.
      by_name: Whether to match layers by name instead of order.
      skip_mismatch: Whether to skip layers that do not fit.

    Raises:
      ValueError: if the number of weights or a shape differs.
    """
    stored = [(n, _read_group(group[n])) for n in read_names(group, "layer_names")]
    layers = [layer for layer in model.layers if layer.weights]
    if by_name:
        values_by_name = dict(stored)
        matched = [
            (layer, values_by_name[layer.name])
            for layer in layers
            if values_by_name.get(layer.name)
        ]
    else:
        stored = [(n, v) for n, v in stored if v]
        if len(stored) != len(layers):
            raise ValueError(
                f"Layer count mismatch when loading weights from file. Model {model.name} expected {len(layers)} layers, found {len(stored)} saved layers."
            )
        matched = [(layer, values) for layer, (_, values) in zip(layers, stored, strict=True)]
    version = group.attrs.get("keras_version", "1")
    version = version.decode() if isinstance(version, bytes) else str(version)
    for i, (layer, stored_values) in enumerate(matched):
        values = convert_weights(layer, stored_values, version)
        location = f"layer #{i} (named {layer.name})"
        variables = list_layer_weights(layer)
        if len(variables) != len(values):
            message = f"Weight count mismatch for {location}: it has {len(variables)} weights, the file {len(values)}."
            if not skip_mismatch:
                raise ValueError(message)
            warn_skipped(message)
            continue
        assign_values(list(zip(variables, values, strict=True)), skip_mismatch, location)
    if "top_level_model_weights" in group:
        values, top_level_weights = (
            _read_group(group["top_level_model_weights"]),
            _find_top_level_weights(model),
        )
        if len(values) == len(top_level_weights):
            assign_values(
                list(zip(top_level_weights, values, strict=True)), skip_mismatch, "model weights"
            )


# Groups of the optimizer's state, and of state that Keras 2's order has no slot for, such as a loss
# scale.
_STATE_GROUP, _EXTRA_STATE_GROUP = "optimizer_weights", "optimizer_weights_beside"


def write_optimizer(slots: Sequence[Any], file: HDF5Group, extra: Sequence[Any] = ()) -> None:
    """Write an optimizer's state.

    Args:
      slots: Result of `optimizer_state.order_state`, or the optimizer's weights.
      file: An HDF5 file.
      extra: State that this order has no slot for, such as a loss scale.
    """
    _write_group(file.create_group(_STATE_GROUP), slots, format_weight_names(slots))
    if extra:
        _write_group(file.create_group(_EXTRA_STATE_GROUP), extra, format_weight_names(extra))


def read_optimizer(file: HDF5Group) -> tuple[list[str], list[np.ndarray]]:
    """Read the names and values of an optimizer's state.

    Args:
      file: An HDF5 file.

    Returns:
      Names and arrays; two empty lists if the file holds no such state.
    """
    groups = [file[path] for path in (_STATE_GROUP, _EXTRA_STATE_GROUP) if path in file]
    names = [name for group in groups for name in read_names(group, "weight_names")]
    return names, [value for group in groups for value in _read_group(group)]
