"""Scalar conditions: the ops that staging and AutoGraph need for their own use."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike, read_tensor

_and = Op("logical_and", lambda o, _: jnp.logical_and(*o), differentiable=False)
_or = Op("logical_or", lambda o, _: jnp.logical_or(*o), differentiable=False)
_not = Op("logical_not", lambda o, _: jnp.logical_not(o[0]), differentiable=False)
_less = Op("less", lambda o, _: jnp.less(*o), differentiable=False)
_next = Op("add", lambda o, _: o[0] + jnp.ones((), o[0].dtype), differentiable=False)
_truth = Op("cast", lambda o, _: (o[0] != 0).reshape(()), differentiable=False)


def is_symbolic(value: object) -> bool:
    """Check whether a value is a tensor that is only known when the traced function runs."""
    value = read_tensor(value)
    return isinstance(value.array if isinstance(value, Tensor) else value, jax.core.Tracer)


def to_scalar_bool(value: TensorLike, use: str = "a condition") -> Tensor:
    """Return a condition as a bool tensor without dimensions.

    Raises:
      ValueError: If the tensor has more than one element.
    """
    tensor = convert_to_tensor(value)
    shape = tuple(tensor.shape)
    if int(np.prod(shape)) != 1:
        raise InvalidValueError(
            f"The truth value of a tensor of shape {tensor.shape} is ambiguous when used as {use}: expected "
            "a scalar. Use tf.reduce_any or tf.reduce_all, or tf.where to choose element by element."
        )
    if tensor.dtype.name == "bool" and not shape:
        return tensor
    return apply(_truth, (tensor,))


def logical_and(a: TensorLike, b: TensorLike) -> Tensor:
    """Compute `a and b` for scalar conditions."""
    return apply(_and, (to_scalar_bool(a), to_scalar_bool(b)))


def logical_or(a: TensorLike, b: TensorLike) -> Tensor:
    """Compute `a or b` for scalar conditions."""
    return apply(_or, (to_scalar_bool(a), to_scalar_bool(b)))


def logical_not(a: TensorLike) -> Tensor:
    """Compute `not a` for a scalar condition, or for each element of a bool tensor."""
    tensor = convert_to_tensor(a)
    return apply(_not, (tensor if tensor.dtype.name == "bool" else to_scalar_bool(tensor),))


def less(a: TensorLike, b: TensorLike) -> Tensor:
    """Compute `a < b` for int32 scalars."""
    return apply(_less, (convert_to_tensor(a), convert_to_tensor(b)))


def increment(a: Tensor) -> Tensor:
    """Compute `a + 1`."""
    return apply(_next, (a,))
