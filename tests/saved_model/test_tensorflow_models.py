"""SavedModels that TensorFlow 2.21 and tf-keras wrote (tests/reference/generate_saved_models.py)."""

import shutil

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow.deployment.deployable_function import trace_concrete_function


def case(stored, name):
    with np.load(stored / f"{name}.npz", allow_pickle=True) as file:
        return file["x"], file["y"]


def only(outputs):
    (value,) = outputs.values()
    return value


@pytest.mark.parametrize(
    "folder", ["lstm_export", "gru_export", "text_export", "cnn_save", "transformer_save"]
)
def test_signatures_reproduce_tensorflow_predictions(folder, stored):
    inputs, outputs = case(stored, folder.split("_")[0])
    model = tf.saved_model.load(stored / folder)
    signature = model.signatures["serving_default"]
    (name,) = signature.structured_input_signature[1]
    assert_close(only(signature(**{name: tf.constant(inputs)})), outputs, 1e-6)
    # One of another size.
    assert_close(only(signature(**{name: tf.constant(inputs[:1])})), outputs[:1], 1e-6)
    assert only(signature.structured_outputs).shape.as_list() == [None, *outputs.shape[1:]]


@pytest.mark.parametrize("name", ["mlp", "cnn", "gru", "transformer", "text"])
def test_keras_models_are_made_again(name, stored):
    inputs, outputs = case(stored, name)
    model = tf.keras.models.load_model(stored / f"{name}_save")
    assert type(model).__name__ in ("Sequential", "Functional")
    assert_close(model.predict(inputs, verbose=0), outputs, 1e-6)
    assert isinstance(model.optimizer, tf.keras.optimizers.Adam)
    assert int(model.optimizer.iterations) == (name in ("mlp", "cnn"))


def test_a_model_of_an_unknown_class_predicts_and_trains(stored):
    inputs, outputs = case(stored, "subclassed")
    model = tf.keras.models.load_model(stored / "subclassed_save")
    assert type(model).__name__ == "RestoredModel"
    assert_close(model.predict(inputs, verbose=0), outputs, 1e-6)
    assert len(model.trainable_weights) == 6
    # Batch normalization with batch statistics, which updates the moving averages.
    moving = {w.name: w.numpy() for w in model.non_trainable_weights if "moving" in w.name}
    model(inputs, training=True)
    assert len(moving) == 2
    for weight in model.non_trainable_weights:
        if weight.name in moving:
            assert not np.allclose(weight, moving[weight.name])
    losses = model.fit(inputs, outputs + 1, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_custom_objects_replace_known_classes(stored):
    @tf.keras.utils.register_keras_serializable("tests")
    class Subclassed(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.last = tf.keras.layers.Dense(3)
            self.parts = [tf.keras.layers.Dense(4), tf.keras.layers.BatchNormalization()]

        def call(self, inputs, training=False):
            return self.last(self.parts[1](self.parts[0](inputs), training=training))

    inputs, outputs = case(stored, "subclassed")
    objects = {"Subclassed": Subclassed}
    model = tf.keras.models.load_model(stored / "subclassed_save", custom_objects=objects)
    assert type(model) is Subclassed
    assert_close(model.predict(inputs, verbose=0), outputs, 1e-6)


@pytest.fixture(scope="module")
def module(stored, tmp_path_factory):
    # Files of tables are found relative to the model.
    place = tmp_path_factory.mktemp("moved") / "module"
    shutil.copytree(stored / "module", place)
    return tf.saved_model.load(place)


def test_objects_and_variables(module):
    assert [v.numpy() for v in (module.parts[0], module.parts[1]["inner"])] == [3.0, 4.0]
    assert module.factor.trainable
    assert not module.calls.trainable
    assert sorted(module.signatures) == ["look", "serving_default"]


def test_variables_are_written_and_have_gradients(module):
    before = int(module.calls)
    with tf.GradientTape() as tape:
        result = module(tf.constant([[1.0, 2.0], [3.0, 4.0]]))
    assert tape.gradient(result, module.factor).numpy().tolist() == [4.0, 6.0]
    assert int(module.calls) == before + 1

    @tf.function
    def twice(x):
        return module(module(x))

    assert twice(tf.constant([[1.0, 1.0]])).numpy().tolist() == [[1.0, 4.0]]
    assert int(module.calls) == before + 3


def test_tables_and_their_files(module):
    found = module.look(tf.constant(["a", "z", "x", "b"]))
    assert found["table"].numpy().tolist() == [1, -1, -1, 2]
    assert found["words"].numpy()[[1, 2]].tolist() == [2, 0]
    assert set(found["words"].numpy()[[0, 3]]) <= {3, 4}


def test_control_flow_at_any_rank(module):
    assert module.loop(tf.constant([1.0, 2.0]), 3).numpy().tolist() == [16.0, 24.0]
    assert module.loop(tf.constant([[-5.0]]), 1).numpy().tolist() == [[-10.0]]


def test_arguments_of_python_choose_the_function(module):
    x = tf.constant([2.0, 3.0])
    assert module.power(x).numpy().tolist() == [7.0, 12.0]
    assert module.power(x, exponent=3).numpy().tolist() == [11.0, 30.0]
    with pytest.raises(ValueError, match=r"Could not find matching concrete function"):
        module.power(x, exponent=4)


def test_dropout_draws_new_numbers(stored):
    model = tf.saved_model.load(stored / "mlp_save")
    x = tf.ones([64, 8])
    results = [model(x, training=True).numpy() for _ in range(2)]
    assert not np.array_equal(*results)
    assert_close(model(x, training=False), model(x, training=False), 0)
    mean = np.mean([model(x, training=True).numpy().mean(0) for _ in range(30)], 0)
    assert_close(mean, model(x[:1])[0], 0.2)


def test_recurrent_loops_have_gradients(stored):
    inputs, _ = case(stored, "gru")
    model = tf.saved_model.load(stored / "gru_save")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.constant(inputs)) ** 2)
    weights = model.trainable_variables
    gradients = tape.gradient(loss, weights)
    # Along the gradient the loss grows by its square.
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.assign_add(1e-4 * gradient)
    grown = tf.reduce_sum(model(tf.constant(inputs)) ** 2) - loss
    square = sum(float(tf.reduce_sum(g**2)) for g in gradients)
    assert abs(float(grown) / (1e-4 * square) - 1) < 0.05


def changed(stored, tmp_path, change):
    """Return a copy of a model with a changed graph."""
    from meshflow.saved_model.graph.format.messages import SavedModel

    shutil.copytree(stored / "mlp_save", tmp_path / "changed")
    file = tmp_path / "changed" / "saved_model.pb"
    content = SavedModel.FromString(file.read_bytes())
    change(content.meta_graphs[0])
    file.write_bytes(content.SerializeToString())
    return tmp_path / "changed"


def test_an_unknown_op_is_named_with_its_node(stored, tmp_path):
    def change(meta):
        for function in meta.graph_def.library.function:
            for node in function.node_def:
                if node.op == "Relu":
                    node.op = "ReadFile"

    model = tf.saved_model.load(changed(stored, tmp_path, change))
    with pytest.raises(tf.errors.UnimplementedError, match=r"Relu: TensorFlow's op ReadFile"):
        model.signatures["serving_default"](input_1=tf.ones([1, 8]))


def with_other_names(meta):
    for function in meta.graph_def.library.function:
        for node in function.node_def:
            node.name += "_other"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda meta: meta.graph_def.library.ClearField("function"), "has no function"),
        (
            lambda meta: meta.object_graph_def.nodes[0].children[0].__setattr__("node_id", 99_999),
            "damaged",
        ),
        (with_other_names, "has no node"),
    ],
    ids=["functions", "objects", "nodes"],
)
def test_a_damaged_graph_is_reported(change, message, stored, tmp_path):
    def run():
        model = tf.saved_model.load(changed(stored, tmp_path, change))
        model(tf.ones([1, 8]), training=False)
        model.signatures["serving_default"](input_1=tf.ones([1, 8]))

    with pytest.raises(tf.errors.DataLossError, match=message):
        run()


def test_truncated_and_missing_files_are_named(stored, tmp_path):
    shutil.copytree(stored / "mlp_save", tmp_path / "cut")
    graph = tmp_path / "cut" / "saved_model.pb"
    whole = graph.read_bytes()
    graph.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(tf.errors.DataLossError, match=r"saved_model\.pb"):
        tf.saved_model.load(tmp_path / "cut")
    graph.write_bytes(whole)
    (tmp_path / "cut" / "keras_metadata.pb").write_bytes(b"\xff\xff")
    with pytest.raises(tf.errors.DataLossError, match=r"keras_metadata\.pb"):
        tf.keras.models.load_model(tmp_path / "cut")
    (tmp_path / "cut" / "variables" / "variables.index").unlink()
    with pytest.raises(tf.errors.DataLossError, match="no value of the variable"):
        tf.saved_model.load(tmp_path / "cut")
    with pytest.raises(ValueError, match="none with all of"):
        tf.saved_model.load(stored / "mlp_save", tags=["train"])
    assert tf.saved_model.contains_saved_model(stored / "mlp_save")


def save_again(signature, folder):
    """Test loading a module with only a signature and its variables."""
    module = tf.Module()
    module.weights_of = signature.captured_inputs
    tf.saved_model.save(module, folder, {"serving_default": signature})
    return tf.saved_model.load(folder)


def test_signatures_are_saved_and_converted_for_any_batch(stored, tmp_path):
    """Sizes that the graph computes with are symbols."""
    inputs, outputs = case(stored, "transformer")
    signature = tf.saved_model.load(stored / "transformer_save").signatures["serving_default"]
    found = trace_concrete_function(signature)
    assert found.specs[0].shape.as_list()[0] is None

    again = save_again(signature, tmp_path / "ours").signatures["serving_default"]
    (name,) = again.structured_input_signature[1]
    for count in (1, len(inputs)):
        given = {name: tf.constant(inputs[:count])}
        assert_close(only(again(**given)), outputs[:count], 1e-6)


@pytest.mark.parametrize("folder", ["lstm_export", "gru_save"])
def test_recurrent_models_are_saved_again_for_any_length(folder, stored, tmp_path):
    """Test loops over a sequence of symbolic length, which are saved and have gradients."""
    inputs, outputs = case(stored, folder.split("_")[0])
    model = tf.saved_model.load(stored / folder)
    if folder == "gru_save":
        # Of its sixty functions one.
        model = save_again(model.signatures["serving_default"], tmp_path / "one")
    else:
        tf.saved_model.save(model, tmp_path / "all")
        model = tf.saved_model.load(tmp_path / "all")
    signature = model.signatures["serving_default"]
    (name,) = signature.structured_input_signature[1]
    with tf.GradientTape() as tape:
        found = only(signature(**{name: tf.constant(inputs)}))
        loss = tf.reduce_sum(found**2)
    assert_close(found, outputs, 1e-6)
    assert only(signature(**{name: tf.constant(inputs[:1, :2])})).shape[0] == 1
    weights = [v for v in signature.captured_inputs if isinstance(v, tf.Variable) and v.trainable]
    gradients = tape.gradient(loss, weights)
    assert weights and all(float(tf.norm(g)) > 0 for g in gradients if g is not None)
    assert sum(g is not None for g in gradients) == len(weights)
