"""`tf.distribute.Server` and its configuration; a cluster of programs that `TF_CONFIG` describes."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

import meshflow as tf
from distribute.launching import free_ports

SOURCE = pathlib.Path(tf.__file__).parent.parent
CLUSTER = {"worker": ["localhost:2222", "localhost:2223"], "ps": ["localhost:2224"]}


def test_server_attributes():
    spec = tf.train.ClusterSpec(CLUSTER)
    server = tf.distribute.Server(spec, job_name="worker", task_index=1, start=False)
    assert server.target == "grpc://localhost:2223"
    known = server.server_def
    assert (known.job_name, known.task_index, known.protocol) == ("worker", 1, "grpc")
    assert known.cluster == spec
    again = tf.distribute.Server(known, start=False)
    assert again.server_def == known and again.target == server.target
    only = tf.distribute.Server({"ps": ["localhost:2224"]}, start=False)
    assert (only.server_def.job_name, only.server_def.task_index) == ("ps", 0)
    local = tf.distribute.Server.create_local_server()
    assert local.target.startswith("grpc://localhost:") and local.server_def.job_name == "localhost"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, r"explicit `job_name`: the cluster has the jobs \['worker', 'ps'\]"),
        ({"job_name": "worker"}, ValueError, "explicit `task_index`: the job 'worker' has 2 tasks"),
        ({"job_name": "w", "task_index": 0}, tf.errors.InternalError, 'Job "w" was not defined'),
        (
            {"job_name": "worker", "task_index": 3},
            tf.errors.InternalError,
            'Task 3 was not defined in job "worker"',
        ),
        (
            {"job_name": "ps", "protocol": "carrier pigeon"},
            tf.errors.NotFoundError,
            "No server factory registered",
        ),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        tf.distribute.Server(CLUSTER, **arguments, start=False)
    with pytest.raises(TypeError, match="Could not convert `server_or_cluster_def`"):
        tf.distribute.Server(3)


def test_a_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(tf.errors.UnavailableError):
            tf.distribute.Server({"ps": [address]})


def test_configurations():
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=3, device_count={"GPU": 0})
    config.gpu_options.allow_growth = True
    config.gpu_options.per_process_gpu_memory_fraction = 1
    config.experimental.share_session_state_in_clusterspec_propagation = True
    config.device_filters.append("/job:ps")
    copied = tf.compat.v1.ConfigProto()
    assert copied != config
    copied.CopyFrom(config)
    assert copied == config and copied.device_count == {"GPU": 0}
    assert "per_process_gpu_memory_fraction: 1.0" in repr(config)
    server = tf.distribute.Server({"ps": ["localhost:2224"]}, config=config, start=False)
    assert server.server_def.default_session_config == config
    assert tf.config.threading.get_inter_op_parallelism_threads() == 3
    tf.config.threading.set_inter_op_parallelism_threads(0)
    with pytest.raises(AttributeError, match="ConfigProto has no 'threads' field"):
        config.threads = 1
    with pytest.raises(TypeError, match=r"ConfigProto.allow_soft_placement must be of type bool"):
        tf.compat.v1.ConfigProto(allow_soft_placement="yes")


PROGRAM = """
import json, os
import meshflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc", start=True)
    server.join()

partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.layers.Embedding(10, 4, input_length=2), tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.Adagrad(0.5), "mse", metrics=["mae"])

def dataset_fn(context):
    ids = tf.constant([[i, (3 * i) % 10] for i in range(10)])
    data = tf.data.Dataset.from_tensor_slices((ids, tf.cast(ids[:, :1], tf.float32) / 10.0))
    data = data.shuffle(10, seed=context.input_pipeline_id).repeat()
    return data.batch(context.get_per_replica_batch_size(5))

history = model.fit(tf.keras.utils.experimental.DatasetCreator(dataset_fn), epochs=4,
                    steps_per_epoch=20, verbose=0)
table = model.layers[0].embeddings
print(json.dumps({"loss": history.history["loss"], "steps": int(model.optimizer.iterations),
                  "servers": [list(v.servers) for v in table.variables]}))
strategy.cluster.stop()
"""


def test_a_cluster_of_programs():
    chief, *ports = free_ports(5)
    cluster = {
        "chief": [f"localhost:{chief}"],
        "worker": [f"localhost:{port}" for port in ports[:2]],
        "ps": [f"localhost:{port}" for port in ports[2:]],
    }
    running = []

    def start(job, index):
        task = {"cluster": cluster, "task": {"type": job, "index": index}}
        environment = os.environ | {"TF_CONFIG": json.dumps(task), "PYTHONPATH": str(SOURCE)}
        running.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM], env=environment,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        return running[-1]

    try:
        for job in ("ps", "worker"):
            for index in range(2):
                start(job, index)
        output, errors = start("chief", 0).communicate(timeout=240)
    finally:
        for process in running:
            process.kill()
        for process in running[:-1]:
            process.communicate()
    assert output.strip(), errors[-4000:]
    found = json.loads(output.strip().splitlines()[-1])
    assert found["steps"] == 80 and sorted(found["servers"]) == [[0], [1]]
    assert found["loss"][-1] < 0.5 * found["loss"][0]
