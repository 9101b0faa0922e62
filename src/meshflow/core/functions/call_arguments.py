"""Arguments of a `tf.function`: canonical form, conversion to the input signature, and cache keys."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.operands import NumpyRules
from meshflow.core.functions.signatures import Args, Kwargs
from meshflow.core.iterators.iterator_captures import IteratorSource
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.runtime.tracebacks import hide_frames_of_errors
from meshflow.core.values import dtypes, nest
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec, TypeSpec, type_spec_from_value
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Array


class TracingContext:
    """The argument of `__tf_tracing_type__`, by which an object defines its part of the cache key."""

    is_legacy_signature = False


class CallArguments:
    """Rules for the arguments of a function.

    Args:
      name: Name of the function, for messages.
      python_function: The original function.
      declared: Its `input_signature` or None.
      method: Whether the first parameter is the object that owns the method.
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

    def make_key(self, args: Args, kwargs: Kwargs) -> tuple[list[Array], Hashable]:
        """Return the arrays among the arguments, and the cache key."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays: list[Any] = []
        key: list[Hashable] = []
        for leaf in leaves:
            shape = getattr(leaf, "shape", None)
            if shape is None or type(leaf) is Variable or not hasattr(leaf, "dtype"):
                key.append(self._make_static_key(leaf))
            elif isinstance(leaf, (jax.Array, np.ndarray, np.generic)) and leaf.dtype != object:
                arrays.append(leaf)
                key.append((shape, leaf.dtype))
            else:
                key.append(self._make_static_key(leaf))
        # Workers that are threads of one process have separate programs for their iterators.
        placement = (
            context.device,
            context.replica_program,
            context.exporting,
            context.has_symbolic_sizes,
            context.worker_closure and context.worker_closure.trace_key,
            context.batch_gradients and context.batch_gradients.trace_number,
        )
        return arrays, (tree, tuple(key), NumpyRules.promote, *placement)

    def _make_static_key(self, leaf: Any) -> Hashable:
        leaf_type = type(leaf)
        if leaf_type in (int, float, bool, str, bytes, complex):
            return leaf_type, leaf
        if isinstance(leaf, np.ndarray):
            return "host", leaf.shape, tuple(leaf.ravel().tolist())
        if isinstance(leaf, TypeSpec):
            return leaf
        if hasattr(leaf_type, "__tf_tracing_type__"):
            return leaf_type, leaf.__tf_tracing_type__(TracingContext())
        if isinstance(leaf, IteratorSource):
            return leaf_type, leaf._make_cache_key()
        if leaf_type in (set, weakref.ref):
            raise TypeError(
                f"Could not generate a generic TraceType for {leaf!r}: it is an argument of {self._name}, but may change without being traced again. Pass a "
                "tuple, or the object that a weakref refers to."
            )
        if not isinstance(leaf, Tensor | Variable | ShardedVariable) and _has_value_hash(leaf):
            return leaf_type, leaf
        # The key of other objects is their id. The trace holds them, so ids are unique.
        return leaf_type, id(leaf)

    def list_identity_arguments(self, args: Args, kwargs: Kwargs) -> list[Any]:
        """List the arguments that are identified by their id in the key."""
        leaves = jax.tree.leaves((args, kwargs))
        statics = [
            leaf for leaf in leaves if not is_tensor_argument(leaf) or type(leaf) is Variable
        ]
        constants = (int, float, bool, str, bytes, complex)
        return [leaf for leaf in statics if type(leaf) not in constants]

    @hide_frames_of_errors
    def canonicalize(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Return the arguments in the order of the signature, with arrays as tensors.

        Defaults are filled in and keywords become positional, so that equal calls share a trace.
        """
        signature = self.get_python_signature()
        if signature is not None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        for leaf in nest.flatten((args, kwargs)):
            if (
                leaf is not None
                and not isinstance(leaf, (Tensor, CompositeTensor))
                and not jax.tree_util.all_leaves([leaf])
            ):
                raise TypeError(
                    f"{self._name} got an argument of type {type(leaf).__name__}, a JAX pytree whose "
                    "arrays would be hidden from tracing. Pass its leaves (jax.tree.leaves) instead."
                )
        return nest.map_structure(_to_argument, (tuple(args), dict(kwargs)))

    def get_python_signature(self) -> inspect.Signature | None:
        """Return the signature without the `self` of a method, or None for a callable without signature."""
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

    def list_parameter_names(self) -> list[str]:
        """List the names of the parameters that may be positional."""
        signature = self.get_python_signature()
        if signature is None:
            return []
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [name for name, p in signature.parameters.items() if p.kind in kinds]

    def label_leaves(self, args: Args, kwargs: Kwargs) -> dict[str, Any]:
        """Return the leaves of canonical arguments by label, such as `argument 'x'['image']`."""
        names = self.list_parameter_names()
        return {
            _format_label(path, names): leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(
                nest.map_structure(to_spec, (args, kwargs)), is_leaf=lambda leaf: leaf is None
            )
        }

    @hide_frames_of_errors
    def convert_to_signature(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Convert arguments to the declared input signature.

        Raises:
          TypeError: If the number or structure of arguments differs.
          ValueError: If a shape or dtype is incompatible.
        """
        declared: tuple[Any, ...] = self._declared  # type: ignore[assignment]
        if kwargs or len(args) < len(declared):
            signature = self.get_python_signature()
            if signature is not None:
                bound = signature.bind(*args, **kwargs)
                count, kwargs = len(bound.args), bound.kwargs
                # Omitted arguments get their defaults, which become tensors like the others.
                bound.apply_defaults()
                args = bound.args[: max(count, len(declared))]
        if len(args) != len(declared) or kwargs:
            undeclared = self._list_undeclared_parameters()
            problem = (
                "too many positional arguments" if len(args) > len(declared) else "wrong arguments"
            )
            if undeclared:
                problem = f"input_signature missing type constraint of {undeclared}"
            raise TypeError(
                f"{problem}: {self._name} takes {len(declared)} positional arguments by its input_signature "
                f"{declared}, got {len(args)}"
                + (f" and keywords {sorted(kwargs)}" if kwargs else "")
                + "."
            )
        parts = nest.flatten_up_to(declared, tuple(args))
        values = [
            convert_to_spec(self._name, s, v)
            for s, v in zip(nest.flatten(declared), parts, strict=True)
        ]
        return tuple(nest.pack_sequence_as(declared, values)), {}

    def _list_undeclared_parameters(self) -> list[str]:
        """Return the names of parameters without a default that `input_signature` leaves out."""
        signature, count = self.get_python_signature(), len(self._declared or ())
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = [] if signature is None else signature.parameters.values()
        positional = [p for p in parameters if p.kind in kinds]
        return [p.name for p in positional[count:] if p.default is p.empty]


def _format_label(path: tuple[Any, ...], names: list[str]) -> str:
    """Return the label of a leaf of (args, kwargs)."""
    is_keyword = path[0].idx == 1
    first = path[1].key if is_keyword else path[1].idx
    if not is_keyword:
        first = names[first] if first < len(names) else first
    return f"argument {first!r}{jax.tree_util.keystr(path[2:])}"


def convert_to_spec(name: str, spec: Any, value: Any) -> Any:
    """Convert a value to a tensor that is compatible with a spec; return Python values unchanged.

    Args:
      name: Name of the function, for messages.
      spec: A `TypeSpec`, or a Python value.
      value: The argument.

    Raises:
      ValueError: If the value is incompatible with the spec; it is also a TypeError.
    """
    if not isinstance(spec, TypeSpec):
        return value
    if not isinstance(spec, TensorSpec) or isinstance(value, TensorSpec):
        if not spec.is_compatible_with(value):
            is_similar = type(value) is getattr(spec, "value_type", None) and (
                len(nest.flatten_parts(value)) == len(nest.flatten_parts(spec))
            )
            reason = "" if is_similar else "They don't have the same nested structure. "
            raise InputSignatureError(
                f"Binding inputs to tf.function failed due to `Can not cast {value!r} to {spec}`. {reason}Python inputs incompatible with "
                f"input_signature of {name}: got {value!r}, expected {spec}."
            )
        return value
    try:
        tensor = convert_to_tensor(value, dtype_hint=spec.dtype)
    except (TypeError, ValueError) as error:
        raise InputSignatureError(
            f"Binding inputs to tf.function failed due to `{error}`. {name}: when input_signature is provided, all inputs must "
            "be convertible to tensors."
        ) from error
    if not spec.is_compatible_with(tensor):
        given = TensorSpec(tensor.shape, tensor.dtype)
        raise InputSignatureError(
            f"Binding inputs to tf.function failed due to `Can not cast {given} to {spec}`. Python inputs incompatible with "
            f"input_signature of {name}: got a tensor of shape {tensor.shape} and dtype {tensor.dtype.name}, expected "
            f"{spec}."
        )
    return tensor


class InputSignatureError(InvalidArgumentError, ValueError, TypeError):
    """Error for arguments that do not match the signature; TensorFlow raises one of the base classes."""


def _has_value_hash(leaf: object) -> bool:
    """Check whether an object is hashable and compared by its content."""
    method: Any = type(leaf).__hash__
    if method is None or method is object.__hash__:
        return False
    try:
        hash(leaf)
    except TypeError:
        return False
    return True


def is_tensor_argument(leaf: object) -> bool:
    """Check whether an argument is passed to the compiled program, not a part of the key."""
    if isinstance(leaf, Tensor):
        return leaf.dtype is not dtypes.string
    return isinstance(leaf, (np.ndarray, np.generic, jax.Array))


def _to_argument(leaf: Any) -> Any:
    if isinstance(leaf, (np.ndarray, np.generic, jax.Array)) or (
        not isinstance(leaf, (Tensor, Variable, ShardedVariable))
        and hasattr(leaf, "__array__")
        and not isinstance(leaf, type)
        and not hasattr(leaf, "_is_tensor_like")
    ):
        return convert_to_tensor(leaf)
    return leaf


def to_spec(leaf: Any) -> Any:
    """Return the spec of an argument that becomes a tensor, or the argument itself."""
    if isinstance(leaf, CompositeTensor):
        return type_spec_from_value(leaf)
    return TensorSpec.from_tensor(leaf) if is_tensor_argument(leaf) else leaf
