"""Encoding of category ids according to `output_mode`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Array
from meshflow.ops import array, math

__all__ = ["compute_encoded_shape", "encode_ids", "parse_output_mode", "refuse_sparse"]

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


def refuse_sparse(sparse: bool, output_mode: str) -> None:
    """Raise an error for `sparse=True`.

    Raises:
      ValueError: If the mode has no sparse outputs.
      NotImplementedError: If the mode has sparse outputs in TensorFlow.
    """
    if sparse and output_mode == "int":
        raise ValueError(
            "`sparse` may only be true if `output_mode` is `'one_hot'`, `'multi_hot'`, `'count'` or `'tf_idf'`. "
            f"Received: sparse={sparse} and output_mode={output_mode}"
        )
    if sparse:
        raise NotImplementedError(
            "sparse=True is not available: XLA needs dense tensors. Leave it out, or use output_mode='int' with an "
            "Embedding."
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


def encode_ids(
    ids: TensorLike, output_mode: str, depth: int, dtype: DTypeLike, weights: TensorLike = None
) -> Tensor:
    """Encode category ids.

    Args:
      ids: Integers of rank 0 to 2. Vectors ignore ids outside of [0, depth).
      output_mode: 'int', 'one_hot', 'multi_hot', 'count' or 'tf_idf'.
      depth: Number of categories.
      dtype: Dtype of the result.
      weights: Weight of each id for 'count', or of each category, [depth], for 'tf_idf'.

    Raises:
      ValueError: If the vectors would have more than two axes.
    """
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
    counts = _count_ids(ids, id_weights, depth)
    if output_mode in ("one_hot", "multi_hot"):
        counts = math.cast(counts > 0, dtype)
    elif output_mode == "tf_idf":
        counts = counts * math.cast(weights, counts.dtype)
    return math.cast(counts, dtype)


def _count_ids(ids: Tensor, weights: TensorLike, depth: int) -> Tensor:
    if weights is None:
        weights = array.ones(ids.shape)
    weights = math.cast(weights, "float32")
    operands = [ids.array, weights.array]
    if any(isinstance(value, jax.core.Tracer) for value in operands):
        return _tally(ids, weights, depth)
    # Batches of a pipeline have many widths, and XLA would compile a program for each.
    return Tensor(_tally_arrays(np, np.asarray(operands[0]), np.asarray(operands[1]), depth))


@op(same=(), name="tally")
def _tally(ids: TensorLike, weights: TensorLike, depth: int) -> Tensor:
    """Count the occurrences of each id below `depth` in the last axis."""
    return _tally_arrays(jnp, ids, weights, depth)


def _tally_arrays(xp: ModuleType, ids: Array, weights: Array, depth: int) -> Any:
    inside = (ids >= 0) & (ids < depth)
    indices = xp.where(inside, ids, 0)
    amounts = xp.where(inside, xp.broadcast_to(weights, ids.shape), 0.0)
    lead = ids.shape[:-1]
    if xp is jnp:
        # Sizes may be symbolic, and a product of symbolic sizes is not a size.
        axes = range(ids.ndim)
        rows = [
            jnp.expand_dims(jnp.arange(n), [a for a in axes if a != i]) for i, n in enumerate(lead)
        ]
        zeros = jnp.zeros((*lead, depth), "float32")
        return zeros.at[(*rows, indices)].add(amounts.astype("float32"))
    count = int(np.prod(lead, dtype=np.int64))
    start = (np.arange(count) * depth).reshape(*lead, 1)
    totals = np.bincount((start + indices).reshape(-1), amounts.reshape(-1), count * depth)
    return totals.astype("float32").reshape(*lead, depth)
