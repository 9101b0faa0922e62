"""Saving of the functions of objects as programs, and their entries in the manifest."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from meshflow.core.functions.function import Function
from meshflow.core.functions.signed_function import SignedFunction
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.tracing.trace import TracedFunction
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.types import PyTree
from meshflow.saved_model.host_steps.plan import (
    FunctionPlan,
    HostStep,
    ProgramsByRank,
    ProgramStep,
    RecordedFunction,
    SavedFunction,
    SavedProgram,
    StagedFunction,
    StagePlan,
)
from meshflow.saved_model.host_steps.plan_program import pack_argument
from meshflow.saved_model.host_steps.recorder import record_function
from meshflow.saved_model.host_steps.staging import stage_function
from meshflow.saved_model.host_steps.text_steps import TextFunction
from meshflow.saved_model.manifest.composite_values import ComponentFunction, UnsavableError
from meshflow.saved_model.manifest.json_structures import pack_structure
from meshflow.saved_model.manifest.saved_objects import SavedObjects
from meshflow.saved_model.programs.stablehlo import (
    ExportedProgram,
    export_traced,
    get_static_sizes,
    has_gradient_if_differentiable,
    serialize_program,
    trace_for_export,
)
from meshflow.saved_model.saving.function_discovery import (
    FunctionCall,
    has_unknown_size,
    is_special_case,
    is_symbolic,
    iterate_functions,
    iterate_signatures,
    list_keyword_parameters,
    list_parameters,
    list_specs,
    make_rank_setter,
    name_slots,
    relax_batch_size,
)

_SavableFunction: TypeAlias = Callable[..., Any] | TextFunction

# Ranks for which functions of tensors of unknown rank are saved.
_RANKS = (1, 2, 3, 4, 5, 0)
_log = logging.getLogger("meshflow")


class FunctionSaver:
    """Functions and programs to be saved with objects.

    Args:
      objects: The objects.
      aliases: Further names of functions, with one or several functions each.

    Raises:
      TypeError: If an alias is for an object that is not a function.

    Attributes:
      entries: Entries of the functions in the manifest.
      saved: The same functions, for the writer of TensorFlow's graphs.
      left_out: Entries in the manifest of the functions that cannot be saved.
      made: Programs by the ids of their entries.
    """

    def __init__(self, objects: SavedObjects, aliases: Mapping[str, Any]) -> None:
        self._objects = objects
        self._aliases = {
            alias: list(functions) if isinstance(functions, (list, tuple, set)) else [functions]
            for alias, functions in aliases.items()
        }
        for alias, functions in self._aliases.items():
            if not all(isinstance(f, (Function, SignedFunction)) for f in functions):
                raise TypeError(
                    f"tf.saved_model.SaveOptions: function_aliases[{alias!r}] must be made by tf.function, a concrete "
                    f"function, or a list of them, got {functions}."
                )
        self.entries: list[dict[str, Any]] = []
        self.saved: list[SavedFunction] = []
        self.left_out: list[dict[str, Any]] = []
        self.programs_by_entry: dict[int, SavedProgram] = {}
        # Functions with the entries of their programs, by the ids of the functions.
        self._entries_by_function: dict[int, tuple[Any, list[dict[str, Any]]]] = {}
        self._exported_parts: dict[int, ExportedProgram] = {}
        self._stored_programs: dict[bytes, str] = {}
        # Serialized programs by their StableHLO.
        self._serialized_programs: dict[bytes, list[tuple[ExportedProgram, bytes]]] = {}

    def add_all(self) -> None:
        """Add the functions of all objects. Those that cannot be saved are left out with a warning."""
        untraced: list[str] = []
        for index, item in enumerate(list(self._objects.graph.objects)):
            for name, function in iterate_functions(item):
                calls = list(iterate_signatures(function))
                if not calls and not name.startswith("_"):
                    untraced.append(name)
                self._add_function(index, name, function, calls)
            if index == 0 and hasattr(item, "_saved_functions"):
                for name, calls in item._saved_functions().items():
                    self._add_function(index, name, calls[0][0], calls)
        if untraced:
            examples = untraced[:5]
            _log.warning(
                "tf.saved_model.save: found untraced functions such as %s while saving (showing %d of %d). These "
                "functions will not be directly callable after loading: call them first, or give them an "
                "input_signature.",
                ", ".join(examples),
                len(examples),
                len(untraced),
            )

    def _add_function(
        self, owner: int, name: str, function: Any, calls: Sequence[FunctionCall]
    ) -> None:
        alternatives: list[Any] = []
        reason = ""
        for call, args, kwargs in calls:
            try:
                if isinstance(function, SignedFunction):
                    alternatives.append(self.add_single_program(name, call, args, kwargs))
                else:
                    alternatives += self._add_programs(name, call, args, kwargs)
            except (UnimplementedError, UnsavableError) as error:
                special_cases = self._add_special_cases(name, function, call, (args, kwargs))
                alternatives.extend(special_cases)
                _log.warning(
                    "tf.saved_model.save: function %s is %s: %s",
                    name,
                    "saved only for the sizes it was called with" if special_cases else "not saved",
                    error,
                )
                reason = str(error)
        if not alternatives and calls:
            self.left_out.append({"owner": owner, "name": name, "why": reason})
            return
        self._entries_by_function[id(function)] = function, alternatives
        saved = self._make_saved_function(owner, name, function, alternatives)
        entry = {
            "owner": owner,
            "name": name,
            "parameters": _pack_defaults(saved.parameters),
            "alternatives": alternatives,
        }
        if saved.keywords:
            entry["keywords"] = _pack_defaults(saved.keywords)
        if saved.concrete:
            entry["concrete"] = function.name
        if saved.aliases:
            entry["aliases"] = saved.aliases
        self.entries.append(entry)
        self.saved.append(saved)

    def _make_saved_function(
        self, owner: int, name: str, function: Any, alternatives: list[Any]
    ) -> SavedFunction:
        return SavedFunction(
            owner,
            name,
            list_parameters(function),
            list_keyword_parameters(function),
            [self.programs_by_entry[id(entry)] for entry in alternatives],
            isinstance(function, SignedFunction),
            [a for a, functions in self._aliases.items() if any(f is function for f in functions)],
        )

    def _add_programs(
        self, name: str, call: _SavableFunction, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Add one program, or one for each rank if it is unknown; return the entries."""
        if all(s.shape.rank is not None for s in list_specs(args, kwargs)):
            return [self.add_program(name, call, args, kwargs)]
        return list(self._add_programs_by_rank(name, call, args, kwargs).values())

    def add_single_program(
        self, name: str, call: _SavableFunction, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Add one program for a signature, which selects a program by rank if the rank is unknown.

        Args:
          name: Name of the function.
          call: The function.
          args: Its arguments, with specs for tensors.
          kwargs: Its keyword arguments, with specs for tensors.

        Returns:
          The entry of the program in the manifest.
        """
        if all(s.shape.rank is not None for s in list_specs(args, kwargs)):
            return self.add_program(name, call, args, kwargs)
        entries = self._add_programs_by_rank(name, call, args, kwargs)
        entry = {"arguments": pack_structure((args, kwargs)), "ranks": list(entries.values())}
        programs: Any = {rank: self.programs_by_entry[id(e)] for rank, e in entries.items()}
        self.programs_by_entry[id(entry)] = ProgramsByRank(name, (args, kwargs), programs)
        return entry

    def _add_programs_by_rank(
        self, name: str, call: _SavableFunction, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[int, dict[str, Any]]:
        """Add a program for each rank that a function accepts; return the entries by rank."""
        entries: dict[int, dict[str, Any]] = {}
        last_error = None
        for rank in _RANKS:
            try:
                specs = nest.map_structure(make_rank_setter(rank), (args, kwargs))
                entries[rank] = self.add_program(name, call, *specs)
            except UnsavableError:
                raise
            except Exception as error:  # the function may not support the rank
                last_error = error
        if not entries:
            raise UnimplementedError(
                f"{name} cannot be traced for any rank: {last_error}"
            ) from last_error
        return entries

    def _add_special_cases(
        self, name: str, function: Any, call: _SavableFunction, general: tuple[PyTree, PyTree]
    ) -> list[dict[str, Any]]:
        """Add programs for the sizes of earlier calls, with an unknown batch size if possible."""
        entries, added = [], []
        if isinstance(function, Function):
            function.trace_first_calls()
        for concrete in function._cache.values() if isinstance(function, Function) else ():
            signature = concrete.structured_input_signature
            if is_symbolic(signature) or not is_special_case(concrete, general):
                continue
            for sizes in (nest.map_structure(relax_batch_size, signature), signature):
                if sizes in added:
                    break
                try:
                    entries.append(self.add_program(name, call, *sizes))
                    added.append(sizes)
                    break
                except (UnimplementedError, UnsavableError):
                    continue
        return entries

    def add_program(
        self, name: str, call: _SavableFunction, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Add the program of a signature and return its entry in the manifest."""
        structure = pack_structure((args, kwargs))
        try:
            entry, program = self._trace(name, call, args, kwargs)
        except (UnimplementedError, ImportError, UnsavableError):
            raise
        except Exception as error:
            if not has_unknown_size(args, kwargs):
                raise
            raise UnimplementedError(
                f"{name} cannot be traced for any size of {list_specs(args, kwargs)}, because it needs the value of a "
                f"size while it is traced ({type(error).__name__}: {str(error).splitlines()[0]}). Use the tensor's "
                "`shape` instead of tf.shape, or specify all sizes."
            ) from error
        entry["arguments"] = structure
        self.programs_by_entry[id(entry)] = program
        return entry

    def add_renamed_program(
        self, name: str, function: object, arguments: PyTree, specs: Mapping[str, TensorSpec]
    ) -> dict[str, Any] | None:
        """Add the program of a function that was added, with its arguments and results by name.

        Args:
          name: Name of the program.
          function: The function.
          arguments: (args, kwargs) of its signature.
          specs: Spec of each of its tensors by the new name, in their order.

        Returns:
          The entry of the program in the manifest, or None if the function must be traced again.
        """
        entries = self._entries_by_function.get(id(function), (None, []))[1]
        if len(entries) != 1 or entries[0]["arguments"] != pack_structure(arguments):
            return None
        program = self.programs_by_entry[id(entries[0])]
        # Tensors by name are in the order of their names.
        order = sorted(range(len(specs)), key=list(specs).__getitem__)
        renamed: Any = None
        if isinstance(program, ExportedProgram) and not program.steps:
            results = name_slots(program.traced.structure)
            if results is not None:
                renamed = self._store_program(
                    _reorder_program(name, program, order, results, specs)
                )
        elif isinstance(program, FunctionPlan):
            results = name_slots(program.recorded.structure)
            if results is not None:
                plan = program.recorded.reorder_arguments(order)
                plan.structure = results
                renamed = self._store_plan(name, (), specs, plan)
        if renamed is None:
            return None
        entry, program = renamed
        entry["arguments"] = pack_structure(((), dict(specs)))
        self.programs_by_entry[id(entry)] = program
        return entry

    def _trace(
        self, name: str, call: _SavableFunction, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], ExportedProgram | FunctionPlan | StagedFunction]:
        """Trace a function; return its entry in the manifest and its program."""
        if isinstance(call, TextFunction):
            rest = nest.map_structure(_remove_text, (args, kwargs))
            traced = trace_for_export(call.rest, (call.specs, *rest[0]), rest[1])
            entry, program = self._store_program(
                ExportedProgram(name, (args, kwargs), traced, export_traced(traced))
            )
            entry["text"] = program.steps = call.steps
            return entry, program
        if _has_text(args, kwargs):
            return self._store_plan(name, args, kwargs, record_function(name, call, args, kwargs))
        count = context.num_omitted_assertions
        try:
            program = self._export(name, call, args, kwargs)
            if count == context.num_omitted_assertions:
                return self._store_program(program)
            plan = self._record_host_calls(name, call, args, kwargs)
            if plan is None:
                _warn_of_omitted_assertions(name)
                return self._store_program(program)
            return plan
        except Exception as error:
            # The function may use strings or tables internally.
            plan = self._record_host_calls(name, call, args, kwargs)
            if plan is not None:
                return plan
            with contextlib.suppress(Exception):
                staged = stage_function(name, call, args, kwargs)
                # TensorFlow runs the programs for the sizes of earlier calls, but no stages.
                if staged.has_host_steps():
                    return self._store_stages(name, staged)
            raise error from None

    def _record_host_calls(
        self, name: str, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], FunctionPlan] | None:
        """Store a function with host calls, such as assertions; return None if it has none, or they cannot be saved."""
        with contextlib.suppress(Exception):
            count = context.num_omitted_assertions
            plan = record_function(name, call, args, kwargs)
            if any(isinstance(step, HostStep) for step in plan.steps):
                if count != context.num_omitted_assertions:
                    _warn_of_omitted_assertions(name)
                return self._store_plan(name, args, kwargs, plan)
        return None

    def _export(
        self, name: str, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> ExportedProgram:
        """Export a function without strings.

        Unknown sizes may be 0, unless the function has a gradient for positive sizes only.
        """

        def export(has_positive_sizes: bool) -> ExportedProgram:
            components = ComponentFunction(call, args, kwargs)
            specs, keywords = components.arguments
            traced = trace_for_export(components, specs, keywords, has_positive_sizes)
            traced.structure = components.join_slots(traced.structure)
            return ExportedProgram(name, (args, kwargs), traced, export_traced(traced))

        program = export(False)
        if not has_unknown_size(args, kwargs) or has_gradient_if_differentiable(
            self._serialize(program)
        ):
            return program
        with contextlib.suppress(Exception):
            other = export(True)
            if has_gradient_if_differentiable(self._serialize(other)):
                return other
        return program

    def _store_stages(
        self, name: str, staged: StagedFunction
    ) -> tuple[dict[str, Any], StagedFunction]:
        """Store a function in stages; return its entry in the manifest and itself."""
        traced = staged.traced

        def store(plan: StagePlan) -> dict[str, Any]:
            steps: list[dict[str, Any]] = []
            for step in plan.steps:
                if isinstance(step, ProgramStep):
                    part = self._store_part(name, step)[0]
                else:
                    plans = [store(inner) for inner in step.plans]
                    part = {"kind": step.kind, "parameters": step.parameters, "plans": plans}
                steps.append({**part, "inputs": step.inputs, "outputs": step.outputs})
            return {"steps": steps, "results": plan.results, "sizes": plan.sizes}

        with staged.sizes.record():
            plan = store(staged.plan)
        stages = {
            "plan": plan,
            "guards": staged.sizes.list_guards(),
            "specs": [
                pack_structure(TensorSpec(get_static_sizes(s.shape), s.dtype))
                for s in traced.out_specs
            ],
            "captures": [self._objects.describe_capture(c) for c in traced.captures],
            "writes": [self._objects.describe_capture(v) for v in traced.writes],
        }
        return {"results": pack_structure(traced.structure), "stages": stages}, staged

    def _store_part(self, name: str, step: ProgramStep) -> tuple[dict[str, Any], ExportedProgram]:
        """Store the program of a step, once for all plans; return its entry in the manifest and the program."""
        part = self._exported_parts.get(id(step.traced))
        if part is None:
            avals = step.traced.closed_jaxpr.in_avals[: len(step.inputs)]
            specs = tuple([TensorSpec(a.shape, a.dtype) for a in avals])
            part = ExportedProgram(name, (specs, {}), step.traced, export_traced(step.traced))
            self._exported_parts[id(step.traced)] = part
        return self._store_program(part)

    def _store_program(self, program: ExportedProgram) -> tuple[dict[str, Any], ExportedProgram]:
        """Store a program, once for all equal programs; return its manifest entry and itself."""
        traced, data = program.traced, self._serialize(program)
        key = self._stored_programs.setdefault(data, f"program_{len(self._stored_programs):05d}")
        self._objects.arrays[key] = (key, np.frombuffer(data, np.uint8))
        entry = {
            "results": pack_structure(traced.structure),
            "count": traced.num_results,
            "program": key,
            "captures": [self._objects.describe_capture(c) for c in traced.captures],
            "writes": [self._objects.describe_capture(v) for v in traced.writes],
        }
        return entry, program

    def _serialize(self, program: ExportedProgram) -> bytes:
        """Serialize a program. Equal programs share the result, because gradients are slow."""
        candidates = self._serialized_programs.setdefault(
            program.exported.mlir_module_serialized, []
        )
        for other, data in candidates:
            if program is other or program.is_same_as(other):
                return data
        candidates.append((program, serialize_program(program.exported)))
        return candidates[-1][1]

    def _store_plan(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], plan: RecordedFunction
    ) -> tuple[dict[str, Any], FunctionPlan]:
        """Store a function of strings and tables; return its entry in the manifest and its plan."""
        steps: list[dict[str, Any]] = []
        parts: list[Any] = []
        for step in plan.steps:
            if isinstance(step, HostStep):
                pack = lambda value: pack_argument(value, self._objects.get_index)
                call = {"call": step.name, "first": pack(step.first), "more": pack(step.more)}
                steps.append({**call, "result": step.result})
                parts.append(step)
                continue
            entry, part = self._store_part(f"{name}_{len(steps)}", step)
            steps.append({**entry, "inputs": step.inputs, "outputs": step.outputs})
            parts.append((step, part))
        specs = [TensorSpec(get_static_sizes(s.shape), s.dtype) for s in plan.specs]
        packed_specs = [pack_structure(s) for s in specs]
        plan_entry = {"steps": steps, "values": plan.results, "specs": packed_specs}
        entry = {"results": pack_structure(plan.structure), "plan": plan_entry}
        return entry, FunctionPlan(name, (args, kwargs), plan, parts)


def _reorder_program(
    name: str,
    program: ExportedProgram,
    order: Sequence[int],
    results: PyTree,
    specs: Mapping[str, TensorSpec],
) -> ExportedProgram:
    """Return a program with the arguments in another order, by name, and another structure of its results."""
    traced, exported = program.traced, program.exported
    closed, is_same = traced.closed_jaxpr, list(order) == sorted(order)
    if not is_same:
        variables = closed.jaxpr.invars
        jaxpr = closed.jaxpr.replace(
            invars=[*(variables[i] for i in order), *variables[len(order) :]],
            debug_info=closed.jaxpr.debug_info.with_unknown_names(),
        )
        closed = closed.replace(jaxpr=jaxpr)
    traced = TracedFunction(
        traced.name, closed, traced.captures, traced.writes, results, traced.num_results
    )
    exported = exported if is_same else export_traced(traced)
    return ExportedProgram(name, ((), dict(specs)), traced, exported)


def _warn_of_omitted_assertions(name: str) -> None:
    _log.warning(
        "tf.saved_model.save: function %s is saved without its assertions in branches and loops.",
        name,
    )


def _pack_defaults(parameters: list[Any]) -> list[Any]:
    return [[name, *map(pack_structure, default)] for name, *default in parameters]


def _has_text(args: PyTree, kwargs: PyTree) -> bool:
    return any(s.dtype.name == "string" for s in list_specs(args, kwargs))


def _remove_text(leaf: PyTree) -> PyTree:
    return None if isinstance(leaf, TensorSpec) and leaf.dtype.name == "string" else leaf
