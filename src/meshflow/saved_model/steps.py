"""Functions as steps: calls of the host, and programs between them; and as programs for each rank of their arguments."""

from __future__ import annotations

import dataclasses
from typing import Any

from meshflow.core.tracing.trace import Slot, Traced
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.saved_model.programs import Program, known_sizes

__all__ = ["ByRank", "HostStep", "Plan", "ProgramStep", "Recorded"]


@dataclasses.dataclass
class HostStep:
    """A call of the host.

    Attributes:
      name: of the function in `HOST_CALLS`.
      first: its first argument, with `Value`s, arrays, tables.
      more: its other arguments by name.
      result: the value that it gives.
      spec: its spec.
    """

    name: str
    first: Any
    more: dict[str, Any]
    result: int
    spec: TensorSpec


@dataclasses.dataclass
class ProgramStep:
    """A part of the program.

    Attributes:
      traced: what it does.
      inputs: the values that it takes before what it captures.
      outputs: the values that its results are.
    """

    traced: Traced
    inputs: list[int]
    outputs: list[int]


@dataclasses.dataclass
class Recorded:
    """A function as steps.

    Attributes:
      steps: in their order.
      results: the values that it returns.
      structure: the nested result with `Slot`s.
      specs: specs of the results.
    """

    steps: list[HostStep | ProgramStep]
    results: list[int]
    structure: Any
    specs: list[TensorSpec]


@dataclasses.dataclass
class Plan:
    """A function as calls of the host and programs, as TensorFlow's writer takes it.

    Attributes:
      name: of the function.
      arguments: (args, kwargs) with `TensorSpec`s for tensors.
      recorded: what it does.
      parts: `HostStep`s, and pairs of a `ProgramStep` and its `Program`.
    """

    name: str
    arguments: Any
    recorded: Recorded
    parts: list[HostStep | tuple[ProgramStep, Program]]

    @property
    def specs(self) -> list[TensorSpec]:
        """Specs of the arguments that are tensors, in TensorFlow's order."""
        return [s for s in nest.flatten(self.arguments) if isinstance(s, TensorSpec)]

    @property
    def returned(self) -> Any:
        """The nested result with `TensorSpec`s for tensors."""
        specs = self.recorded.specs

        def spec(leaf: Any) -> Any:
            if not isinstance(leaf, Slot):
                return leaf
            return TensorSpec(known_sizes(specs[leaf.index].shape), specs[leaf.index].dtype)

        return nest.map_structure(spec, self.recorded.structure)

    def why_not(self) -> str | None:
        """What of it TensorFlow cannot run, or None."""
        programs = [part[1] for part in self.parts if not isinstance(part, HostStep)]
        return next(filter(None, (p.why_not() for p in programs)), None)


@dataclasses.dataclass
class ByRank:
    """A function that takes tensors of unknown rank, as programs for each rank.

    Attributes:
      name: of the function.
      arguments: (args, kwargs) with `TensorSpec`s for tensors.
      programs: what it does, by rank.
    """

    name: str
    arguments: Any
    programs: dict[int, Program | Plan]

    @property
    def specs(self) -> list[TensorSpec]:
        """Specs of the arguments that are tensors, in TensorFlow's order."""
        return [s for s in nest.flatten(self.arguments) if isinstance(s, TensorSpec)]

    @property
    def returned(self) -> Any:
        """The nested result with `TensorSpec`s of unknown shape for tensors."""
        first = next(iter(self.programs.values()))
        return nest.map_structure(lambda s: TensorSpec(None, s.dtype), first.returned)

    def why_not(self) -> str | None:
        """What of it TensorFlow cannot run, or None."""
        return next(filter(None, (p.why_not() for p in self.programs.values())), None)
