"""Restoring of checkpoints of TensorFlow 1's `Saver`, which identify variables only by their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshflow.checkpoint.bundle import BundleReader
from meshflow.checkpoint.formats import StoredCheckpoint
from meshflow.checkpoint.object_graph import VARIABLE_VALUE, ObjectGraph, Trackable, resolve_root
from meshflow.checkpoint.object_graph_message import GRAPH_KEY
from meshflow.checkpoint.restoration import Restoration, make_weak_reference
from meshflow.checkpoint.status import CheckpointLoadStatus
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable, get_full_name

# TensorFlow's `Checkpoint` counts its saves in this variable, which `Saver` does not store.
_SAVE_COUNTER = "save_counter"


class NameBasedRestoration(Restoration):
    """Restoration without an object graph: each variable gets the value with its own name.

    Args:
      checkpoint: Opened checkpoint.
      root: Object to restore. Variables that it creates later are restored then.
    """

    def __init__(self, checkpoint: StoredCheckpoint, root: Trackable) -> None:
        self._initialize(checkpoint, root, [{"children": {}, "values": {}}], [])
        self._match_children([])

    def _match_children(self, pairs: Iterable[tuple[int, Any]]) -> None:
        """Restore the existing variables below the root.

        If the root was garbage-collected, restore those below the objects of `pairs`.
        """
        for start in [item for _, item in pairs] if self.root is None else [self.root]:
            for index, item in enumerate(map(resolve_root, ObjectGraph(start).objects)):
                if isinstance(item, (Variable, ShardedVariable)):
                    self._restore_variable(item)
                elif not isinstance(item, (list, tuple, dict)):
                    self._resume_after_build(index, item)

    def _restore_variable(self, variable: Variable | ShardedVariable) -> None:
        name = get_full_name(variable)
        if name in self.checkpoint.entries and not self._is_restored(VARIABLE_VALUE, variable):
            self._assign(variable, name)
            self._restored[VARIABLE_VALUE, id(variable)] = make_weak_reference(variable)

    def list_unused_keys(self) -> list[str]:
        """Return an empty list: values for variables that no object has are not reported."""
        return []

    def list_unmatched_objects(self) -> list[Any]:
        """Return the variables below the root that got no value."""
        variables = [
            v
            for v in super().list_unmatched_objects()
            if isinstance(v, (Variable, ShardedVariable))
        ]
        return [v for v in variables if get_full_name(v) != _SAVE_COUNTER]


class NameBasedSaverStatus(CheckpointLoadStatus):
    """Status of restoring without an object graph: all assertions require all variables."""

    assert_consumed = assert_nontrivial_match = CheckpointLoadStatus.assert_existing_objects_matched


def restore_checkpoint(
    checkpoint: StoredCheckpoint, root: Trackable, skip_slots: bool = False
) -> CheckpointLoadStatus:
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
    if isinstance(checkpoint, BundleReader) and GRAPH_KEY not in checkpoint:
        return NameBasedSaverStatus(NameBasedRestoration(checkpoint, root))
    return CheckpointLoadStatus(Restoration(checkpoint, root, skip_slots))
