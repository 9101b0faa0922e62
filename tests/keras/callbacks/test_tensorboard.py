"""Test the callback `TensorBoard`: written values, names and steps."""

import json

import numpy as np
import pytest

import meshflow as tf
from meshflow.io.protos import Event
from meshflow.io.records import read_records
from meshflow.keras.callbacks.tensorboard import keras_model_summary
from meshflow.saved_model.graph.format.messages import GraphDef


def written(folder):
    """(step, tag) of all summaries, in the order of writing."""
    found = []
    for path in sorted(folder.glob("*tfevents*")):
        for record in read_records(path):
            event = Event.FromString(record)
            found += [(event.step, value.tag) for value in event.summary.value]
    return found


def trained(folder, model=None, epochs=2, **arguments):
    model = model or tf.keras.Sequential([tf.keras.layers.Dense(1, name="d")])
    model.compile(tf.keras.optimizers.SGD(arguments.pop("rate", 0.1)), "mse", metrics=["mae"])
    callback = tf.keras.callbacks.TensorBoard(folder, **arguments)
    x, y = np.ones([8, 2], np.float32), np.ones([8, 1], np.float32)
    model.fit(
        x, y, batch_size=2, epochs=epochs, validation_split=0.5, verbose=0, callbacks=callback
    )
    return model


def test_epochs(tmp_path):
    rate = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    trained(tmp_path, rate=rate, write_graph=False)
    per_epoch = ("epoch_loss", "epoch_mae")
    evaluations = ("evaluation_loss_vs_iterations", "evaluation_mae_vs_iterations")
    assert written(tmp_path / "train") == [
        (e, tag) for e in (0, 1) for tag in (*per_epoch, "epoch_learning_rate")
    ]
    assert written(tmp_path / "validation") == [
        row
        for e in (0, 1)
        for row in [*((2 * e + 2, t) for t in evaluations), *((e, t) for t in per_epoch)]
    ]


def test_batches_and_speed(tmp_path):
    trained(tmp_path, write_graph=False, update_freq=2, write_steps_per_second=True, epochs=1)
    assert written(tmp_path / "train") == [
        *((2, f"batch_{n}") for n in ("loss", "mae", "steps_per_second")),
        *((0, f"epoch_{n}") for n in ("loss", "mae", "steps_per_second")),
    ]


def test_weights_and_configuration(tmp_path):
    model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(2, name="d")])
    trained(tmp_path, model, epochs=3, histogram_freq=2, write_images=True)
    tags = written(tmp_path / "train")
    assert tags[0] == (0, "keras")
    for kind in ("histogram", "image"):
        for weight in ("kernel", "bias"):
            assert [s for s, t in tags if t == f"d/{weight}_0/{kind}"] == [0, 2]
    (path,) = (tmp_path / "train").glob("*")
    graph = Event.FromString(list(read_records(path))[1]).summary.value[0]
    assert graph.metadata.plugin_data.plugin_name == "graph_keras_model"
    assert json.loads(graph.tensor.string_val[0])["class_name"] == "Sequential"


def test_summaries_of_the_model(tmp_path):
    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = tf.keras.layers.Dense(1)

        def call(self, x, training=False):
            if training:
                tf.summary.scalar("mean", tf.reduce_mean(x))
            return self.dense(x)

    trained(tmp_path, Model(), epochs=2, update_freq=1, write_graph=False)
    tags = written(tmp_path / "train")
    assert [s for s, t in tags if t.endswith("mean")] == [0, 1, 2, 3]
    trained(tmp_path / "quiet", Model(), write_graph=False)
    assert not any(t.endswith("mean") for _, t in written(tmp_path / "quiet" / "train"))


def test_profile(tmp_path):
    trained(tmp_path, profile_batch=(2, 3), write_graph=False)
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))


def test_arguments():
    board = tf.keras.callbacks.TensorBoard
    board(profile_batch=np.int64(2))
    with pytest.raises(ValueError, match="profile_batch"):
        board(profile_batch="a")
    with pytest.raises(ValueError, match="profile_batch"):
        board(profile_batch=(1,))
    with pytest.raises(ValueError, match="update_freq"):
        board(update_freq="never")
    with pytest.raises(ValueError, match="Unrecognized"):
        board(colour=1)
    assert board(write_grads=True, batch_size=2).log_dir == "logs"


def test_graphs_and_embeddings(tmp_path):
    model = tf.keras.Sequential(
        [tf.keras.layers.Embedding(4, 2, name="words"), tf.keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    options = {"embeddings_freq": 2, "embeddings_metadata": {"words": "words.txt"}}
    callback = tf.keras.callbacks.TensorBoard(tmp_path, **options)
    model.fit(np.zeros((4, 3)), np.zeros((4, 3, 1)), epochs=3, verbose=0, callbacks=[callback])
    assert (tmp_path / "projector_config.pbtxt").read_text() == (
        'embeddings {\n  tensor_name: "words"\n  tensor_path: "words.tsv"\n  metadata_path: "words.txt"\n}\n'
    )
    weights = np.loadtxt(tmp_path / "words.tsv", delimiter="\t")
    np.testing.assert_allclose(weights, model.layers[0].embeddings.numpy(), rtol=1e-4)
    assert [
        tf.train.load_checkpoint(str(p)[:-6])
        for p in tmp_path.glob("train/keras_embedding.ckpt-[02].index")
    ]
    (path,) = tmp_path.glob("train/*tfevents*")
    definitions = [Event.FromString(record).graph_def for record in read_records(path)]
    [graph] = [GraphDef.FromString(d) for d in definitions if d]
    nodes = {node.name: node.op for node in graph.node}
    assert nodes["sequential/words/GatherV2"] == "GatherV2"
    assert nodes["sequential/dense/BiasAdd"] == "BiasAdd"
    with pytest.raises(ValueError, match="Unrecognized `Embedding` layer names"):
        callback = tf.keras.callbacks.TensorBoard(
            tmp_path, embeddings_freq=1, embeddings_metadata={"no": "x"}
        )
        model.fit(np.zeros((4, 3)), np.zeros((4, 3, 1)), verbose=0, callbacks=[callback])


def test_traces_are_written_without_functions_and_beside_other_profiles(tmp_path):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = tf.ones([6, 2]), tf.ones([6, 1])
    callback = tf.keras.callbacks.TensorBoard(tmp_path, profile_batch=(2, 3))
    tf.profiler.experimental.start(str(tmp_path / "other"))
    try:
        model.fit(*data, batch_size=2, verbose=0, callbacks=[callback])
    finally:
        tf.profiler.experimental.stop(save=False)
    (path,) = tmp_path.glob("train/*tfevents*")
    events = list(tf.compat.v1.train.summary_iterator(str(path)))
    values = {v.tag: v.WhichOneof("value") for e in events for v in e.summary.value}
    assert values == {"keras": "tensor", "batch_3": "tensor", "epoch_loss": "tensor"}
    assert [e.WhichOneof("what") for e in events][:2] == ["file_version", "summary"]


def test_configurations_of_models_are_summaries(tmp_path, caplog):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
    with tf.summary.create_file_writer(str(tmp_path)).as_default(step=5):
        assert keras_model_summary("name", model)
        model.to_json = lambda: 1 / 0
        assert not keras_model_summary("name", model)
    assert "Model failed to serialize as JSON. Ignoring" in caplog.text


def test_programs_replace_set_model(tmp_path):
    class Single(tf.keras.callbacks.TensorBoard):
        def set_model(self, model):
            self.model = model

        def on_epoch_end(self, epoch, logs=None):
            self.seen = sorted(logs)

    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    board = Single(log_dir=str(tmp_path))
    model.fit(np.ones([2, 1]), np.ones([2, 1]), verbose=0, callbacks=[board])
    assert board.seen == ["loss"]
