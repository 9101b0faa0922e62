"""The graph of objects of a checkpoint beside that of a program."""

import weakref

import pytest

import meshflow as tf


class Part(tf.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = tf.Variable(5.0), tf.Variable(4.0)
        self.listed = [tf.Variable(1.0), tf.Variable(2.0)]


def build_nested_module(name):
    root = Part()
    setattr(root, name, Part())
    getattr(root, name).extra = tf.Variable(6.0)
    return root


def test_a_checkpoints_objects(tmp_path):
    view = tf.train.CheckpointView(
        tf.train.Checkpoint(build_nested_module("leaf")).save(tmp_path / "ckpt")
    )
    # The order and the numbers are TensorFlow's.
    assert view.children(0) == {
        "a": 1,
        "b": 2,
        "listed": 3,
        "leaf": 4,
        "root": 0,
        "save_counter": 5,
    }
    assert view.descendants() == list(range(14))
    other = build_nested_module("twig")
    both, stored, here = view.diff(other)
    assert {node: both[node] for node in (1, 2, 6, 7)} == {
        1: other.a,
        2: other.b,
        6: other.listed[0],
        7: other.listed[1],
    }
    assert stored == [4, 5, *range(8, 14)]
    twig = other.twig
    assert [x for x in here if isinstance(x, tf.Variable)] == [
        *(twig.a, twig.b, twig.extra),
        *twig.listed,
    ]


def test_a_programs_objects():
    root = build_nested_module("leaf")
    for view in tf.train.TrackableView(root), tf.train.TrackableView(weakref.ref(root)):
        assert list(view.children(root)) == ["a", "b", "listed", "leaf"]
        assert view.root is root and view.descendants()[0] is root
        assert len(view.descendants()) == 13
    del root
    with pytest.raises(AssertionError, match="gone"):
        _ = view.root


def test_bad_input(tmp_path):
    with pytest.raises(tf.errors.NotFoundError, match="nowhere"):
        tf.train.CheckpointView(tmp_path / "nowhere")
    path = tf.train.Checkpoint(v=tf.Variable(1.0)).write(tmp_path / "ckpt")
    with pytest.raises(ValueError, match="got 3"):
        tf.train.CheckpointView(path).match(3)
    with pytest.raises(ValueError, match="got 3"):
        tf.train.TrackableView.children(3)
    with pytest.raises(TypeError, match="weak reference"):
        tf.train.TrackableView(3)
