"""Implementations of public functions for types of the user: `tf.experimental.dispatch_for_api`.

The dispatcher of ops (`symbolic_calls`) calls `_call_registered` for every call with an argument of one of
the types in the signatures of dispatchers.
"""

from __future__ import annotations

import inspect
import types as python_types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from meshflow.core.dispatch import symbolic_calls
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree

_EMPTY = inspect.Parameter.empty
F = TypeVar("F", bound=Callable[..., Any])
# A type annotation: a class, a union, or a list of these.
Annotation: TypeAlias = Any
Signature: TypeAlias = Mapping[str, Any]


class _Dispatcher(NamedTuple):
    """An implementation of a public function.

    Attributes:
      target: The function of the user.
      signatures: Types of arguments by name, of which one signature has to match.
      accepts_name: Whether it takes the argument `name` of the public function.
    """

    target: Callable[..., Any]
    signatures: list[Signature]
    accepts_name: bool


# By the innermost function of an API.
_api_dispatchers: dict[Callable[..., Any], list[_Dispatcher]] = {}
# Dispatchers of elementwise functions with the types of their operands, by the class of function.
_elementwise_dispatchers: dict[str, list[tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "unary": [],
    "binary": [],
    "binary assert": [],
}
# Returns the class of an elementwise function, or None; `meshflow.ops` sets it.
_classify: Callable[[Callable[..., Any]], str | None] = lambda function: None


def set_classifier(classify: Callable[[Callable[..., Any]], str | None]) -> None:
    """Set the function that returns "unary", "binary" or "binary assert" for elementwise functions."""
    global _classify
    _classify = classify


def get_origin(annotation: Annotation) -> Annotation:
    """Return the class of a generic alias, or None for other annotations."""
    return typing.get_origin(annotation)


def _list_classes(annotation: Annotation) -> list[type]:
    """List the classes in a type annotation.

    Raises:
      ValueError: If the annotation is neither a class, a union nor a list.
    """
    origin = get_origin(annotation)
    if origin in (typing.Union, python_types.UnionType, list, tuple, Sequence):
        parts = [p for p in typing.get_args(annotation) if p is not Ellipsis]
        return [cls for part in parts for cls in _list_classes(part)]
    if annotation is Any or annotation is TensorLike:
        return []
    if isinstance(annotation, type):
        return [annotation]
    if annotation is None:
        return [type(None)]
    raise ValueError(
        f"Type annotation {annotation!r} is not supported by dispatch. Use classes, List[...] or Union[...]."
    )


def _matches(value: object, annotation: Annotation) -> bool:
    origin, arguments = get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, python_types.UnionType):
        return any(_matches(value, part) for part in arguments)
    if origin in (list, Sequence):
        return isinstance(value, list | tuple) and all(_matches(v, arguments[0]) for v in value)
    if origin is tuple:
        return isinstance(value, tuple) and all(_matches(v, arguments[0]) for v in value)
    if annotation is Any:
        return True
    return value is None if annotation is None else isinstance(value, annotation)


def _register_types(annotations: Sequence[Any]) -> None:
    for annotation in annotations:
        for cls in _list_classes(annotation):
            # Only types that ops do not accept redirect calls: no tensors, arrays or variables.
            is_accepted = cls.__module__ in ("builtins", "numpy") or hasattr(cls, "assign_add")
            if not (is_accepted or issubclass(cls, Tensor) or cls in symbolic_calls.types):
                symbolic_calls.register_composite_type(cls, _call_registered)


def _bind(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments | None:
    """Return the arguments of a call by name, or None if they do not fit the function."""
    try:
        return inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return None


def _accepts_all(function: Callable[..., Any]) -> bool:
    """Check whether a function is defined as `(*args, **kwargs)`."""
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    return kinds == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]


def _call_registered(
    public: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PyTree:
    """Call a dispatcher for the arguments; return NotImplemented if there is none."""
    for target, signatures, accepts_name in _api_dispatchers.get(inspect.unwrap(public), ()):
        bound = _bind(public, args, kwargs)
        if bound is None:
            break
        # Parameters of optional types may have their defaults.
        defaults = {name: p.default for name, p in bound.signature.parameters.items()}
        values = defaults | bound.arguments
        if any(
            all(name in values and _matches(values[name], kind) for name, kind in signature.items())
            for signature in signatures
        ):
            if "name" in bound.arguments and not accepts_name:
                del bound.arguments["name"]
                result = target(*bound.args, **bound.kwargs)
            else:
                result = target(*args, **kwargs)
            if result is not NotImplemented:
                return result
    return _call_elementwise(public, args, kwargs)


def _call_elementwise(
    public: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PyTree:
    kind = _classify(public)
    dispatchers = _elementwise_dispatchers.get(kind or "", ())
    if not dispatchers:
        return NotImplemented
    binding = _bind(public, args, kwargs)
    bound = {} if binding is None else dict(binding.arguments)
    names = list(inspect.signature(public).parameters)[: 1 if kind == "unary" else 2]
    if any(name not in bound for name in names):
        return NotImplemented
    operands = [bound.pop(name) for name in names]

    def api(*values: Any) -> Any:
        return public(*values, **{k: v for k, v in bound.items() if k != "name"})

    api.__name__ = public.__name__
    for target, kinds in dispatchers:
        if all(map(_matches, operands, kinds)):
            result = target(api, *operands)
            if result is not NotImplemented:
                return result
    return NotImplemented


def dispatch_for_api(api: Callable[..., Any], *signatures: Mapping[Any, Any]) -> Callable[[F], F]:
    """Decorate a function that implements a public function for some types of arguments.

    Args:
      api: The public function, such as `tf.concat`.
      *signatures: Types by name or index of parameters; a call must match one of these dictionaries. By
        default the annotations of the function.

    Raises:
      ValueError: If the function has no parameter of a name in a signature, or no annotations, or other
        parameters than the public function. It may lack `name`, or be defined as `(*args, **kwargs)`.
      TypeError: If a signature is no dictionary, or the decorated object is not callable.

    Example:
      >>> class Masked(tf.experimental.ExtensionType):
      ...     values: tf.Tensor
      ...     mask: tf.Tensor
      >>> @tf.experimental.dispatch_for_api(tf.reduce_sum)
      ... def sum_masked(input_tensor: Masked, axis=None, keepdims=False, name=None):
      ...     return tf.reduce_sum(tf.where(input_tensor.mask, input_tensor.values, 0), axis, keepdims)
      >>> print(tf.reduce_sum(Masked([1, 2, 3], [True, False, True])).numpy())
      4
    """
    if not getattr(api, "is_dispatchable", False):
        raise ValueError(f"{getattr(api, '__name__', api)} does not support dispatch.")
    api_signature = inspect.signature(api)
    names = list(api_signature.parameters)

    def resolve(signature: Mapping[Any, Any]) -> Signature:
        is_valid = isinstance(signature, Mapping) and all(
            isinstance(k, str | int) for k in signature
        )
        if not is_valid:
            raise TypeError(
                f"Dispatch for {api.__name__}: signatures must be dictionaries mapping parameter names to type "
                f"annotations, got {signature!r}."
            )
        resolved = {}
        for key, kind in signature.items():
            name = names[key] if isinstance(key, int) and 0 <= key < len(names) else key
            if name not in names:
                raise ValueError(
                    f"Dispatch for {api.__name__}: signature includes annotation for unknown parameter {key!r}. The "
                    f"parameters are {', '.join(names)}."
                )
            resolved[name] = kind
        return resolved

    def decorate(target: F) -> F:
        if not callable(target):
            raise TypeError(f"Expected dispatch_target to be callable; got {target!r}.")
        explicit = [resolve(signature) for signature in signatures]
        parameters = list(inspect.signature(target).parameters)
        unnamed = [name for name in names if name != "name"]
        accepts_all = _accepts_all(target)
        if parameters not in (names, unnamed) and not accepts_all:
            raise ValueError(
                f"Dispatch function's signature {_describe(inspect.signature(target))} does not match API's signature "
                f"{_describe(api_signature)}."
            )
        if not explicit:
            hints = typing.get_type_hints(target)
            explicit = [{n: kind for n, kind in hints.items() if n in names}]
            if not explicit[0]:
                raise ValueError(
                    f"Dispatch for {api.__name__} must be called with at least one signature, or decorate a function with "
                    "type annotations."
                )
        for signature in explicit:
            _register_types(list(signature.values()))
        _api_dispatchers.setdefault(inspect.unwrap(api), []).append(
            _Dispatcher(target, explicit, accepts_all or "name" in parameters)
        )
        return target

    return decorate


def _describe(signature: inspect.Signature) -> str:
    """Return the parameters of a function without their types."""
    parameters = [p.replace(annotation=_EMPTY) for p in signature.parameters.values()]
    return str(inspect.Signature(parameters))


def _make_elementwise_decorator(kind: str, annotations: tuple[Any, ...]) -> Callable[[F], F]:
    def decorate(target: F) -> F:
        for other, types in _elementwise_dispatchers[kind]:
            if types == annotations:
                raise ValueError(
                    f"A {kind} elementwise dispatch handler ({other}) has already been registered for "
                    f"{annotations}. Remove it with tf.experimental.unregister_dispatch_for."
                )
        _register_types(annotations)
        _elementwise_dispatchers[kind].append((target, annotations))
        return target

    return decorate


def dispatch_for_unary_elementwise_apis(x_type: Annotation) -> Callable[[F], F]:
    """Decorate a function that implements all unary elementwise functions for a type.

    The function gets the public function of one argument, and that argument.

    Args:
      x_type: The type of the first argument of the public functions.

    Example:
      >>> class Boxed(tf.experimental.ExtensionType):
      ...     values: tf.Tensor
      >>> @tf.experimental.dispatch_for_unary_elementwise_apis(Boxed)
      ... def call_unary(api_func, x):
      ...     return Boxed(api_func(x.values))
      >>> print(tf.abs(Boxed([-1, 2])).values.numpy())
      [1 2]
    """
    return _make_elementwise_decorator("unary", (x_type,))


def dispatch_for_binary_elementwise_apis(
    x_type: Annotation, y_type: Annotation
) -> Callable[[F], F]:
    """Decorate a function that implements all binary elementwise functions for two types.

    Args:
      x_type: The type of the first argument of the public functions.
      y_type: The type of the second argument.
    """
    return _make_elementwise_decorator("binary", (x_type, y_type))


def dispatch_for_binary_elementwise_assert_apis(
    x_type: Annotation, y_type: Annotation
) -> Callable[[F], F]:
    """Decorate a function that implements all binary assertions, such as `tf.debugging.assert_equal`.

    Args:
      x_type: The type of the first argument of the public functions.
      y_type: The type of the second argument.
    """
    return _make_elementwise_decorator("binary assert", (x_type, y_type))


def unregister_dispatch_for(dispatch_target: Callable[..., Any]) -> None:
    """Remove a dispatcher.

    Raises:
      ValueError: If the function was not registered.
    """
    found = False
    lists: list[list[Any]] = [*_api_dispatchers.values(), *_elementwise_dispatchers.values()]
    for dispatchers in lists:
        remaining = [entry for entry in dispatchers if entry[0] is not dispatch_target]
        found = found or len(remaining) < len(dispatchers)
        dispatchers[:] = remaining
    if not found:
        raise ValueError(f"Function {dispatch_target} was not registered as a dispatch target.")
