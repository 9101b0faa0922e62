"""Checkpoints of TensorFlow 1's `Saver`, which know variables by their names alone, restored into objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshflow.checkpoint.bundle import Bundle
from meshflow.checkpoint.containers import Stored
from meshflow.checkpoint.graph import VARIABLE, ObjectGraph
from meshflow.checkpoint.graph_message import GRAPH
from meshflow.checkpoint.restoring import CheckpointLoadStatus, Restoration
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
        self.folder, self.root = folder, root
        self.nodes, self.slots = [{"children": {}, "values": {}}], []
        self.objects: dict[int, Any] = {}
        self._restored: set[tuple[int | str, int]] = set()
        self._hooked: set[int] = set()
        self._skip_slots = False
        self._visit([])

    def _visit(self, pairs: Iterable[tuple[int, Any]]) -> None:
        """Restores all variables that are there; the objects are looked at anew, so that `pairs` says nothing."""
        graph = ObjectGraph(self.root)
        for number, item in enumerate(graph.objects):
            if isinstance(item, (Variable, ShardedVariable)):
                self._restore_named(item)
            elif not isinstance(item, (list, tuple, dict)):
                self._wait_for_build(number, item)

    def _restore_named(self, variable: Any) -> None:
        name = variable._shared_name
        if name in self.folder.entries and (VARIABLE, id(variable)) not in self._restored:
            self._assign(variable, name)
            self._restored.add((VARIABLE, id(variable)))

    def unused(self) -> list[str]:
        """Nothing: names of variables that no object has are not missed."""
        return []

    def unmatched(self) -> list[Any]:
        """Variables below the root that got no value."""
        return [v for v in super().unmatched() if v._shared_name != _COUNTER]


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
