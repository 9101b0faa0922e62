"""Weights of models in safetensors files, by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from meshflow.files.safetensors import INDEX, load_file, load_sharded, save_file, save_sharded

__all__ = ["ENDINGS", "read_model", "write_model"]

ENDINGS = (".safetensors", INDEX)
# Hugging Face's libraries ask whose arrays they are: TensorFlow's have kernels of inputs by outputs.
_METADATA = {"format": "tf"}
_NUMBERED = re.compile(r"(.*?)(?:_(\d+))?")


def write_model(model: Any, path: str) -> None:
    """Writes a model's weights.

    Args:
      model: the model.
      path: of one file, or of an index, beside which there are files of 5 GB.
    """
    (save_sharded if path.endswith(INDEX) else save_file)(_by_name(model), path, metadata=_METADATA)


def read_model(model: Any, path: str, skip_mismatch: bool, by_name: bool) -> None:
    """Gives a model's weights the values of a file.

    Names are the file's own, or, where these differ in nothing but the numbers that tell layers of a class apart, by
    their order: a program that makes a model twice has `dense` and `dense_1`.

    Args:
      model: the model.
      path: the file, or an index.
      skip_mismatch: whether what does not fit is left as it is.
      by_name: whether only what has a name of the model is looked at.

    Raises:
      ValueError: when names, shapes or dtypes do not fit; no weight has changed then.
    """
    own = _by_name(model)
    stored = load_sharded(path) if path.endswith(INDEX) else load_file(path)
    names = _counterparts(own, stored)
    wrong = [] if by_name else [f"{name} (not in the model)" for name in sorted(set(stored) - set(names.values()))]  # fmt: skip
    for name, weight in own.items():
        array = stored.get(names.get(name, name))
        if array is None:
            wrong += [] if by_name else [f"{name} (missing{_near(name, stored)})"]
            names.pop(name, None)
        elif not weight.shape.is_compatible_with(array.shape):
            wrong.append(f"{name} ({array.shape}, not {tuple(weight.shape)})")
            names.pop(name)
        elif not _holds(weight.dtype.as_numpy_dtype, array.dtype):
            wrong.append(f"{name} ({array.dtype}, not {weight.dtype.name})")
            names.pop(name)
    if wrong and not skip_mismatch:
        raise ValueError(
            f"{path} does not fit model {model.name}: {_some(wrong)}. skip_mismatch=True takes what fits."
        )
    if not names:
        raise ValueError(
            f"{path} has nothing that fits model {model.name}: it has {_some(sorted(stored))}, the model {_some(own)}."
        )
    for name, place in names.items():
        own[name].assign(stored[place].astype(own[name].dtype.as_numpy_dtype))


def _by_name(model: Any) -> dict[str, Any]:
    """A model's weights by their names without what follows a colon."""
    found: dict[str, Any] = {}
    for weight in model.weights:
        name = weight.name.partition(":")[0]
        if name in found:
            raise ValueError(
                f"Two weights of model {model.name} are called {name}: in a {ENDINGS[0]} file names tell them apart."
            )
        found[name] = weight
    return found


def _counterparts(own: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, str]:
    """The stored names of weights: their own, or those in the same places of the same layers."""
    if own.keys() != stored.keys():
        ours, theirs = _renumbered(own), _renumbered(stored)
        if ours.keys() == theirs.keys():
            return {name: theirs[place] for place, name in ours.items()}
    return {name: name for name in own if name in stored}


def _renumbered(names: Iterable[str]) -> dict[tuple[str, int, str], str]:
    """Names by layers of a name counted from zero, in the order of their numbers, and what follows."""
    parts = {name: name.partition("/") for name in names}
    numbers: dict[str, set[int]] = {}
    layers = {}
    for layer, _, _ in parts.values():
        found = _NUMBERED.fullmatch(layer)
        assert found is not None
        layers[layer] = found[1], int(found[2] or 0)
        numbers.setdefault(found[1], set()).add(int(found[2] or 0))
    places = {(base, n): i for base, ns in numbers.items() for i, n in enumerate(sorted(ns))}
    return {
        (layers[layer][0], places[layers[layer]], rest): name
        for name, (layer, _, rest) in parts.items()
    }


def _holds(wanted: Any, given: Any) -> bool:
    """Whether values of a dtype are values of another one: whole numbers hold no others, real ones no complex."""
    return _rank(wanted) >= _rank(given)


def _rank(dtype: Any) -> int:
    kind = np.dtype(dtype).kind
    return 0 if kind in "biu" else 2 if kind == "c" else 1


def _near(name: str, stored: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(stored), 1)
    return f", the nearest is {near[0]}" if near else ""


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:10] + ["..."] * (len(found) > 10))
