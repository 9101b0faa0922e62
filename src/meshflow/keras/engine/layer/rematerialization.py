"""Rematerialization of layers in the backward pass, release of their weights, and offload of results."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from meshflow.core.gradients.rematerialization import (
    make_policy_transform,
    make_recompute_transform,
    wrap_traced,
)
from meshflow.core.runtime.context import context
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor
from meshflow.distribute.parallel.weight_reads import make_weight_fetch
from meshflow.distribute.replicas.shares import Rematerialization, current_rematerialization
from meshflow.environment.types import PyTree
from meshflow.keras.engine.layer.losses_and_metrics import flatten_layers


def run_call(
    layer: Any, call: Callable[..., Any], inputs: PyTree, args: tuple, kwargs: dict
) -> PyTree:
    """Run the `call` method of a layer, rematerialized or with gathered weights if the strategy requests it."""
    scope = current_rematerialization()
    if scope is None or scope.in_rematerialized_layer or not _is_unit(layer, scope):
        return call(inputs, *args, **kwargs)
    # Pipeline stages cannot be cut within a rematerialized layer.
    labels: Any = context.label_layer
    scope.in_rematerialized_layer = True
    try:
        with contextlib.nullcontext() if labels is None else labels(layer, whole=True):
            return _run_recomputed(layer, scope, call, inputs, args, kwargs)
    finally:
        scope.in_rematerialized_layer = False


def _is_unit(layer: Any, scope: Rematerialization) -> bool:
    """Check whether a layer is rematerialized, or gathers its weights, as a unit."""
    keeps_activations = scope.recompute in (None, "gathers")
    if not keeps_activations or scope.get_residual_storage(layer.name) is not None:
        return _is_recomputation_unit(layer)
    return bool(scope.released) and _reads_own_weights(layer)


def _reads_own_weights(layer: Any) -> bool:
    """Check whether a layer's `call` reads weights, instead of only calling other layers."""
    if hasattr(layer, "train_step"):
        return False
    is_built_in = any(
        c.__module__.startswith("meshflow.keras.layers.") for c in type(layer).__mro__
    )
    return bool(is_built_in or layer._own_weights or not layer._tracked.layers)


def _is_recomputation_unit(layer: Any) -> bool:
    """Check whether a layer is rematerialized as a unit; a model of several blocks is not."""
    if not hasattr(layer, "train_step"):
        return True
    if hasattr(layer, "optimizer") and layer._is_compiled:
        return False
    if any(getattr(part, "begins_stage", False) for part in flatten_layers(layer)):
        return False
    blocks = [
        type(part)
        for part in flatten_layers(layer, recursive=False, include_self=False)
        if part._tracked.layers
    ]
    return len(set(blocks)) == len(blocks) and not any(hasattr(b, "train_step") for b in blocks)


def _run_recomputed(
    layer: Any,
    scope: Rematerialization,
    call: Callable[..., Any],
    inputs: PyTree,
    args: tuple,
    kwargs: dict,
) -> PyTree:
    tensors = nest.flatten(inputs)
    masks = [getattr(t, "_keras_mask", None) for t in tensors]
    parts = list(flatten_layers(layer))

    def run(arguments: PyTree) -> PyTree:
        scope.unit_trace = context.trace
        for tensor, mask in zip(nest.flatten(arguments), masks, strict=True):
            if mask is not None:
                tensor._keras_mask = mask
        # An input that the layer receives twice, such as queries that are also values, remains one tensor.
        own = dict(zip(map(id, tensors), nest.flatten(arguments), strict=True))
        rest = nest.map_structure(lambda leaf: own.get(id(leaf), leaf), (args, kwargs))
        before = [len(part._losses) for part in parts]
        outputs = call(arguments, *rest[0], **rest[1])
        added = [part._losses[n:] for part, n in zip(parts, before, strict=True)]
        for part, n in zip(parts, before, strict=True):
            del part._losses[n:]
        output_masks = [getattr(t, "_keras_mask", None) for t in nest.flatten(outputs)]
        return (outputs, output_masks, added), [total.value for total in scope.totals[first:]]

    first = len(scope.totals)
    (outputs, output_masks, added), values = _make_transform(layer, scope)(run)(inputs)
    # The means over all shares need these values before they compute any layer.
    for total, value in zip(scope.totals[first:], values, strict=True):
        total.value = value
    for tensor, mask in zip(nest.flatten(outputs), output_masks, strict=True):
        if mask is not None and isinstance(tensor, Tensor):
            tensor._keras_mask = mask
    for part, losses in zip(parts, added, strict=True):
        part._losses += losses
    return outputs


def _make_transform(layer: Any, scope: Rematerialization) -> Callable[..., Any]:
    waiting = scope.get_residual_storage(layer.name)
    if scope.recompute == "layer":
        form = make_recompute_transform(waiting)
    else:
        policy = scope.recompute if callable(scope.recompute) else None
        prefetch_size = scope.strategy.options.prefetch_bucket_size
        form = make_policy_transform(policy, waiting, prefetch_size)
    fetch = functools.partial(make_weight_fetch, scope.strategy)
    return lambda run: wrap_traced(run, form, True, fetch, scope.gathers)
