"""Ops of TensorFlow 1: names that TensorFlow 2 changed, and functions that it removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshflow.core.dispatch.composite import IndexedSlices, SparseTensor, SparseTensorValue
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random_streams import DEFAULT_SEED, global_seed
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.legacy.compat.public_package import tf as _tf
from meshflow.ops.math import floordiv as _floordiv
from meshflow.ops.ragged.values import convert_rows

__all__ = [
    "Print",
    "assign",
    "assign_add",
    "assign_sub",
    "batch_gather",
    "clip_by_average_norm",
    "convert_to_tensor_or_indexed_slices",
    "convert_to_tensor_or_sparse_tensor",
    "div",
    "get_seed",
    "setdiff1d",
    "sparse_merge",
    "sparse_reduce_max_sparse",
    "sparse_reduce_sum_sparse",
    "sparse_to_dense",
    "verify_tensor_all_finite",
    "where",
    "while_loop",
]

_ASSERTIONS = (
    "assert_greater_equal assert_integer assert_less_equal assert_near assert_negative assert_non_negative assert_non_positive "
    "assert_none_equal assert_positive assert_rank_at_least assert_rank_in assert_scalar assert_type"
)
# Paths of functions in TensorFlow 2 with other arguments, by their paths in TensorFlow 1.
OP_ALIASES: dict[str, str] = {
    f"{prefix}{name}": f"{namespace}.{name}"
    for prefix, namespace, names in (
        ("", "math", "bincount confusion_matrix count_nonzero"),
        (
            "sparse_",
            "sparse",
            "add concat reduce_max reduce_sum segment_mean segment_sqrt_n segment_sum split",
        ),
        ("", "debugging", _ASSERTIONS),
        ("debugging.", "debugging", _ASSERTIONS),
        (
            "",
            "io",
            "decode_csv decode_raw parse_example parse_single_example serialize_many_sparse serialize_sparse",
        ),
        ("", "nn", "depth_to_space space_to_depth"),
        ("", "strings", "reduce_join substr"),
        ("string_", "strings", "to_hash_bucket to_number"),
    )
    for name in names.split()
}
_GFILE_NAMES = (
    "Copy=copy DeleteRecursively=rmtree Exists=exists FastGFile=GFile Glob=glob IsDirectory=isdir ListDirectory=listdir "
    "MakeDirs=makedirs MkDir=mkdir Remove=remove Rename=rename Stat=stat Walk=walk"
)
OP_ALIASES |= {
    f"gfile.{old}": f"io.gfile.{new}"
    for old, _, new in (n.partition("=") for n in _GFILE_NAMES.split())
}
OP_ALIASES |= {
    f"data.experimental.{n}Structure": f"{n}Spec"
    for n in ("RaggedTensor", "SparseTensor", "Tensor", "TensorArray")
}
OP_ALIASES |= {
    "arg_max": "argmax",
    "arg_min": "argmin",
    "batch_to_space_nd": "batch_to_space",
    "data.experimental.map_and_batch_with_legacy_function": "data.experimental.map_and_batch",
    "extract_image_patches": "image.extract_patches",
    "floor_div": "math.floordiv",
    "image.extract_image_patches": "image.extract_patches",
    "manip.reshape": "reshape",
    "multinomial": "random.categorical",
    "nn.ctc_loss_v2": "nn.ctc_loss",
    "nn.softmax_cross_entropy_with_logits_v2": "nn.softmax_cross_entropy_with_logits",
    "py_func": "numpy_function",
    "random.stateless_multinomial": "random.stateless_categorical",
    "random_poisson": "random.poisson",
    "saved_model.experimental.save": "saved_model.save",
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
    return _tf.gather(params, convert_rows(indices), batch_dims=-1)


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


def Print(
    input_: TensorLike,
    data: Sequence[Any],
    message: str | None = None,
    first_n: int | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> TensorLike:
    """Print tensors and return the first argument; see `tf.print`."""
    _tf.print(message or "", *data, summarize=summarize or 3, sep="")
    return input_


def convert_to_tensor_or_indexed_slices(
    value: Any, dtype: DTypeLike | None = None, name: str | None = None
) -> Any:
    """Convert a value to a tensor; return `tf.IndexedSlices` unchanged."""
    return value if isinstance(value, IndexedSlices) else _tf.convert_to_tensor(value, dtype=dtype)


def convert_to_tensor_or_sparse_tensor(
    value: Any, dtype: DTypeLike | None = None, name: str | None = None
) -> Any:
    """Convert a value to a tensor; return sparse tensors unchanged, and convert `SparseTensorValue`s."""
    if isinstance(value, SparseTensorValue):
        return SparseTensor(*value)
    return value if isinstance(value, SparseTensor) else _tf.convert_to_tensor(value, dtype=dtype)


def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
    """Return the seeds of the graph and of an op, which are None if neither is set."""
    seed = global_seed.seed
    if seed is None and op_seed is None:
        return None, None
    seeds = (DEFAULT_SEED if seed is None else seed, 0 if op_seed is None else op_seed)
    return (0, 2**31 - 1) if seeds == (0, 0) else seeds


def setdiff1d(
    x: TensorLike, y: TensorLike, index_dtype: object = "int32", name: str | None = None
) -> Any:
    """Return the elements of `x` that are not in `y`, in their order, and their indices."""
    return _tf.raw_ops.ListDiff(x=x, y=y, out_idx=_tf.as_dtype(index_dtype))


def sparse_merge(
    sp_ids: SparseTensor | Sequence[SparseTensor],
    sp_values: SparseTensor,
    vocab_size: Any,
    name: str | None = None,
    already_sorted: bool = False,
) -> SparseTensor:
    """Return a sparse tensor with values at the columns that sparse tensors of ids contain."""
    ids = [sp_ids] if isinstance(sp_ids, SparseTensor) else list(sp_ids)
    sizes = list(vocab_size) if isinstance(vocab_size, (list, tuple)) else [vocab_size]
    columns = [_tf.expand_dims(_tf.cast(part.values, "int64"), -1) for part in ids]
    indices = _tf.concat([ids[0].indices[:, :-1], *columns], 1)
    shape = _tf.concat([ids[0].dense_shape[:-1], _tf.cast(sizes, "int64")], 0)
    result = SparseTensor(indices, sp_values.values, shape)
    return result if already_sorted else _tf.sparse.reorder(result)


def sparse_reduce_max_sparse(
    sp_input: SparseTensor,
    axis: object = None,
    keepdims: object = None,
    reduction_axes: object = None,
    keep_dims: object = None,
) -> SparseTensor:
    """Return the maxima of a sparse tensor over axes as a sparse tensor."""
    axes, keep = (axis if reduction_axes is None else reduction_axes), keepdims or keep_dims
    return _tf.sparse.reduce_max(sp_input, axes, keep, output_is_sparse=True)


def sparse_reduce_sum_sparse(
    sp_input: SparseTensor,
    axis: object = None,
    keepdims: object = None,
    reduction_axes: object = None,
    keep_dims: object = None,
) -> SparseTensor:
    """Return the sums of a sparse tensor over axes as a sparse tensor."""
    axes, keep = (axis if reduction_axes is None else reduction_axes), keepdims or keep_dims
    return _tf.sparse.reduce_sum(sp_input, axes, keep, output_is_sparse=True)


def verify_tensor_all_finite(
    t: TensorLike = None,
    msg: str | None = None,
    name: str | None = None,
    x: TensorLike = None,
    message: str | None = None,
) -> Tensor:
    """Return a tensor; raise an InvalidArgumentError if an element is not finite."""
    value = t if x is None else x
    return _tf.debugging.check_numerics(value, msg if message is None else message or "")


def where(
    condition: TensorLike, x: TensorLike = None, y: TensorLike = None, name: str | None = None
) -> Tensor:
    """Select elements of two tensors, or find true elements; a vector of conditions selects rows.

    Example:
      >>> tf.compat.v1.where([True, False], [[1, 2], [3, 4]], [[5, 6], [7, 8]]).numpy().tolist()
      [[1, 2], [7, 8]]
    """
    if x is not None and y is not None and not hasattr(condition, "_keras_history"):
        condition, x, y = map(convert_rows, (condition, x, y))
        is_ragged = [isinstance(v, _tf.RaggedTensor) for v in (condition, x, y)]
        if any(is_ragged) and len(condition.shape) == 1:
            count = _tf.shape(condition)[0]
            index = _tf.range(count)
            return _tf.gather(_tf.concat([x, y], 0), _tf.where(condition, index, count + index))
        if any(is_ragged) and not all(is_ragged):
            raise ValueError(
                "Input shapes do not match. Pass three ragged tensors, or a vector of conditions that selects rows; "
                "tf.where of TensorFlow 2 broadcasts its arguments."
            )
        if len(condition.shape) == 1 and len(x.shape) > 1:
            condition = _tf.reshape(condition, [-1, *[1] * (len(x.shape) - 1)])
    return _tf.where(condition, x, y)


def while_loop(
    cond: Callable[..., TensorLike],
    body: Callable[..., PyTree],
    loop_vars: Sequence[PyTree],
    shape_invariants: PyTree = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
    maximum_iterations: int | None = None,
    return_same_structure: bool = False,
) -> PyTree:
    """Repeat a function while a condition holds; see `tf.while_loop`.

    A single loop variable is returned without its list, unless `return_same_structure` is set. In eager execution, that
    happens only if `body` returns no list, or with `maximum_iterations=0`.
    """
    is_unpacked = len(loop_vars) == 1 and not return_same_structure
    is_eager, returns_list = _tf.executing_eagerly(), maximum_iterations is None

    def run(*values: PyTree) -> PyTree:
        nonlocal returns_list
        result = body(*values)
        returns_list = isinstance(result, (list, tuple))
        return result

    found = _tf.while_loop(
        *(cond, run, loop_vars, shape_invariants, parallel_iterations, back_prop, swap_memory),
        *(maximum_iterations, name),
    )
    return found[0] if is_unpacked and not (is_eager and returns_list) else found
