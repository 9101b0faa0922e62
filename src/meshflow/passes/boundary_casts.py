"""The precision in which values cross the boundary of an equation that contains programs.

A value enters a loop, a branch or a function with a custom derivative in the precision in which the
inner program uses it, so that it is cast outside, once. A result leaves in the precision in which
it was computed.
"""

from __future__ import annotations

from meshflow.environment.types import Atom, Jaxpr, JaxprEqn, Literal
from meshflow.passes.precision_propagation import Path, Precisions, is_float32
from meshflow.passes.sub_jaxprs import INLINED_CALLS, Region, find_regions


class BoundaryCasts:
    """Precisions of operands and results at the boundaries of a mixed-precision program.

    Args:
      precisions: Precisions of the program's equations.
    """

    def __init__(self, precisions: Precisions) -> None:
        self._precisions = precisions
        self._uses: dict[Path, dict[Atom, set[bool]]] = {}

    def find_low_operands(
        self, eqn: JaxprEqn, regions: list[Region], path: Path, available: list[bool]
    ) -> list[bool]:
        """Return for each operand whether it enters in low precision.

        `available` has, for each operand, whether it exists in low precision already.
        """
        requested: list[set[bool]] = [set() for _ in eqn.invars]
        for region in regions:
            uses = self._find_uses(region.jaxpr, (*path, region.key))
            for var, (operand, pinned) in zip(region.jaxpr.invars, region.feeds, strict=True):
                requested[operand] |= {False} if pinned else uses.get(var, set())
        return [
            is_float32(v) and (w == {True} or (g and w != {False}))
            for v, w, g in zip(eqn.invars, requested, available, strict=True)
        ]

    def find_low_results(
        self, eqn: JaxprEqn, regions: list[Region], path: Path, operands: list[bool]
    ) -> list[bool]:
        """Return for each result whether it leaves in low precision: if all programs compute it so.

        `operands` has, for each operand, whether it enters in low precision.
        """
        flags = [is_float32(v) for v in eqn.outvars]
        for region in regions:
            low_inputs = [not pinned and operands[i] for i, pinned in region.feeds]
            low_outputs = self._find_low_outputs(region.jaxpr, (*path, region.key), low_inputs)
            for (result, pinned), low in zip(region.results, low_outputs, strict=True):
                if result is not None:
                    flags[result] = flags[result] and low and not pinned
        return flags

    def _find_uses(self, jaxpr: Jaxpr, path: Path) -> dict[Atom, set[bool]]:
        """Return the precisions in which each variable of a jaxpr is read; True is low precision."""
        known = self._uses.get(path)
        if known is not None:
            return known
        uses: dict[Atom, set[bool]] = {}

        def add(atom: Atom, precisions: set[bool]) -> None:
            if not isinstance(atom, Literal) and is_float32(atom):
                uses.setdefault(atom, set()).update(precisions)

        for i, eqn in enumerate(jaxpr.eqns):
            eqn_path = (*path, i)
            if eqn_path not in self._precisions.regions:
                for atom in eqn.invars:
                    add(atom, {eqn_path in self._precisions.low_precision})
                continue
            for region in find_regions(eqn):
                inner = self._find_uses(region.jaxpr, (*eqn_path, region.key))
                for var, (operand, pinned) in zip(region.jaxpr.invars, region.feeds, strict=True):
                    add(eqn.invars[operand], {False} if pinned else inner.get(var, set()))
        self._uses[path] = uses
        return uses

    def _find_low_outputs(self, jaxpr: Jaxpr, path: Path, low_inputs: list[bool]) -> list[bool]:
        """Return for each output of a jaxpr whether it is computed in low precision."""
        env: dict[Atom, bool] = dict.fromkeys(jaxpr.constvars, False)
        env |= dict(zip(jaxpr.invars, low_inputs, strict=True))

        def read(atom: Atom) -> bool:
            return not isinstance(atom, Literal) and env[atom]

        for i, eqn in enumerate(jaxpr.eqns):
            eqn_path = (*path, i)
            if eqn_path in self._precisions.regions:
                regions = find_regions(eqn)
                flags = [read(v) for v in eqn.invars]
                if eqn.primitive.name in INLINED_CALLS:
                    body = regions[0]
                    low_outputs = self._find_low_outputs(body.jaxpr, (*eqn_path, body.key), flags)
                else:
                    flags = self.find_low_operands(eqn, regions, eqn_path, flags)
                    low_outputs = self.find_low_results(eqn, regions, eqn_path, flags)
            else:
                low_precision = eqn_path in self._precisions.low_precision
                low_outputs = [low_precision and is_float32(v) for v in eqn.outvars]
            env.update(zip(eqn.outvars, low_outputs, strict=True))
        return [read(v) for v in jaxpr.outvars]
