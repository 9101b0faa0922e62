"""How many changes lead from one sequence to another."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor

__all__ = ["edit_distance"]


def edit_distance(
    hypothesis: SparseTensor,
    truth: SparseTensor,
    normalize: bool = True,
    name: str | None = "edit_distance",
) -> Tensor:
    """Levenshtein distance of sequences: insertions, deletions and replacements.

    Args:
      hypothesis: sparse tensor [..., n]; each place of the leading dimensions holds one sequence.
      truth: sparse tensor [..., m] of the same rank and dtype.
      normalize: whether distances are divided by the length of the true sequence; for an empty one the
        result is infinite, or 0 where the hypothesis is empty too.
      name: ignored.

    Returns:
      float32 tensor with the larger of the leading sizes.

    Raises:
      TypeError: when one of the two is not sparse.
      InvalidArgumentError: for different ranks.

    Example:
      >>> import meshflow as tf
      >>> said = tf.sparse.from_dense([[1, 2, 3]])
      >>> tf.edit_distance(said, tf.sparse.from_dense([[1, 3, 3, 4]]), normalize=False).numpy()
      array([2.], dtype=float32)

    Reference:
      V. Levenshtein, Binary codes capable of correcting deletions, insertions, and reversals, 1966.
    """
    for what, one in (("hypothesis", hypothesis), ("truth", truth)):
        if not isinstance(one, SparseTensor):
            raise TypeError(
                f"edit_distance: {what} must be a SparseTensor, got {type(one).__name__}."
            )
    shapes = [[int(n) for n in s.dense_shape.numpy()] for s in (hypothesis, truth)]
    if len(shapes[0]) != len(shapes[1]):
        raise InvalidArgumentError(
            "edit_distance: hypothesis and truth must have the same rank, "
            f"got shapes {shapes[0]} and {shapes[1]}"
        )
    said, meant = _sequences(hypothesis), _sequences(truth)
    result = np.zeros(
        [max(pair) for pair in zip(*(s[:-1] for s in shapes), strict=True)], np.float32
    )
    for place in np.ndindex(*result.shape):
        guess, true = said.get(place, []), meant.get(place, [])
        changes = float(_distance(guess, true))
        if normalize and changes:
            changes = changes / len(true) if true else np.inf
        result[place] = changes
    return convert_to_tensor(result)


def _sequences(sparse: SparseTensor) -> dict[tuple[int, ...], list[Any]]:
    values = sparse.values._concrete("a sequence")
    found: dict[tuple[int, ...], list[Any]] = {}
    for place, value in zip(sparse.indices.numpy(), values, strict=True):
        found.setdefault(tuple(int(i) for i in place[:-1]), []).append(value)
    return found


def _distance(one: list[Any], other: list[Any]) -> int:
    costs = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        above, costs[0] = costs[0], i
        for j, b in enumerate(other, 1):
            above, costs[j] = costs[j], min(costs[j] + 1, costs[j - 1] + 1, above + (a != b))
    return costs[-1]
