"""The optimizer's state in files: the orders in which the versions of Keras write it.

Until Keras 2.10 a file holds an optimizer's weights as it made them, slot by slot. Since 2.11, and in Keras 3, the
slots of a variable may stand together, and either keeps numbers that the other does not have. An order is a list of
places, each of which gives the array that is written and takes the one that was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshflow.core.variables.sharded_variable import whole_variables
from meshflow.distribute.parallel.compress import ERRORS
from meshflow.keras.optimizers import experimental, legacy
from meshflow.keras.optimizers.lamb import Lamb
from meshflow.keras.optimizers.layouts import own_weights, slot_lists
from meshflow.keras.optimizers.loss_scale_optimizer import LossScaleOptimizer

__all__ = [
    "KERAS_2_11",
    "KERAS_3",
    "in_order",
    "restore",
    "state_of",
    "version_of",
    "without_place",
]

KERAS_2_11, KERAS_3 = "2.11", "3"
# By class: the lists of slots that stand together, variable by variable. Other lists follow one after another.
_TOGETHER: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Adam", "AdamW", "Lamb", "Nadam"), ("_momentums", "_velocities")),
    "Adadelta": ("_accumulated_grads", "_accumulated_delta_vars"),
    "Adafactor": ("_r", "_c", "_v"),
    "Adagrad": (),
    "Adamax": ("_m", "_u"),
    "Ftrl": ("_accumulators", "_linears"),
    "Lion": (),
    "RMSprop": (),
    "SGD": (),
}
# The lists that optimizers of every class may have, which stand before the others.
_FIRST = ("_model_variables_moving_average", "_accumulated_gradients")
_ERROR_LISTS = tuple(f"_{name}s" for name in ERRORS)


@dataclass
class _Kept:
    """A number or array that only the other program has: written as it has it, and passed over when read."""

    value: np.ndarray
    _shared_name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def numpy(self) -> np.ndarray:
        return self.value

    def put(self, value: np.ndarray) -> None:
        """Does nothing."""


@dataclass
class _Held:
    """A variable."""

    variable: Any

    @property
    def _shared_name(self) -> str:
        return str(self.variable._shared_name)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.variable.shape)

    def numpy(self) -> np.ndarray:
        return np.asarray(self.variable.numpy())

    def put(self, value: np.ndarray) -> None:
        self.variable.assign(value.astype(self.variable.dtype.dtype))


@dataclass
class _Steps:
    """How many steps were taken: in Keras 3 also those that only gather gradients."""

    optimizer: Any
    all_steps: bool
    _shared_name: str = "iteration"
    shape: tuple[int, ...] = ()

    def _each(self) -> int:
        return (self.optimizer.gradient_accumulation_steps or 1) if self.all_steps else 1

    def numpy(self) -> np.ndarray:
        taken = int(self.optimizer.iterations) * self._each()
        held = self.optimizer._accumulated_steps if self.all_steps else None
        return np.asarray(taken + (0 if held is None else int(held)), np.int64)

    def put(self, value: np.ndarray) -> None:
        updates, held = divmod(int(value.astype(np.int64)), self._each())
        self.optimizer.iterations.assign(np.int64(updates))
        if self.all_steps and self.optimizer._accumulated_steps is not None:
            self.optimizer._accumulated_steps.assign(np.int64(held))
        if hasattr(self.optimizer, "set_momentum_product"):
            self.optimizer.set_momentum_product(updates)


def version_of(optimizer: Any) -> str | None:
    """The version of Keras since which an optimizer is as it is here, in what it computes and can be given.

    Args:
      optimizer: the optimizer, or one around it that scales losses.

    Returns:
      KERAS_2_11, KERAS_3 or None for an earlier one, and for an optimizer of no version.
    """
    inner = _inside(optimizer)
    cls = type(inner)
    if cls is Lamb:
        return KERAS_3
    if getattr(experimental, cls.__name__, None) is not cls or inner.get_config().get("decay"):
        return None
    return KERAS_3 if inner.gradient_accumulation_steps else KERAS_2_11


def state_of(optimizer: Any) -> list[Any]:
    """What files hold of an optimizer: its weights, and a moving loss scale with its counter."""
    return whole_variables([*optimizer.weights, *scale_of(optimizer)])


def scale_of(optimizer: Any) -> list[Any]:
    """A moving loss scale and its counter, or nothing."""
    return list(getattr(optimizer, "_scale_weights", ()))


def without_place(optimizer: Any, version: str | None) -> list[Any]:
    """Variables of an optimizer for which files of a version have no place: they are written beside the others.

    Args:
      optimizer: the optimizer, built.
      version: KERAS_2_11, KERAS_3, or None for the optimizer's own order.
    """
    if version == KERAS_3:
        return []
    if version is None:
        return scale_of(optimizer)
    inner = _inside(optimizer)
    errors = [w for w in whole_variables(inner.weights) if _is_error(w._shared_name)]
    return [*scale_of(optimizer), *own_weights(inner).values(), *errors]


def in_order(optimizer: Any, version: str) -> list[Any] | None:
    """What files of a version hold of an optimizer.

    Args:
      optimizer: the optimizer, built.
      version: KERAS_2_11 or KERAS_3.

    Returns:
      Places, which have a name, a shape, and `numpy()`; None for an optimizer that this version does not have.
    """
    inner = _inside(optimizer)
    cls = type(inner)
    known = cls.__name__ in _TOGETHER and cls.__module__.startswith("meshflow.")
    if not known or cls is legacy.Nadam:  # whose momentum warms up otherwise
        return None
    slots = list(_slots(inner, version))
    own = [_Held(w) for w in own_weights(inner).values() if w is not inner._accumulated_steps]
    start: list[Any] = [_Steps(inner, version == KERAS_3)]
    if version == KERAS_2_11:
        return [*start, *slots]
    if not isinstance(inner.get_config()["learning_rate"], dict):
        start.append(_rate(inner.learning_rate))
    if inner is not optimizer:
        scale, counter = scale_of(optimizer) or (None, None)
        if scale is None:
            return None
        start = [start[0], _rate(0.0), _Held(counter), _Held(scale), *start]
    return [*start, *slots, *own]


def _inside(optimizer: Any) -> Any:
    return optimizer.inner_optimizer if isinstance(optimizer, LossScaleOptimizer) else optimizer


def _rate(value: Any) -> _Kept:
    """The learning rate; configurations say it, too."""
    return _Kept(np.asarray(value, "float32"), "learning_rate")


def _slots(optimizer: Any, version: str) -> Iterator[Any]:
    """The slots of all variables in the order of a version."""
    lists = {name: found for name, found in slot_lists(optimizer).items() if found}
    # What one mesh has left of rounding, neither version knows.
    lists = {name: found for name, found in lists.items() if name not in _ERROR_LISTS}
    keys = sorted(optimizer._index_dict, key=optimizer._index_dict.__getitem__)
    variables = whole_variables(optimizer._owners[key] for key in keys)
    kind, together = type(optimizer).__name__, _TOGETHER[type(optimizer).__name__]
    # Of one variable Keras 3, which reads these files, too, would take it for the learning rate.
    if kind == "SGD" and version == KERAS_2_11 and len(variables) > 1:
        lists.setdefault("momentums", {})
    rest = [(name,) for name in lists if name not in (*_FIRST, *together)]
    for group in (tuple(name for name in _FIRST if name in lists), together, *rest):
        for i, variable in enumerate(variables):
            for name in group:
                slot = lists.get(name, {}).get(str(i))
                if slot is not None:
                    yield _Held(slot)
                elif (kept := _other_slot(name, variable, version)) is not None:
                    yield kept


def _other_slot(name: str, variable: Any, version: str) -> _Kept | None:
    """What the other program keeps where there is no slot here, and does not use."""
    shape = tuple(variable.shape)
    if name in ("_r", "_c"):  # of Adafactor, for vectors
        if version == KERAS_2_11:
            return None
        shape = ()
    slot = name.strip("_").removesuffix("s")
    dtype = variable.dtype.dtype
    dtype = np.dtype("float32") if dtype.kind == "V" else dtype
    return _Kept(np.zeros(shape, dtype), f"{slot}/{variable._shared_name}")


# ---- reading -----------------------------------------------------------------------------


def restore(optimizer: Any, variables: Sequence[Any], names: Sequence[str], values: Any) -> bool:
    """Puts a stored state into an optimizer.

    Args:
      optimizer: the optimizer.
      variables: the variables it trains.
      names: names of the stored arrays, in the order they were written; may be empty strings.
      values: the stored arrays.

    Returns:
      Whether they fitted; otherwise the optimizer starts anew.
    """
    if not values or not hasattr(optimizer, "build"):
        return False
    optimizer.build(variables)
    values = [np.asarray(v) for v in values]
    for places, found in _candidates(optimizer, list(names) or [""] * len(values), values):
        if [tuple(p.shape) for p in places] == [v.shape for v in found]:
            for place, value in zip(places, found, strict=True):
                place.put(value)
            return True
    return False


def _candidates(
    optimizer: Any, names: list[str], values: list[np.ndarray]
) -> Iterator[tuple[list[Any], list[np.ndarray]]]:
    """Orders in which the values may lie, the likeliest first, with the values that they are of."""
    # What devices keep of rounding is of one mesh, and of steps that round; others begin without.
    sent = [v for v, name in zip(values, names, strict=True) if not _is_error(name)]
    # Keras 3 writes the optimizer's name before it.
    if not any(names) or names[0].rpartition("/")[2].startswith("iteration"):
        orders = [(v, in_order(optimizer, v)) for v in (KERAS_2_11, KERAS_3)]
        known = [places for _, places in orders if places is not None]
        for version, places in orders:
            if places is not None:
                yield places, values
                beside = [_Held(w) for w in without_place(optimizer, version)]
                yield [*places, *beside], values
                yield [*places, *_without_errors(beside)], sent
        # The learning rate may be second where it usually is not, or be left out.
        for places in known:
            if values[1:] and values[1].shape == ():
                yield places, [values[0], *values[2:]]
            yield [p for p in places if p._shared_name != "learning_rate"], values
    own = [_Held(w) for w in state_of(optimizer)]
    yield own, values
    yield [_Held(w) for w in whole_variables(optimizer.weights)], values
    yield _without_errors(own), sent


def _without_errors(places: list[_Held]) -> list[_Held]:
    return [p for p in places if not _is_error(p._shared_name)]


def _is_error(name: str) -> bool:
    return name.partition(":")[0].rpartition("/")[2] in ERRORS
