"""An optimizer's state in files, in the order in which each version of Keras writes it.

Up to Keras 2.10 a file holds an optimizer's weights in the order of their creation, slot list by
slot list. Keras 2.11 and Keras 3 interleave the slots of each variable for some optimizers, and
both store numbers that the other version does not have. This module describes an order as a list of
slots. Each slot returns the array to write, and accepts an array that was read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from meshflow.core.variables.sharded_variable import merge_shards
from meshflow.core.variables.variable import get_full_name
from meshflow.distribute.parallel.gradient_compression import ERROR_SLOTS
from meshflow.files.arrays import cast_weight
from meshflow.keras.engine.saving.group_paths import AnyVariable
from meshflow.keras.optimizers import experimental, legacy
from meshflow.keras.optimizers.checkpoint_children import (
    get_list_name,
    get_own_weights,
    get_slot_lists,
    list_interleaved_slots,
)
from meshflow.keras.optimizers.lamb import Lamb
from meshflow.keras.optimizers.loss_scale_optimizer import LossScaleOptimizer

__all__ = [
    "KERAS_2_11",
    "KERAS_3",
    "find_keras_version",
    "list_extra_state",
    "list_state",
    "model_slots_scope",
    "order_state",
    "restore_state",
]

KERAS_2_11, KERAS_3 = "2.11", "3"
# Names of the classes that a version of Keras has.
_CLASS_NAMES = frozenset(
    ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax")
    + ("Ftrl", "Lamb", "Lion", "Nadam", "RMSprop", "SGD")
)
# Slot lists that optimizers of every class may have, which precede the others.
_LEADING_LISTS = ("_model_variables_moving_average", "_accumulated_gradients")
_ERROR_LISTS = tuple(f"_{name}s" for name in ERROR_SLOTS)


class StateSlot(Protocol):
    """An entry of an optimizer's state: it returns the array to write, and accepts one that was read."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def numpy(self) -> np.ndarray: ...
    def assign_value(self, value: np.ndarray) -> None: ...


@dataclass
class _PlaceholderSlot:
    """A number or array that only another version of Keras has; it is ignored when read."""

    value: np.ndarray
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def numpy(self) -> np.ndarray:
        return self.value

    def assign_value(self, value: np.ndarray) -> None:
        """Ignore a value that was read."""


@dataclass
class _VariableSlot:
    """A slot that holds a variable's value."""

    variable: AnyVariable

    @property
    def name(self) -> str:
        return get_full_name(self.variable)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.variable.shape)

    def numpy(self) -> np.ndarray:
        return np.asarray(self.variable.numpy())

    def assign_value(self, value: np.ndarray) -> None:
        label = f"The stored value of {self.name}"
        self.variable.assign(cast_weight(value, self.variable.dtype.dtype, label))


@dataclass
class _StepCountSlot:
    """The number of steps; Keras 3 also counts the steps that only accumulate gradients."""

    optimizer: Any
    all_steps: bool
    name: str = "iteration"
    shape: tuple[int, ...] = ()

    def _get_steps_per_update(self) -> int:
        return (self.optimizer.gradient_accumulation_steps or 1) if self.all_steps else 1

    def numpy(self) -> np.ndarray:
        steps = int(self.optimizer.iterations) * self._get_steps_per_update()
        accumulated = self.optimizer._accumulated_steps if self.all_steps else None
        return np.asarray(steps + (0 if accumulated is None else int(accumulated)), np.int64)

    def assign_value(self, value: np.ndarray) -> None:
        updates, accumulated = divmod(int(value.astype(np.int64)), self._get_steps_per_update())
        self.optimizer.iterations.assign(np.int64(updates))
        if self.all_steps and self.optimizer._accumulated_steps is not None:
            self.optimizer._accumulated_steps.assign(np.int64(accumulated))
        if hasattr(self.optimizer, "set_momentum_product"):
            self.optimizer.set_momentum_product(updates)


def find_keras_version(optimizer: Any) -> str | None:
    """Return the first version of Keras with an optimizer that computes the same from the same arguments.

    Args:
      optimizer: The optimizer, or a `LossScaleOptimizer` around it.

    Returns:
      KERAS_2_11, KERAS_3, or None for the optimizers of earlier versions and for those of no
      version.
    """
    inner = _unwrap_optimizer(optimizer)
    cls = type(inner)
    if cls is Lamb:
        return KERAS_3
    if getattr(experimental, cls.__name__, None) is not cls or inner.get_config().get("decay"):
        return None
    return KERAS_3 if inner.gradient_accumulation_steps else KERAS_2_11


def list_state(optimizer: Any) -> list[AnyVariable]:
    """Return the weights of an optimizer and its dynamic loss scale, in the order of their creation."""
    return [*_list_created_weights(optimizer), *list_loss_scale(optimizer)]


def _list_created_weights(optimizer: Any) -> list[AnyVariable]:
    """Return an optimizer's weights in the order of their creation, as files until version 0.2 have them."""
    while hasattr(optimizer, "_optimizer"):
        optimizer = optimizer._optimizer
    return merge_shards(getattr(optimizer, "_weights", optimizer.weights))


def list_loss_scale(optimizer: Any) -> list[AnyVariable]:
    """Return a dynamic loss scale and its counter, or an empty list."""
    return list(getattr(optimizer, "_scale_weights", ()))


def list_extra_state(optimizer: Any, version: str | None) -> list[AnyVariable]:
    """Return the variables of an optimizer that a version's order has no slot for.

    Files hold these variables separately.

    Args:
      optimizer: The optimizer; it must be built.
      version: KERAS_2_11, KERAS_3, or None for the optimizer's own order.
    """
    if version == KERAS_3:
        return []
    if version is None:
        return list_loss_scale(optimizer)
    inner = _unwrap_optimizer(optimizer)
    errors = [w for w in merge_shards(inner.weights) if _is_error_name(w.name)]
    return [*list_loss_scale(optimizer), *get_own_weights(inner).values(), *errors]


def order_state(optimizer: Any, version: str) -> list[StateSlot] | None:
    """Return an optimizer's state in the order of a version of Keras.

    Args:
      optimizer: The optimizer; it must be built.
      version: KERAS_2_11 or KERAS_3.

    Returns:
      The slots, or None if the version does not have this optimizer.
    """
    inner = _unwrap_optimizer(optimizer)
    cls = type(inner)
    is_known = cls.__name__ in _CLASS_NAMES and cls.__module__.startswith("meshflow.")
    # Keras's Nadam has another momentum schedule than the legacy class.
    if not is_known or cls is legacy.Nadam:
        return None
    slots = list(_iterate_slots(inner, version))
    own_slots = [
        _VariableSlot(w)
        for w in get_own_weights(inner).values()
        if w is not inner._accumulated_steps
    ]
    start: list[StateSlot] = [_StepCountSlot(inner, version == KERAS_3)]
    if version == KERAS_2_11:
        return [*start, *slots]
    if not isinstance(inner.get_config()["learning_rate"], dict):
        start.append(_make_rate_slot(inner.learning_rate))
    if inner is not optimizer:
        loss_scale = list_loss_scale(optimizer)
        if not loss_scale:
            return None
        scale, counter = loss_scale
        start = [
            start[0],
            _make_rate_slot(0.0),
            _VariableSlot(counter),
            _VariableSlot(scale),
            *start,
        ]
    return [*start, *slots, *own_slots]


def model_slots_scope(optimizer: Any, model: Any) -> contextlib.AbstractContextManager[None]:
    """Limit an optimizer to the slots of a model's variables, in the order in which loading creates them.

    An optimizer may also train other models, and may have trained a part of the variables first.

    Args:
      optimizer: The optimizer, or None.
      model: The model.
    """
    inner = _unwrap_optimizer(optimizer)
    if not hasattr(inner, "slots_scope"):
        return contextlib.nullcontext()
    return inner.slots_scope(model.trainable_variables, model.non_trainable_variables)


def _unwrap_optimizer(optimizer: Any) -> Any:
    return optimizer.inner_optimizer if isinstance(optimizer, LossScaleOptimizer) else optimizer


def _make_rate_slot(value: object) -> _PlaceholderSlot:
    """Return a slot for the learning rate, which is read from the configuration instead."""
    return _PlaceholderSlot(np.asarray(value, "float32"), "learning_rate")


def _iterate_slots(optimizer: Any, version: str) -> Iterator[StateSlot]:
    """Yield the slots of all variables in the order of a version."""
    lists = {name: slots for name, slots in get_slot_lists(optimizer).items() if slots}
    # No version of Keras has the compression errors, which belong to one mesh.
    lists = {name: slots for name, slots in lists.items() if name not in _ERROR_LISTS}
    keys = sorted(optimizer._index_dict, key=optimizer._index_dict.__getitem__)
    variables = merge_shards(optimizer._owners[key] for key in keys)
    class_name = type(optimizer).__name__
    interleaved = tuple(
        get_list_name(optimizer, name) for name in list_interleaved_slots(optimizer)
    )
    # Keras 3 also reads these files, and would take the momentum of a single variable for the learning rate.
    if class_name == "SGD" and version == KERAS_2_11 and len(variables) > 1:
        lists.setdefault("momentums", {})
    rest = [(name,) for name in lists if name not in (*_LEADING_LISTS, *interleaved)]
    for group in (tuple(name for name in _LEADING_LISTS if name in lists), interleaved, *rest):
        for i, variable in enumerate(variables):
            for name in group:
                slot = lists.get(name, {}).get(str(i))
                if slot is not None:
                    yield _VariableSlot(slot)
                elif (placeholder := _make_placeholder(name, variable, version)) is not None:
                    yield placeholder


def _make_placeholder(name: str, variable: AnyVariable, version: str) -> _PlaceholderSlot | None:
    """Return the slot of a version of Keras that this package does not have, or None.

    The version stores the slot, but does not use its value.
    """
    shape = tuple(variable.shape)
    if name in ("_r", "_c"):  # These are Adafactor's factors, which vectors do not have.
        if version == KERAS_2_11:
            return None
        shape = ()
    slot = name.strip("_").removesuffix("s")
    dtype = variable.dtype.dtype
    dtype = np.dtype("float32") if dtype.kind == "V" else dtype
    return _PlaceholderSlot(np.zeros(shape, dtype), f"{slot}/{get_full_name(variable)}")


# ---- reading -----------------------------------------------------------------------------


def restore_state(
    optimizer: Any,
    model: Any,
    names: Sequence[str],
    values: Sequence[Any],
    has_created_order: bool = False,
) -> bool:
    """Restore an optimizer's state from stored arrays.

    Args:
      optimizer: The optimizer.
      model: The model that it trains.
      names: Names of the stored arrays in the order of the file; may be empty strings.
      values: The stored arrays.
      has_created_order: Whether the arrays have the order of `list_state`, as those of folders.

    Returns:
      Whether the arrays fit. If not, the optimizer keeps its initial state.
    """
    if not values or not hasattr(optimizer, "build"):
        return False
    optimizer.build(model.trainable_variables)
    arrays = [np.asarray(v) for v in values]
    if _assign_arrays(optimizer, names, arrays, has_created_order):
        return True
    # Layers may have been frozen after they were trained.
    frozen = [v for v in model.non_trainable_variables if v.trainable]
    if not frozen or len(arrays) <= len(list_state(optimizer)):
        return False
    optimizer.build([*model.trainable_variables, *frozen])
    return _assign_arrays(optimizer, names, arrays, has_created_order)


def _assign_arrays(
    optimizer: Any, names: Sequence[str], arrays: list[np.ndarray], has_created_order: bool
) -> bool:
    for slots, candidate in _iterate_candidates(
        optimizer, list(names) or [""] * len(arrays), arrays, has_created_order
    ):
        if [tuple(slot.shape) for slot in slots] == [v.shape for v in candidate]:
            for slot, value in zip(slots, candidate, strict=True):
                slot.assign_value(value)
            return True
    return False


def _iterate_candidates(
    optimizer: Any, names: list[str], values: list[np.ndarray], has_created_order: bool
) -> Iterator[tuple[Sequence[StateSlot], list[np.ndarray]]]:
    """Yield possible orders of the stored arrays, the most likely one first.

    Yields:
      Pairs of slots and the arrays that belong to them.
    """
    # Compression errors belong to one mesh and to compressed steps, so other meshes start without
    # them.
    without_errors = [v for v, name in zip(values, names, strict=True) if not _is_error_name(name)]
    # Keras 3 prepends the name of the optimizer. Files until version 0.2 have this order if no version has the
    # optimizer.
    has_created_order |= any(n.partition(":")[0].endswith("/iter") for n in names[:1])
    starts_with_steps = not any(names) or names[0].rpartition("/")[2].startswith("iteration")
    if starts_with_steps and not has_created_order:
        versions = [(v, order_state(optimizer, v)) for v in (KERAS_2_11, KERAS_3)]
        known_orders = [slots for _, slots in versions if slots is not None]
        for version, slots in versions:
            if slots is not None:
                yield slots, values
                extra = [_VariableSlot(w) for w in list_extra_state(optimizer, version)]
                yield [*slots, *extra], values
                yield [*slots, *_remove_errors(extra)], without_errors
        # The learning rate may also be in the second position in other versions, or missing.
        for slots in known_orders:
            if values[1:] and values[1].shape == ():
                yield slots, [values[0], *values[2:]]
            yield [s for s in slots if s.name != "learning_rate"], values
    orders = [_list_created_weights(optimizer)]
    if not has_created_order:
        orders.insert(0, merge_shards(optimizer.weights))
    for weights in orders:
        own_slots = [_VariableSlot(w) for w in [*weights, *list_loss_scale(optimizer)]]
        yield own_slots, values
        yield own_slots[: len(weights)], values
        yield _remove_errors(own_slots), without_errors


def _remove_errors(slots: list[_VariableSlot]) -> list[_VariableSlot]:
    return [slot for slot in slots if not _is_error_name(slot.name)]


def _is_error_name(name: str) -> bool:
    return not set(ERROR_SLOTS).isdisjoint(name.partition(":")[0].split("/"))
