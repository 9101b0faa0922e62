"""`tf.train.CheckpointOptions`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from meshflow.checkpoint.sharding import ShardingCallback

__all__ = ["CheckpointOptions", "notify"]


class CheckpointOptions:
    """Options of saving and restoring.

    Args:
      experimental_io_device: ignored; files are written by this process.
      experimental_enable_async_checkpoint: the older name of `enable_async`.
      experimental_write_callbacks: functions called after a checkpoint was written, with its path or without arguments.
      enable_async: whether a thread writes the files while the program goes on; the next saving or restoring, and
        `Checkpoint.sync`, wait for it and raise what went wrong. Arrays of which several processes hold parts are
        written before saving returns.
      experimental_skip_slot_variables: whether restoring leaves the optimizers' slots out.
      experimental_sharding_callback: a `tf.train.experimental.ShardingCallback`, which divides the checkpoint over
        data files; default one file for each process that writes.

    Raises:
      AssertionError: for a callback that takes more than a path.
      ValueError: for a sharding callback that is none.

    Example:
      >>> import meshflow as tf
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
            if _arguments(callback) > 1:
                raise AssertionError(
                    f"Expected functions of a path or of nothing for `experimental_write_callbacks`, got {callback!r}."
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


def _arguments(callback: Callable[..., Any]) -> int:
    try:
        return len(inspect.signature(callback).parameters)
    except ValueError:
        return 1  # a builtin such as `list.append`, of which Python does not know more


def notify(options: CheckpointOptions, path: str) -> None:
    """Calls the options' callbacks.

    Args:
      options: the options.
      path: the path of the checkpoint that was written.
    """
    for callback in options.experimental_write_callbacks or []:
        callback(*[path][: _arguments(callback)])
