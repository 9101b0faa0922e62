"""Status objects that restoring returns, with assertions on the restored values."""

from __future__ import annotations

from typing import NoReturn

from meshflow.checkpoint.object_graph import ObjectGraph, Trackable, list_children, resolve_root
from meshflow.checkpoint.restoration import Restoration, initialize_variables
from meshflow.core.runtime.context import context
from meshflow.core.runtime.eager import use_session
from meshflow.core.runtime.tracebacks import hide_frames_of_methods


def _describe_path(key: str) -> str:
    """Return the path of a stored value from the root, for example `(root).layer.kernel`."""
    path = key.partition("/.ATTRIBUTES/")[0].removeprefix(".ATTRIBUTES/")
    return ".".join(["(root)", *path.split("/")])


@hide_frames_of_methods
class CheckpointLoadStatus:
    """Status that `Checkpoint.restore` returns, with assertions on the restored values.

    Args:
      restoration: The restoration.
    """

    def __init__(self, restoration: Restoration) -> None:
        self.restoration = restoration
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
        unused = self.restoration.list_unused_keys()
        if unused:
            listed = [f"{_describe_path(key)} ({key})" for key in unused[:10]]
            raise AssertionError(
                f"Unresolved object in checkpoint {self.restoration.checkpoint.path}: {len(unused)} stored values were not "
                f"restored. Unused attributes in these objects of the checkpoint: {', '.join(listed)}. Objects that "
                "create their variables later are restored then; call `expect_partial()` if this is intended."
            )
        return self

    def assert_existing_objects_matched(self) -> CheckpointLoadStatus:
        """Assert that every existing variable and every `PythonState` got a stored value.

        Returns:
          The status itself.

        Raises:
          AssertionError: If one did not. The message names them.
        """
        self.restoration.resume()
        missing = self.restoration.list_unmatched_objects()
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
        self.restoration.resume()
        if not self.restoration.has_matches():
            raise AssertionError(
                f"Nothing except the root object matched a checkpointed value: {self.restoration.checkpoint.path} holds "
                f"{sorted(self.restoration.nodes[0]['children'])}, the object has {sorted(list_children(self.restoration.root))}."
            )
        return self

    def expect_partial(self) -> CheckpointLoadStatus:
        """Declare that some values may not be restored, and suppress the warning about them.

        Returns:
          The status itself.
        """
        self.restoration.expect_partial()
        return self

    def initialize_or_restore(self, session: object = None) -> None:
        """Restore the values of variables of a version 1 graph, and initialize its other variables.

        Values of other variables are restored when `restore` is called.

        Args:
          session: The session of the graph. Default: the default one.

        Raises:
          RuntimeError: If there is no session.
        """
        self.restoration.run_deferred(session, initializes=True)

    def run_restore_ops(self, session: object = None) -> None:
        """Restore the values of variables of a version 1 graph; see `initialize_or_restore`.

        Args:
          session: The session of the graph. Default: the default one.
        """
        self.restoration.run_deferred(session)


class InitializationOnlyStatus(CheckpointLoadStatus):
    """Status that `Checkpoint.restore(None)` returns: nothing was restored."""

    def __init__(self, root: Trackable) -> None:
        self._root, self._graph = root, context.graph if context.trace is None else None

    def initialize_or_restore(self, session: object = None) -> None:
        """Initialize the variables of a version 1 graph below the root.

        Args:
          session: The session of the graph. Default: the default one.
        """
        if self._graph is not None:
            with use_session(self._graph, session):
                initialize_variables(map(resolve_root, ObjectGraph(self._root).objects))

    def expect_partial(self) -> CheckpointLoadStatus:
        """Do nothing, because there are no values to restore.

        Returns:
          The status itself.
        """
        return self

    def _raise_not_restored(self, session: object = None) -> NoReturn:
        raise AssertionError("No checkpoint specified (save_path=None); nothing is being restored.")

    assert_consumed = assert_existing_objects_matched = assert_nontrivial_match = (
        _raise_not_restored
    )
    run_restore_ops = _raise_not_restored
