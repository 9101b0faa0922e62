"""What restoring returns: assertions on what was restored."""

from __future__ import annotations

from typing import Any

from meshflow.checkpoint.graph import children
from meshflow.checkpoint.restoring import Restoration

__all__ = ["CheckpointLoadStatus", "InitializationOnlyStatus"]


class CheckpointLoadStatus:
    """What `Checkpoint.restore` returns: assertions on what was restored.

    Args:
      restoration: the restoring it tells about.
    """

    def __init__(self, restoration: Restoration) -> None:
        self._restoration = restoration
        # The restoring itself keeps nothing alive.
        self._root = restoration.root

    def assert_consumed(self) -> CheckpointLoadStatus:
        """Asserts that every stored value and every variable found its counterpart.

        Returns:
          The status itself.

        Raises:
          AssertionError: naming what did not.
        """
        self.assert_existing_objects_matched()
        left = self._restoration.unused()
        if left:
            raise AssertionError(
                f"Unresolved objects in checkpoint {self._restoration.folder.path}: {len(left)} stored values have no "
                f"Python object, such as {left[:10]}. Objects that create their variables later are "
                "restored then; call `expect_partial()` if this is meant."
            )
        return self

    def assert_existing_objects_matched(self) -> CheckpointLoadStatus:
        """Asserts that every variable that exists got a stored value, and every state of Python's.

        Returns:
          The status itself.

        Raises:
          AssertionError: naming those that did not.
        """
        self._restoration.go_on()
        missing = self._restoration.unmatched()
        if missing:
            raise AssertionError(
                f"Found {len(missing)} Python objects that were not bound to checkpointed values, likely due to changes "
                f"in the Python program. Showing {min(10, len(missing))} of {len(missing)} unmatched objects: "
                f"{[getattr(item, 'name', item) for item in missing[:10]]}"
            )
        return self

    def assert_nontrivial_match(self) -> CheckpointLoadStatus:
        """Asserts that anything besides the root was matched.

        Returns:
          The status itself.

        Raises:
          AssertionError: when nothing was.
        """
        self._restoration.go_on()
        if not self._restoration.matched_anything():
            raise AssertionError(
                f"Nothing except the root object matched a checkpointed value: {self._restoration.folder.path} holds "
                f"{sorted(self._restoration.nodes[0]['children'])}, the object has {sorted(children(self._restoration.root))}."
            )
        return self

    def expect_partial(self) -> CheckpointLoadStatus:
        """Says that values may be left over, of which nothing is then logged.

        Returns:
          The status itself.
        """
        self._restoration.expect_partial()
        return self

    def initialize_or_restore(self, session: Any = None) -> None:
        """Nothing is left to do.

        Args:
          session: ignored.
        """

    def run_restore_ops(self, session: Any = None) -> None:
        """Nothing is left to do.

        Args:
          session: ignored.
        """


class InitializationOnlyStatus(CheckpointLoadStatus):
    """What `Checkpoint.restore(None)` returns: nothing was restored."""

    def __init__(self) -> None:
        pass

    def expect_partial(self) -> CheckpointLoadStatus:
        """Says that nothing has to be restored.

        Returns:
          The status itself.
        """
        return self

    def _nothing(self, session: Any = None) -> Any:
        raise AssertionError("No checkpoint specified (save_path=None); nothing is being restored.")

    assert_consumed = assert_existing_objects_matched = assert_nontrivial_match = _nothing
    run_restore_ops = _nothing
