"""Keyword arguments of layers that their constructors do not name: the base class's, and layouts of weights."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from typing import Any

KNOWN = (
    *("input_dim", "input_shape", "batch_input_shape", "batch_size", "weights"),
    *("activity_regularizer", "autocast", "implementation", "dims", "enable_caching_device"),
)
_ENDING = "_layout"


def take_layouts(cls: type, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Takes the `<weight>_layout` arguments out of a layer's keywords.

    A class says by `_weights_with_layouts` which weights it has. Of a user's class, which need not, all are taken, and
    building the layer shows whether it has such weights; see `check_layouts`.

    Args:
      cls: the layer's class.
      kwargs: its keywords, from which those taken are removed.

    Raises:
      TypeError: naming the class, the keyword and the nearest one, when the class has no such weight.
    """
    found = {key: kwargs.pop(key) for key in list(kwargs) if key.endswith(_ENDING)}
    names = _layouts_of(cls)
    wrong = [] if names is None else [key for key in found if key not in names]
    if wrong:
        raise not_understood(cls, wrong)
    return {key: layout for key, layout in found.items() if layout is not None}


def _layouts_of(cls: type) -> set[str] | None:
    weights = getattr(cls, "_weights_with_layouts", None)
    if weights is None:
        return set() if cls.__module__.startswith("meshflow.") else None
    return {f"{name}{_ENDING}" for name in weights}


def check_known(cls: type, kwargs: Iterable[str]) -> None:
    """Refuses keywords that no layer has.

    Raises:
      TypeError: naming the class, the keywords and the nearest ones.
    """
    unknown = [key for key in kwargs if key not in KNOWN]
    if unknown:
        raise not_understood(cls, unknown)


def not_understood(cls: type, wrong: Iterable[str]) -> TypeError:
    """The error for keywords that a layer does not have."""
    own = set(inspect.signature(cls).parameters) | set(_layouts_of(cls) or ())
    names = {*own, *KNOWN, "trainable", "name", "dtype", "dynamic"} - {"kwargs"}
    hints = []
    for key in sorted(wrong):
        close = difflib.get_close_matches(key, names, n=1)
        hints.append(f"{key!r}" + (f" (did you mean {close[0]!r}?)" if close else ""))
    return TypeError(
        f"Keyword argument not understood by {cls.__name__}: {', '.join(hints)}. It takes {sorted(names)}."
    )


def layout_of(layer: Any, weight: str | None) -> Any:
    """The layout that a layer was given for a weight; `recurrent_layout` is that of `recurrent_kernel`."""
    given = layer.__dict__.get("_layouts")
    if not given or weight is None:
        return None
    for name in (weight, weight.removesuffix("_kernel")):
        if f"{name}{_ENDING}" in given:
            layer._layouts_used.add(f"{name}{_ENDING}")
            return given[f"{name}{_ENDING}"]
    return None


def check_layouts(layer: Any) -> None:
    """Refuses layouts of weights that a layer has not made when it is built.

    Raises:
      TypeError: naming the layer, the layouts and its weights.
    """
    unused = set(layer.__dict__.get("_layouts", ())) - layer.__dict__.get("_layouts_used", set())
    if unused and _layouts_of(type(layer)) is None:
        weights = [variable.name for variable in layer._own_weights]
        raise TypeError(
            f"Layer {layer.name} was given {sorted(unused)}, but it has no such weights: it has {weights}."
        )


def for_cell(cls: type, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What a recurrent layer's cell gets of its keywords: dtype and trainability, which both have, and the layouts.

    Args:
      cls: the layer's class.
      kwargs: its keywords, from which the layouts are removed.

    Raises:
      TypeError: for a layout of a weight that the class does not have.
    """
    shared = {key: value for key, value in kwargs.items() if key in ("dtype", "trainable")}
    return {**shared, **take_layouts(cls, kwargs)}


def copy_layouts(source: Any, target: Any) -> None:
    """Gives a copy of a layer the layouts of the original, which configurations do not hold."""
    for one, other in zip(source._flatten_layers(), target._flatten_layers(), strict=True):
        given = one.__dict__.get("_layouts")
        if given:
            other.__dict__.update(given, _layouts=dict(given), _layouts_used=set())
