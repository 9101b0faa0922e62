"""Ops that return a property of a tensor (shape, rank, size) or the tensor itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.composite import (
    SparseTensor,
    accept_composites,
    accept_types_of_libraries,
    make_elementwise_row_rule,
)
from meshflow.core.dispatch.dispatch import apply, op
from meshflow.core.dispatch.operation import CAST, Op
from meshflow.core.dispatch.symbolic_calls import (
    accept_symbolic,
    dispatch_composites,
    record_in_graph,
)
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.composite import CompositeTensor, is_extension
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.symbolic_sizes import has_symbolic_size, make_sizes_tensor
from meshflow.core.values.tensor import Tensor, TensorLike, is_tensor
from meshflow.ops.deferred_host_values import defer_host_values, defer_sizes

__all__ = [
    "ensure_shape",
    "get_static_value",
    "grad_pass_through",
    "group",
    "guarantee_const",
    "identity",
    "identity_n",
    "no_op",
    "rank",
    "shape",
    "shape_n",
    "size",
    "stop_gradient",
    "tuple",
]


def _get_shape(value: Any) -> TensorShape:
    if hasattr(value, "_keras_history") or isinstance(value, CompositeTensor):
        return value.shape
    return convert_to_tensor(value).shape


@defer_sizes(np.shape)
@dispatch_composites
def shape(input: Any, out_type: DTypeLike = dtypes.int32, name: str | None = None) -> Tensor:
    """Return the shape as a vector of integers, which is static while a function is traced.

    Args:
      input: A tensor.
      out_type: Dtype of the result.
      name: Ignored.

    Example:
      >>> tf.shape(tf.zeros([2, 3])).numpy()
      array([2, 3], dtype=int32)
    """
    if hasattr(input, "_keras_history") and not input.shape.is_fully_defined():
        return get_symbolic_shape(input, as_dtype(out_type))
    return _make_shape_tensor(input, out_type)


_multiply_sizes = Op("prod", lambda o, _: jnp.prod(o[0]), differentiable=False)


def _convert_sizes(sizes: Tensor, dtype: DType) -> Tensor:
    converted: Tensor = apply(CAST, (sizes,), (dtype.dtype,))
    return converted


def _make_shape_tensor(input: Any, out_type: DTypeLike) -> Tensor:
    static = _get_shape(input)
    if isinstance(input, SparseTensor) and not static.is_fully_defined():
        return _convert_sizes(input.dense_shape, as_dtype(out_type))
    if is_extension(input) and not static.is_fully_defined():
        # An object of a library, such as a parameter, may know less than its value.
        static = _get_shape(convert_to_tensor(input))
    sizes, dtype = static.as_list(), as_dtype(out_type).dtype
    return (
        make_sizes_tensor((*sizes,), dtype)
        if has_symbolic_size(sizes)
        else Tensor(np.array(sizes, dtype))
    )


@accept_symbolic
def shape_n(
    input: Sequence[Any], out_type: DTypeLike = dtypes.int32, name: str | None = None
) -> list[Tensor]:
    """Return the shapes of several tensors.

    Example:
      >>> [s.numpy().tolist() for s in tf.shape_n([tf.zeros([2, 3]), tf.zeros([4])])]
      [[2, 3], [4]]
    """
    return [shape(t, out_type) for t in input]


@dispatch_composites
def rank(input: Any, name: str | None = None) -> Tensor:
    """Return the number of dimensions as an int32 scalar.

    Example:
      >>> tf.rank([[1, 2], [3, 4]]).numpy().item()
      2
    """
    return Tensor(np.array(_get_shape(input).rank, np.int32))


@defer_sizes(np.size)
@dispatch_composites
def size(input: Any, out_type: DTypeLike = dtypes.int32, name: str | None = None) -> Tensor:
    """Return the number of elements as a scalar.

    Example:
      >>> tf.size([[1, 2, 3], [4, 5, 6]]).numpy().item()
      6
    """
    if hasattr(input, "_keras_history") and not input.shape.is_fully_defined():
        return get_symbolic_size(input, as_dtype(out_type))
    sizes = _get_shape(input).as_list()
    if isinstance(input, SparseTensor) and None in sizes:
        return _convert_sizes(apply(_multiply_sizes, (input.dense_shape,)), as_dtype(out_type))
    if has_symbolic_size(sizes):
        return make_sizes_tensor(math.prod(sizes), as_dtype(out_type).dtype)
    count = int(np.prod(sizes, dtype=np.int64))
    return Tensor(np.array(count, as_dtype(out_type).dtype))


@accept_types_of_libraries
@accept_composites
@op(same=(), strings="moves")
def identity(input: TensorLike, name: str | None = None) -> Tensor:
    """Return a tensor with the same shape and value, computed by a separate op.

    Example:
      >>> v = tf.Variable(1.0)
      >>> before = tf.identity(v)
      >>> _ = v.assign(5.0)
      >>> before.numpy().item()
      1.0
    """
    return input


identity.op.row_gradient = make_elementwise_row_rule(lambda operand, rows: rows)  # type: ignore[attr-defined]


@accept_symbolic
def identity_n(input: Sequence[Any], name: str | None = None) -> list[Tensor]:
    """Apply `identity` to each tensor of a list, which keeps its shape.

    Example:
      >>> [t.numpy().item() for t in tf.identity_n([1, 2.5])]
      [1, 2.5]
    """
    return [identity(t) for t in input]


@accept_composites
@op(same=(), differentiable=False, strings="moves")
def stop_gradient(input: TensorLike, name: str | None = None) -> Tensor:
    """Return a tensor with the same shape and value that blocks gradients.

    Example:
      >>> x = tf.constant(2.0)
      >>> with tf.GradientTape() as tape:
      ...     tape.watch(x)
      ...     y = x * tf.stop_gradient(x)
      >>> float(tape.gradient(y, x))
      2.0
    """
    return jax.lax.stop_gradient(input)


def grad_pass_through(f: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return a function with the value of `f` and the gradient of the identity.

    Args:
      f: A function of tensors; its result has the shape of its first argument.

    Example:
      >>> x = tf.Variable(1.7)
      >>> with tf.GradientTape() as tape:
      ...     y = tf.grad_pass_through(tf.round)(x)
      >>> y.numpy().item(), tape.gradient(y, x).numpy().item()
      (2.0, 1.0)
    """

    def call_with_identity_gradient(x: Any, *args: Any, **kwargs: Any) -> Tensor:
        x = convert_to_tensor(x)
        return x + stop_gradient(f(x, *args, **kwargs) - x)

    return call_with_identity_gradient


@defer_host_values(lambda x, shape, name=None: TensorSpec(shape, x.dtype))
@accept_symbolic
def ensure_shape(x: TensorLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """Return `x` after a check that its shape is compatible with `shape`.

    Args:
      x: A tensor.
      shape: Expected sizes; None matches any size.
      name: Ignored.

    Raises:
      InvalidArgumentError: If the shapes are incompatible.

    Example:
      >>> tf.ensure_shape(tf.zeros([4, 3]), [None, 3]).shape
      TensorShape([4, 3])
    """
    tensor = convert_to_tensor(x)
    if context.size_probe is not None:
        tensor = Tensor(context.size_probe.refine_array(tensor.array, shape))
    if not TensorShape(shape).is_compatible_with(tensor.shape):
        raise InvalidValueError(
            f"Shape of tensor {tensor.shape} is not compatible with expected shape {TensorShape(shape)}."
        )
    return tensor


def guarantee_const(input: TensorLike, name: str | None = None) -> Tensor:
    """Return a tensor of the same shape and value; XLA detects constants without this op.

    Example:
      >>> tf.guarantee_const(3).numpy().item()
      3
    """
    return identity(input)


def get_static_value(tensor: Any, partial: bool = False) -> Any:
    """Return the value of a tensor as a NumPy array or number, or None if it is unknown now.

    Args:
      tensor: A tensor; another object is returned unchanged, and a variable has no static value.
      partial: Ignored.

    Example:
      >>> known = []
      >>> @tf.function
      ... def f(x):
      ...     known.extend([tf.get_static_value(x), tf.get_static_value(tf.constant(3)).item()])
      >>> f(tf.constant(1.0))
      >>> known
      [None, 3]
    """
    if not is_tensor(tensor):
        return tensor
    array = read_static_array(tensor) if isinstance(tensor, Tensor) else None
    return array if array is None or context.trace is not None else array[()]


def read_static_array(value: Any) -> np.ndarray | None:
    """Return the value of a tensor, variable or number as an array, or None while it is traced."""
    tensor = convert_to_tensor(value)
    if tensor._is_in_graph:
        return tensor.find_known_value()
    array = tensor.array
    return None if isinstance(array, jax.core.Tracer) else np.asarray(array)


@record_in_graph
def no_op(name: str | None = None) -> None:
    """Do nothing.

    Example:
      >>> tf.no_op() is None
      True
    """


@record_in_graph
def group(*inputs: object, **kwargs: object) -> None:
    """Return None: ops already run in program order.

    Example:
      >>> v = tf.Variable(1)
      >>> tf.group(v.assign_add(1), v.assign_add(1))
      >>> v.numpy().item()
      3
    """


@record_in_graph
def tuple(
    tensors: Iterable[Any], control_inputs: object = None, name: str | None = None
) -> list[Any]:
    """Return the tensors as a list, with unchanged shapes: ops already run in program order.

    Example:
      >>> [t.numpy().item() for t in tf.tuple([tf.constant(1), tf.constant(2)])]
      [1, 2]
    """
    return list(tensors)


@op(same=(), differentiable=False, name="shape")
def get_symbolic_shape(input: TensorLike, out_type: DType) -> Tensor:
    """Compute `tf.shape` of a symbolic Keras tensor with unknown sizes, as an op of the graph."""
    return np.array(input.shape, out_type.dtype)


@op(same=(), differentiable=False, name="size")
def get_symbolic_size(input: TensorLike, out_type: DType) -> Tensor:
    """Compute `tf.size` of a symbolic Keras tensor with unknown sizes, as an op of the graph."""
    return np.array(math.prod(input.shape), out_type.dtype)
