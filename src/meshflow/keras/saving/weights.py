"""Weights in files: HDF5 in Keras 2's layout, or a folder of raw arrays.

The folder holds one `.npy` file per weight and a manifest; it is written under a temporary name and
renamed when complete, so that a killed program never leaves half a checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from meshflow.core.errors import DataLossError, NotFoundError


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ImportError("HDF5 files need h5py: pip install 'meshflow[keras]'.") from error
    return h5py


def _is_h5(path: str, save_format: str | None) -> bool:
    return save_format in ("h5", "keras") or path.endswith((".h5", ".keras", ".hdf5"))


def save_weights(
    model: Any, filepath: Any, overwrite: bool = True, save_format: str | None = None
) -> None:
    """Saves a model's weights; see `Model.save_weights`."""
    path = os.fspath(filepath)
    if not model.built and not model.weights:
        raise ValueError(
            f"Unable to save weights of model {model.name}: it has not created its weights yet. Build it or call it on data first."
        )
    if _is_h5(path, save_format):
        if os.path.exists(path) and not overwrite:
            raise FileExistsError(f"{path} exists and overwrite is False.")
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        part = f"{path}.part"
        with _h5py().File(part, "w") as file:
            write_h5(model, file)
        os.replace(part, path)
    else:
        write_folder(path, {f"{i:05d}": (w.name, w.numpy()) for i, w in enumerate(model.weights)})


def load_weights(
    model: Any, filepath: Any, skip_mismatch: bool = False, by_name: bool = False
) -> None:
    """Loads a model's weights; see `Model.load_weights`."""
    path = os.fspath(filepath)
    if not model.built and not model.weights:
        raise ValueError(
            f"Unable to load weights into model {model.name}, which has not created its variables yet. Call the model first, then load the weights."
        )
    if _is_h5(path, None):
        if not os.path.exists(path):
            raise FileNotFoundError(f"No weights file at {path}.")
        with _h5py().File(path, "r") as file:
            group = file.get("model_weights", file)
            read_h5(model, group, by_name, skip_mismatch)
        return
    if by_name:
        raise NotImplementedError("Weights may only be loaded by name from HDF5 files.")
    stored = read_folder(path)
    values = [stored[key] for key in sorted(stored)]
    own = model.weights
    if len(values) != len(own):
        raise ValueError(f"{path} holds {len(values)} weights, model {model.name} has {len(own)}.")
    _assign(list(zip(own, [v for _, v in values], strict=True)), skip_mismatch, path)


def _assign(pairs: list[tuple[Any, Any]], skip_mismatch: bool, where: str) -> None:
    for variable, value in pairs:
        if tuple(variable.shape) != tuple(value.shape):
            if skip_mismatch:
                continue
            raise ValueError(
                f"{where}: weight {variable.name} has shape {tuple(variable.shape)}, the stored value has shape {tuple(value.shape)}."
            )
        variable.assign(np.asarray(value).astype(variable.dtype.dtype))


def _stored_layers(model: Any) -> list[Any]:
    """Layers in the order of Keras 2's files."""
    return list(model.layers)


def _ordered(layer: Any) -> list[Any]:
    return (
        [*layer.trainable_weights, *layer.non_trainable_weights]
        if not hasattr(layer, "layers")
        else list(layer.weights)
    )


def write_h5(model: Any, group: Any) -> None:
    """Writes weights in Keras 2's layout: a group per layer, names in attributes."""
    layers = _stored_layers(model)
    group.attrs["layer_names"] = [layer.name.encode() for layer in layers]
    group.attrs["backend"] = b"jax"
    group.attrs["keras_version"] = b"2.9.0"
    for layer in layers:
        own = group.create_group(layer.name)
        names = [w.name for w in _ordered(layer)]
        own.attrs["weight_names"] = [n.encode() for n in names]
        for name, weight in zip(names, _ordered(layer), strict=True):
            own.create_dataset(name, data=np.asarray(weight.numpy()))
    known = {id(w) for layer in layers for w in layer.weights}
    top = group.create_group("top_level_model_weights")
    rest = [w for w in model.weights if id(w) not in known]
    top.attrs["weight_names"] = [w.name.encode() for w in rest]
    for weight in rest:
        top.create_dataset(weight.name, data=np.asarray(weight.numpy()))


def read_h5(model: Any, group: Any, by_name: bool, skip_mismatch: bool) -> None:
    """Reads weights in Keras 2's layout."""

    def names(attrs: Any, key: str) -> list[str]:
        return [n.decode() if isinstance(n, bytes) else str(n) for n in attrs.get(key, [])]

    stored = [
        (n, [group[n][w][()] for w in names(group[n].attrs, "weight_names")])
        for n in names(group.attrs, "layer_names")
    ]
    layers = [layer for layer in _stored_layers(model) if layer.weights]
    if by_name:
        by = dict(stored)
        matched = [(layer, by[layer.name]) for layer in layers if layer.name in by]
    else:
        stored = [(n, v) for n, v in stored if v]
        if len(stored) != len(layers):
            raise ValueError(
                f"Layer count mismatch when loading weights from file. Model {model.name} expected {len(layers)} layers, found {len(stored)} saved layers."
            )
        matched = [(layer, values) for layer, (_, values) in zip(layers, stored, strict=True)]
    for layer, values in matched:
        own = _ordered(layer)
        if len(own) != len(values):
            if skip_mismatch:
                continue
            raise ValueError(
                f"Weight count mismatch for layer {layer.name}: it has {len(own)} weights, the file {len(values)}."
            )
        _assign(list(zip(own, values, strict=True)), skip_mismatch, f"layer {layer.name}")
    if "top_level_model_weights" in group:
        known = {id(w) for layer in _stored_layers(model) for w in layer.weights}
        rest = [w for w in model.weights if id(w) not in known]
        top = group["top_level_model_weights"]
        values = [top[n][()] for n in names(top.attrs, "weight_names")]
        if len(values) == len(rest):
            _assign(list(zip(rest, values, strict=True)), skip_mismatch, "model weights")


def write_folder(path: str, arrays: dict[str, tuple[str, Any]]) -> None:
    """Writes arrays and a manifest to a folder, completely or not at all."""
    target = Path(path)
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    manifest = {}
    for key, (name, value) in arrays.items():
        array = np.asarray(value)
        raw = array.view(np.uint8) if array.dtype.kind == "V" and array.ndim else array
        with open(part / f"{key}.npy", "wb") as file:
            np.save(file, raw)
            file.flush()
            os.fsync(file.fileno())
        manifest[key] = {"name": name, "dtype": str(array.dtype), "shape": list(array.shape)}
    with open(part / "manifest.json", "w") as file:
        json.dump({"format": "meshflow-arrays", "version": 1, "arrays": manifest}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    old = target.with_name(target.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.replace(target, old)
    os.replace(part, target)
    shutil.rmtree(old, ignore_errors=True)


def read_folder(path: str) -> dict[str, tuple[str, np.ndarray]]:
    """Reads what `write_folder` wrote.

    Raises:
      NotFoundError: when there is nothing.
      DataLossError: when a file is missing or damaged, naming it.
    """
    import ml_dtypes  # noqa: F401  registers bfloat16 and others with NumPy

    folder = Path(path)
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except FileNotFoundError:
        raise NotFoundError(f"No checkpoint at {folder}.") from None
    except ValueError as error:
        raise DataLossError(f"{folder / 'manifest.json'} is damaged: {error}.") from error
    result = {}
    for key, entry in manifest["arrays"].items():
        file = folder / f"{key}.npy"
        try:
            raw = np.load(file)
            dtype = np.dtype(entry["dtype"])
            result[key] = (
                entry["name"],
                (raw.view(dtype) if raw.dtype != dtype else raw).reshape(entry["shape"]),
            )
        except (OSError, ValueError, EOFError) as error:
            raise DataLossError(
                f"{file} (weight {entry['name']}) is missing or damaged: {error}."
            ) from error
    return result
