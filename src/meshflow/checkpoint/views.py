"""`tf.train.CheckpointView` and `TrackableView`: object graphs of checkpoints and programs."""

from __future__ import annotations

import logging
import weakref
from typing import Any

from meshflow.checkpoint.formats import open_checkpoint, read_object_graph
from meshflow.checkpoint.object_graph import Trackable, is_trackable, list_children, resolve_root
from meshflow.environment.types import StrPath

_log = logging.getLogger("meshflow")


class TrackableView:
    """View of the objects that a checkpoint would save.

    Args:
      root: Root object, or a `weakref.ref` of it. The view does not keep it alive.

    Raises:
      TypeError: If the object does not support weak references.

    Example:
      >>> module = tf.Module()
      >>> module.w, module.parts = tf.Variable(1.0), [tf.Variable(2.0)]
      >>> view = tf.train.TrackableView(module)
      >>> list(view.children(module))
      ['w', 'parts']
      >>> len(view.descendants())
      4
    """

    def __init__(self, root: Trackable) -> None:
        self._root_reference = root if isinstance(root, weakref.ref) else weakref.ref(root)

    @classmethod
    def children(
        cls, obj: Trackable, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Trackable]:
        """Return the objects that an object owns directly, by name.

        Args:
          obj: The object.
          save_type: Accepted for compatibility with TensorFlow.
          **kwargs: Accepted for compatibility with TensorFlow.

        Raises:
          ValueError: If a checkpoint cannot save the object.
        """
        _check_trackable(obj)
        return list_children(obj)

    @property
    def root(self) -> Trackable:
        """Return the root object.

        Raises:
          AssertionError: If it was garbage-collected.
        """
        root = self._root_reference()
        if root is None:
            raise AssertionError("The root of this TrackableView is gone.")
        return root

    def descendants(self) -> list[Any]:
        """Return the root and all objects below it, in breadth-first order."""
        queue = [self.root]
        seen = {id(self.root)}
        for item in queue:
            for child in self.children(item).values():
                if id(child) not in seen:
                    seen.add(id(child))
                    queue.append(child)
        return queue


class CheckpointView:
    """View of the object graph of a checkpoint. Nodes are integers, the root is 0.

    Args:
      save_path: Path of the checkpoint.

    Raises:
      NotFoundError: If there is no checkpoint.
      ValueError: If the checkpoint has no objects, such as those of TensorFlow 1's `Saver`.

    Example:
      >>> import os, tempfile
      >>> module = tf.Module()
      >>> module.w, module.b = tf.Variable(1.0), tf.Variable(2.0)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     view = tf.train.CheckpointView(tf.train.Checkpoint(module).write(os.path.join(folder, "c")))
      >>> view.children(0)
      {'w': 1, 'b': 2, 'root': 0}
      >>> other = tf.Module()
      >>> other.w, other.scale = tf.Variable(1.0), tf.Variable(3.0)
      >>> overlap, only_stored, only_here = view.diff(other)
      >>> list(overlap), only_stored, only_here == [other.scale]
      ([0, 1], [2], True)
    """

    def __init__(self, save_path: StrPath) -> None:
        self._nodes = read_object_graph(open_checkpoint(save_path))["nodes"]

    def children(self, node_id: int) -> dict[str, int]:
        """Return the nodes that a node owns directly, by name.

        Args:
          node_id: The node.
        """
        return dict(self._nodes[node_id]["children"])

    def descendants(self) -> list[int]:
        """Return the root and all nodes below it, in breadth-first order."""
        queue = [0]
        for node in queue:
            queue += dict.fromkeys(n for n in self.children(node).values() if n not in queue)
        return queue

    def match(self, obj: Trackable) -> dict[int, Trackable]:
        """Match nodes with the objects of a program by their names.

        Args:
          obj: Object that corresponds to the root of the checkpoint.

        Returns:
          Objects by node.

        Raises:
          ValueError: If a checkpoint cannot save the object.
        """
        _check_trackable(obj)
        matches, queue = {0: obj}, [0]
        for node in queue:
            named_children = list_children(matches[node])
            for name, child in self.children(node).items():
                if name not in named_children or child == 0:
                    continue
                if child not in matches:
                    matches[child] = named_children[name]
                    queue.append(child)
                elif matches[child] is not named_children[name]:
                    _log.warning(
                        "Inconsistent references when matching the checkpoint into this object graph. "
                        "Node %d of the checkpoint is one object, but the program has two: %r and %r.",
                        *(child, matches[child], named_children[name]),
                    )
        return matches

    def diff(self, obj: Trackable) -> tuple[dict[int, Trackable], list[int], list[Trackable]]:
        """Return how a checkpoint and a program differ, to debug a failing `assert_consumed`.

        Args:
          obj: Object that corresponds to the root of the checkpoint.

        Returns:
          The result of `match`, the nodes without an object, and the objects without a node.

        Raises:
          ValueError: If a checkpoint cannot save the object.
        """
        matches = self.match(obj)
        matched_ids = {id(item) for item in matches.values()}
        nodes = [node for node in self.descendants() if node not in matches]
        return (
            matches,
            nodes,
            [x for x in TrackableView(obj).descendants() if id(x) not in matched_ids],
        )


def _check_trackable(obj: Trackable) -> None:
    if not is_trackable(resolve_root(obj)):
        raise ValueError(
            f"Expected an object that a checkpoint can save, got {obj!r} of type {type(obj)}."
        )
