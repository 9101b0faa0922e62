"""`tf.train.CheckpointView` and `TrackableView`: the graph of objects of a checkpoint, and that of a program."""

from __future__ import annotations

import logging
import weakref
from typing import Any

from meshflow.checkpoint.containers import open_checkpoint, stored_objects
from meshflow.checkpoint.graph import children, is_trackable, owner

__all__ = ["CheckpointView", "TrackableView"]

_log = logging.getLogger("meshflow")


class TrackableView:
    """What a checkpoint would save of an object.

    Args:
      root: the object, or a `weakref.ref` of it; the view does not keep it alive.

    Raises:
      TypeError: for an object that has no weak references.

    Example:
      >>> import meshflow as tf
      >>> module = tf.Module()
      >>> module.w, module.parts = tf.Variable(1.0), [tf.Variable(2.0)]
      >>> view = tf.train.TrackableView(module)
      >>> list(view.children(module))
      ['w', 'parts']
      >>> len(view.descendants())
      4
    """

    def __init__(self, root: Any) -> None:
        self._root_of = root if isinstance(root, weakref.ref) else weakref.ref(root)

    @classmethod
    def children(cls, obj: Any, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        """The objects that one owns directly, by name.

        Args:
          obj: the object.
          save_type: accepted for TensorFlow's sake.
          **kwargs: likewise.

        Raises:
          ValueError: for an object that no checkpoint holds.
        """
        _check(obj)
        return children(obj)

    @property
    def root(self) -> Any:
        """The object.

        Raises:
          AssertionError: when it is gone.
        """
        root = self._root_of()
        if root is None:
            raise AssertionError("The root of this TrackableView is gone.")
        return root

    def descendants(self) -> list[Any]:
        """The root and all objects below it, breadth first."""
        queue = [self.root]
        seen = {id(self.root)}
        for item in queue:
            for child in self.children(item).values():
                if id(child) not in seen:
                    seen.add(id(child))
                    queue.append(child)
        return queue


class CheckpointView:
    """The graph of objects that a checkpoint holds; nodes are numbers, the root is 0.

    Args:
      save_path: the checkpoint's path.

    Raises:
      NotFoundError: when there is none.
      ValueError: when it holds no objects, as those of TensorFlow 1's `Saver`.

    Example:
      >>> import meshflow as tf
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

    def __init__(self, save_path: Any) -> None:
        self._nodes = stored_objects(open_checkpoint(save_path))["nodes"]

    def children(self, node_id: int) -> dict[str, int]:
        """The nodes that one owns directly, by name.

        Args:
          node_id: the node.
        """
        return dict(self._nodes[node_id]["children"])

    def descendants(self) -> list[int]:
        """The root and all nodes below it, breadth first."""
        queue = [0]
        for node in queue:
            queue += dict.fromkeys(n for n in self.children(node).values() if n not in queue)
        return queue

    def match(self, obj: Any) -> dict[int, Any]:
        """The objects of a program that have the names of nodes.

        Args:
          obj: the object that takes the root's place.

        Returns:
          Objects by node.

        Raises:
          ValueError: for an object that no checkpoint holds.
        """
        _check(obj)
        found, queue = {0: obj}, [0]
        for node in queue:
            own = children(found[node])
            for name, child in self.children(node).items():
                if name not in own or child == 0:
                    continue
                if child not in found:
                    found[child] = own[name]
                    queue.append(child)
                elif found[child] is not own[name]:
                    _log.warning(
                        "Node %d of the checkpoint is one object, the program has two: %r and %r.",
                        *(child, found[child], own[name]),
                    )
        return found

    def diff(self, obj: Any) -> tuple[dict[int, Any], list[int], list[Any]]:
        """How a checkpoint and a program differ, for example where `assert_consumed` fails.

        Args:
          obj: as in `match`, errors too.

        Returns:
          What `match` returns, the nodes that have no object, and the objects that have no node.
        """
        found = self.match(obj)
        known = {id(item) for item in found.values()}
        nodes = [node for node in self.descendants() if node not in found]
        return found, nodes, [x for x in TrackableView(obj).descendants() if id(x) not in known]


def _check(obj: Any) -> None:
    if not is_trackable(owner(obj)):
        raise ValueError(f"Expected an object that checkpoints hold, got {obj!r} of {type(obj)}.")
