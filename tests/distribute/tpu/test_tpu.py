"""Test TPUs: a script on eight virtual ones, topologies, cores of replicas, and machines without
TPUs."""

import json
from pathlib import Path

import numpy as np
import pytest

import forked
import meshflow as tf
from helpers import assert_close

SCRIPT = Path(__file__).parent / "scripts" / "tpu_digits.py"
experimental = tf.tpu.experimental


@pytest.fixture(scope="module")
def report():
    """Return the script's output on eight virtual TPU cores."""
    code, text = forked.run(SCRIPT.read_text(), after="import jax", MESHFLOW_EMULATE_TPU="8")
    assert code == 0, text
    return json.loads(text.splitlines()[-1])


def test_the_system_is_described(report):
    assert report["replicas"] == [8, 4]
    assert report["master"] == ["grpc://10.240.1.2:8470"] * 2 + ["worker"]
    assert report["cluster"] == {"worker": ["10.240.1.2:8470"]}
    assert report["accelerators"] == {"TPU": 8} and report["cores"] == [8, 1, 8]
    assert report["topology"] == [2, 2, 1, 2]
    assert report["devices"] == 8 and report["cpus"] == 1 and report["mirrored"] == 1
    assert report["mesh"] == "TPU" and report["placed"].endswith("/device:TPU:3")


def test_fit_learns_in_mixed_bfloat16(report):
    assert report["dtype"] == "bfloat16"
    assert report["losses"] == sorted(report["losses"], reverse=True)
    assert report["accuracy"] > 0.95


def test_the_custom_loop_is_as_in_numpy(report):
    images = np.random.default_rng(0).normal(size=(96, 6)).astype("float32")
    labels = (images.sum(axis=1) > 0).astype("float32")
    weight, losses = np.zeros(6), []
    for x, y in zip(np.split(images, 2), np.split(labels, 2), strict=True):
        logits = x @ weight
        losses.append(np.mean(np.logaddexp(0, logits) - y * logits))
        weight -= 0.5 * x.T @ (1 / (1 + np.exp(-logits)) - y) / 48
    assert_close(report["weight"], weight, rtol=1e-5)
    assert_close(report["mean"], np.mean(losses), rtol=1e-5)


def test_replicas_of_two_cores(report):
    images = np.random.default_rng(0).normal(size=(96, 6)).astype("float32")
    assert_close(report["halves"], [np.sum(images[:, :4] ** 2)], rtol=1e-5)
    assert len(report["refused"]) == 4


def test_plain_functions_and_scaled_losses_are_refused_as_on_tpus(report):
    eager, scaling = report["unlike"]
    assert "does not support pure eager execution" in eager and report["run"] == 8
    assert "not supported with the tf.distribute.Strategy: TPUStrategy" in scaling


def test_losses_are_not_scaled_with_central_storage():
    strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0"])
    v, optimizer = tf.Variable(1.0), tf.keras.optimizers.SGD()
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer)
    with pytest.raises(ValueError, match="CentralStorageStrategy"):
        strategy.run(lambda: optimizer.apply_gradients([(tf.constant(1.0), v)]))


def test_missing_tpu_error_names_the_search():
    for make in (
        lambda: tf.distribute.cluster_resolver.TPUClusterResolver("local"),
        tf.distribute.TPUStrategy,
        experimental.initialize_tpu_system,
    ):
        with pytest.raises(ValueError, match="MESHFLOW_EMULATE_TPU=8") as caught:
            make()
        assert isinstance(caught.value, tf.errors.NotFoundError)


def test_emulation_needs_a_number(monkeypatch):
    monkeypatch.setenv("MESHFLOW_EMULATE_TPU", "eight")
    with pytest.raises(ValueError, match="must be a number of devices, got 'eight'"):
        tf.config.list_logical_devices("TPU")


def test_topology():
    places = [[[x, y, 0, core] for y in range(2) for x in range(2)] for core in range(2)]
    topology = experimental.Topology(mesh_shape=[2, 2, 1, 3], device_coordinates=places)
    assert topology.mesh_rank == 4 and topology.mesh_shape.tolist() == [2, 2, 1, 3]
    assert (topology.num_tasks, topology.num_tpus_per_task) == (2, 4)
    assert topology.missing_devices.tolist() == [[x, y, 0, 2] for x in range(2) for y in range(2)]
    assert topology.task_ordinal_at_coordinates([1, 0, 0, 1]) == 1
    assert topology.tpu_device_ordinal_at_coordinates([1, 0, 0, 1]) == 1
    name = topology.tpu_device_name_at_coordinates([1, 1, 0, 1], job="worker")
    assert name == "/job:worker/task:1/device:TPU:3"
    with pytest.raises(ValueError, match="no core at"):
        topology.task_ordinal_at_coordinates([0, 0, 0, 2])
    with pytest.raises(ValueError, match="4 positive entries"):
        experimental.Topology(mesh_shape=[2, 2], device_coordinates=places)


def test_device_assignment():
    places = [[[x, y, 0, core] for core in range(2) for y in range(2) for x in range(2)]]
    topology = experimental.Topology(mesh_shape=[2, 2, 1, 2], device_coordinates=places)
    single = experimental.DeviceAssignment.build(topology, num_replicas=8)
    assert (single.num_replicas, single.num_cores_per_replica) == (8, 1)
    assert single.topology is topology and single.lookup_replicas(0, 0) == list(range(8))
    chips = experimental.DeviceAssignment.build(
        topology,
        computation_shape=[1, 1, 1, 2],
        num_replicas=4,
        device_order_mode=experimental.DeviceOrderMode.RING,
    )
    assert chips.core_assignment.shape == (4, 2, 4)
    assert chips.coordinates(3, 1) == (1, 1, 0, 1) and chips.tpu_ordinal(3, 1) == 7
    assert chips.tpu_device(0, 1) == "/job:localhost/task:0/device:TPU:4"
    assert chips.host_device(3, 0, job="worker") == "/job:worker/task:0/device:CPU:0"
    strided = experimental.DeviceAssignment.build(
        topology, [2, 1, 1, 1], computation_stride=[1, 1, 1, 2], num_replicas=4
    )
    taken = strided.core_assignment.reshape(-1, 4).tolist()
    assert len({tuple(p) for p in taken}) == 8
    with pytest.raises(ValueError, match="9 replicas of 1 cores"):
        experimental.DeviceAssignment.build(topology, num_replicas=9)
    with pytest.raises(ValueError, match="more than once"):
        experimental.DeviceAssignment(topology, [[[0, 0, 0, 0]], [[0, 0, 0, 0]]])


def test_options_and_metadata():
    options = tf.tpu.XLAOptions(enable_xla_dynamic_padder=False)
    assert options.use_spmd_for_xla_partitioning and not options.enable_xla_dynamic_padder
    metadata = experimental.TPUSystemMetadata(8, 1, 8, None, ())
    assert metadata.num_of_cores_per_host == 8
    experimental.shutdown_tpu_system()
