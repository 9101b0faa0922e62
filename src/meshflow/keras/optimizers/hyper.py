"""Hyperparameters: numbers that may be set at any time, tensors, functions and schedules.

A number becomes a variable when it is first read, so that a compiled step takes it as an input and
changing it compiles nothing again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.keras.optimizers.schedules import LearningRateSchedule
from meshflow.keras.optimizers.schedules import serialize as serialize_schedule
from meshflow.ops import math


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, (Tensor, Variable, LearningRateSchedule))


def _is_number(value: Any) -> bool:
    return not isinstance(value, LearningRateSchedule) and not _is_function(value)


def check_number(owner: str, name: str, value: Any) -> None:
    """Checks a hyperparameter that is no schedule and no function.

    Args:
      owner: whose it is, for the error.
      name: the hyperparameter.
      value: a number, a tensor or a variable.

    Raises:
      TypeError: for anything else.
    """
    if isinstance(value, (Tensor, Variable)) or callable(value):
        return
    try:
        fits = np.asarray(value).dtype.kind in "biuf"
    except ValueError:
        fits = False
    if not fits:
        raise TypeError(
            f"{owner}: `{name}` must be a number, a tensor, a function without arguments or a schedule, got {value!r}."
        )


class Hyperparameters:
    """What an optimizer does with its hyperparameters; a base class of `Optimizer`."""

    # Hyperparameters that may change without compiling again.
    hyper_names: tuple[str, ...] = ()
    # Those that are compiled in.
    setting_names: tuple[str, ...] = ()
    _hyper: dict[str, Any]
    _initial_decay: float
    # The `AdaScale` around this optimizer: how fast the steps are taken, and which step it is for schedules.
    _pace: Any = None
    iterations: Any

    def _set_hyper(self, name: str, value: Any) -> None:
        """Sets a hyperparameter.

        Args:
          name: its name; afterwards also an attribute of the optimizer.
          value: a number, tensor, function without arguments, or schedule.
        """
        if value is None:
            raise ValueError(f"{type(self).__name__}: `{name}` must be a number, got None.")
        check_number(type(self).__name__, name, value)
        known = self._hyper.get(name)
        plain = _is_number(value) and not isinstance(value, Variable)
        if plain and isinstance(known, Variable):
            known.assign(math.cast(convert_to_tensor(value), known.dtype))
        else:
            self._hyper[name] = value

    def _get_hyper(self, name: str, dtype: Any = None) -> Any:
        """The present value.

        Args:
          name: the hyperparameter's name.
          dtype: a dtype to cast it to.

        Returns:
          A variable, a schedule, or what a function gives; a tensor when `dtype` is given.
        """
        value = self._hyper[name]
        if isinstance(value, LearningRateSchedule):
            return value
        if _is_function(value):
            value = convert_to_tensor(value())
        elif not isinstance(value, Variable):
            with init_scope(), self._own_scope():
                start = value.numpy() if isinstance(value, Tensor) else value
                value = Variable(np.float32(start), trainable=False, name=name)
            self._hyper[name] = value
        return value if dtype is None else math.cast(value, dtype)

    def _hyper_variables(self) -> dict[str, Variable]:
        """The numeric hyperparameters by name, for checkpoints."""
        found = {name: self._get_hyper(name) for name, v in self._hyper.items() if _is_number(v)}
        return {name: v for name, v in found.items() if isinstance(v, Variable)}

    def _decayed_lr(self, var_dtype: Any = "float32") -> Any:
        """The learning rate of this step, with schedule and `decay`."""
        rate = self._get_hyper("learning_rate")
        step = self.iterations.value()
        if self._pace is not None:
            step = math.cast(math.floor(self._pace.gained_steps), step.dtype)
        if isinstance(rate, LearningRateSchedule):
            rate = convert_to_tensor(rate(step), dtype_hint="float32")
        rate = math.cast(rate, var_dtype)
        if self._initial_decay > 0:
            steps = math.cast(step, var_dtype)
            rate = rate / (1.0 + self._get_hyper("decay", var_dtype) * steps)
        return rate if self._pace is None else rate * math.cast(self._pace.gain, var_dtype)

    def _call_if_callable(self, param: Any) -> Any:
        return param() if callable(param) else param

    def _serialize_hyperparameter(self, hyperparameter_name: str) -> Any:
        """A hyperparameter for `get_config`: a number, or a schedule's configuration."""
        value = self._hyper[hyperparameter_name]
        if isinstance(value, LearningRateSchedule):
            return serialize_schedule(value)
        value = value() if _is_function(value) else value
        if isinstance(value, (Variable, Tensor)):
            # The shortest number with this float32 value: 0.001, not 0.0010000000474974513.
            return float(str(np.float32(value.numpy())))
        return value

    def _build_learning_rate(self, learning_rate: Any) -> Any:
        """Keras 2.11's hook: what a subclass keeps as `_learning_rate`."""
        return learning_rate

    @property
    def learning_rate(self) -> Any:
        """The learning rate, a variable; or the schedule or the value of the function given."""
        return self._get_hyper("learning_rate")

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._set_hyper("learning_rate", value)

    lr = _learning_rate = learning_rate

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).hyper_names and "_hyper" in self.__dict__:
            self._set_hyper(name, value)
        else:
            if name in type(self).setting_names and value is not None:
                check_number(type(self).__name__, name, value)
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        # Reached for names that are no ordinary attributes: hyperparameters.
        if name in self.__dict__.get("_hyper", {}):
            return self._get_hyper(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
