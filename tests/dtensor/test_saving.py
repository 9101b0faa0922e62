"""Checkpoints of tensors that are split over a mesh."""

import os

import ml_dtypes
import numpy as np
import pytest

import meshflow as tf
from meshflow.checkpoint import bundle_writer
from meshflow.checkpoint.bundle import BundleReader
from meshflow.experimental import dtensor
from meshflow.experimental.dtensor import UNSHARDED, Layout

U = UNSHARDED


@pytest.fixture
def mesh():
    return dtensor.create_mesh([("x", 2), ("y", 2)])


@pytest.fixture
def line():
    return dtensor.create_mesh([("z", 4)])


def variable(value, specs, mesh):
    return dtensor.DVariable(value, layout=Layout(specs, mesh))


def test_saved_on_one_mesh_restored_on_another(mesh, line, tmp_path, monkeypatch):
    a = np.arange(32, dtype=np.float32).reshape(8, 4)
    first = tf.train.Checkpoint(
        a=variable(a, ["x", "y"], mesh), b=variable(np.arange(4), [U], mesh), c=tf.Variable(3.0)
    )
    path = first.save(tmp_path / "ckpt")
    second = tf.train.Checkpoint(
        a=variable(np.zeros_like(a), ["z", U], line),
        b=variable(np.zeros(4, np.int64), ["z"], line),
        c=tf.Variable(0.0),
    )
    # A sharded array is never read completely.
    monkeypatch.setattr(BundleReader, "read_shareable", lambda self, name: pytest.fail(name))
    with pytest.raises(pytest.fail.Exception, match="c/"):
        second.restore(path)
    monkeypatch.undo()
    second.restore(path).assert_consumed()
    np.testing.assert_array_equal(second.a.numpy(), a)
    assert second.b.numpy().tolist() == [0, 1, 2, 3] and float(second.c) == 3.0
    dtensor.check_layout(second.a, Layout(["z", U], line))
    assert second.a._value.addressable_shards[3].data.tolist() == a[6:].tolist()
    plain = tf.Variable(np.zeros_like(a))
    tf.train.Checkpoint(a=plain).restore(path).expect_partial()
    np.testing.assert_array_equal(plain.numpy(), a)


def test_shards_are_written_one_by_one(mesh, tmp_path, monkeypatch):
    whole = np.arange(32, dtype=np.float32).reshape(8, 4)
    v = variable(whole, ["x", U], mesh)
    seen = []
    real = bundle_writer.read_uncached

    def noting(value):
        seen.append(value.shape)
        return real(value)

    monkeypatch.setattr(bundle_writer, "read_uncached", noting)
    tf.train.Checkpoint(v=v).write(tmp_path / "ckpt")
    monkeypatch.undo()
    # One of the two copies of each half, never the complete array.
    assert [s for s in seen if len(s) == 2] == [(4, 4), (4, 4)]
    np.testing.assert_array_equal(tf.train.load_variable(str(tmp_path / "ckpt"), "v"), whole)


def test_bfloat16_in_files_only(mesh, tmp_path):
    value = np.linspace(0, 1, 8, dtype=np.float32)
    v = variable(value, ["x"], mesh)
    ordinary, whole = tf.Variable(value), variable(value, [U], mesh)
    dtensor.enable_save_as_bf16([v, ordinary, whole])
    checkpoint = tf.train.Checkpoint(v=v, ordinary=ordinary, whole=whole)
    path = checkpoint.save(tmp_path / "ckpt")
    dtypes = tf.train.load_checkpoint(path).get_variable_to_dtype_map()
    assert [dtypes[f"{n}/.ATTRIBUTES/VARIABLE_VALUE"] for n in ("v", "ordinary", "whole")] == [
        tf.bfloat16,
        tf.float32,
        tf.bfloat16,
    ]
    v.assign(np.zeros(8, np.float32))
    checkpoint.restore(path).assert_consumed()
    assert v.dtype is tf.float32
    np.testing.assert_array_equal(v.numpy(), value.astype(ml_dtypes.bfloat16).astype(np.float32))
    np.testing.assert_array_equal(whole.numpy(), v.numpy())


def test_damage_in_sharded_arrays_is_detected(mesh, tmp_path):
    v = variable(np.ones(64, np.float32), ["x"], mesh)
    path = tf.train.Checkpoint(v=v).write(tmp_path / "ckpt")
    file = tmp_path / "ckpt.data-00000-of-00001"
    data = bytearray(file.read_bytes())
    data[data.index(np.ones(64, np.float32).tobytes()) + 100] ^= 1
    file.write_bytes(data)
    with pytest.raises(tf.errors.DataLossError, match="checksum"):
        tf.train.Checkpoint(v=v).restore(path)


def test_optimizer_slots_move_with_the_weights(mesh, line, tmp_path):
    x, y = np.ones([4, 6], "float32"), np.ones([4, 8], "float32")

    def make(mesh, specs):
        tf.keras.backend.reset_uids()
        tf.random.set_seed(0)
        layouts = tf.keras.dtensor.experimental.LayoutMap(mesh=mesh)
        layouts["dense.kernel"] = Layout(specs, mesh)
        with layouts.scope():
            model = tf.keras.Sequential([tf.keras.layers.Dense(8, input_shape=(6,))])
        model.compile("adam", "mse")
        return model

    model = make(mesh, [U, "y"])
    model.fit(x, y, verbose=0)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "ckpt")
    expected = model.fit(x, y, epochs=2, verbose=0).history["loss"]
    other = make(line, [U, "z"])
    tf.train.Checkpoint(model=other, optimizer=other.optimizer).restore(path)
    np.testing.assert_allclose(
        other.fit(x, y, epochs=2, verbose=0).history["loss"], expected, rtol=1e-6
    )
    slot = other.optimizer.get_slot(other.layers[0].kernel, "m")
    assert slot._value.addressable_shards[0].data.shape == (6, 2)


def test_dtensor_checkpoint_and_saving_by_name(mesh, line, tmp_path):
    v = variable(np.arange(4.0, dtype=np.float32), ["x"], mesh)
    checkpoint = dtensor.DTensorCheckpoint(mesh, v=v)
    path = checkpoint.save(tmp_path / "ckpt")
    v.assign(tf.zeros([4]))
    checkpoint.restore(path).assert_consumed()
    assert v.numpy().tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="expected a Mesh"):
        dtensor.DTensorCheckpoint("mesh", v=v)
    t = dtensor.copy_to_mesh(tf.ones([4, 2]), Layout([U, "y"], mesh))
    prefix = str(tmp_path / "names")
    dtensor.name_based_save(mesh, prefix, {"v": v, "t": t})
    assert os.path.exists(prefix + ".index")
    like = {
        "t": dtensor.copy_to_mesh(tf.zeros([4, 2]), Layout(["z", U], line)),
        "v": variable(np.zeros(4, np.float32), [U], line),
    }
    found = dtensor.name_based_restore(line, prefix, like)
    assert list(found) == ["t", "v"] and found["v"].numpy().tolist() == [0, 1, 2, 3]
    dtensor.check_layout(found["t"], Layout(["z", U], line))
    with pytest.raises(ValueError, match="must be a DTensor: v"):
        dtensor.name_based_restore(line, prefix, {"v": tf.zeros([4])})
    with pytest.raises(ValueError, match=r"saved with shape \(4,\)"):
        dtensor.name_based_restore(line, prefix, {"v": like["t"]})
    with pytest.raises(tf.errors.NotFoundError, match="Key w"):
        dtensor.name_based_restore(line, prefix, {"w": v})
    with pytest.raises(ValueError, match="1 names, 0 slices and 1 tensors"):
        dtensor.sharded_save(mesh, prefix, ["a"], [], [v])
    with pytest.raises(ValueError, match="only shape_and_slices"):
        dtensor.sharded_save(mesh, prefix, ["a"], ["4 0,2"], [v])
