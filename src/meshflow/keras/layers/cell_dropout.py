"""Dropout masks of users' recurrent cells, which are the same in all steps of a sequence."""

from __future__ import annotations

from typing import Any

from meshflow.core.runtime.context import context
from meshflow.core.runtime.identity_weak_dict import IdentityWeakDict
from meshflow.core.values.tensor import Tensor
from meshflow.ops import array, math, random
from meshflow.ops.nn.activation import stateless_dropout

__all__ = ["DropoutRNNCellMixin"]

# Marks seeds that are valid in the traces of all steps of a sequence.
_SEQUENCE = object()
# Traces and seeds by cell. They are no attributes, because traces cannot be copied or pickled with a cell.
_seeds_by_cell = IdentityWeakDict()


class DropoutRNNCellMixin:
    """Base class of cells with the attributes `dropout` and `recurrent_dropout`, the rates of their masks.

    A mask depends only on a seed, so every step of a loop computes the same mask. `RNN` draws the seeds before the
    first step. In other code, a mask remains the same until `reset_dropout_mask`.

    Example:
      >>> import meshflow as tf
      >>> class Cell(DropoutRNNCellMixin, tf.keras.layers.Layer):
      ...     dropout, recurrent_dropout = 0.5, 0.0
      >>> cell = Cell()
      >>> mask = cell.get_dropout_mask_for_cell(tf.ones([2, 3]), training=True)
      >>> bool(tf.reduce_all(mask == cell.get_dropout_mask_for_cell(tf.ones([2, 3]), training=True)))
      True
    """

    dropout: float = 0.0
    recurrent_dropout: float = 0.0

    def get_dropout_mask_for_cell(self, inputs: Tensor, training: Any, count: int = 1) -> Any:
        """Return a mask in the shape of the inputs, or a list of `count` masks; None if the rate is 0.

        Args:
          inputs: Tensor [batch, features].
          training: Whether elements are dropped; a bool, a bool tensor, or None for False.
          count: Number of masks.
        """
        return self._get_masks("dropout", inputs, training, count)

    def get_recurrent_dropout_mask_for_cell(
        self, inputs: Tensor, training: Any, count: int = 1
    ) -> Any:
        """Return a mask in the shape of a state, or a list of `count` masks; see `get_dropout_mask_for_cell`."""
        return self._get_masks("recurrent_dropout", inputs, training, count)

    def _get_masks(self, kind: str, inputs: Tensor, training: Any, count: int) -> Any:
        rate = getattr(self, kind)
        if not rate:
            return None
        ones = array.ones_like(inputs)
        if training is None or training is False:
            masks = [ones] * count
        else:
            seed = self._get_seed(kind)
            masks = [stateless_dropout(ones, rate, seed + i) for i in range(count)]
            if training is not True:
                masks = [array.where(math.cast(training, "bool"), m, ones) for m in masks]
        return masks[0] if count == 1 else masks

    @property
    def _mask_seeds(self) -> dict[str, tuple[Any, Tensor]]:
        """Return the trace and the seed of each kind of masks."""
        seeds: dict[str, tuple[Any, Tensor]] | None = _seeds_by_cell.get(self)
        if seeds is None:
            _seeds_by_cell[self] = seeds = {}
        return seeds

    def _get_seed(self, kind: str) -> Tensor:
        trace, seed = self._mask_seeds.get(kind, (None, None))
        # The body of a loop over a sequence has a trace of its own, and uses the seeds from before the loop.
        if seed is None or trace not in (context.trace, _SEQUENCE):
            seed = _draw_seed()
            self._mask_seeds[kind] = context.trace, seed
        return seed

    def reset_dropout_mask(self) -> None:
        """Draw another mask of the inputs at its next use."""
        self._mask_seeds.pop("dropout", None)

    def reset_recurrent_dropout_mask(self) -> None:
        """Draw another mask of the state at its next use."""
        self._mask_seeds.pop("recurrent_dropout", None)

    def hold_masks(self, inputs: Any, training: Any) -> None:
        """Draw the seeds of the masks of a sequence."""
        self.drop_masks()
        if training is not None and training is not False:
            for kind in ("dropout", "recurrent_dropout"):
                self._mask_seeds[kind] = _SEQUENCE, _draw_seed()

    def drop_masks(self) -> None:
        """Draw other masks at their next use."""
        self.reset_dropout_mask()
        self.reset_recurrent_dropout_mask()


def _draw_seed() -> Tensor:
    return random.uniform([2], 0, 2**31 - 1, "int32")
