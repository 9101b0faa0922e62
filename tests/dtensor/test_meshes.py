"""Test meshes as descriptions: text forms, missing devices, errors."""

import functools
import itertools
import pickle

import numpy as np
import pytest

import meshflow as tf

dtensor = tf.experimental.dtensor
Mesh = dtensor.Mesh


def describe_mesh(shape, kind="CPU", **kwargs):
    """Return a mesh of a shape on devices of a type, which need not exist."""
    count = int(np.prod(shape))
    specs = [
        tf.DeviceSpec(job="localhost/replica:0/task:0", device_type=kind, device_index=i)
        for i in range(count)
    ]
    names = "abcd"[: len(shape)]
    return Mesh(list(names), np.arange(count).reshape(shape), list(range(count)), specs, **kwargs)


def test_devices_are_looked_up_when_a_mesh_is_used():
    mesh = describe_mesh([2, 8], "TPU")
    assert mesh.device_type() == "TPU" and mesh.strides == [8, 1]
    assert mesh.local_devices()[3] == "/job:localhost/replica:0/task:0/device:TPU:3"
    assert Mesh.from_string(mesh.to_string()) == mesh
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert mesh.host_mesh() == describe_mesh([2, 8])
    with pytest.raises(ValueError, match="Could not find device"):
        dtensor.copy_to_mesh(tf.ones([2]), dtensor.Layout.replicated(mesh, 1))


def test_equivalent_device_names_are_equal():
    forms = ["CPU:1", "/cpu:1", "/device:CPU:1", "/job:localhost/replica:0/task:0/device:CPU:1"]
    meshes = [Mesh(["x"], np.arange(1), [0], [form]) for form in forms]
    assert all(mesh == meshes[0] for mesh in meshes)
    made = dtensor.create_mesh([("x", 4)])
    assert made == dtensor.create_mesh([("x", 4)], devices=[f"CPU:{i}" for i in range(4)])


def test_local_devices_are_in_order_of_their_ids():
    # An earlier mesh of the same devices has another order.
    assert dtensor.create_mesh([("x", 4)]).jax_mesh
    order = [2, 0, 3, 1]
    mesh = Mesh(["x"], np.arange(4), order, [f"CPU:{i}" for i in order])
    assert [name[-1] for name in mesh.global_devices()] == ["0", "1", "2", "3"]
    parts = dtensor.unpack(dtensor.copy_to_mesh(tf.range(4), dtensor.Layout(["x"], mesh)))
    assert [int(p[0]) for p in parts] == order


def test_coordinates_wrap_after_the_last_device():
    mesh = describe_mesh([2, 3])
    twice = [*itertools.product(range(2), range(3))] * 2
    assert [tuple(mesh.coords(i)) for i in range(12)] == twice


def test_a_mesh_dimension_of_size_one_splits_nothing():
    mesh = dtensor.create_mesh([("x", 1), ("y", 2)], devices=["CPU:0", "CPU:1"])
    both, only_y = dtensor.Layout(["x", "y"], mesh), dtensor.Layout(["unsharded", "y"], mesh)
    assert both == only_y and hash(both) == hash(only_y)
    assert both != dtensor.Layout(["x", "unsharded"], mesh)
    dtensor.check_layout(tf.sqrt(dtensor.relayout(tf.ones([2, 2]), both)), both)


def test_a_mesh_of_one_device():
    single = Mesh.from_device("/job:localhost/replica:0/task:0/device:CPU:0")
    layout = dtensor.Layout.from_device("CPU:0")
    assert single.is_single_device() and layout.is_single_device()
    assert not describe_mesh([1]).is_single_device()
    assert Mesh.from_string(single.to_string()).single_device == single.single_device
    assert dtensor.Layout.from_string(layout.to_string()) == layout
    x = dtensor.relayout(tf.ones([2, 3]), layout)
    assert dtensor.fetch_layout(x) == layout and x.numpy().sum() == 6
    with dtensor.default_mesh(single):
        assert dtensor.fetch_layout(tf.ones([2])).mesh == single


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mesh(["x"], np.arange(2), [0, 1], ["CPU:0", "/cpu:0"]), "Duplicate devices found"),
        (lambda: Mesh(["x"], np.arange(2), [0, 1], ["CPU:0", "TPU:0"]), "multiple device_types"),
        (
            lambda: Mesh(["x"], np.array([1, 0]), [1, 0], ["CPU:1", "CPU:0"]),
            "sequentially increase",
        ),
        (
            lambda: describe_mesh([2], use_xla_spmd=True),
            "XLA SPMD is not currently not supported for CPU",
        ),
        (lambda: Mesh(["x"], np.arange(1), [0], ["/job:worker"]), "does not name a device"),
        *[
            (functools.partial(dtensor.create_mesh, dims), "create_mesh: mesh_dims must have")
            for dims in (
                {"x": 0},
                {"x": -2},
                {"x": 0, "y": -1},
                {"x": 2.5},
                {"x": "two"},
                {"x": None},
                [("x", 2), ("x", 2)],
                ["x"],
                "x",
                4,
            )
        ],
        (lambda: dtensor.create_mesh({"x": -1, "y": -1}), "only one size can be -1"),
    ],
)
def test_invalid_meshes(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_accelerator_system_is_started_once():
    with pytest.raises(ValueError, match="not initialized"):
        dtensor.shutdown_accelerator_system()
    with pytest.raises(ValueError, match="Accelerators are uninitialized"):
        dtensor.create_distributed_mesh([("x", 4)])
    assert dtensor.initialize_accelerator_system("CPU") == "CPU"
    try:
        with pytest.raises(ValueError, match="already been initialized"):
            dtensor.initialize_accelerator_system("CPU")
        assert dtensor.create_distributed_mesh([("x", 4)]).size == 4
    finally:
        dtensor.shutdown_accelerator_system()


def test_names_of_borg_tasks_are_in_their_order(monkeypatch):
    names = [f"/bns/cell/{i}:1" for i in range(12)]
    monkeypatch.setenv("DTENSOR_JOBS", ",".join(names))
    assert dtensor.jobs() == names
    monkeypatch.setenv("DTENSOR_JOBS", ",".join(reversed(names)))
    with pytest.raises(ValueError, match="Unexpected DTENSOR_JOBS"):
        dtensor.jobs()
    monkeypatch.setenv("DTENSOR_JOBS", "host:9,host:3")
    assert dtensor.jobs() == ["host:9", "host:3"]
