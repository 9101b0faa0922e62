"""Hyperparameters of optimizers: mutable numbers, tensors, functions and schedules.

A number becomes a variable when it is first read. A compiled step takes the variable as an input,
so a new value needs no new compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

import numpy as np

from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike, read_tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Json
from meshflow.keras import settings
from meshflow.keras.optimizers.checkpoint_children import find_slot_list
from meshflow.keras.optimizers.schedules import LearningRateSchedule
from meshflow.keras.optimizers.schedules import serialize as serialize_schedule
from meshflow.ops import math

_T = TypeVar("_T")


def _is_function(value: object) -> TypeGuard[Callable[[], Any]]:
    return callable(value) and not isinstance(value, (Tensor, Variable, LearningRateSchedule))


def _is_number(value: object) -> bool:
    return not isinstance(value, LearningRateSchedule) and not _is_function(value)


def check_number(owner: str, name: str, value: object) -> None:
    """Check a hyperparameter that is neither a schedule nor a function.

    Args:
      owner: Name of the optimizer's class, for the error.
      name: Name of the hyperparameter.
      value: A number, tensor or variable.

    Raises:
      TypeError: If `value` is anything else.
    """
    if isinstance(value, (Tensor, Variable)) or callable(value):
        return
    try:
        is_numeric = np.asarray(value).dtype.kind in "biuf"
    except ValueError:
        is_numeric = False
    if not is_numeric:
        raise TypeError(
            f"{owner}: `{name}` must be a number, a tensor, a function without arguments or a schedule, got {value!r}."
        )


class Hyperparameters:
    """Hyperparameters of an optimizer; a base class of `Optimizer`."""

    # Names of hyperparameters that may change without a new compilation.
    hyper_names: tuple[str, ...] = ()
    # Names of settings that are constants of the compiled program.
    setting_names: tuple[str, ...] = ()
    _hyper: dict[str, Any]
    _initial_decay: float
    _since_2_11: bool
    # The `AdaScale` optimizer around this one. It scales the learning rate and defines the step for
    # schedules.
    _adascale: Any = None

    def _set_hyper(self, name: str, value: TensorLike | LearningRateSchedule) -> None:
        """Set a hyperparameter.

        Args:
          name: Its name, which is also an attribute of the optimizer.
          value: A number, tensor, function without arguments, or schedule.
        """
        if value is None:
            raise ValueError(f"{type(self).__name__}: `{name}` must be a number, got None.")
        check_number(type(self).__name__, name, value)
        current = self._hyper.get(name)
        is_constant = _is_number(value) and not isinstance(value, Variable)
        if is_constant and isinstance(current, Variable):
            current.assign(math.cast(convert_to_tensor(value), current.dtype))
        else:
            self._hyper[name] = value

    def _get_hyper(self, name: str, dtype: DTypeLike | None = None) -> Any:
        """Return the current value of a hyperparameter.

        Args:
          name: Name of the hyperparameter.
          dtype: Dtype to cast the value to.

        Returns:
          A variable, a schedule, or the result of a function; a tensor if `dtype` is set.
        """
        value = self._hyper[name]
        if isinstance(value, LearningRateSchedule):
            return value
        if _is_function(value):
            value = convert_to_tensor(value())
        elif not isinstance(value, Variable):
            with init_scope(), self._hosting_scope():
                start = value.numpy() if isinstance(value, Tensor) else value
                # Rates may become fractions later; flags and counts of other optimizers do not.
                is_rate = name in ("learning_rate", "decay", *self.hyper_names)
                if is_rate or not isinstance(start, (int, np.integer, np.bool_)):
                    # Legacy optimizers have float32. Since Keras 2.11, 1 - beta is a difference of Python's numbers.
                    has_floatx = name == "learning_rate" and settings.floatx() == "float64"
                    is_double = self._since_2_11 and (has_floatx or name in ("beta_1", "beta_2"))
                    start = np.float64(start) if is_double else np.float32(start)
                value = Variable(start, trainable=False, name=name)
            self._hyper[name] = value
        return value if dtype is None else math.cast(read_tensor(value), dtype)

    def _hyper_variables(self) -> dict[str, Variable]:
        """Return the numeric hyperparameters by name, for checkpoints."""
        values = {name: self._get_hyper(name) for name, v in self._hyper.items() if _is_number(v)}
        return {name: v for name, v in values.items() if isinstance(v, Variable)}

    def _decayed_lr(self, var_dtype: DTypeLike = "float32") -> Tensor:
        """Compute the learning rate of this step, with schedule and `decay`."""
        rate = self._get_hyper("learning_rate")
        step = self.iterations.value()
        if self._adascale is not None:
            step = math.cast(math.floor(self._adascale.gained_steps), step.dtype)
        if isinstance(rate, LearningRateSchedule):
            rate = convert_to_tensor(rate(step), dtype_hint="float32")
        rate = math.cast(read_tensor(rate), var_dtype)
        if self._initial_decay > 0:
            steps = math.cast(step, var_dtype)
            rate = rate / (1.0 + self._get_hyper("decay", var_dtype) * steps)
        return rate if self._adascale is None else rate * math.cast(self._adascale.gain, var_dtype)

    def _call_if_callable(self, param: Any) -> TensorLike:
        return param() if callable(param) else param

    def _serialize_hyperparameter(self, hyperparameter: Any) -> Json:
        """Return a hyperparameter, given by name or value, for `get_config`: a number, or a schedule's configuration."""
        is_name = isinstance(hyperparameter, str)
        value = self._hyper[hyperparameter] if is_name else hyperparameter
        if isinstance(value, LearningRateSchedule):
            return serialize_schedule(value)
        value = value() if _is_function(value) else value
        if isinstance(value, (Variable, Tensor)):
            if not value.dtype.is_floating:
                return value.numpy().item()
            # The shortest decimal with this float32 value is 0.001, not 0.0010000000474974513.
            return float(str(np.float32(value.numpy())))
        return value

    def _build_learning_rate(self, learning_rate: _T) -> _T:
        """Return the value to use as `_learning_rate`; a hook of Keras 2.11 for subclasses."""
        return learning_rate

    @property
    def learning_rate(self) -> Variable:
        """Return the learning rate: a variable, the result of a function, or the rate of a schedule in the last step.

        Optimizers of `legacy` return the schedule.
        """
        rate = self._get_hyper("learning_rate")
        if not self._since_2_11 or not isinstance(rate, LearningRateSchedule):
            return rate
        last: Any = rate(math.maximum(self.iterations.value() - 1, 0))
        return last

    @learning_rate.setter
    def learning_rate(self, value: TensorLike | LearningRateSchedule) -> None:
        has_schedule = self._since_2_11 and isinstance(self._learning_rate, LearningRateSchedule)
        if has_schedule and not isinstance(value, LearningRateSchedule):
            raise TypeError(
                f"This optimizer was created with a `LearningRateSchedule`, so the learning rate of {type(self).__name__} is not "
                f"settable to {value!r}. Create it with a number, or set another schedule."
            )
        self._set_hyper("learning_rate", value)

    lr = learning_rate

    @property
    def _learning_rate(self) -> Variable | LearningRateSchedule:
        return self._get_hyper("learning_rate")

    @_learning_rate.setter
    def _learning_rate(self, value: TensorLike | LearningRateSchedule) -> None:
        self._set_hyper("learning_rate", value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).hyper_names and "_hyper" in self.__dict__:
            self._set_hyper(name, value)
        else:
            if name in type(self).setting_names and value is not None:
                check_number(type(self).__name__, name, value)
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        # Python calls this method for names that are no ordinary attributes, which includes
        # hyperparameters.
        if name in self.__dict__.get("_hyper", {}):
            return self._get_hyper(name)
        slots = find_slot_list(self, name)
        if slots is not None:
            return slots
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
