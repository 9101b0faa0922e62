"""Functions to be saved, as plans: sequences of host calls and programs, stages, or programs for each rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

from meshflow.core.tracing.trace import TracedFunction
from meshflow.core.values import nest
from meshflow.core.values.size_guards import SizeScope
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.types import PyTree
from meshflow.saved_model.host_steps.host_calls import PlanValue
from meshflow.saved_model.manifest.composite_values import list_component_specs, replace_slots
from meshflow.saved_model.programs.stablehlo import ExportedProgram, get_static_sizes


@dataclasses.dataclass
class HostStep:
    """Call of a host function.

    Attributes:
      name: Name of the function in `HOST_CALLS`.
      first: First argument, which may contain `PlanValue`s, arrays and tables.
      more: Other arguments by name.
      result: Index of the value that the call computes.
      spec: Spec of this value.
    """

    name: str
    first: PyTree
    more: dict[str, Any]
    result: int
    spec: TensorSpec


@dataclasses.dataclass
class ProgramStep:
    """Part of a function that runs as a program.

    Attributes:
      traced: The traced part.
      inputs: Indices of the values that it takes, before its captures.
      outputs: Indices of the values that it computes.
    """

    traced: TracedFunction
    inputs: list[int]
    outputs: list[int]


@dataclasses.dataclass
class RecordedFunction:
    """Function as a sequence of steps.

    Attributes:
      steps: The steps in their order.
      results: Indices of the values that the function returns.
      structure: Nested result with `TensorSlot`s.
      specs: Specs of the results.
    """

    steps: list[HostStep | ProgramStep]
    results: list[int]
    structure: PyTree
    specs: list[TensorSpec]

    def reorder_arguments(self, order: Sequence[int]) -> RecordedFunction:
        """Return the function with its arguments in another order.

        Args:
          order: Index in this function of each argument.
        """
        new_indices = {index: position for position, index in enumerate(order)}

        def convert(leaf: PyTree) -> PyTree:
            if not isinstance(leaf, PlanValue):
                return leaf
            return PlanValue(new_indices.get(leaf.index, leaf.index))

        def convert_step(step: HostStep | ProgramStep) -> HostStep | ProgramStep:
            if isinstance(step, HostStep):
                first, more = nest.map_structure(convert, (step.first, step.more))
                return dataclasses.replace(step, first=first, more=more)
            inputs = [new_indices.get(n, n) for n in step.inputs]
            return dataclasses.replace(step, inputs=inputs)

        steps = [convert_step(step) for step in self.steps]
        results = [new_indices.get(n, n) for n in self.results]
        return dataclasses.replace(self, steps=steps, results=results)


@dataclasses.dataclass
class StageStep:
    """Step between programs of a function with sizes that depend on values.

    Attributes:
      kind: "host", "write_row", "cond", "while" or "scan".
      inputs: Indices of the values that it takes.
      outputs: Indices of the values that it computes.
      parameters: Its parameters in files.
      plans: The branches, or the condition and the body of a loop.
    """

    kind: str
    inputs: list[int]
    outputs: list[int]
    parameters: dict[str, Any]
    plans: Sequence[StagePlan] = ()


@dataclasses.dataclass
class StagePlan:
    """Steps of a function, a branch, or a part of a loop.

    Attributes:
      steps: The steps in their order.
      results: Indices of the values that it returns.
      sizes: For the index of a value, its axes with symbols: the axis, the name, and the number that the size
        exceeds the symbol by.
    """

    steps: list[ProgramStep | StageStep]
    results: list[int]
    sizes: dict[int, list[tuple[int, str, int]]]


@dataclasses.dataclass
class StagedFunction:
    """Function with sizes that depend on values.

    Attributes:
      traced: The traced function.
      plan: Its steps, which take the arguments and the captures.
      sizes: The symbols, with the decisions about them.
      arguments: (args, kwargs) with `TensorSpec`s for tensors.
    """

    traced: TracedFunction
    plan: StagePlan
    sizes: SizeScope
    arguments: PyTree

    @property
    def specs(self) -> list[TensorSpec]:
        """Return the specs of the tensor arguments, in TensorFlow's order."""
        return list_component_specs(self.arguments)

    @property
    def result_specs(self) -> PyTree:
        """Return the nested result with specs for tensors and composite tensors."""
        specs = [TensorSpec(get_static_sizes(s.shape), s.dtype) for s in self.traced.out_specs]
        return replace_slots(self.traced.structure, specs)

    def has_host_steps(self) -> bool:
        """Check whether values determine sizes, and not only arguments."""
        return any(isinstance(step, StageStep) for step in self.plan.steps)

    def explain_incompatibility(self) -> str:
        """Return the reason for which TensorFlow cannot run the function."""
        uses = ", ".join(dict.fromkeys(_list_uses(self.plan)))
        return f"sizes depend on values ({uses}), for which the file has no ops of TensorFlow"


def _list_uses(plan: StagePlan) -> list[str]:
    """List the purposes of values that determine sizes."""
    steps = [step for step in plan.steps if isinstance(step, StageStep)]
    uses = [step.parameters["use"] for step in steps if "use" in step.parameters]
    return uses + [use for step in steps for inner in step.plans for use in _list_uses(inner)]


@dataclasses.dataclass
class FunctionPlan:
    """Function as host calls and exported programs, as the writer of TensorFlow's graphs takes it.

    Attributes:
      name: Name of the function.
      arguments: (args, kwargs) with `TensorSpec`s for tensors.
      recorded: The steps.
      parts: Each step as a `HostStep`, or a `ProgramStep` with its `ExportedProgram`.
    """

    name: str
    arguments: PyTree
    recorded: RecordedFunction
    parts: list[HostStep | tuple[ProgramStep, ExportedProgram]]

    @property
    def specs(self) -> list[TensorSpec]:
        """Return the specs of the tensor arguments, in TensorFlow's order."""
        return list_component_specs(self.arguments)

    @property
    def result_specs(self) -> PyTree:
        """Return the nested result with specs for tensors and composite tensors."""
        recorded = self.recorded
        specs = [TensorSpec(get_static_sizes(s.shape), s.dtype) for s in recorded.specs]
        return replace_slots(recorded.structure, specs)

    def explain_incompatibility(self) -> str | None:
        """Return the reason for which TensorFlow cannot run the function, or None."""
        programs = [part[1] for part in self.parts if not isinstance(part, HostStep)]
        return next(filter(None, (p.explain_incompatibility() for p in programs)), None)


@dataclasses.dataclass
class ProgramsByRank:
    """Function of tensors of unknown rank, as programs for each rank.

    Attributes:
      name: Name of the function.
      arguments: (args, kwargs) with `TensorSpec`s for tensors.
      programs: Program for each rank.
    """

    name: str
    arguments: PyTree
    programs: dict[int, ExportedProgram | FunctionPlan | StagedFunction]

    @property
    def specs(self) -> list[TensorSpec]:
        """Return the specs of the tensor arguments, in TensorFlow's order."""
        return list_component_specs(self.arguments)

    @property
    def result_specs(self) -> PyTree:
        """Return the nested result with `TensorSpec`s of unknown shape for tensors."""
        first = next(iter(self.programs.values()))
        return nest.map_structure(lambda s: TensorSpec(None, s.dtype), first.result_specs)

    def explain_incompatibility(self) -> str | None:
        """Return the reason for which TensorFlow cannot run the function, or None."""
        return next(
            filter(None, (p.explain_incompatibility() for p in self.programs.values())), None
        )


SavedProgram: TypeAlias = ExportedProgram | FunctionPlan | StagedFunction | ProgramsByRank


@dataclasses.dataclass
class SavedFunction:
    """Function of an object, as the writer of TensorFlow's graphs takes it.

    Attributes:
      owner: Index of the object.
      name: Name of the function in the object.
      parameters: [name] or [name, default] of each parameter that may be passed by position.
      keywords: The same for parameters that must be passed by name.
      programs: Program of each signature.
      concrete: Whether it is a concrete function.
      aliases: Further names.
    """

    owner: int
    name: str
    parameters: list[Any]
    keywords: list[Any]
    programs: list[SavedProgram]
    concrete: bool
    aliases: list[str]
