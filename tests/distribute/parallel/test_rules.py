"""Rules of named dimensions, the names that layers give, and what is refused before anything compiles."""

import json
import math

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
    tf.keras.backend.clear_session()
    assert found != specs(make, "gates:model")


def test_layers_and_weights_with_names_of_their_own():
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
    "stack=True: it must be None, True or False": {"stack": True},
    "sequence must be one of": {"sequence": "rings"},
    "compress must be one of": {"compress": "4bit"},
    "offload must be one of": {"offload": ("weights",)},
    "zero_over='data' says where states are split, but zero=0": {"zero_over": "data"},
    "zero_over: the mesh has no dimension 'node'; its dimensions are": {
        "zero": 1,
        "zero_over": "node",
    },
    "batches are split over .'data'., not over 'model'": {"zero": 1, "zero_over": "model"},
    "zero=1 splits states over the devices that share a batch": {
        "zero": 1,
        "rules": "hidden:model",
    },
    "pipeline: the mesh has no dimension 'stage'": {"pipeline": "stage"},
    "pipeline: the stages are to lie along 'data', which batches": {"pipeline": "data"},
    "pipeline must be a tf.distribute.Pipeline": {"pipeline": 3},
    "'hidden' in 'batch:data, hidden' is no rule": {"rules": "batch:data, hidden"},
    "the rule 'hidden:modle': the mesh has no dimension 'modle'": {"rules": "hidden:modle"},
    "rules: 'hidden' is given twice": {"rules": "hidden:model; hidden:data"},
    "rules must be text such as": {"rules": 3},
    "pass options=, or its fields": {"options": tf.distribute.ParallelOptions(), "zero": 1},
}


@pytest.mark.parametrize("message", REFUSED)
def test_choices_are_refused_when_the_strategy_is_made(message):
    choices = {"rules": "batch:data", **REFUSED[message]}
    with pytest.raises(ValueError, match=message):
        STRATEGY(mesh(data=2, model=2), **choices)


def test_unknown_choices_and_meshes():
    with pytest.raises(TypeError, match="zeros"):
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


def test_rules_that_nothing_uses_are_warned_of():
    with pytest.warns(UserWarning, match=r"no weight of a model has a dimension named \['hiden'\]"):
        trained(mlp, STRATEGY(mesh(data=2, model=2), "batch:data, hiden:model"), steps=2)


def test_steps_of_ones_own_need_their_loss_divided():
    class Own(tf.keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
            return {"loss": loss}

    def make():
        return Own(mlp().layers)

    with pytest.raises(
        ValueError, match=r"Own.train_step computes gradients itself, but the options \{'zero': 3\}"
    ):
        trained(make, STRATEGY(mesh(data=2), "batch:data", zero=3), steps=2)
    # Layouts alone leave the step to its author.
    _, curves = trained(make, STRATEGY(mesh(data=2), "batch:data"), steps=2)
    np.testing.assert_allclose(curves["loss"], trained(make, steps=2)[1]["loss"], rtol=1e-5)


def test_one_device_and_no_rules():
    model, curves = trained(mlp, STRATEGY(micro_batches=2, recompute="layer"))
    np.testing.assert_allclose(curves["loss"], trained(mlp)[1]["loss"], rtol=1e-5)
    x, _ = data()
    assert model.predict(x, verbose=0).shape == (32, 8)


def test_one_device_draws_as_without_a_strategy():
    make = lambda: tf.keras.Sequential([tf.keras.Input([16]), LAYERS.Dropout(0.5), LAYERS.Dense(8)])
    _, curves = trained(make, STRATEGY(mesh(data=1), "batch:data", zero=1), steps=2)
    np.testing.assert_allclose(curves["loss"], trained(make, steps=2)[1]["loss"], rtol=1e-5)


def test_models_know_the_strategy_they_were_made_in():
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
    assert dtensor.explain(model, x[:16], y[:16]).count("reduce-scatter") == 2


def test_settings_of_mesh_tensorflow():
    strategy = tf.distribute.from_mesh_tensorflow("rows:2;cols:2", "batch:rows;hidden:cols", zero=1)
    assert dict(zip(strategy.mesh.dim_names, strategy.mesh.shape(), strict=True)) == {
        "rows": 2,
        "cols": 2,
    }
    assert strategy.batch_dimensions == ("rows",) and strategy.rules.dimensions("hidden") == (
        "cols",
    )
    for wrong in ("rows", "rows:two", "", "rows:2;rows:2"):
        with pytest.raises(
            ValueError, match="mesh_shape must name dimensions and their sizes once each"
        ):
            tf.distribute.from_mesh_tensorflow(wrong, "batch:rows")
    with pytest.raises(ValueError, match=r"A mesh of \{'rows': 64\} has 64 devices, there are"):
        tf.distribute.from_mesh_tensorflow("rows:64", "batch:rows")


DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "steps_per_print": 10,
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8, "zero_hpz_partition_size": 2},
    "activation_checkpointing": {"partition_activations": True},
    "fp16": {"enabled": True, "initial_scale_power": 8},
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "betas": [0.8, 0.9], "weight_decay": 0.1}},
}


def test_settings_of_deepspeed(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(DEEPSPEED))
    found = tf.distribute.from_deepspeed(path)
    chosen = {"zero": 3, "zero_over": ("data",), "micro_batches": 2, "recompute": "layer"}
    assert found.strategy.options.chosen() == chosen
    assert found.strategy.batch_dimensions == ("node", "data")
    assert (found.batch_size, found.policy) == (64, "mixed_float16")
    assert found.decided == ("steps_per_print", "zero_optimization.reduce_bucket_size")
    optimizer = tf.keras.optimizers.get(found.optimizer)
    assert (optimizer.weight_decay, optimizer.beta_1, optimizer.global_clipnorm) == (0.1, 0.8, 0.5)
    assert (optimizer.initial_scale, optimizer.dynamic_growth_steps) == (256.0, 1000)


def test_offloading_and_compression_of_deepspeed(tmp_path):
    disk = {"offload_optimizer": {"device": "nvme", "nvme_path": str(tmp_path)}}
    options = tf.distribute.from_deepspeed({"zero_optimization": disk}).strategy.options
    assert options.folders == {"optimizer": str(tmp_path)}
    # One in the host's memory, the other in files.
    disk["offload_param"] = {"device": "cpu"}
    mixed = tf.distribute.from_deepspeed({"zero_optimization": disk, "aio": {"thread_count": 2}})
    assert mixed.decided == ("aio",)
    assert mixed.strategy.options.chosen() == {
        "offload": (("optimizer", (".*",)), ("parameters", (".*",))),
        "offload_to": (("optimizer", str(tmp_path)),),
    }
    zero = {
        "stage": 1,
        "mics_shard_size": 2,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "none"},
        "zero_quantized_gradients": True,
    }
    config = {"zero_optimization": zero, "activation_checkpointing": {"cpu_checkpointing": True}}
    found = tf.distribute.from_deepspeed({**config, "fp16": {"enabled": True}})
    assert found.strategy.options.chosen() == {
        "zero": 1,
        "zero_over": ("data",),
        "recompute": "layer",
        "offload": (("optimizer", (".*",)), ("activations", (".*",))),
        "compress": "int8",
    }
    assert found.optimizer is None
    assert found.decided == ("zero_optimization.offload_optimizer.pin_memory",)
    params = {"lr": 0.5, "freeze_step": 7, "cuda_aware": False, "comm_backend_name": "nccl"}
    one_bit = tf.distribute.from_deepspeed({"optimizer": {"type": "OneBitAdam", "params": params}})
    assert one_bit.strategy.options.chosen() == {"compress": "1bit"}
    optimizer = tf.keras.optimizers.get(one_bit.optimizer)
    assert type(optimizer) is tf.keras.optimizers.OneBitAdam and optimizer.freeze_step == 7


def risen(last, steps, kind):
    """The share of a warm-up after the scheduler's step number `last`."""
    return math.log(last + 1) / math.log(steps) if kind == "log" else last / steps


def cosine(last, total, warm, low):
    return low + (1 - low) * (1 + math.cos(math.pi * (last - warm + 1) / (total - warm))) / 2


def cycle(t, first, second, stairs):
    done = t / first if t <= first else 1 - (t - first) / second
    return math.floor(done * stairs + 1e-9) / stairs if stairs else done


WARM = {"warmup_max_lr": 0.2, "warmup_num_steps": 5}
CYCLE = {"cycle_min_lr": 0.1, "cycle_max_lr": 0.5, "cycle_first_step_size": 4}
# By the number of the update, of which each comes before the scheduler's step of the same number.
SCHEDULES = {
    "WarmupLR": (WARM, lambda t: 0.2 * (risen(t - 1, 5, "log") if 0 < t < 6 else t > 5)),
    "WarmupDecayLR": (
        {**WARM, "warmup_min_lr": 0.1, "warmup_type": "linear", "total_num_steps": 9},
        lambda t: (
            0.1
            + 0.1
            * (risen(max(t - 1, 0), 5, "linear") if t < 6 else max(0, (9 - (t - 1)) / (9 - 5)))
        ),
    ),
    "WarmupCosineLR": (
        {"total_num_steps": 9, "warmup_num_steps": 5, "warmup_min_ratio": 0.5},
        lambda t: (
            0.8
            * (
                0.5 + 0.5 * risen(max(t - 1, 0), 5, "log")
                if t < 6
                else cosine(min(t - 1, 8), 9, 5, 0.0001)
            )
        ),
    ),
    "OneCycle": (
        {
            **CYCLE,
            "cycle_second_step_size": 3,
            "cycle_second_stair_count": 2,
            "decay_step_size": 2,
            "decay_lr_rate": 0.5,
            "cycle_momentum": False,
        },
        lambda t: (
            0.1 + 0.4 * cycle(t, 4, 3, 2 if t > 4 else 0)
            if t < 7
            else 0.1 / (1 + 0.5 * (t - 7) / 2)
        ),
    ),
    "LRRangeTest": (
        {
            "lr_range_test_min_lr": 0.1,
            "lr_range_test_step_size": 3,
            "lr_range_test_staircase": True,
        },
        lambda t: 0.1 * (1 + t // 3),
    ),
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedules_of_deepspeed(kind):
    params, expected = SCHEDULES[kind]
    optimizer = {"type": "SGD" if kind == "LRRangeTest" else "Adam", "params": {"lr": 0.8}}
    config = {"optimizer": optimizer, "scheduler": {"type": kind, "params": params}}
    made = tf.keras.optimizers.get(tf.distribute.from_deepspeed(config).optimizer)
    rate = made.learning_rate
    ours = tf.keras.optimizers.schedules
    assert type(rate) in (ours.WarmupSchedule, ours.OneCycle, ours.LearningRateRangeTest)
    found = [float(rate(tf.constant(t, tf.int64))) for t in range(13)]
    np.testing.assert_allclose(found, [expected(t) for t in range(13)], rtol=1e-5, atol=1e-7)
    assert float(ours.deserialize(ours.serialize(rate))(3)) == found[3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"train_batch_size": 60},
            "train_batch_size=60 is not train_micro_batch_size_per_gpu=8 x .* = 64",
        ),
        ({"zero": 1}, r"\['zero'\] have no counterpart here\. Take"),
        ({"train_batch_size": "auto"}, r"\['train_batch_size'\] are \"auto\", which"),
        ({"zero_optimization": {"stag": 1}}, "did you mean 'zero_optimization.stage'"),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "tape"}}},
            "offload_optimizer.device='tape' must be 'none', 'cpu'",
        ),
        ({"zero_optimization": {"offload_param": {"path": 1}}}, r"'offload_param.path'"),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}},
            "ratio=0.5 takes a share",
        ),
        (
            {"zero_optimization": {"zero_hpz_partition_size": 2, "mics_shard_size": 4}},
            "both say over how",
        ),
        ({"bf16": {"enabled": True}}, "fp16 and bf16 are both enabled"),
        ({"optimizer": {"type": "ZeroOneAdam"}}, "optimizer 'ZeroOneAdam' has no counterpart"),
        ({"optimizer": {"type": "OneBitAdam"}}, "gradient_clipping has no counterpart under"),
        ({"optimizer": None, "gradient_clipping": 0}, "wrap your own in a"),
        ({"scheduler": {"type": "Warm"}}, "scheduler 'Warm' has no counterpart"),
        ({"scheduler": {"type": "WarmupLR", "params": {"steps": 3}}}, r"unknown keys \['steps'\]"),
        ({"scheduler": {"type": "WarmupDecayLR"}}, r"lacks \['total_num_steps'\]"),
        ({"scheduler": {"type": "OneCycle"}}, "OneCycle moves momentum as well"),
        ({"optimizer": {"type": "Adam", "params": {"rate": 1}}}, r"unknown keys \['rate'\]"),
        ({"optimizer": None}, "gradient_clipping without an optimizer"),
    ],
)
def test_settings_of_deepspeed_that_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        tf.distribute.from_deepspeed({**DEEPSPEED, **change})


def test_what_no_strategy_takes_is_said():
    with pytest.raises(ValueError, match="devices sum for a batch, and does nothing where no rule"):
        STRATEGY(mesh(data=2), "hidden:data", compress="int8")
    with pytest.raises(ValueError, match="is no regular expression of names"):
        STRATEGY(mesh(data=2), "batch:data", offload={"optimizer": "("})
