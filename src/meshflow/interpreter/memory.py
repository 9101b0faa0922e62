"""Choice of the arrays that results overwrite, and of the time at which arrays are released."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshflow.interpreter.symbolic_sizes import SymbolicShape
from meshflow.interpreter.table import Rule


class ValueType(NamedTuple):
    """Shape and dtype of a value; sizes may be symbols."""

    shape: SymbolicShape
    dtype: np.dtype


class SlotEquation(NamedTuple):
    """An equation with the slots of its operands and results.

    Attributes:
      name: Name of the primitive or called function.
      rule: Its rule.
      params: Its parameters.
      inputs: Slots of the operands.
      outputs: Slots of the results.
      is_static: Whether its function is the same for all values of the symbolic sizes.
      is_multiple: Whether its function returns a list.
      symbolic_params: The parameters with symbolic sizes, with symbols in place of these.
    """

    name: str
    rule: Rule
    params: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    is_static: bool
    is_multiple: bool
    symbolic_params: dict[str, Any]


class MemoryPlan(NamedTuple):
    """The arrays of a program.

    Attributes:
      targets: For each node, the slots of the arrays that its results overwrite; None if it makes
        new arrays.
      released: For each node, the slots that are not needed afterwards.
      is_copied: For each result of the program, whether it may share memory with other values.
    """

    targets: list[tuple[int, ...] | None]
    released: list[list[int]]
    is_copied: list[bool]


class _MemoryPlanner:
    """Planner of the memory of a program.

    Values that may share memory form a group, named by the slot of its first value. A group may be
    overwritten or released after the last use of all its values.
    """

    def __init__(self, nodes: Sequence[SlotEquation], values: Sequence[ValueType]) -> None:
        self.nodes, self.values = nodes, values
        self.group = list(range(len(values)))
        self.last_use: dict[int, int] = {}
        # The slot of the array that a value overwrites.
        self.overwritten: dict[int, int] = {}
        # Groups that no value may overwrite.
        self.fixed: set[int] = set()

    def form_groups(
        self,
        inputs: Sequence[int],
        constants: Iterable[int],
        outputs: Sequence[int],
        donated: Collection[int],
    ) -> None:
        group = self.group
        for i, node in enumerate(self.nodes):
            if node.rule.is_view and node.inputs:
                for o in node.outputs:
                    group[o] = group[node.inputs[0]]
            elif node.rule.is_view or not node.rule.is_pure:
                self.fixed.update(node.outputs)
            for s in (*node.inputs, *node.outputs):
                self.last_use[group[s]] = i
        for s in outputs:
            self.last_use[group[s]] = len(self.nodes)
        self.fixed.update(constants)
        self.fixed.update(s for i, s in enumerate(inputs) if i not in donated)

    def plan(self, results: frozenset[int]) -> tuple[list[tuple[int, ...] | None], list[list[int]]]:
        dying: list[list[int]] = [[] for _ in self.nodes]
        for g, i in self.last_use.items():
            if g not in self.fixed and i < len(self.nodes):
                dying[i].append(g)
        # Arrays that were freed and not yet overwritten, by type.
        free: dict[ValueType, list[int]] = {}
        taken: set[int] = set()
        targets: list[tuple[int, ...] | None] = []
        for node, dead in zip(self.nodes, dying, strict=True):
            is_planned = node.rule.is_writer and not results.issuperset(node.outputs)
            found = self._find_targets(node, dead, free) if is_planned else None
            targets.append(found)
            if found is not None:
                taken.update(found)
                self.overwritten.update(zip(node.outputs, found, strict=True))
            for g in dead:
                if g not in taken:
                    free.setdefault(self.values[g], []).append(g)
        members: dict[int, list[int]] = {}
        for s, g in enumerate(self.group):
            members.setdefault(g, []).append(s)
        released: list[list[int]] = [[] for _ in self.nodes]
        for i, dead in enumerate(dying):
            for g in dead:
                if g in taken:
                    continue
                released[i] += members[g]
                while g in self.overwritten:
                    g = self.overwritten[g]
                    released[i] += members[g]
        return targets, released

    def _find_targets(
        self, node: SlotEquation, dead: list[int], free: dict[ValueType, list[int]]
    ) -> tuple[int, ...] | None:
        """Return arrays for all results: of operands that are not used later, or free ones."""
        found: list[int] = []
        for o in node.outputs:
            value = self.values[o]
            if not value.shape:
                return None  # Scalars may be no arrays.
            candidates = [
                g
                for g in node.inputs
                if node.rule.is_elementwise
                and g in dead
                and self.values[g] == value
                and g not in found
            ]
            candidates = candidates or [g for g in free.get(value, [])[::-1] if g not in found]
            if not candidates:
                return None
            found.append(candidates[0])
        for o, target in zip(node.outputs, found, strict=True):
            slots = free.get(self.values[o], [])
            if target in slots:
                slots.remove(target)
        return tuple(found)


def plan_memory(
    nodes: Sequence[SlotEquation],
    values: Sequence[ValueType],
    inputs: Sequence[int],
    constants: Iterable[int],
    outputs: Sequence[int],
    donated: Collection[int] = (),
    allocates_results: bool = False,
) -> MemoryPlan:
    """Plan the arrays of a program.

    Args:
      nodes: Its equations in order.
      values: Types of the values by slot.
      inputs: Slots of the inputs.
      constants: Slots of the constants.
      outputs: Slots of the results.
      donated: Indices of the inputs that may be overwritten.
      allocates_results: Whether results of the program get new arrays, if a node makes no other values.
    """
    planner = _MemoryPlanner(nodes, values)
    planner.form_groups(inputs, constants, outputs, donated)
    targets, released = planner.plan(frozenset(outputs if allocates_results else ()))
    is_copied, seen = [], set()
    for s in outputs:
        group = planner.group[s]
        # A view may be a small part of its array.
        is_copied.append(group != s or group in planner.fixed or group in seen)
        seen.add(group)
    return MemoryPlan(targets, released, is_copied)
