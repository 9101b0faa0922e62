"""Separation of a stage's passes into two programs, the second of which runs later.

`split_at_gradients` separates the forward pass from the backward pass, which then reads residuals
instead of computing the stage again.

`split_backward` separates an input pass from a weight pass (zero bubble). The first part computes the gradients of the stage's inputs, which other stages wait for. The second
part computes products that contribute only to gradients of weights, from values (*residuals*) that
the first part keeps, such as a layer's inputs and the gradients of its outputs. No product is
computed twice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from meshflow.distribute.parallel.stage_programs import (
    FORM_PRIMITIVES,
    count_bytes,
    is_cheap,
    to_shape_struct,
)
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Atom, ClosedJaxpr, JaxprEqn, Var
from meshflow.passes.jaxprs import (
    extract_program,
    inline_calls,
    map_consumers,
    map_producers,
    select_variables,
)

_PRODUCT_PRIMITIVES = ("dot_general", "conv_general_dilated")
# Gradients are small if each has at most this fraction of all gradients' bytes. The value is a choice, not a measurement.
_SMALL_GRADIENT_DIVISOR = 16


@dataclasses.dataclass(frozen=True)
class SplitBackward:
    """A backward pass as two programs.

    Attributes:
      first: Program from all operands to [required results, early gradients, residuals].
      second: Program from [operands that are still available, residuals] to the late gradients.
      early: Indices of the gradients that the first part computes, because they need no product of
        their own.
      late: Indices of the gradients that the second part computes.
      available_operands: Indices of the operands that the second part takes.
      residuals: Shapes and dtypes of the residuals.
    """

    first: ClosedJaxpr
    second: ClosedJaxpr
    early: tuple[int, ...]
    late: tuple[int, ...]
    available_operands: tuple[int, ...]
    residuals: tuple[jax.ShapeDtypeStruct, ...]

    def run_first(
        self, operands: Sequence[jax.Array]
    ) -> tuple[list[jax.Array], dict[int, jax.Array], list[jax.Array]]:
        """Return the required results, the early gradients by index, and the residuals."""
        outputs = jex_core.jaxpr_as_fun(self.first)(*operands)
        end = len(outputs) - len(self.residuals)
        start = end - len(self.early)
        return (
            outputs[:start],
            dict(zip(self.early, outputs[start:end], strict=True)),
            outputs[end:],
        )

    def run_second(
        self, operands: Sequence[jax.Array], kept: Sequence[jax.Array]
    ) -> dict[int, jax.Array]:
        """Return the late gradients by index."""
        at_hand = [operands[i] for i in self.available_operands]
        outputs = jex_core.jaxpr_as_fun(self.second)(*at_hand, *kept)
        return dict(zip(self.late, outputs, strict=True))


def split_backward(
    function: Callable[..., Sequence[Any]],
    operands: Sequence[jax.Array | jax.ShapeDtypeStruct],
    available: Sequence[bool],
    count: int,
) -> SplitBackward:
    """Split a backward pass into two programs.

    Args:
      function: Function of the operands that returns a flat list.
      operands: Arrays, or their shapes and dtypes.
      available: For each operand, whether it is still available when the second part runs.
      count: Number of required results at the beginning of the list. The others are gradients of
        weights.

    Returns:
      The two programs.
    """
    closed = inline_calls(jax.make_jaxpr(function)(*operands))
    return _BackwardCutter(closed, available, count).cut()


def split_at_gradients(
    function: Callable[..., Sequence[Any]],
    operands: Sequence[jax.Array | jax.ShapeDtypeStruct],
    available: Sequence[bool],
    late: Sequence[int],
    count: int,
) -> SplitBackward:
    """Split a forward and backward pass where it first reads the gradients of its results.

    Args:
      function: Function of the operands that returns a flat list.
      operands: Arrays, or their shapes and dtypes.
      available: For each operand, whether it is available when the second part runs.
      late: Indices of the operands that are available only then.
      count: Number of results of the forward pass at the beginning of the list.

    Returns:
      The two programs; the second one computes all other results.
    """
    closed = inline_calls(jax.make_jaxpr(function)(*operands))
    return _BackwardCutter(closed, available, count).cut_at(late)


class _BackwardCutter:
    """Analysis of the equations of a backward pass.

    Args:
      closed: The program.
      available: For each operand, whether it is still available when the second part runs.
      count: Number of required results.
    """

    def __init__(self, closed: ClosedJaxpr, available: Sequence[bool], count: int) -> None:
        self.closed, self.jaxpr, self.count = closed, closed.jaxpr, count
        self.eqns = list(self.jaxpr.eqns)
        self.producers = map_producers(self.eqns)
        self.positions = {id(eqn): n for n, eqn in enumerate(self.eqns)}
        inputs = zip(self.jaxpr.invars, available, strict=True)
        self.available = {*self.jaxpr.constvars, *(v for v, is_available in inputs if is_available)}
        for eqn in self.eqns:
            # Cheap values that follow from available operands are recomputed by their consumers. Constraints keep the
            # layouts of these operands, for example of weights that rules split, and send nothing.
            is_free = is_cheap(eqn) or eqn.primitive.name == "sharding_constraint"
            if is_free and all(v in self.available for v in select_variables(eqn.invars)):
                self.available.update(eqn.outvars)

    def cut(self) -> SplitBackward:
        required, gradients = self.jaxpr.outvars[: self.count], self.jaxpr.outvars[self.count :]
        later = self._find_weight_equations(self._find_producers(required))
        # Small gradients, of biases and scales, are kept with the residuals, so that all gradients are added at once.
        small = sum(count_bytes(v.aval) for v in gradients) / _SMALL_GRADIENT_DIVISOR
        products = [i for i, v in enumerate(gradients) if self._is_late(v, later)]
        waiting = [
            i
            for i, v in enumerate(gradients)
            if i not in products and self._is_computed(v) and count_bytes(v.aval) <= small
        ]
        late = sorted([*products, *waiting])
        early = [i for i in range(len(gradients)) if i not in late]
        second, frontier = self._collect_deferred([gradients[i] for i in products], later)
        read = dict.fromkeys([*frontier, *(gradients[i] for i in waiting)])
        return self._make_programs(
            [*required, *(gradients[i] for i in early)], early, late, second, list(read)
        )

    def cut_at(self, late: Sequence[int]) -> SplitBackward:
        """Cut where values first depend on some operands."""
        required, rest = self.jaxpr.outvars[: self.count], self.jaxpr.outvars[self.count :]
        dependent = {self.jaxpr.invars[i] for i in late}
        second: set[int] = set()
        needed = self._find_producers(rest)
        for n, eqn in enumerate(self.eqns):
            if any(v in dependent for v in select_variables(eqn.invars)):
                dependent.update(eqn.outvars)
                second.update({n} & needed)
        inputs = [v for n in sorted(second) for v in select_variables(self.eqns[n].invars)]
        read = {v for v in [*inputs, *select_variables(rest)] if v not in dependent}
        # A value that follows cheaply from others, or from one that is not larger, is recomputed.
        for n in reversed(range(len(self.eqns))):
            eqn = self.eqns[n]
            if not is_cheap(eqn) or not any(v in read - self.available for v in eqn.outvars):
                continue
            sources = {v for v in select_variables(eqn.invars) if v not in self.available}
            size = sum(count_bytes(v.aval) for v in eqn.outvars if v in read)
            is_smaller = len(sources) == 1 and sum(count_bytes(v.aval) for v in sources) <= size
            if sources <= read or is_smaller:
                second.add(n)
                read = (read | set(select_variables(eqn.invars))) - set(eqn.outvars)
        values = [
            *self.jaxpr.constvars,
            *self.jaxpr.invars,
            *(v for e in self.eqns for v in e.outvars),
        ]
        ordered = [v for v in values if v in read]
        return self._make_programs(required, [], list(range(len(rest))), second, ordered)

    def _make_programs(
        self,
        first_outputs: Sequence[Atom],
        early: Sequence[int],
        late: Sequence[int],
        second: set[int],
        read: Sequence[Var],
    ) -> SplitBackward:
        """Build both programs from the equations of the second one, and the values that these read."""
        late_outputs = [self.jaxpr.outvars[self.count + i] for i in late]
        residuals = [v for v in read if v not in self.available]
        # Values that follow from available operands are recomputed.
        recomputed = self._find_producers([v for v in read if v in self.available])
        at_hand = [
            i
            for i, v in enumerate(self.jaxpr.invars)
            if v in self.available and self._is_read(v, [*recomputed, *second], late_outputs)
        ]
        first_out = [*first_outputs, *residuals]
        return SplitBackward(
            self._build_program(self.jaxpr.invars, first_out, self._find_producers(first_out)),
            self._build_program(
                [*(self.jaxpr.invars[i] for i in at_hand), *residuals],
                late_outputs,
                {*recomputed, *second},
            ),
            tuple(early),
            tuple(late),
            tuple(at_hand),
            tuple(map(to_shape_struct, residuals)),
        )

    def _is_computed(self, atom: Atom) -> bool:
        return not isinstance(atom, jex_core.Literal) and atom in self.producers

    def _is_read(self, v: Var, positions: Sequence[int], outputs: Sequence[Atom]) -> bool:
        read = [a for n in positions for a in select_variables(self.eqns[n].invars)]
        return any(a is v for a in (*read, *outputs))

    def _find_producers(self, atoms: Sequence[Atom]) -> set[int]:
        """Return the positions of all equations that values depend on."""
        positions: set[int] = set()
        waiting = select_variables(atoms)
        while waiting:
            eqn = self.producers.get(waiting.pop())
            if eqn is not None and self.positions[id(eqn)] not in positions:
                positions.add(self.positions[id(eqn)])
                waiting += select_variables(eqn.invars)
        return positions

    def _find_weight_equations(self, required: set[int]) -> set[int]:
        """Return products, and cheap operations on them, that only gradients of weights use."""
        consumers_by_var = map_consumers(self.jaxpr, self.eqns)
        end = len(self.eqns)
        deferred: set[int] = set()
        deferred_products: set[int] = set()
        for n in reversed(range(end)):
            eqn = self.eqns[n]
            consumers = {r for v in eqn.outvars for r in consumers_by_var.get(v, ())}
            if (
                n in required
                or not consumers
                or not all(r == end or r in deferred for r in consumers)
            ):
                continue
            if consumers & deferred_products:
                continue
            if eqn.primitive.name in _PRODUCT_PRIMITIVES:
                deferred.add(n)
                deferred_products.add(n)
            elif is_cheap(eqn) or eqn.primitive.name == "add_any":
                deferred.add(n)
        return deferred

    def _is_late(self, output: Atom, later: set[int]) -> bool:
        """Check whether a gradient follows from products, so that few values must be kept."""
        if not self._is_computed(output):
            return False
        positions, _ = self._collect_deferred([output], later)
        primitives = {self.eqns[n].primitive.name for n in positions}
        other_inputs = {
            v
            for n in positions
            if self.eqns[n].primitive.name not in _PRODUCT_PRIMITIVES
            for v in select_variables(self.eqns[n].invars)
        }
        outputs = {v for n in positions for v in self.eqns[n].outvars}
        product_inputs = self._find_product_inputs(positions)
        outside = [v for v in other_inputs - outputs - product_inputs if v not in self.available]
        return bool(primitives & {*_PRODUCT_PRIMITIVES}) and all(
            math.prod(v.aval.shape) == 1 for v in outside
        )

    def _find_product_inputs(self, numbers: set[int]) -> set[Var]:
        """Return the inputs of products, including those that reach them through changes of form."""
        inputs: set[Any] = set()
        for n in sorted(numbers, reverse=True):
            eqn = self.eqns[n]
            is_product = eqn.primitive.name in _PRODUCT_PRIMITIVES
            if is_product or any(v in inputs for v in eqn.outvars):
                inputs.update(select_variables(eqn.invars))
        return inputs

    def _collect_deferred(
        self, outputs: Sequence[Atom], later: set[int]
    ) -> tuple[set[int], list[Var]]:
        """Return the deferred equations that results need, and the values that these read."""
        positions: set[int] = set()
        frontier: dict[Any, None] = {}
        waiting = list(outputs)
        while waiting:
            v = waiting.pop()
            eqn = self.producers.get(v)
            if eqn is None or v in self.available:
                frontier[v] = None
                continue
            n = self.positions[id(eqn)]
            if n in positions:
                continue
            if n in later or self._changes_form(eqn):
                positions.add(n)
                waiting += select_variables(eqn.invars)
            else:
                frontier[v] = None
        return positions, list(frontier)

    def _changes_form(self, eqn: JaxprEqn) -> bool:
        """Check whether to keep an equation's input, which may have other forms, instead."""
        if eqn.primitive.name not in FORM_PRIMITIVES:
            return False
        (source,) = eqn.invars[:1]
        return isinstance(source, jex_core.Literal) or count_bytes(source.aval) <= count_bytes(
            eqn.outvars[0].aval
        )

    def _build_program(
        self, inputs: Sequence[Var], outputs: Sequence[Atom], numbers: set[int]
    ) -> ClosedJaxpr:
        eqns = [self.eqns[n] for n in sorted(numbers)]
        return extract_program(self.closed, inputs, outputs, eqns)
