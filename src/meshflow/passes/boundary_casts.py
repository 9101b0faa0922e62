"""In which precision values cross the boundary of an equation with programs inside.

A value enters a loop, a branch or a function with its own derivative in the precision it is used
in there, so that its cast happens outside, once; a result leaves in the precision it was made in.
"""

from __future__ import annotations

from typing import Any

from meshflow.environment.jax_internals import jex_core
from meshflow.passes.precision_propagation import Path, Precisions, is_float32
from meshflow.passes.sub_jaxprs import INLINED, Region, regions_of

__all__ = ["BoundaryCasts"]


class BoundaryCasts:
    """The boundaries of a program in mixed precision.

    Args:
      precisions: its precisions.
    """

    def __init__(self, precisions: Precisions) -> None:
        self._precisions = precisions
        self._uses: dict[Path, dict[Any, set[bool]]] = {}

    def operands(
        self, eqn: Any, regions: list[Region], where: Path, given: list[bool]
    ) -> list[bool]:
        """Which operands enter in low precision.

        Args:
          eqn: the equation.
          regions: the programs inside it.
          where: its path.
          given: which operands exist in low precision already.
        """
        wanted: list[set[bool]] = [set() for _ in eqn.invars]
        for region in regions:
            uses = self._uses_of(region.jaxpr, (*where, region.key))
            for var, (operand, pinned) in zip(region.jaxpr.invars, region.feeds, strict=True):
                wanted[operand] |= {False} if pinned else uses.get(var, set())
        return [
            is_float32(v) and (w == {True} or (g and w != {False}))
            for v, w, g in zip(eqn.invars, wanted, given, strict=True)
        ]

    def results(
        self, eqn: Any, regions: list[Region], where: Path, operands: list[bool]
    ) -> list[bool]:
        """Which results leave in low precision: those that every inner program makes so.

        Args:
          eqn: the equation.
          regions: the programs inside it.
          where: its path.
          operands: which operands enter in low precision.
        """
        flags = [is_float32(v) for v in eqn.outvars]
        for region in regions:
            entering = [not pinned and operands[i] for i, pinned in region.feeds]
            made = self._made_low(region.jaxpr, (*where, region.key), entering)
            for (result, pinned), low in zip(region.results, made, strict=True):
                if result is not None:
                    flags[result] = flags[result] and low and not pinned
        return flags

    def _uses_of(self, jaxpr: Any, path: Path) -> dict[Any, set[bool]]:
        """In which precisions each variable of a jaxpr is read."""
        known = self._uses.get(path)
        if known is not None:
            return known
        uses: dict[Any, set[bool]] = {}

        def add(atom: Any, precisions: set[bool]) -> None:
            if not isinstance(atom, jex_core.Literal) and is_float32(atom):
                uses.setdefault(atom, set()).update(precisions)

        for i, eqn in enumerate(jaxpr.eqns):
            where = (*path, i)
            if where not in self._precisions.regions:
                for atom in eqn.invars:
                    add(atom, {where in self._precisions.low_precision})
                continue
            for region in regions_of(eqn):
                inner = self._uses_of(region.jaxpr, (*where, region.key))
                for var, (operand, pinned) in zip(region.jaxpr.invars, region.feeds, strict=True):
                    add(eqn.invars[operand], {False} if pinned else inner.get(var, set()))
        self._uses[path] = uses
        return uses

    def _made_low(self, jaxpr: Any, path: Path, entering: list[bool]) -> list[bool]:
        """Which outputs of a jaxpr are made in low precision."""
        env = dict.fromkeys(jaxpr.constvars, False) | dict(zip(jaxpr.invars, entering, strict=True))

        def read(atom: Any) -> bool:
            return not isinstance(atom, jex_core.Literal) and env[atom]

        for i, eqn in enumerate(jaxpr.eqns):
            where = (*path, i)
            if where in self._precisions.regions:
                regions = regions_of(eqn)
                flags = [read(v) for v in eqn.invars]
                if eqn.primitive.name in INLINED:
                    body = regions[0]
                    made = self._made_low(body.jaxpr, (*where, body.key), flags)
                else:
                    flags = self.operands(eqn, regions, where, flags)
                    made = self.results(eqn, regions, where, flags)
            else:
                low_precision = where in self._precisions.low_precision
                made = [low_precision and is_float32(v) for v in eqn.outvars]
            env.update(zip(eqn.outvars, made, strict=True))
        return [read(v) for v in jaxpr.outvars]
