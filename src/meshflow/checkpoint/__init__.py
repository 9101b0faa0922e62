"""Checkpoints: the values of variables on disk, found again by the objects that own them.

`bundle` and `bundle_writer` read and write TensorFlow's files, over `table`, `wire` and `slices`, `storage` folders of arrays, and
`containers` tells them apart; `graph` finds what objects own, `graph_message` says it as TensorFlow does; `restoring` puts
values back; `checkpoint` and `manager` are TensorFlow's classes, `background` their thread; `state_file` remembers the latest.
"""

from meshflow.checkpoint.checkpoint import Checkpoint, CheckpointOptions
from meshflow.checkpoint.manager import CheckpointManager
from meshflow.checkpoint.python_state import PythonState
from meshflow.checkpoint.reader import (
    CheckpointReader,
    checkpoints_iterator,
    list_variables,
    load_checkpoint,
    load_variable,
)
from meshflow.checkpoint.state_file import (
    CheckpointState,
    get_checkpoint_state,
    latest_checkpoint,
)
from meshflow.checkpoint.status import CheckpointLoadStatus

__all__ = [
    "Checkpoint",
    "CheckpointLoadStatus",
    "CheckpointManager",
    "CheckpointOptions",
    "CheckpointReader",
    "CheckpointState",
    "PythonState",
    "checkpoints_iterator",
    "get_checkpoint_state",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
]
