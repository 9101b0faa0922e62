"""Test version 1's `Saver`, and its functions for checkpoints."""

import os

import pytest

import meshflow as tf

train = tf.compat.v1.train


def variables():
    return tf.Variable(1.0, name="a"), tf.Variable([2.0, 3.0], name="scope/b")


def test_variables_are_saved_by_their_names(tmp_path):
    a, b = variables()
    saver = train.Saver([a, b])
    path = saver.save(None, tmp_path / "sub" / "model")
    assert path == str(tmp_path / "sub" / "model")
    assert tf.train.list_variables(path) == [("a", []), ("scope/b", [2])]
    for given in (b, {"scope/b": b}), (a, {"a": a}):
        given[0].assign(given[0] * 0)
        assert train.Saver(given[1]).restore(None, path) is None
    assert float(a) == 1 and b.numpy().tolist() == [2.0, 3.0]
    column = tf.Variable([[0.0], [0.0]], name="scope/b")
    train.Saver([column], reshape=True).restore(None, path)
    assert column.numpy().tolist() == [[2.0], [3.0]]
    a.assign(0.0)
    train.init_from_checkpoint(str(tmp_path / "sub"), {"a": a})
    assert float(a) == 1
    reader = train.NewCheckpointReader(path)
    assert reader.has_tensor("a") and reader.get_tensor("scope/b").tolist() == [2.0, 3.0]


def test_object_and_name_based_checkpoints_are_interchangeable(tmp_path):
    a, b = variables()
    by_objects = tf.train.Checkpoint(x=a, y=b).save(tmp_path / "objects")
    by_names = train.Saver([a, b]).save(None, tmp_path / "names", write_state=False)
    a.assign(8.0)
    train.Saver([a, b]).restore(None, by_objects)
    assert float(a) == 1
    a.assign(8.0)
    tf.train.Checkpoint(x=a, y=b).restore(by_names).assert_consumed()
    assert float(a) == 1
    assert tf.train.latest_checkpoint(tmp_path) == by_objects


def test_latest_checkpoints_are_preserved(tmp_path):
    a, _ = variables()
    saver = train.Saver([a], max_to_keep=2, pad_step_number=True)
    paths = [saver.save(None, tmp_path / "m", global_step=tf.Variable(i)) for i in range(4)]
    assert paths[3] == str(tmp_path / "m-00000003") == tf.train.latest_checkpoint(tmp_path)
    assert saver.last_checkpoints == paths[2:]
    assert [train.checkpoint_exists(path) for path in paths] == [False, False, True, True]
    assert len(train.get_checkpoint_mtimes(paths)) == 2
    other = train.Saver([a], max_to_keep=2)
    other.recover_last_checkpoints(paths)
    assert other.last_checkpoints == paths[2:]
    other.set_last_checkpoints_with_time([("y", 1.0)])
    assert other.last_checkpoints == ["y"]
    other.set_last_checkpoints(["x"])
    assert other.last_checkpoints == ["x"]
    everything = train.Saver([a], max_to_keep=0)
    everything.save(None, tmp_path / "all", 1, latest_filename="other")
    assert everything.last_checkpoints == []
    assert tf.train.latest_checkpoint(tmp_path, "other") == str(tmp_path / "all-1")
    train.remove_checkpoint(paths[3])
    assert not train.checkpoint_exists(paths[3])


def test_the_file_that_names_checkpoints(tmp_path):
    old, new = str(tmp_path / "m-1"), str(tmp_path / "m-2")
    train.update_checkpoint_state(tmp_path, new, all_model_checkpoint_paths=[old])
    state = tf.train.get_checkpoint_state(tmp_path)
    assert state.model_checkpoint_path == new
    assert state.all_model_checkpoint_paths == [old, new]
    made = train.generate_checkpoint_state_proto(tmp_path, new, [old], [1.0, 2.0], 3.0)
    assert made.all_model_checkpoint_timestamps == [1.0, 2.0]
    assert made.last_preserved_timestamp == 3.0
    with pytest.raises(ValueError, match="timestamps, if provided, must match"):
        train.generate_checkpoint_state_proto(tmp_path, new, [old], [1.0])


def test_wrong_calls(tmp_path):
    a, b = variables()
    path = train.Saver([a]).save(None, tmp_path / "m")
    nowhere = str(tmp_path / "nowhere")
    same = tf.Variable([1.0], name="a")
    for call, error, message in (
        (train.Saver, RuntimeError, "var_list"),
        (lambda: train.Saver([3]), TypeError, "got 3"),
        (lambda: train.Saver([a, same]), ValueError, "the same name: a"),
        (lambda: train.Saver([a]).restore(None, None), ValueError, "None"),
        (lambda: train.Saver([a]).restore(None, nowhere), ValueError, "not a valid checkpoint"),
        (lambda: train.Saver([a, b]).restore(None, path), tf.errors.NotFoundError, "Key scope/b"),
        (lambda: train.Saver([same]).restore(None, path), ValueError, "incompatible tensor"),
        (lambda: train.NewCheckpointReader(nowhere), tf.errors.NotFoundError, "nowhere"),
        (lambda: train.init_from_checkpoint(path, {"a": "b"}), ValueError, "name 'b'"),
        (lambda: train.Saver([a]).save(None, path, latest_filename="x/y"), ValueError, "x/y"),
        (lambda: train.Supervisor, AttributeError, "graph mode"),
    ):
        with pytest.raises(error, match=message):
            call()
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "m.data-00000-of-00001", "m.index"]


def test_the_step_counter_of_a_process():
    step = train.get_or_create_global_step()
    assert step is train.get_global_step() and step.dtype == tf.int64
    assert train.global_step(None, step) == int(step)
    with pytest.raises(ValueError, match="already exists"):
        train.create_global_step()
    assert issubclass(train.Checkpoint, tf.train.Checkpoint) and "Saver" in dir(train)
