"""Saving of the functions of objects as programs, and their entries in the manifest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from meshflow.core.functions.concrete_function import Signed
from meshflow.core.functions.function import Function
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.types import PyTree
from meshflow.saved_model.calls import (
    FunctionCall,
    calls_of,
    fits,
    for_any_batch,
    functions_of,
    is_for_any_size,
    is_symbolic,
    keywords_of,
    parameters_of,
    specs_of,
    with_rank,
)
from meshflow.saved_model.objects import SavedObjects
from meshflow.saved_model.plans import packed_argument
from meshflow.saved_model.programs import (
    Program,
    exported,
    known_sizes,
    serialized,
    traced_for_export,
)
from meshflow.saved_model.recording import recorded
from meshflow.saved_model.steps import ByRank, HostStep, Plan, Recorded, SavedFunction
from meshflow.saved_model.structures import Unsaved, packed
from meshflow.saved_model.text import TextCall

__all__ = ["SavedFunction", "StoredFunctions"]

_SavableFunction: TypeAlias = Callable[..., Any] | TextCall

# Ranks for which functions of tensors of unknown rank are saved.
_RANKS = (1, 2, 3, 4, 5, 0)
_log = logging.getLogger("meshflow")


class StoredFunctions:
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
            if not all(isinstance(f, (Function, Signed)) for f in functions):
                raise TypeError(
                    f"tf.saved_model.SaveOptions: function_aliases[{alias!r}] must be made by tf.function, a concrete "
                    f"function, or a list of them, got {functions}."
                )
        self.entries: list[dict[str, Any]] = []
        self.saved: list[SavedFunction] = []
        self.left_out: list[dict[str, Any]] = []
        self.made: dict[int, Program | Plan | ByRank] = {}
        self._stored_programs: dict[bytes, str] = {}
        # Serialized programs by their StableHLO.
        self._serialized_programs: dict[bytes, list[tuple[Program, bytes]]] = {}

    def add_all(self) -> None:
        """Add the functions of all objects. Those that cannot be saved are left out with a warning."""
        untraced: list[str] = []
        for index, item in enumerate(list(self._objects.graph.objects)):
            for name, function in functions_of(item):
                calls = list(calls_of(function))
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
                if isinstance(function, Signed):
                    alternatives.append(self.whole(name, call, args, kwargs))
                else:
                    alternatives += self._programs(name, call, args, kwargs)
            except (UnimplementedError, Unsaved) as error:
                special_cases = self._for_sizes_met(name, function, call, (args, kwargs))
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
        saved = self._about(owner, name, function, alternatives)
        entry = {
            "owner": owner,
            "name": name,
            "parameters": _packed(saved.parameters),
            "alternatives": alternatives,
        }
        if saved.keywords:
            entry["keywords"] = _packed(saved.keywords)
        if saved.concrete:
            entry["concrete"] = function.name
        if saved.aliases:
            entry["aliases"] = saved.aliases
        self.entries.append(entry)
        self.saved.append(saved)

    def _about(
        self, owner: int, name: str, function: Any, alternatives: list[Any]
    ) -> SavedFunction:
        return SavedFunction(
            owner,
            name,
            parameters_of(function),
            keywords_of(function),
            [self.made[id(entry)] for entry in alternatives],
            isinstance(function, Signed),
            [a for a, functions in self._aliases.items() if any(f is function for f in functions)],
        )

    def _programs(
        self, name: str, call: _SavableFunction, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Add one program, or one for each rank if it is unknown; return the entries."""
        if all(s.shape.rank is not None for s in specs_of(args, kwargs)):
            return [self.program(name, call, args, kwargs)]
        return list(self._by_rank(name, call, args, kwargs).values())

    def whole(
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
        if all(s.shape.rank is not None for s in specs_of(args, kwargs)):
            return self.program(name, call, args, kwargs)
        entries = self._by_rank(name, call, args, kwargs)
        entry = {"arguments": packed((args, kwargs)), "ranks": list(entries.values())}
        programs: Any = {rank: self.made[id(e)] for rank, e in entries.items()}
        self.made[id(entry)] = ByRank(name, (args, kwargs), programs)
        return entry

    def _by_rank(
        self, name: str, call: _SavableFunction, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[int, dict[str, Any]]:
        """Add a program for each rank that a function accepts; return the entries by rank."""
        entries: dict[int, dict[str, Any]] = {}
        last_error = None
        for rank in _RANKS:
            try:
                specs = nest.map_structure(with_rank(rank), (args, kwargs))
                entries[rank] = self.program(name, call, *specs)
            except Unsaved:
                raise
            except Exception as error:  # the function may not support the rank
                last_error = error
        if not entries:
            raise UnimplementedError(
                f"{name} cannot be traced for any rank: {last_error}"
            ) from last_error
        return entries

    def _for_sizes_met(
        self, name: str, function: Any, call: _SavableFunction, general: tuple[PyTree, PyTree]
    ) -> list[dict[str, Any]]:
        """Add programs for the sizes of earlier calls, with an unknown batch size if possible."""
        entries, added = [], []
        for concrete in function._cache.values() if isinstance(function, Function) else ():
            signature = concrete.structured_input_signature
            if is_symbolic(signature) or not fits(concrete, general):
                continue
            for sizes in (nest.map_structure(for_any_batch, signature), signature):
                if sizes in added:
                    break
                try:
                    entries.append(self.program(name, call, *sizes))
                    added.append(sizes)
                    break
                except (UnimplementedError, Unsaved):
                    continue
        return entries

    def program(
        self, name: str, call: _SavableFunction, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Add the program of a signature and return its entry in the manifest."""
        structure = packed((args, kwargs))
        try:
            entry, program = self._traced(name, call, args, kwargs)
        except (UnimplementedError, ImportError, Unsaved):
            raise
        except Exception as error:
            if not is_for_any_size(args, kwargs):
                raise
            raise UnimplementedError(
                f"{name} cannot be traced for any size of {specs_of(args, kwargs)}, because it needs the value of a "
                f"size while it is traced ({type(error).__name__}: {str(error).splitlines()[0]}). Use the tensor's "
                "`shape` instead of tf.shape, or specify all sizes."
            ) from error
        entry["arguments"] = structure
        self.made[id(entry)] = program
        return entry

    def _traced(
        self, name: str, call: _SavableFunction, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Program | Plan]:
        """Trace a function; return its entry in the manifest and its program."""
        if isinstance(call, TextCall):
            rest = nest.map_structure(_without_text, (args, kwargs))
            traced = traced_for_export(call.rest, (call.specs, *rest[0]), rest[1])
            entry, program = self._stored(Program(name, (args, kwargs), traced, exported(traced)))
            entry["text"] = program.steps = call.steps
            return entry, program
        if _has_text(args, kwargs):
            return self._planned(name, args, kwargs, recorded(name, call, args, kwargs))
        try:
            traced = traced_for_export(call, args, kwargs)
            return self._stored(Program(name, (args, kwargs), traced, exported(traced)))
        except Exception as error:
            # The function may use strings or tables internally.
            try:
                plan = recorded(name, call, args, kwargs)
            except Exception:
                raise error from None
            if not any(isinstance(step, HostStep) for step in plan.steps):
                raise
            return self._planned(name, args, kwargs, plan)

    def _stored(self, program: Program) -> tuple[dict[str, Any], Program]:
        """Store a program, once for all equal programs; return its manifest entry and itself."""
        traced, data = program.traced, self._serialized(program)
        key = self._stored_programs.setdefault(data, f"program_{len(self._stored_programs):05d}")
        self._objects.arrays[key] = (key, np.frombuffer(data, np.uint8))
        entry = {
            "results": packed(traced.structure),
            "count": traced.count,
            "program": key,
            "captures": [self._objects.capture(c) for c in traced.captures],
            "writes": [self._objects.capture(v) for v in traced.writes],
        }
        return entry, program

    def _serialized(self, program: Program) -> bytes:
        """Serialize a program. Equal programs share the result, because gradients are slow."""
        candidates = self._serialized_programs.setdefault(
            program.exported.mlir_module_serialized, []
        )
        for other, data in candidates:
            if program.is_like(other):
                return data
        candidates.append((program, serialized(program.exported)))
        return candidates[-1][1]

    def _planned(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], plan: Recorded
    ) -> tuple[dict[str, Any], Plan]:
        """Store a function of strings and tables; return its entry in the manifest and its plan."""
        steps: list[dict[str, Any]] = []
        parts: list[Any] = []
        for step in plan.steps:
            if isinstance(step, HostStep):
                pack = lambda value: packed_argument(value, self._objects.place)
                call = {"call": step.name, "first": pack(step.first), "more": pack(step.more)}
                steps.append({**call, "result": step.result})
                parts.append(step)
                continue
            specs = [
                TensorSpec(a.shape, a.dtype)
                for a in step.traced.closed.in_avals[: len(step.inputs)]
            ]
            part = Program(
                f"{name}_{len(steps)}", (tuple(specs), {}), step.traced, exported(step.traced)
            )
            entry, part = self._stored(part)
            steps.append({**entry, "inputs": step.inputs, "outputs": step.outputs})
            parts.append((step, part))
        specs = [TensorSpec(known_sizes(s.shape), s.dtype) for s in plan.specs]
        packed_specs = [packed(s) for s in specs]
        plan_entry = {"steps": steps, "values": plan.results, "specs": packed_specs}
        entry = {"results": packed(plan.structure), "plan": plan_entry}
        return entry, Plan(name, (args, kwargs), plan, parts)


def _packed(parameters: list[Any]) -> list[Any]:
    return [[name, *map(packed, default)] for name, *default in parameters]


def _has_text(args: PyTree, kwargs: PyTree) -> bool:
    return any(s.dtype.name == "string" for s in specs_of(args, kwargs))


def _without_text(leaf: PyTree) -> PyTree:
    return None if isinstance(leaf, TensorSpec) and leaf.dtype.name == "string" else leaf
