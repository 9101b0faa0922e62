"""Numbers of categories as vectors: what `output_mode` means."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array, math

__all__ = ["encoded", "encoded_shape", "mode_of", "refuse_sparse"]

# Names of older versions.
_OLD_NAMES = {"binary": "multi_hot", "tf-idf": "tf_idf"}


def mode_of(output_mode: Any, allowed: tuple[str, ...], layer: str) -> str:
    """A checked `output_mode`; older names become today's.

    Raises:
      ValueError: for another one.
    """
    mode = _OLD_NAMES.get(output_mode, output_mode)
    if mode not in allowed:
        raise ValueError(
            f"Unknown value for `output_mode` argument of layer {layer}. Allowed values are {allowed}. "
            f"Received: {output_mode}"
        )
    return mode


def refuse_sparse(sparse: bool, output_mode: str) -> None:
    """Refuses sparse outputs.

    Raises:
      ValueError: when they make no sense for the mode.
      NotImplementedError: when they would.
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


def encoded_shape(input_shape: Any, output_mode: str, depth: int | None) -> TensorShape:
    """The shape of encoded numbers.

    Args:
      input_shape: the numbers' shape.
      output_mode: as in the layers.
      depth: how many categories there are.
    """
    sizes = TensorShape(input_shape).as_list()
    if output_mode == "int":
        return TensorShape(sizes)
    if output_mode == "one_hot":
        return TensorShape([*(sizes[:-1] if sizes and sizes[-1] == 1 else sizes), depth])
    return TensorShape([*sizes[:-1], depth])


def encoded(numbers: Any, output_mode: str, depth: int, dtype: Any, weights: Any = None) -> Tensor:
    """Numbers of categories as `output_mode` wants them.

    Args:
      numbers: integers of rank 0 to 2; those outside [0, depth) are left out of vectors.
      output_mode: 'int', 'one_hot', 'multi_hot', 'count' or 'tf_idf'.
      depth: how many categories there are.
      dtype: dtype of the result.
      weights: what each number counts, for 'count'; or each category, [depth], for 'tf_idf'.

    Raises:
      ValueError: when vectors would have more than two dimensions.
    """
    numbers = convert_to_tensor(numbers)
    if output_mode == "int":
        return math.cast(numbers, dtype)
    shape = numbers.shape
    if not shape.rank:
        numbers = array.expand_dims(numbers, -1)
    if output_mode == "one_hot" and numbers.shape[-1] != 1:
        numbers = array.expand_dims(numbers, -1)
    if numbers.ndim > 2:
        raise ValueError(
            "When output_mode is not `'int'`, maximum supported output rank is 2. Received output_mode "
            f"{output_mode} and input shape {tuple(shape)}, which would result in output rank {numbers.ndim}."
        )
    each = weights if output_mode == "count" else None
    if output_mode == "one_hot" and not shape.rank:
        numbers = array.reshape(numbers, [1])
    counts = _counts(numbers, each, depth)
    if output_mode in ("one_hot", "multi_hot"):
        counts = math.cast(counts > 0, dtype)
    elif output_mode == "tf_idf":
        counts = counts * math.cast(weights, counts.dtype)
    return math.cast(counts, dtype)


def _counts(numbers: Tensor, weights: Any, depth: int) -> Tensor:
    if weights is None:
        weights = array.ones(numbers.shape)
    weights = math.cast(weights, "float32")
    known = [numbers._value, weights._value]
    if any(isinstance(value, jax.core.Tracer) for value in known):
        return _tally(numbers, weights, depth)
    # By NumPy where it can be: pipelines bring batches of many widths, and XLA would compile each.
    return Tensor(_tallied(np, np.asarray(known[0]), np.asarray(known[1]), depth))


@op(same=(), name="tally")
def _tally(numbers: TensorLike, weights: TensorLike, depth: int) -> Tensor:
    """How often each number below `depth` occurs in the last dimension."""
    return _tallied(jnp, numbers, weights, depth)


def _tallied(xp: Any, numbers: Any, weights: Any, depth: int) -> Any:
    inside = (numbers >= 0) & (numbers < depth)
    places = xp.where(inside, numbers, 0)
    amounts = xp.where(inside, xp.broadcast_to(weights, numbers.shape), 0.0)
    lead = numbers.shape[:-1]
    if xp is jnp:
        # Sizes may be symbols, whose products are none.
        axes = range(numbers.ndim)
        rows = [
            jnp.expand_dims(jnp.arange(n), [a for a in axes if a != i]) for i, n in enumerate(lead)
        ]
        return (
            jnp.zeros((*lead, depth), "float32").at[(*rows, places)].add(amounts.astype("float32"))
        )
    count = int(np.prod(lead, dtype=np.int64))
    start = (np.arange(count) * depth).reshape(*lead, 1)
    found = np.bincount((start + places).reshape(-1), amounts.reshape(-1), count * depth)
    return found.astype("float32").reshape(*lead, depth)
