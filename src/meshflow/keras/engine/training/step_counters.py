"""Counts of the steps that a model has run, which programs read as variables."""

from __future__ import annotations

import functools

import numpy as np

from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.dtypes import int64
from meshflow.core.variables.variable import Variable


class StepCounter:
    """Number of steps of one kind since the last call of `fit`, `evaluate` or `predict` began.

    Attributes:
      count: The number.
    """

    def __init__(self) -> None:
        self.count = 0
        self._variable: Variable | None = None

    @property
    def variable(self) -> Variable:
        """Return a variable with the number; it is created on the first request."""
        if self._variable is None:
            with init_scope():
                self._variable = Variable(np.int64(self.count), trainable=False, dtype=int64)
        return self._variable

    def add(self, num_steps: int) -> None:
        """Count steps."""
        self.count += num_steps
        if self._variable is not None:
            self._variable.assign_add(num_steps)

    def reset(self) -> None:
        """Count from zero."""
        self.count = 0
        if self._variable is not None:
            self._variable.assign(0)


class StepCounterMethods:
    """The step counters of a model, which are no weights; a base class of `TrainingSteps`."""

    @functools.cached_property
    def _step_counters(self) -> dict[str, StepCounter]:
        return {kind: StepCounter() for kind in ("train", "test", "predict")}

    @property
    def _train_counter(self) -> Variable:
        return self._step_counters["train"].variable

    @property
    def _test_counter(self) -> Variable:
        return self._step_counters["test"].variable

    @property
    def _predict_counter(self) -> Variable:
        return self._step_counters["predict"].variable
