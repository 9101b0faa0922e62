"""`tf.train.Checkpoint`: saves and restores the variables that objects own."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.checkpoint.background import Background
from meshflow.checkpoint.bundle_writer import held_apart, in_memory
from meshflow.checkpoint.by_name import restored
from meshflow.checkpoint.containers import Stored, is_checkpoint, open_checkpoint, written
from meshflow.checkpoint.graph import children, is_trackable
from meshflow.checkpoint.graph_message import contents
from meshflow.checkpoint.options import CheckpointOptions, notify
from meshflow.checkpoint.state_file import (
    CheckpointState,
    get_checkpoint_state,
    latest_checkpoint,
    write_state,
)
from meshflow.checkpoint.status import CheckpointLoadStatus, InitializationOnlyStatus
from meshflow.core.runtime.annotations import CHECKPOINT, inside
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.tracing.trace import init_scope
from meshflow.core.variables.module import Awaited
from meshflow.core.variables.variable import Variable
from meshflow.files import gfile
from meshflow.files.paths import text


class Checkpoint(Awaited):
    """A group of objects that are saved and restored together.

    Values are matched by the names that lead to them (attributes, list positions, dictionary keys),
    not by the names of variables, and may be restored before the variables exist: layers and optimizers
    take them when they are built, modules and checkpoints when they become attributes.

    Args:
      root: an object that is saved as this object itself: its children are this object's own. A `weakref.ref` of one does.
      **kwargs: objects to save; they become attributes.

    Raises:
      ValueError: for an object that cannot be saved, or a name that `root` uses for something else.

    Example:
      >>> import tempfile
      >>> import meshflow as tf
      >>> from meshflow import train
      >>> step = tf.Variable(1)
      >>> checkpoint = train.Checkpoint(step=step)
      >>> path = checkpoint.save(tempfile.mkdtemp() + "/ckpt")
      >>> _ = step.assign(5)
      >>> status = checkpoint.restore(path).assert_consumed()
      >>> int(step)
      1
    """

    def __init__(self, root: Any = None, **kwargs: Any) -> None:
        self._save_counter: Variable | None = None
        self._background = Background()
        self._rooted = root is not None
        own: dict[str, Any] = {}
        if self._rooted:
            self.root = root
            if not is_trackable(self._checkpoint_root):
                raise ValueError(_not_trackable("root", root))
            own = children(self._checkpoint_root)
        for name, value in kwargs.items():
            if not is_trackable(value):
                raise ValueError(_not_trackable(name, value))
            if name in own and own[name] is not value:
                raise ValueError(
                    f"Cannot create a Checkpoint with keyword argument {name} if root.{name} already exists and is "
                    "another object."
                )
            setattr(self, name, value)

    @property
    def _checkpoint_root(self) -> Any:
        """What the checkpoint was made for; None when it is only referred to, and is gone."""
        if not self._rooted:
            return None
        return self.root() if isinstance(self.root, weakref.ref) else self.root

    def _checkpoint_children(self) -> dict[str, Any]:
        attributes = {
            name: value
            for name, value in vars(self).items()
            if name not in ("_background", "_save_counter") and is_trackable(value)
        }
        found = attributes
        if self._checkpoint_root is not None:
            found = {**children(self._checkpoint_root), **attributes, "root": self}
        if self._save_counter is not None:
            found["save_counter"] = self._save_counter
        return found

    @property
    def save_counter(self) -> Variable:
        """How often `save` was called: an int64 variable, saved too; it numbers the checkpoints."""
        if self._save_counter is None:
            with init_scope():
                self._save_counter = Variable(np.int64(0), trainable=False, name="save_counter")
        return self._save_counter

    def write(self, file_prefix: Any, options: CheckpointOptions | None = None) -> str:
        """Saves without a number and without the `checkpoint` file.

        Args:
          file_prefix: path of the checkpoint; one that is there is replaced.
          options: see `CheckpointOptions`.

        Returns:
          The path.

        Raises:
          ValueNeededError: while a function is traced, which therefore runs op by op.
        """
        if context.trace is not None:
            raise ValueNeededError(
                "tf.train.Checkpoint.write() writes files, which compiled programs do not."
            )
        return self._write(text(file_prefix), options, lambda _: None)

    @inside(CHECKPOINT, "write")
    def _write(
        self, path: str, options: CheckpointOptions | None, note: Callable[[str], None]
    ) -> str:
        """Writes, now or in the background, and then calls `note` and the options' callbacks with the path."""
        options = _checked(options)
        self.sync()
        owners: dict[str, Any] = {}
        arrays = contents(self, owners)

        def write() -> None:
            written(path, arrays, options.experimental_sharding_callback, owners)
            note(path)
            notify(options, path)

        if options.enable_async and not held_apart(arrays.values()):
            for key, value in arrays.items():
                # Others are never written in place while they are held.
                if isinstance(value, np.ndarray):
                    arrays[key] = value.copy()
                else:
                    arrays[key] = in_memory(value)
            self._background.run(write)
        else:
            write()
        return path

    def sync(self) -> None:
        """Waits until what is written in the background is whole.

        Raises:
          OpError: what went wrong.

        Example:
          >>> import meshflow as tf
          >>> import os, tempfile
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     checkpoint = tf.train.Checkpoint(w=tf.Variable(1.0))
          ...     options = tf.train.CheckpointOptions(enable_async=True)
          ...     path = checkpoint.save(os.path.join(folder, "ckpt"), options)
          ...     checkpoint.sync()
          ...     float(tf.train.load_variable(path, "w"))
          1.0
        """
        self._background.wait()

    def save(self, file_prefix: Any, options: CheckpointOptions | None = None) -> str:
        """Saves under the next number and writes the `checkpoint` file beside it.

        Args:
          file_prefix: the path without the number.
          options: see `CheckpointOptions`.

        Returns:
          The path, such as "folder/ckpt-1".

        Example:
          >>> import meshflow as tf
          >>> import os, tempfile
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     checkpoint = tf.train.Checkpoint(w=tf.Variable(1.0))
          ...     [os.path.basename(checkpoint.save(os.path.join(folder, "ckpt"))) for _ in range(2)]
          ['ckpt-1', 'ckpt-2']
        """
        self.sync()
        refuse_traces()
        number = int(self.save_counter.assign_add(1))
        return self._write(f"{text(file_prefix)}-{number}", options, note_latest)

    def read(self, save_path: Any, options: CheckpointOptions | None = None) -> Any:
        """Restores what `write` or `save` wrote.

        Args:
          save_path: the path they returned, or one that TensorFlow 1's `Saver` wrote: variables then take the values
            of their own names.
          options: see `CheckpointOptions`.

        Returns:
          A `CheckpointLoadStatus`.

        Raises:
          NotFoundError: when there is no checkpoint.
          DataLossError: when a file is damaged.
          ValueError: when a stored value does not fit its variable.
        """
        self.sync()
        skip = options is not None and options.experimental_skip_slot_variables
        return restored(open_latest(save_path), self, skip)

    def restore(self, save_path: Any, options: CheckpointOptions | None = None) -> Any:
        """Restores what `save` or `write` wrote.

        Args:
          save_path: the path they returned, the folder of the `checkpoint` file, that of a saved model, or None for
            nothing.
          options: see `CheckpointOptions`.

        Returns:
          A `CheckpointLoadStatus`; errors as in `read`.

        Example:
          >>> import meshflow as tf
          >>> import os, tempfile
          >>> w = tf.Variable(1.0)
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     path = tf.train.Checkpoint(w=w).save(os.path.join(folder, "ckpt"))
          ...     _ = w.assign(5.0)
          ...     _ = tf.train.Checkpoint(w=w).restore(path).assert_consumed()
          >>> float(w)
          1.0
        """
        if save_path is None:
            return InitializationOnlyStatus()
        _ = self.save_counter
        status = self.read(save_path, options)
        if "save_counter" not in status._restoration.nodes[0]["children"]:
            # Written without a number: counting starts anew, and the counter is not missed.
            self._save_counter = None
        return status


def refuse_traces() -> None:
    """Refuses to count checkpoints while a function is traced.

    Raises:
      NotImplementedError: there.
    """
    if context.trace is not None:
        raise NotImplementedError(
            "Checkpoints cannot be numbered inside a tf.function: call save() outside of it, or write()."
        )


def _checked(options: Any) -> CheckpointOptions:
    if options is not None and not isinstance(options, CheckpointOptions):
        raise TypeError(f"Expected a tf.train.CheckpointOptions for `options`, got {options!r}.")
    return options or CheckpointOptions()


def _not_trackable(name: str, value: Any) -> str:
    return (
        f"`Checkpoint` was expecting {name} to be a trackable object (a Variable, Module, layer, model, optimizer, or "
        f"a list or dictionary of them), got {value!r}."
    )


def open_latest(path: Any) -> Stored:
    """A checkpoint by its path, the latest one of a folder, or that of a saved model.

    Args:
      path: the checkpoint's path, the folder of its `checkpoint` file, or that of a saved model.
    """
    path = text(path)
    if gfile.isdir(path):
        saved_model = gfile.join(path, "saved_model.pb"), gfile.join(path, "saved_model.pbtxt")
        if any(map(gfile.exists, saved_model)):
            return open_checkpoint(gfile.join(path, "variables", "variables"))
        if not is_checkpoint(path):
            return open_checkpoint(latest_checkpoint(path) or path)
    return open_checkpoint(path)


@inside(CHECKPOINT, "write")
def write_objects(path: str, root: Any, options: CheckpointOptions | None = None) -> None:
    """Writes the values below an object, and the graph of objects, and names them as the latest.

    Args:
      path: the checkpoint's path.
      root: the object.
      options: see `CheckpointOptions`; without a `Checkpoint` to wait for, nothing is written in the background.
    """
    owners: dict[str, Any] = {}
    arrays = contents(root, owners)
    options = _checked(options)
    written(path, arrays, options.experimental_sharding_callback, owners)
    note_latest(path)
    notify(options, path)


@inside(CHECKPOINT, "restore")
def restore_objects(path: Any, root: Any) -> CheckpointLoadStatus:
    """Restores the values below an object.

    Args:
      path: what `write_objects` was given.
      root: the object.

    Returns:
      A `CheckpointLoadStatus`; errors as in `Checkpoint.read`.
    """
    return restored(open_latest(path), root)


def note_latest(path: str) -> None:
    """Names a checkpoint as the latest in the `checkpoint` file of its folder.

    Args:
      path: the checkpoint's path.
    """
    folder = os.path.dirname(path) or "."
    if os.path.basename(path) == "checkpoint":
        return  # the checkpoint itself has the file's name
    known = get_checkpoint_state(folder)
    kept = [p for p in known.all_model_checkpoint_paths if p != path] if known else []
    # Only a CheckpointManager keeps a list; its times would not fit other checkpoints.
    kept = kept if known and known.all_model_checkpoint_timestamps else []
    write_state(folder, CheckpointState(path, [path] if not kept else [*kept, path]))
