"""`tf.compat.v1.train.Saver`: name-based checkpoints of variables, without an object graph."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from meshflow.checkpoint.assignment import assign_stored_value
from meshflow.checkpoint.checkpoint import check_not_traced
from meshflow.checkpoint.formats import (
    StoredCheckpoint,
    delete_checkpoint,
    is_checkpoint,
    open_checkpoint,
    write_checkpoint,
)
from meshflow.checkpoint.object_graph import create_saveables, get_stored_value, to_array
from meshflow.checkpoint.object_graph_message import GRAPH_KEY, map_full_names_to_keys
from meshflow.checkpoint.state_file import CheckpointState, write_state
from meshflow.core.runtime.errors import NotFoundError
from meshflow.core.values.tensor import Tensor, is_tensor
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable, get_full_name
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.paths import get_parent, to_path_string
from meshflow.legacy.graph.graph import get_default_graph, has_explicit_graph
from meshflow.legacy.graph.operations import SymbolicTensor
from meshflow.legacy.graph.sessions import use_session

# A variable, or a `SaveableObject`.
SavedItem: TypeAlias = Any
_VARIABLES = (Variable, ShardedVariable)
SavedVariables: TypeAlias = (
    Iterable[Variable | ShardedVariable] | Mapping[str, Variable | ShardedVariable]
)


class Saver:
    """Writer and reader of variables under their names.

    Args:
      var_list: Variables, or a dictionary of variables by their names in the checkpoint; in a graph, by default its
        global variables.
      reshape: Whether `restore` reshapes stored values to the shapes of the variables.
      sharded: Ignored.
      max_to_keep: Number of checkpoints to keep; None or 0 for all.
      keep_checkpoint_every_n_hours: Interval, in hours, at which one checkpoint is kept
        permanently.
      name: Ignored.
      restore_sequentially: Ignored.
      saver_def: Ignored.
      builder: Ignored.
      defer_build: Whether `build` finds the variables of the graph, after the constructor.
      allow_empty: Whether a graph without variables is allowed; then `save` and `restore` do nothing.
      write_version: Ignored.
      pad_step_number: Whether to pad the step in a path to eight digits.
      save_relative_paths: Ignored; paths in the `checkpoint` file are relative where possible.
      filename: Ignored.

    Raises:
      RuntimeError: If no variables are passed.
      TypeError: If an object is not a variable.
      ValueError: If several variables have the same name.

    Example:
      >>> import tempfile
      >>> w = tf.Variable([1.0, 2.0], name="w")
      >>> saver = tf.compat.v1.train.Saver([w])
      >>> path = saver.save(None, tempfile.mkdtemp() + "/model", global_step=3)
      >>> tf.train.list_variables(path)
      [('w', [2])]
      >>> _ = w.assign([0.0, 0.0])
      >>> saver.restore(None, path)
      >>> w.numpy().tolist()
      [1.0, 2.0]
    """

    def __init__(
        self,
        var_list: SavedVariables | None = None,
        reshape: bool = False,
        sharded: bool = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str | None = None,
        restore_sequentially: bool = False,
        saver_def: object = None,
        builder: object = None,
        defer_build: bool = False,
        allow_empty: bool = False,
        write_version: object = 2,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        filename: str | None = None,
    ) -> None:
        if defer_build and var_list is not None:
            raise ValueError(
                "Saver: do not pass `var_list` with defer_build=True; `build` finds the variables."
            )
        self._allow_empty = allow_empty
        self._found: dict[str, SavedItem] | None = None
        if not defer_build:
            self._find_variables(var_list)
        self._reshape, self._pad_step = reshape, pad_step_number
        self._max_to_keep, self._hours = max_to_keep, keep_checkpoint_every_n_hours
        self._next_permanent_time = time.time() + self._hours * 3600
        # Paths and times of the checkpoints, oldest first.
        self._last_checkpoints: list[tuple[str, float]] = []

    def _find_variables(self, var_list: SavedVariables | None) -> None:
        if var_list is None and has_explicit_graph():
            graph = get_default_graph()
            names = "variables", "saveable_objects"
            items = [item for name in names for item in graph.get_collection(name)]
            # Checkpoints of TensorFlow have no states of random streams.
            var_list = [i for i in items if not getattr(i, "initializes_in_sessions", False)]
            if not var_list and not self._allow_empty:
                raise ValueError("No variables to save")
        if var_list is None:
            raise RuntimeError(
                "Saver: pass `var_list`, a list or dictionary of variables; there is no graph to find them in."
            )
        self._found = map_by_name(var_list)

    def build(self) -> None:
        """Find the variables of the default graph, if `defer_build` was set.

        Raises:
          ValueError: If there are none.
        """
        if self._found is None:
            self._find_variables(None)

    @property
    def _variables(self) -> dict[str, SavedItem]:
        if self._found is None:
            raise RuntimeError(
                "Saver: call `build()` before `save` or `restore` with defer_build=True."
            )
        return self._found

    @property
    def last_checkpoints(self) -> list[str]:
        """Paths of the checkpoints that are kept, oldest first."""
        return [path for path, _ in self._last_checkpoints]

    def set_last_checkpoints(self, last_checkpoints: Sequence[str]) -> None:
        """Replace the list of checkpoints that are kept.

        Args:
          last_checkpoints: Paths, oldest first.
        """
        self._last_checkpoints = [(path, float("nan")) for path in last_checkpoints]

    def set_last_checkpoints_with_time(
        self, last_checkpoints_with_time: Sequence[tuple[str, float]]
    ) -> None:
        """Replace the list of checkpoints that are kept, with their times.

        Args:
          last_checkpoints_with_time: Pairs of a path and seconds since 1970, oldest first.
        """
        self._last_checkpoints = [
            (path, float(seconds)) for path, seconds in last_checkpoints_with_time
        ]

    def recover_last_checkpoints(self, checkpoint_paths: Iterable[str]) -> None:
        """Replace the list of checkpoints that are kept by those of an earlier run.

        Args:
          checkpoint_paths: Paths, oldest first; missing checkpoints are skipped.
        """
        existing = [path for path in map(to_path_string, checkpoint_paths) if is_checkpoint(path)]
        self._last_checkpoints = [
            (path, gfile.stat(f"{path}.index").mtime_nsec / 1e9) for path in existing
        ]

    def save(
        self,
        sess: object,
        save_path: StrPath,
        global_step: int | Variable | None = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> str | None:
        """Write a checkpoint.

        Args:
          sess: The session that holds the values, or None in eager execution.
          save_path: Path of the checkpoint; missing directories are created.
          global_step: Number or variable that is appended to the path.
          latest_filename: Name of the file that records the latest checkpoint; default
            "checkpoint".
          meta_graph_suffix: Ignored.
          write_meta_graph: Ignored.
          write_state: Whether to write the file `latest_filename`.
          strip_default_attrs: Ignored.
          save_debug_info: Ignored.

        Returns:
          The path of the checkpoint, with the step; None if there are no variables.

        Raises:
          RuntimeError: If `defer_build` was set, and `build` was not called.
          ValueError: If `latest_filename` contains a directory.
          NotImplementedError: If called inside a traced function.
        """
        check_not_traced()
        if os.path.dirname(latest_filename or ""):
            raise ValueError(
                f"Expected a file name for `latest_filename`, got {latest_filename!r}."
            )
        path = to_path_string(save_path)
        if global_step is None and os.path.basename(path) == (latest_filename or "checkpoint"):
            raise ValueError(
                f"The file {path!r} of the latest checkpoint's name collides with `save_path`: use another name."
            )
        if not self._variables:
            return None
        with use_session(sess):
            if global_step is not None:
                step = sess.run(global_step) if is_tensor(global_step) and sess else global_step  # type: ignore[attr-defined]
                path = f"{path}-{int(step):0{8 if self._pad_step else 1}d}"
            arrays: dict[str, Any] = {}
            for name, item in self._variables.items():
                arrays |= _list_arrays(name, item, sess)
            write_checkpoint(path, arrays)
        if write_state:
            self._record_checkpoint(path, latest_filename or "checkpoint")
        return path

    def _record_checkpoint(self, path: str, name: str) -> None:
        """Record a checkpoint as the latest, and delete the oldest ones beyond `max_to_keep`."""
        expired = []
        if self._max_to_keep:
            self._last_checkpoints = [
                pair for pair in self._last_checkpoints if pair[0] != path
            ] + [(path, time.time())]
        while self._max_to_keep and len(self._last_checkpoints) > self._max_to_keep:
            old, written_at = self._last_checkpoints.pop(0)
            if written_at > self._next_permanent_time:
                self._next_permanent_time += self._hours * 3600
            else:
                expired.append(old)
        write_state(
            get_parent(path) or ".", CheckpointState(path, self.last_checkpoints or [path]), name
        )
        for old in expired:
            delete_checkpoint(old)

    def restore(self, sess: object, save_path: StrPath | None) -> None:
        """Read the variables from a checkpoint.

        Args:
          sess: The session that holds the values, or None in eager execution.
          save_path: Path that `save` returned, or the path of a `tf.train.Checkpoint` of variables
            with these names.

        Raises:
          ValueError: If the checkpoint does not exist, or a value does not fit its variable.
          NotFoundError: If the checkpoint does not contain a variable.
        """
        if save_path is None:
            raise ValueError("Can't load save_path when it is None.")
        if not self._variables:
            return
        path = to_path_string(save_path)
        if not is_checkpoint(path):
            raise ValueError(f"The passed save_path is not a valid checkpoint: {path}")
        checkpoint = open_checkpoint(path)
        names = {name: _list_names(name, item) for name, item in self._variables.items()}
        keys = {n: find_key(checkpoint, n) for group in names.values() for n in group}
        with use_session(sess):
            for name, item in self._variables.items():
                if isinstance(item, _VARIABLES):
                    assign_stored_value(checkpoint, keys[name], item, self._reshape)
                else:
                    item.restore([Tensor(checkpoint.read(keys[n])) for n in names[name]], None)


def find_key(folder: StoredCheckpoint, name: str) -> str:
    """Find the key of a variable in a name-based or object-based checkpoint.

    Args:
      folder: The checkpoint.
      name: Name of the variable.

    Raises:
      NotFoundError: If the checkpoint does not contain the variable.
    """
    if name in folder.entries:
        return name
    keys = (
        map_full_names_to_keys(folder.read(GRAPH_KEY).item()) if GRAPH_KEY in folder.entries else {}
    )
    if name not in keys:
        raise NotFoundError(
            f"Key {name} not found in checkpoint {folder.path}: it holds {sorted(keys or folder.entries)[:10]}."
        )
    return keys[name]


def map_by_name(variables: SavedVariables) -> dict[str, SavedItem]:
    """Map names in the checkpoint to variables and saveable objects.

    Args:
      variables: List of variables, which uses their own names, or a dictionary. An object of a user's class that
        gathers its saveable objects for checkpoints is replaced by its only one.

    Raises:
      TypeError: If an object is not a variable, and not saveable.
      ValueError: If several variables have the same name.
    """
    if isinstance(variables, Mapping):
        return {name: _find_saveable(name, item) for name, item in variables.items()}
    if not isinstance(variables, Iterable):
        raise TypeError(f"Expected variables, got {variables!r}.")
    by_name: dict[str, SavedItem] = {}
    for variable in variables:
        is_variable = isinstance(variable, _VARIABLES)
        name = get_full_name(variable) if is_variable else getattr(variable, "name", "")
        item = _find_saveable(name.removesuffix(":0"), variable)
        if by_name.setdefault(name.removesuffix(":0"), item) is not item:
            raise ValueError(
                f"At least two variables have the same name: {name}. Pass a dictionary of variables."
            )
    return by_name


def _find_saveable(name: str, item: Any) -> SavedItem:
    """Return the variable or the `SaveableObject` that is saved for an object."""
    if hasattr(item, "_gather_saveables_for_checkpoint"):
        saveables = list(create_saveables(item, name).values())
        item = saveables[0] if len(saveables) == 1 else item
    if not isinstance(item, _VARIABLES) and not hasattr(item, "specs"):
        raise TypeError(f"Expected a variable to save, got {item!r}.")
    saveable: SavedItem = item
    return saveable


def _list_names(name: str, item: SavedItem) -> list[str]:
    """Return the names of the values of a variable or of a `SaveableObject`."""
    if isinstance(item, _VARIABLES):
        return [name]
    return [spec.name for spec in item.specs]


def _list_arrays(name: str, item: SavedItem, session: Any) -> dict[str, Any]:
    if isinstance(item, _VARIABLES):
        return {name: get_stored_value(item)}
    tensors = {spec.name: spec.tensor for spec in item.specs}
    return {
        n: session.run(t) if isinstance(t, SymbolicTensor) else to_array(t)
        for n, t in tensors.items()
    }
