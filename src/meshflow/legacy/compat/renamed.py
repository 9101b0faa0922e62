"""Version 1's names of ops: where version 2 has them, and those that version 2 has not."""

from __future__ import annotations

import functools
from typing import Any

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
# Older names of arguments, by op.
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


def with_older_arguments(function: Any, older: dict[str, str]) -> Any:
    """The function, which takes version 1's names of arguments too."""

    @functools.wraps(function)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{older.get(k, k): v for k, v in kwargs.items()})

    return renamed


# Names of version 1's top level that are the same function in version 2, by its path there.
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
    sparse_indices: Any,
    output_shape: Any,
    sparse_values: Any,
    default_value: Any = 0,
    validate_indices: bool = True,
    name: Any = None,
) -> Any:
    """A tensor with values at some coordinates, and a default one elsewhere."""
    values = _tf.convert_to_tensor(sparse_values)
    empty = _tf.fill(output_shape, _tf.convert_to_tensor(default_value, dtype=values.dtype))
    indices = _tf.convert_to_tensor(sparse_indices)
    if len(indices.shape) < 2:
        indices = _tf.reshape(indices, [-1, 1])
    if not len(values.shape):
        values = _tf.fill([indices.shape[0]], values)
    return _tf.tensor_scatter_nd_update(empty, indices, values)


def assign(
    ref: Any,
    value: Any,
    validate_shape: bool = True,
    use_locking: bool | None = None,
    name: Any = None,
) -> Any:
    """`ref.assign(value)`; the other arguments are ignored."""
    return ref.assign(value)


def assign_add(ref: Any, value: Any, use_locking: bool | None = None, name: Any = None) -> Any:
    """`ref.assign_add(value)`; the other arguments are ignored."""
    return ref.assign_add(value)


def assign_sub(ref: Any, value: Any, use_locking: bool | None = None, name: Any = None) -> Any:
    """`ref.assign_sub(value)`; the other arguments are ignored."""
    return ref.assign_sub(value)


def batch_gather(params: Any, indices: Any, name: Any = None) -> Any:
    """`tf.gather` along the last dimension of `indices`, the others being shared."""
    indices = _tf.convert_to_tensor(indices)
    return _tf.gather(params, indices, batch_dims=len(indices.shape) - 1)


def clip_by_average_norm(t: Any, clip_norm: Any, name: Any = None) -> Any:
    """Scales a tensor down so that its L2 norm, divided by its size, is at most `clip_norm`."""
    t = _tf.convert_to_tensor(t)
    size = float(t.shape.num_elements())
    average = _tf.norm(t) / size
    factor = _tf.minimum(1 / average, _tf.ones([], t.dtype) / clip_norm)
    return t * clip_norm * factor


def div(x: Any, y: Any, name: Any = None) -> Any:
    """Division as in Python 2: integers are rounded towards minus infinity."""
    x = _tf.convert_to_tensor(x)
    return _floordiv(x, y) if x.dtype.is_integer else _tf.divide(x, y)
