"""Names, matching and descriptions of the arguments of traced functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.environment.types import PyTree

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Signature = tuple[Args, Kwargs]


def name_specs(signature: Signature, names: Sequence[str]) -> Signature:
    """Name the specs without a name after their parameters.

    Args:
      signature: (args, kwargs) with `TensorSpec`s for tensors.
      names: Names of the positional parameters, in order.

    Example:
      >>> from meshflow.core.values.specs import TensorSpec
      >>> from meshflow.core.functions.signatures import name_specs
      >>> name_specs(((TensorSpec([]),), {}), ["x"])[0]
      (TensorSpec(shape=(), dtype=tf.float32, name='x'),)
    """

    def add_name(value: Any, name: str) -> Any:
        is_unnamed = isinstance(value, TensorSpec) and value.name is None
        return TensorSpec(value.shape, value.dtype, name) if is_unnamed else value

    args, kwargs = signature
    named = [add_name(value, name) for value, name in zip(args, names, strict=False)]
    return (*named, *args[len(named) :]), {k: add_name(v, k) for k, v in kwargs.items()}


def match_arguments(
    function: str,
    signature: Signature,
    names: Sequence[str],
    args: Args,
    kwargs: Kwargs,
) -> list[Any]:
    """Return the values for the specs of a signature, from a call in the original function's form.

    Args:
      function: Name of the function, for messages.
      signature: (args, kwargs) with specs for tensors.
      names: Names of the positional parameters, in order.
      args: Positional arguments of the call.
      kwargs: Arguments by the name of a parameter or of its spec.

    Returns:
      One value for each spec.

    Raises:
      TypeError: If an argument is missing or unknown, or differs from the traced value.
    """
    positional, named = signature
    remaining = dict(kwargs)
    values: list[Any] = []
    if len(args) > len(positional):
        raise TypeError(f"{function} takes {len(positional)} arguments, got {len(args)}.")
    parameters = [
        (names[i] if i < len(names) else f"args[{i}]", value) for i, value in enumerate(positional)
    ]
    for i, (name, template) in enumerate([*parameters, *named.items()]):
        spec_name = template.name if isinstance(template, TensorSpec) else None
        if i < len(args):
            value = args[i]
        elif name in remaining:
            value = remaining.pop(name)
        elif spec_name in remaining:
            value = remaining.pop(spec_name)
        elif any(isinstance(leaf, TypeSpec) for leaf in nest.flatten(template)):
            raise TypeError(f"{function} is missing its argument {name!r}.")
        else:
            continue
        values.extend(_list_tensor_leaves(function, name, template, value))
    if remaining:
        raise TypeError(f"{function} got unexpected arguments {sorted(remaining)}.")
    return values


def _list_tensor_leaves(function: str, name: str, template: PyTree, value: PyTree) -> list[Any]:
    """Return the tensors of an argument; the other parts must be equal to those in the trace."""
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


def _parameters(signature: Signature, names: Sequence[str]) -> list[tuple[str, Any]]:
    args, kwargs = signature
    named = [(names[i] if i < len(names) else f"args_{i}", value) for i, value in enumerate(args)]
    return [*named, *kwargs.items()]


def format_heading(function: str, signature: Signature, names: Sequence[str]) -> str:
    """Format the parameters of a traced function, with Python values: `f(x, y=2)`."""
    parameters = [
        name
        if any(isinstance(leaf, TypeSpec) for leaf in nest.flatten(value))
        else f"{name}={value!r}"
        for name, value in _parameters(signature, names)
    ]
    return f"{function}({', '.join(parameters)})"


def format_signature(
    function: str, signature: Signature, names: Sequence[str], outputs: PyTree
) -> str:
    r"""Describe the parameters and results of a traced function, in several lines.

    Example:
      >>> import meshflow as tf
      >>> double = tf.function(lambda a: a + a)
      >>> double.get_concrete_function(tf.constant(1)).pretty_printed_signature().split("\n")
      ['<lambda>(a)', '  Args:', '    a: int32 Tensor, shape=()', '  Returns:', '    int32 Tensor, shape=()']
    """
    lines = [format_heading(function, signature, names)]
    tensors = [
        f"    {name}: {_format_value(value)}"
        for name, value in _parameters(signature, names)
        if any(isinstance(leaf, TypeSpec) for leaf in nest.flatten(value))
    ]
    if tensors:
        lines += ["  Args:", *tensors]
    return "\n".join([*lines, "  Returns:", f"    {_format_value(outputs)}"])


def _format_value(value: PyTree) -> str:
    if isinstance(value, TensorSpec):
        return f"{value.dtype.name} Tensor, shape={value.shape}"
    if nest.is_nested(value):
        return repr(nest.map_structure(_FormattedLeaf, value))
    return repr(value)


class _FormattedLeaf:
    """A leaf with its description as `repr`."""

    def __init__(self, value: PyTree) -> None:
        self._text = _format_value(value)

    def __repr__(self) -> str:
        return self._text
