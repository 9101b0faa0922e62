"""Edit distances between sequences."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor


def edit_distance(
    hypothesis: SparseTensor,
    truth: SparseTensor,
    normalize: bool = True,
    name: str | None = "edit_distance",
) -> Tensor:
    """Compute the Levenshtein distances between the sequences of two sparse tensors.

    The distance is the smallest number of insertions, deletions and replacements.

    Args:
      hypothesis: Sparse tensor [..., n]; each index of the leading dimensions has one sequence.
      truth: Sparse tensor [..., m] of the same rank and dtype.
      normalize: Whether to divide each distance by the length of the true sequence. If that is
        empty, the result is infinite, or 0 if the hypothesis is empty, too.
      name: Ignored.

    Returns:
      float32 tensor; its shape is the maximum of the leading sizes of both.

    Raises:
      TypeError: If an argument is not a SparseTensor.
      InvalidArgumentError: If the ranks differ.

    Example:
      >>> guess = tf.sparse.from_dense([[1, 2, 3]])
      >>> tf.edit_distance(guess, tf.sparse.from_dense([[1, 3, 3, 4]]), normalize=False).numpy()
      array([2.], dtype=float32)

    References:
      V. Levenshtein, Binary codes capable of correcting deletions, insertions, and reversals, 1966.
    """
    for label, argument in (("hypothesis", hypothesis), ("truth", truth)):
        if not isinstance(argument, SparseTensor):
            raise TypeError(
                f"edit_distance: {label} must be a SparseTensor, got {type(argument).__name__}."
            )
    shapes = [[int(n) for n in s.dense_shape.numpy()] for s in (hypothesis, truth)]
    if len(shapes[0]) != len(shapes[1]):
        raise InvalidArgumentError(
            "edit_distance: hypothesis and truth must have the same rank, "
            f"got shapes {shapes[0]} and {shapes[1]}"
        )
    guesses, truths = _group_sequences(hypothesis), _group_sequences(truth)
    result = np.zeros(
        [max(pair) for pair in zip(*(s[:-1] for s in shapes), strict=True)], np.float32
    )
    for index in np.ndindex(*result.shape):
        guess, true = guesses.get(index, []), truths.get(index, [])
        changes = float(_compute_distance(guess, true))
        if normalize and changes:
            changes = changes / len(true) if true else np.inf
        result[index] = changes
    return convert_to_tensor(result)


def _group_sequences(sparse: SparseTensor) -> dict[tuple[int, ...], list[Hashable]]:
    values = sparse.values.require_value("a sequence")
    sequences: dict[tuple[int, ...], list[Hashable]] = {}
    for index, value in zip(sparse.indices.numpy(), values, strict=True):
        sequences.setdefault(tuple(int(i) for i in index[:-1]), []).append(value)
    return sequences


def _compute_distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    costs = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        above, costs[0] = costs[0], i
        for j, b in enumerate(second, 1):
            above, costs[j] = costs[j], min(costs[j] + 1, costs[j - 1] + 1, above + (a != b))
    return costs[-1]
