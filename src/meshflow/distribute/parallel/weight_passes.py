"""A stage's backward pass in two: what other stages wait for, and the products of weights' gradients, which nobody does.

The program of both is cut: the products that lead to gradients of weights and to nothing else are done later, out of
what the first part keeps for them, such as a layer's inputs and the gradients of its outputs. Nothing is computed twice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from meshflow.distribute.parallel.cutting import FORMS, is_light, size_of
from meshflow.environment.jax_internals import jex_core
from meshflow.passes.jaxprs import makers, part, users, variables, without_calls

__all__ = ["Halves", "halved"]

_PRODUCTS = ("dot_general", "conv_general_dilated")


@dataclasses.dataclass(frozen=True)
class Halves:
    """A program in two parts.

    Attributes:
      first: from all operands to [the results that are waited for, the early ones of the others, what is kept].
      second: from [the operands that are at hand later, what is kept] to the late results.
      early: numbers of the other results that the first part gives, as they need no product of their own.
      late: numbers of those that the second part gives.
      at_hand: numbers of the operands that the second part takes.
      kept: shapes and dtypes of what is kept.
    """

    first: jex_core.ClosedJaxpr
    second: jex_core.ClosedJaxpr
    early: tuple[int, ...]
    late: tuple[int, ...]
    at_hand: tuple[int, ...]
    kept: tuple[jax.ShapeDtypeStruct, ...]

    def run_first(self, operands: Sequence[Any]) -> tuple[list[Any], dict[int, Any], list[Any]]:
        """The results that are waited for, early ones by number, and what is kept."""
        outputs = jex_core.jaxpr_as_fun(self.first)(*operands)
        end = len(outputs) - len(self.kept)
        begin = end - len(self.early)
        return (
            outputs[:begin],
            dict(zip(self.early, outputs[begin:end], strict=True)),
            outputs[end:],
        )

    def run_second(self, operands: Sequence[Any], kept: Sequence[Any]) -> dict[int, Any]:
        """The late results by number."""
        at_hand = [operands[i] for i in self.at_hand]
        outputs = jex_core.jaxpr_as_fun(self.second)(*at_hand, *kept)
        return dict(zip(self.late, outputs, strict=True))


def halved(
    function: Callable[..., Sequence[Any]],
    operands: Sequence[Any],
    stays: Sequence[bool],
    count: int,
) -> Halves:
    """A function in two parts.

    Args:
      function: of the operands; gives a flat list.
      operands: arrays, or their shapes and dtypes.
      stays: for each operand whether it is at hand when the second part runs.
      count: how many of its results are waited for; the others are weights' gradients.
    """
    closed = without_calls(jax.make_jaxpr(function)(*operands))
    return _Cut(closed, stays, count).halves()


class _Cut:
    """A program with what is known of its equations."""

    def __init__(self, closed: jex_core.ClosedJaxpr, stays: Sequence[bool], count: int) -> None:
        self.closed, self.jaxpr, self.count = closed, closed.jaxpr, count
        self.eqns = list(self.jaxpr.eqns)
        self.maker = makers(self.eqns)
        self.place = {id(eqn): n for n, eqn in enumerate(self.eqns)}
        inputs = zip(self.jaxpr.invars, stays, strict=True)
        self.there = {*self.jaxpr.constvars, *(v for v, stay in inputs if stay)}
        for eqn in self.eqns:
            # What follows from them alone and costs nothing is computed where it is read.
            if is_light(eqn) and all(v in self.there for v in variables(eqn.invars)):
                self.there.update(eqn.outvars)

    def halves(self) -> Halves:
        waited, others = self.jaxpr.outvars[: self.count], self.jaxpr.outvars[self.count :]
        later = self._later(self._behind(waited))
        # Small gradients, of biases and scales, wait with what the products need, and all are added at once.
        small = sum(size_of(v.aval) for v in others) / 16
        products = [i for i, v in enumerate(others) if self._is_late(v, later)]
        waiting = [
            i
            for i, v in enumerate(others)
            if i not in products and self._is_made(v) and size_of(v.aval) <= small
        ]
        late = sorted([*products, *waiting])
        early = [i for i in range(len(others)) if i not in late]
        wanted = [others[i] for i in late]
        second, frontier = self._gathered([others[i] for i in products], later)
        read = dict.fromkeys([*frontier, *(others[i] for i in waiting)])
        kept = [v for v in read if v not in self.there]
        # What follows from operands that are still there is computed again.
        again = self._behind([v for v in read if v in self.there])
        at_hand = [
            i
            for i, v in enumerate(self.jaxpr.invars)
            if v in self.there and self._is_read(v, [*again, *second], wanted)
        ]
        first_out = [*waited, *(others[i] for i in early), *kept]
        return Halves(
            self._program(self.jaxpr.invars, first_out, self._behind(first_out)),
            self._program(
                [*(self.jaxpr.invars[i] for i in at_hand), *kept], wanted, {*again, *second}
            ),
            tuple(early),
            tuple(late),
            tuple(at_hand),
            tuple(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in kept),
        )

    def _is_made(self, atom: Any) -> bool:
        return not isinstance(atom, jex_core.Literal) and atom in self.maker

    def _is_read(self, v: Any, numbers: Sequence[int], outputs: Sequence[Any]) -> bool:
        read = [a for n in numbers for a in variables(self.eqns[n].invars)]
        return any(a is v for a in (*read, *outputs))

    def _behind(self, atoms: Sequence[Any]) -> set[int]:
        """The equations that values follow from."""
        found: set[int] = set()
        waiting = variables(atoms)
        while waiting:
            eqn = self.maker.get(waiting.pop())
            if eqn is not None and self.place[id(eqn)] not in found:
                found.add(self.place[id(eqn)])
                waiting += variables(eqn.invars)
        return found

    def _later(self, waited: set[int]) -> set[int]:
        """Products that only gradients of weights follow from, and what is done to their results."""
        read_by = users(self.jaxpr, self.eqns)
        end = len(self.eqns)
        found: set[int] = set()
        below: set[int] = set()
        for n in reversed(range(end)):
            eqn = self.eqns[n]
            readers = {r for v in eqn.outvars for r in read_by.get(v, ())}
            if n in waited or not readers or not all(r == end or r in found for r in readers):
                continue
            if readers & below:
                continue
            if eqn.primitive.name in _PRODUCTS:
                found.add(n)
                below.add(n)
            elif is_light(eqn) or eqn.primitive.name == "add_any":
                found.add(n)
        return found

    def _is_late(self, output: Any, later: set[int]) -> bool:
        """Whether a gradient is made by products alone, so that little else would have to be kept for it."""
        if not self._is_made(output):
            return False
        numbers, _ = self._gathered([output], later)
        names = {self.eqns[n].primitive.name for n in numbers}
        into_others = {
            v
            for n in numbers
            if self.eqns[n].primitive.name not in _PRODUCTS
            for v in variables(self.eqns[n].invars)
        }
        made = {v for n in numbers for v in self.eqns[n].outvars}
        forms = self._forms_into_products(numbers)
        outside = [v for v in into_others - made - forms if v not in self.there]
        return bool(names & {*_PRODUCTS}) and all(math.prod(v.aval.shape) == 1 for v in outside)

    def _forms_into_products(self, numbers: set[int]) -> set[Any]:
        """What is read by other forms of products' operands, as `_gathered` takes them along."""
        found: set[Any] = set()
        for n in sorted(numbers, reverse=True):
            eqn = self.eqns[n]
            product = eqn.primitive.name in _PRODUCTS
            if product or any(v in found for v in eqn.outvars):
                found.update(variables(eqn.invars))
        return found

    def _gathered(self, outputs: Sequence[Any], later: set[int]) -> tuple[set[int], list[Any]]:
        """The later equations that results need, and the values that these read from elsewhere."""
        found: set[int] = set()
        frontier: dict[Any, None] = {}
        waiting = list(outputs)
        while waiting:
            v = waiting.pop()
            eqn = self.maker.get(v)
            if eqn is None or v in self.there:
                frontier[v] = None
                continue
            n = self.place[id(eqn)]
            if n in found:
                continue
            if n in later or self._is_form(eqn):
                found.add(n)
                waiting += variables(eqn.invars)
            else:
                frontier[v] = None
        return found, list(frontier)

    def _is_form(self, eqn: Any) -> bool:
        """Whether what an equation reads is kept in place of what it makes: other forms may have the same source."""
        if eqn.primitive.name not in FORMS:
            return False
        (source,) = eqn.invars[:1]
        return isinstance(source, jex_core.Literal) or size_of(source.aval) <= size_of(
            eqn.outvars[0].aval
        )

    def _program(
        self, inputs: Sequence[Any], outputs: Sequence[Any], numbers: set[int]
    ) -> jex_core.ClosedJaxpr:
        eqns = [self.eqns[n] for n in sorted(numbers)]
        return part(self.closed, inputs, outputs, eqns)
