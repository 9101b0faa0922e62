"""Dot-product attention with memory linear in the lengths of the sequences, as primitives.

A CPU handler computes it in tiles of the scores. Other programs (exported ones, those that XLA
partitions over devices, processors without AVX2) compute the same in blocks of queries. The
backward pass recomputes the weights from the maximum and the sum of each row of scores (Dao et al.
2022, FlashAttention, arXiv:2205.14135). Random bits of dropout are those of the full array of
weights, computed from the index of each weight.

Letters in shapes: b batch, t queries, s keys, n heads, h features of a head.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero

from meshflow.environment.jax_internals import ad, batching, jex_core
from meshflow.environment.types import Primitive
from meshflow.kernels import flash_attention, library, lowerings
from meshflow.kernels.composite_primitives import move_batch_axes_first
from meshflow.kernels.composite_primitives import register as register_composite
from meshflow.kernels.library import Aval, Avals, HandlerCall

# Scores of a head from which tiles are faster than XLA's products of matrices, and queries and keys
# from which packing them is worthwhile.
MIN_SCORES, MIN_LENGTH = 1 << 15, 64
# Scores of a head from which memory matters more than time if there is no handler.
MIN_UNTILED_SCORES = 1 << 20
# Maximum number of scores that the form in blocks of queries holds: 16 MB of float32.
MAX_BLOCK_SCORES = 1 << 22
_MASKINGS = ("add", "add_each", "replace")


class ScoreOptions(NamedTuple):
    """Static options of attention.

    Attributes:
      scale: Factor of the products of queries and keys.
      is_causal: Whether queries attend only to keys of their own and earlier positions.
      masking: How masked scores change: "add" adds `fill`, "add_each" adds it for the mask and for
        the causal mask, "replace" replaces the score by it.
      fill: The value.
      rate: Dropout rate of the weights.
      noise: Dtype of the random numbers of dropout.
    """

    scale: float = 1.0
    is_causal: bool = False
    masking: str = "add"
    fill: float = -1e9
    rate: float = 0.0
    noise: str = "float32"


class AttentionOperands(NamedTuple):
    """Operands of attention.

    Attributes:
      query: [b, t, n, h].
      key: [b, s, n, h].
      value: [b, s, n, h of values].
      bias: Floats [b or 1, n or 1, t or 1, s or 1] that are added to the scores, or None.
      mask: bool of such a shape, True where a query attends to a key, or None.
      query_mask: bool [b or 1, t], False for queries to which all keys are masked, or None.
      noise_key: int64 [3], state of the random generator of dropout, or None.
    """

    query: Array
    key: Array
    value: Array
    bias: Array | None = None
    mask: Array | None = None
    query_mask: Array | None = None
    noise_key: Array | None = None


# Parameters of all primitives: `options`, and `names`, the fields of the operands that exist.
# Results: values [b, t, n, h of values], maximum scores and the logarithms of the sums of
# exponentials relative to these, float32 [b, n, t].
attention_p = jex_core.Primitive("attention")
# Operands: those of attention, its results, and a gradient of the values. Results: gradients of
# queries, keys and values.
gradient_p = jex_core.Primitive("attention_gradient")
# Operands: those of attention, its results, and tangents of queries, keys and values. Its transpose
# is the gradient.
tangent_p = jex_core.Primitive("attention_tangent")
attention_p.multiple_results = gradient_p.multiple_results = True


class _Hooks:
    """Functions of higher layers.

    Attributes:
      draw_uniform_at: Draws uniform numbers, given a state of the generator, indices and a dtype.
    """

    draw_uniform_at: Callable[[Array, Array, str], Array]


def is_worthwhile(query: Aval | Array, key: Aval | Array, value: Aval | Array) -> bool:
    """Check whether tiles are the faster form for arrays of [b, t, n, h] on the default device."""
    names = {np.dtype(a.dtype).name for a in (query, key, value)}
    lengths = query.shape[1], key.shape[1]
    # Numbers of examples may be symbolic.
    is_static = all(isinstance(n, int) for n in lengths)
    if jax.default_backend() != "cpu" or names not in ({"float32"}, {"bfloat16"}) or not is_static:
        return False
    return are_long(*lengths)


def are_long(queries: int, keys: int) -> bool:
    """Check whether sequences are so long that tiles are the faster form on CPUs."""
    min_scores = MIN_SCORES if _has_handler() else MIN_UNTILED_SCORES
    is_long = min(queries, keys) >= MIN_LENGTH and queries * keys >= min_scores
    return is_long and flash_attention.is_enabled()


def _has_handler() -> bool:
    loaded = library.load()
    return loaded is not None and loaded.has_handler(library.ATTENTION) and loaded.supports("AVX2")


def attend(options: ScoreOptions, operands: AttentionOperands) -> Array:
    """Compute attention without an array of all scores.

    Scores and sums are float32.

    Args:
      options: Static options.
      operands: Arrays; float32 or bfloat16.

    Returns:
      [b, t, n, h of values].
    """
    return _attend(options, broadcast_masks(operands))


def broadcast_masks(operands: AttentionOperands) -> AttentionOperands:
    """Broadcast the bias and the mask over the keys, and the mask of queries over examples."""
    bias, mask, queries = operands.bias, operands.mask, operands.query_mask
    keys = operands.key.shape[1]
    extend = lambda x: None if x is None else jnp.broadcast_to(x, (*x.shape[:3], keys))
    bias = None if bias is None else extend(bias.astype(jnp.float32))
    if queries is not None:
        queries = jnp.broadcast_to(queries, operands.query.shape[:2])
    return AttentionOperands(*operands[:3], bias, extend(mask), queries, operands.noise_key)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attend(options: ScoreOptions, operands: AttentionOperands) -> Array:
    return compute_with_residuals(options, operands)[0]


def compute_with_residuals(options: ScoreOptions, operands: AttentionOperands) -> list[Array]:
    """Compute attention and the residuals of its gradient, without a derivative.

    Args:
      options: Static options.
      operands: Arrays after `broadcast_masks`.

    Returns:
      Values [b, t, n, h of values], and maximum scores and the logarithms of the sums of
      exponentials relative to these [b, n, t].
    """
    names, arrays = _select_arrays(operands)
    return attention_p.bind(*arrays, options=options, names=names)


def differentiate(
    options: ScoreOptions, operands: AttentionOperands, results: Sequence[Array], gradient: Array
) -> list[Array]:
    """Compute the gradients of queries, keys and values.

    Args:
      options: Static options.
      operands: Arrays after `broadcast_masks`.
      results: Results of `compute_with_residuals`.
      gradient: Gradient of the values [b, t, n, h of values].
    """
    names, arrays = _select_arrays(operands)
    return gradient_p.bind(*arrays, *results, gradient, options=options, names=names)


def _select_arrays(operands: AttentionOperands) -> tuple[tuple[str, ...], list[Array]]:
    fields = zip(AttentionOperands.__annotations__, operands, strict=True)
    pairs = [(n, a) for n, a in fields if a is not None]
    return tuple(n for n, _ in pairs), [a for _, a in pairs]


def _differentiate(
    options: ScoreOptions, primals: tuple[AttentionOperands], tangents: tuple[Any]
) -> tuple[Array, Array]:
    (operands,), (changes,) = primals, tangents
    query_key_value = [
        jnp.zeros(a.shape, a.dtype) if isinstance(t, SymbolicZero) else t
        for a, t in zip(operands[:3], changes[:3], strict=True)
    ]
    if operands.bias is not None and not isinstance(changes.bias, SymbolicZero):
        # The gradient of a bias has the size of the scores.
        compute = lambda q, k, v, bias: _attend_rows(
            options, AttentionOperands(q, k, v, bias, *operands[4:]), operands, 0
        )[0]
        return jax.jvp(compute, operands[:4], (*query_key_value, changes.bias))
    results = compute_with_residuals(options, operands)
    names, arrays = _select_arrays(operands)
    tangent = tangent_p.bind(*arrays, *results, *query_key_value, options=options, names=names)
    return results[0], tangent


_attend.defjvp(_differentiate, symbolic_zeros=True)


def _compute_products(query: Array, key: Array) -> Array:
    return jnp.einsum("btnh,bsnh->bnts", query, key, preferred_element_type=np.float32)


# A function of queries [b, t, n, h] and keys [b, s, n, h] that returns scores [b, n, t, s].
ScoreFunction: TypeAlias = Callable[[Array, Array], Array]


def _compute_scores(
    options: ScoreOptions,
    block: AttentionOperands,
    start: Array | int,
    compute_products: ScoreFunction = _compute_products,
) -> tuple[Array, Array | None]:
    """Return the scores of a block of queries [b, n, t, s], and which are masked."""
    scores = compute_products(block.query, block.key) * np.float32(options.scale)
    if block.bias is not None:
        scores = scores + block.bias
    masks = [block.mask, None if block.query_mask is None else block.query_mask[:, None, :, None]]
    visible = [m for m in masks if m is not None]
    hidden = [~functools.reduce(jnp.logical_and, visible)] if visible else []
    if options.is_causal:
        rows, columns = (lax.broadcasted_iota(np.int32, scores.shape, axis) for axis in (2, 3))
        hidden.append(columns > rows + start)
    if not hidden:
        return scores, None
    fill, any_hidden = np.float32(options.fill), functools.reduce(jnp.logical_or, hidden)
    if options.masking == "replace":
        return jnp.where(any_hidden, fill, scores), any_hidden
    for part in hidden if options.masking == "add_each" else [any_hidden]:
        scores = scores + jnp.where(part, fill, np.float32(0))
    return scores, None


def _draw_factors(
    options: ScoreOptions, block: AttentionOperands, full: AttentionOperands, start: Array | int
) -> Array | None:
    """Return the factors of dropout for the weights of a block of queries, or None."""
    if block.noise_key is None:
        return None
    (b, rows, n, _), t, s = block.query.shape, full.query.shape[1], block.key.shape[1]
    positions = [lax.broadcasted_iota(np.uint64, (b, n, rows, s), axis) for axis in range(4)]
    row = (
        (positions[0] * n + positions[1]) * t + positions[2] + jnp.asarray(start).astype(np.uint64)
    )
    uniform = _Hooks.draw_uniform_at(block.noise_key, row * s + positions[3], options.noise)
    is_kept = uniform >= jnp.asarray(options.rate, options.noise)
    return jnp.where(is_kept, _compute_factor(options), np.float32(0))


def _compute_factor(options: ScoreOptions) -> np.float32:
    """Return the factor of the weights that dropout keeps."""
    return np.float32(1) / (np.float32(1) - np.float32(options.rate))


def _attend_rows(
    options: ScoreOptions,
    block: AttentionOperands,
    full: AttentionOperands,
    start: Array | int,
    compute_products: ScoreFunction = _compute_products,
) -> list[Array]:
    """Compute attention of a block of queries from `start`."""
    scores, _ = _compute_scores(options, block, start, compute_products)
    high = lax.stop_gradient(scores.max(-1))
    weights = jnp.exp(scores - high[..., None])
    total = weights.sum(-1)
    weights = weights / total[..., None]
    factors = _draw_factors(options, block, full, start)
    weights = weights if factors is None else weights * factors
    values = block.value
    product = functools.partial(jnp.einsum, preferred_element_type=np.float32)
    out = product("bnts,bsnh->btnh", weights.astype(values.dtype), values).astype(values.dtype)
    return [out, high, jnp.log(total)]


def _differentiate_rows(
    options: ScoreOptions,
    block: AttentionOperands,
    full: AttentionOperands,
    start: Array | int,
    out: Array,
    high: Array,
    total: Array,
    gradient: Array,
) -> list[Array]:
    """Compute float32 gradients of a block of queries, and its part of those of keys and values."""
    scores, hidden = _compute_scores(options, block, start)
    weights = dropped = jnp.exp(scores - high[..., None] - total[..., None])
    product = functools.partial(jnp.einsum, preferred_element_type=np.float32)
    changes = product("btnh,bsnh->bnts", gradient, block.value)
    factors = _draw_factors(options, block, full, start)
    if factors is not None:
        dropped, changes = weights * factors, changes * factors
    slope = product("btnh,btnh->bnt", out.astype(np.float32), gradient.astype(np.float32))
    changes = weights * (changes - slope[..., None]) * np.float32(options.scale)
    changes = changes if hidden is None else jnp.where(hidden, np.float32(0), changes)
    changes, dropped = changes.astype(out.dtype), dropped.astype(out.dtype)
    return [
        product("bnts,bsnh->btnh", changes, block.key),
        product("bnts,btnh->bsnh", changes, block.query),
        product("bnts,btnh->bsnh", dropped, gradient),
    ]


def _restore_operands(
    names: Sequence[str], arrays: Sequence[Array]
) -> tuple[AttentionOperands, list[Array]]:
    """Return the operands, and the arrays that follow them."""
    operands = AttentionOperands(**dict(zip(names, arrays, strict=False)))
    return operands, list(arrays[len(names) :])


def _split_rows(operands: AttentionOperands, score_size: int = 1) -> int | None:
    """Return the number of queries of a block, or None if one block has all.

    Args:
      operands: The operands.
      score_size: Number of values from which a score is computed.
    """
    b, t, n, _ = operands.query.shape
    s = operands.key.shape[1]
    if not all(isinstance(size, int) for size in (b, t, n, s)):
        return None
    rows = max(16, MAX_BLOCK_SCORES // max(1, b * n * s * score_size))
    return None if rows >= t else rows


class _RowBlocks:
    """Blocks of queries, which `take` takes from arrays with an axis of queries."""

    def __init__(self, count: int, rows: int) -> None:
        self.count, self.rows = count, rows
        self.num_blocks = -(-count // rows)

    def pad(self, x: Array, axis: int) -> Array:
        """Pad the axis of queries to full blocks."""
        more = self.num_blocks * self.rows - self.count
        return jnp.pad(x, [(0, more if i == axis else 0) for i in range(x.ndim)])

    def take(self, x: Array | None, axis: int, start: Array) -> Array | None:
        """Take a block of a padded array; an axis of size 1 is broadcast."""
        if x is None or x.shape[axis] == 1:
            return x
        return lax.dynamic_slice_in_dim(x, start, self.rows, axis)

    def pad_operands(self, operands: AttentionOperands) -> AttentionOperands:
        """Pad the queries, and the bias and the mask that depend on them."""
        pad = lambda x: x if x is None or x.shape[2] == 1 else self.pad(x, 2)
        queries = operands.query_mask
        return AttentionOperands(
            *(self.pad(operands.query, 1), operands.key, operands.value),
            *(pad(operands.bias), pad(operands.mask)),
            None if queries is None else self.pad(queries, 1),
            operands.noise_key,
        )

    def take_operands(self, padded: AttentionOperands, start: Array) -> AttentionOperands:
        """Take a block of padded operands."""
        query = lax.dynamic_slice_in_dim(padded.query, start, self.rows, 1)
        return AttentionOperands(
            *(query, padded.key, padded.value),
            *(self.take(padded.bias, 2, start), self.take(padded.mask, 2, start)),
            self.take(padded.query_mask, 1, start),
            padded.noise_key,
        )

    def join(self, blocks: Array, axis: int) -> Array:
        """Join blocks along the first axis to an axis of queries."""
        x = jnp.moveaxis(blocks, 0, axis)
        x = x.reshape(*x.shape[:axis], self.num_blocks * self.rows, *x.shape[axis + 2 :])
        return lax.slice_in_dim(x, 0, self.count, axis=axis)


def _compute_attention(*arrays: Array, options: ScoreOptions, names: Sequence[str]) -> list[Array]:
    operands, _ = _restore_operands(names, arrays)
    rows = _split_rows(operands)
    if rows is None:
        return _attend_rows(options, operands, operands, 0)
    blocks = _RowBlocks(operands.query.shape[1], rows)
    padded = blocks.pad_operands(operands)

    def attend_block(start: Array) -> list[Array]:
        return _attend_rows(options, blocks.take_operands(padded, start), operands, start)

    starts = jnp.arange(blocks.num_blocks, dtype=np.int32) * rows
    results = lax.map(attend_block, starts)
    return [blocks.join(x, axis) for x, axis in zip(results, (1, 2, 2), strict=True)]


def attend_in_blocks(
    options: ScoreOptions, operands: AttentionOperands, compute_scores: ScoreFunction
) -> Array:
    """Compute attention with other scores than products, in blocks of queries.

    A block has all features of the pairs of its queries and the keys; the gradient computes them
    again.

    Args:
      options: Static options.
      operands: Arrays.
      compute_scores: Returns the scores before scale and masks.

    Returns:
      [b, t, n, h of values].
    """
    operands = broadcast_masks(operands)
    rows = _split_rows(operands, operands.query.shape[3]) or operands.query.shape[1]
    blocks = _RowBlocks(operands.query.shape[1], rows)
    padded = blocks.pad_operands(operands)

    @jax.checkpoint
    def attend_block(start: Array) -> Array:
        block = blocks.take_operands(padded, start)
        return _attend_rows(options, block, operands, start, compute_scores)[0]

    starts = jnp.arange(blocks.num_blocks, dtype=np.int32) * rows
    return blocks.join(lax.map(attend_block, starts), 1)


def _compute_gradient(*arrays: Array, options: ScoreOptions, names: Sequence[str]) -> list[Array]:
    operands, rest = _restore_operands(names, arrays)
    rows = _split_rows(operands)
    if rows is None:
        results = _differentiate_rows(options, operands, operands, 0, *rest)
    else:
        blocks = _RowBlocks(operands.query.shape[1], rows)
        padded = blocks.pad_operands(operands)
        axes = 1, 2, 2, 1
        residuals = [blocks.pad(x, axis) for x, axis in zip(rest, axes, strict=True)]

        def differentiate_block(sums: Any, start: Array) -> tuple[Any, Array]:
            block = blocks.take_operands(padded, start)
            saved: Any = [blocks.take(x, a, start) for x, a in zip(residuals, axes, strict=True)]
            dq, dk, dv = _differentiate_rows(options, block, operands, start, *saved)
            return (sums[0] + dk, sums[1] + dv), dq

        zeros = [jnp.zeros(x.shape, np.float32) for x in (operands.key, operands.value)]
        starts = jnp.arange(blocks.num_blocks, dtype=np.int32) * rows
        (dk, dv), parts = lax.scan(differentiate_block, tuple(zeros), starts)
        results = [blocks.join(parts, 1), dk, dv]
    return [g.astype(x.dtype) for g, x in zip(results, operands[:3], strict=True)]


def _compute_tangent(*arrays: Array, options: ScoreOptions, names: Sequence[str]) -> Array:
    operands, rest = _restore_operands(names, arrays)
    compute = lambda *qkv: _compute_attention(
        *qkv, *arrays[3 : len(names)], options=options, names=names
    )[0]
    return jax.jvp(compute, operands[:3], tuple(rest[3:]))[1]


def _transpose_tangent(ct: Any, *arrays: Any, **parameters: Any) -> list[Any]:
    tangents = arrays[-3:]
    if type(ct) is ad.Zero:
        gradients: Any = [ad.Zero(t.aval) if ad.is_undefined_primal(t) else None for t in tangents]
    else:
        gradients = gradient_p.bind(*arrays[:-3], ct, **parameters)
    pairs = zip(gradients, tangents, strict=True)
    return [None] * (len(arrays) - 3) + [g if ad.is_undefined_primal(t) else None for g, t in pairs]


def _batch(
    primitive: Primitive,
    composite: Callable[..., Any],
    arrays: Sequence[Any],
    axes: Sequence[Any],
    **parameters: Any,
) -> tuple[Any, Any]:
    """Join a vmapped axis with the batch axis."""
    names, multiple = parameters["names"], primitive.multiple_results
    if "noise_key" in names:
        # Each batch has its own random numbers.
        results = jax.vmap(functools.partial(composite, **parameters), in_axes=tuple(axes))(*arrays)
        return results, [0] * len(results) if multiple else 0
    stacked = move_batch_axes_first(arrays, axes)
    count, batch = stacked[0].shape[:2]
    joined = []
    for x in stacked:
        x = jnp.broadcast_to(x, (count, batch, *x.shape[2:]))
        joined.append(x.reshape(count * batch, *x.shape[2:]))
    results = primitive.bind(*joined, **parameters)
    split = lambda x: x.reshape(count, -1, *x.shape[1:])
    return ([split(x) for x in results], [0] * len(results)) if multiple else (split(results), 0)


def _choose_handler(avals: Avals, results: Avals, parameters: dict[str, Any]) -> HandlerCall | None:
    """Return a function that calls the handler, or None to use the equations."""
    options, names = parameters["options"], parameters["names"]
    operands: Any
    operands, rest = _restore_operands(names, avals)  # type: ignore[arg-type]
    (b, t, n, h), (_, s, _, values) = operands.query.shape, operands.value.shape
    dtypes = {np.dtype(a.dtype).name for a in (*operands[:3], results[0])}
    if (
        not _has_handler()
        or dtypes not in ({"float32"}, {"bfloat16"})
        or not all(isinstance(n, int) and n for n in (b, t, s, n, h, values))
    ):
        return None
    strides = [stride for x in (operands.bias, operands.mask) for stride in _find_strides(x)]
    to_bits = lambda x: int(np.float32(x).view(np.uint32))
    bits = jnp.finfo(options.noise).nmant
    # Random numbers are multiples of the smallest one.
    rate = float(np.asarray(options.rate, jnp.dtype(options.noise)))
    descriptor = [
        *(int(bool(rest)), b, t, s, n, h, values),
        *(int(options.is_causal), _MASKINGS.index(options.masking)),
        *(to_bits(options.scale), to_bits(options.fill)),
        to_bits(_compute_factor(options) if operands.noise_key is not None else 1),
        *(int(x is not None) for x in operands[3:]),
        *strides,
        *(int(np.ceil(rate * 2**bits)), 2**bits - 1),
    ]
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in results]
    return lambda *arrays: lowerings.call_handler(descriptor, arrays, specs, library.ATTENTION)


def _find_strides(aval: Aval | None) -> list[int]:
    """Return the strides of batch, heads and queries of a bias or mask; 0 for broadcast axes."""
    if aval is None:
        return [0, 0, 0]
    _, n, t, s = aval.shape
    strides = n * t * s, t * s, s
    return [0 if size == 1 else stride for size, stride in zip(aval.shape, strides, strict=False)]


def register(draw_uniform_at: Callable[[Array, Array, str], Array]) -> None:
    """Register the primitives with JAX.

    Args:
      draw_uniform_at: Draws uniform numbers, given a state of the generator, indices and a dtype.
    """
    _Hooks.draw_uniform_at = staticmethod(draw_uniform_at)
    for primitive, composite, choose in (
        (attention_p, _compute_attention, _choose_handler),
        (gradient_p, _compute_gradient, _choose_handler),
        (tangent_p, _compute_tangent, None),
    ):
        register_composite(primitive, composite, None, choose)
        # Under vmap it remains one primitive, which the handler can compute.
        batching.primitive_batchers[primitive] = functools.partial(_batch, primitive, composite)
    ad.primitive_transposes[tangent_p] = _transpose_tangent
