"""Pipelines of a `train_step` that computes gradients itself.

The target of the tape in the trace of a share is the loss of a pipeline, which is cut into stages and
differentiated there. The step's other results that depend on rows are results of the pipeline, too. The
gradients then replace the placeholders of `step_shares.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from meshflow.core.tracing.trace import TensorSlot, TracedFunction
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.pipeline import PipelinedStep
from meshflow.distribute.parallel.program import RegionStrategy, UpdateGroup
from meshflow.distribute.parallel.region import PartitionedBatch, widen
from meshflow.distribute.parallel.step_shares import (
    GradientTotal,
    StepNotSplitError,
    StepShares,
    is_outside_of_tape,
)
from meshflow.distribute.parallel.weight_reads import manual_axes_scope
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Atom, Jaxpr, PyTree, Var
from meshflow.passes.jaxprs import (
    extract_program,
    get_aval,
    select_needed_equations,
    select_variables,
)


class NeededOutputs(NamedTuple):
    """Outputs of the trace of a step that depend on rows: indices of results, and written variables.

    Attributes:
      objective: The target of the tape.
      factor: Its factor in the loss of a share, the mean of which over the shares is the loss of the batch.
      sums: Outputs without rows, each with whether it is a sum of the variable's earlier value and others.
      rows: Outputs with rows.
      states: Variables that each micro-batch updates.
    """

    objective: int
    factor: float
    sums: Sequence[tuple[int | Variable, bool]]
    rows: Sequence[int]
    states: Sequence[Variable]


class _TapeProgram:
    """The variables that a step differentiates with respect to, as a `LossProgram` that `StepPipeline` traces.

    Args:
      variables: The variables.
      model: The model.
      slots: The slots of each variable, by its id.
    """

    needs_gradient_norms = False

    def __init__(
        self, variables: Sequence[Variable], model: Any, slots: dict[int, list[Variable]]
    ) -> None:
        self.model, self.variables, self._slots = model, list(variables), slots

    def get_update_group(self, variable: Variable) -> UpdateGroup:
        """Return a key of the weights with equally many slots; the step updates each of them by itself."""
        return UpdateGroup(is_elementwise=False, num_slots=len(self._slots.get(id(variable), ())))


class StepPipeline(PipelinedStep):
    """A pipeline that computes the gradients of a step, and its values that depend on rows.

    Args:
      strategy: The strategy.
      shares: Shares of the batch.
      batch: The partitioned batch, with the indices of the shares as its last leaf.
      trace: Function that traces the step for a share.
      variables: The variables that the step differentiates with respect to.
      model: The model.
      slots: The slots of each variable, by its id.
      needed: The outputs that the pipeline computes.

    Raises:
      StepNotSplitError: If the step has another form than a loss and its gradients.
    """

    def __init__(
        self,
        strategy: RegionStrategy,
        shares: StepShares,
        batch: PartitionedBatch,
        trace: Callable[[], TracedFunction],
        variables: Sequence[Variable],
        model: Any,
        slots: dict[int, list[Variable]],
        needed: NeededOutputs,
    ) -> None:
        self._trace, self._needed = trace, needed
        program: Any = _TapeProgram(variables, model, slots)
        super().__init__(strategy, program, batch, share=(shares, self._trace_loss))
        for buffer in (b for pack in self._buffers for b in pack.values()):
            if buffer.group is not None and buffer.group.is_trained:
                for own in zip(*(slots.get(id(v), ()) for v in buffer.members), strict=True):
                    buffer.combine_slots(own)

    def _has_rows(self, result: int) -> bool:
        return result > len(self._needed.sums)

    def _trace_loss(self) -> TracedFunction:
        """Return the trace of a step without its gradients and updates."""
        traced, needed, shares = self._trace(), self._needed, self.shares
        assert isinstance(shares, StepShares)
        # The placeholders of gradients are no means that the pipeline computes before its stages.
        shares.totals.clear()
        jaxpr = traced.closed_jaxpr.jaxpr
        num_leaves = len(jaxpr.invars) - len(traced.captures)
        captured = {
            id(c): v for c, v in zip(traced.captures, jaxpr.invars[num_leaves:], strict=True)
        }
        is_recorded = all(tape.has_all_reads for tape in shares.tapes)
        if not is_recorded or not all(v.trainable for v in self._program.variables):
            raise StepNotSplitError("has a tape that has not recorded all reads of its variables")
        if not all(shares.custom_gradients):
            raise StepNotSplitError(
                "has a custom gradient that is not proportional to the gradient of its result"
            )
        written = dict(
            zip(map(id, traced.writes), jaxpr.outvars[traced.num_results :], strict=True)
        )
        kept = needed.objective, *(v for v, _ in needed.sums), *needed.rows, *needed.states
        outputs = [jaxpr.outvars[v] if isinstance(v, int) else written[id(v)] for v in kept]
        starts = [captured[id(v)] if is_added else None for v, is_added in needed.sums]
        eqns, read = select_needed_equations(jaxpr, [*outputs, *filter(None, starts)])
        trained = {captured[id(v)] for v in self._program.variables if id(v) in captured}
        _check_path(jaxpr, trained, outputs[0])
        captures = [c for c in traced.captures if captured[id(c)] in read]
        if any(isinstance(c, GradientTotal) for c in captures):
            raise StepNotSplitError("computes with rows and with gradients of the batch")
        inputs: list[Var] = [*jaxpr.invars[:num_leaves], *(captured[id(c)] for c in captures)]
        positions = [None if v is None else inputs.index(v) for v in starts]
        program = jex_core.jaxpr_as_fun(extract_program(traced.closed_jaxpr, inputs, outputs, eqns))

        def run(*operands: jax.Array) -> list[jax.Array]:
            objective, *values = program(*operands)
            sums = [
                _widen_exactly(v) - (0 if k is None else _widen_exactly(operands[k]))
                for v, k in zip(values, positions, strict=False)
            ]
            return [objective * needed.factor, *sums, *values[len(sums) :]]

        specs = [jax.ShapeDtypeStruct(get_aval(v).shape, get_aval(v).dtype) for v in inputs]
        axes = list(zip(shares.axes, shares.sizes, strict=True))
        with manual_axes_scope(shares):
            closed = jax.make_jaxpr(run, axis_env=axes or None)(*specs)
        count = 1 + len(needed.sums) + len(needed.rows)
        slots = [TensorSlot(i) for i in range(count)]
        structure: PyTree = (
            slots[0],
            [],
            slots[1 : 1 + len(needed.sums)],
            slots[1 + len(needed.sums) :],
        )
        return TracedFunction("pipelined", closed, captures, [*needed.states], structure, count)


def _widen_exactly(value: jax.Array) -> jax.Array:
    """Convert a value to the dtype in which the pipeline averages it, which holds integers exactly."""
    is_integer = jnp.issubdtype(value.dtype, jnp.integer)
    return value.astype(jnp.float64) if is_integer else widen(value)


def _check_path(jaxpr: Jaxpr, trained: set[Var], objective: Atom) -> None:
    """Check that the tape has recorded all operations between trained variables and its target.

    Raises:
      StepNotSplitError: If it has not.
    """
    found = set(trained)
    for eqn in select_needed_equations(jaxpr, [objective])[0]:
        if not found.isdisjoint(select_variables(eqn.invars)):
            found.update(eqn.outvars)
            if is_outside_of_tape(eqn):
                raise StepNotSplitError(
                    "computes a part of the target of its tape from variables outside of the tape"
                )
