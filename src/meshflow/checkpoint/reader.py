"""Functions that read the values of a checkpoint without objects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from meshflow.checkpoint.checkpoint import open_latest_checkpoint
from meshflow.checkpoint.formats import StoredCheckpoint, is_checkpoint
from meshflow.checkpoint.state_file import latest_checkpoint
from meshflow.core.runtime.errors import DataLossError
from meshflow.core.values import dtypes
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.paths import is_remote, to_path_string


class CheckpointReader:
    """Reader of the values of a checkpoint by key.

    Args:
      checkpoint: Opened checkpoint.
    """

    def __init__(self, checkpoint: StoredCheckpoint) -> None:
        self._checkpoint = checkpoint

    def has_tensor(self, tensor_str: str) -> bool:
        """Check whether there is a value under a key.

        Args:
          tensor_str: The key.
        """
        return _check_key(tensor_str) in self._checkpoint.entries

    def get_tensor(self, tensor_str: str) -> np.ndarray:
        """Return a value as an array, or as a NumPy scalar or `bytes` if it has no dimensions.

        Args:
          tensor_str: The key.

        Raises:
          NotFoundError: If there is no such value.
          TypeError: If the key is not text.
        """
        value: np.ndarray = self._checkpoint.read(_check_key(tensor_str))[()]
        return value

    def debug_string(self) -> bytes:
        """Return a line for each value with key, dtype and shape."""
        dtype_of = self.get_variable_to_dtype_map()
        lines = [
            f"{key} ({_format_proto_dtype(dtype_of[key])}) [{','.join(map(str, shape))}]\n"
            for key, shape in sorted(self.get_variable_to_shape_map().items())
        ]
        return "".join(lines).encode()

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Return the shape of each value, by key."""
        try:
            return {name: list(e["shape"]) for name, e in self._checkpoint.entries.items()}
        except (TypeError, ValueError, KeyError) as error:
            raise DataLossError(f"{self._checkpoint.path} is damaged: {error}") from None

    def get_variable_to_dtype_map(self) -> dict[str, dtypes.DType]:
        """Return the dtype of each value, by key."""
        try:
            return {n: dtypes.as_dtype(e["dtype"]) for n, e in self._checkpoint.entries.items()}
        except (TypeError, ValueError, KeyError) as error:
            raise DataLossError(f"{self._checkpoint.path} is damaged: {error}") from None


def _check_key(key: str | bytes) -> str:
    if isinstance(key, bytes):
        key = key.decode()
    if not isinstance(key, str):
        raise TypeError(f"Expected the key of a tensor, a string, got {key!r}.")
    return key


def _format_proto_dtype(dtype: dtypes.DType) -> str:
    """Return the name of a dtype in TensorFlow's protocol buffers."""
    names = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF"}
    return f"DT_{names.get(dtype.name, dtype.name.upper())}"


def load_checkpoint(ckpt_dir_or_file: StrPath) -> CheckpointReader:
    """Open a checkpoint.

    Args:
      ckpt_dir_or_file: Path of a checkpoint, or of a folder with a `checkpoint` file.

    Returns:
      A `CheckpointReader`.

    Raises:
      NotFoundError: If there is no checkpoint.
      ValueError: If the folder has no `checkpoint` file and no checkpoints.

    Example:
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = tf.train.Checkpoint(w=tf.Variable([1.0, 2.0])).write(os.path.join(folder, "ckpt"))
      ...     reader = tf.train.load_checkpoint(path)
      ...     reader.get_tensor("w/.ATTRIBUTES/VARIABLE_VALUE").tolist()
      [1.0, 2.0]
    """
    path = to_path_string(ckpt_dir_or_file)
    if gfile.isdir(path) and not is_checkpoint(path) and latest_checkpoint(path) is None:
        raise ValueError(f"Couldn't find a 'checkpoint' file or checkpoints in the folder {path}.")
    return CheckpointReader(open_latest_checkpoint(path))


def load_variable(ckpt_dir_or_file: StrPath, name: str) -> np.ndarray:
    """Read a value of a checkpoint.

    Args:
      ckpt_dir_or_file: As in `load_checkpoint`.
      name: Key of the value. The suffix "/.ATTRIBUTES/VARIABLE_VALUE" may be omitted.

    Returns:
      The value, as `CheckpointReader.get_tensor` returns it.

    Raises:
      NotFoundError: If there is no checkpoint or no such value.

    Example:
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = tf.train.Checkpoint(w=tf.Variable([1.0, 2.0])).write(os.path.join(folder, "ckpt"))
      ...     tf.train.load_variable(path, "w").tolist()
      [1.0, 2.0]
    """
    reader = load_checkpoint(ckpt_dir_or_file)
    full = f"{name.removesuffix(':0')}/.ATTRIBUTES/VARIABLE_VALUE"
    return reader.get_tensor(full if reader.has_tensor(full) else name)


def list_variables(ckpt_dir_or_file: StrPath) -> list[tuple[str, list[int]]]:
    """List the keys and shapes of the values of a checkpoint.

    Args:
      ckpt_dir_or_file: As in `load_checkpoint`.

    Returns:
      A sorted list of (key, shape).

    Raises:
      NotFoundError: If there is no checkpoint.

    Example:
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = tf.train.Checkpoint(w=tf.Variable([1.0, 2.0])).write(os.path.join(folder, "ckpt"))
      ...     dict(tf.train.list_variables(path))["w/.ATTRIBUTES/VARIABLE_VALUE"]
      [2]
    """
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def checkpoints_iterator(
    checkpoint_dir: StrPath,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """Yield each new latest checkpoint of a folder that another program writes to.

    Args:
      checkpoint_dir: Folder of the checkpoints.
      min_interval_secs: Minimum number of seconds between two checkpoints.
      timeout: Seconds to wait for a new checkpoint; None waits forever.
      timeout_fn: Function to call after `timeout`. The iteration ends if it returns True, or if
        there is no function.

    Yields:
      Paths of checkpoints.

    Example:
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = tf.train.Checkpoint(w=tf.Variable(1.0)).save(os.path.join(folder, "ckpt"))
      ...     for path in tf.train.checkpoints_iterator(folder, timeout=0):
      ...         print(os.path.basename(path))
      ckpt-1
    """
    # Each poll of a remote store takes one or more requests.
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
