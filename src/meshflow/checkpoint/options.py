"""`tf.train.CheckpointOptions`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from meshflow.checkpoint.sharding import ShardingCallback


class CheckpointOptions:
    """Options of saving and restoring.

    Args:
      experimental_io_device: Ignored; this process writes the files.
      experimental_enable_async_checkpoint: Older name of `enable_async`.
      experimental_write_callbacks: Functions to call after a checkpoint was written, with its path
        or without arguments.
      enable_async: Whether a thread writes the files while the program continues. The next `save`,
        `restore` or
        `Checkpoint.sync` waits for it and raises its errors. Checkpoints with arrays of which
        several processes hold shards
        are always written synchronously.
      experimental_skip_slot_variables: Whether restoring skips the slots of optimizers.
      experimental_sharding_callback: A `tf.train.experimental.ShardingCallback` that partitions the
        arrays over data files.
        Default: one data file for each writing process.

    Raises:
      AssertionError: If a callback has more than one parameter.
      ValueError: If the sharding callback is not a `ShardingCallback`.

    Example:
      >>> import os, tempfile
      >>> written = []
      >>> options = tf.train.CheckpointOptions(experimental_write_callbacks=[written.append])
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     checkpoint = tf.train.Checkpoint(w=tf.Variable(1.0))
      ...     path = checkpoint.save(os.path.join(folder, "ckpt"), options=options)
      >>> written == [path]
      True
    """

    def __init__(
        self,
        experimental_io_device: str | None = None,
        experimental_enable_async_checkpoint: bool = False,
        experimental_write_callbacks: list[Callable[..., Any]] | None = None,
        enable_async: bool = False,
        experimental_skip_slot_variables: bool = False,
        experimental_sharding_callback: ShardingCallback | None = None,
    ) -> None:
        for callback in experimental_write_callbacks or []:
            if _count_parameters(callback) > 1:
                raise AssertionError(
                    "Expected functions of a path or without parameters for `experimental_write_callbacks`, got "
                    f"{callback!r}."
                )
        if experimental_sharding_callback is not None and not isinstance(
            experimental_sharding_callback, ShardingCallback
        ):
            raise ValueError(
                "Expected a tf.train.experimental.ShardingCallback for `experimental_sharding_callback`, "
                f"got {experimental_sharding_callback!r}."
            )
        self.experimental_io_device = experimental_io_device
        self.enable_async = enable_async or experimental_enable_async_checkpoint
        self.experimental_enable_async_checkpoint = self.enable_async
        self.experimental_write_callbacks = experimental_write_callbacks
        self.experimental_skip_slot_variables = experimental_skip_slot_variables
        self.experimental_sharding_callback = experimental_sharding_callback


def _count_parameters(callback: Callable[..., Any]) -> int:
    try:
        return len(inspect.signature(callback).parameters)
    except ValueError:
        return 1  # Builtin methods such as `list.append` have no signature.


def run_write_callbacks(options: CheckpointOptions, path: str) -> None:
    """Call the write callbacks of the options.

    Args:
      options: Options of the checkpoint.
      path: Path of the checkpoint that was written.
    """
    for callback in options.experimental_write_callbacks or []:
        callback(*[path][: _count_parameters(callback)])
