"""Gradient accumulation: average the gradients of several steps, and update variables once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.stage_buffers import get_storage
from meshflow.keras.optimizers.hooks import densify_gradient
from meshflow.keras.optimizers.state import ACCUMULATOR, GradientPairs, OptimizerState
from meshflow.ops import array, math
from meshflow.ops.control_flow import cond
from meshflow.placement.layout import Layout


class GradientAccumulation(OptimizerState):
    """Accumulation of gradients until an update is due; a base class of `Optimizer`."""

    gradient_accumulation_steps: int | None
    # Number of steps in the accumulators; the first step creates the variable.
    _accumulated_steps: Variable | None = None

    def _create_accumulators(self, variables: Sequence[Variable]) -> None:
        for var in variables:
            self.add_slot(var, ACCUMULATOR)
        if self._accumulated_steps is None:
            self._accumulated_steps = self.add_weight("accumulated_steps", dtype="int64")
            if self._mesh is not None:
                self._accumulated_steps.layout = Layout.replicated(self._mesh, 0)

    def _accumulate(self, pairs: GradientPairs, update: Callable[[list[Any]], None]) -> None:
        """Add gradients to the accumulators; the last step of a round passes averages to `update`."""
        self._create_accumulators([var for _, var in pairs])
        steps, step_count = self.gradient_accumulation_steps, self._accumulated_steps
        assert steps is not None and step_count is not None
        for gradient, var in pairs:
            if isinstance(gradient, IndexedSlices):
                gradient = densify_gradient(gradient, var)
            total = self.get_slot(var, ACCUMULATOR)
            total.assign_add(math.cast(convert_to_tensor(gradient, var.dtype), total.dtype))
        step_count.assign_add(np.int64(1))

        def finish_round() -> None:
            totals = [self.get_slot(var, ACCUMULATOR) for _, var in pairs]
            averages = [total.value() / float(steps) for total in totals]
            update([(mean, var) for mean, (_, var) in zip(averages, pairs, strict=True)])
            # A round also ends for variables without a gradient in this step.
            accumulators = {
                id(get_storage(slots[ACCUMULATOR])): get_storage(slots[ACCUMULATOR])
                for slots in self._slots.values()
                # The accumulator may be on another parameter server.
                if isinstance(slots.get(ACCUMULATOR), Variable)
            }
            for total in accumulators.values():
                total.assign(array.zeros_like(total.value()))
            step_count.assign(np.int64(0))

        cond(math.greater_equal(step_count.value(), np.int64(steps)), finish_round, lambda: None)


def check_accumulation_steps(steps: int | None, owner: str) -> int | None:
    """Check a number of steps to accumulate over, and convert it to int or None.

    Args:
      steps: The number.
      owner: Name to use in the error.

    Raises:
      ValueError: If `steps` is neither None nor an integer of at least 2.
    """
    if steps is None:
        return None
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 2:
        raise ValueError(
            f"{owner}: `gradient_accumulation_steps` must be an integer >= 2, or None. Received: "
            f"gradient_accumulation_steps={steps!r}"
        )
    return int(steps)


def set_accumulation_steps(optimizer: Any, steps: int) -> None:
    """Enable gradient accumulation in an optimizer, for `compile(gradient_accumulation_steps=)`.

    Args:
      optimizer: An optimizer. A wrapper, for example for loss scaling, passes the setting to its
        inner optimizer.
      steps: Number of steps to accumulate over.

    Raises:
      ValueError: If `steps` is below 2, or the optimizer cannot accumulate or already does so over
        another number of steps.
    """
    count = check_accumulation_steps(steps, "compile")
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(inner, GradientAccumulation):
        raise ValueError(
            f"compile: `gradient_accumulation_steps={count}` needs a tf.keras optimizer, got {optimizer!r}."
        )
    present = inner.gradient_accumulation_steps
    if present not in (None, count):
        raise ValueError(
            f"compile: `gradient_accumulation_steps={count}`, but the optimizer {inner._name} was made with {present}. "
            "Pass it either to compile or to the optimizer."
        )
    inner.gradient_accumulation_steps = count
