"""Keyword arguments that layers accept by **kwargs: common ones, and layouts of weights."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from typing import Any

from meshflow.keras.engine.layer.losses_and_metrics import flatten_layers

COMMON_KEYWORDS = (
    *("input_dim", "input_shape", "batch_input_shape", "batch_size", "weights"),
    *("activity_regularizer", "autocast", "implementation", "dims", "enable_caching_device"),
)
_LAYOUT_SUFFIX = "_layout"


def pop_layouts(cls: type, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Remove the `<weight>_layout` arguments from the keyword arguments of a layer and return them.

    Built-in classes list their weights in `_weights_with_layouts`. Classes of users need not: all
    layouts are accepted, and `check_layouts` verifies them after the layer is built.

    Raises:
      TypeError: If the class has no such weight.
    """
    layouts = {key: kwargs.pop(key) for key in list(kwargs) if key.endswith(_LAYOUT_SUFFIX)}
    names = _list_layout_keywords(cls)
    unknown = [] if names is None else [key for key in layouts if key not in names]
    if unknown:
        raise make_keyword_error(cls, unknown)
    return {key: layout for key, layout in layouts.items() if layout is not None}


def _list_layout_keywords(cls: type) -> set[str] | None:
    weights = getattr(cls, "_weights_with_layouts", None)
    if weights is None:
        return set() if cls.__module__.startswith("meshflow.") else None
    return {f"{name}{_LAYOUT_SUFFIX}" for name in weights}


def check_keywords(cls: type, kwargs: Iterable[str]) -> None:
    """Raise a `TypeError` for keywords that no layer accepts."""
    unknown = [key for key in kwargs if key not in COMMON_KEYWORDS]
    if unknown:
        raise make_keyword_error(cls, unknown)


def make_keyword_error(cls: type, unknown: Iterable[str]) -> TypeError:
    """Make the error for unknown keywords, with the most similar valid ones."""
    valid = set(inspect.signature(cls).parameters) | set(_list_layout_keywords(cls) or ())
    names = {*valid, *COMMON_KEYWORDS, "trainable", "name", "dtype", "dynamic"} - {"kwargs"}
    hints = []
    for key in sorted(unknown):
        close = difflib.get_close_matches(key, names, n=1)
        hints.append(f"{key!r}" + (f" (did you mean {close[0]!r}?)" if close else ""))
    return TypeError(
        f"Keyword argument not understood by {cls.__name__}: {', '.join(hints)}. It takes {sorted(names)}."
    )


def find_layout(layer: Any, weight: str | None) -> Any:
    """Return the layout argument for a weight; `recurrent_layout` is for `recurrent_kernel`."""
    layouts = layer.__dict__.get("_layouts")
    if not layouts or weight is None:
        return None
    for name in (weight, weight.removesuffix("_kernel")):
        if f"{name}{_LAYOUT_SUFFIX}" in layouts:
            layer._layouts_used.add(f"{name}{_LAYOUT_SUFFIX}")
            return layouts[f"{name}{_LAYOUT_SUFFIX}"]
    return None


def check_layouts(layer: Any) -> None:
    """Raise a `TypeError` for layouts of weights that a built layer does not have."""
    unused = set(layer.__dict__.get("_layouts", ())) - layer.__dict__.get("_layouts_used", set())
    if unused and _list_layout_keywords(type(layer)) is None:
        weights = [variable.name for variable in layer._own_weights]
        raise TypeError(
            f"Layer {layer.name} was given {sorted(unused)}, but it has no such weights: it has {weights}."
        )


def make_cell_keywords(cls: type, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a recurrent layer's cell shares; pop layouts from `kwargs`."""
    shared = {key: value for key, value in kwargs.items() if key in ("dtype", "trainable")}
    return {**shared, **pop_layouts(cls, kwargs)}


def copy_layouts(source: Any, target: Any) -> None:
    """Copy the layouts of a layer to a clone, because configurations do not contain them."""
    for original, clone in zip(flatten_layers(source), flatten_layers(target), strict=True):
        layouts = original.__dict__.get("_layouts")
        if layouts:
            clone.__dict__.update(layouts, _layouts=dict(layouts), _layouts_used=set())
