"""Monitored sessions, hooks, templates, and datasets with tensors of a graph."""

import concurrent.futures
import functools
import logging
import os

import numpy as np
import pytest

import meshflow as tf

v1 = tf.compat.v1
train = v1.train


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


class Recorder(train.SessionRunHook):
    """Hook that records its calls."""

    def __init__(self, fetch):
        self.fetch, self.calls, self.values = fetch, [], []

    def begin(self):
        self.calls.append("begin")

    def after_create_session(self, session, coord):
        self.calls.append("create")

    def before_run(self, run_context):
        return train.SessionRunArgs({"value": self.fetch})

    def after_run(self, run_context, run_values):
        self.values.append(int(run_values.results["value"]))

    def end(self, session):
        self.calls.append("end")


def make_step():
    step = train.get_or_create_global_step()
    return step, v1.assign_add(step, 1)


def test_a_session_trains_until_the_last_step_and_continues(tmp_path):
    step, train_op = make_step()
    v1.summary.scalar("twice", 2 * step)
    recorder = Recorder(train_op)
    hooks = [train.StopAtStepHook(last_step=4), recorder]
    folder = str(tmp_path)
    with train.MonitoredTrainingSession(
        checkpoint_dir=folder, hooks=hooks, save_checkpoint_steps=2, save_summaries_steps=1
    ) as session:
        while not session.should_stop():
            session.run(train_op)
    assert recorder.calls == ["begin", "create", "end"] and recorder.values == [1, 2, 3, 4]
    assert train.latest_checkpoint(folder).endswith("model.ckpt-4")
    files = sorted(os.listdir(tmp_path))
    assert {"model.ckpt-0.index", "model.ckpt-2.index", "model.ckpt-4.index"} < {*files}
    events = [e for f in files if "events" in f for e in train.summary_iterator(str(tmp_path / f))]
    tags = {v.tag: v.simple_value for e in events for v in e.summary.value}
    assert tags["twice"] == 8
    more = [train.StopAtStepHook(num_steps=2)]
    with train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=more) as session:
        while not session.should_stop():
            value = session.run(train_op)
    assert value == 6


def test_hooks_check_feed_and_finish():
    x = v1.placeholder(tf.float32, [], name="x")
    final = train.FinalOpsHook(2 * x, {x: 3.0})
    hooks = [train.FeedFnHook(lambda: {x: np.nan}), train.NanTensorHook(x, False), final]
    with train.SingularMonitoredSession(hooks) as session:
        with pytest.raises(RuntimeError, match="fed by two hooks"):
            session.run(x, {x: 1.0})
        assert np.isnan(session.run(x)) and session.should_stop()
    assert final.final_ops_values == 6
    error = pytest.raises(train.NanLossDuringTrainingError, match="NaN loss")
    with error, train.MonitoredSession(hooks=[train.NanTensorHook(x)]) as session:
        session.run(x, {x: np.nan})
    with pytest.raises(ValueError, match="Exactly one"):
        train.StopAtStepHook()
    with pytest.raises(RuntimeError, match="Global step should be created"):
        train.MonitoredSession(hooks=[train.StopAtStepHook(1)])


def test_the_end_of_the_data_ends_a_session(graph):
    element = v1.data.make_one_shot_iterator(tf.data.Dataset.range(2)).get_next()
    seen = []
    with train.MonitoredSession() as session:
        while not session.should_stop():
            seen.append(int(session.run(element)))
    assert seen == [0, 1] and not graph.finalized


def test_a_timer_triggers_at_intervals():
    timer = train.SecondOrStepTimer(every_steps=2)
    triggered = []
    for step in (1, 2, 3, 3):
        if timer.should_trigger_for_step(step):
            triggered.append(step)
            timer.update_last_triggered_step(step)
    assert triggered == [1, 3]


def test_datasets_take_tensors_of_the_graph():
    rows = v1.placeholder(tf.float32, [None, 2])
    size = v1.placeholder(tf.int64, [])
    dataset = tf.data.Dataset.from_tensor_slices({"rows": rows}).map(lambda d: d["rows"] * 2)
    dataset = tf.data.Dataset.zip((dataset, tf.data.Dataset.range(9))).batch(size)
    assert dataset.element_spec[0].shape.as_list() == [None, 2]
    iterator = dataset.make_initializable_iterator()
    doubled, numbers = iterator.get_next()
    assert doubled.shape.as_list() == [None, 2]
    with v1.Session() as session:
        session.run(iterator.initializer, {rows: np.ones((3, 2)), size: 2})
        found = [session.run([doubled, numbers]) for _ in range(2)]
        np.testing.assert_array_equal(found[0][0], np.full((2, 2), 2))
        assert [f[1].tolist() for f in found] == [[0, 1], [2]]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(doubled)


def test_one_iterator_reads_several_datasets():
    first, second = tf.data.Dataset.range(3), tf.data.Dataset.range(10, 12)
    iterator = v1.data.Iterator.from_structure(first.output_types, first.output_shapes)
    starts = [iterator.make_initializer(d) for d in (first, second)]
    element = iterator.get_next()
    handle = v1.placeholder(tf.string, [])
    shared = v1.data.Iterator.from_string_handle(handle, tf.int64).get_next()
    others = [v1.data.make_one_shot_iterator(d) for d in (first, second)]
    with v1.Session() as session:
        found = []
        for start in starts:
            session.run(start)
            found.append([int(session.run(element)) for _ in range(2)])
        assert found == [[0, 1], [10, 11]]
        handles = session.run([o.string_handle() for o in others])
        assert [int(session.run(shared, {handle: h})) for h in (*handles, handles[1])] == [
            0,
            10,
            11,
        ]
    with pytest.raises(TypeError, match="output types"):
        iterator.make_initializer(tf.data.Dataset.from_tensors(1.0))
    with pytest.raises(ValueError, match="make_initializer"):
        iterator.initializer


def test_a_template_lists_its_variables():
    def scale(x, n):
        w = v1.get_variable("w", [2, n])
        return x @ w + v1.get_variable("b", [n], trainable=False)

    template = v1.make_template("net", scale, n=3)
    x = v1.placeholder(tf.float32, [1, 2])
    template(x)
    template(2 * x)
    assert [v.name for v in template.variables] == ["net/w:0", "net/b:0"]
    assert [v.name for v in template.trainable_variables] == ["net/w:0"]
    assert template.name == "net" and template.variable_scope.name == "net"


def test_update_operations_run_the_layer():
    x = v1.placeholder(tf.float32, [4, 2])
    v1.layers.batch_normalization(x, name="used", training=False)
    y = v1.layers.batch_normalization(x, training=True, momentum=0.5)
    updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
    assert len(updates) == 2
    with tf.control_dependencies(updates):
        train_op = train.AdamOptimizer().minimize(tf.reduce_sum(y**2))
    (mean,) = [v for v in v1.global_variables() if "moving_mean" in v.name and "used" not in v.name]
    with v1.Session() as session:
        # The initializers of slots do not run the updates.
        session.run(v1.global_variables_initializer())
        session.run(train_op, {x: np.ones((4, 2))})
        np.testing.assert_allclose(session.run(mean), [0.5, 0.5])


def test_losses_of_tensors_with_unknown_ranks_are_minimized():
    x, y = v1.placeholder("float"), v1.placeholder("float")
    w = tf.Variable(0.5)
    train_op = train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean((x * w - y) ** 2))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for values in ([1.0, 2.0], 2.0):
            session.run(train_op, {x: values, y: values})
        assert session.run(w) == pytest.approx(1 - 0.5 * 0.5 * 0.2)


def test_a_branch_returns_strings():
    x = v1.placeholder(tf.int32, [])
    kind = tf.cond(x > 2, lambda: tf.constant("large"), lambda: tf.constant("small"))
    with v1.Session() as session:
        assert [session.run(kind, {x: n}) for n in (1, 3)] == [b"small", b"large"]


@pytest.fixture
def root_logger():
    """Restore the root logger, which `app.run` configures."""
    logger = logging.getLogger()
    saved = logger.level, logger.handlers[:]
    yield
    logger.setLevel(saved[0])
    logger.handlers[:] = saved[1]


def test_flags_are_parsed_at_their_first_use(monkeypatch, root_logger):
    flags = v1.app.flags
    flags.DEFINE_integer("meshflow_test_steps", default_value=3, docstring="Number of steps.")
    monkeypatch.setattr("sys.argv", ["program", "--meshflow_test_steps=5", "--unknown=1"])
    # Another test may have parsed the flags.
    flags.FLAGS.unparse_flags()
    assert flags.FLAGS.meshflow_test_steps == 5 and "meshflow_test_steps" in flags.FLAGS
    flags.FLAGS.meshflow_test_steps = 7
    assert flags.FLAGS["meshflow_test_steps"].value == 7
    with pytest.raises(SystemExit):
        v1.app.run(lambda argv: print(argv), argv=["program", "x"])
    del flags.FLAGS.meshflow_test_steps


def test_variables_of_cells_are_named_by_the_scopes_of_their_loops():
    cells = v1.nn.rnn_cell
    x = v1.placeholder(tf.float32, [None, None, 3])
    stack = cells.MultiRNNCell([cells.DropoutWrapper(cells.GRUCell(2)) for _ in range(2)])
    outputs, _ = v1.nn.dynamic_rnn(stack, x[:, :4], dtype=tf.float32)
    lengths = v1.placeholder(tf.int32, [None])
    with v1.variable_scope("both"):
        both, (state, _) = v1.nn.bidirectional_dynamic_rnn(
            cells.BasicLSTMCell(2), cells.BasicLSTMCell(2), x, lengths, dtype=tf.float32
        )
    names = [
        v.name.removesuffix("/kernel:0") for v in v1.trainable_variables() if "kernel" in v.name
    ]
    first = [
        f"rnn/multi_rnn_cell/cell_{i}/gru_cell/{n}" for i in (0, 1) for n in ("gates", "candidate")
    ]
    second = [f"both/bidirectional_rnn/{n}/basic_lstm_cell" for n in ("fw", "bw")]
    assert names == first + second
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        found = session.run([outputs, *both, state], {x: np.ones((2, 5, 3)), lengths: [5, 2]})
    assert [v.shape for v in found[:3]] == [(2, 4, 2), (2, 5, 2), (2, 5, 2)]
    assert (found[1][1, 2:] == 0).all() and (found[2][1, 2:] == 0).all()
    np.testing.assert_allclose(found[3].h[0], found[1][0, 4])


class FailingHook(train.SessionRunHook):
    """Hook that raises an error after some runs."""

    def __init__(self, error, runs):
        self.error, self.runs, self.count = error, runs, 0

    def after_run(self, run_context, run_values):
        self.count += 1
        if self.count in self.runs:
            raise self.error


def test_a_session_recovers_from_lost_workers(tmp_path):
    _, train_op = make_step()
    failing = FailingHook(tf.errors.UnavailableError(None, None, "lost"), [4])
    hooks = [failing, train.StopAtStepHook(last_step=5)]
    with train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path), hooks=hooks, save_checkpoint_steps=2
    ) as session:
        while not session.should_stop():
            last = session.run(train_op)
        with pytest.raises(RuntimeError, match="after should_stop"):
            session.run(train_op)
        with pytest.raises(RuntimeError, match="after should_stop"):
            session.run_step_fn(lambda step_context: None)
        with pytest.raises(ValueError, match="`step_context`"):
            session.run_step_fn(lambda session: None)
    # Step 4 is in a checkpoint, because the hook that saves comes first.
    assert last == 5 and failing.count == 5
    failing = FailingHook(tf.errors.AbortedError(None, None, "lost"), range(99))
    with pytest.raises(tf.errors.AbortedError), train.MonitoredSession(hooks=[failing]) as session:
        session.run(train_op)
    assert failing.count == 5
    failing.count = 0
    single = train.SingularMonitoredSession
    with pytest.raises(tf.errors.AbortedError), single([failing]) as session:
        session.run(train_op)
    assert failing.count == 1


def test_errors_of_hooks_close_the_session(graph):
    step, train_op = make_step()
    hook = FailingHook(ValueError("failed"), [1])
    with pytest.raises(ValueError, match="failed"), train.MonitoredSession(hooks=[hook]) as session:
        session.run(train_op)
    assert session.should_stop() and not graph.finalized
    hook.after_create_session = lambda session, coord: 1 // 0
    with pytest.raises(ZeroDivisionError):
        train.MonitoredSession(hooks=[hook])
    assert not graph.finalized
    scaffold = train.Scaffold(step.initializer, saver=train.Saver()).finalize()
    graph.finalize()
    train.MonitoredSession(train.ChiefSessionCreator(scaffold)).close()
    assert graph.finalized
    with pytest.raises(RuntimeError, match="finalized"):
        tf.constant(1)


def test_checkpoints_of_earlier_runs_are_deleted(tmp_path):
    _, train_op = make_step()
    for last_step in (4, 8):
        with train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path),
            hooks=[train.StopAtStepHook(last_step=last_step)],
            scaffold=train.Scaffold(saver=train.Saver(max_to_keep=3)),
            save_checkpoint_steps=1,
        ) as session:
            while not session.should_stop():
                session.run(train_op)
    names = sorted(p.name for p in tmp_path.glob("*.index"))
    assert names == ["model.ckpt-6.index", "model.ckpt-7.index", "model.ckpt-8.index"]


def test_threads_run_sessions_of_one_graph(graph):
    step, train_op = make_step()
    element = v1.data.make_one_shot_iterator(tf.data.Dataset.range(60)).get_next()
    sessions = [v1.Session(graph=graph) for _ in range(3)]
    seen = []

    def count(session):
        session.run(step.initializer)
        for _ in range(20):
            session.run(train_op)

    def read():
        seen.extend(int(sessions[0].run(element)) for _ in range(20))

    tasks = [functools.partial(count, s) for s in sessions]
    for group in (tasks, [read] * 3):
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for future in [pool.submit(task) for task in group]:
                future.result()
    assert [s.run(step) for s in sessions] == [20, 20, 20]
    assert sorted(seen) == list(range(60))
