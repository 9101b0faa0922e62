"""Checkpoints: save the values of variables to files and restore them into the objects that own them.

Files, from the bytes up: `bundle_messages` (protocol buffers), `sstable` (the sorted index) and
`slices` (arrays in parts) are
the basis of `bundle` and `bundle_writer`, which read and write TensorFlow's tensor bundles.
`array_folder` reads and writes
Meshflow's folders of `.npy` files, the older format of checkpoints. `formats` detects the format of
a path.

Objects: `object_graph` finds the objects and variables that an object owns, `object_graph_message`
encodes them as TensorFlow does.
`restoration` matches them with a checkpoint and assigns the values, also to variables that are
created later; `name_based`
does the same for checkpoints of TensorFlow 1's `Saver`. `status` holds the assertions on a
restoration, `views` compares
the objects of a checkpoint and of a program.

API: `checkpoint` and `manager` hold TensorFlow's classes, `background_writer` their thread,
`sharding` and
`shard_size_policy` the policies that partition arrays over data files, `state_file` the file that
names the latest checkpoint.
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
from meshflow.checkpoint.shard_size_policy import MaxShardSizePolicy
from meshflow.checkpoint.sharding import ShardableTensor, ShardByTaskPolicy, ShardingCallback
from meshflow.checkpoint.state_file import (
    CheckpointState,
    get_checkpoint_state,
    latest_checkpoint,
)
from meshflow.checkpoint.status import CheckpointLoadStatus
from meshflow.checkpoint.views import CheckpointView, TrackableView
