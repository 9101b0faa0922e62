"""Reductions over dimensions, cumulative sums, positions of extremes."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic import also_symbolic
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import as_dtype, int64
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array import reshape, where
from meshflow.ops.casting import cast
from meshflow.ops.math.comparison import not_equal
from meshflow.ops.signatures import Reduction

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


def _check_axis(axis: Any, rank: int) -> Any:
    for a in (axis,) if isinstance(axis, int) else axis or ():
        if not -rank <= a < rank:
            raise InvalidValueError(
                f"Invalid reduction dimension {a} for input with {rank} dimensions."
            )
    return axis


def _define(
    name: str,
    function: Callable[..., Any],
    doc: str,
    gives: str,
    kinds: str,
    differentiable: bool = True,
) -> Reduction:
    """A public reduction; all of them are one line of a table.

    `gives` is what the example in its docstring prints.
    """
    given = "[[True, False], [True, True]]" if kinds == "b" else "[[1.0, 2.0], [3.0, 6.0]]"

    def body(
        input_tensor: TensorLike, axis: Any = None, keepdims: bool = False, name: str | None = None
    ) -> Tensor:
        return function(input_tensor, axis=_check_axis(axis, input_tensor.ndim), keepdims=keepdims)

    body.__name__ = body.__qualname__ = name
    body.__module__ = __name__
    body.__doc__ = f"""{doc}

    Args:
      input_tensor: a tensor.
      axis: the dimension or dimensions to reduce; default all.
      keepdims: whether reduced dimensions stay, with size 1.
      name: ignored.

    Returns:
      A tensor without the reduced dimensions.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.{name}({given}, axis=1).numpy(){"" if kinds == "b" else ".round(3)"})
      {gives}
    """
    return op(body, kinds=kinds, differentiable=differentiable)


def _sum(x: Any, axis: Any, keepdims: bool) -> Any:
    return jnp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _prod(x: Any, axis: Any, keepdims: bool) -> Any:
    return jnp.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _mean(x: Any, axis: Any, keepdims: bool) -> Any:
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.mean(x, axis=axis, keepdims=keepdims)
    # Integers stay integers, rounded towards zero, as in TensorFlow.
    unsigned = jnp.issubdtype(x.dtype, jnp.unsignedinteger)
    total = _sum(x.astype(jnp.uint64 if unsigned else jnp.int64), axis, keepdims)
    count = builtins.max(x.size // builtins.max(total.size, 1), 1)
    return jax.lax.div(total, jnp.asarray(count, total.dtype)).astype(x.dtype)


def _variance(x: Any, axis: Any, keepdims: bool) -> Any:
    mean = jnp.mean(x, axis=axis, keepdims=True)
    return jnp.mean(jnp.square(jnp.abs(x - mean)), axis=axis, keepdims=keepdims)


def _std(x: Any, axis: Any, keepdims: bool) -> Any:
    return jnp.sqrt(_variance(x, axis, keepdims))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
def _extreme(find: Any, x: Any, axis: Any) -> Any:
    """The largest or smallest numbers; equal ones share the gradient, and that of NaN is NaN."""
    return find(x, axis=axis, keepdims=True)


@_extreme.defjvp
def _extreme_jvp(find: Any, axis: Any, primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    best = _extreme(find, x, axis)
    chosen = (x == best).astype(x.dtype)
    # Said outright: XLA takes zero times anything for zero.
    shares = jnp.where(best != best, best, chosen / jnp.sum(chosen, axis=axis, keepdims=True))
    return best, jnp.sum(t * shares, axis=axis, keepdims=True)


def _max(x: Any, axis: Any, keepdims: bool) -> Any:
    return _reduced(jnp.max, _lowest, x, axis, keepdims)


def _min(x: Any, axis: Any, keepdims: bool) -> Any:
    return _reduced(jnp.min, _highest, x, axis, keepdims)


def _reduced(find: Any, of_none: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    if x.size == 0 or not jnp.issubdtype(x.dtype, jnp.floating):
        initial = of_none(x) if x.size == 0 else None
        return find(x, axis=axis, keepdims=keepdims, initial=initial)
    best = _extreme(find, x, axis)
    return best if keepdims else jnp.squeeze(best, axis)


def _lowest(x: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.iinfo(x.dtype).min


def _highest(x: Any) -> Any:
    return jnp.inf if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.iinfo(x.dtype).max


def _norm(x: Any, axis: Any, keepdims: bool) -> Any:
    return jnp.sqrt(jnp.sum(jnp.square(jnp.abs(x)), axis=axis, keepdims=keepdims)).astype(x.dtype)


def _logsumexp(x: Any, axis: Any, keepdims: bool) -> Any:
    return jax.scipy.special.logsumexp(x, axis=axis, keepdims=keepdims)


reduce_sum = _define("reduce_sum", _sum, "Sum over dimensions.", "[3. 9.]", kinds="ifc")
reduce_mean = _define(
    "reduce_mean",
    _mean,
    "Mean over dimensions; of integers, rounded towards zero.",
    "[1.5 4.5]",
    kinds="ifc",
)
reduce_prod = _define("reduce_prod", _prod, "Product over dimensions.", "[ 2. 18.]", kinds="ifc")
reduce_max = _define("reduce_max", _max, "Maximum over dimensions.", "[2. 6.]", kinds="if")
reduce_min = _define("reduce_min", _min, "Minimum over dimensions.", "[1. 3.]", kinds="if")
reduce_any = _define(
    "reduce_any",
    jnp.any,
    "Whether any element is true.",
    "[ True  True]",
    kinds="b",
    differentiable=False,
)
reduce_all = _define(
    "reduce_all",
    jnp.all,
    "Whether all elements are true.",
    "[False  True]",
    kinds="b",
    differentiable=False,
)
reduce_variance = _define(
    "reduce_variance",
    _variance,
    "Variance over dimensions, divided by n.",
    "[0.25 2.25]",
    kinds="fc",
)
reduce_std = _define(
    "reduce_std", _std, "Standard deviation over dimensions.", "[0.5 1.5]", kinds="fc"
)
reduce_logsumexp = _define(
    "reduce_logsumexp",
    _logsumexp,
    "`log(sum(exp(x)))`, without overflow.",
    "[2.313 6.049]",
    kinds="f",
)
reduce_euclidean_norm = _define(
    "reduce_euclidean_norm", _norm, "`sqrt(sum(|x|^2))`.", "[2.236 6.708]", kinds="ifc"
)


@op(differentiable=False)
def argmax(
    input: TensorLike, axis: Any = None, output_type: Any = int64, name: str | None = None
) -> Tensor:
    """Position of the largest element along a dimension, the first of equals; NaN is passed over.

    The result has the shape of the argument without `axis`.

    Args:
      input: a tensor.
      axis: the dimension; default 0.
      output_type: dtype of the result.
      name: ignored.

    Returns:
      Tensor of integers without the dimension.

    Example:
      >>> import meshflow as tf
      >>> tf.argmax([[1, 5], [7, 2]], axis=1).numpy()
      array([1, 0])
    """
    return _position(jnp.argmax, input, axis, -jnp.inf, output_type)


@op(differentiable=False)
def argmin(
    input: TensorLike, axis: Any = None, output_type: Any = int64, name: str | None = None
) -> Tensor:
    """Position of the smallest element along a dimension; arguments as in `argmax`.

    The result has the shape of the argument without `axis`.

    Example:
      >>> import meshflow as tf
      >>> tf.argmin([[1, 5], [7, 2]], axis=1).numpy()
      array([0, 1])
    """
    return _position(jnp.argmin, input, axis, jnp.inf, output_type)


def _position(find: Any, x: Any, axis: Any, worst: float, output_type: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = jnp.where(jnp.isnan(x), jnp.asarray(worst, x.dtype), x)  # NaN is never the one
    return find(x, axis=_check_axis(axis or 0, x.ndim)).astype(as_dtype(output_type).dtype)


def _dimension(axis: int, x: Any) -> int:
    if not -x.ndim <= axis < x.ndim:
        raise InvalidValueError(f"axis {axis} is not within [-{x.ndim}, {x.ndim}).")
    return axis % x.ndim


def _cumulative(
    function: Callable[..., Any], x: Any, axis: int, exclusive: bool, reverse: bool, start: float
) -> Any:
    if reverse:
        x = jnp.flip(x, axis)
    result = function(x, axis=axis).astype(x.dtype)
    if exclusive:
        first = jnp.full_like(jax.lax.slice_in_dim(x, 0, 1, axis=axis), start)
        rest = jax.lax.slice_in_dim(result, 0, x.shape[axis] - 1, axis=axis)
        result = jnp.concatenate([first, rest], axis)
    return jnp.flip(result, axis) if reverse else result


@op(kinds="ifc")
def cumsum(
    x: TensorLike,
    axis: int = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """Sums up to each position along a dimension.

    Args:
      x: a tensor.
      axis: the dimension.
      exclusive: whether a position's own element is left out.
      reverse: whether to sum from the end.
      name: ignored.

    Returns:
      A tensor of the shape of `x`.

    Example:
      >>> import meshflow as tf
      >>> tf.cumsum([1, 2, 3], exclusive=True).numpy()
      array([0, 1, 3], dtype=int32)
    """
    return _cumulative(jnp.cumsum, x, _dimension(axis, x), exclusive, reverse, 0)


@op(kinds="ifc")
def cumprod(
    x: TensorLike,
    axis: int = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """Products up to each position along a dimension; arguments as in `cumsum`.

    The result has the shape of the argument.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.cumprod([2, 3, 4]).numpy())
      [ 2  6 24]
      >>> print(tf.math.cumprod([2, 3, 4], exclusive=True).numpy())
      [1 2 6]
    """
    return _cumulative(jnp.cumprod, x, _dimension(axis, x), exclusive, reverse, 1)


@op(kinds="f")
def cumulative_logsumexp(
    x: TensorLike,
    axis: int = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """`log(cumsum(exp(x)))`, without overflow; arguments as in `cumsum`.

    The result has the shape of the argument.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.cumulative_logsumexp([1000.0, 1000.0]).numpy().round(3))
      [1000.    1000.693]
    """
    axis = _dimension(axis, x)

    def scan(v: Any, axis: int) -> Any:
        return jax.lax.cumlogsumexp(v, axis=axis)

    return _cumulative(scan, x, axis, exclusive, reverse, -jnp.inf)


def count_nonzero(
    input: TensorLike,
    axis: Any = None,
    keepdims: bool | None = None,
    dtype: Any = int64,
    name: str | None = None,
) -> Tensor:
    """Number of elements that are not zero (of strings: not empty).

    The result has the shape of the argument without the dimensions of `axis`; with `keepdims` these stay with size
    1.

    Args:
      input: a tensor of numbers, booleans or strings.
      axis: the dimension or dimensions to count over; default all.
      keepdims: whether reduced dimensions stay, with size 1; default False.
      dtype: dtype of the counts; default int64.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.count_nonzero([[0, 3, 4], [0, 0, 5]], axis=1).numpy())
      [2 1]
      >>> print(tf.math.count_nonzero(["", "a"]).numpy())
      1
    """
    if not hasattr(input, "_keras_history"):
        input = convert_to_tensor(input)
    nothing = b"" if input.dtype == "string" else np.zeros((), input.dtype.as_numpy_dtype)
    return reduce_sum(cast(not_equal(input, nothing), dtype), axis, bool(keepdims))


@op(differentiable=False)
def zero_fraction(value: TensorLike, name: str | None = None) -> Tensor:
    """Fraction of elements that are zero, float32.

    The result is a scalar.

    Example:
      >>> import meshflow as tf
      >>> tf.nn.zero_fraction(tf.nn.relu([-2.0, -1.0, -3.0, 4.0])).numpy().item()
      0.75
    """
    return jnp.mean((value == 0).astype(jnp.float32))


@op(differentiable=False)
def is_non_decreasing(x: TensorLike, name: str | None = None) -> Tensor:
    """Whether no element is smaller than the one before.

    The result is a scalar.

    Example:
      >>> import meshflow as tf
      >>> [tf.math.is_non_decreasing(x).numpy().item() for x in ([1, 1, 2], [2, 1])]
      [True, False]
    """
    flat = x.reshape(-1)
    return jnp.all(flat[1:] >= flat[:-1])


@op(differentiable=False)
def is_strictly_increasing(x: TensorLike, name: str | None = None) -> Tensor:
    """Whether each element is larger than the one before.

    The result is a scalar.

    Example:
      >>> import meshflow as tf
      >>> [tf.math.is_strictly_increasing(x).numpy().item() for x in ([1, 2, 5], [1, 1, 2])]
      [True, False]
    """
    flat = x.reshape(-1)
    return jnp.all(flat[1:] > flat[:-1])


@op(same=(), differentiable=False, name="bincount")
def _bincount(
    arr: TensorLike, weights: TensorLike | None, size: int, dtype: Any, by_row: bool, binary: bool
) -> Tensor:
    kind = dtype.dtype if weights is None else weights.dtype

    def count(numbers: Any, values: Any) -> Any:
        inside = (numbers >= 0) & (numbers < size)
        places = jnp.where(inside, numbers, 0)
        return jnp.zeros((size,), kind).at[places].add(jnp.where(inside, values, 0))

    values = jnp.ones(arr.shape, kind) if weights is None else weights
    if by_row:
        found = jax.vmap(count)(arr, values)
    else:
        found = count(arr.reshape(-1), values.reshape(-1))
    return (found > 0).astype(kind) if binary else found


@also_symbolic
def bincount(
    arr: TensorLike,
    weights: Any = None,
    minlength: int | None = None,
    maxlength: int | None = None,
    dtype: Any = "int32",
    name: str | None = None,
    axis: int | None = None,
    binary_output: bool = False,
) -> Tensor:
    """Counts how often each number from 0 on occurs.

    From a shape s to (size,), with `axis=-1` from (batch, n) to (batch, size).

    Args:
      arr: non-negative integers.
      weights: values to add up instead of counting.
      minlength: smallest length of the result.
      maxlength: largest length; larger numbers are left out. Needed while a function is traced.
      dtype: dtype of the counts.
      name: ignored.
      axis: 0 (or None) counts in the whole tensor, -1 in each row.
      binary_output: whether 1 stands for any count above 0.

    Returns:
      A vector, or for axis -1 a matrix with a row for each row of `arr`.

    Raises:
      InvalidArgumentError: for negative numbers.
      ValueError: for another axis.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.bincount([0, 2, 2, 5]).numpy())
      [1 0 2 0 0 1]
      >>> print(tf.math.bincount([[0, 2], [1, 1]], axis=-1, minlength=4).numpy())
      [[1 0 1 0]
       [0 2 0 0]]
    """
    arr = convert_to_tensor(arr)
    arr = arr if arr.dtype.is_integer else cast(arr, int64)
    known = None if isinstance(arr._value, jax.core.Tracer) else np.asarray(arr._value)
    if known is not None and (known < 0).any():
        raise InvalidArgumentError("bincount: the numbers must be non-negative.")
    if binary_output and weights is not None:
        raise ValueError("bincount: binary_output does not go with weights.")
    if axis not in (None, 0, -1):
        raise ValueError(f"bincount: axis must be 0, -1 or None, got {axis}.")
    if maxlength is not None and (minlength is None or minlength >= maxlength):
        size = maxlength
    else:
        numbers = arr._concrete("the argument of tf.math.bincount without maxlength")
        size = int(numbers.max()) + 1 if numbers.size else 0
        size = builtins.max(size, minlength or 0)
        size = builtins.min(size, maxlength) if maxlength is not None else size
    by_row = axis == -1 and arr.ndim > 1
    return _bincount(arr, weights, size, as_dtype(dtype), by_row, binary_output)


def confusion_matrix(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int | None = None,
    weights: Any = None,
    dtype: Any = "int32",
    name: str | None = None,
) -> Tensor:
    """Counts pairs of (label, prediction).

    Args:
      labels: class numbers, shape [n].
      predictions: class numbers, shape [n].
      num_classes: number of classes; default one more than the largest number.
      weights: weights of the pairs.
      dtype: dtype of the counts.
      name: ignored.

    Returns:
      Tensor of shape [num_classes, num_classes]; rows are labels.

    Raises:
      InvalidArgumentError: for class numbers out of range, when they are known. A compiled function gives NaN
        then, or leaves them out where `dtype` has none.

    Example:
      >>> import meshflow as tf
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
        both = labels._concrete("labels without num_classes"), predictions._concrete("predictions")
        num_classes = int(builtins.max(a.max(initial=-1) for a in both)) + 1
    kind = as_dtype(dtype)
    for which, numbers in (("labels", labels), ("predictions", predictions)):
        if isinstance(numbers._value, jax.core.Tracer):
            continue
        known = np.asarray(numbers._value)
        wrong = (known < 0) | (known >= num_classes)
        if wrong.any():
            position = np.argwhere(wrong)[0].tolist()
            raise InvalidArgumentError(
                f"confusion_matrix: `{which}` must be within [0, {num_classes}), got {known[tuple(position)]} at "
                f"position {position}."
            )
    inside = (labels >= 0) & (labels < num_classes)
    inside = inside & (predictions >= 0) & (predictions < num_classes)
    places = where(inside, labels * num_classes + predictions, convert_to_tensor(-1, int64))
    # Exact however many pairs there are: 32-bit floats count to 2^24.
    wide = as_dtype("float64") if kind.is_floating and weights is not None else int64
    if weights is not None:
        weights = cast(convert_to_tensor(weights), wide if kind.is_floating else kind)
    flat = cast(_bincount(places, weights, num_classes * num_classes, wide, False, False), kind)
    if kind.is_floating:
        nan = convert_to_tensor(np.nan, kind)
        flat = where(reduce_all(inside), flat, nan)
    return reshape(flat, [num_classes, num_classes])


def polyval(coeffs: Any, x: TensorLike, name: str | None = None) -> Tensor:
    """Polynomial with the given coefficients, highest power first, at `x`.

    The coefficients and x are broadcast; the result has the broadcast shape.

    Args:
      coeffs: a list of tensors; the last one is the constant.
      x: a tensor.
      name: ignored.

    Example:
      >>> import meshflow as tf
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
    """Logarithm of the absolute Beta function of the last dimension: of Gamma(x_i) / Gamma(sum x_i).

    Args:
      x: tensor of shape [..., n]; without elements the result is -infinity.
      name: ignored.

    Returns:
      Tensor of shape [...].

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.exp(tf.math.lbeta([[1.0, 2.0], [3.0, 1.0]])).numpy().round(3))
      [0.5   0.333]
    """
    log_gamma = jax.scipy.special.gammaln
    total = jnp.sum(x, -1)
    return jnp.sum(log_gamma(x), -1) - (log_gamma(total) if x.shape[-1] else jnp.inf)
