"""Reductions over axes, and cumulative functions.

Example:
  >>> ops.mean([[1, 2], [3, 5]], axis=0).numpy().tolist()
  [2.0, 3.5]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.op_factories import (
    CumulativeOp,
    ExtremumOp,
    ReductionOp,
    array_op,
    make_reduction,
    set_name,
)
from meshflow.keras.ops.promotion import Axis, as_float, as_sum, as_tensor, as_wide_float, promote
from meshflow.ops import casting, math

__all__ = [
    *("all", "amax", "amin", "any", "argmax", "argmin", "average", "bincount", "corrcoef"),
    *("count_nonzero", "cumprod", "cumsum", "digitize", "histogram", "logsumexp", "max", "mean"),
    *("median", "min", "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean"),
    *("nanmedian", "nanmin", "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum"),
    *("nanvar", "percentile", "prod", "ptp", "quantile", "searchsorted", "std", "sum"),
    *("trapezoid", "var"),
]


def _as_axes(axis: Axis) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


def _make_numpy_reduction(
    function: Callable[..., Any], doc: str, conversion: str = "floats"
) -> ReductionOp:
    """Create the reduction with the name of a function of `jax.numpy`; see `make_reduction`."""
    name = function.__name__
    return make_reduction(name, _wrap_reduction(function), doc, conversion=conversion)


def _wrap_reduction(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """Wrap a reduction of `jax.numpy` as an op (tensor, axis, keepdims)."""
    name = function.__name__
    keeps_dtype = name in ("sum", "prod", "nansum", "nanprod")

    def reduce(x: TensorLike, axis: Axis, keepdims: bool) -> Any:
        dtype = {"dtype": x.dtype} if keeps_dtype else {}
        return function(x, axis=_as_axes(axis), keepdims=keepdims, **dtype)

    return op(set_name(reduce, name), same=(), name=name)


def _reduce_bools(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a reduction to convert its operand to booleans."""
    return lambda x, axis, keepdims: run(casting.cast(x, dtypes.bool_), axis, keepdims)


_real_variance = _wrap_reduction(jnp.var)


def _compute_variance(x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    return casting.cast(_real_variance(x, axis, keepdims), x.dtype)


sum = _make_numpy_reduction(jnp.sum, "the sum", "sums")
mean = _make_numpy_reduction(jnp.mean, "the mean")
var = make_reduction(
    "var", _compute_variance, "the variance in the dtype of `x`", conversion="floats"
)
std = _make_numpy_reduction(jnp.std, "the standard deviation")
all = make_reduction("all", _reduce_bools(math.reduce_all), "whether all elements are true")
any = make_reduction("any", _reduce_bools(math.reduce_any), "whether any element is true")
ptp = _make_numpy_reduction(jnp.ptp, "the difference of maximum and minimum", "keeps")
logsumexp = make_reduction(
    "logsumexp", math.reduce_logsumexp, "`log(sum(exp(x)))`", conversion="floats"
)
median = _make_numpy_reduction(jnp.median, "the median")
nansum = _make_numpy_reduction(jnp.nansum, "the sum, ignoring NaN", "sums")
nanprod = _make_numpy_reduction(jnp.nanprod, "the product, ignoring NaN", "sums")
nanmean = _make_numpy_reduction(jnp.nanmean, "the mean, ignoring NaN")
nanvar = _make_numpy_reduction(jnp.nanvar, "the variance, ignoring NaN")
nanstd = _make_numpy_reduction(jnp.nanstd, "the standard deviation, ignoring NaN")
nanmedian = _make_numpy_reduction(jnp.nanmedian, "the median, ignoring NaN")
nanmax = _make_numpy_reduction(jnp.nanmax, "the maximum, ignoring NaN", "keeps")
nanmin = _make_numpy_reduction(jnp.nanmin, "the minimum, ignoring NaN", "keeps")


def _make_extremum(
    name: str, doc: str, reduce: Callable[..., Tensor], choose: Callable[..., Tensor]
) -> ExtremumOp:
    def public(
        x: TensorLike, axis: Axis = None, keepdims: bool = False, initial: TensorLike | None = None
    ) -> Tensor:
        x = as_tensor(x)
        if initial is None:
            _check_elements(name, x)
            return reduce(x, _as_axes(axis), keepdims)
        extremum = reduce(x, _as_axes(axis), keepdims)
        return choose(extremum, casting.cast(as_tensor(initial), extremum.dtype))

    return set_name(
        public,
        name,
        f"Compute {doc}.\n\nArgs:\n  x: A tensor.\n  axis: Axis or axes to reduce; None for all.\n"
        "  keepdims: Whether to keep reduced axes with size 1.\n"
        "  initial: A value to include.\n\nReturns:\n  A tensor without the reduced axes.\n",
    )


def _check_elements(name: str, x: Tensor) -> None:
    if context.trace is None and 0 in tuple(x.shape):
        raise InvalidValueError(
            f"{name}: an empty tensor requires `initial`, got shape {tuple(x.shape)}."
        )


def _support_bools(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
        if dtypes.as_dtype(x.dtype).is_bool:
            return casting.cast(run(casting.cast(x, "int32"), axis, keepdims), dtypes.bool_)
        return run(x, axis, keepdims)

    return reduce


max = _make_extremum("max", "the maximum", _support_bools(math.reduce_max), math.maximum)
min = _make_extremum("min", "the minimum", _support_bools(math.reduce_min), math.minimum)
amax = make_reduction("amax", max, "the maximum")
amin = make_reduction("amin", min, "the minimum")


def prod(
    x: TensorLike, axis: Axis = None, keepdims: bool = False, dtype: DTypeLike | None = None
) -> Tensor:
    """Compute the product.

    Args:
      x: A tensor.
      axis: Axis or axes to reduce; None for all.
      keepdims: Whether to keep reduced axes with size 1.
      dtype: Dtype of the result; default the dtype of `x`, with at least 32 bits.

    Example:
      >>> int(ops.prod([2, 3, 4]))
      24
    """
    x = as_sum(x) if dtype is None else casting.cast(as_tensor(x), dtypes.as_dtype(dtype))
    return _prod(x, axis, keepdims)


_prod = _wrap_reduction(jnp.prod)


def _make_index_reduction(name: str, function: Callable[..., Any], doc: str) -> ReductionOp:
    def find_index(x: TensorLike, axis: Axis, keepdims: bool) -> Any:
        return function(x, axis=axis, keepdims=keepdims).astype(jnp.int32)

    run = op(set_name(find_index, name), same=(), name=name, differentiable=False)
    return make_reduction(name, run, f"the index of {doc}, an int32")


argmax = _make_index_reduction("argmax", jnp.argmax, "the maximum")
argmin = _make_index_reduction("argmin", jnp.argmin, "the minimum")
nanargmax = _make_index_reduction(
    "nanargmax", jnp.nanargmax, "the maximum, or -1 if all elements are NaN"
)
nanargmin = _make_index_reduction(
    "nanargmin", jnp.nanargmin, "the minimum, or -1 if all elements are NaN"
)


@array_op(differentiable=False)
def count_nonzero(x: TensorLike, axis: Axis = None) -> Tensor:
    """Count the elements that are not 0, as int32.

    Args:
      x: A tensor.
      axis: Axis or axes to reduce; None for all.

    Example:
      >>> int(ops.count_nonzero([0, 1, 2]))
      2
    """
    return jnp.count_nonzero(x, axis=_as_axes(axis)).astype(jnp.int32)


def _make_cumulative(name: str, function: Callable[..., Any], doc: str) -> CumulativeOp:
    def accumulate(x: TensorLike, axis: int | None) -> Any:
        return function(x, axis=axis, dtype=x.dtype)

    run = op(set_name(accumulate, name), same=(), name=name)

    def public(x: TensorLike, axis: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
        x = as_tensor(x)
        if dtype is not None:
            x = casting.cast(x, dtypes.as_dtype(dtype))
        elif dtypes.as_dtype(x.dtype).is_bool:
            x = casting.cast(x, "int32")
        return run(x, axis)

    return set_name(
        public,
        name,
        f"Compute {doc}.\n\nArgs:\n  x: A tensor.\n  axis: Axis; None for the flattened tensor.\n"
        "  dtype: Dtype of the result; default the dtype of `x`.\n\nReturns:\n  A tensor.\n",
    )


cumsum = _make_cumulative("cumsum", jnp.cumsum, "the cumulative sum")
cumprod = _make_cumulative("cumprod", jnp.cumprod, "the cumulative product")
nancumsum = _make_cumulative("nancumsum", jnp.nancumsum, "the cumulative sum, with 0 for NaN")
nancumprod = _make_cumulative(
    "nancumprod", jnp.nancumprod, "the cumulative product, with 1 for NaN"
)


@op(same=(), name="quantile")
def _quantile(
    x: TensorLike, q: TensorLike, axis: Axis, method: str, keepdims: bool, nan: bool
) -> Any:
    function = jnp.nanquantile if nan else jnp.quantile
    fractions = q.astype(x.dtype)
    # JAX supports a scalar or a vector of fractions.
    row = fractions.ravel() if q.ndim > 1 else fractions
    quantiles = function(x, row, axis=_as_axes(axis), method=method, keepdims=keepdims)
    return quantiles.reshape(*q.shape, *quantiles.shape[row.ndim :])


@as_single_layer()
def quantile(
    x: TensorLike, q: TensorLike, axis: Axis = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Compute quantiles.

    Args:
      x: A tensor.
      q: Fraction or fractions, from 0 to 1.
      axis: Axis or axes to reduce; None for all.
      method: Interpolation between two elements: 'linear', 'lower', 'higher', 'midpoint' or
        'nearest'.
      keepdims: Whether to keep reduced axes with size 1.

    Example:
      >>> float(ops.quantile([1.0, 2.0, 4.0], 0.5))
      2.0
    """
    return _quantile(as_float(x), as_float(q), axis, method, keepdims, False)


@as_single_layer()
def nanquantile(
    x: TensorLike, q: TensorLike, axis: Axis = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Compute quantiles, ignoring NaN.

    Args:
      x: A tensor.
      q: Fraction or fractions, from 0 to 1.
      axis: Axis or axes to reduce; None for all.
      method: See `quantile`.
      keepdims: Whether to keep reduced axes with size 1.

    Example:
      >>> float(ops.nanquantile([1.0, float("nan"), 2.0], 0.5))
      1.5
    """
    return _quantile(as_float(x), as_float(q), axis, method, keepdims, True)


def percentile(
    x: TensorLike, q: TensorLike, axis: Axis = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Compute quantiles for percentages.

    Args:
      x: A tensor.
      q: Percentage or percentages, from 0 to 100.
      axis: Axis or axes to reduce; None for all.
      method: See `quantile`.
      keepdims: Whether to keep reduced axes with size 1.

    Example:
      >>> float(ops.percentile([1.0, 2.0, 4.0], 50))
      2.0
    """
    return quantile(x, math.divide(as_float(q), 100.0), axis, method, keepdims)


def nanpercentile(
    x: TensorLike, q: TensorLike, axis: Axis = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Compute quantiles for percentages, ignoring NaN.

    Args:
      x: A tensor.
      q: Percentage or percentages, from 0 to 100.
      axis: Axis or axes to reduce; None for all.
      method: See `quantile`.
      keepdims: Whether to keep reduced axes with size 1.

    Example:
      >>> float(ops.nanpercentile([1.0, float("nan"), 2.0], 50))
      1.5
    """
    return nanquantile(x, math.divide(as_float(q), 100.0), axis, method, keepdims)


@op(same=("x", "weights"), name="average")
def _average(x: TensorLike, weights: TensorLike, axis: Axis) -> Any:
    return jnp.average(x, axis=_as_axes(axis), weights=weights)


@as_single_layer()
def average(x: TensorLike, axis: Axis = None, weights: TensorLike | None = None) -> Tensor:
    """Compute a weighted mean.

    Args:
      x: A tensor.
      axis: Axis or axes to reduce; None for all.
      weights: Weights of the shape of `x`, or a vector along `axis`.

    Example:
      >>> float(ops.average([1.0, 4.0], weights=[2.0, 1.0]))
      2.0
    """
    if weights is None:
        return mean(x, axis)
    x, weights = promote(x, weights, also=float)
    return _average(x, weights, axis)


@array_op(as_wide_float)
def corrcoef(x: TensorLike) -> Tensor:
    """Compute the matrix of Pearson correlation coefficients of the rows.

    Args:
      x: A matrix with a variable in each row and an observation in each column.

    Example:
      >>> ops.corrcoef([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]).numpy().round(3).tolist()
      [[1.0, -1.0], [-1.0, 1.0]]
    """
    return jnp.corrcoef(x)


@as_single_layer()
def bincount(
    x: TensorLike, weights: TensorLike | None = None, minlength: int = 0, sparse: bool = False
) -> Tensor:
    """Count the occurrences of each integer.

    Args:
      x: Integers that are not negative, a vector or a batch of vectors.
      weights: Weights of the occurrences, of the shape of `x`.
      minlength: Minimum number of counts.
      sparse: Whether to return a sparse tensor.

    Example:
      >>> ops.bincount([1, 1, 3]).numpy().tolist()
      [0, 2, 0, 1]
    """
    x = casting.cast(as_tensor(x), "int32")
    kind = dtypes.int32 if weights is None else dtypes.as_dtype(as_tensor(weights).dtype)
    axis = -1 if x.shape.rank == 2 else None
    settings: dict[str, Any] = {"axis": axis} if axis or sparse else {}
    return math.bincount(
        x,
        weights=weights,
        minlength=minlength,
        dtype=kind,
        binary_output=False,
        **({**settings, "axis": axis if axis is not None else 0} if sparse else settings),
    )


@op(same=(), name="digitize", differentiable=False)
def _digitize(x: TensorLike, bins: TensorLike) -> Any:
    return jnp.digitize(x, bins).astype(jnp.int32)


@as_single_layer()
def digitize(x: TensorLike, bins: TensorLike) -> Tensor:
    """Find the bin of each element: the number of bin edges that are not above it.

    Args:
      x: A tensor.
      bins: Edges of the bins in ascending order.

    Example:
      >>> ops.digitize([0.0, 1.0, 3.0], [1.0, 2.0]).numpy().tolist()
      [0, 1, 2]
    """
    return _digitize(*promote(x, bins))


@op(same=(), name="searchsorted", differentiable=False)
def _search_sorted(row: TensorLike, values: TensorLike, side: str) -> Any:
    return jnp.searchsorted(row, values, side=side).astype(jnp.int32)


@as_single_layer()
def searchsorted(sorted_sequence: TensorLike, values: TensorLike, side: str = "left") -> Tensor:
    """Find the insertion indices of values in a sorted vector.

    Args:
      sorted_sequence: A vector in ascending order.
      values: The values.
      side: 'left' or 'right' of equal elements.

    Example:
      >>> ops.searchsorted([1, 3, 5], [3, 4]).numpy().tolist()
      [1, 2]
    """
    row, values = promote(sorted_sequence, values)
    if row.shape.rank != 1:
        raise ValueError(
            f"searchsorted only supports 1-D sorted sequences. You can use `keras.ops.vectorized_map` to extend it to "
            f"N-D sequences. Received: sorted_sequence.shape={tuple(row.shape)}"
        )
    return _search_sorted(row, values, side)


@op(same=(), name="histogram", differentiable=False)
def _histogram(x: TensorLike, bins: int, range: Sequence[float] | None) -> Any:
    counts, edges = jnp.histogram(x, bins, range)
    return counts.astype(x.dtype), edges.astype(x.dtype)


def histogram(
    x: TensorLike, bins: int = 10, range: Sequence[float] | None = None
) -> tuple[Tensor, Tensor]:
    """Count the elements in bins of equal width.

    Args:
      x: A tensor.
      bins: Number of bins.
      range: (minimum, maximum) of the bins; default those of `x`.

    Returns:
      The counts, and the edges of the bins.

    Example:
      >>> ops.histogram([1.0, 2.0, 2.5], bins=2)[0].numpy().tolist()
      [1.0, 2.0]
    """
    if not isinstance(bins, int) or bins < 0:
        raise ValueError(f"Argument `bins` should be a non-negative integer. Received: bins={bins}")
    if range is not None and (
        not isinstance(range, (tuple, list)) or len(range) != 2 or range[1] < range[0]
    ):
        raise ValueError(
            f"Argument `range` should be a pair (min, max) with min <= max. Received: range={range}"
        )
    x = as_tensor(x)
    if len(x.shape) != 1:
        raise ValueError(
            f"Input tensor must be 1-dimensional. Received: input.shape={tuple(x.shape)}"
        )
    counts, edges = _histogram(x, bins, range)
    return counts, edges


@op(same=(), name="trapezoid")
def _trapezoid(y: TensorLike, x: TensorLike | None, dx: float, axis: int) -> Any:
    return jnp.trapezoid(y, x, dx, axis)


@as_single_layer()
def trapezoid(
    y: TensorLike, x: TensorLike | None = None, dx: float = 1.0, axis: int = -1
) -> Tensor:
    """Integrate by the trapezoidal rule.

    Args:
      y: Values of the function.
      x: Sample points; default evenly spaced by `dx`.
      dx: Distance between the sample points.
      axis: Axis of integration.

    Example:
      >>> float(ops.trapezoid([1.0, 2.0, 3.0]))
      4.0
    """
    return _trapezoid(as_float(y), None if x is None else as_float(x), dx, axis)
