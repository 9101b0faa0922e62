"""Positions of iterators in version 1's checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.values.tensor import Tensor
from meshflow.data.epoch import DatasetIterator
from meshflow.data.options import ExternalStatePolicy

__all__ = ["make_saveable_from_iterator"]

_POLICIES = (None, *ExternalStatePolicy, *(policy.name.lower() for policy in ExternalStatePolicy))


@dataclasses.dataclass(frozen=True)
class IteratorSaveable:
    """Position of an iterator, which `tf.compat.v1.train.Saver` saves.

    Args:
      op: The iterator.
      name: Key in checkpoints.
    """

    op: Any
    name: str

    @property
    def specs(self) -> list[IteratorSaveable]:
        """Return the saved values: only the position."""
        return [self]

    @property
    def tensor(self) -> Tensor:
        """Return the position, which only an initialized iterator has."""
        return Tensor(self._find()._checkpoint_values()[""])

    def restore(self, restored_tensors: Sequence[Tensor], restored_shapes: object) -> None:
        """Continue at the position in a checkpoint; `restored_shapes` is ignored."""
        value = np.array(restored_tensors[0].numpy(), object)
        self._find()._restore_checkpoint_values("", {"": value})

    def _find(self) -> Any:
        """Return the iterator; that of a graph has one for each session."""
        return self.op if isinstance(self.op, DatasetIterator) else self.op.find_running()


def make_saveable_from_iterator(
    iterator: Any, external_state_policy: ExternalStatePolicy | str | None = None
) -> IteratorSaveable:
    """Return an object by which `tf.compat.v1.train.Saver` saves and restores the position of an iterator.

    With TensorFlow 2, pass the iterator to `tf.train.Checkpoint`. `restore` needs an initialized iterator, and
    an equal dataset. The seeds of shuffled datasets are saved, so every policy has the same effect.

    Args:
      iterator: Iterator of a dataset, in a graph or in eager execution. Its name in a checkpoint is `Iterator`, with a
        number for each further one in a graph.
      external_state_policy: "fail", "warn" or "ignore". Default: "fail".

    Raises:
      ValueError: If the policy has another value, or the argument is not an iterator.

    Example:
      >>> import tempfile
      >>> iterator = iter(tf.data.Dataset.range(9))
      >>> saver = tf.compat.v1.train.Saver([tf.data.experimental.make_saveable_from_iterator(iterator)])
      >>> next(iterator).numpy().item()
      0
      >>> path = saver.save(None, tempfile.mkdtemp() + "/input")
      >>> next(iterator).numpy().item()
      1
      >>> saver.restore(None, path)
      >>> next(iterator).numpy().item()
      1
    """
    if external_state_policy not in _POLICIES:
        raise ValueError(
            f"Invalid `ExternalStatePolicy.` Supported values include 'warn', 'ignore', and 'fail.' Received "
            f"{external_state_policy}."
        )
    if not isinstance(iterator, DatasetIterator) and not hasattr(iterator, "find_running"):
        raise ValueError(
            f"make_saveable_from_iterator: expected an iterator of a dataset, got {iterator!r}. Pass iter(dataset) or "
            "tf.compat.v1.data.make_initializable_iterator(dataset)."
        )
    return IteratorSaveable(iterator, f"{getattr(iterator, 'name', 'Iterator')}_STATE")
