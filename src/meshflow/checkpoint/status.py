"""Status objects that restoring returns, with assertions on the restored values."""

from __future__ import annotations

from typing import NoReturn

from meshflow.checkpoint.graph import children
from meshflow.checkpoint.restoring import Restoration

__all__ = ["CheckpointLoadStatus", "InitializationOnlyStatus"]


class CheckpointLoadStatus:
    """Status that `Checkpoint.restore` returns, with assertions on the restored values.

    Args:
      restoration: The restoration.
    """

    def __init__(self, restoration: Restoration) -> None:
        self._restoration = restoration
        # The restoration itself holds only weak references, so the status keeps the root alive.
        self._root = restoration.root

    def assert_consumed(self) -> CheckpointLoadStatus:
        """Assert that every stored value and every variable found its counterpart.

        Returns:
          The status itself.

        Raises:
          AssertionError: If one did not. The message names them.
        """
        self.assert_existing_objects_matched()
        unused = self._restoration.unused()
        if unused:
            raise AssertionError(
                f"Unresolved objects in checkpoint {self._restoration.folder.path}: {len(unused)} stored values have no "
                f"Python object, such as {unused[:10]}. Objects that create their variables later are "
                "restored then; call `expect_partial()` if this is intended."
            )
        return self

    def assert_existing_objects_matched(self) -> CheckpointLoadStatus:
        """Assert that every existing variable and every `PythonState` got a stored value.

        Returns:
          The status itself.

        Raises:
          AssertionError: If one did not. The message names them.
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
        """Assert that at least one object other than the root was matched.

        Returns:
          The status itself.

        Raises:
          AssertionError: If none was.
        """
        self._restoration.go_on()
        if not self._restoration.matched_anything():
            raise AssertionError(
                f"Nothing except the root object matched a checkpointed value: {self._restoration.folder.path} holds "
                f"{sorted(self._restoration.nodes[0]['children'])}, the object has {sorted(children(self._restoration.root))}."
            )
        return self

    def expect_partial(self) -> CheckpointLoadStatus:
        """Declare that some values may not be restored, and suppress the warning about them.

        Returns:
          The status itself.
        """
        self._restoration.expect_partial()
        return self

    def initialize_or_restore(self, session: object = None) -> None:
        """Do nothing, because values are restored when `restore` is called.

        Args:
          session: Ignored.
        """

    def run_restore_ops(self, session: object = None) -> None:
        """Do nothing, because values are restored when `restore` is called.

        Args:
          session: Ignored.
        """


class InitializationOnlyStatus(CheckpointLoadStatus):
    """Status that `Checkpoint.restore(None)` returns: nothing was restored."""

    def __init__(self) -> None:
        pass

    def expect_partial(self) -> CheckpointLoadStatus:
        """Do nothing, because there are no values to restore.

        Returns:
          The status itself.
        """
        return self

    def _nothing(self, session: object = None) -> NoReturn:
        raise AssertionError("No checkpoint specified (save_path=None); nothing is being restored.")

    assert_consumed = assert_existing_objects_matched = assert_nontrivial_match = _nothing
    run_restore_ops = _nothing
