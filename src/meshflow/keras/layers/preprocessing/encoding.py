"""Encoding of category ids according to `output_mode`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import Result, compute_on_host, host_function
from meshflow.environment.types import PyTree
from meshflow.ops import array, math
from meshflow.ops.coordinates import add_elements, get_sizes_list, make_sparse, unique_rows
from meshflow.ops.ragged import RaggedTensor

# Names of `output_mode` in older releases.
_MODE_ALIASES = {"binary": "multi_hot", "tf-idf": "tf_idf"}


def parse_output_mode(output_mode: str, allowed: tuple[str, ...], layer: str) -> str:
    """Check an `output_mode`, and replace names of older releases.

    Raises:
      ValueError: If the mode is not allowed.
    """
    mode = _MODE_ALIASES.get(output_mode, output_mode)
    if mode not in allowed:
        raise ValueError(
            f"Unknown value for `output_mode` argument of layer {layer}. Allowed values are {allowed}. "
            f"Received: {output_mode}"
        )
    return mode


def check_sparse(sparse: bool, output_mode: str) -> None:
    """Raise an error for `sparse=True` in a mode without sparse outputs.

    Raises:
      ValueError: If the mode is 'int'.
    """
    if sparse and output_mode == "int":
        raise ValueError(
            "`sparse` may only be true if `output_mode` is `'one_hot'`, `'multi_hot'`, `'count'` or `'tf_idf'`. "
            f"Received: sparse={sparse} and output_mode={output_mode}"
        )


def compute_encoded_shape(
    input_shape: ShapeLike, output_mode: str, depth: int | None
) -> TensorShape:
    """Compute the shape of encoded ids.

    Args:
      input_shape: Shape of the ids.
      output_mode: As in `encode_ids`.
      depth: Number of categories.
    """
    sizes = TensorShape(input_shape).as_list()
    if output_mode == "int":
        return TensorShape(sizes)
    if output_mode == "one_hot":
        return TensorShape([*(sizes[:-1] if sizes and sizes[-1] == 1 else sizes), depth])
    return TensorShape([*sizes[:-1], depth])


def map_ids(find_ids: Callable[[Tensor], Tensor], inputs: TensorLike | SparseTensor) -> PyTree:
    """Apply a function that finds ids to a tensor, or to the elements of a sparse or ragged one."""
    if isinstance(inputs, SparseTensor):
        return inputs.with_values(find_ids(inputs.values))
    if isinstance(inputs, RaggedTensor):
        return inputs.with_flat_values(find_ids(inputs.flat_values))
    return find_ids(inputs)


def encode_ids(
    ids: TensorLike | SparseTensor,
    output_mode: str,
    depth: int,
    dtype: DTypeLike,
    weights: TensorLike | SparseTensor = None,
    sparse: bool = False,
) -> PyTree:
    """Encode category ids.

    Args:
      ids: Integers of rank 0 to 2, or a sparse tensor. Vectors ignore ids outside of [0, depth).
      output_mode: 'int', 'one_hot', 'multi_hot', 'count' or 'tf_idf'.
      depth: Number of categories.
      dtype: Dtype of the result.
      weights: Weight of each id for 'count', or of each category, [depth], for 'tf_idf'.
      sparse: Whether to return a sparse tensor.

    Raises:
      ValueError: If the vectors would have more than two axes.
    """
    if isinstance(ids, RaggedTensor):
        if output_mode == "int":
            return ids.with_flat_values(math.cast(ids.flat_values, dtype))
        ids = ids.to_sparse()
    if isinstance(ids, SparseTensor):
        if output_mode == "int":
            return math.cast(ids, dtype)
        encoded = _encode_sparse(ids, output_mode, depth, dtype, weights)
        return encoded if sparse else _to_dense(encoded)
    ids = convert_to_tensor(ids)
    if output_mode == "int":
        return math.cast(ids, dtype)
    shape = ids.shape
    if not shape.rank:
        ids = array.expand_dims(ids, -1)
    if output_mode == "one_hot" and ids.shape[-1] != 1:
        ids = array.expand_dims(ids, -1)
    if ids.ndim > 2:
        raise ValueError(
            "When output_mode is not `'int'`, maximum supported output rank is 2. Received output_mode "
            f"{output_mode} and input shape {tuple(shape)}, which would result in output rank {ids.ndim}."
        )
    id_weights = weights if output_mode == "count" else None
    if output_mode == "one_hot" and not shape.rank:
        ids = array.reshape(ids, [1])
    if sparse:
        return _encode_sparse(_to_elements(ids), output_mode, depth, dtype, weights)
    counts = _count_ids(ids, id_weights, depth)
    if output_mode in ("one_hot", "multi_hot"):
        counts = math.minimum(counts, 1.0)
    elif output_mode == "tf_idf":
        counts = counts * math.cast(weights, counts.dtype)
    return math.cast(counts, dtype)


def _to_elements(ids: Tensor) -> SparseTensor:
    """Return a sparse tensor of all elements of a tensor."""
    shape = ids.shape.as_list()
    indices = np.indices(shape).reshape(len(shape), -1).T
    return SparseTensor(indices, array.reshape(ids, [-1]), shape)


def _to_dense(sparse: SparseTensor) -> Tensor:
    empty = array.zeros(sparse.shape.as_list(), sparse.dtype)
    return add_elements(empty, sparse.indices, sparse.values, False)


@host_function
def _count_tokens(
    depth: int, indices: np.ndarray, tokens: np.ndarray, amounts: np.ndarray
) -> list[np.ndarray]:
    is_valid = (tokens >= 0) & (tokens < depth)
    pairs = np.concatenate([indices[:, :-1], tokens[:, None]], 1)[is_valid].astype(np.int64)
    indices, owner = unique_rows(pairs)
    return [indices, np.bincount(owner, amounts[is_valid], len(indices))]


def _encode_sparse(
    ids: SparseTensor,
    output_mode: str,
    depth: int,
    dtype: DTypeLike,
    weights: TensorLike | SparseTensor,
) -> SparseTensor:
    """Encode the ids in the last axis of a sparse tensor as sparse vectors."""
    amounts: TensorLike = array.ones_like(ids.values, "float32")
    if output_mode == "count" and weights is not None:
        values = weights.values if isinstance(weights, SparseTensor) else weights
        amounts = array.reshape(math.cast(values, "float32"), [-1])
    count = functools.partial(_count_tokens, int(depth))
    results: list[Result] = [(("n", len(ids.shape)), np.int64), (("n",), np.float32)]
    operands = [ids.indices, ids.values, amounts]
    indices, counts = compute_on_host(count, operands, results, "ids to encode in a sparse tensor")
    encoded = array.ones_like(counts) if output_mode in ("one_hot", "multi_hot") else counts
    if output_mode == "tf_idf":
        encoded = encoded * math.cast(array.gather(weights, indices[:, -1]), encoded.dtype)
    return make_sparse(indices, math.cast(encoded, dtype), [*get_sizes_list(ids)[:-1], depth])


def _count_ids(ids: Tensor, weights: TensorLike, depth: int) -> Tensor:
    weights = None if weights is None else math.cast(weights, "float32")
    amounts = None if weights is None else weights.array
    if any(isinstance(value, jax.core.Tracer) for value in (ids.array, amounts)):
        return _tally(ids, array.ones(ids.shape) if weights is None else weights, depth)
    # Batches of a pipeline have many widths, and XLA would compile a program for each.
    amounts = None if amounts is None else np.asarray(amounts)
    return Tensor(_tally_host(np.asarray(ids.array), amounts, depth))


@op(same=(), name="tally")
def _tally(ids: TensorLike, weights: TensorLike, depth: int) -> Any:
    """Count the occurrences of each id below `depth` in the last axis."""
    inside = (ids >= 0) & (ids < depth)
    indices = jnp.where(inside, ids, 0)
    amounts = jnp.where(inside, jnp.broadcast_to(weights, ids.shape), 0.0)
    # Sizes may be symbolic, and a product of symbolic sizes is not a size.
    lead, axes = ids.shape[:-1], range(ids.ndim)
    rows = [jnp.expand_dims(jnp.arange(n), [a for a in axes if a != i]) for i, n in enumerate(lead)]
    zeros = jnp.zeros((*lead, depth), "float32")
    return zeros.at[(*rows, indices)].add(amounts.astype("float32"))


def _tally_host(ids: np.ndarray, weights: np.ndarray | None, depth: int) -> np.ndarray:
    inside = (ids >= 0) & (ids < depth)
    lead = ids.shape[:-1]
    count = int(np.prod(lead, dtype=np.int64))
    places = ((np.arange(count) * depth).reshape(*lead, 1) + ids)[inside]
    amounts = None if weights is None else np.broadcast_to(weights, ids.shape)[inside]
    totals = np.bincount(places, amounts, count * depth)
    return totals.astype("float32").reshape(*lead, depth)
