"""Trying a choice: the training step that a strategy makes of a model is compiled, and read."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime import transfers
from meshflow.core.runtime.import_paths import public_face
from meshflow.core.values import nest
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.strategy import MeshStrategy
from meshflow.distribute.replicas.context import entered

__all__ = ["Trial", "adopt", "bare", "tried", "unplaced"]


@dataclasses.dataclass(frozen=True)
class Trial:
    """A compiled training step.

    Attributes:
      memory: bytes that each device needs for arguments, results and temporaries.
      sent: bytes that each device sends.
    """

    memory: int
    sent: int


def tried(model: Any, batch: Any, strategy: MeshStrategy) -> Trial:
    """Compiles the training step of a model under a strategy, and leaves the model as it was.

    Args:
      model: a compiled model.
      batch: (x, y, sample_weight) of arrays or specs.
      strategy: the strategy.
    """
    rows = nest.map_structure(_shape, tuple(v for v in batch if v is not None))
    with bare(model), entered(strategy):
        adopt(strategy, model)
        # What explains compiled steps stands on strategies; it is there for whoever gets here.
        step = public_face().experimental.dtensor.explain(model, *rows)
    # What lies in the host's memory comes to the device in a step, where it is an argument, too.
    held = sum(step.memory[name] for name in ("arguments", "results", "temporaries"))
    return Trial(held, step.sent())


def _shape(value: Any) -> jax.ShapeDtypeStruct:
    dtype = getattr(value.dtype, "dtype", value.dtype)
    return jax.ShapeDtypeStruct(tuple(value.shape), dtype)


def adopt(strategy: MeshStrategy, model: Any) -> None:
    """Lays the variables of a model and its optimizer out as if they had been made in a strategy's scope.

    Args:
      strategy: the strategy.
      model: a compiled model.
    """
    dims = {id(w): d for layer in model._flatten_layers() for w, d in layer._named_axes()}
    weights = {id(v) for v in model.variables}
    slots = {id(s): owner for s, owner in _slots(model.optimizer)}
    for variable in _variables(model):
        owner = slots.get(id(variable))
        variable._distribute_strategy = strategy  # type: ignore[attr-defined]
        if owner is not None and owner.shape == variable.shape:
            variable._layout = getattr(owner, "_slot_layout", None) or owner._layout
        elif id(variable) in weights:
            layout = strategy.weight_layout(dims.get(id(variable)), variable._shape, variable.name)
            strategy.assign_layout(variable, layout)
        else:
            variable._layout = strategy.replicated(variable.ndim)
    model._strategy_at_compile = strategy
    model._reset_compiled()


def _slots(optimizer: Any) -> list[tuple[Variable, Variable]]:
    """(slot, the variable that it goes with)."""
    inner = getattr(optimizer, "_optimizer", optimizer)
    return [
        (slot, inner._owners[key])
        for key, slots in getattr(inner, "_slots", {}).items()
        for slot in slots.values()
    ]


def _variables(model: Any) -> list[Variable]:
    """All variables of a training step, weights first."""
    built = getattr(model, "built", True)
    found = [*(model.variables if built else ()), *model.optimizer.variables]
    found += [v for metric in model.metrics for v in metric.variables]
    kept = {id(v): v for v in found if v.dtype.name != "string"}
    return list(kept.values())


@contextlib.contextmanager
def bare(model: Any) -> Iterator[None]:
    """The model's variables have neither values nor layouts inside; afterwards they have and lie as before.

    Args:
      model: a compiled model.
    """
    if getattr(model, "built", True):
        model.optimizer.build(model.trainable_variables)
    known = [(v, {n: v.__dict__[n] for n in _STATE if n in v.__dict__}) for v in _variables(model)]
    had = model.__dict__.get("_strategy_at_compile")
    for variable, _ in known:
        shape = _shape(variable)
        _forget(variable)
        variable._value = shape
    model._strategy_at_compile = None
    model._reset_compiled()
    try:
        yield
    finally:
        before = {id(v) for v, _ in known}
        for variable in _variables(model):
            if id(variable) not in before and not variable.has_no_value:
                # A trial has made it, on its mesh.
                value = np.asarray(variable._value)
                _forget(variable)
                variable._value = transfers.transfer(value)
        for variable, state in known:
            _forget(variable)
            variable.__dict__.update(state)
        model._strategy_at_compile = had
        model._reset_compiled()


@contextlib.contextmanager
def unplaced(model: Any) -> Iterator[None]:
    """The model's variables are those of one device inside, for who traces it; their values and its steps stay.

    Args:
      model: a compiled model.
    """
    known = [
        (v, {n: v.__dict__.pop(n) for n in _PLACE if n in v.__dict__}) for v in _variables(model)
    ]
    had, model._strategy_at_compile = model.__dict__.get("_strategy_at_compile"), None
    try:
        yield
    finally:
        for variable, place in known:
            variable.__dict__.update(place)
        model._strategy_at_compile = had


# Where a variable lies, and what it is besides.
_PLACE = ("_own_layout", "_ruled_layout", "_slot_layout", "_distribute_strategy")
_STATE = ("_value", *_PLACE)


def _forget(variable: Variable) -> None:
    for name in _STATE:
        variable.__dict__.pop(name, None)
