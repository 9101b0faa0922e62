"""Arithmetic, shapes and indexing.

Ops on NumPy arrays return NumPy arrays where possible, so that shapes remain known while a program
is traced.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.environment.types import Array
from meshflow.ops.math.division import divide_and_round_down
from meshflow.saved_model.graph.format.node_attributes import (
    GraphNode,
    SymbolicSizes,
    as_host_array,
    as_sizes_array,
    as_static_ints,
    is_static,
    materialize_sizes,
)


def _make_elementwise(
    numpy_function: Callable[..., Any] | None, jax_function: Callable[..., Any]
) -> Callable[..., Any]:
    """Return an elementwise op that uses NumPy for static arrays and JAX for other arrays."""

    def run(node: GraphNode, *values: Array) -> Array:
        if numpy_function is not None and is_static(*values):
            return np.asarray(numpy_function(*values))
        return jax_function(*map(materialize_sizes, values))

    return run


def _return_input(node: GraphNode, value: Array, *_: Array) -> Array:
    return value


def _divide(x: Array, y: Array) -> Array:
    return lax.div(*jnp.broadcast_arrays(x, y)) if _is_integer(x) else jnp.divide(x, y)


def _divide_static(x: Array, y: Array) -> Array:
    return np.trunc(np.divide(x, y)).astype(x.dtype) if _is_integer(x) else np.divide(x, y)


def _is_integer(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, np.integer))


def _divide_no_nan(x: Array, y: Array) -> Array:
    safe = jnp.where(y == 0, jnp.ones_like(y), y)
    return jnp.where(y == 0, jnp.zeros_like(safe), x / safe)


_ELEMENTWISE_OPS: dict[str, Callable[..., Any]] = {
    **{name: _make_elementwise(operator.add, jnp.add) for name in ("Add", "AddV2")},
    "Sub": _make_elementwise(operator.sub, jnp.subtract),
    "Mul": _make_elementwise(operator.mul, jnp.multiply),
    "RealDiv": _make_elementwise(operator.truediv, jnp.divide),
    "Div": _make_elementwise(_divide_static, _divide),
    "TruncateDiv": _make_elementwise(_divide_static, _divide),
    "DivNoNan": _make_elementwise(None, _divide_no_nan),
    "MulNoNan": _make_elementwise(None, lambda x, y: jnp.where(y == 0, jnp.zeros_like(y), x * y)),
    "FloorDiv": _make_elementwise(operator.floordiv, divide_and_round_down),
    "FloorMod": _make_elementwise(operator.mod, jnp.mod),
    "Mod": _make_elementwise(np.fmod, jnp.fmod),
    "Pow": _make_elementwise(None, lambda x, y: jnp.power(x, y).astype(x.dtype)),
    "Maximum": _make_elementwise(np.maximum, jnp.maximum),
    "Minimum": _make_elementwise(np.minimum, jnp.minimum),
    "SquaredDifference": _make_elementwise(
        lambda x, y: (x - y) ** 2, lambda x, y: jnp.square(x - y)
    ),
    "Neg": _make_elementwise(operator.neg, jnp.negative),
    "Abs": _make_elementwise(np.abs, jnp.abs),
    "Sign": _make_elementwise(np.sign, jnp.sign),
    "Square": _make_elementwise(np.square, jnp.square),
    "Sqrt": _make_elementwise(np.sqrt, jnp.sqrt),
    "Rsqrt": _make_elementwise(None, lax.rsqrt),
    "Reciprocal": _make_elementwise(None, jnp.reciprocal),
    "Inv": _make_elementwise(None, jnp.reciprocal),
    "Exp": _make_elementwise(None, jnp.exp),
    "Expm1": _make_elementwise(None, jnp.expm1),
    "Log": _make_elementwise(None, jnp.log),
    "Log1p": _make_elementwise(None, jnp.log1p),
    "Sin": _make_elementwise(None, jnp.sin),
    "Cos": _make_elementwise(None, jnp.cos),
    "Tan": _make_elementwise(None, jnp.tan),
    "Asin": _make_elementwise(None, jnp.arcsin),
    "Acos": _make_elementwise(None, jnp.arccos),
    "Atan": _make_elementwise(None, jnp.arctan),
    "Atan2": _make_elementwise(None, jnp.arctan2),
    "Sinh": _make_elementwise(None, jnp.sinh),
    "Cosh": _make_elementwise(None, jnp.cosh),
    "Erf": _make_elementwise(None, jax.scipy.special.erf),
    "Erfc": _make_elementwise(None, jax.scipy.special.erfc),
    "Erfinv": _make_elementwise(None, jax.scipy.special.erfinv),
    "Lgamma": _make_elementwise(None, jax.scipy.special.gammaln),
    "Digamma": _make_elementwise(None, jax.scipy.special.digamma),
    "Floor": _make_elementwise(np.floor, jnp.floor),
    "Ceil": _make_elementwise(np.ceil, jnp.ceil),
    "Round": _make_elementwise(np.round, jnp.round),
    "Rint": _make_elementwise(np.rint, jnp.rint),
    "IsNan": _make_elementwise(np.isnan, jnp.isnan),
    "IsInf": _make_elementwise(np.isinf, jnp.isinf),
    "IsFinite": _make_elementwise(np.isfinite, jnp.isfinite),
    "Less": _make_elementwise(operator.lt, jnp.less),
    "LessEqual": _make_elementwise(operator.le, jnp.less_equal),
    "Greater": _make_elementwise(operator.gt, jnp.greater),
    "GreaterEqual": _make_elementwise(operator.ge, jnp.greater_equal),
    "Equal": _make_elementwise(operator.eq, jnp.equal),
    "NotEqual": _make_elementwise(operator.ne, jnp.not_equal),
    "LogicalAnd": _make_elementwise(np.logical_and, jnp.logical_and),
    "LogicalOr": _make_elementwise(np.logical_or, jnp.logical_or),
    "LogicalNot": _make_elementwise(np.logical_not, jnp.logical_not),
    "BitwiseAnd": _make_elementwise(operator.and_, jnp.bitwise_and),
    "BitwiseOr": _make_elementwise(operator.or_, jnp.bitwise_or),
    "BitwiseXor": _make_elementwise(operator.xor, jnp.bitwise_xor),
    "LeftShift": _make_elementwise(operator.lshift, jnp.left_shift),
    "RightShift": _make_elementwise(operator.rshift, jnp.right_shift),
    "SelectV2": _make_elementwise(np.where, jnp.where),
    "ClipByValue": _make_elementwise(np.clip, jnp.clip),
    "AddN": _make_elementwise(lambda *x: sum(x[1:], x[0]), lambda *x: sum(x[1:], x[0])),
    "ZerosLike": _make_elementwise(np.zeros_like, jnp.zeros_like),
    "OnesLike": _make_elementwise(np.ones_like, jnp.ones_like),
}


def _select(node: GraphNode, condition: Array, x: Array, y: Array) -> Array:
    # `Select`, unlike `SelectV2`, accepts a vector of conditions for the rows of the values.
    missing = np.ndim(x) - np.ndim(condition)
    condition = jnp.reshape(condition, (*np.shape(condition), *[1] * missing))
    return jnp.where(condition, x, y)


def _cast(node: GraphNode, x: Array) -> Array:
    dtype = node.dtype("DstT")
    if isinstance(x, SymbolicSizes):
        return x if dtype.kind in "iu" else materialize_sizes(x).astype(dtype)
    if is_static(x):
        return np.asarray(x).astype(dtype)
    if dtype.kind == "b":
        return x != 0
    return x.astype(dtype)


def _make_reduction(
    numpy_function: Callable[..., Any],
    jax_function: Callable[..., Any],
    is_max: bool | None = None,
) -> Callable[..., Any]:
    def run(node: GraphNode, x: Array, axes: Array) -> Array:
        options: dict[str, Any] = {"axis": tuple(as_static_ints(axes))}
        options["keepdims"] = node["keep_dims"]
        if is_max is not None and 0 in np.shape(x):
            # The maximum of no numbers is the smallest number.
            options["initial"] = _get_extremum(x.dtype, not is_max)
        if is_static(x):
            return np.asarray(numpy_function(x, **options)).astype(x.dtype)
        return jax_function(x, **options).astype(x.dtype)

    return run


def _get_extremum(dtype: np.dtype, is_largest: bool) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(np.inf if is_largest else -np.inf, dtype)
    limits = jnp.iinfo(dtype)
    return np.asarray(limits.max if is_largest else limits.min, dtype)


def _make_arg_reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(node: GraphNode, x: Array, axis: Array) -> Array:
        return function(x, axis=int(axis)).astype(node.dtype("output_type"))

    return run


def _make_cumulative_op(cumulate: Callable[..., jax.Array], identity: int) -> Callable[..., Any]:
    def run(node: GraphNode, x: Array, axis: Array) -> jax.Array:
        dim = int(axis) % np.ndim(x)
        x = jnp.flip(x, dim) if node["reverse"] else jnp.asarray(x)
        if node["exclusive"]:
            first = jnp.full_like(lax.slice_in_dim(x, 0, 1, axis=dim), identity)
            x = jnp.concatenate([first, lax.slice_in_dim(x, 0, -1, axis=dim)], dim)
        x = cumulate(x, axis=dim).astype(x.dtype)
        return jnp.flip(x, dim) if node["reverse"] else x

    return run


def _select_library(x: Array, sizes: Array) -> ModuleType:
    """Return NumPy for a static array and integer sizes, otherwise JAX."""
    return np if is_static(x) and not isinstance(sizes, SymbolicSizes) else jnp


def _get_shape(node: GraphNode, x: Array) -> Array:
    return as_sizes_array(np.shape(x), node.dtype("out_type"))


def _slice_strided(node: GraphNode, x: Array, begin: Array, end: Array, strides: Array) -> Array:
    index: list[Any] = []
    starts, ends, steps = begin, end, as_static_ints(strides)
    for i, step in enumerate(steps):
        if node["ellipsis_mask"] >> i & 1:
            index.append(Ellipsis)
        elif node["new_axis_mask"] >> i & 1:
            index.append(None)
        elif node["shrink_axis_mask"] >> i & 1:
            index.append(starts[i] if not is_static(starts) else int(starts[i]))
        else:
            first = None if node["begin_mask"] >> i & 1 else int(as_host_array(starts[i]))
            last = None if node["end_mask"] >> i & 1 else int(as_host_array(ends[i]))
            index.append(slice(first, last, step))
    _check_indices(x, index)
    return np.asarray(x[tuple(index)]) if is_static(x) else x[tuple(index)]


def _check_indices(x: Array, index: list[Any]) -> None:
    """Check static indices, because JAX clamps indices that are out of bounds."""
    if Ellipsis in index:
        return
    sizes = iter(np.shape(x))
    for part in index:
        size = 0 if part is None else next(sizes)
        if isinstance(part, int) and not -size <= part < size:
            raise InvalidArgumentError(f"index {part} is out of bounds for shape {np.shape(x)}")


def _slice(node: GraphNode, x: Array, begin: Array, size: Array) -> Array:
    lengths = [
        n if n >= 0 else total - first
        for n, total, first in zip(
            as_static_ints(size),
            np.shape(x),
            begin if not is_static(begin) else as_static_ints(begin),
            strict=True,
        )
    ]
    if is_static(x, begin):
        return x[
            tuple(slice(b, b + n) for b, n in zip(as_static_ints(begin), lengths, strict=True))
        ]
    return lax.dynamic_slice(x, list(begin), lengths)


def _make_join(name: str) -> Callable[..., Any]:
    def run(values: Array, axis: int) -> Array:
        if is_static(*values):
            return getattr(np, name)(values, axis)
        return getattr(jnp, name)([materialize_sizes(v) for v in values], axis)

    return run


_concatenate, _stack = _make_join("concatenate"), _make_join("stack")


def _gather(node: GraphNode, x: Array, indices: Array, axis: Array | int = 0) -> Array:
    dim, batch = int(axis), node["batch_dims"]
    if batch:
        dim = dim % np.ndim(x)

        def take(a: Array, i: Array) -> Array:
            return jnp.take(a, i, axis=dim - batch)

        for _ in range(batch):
            take = jax.vmap(take)
        return take(x, indices)
    if is_static(x, indices):
        return np.asarray(np.take(x, indices, axis=dim))
    # Indices that are out of bounds read zeros, as in TensorFlow on accelerators.
    return jnp.take(x, indices, axis=dim, mode="fill", fill_value=0)


def _scatter_nd(node: GraphNode, indices: Array, updates: Array, shape: Array) -> Array:
    zeros = jnp.zeros(as_static_ints(shape), updates.dtype)
    return zeros.at[tuple(jnp.moveaxis(indices, -1, 0))].add(updates)


def _squeeze(node: GraphNode, x: Array) -> Array:
    return x.reshape(
        [
            n
            for i, n in enumerate(np.shape(x))
            if not (
                i in [a % np.ndim(x) for a in node["squeeze_dims"]]
                if node["squeeze_dims"]
                else n == 1
            )
        ]
    )


def _split(node: GraphNode, axis: Array, x: Array) -> Array:
    return (np if is_static(x) else jnp).split(x, node["num_split"], int(axis))


def _split_sizes(node: GraphNode, x: Array, lengths: Array, axis: Array) -> list[jax.Array]:
    lengths_list, total = as_static_ints(lengths), np.shape(x)[int(axis)]
    lengths_list = [
        n if n >= 0 else total - sum(m for m in lengths_list if m >= 0) for n in lengths_list
    ]
    return jnp.split(x, np.cumsum(lengths_list)[:-1].tolist(), int(axis))


def _fill(node: GraphNode, shape: Array, value: Array) -> Array:
    return _select_library(value, shape).full(as_static_ints(shape), value, value.dtype)


def _pad(node: GraphNode, x: Array, widths: Array, value: Array | None = None) -> Array:
    pairs = as_host_array(widths).tolist()
    return jnp.pad(x, pairs, constant_values=0 if value is None else value)


def _pad_mirrored(node: GraphNode, x: Array, widths: Array) -> Array:
    mode = {"REFLECT": "reflect", "SYMMETRIC": "symmetric"}[node.text("mode")]
    return jnp.pad(x, as_host_array(widths).tolist(), mode=mode)


def _range(node: GraphNode, start: Array, limit: Array, step: Array) -> Array:
    first, last, by = (as_host_array(v).item() for v in (start, limit, step))
    return np.arange(first, last, by).astype(start.dtype)


def _one_hot(node: GraphNode, indices: Array, depth: Array, on: Array, off: Array) -> Array:
    hot = jax.nn.one_hot(indices, int(depth), axis=node["axis"], dtype=bool)
    return jnp.where(hot, on, off)


def _find_top_k(node: GraphNode, x: Array, k: Array) -> tuple[Array, Array]:
    values, indices = lax.top_k(x, int(k))
    return values, indices.astype(np.int32)


def _reverse_sequences(node: GraphNode, x: Array, lengths: Array) -> Array:
    axis, batch = node["seq_dim"], node["batch_dim"]
    moved = jnp.moveaxis(x, (batch, axis), (0, 1))
    steps = jnp.arange(moved.shape[1])
    ends = lengths[:, None]
    order = jnp.where(steps < ends, ends - 1 - steps, steps)
    rows = jax.vmap(lambda row, places: row[places])(moved, order)
    return jnp.moveaxis(rows, (0, 1), (batch, axis))


def _mask_band(node: GraphNode, x: Array, lower: Array, upper: Array) -> Array:
    rows, columns = jnp.arange(x.shape[-2])[:, None], jnp.arange(x.shape[-1])
    num_lower, num_upper = int(lower), int(upper)
    keep = jnp.ones((x.shape[-2], x.shape[-1]), bool)
    keep &= (rows - columns <= num_lower) if num_lower >= 0 else keep
    keep &= (columns - rows <= num_upper) if num_upper >= 0 else keep
    return jnp.where(keep, x, jnp.zeros_like(x))


ARRAY_OPS: dict[str, Callable[..., Any]] = {
    **_ELEMENTWISE_OPS,
    **dict.fromkeys(
        ("Identity", "Snapshot", "StopGradient", "PreventGradient", "PlaceholderWithDefault")
        + ("OptimizationBarrier",),
        _return_input,
    ),
    "IdentityN": lambda node, *values: list(values),
    "Select": _select,
    "Cast": _cast,
    "Sum": _make_reduction(np.sum, jnp.sum),
    "Mean": _make_reduction(np.mean, jnp.mean),
    "Max": _make_reduction(np.max, jnp.max, True),
    "Min": _make_reduction(np.min, jnp.min, False),
    "Prod": _make_reduction(np.prod, jnp.prod),
    "All": _make_reduction(np.all, jnp.all),
    "Any": _make_reduction(np.any, jnp.any),
    "ArgMax": _make_arg_reduction(jnp.argmax),
    "ArgMin": _make_arg_reduction(jnp.argmin),
    "Cumsum": _make_cumulative_op(jnp.cumsum, 0),
    "Cumprod": _make_cumulative_op(jnp.cumprod, 1),
    "Shape": _get_shape,
    "ShapeN": lambda node, *xs: [_get_shape(node, x) for x in xs],
    "Rank": lambda node, x: np.array(np.ndim(x), np.int32),
    "Size": lambda node, x: np.array(np.size(x), node.dtype("out_type")),
    "StridedSlice": _slice_strided,
    "Slice": _slice,
    "Pack": lambda node, *xs: _stack(xs, node["axis"]),
    "Unpack": lambda node, x: list((np if is_static(x) else jnp).moveaxis(x, node["axis"], 0)),
    "ConcatV2": lambda node, *xs: _concatenate(xs[:-1], int(xs[-1])),
    "Concat": lambda node, axis, *xs: _concatenate(xs, int(axis)),
    "GatherV2": _gather,
    "Gather": _gather,
    "GatherNd": lambda node, x, indices: x[tuple(jnp.moveaxis(indices, -1, 0))],
    "ScatterNd": _scatter_nd,
    "Squeeze": _squeeze,
    "ExpandDims": lambda node, x, axis: (np if is_static(x) else jnp).expand_dims(x, int(axis)),
    "Reshape": lambda node, x, shape: x.reshape(as_static_ints(shape)),
    "Split": _split,
    "SplitV": _split_sizes,
    "Fill": _fill,
    "Pad": _pad,
    "PadV2": _pad,
    "MirrorPad": _pad_mirrored,
    "Range": _range,
    "LinSpace": lambda node, a, b, count: jnp.linspace(a, b, int(count), dtype=a.dtype),
    "OneHot": _one_hot,
    "BroadcastTo": lambda node, x, shape: _select_library(x, shape).broadcast_to(
        x, as_static_ints(shape)
    ),
    "BroadcastArgs": lambda node, a, b: np.array(
        np.broadcast_shapes(as_static_ints(a), as_static_ints(b)), a.dtype
    ),
    "Tile": lambda node, x, times: _select_library(x, times).tile(x, as_static_ints(times)),
    "Transpose": lambda node, x, order: x.transpose(as_static_ints(order)),
    "ReverseV2": lambda node, x, axes: (np if is_static(x) else jnp).flip(x, as_static_ints(axes)),
    "Roll": lambda node, x, shift, axis: jnp.roll(x, as_static_ints(shift), as_static_ints(axis)),
    "TopKV2": _find_top_k,
    "Where": lambda node, condition: np.argwhere(as_host_array(condition)).astype(np.int64),
    "ReverseSequence": _reverse_sequences,
    "MatrixBandPart": _mask_band,
    "InvertPermutation": lambda node, x: (np if is_static(x) else jnp).argsort(x).astype(x.dtype),
}
