"""Tests of checkpoints in graphs of version 1, where a session has the values of variables."""

import numpy as np
import pytest

import meshflow as tf

v1 = tf.compat.v1


@pytest.fixture(name="graph", autouse=True)
def make_graph():
    with tf.Graph().as_default() as graph:
        yield graph


def make_checkpoint(value):
    variable = v1.get_variable("v", initializer=value)
    return variable, tf.train.Checkpoint(v=variable)


def test_restoring_waits_for_the_session(tmp_path):
    v, checkpoint = make_checkpoint(1.0)
    with v1.Session() as session:
        session.run(v.initializer)
        paths = [checkpoint.save(tmp_path / "c")]
        session.run(v.assign(2.0))
        paths.append(checkpoint.save(tmp_path / "c"))
        assert [path[-2:] for path in paths] == ["-1", "-2"]
        status = checkpoint.restore(paths[0]).assert_consumed()
        assert session.run(v) == 2.0
        status.run_restore_ops()
        assert session.run([v, checkpoint.save_counter]) == [1.0, 1]
        checkpoint.restore(paths[1]).initialize_or_restore(session)
        assert session.run(v) == 2.0
        # The operations of an earlier restoration can run again.
        status.run_restore_ops()
        assert session.run(v) == 1.0


def test_other_variables_get_their_initial_values(tmp_path):
    v, checkpoint = make_checkpoint(1.0)
    with v1.Session() as session:
        session.run(v.initializer)
        path = checkpoint.write(tmp_path / "c")
    w = v1.get_variable("w", initializer=[3.0])
    root = tf.train.Checkpoint(v=v, w=w)
    with v1.Session() as session:
        root.restore(path).initialize_or_restore()
        assert session.run(v) == 1.0 and session.run(w) == [3.0]
    with v1.Session() as session:
        root.restore(None).initialize_or_restore()
        assert session.run(v) == 1.0 and session.run(w) == [3.0]


def test_errors_without_values(tmp_path):
    _, checkpoint = make_checkpoint(1.0)
    with pytest.raises(RuntimeError, match="create a session"):
        checkpoint.save(tmp_path / "c")
    with v1.Session(), pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized"):
        checkpoint.write(tmp_path / "c")


def test_manager_and_explicit_session(tmp_path):
    v, checkpoint = make_checkpoint(1.0)
    session = v1.Session()
    session.run(v.initializer)
    path = v1.train.Checkpoint(v=v).save(tmp_path / "v1", session)
    assert tf.train.load_variable(path, "v") == 1.0
    with session.as_default():
        manager = tf.train.CheckpointManager(checkpoint, tmp_path / "m", max_to_keep=1)
        assert [manager.save()[-2:] for _ in range(2)] == ["-1", "-2"]
        assert manager.checkpoints == [manager.latest_checkpoint]


@pytest.fixture(name="stored")
def save_variables(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        for name in ("a", "s/b", "s/t/c"):
            v1.get_variable(name, initializer=np.array([len(name), 1], np.float32))
        session.run(v1.global_variables_initializer())
        return v1.train.Saver().save(session, tmp_path / "model")


@pytest.mark.parametrize(
    "names,mapping",
    [
        (["x"], {"a": "x"}),
        (["n/b", "n/t/c"], {"s/": "n/"}),
        (["a", "s/b", "s/t/c"], {"/": "/"}),
        (["n/a", "n/s/b"], [("/", "n/")]),
    ],
)
def test_initial_values_from_a_checkpoint(stored, names, mapping):
    variables = [v1.get_variable(name, [2]) for name in names]
    others = [v1.get_variable("nb/b", initializer=[7.0])] if "/" not in mapping else []
    v1.train.init_from_checkpoint(stored, mapping)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        sizes = {"b": 3, "c": 5}
        for variable, value in zip(variables, session.run(variables)):
            assert value.tolist() == [sizes.get(variable.op.name[-1], 1), 1]
        assert session.run(others) == [[7.0]] * len(others)


@pytest.mark.parametrize(
    "mapping,error",
    [
        ({"no": "x"}, "Tensor no is not found"),
        ({"a": "no"}, "scope only"),
        ({"a": "y"}, "Shape of variable y"),
        ({"s/": "no/"}, "no variables in the scope"),
    ],
)
def test_errors_of_initial_values(stored, mapping, error):
    v1.get_variable("x", [2]), v1.get_variable("y", [3])
    with pytest.raises(ValueError, match=error):
        v1.train.init_from_checkpoint(stored, mapping)


def test_savers_find_variables_later(tmp_path):
    with pytest.raises(ValueError, match="defer_build"):
        v1.train.Saver([], defer_build=True)
    saver = v1.train.Saver(defer_build=True)
    v, _ = make_checkpoint(1.0)
    with v1.Session() as session:
        session.run(v.initializer)
        with pytest.raises(RuntimeError, match="build"):
            saver.save(session, tmp_path / "m")
        saver.build()
        assert tf.train.list_variables(saver.save(session, tmp_path / "m")) == [("v", [])]
    with tf.Graph().as_default(), v1.Session() as session:
        assert v1.train.Saver(allow_empty=True).save(session, tmp_path / "empty") is None


def test_slices_of_variables_can_be_assigned():
    v = v1.get_variable("v", [3], initializer=v1.zeros_initializer())
    assign = v[1:].assign([5.0, 6.0])
    with v1.Session() as session:
        session.run(v.initializer)
        assert session.run(v[1]) == 0.0 and session.run(assign).tolist() == [0, 5, 6]
        assert session.run(v[1]) == 5.0


def test_initializers_are_not_called_while_a_graph_is_built(monkeypatch):
    calls = []
    initializer = tf.keras.initializers.RandomNormal()
    call = type(initializer).__call__
    monkeypatch.setattr(
        type(initializer), "__call__", lambda *args, **kw: calls.append(1) or call(*args, **kw)
    )
    v = v1.get_variable("v", [2, 3], initializer=initializer)
    assert v.shape == [2, 3] and not calls
    with v1.Session() as session:
        session.run(v.initializer)
        assert calls == [1] and session.run(v).shape == (2, 3)


def test_closed_sessions_save_nothing(tmp_path):
    v1.get_variable("v", initializer=1.0)
    session, saver = v1.Session(), v1.train.Saver()
    session.close()
    with pytest.raises(RuntimeError, match="closed Session"):
        saver.save(session, tmp_path / "model")


def test_positions_of_iterators_are_saved(tmp_path):
    def build():
        iterator = v1.data.make_initializable_iterator(tf.data.Dataset.range(9).shuffle(9, seed=3))
        saveable = tf.data.experimental.make_saveable_from_iterator(iterator, "ignore")
        v1.add_to_collection(v1.GraphKeys.SAVEABLE_OBJECTS, saveable)
        return iterator, iterator.get_next(), v1.train.Saver()

    with v1.Graph().as_default(), v1.Session() as session:
        iterator, element, saver = build()
        session.run(iterator.initializer)
        for _ in range(4):
            session.run(element)
        path = saver.save(session, tmp_path / "model")
        rest = [session.run(element) for _ in range(5)]
    assert tf.train.list_variables(path) == [("Iterator_STATE", [])]
    with v1.Graph().as_default(), v1.Session() as session:
        iterator, element, saver = build()
        with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized"):
            saver.restore(session, path)
        session.run(iterator.initializer)
        saver.restore(session, path)
        assert [session.run(element) for _ in range(5)] == rest
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(element)


def test_saveables_of_iterators_check_their_arguments():
    make = tf.data.experimental.make_saveable_from_iterator
    with pytest.raises(ValueError, match="Supported values include 'warn'"):
        make(iter(tf.data.Dataset.range(3)), "never")
    with pytest.raises(ValueError, match="expected an iterator"):
        make(tf.data.Dataset.range(3))
