"""Saved functions: the alternative that fits a call's arguments, and signatures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import numpy as np

from meshflow.core.functions.concrete_function import Signed
from meshflow.core.functions.function import function
from meshflow.core.functions.kept_calls import KeptCalls
from meshflow.core.runtime.context import as_stored
from meshflow.core.tracing.trace import Slot, Traced
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.ops.deferred_host_values import Pending
from meshflow.saved_model.programs import known_sizes, program_for
from meshflow.saved_model.structures import unpacked

__all__ = [
    "Alternative",
    "ByRank",
    "Choice",
    "Program",
    "Signature",
    "StableProgram",
    "compiled",
    "restored_function",
]


class Program(Protocol):
    """What an alternative runs."""

    @property
    def out_specs(self) -> list[TensorSpec]:
        """Specs of the results; sizes that depend on the arguments' are None."""

    @property
    def captures(self) -> list[Any]:
        """Variables and constants that it uses."""

    @property
    def on_host(self) -> bool:
        """Whether the host makes calls while it runs, so that it is no part of a program."""

    @property
    def about(self) -> bytes | None:
        """What tells it from other programs in files; None for what is not compiled as one."""

    def call(self, tensors: Sequence[Tensor]) -> Any:
        """Runs it; variables that it wrote when it was saved are written."""


class StableProgram:
    """A program that was exported.

    Args:
      name: the function's name.
      structure: the nested result with `Slot`s.
      count: how many of the outputs are results.
      exported: gives the program, when it is first needed.
      captures: variables and constants that it uses.
      writes: variables that it writes.
      about: what tells it from other programs in files.
    """

    on_host = False

    def __init__(
        self,
        name: str,
        structure: Any,
        count: int,
        exported: Callable[[], Any],
        captures: list[Any],
        writes: list[Any],
        about: bytes,
    ) -> None:
        self.captures = captures
        self.about = None if writes else about
        self._name, self._structure, self._count = name, structure, count
        self._exported, self._writes = exported, [_Written(v) for v in writes]
        self._sized: dict[Any, Traced] = {}

    @property
    def out_specs(self) -> list[TensorSpec]:
        """Specs of the results; sizes that depend on the arguments' are None."""
        avals = self._exported().out_avals[: self._count]
        return [TensorSpec(known_sizes(a.shape), a.dtype) for a in avals]

    def call(self, tensors: Sequence[Tensor]) -> Any:
        """Runs it; variables that it wrote when it was saved are written."""
        key = tuple(tuple(t.shape.as_list()) for t in tensors)
        traced = self._sized.get(key)
        if traced is None:
            with as_stored():
                read = [c if isinstance(c, Tensor) else c._as_tensor() for c in self.captures]
            captures = [tensor._value for tensor in read]
            closed = program_for(self._exported(), [t._value for t in tensors], captures)
            traced = Traced(
                self._name, closed, self.captures, self._writes, self._structure, self._count
            )
            self._sized[key] = traced
        return traced.call(tensors)


class _Written:
    """A variable that a program writes: shards, and what servers host, take a value by being assigned one.

    Args:
      variable: the variable.
    """

    def __init__(self, variable: Any) -> None:
        self._variable = variable

    def _write(self, value: Tensor) -> None:
        self._variable.assign(value)


class Alternative:
    """A saved function for one of its signatures.

    Args:
      arguments: (args, kwargs) with `TensorSpec`s for tensors.
      structure: the nested result with `Slot`s.
      program: what it does.
    """

    def __init__(self, arguments: Any, structure: Any, program: Program) -> None:
        self.arguments, self.structure, self.program = arguments, structure, program

    def tensors_of(self, args: Any, kwargs: Any) -> list[Tensor] | None:
        """The tensors among the arguments of a call, or None when it does not fit."""
        try:
            parts = nest.flatten_up_to(self.arguments, (args, kwargs))
        except (TypeError, ValueError):
            return None
        tensors = []
        for spec, value in zip(nest.flatten(self.arguments), parts, strict=True):
            if not isinstance(spec, TensorSpec):
                if isinstance(value, (Tensor, np.ndarray)) or value != spec:
                    return None
                continue
            if isinstance(value, Pending):
                # Strings of a function that is saved again.
                if not spec.is_compatible_with(value.spec):
                    return None
                tensors.append(cast(Tensor, value))
                continue
            try:
                tensor = convert_to_tensor(value, dtype_hint=spec.dtype)
            except (TypeError, ValueError):
                return None
            if not spec.is_compatible_with(tensor):
                return None
            tensors.append(tensor)
        return tensors

    def call(self, tensors: Sequence[Tensor]) -> Any:
        """Runs it."""
        return self.program.call(tensors)


class ByRank:
    """What a function does that was saved for each rank of its arguments.

    Args:
      alternatives: one for each rank.
    """

    about = None

    def __init__(self, alternatives: Sequence[Alternative]) -> None:
        self._alternatives = alternatives
        self.on_host = any(a.program.on_host for a in alternatives)

    @property
    def out_specs(self) -> list[TensorSpec]:
        """Specs of the results, of unknown shapes."""
        return [TensorSpec(None, s.dtype) for s in self._alternatives[0].program.out_specs]

    @property
    def captures(self) -> list[Any]:
        """Variables and constants that it uses."""
        return list({id(c): c for a in self._alternatives for c in a.program.captures}.values())

    def call(self, tensors: Sequence[Tensor]) -> Any:
        """Runs the program for their ranks.

        Raises:
          ValueError: when there is none.
        """
        for alternative in self._alternatives:
            specs = [s for s in nest.flatten(alternative.arguments) if isinstance(s, TensorSpec)]
            if all(s.is_compatible_with(t) for s, t in zip(specs, tensors, strict=True)):
                return alternative.call(tensors)
        raise ValueError(
            f"The saved function has no program for tensors of the shapes {[t.shape for t in tensors]}."
        )


class Choice:
    """Calls the alternative that fits."""

    is_stored_program = True

    def __init__(self, name: str, parameters: list[Any], alternatives: list[Alternative]) -> None:
        self.__name__ = name
        self.parameters = parameters
        self.alternatives = alternatives

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for positional, named in self._forms(args, kwargs):
            for alternative in self.alternatives:
                tensors = alternative.tensors_of(positional, named)
                if tensors is not None:
                    return alternative.call(tensors)
        options = "\n".join(
            f"  Option {i}: {a.arguments[0]}, {a.arguments[1]}"
            for i, a in enumerate(self.alternatives, 1)
        )
        raise ValueError(
            f"Could not find matching concrete function to call loaded from the SavedModel: {self.__name__} got "
            f"{args}, {kwargs}. Expected one of {len(self.alternatives)} option(s):\n{options}"
        )

    def _forms(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call as it is, and with defaults and keywords in their places."""
        yield args, kwargs
        left, full = dict(kwargs), list(args)
        given = len(full)
        for name, *default in self.parameters[len(args) :]:
            if name in left:
                full.append(left.pop(name))
                given = len(full)
            elif default:
                full.append(unpacked(default[0]))
            else:
                break
        # The trace need not have been told of all defaults.
        for end in range(len(full), given - 1, -1):
            yield tuple(full[:end]), left


class _Compiled:
    """What is compiled, once for each size of its tensors."""

    is_stored_program = True

    def __init__(self, name: str, program: Program) -> None:
        self.__name__ = name
        self._program = program

    def __call__(self, *tensors: Tensor) -> Any:
        return self._program.call(tensors)


def compiled(name: str, program: Program) -> Callable[..., Any]:
    """A program as a function of tensors, which is compiled unless the host makes calls in it.

    Args:
      name: its name.
      program: the program.
    """
    run = _Compiled(name, program)
    return run if program.on_host else function(run, autograph=False)


def restored_function(choice: Choice) -> Any:
    """What loaded functions are: a `tf.function` of the alternatives."""
    made: Any = function(choice, autograph=False)
    made._op_by_op = any(a.program.on_host for a in choice.alternatives)
    return made


class Signature(Signed):
    """A signature of a saved object: takes tensors by name and returns a dictionary of them.

    Attributes:
      name: its name.
      structured_input_signature: ((), specs by name).
    """

    def __init__(self, name: str, alternative: Alternative) -> None:
        self.name = name
        self._alternative = alternative
        self.structured_input_signature = ((), alternative.arguments[1])
        self._run = compiled(name, alternative.program)
        self._kept = _kept_calls(alternative.program, self._run)

    @property
    def structured_outputs(self) -> dict[str, TensorSpec]:
        """Specs of the results by name."""
        specs = self._alternative.program.out_specs
        structure = self._alternative.structure
        found = {n: specs[s.index] if isinstance(s, Slot) else s for n, s in structure.items()}
        return {
            n: TensorSpec(s.shape, s.dtype, n) if isinstance(s, TensorSpec) else s
            for n, s in found.items()
        }

    @property
    def captured_inputs(self) -> list[Any]:
        """Variables and constants that it uses."""
        return list(self._alternative.program.captures)

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Runs it.

        Raises:
          TypeError: when a tensor is missing, unknown, or has another dtype or shape.
        """
        specs = self.structured_input_signature[1]
        if args and len(args) == len(specs) == 1:
            kwargs, args = {next(iter(specs)): args[0]}, ()
        if args or set(kwargs) != set(specs):
            raise TypeError(
                f"signature {self.name} takes the tensors {sorted(specs)} by name, got "
                f"{len(args)} without a name and {sorted(kwargs)}."
            )
        tensors = self._alternative.tensors_of((), {name: kwargs[name] for name in specs})
        if tensors is None:
            raise TypeError(f"signature {self.name} takes {specs}, got {kwargs}.")
        results = self._kept(tensors) if self._kept is not None else None
        if results is None:
            return self._run(*tensors)
        return nest.pack_sequence_as(self._alternative.structure, results)


def _kept_calls(program: Program, run: Any) -> KeptCalls | None:
    """Calls of a program by what the cache keeps, unless it is none of those that are kept."""
    if program.about is None or program.on_host:
        return None
    return KeptCalls(program.about, program.captures, lambda t: run.get_concrete_function(*t))
