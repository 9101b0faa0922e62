"""Looking into a checkpoint without objects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshflow.checkpoint.checkpoint import open_latest
from meshflow.checkpoint.containers import Stored, is_checkpoint
from meshflow.checkpoint.state_file import latest_checkpoint
from meshflow.core.runtime.errors import DataLossError
from meshflow.core.values import dtypes
from meshflow.files import gfile
from meshflow.files.paths import is_remote, text


class CheckpointReader:
    """The values of a checkpoint by key.

    Args:
      folder: the checkpoint.
    """

    def __init__(self, folder: Stored) -> None:
        self._folder = folder

    def has_tensor(self, tensor_str: str) -> bool:
        """Whether there is a value under a key.

        Args:
          tensor_str: the key.
        """
        return _key(tensor_str) in self._folder.entries

    def get_tensor(self, tensor_str: str) -> np.ndarray:
        """A value: an array, or where it has no dimensions a NumPy scalar, of text its bytes.

        Args:
          tensor_str: its key.

        Raises:
          NotFoundError: when there is none.
          TypeError: for a key that is no text.
        """
        value: np.ndarray = self._folder.read(_key(tensor_str))[()]
        return value

    def debug_string(self) -> bytes:
        """A line for each value: key, dtype and shape."""
        dtype_of = self.get_variable_to_dtype_map()
        lines = [
            f"{key} ({_proto_name(dtype_of[key])}) [{','.join(map(str, shape))}]\n"
            for key, shape in sorted(self.get_variable_to_shape_map().items())
        ]
        return "".join(lines).encode()

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Shape of each value, by key."""
        try:
            return {name: list(e["shape"]) for name, e in self._folder.entries.items()}
        except (TypeError, ValueError, KeyError) as error:
            raise DataLossError(f"{self._folder.path} is damaged: {error}") from None

    def get_variable_to_dtype_map(self) -> dict[str, Any]:
        """Dtype of each value, by key."""
        try:
            return {n: dtypes.as_dtype(e["dtype"]) for n, e in self._folder.entries.items()}
        except (TypeError, ValueError, KeyError) as error:
            raise DataLossError(f"{self._folder.path} is damaged: {error}") from None


def _key(key: Any) -> str:
    if isinstance(key, bytes):
        key = key.decode()
    if not isinstance(key, str):
        raise TypeError(f"Expected the key of a tensor, a string, got {key!r}.")
    return key


def _proto_name(dtype: Any) -> str:
    """A dtype as TensorFlow's messages call it."""
    names = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF"}
    return f"DT_{names.get(dtype.name, dtype.name.upper())}"


def load_checkpoint(ckpt_dir_or_file: Any) -> CheckpointReader:
    """Opens a checkpoint.

    Args:
      ckpt_dir_or_file: path of a checkpoint, or the folder of its `checkpoint` file.

    Returns:
      A `CheckpointReader`.

    Raises:
      NotFoundError: when there is none.
      ValueError: for a folder that names none.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = tf.train.Checkpoint(w=tf.Variable([1.0, 2.0])).write(os.path.join(folder, "ckpt"))
      ...     reader = tf.train.load_checkpoint(path)
      ...     reader.get_tensor("w/.ATTRIBUTES/VARIABLE_VALUE").tolist()
      [1.0, 2.0]
    """
    path = text(ckpt_dir_or_file)
    if gfile.isdir(path) and not is_checkpoint(path) and latest_checkpoint(path) is None:
        raise ValueError(f"Couldn't find a 'checkpoint' file or checkpoints in the folder {path}.")
    return CheckpointReader(open_latest(path))


def load_variable(ckpt_dir_or_file: Any, name: str) -> np.ndarray:
    """A value of a checkpoint.

    Args:
      ckpt_dir_or_file: as in `load_checkpoint`.
      name: its key; the ending "/.ATTRIBUTES/VARIABLE_VALUE" may be left out.

    Returns:
      As `CheckpointReader.get_tensor`.

    Raises:
      NotFoundError: when there is none.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = tf.train.Checkpoint(w=tf.Variable([1.0, 2.0])).write(os.path.join(folder, "ckpt"))
      ...     tf.train.load_variable(path, "w").tolist()
      [1.0, 2.0]
    """
    reader = load_checkpoint(ckpt_dir_or_file)
    full = f"{name.removesuffix(':0')}/.ATTRIBUTES/VARIABLE_VALUE"
    return reader.get_tensor(full if reader.has_tensor(full) else name)


def list_variables(ckpt_dir_or_file: Any) -> list[tuple[str, list[int]]]:
    """Keys and shapes of the values of a checkpoint.

    Args:
      ckpt_dir_or_file: as in `load_checkpoint`.

    Returns:
      A sorted list of (key, shape).

    Raises:
      NotFoundError: when there is no checkpoint.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = tf.train.Checkpoint(w=tf.Variable([1.0, 2.0])).write(os.path.join(folder, "ckpt"))
      ...     dict(tf.train.list_variables(path))["w/.ATTRIBUTES/VARIABLE_VALUE"]
      [2]
    """
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def checkpoints_iterator(
    checkpoint_dir: Any,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """Gives each new latest checkpoint of a folder, as another program writes them.

    Args:
      checkpoint_dir: the folder.
      min_interval_secs: smallest time between two.
      timeout: seconds to wait for a new one; None for ever.
      timeout_fn: called after `timeout`; the iteration ends when it returns True.

    Yields:
      Paths.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = tf.train.Checkpoint(w=tf.Variable(1.0)).save(os.path.join(folder, "ckpt"))
      ...     for path in tf.train.checkpoints_iterator(folder, timeout=0):
      ...         print(os.path.basename(path))
      ckpt-1
    """
    # Each look at a store is a request, or several.
    pause = 1.0 if is_remote(checkpoint_dir) else 0.05
    last = None
    while True:
        started = time.time()
        path = latest_checkpoint(checkpoint_dir)
        while path is None or path == last:
            if timeout is not None and time.time() - started >= timeout:
                if timeout_fn is None or timeout_fn():
                    return
                started = time.time()
            time.sleep(pause if timeout is None else min(pause, timeout))
            path = latest_checkpoint(checkpoint_dir)
        yield path
        last = path
        time.sleep(max(0.0, min_interval_secs - (time.time() - started)))
