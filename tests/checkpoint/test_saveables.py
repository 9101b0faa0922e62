"""Test values that classes of users save by TensorFlow's saveable objects."""

import pytest

import meshflow as tf
from meshflow.legacy.private_checkpoints import SaveableObject, SaveSpec, add_variable

Trackable = tf.__internal__.tracking.AutoTrackable


class Copies(SaveableObject):
    """A value that is restored into two variables."""

    def __init__(self, variables, name):
        self.variables = variables
        specs = [SaveSpec(lambda: variables[0].read_value(), "", f"{name}-copy")]
        super().__init__(variables[0], specs, name)

    def restore(self, restored_tensors, restored_shapes):
        for variable in self.variables:
            variable.assign(restored_tensors[0])


class Owner(Trackable):
    def __init__(self):
        self._values = (tf.Variable(6.0), tf.Variable(15.0))

    def _checkpoint_children(self):
        return {}

    def _gather_saveables_for_checkpoint(self):
        return {"VARIABLE_VALUE": lambda name: Copies(self._values, name)}


def test_saveable_objects_are_saved_and_restored(tmp_path):
    owner = Owner()
    checkpoint = tf.train.Checkpoint(owner=owner)
    owner._values[0].assign(42.0)
    path = checkpoint.save(str(tmp_path / "ckpt"))
    assert "owner/.ATTRIBUTES/VARIABLE_VALUE-copy" in dict(tf.train.list_variables(path))
    other = Owner()
    status = tf.train.Checkpoint(owner=other).restore(path)
    status.assert_consumed()
    assert [float(v) for v in other._values] == [42.0, 42.0]


def test_added_variables_are_children_that_are_restored_later(tmp_path):
    parent = Trackable()
    variable = add_variable(parent, "a/b.c", initializer=3.0, dtype=tf.float64)
    assert (variable.name, variable.dtype) == ("a/b.c:0", tf.float64)
    path = tf.train.Checkpoint(parent=parent).write(str(tmp_path / "ckpt"))
    other = Trackable()
    tf.train.Checkpoint(parent=other).restore(path)
    restored = add_variable(other, "a/b.c", [], "float64", tf.compat.v1.zeros_initializer)
    assert float(restored) == 3.0
    with pytest.raises(ValueError, match="already declared"):
        add_variable(other, "a/b.c", [])
    with pytest.raises(ValueError, match="do not specify shape"):
        add_variable(other, "d", [], initializer=1)


def test_unused_values_are_named_by_their_path(tmp_path):
    saved = tf.train.Checkpoint(v1=tf.Variable(2.0), v2=tf.Variable(3.0))
    path = saved.save(str(tmp_path / "ckpt"))
    status = tf.train.Checkpoint(v1=Trackable(), v2=tf.Variable(0.0)).restore(path)
    with pytest.raises(AssertionError, match=r"Unresolved object in .* Unused .*\(root\)\.v1 "):
        status.assert_consumed()


def test_damaged_state_files_and_relative_paths(tmp_path, monkeypatch):
    (tmp_path / "checkpoint").write_text("")
    with pytest.raises(ValueError, match="Invalid checkpoint state"):
        tf.train.get_checkpoint_state(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    train = tf.compat.v1.train
    assert train.generate_checkpoint_state_proto("t", "t/m-0").model_checkpoint_path == "m-0"
    (tmp_path / "t").mkdir()
    paths = [str(tmp_path / "m-0"), "t/m-2"]
    train.update_checkpoint_state("t", "t/m-2", all_model_checkpoint_paths=paths)
    state = tf.train.get_checkpoint_state("t")
    assert (state.model_checkpoint_path, state.all_model_checkpoint_paths) == ("t/m-2", paths)
