"""Raw ops that need more than one public function: variables, random numbers, gradients of pools, and serialization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import op
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.ops import array, math, nn
from meshflow.ops import linalg as linear_algebra
from meshflow.ops import random as random_ops
from meshflow.ops.array.ordering import find_unique_slices
from meshflow.ops.array.shaping import normalize_axis
from meshflow.ops.image.warping import warp
from meshflow.ops.random import from_keys
from meshflow.ops.random import stateless as stateless_random

_Function = Callable[..., Any]


def _make_scatter(method: str) -> _Function:
    """Return an update of rows of a variable."""

    def scatter(resource: Variable, indices: TensorLike, updates: TensorLike, **_: Any) -> None:
        rows = convert_to_tensor(indices)
        values = convert_to_tensor(updates, dtype=resource.dtype)
        shape = array.concat([array.shape(rows), array.shape(resource)[1:]], 0)
        inner = array.concat([[-1], array.shape(resource)[1:]], 0)
        values = array.reshape(array.broadcast_to(values, shape), inner)
        getattr(resource, method)(IndexedSlices(values, array.reshape(rows, [-1])))

    return scatter


def _make_nd_scatter(method: str) -> _Function:
    """Return an update of elements of a variable."""

    def scatter(ref: Variable, indices: TensorLike, updates: TensorLike, **_: Any) -> None:
        getattr(ref, method)(indices, updates)

    return scatter


def _make_gradient(function: _Function, *names: str) -> _Function:
    """Return the gradient of an op of one input.

    Args:
      function: The op.
      *names: Names of the input and of the gradient.
    """

    def gradient(**arguments: Any) -> Tensor:
        x, dy = (convert_to_tensor(arguments.pop(name)) for name in names)
        arguments.pop("orig_output", None)
        with GradientTape() as tape:
            tape.watch(x)
            y = function(x, **arguments)
        return tape.gradient(y, x, dy)

    return gradient


def _make_stateless(function: _Function, *limits: str) -> _Function:
    """Return a random op that takes the seed as a tensor."""

    def draw(
        shape: TensorLike, seed: TensorLike, dtype: DTypeLike | None = None, **arguments: Any
    ) -> Tensor:
        if limits:
            dtype = convert_to_tensor(arguments[limits[0]]).dtype
        options = {"dtype": dtype} if dtype is not None else {}
        return function(shape, seed, *(arguments[name] for name in limits), **options)

    return draw


def _make_keyed(draw: _Function) -> _Function:
    """Return a random op that takes the key and the counter of a generator, in uint64."""

    def draw_from_state(
        shape: TensorLike, key: TensorLike, counter: TensorLike, alg: int, **arguments: TensorLike
    ) -> Tensor:
        # Meshflow has the Philox generator only, and its state is the counter, then the key.
        state = array.concat([counter, key], 0)
        return draw(math.cast(state, dtypes.int64), shape, **arguments)

    return draw_from_state


def _split_state(seed: TensorLike) -> list[Tensor]:
    """Return the key and the counter of the generator that a seed determines."""
    state = math.cast(from_keys.derive_key(seed), dtypes.uint64)
    return [state[2:], state[:2]]


def _get_algorithm() -> Tensor:
    """Return TensorFlow's number of the Philox generator."""
    return convert_to_tensor(1)


def _draw_integers(
    state: Tensor, shape: TensorLike, minval: TensorLike, maxval: TensorLike
) -> Tensor:
    return from_keys.draw_uniform(state, shape, minval, maxval, convert_to_tensor(minval).dtype)


def _make_stateful(function: _Function, *limits: str) -> _Function:
    """Return a random op that has its own seed, or none."""

    def draw(
        shape: TensorLike,
        dtype: DTypeLike | None = None,
        seed: int = 0,
        seed2: int = 0,
        **arguments: Any,
    ) -> Tensor:
        bounds = [convert_to_tensor(arguments[name]) for name in limits]
        options = dict(zip(limits, bounds, strict=True), dtype=bounds[0].dtype if bounds else dtype)
        return function(shape, seed=seed2 or seed or None, **options)

    return draw


def _is_close(x: TensorLike, y: TensorLike, tolerance: float = 1e-5) -> Tensor:
    return math.abs(math.subtract(x, y)) < tolerance


def _select(condition: TensorLike, x: TensorLike, y: TensorLike) -> Tensor:
    condition, x = convert_to_tensor(condition), convert_to_tensor(x)
    if condition.shape.rank == 1 and (x.shape.rank or 0) > 1:
        condition = array.reshape(condition, [-1] + [1] * (x.shape.rank - 1))
    return array.where(condition, x, y)


def _svd(
    input: TensorLike, compute_uv: bool = True, full_matrices: bool = False
) -> tuple[Tensor, ...]:
    if compute_uv:
        return tuple(linear_algebra.svd(input, full_matrices, True))
    values = convert_to_tensor(linear_algebra.svd(input, full_matrices, False))
    return values, array.zeros([0], values.dtype), array.zeros([0], values.dtype)


def _find_unique(
    x: TensorLike, out_idx: Any = None, axis: TensorLike | None = None, count: bool = False
) -> tuple[Tensor, ...]:
    options = {} if out_idx is None else {"out_idx": out_idx}
    axes = () if axis is None else convert_to_tensor(axis).numpy().tolist()
    if len(axes) > 1:
        raise InvalidArgumentError(f"UniqueV2: the axis must be a single number, got {axes}.")
    if axes:
        rank = len(convert_to_tensor(x).shape)
        results = find_unique_slices(x, normalize_axis(axes[0], rank, "UniqueV2"), **options)
        return tuple(results if count else results[:2])
    return tuple(array.unique_with_counts(x, **options) if count else array.unique(x, **options))


def _find_missing(x: TensorLike, y: TensorLike, out_idx: Any = None) -> tuple[Tensor, Tensor]:
    """Return the elements of `x` that are not in `y`, and their indices."""
    x = convert_to_tensor(x)
    missing = math.reduce_all(
        math.not_equal(array.expand_dims(x, 1), array.expand_dims(y, 0)), axis=1
    )
    indices = array.reshape(array.where(missing), [-1])
    return array.gather(x, indices), math.cast(indices, "int32" if out_idx is None else out_idx)


@op(kinds="i", differentiable=False)
def _count_bits(x: TensorLike) -> Tensor:
    """Return the number of set bits of each element."""
    return jax.lax.population_count(x).astype(np.uint8)  # type: ignore[return-value]


def _assign(variable: Variable, value: TensorLike, method: str = "assign") -> None:
    getattr(variable, method)(value)


def _approximate_top_k(
    input: TensorLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    is_max_k: bool = True,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return the exact largest or smallest elements."""
    select = math.approx_max_k if is_max_k else math.approx_min_k
    return select(input, k, reduction_dimension)


def _transform_images(
    images: TensorLike,
    transforms: TensorLike,
    output_shape: TensorLike,
    interpolation: str,
    fill_mode: str = "CONSTANT",
    fill_value: TensorLike = 0.0,
) -> Tensor:
    """Transform images by eight parameters each, or for all: the last row of a map is (g, h, 1)."""
    inputs, rows = convert_to_tensor(images), convert_to_tensor(transforms, dtype="float32")
    height, width = (int(s) for s in array.unstack(convert_to_tensor(output_shape)))
    floats = inputs if inputs.dtype.is_floating else math.cast(inputs, "float32")
    maps = array.concat([rows, array.ones_like(rows[:, :1])], 1)
    maps = array.broadcast_to(array.reshape(maps, [-1, 3, 3]), [array.shape(inputs)[0], 3, 3])
    fill = float(convert_to_tensor(fill_value))
    warped = warp(floats, maps, fill_mode.lower(), interpolation.lower(), fill, (height, width))
    return math.cast(warped, inputs.dtype)


FUNCTIONS: dict[str, _Function] = {
    **dict.fromkeys(
        ["ImageProjectiveTransformV2", "ImageProjectiveTransformV3"], _transform_images
    ),
    "All": lambda input, axis, keep_dims=False: math.reduce_all(input, axis, keep_dims),
    "Any": lambda input, axis, keep_dims=False: math.reduce_any(input, axis, keep_dims),
    "Max": lambda input, axis, keep_dims=False: math.reduce_max(input, axis, keep_dims),
    "Mean": lambda input, axis, keep_dims=False: math.reduce_mean(input, axis, keep_dims),
    "Min": lambda input, axis, keep_dims=False: math.reduce_min(input, axis, keep_dims),
    "Prod": lambda input, axis, keep_dims=False: math.reduce_prod(input, axis, keep_dims),
    "Sum": lambda input, axis, keep_dims=False: math.reduce_sum(input, axis, keep_dims),
    "EuclideanNorm": lambda input, axis, keep_dims=False: math.reduce_euclidean_norm(
        input, axis, keep_dims
    ),
    "ApproximateEqual": _is_close,
    "ApproxTopK": _approximate_top_k,
    "AssignAddVariableOp": lambda resource, value: _assign(resource, value, "assign_add"),
    "AssignSubVariableOp": lambda resource, value: _assign(resource, value, "assign_sub"),
    "AssignVariableOp": lambda resource, value, validate_shape=False: _assign(resource, value),
    "BatchMatrixDeterminant": linear_algebra.det,
    "Bincount": lambda arr, size, weights: math.bincount(
        arr, weights if convert_to_tensor(weights).shape.num_elements() else None, size, size
    ),
    "Concat": lambda concat_dim, values: array.concat(values, concat_dim),
    "ConjugateTranspose": lambda x, perm: array.transpose(x, perm, conjugate=True),
    "Const": lambda value, dtype: convert_to_tensor(value, dtype=dtype),
    "Einsum": lambda inputs, equation: linear_algebra.einsum(equation, *inputs),
    "Empty": lambda shape, dtype, init=False: array.zeros(shape, dtype),
    "MatrixDiagV3": lambda diagonal, k, num_rows, num_cols, padding_value, align="RIGHT_LEFT": (
        linear_algebra.diag(
            diagonal,
            k=k,
            num_rows=num_rows,
            num_cols=num_cols,
            padding_value=padding_value,
            align=align,
        )
    ),
    "MatrixDiagPartV3": lambda input, k, padding_value, align="RIGHT_LEFT": (
        linear_algebra.diag_part(input, k=k, padding_value=padding_value, align=align)
    ),
    "MatrixSetDiagV3": lambda input, diagonal, k, align="RIGHT_LEFT": linear_algebra.set_diag(
        input, diagonal, k=k, align=align
    ),
    "MatrixSolveLs": lambda matrix, rhs, l2_regularizer, fast=True: linear_algebra.lstsq(
        matrix, rhs, l2_regularizer, fast
    ),
    "MirrorPad": lambda input, paddings, mode: array.pad(input, paddings, mode),
    "ListDiff": _find_missing,
    "NthElement": lambda input, n, reverse=False: array.gather(
        array.sort(input, direction="DESCENDING" if reverse else "ASCENDING"), n, axis=-1
    ),
    "PopulationCount": _count_bits,
    "PlaceholderWithDefault": lambda input, shape: convert_to_tensor(input),
    "RandomStandardNormal": _make_stateful(random_ops.normal),
    "RandomUniform": _make_stateful(random_ops.uniform),
    "RandomUniformInt": _make_stateful(random_ops.uniform, "minval", "maxval"),
    "ReadVariableOp": lambda resource, dtype: resource.read_value(),
    "ResourceGather": lambda resource, indices, dtype, batch_dims=0, validate_indices=True: (
        array.gather(resource, indices, batch_dims=batch_dims)
    ),
    "ResourceGatherNd": lambda resource, indices, dtype: array.gather_nd(resource, indices),
    "ReverseV2": lambda tensor, axis: array.reverse(tensor, axis),
    "Reverse": lambda tensor, dims: array.reverse(
        tensor, np.flatnonzero(np.asarray(convert_to_tensor(dims).numpy())).tolist()
    ),
    "Select": _select,
    "SelectV2": lambda condition, t, e: array.where(condition, t, e),
    "Split": lambda axis, value, num_split: array.split(value, num_split, axis),
    "SplitV": lambda value, size_splits, axis, num_split: array.split(
        value, size_splits, axis, num_split
    ),
    "StatelessMultinomial": lambda logits, num_samples, seed, output_dtype=None: (
        stateless_random.stateless_categorical(
            logits, num_samples, seed, **({} if output_dtype is None else {"dtype": output_dtype})
        )
    ),
    "StatelessRandomNormal": _make_stateless(stateless_random.stateless_normal),
    "StatelessRandomUniform": _make_stateless(stateless_random.stateless_uniform),
    "StatelessRandomUniformInt": _make_stateless(
        stateless_random.stateless_uniform, "minval", "maxval"
    ),
    "StatelessRandomUniformFullInt": lambda shape, seed, dtype=dtypes.uint64: from_keys.draw_bits(
        from_keys.derive_key(seed), shape, dtype
    ),
    "StatelessTruncatedNormal": _make_stateless(stateless_random.stateless_truncated_normal),
    "StatelessRandomGetAlg": _get_algorithm,
    "StatelessRandomGetKeyCounter": _split_state,
    "StatelessRandomGetKeyCounterAlg": lambda seed: [*_split_state(seed), _get_algorithm()],
    "StatelessRandomNormalV2": _make_keyed(
        lambda state, shape, dtype=dtypes.float32: from_keys.draw_normal(state, shape, 0, 1, dtype)
    ),
    "StatelessTruncatedNormalV2": _make_keyed(
        lambda state, shape, dtype=dtypes.float32: from_keys.draw_truncated_normal(
            state, shape, 0, 1, dtype
        )
    ),
    "StatelessRandomUniformV2": _make_keyed(
        lambda state, shape, dtype=dtypes.float32: from_keys.draw_uniform(state, shape, 0, 1, dtype)
    ),
    "StatelessRandomUniformIntV2": _make_keyed(_draw_integers),
    "StatelessRandomUniformFullIntV2": _make_keyed(
        lambda state, shape, dtype=dtypes.uint64: from_keys.draw_bits(state, shape, dtype)
    ),
    "Svd": _svd,
    "TridiagonalSolve": lambda diagonals, rhs, partial_pivoting=True, perturb_singular=False: (
        linear_algebra.tridiagonal_solve(diagonals, rhs, partial_pivoting=partial_pivoting)
    ),
    "TruncatedNormal": _make_stateful(random_ops.truncated_normal),
    "Unique": _find_unique,
    "UniqueV2": lambda x, axis, out_idx=None: _find_unique(x, out_idx, axis),
    "UniqueWithCounts": lambda x, out_idx=None: _find_unique(x, out_idx, count=True),
    "UniqueWithCountsV2": lambda x, axis, out_idx=None: _find_unique(x, out_idx, axis, True),
    "VarIsInitializedOp": lambda resource: convert_to_tensor(True),
    "VariableShape": lambda input, out_type=None: array.shape(
        input, **({} if out_type is None else {"out_type": out_type})
    ),
    "Where": lambda condition: array.where(condition),
    **{
        f"ResourceScatter{name}": _make_scatter(f"scatter_{name.lower()}")
        for name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Update")
    },
    **{
        f"ResourceScatterNd{name}": _make_nd_scatter(f"scatter_nd_{name.lower()}")
        for name in ("Add", "Sub", "Max", "Min", "Update")
    },
    "MaxPoolGrad": _make_gradient(nn.max_pool, "orig_input", "grad"),
    "MaxPool3DGrad": _make_gradient(nn.max_pool3d, "orig_input", "grad"),
}
