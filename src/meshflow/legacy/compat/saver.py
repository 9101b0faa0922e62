"""`tf.compat.v1.train.Saver`: variables by their names, in checkpoints without objects."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meshflow.checkpoint.assigning import put
from meshflow.checkpoint.checkpoint import refuse_traces
from meshflow.checkpoint.containers import Stored, is_checkpoint, open_checkpoint, remove, written
from meshflow.checkpoint.graph import stored
from meshflow.checkpoint.graph_message import GRAPH, keys_by_full_name
from meshflow.checkpoint.state_file import CheckpointState, write_state
from meshflow.core.runtime.errors import NotFoundError
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable
from meshflow.files import gfile
from meshflow.files.paths import parent, text

__all__ = ["Saver", "named"]


class Saver:
    """Writes variables under their names, and reads them again; there are no sessions, and None stands for one.

    Args:
      var_list: variables, or a dictionary of them by the names that the checkpoint gives them.
      reshape: whether `restore` gives stored values the shapes of the variables.
      sharded: accepted for TensorFlow's sake, as all that are not named here.
      max_to_keep: how many checkpoints are kept; None or 0 for all.
      keep_checkpoint_every_n_hours: one is kept for ever each time so many hours have passed.
      name: ignored.
      restore_sequentially: ignored.
      saver_def: ignored.
      builder: ignored.
      defer_build: ignored.
      allow_empty: ignored.
      write_version: ignored.
      pad_step_number: whether the step in a name has at least eight digits.
      save_relative_paths: ignored: the paths in the `checkpoint` file are relative where they can be.
      filename: ignored.

    Raises:
      RuntimeError: without variables.
      TypeError: for what is no variable.
      ValueError: for several variables of one name.

    Example:
      >>> import meshflow as tf
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
        var_list: Any = None,
        reshape: bool = False,
        sharded: bool = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str | None = None,
        restore_sequentially: bool = False,
        saver_def: Any = None,
        builder: Any = None,
        defer_build: bool = False,
        allow_empty: bool = False,
        write_version: Any = 2,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        filename: str | None = None,
    ) -> None:
        if var_list is None:
            raise RuntimeError(
                "There are no graphs to find variables in: give `var_list`, a list or dictionary of variables."
            )
        self._variables = named(var_list)
        self._reshape, self._pad = reshape, pad_step_number
        self._most, self._hours = max_to_keep, keep_checkpoint_every_n_hours
        self._next_kept = time.time() + self._hours * 3600
        # With the time of each, oldest first.
        self._last: list[tuple[str, float]] = []

    @property
    def last_checkpoints(self) -> list[str]:
        """Paths of the checkpoints that are kept, oldest first."""
        return [path for path, _ in self._last]

    def set_last_checkpoints(self, last_checkpoints: Sequence[str]) -> None:
        """Replaces the list of checkpoints that are kept.

        Args:
          last_checkpoints: their paths, oldest first.
        """
        self._last = [(path, float("nan")) for path in last_checkpoints]

    def set_last_checkpoints_with_time(
        self, last_checkpoints_with_time: Sequence[tuple[str, float]]
    ) -> None:
        """The same with the time of each.

        Args:
          last_checkpoints_with_time: pairs of a path and seconds since 1970.
        """
        self._last = [(path, float(when)) for path, when in last_checkpoints_with_time]

    def recover_last_checkpoints(self, checkpoint_paths: Iterable[str]) -> None:
        """Counts checkpoints of an earlier run as kept.

        Args:
          checkpoint_paths: their paths, oldest first; those that are gone are left out.
        """
        there = [path for path in map(text, checkpoint_paths) if is_checkpoint(path)]
        self._last = [(path, gfile.stat(f"{path}.index").mtime_nsec / 1e9) for path in there]

    def save(
        self,
        sess: Any,
        save_path: Any,
        global_step: Any = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> str:
        """Writes the variables.

        Args:
          sess: None.
          save_path: the path; folders above it are made.
          global_step: a number or variable whose value is put after the path.
          latest_filename: name of the file that names the latest checkpoint; default "checkpoint".
          meta_graph_suffix: ignored: there are no graphs.
          write_meta_graph: ignored.
          write_state: whether that file is written.
          strip_default_attrs: ignored.
          save_debug_info: ignored.

        Returns:
          The path, with the step.

        Raises:
          ValueError: for a `latest_filename` in another folder.
          NotImplementedError: inside a function that is being traced.
        """
        refuse_traces()
        if os.path.dirname(latest_filename or ""):
            raise ValueError(
                f"Expected a file name for `latest_filename`, got {latest_filename!r}."
            )
        path = text(save_path)
        if global_step is not None:
            path = f"{path}-{int(global_step):0{8 if self._pad else 1}d}"
        written(path, {name: stored(variable) for name, variable in self._variables.items()})
        if write_state:
            self._note(path, latest_filename or "checkpoint")
        return path

    def _note(self, path: str, name: str) -> None:
        """Names a checkpoint as the latest, and deletes those that are too many."""
        doomed = []
        if self._most:
            self._last = [pair for pair in self._last if pair[0] != path] + [(path, time.time())]
        while self._most and len(self._last) > self._most:
            old, when = self._last.pop(0)
            if when > self._next_kept:
                self._next_kept += self._hours * 3600
            else:
                doomed.append(old)
        write_state(
            parent(path) or ".", CheckpointState(path, self.last_checkpoints or [path]), name
        )
        for old in doomed:
            remove(old)

    def restore(self, sess: Any, save_path: Any) -> None:
        """Reads the variables.

        Args:
          sess: None.
          save_path: what `save` returned, or the path of a `tf.train.Checkpoint` of variables with these names.

        Raises:
          ValueError: when there is no checkpoint, or a value does not fit its variable.
          NotFoundError: when a variable is not in it.
        """
        if save_path is None:
            raise ValueError("Can't load save_path when it is None.")
        path = text(save_path)
        if not is_checkpoint(path):
            raise ValueError(f"The passed save_path is not a valid checkpoint: {path}")
        folder = open_checkpoint(path)
        keys = {name: key_of(folder, name) for name in self._variables}
        for name, variable in self._variables.items():
            put(folder, keys[name], variable, self._reshape)


def key_of(folder: Stored, name: str) -> str:
    """The key of a variable's value: its name, or that of the object that it was.

    Args:
      folder: the checkpoint.
      name: the variable's.

    Raises:
      NotFoundError: when there is none.
    """
    if name in folder.entries:
        return name
    known = keys_by_full_name(folder.read(GRAPH).item()) if GRAPH in folder.entries else {}
    if name not in known:
        raise NotFoundError(
            f"Key {name} not found in checkpoint {folder.path}: it holds {sorted(known or folder.entries)[:10]}."
        )
    return known[name]


def named(variables: Any) -> dict[str, Any]:
    """Variables by the names that a checkpoint gives them.

    Args:
      variables: a list, whose own names count, or a dictionary.

    Raises:
      TypeError: for what is no variable.
      ValueError: for several of one name.
    """
    if not isinstance(variables, Mapping):
        if not isinstance(variables, Iterable):
            raise TypeError(f"Expected variables, got {variables!r}.")
        variables = list(variables)
    of = variables.values() if isinstance(variables, Mapping) else variables
    for variable in of:
        if not isinstance(variable, (Variable, ShardedVariable)):
            raise TypeError(f"Expected a variable to save, got {variable!r}.")
    if isinstance(variables, Mapping):
        return dict(variables)
    found: dict[str, Any] = {}
    for variable in variables:
        if found.setdefault(variable._shared_name, variable) is not variable:
            raise ValueError(
                f"At least two variables have the same name: {variable._shared_name}. Give a dictionary of variables."
            )
    return found
