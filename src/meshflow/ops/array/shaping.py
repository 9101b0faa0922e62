"""Changing shapes: the same elements under other dimensions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.symbolic_sizes import any_symbolic
from meshflow.core.values.tensor import Tensor, TensorLike

__all__ = ["bitcast", "expand_dims", "newaxis", "reshape", "squeeze", "transpose"]


newaxis = None


def axis_within(axis: int, rank: int, what: str) -> int:
    """`axis` counted from the first dimension; InvalidArgumentError, naming `what`, outside the rank."""
    if not -rank <= axis < rank:
        raise InvalidValueError(f"{what}: axis {axis} is out of range for rank {rank}.")
    return axis % rank


@op(same=(), name="reshape", strings="moves")
def reshape(tensor: TensorLike, shape: Any, name: str | None = None) -> Tensor:
    """The same elements in another shape.

    Args:
      tensor: a tensor.
      shape: the new sizes; one may be -1.
      name: ignored.

    Returns:
      A tensor.

    Raises:
      InvalidArgumentError: when the number of elements differs.

    Example:
      >>> import meshflow as tf
      >>> tf.reshape(tf.range(6), [2, -1]).numpy()
      array([[0, 1, 2],
             [3, 4, 5]], dtype=int32)
    """
    sizes = tuple(-1 if s is None else s for s in (shape if isinstance(shape, tuple) else (shape,)))
    if any_symbolic((*sizes, *tensor.shape)):
        return jnp.reshape(tensor, sizes)
    count = int(np.prod(sizes, dtype=np.int64))
    if (-1 not in sizes and count != tensor.size) or sizes.count(-1) > 1:
        raise InvalidValueError(
            f"Input to reshape is a tensor with {tensor.size} values, but the requested shape {list(sizes)} has {count}."
        )
    if -1 in sizes and 0 in sizes and tensor.size == 0:
        # Any size would do; TensorFlow takes the one that fits when zeros do not count.
        old = int(np.prod([s for s in tensor.shape if s], dtype=np.int64))
        new = int(np.prod([s for s in sizes if s > 0], dtype=np.int64))
        sizes = tuple(old // new if s == -1 else s for s in sizes)
    return jnp.reshape(tensor, sizes)


@op(same=(), name="expand_dims", strings="moves")
def expand_dims(input: TensorLike, axis: int, name: str | None = None) -> Tensor:
    """Adds a dimension of size 1 at `axis`.

    The result has the argument's shape with a dimension of size 1 put in at `axis`.

    Args:
      input: a tensor.
      axis: where the new dimension goes; negative ones count from the end of the result.
      name: ignored.

    Returns:
      A tensor of one dimension more.

    Raises:
      InvalidArgumentError: when `axis` is out of range.

    Example:
      >>> import meshflow as tf
      >>> x = tf.zeros([2, 3])
      >>> tf.expand_dims(x, 0).shape, tf.expand_dims(x, -1).shape
      (TensorShape([1, 2, 3]), TensorShape([2, 3, 1]))
    """
    if isinstance(axis, tuple) and len(axis) == 1:
        axis = axis[0]
    return jnp.expand_dims(input, axis_within(axis, input.ndim + 1, "expand_dims"))


@op(same=(), name="squeeze", strings="moves")
def squeeze(input: TensorLike, axis: Any = None, name: str | None = None) -> Tensor:
    """Drops dimensions of size 1: all, or those in `axis`.

    The result has the argument's shape without dimensions of size 1, all or those of `axis`.

    Args:
      input: a tensor.
      axis: the dimension or dimensions to drop; default all of size 1.
      name: ignored.

    Raises:
      InvalidArgumentError: when a dimension has another size.

    Example:
      >>> import meshflow as tf
      >>> x = tf.zeros([1, 3, 1])
      >>> tf.squeeze(x).shape, tf.squeeze(x, axis=0).shape
      (TensorShape([3]), TensorShape([3, 1]))
    """
    if axis is not None and axis != ():
        axes = (axis,) if isinstance(axis, int) else axis
        axes = tuple(axis_within(a, input.ndim, "squeeze") for a in axes)
        for a in axes:
            if input.shape[a] != 1:
                raise InvalidValueError(
                    f"Can not squeeze dim[{a}], expected a dimension of 1, got {input.shape[a]}."
                )
        return jnp.squeeze(input, axes)
    return jnp.squeeze(input)


@op(same=(), name="transpose", strings="moves")
def transpose(
    a: TensorLike, perm: Any = None, conjugate: bool = False, name: str = "transpose"
) -> Tensor:
    """Permutes dimensions; default reverses them.

    Args:
      a: a tensor.
      perm: the order of the dimensions.
      conjugate: whether complex numbers are conjugated too.
      name: ignored.

    Returns:
      A tensor.

    Example:
      >>> import meshflow as tf
      >>> print(tf.transpose([[1, 2, 3], [4, 5, 6]]).numpy())
      [[1 4]
       [2 5]
       [3 6]]
      >>> tf.transpose(tf.zeros([2, 3, 4]), perm=[0, 2, 1]).shape
      TensorShape([2, 4, 3])
    """
    if perm is not None and sorted(p % max(a.ndim, 1) for p in perm) != list(range(a.ndim)):
        raise InvalidValueError(
            f"transpose expects a permutation of the {a.ndim} dimensions, got {list(perm)}."
        )
    result = jnp.transpose(a, perm)
    return jnp.conj(result) if conjugate else result


@op(same=(), name="bitcast")
def _bitcast(input: TensorLike, dtype: Any) -> Tensor:
    return jax.lax.bitcast_convert_type(input, dtype.dtype)


def bitcast(input: TensorLike, type: Any, name: str | None = None) -> Tensor:
    """The same bits read as another dtype.

    A dtype of another width changes the shape: its last dimension is joined or split.

    Args:
      input: a tensor.
      type: the new dtype. A smaller one adds a last dimension, a larger one takes it.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> hex(tf.bitcast(1.0, tf.int32).numpy().item())
      '0x3f800000'
      >>> tf.bitcast(tf.zeros([2], tf.int32), tf.uint8).shape
      TensorShape([2, 4])
    """
    return _bitcast(input, as_dtype(type))
