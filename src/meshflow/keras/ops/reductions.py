"""Sums, means and their like along dimensions, and running ones.

Example:
  >>> from meshflow.keras import ops
  >>> ops.mean([[1, 2], [3, 5]], axis=0).numpy().tolist()
  [2.0, 3.5]
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import one_layer
from meshflow.keras.ops.making import Extreme, Reduction, Running, named, reduction
from meshflow.keras.ops.promotion import as_float, as_sum, common, tensor, wide_float
from meshflow.ops import casting, math

__all__ = [
    *("all", "amax", "amin", "any", "argmax", "argmin", "average", "bincount", "corrcoef"),
    *("count_nonzero", "cumprod", "cumsum", "digitize", "histogram", "logsumexp", "max", "mean"),
    *("median", "min", "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean"),
    *("nanmedian", "nanmin", "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum"),
    *("nanvar", "percentile", "prod", "ptp", "quantile", "searchsorted", "std", "sum"),
    *("trapezoid", "var"),
]


def _axes(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


def _array_reduction(function: Any, name: str, differentiable: bool = True, **settings: Any) -> Any:
    """A function (tensor, axis, keepdims) of one of `jax.numpy`."""

    def reduced(x: TensorLike, axis: Any, keepdims: Any, keeps_dtype: bool) -> Any:
        more = {"dtype": x.dtype} if keeps_dtype else {}
        return function(x, axis=_axes(axis), keepdims=keepdims, **more, **settings)

    run = op(named(reduced, name), same=(), name=name, differentiable=differentiable)
    dtyped = name in ("sum", "prod", "nansum", "nanprod")
    return lambda x, axis, keepdims: run(x, axis, keepdims, dtyped)


def _whole(run: Any) -> Any:
    """`run` of the truth of elements."""
    return lambda x, axis, keepdims: run(casting.cast(x, dtypes.bool_), axis, keepdims)


_real_variance = _array_reduction(jnp.var, "var")


def _variance(x: Any, axis: Any, keepdims: bool) -> Any:
    return casting.cast(_real_variance(x, axis, keepdims), x.dtype)


sum = reduction("sum", _array_reduction(jnp.sum, "sum"), "The sum.", how="sums")
mean = reduction("mean", _array_reduction(jnp.mean, "mean"), "The mean.", how="floats")
var = reduction("var", _variance, "The variance, in the dtype of `x`.", how="floats")
std = reduction("std", _array_reduction(jnp.std, "std"), "The standard deviation.", how="floats")
all = reduction("all", _whole(math.reduce_all), "Whether all elements are true.")
any = reduction("any", _whole(math.reduce_any), "Whether one element is true.")
ptp = reduction("ptp", _array_reduction(jnp.ptp, "ptp"), "The greatest minus the least element.")
logsumexp = reduction("logsumexp", math.reduce_logsumexp, "`log(sum(exp(x)))`.", how="floats")
median = reduction("median", _array_reduction(jnp.median, "median"), "The median.", how="floats")
nansum = reduction(
    "nansum", _array_reduction(jnp.nansum, "nansum"), "The sum of what is not NaN.", how="sums"
)
nanprod = reduction(
    "nanprod",
    _array_reduction(jnp.nanprod, "nanprod"),
    "The product of what is not NaN.",
    how="sums",
)
nanmean = reduction(
    "nanmean",
    _array_reduction(jnp.nanmean, "nanmean"),
    "The mean of what is not NaN.",
    how="floats",
)
nanvar = reduction(
    "nanvar",
    _array_reduction(jnp.nanvar, "nanvar"),
    "The variance of what is not NaN.",
    how="floats",
)
nanstd = reduction(
    "nanstd",
    _array_reduction(jnp.nanstd, "nanstd"),
    "The standard deviation of what is not NaN.",
    how="floats",
)
nanmedian = reduction(
    "nanmedian",
    _array_reduction(jnp.nanmedian, "nanmedian"),
    "The median of what is not NaN.",
    how="floats",
)
nanmax = reduction(
    "nanmax", _array_reduction(jnp.nanmax, "nanmax"), "The greatest element that is not NaN."
)
nanmin = reduction(
    "nanmin", _array_reduction(jnp.nanmin, "nanmin"), "The least element that is not NaN."
)


def _extreme(name: str, doc: str, reduce: Any, choose: Any) -> Extreme:
    def public(
        x: TensorLike, axis: Any = None, keepdims: bool = False, initial: Any = None
    ) -> Tensor:
        x = tensor(x)
        if initial is None:
            _check_elements(name, x)
        found = reduce(x, _axes(axis), keepdims)
        return (
            found if initial is None else choose(found, casting.cast(tensor(initial), found.dtype))
        )

    return named(
        public,
        name,
        f"{doc}\n\nArgs:\n  x: a tensor.\n  axis: a dimension, several of them, or None for all.\n"
        "  keepdims: whether reduced dimensions stay, of size 1.\n"
        "  initial: a number that takes part.\n\nReturns:\n  A tensor without the reduced dimensions.\n",
    )


def _check_elements(name: str, x: Any) -> None:
    if context.trace is None and 0 in tuple(x.shape):
        raise InvalidValueError(
            f"{name}: an empty tensor has none, and `initial` is not given; got shape {tuple(x.shape)}."
        )


def _max_of_bools(run: Any) -> Any:
    def reduced(x: Any, axis: Any, keepdims: bool) -> Any:
        if dtypes.as_dtype(x.dtype).is_bool:
            return casting.cast(run(casting.cast(x, "int32"), axis, keepdims), dtypes.bool_)
        return run(x, axis, keepdims)

    return reduced


max = _extreme("max", "The greatest element.", _max_of_bools(math.reduce_max), math.maximum)
min = _extreme("min", "The least element.", _max_of_bools(math.reduce_min), math.minimum)
amax = reduction("amax", max, "The greatest element.")
amin = reduction("amin", min, "The least element.")


def prod(x: TensorLike, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Tensor:
    """The product.

    Args:
      x: a tensor.
      axis: a dimension, several of them, or None for all.
      keepdims: whether reduced dimensions stay, of size 1.
      dtype: the dtype of the result; default that of `x`, 32 bits at least.

    Example:
      >>> from meshflow.keras import ops
      >>> int(ops.prod([2, 3, 4]))
      24
    """
    x = as_sum(x) if dtype is None else casting.cast(tensor(x), dtypes.as_dtype(dtype))
    return _prod(x, axis, keepdims)


_prod = _array_reduction(jnp.prod, "prod")


def _position(name: str, function: Any, doc: str) -> Reduction:
    def found(x: TensorLike, axis: Any, keepdims: bool) -> Any:
        return function(x, axis=axis, keepdims=keepdims).astype(jnp.int32)

    return reduction(name, op(named(found, name), same=(), name=name, differentiable=False), doc)


argmax = _position("argmax", jnp.argmax, "The place of the greatest element, an int32.")
argmin = _position("argmin", jnp.argmin, "The place of the least element, an int32.")
nanargmax = _position(
    "nanargmax",
    jnp.nanargmax,
    "The place of the greatest element that is not NaN; -1 where all are.",
)
nanargmin = _position(
    "nanargmin", jnp.nanargmin, "The place of the least element that is not NaN; -1 where all are."
)


@op(same=(), name="count_nonzero", differentiable=False)
def _count(x: TensorLike, axis: Any) -> Any:
    return jnp.count_nonzero(x, axis=_axes(axis)).astype(jnp.int32)


@one_layer()
def count_nonzero(x: TensorLike, axis: Any = None) -> Tensor:
    """How many elements are not 0, as int32.

    Args:
      x: a tensor.
      axis: a dimension, several of them, or None for all.

    Example:
      >>> from meshflow.keras import ops
      >>> int(ops.count_nonzero([0, 1, 2]))
      2
    """
    return _count(tensor(x), axis)


def _running(name: str, function: Any, doc: str) -> Running:
    def so_far(x: TensorLike, axis: Any) -> Any:
        return function(x, axis=axis, dtype=x.dtype)

    run = op(named(so_far, name), same=(), name=name)

    def public(x: TensorLike, axis: Any = None, dtype: Any = None) -> Tensor:
        x = tensor(x)
        if dtype is not None:
            x = casting.cast(x, dtypes.as_dtype(dtype))
        elif dtypes.as_dtype(x.dtype).is_bool:
            x = casting.cast(x, "int32")
        return run(x, axis)

    return named(
        public,
        name,
        f"{doc}\n\nArgs:\n  x: a tensor.\n  axis: the dimension; None for all elements in a row.\n"
        "  dtype: the dtype of the result; default that of `x`.\n\nReturns:\n  A tensor.\n",
    )


cumsum = _running("cumsum", jnp.cumsum, "The sum of all elements up to each one.")
cumprod = _running("cumprod", jnp.cumprod, "The product of all elements up to each one.")
nancumsum = _running("nancumsum", jnp.nancumsum, "`cumsum` with 0 for NaN.")
nancumprod = _running("nancumprod", jnp.nancumprod, "`cumprod` with 1 for NaN.")


@op(same=(), name="quantile")
def _quantile(
    x: TensorLike, q: TensorLike, axis: Any, method: str, keepdims: bool, nan: bool
) -> Any:
    function = jnp.nanquantile if nan else jnp.quantile
    shares = q.astype(x.dtype)
    # JAX takes a number or a row of shares.
    row = shares.ravel() if q.ndim > 1 else shares
    found = function(x, row, axis=_axes(axis), method=method, keepdims=keepdims)
    return found.reshape(*q.shape, *found.shape[row.ndim :])


@one_layer()
def quantile(
    x: TensorLike, q: TensorLike, axis: Any = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """The number below which a share of the elements lies.

    Args:
      x: a tensor.
      q: the share or shares, from 0 to 1.
      axis: a dimension, several of them, or None for all.
      method: 'linear', 'lower', 'higher', 'midpoint' or 'nearest' between two elements.
      keepdims: whether reduced dimensions stay, of size 1.

    Example:
      >>> from meshflow.keras import ops
      >>> float(ops.quantile([1.0, 2.0, 4.0], 0.5))
      2.0
    """
    return _quantile(as_float(x), as_float(q), axis, method, keepdims, False)


@one_layer()
def nanquantile(
    x: TensorLike, q: TensorLike, axis: Any = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """`quantile` of what is not NaN.

    Args:
      x: a tensor.
      q: the share or shares, from 0 to 1.
      axis: a dimension, several of them, or None for all.
      method: as in `quantile`.
      keepdims: whether reduced dimensions stay, of size 1.

    Example:
      >>> from meshflow.keras import ops
      >>> float(ops.nanquantile([1.0, float("nan"), 2.0], 0.5))
      1.5
    """
    return _quantile(as_float(x), as_float(q), axis, method, keepdims, True)


def percentile(
    x: TensorLike, q: TensorLike, axis: Any = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """`quantile` with shares from 0 to 100.

    Args:
      x: a tensor.
      q: the share or shares, in percent.
      axis: a dimension, several of them, or None for all.
      method: as in `quantile`.
      keepdims: whether reduced dimensions stay, of size 1.

    Example:
      >>> from meshflow.keras import ops
      >>> float(ops.percentile([1.0, 2.0, 4.0], 50))
      2.0
    """
    return quantile(x, math.divide(as_float(q), 100.0), axis, method, keepdims)


def nanpercentile(
    x: TensorLike, q: TensorLike, axis: Any = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """`percentile` of what is not NaN.

    Args:
      x: a tensor.
      q: the share or shares, in percent.
      axis: a dimension, several of them, or None for all.
      method: as in `quantile`.
      keepdims: whether reduced dimensions stay, of size 1.

    Example:
      >>> from meshflow.keras import ops
      >>> float(ops.nanpercentile([1.0, float("nan"), 2.0], 50))
      1.5
    """
    return nanquantile(x, math.divide(as_float(q), 100.0), axis, method, keepdims)


@op(same=("x", "weights"), name="average")
def _average(x: TensorLike, weights: TensorLike, axis: Any) -> Any:
    return jnp.average(x, axis=_axes(axis), weights=weights)


@one_layer()
def average(x: TensorLike, axis: Any = None, weights: Any = None) -> Tensor:
    """The mean, in which elements may weigh more or less.

    Args:
      x: a tensor.
      axis: a dimension, several of them, or None for all.
      weights: of the shape of `x`, or of its size along `axis`.

    Example:
      >>> from meshflow.keras import ops
      >>> float(ops.average([1.0, 4.0], weights=[2.0, 1.0]))
      2.0
    """
    if weights is None:
        return mean(x, axis)
    x, weights = common(x, weights, also=float)
    return _average(x, weights, axis)


@op(same=(), name="corrcoef")
def _corrcoef(x: TensorLike) -> Any:
    return jnp.corrcoef(x)


@one_layer()
def corrcoef(x: TensorLike) -> Tensor:
    """How rows correlate (Pearson), a square matrix.

    Args:
      x: a matrix, each row a variable, each column an observation.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.corrcoef([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]).numpy().round(3).tolist()
      [[1.0, -1.0], [-1.0, 1.0]]
    """
    return _corrcoef(wide_float(x))


@one_layer()
def bincount(
    x: TensorLike, weights: Any = None, minlength: int = 0, sparse: bool = False
) -> Tensor:
    """How often each number from 0 on occurs.

    Args:
      x: integers from 0 on, a row or a batch of rows.
      weights: what each occurrence counts, of the shape of `x`.
      minlength: how many counts there are at least.
      sparse: whether the result is a sparse tensor.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.bincount([1, 1, 3]).numpy().tolist()
      [0, 2, 0, 1]
    """
    x = casting.cast(tensor(x), "int32")
    kind = dtypes.int32 if weights is None else dtypes.as_dtype(tensor(weights).dtype)
    axis = -1 if x.shape.rank == 2 else None
    more: dict[str, Any] = {"axis": axis} if axis or sparse else {}
    return math.bincount(
        x,
        weights=weights,
        minlength=minlength,
        dtype=kind,
        binary_output=False,
        **({**more, "axis": axis if axis is not None else 0} if sparse else more),
    )


@op(same=(), name="digitize", differentiable=False)
def _digitize(x: TensorLike, bins: TensorLike) -> Any:
    return jnp.digitize(x, bins).astype(jnp.int32)


@one_layer()
def digitize(x: TensorLike, bins: TensorLike) -> Tensor:
    """The bin of each element: how many of the bins' edges are not above it.

    Args:
      x: a tensor.
      bins: the edges, in rising order.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.digitize([0.0, 1.0, 3.0], [1.0, 2.0]).numpy().tolist()
      [0, 1, 2]
    """
    return _digitize(*common(x, bins))


@op(same=(), name="searchsorted", differentiable=False)
def _searchsorted(row: TensorLike, values: TensorLike, side: str) -> Any:
    return jnp.searchsorted(row, values, side=side).astype(jnp.int32)


@one_layer()
def searchsorted(sorted_sequence: TensorLike, values: TensorLike, side: str = "left") -> Tensor:
    """Where values would go in a sorted row.

    Args:
      sorted_sequence: a row in rising order.
      values: the values.
      side: 'left' of equal elements, or 'right'.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.searchsorted([1, 3, 5], [3, 4]).numpy().tolist()
      [1, 2]
    """
    row, values = common(sorted_sequence, values)
    if row.shape.rank != 1:
        raise ValueError(
            f"searchsorted only supports 1-D sorted sequences. You can use `keras.ops.vectorized_map` to extend it to "
            f"N-D sequences. Received: sorted_sequence.shape={tuple(row.shape)}"
        )
    return _searchsorted(row, values, side)


@op(same=(), name="histogram", differentiable=False)
def _histogram(x: TensorLike, bins: int, range: Any) -> Any:
    counts, edges = jnp.histogram(x, bins, range)
    return counts.astype(x.dtype), edges.astype(x.dtype)


def histogram(x: TensorLike, bins: int = 10, range: Any = None) -> tuple[Tensor, Tensor]:
    """How many elements lie in bins of equal width.

    Args:
      x: a tensor.
      bins: how many bins.
      range: the least and the greatest number; default those of `x`.

    Returns:
      The counts, and the edges of the bins.

    Example:
      >>> from meshflow.keras import ops
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
    x = tensor(x)
    if len(x.shape) != 1:
        raise ValueError(
            f"Input tensor must be 1-dimensional. Received: input.shape={tuple(x.shape)}"
        )
    counts, edges = _histogram(x, bins, range)
    return counts, edges


@op(same=(), name="trapezoid")
def _trapezoid(y: TensorLike, x: TensorLike | None, dx: Any, axis: int) -> Any:
    return jnp.trapezoid(y, x, dx, axis)


@one_layer()
def trapezoid(y: TensorLike, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Tensor:
    """The integral by the trapezoidal rule.

    Args:
      y: values of a function.
      x: where they are; default `dx` apart.
      dx: the distance between them.
      axis: the dimension along which is integrated.

    Example:
      >>> from meshflow.keras import ops
      >>> float(ops.trapezoid([1.0, 2.0, 3.0]))
      4.0
    """
    return _trapezoid(as_float(y), None if x is None else as_float(x), dx, axis)
