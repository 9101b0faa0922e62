"""Saved functions: programs of files, and the alternative that fits a call's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlicesSpec, SparseTensorSpec
from meshflow.core.functions.function import Function, function
from meshflow.core.runtime.context import as_stored
from meshflow.core.tracing.trace import RowsSlot, Traced
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.ops.deferred_host_values import Pending
from meshflow.saved_model.programs import known_sizes, program_for
from meshflow.saved_model.structures import unpacked

__all__ = [
    "COMPOSITES",
    "Alternative",
    "ByRank",
    "Choice",
    "MismatchError",
    "Program",
    "StableProgram",
    "compiled",
    "restored_function",
]


# Specs of what is several tensors.
COMPOSITES = SparseTensorSpec, IndexedSlicesSpec


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

    @property
    def has_composites(self) -> bool:
        """Whether it takes or gives sparse tensors, or `tf.IndexedSlices`."""
        leaves = nest.flatten((self.arguments, self.structure))
        return any(isinstance(leaf, (*COMPOSITES, RowsSlot)) for leaf in leaves)

    def tensors_of(self, args: Any, kwargs: Any) -> list[Any] | None:
        """The tensors among the arguments of a call, or None when it does not fit; specs stand for tensors."""
        try:
            parts = nest.flatten_up_to(self.arguments, (args, kwargs))
        except (TypeError, ValueError):
            return None
        tensors: list[Any] = []
        for spec, value in zip(nest.flatten(self.arguments), parts, strict=True):
            if isinstance(spec, COMPOSITES):
                if not spec.is_compatible_with(value) or isinstance(value, COMPOSITES):
                    return None
                tensors += spec._to_components(value)
            elif isinstance(spec, TensorSpec):
                tensor = _fitting(spec, value)
                if tensor is None:
                    return None
                tensors.append(tensor)
            elif isinstance(value, (Tensor, Pending, np.ndarray, TensorSpec)) or value != spec:
                return None
        return tensors

    def call(self, tensors: Sequence[Tensor]) -> Any:
        """Runs it."""
        return self.program.call(tensors)


def _fitting(spec: TensorSpec, value: Any) -> Any:
    """A value as what a spec takes, or None."""
    if isinstance(value, TensorSpec):
        return (
            value
            if value.dtype is spec.dtype and spec.shape.is_compatible_with(value.shape)
            else None
        )
    if isinstance(value, Pending):
        # Strings of a function that is saved again.
        return value if spec.is_compatible_with(value.spec) else None
    try:
        tensor = convert_to_tensor(value, dtype_hint=spec.dtype)
    except (TypeError, ValueError):
        return None
    return tensor if spec.is_compatible_with(tensor) else None


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


class MismatchError(ValueError, TypeError):
    """A loaded function was not saved for such arguments; TensorFlow raises ValueError, or TypeError by an input signature."""


class Choice:
    """Calls the alternative that fits.

    Args:
      name: the function's name.
      parameters: [name] or [name, packed default] of those that may be given by position.
      alternatives: what it does for each signature.
      keywords: those that are given by name, likewise.
    """

    is_stored_program = True

    def __init__(
        self,
        name: str,
        parameters: list[Any],
        alternatives: list[Alternative],
        keywords: Sequence[Any] = (),
    ) -> None:
        self.__name__ = name
        self.parameters, self.keywords = parameters, list(keywords)
        self.alternatives = alternatives

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        alternative, tensors = self.fitting(args, kwargs)
        return alternative.call(tensors)

    def fitting(self, args: Any, kwargs: Any) -> tuple[Alternative, list[Any]]:
        """The alternative for the arguments of a call, and the tensors that it takes.

        Args:
          args: positional arguments; specs stand for tensors.
          kwargs: arguments by name.

        Raises:
          MismatchError: when there is none.
        """
        for positional, named in self._forms(args, kwargs):
            for alternative in self.alternatives:
                tensors = alternative.tensors_of(positional, named)
                if tensors is not None:
                    return alternative, tensors
        if not self.alternatives:
            raise MismatchError(
                f"Found zero restored functions for caller function: {self.__name__} was neither called nor given an "
                "input_signature before it was saved."
            )
        options = "\n".join(
            f"  Option {i}: {a.arguments[0]}, {a.arguments[1]}"
            for i, a in enumerate(self.alternatives, 1)
        )
        raise MismatchError(
            f"Could not find matching concrete function to call loaded from the SavedModel: {self.__name__} got "
            f"{args}, {kwargs}. Expected one of {len(self.alternatives)} option(s):\n{options}"
        )

    def only_arguments(self) -> Any:
        """The arguments of all alternatives, of unknown shapes where these differ; None when more differs."""
        if len(self.alternatives) == 1:
            return self.alternatives[0].arguments
        found = [nest.map_structure(_without_shape, a.arguments) for a in self.alternatives]
        return found[0] if found and all(other == found[0] for other in found) else None

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
        defaults = {name: unpacked(default) for name, default in self.keywords}
        # The trace need not have been told of all defaults.
        for end in range(len(full), given - 1, -1):
            if defaults:
                yield tuple(full[:end]), {**defaults, **left}
            yield tuple(full[:end]), left


def _without_shape(leaf: Any) -> Any:
    return TensorSpec(None, leaf.dtype, leaf.name) if isinstance(leaf, TensorSpec) else leaf


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


class RestoredFunction(Function):
    """A `tf.function` of the alternatives that were saved."""

    @property
    def concrete_functions(self) -> list[Any]:
        """The function for each of the signatures that it was saved for."""
        choice: Choice = self._python  # type: ignore[assignment]
        given = [a.arguments for a in choice.alternatives]
        return [self.get_concrete_function(*args, **kwargs) for args, kwargs in given]

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        """The function for one of the signatures that it was saved for.

        Raises:
          ValueError: when the arguments fit none of them, or are left out and there are several.
        """
        choice: Choice = self._python  # type: ignore[assignment]
        if not args and not kwargs:
            args, kwargs = choice.only_arguments() or (args, kwargs)
        choice.fitting(args, kwargs)
        return super().get_concrete_function(*args, **kwargs)


def restored_function(choice: Choice) -> RestoredFunction:
    """What loaded functions are: a `tf.function` of the alternatives."""
    made = RestoredFunction(choice, autograph=False)
    # No compiled program takes or gives sparse tensors.
    made._op_by_op = any(a.program.on_host or a.has_composites for a in choice.alternatives)
    return made
