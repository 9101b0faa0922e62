"""DeepSpeed's configuration file as a `MeshStrategy`, and what `compile` and `fit` are to be given."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from meshflow.core.runtime.devices import devices_of, main_kind
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.parallel.adapters.deepspeed_schedules import schedule_of
from meshflow.distribute.parallel.adapters.mesh_tensorflow import mesh_of_sizes
from meshflow.distribute.parallel.strategy import MeshStrategy
from meshflow.placement.mesh import Mesh

__all__ = ["DeepSpeedSettings", "from_deepspeed"]

# What the compiler decides, or has no counterpart where one program is compiled for all devices.
_DECIDED = {
    "": "steps_per_print wall_clock_breakdown dump_state prescale_gradients gradient_predivide_factor "
    "sparse_gradients disable_allgather communication_data_type zero_allow_untested_optimizer "
    "zero_force_ds_cpu_optimizer aio memory_breakdown tensorboard wandb csv_monitor flops_profiler comms_logger data_types",
    "zero_optimization": "allgather_partitions allgather_bucket_size overlap_comm reduce_scatter reduce_bucket_size "
    "contiguous_gradients round_robin_gradients stage3_prefetch_bucket_size stage3_max_live_parameters "
    "stage3_max_reuse_distance stage3_param_persistence_threshold stage3_gather_16bit_weights_on_model_save "
    "stage3_gather_fp16_weights_on_model_save sub_group_size ignore_unused_parameters load_from_fp32_weights "
    "elastic_checkpoint zero_quantized_nontrainable_weights memory_efficient_linear",
    "offload_optimizer": "buffer_count pin_memory pipeline_read pipeline_write fast_init",
    "offload_param": "buffer_count buffer_size max_in_cpu pin_memory",
    "bf16": "",
    "fp16": "auto_cast hysteresis consecutive_hysteresis min_loss_scale",
    "activation_checkpointing": "contiguous_memory_optimization number_checkpoints synchronize_checkpoint_boundary "
    "profile",
}
_READ = {
    "": "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping "
    "zero_optimization bf16 bfloat16 fp16 activation_checkpointing optimizer scheduler",
    "zero_optimization": "stage zero_hpz_partition_size mics_shard_size zero_quantized_gradients offload_optimizer "
    "offload_param cpu_offload",
    "offload_optimizer": "device nvme_path ratio",
    "offload_param": "device nvme_path",
    "bf16": "enabled",
    "fp16": "enabled loss_scale initial_scale_power loss_scale_window",
    "activation_checkpointing": "partition_activations cpu_checkpointing",
}
# Its optimizers by our names, and their arguments by ours; weight decay stands apart from the gradient.
_OPTIMIZERS = {
    "adam": "Adam",
    "adamw": "AdamW",
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "lion": "Lion",
    "lamb": "Lamb",
    "onebitadam": "OneBitAdam",
}
_WITH_BETAS = ("Adam", "AdamW", "Lamb", "Lion", "OneBitAdam")
_ARGUMENTS = {
    "lr": "learning_rate",
    "eps": "epsilon",
    "weight_decay": "weight_decay",
    "momentum": "momentum",
    "freeze_step": "freeze_step",
}


@dataclasses.dataclass(frozen=True)
class DeepSpeedSettings:
    """What a DeepSpeed configuration says, in the words of scripts.

    Attributes:
      strategy: the `MeshStrategy`.
      optimizer: what `compile(optimizer=)` takes: a name and arguments, with the schedule of its learning rate and,
        with fp16, the loss's scale; None when the file has none.
      batch_size: what `fit(batch_size=)` takes: the rows of a step on all devices; None when the file does not say.
      policy: what `tf.keras.mixed_precision.set_global_policy` takes.
      decided: the keys that the compiler decides about.
    """

    strategy: MeshStrategy
    optimizer: dict[str, Any] | None
    batch_size: int | None
    policy: str
    decided: tuple[str, ...]


def from_deepspeed(
    config: str | os.PathLike[str] | Mapping[str, Any],
    mesh: Mesh | None = None,
    rules: str = "batch:data",
) -> DeepSpeedSettings:
    """A strategy, and what else scripts need, of a DeepSpeed configuration.

    Args:
      config: the path of the JSON file, or what is in it.
      mesh: the mesh; default all devices along "data", or "node" and "data" with `zero_hpz_partition_size`.
      rules: the rules of the `MeshStrategy`.

    Returns:
      A `DeepSpeedSettings`.

    Raises:
      ValueError: for unknown keys, values that contradict each other, and what has no counterpart here.

    Example:
      >>> import meshflow as tf
      >>> settings = tf.distribute.from_deepspeed({
      ...     "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
      ...     "zero_optimization": {"stage": 3, "overlap_comm": True}, "gradient_clipping": 1.0,
      ...     "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}}, tf.experimental.dtensor.create_mesh({"data": 4}))
      >>> settings.batch_size, settings.policy, settings.optimizer["config"]["global_clipnorm"], settings.decided
      (64, 'mixed_bfloat16', 1.0, ('zero_optimization.overlap_comm',))
    """
    if isinstance(config, Mapping):
        given = config
    else:
        with open(config, encoding="utf-8") as file:
            given = json.load(file)
    return _settings(given, mesh, rules)


def _settings(config: Mapping[str, Any], mesh: Mesh | None, rules: str) -> DeepSpeedSettings:
    decided = _checked("", config)
    zero = _part(config, "zero_optimization", decided)
    checkpointing = _part(config, "activation_checkpointing", decided)
    stage = int(zero.get("stage", 0))
    choices: dict[str, Any] = {"zero": stage}
    inner = _inner(zero)
    if mesh is None:
        count = len(devices_of(main_kind()))
        if inner > 1 and count % inner:
            raise InvalidValueError(
                f"zero_hpz_partition_size={inner} does not divide the {count} devices."
            )
        mesh = mesh_of_sizes(
            {"node": count // inner, "data": inner} if inner > 1 else {"data": count}
        )
    if inner > 1:
        rules = rules.replace("batch:data", "batch:node+data")
        choices["zero_over"] = "data"
    if checkpointing.get("partition_activations") or checkpointing.get("cpu_checkpointing"):
        choices["recompute"] = "layer"
    choices |= _offload(zero, decided)
    if checkpointing.get("cpu_checkpointing"):
        choices["offload"] = {**choices.get("offload", {}), "activations": ".*"}
    if str((config.get("optimizer") or {}).get("type")).lower() == "onebitadam":
        choices["compress"] = "1bit"
    elif zero.get("zero_quantized_gradients"):
        choices["compress"] = "int8"
    accumulated = int(config.get("gradient_accumulation_steps", 1))
    strategy = MeshStrategy(mesh, rules, micro_batches=accumulated, **choices)
    return DeepSpeedSettings(
        strategy,
        _with_loss_scale(_optimizer(config), config.get("fp16") or {}),
        _batch_size(config, accumulated, strategy),
        _policy(config, decided),
        tuple(decided),
    )


def _checked(name: str, part: Mapping[str, Any]) -> list[str]:
    """The keys of a part that the compiler decides about."""
    read, decided = _READ[name].split(), _DECIDED[name].split()
    path = f"{name}." if name else ""
    unknown = [f"{path}{key}" for key in part if key not in (*read, *decided)]
    if unknown:
        raise InvalidValueError(
            f"from_deepspeed: {unknown} have no counterpart here{_meant(path, unknown, (*read, *decided))} Take them out "
            "of the configuration, and say what they are to do by the options of a MeshStrategy, by compile or by fit."
        )
    left_open = [f"{path}{key}" for key, value in part.items() if key in read and value == "auto"]
    if left_open:
        raise InvalidValueError(
            f'from_deepspeed: {left_open} are "auto", which another library\'s trainer fills in. Give their values, or '
            "leave the keys out."
        )
    return [f"{path}{key}" for key in part if key in decided]


def _meant(path: str, unknown: Sequence[str], known: Sequence[str]) -> str:
    """The end of a sentence that names what unknown keys may have been meant to be."""
    for key in unknown:
        close = difflib.get_close_matches(key.removeprefix(path), known, n=1)
        if close:
            return f" (did you mean {path + close[0]!r}?)."
    return "."


def _part(config: Mapping[str, Any], name: str, decided: list[str]) -> Mapping[str, Any]:
    part = config.get(name) or {}
    decided += _checked(name, part)
    return part


def _inner(zero: Mapping[str, Any]) -> int:
    """Over how many neighbouring devices states are split: all with 1."""
    hierarchical = int(zero.get("zero_hpz_partition_size", 1))
    mics = int(zero.get("mics_shard_size", -1))
    if mics > 0 and hierarchical > 1 and mics != hierarchical:
        raise InvalidValueError(
            f"from_deepspeed: zero_hpz_partition_size={hierarchical} and mics_shard_size={mics} both say over how "
            "many devices states are split; give one."
        )
    return mics if mics > 0 else hierarchical


def _offload(zero: Mapping[str, Any], decided: list[str]) -> dict[str, Any]:
    """What lies in the host's memory or in files, as options."""
    found = {"optimizer": ".*"} if zero.get("cpu_offload") else {}
    folders = {}
    for key, ours in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        part = zero.get(key) or {}
        decided += [f"zero_optimization.{name}" for name in _checked(key, part)]
        device = part.get("device", "none")
        if device not in ("none", "cpu", "nvme") or (
            device == "nvme" and not part.get("nvme_path")
        ):
            raise InvalidValueError(
                f"from_deepspeed: {key}.device={device!r} must be 'none', 'cpu', the host's memory, or 'nvme' with an "
                "nvme_path."
            )
        if part.get("ratio", 1.0) != 1.0:
            raise InvalidValueError(
                f"from_deepspeed: {key}.ratio={part['ratio']} takes a share of the states. Here they are chosen by "
                "name: MeshStrategy(offload={'optimizer': pattern})."
            )
        if device != "none":
            found[ours] = ".*"
        if device == "nvme":
            folders[ours] = part["nvme_path"]
    choices: dict[str, Any] = {"offload": found} if found else {}
    return choices | ({"offload_to": folders} if folders else {})


def _batch_size(config: Mapping[str, Any], accumulated: int, strategy: MeshStrategy) -> int | None:
    devices = 1
    for name in strategy.batch_dimensions:
        devices *= strategy.mesh.dim_size(name)
    whole, micro = config.get("train_batch_size"), config.get("train_micro_batch_size_per_gpu")
    if micro is None:
        return whole
    found = int(micro) * accumulated * devices
    if whole not in (None, found):
        raise InvalidValueError(
            f"from_deepspeed: train_batch_size={whole} is not train_micro_batch_size_per_gpu={micro} x "
            f"gradient_accumulation_steps={accumulated} x {devices} devices = {found}."
        )
    return found


def _policy(config: Mapping[str, Any], decided: list[str]) -> str:
    half = _part(config, "fp16", decided)
    brain = config.get("bf16") or config.get("bfloat16") or {}
    decided += _checked("bf16", brain)
    if half.get("enabled") and brain.get("enabled"):
        raise InvalidValueError("from_deepspeed: fp16 and bf16 are both enabled; choose one.")
    return (
        "mixed_float16"
        if half.get("enabled")
        else "mixed_bfloat16"
        if brain.get("enabled")
        else "float32"
    )


def _with_loss_scale(
    optimizer: dict[str, Any] | None, half: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The optimizer's configuration, around it that of the loss's scale where there is one."""
    if not half.get("enabled"):
        return optimizer
    if optimizer is None:
        said = [
            k for k in ("loss_scale", "initial_scale_power", "loss_scale_window") if half.get(k)
        ]
        if said:
            raise InvalidValueError(
                f"from_deepspeed: fp16 has {said}, and the configuration no optimizer: wrap your own in a "
                "tf.keras.mixed_precision.LossScaleOptimizer."
            )
        return None
    fixed = float(half.get("loss_scale") or 0.0)
    scale: dict[str, Any] = (
        {"dynamic": False, "initial_scale": fixed}
        if fixed
        else {
            "initial_scale": 2.0 ** int(half.get("initial_scale_power", 16)),
            "dynamic_growth_steps": int(half.get("loss_scale_window", 1000)),
        }
    )
    return {"class_name": "LossScaleOptimizer", "config": {"inner_optimizer": optimizer, **scale}}


def _optimizer(config: Mapping[str, Any]) -> dict[str, Any] | None:
    given = config.get("optimizer")
    clip = float(config.get("gradient_clipping", 0.0))
    if given is None:
        if clip:
            raise InvalidValueError(
                "from_deepspeed: gradient_clipping without an optimizer in the configuration: give your own "
                f"global_clipnorm={clip}."
            )
        if config.get("scheduler"):
            raise InvalidValueError(
                "from_deepspeed: a scheduler without an optimizer in the configuration: give your own a schedule of "
                "tf.keras.optimizers.schedules as learning rate."
            )
        return None
    kind = _OPTIMIZERS.get(str(given.get("type")).lower())
    if kind is None:
        raise InvalidValueError(
            f"from_deepspeed: optimizer {given.get('type')!r} has no counterpart; known are {sorted(_OPTIMIZERS)}."
        )
    parameters = dict(given.get("params") or {})
    arguments: dict[str, Any] = {}
    if "betas" in parameters:
        arguments["beta_1"], arguments["beta_2"] = parameters.pop("betas")
    if kind == "Adam" and parameters.get("weight_decay") and parameters.pop("adam_w_mode", True):
        kind = "AdamW"
    parameters.pop("adam_w_mode", None)
    for ours in ("torch_adam", *(("cuda_aware", "comm_backend_name") * (kind == "OneBitAdam"))):
        parameters.pop(ours, None)
    unknown = sorted(set(parameters) - set(_ARGUMENTS))
    if unknown:
        raise InvalidValueError(f"from_deepspeed: optimizer.params has unknown keys {unknown}.")
    if clip and kind == "OneBitAdam":
        raise InvalidValueError(
            "from_deepspeed: gradient_clipping has no counterpart under OneBitAdam, whose gradients nobody knows."
        )
    arguments |= {_ARGUMENTS[key]: value for key, value in parameters.items()}
    if config.get("scheduler"):
        rate = schedule_of(config["scheduler"], arguments.get("learning_rate"), kind in _WITH_BETAS)
        arguments["learning_rate"] = rate
    if clip:
        arguments["global_clipnorm"] = clip
    # PyTorch's Adagrad adds epsilon to the root, as TensorFlow's did until 2.10.
    arguments["is_legacy_optimizer"] = kind == "Adagrad"
    return {"class_name": kind, "config": {"name": kind, **arguments}}
