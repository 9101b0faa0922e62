"""How the arguments of a traced function are named, matched and printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec, TypeSpec


def named_specs(signature: tuple[Any, Any], names: Sequence[str]) -> tuple[Any, Any]:
    """A signature in which the specs without a name have that of their parameter.

    Args:
      signature: (args, kwargs) with `TensorSpec`s for tensors.
      names: the names of the positional parameters, in order.

    Example:
      >>> from meshflow.core.values.specs import TensorSpec
      >>> from meshflow.core.functions.signatures import named_specs
      >>> named_specs(((TensorSpec([]),), {}), ["x"])[0]
      (TensorSpec(shape=(), dtype=tf.float32, name='x'),)
    """

    def named(value: Any, name: str) -> Any:
        plain = isinstance(value, TensorSpec) and value.name is None
        return TensorSpec(value.shape, value.dtype, name) if plain else value

    args, kwargs = signature
    known = [named(value, name) for value, name in zip(args, names, strict=False)]
    return (*known, *args[len(known) :]), {k: named(v, k) for k, v in kwargs.items()}


def match(
    function: str, signature: tuple[Any, Any], names: Sequence[str], args: Any, kwargs: Any
) -> list[Any]:
    """The values for the specs of a signature, from a call that is like the original function's.

    Args:
      function: its name, for messages.
      signature: (args, kwargs) with specs for tensors.
      names: the names of the positional parameters, in order.
      args: positional arguments of the call.
      kwargs: arguments by the name of a parameter or of its spec.

    Returns:
      One value for each spec.

    Raises:
      TypeError: when an argument is missing, unknown, or differs from the Python value traced.
    """
    positional, named = signature
    given = dict(kwargs)
    found: list[Any] = []
    if len(args) > len(positional):
        raise TypeError(f"{function} takes {len(positional)} arguments, got {len(args)}.")
    places = [
        (names[i] if i < len(names) else f"args[{i}]", value) for i, value in enumerate(positional)
    ]
    for i, (name, template) in enumerate([*places, *named.items()]):
        spec_name = template.name if isinstance(template, TensorSpec) else None
        if i < len(args):
            value = args[i]
        elif name in given:
            value = given.pop(name)
        elif spec_name in given:
            value = given.pop(spec_name)
        elif any(isinstance(leaf, TypeSpec) for leaf in nest.flatten(template)):
            raise TypeError(f"{function} is missing its argument {name!r}.")
        else:
            continue
        found.extend(_leaves(function, name, template, value))
    if given:
        raise TypeError(f"{function} got unexpected arguments {sorted(given)}.")
    return found


def _leaves(function: str, name: str, template: Any, value: Any) -> list[Any]:
    """The parts of an argument that are tensors; the others must be as they were when traced."""
    try:
        parts = nest.flatten_up_to(template, value)
    except ValueError as error:
        raise TypeError(f"{function}: argument {name!r}: {error}") from None
    leaves = []
    for leaf, part in zip(nest.flatten(template), parts, strict=True):
        if isinstance(leaf, TypeSpec):
            leaves.append(part)
        elif leaf is not part and leaf != part:
            raise TypeError(
                f"{function} was traced with {name}={leaf!r}, but was called with {part!r}. Call the "
                "tf.function, or get another concrete function."
            )
    return leaves


def heading(function: str, signature: tuple[Any, Any], names: Sequence[str]) -> str:
    """`f(x, y=2)`: the parameters of a traced function, with the Python values of some."""
    positional, named = signature
    parts = [
        (names[i] if i < len(names) else f"args_{i}", value) for i, value in enumerate(positional)
    ]
    shown = [
        name
        if any(isinstance(leaf, TypeSpec) for leaf in nest.flatten(value))
        else f"{name}={value!r}"
        for name, value in [*parts, *named.items()]
    ]
    return f"{function}({', '.join(shown)})"


def describe(function: str, signature: tuple[Any, Any], names: Sequence[str], outputs: Any) -> str:
    """Several lines that say what a traced function takes and returns.

    Example:
      >>> import meshflow as tf
      >>> double = tf.function(lambda a: a + a)
      >>> print(double.get_concrete_function(tf.constant(1)).pretty_printed_signature())
      <lambda>(a)
        Args:
          a: int32 Tensor, shape=()
        Returns:
          int32 Tensor, shape=()
    """
    positional, named = signature
    parts = [
        (names[i] if i < len(names) else f"args_{i}", value) for i, value in enumerate(positional)
    ]
    lines = [heading(function, signature, names)]
    tensors = [
        f"    {name}: {_shown(value)}"
        for name, value in [*parts, *named.items()]
        if any(isinstance(leaf, TypeSpec) for leaf in nest.flatten(value))
    ]
    if tensors:
        lines += ["  Args:", *tensors]
    return "\n".join([*lines, "  Returns:", f"    {_shown(outputs)}"])


def _shown(value: Any) -> str:
    if isinstance(value, TensorSpec):
        return f"{value.dtype.name} Tensor, shape={value.shape}"
    if nest.is_nested(value):
        return repr(nest.map_structure(_Shown, value))
    return repr(value)


class _Shown:
    """A leaf that prints as its description."""

    def __init__(self, value: Any) -> None:
        self._text = _shown(value)

    def __repr__(self) -> str:
        return self._text
