"""Max and average pooling.

XLA's gradient of a max pool (select-and-scatter) is by far the slowest op of a CNN on CPUs. Windows
that do not overlap are reduced as an extra dimension instead, with a gradient that goes to the first
maximum of each window, as TensorFlow's does.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch import op
from meshflow.core.errors import InvalidValueError
from meshflow.core.tensor import Tensor, TensorLike
from meshflow.ops.nn.convolution import _channels_first, padding_pairs, spatial_sizes

__all__ = [
    "avg_pool",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "max_pool",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "pool",
]


def _full(sizes: tuple[int, ...], channels_first: bool) -> tuple[int, ...]:
    return (1, 1, *sizes) if channels_first else (1, *sizes, 1)


def _pairs(
    x: Any, window: tuple[int, ...], strides: tuple[int, ...], padding: Any, first: bool
) -> Any:
    if isinstance(padding, str):
        return jax.lax.padtype_to_pads(
            x.shape, _full(window, first), _full(strides, first), padding
        )
    return [(0, 0), (0, 0), *padding] if first else [(0, 0), *padding, (0, 0)]


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).min


def _split_windows(x: Any, window: tuple[int, ...], first: bool) -> Any:
    """[..., n, ...] -> [..., n / k, ..., k1 * k2 * ...]: windows as a last dimension, in reading order."""
    start = 2 if first else 1
    shape = list(x.shape[:start])
    for size, k in zip(x.shape[start:], window, strict=False):
        shape += [size // k, k]
    shape += x.shape[start + len(window) :]
    x = x.reshape(shape)
    rank = len(window)
    inner = [start + 2 * i + 1 for i in range(rank)]
    outer = [i for i in range(x.ndim) if i not in inner]
    x = x.transpose(*outer, *inner)
    return x.reshape(*x.shape[: len(outer)], int(np.prod(window)))


@jax.custom_vjp
def _first_max(stack: Any) -> Any:
    """Maximum over the last dimension; the gradient goes to the first of equal maxima."""
    return jnp.max(stack, axis=-1)


def _first_max_forward(stack: Any) -> Any:
    return _first_max(stack), stack


def _first_max_backward(stack: Any, g: Any) -> Any:
    chosen = jnp.argmax(stack, axis=-1)
    positions = jnp.arange(stack.shape[-1], dtype=chosen.dtype)
    return (jnp.where(chosen[..., None] == positions, g[..., None], jnp.zeros((), g.dtype)),)


_first_max.defvjp(_first_max_forward, _first_max_backward)


def _tiles(
    x: Any, window: tuple[int, ...], strides: tuple[int, ...], pads: Any, first: bool
) -> bool:
    spatial = x.shape[2:] if first else x.shape[1:-1]
    divides = all(size % k == 0 for size, k in zip(spatial, window, strict=True))
    return window == strides and divides and all(p == (0, 0) for p in map(tuple, pads))


@op(name="max_pool", kinds="if")
def _max_pool(input: TensorLike, window: Any, strides: Any, padding: Any, first: bool) -> Tensor:
    pads = _pairs(input, window, strides, padding, first)
    if _tiles(input, window, strides, pads, first):
        return _first_max(_split_windows(input, window, first))
    # A literal, so that JAX recognizes the reduction and knows its gradient.
    start = np.asarray(_lowest(input.dtype), input.dtype)
    return jax.lax.reduce_window(
        input, start, jax.lax.max, _full(window, first), _full(strides, first), pads
    )


@op(name="avg_pool", kinds="f")
def _avg_pool(input: TensorLike, window: Any, strides: Any, padding: Any, first: bool) -> Tensor:
    pads = _pairs(input, window, strides, padding, first)
    if _tiles(input, window, strides, pads, first):
        return jnp.mean(_split_windows(input, window, first), axis=-1)
    zero = np.zeros((), input.dtype)
    args = (jax.lax.add, _full(window, first), _full(strides, first), pads)
    total = jax.lax.reduce_window(input, zero, *args)
    # Positions outside the input do not count.
    spatial = input.shape[2:] if first else input.shape[1:-1]
    ones = jnp.ones(_full(spatial, first), input.dtype)
    return total / jax.lax.reduce_window(ones, zero, *args)


def _pool(
    function: Any,
    input: Any,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str | None,
    rank: int | None,
) -> Tensor:
    first = _channels_first(data_format)
    if rank is None:
        rank = len(input.shape) - 2
    window = spatial_sizes(ksize, rank, first, "ksize")
    steps = spatial_sizes(ksize if strides is None else strides, rank, first, "strides")
    if len(input.shape) != rank + 2:
        raise InvalidValueError(
            f"pooling expects input of rank {rank + 2}, got shape {tuple(input.shape)}."
        )
    return function(input, window, steps, padding_pairs(padding, rank, first), first)


def _as_tensor(input: Any) -> Any:
    from meshflow.core.convert import convert_to_tensor

    return convert_to_tensor(input)


def max_pool(
    input: TensorLike,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The maximum of each window.

    Args:
      input: tensor of shape [batch, *spatial, channels] (or channels first), 1 to 3 spatial dimensions.
      ksize: size of the window per spatial dimension.
      strides: step of the window.
      padding: 'SAME', 'VALID' or explicit pairs.
      data_format: such as 'NHWC' or 'NCHW'.
      name: ignored.

    Returns:
      A tensor in the layout of the input.

    Example:
      >>> import meshflow as tf
      >>> tf.nn.max_pool(tf.reshape(tf.range(4.0), [1, 2, 2, 1]), 2, 2, "VALID").numpy().item()
      3.0
    """
    return _pool(_max_pool, _as_tensor(input), ksize, strides, padding, data_format, None)


def avg_pool(
    input: TensorLike,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The mean of each window; arguments as in `max_pool`. Padding does not count."""
    return _pool(_avg_pool, _as_tensor(input), ksize, strides, padding, data_format, None)


def max_pool1d(
    input: TensorLike,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NWC",
    name: str | None = None,
) -> Tensor:
    """`max_pool` over one dimension."""
    return _pool(_max_pool, _as_tensor(input), ksize, strides, padding, data_format, 1)


def max_pool2d(
    input: TensorLike,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    name: str | None = None,
) -> Tensor:
    """`max_pool` over two dimensions."""
    return _pool(_max_pool, _as_tensor(input), ksize, strides, padding, data_format, 2)


def max_pool3d(
    input: TensorLike,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NDHWC",
    name: str | None = None,
) -> Tensor:
    """`max_pool` over three dimensions."""
    return _pool(_max_pool, _as_tensor(input), ksize, strides, padding, data_format, 3)


def avg_pool1d(
    input: TensorLike,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NWC",
    name: str | None = None,
) -> Tensor:
    """`avg_pool` over one dimension."""
    return _pool(_avg_pool, _as_tensor(input), ksize, strides, padding, data_format, 1)


def avg_pool2d(
    input: TensorLike,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    name: str | None = None,
) -> Tensor:
    """`avg_pool` over two dimensions."""
    return _pool(_avg_pool, _as_tensor(input), ksize, strides, padding, data_format, 2)


def avg_pool3d(
    input: TensorLike,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NDHWC",
    name: str | None = None,
) -> Tensor:
    """`avg_pool` over three dimensions."""
    return _pool(_avg_pool, _as_tensor(input), ksize, strides, padding, data_format, 3)


def pool(
    input: TensorLike,
    window_shape: Any,
    pooling_type: str,
    strides: Any = None,
    padding: Any = "VALID",
    data_format: str | None = None,
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """Pooling of any number of spatial dimensions.

    Args:
      input: tensor of shape [batch, *spatial, channels] (or channels first).
      window_shape: size of the window per spatial dimension.
      pooling_type: 'AVG' or 'MAX'.
      strides: step; default 1.
      padding: 'SAME', 'VALID' or explicit pairs.
      data_format: such as 'NHWC' or 'NCHW'.
      dilations: only 1 is supported.
      name: ignored.

    Raises:
      ValueError: for another pooling type.
      NotImplementedError: for dilations above 1.
    """
    if dilations is not None and any(d != 1 for d in np.atleast_1d(dilations)):
        raise NotImplementedError("tf.nn.pool with dilations is not supported.")
    if pooling_type not in ("AVG", "MAX"):
        raise ValueError(f"pooling_type must be 'AVG' or 'MAX', got {pooling_type!r}.")
    function = _max_pool if pooling_type == "MAX" else _avg_pool
    return _pool(
        function,
        _as_tensor(input),
        window_shape,
        1 if strides is None else strides,
        padding,
        data_format,
        len(window_shape),
    )
