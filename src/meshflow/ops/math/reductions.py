"""Reductions over dimensions, cumulative reductions, argmax, histograms of integers."""

from __future__ import annotations

import builtins
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.symbolic_calls import accept_symbolic, dispatch_composites
from meshflow.core.runtime.bounds_checks import check_classes
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype, int64
from meshflow.core.values.symbolic_sizes import has_symbolic_size, may_be_zero, pad_empty
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import compute_size, read_sizes
from meshflow.environment.types import Array
from meshflow.ops.array import reshape, where
from meshflow.ops.array.shaping import Axes, normalize_axis
from meshflow.ops.casting import cast
from meshflow.ops.math.comparison import not_equal
from meshflow.ops.signatures import ReductionOp

__all__ = [
    "argmax",
    "argmin",
    "bincount",
    "confusion_matrix",
    "count_nonzero",
    "cumprod",
    "cumsum",
    "cumulative_logsumexp",
    "is_non_decreasing",
    "is_strictly_increasing",
    "lbeta",
    "polyval",
    "reduce_all",
    "reduce_any",
    "reduce_euclidean_norm",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_std",
    "reduce_sum",
    "reduce_variance",
    "zero_fraction",
]


def _check_axis(axis: Axes, rank: int) -> Axes:
    axes = (axis,) if isinstance(axis, int) else axis or ()
    for a in axes:
        if not -rank <= a < rank:
            raise InvalidValueError(
                f"Invalid reduction dimension {a} for input with {rank} dimensions."
            )
    if len(axes) > 1 and len({a % rank for a in axes}) < len(axes):
        raise InvalidValueError(
            f"Invalid reduction arguments: Axes contains duplicate dimension, got {list(axes)}."
        )
    return axis


def _define_reduction(
    name: str,
    function: Callable[..., Any],
    summary: str,
    example_output: str,
    kinds: str,
    differentiable: bool = True,
) -> ReductionOp:
    """Define a reduction; its docstring has an example with the given output."""
    example_input = "[[True, False], [True, True]]" if kinds == "b" else "[[1.0, 2.0], [3.0, 6.0]]"

    def compute(
        input_tensor: TensorLike, axis: Axes = None, keepdims: bool = False, name: str | None = None
    ) -> Tensor:
        return function(input_tensor, axis=_check_axis(axis, input_tensor.ndim), keepdims=keepdims)

    compute.__name__ = compute.__qualname__ = name
    compute.__module__ = __name__
    compute.__doc__ = f"""{summary}

    Args:
      input_tensor: A tensor.
      axis: The dimension or dimensions to reduce; default all.
      keepdims: Whether to keep the reduced dimensions with size 1.
      name: Ignored.

    Returns:
      A tensor without the reduced dimensions.

    Example:
      >>> print(tf.math.{name}({example_input}, axis=1).numpy(){"" if kinds == "b" else ".round(3)"})
      {example_output}
    """
    return op(compute, kinds=kinds, differentiable=differentiable)


def _sum(x: jax.Array, axis: Axes, keepdims: bool) -> jax.Array:
    if x.dtype.itemsize < 4:
        # Sums of float16 are computed in float32.
        return jnp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)
    # JAX traces `lax` faster than `jax.numpy`.
    axes = _list_axes(x, axis)
    total = lax.reduce_sum(x, axes)
    return lax.expand_dims(total, axes) if keepdims else total


def _list_axes(x: jax.Array, axis: Axes) -> tuple[int, ...]:
    axes = (axis,) if isinstance(axis, int) else range(x.ndim) if axis is None else axis
    return tuple(a % x.ndim for a in axes)


def _prod(x: jax.Array, axis: Axes, keepdims: bool) -> jax.Array:
    return jnp.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _mean(x: jax.Array, axis: Axes, keepdims: bool) -> jax.Array:
    if not jnp.issubdtype(x.dtype, jnp.integer):
        if x.dtype.itemsize < 4:
            return jnp.mean(x, axis=axis, keepdims=keepdims)
        return divide_by_count(_sum(x, axis, keepdims), x, _list_axes(x, axis))
    # As in TensorFlow, the mean of integers is an integer, rounded towards zero.
    unsigned = jnp.issubdtype(x.dtype, jnp.unsignedinteger)
    total = _sum(x.astype(jnp.uint64 if unsigned else jnp.int64), axis, keepdims)
    count = builtins.max(x.size // builtins.max(total.size, 1), 1)
    return jax.lax.div(total, jnp.asarray(count, total.dtype)).astype(x.dtype)


def divide_by_count(total: jax.Array, x: jax.Array, axes: Sequence[int]) -> jax.Array:
    """Divide the sum of an array over some axes by the number of summed elements."""
    count = math.prod(x.shape[axis] for axis in axes)
    is_symbolic = is_symbolic_dim(count)
    divisor = lax.convert_element_type(count, x.dtype) if is_symbolic else x.dtype.type(count)
    return lax.div(total, divisor)


def _variance(x: jax.Array, axis: Axes, keepdims: bool) -> jax.Array:
    mean = jnp.mean(x, axis=axis, keepdims=True)
    return jnp.mean(jnp.square(jnp.abs(x - mean)), axis=axis, keepdims=keepdims)


def _std(x: jax.Array, axis: Axes, keepdims: bool) -> jax.Array:
    return jnp.sqrt(_variance(x, axis, keepdims))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
def _find_extreme(find: Callable[..., Any], x: jax.Array, axis: Axes) -> jax.Array:
    """Find the maximum or minimum; equal elements share the gradient, and that of NaN is NaN."""
    return find(x, axis=axis, keepdims=True, initial=_get_initial(find, x, axis))


@_find_extreme.defjvp
def _compute_extreme_jvp(
    find: Callable[..., Any], axis: Axes, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (x,), (t,) = primals, tangents
    best = _find_extreme(find, x, axis)
    is_best = (x == best).astype(x.dtype)
    # NaN is selected explicitly, because XLA simplifies a product with zero to zero.
    shares = jnp.where(best != best, best, is_best / jnp.sum(is_best, axis=axis, keepdims=True))
    return best, jnp.sum(t * shares, axis=axis, keepdims=True)


def _max(x: jax.Array, axis: Axes, keepdims: bool) -> jax.Array:
    return _reduce_extreme(jnp.max, x, axis, keepdims)


def _min(x: jax.Array, axis: Axes, keepdims: bool) -> jax.Array:
    return _reduce_extreme(jnp.min, x, axis, keepdims)


def _reduce_extreme(
    find: Callable[..., Any], x: jax.Array, axis: Axes, keepdims: bool
) -> jax.Array:
    if x.size == 0 or not jnp.issubdtype(x.dtype, jnp.floating):
        return find(x, axis=axis, keepdims=keepdims, initial=_get_initial(find, x, axis))
    best = _find_extreme(find, x, axis)
    return best if keepdims else jnp.squeeze(best, axis)


def _get_initial(find: Callable[..., Any], x: jax.Array, axis: Axes) -> float | None:
    """Return the maximum or minimum of no elements if the axes may have none, otherwise None."""
    axes = builtins.range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    if not any(may_be_zero(x.shape[i]) for i in axes):
        return None
    return _get_worst(x, find is jnp.max)


def _get_worst(x: jax.Array, is_lowest: bool) -> float:
    """Return the lowest or highest number of a dtype."""
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return -jnp.inf if is_lowest else jnp.inf
    info = jnp.iinfo(x.dtype)
    return info.min if is_lowest else info.max


def _norm(x: jax.Array, axis: Axes, keepdims: bool) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(jnp.abs(x)), axis=axis, keepdims=keepdims)).astype(x.dtype)


def _logsumexp(x: jax.Array, axis: Axes, keepdims: bool) -> jax.Array:
    return jax.scipy.special.logsumexp(x, axis=axis, keepdims=keepdims)


reduce_sum = _define_reduction(
    "reduce_sum", _sum, "Sum elements over dimensions.", "[3. 9.]", kinds="ifc"
)
reduce_mean = _define_reduction(
    "reduce_mean",
    _mean,
    "Compute the mean over dimensions; for integers, it is rounded towards zero.",
    "[1.5 4.5]",
    kinds="ifc",
)
reduce_prod = _define_reduction(
    "reduce_prod", _prod, "Compute the product over dimensions.", "[ 2. 18.]", kinds="ifc"
)
reduce_max = _define_reduction(
    "reduce_max", _max, "Find the maximum over dimensions.", "[2. 6.]", kinds="if"
)
reduce_min = _define_reduction(
    "reduce_min", _min, "Find the minimum over dimensions.", "[1. 3.]", kinds="if"
)
reduce_any = _define_reduction(
    "reduce_any",
    jnp.any,
    "Check whether any element is true.",
    "[ True  True]",
    kinds="b",
    differentiable=False,
)
reduce_all = _define_reduction(
    "reduce_all",
    jnp.all,
    "Check whether all elements are true.",
    "[False  True]",
    kinds="b",
    differentiable=False,
)
reduce_variance = _define_reduction(
    "reduce_variance",
    _variance,
    "Compute the variance over dimensions, with the divisor n.",
    "[0.25 2.25]",
    kinds="fc",
)
reduce_std = _define_reduction(
    "reduce_std", _std, "Compute the standard deviation over dimensions.", "[0.5 1.5]", kinds="fc"
)
reduce_logsumexp = _define_reduction(
    "reduce_logsumexp",
    _logsumexp,
    "Compute `log(sum(exp(x)))` without overflow.",
    "[2.313 6.049]",
    kinds="f",
)
reduce_euclidean_norm = _define_reduction(
    "reduce_euclidean_norm", _norm, "Compute `sqrt(sum(|x|^2))`.", "[2.236 6.708]", kinds="ifc"
)


@op(differentiable=False)
def argmax(
    input: TensorLike,
    axis: int | None = None,
    output_type: DTypeLike = int64,
    name: str | None = None,
) -> Tensor:
    """Find the index of the first largest element along a dimension; NaN is ignored.

    Args:
      input: A tensor.
      axis: The dimension; default 0.
      output_type: Dtype of the result.
      name: Ignored.

    Returns:
      Tensor with the shape of the argument without `axis`.

    Example:
      >>> tf.argmax([[1, 5], [7, 2]], axis=1).numpy()
      array([1, 0])
    """
    return _find_index(jnp.argmax, input, axis, -jnp.inf, output_type)


@op(differentiable=False)
def argmin(
    input: TensorLike,
    axis: int | None = None,
    output_type: DTypeLike = int64,
    name: str | None = None,
) -> Tensor:
    """Find the index of the first smallest element along a dimension; see `argmax`.

    Example:
      >>> tf.argmin([[1, 5], [7, 2]], axis=1).numpy()
      array([0, 1])
    """
    return _find_index(jnp.argmin, input, axis, jnp.inf, output_type)


def _find_index(
    find: Callable[..., Any], x: jax.Array, axis: int | None, worst: float, output_type: DTypeLike
) -> jax.Array:
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = jnp.where(jnp.isnan(x), jnp.asarray(worst, x.dtype), x)
    _check_axis(axis or 0, x.ndim)
    position = (axis or 0) % x.ndim
    if x.shape[position] == 0 and all(x.shape[:position] + x.shape[position + 1 :]):
        raise InvalidValueError(
            f"Reduction axis {position} is empty in shape {list(x.shape)}. [Op:Arg{'Max' if worst < 0 else 'Min'}]"
        )
    if not as_dtype(output_type).is_integer:
        raise InvalidValueError(f"argmax: output_type must be an integer dtype, got {output_type}.")
    if is_symbolic_dim(x.shape[position]) and may_be_zero(x.shape[position]):
        # JAX requires an element. The additional one is last and worst, so no other element loses to it.
        last = jnp.asarray(_get_worst(x, worst < 0), x.dtype)
        x = jax.lax.pad(x, last, [(0, int(i == position), 0) for i in builtins.range(x.ndim)])
    return find(x, axis=position).astype(as_dtype(output_type).dtype)


def _accumulate(
    function: Callable[..., Any],
    x: jax.Array,
    axis: int,
    exclusive: bool,
    reverse: bool,
    start: float,
) -> jax.Array:
    if reverse:
        x = jnp.flip(x, axis)
    padded = pad_empty(x, axis)
    result = function(padded, axis=axis).astype(x.dtype)
    low, high = int(exclusive), -int(exclusive) - (padded is not x)
    if low or high:
        config = [(low, high, 0) if i == axis else (0, 0, 0) for i in builtins.range(x.ndim)]
        result = jax.lax.pad(result, jnp.asarray(start, x.dtype), config)
    return jnp.flip(result, axis) if reverse else result


@op(kinds="ifc")
def cumsum(
    x: TensorLike,
    axis: int = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute cumulative sums along a dimension.

    Args:
      x: A tensor.
      axis: The dimension.
      exclusive: Whether to exclude the element itself from its sum.
      reverse: Whether to sum from the end.
      name: Ignored.

    Returns:
      A tensor of the shape of `x`.

    Example:
      >>> tf.cumsum([1, 2, 3], exclusive=True).numpy()
      array([0, 1, 3], dtype=int32)
    """
    return _accumulate(jnp.cumsum, x, normalize_axis(axis, x.ndim, "cumsum"), exclusive, reverse, 0)


@op(kinds="ifc")
def cumprod(
    x: TensorLike,
    axis: int = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute cumulative products along a dimension; the arguments are those of `cumsum`.

    Example:
      >>> print(tf.math.cumprod([2, 3, 4]).numpy())
      [ 2  6 24]
      >>> print(tf.math.cumprod([2, 3, 4], exclusive=True).numpy())
      [1 2 6]
    """
    return _accumulate(
        jnp.cumprod, x, normalize_axis(axis, x.ndim, "cumprod"), exclusive, reverse, 1
    )


@op(kinds="f")
def cumulative_logsumexp(
    x: TensorLike,
    axis: int = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute `log(cumsum(exp(x)))` without overflow; the arguments are those of `cumsum`.

    The result has the shape of the argument.

    Example:
      >>> print(tf.math.cumulative_logsumexp([1000.0, 1000.0]).numpy().round(3))
      [1000.    1000.693]
    """
    axis = normalize_axis(axis, x.ndim, "cumulative_logsumexp")

    def scan(v: jax.Array, axis: int) -> jax.Array:
        return jax.lax.cumlogsumexp(v, axis=axis)

    return _accumulate(scan, x, axis, exclusive, reverse, -jnp.inf)


@dispatch_composites
def count_nonzero(
    input: TensorLike,
    axis: Axes = None,
    keepdims: bool | None = None,
    dtype: DTypeLike = int64,
    name: str | None = None,
) -> Tensor:
    """Count the elements that are not zero (for strings: not empty).

    Args:
      input: A tensor of numbers, booleans or strings.
      axis: The dimension or dimensions to count over; default all.
      keepdims: Whether to keep the reduced dimensions with size 1; default False.
      dtype: Dtype of the counts; default int64.
      name: Ignored.

    Example:
      >>> print(tf.math.count_nonzero([[0, 3, 4], [0, 0, 5]], axis=1).numpy())
      [2 1]
      >>> print(tf.math.count_nonzero(["", "a"]).numpy())
      1
    """
    if not hasattr(input, "_keras_history"):
        input = convert_to_tensor(input)
    zero = b"" if input.dtype == "string" else np.zeros((), input.dtype.as_numpy_dtype)
    return reduce_sum(cast(not_equal(input, zero), dtype), axis, bool(keepdims))


@op(differentiable=False)
def zero_fraction(value: TensorLike, name: str | None = None) -> Tensor:
    """Compute the fraction of elements that are zero, a float32 scalar.

    Example:
      >>> tf.nn.zero_fraction(tf.nn.relu([-2.0, -1.0, -3.0, 4.0])).numpy().item()
      0.75
    """
    return jnp.mean((value == 0).astype(jnp.float32))


@op(differentiable=False)
def is_non_decreasing(x: TensorLike, name: str | None = None) -> Tensor:
    """Check whether no element is smaller than its predecessor; the result is a scalar.

    Example:
      >>> [tf.math.is_non_decreasing(x).numpy().item() for x in ([1, 1, 2], [2, 1])]
      [True, False]
    """
    flat = x.reshape(-1)
    return jnp.all(flat[1:] >= flat[:-1])


@op(differentiable=False)
def is_strictly_increasing(x: TensorLike, name: str | None = None) -> Tensor:
    """Check whether each element is larger than its predecessor; the result is a scalar.

    Example:
      >>> [tf.math.is_strictly_increasing(x).numpy().item() for x in ([1, 2, 5], [1, 1, 2])]
      [True, False]
    """
    flat = x.reshape(-1)
    return jnp.all(flat[1:] > flat[:-1])


@op(same=(), differentiable=False, name="bincount")
def _bincount(
    arr: TensorLike, weights: TensorLike | None, size: int, dtype: DType, by_row: bool, binary: bool
) -> Tensor:
    count_dtype = dtype.dtype if weights is None else weights.dtype

    def count(ids: jax.Array, values: jax.Array) -> jax.Array:
        is_inside = (ids >= 0) & (ids < size)
        indices = jnp.where(is_inside, ids, 0)
        return jnp.zeros((size,), count_dtype).at[indices].add(jnp.where(is_inside, values, 0))

    values = jnp.ones(arr.shape, count_dtype) if weights is None else weights
    if by_row:
        counts = jax.vmap(count)(arr, values)
    else:
        counts = count(arr.reshape(-1), values.reshape(-1))
    return (counts > 0).astype(count_dtype) if binary else counts


@accept_symbolic
def bincount(
    arr: TensorLike,
    weights: Any = None,
    minlength: int | None = None,
    maxlength: int | None = None,
    dtype: DTypeLike = "int32",
    name: str | None = None,
    axis: int | None = None,
    binary_output: bool = False,
) -> Tensor:
    """Count the occurrences of each nonnegative integer.

    Args:
      arr: Nonnegative integers, may be sparse.
      weights: Values to sum instead of counting, sparse if `arr` is.
      minlength: Minimum size of the result.
      maxlength: Maximum size; larger integers are not counted. Required while a function is traced.
      dtype: Dtype of the counts.
      name: Ignored.
      axis: 0 (or None) to count in the full tensor, -1 to count in each row.
      binary_output: Whether to return 1 for every count above 0.

    Returns:
      A vector of shape (size,), or for axis -1 and `arr` of shape (batch, n) a matrix (batch,
      size).

    Raises:
      InvalidArgumentError: If an integer is negative.
      ValueError: If the axis is another one.

    Example:
      >>> print(tf.math.bincount([0, 2, 2, 5]).numpy())
      [1 0 2 0 0 1]
      >>> print(tf.math.bincount([[0, 2], [1, 1]], axis=-1, minlength=4).numpy())
      [[1 0 1 0]
       [0 2 0 0]]
    """
    sparse = arr if isinstance(arr, SparseTensor) else None
    if isinstance(weights, SparseTensor):
        weights = weights.values
    arr = arr.values if isinstance(arr, SparseTensor) else arr
    arr = convert_to_tensor(arr)
    arr = arr if arr.dtype.is_integer else cast(arr, int64)
    known_ids = None if isinstance(arr.array, jax.core.Tracer) else np.asarray(arr.array)
    if axis == -1 and arr.ndim > 2:
        raise InvalidValueError(
            f"bincount: Shape must be at most rank 2 but is rank {arr.ndim} for axis -1. [Op:DenseBincount]"
        )
    for argument, value in (("minlength", minlength), ("maxlength", maxlength)):
        if value is not None and np.ndim(to_static_value(value, argument)):
            raise InvalidValueError(
                f"bincount: `{argument}`: Shape must be rank 0, got {value}. [Op:Bincount]"
            )
    if weights is not None:
        weights = convert_to_tensor(weights)
        sizes = weights.array.shape, arr.array.shape
        if sparse is None and not has_symbolic_size(itertools.chain(*sizes)):
            if not math.prod(sizes[0]):
                dtype, weights = weights.dtype, None
            elif sizes[0] != sizes[1]:
                raise InvalidValueError(
                    f"bincount: `weights` must be the same shape as `arr`, {arr.shape}, got {weights.shape}."
                )
    # Rows of a sparse tensor may contain negative integers, which are not counted.
    by_sparse_row = sparse is not None and axis == -1 and len(sparse.shape) > 1
    if known_ids is not None and not by_sparse_row and (known_ids < 0).any():
        raise InvalidArgumentError("bincount: the numbers must be non-negative.")
    if known_ids is None and not by_sparse_row:
        limit = np.iinfo(np.int64).max
        arr = check_classes(arr, limit, "Input arr must be non-negative!")
    if binary_output and weights is not None:
        raise ValueError("bincount: binary_output cannot be combined with weights.")
    if axis not in (None, 0, -1):
        raise ValueError(f"bincount: axis must be 0, -1 or None, got {axis}.")
    # The size is the largest integer + 1. A traced function, in which it is not known, has the maximum size.
    is_unknown = known_ids is None and not minlength
    if maxlength is not None and (is_unknown or (minlength or 0) >= maxlength):
        size = maxlength
    else:

        def find_size(ids: Array) -> Array:
            return (ids.max(initial=-1) + 1).clip(minlength or 0, maxlength)

        size = compute_size(find_size, [arr], "the argument of tf.math.bincount without maxlength")
    if sparse is not None and by_sparse_row:
        rows = read_sizes(sparse.dense_shape, "the shape of a sparse argument of tf.math.bincount")[
            0
        ]
        wide = cast(arr, int64)
        # Integers that are not counted belong to no row.
        ids = where((wide >= 0) & (wide < size), sparse.indices[:, 0] * size + wide, rows * size)
        counts = _bincount(ids, weights, rows * size, as_dtype(dtype), False, binary_output)
        return reshape(counts, [rows, size])
    by_row = axis == -1 and arr.ndim > 1
    return _bincount(arr, weights, size, as_dtype(dtype), by_row, binary_output)


def confusion_matrix(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int | None = None,
    weights: Any = None,
    dtype: DTypeLike = "int32",
    name: str | None = None,
) -> Tensor:
    """Count pairs of (label, prediction).

    Args:
      labels: Class indices, shape [n].
      predictions: Class indices, shape [n].
      num_classes: Number of classes; default one more than the largest index.
      weights: Weights of the pairs.
      dtype: Dtype of the counts.
      name: Ignored.

    Returns:
      Tensor of shape [num_classes, num_classes]; rows are labels.

    Raises:
      InvalidArgumentError: If class indices are out of range. A compiled function on an accelerator
        returns NaN, or drops these pairs if `dtype` has no NaN.

    Example:
      >>> print(tf.math.confusion_matrix(labels=[0, 1, 1], predictions=[0, 0, 1]).numpy())
      [[1 0]
       [1 1]]
    """
    labels = cast(convert_to_tensor(labels), int64)
    predictions = cast(convert_to_tensor(predictions), int64)
    if labels.ndim == predictions.ndim + 1:
        labels = labels[..., 0]
    elif predictions.ndim == labels.ndim + 1:
        predictions = predictions[..., 0]
    if labels.shape.as_list() != predictions.shape.as_list():
        raise InvalidValueError(
            f"confusion_matrix: labels and predictions must have one shape, got {labels.shape} and "
            f"{predictions.shape}."
        )
    if num_classes is None:

        def find_count(labels: Array, predictions: Array) -> Array:
            last = labels.max(initial=-1)
            return last.clip(predictions.max(initial=-1)) + 1

        num_classes = compute_size(find_count, [labels, predictions], "labels without num_classes")
    num_classes = to_static_value(num_classes, "num_classes")
    count_dtype = as_dtype(dtype)
    labels, predictions = (
        check_classes(
            class_ids,
            num_classes,
            f"`{argument}` contains negative values.",
            f"`{argument}` out of bound",
        )
        if isinstance(class_ids.array, jax.core.Tracer)
        else class_ids
        for argument, class_ids in (("labels", labels), ("predictions", predictions))
    )
    for argument, class_ids in (("labels", labels), ("predictions", predictions)):
        if isinstance(class_ids.array, jax.core.Tracer):
            continue
        known_ids = np.asarray(class_ids.array)
        is_invalid = (known_ids < 0) | (known_ids >= num_classes)
        if is_invalid.any():
            position = np.argwhere(is_invalid)[0].tolist()
            raise InvalidArgumentError(
                f"confusion_matrix: `{argument}` must be within [0, {num_classes}), got {known_ids[tuple(position)]} at "
                f"position {position}."
            )
    is_inside = (labels >= 0) & (labels < num_classes)
    is_inside = is_inside & (predictions >= 0) & (predictions < num_classes)
    pair_ids = where(is_inside, labels * num_classes + predictions, convert_to_tensor(-1, int64))
    # float32 counts exactly only up to 2^24, so pairs are counted in a wider dtype.
    sum_dtype = as_dtype("float64") if count_dtype.is_floating and weights is not None else int64
    if weights is not None:
        weights = cast(
            convert_to_tensor(weights), sum_dtype if count_dtype.is_floating else count_dtype
        )
    flat = cast(
        _bincount(pair_ids, weights, num_classes * num_classes, sum_dtype, False, False),
        count_dtype,
    )
    if count_dtype.is_floating:
        nan = convert_to_tensor(np.nan, count_dtype)
        flat = where(reduce_all(is_inside), flat, nan)
    return reshape(flat, [num_classes, num_classes])


def polyval(coeffs: Any, x: TensorLike, name: str | None = None) -> Tensor:
    """Evaluate a polynomial at `x`.

    The coefficients and `x` are broadcast to a common shape.

    Args:
      coeffs: A list of tensors, highest power first.
      x: A tensor.
      name: Ignored.

    Example:
      >>> print(tf.math.polyval([2.0, 0.0, 1.0], tf.constant([3.0, 4.0])).numpy())  # 2 x^2 + 1
      [19. 33.]
    """
    if not isinstance(coeffs, list):
        raise ValueError(f"Argument coeffs must be a list, got {type(coeffs).__name__}.")
    x = convert_to_tensor(x)
    result = x * 0
    for coefficient in coeffs:
        result = coefficient + result * x
    return result


@op(kinds="f")
def lbeta(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the logarithm of the absolute beta function of the last dimension.

    The beta function is prod(Gamma(x_i)) / Gamma(sum(x_i)).

    Args:
      x: Tensor of shape [..., n]; the result is -infinity for n = 0.
      name: Ignored.

    Returns:
      Tensor of shape [...].

    Example:
      >>> print(tf.math.exp(tf.math.lbeta([[1.0, 2.0], [3.0, 1.0]])).numpy().round(3))
      [0.5   0.333]
    """
    log_gamma = jax.scipy.special.gammaln
    total = jnp.sum(x, -1)
    return jnp.sum(log_gamma(x), -1) - (log_gamma(total) if x.shape[-1] else jnp.inf)
