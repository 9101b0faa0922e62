"""`tf.train.ExponentialMovingAverage`: smoothed copies of variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.gradients.tape import suspend_tapes
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable, get_full_name
from meshflow.ops import math

__all__ = ["ExponentialMovingAverage"]


class ExponentialMovingAverage:
    """Exponential moving averages of variables.

    `average = decay * average + (1 - decay) * variable`

    Args:
      decay: Weight of the previous average, for example 0.999.
      num_updates: Number of updates so far. If it is set, the decay is smaller at first:
        `min(decay, (1 + num_updates) / (10 + num_updates))`.
      zero_debias: Whether averages are initialized with zeros and corrected for this bias, as in
        Adam; otherwise they are initialized with the values of the variables.
      name: Suffix of the names of the averages.

    Example:
      >>> v = tf.Variable(10.0)
      >>> ema = tf.train.ExponentialMovingAverage(0.75)
      >>> ema.apply([v])
      >>> _ = v.assign(20.0)
      >>> ema.apply([v])
      >>> float(ema.average(v))
      12.5
    """

    def __init__(
        self,
        decay: TensorLike,
        num_updates: TensorLike | None = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        self._decay, self._num_updates = decay, num_updates
        self._zero_debias, self._name = zero_debias, name
        self._averages: dict[int, Variable] = {}
        # With `zero_debias`: the uncorrected average and the number of steps.
        self._biased: dict[int, tuple[Variable, Variable]] = {}
        self._variables: list[Variable] = []

    @property
    def name(self) -> str:
        """Return the suffix of the names of the averages."""
        return self._name

    def apply(self, var_list: Sequence[Variable] | None = None) -> None:
        """Update the averages; the first call creates them.

        Args:
          var_list: Variables of floating-point dtypes.

        Raises:
          TypeError: If an item is not such a variable.
          ValueError: If `var_list` is missing.
        """
        if var_list is None:
            raise ValueError(
                "ExponentialMovingAverage.apply needs `var_list`: with eager execution there is no "
                "collection of all trainable variables."
            )
        decay = convert_to_tensor(self._decay, dtype="float32")
        if self._num_updates is not None:
            updates = math.cast(self._num_updates, "float32")
            decay = math.minimum(decay, (1.0 + updates) / (10.0 + updates))
        for variable in var_list:
            if not isinstance(variable, Variable):
                raise TypeError(
                    f"ExponentialMovingAverage.apply: var_list must contain tf.Variables, got {variable!r}."
                )
            if not variable.dtype.is_floating:
                raise TypeError(f"The variables must be half, float, or double: {variable.name}")
            if id(variable) not in self._averages:
                self._create_average(variable)
        with suspend_tapes():
            for variable in var_list:
                self._update_average(variable, math.cast(decay, variable.dtype))

    def _create_average(self, variable: Variable) -> None:
        name = self._make_name(variable)
        with init_scope():
            start = np.asarray(variable.numpy())
            zeros = np.zeros_like(start)
            if self._zero_debias:
                steps = Variable(np.float32(0), trainable=False, name=f"{name}/local_step")
                biased = Variable(
                    zeros, trainable=False, name=f"{name}/biased", dtype=variable.dtype
                )
                self._biased[id(variable)] = biased, steps
                start = zeros
            self._averages[id(variable)] = Variable(
                start, trainable=False, name=name, dtype=variable.dtype
            )
        self._variables.append(variable)

    def _update_average(self, variable: Variable, decay: Tensor) -> None:
        average, value = self._averages[id(variable)], variable.value()
        rest = 1.0 - decay
        if not self._zero_debias:
            average.assign(average - (average - value) * rest)
            return
        biased, steps = self._biased[id(variable)]
        biased.assign(biased - (biased - value) * rest)
        steps.assign_add(1.0)
        average.assign(biased / (1.0 - decay ** math.cast(steps, variable.dtype)))

    def _make_name(self, variable: Variable) -> str:
        return f"{get_full_name(variable)}/{self._name}"

    def average(self, var: Variable) -> Variable:
        """Return the variable with the average of `var`, or None before `apply` with `var`."""
        return self._averages.get(id(var))

    def average_name(self, var: Variable) -> str:
        """Return the name of the average of a variable."""
        average = self.average(var)
        return self._make_name(var) if average is None else get_full_name(average)

    def variables_to_restore(
        self, moving_avg_variables: Sequence[Variable] | None = None
    ) -> dict[str, Variable]:
        """Return variables by the names to restore them from, so that averages are restored into them.

        Args:
          moving_avg_variables: Variables to restore averages into; by default those of `apply`.
        """
        chosen = self._variables if moving_avg_variables is None else moving_avg_variables
        return {self.average_name(v): v for v in chosen}

    def _checkpoint_children(self) -> dict[str, Any]:
        parts: dict[str, Any] = {
            self.average_name(v): self._averages[id(v)] for v in self._variables
        }
        for variable in self._variables:
            if id(variable) in self._biased:
                biased, steps = self._biased[id(variable)]
                parts |= {get_full_name(biased): biased, get_full_name(steps): steps}
        return parts
