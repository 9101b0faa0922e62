"""`tf.train.ExponentialMovingAverage`: smoothed copies of variables, and of tensors of graphs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from meshflow.core.gradients.tape import suspend_tapes
from meshflow.core.runtime.context import context
from meshflow.core.runtime.name_scopes import name_scope
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable, get_full_name
from meshflow.ops import math


class ExponentialMovingAverage:
    """Exponential moving averages of variables.

    `average = decay * average + (1 - decay) * variable`

    Args:
      decay: Weight of the previous average, for example 0.999.
      num_updates: Number of updates so far. If it is set, the decay is smaller at first:
        `min(decay, (1 + num_updates) / (10 + num_updates))`.
      zero_debias: Whether averages of tensors of a version 1 graph, which are initialized with zeros, are corrected
        for this bias, as in Adam. Averages of variables are initialized with the values of the variables.
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
        self._variables: list[Any] = []

    @property
    def name(self) -> str:
        """Return the suffix of the names of the averages."""
        return self._name

    def apply(self, var_list: Sequence[Any] | None = None) -> Any:
        """Update the averages; the first call creates them.

        Args:
          var_list: Variables of floating-point dtypes and, in a version 1 graph, tensors. Default in a graph: its
            trainable variables.

        Returns:
          In a graph, the operation that updates the averages; otherwise None.

        Raises:
          TypeError: If an item is not such a variable.
          ValueError: If `var_list` is missing.
        """
        graph: Any = context.graph if context.trace is None else None
        if var_list is None and graph is not None:
            var_list = graph.get_collection("trainable_variables")
        if var_list is None:
            raise ValueError(
                "ExponentialMovingAverage.apply needs `var_list`: with eager execution there is no "
                "collection of all trainable variables."
            )
        for variable in var_list:
            if not isinstance(variable, Variable if graph is None else (Variable, Tensor)):
                raise TypeError(
                    f"ExponentialMovingAverage.apply: var_list must contain tf.Variables, got {variable!r}."
                )
            if not variable.dtype.is_floating:
                raise TypeError(f"The variables must be half, float, or double: {variable.name}")
            if id(variable) not in self._averages:
                self._create_average(variable, graph)
        decay = convert_to_tensor(self._decay, dtype="float32")
        if self._num_updates is not None:
            updates = math.cast(self._num_updates, "float32")
            decay = math.minimum(decay, (1.0 + updates) / (10.0 + updates))
        with suspend_tapes():
            assigned = [self._update_average(v, math.cast(decay, v.dtype)) for v in var_list]
        return None if graph is None else graph.group(assigned, name=self._name)

    def _create_average(self, variable: Any, graph: Any) -> None:
        name, is_variable = self._make_name(variable), isinstance(variable, Variable)
        create = functools.partial(Variable, trainable=False)
        without_inputs = nullcontext() if graph is None else graph.control_dependencies(None)
        with without_inputs, init_scope(), name_scope(""):
            if graph is None:
                start = np.asarray(variable.numpy())
            elif is_variable:
                start = variable.initialized_value()
                graph.add_to_collection("moving_average_variables", variable)
            else:
                start = np.zeros(variable.shape, variable.dtype.as_numpy_dtype)
            if self._zero_debias and not is_variable:
                biased = create(start, name=f"{name}/biased", dtype=variable.dtype)
                self._biased[id(variable)] = (
                    biased,
                    create(np.float32(0), name=f"{name}/local_step"),
                )
            self._averages[id(variable)] = create(start, name=name, dtype=variable.dtype)
        self._variables.append(variable)

    def _update_average(self, variable: Any, decay: Tensor) -> Any:
        average, value = self._averages[id(variable)], convert_to_tensor(variable)
        rest = 1.0 - decay
        if id(variable) not in self._biased:
            return average.assign(average - (average - value) * rest)
        biased, steps = self._biased[id(variable)]
        new_biased = biased.assign(biased - (biased - value) * rest)
        new_steps = steps.assign_add(1.0)
        return average.assign(new_biased / (1.0 - decay ** math.cast(new_steps, variable.dtype)))

    def _make_name(self, variable: Any) -> str:
        name = get_full_name(variable) if isinstance(variable, Variable) else variable.op.name
        # The scope of `tf.compat.v1.variable_scope`.
        scope = getattr(getattr(context.graph, "variable_scope", None), "name", "")
        return f"{scope}/{name}/{self._name}".lstrip("/")

    def average(self, var: Any) -> Variable | None:
        """Return the variable with the average of `var`, or None before `apply` with `var`."""
        return self._averages.get(id(var))

    def average_name(self, var: Any) -> str:
        """Return the name of the average of a variable."""
        average = self.average(var)
        return self._make_name(var) if average is None else get_full_name(average)

    def variables_to_restore(
        self, moving_avg_variables: Sequence[Variable] | None = None
    ) -> dict[str, Variable]:
        """Return variables by the names to restore them from, so that averages are restored into them.

        Args:
          moving_avg_variables: Variables to restore averages into. Default: those of `apply`; in a version 1 graph,
            its trainable variables, too. The other variables of the graph keep their own names.
        """
        graph: Any = context.graph if context.trace is None else None
        chosen = moving_avg_variables
        if chosen is None:
            trainable = [] if graph is None else graph.get_collection("trainable_variables")
            chosen = [*trainable, *(v for v in self._variables if isinstance(v, Variable))]
        by_name = {self.average_name(v): v for v in chosen}
        names = {v.name for v in chosen}
        others = [] if graph is None else graph.get_collection("variables")
        return {get_full_name(v): v for v in others if v.name not in names} | by_name

    def _checkpoint_children(self) -> dict[str, Any]:
        parts: dict[str, Any] = {
            self.average_name(v): self._averages[id(v)] for v in self._variables
        }
        for variable in self._variables:
            if id(variable) in self._biased:
                biased, steps = self._biased[id(variable)]
                parts |= {get_full_name(biased): biased, get_full_name(steps): steps}
        return parts
