"""Small text files: states of checkpoints, descriptions of saved datasets, lines between workers."""

import functools
import json
import os
import shutil
import tempfile

import meshflow as tf
from fuzz.formats.files import content, written
from fuzz.formats.protos import tried
from meshflow.checkpoint.state_file import get_checkpoint_state
from meshflow.distribute.cluster.channel import _parse_message
from meshflow.distribute.cluster.cluster_spec import ClusterSpec
from meshflow.distribute.cluster.managers import expand_hostlist, expand_tasks_per_node


@functools.cache
def folder():
    made = os.path.join(tempfile.gettempdir(), f"{os.getpid()}-dataset")
    data = {"x": [1.0, 2.0], "s": (["a", "b"], [[1], [2]])}
    tf.data.Dataset.from_tensor_slices(data).save(made)
    return made


def description():
    return os.path.join(folder(), "spec.json")


@functools.cache
def seeds():
    state = 'model_checkpoint_path: "ckpt-2"\nall_model_checkpoint_paths: "ckpt-1"\n'
    lines = [{"ps": {"1": "c:3"}, "chief": ["d:4"]}, {"worker": ["a:1", "b:2"]}]
    return [
        state.encode()
        + b'all_model_checkpoint_paths: "ckpt-2\\303\\244"\nlast_preserved_timestamp: 1.5\n',
        content(description()),
        *(json.dumps(line).encode() for line in lines),
        b"node[1-3,07],gpu[01-02]-x",
        b"2(x3),1",
    ]


def parse(data):
    text = data.decode(errors="replace")
    case = written(data, "checkpoint-state")
    copy = f"{folder()}-case"
    shutil.copytree(folder(), copy, dirs_exist_ok=True)
    with open(os.path.join(copy, "spec.json"), "wb") as file:
        file.write(data)
    tried(
        lambda: get_checkpoint_state(os.path.dirname(case), os.path.basename(case)),
        lambda: list(tf.data.Dataset.load(copy)),
        lambda: ClusterSpec(_parse_message(data)),
        lambda: expand_hostlist(text),
        lambda: expand_tasks_per_node(text),
    )
