"""Test which objects are restored: objects that are added later, freed, shared, or that write their
own values."""

import collections
import copy
import gc
import weakref

import pytest

import meshflow as tf


def save_checkpoint(path, **values):
    return tf.train.Checkpoint(**{k: tf.Variable(v) for k, v in values.items()}).save(path)


def test_root_restores_objects_attached_later(tmp_path):
    root = tf.Module()
    root.v, root.late = tf.Variable(2.0), tf.Variable(5.0)
    path = tf.train.Checkpoint(root).save(tmp_path / "ckpt")
    other = tf.Module()
    other.v = tf.Variable(0.0)
    tf.train.Checkpoint(other).restore(
        path
    ).expect_partial()  # without a reference to the Checkpoint
    other.late = tf.Variable(1.0)
    assert float(other.v) == 2 and float(other.late) == 5


def test_a_root_may_be_a_variable_or_be_referred_to_weakly(tmp_path):
    variable = tf.Variable([1.0, 2.0])
    path = tf.train.Checkpoint(variable).write(tmp_path / "variable")
    assert tf.train.load_variable(path, "/.ATTRIBUTES/VARIABLE_VALUE").tolist() == [1.0, 2.0]
    variable.assign([0.0, 0.0])
    tf.train.Checkpoint(variable).read(path).assert_consumed()
    assert variable.numpy().tolist() == [1.0, 2.0]
    root = tf.Module()
    root.v = tf.Variable(1)
    checkpoint = tf.train.Checkpoint(root=weakref.ref(root))
    path = checkpoint.save(tmp_path / "weak")
    root.v.assign(2)
    checkpoint.restore(path)
    assert int(root.v) == 1 and checkpoint.root() is root
    root_of = weakref.ref(root)
    del root
    assert root_of() is None


def test_deepcopy_has_separate_variables(tmp_path):
    module = tf.Module()
    module.v = tf.Variable(1.0)
    checkpoint = tf.train.Checkpoint(module)
    copied = copy.deepcopy(checkpoint)
    copied.root.v.assign(2.0)
    checkpoint.restore(copied.save(tmp_path / "ckpt")).assert_consumed()
    assert float(module.v) == 2 and copied.root is not module


def test_restored_objects_are_freed_with_their_last_reference(tmp_path, caplog):
    path = save_checkpoint(tmp_path / "ckpt", v1=2.0, v2=3.0)
    gc.disable()  # so that a circle of references would be seen
    try:
        for silent in (True, False):
            checkpoint = tf.train.Checkpoint(v2=tf.Variable(0.0))
            status = checkpoint.restore(path)
            if silent:
                status.expect_partial()
            references = weakref.ref(checkpoint), weakref.ref(checkpoint.v2)
            del status, checkpoint
            assert [reference() for reference in references] == [None, None]
            assert ("expect_partial" in caplog.text) is not silent
    finally:
        gc.enable()
    assert "(root).v1" in caplog.text and "(root).v2" not in caplog.text


def test_the_last_restoring_wins(tmp_path):
    first, second = (
        save_checkpoint(tmp_path / "first", v=12.0),
        save_checkpoint(tmp_path / "second", v=13.0),
    )
    for order, expected in (((0, 1), 13), ((1, 0), 12)):
        checkpoints = [tf.train.Checkpoint(), tf.train.Checkpoint()]
        statuses = {i: checkpoints[i].restore((first, second)[i]) for i in order}
        variable = tf.Variable(0.0)
        for i in (0, 1):
            checkpoints[i].v = variable
            statuses[i].assert_consumed()
        assert float(variable) == expected


def test_one_stored_object_is_not_restored_into_two_objects(tmp_path, caplog):
    shared = tf.Variable(1.0)
    path = tf.train.Checkpoint(a=shared, b=shared).save(tmp_path / "ckpt")
    a, b = tf.Variable(0.0), tf.Variable(0.0)
    status = tf.train.Checkpoint(a=a, b=b).restore(path)
    assert (float(a), float(b)) == (1, 0) and "(root).a" in caplog.text
    with pytest.raises(AssertionError, match="1 Python objects"):
        status.assert_existing_objects_matched()
    # Two stored objects in one are no contradiction.
    path = save_checkpoint(tmp_path / "two", a=3.0, b=4.0)
    tf.train.Checkpoint(a=a, b=a).restore(path).assert_consumed()
    assert float(a) == 4


def test_objects_choose_names_of_their_tensors(tmp_path):
    class Pair(tf.Module):
        def __init__(self, first, second):
            super().__init__()
            self._hidden = {"x": first, "y": second}

        def _serialize_to_tensors(self):
            return {"x": self._hidden["x"], "y": tf.constant(self._hidden["y"])}

        def _restore_from_tensors(self, restored_tensors):
            self._hidden = {k: int(v) for k, v in restored_tensors.items()}

    pair = Pair(tf.Variable(1), 2)
    path = tf.train.Checkpoint(root=pair, child=Pair(3, 4)).save(tmp_path / "ckpt")
    values = {k: tf.train.load_variable(path, k) for k, _ in tf.train.list_variables(path)}
    assert {k: int(v) for k, v in values.items() if k.endswith(("/x", "/y"))} == {
        "/.ATTRIBUTES/x": 1,
        "/.ATTRIBUTES/y": 2,
        "child/.ATTRIBUTES/x": 3,
        "child/.ATTRIBUTES/y": 4,
    }
    fresh, child = Pair(0, 0), Pair(0, 0)
    tf.train.Checkpoint(root=fresh, child=child).restore(path).expect_partial()
    assert (fresh._hidden, child._hidden) == ({"x": 1, "y": 2}, {"x": 3, "y": 4})


def test_named_tuples_have_fields_and_positions(tmp_path):
    pair = collections.namedtuple("Pair", "x y")
    path = tf.train.Checkpoint(t=pair(tf.Variable(1.0), tf.Variable(2.0))).save(tmp_path / "ckpt")
    assert float(tf.train.load_variable(path, "t/y")) == 2
    view = tf.train.CheckpointView(path)
    assert view.children(view.children(0)["t"]) == {"x": 3, "y": 4, "0": 3, "1": 4}
    fresh = tf.train.Checkpoint(t=(tf.Variable(0.0), tf.Variable(0.0)))
    fresh.restore(path).assert_consumed()
    assert [float(v) for v in fresh.t] == [1, 2]
    # A saved model stores only positions, so the tuple is restored as a list.
    module = tf.Module()
    module.t = pair(tf.Variable(1.0), tf.Variable(2.0))
    tf.saved_model.save(module, str(tmp_path / "model"))
    assert [float(v) for v in tf.saved_model.load(str(tmp_path / "model")).t] == [1, 2]


def test_a_saved_models_variables(tmp_path):
    module = tf.Module()
    module.v = tf.Variable(7.0)
    tf.saved_model.save(module, str(tmp_path / "model"))
    other = tf.Module()
    other.v = tf.Variable(0.0)
    tf.train.Checkpoint(other).restore(tmp_path / "model").expect_partial()
    assert float(other.v) == 7


def test_missing_python_state_is_reported(tmp_path):
    class State(tf.train.experimental.PythonState):
        def serialize(self):
            return 3

        def deserialize(self, string_value):
            self.text = string_value

    path = save_checkpoint(tmp_path / "ckpt", v=1.0)
    checkpoint = tf.train.Checkpoint(v=tf.Variable(0.0), state=State())
    with pytest.raises(AssertionError, match=r"1 Python objects .*State"):
        checkpoint.restore(path).assert_existing_objects_matched()
    with pytest.raises(TypeError, match=r"State\.serialize\(\) must return text or bytes, got 3"):
        checkpoint.write(tmp_path / "state")
    with pytest.raises(TypeError, match="abstract"):
        tf.train.experimental.PythonState()


def test_reading_without_objects(tmp_path):
    path = save_checkpoint(tmp_path / "ckpt", w=[[1.0, 2.0]], text="tea")
    reader = tf.train.load_checkpoint(path)
    value = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert reader.get_tensor("text" + value) == b"tea"
    assert reader.get_tensor(b"w" + value.encode()).tolist() == [[1.0, 2.0]]
    assert type(reader.get_tensor("save_counter" + value)).__name__ == "int64"
    assert reader.debug_string().decode().splitlines() == [
        "_CHECKPOINTABLE_OBJECT_GRAPH (DT_STRING) []",
        f"save_counter{value} (DT_INT64) []",
        f"text{value} (DT_STRING) []",
        f"w{value} (DT_FLOAT) [1,2]",
    ]
    for wrong in (lambda: reader.has_tensor(3), lambda: tf.train.load_checkpoint(None)):
        with pytest.raises(TypeError, match=r"must be one string|the key of a tensor"):
            wrong()


def test_wrong_calls(tmp_path):
    checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
    for write in (checkpoint.save, tf.train.CheckpointManager(checkpoint, tmp_path, 1).save):
        with pytest.raises(NotImplementedError, match=r"inside a tf\.function"):
            tf.function(lambda write=write: write(str(tmp_path / "c")))()
    (tmp_path / "file").write_text("")
    with pytest.raises(tf.errors.FailedPreconditionError, match="file/ckpt"):
        checkpoint.save(tmp_path / "file" / "ckpt")
    with pytest.raises(TypeError, match="got 3"):
        checkpoint.save(tmp_path / "ckpt", options=3)
    with pytest.raises(AssertionError, match="experimental_write_callbacks"):
        tf.train.CheckpointOptions(experimental_write_callbacks=[lambda a, b: None])
    called = []
    options = tf.train.CheckpointOptions(
        experimental_enable_async_checkpoint=True,
        experimental_write_callbacks=[lambda: called.append(0), called.append],
    )
    path = checkpoint.save(tmp_path / "ckpt", options)
    checkpoint.sync()
    assert options.enable_async and called == [0, path]


def test_a_library_class_tracks_and_creates_its_own_children(tmp_path):
    class Text(tf.train.experimental.PythonState):
        def __init__(self, text):
            self.text = text

        def serialize(self):
            return self.text

        def deserialize(self, string_value):
            self.text = string_value.decode()

    class Texts(tf.__internal__.tracking.Trackable):
        """An object that wraps new attributes, and creates those that a checkpoint has."""

        def __setattr__(self, name, value):
            text = Text(value)
            self._track_trackable(text, name=name, overwrite=True)
            super().__setattr__(name, text)

        def _lookup_dependency(self, name, cached_dependencies=None):
            if super()._lookup_dependency(name) is None:
                setattr(self, name, "")
                assert name in self._unconditional_dependency_names
            return super()._lookup_dependency(name)

    texts = Texts()
    texts.greeting = "hello"
    path = tf.train.Checkpoint(texts=texts).save(tmp_path / "ckpt")
    restored = Texts()
    tf.train.Checkpoint(texts=restored).restore(path).assert_consumed()
    assert restored.greeting.text == "hello"
