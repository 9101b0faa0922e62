"""Layers that the backward pass computes again, or whose results wait for it in the host's memory or in files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from meshflow.core.gradients.recompute import recomputed, recomputed_by, recomputing
from meshflow.core.runtime.context import context
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor
from meshflow.distribute.replicas.shares import Shares, current_shares

__all__ = ["run_call"]


def run_call(layer: Any, call: Callable[..., Any], inputs: Any, args: Any, kwargs: Any) -> Any:
    """Runs a layer's `call`, as what is computed again in the backward pass if its strategy says so."""
    shares = current_shares()
    if shares is None or shares.inside or not _wanted(layer, shares) or not _is_unit(layer):
        return call(inputs, *args, **kwargs)
    # Where layers are shared out to stages, none of what is computed as one can be cut.
    labels: Any = context.labels
    shares.inside = True
    try:
        with contextlib.nullcontext() if labels is None else labels(layer, whole=True):
            return _recomputed(layer, shares, call, inputs, args, kwargs)
    finally:
        shares.inside = False


def _wanted(layer: Any, shares: Shares) -> bool:
    return bool(shares.recompute) or shares.waiting(layer.name) is not None


def _is_unit(layer: Any) -> bool:
    """Whether a layer is computed again as one: not the model, nor a model of several blocks inside of it."""
    if not hasattr(layer, "train_step"):
        return True
    if hasattr(layer, "optimizer") and layer._is_compiled:
        return False
    if any(getattr(part, "begins_stage", False) for part in layer._flatten_layers()):
        return False
    blocks = [
        type(part)
        for part in layer._flatten_layers(recursive=False, include_self=False)
        if part._tracked.layers
    ]
    return len(set(blocks)) == len(blocks) and not any(hasattr(b, "train_step") for b in blocks)


def _recomputed(layer: Any, shares: Shares, call: Any, inputs: Any, args: Any, kwargs: Any) -> Any:
    masks = [getattr(t, "_keras_mask", None) for t in nest.flatten(inputs)]
    parts = list(layer._flatten_layers())

    def run(given: Any) -> Any:
        for tensor, mask in zip(nest.flatten(given), masks, strict=True):
            if mask is not None:
                tensor._keras_mask = mask
        before = [len(part._losses) for part in parts]
        outputs = call(given, *args, **kwargs)
        added = [part._losses[n:] for part, n in zip(parts, before, strict=True)]
        for part, n in zip(parts, before, strict=True):
            del part._losses[n:]
        own = [getattr(t, "_keras_mask", None) for t in nest.flatten(outputs)]
        return (outputs, own, added), [total.value for total in shares.totals[first:]]

    first = len(shares.totals)
    (outputs, own, added), values = _form(layer, shares)(run)(inputs)
    # What means over all shares are of is wanted before any layer is computed.
    for total, value in zip(shares.totals[first:], values, strict=True):
        total.value = value
    for tensor, mask in zip(nest.flatten(outputs), own, strict=True):
        if mask is not None and isinstance(tensor, Tensor):
            tensor._keras_mask = mask
    for part, losses in zip(parts, added, strict=True):
        part._losses += losses
    return outputs


def _form(layer: Any, shares: Shares) -> Callable[..., Any]:
    waiting = shares.waiting(layer.name)
    if shares.recompute == "layer":
        form = recomputed(waiting)
    else:
        policy: Any = _all_but_gathers if shares.recompute == "gathers" else shares.recompute
        form = recomputed_by(policy, waiting)
    return lambda run: recomputing(run, form, has_extra_results=True)


def _all_but_gathers(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name not in ("all_gather", "all_gather_invariant")
