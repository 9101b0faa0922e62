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
    def python_function(self) -> Callable[..., Any]: ...

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result: ...

    def __get__(
        self: Polymorphic[Concatenate[Any, _OtherParameters], Result],
        instance: object,
        owner: type | None = None,
    ) -> Polymorphic[_OtherParameters, Result]: ...

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction: ...

    def experimental_get_tracing_count(self) -> int: ...

    def pretty_printed_signatures(self) -> str: ...
