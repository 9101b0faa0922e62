"""Dispatch of public ops with ragged arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.dispatch import api_dispatch, symbolic_calls
from meshflow.core.dispatch.dispatch import OPERAND_ANNOTATIONS, OPERAND_LIST_ANNOTATIONS
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.dtypes import DTypeLike, int32, int64
from meshflow.core.values.shapes import are_different
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.unknown_sizes import (
    Result,
    compute_on_host,
    compute_size,
    host_function,
    is_unknown,
    read_sizes,
)
from meshflow.environment.types import PyTree
from meshflow.ops import array, math
from meshflow.ops.ragged import arrays, dynamic_shape, padding
from meshflow.ops.ragged.construction import convert_values, find_recorder
from meshflow.ops.ragged.elementwise import (
    apply_elementwise,
    get_op_name,
    have_same_rows,
    map_flat_values,
)
from meshflow.ops.ragged.partition import SPLITS_USE, convert_integers, find_value, make_size
from meshflow.ops.ragged.reductions import (
    REDUCTIONS,
    SEGMENT_OPS,
    reduce,
    reduce_segments,
)
from meshflow.ops.ragged.tensor import (
    RaggedTensor,
    get_positive_axis,
)

# Modules of elementwise ops, and further ops that are applied to the innermost values.
_STRING_MODULES = ("strings", "unicode", "regular_expressions", "hashing")
_ELEMENTWISE_MODULES = (
    *("arithmetic", "casting", "clipping", "comparison", "division", "elementwise", "special"),
    *(*_STRING_MODULES, "bitwise"),
)
_ELEMENTWISE_OPS = frozenset(
    [
        *(
            "cast",
            "identity",
            "stop_gradient",
            "zeros_like",
            "ones_like",
            "check_numerics",
            "one_hot",
        ),
        *("elu", "gelu", "leaky_relu", "relu", "relu6", "selu", "sigmoid", "silu", "swish", "tanh"),
        *(
            "softplus",
            "softsign",
            "softmax",
            "dropout",
            "bitcast",
            "is_finite",
            "crelu",
        ),
        *("adjust_brightness", "adjust_gamma", "random_brightness", "stateless_random_brightness"),
        *(
            "convert_image_dtype",
            "decode_raw",
            "decode_compressed",
            "encode_base64",
            "decode_base64",
            "identity_n",
            "sigmoid_cross_entropy_with_logits",
        ),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"),
    ]
)
_NOT_ELEMENTWISE = frozenset(
    [
        *(
            "accumulate_n",
            "clip_by_norm",
            "clip_by_global_norm",
            "clip_by_average_norm",
            "global_norm",
        ),
        *(
            "scalar_mul_all",
            "cumsum",
            "cumulative_logsumexp",
            "reduce_join",
            "ngrams",
            "format",
            "tensordot",
        ),
    ]
)
_UNARY_WITH_OPTIONS = frozenset(
    ["clip_by_value", "dropout", "general_dropout", "stateless_dropout"]
)
_BINARY_ASSERTIONS = frozenset(
    f"assert_{n}"
    for n in ("equal", "none_equal", "near", "less", "less_equal", "greater", "greater_equal")
)


@functools.cache
def _list_operand_names(public: Callable[..., Any]) -> tuple[str | None, ...]:
    """Return the names of the parameters of an op, with None for those that are not operands."""
    kinds = (*OPERAND_ANNOTATIONS, *OPERAND_LIST_ANNOTATIONS)
    parameters = inspect.signature(public).parameters.values()
    return tuple(p.name if p.annotation in kinds else None for p in parameters)


def is_elementwise(public: Callable[..., Any]) -> bool:
    """Check whether an op is elementwise."""
    name, module = get_op_name(public), public.__module__.rpartition(".")[2]
    if name in _NOT_ELEMENTWISE:
        return False
    return module in _ELEMENTWISE_MODULES or name in _ELEMENTWISE_OPS


def _call_elementwise(
    public: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PyTree:
    names = _list_operand_names(public)
    if get_op_name(public) in _UNARY_WITH_OPTIONS:
        return map_flat_values(public, *args, **kwargs)
    if sum(n is not None for n in names) > 1 or isinstance(args[0] if args else None, list | tuple):
        return apply_elementwise(public, args, kwargs, names)
    return map_flat_values(public, *args, **kwargs)


def _encode_rows(public: Callable[..., Any], x: RaggedTensor, *args: Any, **kwargs: Any) -> PyTree:
    """Encode the code points of each innermost row as a string."""
    if len(x.values.shape) > 1:
        return x.with_values(public(x.values, *args, **kwargs))
    return array.stack([public(row, *args, **kwargs) for row in x])


def _decode_with_offsets(
    public: Callable[..., Any], input: RaggedTensor, *args: Any, **kwargs: Any
) -> PyTree:
    """Return the characters of strings and their byte offsets, as a pair of ragged tensors."""
    return tuple(map(input.with_flat_values, public(input.flat_values, *args, **kwargs)))


def _matmul(public: Callable[..., Any], a: PyTree, b: PyTree, **kwargs: Any) -> PyTree:
    a, b = convert_values(a), convert_values(b)
    rank = len(a.shape)
    if rank != len(b.shape) or rank < 2:
        raise ValueError(
            f"matmul of ragged tensors: `a` and `b` must have the same rank. It must be at least 2, got {a.shape} and "
            f"{b.shape}."
        )
    if not isinstance(a, RaggedTensor) and not isinstance(b, RaggedTensor):
        return public(a, b, **kwargs)
    if rank == 2:
        return public(_to_matrix(a), _to_matrix(b), **kwargs)
    if not isinstance(a, RaggedTensor) and rank == 3:
        a = arrays.to_ragged(a, 1, b.partition.dtype)
    if not isinstance(b, RaggedTensor) and rank == 3 and a.ragged_rank == 1:
        b = arrays.to_ragged(b, 1, a.partition.dtype)
    dtype = next(x.partition.dtype for x in (a, b) if isinstance(x, RaggedTensor))
    if rank > 3:
        left, right = (arrays.to_ragged(x, 1, dtype) for x in (a, b))
        return left.with_values(_matmul(public, left.values, right.values, **kwargs))
    count = a.shape[0]
    if count != b.shape[0]:
        raise InvalidValueError(
            f"matmul of ragged tensors: batch sizes {count} and {b.shape[0]} differ."
        )
    is_transposed = kwargs.get("transpose_b") or kwargs.get("adjoint_b")
    has_ragged_rows = isinstance(b, RaggedTensor) and bool(b.ragged_rank > 1 or is_transposed)
    if any(isinstance(x, RaggedTensor) and is_unknown([x.row_splits]) for x in (a, b)):
        product = _multiply_padded(public, a, b, has_ragged_rows, kwargs)
        return product.with_row_splits_dtype(dtype)
    products = [public(_to_matrix(a[i]), _to_matrix(b[i]), **kwargs) for i in range(count)]
    if has_ragged_rows:
        products = [arrays.to_ragged(p, 1, dtype) for p in products]
    return arrays.pack_rows(products) if products else a


def _multiply_padded(
    public: Callable[..., Any], a: PyTree, b: PyTree, has_ragged_rows: bool, options: dict[str, Any]
) -> RaggedTensor:
    """Multiply matrices of different sizes after padding: zeros do not change their products."""
    ragged = [arrays.to_ragged(x, 2, int64) for x in (a, b)]
    operands = [part for x in ragged for part in (x.row_splits, x.values.row_splits)]
    turns = [bool(options.get(f"transpose_{k}") or options.get(f"adjoint_{k}")) for k in "ab"]
    find = functools.partial(_find_product_sizes, turns[0], turns[1])
    results: list[Result] = [((a.shape[0],), np.int64), ((None,), np.int64)]
    heights, widths = compute_on_host(find, operands, results, SPLITS_USE)
    product = public(*[x.to_tensor() for x in ragged], **options)
    lengths = (heights, widths) if has_ragged_rows else heights
    return RaggedTensor.from_tensor(product, lengths=lengths)


@host_function
def _find_product_sizes(turns_a: bool, turns_b: bool, *splits: np.ndarray) -> list[np.ndarray]:
    """Return the number of rows of each product of matrices, and the length of each of these rows.

    Args:
      turns_a: Whether the left matrices are transposed.
      turns_b: Whether the right matrices are transposed.
      *splits: Row splits of the left matrices, and of their rows, then those of the right matrices.
    """
    sizes = []
    for k, turns in enumerate((turns_a, turns_b)):
        outer, inner = splits[2 * k : 2 * k + 2]
        heights, lengths = np.diff(outer), np.diff(inner)
        widths = np.zeros_like(heights)
        widths[heights > 0] = lengths[outer[:-1][heights > 0]]
        if (np.repeat(widths, heights) != lengths).any():
            raise InvalidValueError(
                "The matrices in `a` and `b` may not be ragged in their innermost dimension."
            )
        sizes.append((widths, heights) if turns else (heights, widths))
    (rows, left), (right, columns) = sizes
    # The width of a matrix without rows is not stored.
    if ((left != right) & (splits[0][1:] > splits[0][:-1])).any():
        raise InvalidValueError(
            f"matmul of ragged tensors: the inner sizes {left} and {right} differ."
        )
    return [rows, np.repeat(columns, rows)]


def _to_matrix(value: PyTree) -> PyTree:
    """Convert rows of one length to a dense matrix.

    Raises:
      InvalidArgumentError: If the rows have different lengths.
    """
    if not isinstance(value, RaggedTensor):
        return value
    if len(set(np.diff(value.host_splits).tolist())) > 1:
        raise InvalidValueError(
            "The matrices in `a` and `b` may not be ragged in their innermost dimension."
        )
    return value.to_tensor()


def _softmax(
    public: Callable[..., Any], logits: RaggedTensor, axis: PyTree = None, **kwargs: Any
) -> PyTree:
    axis = arrays.get_positive_axis(-1 if axis is None else int(axis), len(logits.shape))
    if axis > logits.ragged_rank:
        return logits.with_flat_values(public(logits.flat_values, axis - logits.ragged_rank))
    largest = array.stop_gradient(reduce("reduce_max", logits, axis, True))
    exponentials = math.exp(math.subtract(logits, largest))
    return math.divide(exponentials, reduce("reduce_sum", exponentials, axis, True))


def _log_softmax(
    public: Callable[..., Any], logits: RaggedTensor, axis: PyTree = None, **kwargs: Any
) -> PyTree:
    axis = arrays.get_positive_axis(-1 if axis is None else int(axis), len(logits.shape))
    if axis > logits.ragged_rank:
        return logits.with_flat_values(public(logits.flat_values, axis - logits.ragged_rank))
    return math.subtract(logits, reduce("reduce_logsumexp", logits, axis, True))


def _cumsum(
    public: Callable[..., Any],
    x: RaggedTensor,
    axis: PyTree = 0,
    exclusive: bool = False,
    reverse: bool = False,
) -> RaggedTensor:
    axis = arrays.get_positive_axis(int(axis), len(x.shape))
    if axis > x.ragged_rank:
        return x.with_flat_values(public(x.flat_values, axis - x.ragged_rank, exclusive, reverse))
    sums = public(x.to_tensor(), axis, exclusive, reverse)
    values = array.gather_nd(sums, padding.list_row_coordinates(x))
    return (x if axis == x.ragged_rank else arrays.drop_uniform(x)).with_flat_values(values)


def _reduce_by_ids(
    public: Callable[..., Any], data: PyTree, segment_ids: PyTree, num_segments: PyTree
) -> PyTree:
    """Reduce the rows of a ragged tensor by ids."""
    kind = public.__name__.removeprefix("unsorted_segment_")
    data, ids = convert_values(data), convert_values(segment_ids)
    if isinstance(ids, RaggedTensor):
        if not isinstance(data, RaggedTensor):
            raise ValueError(
                "segment_ids.shape must be a prefix of data.shape, but segment_ids is ragged and data is not."
            )
        is_known = all(find_value(x.row_splits) is not None for x in (data, ids))
        same_rows = RaggedTensor.from_partition(ids.values, data.partition)
        if is_known and not have_same_rows(same_rows, ids):
            raise InvalidValueError(
                "segment_ids.shape must be a prefix of data.shape, but the row lengths differ."
            )
        return public(data.values, ids.values, num_segments)
    count = read_sizes(convert_integers(num_segments), "num_segments")
    ids = convert_integers(ids)
    if isinstance(data, RaggedTensor) and are_different(
        data.partition.static_nrows, ids.array.shape[0]
    ):
        raise InvalidValueError(
            f"segment_ids has {ids.array.shape[0]} elements, but data has {data.partition.static_nrows} rows."
        )
    known = find_value(ids)
    if known is not None and known.size and (known.min() < 0 or known.max() >= count):
        raise InvalidValueError(f"segment_ids {known.tolist()} are not in [0, {count})")
    if kind in SEGMENT_OPS:
        return reduce_segments(kind, data, ids, count)
    ones = array.ones_like(data)
    total, counts = (reduce_segments("sum", x, ids, count) for x in (data, ones))
    return total / (math.sqrt(counts) if kind == "sqrt_n" else counts)


def _resize(
    public: Callable[..., Any], images: RaggedTensor, size: PyTree, *args: Any, **kwargs: Any
) -> PyTree:
    """Resize images of different sizes, a ragged tensor of shape [count, (height), (width), channels]."""
    if len(images.shape) != 4:
        raise ValueError(
            f"tf.image.resize: images.shape.rank must be 4 if images is ragged, got {images.shape}."
        )
    resize = lambda image: public(
        image.to_tensor() if isinstance(image, RaggedTensor) else image, size, *args, **kwargs
    )
    if images.shape[0] == 0:
        # The size of the results does not depend on those of the images.
        return resize(array.zeros([0, 1, 1, images.shape[-1] or 0], images.dtype))
    return array.stack(list(map(resize, images)))


def _one_hot(
    public: Callable[..., Any],
    indices: RaggedTensor,
    depth: PyTree,
    on_value: PyTree = None,
    off_value: PyTree = None,
    axis: int | None = None,
    dtype: PyTree = None,
    name: str | None = None,
) -> PyTree:
    """Apply `one_hot` with an axis of the innermost values."""
    if axis is not None:
        axis = get_positive_axis(axis, len(indices.shape) + 1)
        if axis <= indices.ragged_rank:
            raise ValueError(
                f"axis ({axis}) must be greater than indices.ragged_rank ({indices.ragged_rank})."
            )
        axis -= indices.ragged_rank
    return map_flat_values(public, indices, depth, on_value, off_value, axis, dtype)


def _compute_moments(
    x: RaggedTensor, axes: PyTree, shift: PyTree = None, keepdims: bool = False
) -> tuple[PyTree, PyTree]:
    return reduce("reduce_mean", x, axes, keepdims), reduce("reduce_variance", x, axes, keepdims)


def _look_up_sparse(public: Callable[..., Any], *args: Any, **kwargs: Any) -> PyTree:
    """Apply a lookup of sparse ids to ragged ids."""
    to_sparse = lambda x: x.to_sparse() if isinstance(x, RaggedTensor) else x
    return public(*map(to_sparse, args), **{k: to_sparse(v) for k, v in kwargs.items()})


def _dynamic_partition(
    data: PyTree, partitions: PyTree, num_partitions: int, name: str | None = None
) -> list[Any]:
    if not isinstance(data, RaggedTensor) and not isinstance(partitions, RaggedTensor):
        return array.dynamic_partition(data, partitions, num_partitions)
    result = arrays.stack_dynamic_partitions(data, partitions, num_partitions)
    return [result[i] for i in range(num_partitions)]


def _rank(input: RaggedTensor, name: str | None = None) -> Tensor:
    return Tensor(np.array(len(input.shape), np.int32))


def _bincount(
    arr: RaggedTensor,
    weights: PyTree = None,
    minlength: int | None = None,
    maxlength: int | None = None,
    dtype: DTypeLike = int32,
    name: str | None = None,
    axis: int | None = None,
    binary_output: bool = False,
) -> Tensor:
    """Count the values of all rows, or for axis -1 of each row."""
    values = arr.flat_values
    if isinstance(weights, RaggedTensor):
        arrays.check_lengths(arr, weights)
        weights = weights.flat_values
    if axis != -1:
        counts: Tensor = math.bincount(
            values, weights, minlength, maxlength, dtype, binary_output=binary_output
        )
        return counts
    find_size = lambda ids: (ids.max(initial=-1) + 1).clip(minlength or 0, maxlength)
    size = compute_size(find_size, [values], "the argument of tf.math.bincount without maxlength")
    count = arr.partition.static_nrows
    rows = math.cast(arr.value_rowids(), int64)
    ids = rows * make_size(size) + math.cast(values, int64)
    # Values without a column are not counted.
    ids = array.where(math.cast(values, int64) < make_size(size), ids, -1)
    amounts = array.ones_like(values, dtype) if weights is None else weights
    counts = array.reshape(math.unsorted_segment_sum(amounts, ids, count * size), [count, size])
    return math.cast(counts > 0, dtype) if binary_output else counts


_OPS: dict[str, Callable[..., Any]] = {
    "bincount": _bincount,
    **dynamic_shape.RAGGED_OPS,
    "boolean_mask": lambda tensor, mask, axis=None, name=None: arrays.boolean_mask(tensor, mask),
    "concat": arrays.concat,
    "dynamic_partition": _dynamic_partition,
    "expand_dims": arrays.expand_dims,
    "gather": arrays.gather,
    "gather_nd": arrays.gather_nd,
    "moments": _compute_moments,
    "rank": _rank,
    "reverse": arrays.reverse,
    "size": arrays.size,
    "split": arrays.split,
    "squeeze": arrays.squeeze,
    "stack": arrays.stack,
    "tile": arrays.tile,
    "unstack": lambda value, num=None, axis=0, name=None: list(value),
    "where": arrays.where,
}
# Handlers that also take the op, to apply it to parts.
_WRAPPED_OPS: dict[str, Callable[..., Any]] = {
    "cumsum": _cumsum,
    "matmul": _matmul,
    "embedding_lookup_sparse": _look_up_sparse,
    "log_softmax": _log_softmax,
    "one_hot": _one_hot,
    "resize": _resize,
    "resize_images": _resize,
    "safe_embedding_lookup_sparse": _look_up_sparse,
    "softmax": _softmax,
    "unicode_decode_with_offsets": _decode_with_offsets,
    "unicode_encode": _encode_rows,
    "unicode_split_with_offsets": _decode_with_offsets,
    **{
        f"unsorted_segment_{kind}": _reduce_by_ids
        for kind in ("sum", "prod", "max", "min", "mean", "sqrt_n")
    },
}


def register(name: str, handler: Callable[..., Any]) -> None:
    """Register the implementation of an op for ragged arguments, which also takes the op."""
    _WRAPPED_OPS[name] = handler


def call_op(public: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    """Apply an op to arguments with ragged tensors; return NotImplemented for other ops."""
    if (graph := find_recorder(args, kwargs)) is not None:
        return graph.call(public, args, kwargs)
    name = get_op_name(public)
    kwargs = {k: v for k, v in kwargs.items() if k != "name"}
    if name in _OPS and public.__module__.rpartition(".")[2] not in _STRING_MODULES:
        return _OPS[name](*args, **kwargs)
    if name in _WRAPPED_OPS:
        return _WRAPPED_OPS[name](public, *args, **kwargs)
    if name in REDUCTIONS:
        return _call_reduction(name, *args, **kwargs)
    if is_elementwise(public) or name in _BINARY_ASSERTIONS:
        return _call_elementwise(public, args, kwargs)
    return NotImplemented


def _call_reduction(
    name: str,
    input_tensor: PyTree,
    axis: PyTree = None,
    keepdims: bool = False,
    label: object = None,
) -> PyTree:
    """Call a reduction; `label` is the name of the result, which has no effect."""
    return reduce(name, input_tensor, axis, bool(keepdims))


def classify(public: Callable[..., Any]) -> str | None:
    """Return "unary", "binary" or "binary assert" for elementwise functions."""
    name = get_op_name(public)
    if name in _BINARY_ASSERTIONS:
        return "binary assert"
    if not is_elementwise(public):
        return None
    count = sum(n is not None for n in _list_operand_names(public))
    return "binary" if count == 2 and name not in _UNARY_WITH_OPTIONS else "unary"


symbolic_calls.register_composite_type(RaggedTensor, call_op)
api_dispatch.set_classifier(classify)
