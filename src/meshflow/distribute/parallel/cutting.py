"""A traced step cut into stages: each a program of its own, and what crosses from one to the next.

The program of one micro-batch's loss is cut, not the graph of layers: so a value that skips stages, a weight
that two of them use, a loss that a layer adds and whatever a model's `call` does need nothing special.

What costs next to nothing and does not depend on what is trained (masks of the inputs, random numbers, casts
of weights) is not sent: each stage that needs it computes it. All other equations are *anchored*.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import Traced
from meshflow.core.variables.random import STATE_NAME
from meshflow.environment.jax_internals import jex_core
from meshflow.passes.jaxprs import inner_jaxprs, opened, part, reads_of_outputs, variables

__all__ = ["FORMS", "Program", "StageProgram", "cut", "is_light"]

# What costs next to nothing for each number.
_LIGHT_NAMES = """
    abs add and argmax argmin axis_index bitcast_convert_type broadcast_in_dim ceil clamp concatenate convert_element_type copy copy_p cos
    cumsum custom_jvp_call custom_vjp_call div dynamic_slice eq exp expand_dims expm1 floor ge gt integer_pow
    iota is_finite jit le log log1p log2 logistic lt max min mul ne neg not one_minus_square or pad pjit pow random_bits random_fold_in
    random_seed random_unwrap random_wrap reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum rem
    reshape rev round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin slice
    split sqrt square squeeze stop_gradient sub tanh threefry2x32 transpose xor
"""
_LIGHT = frozenset(_LIGHT_NAMES.split())

# What gives the same numbers another form.
FORMS = frozenset(
    ["broadcast_in_dim", "convert_element_type", "copy", "copy_p", "expand_dims", "reshape"]
    + ["squeeze", "transpose"]
)


def is_light(eqn: Any) -> bool:
    """Whether an equation costs next to nothing for each number that it makes."""
    if eqn.primitive.name not in _LIGHT:
        return False
    return all(is_light(e) for inner in inner_jaxprs(eqn) for e in opened(inner).eqns)


def _is_in(atom: Any, known: Any) -> bool:
    return not isinstance(atom, jex_core.Literal) and atom in known


def size_of(aval: Any) -> int:
    """Bytes of a value."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        return 8 * math.prod(aval.shape)
    return math.prod(aval.shape) * np.dtype(aval.dtype).itemsize


class Program:
    """A traced program, with what is known of its equations before it is cut.

    Args:
      traced: the program.
      unit_of: for each equation the number of the layer call that it belongs to.
      units: how many layer calls there are.
      trained: the numbers of the captures that are trained.
      wanted: the numbers of the results that the last stage gives.

    Attributes:
      anchored: the numbers of the equations that run in one stage only.
      unit_of: the unit of each equation; those of anchored ones never fall.
    """

    def __init__(
        self,
        traced: Traced,
        unit_of: Sequence[int],
        units: int,
        trained: Sequence[int],
        wanted: Sequence[int],
    ) -> None:
        self.traced, self.units = traced, units
        jaxpr = traced.closed.jaxpr
        self.eqns = list(jaxpr.eqns)
        self.captured = jaxpr.invars[len(jaxpr.invars) - len(traced.captures) :]
        self.arguments = jaxpr.invars[: len(jaxpr.invars) - len(traced.captures)]
        self.results = {i: jaxpr.outvars[i] for i in wanted}
        self.writes = list(jaxpr.outvars[traced.count :])
        self.trained = {self.captured[i] for i in trained}
        self.maker = {v: n for n, eqn in enumerate(self.eqns) for v in eqn.outvars}
        self.unit_of = list(unit_of)
        self.anchored = self._anchor()

    def _anchor(self) -> set[int]:
        from_batch, from_trained = set(self.arguments), set(self.trained)
        anchored: set[int] = set()
        penalties: list[int] = []
        for n, eqn in enumerate(self.eqns):
            inputs = variables(eqn.invars)
            batch = any(v in from_batch for v in inputs)
            weights = any(v in from_trained for v in inputs)
            if batch:
                from_batch.update(eqn.outvars)
            if weights:
                from_trained.update(eqn.outvars)
            stays = any(self.maker.get(v) in anchored for v in inputs)
            shrinks = weights and sum(v.aval.size for v in eqn.outvars) * 4 < sum(
                v.aval.size for v in inputs
            )
            if stays or (batch and weights) or not is_light(eqn) or shrinks:
                anchored.add(n)
                if shrinks and not stays and not batch:
                    penalties.append(n)
        self._send_home(penalties, anchored)
        return anchored

    def _send_home(self, penalties: list[int], anchored: set[int]) -> None:
        """Gives sums over weights, such as regularizers', to the unit that uses the weights anyway."""
        if not penalties:
            return
        home: dict[Any, int] = {}
        for n in sorted(anchored - set(penalties)):
            for weight in self._weights_behind(n, anchored):
                home.setdefault(weight, self.unit_of[n])
        for n in penalties:
            homes = [home[w] for w in self._weights_behind(n, anchored) if w in home]
            if homes:
                self.unit_of[n] = min(self.unit_of[n], *homes)

    def _weights_behind(self, number: int, anchored: set[int]) -> set[Any]:
        """The trained captures that an equation reads, by way of equations that are not anchored."""
        free = self.free_behind([self.eqns[number]], anchored)
        read = [v for n in [number, *free] for v in variables(self.eqns[n].invars)]
        return {v for v in read if v in self.trained}

    def free_behind(self, eqns: Sequence[Any], anchored: set[int]) -> list[int]:
        """The equations that are not anchored and that others need, in order."""
        wanted = [v for eqn in eqns for v in variables(eqn.invars)]
        return self.free_for(wanted, anchored)

    def free_for(self, values: Sequence[Any], anchored: set[int]) -> list[int]:
        """The equations that are not anchored and that values need, in order."""
        found: set[int] = set()
        waiting = list(values)
        while waiting:
            n = self.maker.get(waiting.pop())
            if n is not None and n not in anchored and n not in found:
                found.add(n)
                waiting += variables(self.eqns[n].invars)
        return sorted(found)

    def lives(self, at: Sequence[int], last: int) -> dict[Any, tuple[int, int]]:
        """For each anchored value the places where it is made and last used.

        Args:
          at: the place of each equation: its unit, or its stage.
          last: the place of the results.
        """
        lives: dict[Any, tuple[int, int]] = {}
        for n in sorted(self.anchored):
            for v in self.eqns[n].outvars:
                lives[v] = at[n], at[n]
            for v in variables(self.eqns[n].invars):
                if v in lives:
                    lives[v] = lives[v][0], max(lives[v][1], at[n])
        for v in variables(self.results.values()):
            if v in lives:
                lives[v] = lives[v][0], last
        return lives

    def ahead(self, numbers: Sequence[int]) -> jex_core.ClosedJaxpr:
        """A program of (arguments, captures) for results that follow from the batch alone.

        Args:
          numbers: the results' numbers.

        Raises:
          ValueError: when one of them depends on what is trained.
        """
        whole = self.traced.closed
        outputs = [whole.jaxpr.outvars[i] for i in numbers]
        if any(self.maker.get(v) in self.anchored for v in variables(outputs)):
            raise InvalidValueError(
                "Pipeline: how many numbers count in a mean over the batch (of losses, or of tokens that go to experts) "
                "depends on what the model computes; the masks must follow from the batch alone, as they are needed before "
                "the first of its parts is through."
            )
        eqns = [self.eqns[n] for n in self.free_for(variables(outputs), self.anchored)]
        return part(whole, whole.jaxpr.invars, outputs, eqns)

    def crossing(self) -> list[int]:
        """Bytes that cross behind each unit."""
        changes = [0] * (self.units + 1)
        for v, (made, used) in self.lives(self.unit_of, self.units - 1).items():
            changes[made] += size_of(v.aval)
            changes[used] -= size_of(v.aval)
        return list(np.cumsum(changes)[: self.units])

    def costs(self) -> list[float]:
        """Arithmetic of each unit's forward pass, in multiplications and additions."""
        found = [0.0] * self.units
        for n in self.anchored:
            found[self.unit_of[n]] += work_of(self.eqns[n])
        return found

    def weights(self) -> list[list[tuple[int, int]]]:
        """For each unit the trained captures it uses: (number, bytes)."""
        numbers = {v: i for i, v in enumerate(self.captured)}
        found: list[dict[int, int]] = [{} for _ in range(self.units)]
        for n in sorted(self.anchored):
            for v in self._weights_behind(n, self.anchored):
                found[self.unit_of[n]][numbers[v]] = size_of(v.aval)
        return [list(of_unit.items()) for of_unit in found]


def work_of(eqn: Any) -> float:
    """Multiplications and additions of an equation, roughly; elsewhere one for each number it makes."""
    name = eqn.primitive.name
    made = float(sum(math.prod(v.aval.shape) for v in eqn.outvars))
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2 * made * math.prod(eqn.invars[0].aval.shape[i] for i in contracted)
    if name == "conv_general_dilated":
        numbers = eqn.params["dimension_numbers"]
        kernel = eqn.invars[1].aval.shape
        return 2 * made * math.prod(kernel) / max(kernel[numbers.rhs_spec[0]], 1)
    inner = sum(work_of(e) for jaxpr in inner_jaxprs(eqn) for e in opened(jaxpr).eqns)
    return inner * (eqn.params.get("length") or 1) if inner else made


@dataclasses.dataclass(frozen=True)
class StageProgram:
    """A stage of a program.

    Attributes:
      closed: from [what arrives, arguments, captures] to [what is sent on, results, new values of variables].
      arrives: shapes and dtypes of what comes from the stage before.
      sends: of what goes to the next one.
      arguments: the numbers of the program's arguments that it takes.
      captures: of the captures.
      results: of the results that it gives; all of them are the last stage's.
      writes: of the written variables.
      text: equal for stages that compute the same.
    """

    closed: jex_core.ClosedJaxpr
    arrives: tuple[jax.ShapeDtypeStruct, ...]
    sends: tuple[jax.ShapeDtypeStruct, ...]
    arguments: tuple[int, ...]
    captures: tuple[int, ...]
    results: tuple[int, ...]
    writes: tuple[int, ...]
    text: str


def _shape(v: Any) -> jax.ShapeDtypeStruct:
    if jax.dtypes.issubdtype(v.aval.dtype, jax.dtypes.extended):
        raise InvalidValueError(
            f"Pipeline: a value of type {v.aval} would have to be sent from stage to stage; only numbers can be."
        )
    return jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype)


def cut(program: Program, ends: Sequence[int]) -> list[StageProgram]:
    """The stages of a program.

    Args:
      program: the program.
      ends: for each stage the unit behind its last one.

    Raises:
      ValueError: when a stage computes with state that it writes, which computing again would change.
    """
    stage_of_unit = [s for s, end in enumerate(ends) for _ in range(ends[s - 1] if s else 0, end)]
    at = [stage_of_unit[u] for u in program.unit_of]
    last = len(ends) - 1
    # What is sent home may lie in front of what it was after.
    lives = program.lives(at, last)
    return [_stage(program, at, lives, s, last) for s in range(len(ends))]


def _stage(program: Program, at: list[int], lives: Any, stage: int, last: int) -> StageProgram:
    def crosses(edge: int) -> list[Any]:
        return [v for v, (made, used) in lives.items() if made <= edge < used]

    arrives, sends = crosses(stage - 1), crosses(stage) if stage < last else []
    results = list(program.results.items()) if stage == last else []
    writes = []
    for i, v in enumerate(program.writes):
        # What nothing anchored is in, such as a counter's next value, the last stage computes.
        if (lives[v][0] if isinstance(v, jex_core.Var) and v in lives else last) == stage:
            writes.append((i, v))
    outputs = [*sends, *(v for _, v in results), *(v for _, v in writes)]
    own = [n for n in sorted(program.anchored) if at[n] == stage]
    read = [v for n in own for v in variables(program.eqns[n].invars)]
    free = program.free_for([*read, *variables(outputs)], program.anchored)
    numbers = sorted({*own, *free})
    eqns = [program.eqns[n] for n in numbers]
    used = {v for eqn in eqns for v in variables(eqn.invars)} | set(variables(outputs))
    arguments = [i for i, v in enumerate(program.arguments) if v in used]
    captures = [i for i, v in enumerate(program.captured) if v in used]
    inputs = [
        *arrives,
        *(program.arguments[i] for i in arguments),
        *(program.captured[i] for i in captures),
    ]
    closed = part(program.traced.closed, inputs, outputs, eqns)
    _check_state(program, eqns, captures, outputs[: len(sends) + len(results)])
    digest = "".join(f"{c.dtype}{np.asarray(c).tobytes()!r}" for c in closed.consts)
    return StageProgram(
        closed,
        tuple(map(_shape, arrives)),
        tuple(map(_shape, sends)),
        tuple(arguments),
        tuple(captures),
        tuple(i for i, _ in results),
        tuple(i for i, _ in writes),
        # Functions' addresses say nothing of what they compute.
        re.sub(r"0x[0-9a-f]+", "", str(closed.jaxpr)) + digest,
    )


def _check_state(program: Program, eqns: list[Any], captures: list[int], outputs: Any) -> None:
    """Backward passes compute a stage again: it must then find the state that it had."""
    written = {id(v) for v in program.traced.writes}
    behind: dict[Any, Any] = {}
    for i in captures:
        source = program.traced.captures[i]
        # Sums over the batch (metrics), and keys, are told from other state by who runs the stage.
        if id(source) in written and not restarts(source):
            behind[program.captured[i]] = source
    for eqn in eqns:
        sources = {n: behind[v] for n, v in enumerate(eqn.invars) if _is_in(v, behind)}
        if sources:
            for v, numbers in zip(eqn.outvars, reads_of_outputs(eqn), strict=True):
                source = next((sources[n] for n in sorted(numbers) if n in sources), None)
                if source is not None:
                    behind[v] = source
    for v in variables(outputs):
        if v in behind:
            raise InvalidValueError(
                f"Pipeline: a layer computes with the variable {behind[v].name}, which it also writes in every step. "
                "Stages compute their forward passes twice and would find another value; such a layer cannot be "
                "in a pipeline."
            )


def restarts(variable: Any) -> bool:
    """Whether a variable is a sum over the batch, or the state of a stream of keys."""
    return is_sum(variable) or is_stream(variable)


def is_sum(variable: Any) -> bool:
    """Whether replicas' values of a variable are added, as are those of metrics."""
    return getattr(getattr(variable, "aggregation", None), "name", "") == "SUM"


def is_stream(variable: Any) -> bool:
    """Whether a variable is the state of a stream of keys."""
    return str(variable._name).rpartition("/")[2] == STATE_NAME
