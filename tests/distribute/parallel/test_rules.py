"""Test rules of named dimensions, names of layers, and errors before compilation."""

import numpy as np
import pytest

import meshflow as tf
from distribute.parallel.training import LAYERS, data, mesh, mlp, trained
from meshflow.experimental import dtensor

STRATEGY = tf.distribute.MeshStrategy


def specs(make, rules, sizes=None):
    """The sharding specs of a model's weights by name."""
    strategy = STRATEGY(mesh(**(sizes or {"data": 2, "model": 2})), rules)
    with strategy.scope():
        model = make()
    return {v.name.split(":")[0]: v.layout.sharding_specs for v in model.weights}


def gpt():
    tokens = tf.keras.Input([4], dtype="int32")
    x = LAYERS.Embedding(20, 16, name="embedding")(tokens)
    x = x + LAYERS.MultiHeadAttention(4, 4, name="attention")(x, x)
    y = LAYERS.Dense(64, name="up")(LAYERS.LayerNormalization(name="norm")(x))
    x = x + LAYERS.Dense(16, name="down")(y)
    return tf.keras.Model(tokens, LAYERS.Dense(20, dims="out:vocab", name="head")(x))


U = "unsharded"


def test_layers_name_the_axes_of_their_weights():
    found = specs(gpt, "batch:data, vocab:model, heads:model, hidden:model")
    assert found["embedding/embeddings"] == ["model", U]
    assert found["attention/query/kernel"] == [U, "model", U]
    assert found["attention/query/bias"] == ["model", U]
    assert found["attention/attention_output/kernel"] == ["model", U, U]
    assert found["attention/attention_output/bias"] == [U]
    assert found["up/kernel"] == [U, "model"] and found["up/bias"] == ["model"]
    assert found["down/kernel"] == ["model", U] and found["down/bias"] == [U]
    assert found["head/kernel"] == [U, "model"] and found["head/bias"] == ["model"]
    assert found["norm/gamma"] == [U]


def test_other_layers_and_forms_of_rules():
    def make():
        layers = [LAYERS.Conv2D(8, 3), LAYERS.Conv2DTranspose(4, 3), LAYERS.BatchNormalization()]
        layers += [LAYERS.Reshape([-1, 4]), LAYERS.LSTM(4), LAYERS.EinsumDense("ab,bc->ac", 8)]
        return tf.keras.Sequential([tf.keras.Input([8, 8, 3]), *layers])

    wanted = {"out": ["data", "model"], "gates": "model", "channels": None}
    found = specs(make, wanted)
    over = "data+model"
    assert found["conv2d/kernel"] == [U, U, U, over] and found["conv2d/bias"] == [over]
    assert found["conv2d_transpose/kernel"] == [U, U, over, U]
    assert found["lstm/lstm_cell/kernel"] == [U, "model"]
    assert found["lstm/lstm_cell/bias"] == ["model"]
    tf.keras.backend.reset_uids()
    assert found != specs(make, "gates:model")


def test_layers_and_weights_with_custom_names():
    class Twice(LAYERS.Layer):
        def build(self, shape):
            self.table = self.add_weight("table", (4, shape[-1], 8), dims="experts, embed, _")

        def call(self, x):
            return tf.einsum("bi,eio->bo", x, self.table)

    def make():
        return tf.keras.Sequential(
            [
                tf.keras.Input([16]),
                Twice(name="twice"),
                LAYERS.Dense(4, dims={"in": "wide"}, name="last"),
            ]
        )

    found = specs(make, "experts:data, wide:model")
    assert found["twice/table"] == ["data", U, U] and found["last/kernel"] == ["model", U]
    layer = LAYERS.Dense(4, dims="in:embed, out:hidden")
    assert LAYERS.Dense.from_config(layer.get_config()).get_config() == layer.get_config()
    assert layer.get_config()["dims"] == {"in": "embed", "out": "hidden"}
    with pytest.raises(ValueError, match=r"dims must rename axes.*Received: dims='hidden'"):
        LAYERS.Dense(4, dims="hidden")
    with (
        STRATEGY(mesh(data=2), "batch:data").scope(),
        pytest.raises(ValueError, match=r"renames \['outt'\], and the axes of its weights are"),
    ):
        LAYERS.Dense(4, dims="outt:vocab").build([2])

    class Wrong(LAYERS.Layer):
        def build(self, shape):
            self.add_weight("w", (4, 4), dims="experts")

    with (
        STRATEGY(mesh(data=2), "batch:data").scope(),
        pytest.raises(ValueError, match="names 1 axes of the weight w, which has the shape"),
    ):
        Wrong().build([2])


def test_layout_maps_are_rules_too():
    devices = mesh(data=2, model=2)
    layouts = tf.keras.dtensor.experimental.LayoutMap(devices)
    layouts["up.kernel"] = dtensor.Layout([U, "model"], devices)
    strategy = STRATEGY(devices, layouts, zero=3)
    with strategy.scope():
        model = gpt()
    kernel = model.get_layer("up").kernel
    assert kernel.layout.sharding_specs == ["data", "model"]
    assert strategy.batch_dimensions == ("data",)


REFUSED = {
    "zero must be one of 0, 1, 2, 3, got 4": {"zero": 4},
    "micro_batches must be an integer of at least 1, got 0": {"micro_batches": 0},
    "recompute must be one of None, 'layer', 'gathers' or a policy": {"recompute": "some"},
    "stack=True: expected None, True or False": {"stack": True},
    "sequence must be one of": {"sequence": "rings"},
    "compress must be one of": {"compress": "4bit"},
    "offload must be one of": {"offload": ("weights",)},
    "zero_over='data' selects the dimensions of ZeRO, but zero=0": {"zero_over": "data"},
    "zero_over: the mesh has no dimension 'node'; its dimensions are": {
        "zero": 1,
        "zero_over": "node",
    },
    "batches are split over .'data'., not over 'model'": {"zero": 1, "zero_over": "model"},
    "zero=1 shards states over the devices that share a batch": {
        "zero": 1,
        "rules": "hidden:model",
    },
    "pipeline: the mesh has no dimension 'stage'": {"pipeline": "stage"},
    "pipeline: the stages use the dimension 'data', which batches": {"pipeline": "data"},
    "pipeline must be a tf.distribute.Pipeline": {"pipeline": 3},
    "'hidden' in 'batch:data, hidden' is not a rule": {"rules": "batch:data, hidden"},
    "the rule 'hidden:modle': the mesh has no dimension 'modle'": {"rules": "hidden:modle"},
    "rules: 'hidden' has two rules": {"rules": "hidden:model; hidden:data"},
    "rules must be text such as": {"rules": 3},
    "expected the name of a mesh dimension, or a list of names, got 3": {"rules": {"batch": 3}},
    "'batch:data.data' splits over one dimension of the mesh twice": {"rules": "batch:data+data"},
    "the mesh has no dimension ''; its": {"rules": "batch:data+"},
    "options must be a tf.distribute.ParallelOptions": {"options": {"zero": 1}},
    "zero must be one of 0, 1, 2, 3, got True": {"zero": True},
    "zero must be one of 0, 1, 2, 3, got '3'": {"zero": "3"},
    "micro_batches must be an integer of at least 1, got -1": {"micro_batches": -1},
    "micro_batches must be an integer of at least 1, got 2.0": {"micro_batches": 2.0},
    "zero_over must name mesh dimensions, each once": {"zero": 1, "zero_over": "data+data"},
    "zero_over must name mesh dimensions, each once, .* got 3": {"zero": 1, "zero_over": 3},
    "offload must name some of .* got True": {"offload": True},
    "offload_to='/no/such' is no folder": {"offload": "optimizer", "offload_to": "/no/such"},
    "offload=.. selects none": {"offload_to": "/tmp"},
    "compress_after must be an integer of at least 0": {"compress": "int8", "compress_after": -1},
    "sequence='split' needs a rule that splits sequences": {"sequence": "split"},
    "sequence='ring' needs a rule that splits sequences": {"sequence": "ring"},
    "the stages use the dimension 'model', over which a rule splits 'hidden'": {
        "pipeline": "model",
        "rules": "hidden:model",
    },
    "'2f2b' is none of 1f1b, gpipe": {"pipeline": tf.distribute.Pipeline("model", "2f2b")},
    "'interleaved:0' is none of": {"pipeline": tf.distribute.Pipeline("model", "interleaved:0")},
    "expected the name of a schedule, the path of": {
        "pipeline": tf.distribute.Pipeline("model", 7)
    },
    "the table is for 3 devices and 1 micro-batches, the pipeline has 2 and 1": {
        "pipeline": tf.distribute.Pipeline("model", [["0F0"], ["1F0"], ["2F0"]])
    },
    "the table deadlocks; in tick 0 no device can go on": {
        "pipeline": tf.distribute.Pipeline("model", [["0B0", "0F0"], ["1F0", "1B0"]])
    },
    "compress='int8' is about gradients .* with a pipeline": {
        "pipeline": "model",
        "compress": "int8",
    },
    "recompute='gathers' with a pipeline": {"pipeline": "model", "recompute": "gathers"},
    "pass options=, or its fields": {"options": tf.distribute.ParallelOptions(), "zero": 1},
}


@pytest.mark.parametrize("message", REFUSED)
def test_choices_are_refused_when_the_strategy_is_made(message):
    choices = {"rules": "batch:data", **REFUSED[message]}
    with pytest.raises(ValueError, match=message):
        STRATEGY(mesh(data=2, model=2), **choices)


def test_unknown_choices_and_meshes():
    with pytest.raises(
        TypeError, match=r"'zeros' is no option .did you mean 'zero'\?.; the options are"
    ):
        STRATEGY(mesh(data=2), zeros=1)
    with pytest.raises(ValueError, match=r"expected a mesh of tf.experimental.dtensor.create_mesh"):
        STRATEGY({"data": 2})


def test_weights_that_rules_do_not_fit():
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"the weight kernel of layer odd of shape \(16, 27\): axis 1 \(hidden or out\) of size 27 does not "
        "divide into the 2 parts of mesh dimension 'model'",
    ):
        specs(lambda: LAYERS.Dense(27, name="odd").build([16]), "hidden:model")
    with pytest.raises(
        ValueError,
        match=r"two axes of the weight kernel of layer both over the mesh dimension 'model': axis 0 .'in'. and axis 1",
    ):
        specs(lambda: LAYERS.Dense(16, name="both").build([16]), "in:model, out:model")


def test_unused_rules_warn():
    with pytest.warns(UserWarning, match=r"no weight of a model has a dimension named \['hiden'\]"):
        trained(mlp, STRATEGY(mesh(data=2, model=2), "batch:data, hiden:model"), steps=2)


def test_patterns_that_name_no_weight_are_warned_of():
    with pytest.warns(
        UserWarning, match=r"begins with the patterns of offload=.'optimizer': 'decoder'"
    ):
        trained(
            mlp, STRATEGY(mesh(data=2), "batch:data", offload={"optimizer": "decoder"}), steps=2
        )


def test_weights_without_a_divisible_axis_are_warned_of(recwarn):
    odd = STRATEGY(mesh(data=2), "batch:data", zero=3)
    with odd.scope():
        LAYERS.Dense(515).build([515])
        LAYERS.Dense(512).build([515])
    with pytest.warns(UserWarning, match=r"1,062,960 of 2,119,728 bytes .* kernel:0: .* by 2"):
        odd.warn_of_unused()
    even = STRATEGY(mesh(data=2), "batch:data", zero=3)
    with even.scope():
        LAYERS.Dense(512).build([515])
    recwarn.clear()
    even.warn_of_unused()
    odd.warn_of_unused()
    assert not recwarn.list


def test_batches_that_do_not_divide_are_warned_of():
    """The last batch of an epoch may be smaller; the first is not."""
    strategy = STRATEGY(mesh(data=2), "batch:data", micro_batches=3)
    with pytest.warns(
        UserWarning, match=r"16 rows .* 2 devices x micro_batches=3: in 4 micro-batches"
    ):
        trained(mlp, strategy, steps=2)
    strategy = STRATEGY(mesh(data=2), "batch:data", zero=1)
    with pytest.warns(UserWarning, match="all of it is computed by each of the 2 devices"):
        trained(mlp, strategy, batch=data(rows=15), steps=2, fit={"batch_size": 15})


def test_schedules_in_files(tmp_path):
    pipeline = lambda name: tf.distribute.Pipeline("stage", str(tmp_path / name))
    for name, content, message in (
        ("cells.csv", b"0F0,banana\n1F0\n", "'banana' in cell 1 of device 0 is no action"),
        ("empty.csv", b"", "table of a pipeline's schedule is empty"),
        ("twice.csv", b"0F0,0F0,0B0\n1F0,1B0\n", "micro-batch 0 in stage 0 is in the table twice"),
        ("binary.csv", bytes(range(128, 256)), r"binary\.csv' is no text"),
        ("none.csv", None, r"none\.csv' cannot be read: No such file"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            STRATEGY(mesh(stage=2), pipeline=pipeline(name))


def test_one_device_and_no_rules():
    model, curves = trained(mlp, STRATEGY(micro_batches=2, recompute="layer"))
    np.testing.assert_allclose(curves["loss"], trained(mlp)[1]["loss"], rtol=1e-5)
    x, _ = data()
    assert model.predict(x, verbose=0).shape == (32, 8)


def test_one_device_draws_like_no_strategy():
    make = lambda: tf.keras.Sequential([tf.keras.Input([16]), LAYERS.Dropout(0.5), LAYERS.Dense(8)])
    _, curves = trained(make, STRATEGY(mesh(data=1), "batch:data", zero=1), steps=2)
    np.testing.assert_allclose(curves["loss"], trained(make, steps=2)[1]["loss"], rtol=1e-5)


def test_models_store_their_strategy():
    class Own(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.last = LAYERS.Dense(8)

        def call(self, inputs):
            return self.last(inputs)

    x, y = data()
    with STRATEGY(mesh(data=2), "batch:data", zero=3).scope():
        model = Own()
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=16, verbose=0)
    kernel = model.last.kernel
    assert dtensor.fetch_layout(kernel).sharding_specs == ["data", "unsharded"]
    # The kernel and the bias are sent together.
    assert dtensor.explain(model, x[:16], y[:16]).count("reduce-scatter") == 1


def test_unsupported_arguments_are_named():
    with pytest.raises(ValueError, match="devices sum for a batch, and does nothing where no rule"):
        STRATEGY(mesh(data=2), "hidden:data", compress="int8")
    with pytest.raises(ValueError, match="is no regular expression of names"):
        STRATEGY(mesh(data=2), "batch:data", offload={"optimizer": "("})
