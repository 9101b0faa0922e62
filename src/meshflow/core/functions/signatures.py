"""Names, matching and descriptions of the arguments of traced functions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Signature = tuple[Args, Kwargs]


def name_specs(signature: Signature, names: Sequence[str]) -> Signature:
    """Name the specs without a name after their parameters.

    Args:
      signature: (args, kwargs) with `TensorSpec`s for tensors.
      names: Names of the positional parameters, in order.

    Raises:
      ValueError: If names of keywords differ only in characters that are not allowed in names of specs.

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
    if len({re.sub(r"\W", "_", name) for name in kwargs}) < len(kwargs):
        raise ValueError(
            "Name collision after sanitization. Rename the parameters of the tf.function, which differ only in "
            f"characters that are not allowed in names: {sorted(kwargs)}."
        )
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
        raise TypeError(
            f"{function}: too many positional arguments: it takes {len(positional)}, got {len(args)}."
        )
    parameters = [
        (names[i] if i < len(names) else f"varargs_{i - len(names)}", value)
        for i, value in enumerate(positional)
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
            raise TypeError(f"{function}: missing a required argument: {name!r}.")
        else:
            continue
        values.extend(_list_tensor_leaves(function, name, template, value))
    if remaining:
        unexpected = ", ".join(map(repr, sorted(remaining)))
        plural = "an unexpected keyword argument" if len(remaining) == 1 else "unexpected arguments"
        raise TypeError(f"{function} got {plural} {unexpected}.")
    return values


def _list_tensor_leaves(function: str, name: str, template: PyTree, value: PyTree) -> list[Any]:
    """Return the tensors of an argument; the other parts must be equal to those in the trace."""
    try:
        parts = nest.flatten_up_to(template, value)
    except ValueError as error:
        kind = "a Dict" if isinstance(template, Mapping) else type(template).__name__
        raise TypeError(
            f"Binding inputs to tf.function failed due to `Can not cast {value!r} to {kind}`. Argument {name!r} of "
            f"{function}: {error}"
        ) from None
    leaves = []
    for leaf, part in zip(nest.flatten(template), parts, strict=True):
        if isinstance(leaf, TypeSpec):
            leaves.append(part)
        elif leaf is not part and leaf != part:
            raise TypeError(
                f"Binding inputs to tf.function failed due to `Can not cast {part!r} to {leaf!r}`. {function} was traced "
                f"with {name}={leaf!r}, but was called with {part!r}. Call the tf.function, or get another concrete function."
            )
    return leaves


def _parameters(signature: Signature, names: Sequence[str]) -> list[tuple[str, Any]]:
    args, kwargs = signature
    named = [(names[i] if i < len(names) else f"args_{i}", value) for i, value in enumerate(args)]
    return [*named, *kwargs.items()]


class FunctionSpec:
    """Parameters of a `tf.function`, or of one of its concrete functions.

    Args:
      function_type: The parameters, with their defaults.
      input_signature: Specs of the arguments, or None.
      name: Name of the function.
      jit_compile: Whether the function is compiled at once.

    Example:
      >>> import meshflow as tf
      >>> spec = tf.function(lambda a, b=2: a + b).function_spec
      >>> spec.arg_names, spec.default_values, spec.fullargspec.defaults
      (['a', 'b'], {'b': 2}, (2,))
    """

    is_pure = False

    def __init__(
        self,
        function_type: inspect.Signature,
        input_signature: Sequence[Any] | None,
        name: str,
        jit_compile: bool | None = None,
    ) -> None:
        self.function_type, self.jit_compile = function_type, jit_compile
        self.input_signature = None if input_signature is None else tuple(input_signature)
        self._name = name

    @property
    def fullargspec(self) -> inspect.FullArgSpec:
        """Return the parameters as `inspect.getfullargspec` does."""

        def function() -> None: ...

        function.__signature__ = self.function_type  # type: ignore[attr-defined]
        return inspect.getfullargspec(function)

    @property
    def arg_names(self) -> list[str]:
        """Return the names of the positional parameters."""
        return self.fullargspec.args

    @property
    def default_values(self) -> dict[str, Any]:
        """Return the defaults by the names of the parameters that have one."""
        parameters = self.function_type.parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}

    @property
    def flat_input_signature(self) -> tuple[Any, ...]:
        """Return the specs of the arguments without their structure."""
        return tuple(nest.flatten(self.input_signature or ()))

    def signature_summary(self, default_values: bool = False) -> str:
        """Return the parameters as text, for messages."""
        names = (
            str(p if default_values else p.replace(default=p.empty, annotation=p.empty))
            for p in self.function_type.parameters.values()
        )
        return f"{self._name}({', '.join(names)})"


class Parameter(inspect.Parameter):
    """Parameter of a traced function; its annotation is the type of the argument."""

    @property
    def type_constraint(self) -> PyTree:
        """The spec of a tensor, a structure of them, or the literal value of another argument."""
        return self.annotation

    @property
    def optional(self) -> bool:
        """Whether the parameter has a default."""
        return self.default is not self.empty


class FunctionType(inspect.Signature):
    """Parameters and results of a traced function, with the types of tensors as annotations."""

    _parameter_cls = Parameter

    @property
    def output(self) -> PyTree:
        """The type of the result."""
        return self.return_annotation


def make_function_type(signature: Signature, names: Sequence[str], outputs: PyTree) -> FunctionType:
    """Return the parameters of a traced function, annotated with the types of its arguments.

    Args:
      signature: (args, kwargs) with specs for tensors.
      names: Names of the positional parameters, in order.
      outputs: The results, with specs for tensors.
    """
    args, kwargs = signature
    make = Parameter
    # Values of `*args` have no name in the function.
    is_named = len(args) <= len(names)
    positional = make.POSITIONAL_OR_KEYWORD if is_named else make.POSITIONAL_ONLY
    kinds = [positional] * len(args) + [make.KEYWORD_ONLY] * len(kwargs)
    parameters = [
        make(name, kind, annotation=_annotate(value, name))
        for (name, value), kind in zip(_parameters(signature, names), kinds, strict=True)
    ]
    return FunctionType(parameters, return_annotation=_annotate(outputs))


def format_function_type(function_type: FunctionType, captures: Mapping[int, Any]) -> str:
    r"""Describe the parameters, results and captured tensors of a traced function, in several lines.

    Args:
      function_type: Its parameters: see `make_function_type`.
      captures: The specs of the tensors and variables that it uses, by the ids of these.

    Example:
      >>> double = tf.function(lambda a: a + a)
      >>> print(double.get_concrete_function(tf.constant(1)).pretty_printed_signature())
      Input Parameters:
        a (POSITIONAL_OR_KEYWORD): TensorSpec(shape=(), dtype=tf.int32, name=None)
      Output Type:
        TensorSpec(shape=(), dtype=tf.int32, name=None)
      Captures:
        None
    """
    parameters = function_type.parameters.values()
    lines = [
        "Input Parameters:",
        *(f"  {p.name} ({p.kind.name}): {p.annotation}" for p in parameters),
        "Output Type:",
        f"  {function_type.return_annotation}",
        "Captures:",
        *([f"  {key}: {spec}" for key, spec in captures.items()] or ["  None"]),
    ]
    return "\n".join(lines)


def _annotate(value: PyTree, name: str | None = None) -> PyTree:
    """Return a spec itself, without the name of its parameter, and text for other types."""
    if isinstance(value, TensorSpec) and value.name == name:
        return TensorSpec(value.shape, value.dtype)
    return value if isinstance(value, TypeSpec) else _Annotation(value)


class _Annotation:
    """The text for a structure of specs and Python values, which annotates a parameter."""

    def __init__(self, value: PyTree) -> None:
        self._value = value

    def __repr__(self) -> str:
        return self._format(self._value)

    def _format(self, value: PyTree) -> str:
        if isinstance(value, TypeSpec):
            return repr(value)
        if isinstance(value, Variable):
            kind = f"dtype={value.dtype!r}, trainable={value.trainable}"
            return f"VariableSpec(shape={value.shape}, {kind}, alias_id=0)"
        fields = getattr(value, "_fields", None) if isinstance(value, tuple) else None
        if fields is not None or isinstance(value, dict):
            name = type(value).__name__ if fields is not None else "Dict"
            items = zip(fields, value, strict=True) if fields is not None else value.items()
            return f"{name}[{', '.join(f'[{k!r}, {self._format(v)}]' for k, v in items)}]"
        if isinstance(value, (list, tuple)):
            return f"{type(value).__name__.title()}[{', '.join(map(self._format, value))}]"
        return f"Literal[{value!r}]"
