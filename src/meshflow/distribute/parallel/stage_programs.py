"""Cutting of a traced loss into pipeline stages, each with a program of its own.

The program of a micro-batch's loss is cut, not the graph of layers. Values that skip stages,
weights that two stages use, losses that a layer adds, and arbitrary code in a model's `call`
therefore need no special treatment.

Equations that are cheap and do not depend on trained weights (masks of the inputs, random numbers,
casts of weights) are not sent: each stage that needs their results recomputes them. All other
equations are *anchored* to one stage.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Container, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import TracedFunction
from meshflow.core.variables.random_streams import STATE_NAME
from meshflow.core.variables.variable import Variable, get_full_name
from meshflow.environment.inner_jaxprs import find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Atom, ClosedJaxpr, JaxprEqn, Var
from meshflow.passes.jaxprs import extract_program, find_output_dependencies, select_variables

# Primitives with a negligible cost per element.
_CHEAP_NAMES = """
    abs add and argmax argmin axis_index bitcast_convert_type broadcast_in_dim ceil clamp concatenate convert_element_type copy copy_p cos
    cumsum custom_jvp_call custom_vjp_call div dynamic_slice eq exp expand_dims expm1 floor ge gt integer_pow
    iota is_finite jit le log log1p log2 logistic lt max min mul ne neg not one_minus_square or pad pjit pow random_bits random_fold_in
    random_seed random_unwrap random_wrap reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum rem
    reshape rev round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin slice
    split sqrt square squeeze stop_gradient sub tanh threefry2x32 transpose xor
"""
_CHEAP_PRIMITIVES = frozenset(_CHEAP_NAMES.split())

# Primitives that only change the shape or dtype of an array.
FORM_PRIMITIVES = frozenset(
    ["broadcast_in_dim", "convert_element_type", "copy", "copy_p", "expand_dims", "reshape"]
    + ["squeeze", "transpose"]
)


# Results with fewer elements than the operands by more than this factor make an equation a reduction. The factor is a
# choice, not a measurement.
_SHRINK_FACTOR = 4


def is_cheap(eqn: JaxprEqn) -> bool:
    """Check whether an equation has a negligible cost per element of its results."""
    if eqn.primitive.name not in _CHEAP_PRIMITIVES:
        return False
    return all(is_cheap(e) for inner in find_inner_jaxprs(eqn) for e in to_open_jaxpr(inner).eqns)


def _is_in(atom: Atom, known: Container[Any]) -> bool:
    return not isinstance(atom, jex_core.Literal) and atom in known


def count_bytes(aval: Any) -> int:
    """Return the bytes of a value with a shape and a dtype.

    Args:
      aval: Abstract value or array.

    Returns:
      The bytes; a key of an extended dtype counts 8 bytes.
    """
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        return 8 * math.prod(aval.shape)
    return math.prod(aval.shape) * np.dtype(aval.dtype).itemsize


class PipelineProgram:
    """A traced loss, with an analysis of its equations for cutting.

    Args:
      traced: Trace of the loss.
      unit_of: For each equation the index of its layer call (unit).
      units: Number of layer calls.
      trained: Indices of the captures that are trained.
      wanted: Indices of the results that the last stage returns.

    Attributes:
      anchored: Positions of the equations that run in one stage only.
      equation_units: Unit of each equation; it never decreases among anchored equations.
    """

    def __init__(
        self,
        traced: TracedFunction,
        unit_of: Sequence[int],
        units: int,
        trained: Sequence[int],
        wanted: Sequence[int],
    ) -> None:
        self.traced, self.units = traced, units
        jaxpr = traced.closed_jaxpr.jaxpr
        self.eqns = list(jaxpr.eqns)
        self.captured = jaxpr.invars[len(jaxpr.invars) - len(traced.captures) :]
        self.arguments = jaxpr.invars[: len(jaxpr.invars) - len(traced.captures)]
        self.results = {i: jaxpr.outvars[i] for i in wanted}
        self.writes = list(jaxpr.outvars[traced.num_results :])
        self.trained = {self.captured[i] for i in trained}
        self.producers = {v: n for n, eqn in enumerate(self.eqns) for v in eqn.outvars}
        self.equation_units = list(unit_of)
        self.anchored = self._find_anchored()

    def _find_anchored(self) -> set[int]:
        from_batch, from_trained = set(self.arguments), set(self.trained)
        anchored: set[int] = set()
        penalties: list[int] = []
        for n, eqn in enumerate(self.eqns):
            inputs = select_variables(eqn.invars)
            batch = any(v in from_batch for v in inputs)
            weights = any(v in from_trained for v in inputs)
            if batch:
                from_batch.update(eqn.outvars)
            if weights:
                from_trained.update(eqn.outvars)
            is_downstream = any(self.producers.get(v) in anchored for v in inputs)
            # A reduction of weights, such as a regularizer, has much smaller results than operands.
            shrinks = weights and _SHRINK_FACTOR * sum(v.aval.size for v in eqn.outvars) < sum(
                v.aval.size for v in inputs
            )
            if is_downstream or (batch and weights) or not is_cheap(eqn) or shrinks:
                anchored.add(n)
                if shrinks and not is_downstream and not batch:
                    penalties.append(n)
        self._assign_penalties(penalties, anchored)
        return anchored

    def _assign_penalties(self, penalties: list[int], anchored: set[int]) -> None:
        """Move sums over weights, such as those of regularizers, to the unit that uses the weights."""
        if not penalties:
            return
        weight_units: dict[Any, int] = {}
        for n in sorted(anchored - set(penalties)):
            for weight in self._find_trained_inputs(n, anchored):
                weight_units.setdefault(weight, self.equation_units[n])
        for n in penalties:
            units = [
                weight_units[w] for w in self._find_trained_inputs(n, anchored) if w in weight_units
            ]
            if units:
                self.equation_units[n] = min(self.equation_units[n], *units)

    def _find_trained_inputs(self, position: int, anchored: set[int]) -> set[Var]:
        """Return the trained captures that an equation and its unanchored producers read."""
        free = self.find_unanchored_producers([self.eqns[position]], anchored)
        read = [v for n in [position, *free] for v in select_variables(self.eqns[n].invars)]
        return {v for v in read if v in self.trained}

    def find_unanchored_producers(self, eqns: Sequence[JaxprEqn], anchored: set[int]) -> list[int]:
        """Return the positions of unanchored equations that equations depend on, in order."""
        inputs = [v for eqn in eqns for v in select_variables(eqn.invars)]
        return self.find_unanchored_equations(inputs, anchored)

    def find_unanchored_equations(self, values: Sequence[Var], anchored: set[int]) -> list[int]:
        """Return the positions of unanchored equations that values depend on, in order."""
        positions: set[int] = set()
        waiting = list(values)
        while waiting:
            n = self.producers.get(waiting.pop())
            if n is not None and n not in anchored and n not in positions:
                positions.add(n)
                waiting += select_variables(self.eqns[n].invars)
        return sorted(positions)

    def compute_lifetimes(self, steps: Sequence[int], last: int) -> dict[Var, tuple[int, int]]:
        """Return for each anchored value the steps of its definition and of its last use.

        Args:
          steps: For each equation its unit, or its stage.
          last: Unit or stage of the results.

        Returns:
          (definition, last use) by value.
        """
        lives: dict[Var, tuple[int, int]] = {}
        for n in sorted(self.anchored):
            for v in self.eqns[n].outvars:
                lives[v] = steps[n], steps[n]
            for v in select_variables(self.eqns[n].invars):
                if v in lives:
                    lives[v] = lives[v][0], max(lives[v][1], steps[n])
        for v in select_variables(self.results.values()):
            if v in lives:
                lives[v] = lives[v][0], last
        return lives

    def extract_batch_program(self, indices: Sequence[int]) -> ClosedJaxpr:
        """Extract a program of (arguments, captures) for results that depend only on the batch.

        Args:
          indices: Indices of the results.

        Returns:
          The program.

        Raises:
          ValueError: If one of the results depends on trained weights.
        """
        closed = self.traced.closed_jaxpr
        outputs = [closed.jaxpr.outvars[i] for i in indices]
        if any(self.producers.get(v) in self.anchored for v in select_variables(outputs)):
            raise InvalidValueError(
                "Pipeline: the number of items in a mean over the batch (of losses, or of tokens for experts) depends on "
                "values that the model computes. It must depend only on the batch, for example on masks of the inputs, "
                "because it is needed before the first micro-batch is finished."
            )
        eqns = [
            self.eqns[n]
            for n in self.find_unanchored_equations(select_variables(outputs), self.anchored)
        ]
        return extract_program(closed, closed.jaxpr.invars, outputs, eqns)

    def count_crossing_bytes(self) -> list[int]:
        """Return the bytes that cross the boundary after each unit."""
        changes = [0] * (self.units + 1)
        for v, (definition, last_use) in self.compute_lifetimes(
            self.equation_units, self.units - 1
        ).items():
            changes[definition] += count_bytes(v.aval)
            changes[last_use] -= count_bytes(v.aval)
        return list(np.cumsum(changes)[: self.units])

    def count_operations(self) -> list[float]:
        """Return the multiplications and additions of each unit's forward pass."""
        counts = [0.0] * self.units
        for n in self.anchored:
            counts[self.equation_units[n]] += estimate_operations(self.eqns[n])
        return counts

    def list_weights(self) -> list[list[tuple[int, int]]]:
        """Return the (index, bytes) pairs of the trained captures that each unit uses."""
        indices = {v: i for i, v in enumerate(self.captured)}
        by_unit: list[dict[int, int]] = [{} for _ in range(self.units)]
        for n in sorted(self.anchored):
            for v in self._find_trained_inputs(n, self.anchored):
                by_unit[self.equation_units[n]][indices[v]] = count_bytes(v.aval)
        return [list(unit_weights.items()) for unit_weights in by_unit]


def estimate_operations(eqn: Any) -> float:
    """Estimate the multiplications and additions of an equation.

    Products and convolutions are counted exactly. Other equations count one operation for each
    element of their results.

    Args:
      eqn: The equation.

    Returns:
      The number of operations.
    """
    name = eqn.primitive.name
    outputs = float(sum(math.prod(v.aval.shape) for v in eqn.outvars))
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2 * outputs * math.prod(eqn.invars[0].aval.shape[i] for i in contracted)
    if name == "conv_general_dilated":
        dimension_numbers = eqn.params["dimension_numbers"]
        kernel = eqn.invars[1].aval.shape
        return 2 * outputs * math.prod(kernel) / max(kernel[dimension_numbers.rhs_spec[0]], 1)
    inner = sum(
        estimate_operations(e)
        for jaxpr in find_inner_jaxprs(eqn)
        for e in to_open_jaxpr(jaxpr).eqns
    )
    return inner * (eqn.params.get("length") or 1) if inner else outputs


@dataclasses.dataclass(frozen=True)
class StageProgram:
    """A stage of a program.

    Attributes:
      closed: Program from [received values, arguments, captures] to [sent values, results, new
        values of variables].
      arrives: Shapes and dtypes of the values that it receives from the previous stage.
      sends: Shapes and dtypes of the values that it sends to the next stage.
      arguments: Indices of the arguments that it takes.
      captures: Indices of the captures that it takes.
      results: Indices of the results that it returns; the last stage returns all of them.
      writes: Indices of the variables that it writes.
      text: Text that is equal for stages that compute the same.
    """

    closed: ClosedJaxpr
    arrives: tuple[jax.ShapeDtypeStruct, ...]
    sends: tuple[jax.ShapeDtypeStruct, ...]
    arguments: tuple[int, ...]
    captures: tuple[int, ...]
    results: tuple[int, ...]
    writes: tuple[int, ...]
    text: str


def to_shape_struct(v: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of a value that is sent or kept; keys of random numbers raise an error."""
    if jax.dtypes.issubdtype(v.aval.dtype, jax.dtypes.extended):
        raise InvalidValueError(
            f"Pipeline: a value of type {v.aval} would have to be sent from stage to stage or kept, which is possible for arrays of numbers only."
        )
    return jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype)


def cut_stages(program: PipelineProgram, ends: Sequence[int]) -> list[StageProgram]:
    """Cut a program into stages.

    Args:
      program: The program.
      ends: For each stage the index after its last unit.

    Returns:
      The stages.

    Raises:
      ValueError: If a stage computes with state that it also writes, because recomputation would
        read the new value.
    """
    stage_of_unit = [s for s, end in enumerate(ends) for _ in range(ends[s - 1] if s else 0, end)]
    stages = [stage_of_unit[u] for u in program.equation_units]
    last = len(ends) - 1
    lifetimes = program.compute_lifetimes(stages, last)
    return [_build_stage(program, stages, lifetimes, s, last) for s in range(len(ends))]


def _build_stage(
    program: PipelineProgram,
    stages: list[int],
    lives: dict[Var, tuple[int, int]],
    stage: int,
    last: int,
) -> StageProgram:
    def list_crossing(edge: int) -> list[Var]:
        return [v for v, (definition, last_use) in lives.items() if definition <= edge < last_use]

    arrives, sends = list_crossing(stage - 1), list_crossing(stage) if stage < last else []
    results = list(program.results.items()) if stage == last else []
    writes = []
    for i, v in enumerate(program.writes):
        # The last stage computes new values that no anchored equation contributes to, such as the next value of a counter.
        if (lives[v][0] if isinstance(v, jex_core.Var) and v in lives else last) == stage:
            writes.append((i, v))
    outputs = [*sends, *(v for _, v in results), *(v for _, v in writes)]
    own = [n for n in sorted(program.anchored) if stages[n] == stage]
    read = [v for n in own for v in select_variables(program.eqns[n].invars)]
    free = program.find_unanchored_equations([*read, *select_variables(outputs)], program.anchored)
    eqns = [program.eqns[n] for n in sorted({*own, *free})]
    used = {v for eqn in eqns for v in select_variables(eqn.invars)} | set(
        select_variables(outputs)
    )
    arguments = [i for i, v in enumerate(program.arguments) if v in used]
    captures = [i for i, v in enumerate(program.captured) if v in used]
    inputs = [
        *arrives,
        *(program.arguments[i] for i in arguments),
        *(program.captured[i] for i in captures),
    ]
    closed = extract_program(program.traced.closed_jaxpr, inputs, outputs, eqns)
    _check_state(program, eqns, captures, outputs[: len(sends) + len(results)])
    digest = "".join(f"{c.dtype}{np.asarray(c).tobytes()!r}" for c in closed.consts)
    return StageProgram(
        closed,
        tuple(map(to_shape_struct, arrives)),
        tuple(map(to_shape_struct, sends)),
        tuple(arguments),
        tuple(captures),
        tuple(i for i, _ in results),
        tuple(i for i, _ in writes),
        # Addresses of functions do not affect the computation.
        re.sub(r"0x[0-9a-f]+", "", str(closed.jaxpr)) + digest,
    )


def _check_state(
    program: PipelineProgram, eqns: list[JaxprEqn], captures: list[int], outputs: Sequence[Atom]
) -> None:
    """Raise an error if a result depends on state that the stage writes.

    Backward passes recompute a stage and would read the new value.
    """
    # The pipeline's loop keeps sums over the batch (metrics) and random keys separately for
    # each micro-batch.
    captured = [(program.captured[i], program.traced.captures[i]) for i in captures]
    state = find_read_state(captured, program.traced.writes, eqns, outputs)
    if state is not None:
        raise InvalidValueError(
            f"Pipeline: a layer computes with the variable {state.name}, which it also writes in every step. "
            "Stages compute their forward passes twice and would find another value, so such a layer cannot be "
            "in a pipeline."
        )


def find_read_state(
    captured: Iterable[tuple[Atom, Any]],
    writes: Sequence[Variable],
    eqns: Sequence[JaxprEqn],
    outputs: Sequence[Atom],
) -> Any:
    """Return a variable that a program writes, and on which its results depend; None if there is none.

    Args:
      captured: Inputs of the program with their captures.
      writes: The variables that it writes. Sums and random keys are not considered.
      eqns: Its equations.
      outputs: Its results.
    """
    written = {id(v) for v in writes if not is_restarted(v)}
    state_sources: dict[Any, Any] = {v: c for v, c in captured if id(c) in written}
    for eqn in eqns if state_sources else ():
        sources = {
            n: state_sources[v] for n, v in enumerate(eqn.invars) if _is_in(v, state_sources)
        }
        if sources:
            for v, indices in zip(eqn.outvars, find_output_dependencies(eqn), strict=True):
                source = next((sources[n] for n in sorted(indices) if n in sources), None)
                if source is not None:
                    state_sources[v] = source
    return next((state_sources[v] for v in select_variables(outputs) if v in state_sources), None)


def is_restarted(variable: object) -> bool:
    """Check whether a variable, a sum or a key stream, has a value for each micro-batch."""
    return is_sum(variable) or is_key_stream(variable)


def is_sum(variable: object) -> bool:
    """Check whether the values of replicas are summed, as those of metrics."""
    return getattr(getattr(variable, "aggregation", None), "name", "") == "SUM"


def is_key_stream(variable: Any) -> bool:
    """Check whether a variable is the state of a stream of random keys."""
    return get_full_name(variable).rpartition("/")[2] == STATE_NAME
