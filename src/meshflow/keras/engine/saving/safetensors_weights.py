"""Weights of models in safetensors files, which identify them by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from meshflow.files.arrays import can_hold
from meshflow.files.safetensors import (
    INDEX_SUFFIX,
    load_file,
    load_sharded,
    save_file,
    save_sharded,
)

if TYPE_CHECKING:
    from meshflow.core.variables.variable import Variable
    from meshflow.keras.engine.layer.base_layer import Layer

ENDINGS = (".safetensors", INDEX_SUFFIX)
# The libraries of Hugging Face read the origin of the arrays here; "tf" means kernels of shape
# (inputs, outputs).
_METADATA = {"format": "tf"}
_INDEXED_NAME = re.compile(r"(.*?)(?:_(\d+))?")


def write_model(model: Layer, path: str) -> None:
    """Write a model's weights.

    Args:
      model: The model.
      path: Path of a file, or of an index; next to an index there are files of 5 GB.
    """
    (save_sharded if path.endswith(INDEX_SUFFIX) else save_file)(
        _key_by_name(model), path, metadata=_METADATA
    )


def read_model(model: Layer, path: str, skip_mismatch: bool, by_name: bool) -> None:
    """Assign the values of a file to a model's weights.

    Weights are matched by name. If the names differ only in the indices of layers of the same
    class, layers are matched in the order of these indices: a program that creates a model twice
    has `dense` and `dense_1`.

    Args:
      model: The model.
      path: Path of a file, or of an index.
      skip_mismatch: Whether to skip arrays that do not fit.
      by_name: Whether to ignore names that only the model or only the file has.

    Raises:
      ValueError: if names, shapes or dtypes do not fit. No weight has changed then.
    """
    weights = _key_by_name(model)
    stored = load_sharded(path) if path.endswith(INDEX_SUFFIX) else load_file(path)
    names = _match_names(weights, stored)
    mismatches: list[str] = []
    if not by_name:
        extra = sorted(set(stored) - set(names.values()))
        mismatches = [f"{name} (not in the model)" for name in extra]
    for name, weight in weights.items():
        array = stored.get(names.get(name, name))
        if array is None:
            mismatches += [] if by_name else [f"{name} (missing{_suggest_name(name, stored)})"]
            names.pop(name, None)
        elif not weight.shape.is_compatible_with(array.shape):
            mismatches.append(f"{name} ({array.shape}, not {tuple(weight.shape)})")
            names.pop(name)
        elif not can_hold(weight.dtype.as_numpy_dtype, array.dtype):
            mismatches.append(f"{name} ({array.dtype}, not {weight.dtype.name})")
            names.pop(name)
    if mismatches and not skip_mismatch:
        raise ValueError(
            f"{path} does not fit model {model.name}: {_format_names(mismatches)}. Pass skip_mismatch=True to load the weights "
            "that fit."
        )
    if not names:
        raise ValueError(
            f"{path} has nothing that fits model {model.name}: the file holds {_format_names(sorted(stored))}, the model has "
            f"{_format_names(weights)}."
        )
    for name, stored_name in names.items():
        weight = weights[name]
        weight.assign(stored[stored_name].astype(weight.dtype.as_numpy_dtype))


def _key_by_name(model: Layer) -> dict[str, Variable]:
    """Return a model's weights by their names without the suffix after a colon."""
    weights: dict[str, Variable] = {}
    for weight in model.weights:
        name = weight.name.partition(":")[0]
        if name in weights:
            raise ValueError(
                f"Two weights of model {model.name} have the name {name}, but names identify weights in a "
                f"{ENDINGS[0]} file. Give the layers different names."
            )
        weights[name] = weight
    return weights


def _match_names(weights: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, str]:
    """Return the stored name of each weight: the same name, or that of the same layer in order."""
    if weights.keys() != stored.keys():
        ours, theirs = _index_names(weights), _index_names(stored)
        if ours.keys() == theirs.keys():
            return {name: theirs[key] for key, name in ours.items()}
    return {name: name for name in weights if name in stored}


def _index_names(names: Iterable[str]) -> dict[tuple[str, int, str], str]:
    """Key weight names by layer class, index of the layer in its class, and rest of the name.

    The index is a rank: layers `dense_3` and `dense_7` have the indices 0 and 1.
    """
    parts = {name: name.partition("/") for name in names}
    indices: dict[str, set[int]] = {}
    layers = {}
    for layer, _, _ in parts.values():
        match = _INDEXED_NAME.fullmatch(layer)
        assert match is not None
        layers[layer] = match[1], int(match[2] or 0)
        indices.setdefault(match[1], set()).add(int(match[2] or 0))
    ranks = {(base, n): i for base, ns in indices.items() for i, n in enumerate(sorted(ns))}
    return {
        (layers[layer][0], ranks[layers[layer]], rest): name
        for name, (layer, _, rest) in parts.items()
    }


def _suggest_name(name: str, stored: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, list(stored), 1)
    return f", the nearest is {matches[0]}" if matches else ""


def _format_names(names: Iterable[str]) -> str:
    items = list(names)
    return ", ".join(items[:10] + ["..."] * (len(items) > 10))
