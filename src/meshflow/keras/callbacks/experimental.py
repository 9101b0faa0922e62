"""`tf.keras.callbacks.experimental`: the first name of `BackupAndRestore`."""

from __future__ import annotations

from typing import Any

from meshflow.keras.callbacks import backup

__all__ = ["BackupAndRestore"]


class BackupAndRestore(backup.BackupAndRestore):
    """`tf.keras.callbacks.BackupAndRestore` under its first name.

    Args:
      backup_dir: the folder.
      *args: further arguments.
      **kwargs: further arguments.
    """

    def __init__(self, backup_dir: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(backup_dir, *args, **kwargs)
