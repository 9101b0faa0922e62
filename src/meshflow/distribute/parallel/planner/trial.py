"""Compilation of the training step of a choice, to read its memory and collectives."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime import transfers
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.values import nest
from meshflow.core.values.tensor import TensorLike
from meshflow.core.variables.variable import Variable, get_value_shape
from meshflow.distribute.parallel.stage_buffers import StageVariable
from meshflow.distribute.parallel.strategy import MeshStrategy
from meshflow.distribute.replicas.context import context_scope
from meshflow.environment.types import PyTree


@dataclasses.dataclass(frozen=True)
class CompiledTrial:
    """A compiled training step.

    Attributes:
      memory: Bytes that each device needs for arguments, results and temporaries.
      sent: Bytes that each device sends.
    """

    memory: int
    sent: int


def compile_trial(model: Any, batch: PyTree, strategy: MeshStrategy) -> CompiledTrial:
    """Compile the training step of a model under a strategy; the model is unchanged afterwards.

    Args:
      model: A compiled model.
      batch: (x, y, sample_weight) of arrays or specs.
      strategy: The strategy.

    Returns:
      The memory and the bytes sent.
    """
    strategy.warns_about_statistics = False
    rows = nest.map_structure(_to_shape_struct, tuple(v for v in batch if v is not None))
    with shape_only_variables(model), context_scope(strategy):
        adopt_model(strategy, model)
        # The module that explains compiled steps is in a higher layer, so it is reached through the
        # public package.
        step = get_public_package().experimental.dtensor.explain(model, *rows)
    # Offloaded values are copied to the device in a step, so they count as arguments.
    held = sum(step.memory[name] for name in ("arguments", "results", "temporaries"))
    return CompiledTrial(held, step.sent())


def _to_shape_struct(value: TensorLike) -> jax.ShapeDtypeStruct:
    dtype = getattr(value.dtype, "dtype", value.dtype)
    return jax.ShapeDtypeStruct(tuple(value.shape), dtype)


def adopt_model(strategy: MeshStrategy, model: Any) -> None:
    """Set the layouts of a model's variables as if a strategy's scope had created them.

    Args:
      strategy: The strategy.
      model: A compiled model.
    """
    layers = (model, *model.submodules)
    dims = {id(w): d for layer in layers for w, d in layer._list_named_axes()}
    weights = {id(v) for v in model.variables}
    slots = {id(s): owner for s, owner in _list_slots(model.optimizer)}
    for variable in _list_variables(model):
        owner = slots.get(id(variable))
        variable._distribute_strategy = strategy  # type: ignore[attr-defined]
        if owner is not None and owner.shape == variable.shape:
            variable.layout = getattr(owner, "_slot_layout", None) or owner.layout
        elif id(variable) in weights:
            layout = strategy.resolve_weight_layout(
                dims.get(id(variable)), get_value_shape(variable), variable.name
            )
            strategy.assign_layout(variable, layout)
        else:
            variable.layout = strategy.get_replicated_layout(variable.ndim)
    model._strategy_at_compile = strategy
    model._reset_steps()


def _list_slots(optimizer: Any) -> list[tuple[Variable, Variable]]:
    """Return (slot, variable that it belongs to) pairs."""
    inner = getattr(optimizer, "_optimizer", optimizer)
    return [
        (slot, inner._owners[key])
        for key, slots in getattr(inner, "_slots", {}).items()
        for slot in slots.values()
    ]


def _list_variables(model: Any) -> list[Variable]:
    """Return all variables of a training step, weights first."""
    built = getattr(model, "built", True)
    candidates = [*(model.variables if built else ()), *model.optimizer.variables]
    candidates += [v for metric in model.metrics for v in metric.variables]
    # A metric of several replicas has its values in another variable.
    candidates = [getattr(v, "stacked_variable", v) for v in candidates]
    unique = {id(v): v for v in candidates if v.dtype.name != "string"}
    return list(unique.values())


@contextlib.contextmanager
def shape_only_variables(model: Any) -> Iterator[None]:
    """Remove values and layouts of variables while the context is open, and restore them.

    Args:
      model: A compiled model.
    """
    if getattr(model, "built", True):
        model.optimizer.build(model.trainable_variables)
    states = [
        (v, type(v), {n: v.__dict__[n] for n in _STATE_ATTRIBUTES if n in v.__dict__})
        for v in _list_variables(model)
    ]
    strategy = model.__dict__.get("_strategy_at_compile")
    for variable, _, _ in states:
        shape = _to_shape_struct(variable)
        _clear_state(variable)
        variable._value = shape
    model._strategy_at_compile = None
    model._reset_steps()
    try:
        yield
    finally:
        before = {id(v) for v, _, _ in states}
        for variable in _list_variables(model):
            if id(variable) not in before and not variable.has_no_value:
                # The trial created this variable, on its own mesh.
                value = np.asarray(variable._value)
                _clear_state(variable)
                variable._value = transfers.transfer(value)
        for variable, variable_class, state in states:
            _clear_state(variable)
            variable.__class__ = variable_class
            variable.__dict__.update(state)
        model._strategy_at_compile = strategy
        model._reset_steps()


@contextlib.contextmanager
def precision_scope(model: Any, precision: str | None) -> Iterator[None]:
    """Set the policy of a model's layers while the context is open.

    Args:
      model: The model.
      precision: Name of the policy, or None for the layers' own.
    """
    layers = [v for v in (model, *model.submodules) if precision and "_dtype_policy" in v.__dict__]
    policies = [layer._dtype_policy for layer in layers]
    try:
        for layer in layers:
            layer._dtype_policy = get_public_package().keras.mixed_precision.Policy(precision)
        yield
    finally:
        for layer, policy in zip(layers, policies, strict=True):
            layer._dtype_policy = policy


@contextlib.contextmanager
def suspend_layouts(model: Any) -> Iterator[None]:
    """Remove layouts of the model's variables while the context is open.

    The model can then be traced for one device. Values of variables do not change.

    Args:
      model: A compiled model.
    """
    layouts = [
        (v, {n: v.__dict__.pop(n) for n in _LAYOUT_ATTRIBUTES if n in v.__dict__})
        for v in _list_variables(model)
    ]
    strategy, model._strategy_at_compile = model.__dict__.get("_strategy_at_compile"), None
    try:
        yield
    finally:
        for variable, layout in layouts:
            variable.__dict__.update(layout)
        model._strategy_at_compile = strategy


# Attributes with the layouts of a variable, and with its entire state.
_LAYOUT_ATTRIBUTES = ("_own_layout", "_ruled_layout", "_slot_layout", "_distribute_strategy")
_STATE_ATTRIBUTES = ("_value", *StageVariable.STATE_ATTRIBUTES, *_LAYOUT_ATTRIBUTES)


def _clear_state(variable: Variable) -> None:
    variable.__class__ = variable.__dict__.get("released_class", type(variable))
    for name in _STATE_ATTRIBUTES:
        variable.__dict__.pop(name, None)
