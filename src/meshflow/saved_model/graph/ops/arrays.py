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
from meshflow.saved_model.graph.attributes import (
    Node,
    Sizes,
    as_sizes,
    is_known,
    numbers,
    on_host,
    traced,
)

__all__ = ["ARRAYS"]


def _by(
    numpy_function: Callable[..., Any] | None, jax_function: Callable[..., Any]
) -> Callable[..., Any]:
    """Return an elementwise op that uses NumPy for static arrays and JAX for other arrays."""

    def run(node: Node, *values: Array) -> Array:
        if numpy_function is not None and is_known(*values):
            return np.asarray(numpy_function(*values))
        return jax_function(*map(traced, values))

    return run


def _same(node: Node, value: Array, *_: Array) -> Array:
    return value


def _divided(x: Array, y: Array) -> Array:
    return lax.div(*jnp.broadcast_arrays(x, y)) if _whole(x) else jnp.divide(x, y)


def _known_divided(x: Array, y: Array) -> Array:
    return np.trunc(np.divide(x, y)).astype(x.dtype) if _whole(x) else np.divide(x, y)


def _whole(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, np.integer))


def _without_nan(x: Array, y: Array) -> Array:
    safe = jnp.where(y == 0, jnp.ones_like(y), y)
    return jnp.where(y == 0, jnp.zeros_like(safe), x / safe)


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    **{name: _by(operator.add, jnp.add) for name in ("Add", "AddV2")},
    "Sub": _by(operator.sub, jnp.subtract),
    "Mul": _by(operator.mul, jnp.multiply),
    "RealDiv": _by(operator.truediv, jnp.divide),
    "Div": _by(_known_divided, _divided),
    "TruncateDiv": _by(_known_divided, _divided),
    "DivNoNan": _by(None, _without_nan),
    "MulNoNan": _by(None, lambda x, y: jnp.where(y == 0, jnp.zeros_like(y), x * y)),
    "FloorDiv": _by(operator.floordiv, jnp.floor_divide),
    "FloorMod": _by(operator.mod, jnp.mod),
    "Mod": _by(np.fmod, jnp.fmod),
    "Pow": _by(None, lambda x, y: jnp.power(x, y).astype(x.dtype)),
    "Maximum": _by(np.maximum, jnp.maximum),
    "Minimum": _by(np.minimum, jnp.minimum),
    "SquaredDifference": _by(lambda x, y: (x - y) ** 2, lambda x, y: jnp.square(x - y)),
    "Neg": _by(operator.neg, jnp.negative),
    "Abs": _by(np.abs, jnp.abs),
    "Sign": _by(np.sign, jnp.sign),
    "Square": _by(np.square, jnp.square),
    "Sqrt": _by(np.sqrt, jnp.sqrt),
    "Rsqrt": _by(None, lax.rsqrt),
    "Reciprocal": _by(None, jnp.reciprocal),
    "Inv": _by(None, jnp.reciprocal),
    "Exp": _by(None, jnp.exp),
    "Expm1": _by(None, jnp.expm1),
    "Log": _by(None, jnp.log),
    "Log1p": _by(None, jnp.log1p),
    "Sin": _by(None, jnp.sin),
    "Cos": _by(None, jnp.cos),
    "Tan": _by(None, jnp.tan),
    "Asin": _by(None, jnp.arcsin),
    "Acos": _by(None, jnp.arccos),
    "Atan": _by(None, jnp.arctan),
    "Atan2": _by(None, jnp.arctan2),
    "Sinh": _by(None, jnp.sinh),
    "Cosh": _by(None, jnp.cosh),
    "Erf": _by(None, jax.scipy.special.erf),
    "Erfc": _by(None, jax.scipy.special.erfc),
    "Erfinv": _by(None, jax.scipy.special.erfinv),
    "Lgamma": _by(None, jax.scipy.special.gammaln),
    "Digamma": _by(None, jax.scipy.special.digamma),
    "Floor": _by(np.floor, jnp.floor),
    "Ceil": _by(np.ceil, jnp.ceil),
    "Round": _by(np.round, jnp.round),
    "Rint": _by(np.rint, jnp.rint),
    "IsNan": _by(np.isnan, jnp.isnan),
    "IsInf": _by(np.isinf, jnp.isinf),
    "IsFinite": _by(np.isfinite, jnp.isfinite),
    "Less": _by(operator.lt, jnp.less),
    "LessEqual": _by(operator.le, jnp.less_equal),
    "Greater": _by(operator.gt, jnp.greater),
    "GreaterEqual": _by(operator.ge, jnp.greater_equal),
    "Equal": _by(operator.eq, jnp.equal),
    "NotEqual": _by(operator.ne, jnp.not_equal),
    "LogicalAnd": _by(np.logical_and, jnp.logical_and),
    "LogicalOr": _by(np.logical_or, jnp.logical_or),
    "LogicalNot": _by(np.logical_not, jnp.logical_not),
    "BitwiseAnd": _by(operator.and_, jnp.bitwise_and),
    "BitwiseOr": _by(operator.or_, jnp.bitwise_or),
    "BitwiseXor": _by(operator.xor, jnp.bitwise_xor),
    "LeftShift": _by(operator.lshift, jnp.left_shift),
    "RightShift": _by(operator.rshift, jnp.right_shift),
    "SelectV2": _by(np.where, jnp.where),
    "ClipByValue": _by(np.clip, jnp.clip),
    "AddN": _by(lambda *x: sum(x[1:], x[0]), lambda *x: sum(x[1:], x[0])),
    "ZerosLike": _by(np.zeros_like, jnp.zeros_like),
    "OnesLike": _by(np.ones_like, jnp.ones_like),
}


def _select(node: Node, condition: Array, x: Array, y: Array) -> Array:
    # `Select`, unlike `SelectV2`, accepts a vector of conditions for the rows of the values.
    missing = np.ndim(x) - np.ndim(condition)
    condition = jnp.reshape(condition, (*np.shape(condition), *[1] * missing))
    return jnp.where(condition, x, y)


def _cast(node: Node, x: Array) -> Array:
    dtype = node.dtype("DstT")
    if isinstance(x, Sizes):
        return x if dtype.kind in "iu" else traced(x).astype(dtype)
    if is_known(x):
        return np.asarray(x).astype(dtype)
    if dtype.kind == "b":
        return x != 0
    return x.astype(dtype)


def _reduced(
    numpy_function: Callable[..., Any], jax_function: Callable[..., Any]
) -> Callable[..., Any]:
    def run(node: Node, x: Array, axes: Array) -> Array:
        axis = tuple(numbers(axes))
        if is_known(x):
            return np.asarray(numpy_function(x, axis=axis, keepdims=node["keep_dims"])).astype(
                x.dtype
            )
        return jax_function(x, axis=axis, keepdims=node["keep_dims"]).astype(x.dtype)

    return run


def _found(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(node: Node, x: Array, axis: Array) -> Array:
        return function(x, axis=int(axis)).astype(node.dtype("output_type"))

    return run


def _cumulated(cumulate: Callable[..., jax.Array], identity: int) -> Callable[..., Any]:
    def run(node: Node, x: Array, axis: Array) -> jax.Array:
        dim = int(axis) % np.ndim(x)
        x = jnp.flip(x, dim) if node["reverse"] else jnp.asarray(x)
        if node["exclusive"]:
            first = jnp.full_like(lax.slice_in_dim(x, 0, 1, axis=dim), identity)
            x = jnp.concatenate([first, lax.slice_in_dim(x, 0, -1, axis=dim)], dim)
        x = cumulate(x, axis=dim).astype(x.dtype)
        return jnp.flip(x, dim) if node["reverse"] else x

    return run


def _library(x: Array, sizes: Array) -> ModuleType:
    """Return NumPy for a static array and integer sizes, otherwise JAX."""
    return np if is_known(x) and not isinstance(sizes, Sizes) else jnp


def _shape(node: Node, x: Array) -> Array:
    return as_sizes(np.shape(x), node.dtype("out_type"))


def _strided(node: Node, x: Array, begin: Array, end: Array, strides: Array) -> Array:
    index: list[Any] = []
    starts, ends, steps = begin, end, numbers(strides)
    for i, step in enumerate(steps):
        if node["ellipsis_mask"] >> i & 1:
            index.append(Ellipsis)
        elif node["new_axis_mask"] >> i & 1:
            index.append(None)
        elif node["shrink_axis_mask"] >> i & 1:
            index.append(starts[i] if not is_known(starts) else int(starts[i]))
        else:
            first = None if node["begin_mask"] >> i & 1 else int(on_host(starts[i]))
            last = None if node["end_mask"] >> i & 1 else int(on_host(ends[i]))
            index.append(slice(first, last, step))
    _check_places(x, index)
    return np.asarray(x[tuple(index)]) if is_known(x) else x[tuple(index)]


def _check_places(x: Array, index: list[Any]) -> None:
    """Check static indices, because JAX clamps indices that are out of bounds."""
    if Ellipsis in index:
        return
    sizes = iter(np.shape(x))
    for part in index:
        size = 0 if part is None else next(sizes)
        if isinstance(part, int) and not -size <= part < size:
            raise InvalidArgumentError(f"index {part} is out of bounds for shape {np.shape(x)}")


def _sliced(node: Node, x: Array, begin: Array, size: Array) -> Array:
    lengths = [
        n if n >= 0 else total - first
        for n, total, first in zip(
            numbers(size),
            np.shape(x),
            begin if not is_known(begin) else numbers(begin),
            strict=True,
        )
    ]
    if is_known(x, begin):
        return x[tuple(slice(b, b + n) for b, n in zip(numbers(begin), lengths, strict=True))]
    return lax.dynamic_slice(x, list(begin), lengths)


def _joined(name: str) -> Callable[..., Any]:
    def run(values: Array, axis: int) -> Array:
        if is_known(*values):
            return getattr(np, name)(values, axis)
        return getattr(jnp, name)([traced(v) for v in values], axis)

    return run


_concatenate, _stack = _joined("concatenate"), _joined("stack")


def _gather(node: Node, x: Array, indices: Array, axis: Array | int = 0) -> Array:
    dim, batch = int(axis), node["batch_dims"]
    if batch:
        dim = dim % np.ndim(x)

        def take(a: Array, i: Array) -> Array:
            return jnp.take(a, i, axis=dim - batch)

        for _ in range(batch):
            take = jax.vmap(take)
        return take(x, indices)
    if is_known(x, indices):
        return np.asarray(np.take(x, indices, axis=dim))
    # Indices that are out of bounds read zeros, as in TensorFlow on accelerators.
    return jnp.take(x, indices, axis=dim, mode="fill", fill_value=0)


def _scatter_nd(node: Node, indices: Array, updates: Array, shape: Array) -> Array:
    zeros = jnp.zeros(numbers(shape), updates.dtype)
    return zeros.at[tuple(jnp.moveaxis(indices, -1, 0))].add(updates)


def _squeezed(node: Node, x: Array) -> Array:
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


def _split(node: Node, axis: Array, x: Array) -> Array:
    return (np if is_known(x) else jnp).split(x, node["num_split"], int(axis))


def _split_sizes(node: Node, x: Array, lengths: Array, axis: Array) -> list[jax.Array]:
    lengths_list, total = numbers(lengths), np.shape(x)[int(axis)]
    lengths_list = [
        n if n >= 0 else total - sum(m for m in lengths_list if m >= 0) for n in lengths_list
    ]
    return jnp.split(x, np.cumsum(lengths_list)[:-1].tolist(), int(axis))


def _filled(node: Node, shape: Array, value: Array) -> Array:
    return _library(value, shape).full(numbers(shape), value, value.dtype)


def _padded(node: Node, x: Array, widths: Array, value: Array | None = None) -> Array:
    pairs = on_host(widths).tolist()
    return jnp.pad(x, pairs, constant_values=0 if value is None else value)


def _mirrored(node: Node, x: Array, widths: Array) -> Array:
    mode = {"REFLECT": "reflect", "SYMMETRIC": "symmetric"}[node.text("mode")]
    return jnp.pad(x, on_host(widths).tolist(), mode=mode)


def _range(node: Node, start: Array, limit: Array, step: Array) -> Array:
    first, last, by = (on_host(v).item() for v in (start, limit, step))
    return np.arange(first, last, by).astype(start.dtype)


def _one_hot(node: Node, indices: Array, depth: Array, on: Array, off: Array) -> Array:
    hot = jax.nn.one_hot(indices, int(depth), axis=node["axis"], dtype=bool)
    return jnp.where(hot, on, off)


def _top(node: Node, x: Array, k: Array) -> tuple[Array, Array]:
    values, indices = lax.top_k(x, int(k))
    return values, indices.astype(np.int32)


def _reversed_sequences(node: Node, x: Array, lengths: Array) -> Array:
    axis, batch = node["seq_dim"], node["batch_dim"]
    moved = jnp.moveaxis(x, (batch, axis), (0, 1))
    steps = jnp.arange(moved.shape[1])
    ends = lengths[:, None]
    order = jnp.where(steps < ends, ends - 1 - steps, steps)
    rows = jax.vmap(lambda row, places: row[places])(moved, order)
    return jnp.moveaxis(rows, (0, 1), (batch, axis))


def _banded(node: Node, x: Array, lower: Array, upper: Array) -> Array:
    rows, columns = jnp.arange(x.shape[-2])[:, None], jnp.arange(x.shape[-1])
    num_lower, num_upper = int(lower), int(upper)
    keep = jnp.ones((x.shape[-2], x.shape[-1]), bool)
    keep &= (rows - columns <= num_lower) if num_lower >= 0 else keep
    keep &= (columns - rows <= num_upper) if num_upper >= 0 else keep
    return jnp.where(keep, x, jnp.zeros_like(x))


ARRAYS: dict[str, Callable[..., Any]] = {
    **_ELEMENTWISE,
    **dict.fromkeys(
        ("Identity", "Snapshot", "StopGradient", "PreventGradient", "EnsureShape", "CheckNumerics")
        + ("PlaceholderWithDefault", "CheckNumericsV2", "OptimizationBarrier"),
        _same,
    ),
    "IdentityN": lambda node, *values: list(values),
    "Select": _select,
    "Cast": _cast,
    "Sum": _reduced(np.sum, jnp.sum),
    "Mean": _reduced(np.mean, jnp.mean),
    "Max": _reduced(np.max, jnp.max),
    "Min": _reduced(np.min, jnp.min),
    "Prod": _reduced(np.prod, jnp.prod),
    "All": _reduced(np.all, jnp.all),
    "Any": _reduced(np.any, jnp.any),
    "ArgMax": _found(jnp.argmax),
    "ArgMin": _found(jnp.argmin),
    "Cumsum": _cumulated(jnp.cumsum, 0),
    "Cumprod": _cumulated(jnp.cumprod, 1),
    "Shape": _shape,
    "ShapeN": lambda node, *xs: [_shape(node, x) for x in xs],
    "Rank": lambda node, x: np.array(np.ndim(x), np.int32),
    "Size": lambda node, x: np.array(np.size(x), node.dtype("out_type")),
    "StridedSlice": _strided,
    "Slice": _sliced,
    "Pack": lambda node, *xs: _stack(xs, node["axis"]),
    "Unpack": lambda node, x: list((np if is_known(x) else jnp).moveaxis(x, node["axis"], 0)),
    "ConcatV2": lambda node, *xs: _concatenate(xs[:-1], int(xs[-1])),
    "Concat": lambda node, axis, *xs: _concatenate(xs, int(axis)),
    "GatherV2": _gather,
    "Gather": _gather,
    "GatherNd": lambda node, x, indices: x[tuple(jnp.moveaxis(indices, -1, 0))],
    "ScatterNd": _scatter_nd,
    "Squeeze": _squeezed,
    "ExpandDims": lambda node, x, axis: (np if is_known(x) else jnp).expand_dims(x, int(axis)),
    "Reshape": lambda node, x, shape: x.reshape(numbers(shape)),
    "Split": _split,
    "SplitV": _split_sizes,
    "Fill": _filled,
    "Pad": _padded,
    "PadV2": _padded,
    "MirrorPad": _mirrored,
    "Range": _range,
    "LinSpace": lambda node, a, b, count: jnp.linspace(a, b, int(count), dtype=a.dtype),
    "OneHot": _one_hot,
    "BroadcastTo": lambda node, x, shape: _library(x, shape).broadcast_to(x, numbers(shape)),
    "BroadcastArgs": lambda node, a, b: np.array(
        np.broadcast_shapes(numbers(a), numbers(b)), a.dtype
    ),
    "Tile": lambda node, x, times: _library(x, times).tile(x, numbers(times)),
    "Transpose": lambda node, x, order: x.transpose(numbers(order)),
    "ReverseV2": lambda node, x, axes: (np if is_known(x) else jnp).flip(x, numbers(axes)),
    "Roll": lambda node, x, shift, axis: jnp.roll(x, numbers(shift), numbers(axis)),
    "TopKV2": _top,
    "Where": lambda node, condition: np.argwhere(on_host(condition)).astype(np.int64),
    "ReverseSequence": _reversed_sequences,
    "MatrixBandPart": _banded,
    "InvertPermutation": lambda node, x: (np if is_known(x) else jnp).argsort(x).astype(x.dtype),
}
