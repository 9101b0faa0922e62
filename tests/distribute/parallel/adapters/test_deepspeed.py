"""Test translations of real DeepSpeed configurations, and that no key is ignored silently."""

import json
import math
import os

import numpy as np
import pytest

import meshflow as tf

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
    assert found.strategy.options.get_non_defaults() == chosen
    assert found.strategy.batch_dimensions == ("node", "data")
    assert (found.batch_size, found.policy) == (64, "mixed_float16")
    assert found.decided == ("zero_optimization.reduce_bucket_size",)
    assert found.elsewhere == {"steps_per_print": "fit(verbose=)"}
    optimizer = tf.keras.optimizers.get(found.optimizer)
    assert (optimizer.weight_decay, optimizer.beta_1, optimizer.global_clipnorm) == (0.1, 0.8, 0.5)
    assert (optimizer.initial_scale, optimizer.dynamic_growth_steps) == (256.0, 1000)


def test_offloading_and_compression_of_deepspeed(tmp_path):
    disk = {"offload_optimizer": {"device": "nvme", "nvme_path": str(tmp_path)}}
    options = tf.distribute.from_deepspeed({"zero_optimization": disk}).strategy.options
    assert options.offload_folders == {"optimizer": str(tmp_path)}
    # One in the host's memory, the other in files.
    disk["offload_param"] = {"device": "cpu"}
    mixed = tf.distribute.from_deepspeed({"zero_optimization": disk, "aio": {"thread_count": 2}})
    assert mixed.decided == ("aio",)
    assert mixed.strategy.options.get_non_defaults() == {
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
    assert found.strategy.options.get_non_defaults() == {
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
    assert one_bit.strategy.options.get_non_defaults() == {"compress": "1bit"}
    optimizer = tf.keras.optimizers.get(one_bit.optimizer)
    assert type(optimizer) is tf.keras.optimizers.OneBitAdam and optimizer.freeze_step == 7


# Typical configurations: each with its translation for eight (or four) devices.
ZERO_3 = {
    "stage": 3,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "sub_group_size": 1e9,
    "reduce_bucket_size": 5e8,
    "stage3_prefetch_bucket_size": 5e8,
    "stage3_param_persistence_threshold": 1e6,
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": True,
}
HALF = {
    "enabled": True,
    "loss_scale": 0,
    "loss_scale_window": 1000,
    "initial_scale_power": 16,
    "hysteresis": 2,
    "min_loss_scale": 1,
}
OFF = {"enabled": False}
HERE = 4
REAL = {
    "everything off": (
        {
            "train_batch_size": 64,
            **{k: OFF for k in ("amp", "fp16", "bf16", "flops_profiler", "tensorboard")},
            **{k: OFF for k in ("autotuning", "elasticity", "curriculum_learning", "eigenvalue")},
            **{k: OFF for k in ("data_efficiency", "progressive_layer_drop", "hybrid_engine")},
            "sparse_attention": None,
            "zero_optimization": False,
        },
        ({}, 64, "float32", None),
    ),
    "first steps": (
        {
            "train_batch_size": 16,
            "steps_per_print": 2000,
            "optimizer": {
                "type": "Adam",
                "params": {"lr": 1e-3, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7},
            },
            "scheduler": {
                "type": "WarmupLR",
                "params": {
                    "warmup_min_lr": 0,
                    "warmup_max_lr": 1e-3,
                    "warmup_num_steps": 1000,
                },
            },
            "gradient_clipping": 1.0,
            "prescale_gradients": False,
            "fp16": {**HALF, "enabled": False},
            "wall_clock_breakdown": False,
            "zero_optimization": {
                "stage": 0,
                "allgather_partitions": True,
                "reduce_scatter": True,
                "allgather_bucket_size": 5e7,
                "reduce_bucket_size": 5e7,
                "overlap_comm": True,
                "contiguous_gradients": True,
                "cpu_offload": False,
            },
        },
        ({}, 16, "float32", "AdamW"),
    ),
    "two of three sizes say the third": (
        {
            "train_batch_size": 256,
            "train_micro_batch_size_per_gpu": 8,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 1, "round_robin_gradients": True},
        },
        ({"zero": 1, "micro_batches": 8}, 256, "mixed_bfloat16", None),
    ),
    "on the host": (
        {
            "fp16": HALF,
            "zero_optimization": {
                **ZERO_3,
                "offload_optimizer": {"device": "cpu", "pin_memory": True},
                "offload_param": {"device": "cpu", "pin_memory": True},
            },
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.999]}},
            "steps_per_print": 2000,
            "wall_clock_breakdown": True,
        },
        (
            {
                "zero": 3,
                "max_live_parameters": 10**9,
                "prefetch_bucket_size": 500_000_000,
                "offload": (("optimizer", (".*",)), ("parameters", (".*",))),
            },
            None,
            "mixed_float16",
            "LossScaleOptimizerV3",
        ),
    ),
    "its oldest form": (
        {"train_batch_size": 8, "zero_optimization": True, "fp16": {"enabled": True}},
        ({"zero": 1}, 8, "mixed_float16", None),
    ),
    "hierarchical": (
        {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 8,
            "gradient_clipping": 1.0,
            "bf16": {"enabled": True, "immediate_grad_update": True},
            "communication_data_type": "fp32",
            "zero_optimization": {
                **ZERO_3,
                "zero_hpz_partition_size": 2,
                "zero_quantized_gradients": True,
                "zero_quantized_weights": False,
            },
            "optimizer": {"type": "Lion", "params": {"lr": 1e-4, "weight_decay": 0.1}},
            "data_types": {"grad_accum_dtype": "fp32"},
        },
        (
            {
                "zero": 3,
                "zero_over": ("data",),
                "max_live_parameters": 10**9,
                "prefetch_bucket_size": 500_000_000,
                "micro_batches": 8,
                "compress": "int8",
            },
            64,
            "mixed_bfloat16",
            "Lion",
        ),
    ),
    "1-bit": (
        {
            "train_batch_size": 32,
            "optimizer": {
                "type": "OneBitAdam",
                "params": {
                    "lr": 2e-4,
                    "freeze_step": 400,
                    "bias_correction": False,
                    "cuda_aware": False,
                    "comm_backend_name": "nccl",
                },
            },
        },
        ({"compress": "1bit"}, 32, "float32", "OneBitAdam"),
    ),
    "activations on the host, logs": (
        {
            "train_batch_size": 32,
            "activation_checkpointing": {
                "partition_activations": True,
                "cpu_checkpointing": True,
                "contiguous_memory_optimization": False,
                "number_checkpoints": None,
                "synchronize_checkpoint_boundary": False,
                "profile": False,
            },
            "flops_profiler": {"enabled": True, "profile_step": 1, "module_depth": -1},
            "tensorboard": {"enabled": True, "output_path": "logs/", "job_name": "bert"},
            "csv_monitor": {"enabled": True, "output_path": "logs/"},
            "comms_logger": {"enabled": True, "verbose": False, "prof_all": True},
            "checkpoint": {"tag_validation": "Warn", "load_universal": True},
            "aio": {"block_size": 1048576, "queue_depth": 8, "overlap_events": True},
            "dataloader_drop_last": True,
        },
        ({"recompute": "layer", "offload": (("activations", (".*",)),)}, 32, "float32", None),
    ),
    "divided products": (
        {
            "train_batch_size": 32,
            "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
            "tensor_parallel": {"autotp_size": 2, "tp_overlap_comm": True},
            "zero_optimization": {"stage": 2},
            "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "nesterov": True}},
        },
        ({"zero": 2}, 32, "mixed_bfloat16", "SGD"),
    ),
    "stages": (
        {
            "train_batch_size": 64,
            "train_micro_batch_size_per_gpu": 4,
            "pipeline": {"stages": 2, "partition": "best", "activation_checkpoint_interval": 1},
            "optimizer": {"type": "Lamb", "params": {"lr": 11e-3, "bias_correction": True}},
            "compile": {"deepcompile": True},
        },
        (
            {
                "micro_batches": 8,
                "recompute": "layer",
                "pipeline": tf.distribute.Pipeline("stage"),
            },
            64,
            "float32",
            "Lamb",
        ),
    ),
    "as torch has it": (
        {"optimizer": {"type": "Adagrad", "params": {"lr": 0.1, "lr_decay": 0}}},
        ({}, None, "float32", "Adagrad"),
    ),
}


@pytest.fixture
def devices(monkeypatch):
    """Four devices, however many the process has."""
    from meshflow.distribute.parallel.adapters import deepspeed

    kept = deepspeed.list_devices
    monkeypatch.setattr(deepspeed, "list_devices", lambda kind: kept(kind)[:HERE])


@pytest.mark.parametrize("name", REAL)
def test_real_configurations(name, devices):
    config, (options, batch_size, policy, optimizer) = REAL[name]
    found = tf.distribute.from_deepspeed(json.loads(json.dumps(config)))
    assert found.strategy.options.get_non_defaults() == options
    assert (found.batch_size, found.policy) == (batch_size, policy)
    made = None if found.optimizer is None else tf.keras.optimizers.get(found.optimizer)
    assert optimizer == (None if made is None else type(made).__name__)
    if name == "divided products":
        assert dict(
            zip(found.strategy.mesh.dim_names, found.strategy.mesh.shape(), strict=True)
        ) == {
            "data": 2,
            "model": 2,
        }
        assert found.strategy.rules.dimensions("vocab") == ("model",)
        assert found.decided == ("tensor_parallel.tp_overlap_comm",)
    if "logs" in name:
        assert [*found.elsewhere] == [
            *("flops_profiler", "tensorboard", "csv_monitor", "comms_logger", "checkpoint"),
            "dataloader_drop_last",
        ]
        assert found.elsewhere["tensorboard"] == "tf.keras.callbacks.TensorBoard"
        assert "aio" in found.decided


# Missing settings have DeepSpeed's defaults, not those of Keras.
DEFAULTS = {
    "Adam": {"learning_rate": 1e-3, "epsilon": 1e-8, "weight_decay": None},
    "AdamW": {"learning_rate": 1e-3, "epsilon": 1e-8, "weight_decay": 0.0},
    "SGD": {"learning_rate": 1e-3, "momentum": 0.0},
    "Adagrad": {"learning_rate": 1e-2, "epsilon": 1e-10, "initial_accumulator_value": 0.0},
    "Lion": {"learning_rate": 1e-3, "beta_2": 0.99},
    "Lamb": {"learning_rate": 1e-3, "epsilon": 1e-8},
    "OneBitAdam": {"learning_rate": 1e-3, "epsilon": 1e-8, "freeze_step": 100_000},
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_optimizer_defaults(kind):
    made = tf.keras.optimizers.get(
        tf.distribute.from_deepspeed({"optimizer": {"type": kind}}).optimizer
    )
    found = made.get_config()
    for name, value in DEFAULTS[kind].items():
        assert found[name] == (None if value is None else pytest.approx(value)), name


def test_kinds_of_adam():
    def of(kind, **params):
        config = {"optimizer": {"type": kind, "params": params}}
        made = tf.keras.optimizers.get(tf.distribute.from_deepspeed(config).optimizer)
        return type(made).__name__, made.weight_decay

    assert of("Adam", weight_decay=0.1) == ("AdamW", 0.1)
    assert of("Adam", torch_adam=True) == ("AdamW", 0.01)
    assert of("Adam", adam_w_mode=False) == ("Adam", None)
    assert of("AdamW", adam_w_mode=False, weight_decay=0.1) == ("AdamW", 0.1)


def test_files_with_comments(tmp_path):
    path, folder = tmp_path / "ds.json", f"{tmp_path}//#scratch"
    os.mkdir(folder)
    path.write_text(
        """{
  // Rows of a step: "train_batch_size": 8.
  "train_batch_size": 16, # of all devices
  /* Where states lie, // and what with. */
  "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme", "nvme_path": "FOLDER",},},
}""".replace("FOLDER", folder)
    )
    found = tf.distribute.from_deepspeed(path)
    assert found.batch_size == 16
    assert found.strategy.options.offload_folders == {"optimizer": folder}
    for text, message in (
        ("{", "ds.json' is not valid JSON: .* line 1"),
        ("[1]", "must contain one JSON object, got list"),
        ('{"bf16": {}, "bf16": {}}', r"the keys \['bf16'\] occur twice"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            tf.distribute.from_deepspeed(path)
    with pytest.raises(OSError, match=r"missing\.json"):
        tf.distribute.from_deepspeed(tmp_path / "missing.json")


def test_unspecified_settings_are_named():
    """As configurations of Hugging Face's trainer are; the compiler's own may be."""
    config = {
        "bf16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
    }
    left = ["bf16.enabled", "optimizer.params.lr", "optimizer.params.betas"]
    left += ["scheduler.params.warmup_max_lr", "train_batch_size", "gradient_clipping"]
    with pytest.raises(ValueError, match='are "auto"') as caught:
        tf.distribute.from_deepspeed(config)
    assert str(left) in str(caught.value)


REFUSED = {
    "amp": {"enabled": True, "opt_level": "O1"},
    "autotuning": {"enabled": True},
    "elasticity": {"enabled": True, "max_train_batch_size": 2000},
    "expert_parallel": {"enabled": True, "autoep_size": 4},
    "hybrid_engine": {"enabled": True},
    "sparse_attention": {"mode": "fixed", "block": 16},
    "curriculum_learning": {"enabled": True, "curriculum_type": "seqlen"},
    "data_efficiency": {"enabled": True, "seed": 1234},
    "progressive_layer_drop": {"enabled": True, "theta": 0.5},
    "eigenvalue": {"enabled": True},
    "quantize_training": {"enabled": True},
    "compression_training": {"weight_quantization": {}},
    "gradient_allreduce_op": "sum",
    "managed_gradient_accumulation": False,
    "zero_optimization": {"zero_quantized_weights": True, "zenflow": {"topk_ratio": 0.05}},
    "bf16": {"enabled": True, "bf16_optimizer_states": True},
    "fp16": {"enabled": True, "fp16_master_weights_and_grads": True},
    "tensor_parallel": {"autotp_size": 2, "preset_model": "llama"},
    "compile": {"deepcompile": True, "passes": ["autosp"]},
}


@pytest.mark.parametrize("key", REFUSED)
def test_unsupported_settings_are_named(key):
    with pytest.raises(ValueError, match=rf"asked for: {key}[. ].*Take it out of the conf"):
        tf.distribute.from_deepspeed({key: REFUSED[key]})


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
# Indexed by the number of the update, which precedes the scheduler's step of the same number.
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
    rate = made._learning_rate
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
        (
            {"zero_optimization": {"offload_param": {"path": 1}}},
            r"'zero_optimization.offload_param.path'",
        ),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}},
            "ratio .It takes a share",
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
        (
            {"optimizer": {"type": "Lamb", "params": {"max_coeff": 0.3}}},
            r"\['max_coeff'\] bound Lamb",
        ),
        ({"optimizer": None}, "gradient_clipping without an optimizer"),
    ],
)
def test_settings_of_deepspeed_that_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        tf.distribute.from_deepspeed({**DEEPSPEED, **change})


AT_LEAST_0 = "must be a number of at least 0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"zero_optimization": 3},
            r"zero_optimization must be an object with keys such as 'stage'",
        ),
        (
            {"optimizer": "AdamW"},
            r"optimizer must be an object with keys such as 'type', got 'AdamW'",
        ),
        (
            {"bfloat16": True, "fp16": None},
            "bfloat16 must be an object with keys such as 'enabled'",
        ),
        ({"pipeline": 2}, "pipeline must be an object with keys such as 'stages', got 2"),
        ({"scheduler": []}, r"scheduler must be an object with keys such as 'type', got \[\]"),
        ({"zero_optimization": {"offload_optimizer": "cpu"}}, "keys such as 'device', got 'cpu'"),
        ({"fp16": {"enabled": "true"}}, "fp16.enabled must be true or false, got 'true'"),
        ({"fp16": {"enabled": True, "loss_scale": "dynamic"}}, f"fp16.loss_scale {AT_LEAST_0}"),
        (
            {"fp16": {"enabled": True, "initial_scale_power": "16"}},
            "fp16.initial_scale_power must be an integer of at least 0, got '16'",
        ),
        (
            {"fp16": {"enabled": True, "loss_scale_window": 1.5}},
            "fp16.loss_scale_window must be an integer of at least 1, got 1.5",
        ),
        ({"gradient_clipping": "1.0"}, f"gradient_clipping {AT_LEAST_0}, got '1.0'"),
        ({"gradient_clipping": -1}, f"gradient_clipping {AT_LEAST_0}, got -1"),
        ({"train_batch_size": float("nan")}, "train_batch_size must be an integer of at least 1"),
        (
            {"zero_optimization": {"stage": 3, "max_live_parameters": float("inf")}},
            "stage3_max_live_parameters must be an integer of at least 0, got inf",
        ),
        (
            {"zero_optimization": {"max_live_parameters": 1, "stage3_max_live_parameters": 2}},
            r"\['max_live_parameters'\] with and without the prefix",
        ),
        # YAML reads 1e-3 as a string.
        (
            {"optimizer": {"type": "Adam", "params": {"lr": "1e-3", "betas": 0.9}}},
            f"params.lr {AT_LEAST_0}, got '1e-3'; optimizer.params.betas must be a list of two numbers",
        ),
        ({"optimizer": {"type": "Adam", "params": [1]}}, r"params must be an object .* got \[1\]"),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "100"}}},
            f"scheduler.params.warmup_num_steps {AT_LEAST_0}, got '100'",
        ),
        (
            {"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": 3}}},
            "offload_param.nvme_path must be a string, got 3",
        ),
        ({3: 4}, r"\['3'\] have no counterpart here"),
    ],
)
def test_values_of_wrong_types_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        tf.distribute.from_deepspeed({**DEEPSPEED, **change})


def test_short_and_null_keys():
    zero = {"stage": 3, "max_live_parameters": 7, "gather_16bit_weights_on_model_save": True}
    params = {"lr": None, "weight_decay": None}
    config = {"zero_optimization": zero, "optimizer": {"type": "AdamW", "params": params}}
    found = tf.distribute.from_deepspeed(config)
    assert found.strategy.options.max_live_parameters == 7
    assert found.decided == ("zero_optimization.stage3_gather_16bit_weights_on_model_save",)
    assert found.optimizer["config"]["learning_rate"] == 1e-3
    for wrong in (None, 3, [1]):
        with pytest.raises(
            ValueError, match="config must be a dictionary or the path of a JSON file"
        ):
            tf.distribute.from_deepspeed(wrong)
