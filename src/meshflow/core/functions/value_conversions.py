"""Conversions and checks of the arguments and results of functions while they are traced."""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType, GeneratorType, ModuleType
from typing import Any

import jax
import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.functions.call_arguments import is_tensor_argument, to_spec
from meshflow.core.functions.signatures import Args, Kwargs
from meshflow.core.values import dtypes, nest
from meshflow.core.values.composite import CompositeTensor, can_split, list_part_sizes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape, as_shape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.symbolic_sizes import has_symbolic_size, make_sizes_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree

# Types of results that cannot become tensors.
_OTHER_TYPES = (
    *(object, set, frozenset, slice, type),
    *(GeneratorType, FunctionType, BuiltinFunctionType, ModuleType),
)


def to_blank_tensor(leaf: object) -> object:
    """Replace a spec by a tensor without memory for its elements."""
    if isinstance(leaf, TensorSpec) and is_tensor_or_spec(leaf):
        return Tensor(np.broadcast_to(np.zeros((), leaf.dtype.dtype), tuple(leaf.shape)))
    return leaf


def make_zeros(leaf: object) -> object:
    """Replace a spec by a tensor of zeros."""
    if isinstance(leaf, TensorSpec):
        return Tensor(jax.numpy.zeros(tuple(leaf.shape.as_list()), leaf.dtype.dtype))
    return leaf


def to_known_tensor(leaf: object) -> object:
    """Convert numbers, strings and shapes that a function returns to tensors."""
    is_constant = isinstance(leaf, (bool, int, float, complex, str, bytes, np.generic))
    if is_constant or (isinstance(leaf, TensorShape) and leaf.is_fully_defined()):
        return convert_to_tensor(leaf)
    return leaf


def to_size_tensor(leaf: PyTree) -> object:
    """Convert symbolic sizes and shapes that a function returns to tensors."""
    if is_symbolic_dim(leaf):
        return make_sizes_tensor(leaf, np.int32)
    if isinstance(leaf, TensorShape) and leaf.rank and has_symbolic_size(as_shape(leaf)):
        return make_sizes_tensor(tuple(as_shape(leaf)), np.int32)
    return leaf


def specify_tensors(leaf: PyTree) -> PyTree:
    """Return the spec of a tensor or composite tensor; other values remain."""
    return to_spec(specify_strings(leaf))


def specify_strings(leaf: PyTree) -> PyTree:
    """Return the spec of a tensor of strings, or of a composite tensor that consists of its components only."""
    if isinstance(leaf, CompositeTensor) and not can_split(leaf):
        return leaf._type_spec
    is_text = isinstance(leaf, Tensor) and leaf.dtype is dtypes.string
    return TensorSpec.from_tensor(leaf) if is_text else leaf


def specify_varying_parts(leaf: PyTree) -> PyTree:
    """Return the spec of a composite tensor with a part of unknown size, as of a ragged or sparse tensor."""
    if not isinstance(leaf, CompositeTensor) or not can_split(leaf):
        return leaf
    spec = leaf._type_spec
    is_varying = any(sizes is None or None in sizes for sizes in list_part_sizes(spec))
    return spec if is_varying else leaf


def is_tensor_or_spec(leaf: object) -> bool:
    """Check whether a leaf of arguments is a tensor of numbers, or its spec."""
    if isinstance(leaf, TensorSpec):
        return leaf.dtype is not dtypes.string
    return is_tensor_argument(leaf)


def to_result(leaf: Any) -> Any:
    """Convert a leaf of a result of Python to a tensor if it is a variable, number, string or shape."""
    return convert_to_tensor(leaf) if isinstance(leaf, Variable) else to_known_tensor(leaf)


def convert_result(name: str, result: PyTree) -> PyTree:
    """Convert numbers, strings and shapes in the result of a function to tensors.

    Raises:
      TypeError: If the function returns an object that is no tensor.
    """
    converted = nest.map_structure(to_known_tensor, result)
    for leaf in nest.flatten(converted):
        if type(leaf) in _OTHER_TYPES:
            raise TypeError(
                "To be compatible with tf.function, Python functions must return zero or more Tensors or "
                f"ExtensionTypes or None values; in compilation of {name}, found return value of type "
                f"{type(leaf).__name__}, which is not a Tensor or ExtensionType."
            )
    return converted


def check_unchanged(name: str, arguments: PyTree, copied: PyTree) -> None:
    """Check that no list or dictionary among the arguments of a function changed since they were copied.

    Raises:
      ValueError: If one did.
    """
    try:
        nest.assert_same_structure(arguments, copied)
        pairs = zip(nest.flatten(arguments), nest.flatten(copied), strict=True)
        is_changed = any(now is not before for now, before in pairs)
    except (TypeError, ValueError):
        is_changed = True
    if is_changed:
        raise ValueError(
            f"{name} should not modify its Python input arguments, but it changed a list or dictionary "
            "among them. Change a copy instead."
        )


def list_tensors(args: Args, kwargs: Kwargs) -> list[Tensor]:
    """Return the tensors among the arguments of a call, with the parts of composite tensors."""
    leaves = nest.flatten_parts((args, kwargs))
    return [convert_to_tensor(leaf) for leaf in leaves if is_tensor_argument(leaf)]
