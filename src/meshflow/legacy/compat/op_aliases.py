"""Ops of TensorFlow 1: names that TensorFlow 2 changed, and functions that it removed."""

from __future__ import annotations

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.legacy.compat.public_package import tf as _tf
from meshflow.ops.math import floordiv as _floordiv

__all__ = [
    "OP_ALIASES",
    "assign",
    "assign_add",
    "assign_sub",
    "batch_gather",
    "clip_by_average_norm",
    "div",
    "sparse_to_dense",
]

# Paths of functions in TensorFlow 2 with other arguments, by their paths in TensorFlow 1.
OP_ALIASES: dict[str, str] = {
    **{n: f"math.{n}" for n in ("bincount", "confusion_matrix", "count_nonzero")},
    **{
        f"sparse_{n}": f"sparse.{n}"
        for n in ("add", "concat", "reduce_max", "reduce_sum", "segment_mean", "segment_sqrt_n", "segment_sum", "split")
    },
    **{
        f"{module}{n}": f"debugging.{n}"
        for module in ("", "debugging.")
        for n in ("assert_greater_equal", "assert_integer", "assert_less_equal", "assert_near", "assert_negative")
        + ("assert_non_negative", "assert_non_positive", "assert_none_equal", "assert_positive", "assert_rank_at_least")
        + ("assert_rank_in", "assert_scalar", "assert_type")
    },
    **{n: f"io.{n}" for n in ("decode_csv", "decode_raw", "parse_example", "parse_single_example")},
    "arg_max": "argmax",
    "arg_min": "argmin",
    "batch_to_space_nd": "batch_to_space",
    "depth_to_space": "nn.depth_to_space",
    "floor_div": "math.floordiv",
    "initializers.uniform_unit_scaling": "keras.initializers.LecunUniform",
    "multinomial": "random.categorical",
    "py_func": "numpy_function",
    "random_poisson": "random.poisson",
    "reduce_join": "strings.reduce_join",
    "space_to_depth": "nn.space_to_depth",
    "string_split": "strings.split",
    "string_to_hash_bucket": "strings.to_hash_bucket",
    "string_to_number": "strings.to_number",
    "substr": "strings.substr",
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
