"""Loaded functions of one signature: concrete functions and serving signatures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from meshflow.core.functions.cached_calls import CachedCalls
from meshflow.core.functions.signed_function import SignedFunction
from meshflow.core.runtime.errors import DtypeMismatchError
from meshflow.core.tracing.trace import fill_slots
from meshflow.core.values import nest
from meshflow.core.values.composite import is_composite_spec
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree
from meshflow.saved_model.manifest.composite_values import replace_slots
from meshflow.saved_model.programs.restored_functions import (
    Alternative,
    RestoredProgram,
    compile_program,
)


class RestoredConcreteFunction(SignedFunction):
    """Concrete function that was saved as an attribute.

    Args:
      name: Its name.
      alternative: The saved function.
      parameters: Names of the parameters that may be passed by position.
    """

    def __init__(self, name: str, alternative: Alternative, parameters: Sequence[str] = ()) -> None:
        self.name = name
        self._alternative, self._parameters = alternative, parameters
        self.structured_input_signature = alternative.arguments
        self._run = compile_program(name, alternative.program, alternative.arguments)

    @property
    def structured_outputs(self) -> PyTree:
        """Return the nested result with specs for tensors."""
        return replace_slots(self._alternative.structure, self._alternative.program.out_specs)

    @property
    def captured_inputs(self) -> list[Any]:
        """Return the captured variables and constants."""
        return list(self._alternative.program.captures)

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Run the function.

        Raises:
          TypeError: If an argument is missing, unknown, or of the wrong type. The latter is also an
            `InvalidArgumentError`.
        """
        specs = self._specs
        tensor_arguments = iter(self._match_arguments(specs, args, kwargs))
        leaves = [
            next(tensor_arguments)
            if (isinstance(leaf, TensorSpec) or is_composite_spec(leaf))
            else leaf
            for leaf in nest.flatten(self.structured_input_signature)
        ]
        full = nest.pack_sequence_as(self.structured_input_signature, leaves)
        tensors = self._alternative.match_tensors(*full)
        if tensors is None:
            raise DtypeMismatchError(
                f"{self.name} takes {self.structured_input_signature}, got {args}, {kwargs}."
            )
        return self._run(*tensors)


class RestoredSignature(RestoredConcreteFunction):
    """Signature of a saved object, which takes tensors by name and returns a dictionary of tensors.

    Attributes:
      name: Its name.
      structured_input_signature: ((), specs by name).
    """

    def __init__(self, name: str, alternative: Alternative) -> None:
        super().__init__(name, alternative)
        self.structured_input_signature = ((), alternative.arguments[1])
        self._cached_calls = _make_cached_calls(alternative.program, self._run)

    def disable_interpreter(self) -> None:
        """Compile the function for its next run, for servers."""
        if self._cached_calls is not None:
            self._cached_calls.interprets = False

    @property
    def has_unknown_sizes(self) -> bool:
        """Check whether sizes of the results may depend on the values of the arguments."""
        return getattr(self._alternative.program, "has_unknown_sizes", False)

    @property
    def structured_outputs(self) -> dict[str, TensorSpec]:
        """Return the specs of the results by name."""
        outputs = super().structured_outputs
        return {
            n: TensorSpec(s.shape, s.dtype, n) if isinstance(s, TensorSpec) else s
            for n, s in outputs.items()
        }

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Run the function.

        Raises:
          TypeError: If a tensor is missing, unknown, or has another dtype or shape. The latter is
            also an `InvalidArgumentError`.
        """
        specs = self.structured_input_signature[1]
        if args and len(args) == len(specs) == 1:
            kwargs, args = {next(iter(specs)): args[0]}, ()
        if args or set(kwargs) != set(specs):
            raise TypeError(
                f"signature {self.name} takes the tensors {sorted(specs)} by name, got "
                f"{len(args)} without a name and {sorted(kwargs)}."
            )
        tensors = self._alternative.match_tensors((), {name: kwargs[name] for name in specs})
        if tensors is None:
            raise DtypeMismatchError(f"signature {self.name} takes {specs}, got {kwargs}.")
        results = self._cached_calls(tensors) if self._cached_calls is not None else None
        if results is None:
            return self._run(*tensors)
        return fill_slots(self._alternative.structure, results)


def _make_cached_calls(program: RestoredProgram, run: Callable[..., Any]) -> CachedCalls | None:
    """Return calls through cached executables, or None if the program is not cached."""
    if program.digest is None or program.runs_on_host:
        return None
    traced: Any = run
    return CachedCalls(
        program.digest,
        program.captures,
        lambda tensors: traced.get_concrete_function(*tensors),
        lambda tensors: traced.find_general_for(tuple(tensors), {}),
    )


class SignatureMap(Mapping[str, Callable[..., Any]]):
    """Immutable mapping with the signatures of a loaded object by name.

    Args:
      signatures: Functions by name.
    """

    def __init__(self, signatures: Mapping[str, Callable[..., Any]]) -> None:
        self._signatures = dict(signatures)

    def __getitem__(self, key: str) -> Callable[..., Any]:
        return self._signatures[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._signatures)

    def __len__(self) -> int:
        return len(self._signatures)

    def __repr__(self) -> str:
        return f"_SignatureMap({self._signatures})"
