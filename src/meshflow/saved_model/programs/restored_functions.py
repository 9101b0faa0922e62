"""Loaded functions: programs of files, and dispatch to the program that fits the arguments."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax.export
import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.functions.function import Function
from meshflow.core.functions.general_traces import list_declared_sizes
from meshflow.core.functions.signatures import Args, Kwargs
from meshflow.core.runtime.context import context, suspend_autocast
from meshflow.core.runtime.errors import (
    DataLossError,
    InvalidArgumentError,
    UnimplementedError,
)
from meshflow.core.tracing.trace import CompositeResultSlot, TracedFunction, fill_slots
from meshflow.core.values import nest
from meshflow.core.values.composite import is_composite_spec
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, read_tensors
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.interpreter.table import EXPANSIONS
from meshflow.ops.deferred_host_values import DeferredValue
from meshflow.saved_model.manifest.composite_values import list_component_specs, list_components
from meshflow.saved_model.manifest.json_structures import unpack_structure
from meshflow.saved_model.programs.module_ops import expand_call, read_jaxpr
from meshflow.saved_model.programs.module_reader import trace_program
from meshflow.saved_model.programs.stablehlo import get_static_sizes, specialize_program

# The first runs of a program are op by op.
EXPANSIONS["call_exported"] = expand_call


class RestoredProgram(Protocol):
    """Interface of the programs that loaded functions run."""

    @property
    def out_specs(self) -> list[TensorSpec]:
        """Return the specs of the results. Sizes that depend on the arguments are None."""

    @property
    def captures(self) -> list[Any]:
        """Return the captured variables and constants."""

    @property
    def runs_on_host(self) -> bool:
        """Return whether the program calls the host while it runs, so that it cannot be compiled."""

    @property
    def digest(self) -> bytes | None:
        """Return bytes that identify the program in files, or None if it is never compiled."""

    def call(self, tensors: Sequence[Tensor]) -> PyTree:
        """Run the program, including its assignments to variables."""


class StableHLOProgram:
    """Program that was exported as StableHLO.

    Args:
      name: Name of the function.
      structure: Nested result with `TensorSlot`s.
      count: Number of outputs that are results.
      exported: Function that returns the program. It is called on first use.
      captures: Captured variables and constants.
      writes: Variables that the program assigns to.
      digest: Bytes that identify the program in files.
    """

    runs_on_host = False

    def __init__(
        self,
        name: str,
        structure: PyTree,
        count: int,
        exported: Callable[[], jax.export.Exported],
        captures: list[Any],
        writes: list[Any],
        digest: bytes,
    ) -> None:
        self.captures = captures
        self.digest = None if writes else digest
        self._name, self._structure, self._count = name, structure, count
        self._exported, self._writes = exported, [_AssignedVariable(v) for v in writes]
        self._traced_by_shapes: dict[Any, TracedFunction] = {}

    @property
    def out_specs(self) -> list[TensorSpec]:
        """Return the specs of the results. Sizes that depend on the arguments are None."""
        avals = self._exported().out_avals[: self._count]
        return [TensorSpec(get_static_sizes(a.shape), a.dtype) for a in avals]

    @property
    def argument_specs(self) -> list[TensorSpec]:
        """Return the specs of the arguments. Unknown sizes are None."""
        exported = self._exported()
        avals = exported.in_avals[: len(exported.in_avals) - len(self.captures)]
        return [TensorSpec(get_static_sizes(a.shape), a.dtype) for a in avals]

    def call(self, tensors: Sequence[Tensor]) -> PyTree:
        """Run the program for the sizes of the arguments, including its assignments to variables."""
        key = tuple([t.array.shape for t in tensors])
        is_symbolic = any(is_symbolic_dim(size) for shape in key for size in shape)
        traced = None if is_symbolic else self._traced_by_shapes.get(key)
        if traced is None:
            exported = self._exported()
            counts = len(exported.in_avals), len(exported.out_avals)
            expected = len(tensors) + len(self.captures), self._count + len(self._writes)
            if counts != expected:
                raise DataLossError(
                    f"{self._name}: the program in the file takes and returns {counts} arrays, but the manifest describes {expected}."
                )
            for shape, aval in zip(key, exported.in_avals, strict=False):
                # Sizes of a signature may be unknown, although the program combines them with known ones.
                known = [(n, m) for n, m in zip(shape, aval.shape, strict=True) if type(m) is int]
                if any(type(n) is int and n != m for n, m in known):
                    raise InvalidArgumentError(
                        f"{self._name}: Incompatible shapes: got an argument of shape {list(shape)}, but the saved program "
                        f"combines it with tensors that require the shape {get_static_sizes(aval.shape)}."
                    )
            with suspend_autocast():
                captured = read_tensors(self.captures)
            arguments, captures = [t.array for t in tensors], [t.array for t in captured]
            if is_symbolic and not context.exporting:
                # The program runs op by op.
                outputs = apply(self._read_op(exported), (list(tensors), captured))
                for variable, value in zip(self._writes, outputs[self._count :], strict=True):
                    variable._write(value)
                return fill_slots(self._structure, outputs[: self._count])
            closed = None
            if any(size == 0 for shape in key for size in shape):
                # Symbols of a program may be at least 1, and its loops take a row, so the ops are read for a size of 0.
                with contextlib.suppress(UnimplementedError):
                    closed = read_jaxpr(exported, [*arguments, *captures])
            closed = closed or specialize_program(exported, arguments, captures)
            traced = TracedFunction(
                self._name, closed, self.captures, self._writes, self._structure, self._count
            )
            self._traced_by_shapes[key] = traced
        return traced.call(tensors)

    def _read_op(self, exported: jax.export.Exported) -> Op:
        """Return an op with the ops of the program, of the operands ([arguments], [captures])."""

        def call(operands: Sequence[Any], _: tuple[Any, ...]) -> list[Any]:
            arguments, captures = operands
            return trace_program(exported, [*arguments, *captures])

        return Op(self._name, call, heavy=True, is_opaque=True)


class _AssignedVariable:
    """Variable that a program assigns to, in the form that `TracedFunction` takes.

    Shards and hosted variables are updated by `assign`.

    Args:
      variable: The variable.
    """

    def __init__(self, variable: Variable) -> None:
        self._variable = variable

    def _write(self, value: Tensor) -> None:
        self._variable.assign(value)


class Alternative:
    """Saved function for one of its signatures.

    Args:
      arguments: (args, kwargs) with specs for tensors and composite tensors.
      structure: Nested result with slots of tensors and composite tensors.
      program: Program of the function.
    """

    def __init__(self, arguments: PyTree, structure: PyTree, program: RestoredProgram) -> None:
        self.arguments, self.structure, self.program = arguments, structure, program
        self._specs = nest.flatten(arguments)
        self._run: Callable[..., Any] | None = None

    @functools.cached_property
    def has_composites(self) -> bool:
        """Return whether an argument or a result is a composite tensor."""
        leaves = nest.flatten((self.arguments, self.structure))
        return any(
            (isinstance(leaf, CompositeResultSlot) or is_composite_spec(leaf)) for leaf in leaves
        )

    def match_tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """Return the tensors among the arguments of a call, or None if the call does not fit.

        Specs in the arguments represent tensors.
        """
        try:
            parts = nest.flatten_up_to(self.arguments, (args, kwargs))
        except (TypeError, ValueError):
            return None
        tensors: list[Any] = []
        for spec, value in zip(self._specs, parts, strict=True):
            if is_composite_spec(spec):
                if not spec.is_compatible_with(value):
                    return None
                tensors += list_components(spec, value)
            elif isinstance(spec, TensorSpec):
                tensor = _convert_to_spec(spec, value)
                if tensor is None:
                    return None
                tensors.append(tensor)
            elif (
                isinstance(value, (Tensor, DeferredValue, np.ndarray, TensorSpec)) or value != spec
            ):
                return None
        return tensors

    def call(self, tensors: Sequence[Tensor]) -> PyTree:
        """Run the program. The function of the components of composite arguments is traced once for all sizes."""
        if not self.has_composites:
            return self.program.call(tensors)
        if self._run is None:
            self._run = compile_program("saved_function", self.program, self.arguments)
        return self._run(*tensors)


def _convert_to_spec(spec: TensorSpec, value: Any) -> Tensor | TensorSpec | DeferredValue | None:
    """Convert a value to a tensor that is compatible with a spec; return None if it is not."""
    if isinstance(value, TensorSpec):
        return (
            value
            if value.dtype is spec.dtype and spec.shape.is_compatible_with(value.shape)
            else None
        )
    if isinstance(value, DeferredValue):
        # A string of a function that is being saved again.
        return value if spec.is_compatible_with(value.spec) else None
    try:
        tensor = convert_to_tensor(value, dtype_hint=spec.dtype)
    except (TypeError, ValueError):
        return None
    return tensor if spec.is_compatible_with(tensor) else None


class RankDispatchProgram:
    """Program of a function that was saved for each rank of its arguments.

    Args:
      alternatives: The function for each rank.
    """

    digest = None

    def __init__(self, alternatives: Sequence[Alternative]) -> None:
        self._alternatives = alternatives
        self.runs_on_host = any(a.program.runs_on_host for a in alternatives)

    @property
    def out_specs(self) -> list[TensorSpec]:
        """Return the specs of the results, with unknown shapes."""
        return [TensorSpec(None, s.dtype) for s in self._alternatives[0].program.out_specs]

    @property
    def captures(self) -> list[Any]:
        """Return the captured variables and constants."""
        return list({id(c): c for a in self._alternatives for c in a.program.captures}.values())

    def call(self, tensors: Sequence[Tensor]) -> PyTree:
        """Run the program for the ranks of the tensors.

        Raises:
          ValueError: If there is none.
        """
        for alternative in self._alternatives:
            specs = list_component_specs(alternative.arguments)
            if all(s.is_compatible_with(t) for s, t in zip(specs, tensors, strict=True)):
                return alternative.call(tensors)
        raise ValueError(
            f"The saved function has no program for tensors of the shapes {[t.shape for t in tensors]}."
        )


class SignatureMismatchError(ValueError, TypeError):
    """Error for arguments for which a function was not saved.

    TensorFlow raises ValueError, or TypeError if there is an input signature.
    """


class AlternativeDispatcher:
    """Callable that selects the alternative that fits the arguments.

    Args:
      name: Name of the function.
      parameters: [name] or [name, packed default] of each parameter that may be passed by position.
      alternatives: The function for each signature.
      keywords: The same as `parameters` for parameters that must be passed by name.
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

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Run the alternative that fits the arguments; raise MismatchError if none does."""
        alternative, tensors = self.select(args, kwargs)
        return alternative.call(tensors)

    def select(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Alternative, list[Any]]:
        """Select the alternative for the arguments of a call, and the tensors that it takes.

        Args:
          args: Positional arguments. Specs represent tensors.
          kwargs: Keyword arguments.

        Raises:
          MismatchError: If no alternative fits.
        """
        for positional, named in self._iterate_call_forms(args, kwargs):
            for alternative in self.alternatives:
                tensors = alternative.match_tensors(positional, named)
                if tensors is not None:
                    return alternative, tensors
        if not self.alternatives:
            raise SignatureMismatchError(
                f"Found zero restored functions for caller function: {self.__name__} was neither called nor given an "
                "input_signature before it was saved."
            )
        options = "\n".join(
            f"  Option {i}: {a.arguments[0]}, {a.arguments[1]}"
            for i, a in enumerate(self.alternatives, 1)
        )
        raise SignatureMismatchError(
            f"Could not find matching concrete function to call loaded from the SavedModel: {self.__name__} got "
            f"{args}, {kwargs}. Expected one of {len(self.alternatives)} option(s):\n{options}"
        )

    def get_common_arguments(self) -> PyTree:
        """Return the arguments of all alternatives, or None if they differ in more than shapes.

        If the shapes differ, they are unknown in the result.
        """
        if len(self.alternatives) == 1:
            return self.alternatives[0].arguments
        arguments = [nest.map_structure(_remove_shape, a.arguments) for a in self.alternatives]
        return arguments[0] if arguments and all(a == arguments[0] for a in arguments) else None

    def _iterate_call_forms(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Yield the call as it is, and with defaults and keyword arguments in their positions."""
        yield args, kwargs
        keywords, full = dict(kwargs), list(args)
        num_explicit = len(full)
        for name, *default in self.parameters[len(args) :]:
            if name in keywords:
                full.append(keywords.pop(name))
                num_explicit = len(full)
            elif default:
                full.append(unpack_structure(default[0]))
            else:
                break
        defaults = {name: unpack_structure(default) for name, default in self.keywords}
        # The function may have been traced without some of the defaults.
        for end in range(len(full), num_explicit - 1, -1):
            if defaults:
                yield tuple(full[:end]), {**defaults, **keywords}
            yield tuple(full[:end]), keywords


def _remove_shape(leaf: PyTree) -> PyTree:
    return TensorSpec(None, leaf.dtype, leaf.name) if isinstance(leaf, TensorSpec) else leaf


class _ProgramRunner:
    """Callable that runs a program, for `tf.function`."""

    is_stored_program = True

    def __init__(self, name: str, program: RestoredProgram) -> None:
        self.__name__ = name
        self._program = program

    def __call__(self, *tensors: Tensor) -> PyTree:
        return self._program.call(tensors)


def compile_program(
    name: str, program: RestoredProgram, arguments: PyTree = ()
) -> Callable[..., Any]:
    """Return a program as a function of tensors, a `tf.function` unless it calls the host.

    Args:
      name: Name of the function.
      program: The program.
      arguments: Specs of its arguments. Their unknown sizes are symbols from the first call on.
    """
    run = _ProgramRunner(name, program)
    if program.runs_on_host:
        return run
    compiled = Function(run, autograph=False, reduce_retracing=True)
    compiled._signature_sizes = list_declared_sizes(list_component_specs(arguments))
    return compiled


class LazyProgram:
    """Callable that runs a program between steps on the host. It reads the program at the first call.

    Args:
      name: Name of the function.
      program: Program that returns a list.
    """

    def __init__(self, name: str, program: StableHLOProgram) -> None:
        self._name, self._program = name, program

    @functools.cached_property
    def _run(self) -> Callable[..., list[Tensor]]:
        return compile_program(self._name, self._program, self._program.argument_specs)

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Run the program."""
        return self._run(*tensors)


class RestoredFunction(Function):
    """A `tf.function` of the alternatives that were saved."""

    def _find_declared_sizes(self, args: Args, kwargs: Kwargs) -> list[Any]:
        choice: AlternativeDispatcher = self._python_function  # type: ignore[assignment]
        alternative, _ = choice.select(args, dict(kwargs))
        return list_declared_sizes(alternative.arguments)

    @property
    def concrete_functions(self) -> list[Any]:
        """Return a concrete function for each signature for which the function was saved."""
        choice: AlternativeDispatcher = self._python_function  # type: ignore[assignment]
        arguments = [a.arguments for a in choice.alternatives]
        return [self.get_concrete_function(*args, **kwargs) for args, kwargs in arguments]

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """Return a concrete function for one of the signatures for which the function was saved.

        Raises:
          ValueError: If no signature fits the arguments, or if there are no arguments but several
            signatures.
        """
        choice: AlternativeDispatcher = self._python_function  # type: ignore[assignment]
        if not args and not kwargs:
            args, kwargs = choice.get_common_arguments() or (args, kwargs)
        choice.select(args, kwargs)
        return super().get_concrete_function(*args, **kwargs)


def make_restored_function(choice: AlternativeDispatcher) -> RestoredFunction:
    """Return a `tf.function` of the alternatives."""
    restored = RestoredFunction(choice, autograph=False)
    specs = [s for a in choice.alternatives for s in nest.flatten(a.arguments)]
    restored._reduce_retracing = any(
        isinstance(s, TensorSpec) and not s.shape.is_fully_defined() for s in specs
    )
    # A compiled program cannot take or return sparse tensors.
    restored._runs_op_by_op = any(
        a.program.runs_on_host or a.has_composites for a in choice.alternatives
    )
    return restored
