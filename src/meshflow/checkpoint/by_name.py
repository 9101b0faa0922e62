"""Restoring of checkpoints of TensorFlow 1's `Saver`, which identify variables only by their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshflow.checkpoint.bundle import Bundle
from meshflow.checkpoint.containers import Stored
from meshflow.checkpoint.graph import VARIABLE, ObjectGraph, Trackable, owner
from meshflow.checkpoint.graph_message import GRAPH
from meshflow.checkpoint.restoring import Restoration, reference
from meshflow.checkpoint.status import CheckpointLoadStatus
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable

__all__ = ["NameBasedSaverStatus", "NamedRestoration", "restored"]

# TensorFlow's `Checkpoint` counts its saves in this variable, which `Saver` does not store.
_COUNTER = "save_counter"


class NamedRestoration(Restoration):
    """Restoration without an object graph: each variable gets the value with its own name.

    Args:
      checkpoint: Opened checkpoint.
      root: Object to restore. Variables that it creates later are restored then.
    """

    def __init__(self, checkpoint: Stored, root: Trackable) -> None:
        self._begin(checkpoint, root, [{"children": {}, "values": {}}], [])
        self._visit([])

    def _visit(self, pairs: Iterable[tuple[int, Any]]) -> None:
        """Restore the existing variables below the root.

        If the root was garbage-collected, restore those below the objects of `pairs`.
        """
        for start in [item for _, item in pairs] if self.root is None else [self.root]:
            for index, item in enumerate(map(owner, ObjectGraph(start).objects)):
                if isinstance(item, (Variable, ShardedVariable)):
                    self._restore_named(item)
                elif not isinstance(item, (list, tuple, dict)):
                    self._wait_for_build(index, item)

    def _restore_named(self, variable: Variable | ShardedVariable) -> None:
        name = variable._shared_name
        if name in self.folder.entries and not self._is_restored(VARIABLE, variable):
            self._assign(variable, name)
            self._restored[VARIABLE, id(variable)] = reference(variable)

    def unused(self) -> list[str]:
        """Return an empty list: values for variables that no object has are not reported."""
        return []

    def unmatched(self) -> list[Any]:
        """Return the variables below the root that got no value."""
        variables = [v for v in super().unmatched() if isinstance(v, (Variable, ShardedVariable))]
        return [v for v in variables if v._shared_name != _COUNTER]


class NameBasedSaverStatus(CheckpointLoadStatus):
    """Status of restoring without an object graph: all assertions require all variables."""

    assert_consumed = assert_nontrivial_match = CheckpointLoadStatus.assert_existing_objects_matched


def restored(checkpoint: Stored, root: Trackable, skip_slots: bool = False) -> CheckpointLoadStatus:
    """Restore a checkpoint with an object graph or with names only.

    Args:
      checkpoint: Opened checkpoint.
      root: Object that corresponds to the root of the checkpoint's graph.
      skip_slots: Whether to skip the slots of optimizers.

    Returns:
      The status of the restoration.

    Raises:
      ValueError: If a stored value does not fit its variable.
    """
    if isinstance(checkpoint, Bundle) and GRAPH not in checkpoint:
        return NameBasedSaverStatus(NamedRestoration(checkpoint, root))
    return CheckpointLoadStatus(Restoration(checkpoint, root, skip_slots))
