"""Checkpoints: the values of variables on disk, found again by the objects that own them.

`bundle` and `bundle_writer` read and write TensorFlow's files, over `table`, `wire` and `slices`, `storage` folders of arrays, and
`containers` tells them apart; `graph` finds what objects own, `graph_message` says it as TensorFlow does; `restoring` puts
values back, `status` tells which; `views` compare a checkpoint's objects with a program's; `sharding` divides arrays over
files, `shard_sizes` by their size; `checkpoint` and `manager` are TensorFlow's classes, `background` their thread; `state_file` remembers the latest.
"""

from meshflow.checkpoint.checkpoint import Checkpoint
from meshflow.checkpoint.manager import CheckpointManager
from meshflow.checkpoint.options import CheckpointOptions
from meshflow.checkpoint.python_state import PythonState
from meshflow.checkpoint.reader import (
    CheckpointReader,
    checkpoints_iterator,
    list_variables,
    load_checkpoint,
    load_variable,
)
from meshflow.checkpoint.shard_sizes import MaxShardSizePolicy
from meshflow.checkpoint.sharding import ShardableTensor, ShardByTaskPolicy, ShardingCallback
from meshflow.checkpoint.state_file import (
    CheckpointState,
    get_checkpoint_state,
    latest_checkpoint,
)
from meshflow.checkpoint.status import CheckpointLoadStatus
from meshflow.checkpoint.views import CheckpointView, TrackableView

__all__ = [
    "Checkpoint",
    "CheckpointLoadStatus",
    "CheckpointManager",
    "CheckpointOptions",
    "CheckpointReader",
    "CheckpointState",
    "CheckpointView",
    "MaxShardSizePolicy",
    "PythonState",
    "ShardByTaskPolicy",
    "ShardableTensor",
    "ShardingCallback",
    "TrackableView",
    "checkpoints_iterator",
    "get_checkpoint_state",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
]
