"""`tf.keras.callbacks.experimental`: the former name of `BackupAndRestore`."""

from __future__ import annotations

import logging
from typing import Any

from meshflow.environment.types import StrPath
from meshflow.keras.callbacks import backup

__all__ = ["BackupAndRestore"]

_log = logging.getLogger("meshflow")


class BackupAndRestore(backup.BackupAndRestore):
    """`tf.keras.callbacks.BackupAndRestore` under its former name.

    Args:
      backup_dir: Directory.
      *args: Arguments of `BackupAndRestore`.
      **kwargs: Arguments of `BackupAndRestore`.
    """

    def __init__(self, backup_dir: StrPath, *args: Any, **kwargs: Any) -> None:
        _log.warning(
            "`tf.keras.callbacks.experimental.BackupAndRestore` endpoint is deprecated. Use "
            "`tf.keras.callbacks.BackupAndRestore` instead."
        )
        super().__init__(backup_dir, *args, **kwargs)
