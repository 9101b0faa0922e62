"""Gradient accumulation: gradients of several steps are averaged, and update variables once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.variables.variable import Variable
from meshflow.keras.optimizers.hooks import densified
from meshflow.keras.optimizers.state import State
from meshflow.ops import array, math
from meshflow.ops.control_flow import cond
from meshflow.placement.layout import Layout

SLOT = "gradient_accumulator"


class GradientAccumulation(State):
    """How an optimizer gathers gradients until an update is due; a base class of `Optimizer`."""

    gradient_accumulation_steps: int | None
    # How many steps the accumulators hold; made by the first step.
    _accumulated_steps: Variable | None = None

    def _make_accumulators(self, variables: Sequence[Variable]) -> None:
        for var in variables:
            self.add_slot(var, SLOT)
        if self._accumulated_steps is None:
            self._accumulated_steps = self.add_weight("accumulated_steps", dtype="int64")
            if self._mesh is not None:
                self._accumulated_steps._layout = Layout.replicated(self._mesh, 0)

    def _accumulate(
        self, pairs: list[tuple[Any, Variable]], update: Callable[[list[Any]], None]
    ) -> None:
        """Adds gradients to those gathered; the last step of a round calls `update` with their averages."""
        self._make_accumulators([var for _, var in pairs])
        steps, held = self.gradient_accumulation_steps, self._accumulated_steps
        assert steps is not None and held is not None
        for gradient, var in pairs:
            if isinstance(gradient, IndexedSlices):
                gradient = densified(gradient, var)
            total = self.get_slot(var, SLOT)
            total.assign_add(math.cast(convert_to_tensor(gradient, var.dtype), total.dtype))
        held.assign_add(np.int64(1))

        def finish() -> None:
            totals = [self.get_slot(var, SLOT) for _, var in pairs]
            averages = [total.value() / float(steps) for total in totals]
            update([(mean, var) for mean, (_, var) in zip(averages, pairs, strict=True)])
            # Those without a gradient in this step end their round as well.
            for slots in self._slots.values():
                # Another parameter server may have it.
                if isinstance(slots.get(SLOT), Variable):
                    slots[SLOT].assign(array.zeros_like(slots[SLOT].value()))
            held.assign(np.int64(0))

        cond(math.greater_equal(held.value(), np.int64(steps)), finish, lambda: None)


def check_steps(steps: Any, where: str) -> int | None:
    """A number of steps to accumulate over, as Keras 3 takes it.

    Args:
      steps: what was given.
      where: what the error names.

    Raises:
      ValueError: when it is neither None nor an integer of at least 2.
    """
    if steps is None:
        return None
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 2:
        raise ValueError(
            f"{where}: `gradient_accumulation_steps` must be an integer >= 2, or None. Received: "
            f"gradient_accumulation_steps={steps!r}"
        )
    return int(steps)


def accumulate_over(optimizer: Any, steps: Any) -> None:
    """Has an optimizer accumulate gradients, as `compile(gradient_accumulation_steps=)` asks.

    Args:
      optimizer: an optimizer; one with loss scaling hands it on.
      steps: over how many steps.

    Raises:
      ValueError: for a number below 2, an optimizer that cannot, and one that does so over another number.
    """
    steps = check_steps(steps, "compile")
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(inner, GradientAccumulation):
        raise ValueError(
            f"compile: `gradient_accumulation_steps={steps}` needs a tf.keras optimizer, got {optimizer!r}."
        )
    present = inner.gradient_accumulation_steps
    if present not in (None, steps):
        raise ValueError(
            f"compile: `gradient_accumulation_steps={steps}`, but the optimizer {inner._name} was made with {present}. "
            "Give it in one of the two places."
        )
    inner.gradient_accumulation_steps = steps
