"""How checkpoints are divided over data files."""

import glob
import os

import numpy as np
import pytest

import meshflow as tf
from meshflow.core.variables.sharded_variable import ShardedVariable

experimental = tf.train.experimental
# In this order the sizes of the files that TensorFlow 2.21 writes for them are known.
SHAPES = [(4,), (4, 1), (3, 5), (10, 30), (2, 3, 4), (7,), (1, 9), (5, 5, 5), ()]


def policy(shards, sentence="as the test says"):
    class Policy(experimental.ShardingCallback):
        @property
        def description(self):
            return sentence

        def __call__(self, shardable_tensors):
            return shards(shardable_tensors)

    return Policy()


def write_checkpoint(checkpoint, path, callback, **more):
    options = tf.train.CheckpointOptions(experimental_sharding_callback=callback, **more)
    path = checkpoint.write(path, options)
    checkpoint.sync()
    return path, sorted(map(os.path.getsize, glob.glob(path + ".data-*")))


@pytest.mark.parametrize(
    ("most", "files", "smallest"), [(16, 130, 4), (100, 22, 60), (200, 11, 112), (1000, 2, 992)]
)
def test_files_have_a_largest_size(tmp_path, most, files, smallest):
    arrays = [np.arange(np.prod(s, dtype=int), dtype="float32").reshape(s) for s in SHAPES]
    variables = [tf.Variable(array) for array in arrays]
    checkpoint = tf.train.Checkpoint(**{f"v{i}": v for i, v in enumerate(variables)})
    path, sizes = write_checkpoint(
        checkpoint, tmp_path / "ckpt", experimental.MaxShardSizePolicy(most)
    )
    # One of them also contains the object graph, which does not count.
    assert len(sizes) == files and sizes[0] == smallest
    assert all(size <= most for size in sizes[:-1])
    for variable in variables:
        variable.assign(tf.zeros_like(variable))
    checkpoint.read(path).assert_consumed()
    for variable, array in zip(variables, arrays, strict=True):
        assert np.array_equal(variable.numpy(), array)


def test_indivisible_values_are_saved_in_a_separate_file(tmp_path, caplog):
    texts = [b"abc", b"defg", b"hijklm", b"n"]
    checkpoint = tf.train.Checkpoint(a=tf.Variable(texts), b=tf.Variable("x" * 50))
    path, sizes = write_checkpoint(
        checkpoint, tmp_path / "ckpt", experimental.MaxShardSizePolicy(10)
    )
    assert "b/.ATTRIBUTES/VARIABLE_VALUE has a part of 50 bytes" in caplog.text
    assert len(sizes) == 5
    fresh = tf.train.Checkpoint(a=tf.Variable([""] * 4), b=tf.Variable(""))
    fresh.read(path).assert_consumed()
    assert fresh.a.numpy().tolist() == texts and fresh.b.numpy() == b"x" * 50
    with pytest.raises(ValueError, match="positive"):
        experimental.MaxShardSizePolicy(0)


def test_a_policy_decides(tmp_path):
    seen = []

    def one_each(tensors):
        seen.extend(tensors)
        return [{t.checkpoint_key: {t.slice_spec: t.tensor}} for t in tensors]

    table = ShardedVariable([tf.Variable([[1.0], [2.0]]), tf.Variable([[3.0]])])
    checkpoint = tf.train.Checkpoint(v=tf.Variable([1, 2]), table=table)
    for files in (4, 5):  # in the place of another the files have another number, and one is empty
        path, sizes = write_checkpoint(
            checkpoint, tmp_path / "ckpt", policy(one_each), enable_async=files == 5
        )
        assert len(sizes) == files
    about = [(t.checkpoint_key[:5], t.slice_spec, t.dtype, t.shape, t.trackable) for t in seen[:3]]
    assert about == [
        ("v/.AT", "", tf.int32, [2], checkpoint.v),
        ("table", "3 1 0,2:0,1", tf.float32, [2, 1], table),
        ("table", "3 1 2,1:0,1", tf.float32, [1, 1], table),
    ]
    assert (seen[0].device.job, seen[0].device.task) == ("localhost", 0)
    whole = tf.Variable(tf.zeros([3, 1]))
    tf.train.Checkpoint(v=tf.Variable([0, 0]), table=whole).read(path).assert_consumed()
    assert whole.numpy().tolist() == [[1.0], [2.0], [3.0]]


def test_each_task_writes_one_file(tmp_path):
    checkpoint = tf.train.Checkpoint(a=tf.Variable(1.0), b=tf.Variable(2.0))
    assert (
        len(write_checkpoint(checkpoint, tmp_path / "ckpt", experimental.ShardByTaskPolicy())[1])
        == 1
    )


def test_a_policy_may_not_change_tensors(tmp_path):
    checkpoint = tf.train.Checkpoint(a=tf.Variable([[1.0, 2.0]]))

    def changed(change):
        def shards(tensors):
            made = [{t.checkpoint_key: {t.slice_spec: t.tensor}} for t in tensors]
            change(made, tensors[0])
            return made

        return shards

    def puts(value):
        return lambda made, t: made[0][t.checkpoint_key].update({"": value(t.tensor)})

    for change, message in (
        (lambda made, _: made.pop(0), r"a/\.ATTRIBUTES/VARIABLE_VALUE .*is missing"),
        (lambda made, _: made.append(made[0]), "several times"),
        (lambda made, t: made.append({"more": {"": t.tensor}}), "more is a tensor not originally"),
        (puts(tf.transpose), r"altered shape, \[2, 1\]"),
        (puts(lambda x: tf.cast(x, tf.int32)), "altered dtype, int32"),
    ):
        with pytest.raises(RuntimeError, match=f"'as the test says' are wrong: .*{message}"):
            write_checkpoint(checkpoint, tmp_path / "ckpt", policy(changed(change)))
    assert not list(tmp_path.iterdir())


def test_options_and_policies():
    with pytest.raises(ValueError, match=r"ShardingCallback .* got 3"):
        tf.train.CheckpointOptions(experimental_sharding_callback=3)
    with pytest.raises(TypeError, match="abstract"):
        experimental.ShardingCallback()
    assert hash(policy(None)) == hash(policy(None)) != hash(policy(None, "otherwise"))
    sizes = experimental.MaxShardSizePolicy
    assert hash(sizes(1)) == hash(sizes(1)) != hash(sizes(2))
    tensor = experimental.ShardableTensor(
        None, tf.constant(1.0), tf.float32, None, "a", tf.TensorShape([]), "", "a", None
    )
    shards = experimental.ShardByTaskPolicy()([tensor])
    assert shards == [{"a": {"": tensor.tensor}}] and hash(tensor) == hash(tensor)
