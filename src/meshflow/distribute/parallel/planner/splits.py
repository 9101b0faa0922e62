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

from meshflow.distribute.parallel.stage_programs import (
    count_bytes,
    estimate_operations,
    is_cheap,
)
from meshflow.environment.inner_jaxprs import find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.jax_internals import count_scan_operands, jex_core
from meshflow.environment.types import Atom, Jaxpr, Var

_SHAPE_ONLY = ("transpose", "reshape", "broadcast_in_dim", "squeeze", "expand_dims")


@dataclasses.dataclass
class PropagatedSplits:
    """Result of the propagation.

    Attributes:
      axes: Split axis of each value that has one.
      divided: Multiplications and additions of products that are split over the devices.
      forward: (value, bytes) of the sums over devices in the forward pass, in order.
      backward: (value, bytes) of the sums for gradients of the inputs of these products, if the
        gradients of several projections of one input to heads are added first.
      each: The same if they are not added first.
      unsplit_inputs: Values that enter split products without being split.
      producers: For each result of elementwise operations the results of other operations that it is computed from.
    """

    axes: dict[Any, int]
    divided: float = 0.0
    forward: list[tuple[Any, int]] = dataclasses.field(default_factory=list)
    backward: list[tuple[Any, int]] = dataclasses.field(default_factory=list)
    each: list[tuple[Any, int]] = dataclasses.field(default_factory=list)
    unsplit_inputs: set[Any] = dataclasses.field(default_factory=set)
    producers: dict[Any, set[Any]] = dataclasses.field(default_factory=dict)

    def add_producers(self, eqn: Any) -> None:
        """Record which results of other operations an elementwise operation uses.

        Args:
          eqn: The operation.
        """
        for out in eqn.outvars:
            shape = getattr(out.aval, "shape", None)
            if eqn.primitive.name == "broadcast_in_dim":
                # The gradient of a bias is a sum, of which each device needs only its part.
                self.producers[out] = set()
            for v in eqn.invars:
                if not isinstance(v, jex_core.Literal) and v.aval.shape == shape:
                    self.producers.setdefault(out, set()).update(self.producers.get(v, {v}))


def propagate_splits(
    jaxpr: Jaxpr,
    axes: Mapping[Var, int],
    from_trained: set[Var] | None = None,
    times: int = 1,
) -> PropagatedSplits:
    """Propagate split axes through a program.

    Args:
      jaxpr: The program.
      axes: Split axes of its inputs.
      from_trained: Inputs that have gradients; values that depend on them are added to the set.
      times: Number of executions of the program.

    Returns:
      The split axes of all values, and the sums over devices.
    """
    splits = PropagatedSplits(dict(axes))
    has_gradient: set[Any] = set() if from_trained is None else from_trained
    for eqn in jaxpr.eqns:
        inputs = [v for v in eqn.invars if not isinstance(v, jex_core.Literal)]
        if any(v in has_gradient for v in inputs):
            has_gradient.update(eqn.outvars)
        if is_cheap(eqn):
            splits.add_producers(eqn)
        if any(v in splits.axes for v in inputs):
            _EquationPropagation(eqn, splits, has_gradient, times).propagate()
    return splits


class _EquationPropagation:
    """Propagation through one equation with a split operand."""

    def __init__(self, eqn: Any, found: PropagatedSplits, known: set[Any], times: int) -> None:
        self.eqn, self.splits, self.has_gradient, self.times = eqn, found, known, times

    def get_axis(self, atom: Atom) -> int | None:
        return None if isinstance(atom, jex_core.Literal) else self.splits.axes.get(atom)

    def propagate(self) -> None:
        name = self.eqn.primitive.name
        if name == "dot_general":
            return self._propagate_product()
        if name in _SHAPE_ONLY:
            return self._propagate_shape_change(name)
        if name == "unstack":
            return self._unstacked()
        if name.startswith(("reduce_", "arg")) and "axes" in self.eqn.params:
            return self._propagate_reduction()
        inner = list(find_inner_jaxprs(self.eqn))
        if inner and name not in ("while", "cond"):
            return self._propagate_inner(to_open_jaxpr(inner[0]), name)
        return self._propagate_elementwise()

    def _set_axis(self, axis: int | None, out: Var | None = None) -> None:
        if axis is not None:
            self.splits.axes[self.eqn.outvars[0] if out is None else out] = axis

    def _record_sums(self) -> None:
        """Record a sum, because every device has only a term of the results."""
        for v in self.eqn.outvars:
            self.splits.forward.append((v, self.times * count_bytes(v.aval)))

    def _record_input_gradient(self, operand: Atom, kernel_rank: int) -> None:
        """Record a sum of an operand's gradient, of which every device has only a term."""
        if isinstance(operand, jex_core.Literal) or operand not in self.has_gradient:
            return
        size = self.times * count_bytes(operand.aval)
        owed = self.eqn.outvars[0], size
        self.splits.each.append(owed)
        # Only the gradients by projections to heads are added first; XLA sums those by other products separately.
        if operand not in self.splits.unsplit_inputs or kernel_rank == 2:
            self.splits.unsplit_inputs.add(operand)
            self.splits.backward.append(owed)

    def _record_gathered_gradients(self, operand: Atom) -> None:
        """Record the gathers of an unsplit operand's gradient, which a split kernel splits.

        XLA gathers it where it meets another operation than an elementwise one. A gather sends half of the bytes of a sum.
        """
        if isinstance(operand, jex_core.Literal):
            return
        for v in self.splits.producers.get(operand, {operand}):
            if v in self.has_gradient:
                gathered = self.eqn.outvars[0], self.times * count_bytes(v.aval) // 2
                self.splits.backward.append(gathered)
                self.splits.each.append(gathered)

    def _propagate_product(self) -> None:
        left, right = self.eqn.invars[:2]
        (lc, rc), (lb, rb) = self.eqn.params["dimension_numbers"]
        a, b = self.get_axis(left), self.get_axis(right)
        self.splits.divided += self.times * estimate_operations(self.eqn)
        if a in lc or b in rc:
            if a is None:
                self._record_gathered_gradients(left)
            return self._record_sums()
        if a in lb or b in rb:
            return self._set_axis(lb.index(a) if a in lb else rb.index(b))
        if a is not None:
            free = [i for i in range(left.aval.ndim) if i not in (*lc, *lb)]
            self._record_input_gradient(right, left.aval.ndim)
            return self._set_axis(len(lb) + free.index(a))
        free = [i for i in range(right.aval.ndim) if i not in (*rc, *rb)]
        self._record_input_gradient(left, right.aval.ndim)
        assert b is not None
        return self._set_axis(
            len(lb) + left.aval.ndim - len(lc) - len(lb) + free.index(b),
        )

    def _propagate_shape_change(self, name: str) -> None:
        operand, out = self.eqn.invars[0], self.eqn.outvars[0]
        axis, params = self.get_axis(operand), self.eqn.params
        if axis is None:
            return
        if name == "transpose":
            return self._set_axis(params["permutation"].index(axis))
        if name == "broadcast_in_dim":
            at = params["broadcast_dimensions"][axis]
            return self._set_axis(at if out.aval.shape[at] == operand.aval.shape[axis] else None)
        # The split axis becomes the axis with the same number of elements before it; of merged axes
        # it is the first.
        before, size = math.prod(operand.aval.shape[:axis]), operand.aval.shape[axis]
        for at, length in enumerate(out.aval.shape):
            if math.prod(out.aval.shape[:at]) == before and length > 1:
                if length % size == 0 or size % length == 0:
                    self._set_axis(at)
                return

    def _unstacked(self) -> None:
        axis, removed = self.get_axis(self.eqn.invars[0]), self.eqn.params["axis"]
        if axis is not None and axis != removed:
            for out in self.eqn.outvars:
                self._set_axis(axis - (axis > removed), out)

    def _propagate_reduction(self) -> None:
        operand = self.eqn.invars[0]
        axis = self.get_axis(operand)
        if axis is None:
            return
        axes = self.eqn.params["axes"]
        if axis in axes:
            return self._record_sums()
        return self._set_axis(axis - sum(i < axis for i in axes))

    def _propagate_inner(self, jaxpr: Jaxpr, name: str) -> None:
        operands = self.eqn.invars[len(self.eqn.invars) - len(jaxpr.invars) :]
        times, lead, carried = self.times, 0, 0
        axes: dict[Any, int] = {}
        if name == "scan":
            times *= self.eqn.params["length"]
            consts, carried = count_scan_operands(self.eqn.params)
            lead = consts + carried
        for i, (v, operand) in enumerate(zip(jaxpr.invars, operands, strict=True)):
            axis = self.get_axis(operand)
            if axis is not None and (name != "scan" or i < lead or axis > 0):
                axes[v] = axis - (1 if name == "scan" and i >= lead else 0)
        has_gradient = {
            v
            for v, operand in zip(jaxpr.invars, operands, strict=True)
            if not isinstance(operand, jex_core.Literal) and operand in self.has_gradient
        }
        inner = propagate_splits(jaxpr, axes, has_gradient, times)
        self.splits.divided += inner.divided
        for direction in ("forward", "backward", "each"):
            sums = [(self.eqn.outvars[0], size) for _, size in getattr(inner, direction)]
            getattr(self.splits, direction).extend(sums)
        for i, (out, result) in enumerate(zip(self.eqn.outvars, jaxpr.outvars, strict=False)):
            axis = None if isinstance(result, jex_core.Literal) else inner.axes.get(result)
            if axis is not None:
                self._set_axis(axis + (1 if name == "scan" and i >= carried else 0), out)

    def _propagate_elementwise(self) -> None:
        """Split results with the shape of a split operand; a lookup in a split table is a sum."""
        if self.eqn.primitive.name in ("gather", "take"):
            return self._record_sums()
        for out in self.eqn.outvars:
            for operand in self.eqn.invars:
                axis, shape = self.get_axis(operand), getattr(out.aval, "shape", ())
                if axis is None:
                    continue
                if len(shape) == operand.aval.ndim and shape[axis] == operand.aval.shape[axis]:
                    self.splits.axes[out] = axis
                    break
