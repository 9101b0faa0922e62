"""The arguments of a `tf.function`: brought into one form, fitted to its input signature, told apart by a key."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.operands import NumpyRules
from meshflow.core.iterators.iterator_captures import Source
from meshflow.core.runtime.context import context
from meshflow.core.values import dtypes, nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable


class RowsGivenError(Exception):
    """`tf.IndexedSlices` are among the arguments, which `without_rows` takes apart."""


class _Rows(NamedTuple):
    """`tf.IndexedSlices` as a nested structure, of which the whole shape is known while a function is traced."""

    values: Any
    indices: Any
    shape: tuple[int, ...] | None


def without_rows(arguments: Any) -> Any:
    """A nested value with `tf.IndexedSlices` taken apart."""

    def apart(leaf: Any) -> Any:
        if not isinstance(leaf, IndexedSlices):
            return leaf
        shape = None if leaf.dense_shape is None else tuple(leaf.shape.as_list())
        return _Rows(leaf.values, leaf.indices, shape)

    return nest.map_structure(apart, arguments)


def with_rows(arguments: Any) -> Any:
    """A nested value that `without_rows` gave, put together again."""

    def together(leaf: Any) -> Any:
        if type(leaf) is not _Rows:
            return leaf
        shape = None if leaf.shape is None else np.array(leaf.shape, np.int32)
        return IndexedSlices(leaf.values, leaf.indices, shape)

    atoms = (_Rows, Tensor, Variable)
    return jax.tree.map(together, arguments, is_leaf=lambda leaf: isinstance(leaf, atoms))


class CallArguments:
    """What a function knows about the arguments it may be called with.

    Args:
      name: the function's name, for messages.
      python_function: the original function.
      declared: its `input_signature` or None.
      method: whether the first parameter is the object that the function is a method of.
    """

    def __init__(
        self,
        name: str,
        python_function: Callable[..., Any],
        declared: tuple[Any, ...] | None,
        method: bool,
    ) -> None:
        self._name = name
        self._python_function = python_function
        self._declared = declared
        self._method = method
        self._signature: inspect.Signature | None = None

    def key(self, args: Any, kwargs: Any) -> tuple[list[Any], Any]:
        """Arrays among the arguments, and the cache key."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays: list[Any] = []
        key: list[Any] = []
        for leaf in leaves:
            shape = getattr(leaf, "shape", None)
            if shape is None or type(leaf) is Variable or not hasattr(leaf, "dtype"):
                key.append(self._static_key(leaf))
            elif isinstance(leaf, (jax.Array, np.ndarray, np.generic)) and leaf.dtype != object:
                arrays.append(leaf)
                key.append((shape, leaf.dtype))
            else:
                key.append(self._static_key(leaf))
        # Workers that are threads of one process have programs of their own, which take elements of their iterators.
        place = context.device, context.replicas, context.closure and context.closure.kind
        return arrays, (tree, tuple(key), NumpyRules.promote, *place)

    def _static_key(self, leaf: Any) -> Any:
        kind = type(leaf)
        if kind in (int, float, bool, str, bytes, complex):
            return kind, leaf
        if isinstance(leaf, np.ndarray):
            return "host", leaf.shape, tuple(leaf.ravel().tolist())
        if isinstance(leaf, TypeSpec):
            return leaf
        if isinstance(leaf, Source):
            return kind, leaf._kind()
        if isinstance(leaf, IndexedSlices):
            raise RowsGivenError
        if kind in (set, weakref.ref):
            raise TypeError(
                f"{self._name} got the argument {leaf!r}, which may change without being traced again. Pass a "
                "tuple, or the object that a weakref refers to."
            )
        if not isinstance(leaf, Tensor | Variable | ShardedVariable) and _has_own_hash(leaf):
            return kind, leaf
        # Other objects are compared by identity. Who keeps the key keeps them, so that no id is used twice.
        return kind, id(leaf)

    def identified(self, args: Any, kwargs: Any) -> list[Any]:
        """The arguments whose identity is part of their key."""
        leaves = jax.tree.leaves((args, kwargs))
        statics = [leaf for leaf in leaves if not becomes_tensor(leaf) or type(leaf) is Variable]
        plain = (int, float, bool, str, bytes, complex)
        return [leaf for leaf in statics if type(leaf) not in plain]

    def canonical(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Arguments in the order of the signature, with arrays as tensors.

        Defaults are filled in and keywords made positional, so that equal calls share a trace.
        """
        signature = self.python_signature()
        if signature is not None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        for leaf in nest.flatten((args, kwargs)):
            if (
                leaf is not None
                and not isinstance(leaf, Tensor)
                and not jax.tree_util.all_leaves([leaf])
            ):
                raise TypeError(
                    f"{self._name} got an argument of type {type(leaf).__name__}, a JAX pytree whose "
                    "arrays would be hidden from tracing. Pass its leaves (jax.tree.leaves) instead."
                )
        return nest.map_structure(_as_argument, (tuple(args), dict(kwargs)))

    def python_signature(self) -> inspect.Signature | None:
        if self._signature is None:
            try:
                signature = inspect.signature(self._python_function)
            except (TypeError, ValueError):
                return None
            if self._method:
                parameters = list(signature.parameters.values())[1:]
                signature = signature.replace(parameters=parameters)
            self._signature = signature
        return self._signature

    def parameter_names(self) -> list[str]:
        """The names of the parameters that may be given by position."""
        signature = self.python_signature()
        if signature is None:
            return []
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [name for name, p in signature.parameters.items() if p.kind in kinds]

    def fit(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Converts arguments to the declared input signature.

        Raises:
          TypeError: when the number or structure of arguments differs.
          ValueError: when a shape or dtype does not fit.
        """
        declared: tuple[Any, ...] = self._declared  # type: ignore[assignment]
        if kwargs or len(args) < len(declared):
            signature = self.python_signature()
            if signature is not None:
                bound = signature.bind(*args, **kwargs)
                given, kwargs = len(bound.args), bound.kwargs
                # What is left out has its default, which becomes a tensor like the others.
                bound.apply_defaults()
                args = bound.args[: max(given, len(declared))]
        if len(args) != len(declared) or kwargs:
            raise TypeError(
                f"{self._name} takes {len(declared)} positional arguments by its input_signature "
                f"{declared}, got {len(args)}"
                + (f" and keywords {sorted(kwargs)}" if kwargs else "")
                + "."
            )
        parts = nest.flatten_up_to(declared, tuple(args))
        fitted = [
            fit_leaf(self._name, s, v) for s, v in zip(nest.flatten(declared), parts, strict=True)
        ]
        return tuple(nest.pack_sequence_as(declared, fitted)), {}


def fit_leaf(name: str, spec: Any, value: Any) -> Any:
    """The value as a tensor that fits the spec, or itself when the spec is a plain Python value.

    Raises:
      ValueError: when it does not fit, which is a TypeError too.
    """
    if not isinstance(spec, TypeSpec):
        return value
    if not isinstance(spec, TensorSpec) or isinstance(value, TensorSpec):
        if not spec.is_compatible_with(value):
            raise InputSignatureError(
                f"Python inputs incompatible with input_signature of {name}: got {value!r}, expected {spec}."
            )
        return value
    try:
        tensor = convert_to_tensor(value, dtype_hint=spec.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name}: when input_signature is provided, all inputs must be convertible to tensors: {error}"
        ) from error
    if not spec.is_compatible_with(tensor):
        raise InputSignatureError(
            f"Python inputs incompatible with input_signature of {name}: got a tensor of shape "
            f"{tensor.shape} and dtype {tensor.dtype.name}, expected {spec}."
        )
    return tensor


class InputSignatureError(ValueError, TypeError):
    """TensorFlow raises ValueError or TypeError for this, by version."""


def _has_own_hash(leaf: Any) -> bool:
    """Whether an object is compared by what it holds, and can be."""
    method: Any = type(leaf).__hash__
    if method is None or method is object.__hash__:
        return False
    try:
        hash(leaf)
    except TypeError:
        return False
    return True


def becomes_tensor(leaf: Any) -> bool:
    """Whether an argument is handed to the compiled program instead of being part of the key."""
    if isinstance(leaf, Tensor):
        return leaf.dtype is not dtypes.string
    return isinstance(leaf, (np.ndarray, np.generic, jax.Array))


def _as_argument(leaf: Any) -> Any:
    if isinstance(leaf, (np.ndarray, np.generic, jax.Array)) or (
        not isinstance(leaf, (Tensor, Variable, ShardedVariable))
        and hasattr(leaf, "__array__")
        and not isinstance(leaf, type)
        and not hasattr(leaf, "_is_tensor_like")
    ):
        return convert_to_tensor(leaf)
    return leaf


def spec_of(leaf: Any) -> Any:
    """The spec of an argument that becomes a tensor; others stand for themselves."""
    return TensorSpec.from_tensor(leaf) if becomes_tensor(leaf) else leaf
