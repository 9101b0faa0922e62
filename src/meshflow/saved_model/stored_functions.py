"""The functions of saved objects as programs: which are saved for what, how each is described in the manifest."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshflow.core.functions.concrete_function import Signed
from meshflow.core.functions.function import Function
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.saved_model.calls import (
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
from meshflow.saved_model.steps import ByRank, HostStep, Plan, Recorded
from meshflow.saved_model.structures import Unsaved, packed
from meshflow.saved_model.text import TextCall

__all__ = ["SavedFunction", "StoredFunctions"]

# Those that functions of tensors of unknown rank are saved for.
_RANKS = (1, 2, 3, 4, 5, 0)
_log = logging.getLogger("meshflow")


@dataclasses.dataclass
class SavedFunction:
    """A function of an object, as TensorFlow's writer takes it.

    Attributes:
      owner: the object's number.
      name: the function's name there.
      parameters: [name] or [name, default] of those that may be given by position.
      keywords: the same of those that are given by name.
      programs: what it does for each signature.
      concrete: whether it is a concrete function.
      aliases: further names.
    """

    owner: int
    name: str
    parameters: list[Any]
    keywords: list[Any]
    programs: list[Program | Plan | ByRank]
    concrete: bool
    aliases: list[str]


class StoredFunctions:
    """Functions and programs that are saved with objects.

    Args:
      objects: the objects.
      aliases: further names of functions, with one or several functions each.

    Raises:
      TypeError: for aliases of what is no function.

    Attributes:
      entries: what the manifest says of the functions.
      saved: the same functions for TensorFlow.
      left_out: what the manifest says of the functions that cannot be saved.
      made: what the descriptions of programs stand for, by the descriptions' identities.
    """

    def __init__(self, objects: SavedObjects, aliases: Mapping[str, Any]) -> None:
        self._objects = objects
        self._aliases = {
            alias: list(given) if isinstance(given, (list, tuple, set)) else [given]
            for alias, given in aliases.items()
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
        self.made: dict[int, Any] = {}
        self._stored_programs: dict[bytes, str] = {}
        # By what runs forwards.
        self._serialized_programs: dict[bytes, list[tuple[Program, bytes]]] = {}

    def add_all(self) -> None:
        """Saves the functions of all objects; those that cannot be saved are left out, which is logged."""
        untraced: list[str] = []
        for number, item in enumerate(list(self._objects.graph.objects)):
            for name, function in functions_of(item):
                calls = list(calls_of(function))
                if not calls and not name.startswith("_"):
                    untraced.append(name)
                self._add_function(number, name, function, calls)
            if number == 0 and hasattr(item, "_saved_functions"):
                for name, calls in item._saved_functions().items():
                    self._add_function(number, name, calls[0][0], calls)
        if untraced:
            shown = untraced[:5]
            _log.warning(
                "tf.saved_model.save: found untraced functions such as %s while saving (showing %d of %d). These "
                "functions will not be directly callable after loading: call them first, or give them an "
                "input_signature.",
                ", ".join(shown),
                len(shown),
                len(untraced),
            )

    def _add_function(self, owner: int, name: str, function: Any, calls: list[Any]) -> None:
        alternatives: list[Any] = []
        why = ""
        for call, args, kwargs in calls:
            try:
                if isinstance(function, Signed):
                    alternatives.append(self.whole(name, call, args, kwargs))
                else:
                    alternatives += self._programs(name, call, args, kwargs)
            except (UnimplementedError, Unsaved) as error:
                found = self._for_sizes_met(name, function, call, (args, kwargs))
                alternatives.extend(found)
                what = "saved for the sizes it was called with only" if found else "not saved"
                _log.warning("tf.saved_model.save: function %s is %s: %s", name, what, error)
                why = str(error)
        if not alternatives and calls:
            self.left_out.append({"owner": owner, "name": name, "why": why})
            return
        about = self._about(owner, name, function, alternatives)
        entry = {
            "owner": owner,
            "name": name,
            "parameters": _packed(about.parameters),
            "alternatives": alternatives,
        }
        if about.keywords:
            entry["keywords"] = _packed(about.keywords)
        if about.concrete:
            entry["concrete"] = function.name
        if about.aliases:
            entry["aliases"] = about.aliases
        self.entries.append(entry)
        self.saved.append(about)

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
            [a for a, given in self._aliases.items() if any(f is function for f in given)],
        )

    def _programs(self, name: str, call: Any, args: Any, kwargs: Any) -> list[dict[str, Any]]:
        """The program of a signature; of one without ranks, a program for each rank that the function takes."""
        if all(s.shape.rank is not None for s in specs_of(args, kwargs)):
            return [self.program(name, call, args, kwargs)]
        return list(self._by_rank(name, call, args, kwargs).values())

    def whole(self, name: str, call: Any, args: Any, kwargs: Any) -> dict[str, Any]:
        """The one program of a signature, which chooses by rank where that is unknown.

        Args:
          name: the function's name.
          call: the function.
          args: its arguments, with specs for tensors.
          kwargs: those by name, likewise.
        """
        if all(s.shape.rank is not None for s in specs_of(args, kwargs)):
            return self.program(name, call, args, kwargs)
        found = self._by_rank(name, call, args, kwargs)
        entry = {"arguments": packed((args, kwargs)), "ranks": list(found.values())}
        programs = {rank: self.made[id(one)] for rank, one in found.items()}
        self.made[id(entry)] = ByRank(name, (args, kwargs), programs)
        return entry

    def _by_rank(self, name: str, call: Any, args: Any, kwargs: Any) -> dict[int, Any]:
        """The programs of a signature without ranks, by rank."""
        found, why = {}, None
        for rank in _RANKS:
            try:
                specs = nest.map_structure(with_rank(rank), (args, kwargs))
                found[rank] = self.program(name, call, *specs)
            except Unsaved:
                raise
            except Exception as error:  # of any kind: the function may not be made for the rank
                why = error
        if not found:
            raise UnimplementedError(f"{name} can be traced for no rank: {why}") from why
        return found

    def _for_sizes_met(self, name: str, function: Any, call: Any, general: Any) -> list[Any]:
        """Programs for the sizes of earlier calls: for any batch where that is possible."""
        found, seen = [], []
        for concrete in function._cache.values() if isinstance(function, Function) else ():
            signature = concrete.structured_input_signature
            if is_symbolic(signature) or not fits(concrete, general):
                continue
            for sizes in (nest.map_structure(for_any_batch, signature), signature):
                if sizes in seen:
                    break
                try:
                    found.append(self.program(name, call, *sizes))
                    seen.append(sizes)
                    break
                except (UnimplementedError, Unsaved):
                    continue
        return found

    def program(self, name: str, call: Any, args: Any, kwargs: Any) -> dict[str, Any]:
        structure = packed((args, kwargs))
        try:
            entry, program = self._traced(name, call, args, kwargs)
        except (UnimplementedError, ImportError, Unsaved):
            raise
        except Exception as error:
            if not is_for_any_size(args, kwargs):
                raise
            raise UnimplementedError(
                f"{name} cannot be traced for any size of {specs_of(args, kwargs)}, as it asks for a size while "
                f"it is traced ({type(error).__name__}: {str(error).splitlines()[0]}). Use the tensor's "
                "`shape` instead of tf.shape, or give all sizes."
            ) from error
        entry["arguments"] = structure
        self.made[id(entry)] = program
        return entry

    def _traced(self, name: str, call: Any, args: Any, kwargs: Any) -> tuple[Any, Program | Plan]:
        """A function's description, and what it does."""
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
            # Perhaps strings or tables are met on the way.
            try:
                plan = recorded(name, call, args, kwargs)
            except Exception:
                raise error from None
            if not any(isinstance(step, HostStep) for step in plan.steps):
                raise
            return self._planned(name, args, kwargs, plan)

    def _stored(self, program: Program) -> tuple[dict[str, Any], Program]:
        """Keeps a program, once for all that are the same; gives its description."""
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
        """A program's bytes. Its gradient takes longest, which programs that are the same share."""
        alike = self._serialized_programs.setdefault(program.exported.mlir_module_serialized, [])
        for other, data in alike:
            if program.is_like(other):
                return data
        alike.append((program, serialized(program.exported)))
        return alike[-1][1]

    def _planned(
        self, name: str, args: Any, kwargs: Any, plan: Recorded
    ) -> tuple[dict[str, Any], Plan]:
        """Keeps a function of strings and tables; gives its description."""
        steps: list[dict[str, Any]] = []
        parts: list[Any] = []
        for step in plan.steps:
            if isinstance(step, HostStep):
                put = lambda value: packed_argument(value, self._objects.place)
                about = {"call": step.name, "first": put(step.first), "more": put(step.more)}
                steps.append({**about, "result": step.result})
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
        about = {"steps": steps, "values": plan.results, "specs": [packed(s) for s in specs]}
        entry = {"results": packed(plan.structure), "plan": about}
        return entry, Plan(name, (args, kwargs), plan, parts)


def _packed(parameters: list[Any]) -> list[Any]:
    return [[name, *map(packed, default)] for name, *default in parameters]


def _has_text(args: Any, kwargs: Any) -> bool:
    return any(s.dtype.name == "string" for s in specs_of(args, kwargs))


def _without_text(leaf: Any) -> Any:
    return None if isinstance(leaf, TensorSpec) and leaf.dtype.name == "string" else leaf
