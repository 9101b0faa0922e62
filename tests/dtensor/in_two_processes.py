"""One of two processes with two devices each: saves on one mesh, restores on another. Run by test_two_processes.py.

Arguments: number of this process, addresses of both, folder.
"""

import os
import sys

number, addresses, folder = sys.argv[1:]
os.environ.update(
    DTENSOR_JOBS=addresses,
    DTENSOR_CLIENT_ID=number,
    DTENSOR_JOB_NAME="worker",
    NPROC="16",
    MESHFLOW_CACHE_DIR="",
    JAX_PLATFORMS="cpu",
)

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor
from meshflow.experimental.dtensor import UNSHARDED, Layout

dtensor.initialize_accelerator_system("CPU", num_logical_cpu_devices=2)
assert dtensor.num_clients() == 2 and dtensor.full_job_name().endswith(f"task:{number}")
mesh = dtensor.create_distributed_mesh([("x", 2), ("y", 2)], device_type="CPU")
assert mesh.num_local_devices() == 2 and mesh.size == 4

whole = np.arange(32, dtype="float32").reshape(8, 4)
split = dtensor.DVariable(whole, layout=Layout(["x", "y"], mesh))
equal = dtensor.DVariable(whole[0], layout=Layout([UNSHARDED], mesh))
path = tf.train.Checkpoint(split=split, equal=equal).save(f"{folder}/ckpt")

line = dtensor.create_distributed_mesh([("z", 4)], device_type="CPU")
found = dtensor.DVariable(np.zeros_like(whole), layout=Layout(["z", UNSHARDED], line))
same = dtensor.DVariable(np.zeros_like(whole[0]), layout=Layout([UNSHARDED], line))
tf.train.Checkpoint(split=found, equal=same).restore(path).assert_consumed()
for shard in found._value.addressable_shards:
    np.testing.assert_array_equal(shard.data, whole[shard.index])
np.testing.assert_array_equal(same.numpy(), whole[0])
dtensor.barrier(mesh, "restored", timeout_in_ms=60_000)

batches = dtensor.DTensorDataset(
    tf.data.Dataset.range(8),
    mesh=mesh,
    layouts=Layout(["x"], mesh),
    global_batch_size=4,
    batch_dim="x",
)
total = tf.function(tf.reduce_sum)
assert [int(total(batch)) for batch in batches] == [6, 22]
if number == "0":
    try:
        dtensor.barrier(mesh, "alone", timeout_in_ms=500)
    except tf.errors.DeadlineExceededError as error:
        print(error)
dtensor.barrier(mesh, "end", timeout_in_ms=60_000)
