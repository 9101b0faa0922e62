"""Types of `tf.function` for editors and type checkers, which keep the signature of the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from meshflow.core.functions.concrete_function import ConcreteFunction

Parameters = ParamSpec("Parameters")
_OtherParameters = ParamSpec("_OtherParameters")
Result = TypeVar("Result", covariant=True)


class Polymorphic(Protocol[Parameters, Result]):
    """A compiled function; at run time it is a `meshflow.core.functions.function.Function`."""

    input_signature: tuple[Any, ...] | None

    @property
    def python_function(self) -> Callable[..., Any]:
        """Return the original function; for a method, bound to its object."""

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """Call the compiled function with the parameters of the original one."""

    def __get__(
        self: Polymorphic[Concatenate[Any, _OtherParameters], Result],
        instance: object,
        owner: type | None = None,
    ) -> Polymorphic[_OtherParameters, Result]: ...

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """Return the traced function for arguments or specs."""

    def experimental_get_tracing_count(self) -> int:
        """Return how often the Python function has been traced."""

    def pretty_printed_signatures(self) -> str:
        """Format the signatures of all traces, for debugging."""
