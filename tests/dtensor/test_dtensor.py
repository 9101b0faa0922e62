"""Test meshes, layouts, and values placed on them."""

import pickle

import numpy as np
import pytest

import meshflow as tf
from meshflow.experimental import dtensor
from meshflow.experimental.dtensor import UNSHARDED, Layout

U = UNSHARDED


@pytest.fixture
def mesh():
    return dtensor.create_mesh([("x", 2), ("y", 2)])


def test_mesh_properties(mesh):
    assert mesh.dim_names == ["x", "y"] and mesh.shape() == [2, 2] and mesh.size == 4
    assert mesh.strides == [2, 1] and mesh.dim_size("y") == 2 and mesh["x"].size == 2
    assert "x" in mesh and not mesh.contains_dim("z")
    assert mesh.coords(2).tolist() == [1, 0]
    assert mesh.unravel_index()[3] == {"x": 1, "y": 1}
    assert mesh.to_string().startswith("|x=2,y=2|0,1,2,3|0,1,2,3|/job:localhost/replica:0/task:0/")
    assert dtensor.Mesh.from_string(mesh.to_string()) == mesh == pickle.loads(pickle.dumps(mesh))
    assert mesh.local_devices()[3].endswith("device:CPU:3") and mesh.device_type() == "CPU"
    with pytest.raises(ValueError, match="not a dimension name"):
        mesh.dim_size("z")


def test_meshes_that_cannot_be():
    with pytest.raises(ValueError, match="must be equal to total size"):
        dtensor.create_mesh([("x", 3)])
    with pytest.raises(ValueError, match="different"):
        dtensor.create_mesh([("x", 2), ("x", 2)])
    assert dtensor.create_mesh([("x", -1)]).shape() == [4]
    assert dtensor.create_mesh([("a", 2)], devices=["CPU:2", "CPU:3"]).size == 2


def test_layout_properties(mesh):
    layout = Layout(["x", U], mesh)
    assert layout == Layout.batch_sharded(mesh, "x", 2) and hash(layout) == hash(
        Layout(["x", U], mesh)
    )
    assert Layout.inner_sharded(mesh, "y", 3).sharding_specs == [U, U, "y"]
    assert layout.local_shape([6, 4]) == (3, 4)
    assert layout.global_shape_from_local_shape([3, 4]) == (6, 4)
    assert layout.offset_to_shard() == [(0, 0), (0, 0), (1, 0), (1, 0)]
    assert Layout.from_string(layout.to_string()) == layout
    assert layout.is_batch_parallel() and Layout.replicated(mesh, 2).is_fully_replicated()
    assert layout.delete([0]).sharding_specs == [U]
    with pytest.raises(ValueError, match="Mesh dimension x was repeated"):
        Layout(["x", "x"], mesh)
    with pytest.raises(ValueError, match=r"z: A dimension sharding .*\['x', 'y'\]"):
        Layout(["z"], mesh)


def test_shapes_that_do_not_fit_are_named(mesh):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"Axis 0 .* size 3.* mesh dimension 'x'"
    ):
        dtensor.copy_to_mesh(tf.ones([3, 2]), Layout(["x", U], mesh))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Rank mismatch"):
        dtensor.copy_to_mesh(tf.ones([4]), Layout(["x", U], mesh))


def test_relayout_pack_and_unpack(mesh):
    value = np.arange(8.0, dtype=np.float32).reshape(4, 2)
    x = dtensor.copy_to_mesh(value, Layout(["x", "y"], mesh))
    parts = dtensor.unpack(x)
    np.testing.assert_array_equal(parts[1].numpy(), value[:2, 1:])
    again = dtensor.pack(parts, Layout(["x", "y"], mesh))
    np.testing.assert_array_equal(again.numpy(), value)
    y = dtensor.relayout(x, Layout([dtensor.MATCH, U], mesh))
    assert dtensor.fetch_layout(y).sharding_specs == ["x", U]
    rows = tf.function(lambda t: dtensor.relayout(tf.sqrt(t), Layout([dtensor.MATCH, U], mesh)))
    dtensor.check_layout(rows(x), Layout(["x", U], mesh))
    dtensor.check_layout(y, Layout(["x", U], mesh))
    with pytest.raises(ValueError, match="did not match"):
        dtensor.check_layout(x, Layout(["x", U], mesh))
    assert dtensor.is_dtensor(x) and not dtensor.is_dtensor(tf.ones([2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="FetchLayout expects a tensor"):
        dtensor.fetch_layout(tf.ones([2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected one for each"):
        dtensor.pack(parts[:2], Layout(["x", "y"], mesh))
    with pytest.raises(tf.errors.InvalidArgumentError, match="should have the same rank"):
        dtensor.pack(parts, Layout(["x"], mesh))
    with pytest.raises(TypeError, match="Expecting a Tensor"):
        dtensor.unpack([1.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="DTensorUnpack expects"):
        dtensor.unpack(tf.ones([2]))
    assert dtensor.fetch_layout(3) is None


def test_some_functions_are_for_eager_code_only(mesh):
    x = dtensor.copy_to_mesh(tf.ones([4]), Layout(["x"], mesh))
    for name in ("fetch_layout", "is_dtensor", "unpack"):
        with pytest.raises(RuntimeError, match=f"`{name}` must be called eagerly"):
            tf.function(getattr(dtensor, name))(x)


def test_ops_propagate_layouts(mesh):
    a = dtensor.copy_to_mesh(tf.ones([4, 6]), Layout(["x", U], mesh))
    b = dtensor.copy_to_mesh(tf.ones([6, 4]), Layout([U, "y"], mesh))
    assert dtensor.fetch_layout(tf.matmul(a, b)).sharding_specs == ["x", "y"]
    np.testing.assert_array_equal((a + 1.0).numpy(), np.full([4, 6], 2.0))
    zeros = dtensor.call_with_layout(tf.zeros, Layout(["x"], mesh), [4])
    assert dtensor.fetch_layout(zeros).sharding_specs == ["x"]


def test_variables_keep_their_layout(mesh):
    layout = Layout(["x", U], mesh)
    v = dtensor.DVariable(tf.ones([4, 2]), layout=layout)
    assert isinstance(v, tf.Variable) and isinstance(v, dtensor.DVariable)
    assert not isinstance(tf.Variable(1.0), dtensor.DVariable)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(x, v) ** 2)
        gradient = tape.gradient(loss, v)
        v.assign_sub(0.1 * gradient)
        return loss

    x = np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 4)
    w = np.ones([4, 2], np.float32)
    for _ in range(2):
        np.testing.assert_allclose(step(x), ((x @ w) ** 2).sum(), rtol=1e-5)
        w -= 0.1 * 2 * x.T @ (x @ w)
        dtensor.check_layout(v, layout)
        assert len(v._value.addressable_shards[0].data) == 2
    np.testing.assert_allclose(v.numpy(), w, rtol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Neither layout nor DTensor"):
        dtensor.DVariable(tf.ones([2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Conflicting layout"):
        dtensor.DVariable(v.value(), layout=Layout([U, U], mesh))


def test_printed_tensors_show_their_layout(mesh):
    layout = Layout(["x"], mesh)
    halves = dtensor.copy_to_mesh([1.0, 2.5], layout)
    value = '{"CPU:0": [1], "CPU:1": [1], "CPU:2": [2.5], "CPU:3": [2.5]}'
    where = f'layout="{layout.to_string()}"'
    assert str(halves) == f"tf.Tensor({value}, {where}, shape=(2,), dtype=float32)"
    assert repr(halves) == f"<tf.Tensor: shape=(2,), dtype=float32, value={value}, {where}>"
    v = dtensor.DVariable(halves, name="v")
    assert repr(v) == f"<tf.Variable 'v:0' shape=(2,) dtype=float32, value={value}, {where}>"
    whole = dtensor.relayout(halves, Layout([U], mesh))
    assert str(whole).startswith('tf.Tensor([1 2.5], layout="sharding_specs:unsharded,')
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        assert "layout" not in repr(tf.Variable([1.0]))


def test_gradients_pass_through_relayout(mesh):
    x = tf.constant(np.arange(4.0, dtype=np.float32))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(dtensor.relayout(x, Layout(["x"], mesh)) ** 2)
    np.testing.assert_allclose(tape.gradient(y, x), [0, 2, 4, 6])


def test_gradient_has_the_layout_of_its_source(mesh):
    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = dtensor.relayout(x, Layout([U, "y"], mesh)) ** 2
        return tape.gradient(y, x)

    x = dtensor.relayout(tf.ones([4, 4]), Layout(["x", U], mesh))
    dtensor.check_layout(gradient(x), Layout(["x", U], mesh))


def test_relayout_like_uses_the_layout_of_an_argument(mesh):
    along = tf.function(lambda x, like: dtensor.relayout_like(tf.sqrt(x), like))
    x = dtensor.relayout(tf.ones([4]), Layout([U], mesh))
    for spec in ("x", "y"):
        like = dtensor.relayout(tf.range(4), Layout([spec], mesh))
        dtensor.check_layout(along(x, like), Layout([spec], mesh))
    with pytest.raises(tf.errors.InvalidArgumentError, match="cannot take the layout"):
        along(x, tf.ones([2]))


def test_function_constants_are_placed_on_the_mesh(mesh):
    on_mesh = tf.function(
        lambda: dtensor.copy_to_mesh(tf.constant([1.0, 2.0]), Layout(["x"], mesh))
    )
    dtensor.check_layout(on_mesh(), Layout(["x"], mesh))


def test_tensors_are_made_in_a_layout(mesh):
    layout = Layout(["x"], mesh)
    whole = Layout([U], mesh)
    zeros = tf.zeros([4], layout=layout)
    assert zeros.numpy().tolist() == [0] * 4
    for made in (zeros, tf.ones([4], layout=layout), tf.fill([4], 2, layout=layout)):
        dtensor.check_layout(made, layout)
    dtensor.check_layout(tf.zeros_like(zeros), layout)
    dtensor.check_layout(tf.ones_like(zeros, layout=whole), whole)
    dtensor.check_layout(tf.function(lambda: tf.ones([4], layout=layout))(), layout)
    glorot = tf.keras.initializers.GlorotUniform(seed=1)
    drawn = glorot([4, 2], layout=Layout(["x", U], mesh))
    dtensor.check_layout(drawn, Layout(["x", U], mesh))
    np.testing.assert_array_equal(drawn, glorot([4, 2]))


def test_default_mesh_and_clients(mesh):
    with dtensor.default_mesh(mesh):
        assert dtensor.get_default_mesh() is mesh
        x = tf.ones([3])
        y = tf.function(lambda: tf.constant([3, 4]))()
        other = dtensor.create_mesh([("z", 2)], devices=["CPU:0", "CPU:1"])
        with dtensor.default_mesh(other):
            z = x + 1.0
            w = tf.ones([2])
        assert not dtensor.is_dtensor(tf.constant(1.0))
    assert dtensor.get_default_mesh() is None and not dtensor.is_dtensor(tf.ones([3]))
    for tensor in (x, y, z):
        dtensor.check_layout(tensor, Layout.replicated(mesh, 1))
    dtensor.check_layout(w, Layout.replicated(other, 1))
    with tf.device(dtensor.device_name()):
        assert (tf.ones([2]) + 1.0).numpy().tolist() == [2, 2]
    assert dtensor.num_clients() == 1 and dtensor.client_id() == 0
    assert dtensor.num_local_devices("CPU") == 4
    assert dtensor.full_job_name() == "localhost/replica:0/task:0"


def test_messages_and_parts(mesh):
    layout = Layout(["x", U], mesh)
    message = layout.as_proto()
    assert [s.sharding_spec for s in message.sharding_specs] == ["x", U]
    assert [(d.name, d.size) for d in message.mesh_config.mesh_dimensions] == [("x", 2), ("y", 2)]
    assert Layout.from_proto(message) == layout
    assert dtensor.Mesh.from_proto(mesh.as_proto()) == mesh
    parts = dtensor.unpack(dtensor.copy_to_mesh(tf.range(4), Layout(["x"], mesh)))
    assert [p.numpy().tolist() for p in Layout(["x"], mesh).unravel(parts)] == [[0, 1], [2, 3]]


def test_client_properties(mesh, monkeypatch):
    assert dtensor.preferred_device_type() == "CPU"
    assert dtensor.heartbeat_enabled()
    monkeypatch.setenv("DTENSOR_ENABLE_HEARTBEAT", "0")
    assert not dtensor.heartbeat_enabled()
    assert [d.to_string() for d in dtensor.local_devices("CPU")][1] == (
        "/job:localhost/replica:0/task:0/device:CPU:1"
    )
    dtensor.barrier(mesh, "here", timeout_in_ms=1000)
    with pytest.raises(ValueError, match="no devices of type 'TPU'"):
        dtensor.create_tpu_mesh(["x"], [2], "tpu")
    with pytest.raises(ValueError, match="1 names"):
        dtensor.create_tpu_mesh(["x"], [2, 2], "tpu")
