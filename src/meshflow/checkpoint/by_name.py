"""Checkpoints of TensorFlow 1's `Saver`, which know variables by their names alone, restored into objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshflow.checkpoint.bundle import Bundle
from meshflow.checkpoint.containers import Stored
from meshflow.checkpoint.graph import VARIABLE, ObjectGraph, owner
from meshflow.checkpoint.graph_message import GRAPH
from meshflow.checkpoint.restoring import Restoration, reference
from meshflow.checkpoint.status import CheckpointLoadStatus
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable

__all__ = ["NameBasedSaverStatus", "NamedRestoration", "restored"]

# TensorFlow's `Checkpoint` counts what it saves in it, which `Saver` does not know.
_COUNTER = "save_counter"


class NamedRestoration(Restoration):
    """One restoring of a checkpoint without objects: each variable takes the value of its own name.

    Args:
      folder: the checkpoint.
      root: the object whose variables are restored, also those that it makes later.
    """

    def __init__(self, folder: Stored, root: Any) -> None:
        self._begin(folder, root, [{"children": {}, "values": {}}], [])
        self._visit([])

    def _visit(self, pairs: Iterable[tuple[int, Any]]) -> None:
        """Restores all variables that are there: below the root, or where that is gone below the objects of the pairs."""
        for start in [item for _, item in pairs] if self.root is None else [self.root]:
            for number, item in enumerate(map(owner, ObjectGraph(start).objects)):
                if isinstance(item, (Variable, ShardedVariable)):
                    self._restore_named(item)
                elif not isinstance(item, (list, tuple, dict)):
                    self._wait_for_build(number, item)

    def _restore_named(self, variable: Any) -> None:
        name = variable._shared_name
        if name in self.folder.entries and not self._is_restored(VARIABLE, variable):
            self._assign(variable, name)
            self._restored[VARIABLE, id(variable)] = reference(variable)

    def unused(self) -> list[str]:
        """Nothing: names of variables that no object has are not missed."""
        return []

    def unmatched(self) -> list[Any]:
        """Variables below the root that got no value."""
        found = [v for v in super().unmatched() if isinstance(v, (Variable, ShardedVariable))]
        return [v for v in found if v._shared_name != _COUNTER]


class NameBasedSaverStatus(CheckpointLoadStatus):
    """What restoring a checkpoint without objects returns: all assertions are that every variable got a value."""

    assert_consumed = assert_nontrivial_match = CheckpointLoadStatus.assert_existing_objects_matched


def restored(folder: Stored, root: Any, skip_slots: bool = False) -> CheckpointLoadStatus:
    """Restores a checkpoint of either kind.

    Args:
      folder: the checkpoint.
      root: the object that its first node belongs to.
      skip_slots: whether optimizer slots are left out.

    Raises:
      ValueError: when a stored value does not fit its variable.
    """
    if isinstance(folder, Bundle) and GRAPH not in folder:
        return NameBasedSaverStatus(NamedRestoration(folder, root))
    return CheckpointLoadStatus(Restoration(folder, root, skip_slots))
