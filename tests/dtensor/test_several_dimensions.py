"""Axes that are split over several mesh dimensions."""

import pickle

import jax
import numpy as np
import pytest

import meshflow as tf
from meshflow.experimental import dtensor
from meshflow.experimental.dtensor import UNSHARDED, Layout

U = UNSHARDED


@pytest.fixture
def mesh():
    return dtensor.create_mesh([("data", 2), ("model", 2)])


@pytest.fixture
def rows():
    return np.arange(16, dtype="float32").reshape(8, 2)


def parts_of(tensor):
    return [part.numpy()[:, 0].tolist() for part in dtensor.unpack(tensor)]


def test_properties_of_a_layout_over_two_dimensions(mesh):
    layout = Layout(["data+model", U], mesh)
    assert layout.sharding_specs == ["data+model", U]
    assert layout == Layout([("data", "model"), U], mesh)
    assert layout != Layout(["model+data", U], mesh) and layout != Layout(["data", U], mesh)
    assert [layout.num_shards(axis) for axis in (0, 1)] == [4, 1]
    assert layout.is_batch_parallel() and not layout.is_fully_replicated()
    assert layout.local_shape([8, 2]) == (2, 2)
    assert layout.global_shape_from_local_shape([2, 2]) == (8, 2)
    assert layout.offset_to_shard() == [(0, 0), (1, 0), (2, 0), (3, 0)]
    turned = Layout(["model+data", U], mesh)
    assert turned.offset_to_shard() == [(0, 0), (2, 0), (1, 0), (3, 0)]
    assert layout.to_sharding().spec == jax.sharding.PartitionSpec(("data", "model"), None)


def test_layout_round_trips_through_text_proto_and_pickle(mesh):
    layout = Layout([U, "model+data"], mesh)
    assert "sharding_specs:unsharded,model+data, mesh:" in layout.to_string()
    assert layout.to_string() in repr(layout)
    for other in (
        Layout.from_string(layout.to_string()),
        Layout.from_proto(layout.as_proto()),
        pickle.loads(pickle.dumps(layout)),
    ):
        assert other == layout and hash(other) == hash(layout)
        assert other.sharding_specs == layout.sharding_specs


def test_shards_follow_the_layout(mesh, rows):
    for specs, parts in (
        (["data+model", U], [[0, 2], [4, 6], [8, 10], [12, 14]]),
        (["model+data", U], [[0, 2], [8, 10], [4, 6], [12, 14]]),
    ):
        layout = Layout(specs, mesh)
        x = dtensor.copy_to_mesh(rows, layout)
        assert parts_of(x) == parts
        assert dtensor.fetch_layout(x) == layout
        assert dtensor.fetch_layout(x).sharding_specs == specs
        again = dtensor.pack(dtensor.unpack(x), layout)
        np.testing.assert_array_equal(again.numpy(), rows)
        assert f"layout ['{specs[0]}', 'unsharded']" in dtensor.visualize(x).text


def test_layout_of_arrays_that_jax_split_over_a_tuple(mesh, rows):
    for spec, specs in (
        (jax.sharding.PartitionSpec(("data", "model")), ["data+model", U]),
        (jax.sharding.PartitionSpec(None, ("model",)), [U, "model"]),
        (jax.sharding.PartitionSpec((), "model"), [U, "model"]),
    ):
        array = jax.device_put(rows, jax.sharding.NamedSharding(mesh.jax_mesh, spec))
        assert dtensor.fetch_layout(tf.convert_to_tensor(array)).sharding_specs == specs


def test_dimensions_of_size_one_split_nothing():
    mesh = dtensor.create_mesh([("one", 1), ("four", 4)])
    assert Layout(["one+four"], mesh) == Layout(["four"], mesh)
    assert hash(Layout(["one+four"], mesh)) == hash(Layout(["four"], mesh))
    x = dtensor.copy_to_mesh(tf.ones([4]), Layout(["one+four"], mesh))
    dtensor.check_layout(tf.sqrt(x), Layout(["four"], mesh))


def test_relayout_gathers_over_successive_dimensions(mesh, rows):
    x = dtensor.copy_to_mesh(rows, Layout(["data+model", U], mesh))

    def whole(x):
        return dtensor.relayout(x, Layout.replicated(mesh, 2))

    np.testing.assert_array_equal(whole(x).numpy(), rows)
    found = dtensor.explain(tf.function(whole), x)
    assert {c.kind for c in found.collectives} == {"all-gather"}
    assert {axis for c in found.collectives for axis in c.axes} == {"data", "model"}
    half = tf.function(lambda x: dtensor.relayout(x, Layout(["data", U], mesh)))
    assert [c.axes for c in dtensor.explain(half, x).collectives] == [("model",)]
    dtensor.check_layout(half(x), Layout(["data", U], mesh))


def test_checkpoints_of_such_variables_fit_any_other_layout(mesh, rows, tmp_path):
    line = dtensor.create_mesh([("z", 4)])
    first = dtensor.DVariable(rows, layout=Layout(["data+model", U], mesh))
    path = tf.train.Checkpoint(v=first).save(tmp_path / "ckpt")
    for layout in (
        Layout(["model+data", U], mesh),
        Layout([U, "data"], mesh),
        Layout(["z", U], line),
    ):
        second = dtensor.DVariable(np.zeros_like(rows), layout=layout)
        tf.train.Checkpoint(v=second).restore(path).assert_consumed()
        np.testing.assert_array_equal(second.numpy(), rows)
        dtensor.check_layout(second, layout)
    back = dtensor.DVariable(np.zeros_like(rows), layout=first.layout)
    path = tf.train.Checkpoint(v=second).save(tmp_path / "other")
    tf.train.Checkpoint(v=back).restore(path).assert_consumed()
    assert parts_of(back.read_value()) == [[0, 2], [4, 6], [8, 10], [12, 14]]


def test_a_model_trains_on_batches_and_weights_split_twice(mesh):
    x = np.random.RandomState(0).randn(8, 4).astype("float32")
    y = np.random.RandomState(1).randn(8, 8).astype("float32")
    histories = []
    for layouts in (None, tf.keras.dtensor.experimental.LayoutMap(mesh=mesh)):
        tf.keras.utils.set_random_seed(1)
        layer = tf.keras.layers.Dense(8, name="dense")
        if layouts is not None:
            layouts["dense.kernel"] = Layout([U, "data+model"], mesh)
            with layouts.scope():
                layer.build([None, 4])
            assert layer.kernel._value.addressable_shards[0].data.shape == (4, 2)
        model = tf.keras.Sequential([tf.keras.Input((4,)), layer])
        model.compile("adam", "mse")
        histories.append(model.fit(x, y, batch_size=8, epochs=3, verbose=0).history["loss"])
    np.testing.assert_allclose(*histories, rtol=1e-5)
    dtensor.check_layout(layer.kernel, Layout([U, "data+model"], mesh))


def test_batches_of_data_sets_are_split_over_both(mesh):
    layout = Layout(["data+model"], mesh)
    batches = dtensor.DTensorDataset(
        tf.data.Dataset.range(8),
        mesh=mesh,
        layouts=layout,
        global_batch_size=8,
        batch_dim="data+model",
    )
    (batch,) = batches
    assert [p.numpy().tolist() for p in dtensor.unpack(batch)] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (["data+rows"], "rows: A dimension sharding must .* has the dimensions .*'data', 'model'"),
        (["data+data"], "Mesh dimension data was repeated"),
        (["data+model", "model"], "Mesh dimension model was repeated"),
        (["data+unsharded"], "unsharded: A dimension sharding must"),
    ],
)
def test_invalid_layouts(mesh, specs, message):
    with pytest.raises(ValueError, match=message):
        Layout(specs, mesh)


def test_uneven_sizes_name_both_dimensions(mesh):
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"Axis 0 .* size 6, .* into the 4 parts of the mesh dimensions 'data' and 'model'.*multiple of 4",
    ):
        dtensor.copy_to_mesh(tf.ones([6, 2]), Layout(["data+model", U], mesh))
