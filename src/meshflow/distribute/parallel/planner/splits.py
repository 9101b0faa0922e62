"""Propagation of split weights through a program: split values, and sums over devices.

A mesh dimension splits at most one axis of a value. The split axes of the weights determine those
of all other values, one product after the other, in the same way as XLA's partitioner propagates
shardings.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from meshflow.distribute.parallel.cutting import size_of, work_of
from meshflow.environment.jax_internals import count_scan_operands, jex_core
from meshflow.environment.types import Atom, Jaxpr, Var
from meshflow.passes.jaxprs import inner_jaxprs, opened

__all__ = ["Splits", "splits_of"]

_SHAPE_ONLY = ("transpose", "reshape", "broadcast_in_dim", "squeeze", "expand_dims")


@dataclasses.dataclass
class Splits:
    """Result of the propagation.

    Attributes:
      axes: Split axis of each value that has one.
      divided: Multiplications and additions of products that are split over the devices.
      forward: (value, bytes) of the sums over devices in the forward pass, in order.
      backward: (value, bytes) of the sums for gradients of the inputs of these products, if the
        gradients of several products of one input are added first.
      each: The same if they are not added first.
      unsplit_inputs: Values that enter split products without being split.
    """

    axes: dict[Any, int]
    divided: float = 0.0
    forward: list[tuple[Any, int]] = dataclasses.field(default_factory=list)
    backward: list[tuple[Any, int]] = dataclasses.field(default_factory=list)
    each: list[tuple[Any, int]] = dataclasses.field(default_factory=list)
    whole: set[Any] = dataclasses.field(default_factory=set)


def splits_of(
    jaxpr: Jaxpr,
    axes: Mapping[Var, int],
    from_trained: set[Var] | None = None,
    times: int = 1,
) -> Splits:
    """Propagate split axes through a program.

    Args:
      jaxpr: The program.
      axes: Split axes of its inputs.
      from_trained: Inputs that have gradients; values that depend on them are added to the set.
      times: Number of executions of the program.

    Returns:
      The split axes of all values, and the sums over devices.
    """
    splits = Splits(dict(axes))
    has_gradient: set[Any] = set() if from_trained is None else from_trained
    for eqn in jaxpr.eqns:
        inputs = [v for v in eqn.invars if not isinstance(v, jex_core.Literal)]
        if any(v in has_gradient for v in inputs):
            has_gradient.update(eqn.outvars)
        if any(v in splits.axes for v in inputs):
            _Step(eqn, splits, has_gradient, times).follow()
    return splits


class _Step:
    """Propagation through one equation with a split operand."""

    def __init__(self, eqn: Any, found: Splits, known: set[Any], times: int) -> None:
        self.eqn, self.found, self.known, self.times = eqn, found, known, times

    def axis(self, atom: Atom) -> int | None:
        return None if isinstance(atom, jex_core.Literal) else self.found.axes.get(atom)

    def follow(self) -> None:
        name = self.eqn.primitive.name
        if name == "dot_general":
            return self._product()
        if name in _SHAPE_ONLY:
            return self._reshaped(name)
        if name == "unstack":
            return self._unstacked()
        if name.startswith(("reduce_", "arg")) and "axes" in self.eqn.params:
            return self._reduced()
        inner = list(inner_jaxprs(self.eqn))
        if inner and name not in ("while", "cond"):
            return self._inside(opened(inner[0]), name)
        return self._elementwise()

    def _put(self, axis: int | None, out: Var | None = None) -> None:
        if axis is not None:
            self.found.axes[self.eqn.outvars[0] if out is None else out] = axis

    def _sum(self) -> None:
        """Record a sum, because every device has only a term of the results."""
        for v in self.eqn.outvars:
            self.found.forward.append((v, self.times * size_of(v.aval)))

    def _owe(self, operand: Atom) -> None:
        """Record a sum of an operand's gradient, of which every device has only a term."""
        if isinstance(operand, jex_core.Literal) or operand not in self.known:
            return
        size = self.times * size_of(operand.aval)
        owed = self.eqn.outvars[0], size
        self.found.each.append(owed)
        if operand not in self.found.whole:
            self.found.whole.add(operand)
            self.found.backward.append(owed)

    def _product(self) -> None:
        left, right = self.eqn.invars[:2]
        (lc, rc), (lb, rb) = self.eqn.params["dimension_numbers"]
        a, b = self.axis(left), self.axis(right)
        self.found.divided += self.times * work_of(self.eqn)
        if a in lc or b in rc:
            return self._sum()
        if a in lb or b in rb:
            return self._put(lb.index(a) if a in lb else rb.index(b))
        if a is not None:
            free = [i for i in range(left.aval.ndim) if i not in (*lc, *lb)]
            self._owe(right)
            return self._put(len(lb) + free.index(a))
        free = [i for i in range(right.aval.ndim) if i not in (*rc, *rb)]
        self._owe(left)
        assert b is not None
        return self._put(
            len(lb) + left.aval.ndim - len(lc) - len(lb) + free.index(b),
        )

    def _reshaped(self, name: str) -> None:
        operand, out = self.eqn.invars[0], self.eqn.outvars[0]
        axis, params = self.axis(operand), self.eqn.params
        if axis is None:
            return
        if name == "transpose":
            return self._put(params["permutation"].index(axis))
        if name == "broadcast_in_dim":
            at = params["broadcast_dimensions"][axis]
            return self._put(at if out.aval.shape[at] == operand.aval.shape[axis] else None)
        # The split axis becomes the axis with the same number of elements before it; of merged axes
        # it is the first.
        before, size = math.prod(operand.aval.shape[:axis]), operand.aval.shape[axis]
        for at, length in enumerate(out.aval.shape):
            if math.prod(out.aval.shape[:at]) == before and length > 1:
                if length % size == 0 or size % length == 0:
                    self._put(at)
                return

    def _unstacked(self) -> None:
        axis, removed = self.axis(self.eqn.invars[0]), self.eqn.params["axis"]
        if axis is not None and axis != removed:
            for out in self.eqn.outvars:
                self._put(axis - (axis > removed), out)

    def _reduced(self) -> None:
        operand = self.eqn.invars[0]
        axis = self.axis(operand)
        if axis is None:
            return
        axes = self.eqn.params["axes"]
        if axis in axes:
            return self._sum()
        return self._put(axis - sum(i < axis for i in axes))

    def _inside(self, jaxpr: Jaxpr, name: str) -> None:
        operands = self.eqn.invars[len(self.eqn.invars) - len(jaxpr.invars) :]
        times, lead, carried = self.times, 0, 0
        axes: dict[Any, int] = {}
        if name == "scan":
            times *= self.eqn.params["length"]
            consts, carried = count_scan_operands(self.eqn.params)
            lead = consts + carried
        for i, (v, operand) in enumerate(zip(jaxpr.invars, operands, strict=True)):
            axis = self.axis(operand)
            if axis is not None and (name != "scan" or i < lead or axis > 0):
                axes[v] = axis - (1 if name == "scan" and i >= lead else 0)
        has_gradient = {
            v
            for v, operand in zip(jaxpr.invars, operands, strict=True)
            if not isinstance(operand, jex_core.Literal) and operand in self.known
        }
        inner = splits_of(jaxpr, axes, has_gradient, times)
        self.found.divided += inner.divided
        for direction in ("forward", "backward", "each"):
            sums = [(self.eqn.outvars[0], size) for _, size in getattr(inner, direction)]
            getattr(self.found, direction).extend(sums)
        for i, (out, result) in enumerate(zip(self.eqn.outvars, jaxpr.outvars, strict=False)):
            axis = None if isinstance(result, jex_core.Literal) else inner.axes.get(result)
            if axis is not None:
                self._put(axis + (1 if name == "scan" and i >= carried else 0), out)

    def _elementwise(self) -> None:
        """Split results with the shape of a split operand; a lookup in a split table is a sum."""
        if self.eqn.primitive.name in ("gather", "take"):
            return self._sum()
        for out in self.eqn.outvars:
            for operand in self.eqn.invars:
                axis, shape = self.axis(operand), getattr(out.aval, "shape", ())
                if axis is None:
                    continue
                if len(shape) == operand.aval.ndim and shape[axis] == operand.aval.shape[axis]:
                    self.found.axes[out] = axis
                    break
