"""Weights in HDF5 files in Keras 2's layout: a group for each layer, weight names in attributes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from meshflow.core.variables.sharded_variable import whole_variables
from meshflow.keras.engine.saving.configuration import KERAS_VERSION

# HDF5 keeps attributes of an object in 64 kB; longer lists of names are cut into pieces.
_HEADER_LIMIT = 64512


# What HDF5 has no numbers for.
_OPAQUE = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4")
}


def write_names(group: Any, key: str, names: Sequence[str]) -> None:
    """Writes a list of names as an attribute.

    Args:
      group: an HDF5 group.
      key: the attribute.
      names: the names.

    Raises:
      RuntimeError: for a name too long for HDF5.
    """
    data = [name.encode() for name in names]
    if any(len(name) > _HEADER_LIMIT for name in data):
        raise RuntimeError(f"A name in {key} is longer than HDF5's {_HEADER_LIMIT} bytes.")
    pieces = 1
    while any(np.asarray(p).nbytes > _HEADER_LIMIT for p in np.array_split(data, pieces) if data):
        pieces += 1
    if pieces == 1:
        group.attrs[key] = np.asarray(data) if data else []
        return
    for i, piece in enumerate(np.array_split(data, pieces)):
        group.attrs[f"{key}{i}"] = piece


def read_names(group: Any, key: str) -> list[str]:
    """The list of names that `write_names` wrote; empty when there is none.

    Args:
      group: an HDF5 group.
      key: the attribute.
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
            f"The file is damaged: the names in {key!r} are no text: {error}."
        ) from None


def layer_weights(layer: Any) -> list[Any]:
    """A layer's weights in the order of the files: those that are trained first, of models inside, too.

    Args:
      layer: a layer or model.
    """
    return whole_variables([*layer.trainable_weights, *layer.non_trainable_weights])


def names_of(weights: Sequence[Any]) -> list[str]:
    """The names that files hold of weights; a table in shards has the name of one that is whole.

    Args:
      weights: variables.
    """
    return [f"{w._shared_name}:0" for w in weights]


def assign(pairs: Sequence[tuple[Any, Any]], skip_mismatch: bool, where: str) -> None:
    """Assigns stored values to variables.

    Args:
      pairs: variables and values.
      skip_mismatch: whether values of another shape are left out, with a warning.
      where: what the values belong to, for errors.

    Raises:
      ValueError: for a value of another shape.
    """
    for variable, value in pairs:
        if not variable.shape.is_compatible_with(value.shape):
            message = (
                f"Shape mismatch in {where}: weight {variable.name} has shape {tuple(variable.shape)}, the stored "
                f"value has shape {tuple(value.shape)}."
            )
            if not skip_mismatch:
                raise ValueError(message)
            _warn_skipped(message)
            continue
        variable.assign(np.asarray(value).astype(variable.dtype.dtype))


def _warn_skipped(message: str) -> None:
    warnings.warn(f"Skipping loading: {message}", stacklevel=4)


def _write_group(group: Any, weights: Sequence[Any], names: Sequence[str]) -> None:
    # Two weights of one name would overwrite each other.
    used: dict[str, int] = {}
    unique = []
    for name in names:
        used[name] = used.get(name, 0) + 1
        unique.append(name if used[name] == 1 else f"{name}_{used[name] - 1}")
    write_names(group, "weight_names", unique)
    for name, weight in zip(unique, weights, strict=True):
        group.create_dataset(name, data=storable(weight))


def _read_group(group: Any) -> list[np.ndarray]:
    return [stored(group[name]) for name in read_names(group, "weight_names")]


def storable(weight: Any) -> np.ndarray:
    """A weight's value as HDF5 can hold it: it does not know bfloat16, whose values float32 holds.

    Args:
      weight: a variable.
    """
    value = np.asarray(weight.numpy())
    return value.astype("float32") if value.dtype.kind == "V" else value


def stored(dataset: Any) -> np.ndarray:
    """A dataset's value, also of the dtypes that Keras 3 writes as bytes with their name beside.

    Args:
      dataset: of an HDF5 file.

    Raises:
      ValueError: for bytes of another dtype.
    """
    value = np.asarray(dataset)
    if value.dtype.kind != "V":
        return value
    # In .h5 files Keras 3 leaves the name out; of two bytes there is one such dtype.
    name = dataset.attrs.get("dtype", "bfloat16")
    name = name.decode() if isinstance(name, bytes) else name
    kind = _OPAQUE.get(name) if isinstance(name, str) else None
    if kind is None or kind.itemsize != value.dtype.itemsize:
        raise ValueError(
            f"The stored value {dataset.name!r} has {value.dtype.itemsize} bytes for each number and says dtype {name!r}: "
            f"expected one of {', '.join(_OPAQUE)}."
        )
    return value.view(kind)


def write_model(model: Any, group: Any) -> None:
    """Writes a model's weights.

    Args:
      model: the model.
      group: an HDF5 file or group.
    """
    layers = list(model.layers)
    write_names(group, "layer_names", [layer.name for layer in layers])
    group.attrs["backend"] = b"jax"
    group.attrs["keras_version"] = KERAS_VERSION.encode()
    for layer in layers:
        weights = layer_weights(layer)
        # A name may lead into the group of another layer: `conv/pointwise` and `conv`.
        _write_group(group.require_group(layer.name), weights, names_of(weights))
    rest = _top_level(model)
    _write_group(group.create_group("top_level_model_weights"), rest, names_of(rest))


def _top_level(model: Any) -> list[Any]:
    known = {id(w) for layer in model.layers for w in layer.weights}
    return whole_variables(w for w in model._saved_weights if id(w) not in known)


def read_model(model: Any, group: Any, by_name: bool = False, skip_mismatch: bool = False) -> None:
    """Reads a model's weights.

    Args:
      model: the model, with its weights made.
      group: an HDF5 file or group.
      by_name: whether layers are matched by name instead of order.
      skip_mismatch: whether layers that do not fit are left out.

    Raises:
      ValueError: when numbers or shapes of weights differ.
    """
    stored = [(n, _read_group(group[n])) for n in read_names(group, "layer_names")]
    layers = [layer for layer in model.layers if layer.weights]
    if by_name:
        by = dict(stored)
        matched = [(layer, by[layer.name]) for layer in layers if by.get(layer.name)]
    else:
        stored = [(n, v) for n, v in stored if v]
        if len(stored) != len(layers):
            raise ValueError(
                f"Layer count mismatch when loading weights from file. Model {model.name} expected {len(layers)} layers, found {len(stored)} saved layers."
            )
        matched = [(layer, values) for layer, (_, values) in zip(layers, stored, strict=True)]
    for i, (layer, values) in enumerate(matched):
        where = f"layer #{i} (named {layer.name})"
        own = layer_weights(layer)
        if len(own) != len(values):
            message = f"Weight count mismatch for {where}: it has {len(own)} weights, the file {len(values)}."
            if not skip_mismatch:
                raise ValueError(message)
            _warn_skipped(message)
            continue
        assign(list(zip(own, values, strict=True)), skip_mismatch, where)
    if "top_level_model_weights" in group:
        values, rest = _read_group(group["top_level_model_weights"]), _top_level(model)
        if len(values) == len(rest):
            assign(list(zip(rest, values, strict=True)), skip_mismatch, "model weights")


# Where the optimizer's state is, and what Keras 2 has no place for, as a loss scale.
_STATE, _BESIDE = "optimizer_weights", "optimizer_weights_beside"


def write_optimizer(places: Sequence[Any], file: Any, beside: Sequence[Any] = ()) -> None:
    """Writes an optimizer's state.

    Args:
      places: what `in_order` of `optimizer_state` gave, or the optimizer's weights.
      file: an HDF5 file.
      beside: what that order has no place for, as a loss scale.
    """
    _write_group(file.create_group(_STATE), places, names_of(places))
    if beside:
        _write_group(file.create_group(_BESIDE), beside, names_of(beside))


def read_optimizer(file: Any) -> tuple[list[str], list[np.ndarray]]:
    """Names and values of an optimizer's state; empty when there is none.

    Args:
      file: an HDF5 file.
    """
    groups = [file[path] for path in (_STATE, _BESIDE) if path in file]
    names = [name for group in groups for name in read_names(group, "weight_names")]
    return names, [value for group in groups for value in _read_group(group)]
