"""Ops of TensorFlow 1: names that TensorFlow 2 changed, and functions that it removed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.legacy.compat.surface import tf as _tf
from meshflow.ops.math import floordiv as _floordiv

__all__ = [
    "SAME",
    "assign",
    "assign_add",
    "assign_sub",
    "batch_gather",
    "clip_by_average_norm",
    "div",
    "sparse_to_dense",
]

T = TypeVar("T")

_MATH = (
    *("angle", "betainc", "bincount", "confusion_matrix", "conj", "cumprod"),
    *("digamma", "divide_no_nan", "erf", "erfc", "expm1", "floordiv", "floormod", "igamma"),
    *("igammac", "imag", "invert_permutation", "is_finite", "is_inf", "is_nan"),
    *("is_non_decreasing", "is_strictly_increasing", "lbeta", "lgamma", "log1p", "log_sigmoid"),
    *("logical_xor", "mod", "polygamma", "real", "reciprocal", "rint", "segment_max"),
    *("segment_mean", "segment_min", "segment_prod", "segment_sum", "squared_difference"),
    *("unsorted_segment_max", "unsorted_segment_mean", "unsorted_segment_min", "zeta"),
    *("unsorted_segment_prod", "unsorted_segment_sqrt_n", "unsorted_segment_sum"),
)
_MATRIX = {
    **{f"matrix_{n}": n for n in ("band_part", "diag", "diag_part", "set_diag", "transpose")},
    **{f"matrix_{n}": n for n in ("solve", "triangular_solve")},
    **{n: n for n in ("cholesky", "cholesky_solve", "cross", "global_norm", "qr", "svd", "trace")},
    "diag": "tensor_diag",
    "diag_part": "tensor_diag_part",
    "matrix_determinant": "det",
    "matrix_inverse": "inv",
    "matrix_solve_ls": "lstsq",
    "matrix_square_root": "sqrtm",
    "matrix_transpose": "matrix_transpose",
    "self_adjoint_eig": "eigh",
    "self_adjoint_eigvals": "eigvalsh",
}
_STRINGS = {
    "reduce_join": "reduce_join",
    "regex_replace": "regex_replace",
    "substr": "substr",
    **{
        f"string_{n}": n
        for n in ("join", "strip", "to_hash_bucket", "to_hash_bucket_fast", "to_number")
    },
    "string_to_hash_bucket_strong": "to_hash_bucket_strong",
}
_SPARSE = (
    *("add", "concat", "fill_empty_rows", "maximum", "minimum", "reduce_max", "reduce_sum"),
    *("reorder", "reset_shape", "reshape", "retain", "segment_mean", "segment_sqrt_n"),
    *("segment_sum", "slice", "softmax", "split", "to_indicator", "transpose"),
)
_SIGNAL = ("fft", "fft2d", "fft3d", "ifft", "ifft2d", "ifft3d")
_CHECKS = ("assert_integer", "assert_proper_iterable", "assert_same_float_dtype", "assert_scalar")

_REDUCTION = {"reduction_indices": "axis", "keep_dims": "keepdims"}
# New names of arguments by their old names, for each op.
ARGUMENTS: dict[str, dict[str, str]] = {
    **{
        f"reduce_{n}": _REDUCTION
        for n in ("all", "any", "logsumexp", "max", "mean", "min", "prod", "sum")
    },
    "argmax": {"dimension": "axis"},
    "argmin": {"dimension": "axis"},
    "count_nonzero": {**_REDUCTION, "input_tensor": "input"},
    "expand_dims": {"dim": "axis"},
    "squeeze": {"squeeze_dims": "axis"},
}


def with_older_arguments(function: Callable[..., T], aliases: dict[str, str]) -> Callable[..., T]:
    """Wrap a function so that it also takes TensorFlow 1's argument names."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> T:
        return function(*args, **{aliases.get(k, k): v for k, v in kwargs.items()})

    return wrapper


# Paths of functions in TensorFlow 2, by their names in TensorFlow 1's top-level namespace.
SAME: dict[str, str] = {
    **{n: f"math.{n}" for n in _MATH},
    **{old: f"linalg.{new}" for old, new in _MATRIX.items()},
    **{old: f"strings.{new}" for old, new in _STRINGS.items()},
    **{f"sparse_{n}": f"sparse.{n}" for n in _SPARSE},
    **{n: f"signal.{n}" for n in _SIGNAL},
    **{
        n: f"debugging.{n}"
        for n in (*_CHECKS, "assert_type", "check_numerics", "is_numeric_tensor")
    },
    "arg_max": "argmax",
    "arg_min": "argmin",
    "batch_to_space_nd": "batch_to_space",
    "depth_to_space": "nn.depth_to_space",
    "div_no_nan": "math.divide_no_nan",
    "floor_div": "math.floordiv",
    "lin_space": "linspace",
    "multinomial": "random.categorical",
    "random_crop": "image.random_crop",
    "reverse_v2": "reverse",
    "space_to_depth": "nn.space_to_depth",
    "sparse_mask": "sparse.mask",
    "sparse_tensor_dense_matmul": "sparse.sparse_dense_matmul",
    "sparse_tensor_to_dense": "sparse.to_dense",
    "tensor_scatter_add": "tensor_scatter_nd_add",
    "tensor_scatter_sub": "tensor_scatter_nd_sub",
    "tensor_scatter_update": "tensor_scatter_nd_update",
    "where_v2": "where",
}


def sparse_to_dense(
    sparse_indices: TensorLike,
    output_shape: TensorLike,
    sparse_values: TensorLike,
    default_value: TensorLike = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """Create a dense tensor with values at some coordinates and a default value at the others."""
    values = _tf.convert_to_tensor(sparse_values)
    empty = _tf.fill(output_shape, _tf.convert_to_tensor(default_value, dtype=values.dtype))
    indices = _tf.convert_to_tensor(sparse_indices)
    if len(indices.shape) < 2:
        indices = _tf.reshape(indices, [-1, 1])
    if not len(values.shape):
        values = _tf.fill([indices.shape[0]], values)
    return _tf.tensor_scatter_nd_update(empty, indices, values)


def assign(
    ref: Variable,
    value: TensorLike,
    validate_shape: bool = True,
    use_locking: bool | None = None,
    name: str | None = None,
) -> Variable:
    """Call `ref.assign(value)`; the other arguments are ignored."""
    return ref.assign(value)


def assign_add(
    ref: Variable, value: TensorLike, use_locking: bool | None = None, name: str | None = None
) -> Variable:
    """Call `ref.assign_add(value)`; the other arguments are ignored."""
    return ref.assign_add(value)


def assign_sub(
    ref: Variable, value: TensorLike, use_locking: bool | None = None, name: str | None = None
) -> Variable:
    """Call `ref.assign_sub(value)`; the other arguments are ignored."""
    return ref.assign_sub(value)


def batch_gather(params: TensorLike, indices: TensorLike, name: str | None = None) -> Tensor:
    """Gather along the last dimension of `indices`; the other dimensions are batch dimensions."""
    indices = _tf.convert_to_tensor(indices)
    return _tf.gather(params, indices, batch_dims=len(indices.shape) - 1)


def clip_by_average_norm(t: TensorLike, clip_norm: float, name: str | None = None) -> Tensor:
    """Scale a tensor down so that its L2 norm divided by its size is at most `clip_norm`."""
    t = _tf.convert_to_tensor(t)
    size = float(t.shape.num_elements())
    average = _tf.norm(t) / size
    factor = _tf.minimum(1 / average, _tf.ones([], t.dtype) / clip_norm)
    return t * clip_norm * factor


def div(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Divide as Python 2 does: integers are rounded towards minus infinity."""
    x = _tf.convert_to_tensor(x)
    return _floordiv(x, y) if x.dtype.is_integer else _tf.divide(x, y)
