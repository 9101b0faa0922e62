"""`tf.summary`: event files as TensorBoard reads them, when summaries are recorded, and by whom."""

import subprocess
import sys

import numpy as np
import pytest

import forked
import meshflow as tf
from helpers import assert_close
from meshflow.io.protos import Event
from meshflow.io.records import read_records


def events(folder):
    """The summaries in a folder's event files: (step, value message)."""
    found = []
    for path in sorted(folder.glob("*tfevents*")):
        for record in read_records(path):
            event = Event.FromString(record)
            found += [(event.step, value) for value in event.summary.value]
    return found


def numbers(folder):
    return [
        (step, v.tag, np.frombuffer(v.tensor.tensor_content, np.float32).tolist())
        for step, v in events(folder)
        if v.metadata.plugin_data.plugin_name == "scalars"
    ]


@pytest.fixture
def writer(tmp_path):
    return tf.summary.create_file_writer(str(tmp_path))


def test_scalars(writer, tmp_path):
    assert not tf.summary.scalar("lost", 1.0, step=0)
    with writer.as_default():
        assert tf.summary.scalar("a", 2, step=1, description="why")
        with tf.name_scope("inner"):
            tf.summary.scalar(
                "a", tf.constant(3.0, tf.float64), step=tf.Variable(2, dtype=tf.int64)
            )
        tf.summary.scalar("", 1, step=3)
        with pytest.raises(ValueError, match="No step set"):
            tf.summary.scalar("a", 1)
        with pytest.raises(ValueError, match="Expected scalar shape"):
            tf.summary.scalar("a", [1], step=1)
        with pytest.raises(TypeError):
            tf.summary.scalar("a", 1, step="x")
    assert numbers(tmp_path) == [(1, "a", [2]), (2, "inner/a", [3]), (3, "scalar_summary", [1])]
    assert events(tmp_path)[0][1].metadata.summary_description == "why"


def test_steps(writer, tmp_path):
    tf.summary.experimental.set_step(5)
    try:
        with writer.as_default():
            tf.summary.scalar("a", 1)
        with writer.as_default(step=7):
            assert tf.summary.experimental.get_step() == 7
            tf.summary.scalar("a", 2)
        assert tf.summary.experimental.get_step() == 5
    finally:
        tf.summary.experimental.set_step(None)
    assert numbers(tmp_path) == [(5, "a", [1]), (7, "a", [2])]


def test_recording_conditions(writer, tmp_path):
    assert not tf.summary.should_record_summaries()
    with writer.as_default(step=0):
        assert tf.summary.should_record_summaries()
        for condition in (True, False, tf.constant(False), lambda: tf.constant(True)):
            with tf.summary.record_if(condition):
                allowed = bool(condition() if callable(condition) else condition)
                assert bool(tf.summary.scalar("a", 1)) is allowed
        with tf.summary.record_if(False):
            tf.summary.write("never", lambda: 1 / 0)
    assert len(numbers(tmp_path)) == 2
    with tf.summary.create_noop_writer().as_default():
        assert not tf.summary.scalar("a", 1, step=0)


def test_writers(writer, tmp_path):
    writer.set_as_default(step=4)
    try:
        tf.summary.scalar("a", 1)
        tf.summary.flush()
        assert numbers(tmp_path) == [(4, "a", [1])]
        tf.summary.create_noop_writer().set_as_default()
        tf.summary.scalar("b", 1)
    finally:
        from meshflow.summary.writers import state

        state.writer = state.step = None
    writer.close()
    writer.close()
    with pytest.raises(RuntimeError, match="already closed"), writer.as_default():
        pass
    with pytest.raises(ValueError, match="logdir"):
        tf.summary.create_file_writer(None)
    assert isinstance(writer, tf.summary.SummaryWriter)


def test_writers_that_nobody_closed_end_quietly(tmp_path):
    program = """
import sys
import meshflow as tf
writer = tf.summary.create_file_writer(sys.argv[1])
with writer.as_default():
    tf.summary.scalar("loss", 2.0, step=7)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0 and "Exception" not in done.stderr
    assert numbers(tmp_path) == [(7, "loss", [2.0])]


def test_in_functions(writer, tmp_path):
    @tf.function
    def step(x, number):
        for _ in tf.range(2):
            tf.summary.scalar("loop", x, step=number)
        tf.summary.text("words", ["a"], step=number)
        with tf.summary.record_if(x > 1.0):
            return tf.summary.scalar("big", x * 2, step=number)

    with writer.as_default():
        assert not step(tf.constant(1.0), tf.constant(3, tf.int64))
        assert step(tf.constant(2.0), tf.constant(4, tf.int64))
    assert numbers(tmp_path) == [
        *[(3, "loop", [1])] * 2,
        *[(4, "loop", [2])] * 2,
        (4, "big", [4]),
    ]
    assert [s for s, v in events(tmp_path) if v.tag == "words"] == [3, 4]


def test_one_replica_writes(writer, tmp_path):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    @tf.function
    def step():
        strategy.run(lambda: tf.summary.scalar("a", 1.0, step=0))

    with writer.as_default():
        step()
    assert numbers(tmp_path) == [(0, "a", [1])]


def test_histograms(writer, tmp_path):
    with writer.as_default(step=0):
        tf.summary.histogram("h", [0.0, 1.0, 1.5, 4.0, np.nan], buckets=2)
        tf.summary.histogram("one", [2, 2], buckets=2)
        tf.summary.histogram("none", tf.zeros([0]), buckets=1)
        tf.summary.histogram("many", tf.random.normal([100]))
    found = {v.tag: v.tensor for _, v in events(tmp_path)}
    rows = {t: np.frombuffer(p.tensor_content).reshape(-1, 3) for t, p in found.items()}
    assert_close(rows["h"], [[0, 2, 3], [2, 4, 1]])
    assert_close(rows["one"], [[2, 2, 0], [2, 2, 2]])
    assert_close(rows["none"], [[0, 0, 0]])
    assert len(rows["many"]) == 30 and rows["many"][:, 2].sum() == 100


def test_images_texts_and_sounds(writer, tmp_path):
    pictures = np.random.default_rng(0).random([5, 2, 3, 1], np.float32)
    sound = np.zeros([2, 4, 1], np.float32)
    with writer.as_default(step=0):
        tf.summary.image("i", pictures, max_outputs=2)
        tf.summary.text("t", [["a", "b"]])
        tf.summary.audio("s", sound, 8000, max_outputs=1)
        with pytest.raises(ValueError, match="rank 4"):
            tf.summary.image("i", pictures[0])
        with pytest.raises(TypeError, match="string"):
            tf.summary.text("t", 1)
        with pytest.raises(ValueError, match="Unknown encoding"):
            tf.summary.audio("s", sound, 8000, encoding="mp3")
    image, text, audio = (v for _, v in events(tmp_path))
    width, height, *files = image.tensor.string_val
    assert (width, height, len(files)) == (b"3", b"2", 2)
    decoded = tf.io.decode_png(files[1]).numpy()
    assert np.abs(decoded - pictures[1] * 255).max() <= 1
    assert list(text.tensor.string_val) == [b"a", b"b"]
    assert [d.size for d in text.tensor.tensor_shape.dim] == [1, 2]
    assert tf.audio.decode_wav(audio.tensor.string_val[0]).sample_rate == 8000
    assert audio.tensor.string_val[1] == b""


def test_tensors_and_raw_messages(writer, tmp_path):
    from meshflow.io.protos import Summary

    raw = Summary(value=[{"tag": "raw"}]).SerializeToString()
    assert not tf.summary.experimental.write_raw_pb(raw, step=0)
    with writer.as_default(step=9):
        tf.summary.write("w", tf.constant([1, 2]))
        assert tf.summary.experimental.write_raw_pb(raw)
        assert tf.summary.graph(b"graph")
        with pytest.raises(TypeError, match="GraphDef"):
            tf.summary.graph(3)
        with tf.summary.experimental.summary_scope("n") as (tag, _):
            assert tag == "n"
    assert [(s, v.tag) for s, v in events(tmp_path)] == [(9, "w"), (9, "raw")]


def test_profiles(tmp_path):
    with pytest.raises(ValueError, match="Must enable trace"):
        tf.summary.trace_export("t", step=0)
    tf.summary.trace_on(graph=True)
    tf.summary.trace_export("t", step=0)
    tf.summary.trace_on(profiler=True)
    tf.function(lambda x: x + 1)(tf.constant(1))
    with pytest.raises(ValueError, match="profiler_outdir"):
        tf.summary.trace_export("t", step=0)
    tf.summary.trace_export("t", step=0, profiler_outdir=str(tmp_path))
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))
    tf.summary.trace_on(graph=True)
    tf.summary.trace_off()


def test_graphs(tmp_path):
    plugins = pytest.importorskip("tensorboard.plugins.base_plugin")
    from tensorboard import context
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.plugins.graph import graphs_plugin

    function = tf.function(lambda x: tf.nn.relu(x) + 1.0)
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        tf.summary.trace_on(graph=True)
        function(tf.ones([2]))
        tf.summary.trace_export("functions", step=3)
        graph = function.get_concrete_function(tf.ones([2])).graph
        assert tf.summary.graph(graph)
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(tmp_path)).Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(tmp_path))
    board = plugins.TBContext(logdir=str(tmp_path), multiplexer=multiplexer, data_provider=provider)
    plugin, request = graphs_plugin.GraphsPlugin(board), context.RequestContext()
    [(run, item)] = plugin.info_impl(request, experiment="").items()
    assert item["run_graph"] and item["tags"]["functions"]["op_graph"]
    for tag in (None, "functions"):
        text, kind = plugin.graph_impl(request, run, tag, False, experiment="")
        assert kind == "text/x-protobuf" and all(f'op: "{op}"' in text for op in ("Relu", "AddV2"))


def test_hyperparameters(tmp_path):
    """TensorBoard's own package writes hyperparameters by the names of TensorFlow."""
    pytest.importorskip("tensorboard")
    # TensorBoard looks for TensorFlow once in a process.
    script = f"""
import sys
import meshflow as tf
sys.modules["tensorflow"] = tf
from tensorboard.plugins.hparams import api as hp
units = hp.HParam("units", hp.Discrete([1, 2]))
with tf.summary.create_file_writer({str(tmp_path)!r}).as_default():
    assert hp.hparams_config(hparams=[units], metrics=[hp.Metric("epoch_loss")])
    assert hp.hparams({{units: 2}})
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
callback = hp.KerasCallback({str(tmp_path / "run")!r}, {{units: 1}})
model.fit(tf.ones((2, 2)), tf.ones((2, 1)), verbose=0, callbacks=[callback])
"""
    code, output = forked.run(script)
    assert code == 0, output
    tags = [value.tag for _, value in events(tmp_path) + events(tmp_path / "run")]
    assert [tag.removeprefix("_hparams_/") for tag in tags] == [
        "experiment",
        *("session_start_info", "session_start_info", "session_end_info"),
    ]


def test_tensorboard_reads_event_files(writer, tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    with writer.as_default(step=2):
        tf.summary.scalar("loss", 0.25)
        tf.summary.histogram("h", [1.0, 2.0])
    (path,) = tmp_path.glob("*tfevents*")
    read = list(loader.EventFileLoader(str(path)).Load())
    assert read[0].file_version == "brain.Event:2"
    assert [(e.step, e.summary.value[0].tag) for e in read[1:]] == [(2, "loss"), (2, "h")]
    # TensorBoard's loader determines the type of each value by the name of the plugin.
    assert [e.summary.value[0].metadata.data_class for e in read[1:]] == [1, 2]
