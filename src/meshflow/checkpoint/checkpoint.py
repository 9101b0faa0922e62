"""`tf.train.Checkpoint`: save and restore the variables that objects own."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from meshflow.checkpoint.background_writer import BackgroundWriter
from meshflow.checkpoint.bundle_writer import has_remote_shards, load_into_memory
from meshflow.checkpoint.formats import (
    StoredCheckpoint,
    is_checkpoint,
    open_checkpoint,
    write_checkpoint,
)
from meshflow.checkpoint.name_based import restore_checkpoint
from meshflow.checkpoint.object_graph import Trackable, is_trackable, list_children
from meshflow.checkpoint.object_graph_message import collect_arrays
from meshflow.checkpoint.options import CheckpointOptions, run_write_callbacks
from meshflow.checkpoint.state_file import (
    CheckpointState,
    get_checkpoint_state,
    latest_checkpoint,
    write_state,
)
from meshflow.checkpoint.status import CheckpointLoadStatus, InitializationOnlyStatus
from meshflow.core.runtime.annotations import CHECKPOINT, annotate_region
from meshflow.core.runtime.context import context
from meshflow.core.runtime.eager import use_session
from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.tracing.trace import init_scope
from meshflow.core.variables.module import ObservableAttributes
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.paths import to_path_string


@hide_frames_of_methods
class Checkpoint(ObservableAttributes):
    """Group of objects that are saved and restored together.

    Values are matched by the path of attribute names, list indices and dictionary keys that leads
    to an object, not by the names of
    variables. They may be restored before the variables exist: layers and optimizers receive them
    when they are built, modules and
    checkpoints when the object is assigned to an attribute.

    Args:
      root: Object to save in place of the checkpoint: its children become children of the checkpoint. May be a
        `weakref.ref` of an object.
      **kwargs: Objects to save, which become attributes of the checkpoint.

    Raises:
      ValueError: If an object cannot be saved, or if `root` has another object under the name of a
        keyword argument.

    Example:
      >>> import tempfile
      >>> from meshflow import train
      >>> step = tf.Variable(1)
      >>> checkpoint = train.Checkpoint(step=step)
      >>> path = checkpoint.save(tempfile.mkdtemp() + "/ckpt")
      >>> _ = step.assign(5)
      >>> status = checkpoint.restore(path).assert_consumed()
      >>> int(step)
      1
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return an object that was passed as a keyword argument, or assigned."""

    def __init__(self, root: Trackable | None = None, **kwargs: Any) -> None:
        self._save_counter: Variable | None = None
        self._background = BackgroundWriter()
        self._rooted = root is not None
        own: dict[str, Any] = {}
        if self._rooted:
            self.root = root
            if not is_trackable(self._checkpoint_root):
                raise ValueError(_format_not_trackable_error("root", root))
            own = list_children(self._checkpoint_root)
        for name, value in kwargs.items():
            if not is_trackable(value):
                raise ValueError(_format_not_trackable_error(name, value))
            if name in own and own[name] is not value:
                raise ValueError(
                    f"Cannot create a Checkpoint with keyword argument {name} if root.{name} already exists and is "
                    "a different object."
                )
            setattr(self, name, value)

    @property
    def _checkpoint_root(self) -> Trackable | None:
        """Return the root, or None if there is none or its weak reference has expired."""
        if not self._rooted:
            return None
        return self.root() if isinstance(self.root, weakref.ref) else self.root

    def _checkpoint_children(self) -> dict[str, Any]:
        attributes = {
            name: value
            for name, value in vars(self).items()
            if name not in ("_background", "_save_counter") and is_trackable(value)
        }
        children_by_name = attributes
        if self._checkpoint_root is not None:
            children_by_name = {**list_children(self._checkpoint_root), **attributes, "root": self}
        if self._save_counter is not None:
            children_by_name["save_counter"] = self._save_counter
        return children_by_name

    @property
    def save_counter(self) -> Variable:
        """Return the number of calls of `save`: an int64 variable that is saved, too."""
        if self._save_counter is None:
            with init_scope():
                self._save_counter = Variable(np.int64(0), trainable=False, name="save_counter")
            # In a graph of version 1, the counter needs no initializer.
            object.__setattr__(self._save_counter, "initializes_on_read", True)
        return self._save_counter

    def write(self, file_prefix: StrPath, options: CheckpointOptions | None = None) -> str:
        """Save without a number and without updating the `checkpoint` file.

        Args:
          file_prefix: Path of the checkpoint. An existing checkpoint is replaced.
          options: See `CheckpointOptions`.

        Returns:
          The path.

        Raises:
          ValueNeededError: If called while a function is traced; the function then runs op by op.
        """
        if context.trace is not None:
            raise ValueNeededError(
                "tf.train.Checkpoint.write() writes files, which a compiled program cannot do."
            )
        with use_session():
            return self._write_and_record(to_path_string(file_prefix), options, lambda _: None)

    @annotate_region(CHECKPOINT, "write")
    def _write_and_record(
        self, path: str, options: CheckpointOptions | None, record: Callable[[str], None]
    ) -> str:
        """Write the checkpoint, now or in the background, then call `record` and the callbacks."""
        options = _check_options(options)
        self.sync()
        owners: dict[str, Any] = {}
        arrays = collect_arrays(self, owners)

        def write() -> None:
            write_checkpoint(path, arrays, options.experimental_sharding_callback, owners)
            record(path)
            run_write_callbacks(options, path)

        if options.enable_async and not has_remote_shards(arrays.values()):
            for key, value in arrays.items():
                # An array that is referenced here is never overwritten, except for NumPy arrays.
                if isinstance(value, np.ndarray):
                    arrays[key] = value.copy()
                else:
                    arrays[key] = load_into_memory(value)
            self._background.run(write)
        else:
            write()
        return path

    def sync(self) -> None:
        """Wait until a checkpoint that is written in the background is complete.

        Raises:
          OpError: If writing failed.

        Example:
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

    def save(self, file_prefix: StrPath, options: CheckpointOptions | None = None) -> str:
        """Save under the next number, and record the path in the folder's `checkpoint` file.

        Args:
          file_prefix: Path of the checkpoint without the number.
          options: See `CheckpointOptions`.

        Returns:
          The path, such as "folder/ckpt-1".

        Example:
          >>> import os, tempfile
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     checkpoint = tf.train.Checkpoint(w=tf.Variable(1.0))
          ...     [os.path.basename(checkpoint.save(os.path.join(folder, "ckpt"))) for _ in range(2)]
          ['ckpt-1', 'ckpt-2']
        """
        self.sync()
        check_not_traced()
        counter = self.save_counter
        with use_session():
            return self._write_and_record(
                f"{to_path_string(file_prefix)}-{int(counter.assign_add(1))}",
                options,
                record_latest_checkpoint,
            )

    def read(
        self, save_path: StrPath, options: CheckpointOptions | None = None
    ) -> CheckpointLoadStatus:
        """Restore a checkpoint that `write` or `save` wrote.

        Args:
          save_path: Path that they returned, or the path of a checkpoint of TensorFlow 1's `Saver`,
            from which each variable gets
            the value with its name.
          options: See `CheckpointOptions`.

        Returns:
          A `CheckpointLoadStatus`.

        Raises:
          NotFoundError: If there is no checkpoint.
          DataLossError: If a file is damaged.
          ValueError: If a stored value does not fit its variable.
        """
        self.sync()
        skip = options is not None and options.experimental_skip_slot_variables
        return restore_checkpoint(open_latest_checkpoint(save_path), self, skip)

    def restore(
        self, save_path: StrPath | None, options: CheckpointOptions | None = None
    ) -> CheckpointLoadStatus:
        """Restore a checkpoint that `save` or `write` wrote.

        Args:
          save_path: Path that they returned, the folder of a `checkpoint` file, or the folder of a
            SavedModel. None restores
            nothing.
          options: See `CheckpointOptions`.

        Returns:
          A `CheckpointLoadStatus`.

        Raises:
          NotFoundError, DataLossError, ValueError: As in `read`.

        Example:
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
            return InitializationOnlyStatus(self)
        _ = self.save_counter
        status = self.read(save_path, options)
        if "save_counter" not in status.restoration.nodes[0]["children"]:
            # The checkpoint was written without a number. Without the counter, the next `save`
            # starts at 1, and `assert_existing_objects_matched` does not miss its value.
            self._save_counter = None
        return status


def check_not_traced() -> None:
    """Raise an error if a function is being traced, where checkpoints cannot be numbered.

    Raises:
      NotImplementedError: If a function is being traced.
    """
    if context.trace is not None:
        raise NotImplementedError(
            "Checkpoints cannot be numbered inside a tf.function: call save() outside of it, or write()."
        )


def _check_options(options: CheckpointOptions | None) -> CheckpointOptions:
    if options is not None and not isinstance(options, CheckpointOptions):
        raise TypeError(f"Expected a tf.train.CheckpointOptions for `options`, got {options!r}.")
    return options or CheckpointOptions()


def _format_not_trackable_error(name: str, value: object) -> str:
    return (
        f"`Checkpoint` was expecting {name} to be a trackable object (a Variable, Module, layer, model, optimizer, or "
        f"a list or dictionary of them), got {value!r}."
    )


def open_latest_checkpoint(path: StrPath) -> StoredCheckpoint:
    """Open a checkpoint, the latest checkpoint of a folder, or the checkpoint of a SavedModel.

    Args:
      path: Path of the checkpoint, of a folder with a `checkpoint` file, or of a SavedModel.
    """
    path = to_path_string(path)
    if gfile.isdir(path):
        saved_model = gfile.join(path, "saved_model.pb"), gfile.join(path, "saved_model.pbtxt")
        if any(map(gfile.exists, saved_model)):
            return open_checkpoint(gfile.join(path, "variables", "variables"))
        if not is_checkpoint(path):
            return open_checkpoint(latest_checkpoint(path) or path)
    return open_checkpoint(path)


@annotate_region(CHECKPOINT, "write")
def write_objects(path: str, root: Trackable, options: CheckpointOptions | None = None) -> None:
    """Write the values and the graph of the objects below a root as the latest checkpoint.

    Args:
      path: Path of the checkpoint.
      root: The root.
      options: See `CheckpointOptions`. `enable_async` is ignored because there is no `Checkpoint`
        to synchronize with.
    """
    owners: dict[str, Any] = {}
    arrays = collect_arrays(root, owners)
    options = _check_options(options)
    write_checkpoint(path, arrays, options.experimental_sharding_callback, owners)
    record_latest_checkpoint(path)
    run_write_callbacks(options, path)


@annotate_region(CHECKPOINT, "restore")
def restore_objects(path: StrPath, root: Trackable) -> CheckpointLoadStatus:
    """Restore the values of the objects below a root.

    Args:
      path: Path that was passed to `write_objects`.
      root: The root.

    Returns:
      A `CheckpointLoadStatus`.

    Raises:
      NotFoundError, DataLossError, ValueError: As in `Checkpoint.read`.
    """
    return restore_checkpoint(open_latest_checkpoint(path), root)


def record_latest_checkpoint(path: str) -> None:
    """Record a checkpoint as the latest in the `checkpoint` file of its folder.

    Args:
      path: Path of the checkpoint.
    """
    folder = os.path.dirname(path) or "."
    if os.path.basename(path) == "checkpoint":
        return  # The checkpoint itself has the name of the file.
    state = get_checkpoint_state(folder)
    other_paths = [p for p in state.all_model_checkpoint_paths if p != path] if state else []
    # Only a CheckpointManager, which also writes timestamps, needs the list of all checkpoints. Its
    # timestamps would not match the list after adding this one.
    if not state or not state.all_model_checkpoint_timestamps:
        other_paths = []
    write_state(folder, CheckpointState(path, [*other_paths, path]))
