"""Classification of the keys of a DeepSpeed configuration.

Every known key is supported, decided by the XLA compiler, replaced by another feature of Meshflow,
or unsupported. An unsupported key is an error only if its value enables the feature.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
from collections.abc import Iterator, Mapping
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.environment.types import Json

# Supported keys by section. A section is identified by its path.
_SUPPORTED = {
    "": "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping "
    "zero_optimization bf16 bfloat16 fp16 torch_autocast activation_checkpointing optimizer scheduler tensor_parallel "
    "pipeline compile",
    "zero_optimization": "stage stage3_max_live_parameters stage3_prefetch_bucket_size zero_hpz_partition_size "
    "mics_shard_size zero_quantized_gradients offload_optimizer offload_param cpu_offload cpu_offload_param",
    "zero_optimization.offload_optimizer": "device nvme_path",
    "zero_optimization.offload_param": "device nvme_path",
    "bf16": "enabled",
    "fp16": "enabled loss_scale initial_scale_power loss_scale_window",
    "torch_autocast": "enabled dtype",
    "activation_checkpointing": "partition_activations cpu_checkpointing",
    "tensor_parallel": "autotp_size",
    "pipeline": "stages activation_checkpoint_interval",
    "optimizer": "type params",
    "scheduler": "type params",
    "compile": "",
}
# Keys without effect: the XLA compiler makes these decisions, or they have no meaning in a single
# program for all devices.
_COMPILER_DECIDED = {
    "": "dump_state prescale_gradients gradient_predivide_factor sparse_gradients disable_allgather "
    "communication_data_type seq_parallel_comm_data_type zero_allow_untested_optimizer zero_force_ds_cpu_optimizer aio "
    "data_types vocabulary_size graph_harvesting use_data_before_expert_parallelism disable_python_gc",
    "zero_optimization": "allgather_partitions allgather_bucket_size overlap_comm reduce_scatter reduce_bucket_size "
    "contiguous_gradients round_robin_gradients "
    "stage3_max_reuse_distance stage3_param_persistence_threshold stage3_model_persistence_threshold "
    "stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save sub_group_size "
    "stage3_module_granularity_threshold stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential "
    "stage3_partition_stream_chunk_size use_multi_rank_bucket_allreduce ignore_unused_parameters load_from_fp32_weights "
    "elastic_checkpoint memory_efficient_linear compute_grad_norm parameter_alignment log_trace_cache_warnings "
    "cpu_offload_use_pin_memory legacy_stage1 mics_hierarchical_params_gather pipeline_loading_checkpoint "
    "override_module_apply enable_sanity_checks leaf_module",
    "zero_optimization.offload_optimizer": "buffer_count pin_memory pipeline pipeline_read pipeline_write fast_init",
    "zero_optimization.offload_param": "buffer_count buffer_size max_in_cpu pin_memory",
    "bf16": "immediate_grad_update check_grad_overflow",
    "fp16": "auto_cast fused_mode",
    "torch_autocast": "lower_precision_safe_modules",
    "activation_checkpointing": "contiguous_memory_optimization number_checkpoints synchronize_checkpoint_boundary "
    "profile",
    "tensor_parallel": "tp_overlap_comm vocab_parallel_lm_head",
    "pipeline": "partition seed_layers",
    "optimizer": "legacy_fusion",
    "compile": "deepcompile enabled backend kwargs",
}
# Keys of features that are no part of the strategy, with their replacements.
_REPLACEMENTS = {
    "steps_per_print": "fit(verbose=)",
    "wall_clock_breakdown": "meshflow profile",
    "flops_profiler": "meshflow profile",
    "comms_logger": "tf.experimental.dtensor.explain",
    "memory_breakdown": "tf.experimental.dtensor.explain(...).memory",
    "tensorboard": "tf.keras.callbacks.TensorBoard",
    "csv_monitor": "tf.keras.callbacks.CSVLogger",
    "wandb": "a callback of fit",
    "comet": "a callback of fit",
    "checkpoint": "tf.keras.callbacks.BackupAndRestore; its checkpoints can be restored on any number of devices",
    "nebula": "tf.keras.callbacks.BackupAndRestore",
    "dataloader_drop_last": "Dataset.batch(drop_remainder=True)",
    "fp16.hysteresis": "LossScaleOptimizer, which halves its scale at the first overflow",
    "fp16.consecutive_hysteresis": "LossScaleOptimizer, which halves its scale at the first overflow",
    "fp16.min_loss_scale": "LossScaleOptimizer, which keeps its scale at 1 or above",
}
# Unsupported keys by path: advice, and the values that do not request the feature if these differ
# from the usual "off" values.
_UNSUPPORTED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "amp": ('Write "fp16": {"enabled": true}.', ()),
    "autotuning": ("Use meshflow plan, or tf.distribute.plan.", ()),
    "elasticity": (
        "A checkpoint can be restored on any number of devices, and meshflow launch restarts workers.",
        (),
    ),
    "expert_parallel": ('Use tf.keras.layers.MixtureOfExperts and the rule "experts:data".', ()),
    "hybrid_engine": ("Call the model; training and prediction use the same one.", ()),
    "sparse_attention": (
        "Give attention layers a mask, or split sequences by MeshStrategy(sequence=).",
        (),
    ),
    "curriculum_learning": ("Order the examples in the tf.data.Dataset.", ()),
    "data_efficiency": ("Order the examples in the tf.data.Dataset.", ()),
    "progressive_layer_drop": ("Drop layers in the model's call.", ()),
    "eigenvalue": ("Compute it in a callback.", ()),
    "quantize_training": ("Use the policy mixed_float8.", ()),
    "compression_training": ("Compress the model when it is exported.", ()),
    "gradient_allreduce_op": (
        'Set reduction="sum" in the loss to sum gradients.',
        ("mean",),
    ),
    "managed_gradient_accumulation": ("A step always runs all of its micro-batches.", (True,)),
    "zero_optimization.zero_quantized_weights": (
        "Weights are sent unquantized; gradients can be sent in 8 bits (zero_quantized_gradients).",
        (),
    ),
    "zero_optimization.zero_quantized_nontrainable_weights": ("Weights are not quantized.", ()),
    "zero_optimization.zeropp_loco_param": (
        "The rounding error is added to the next step's gradients, without decay.",
        (),
    ),
    "zero_optimization.zenflow": ("Use offload_optimizer.", ()),
    "zero_optimization.save_muon_momentum_buffer_in_memory": ("Muon is not available.", ()),
    "zero_optimization.offload_optimizer.ratio": (
        "It takes a share of the states. Select states by name: MeshStrategy(offload={'optimizer': pattern}).",
        (1, 1.0),
    ),
    "zero_optimization.offload_optimizer.super_offload": ('Use only "device": "cpu".', ()),
    "bf16.bf16_master_weights_and_grads": ("Variables of a mixed policy are float32.", ()),
    "bf16.bf16_optimizer_states": ("Slots are float32.", ()),
    "fp16.fp16_master_weights_and_grads": ("Variables of a mixed policy are float32.", ()),
    "tensor_parallel.preset_model": ("Layers name their axes; split them by rules=.", ()),
    "tensor_parallel.partition_config": ("Split named axes by rules=, or pass a LayoutMap.", ()),
    "compile.passes": ('Use MeshStrategy(sequence="ulysses"), or rules= for products.', ([],)),
    "compile.offload_activation": (
        'Use activation_checkpointing: {"cpu_checkpointing": true}.',
        (),
    ),
    "compile.offload_activation_pin_memory": ("offload_activation is not available.", (True,)),
}


# Expected values by section and key, apart from integers, which the translation checks, and sections.
_VALUE_KINDS = {
    "true or false": {
        "bf16": "enabled",
        "fp16": "enabled",
        "torch_autocast": "enabled",
        "activation_checkpointing": "partition_activations cpu_checkpointing",
        "zero_optimization": "zero_quantized_gradients cpu_offload cpu_offload_param",
        "optimizer.params": "adam_w_mode torch_adam amsgrad nesterov",
        "scheduler.params": "cycle_momentum lr_range_test_staircase",
    },
    "a number of at least 0": {
        "": "gradient_clipping",
        "fp16": "loss_scale",
        "optimizer.params": "lr eps weight_decay momentum initial_accumulator_value freeze_step",
        "scheduler.params": "warmup_min_lr warmup_max_lr warmup_num_steps total_num_steps warmup_min_ratio "
        "cos_min_ratio cycle_min_lr cycle_max_lr cycle_first_step_size cycle_second_step_size "
        "cycle_first_stair_count cycle_second_stair_count decay_step_size decay_lr_rate lr_range_test_min_lr "
        "lr_range_test_step_size lr_range_test_step_rate",
    },
    "a string": {
        "optimizer": "type",
        "scheduler": "type",
        "zero_optimization.offload_optimizer": "nvme_path",
        "zero_optimization.offload_param": "nvme_path",
    },
    "a list of two numbers": {"optimizer.params": "betas"},
}


@dataclasses.dataclass(frozen=True)
class ClassifiedKeys:
    """Keys of a configuration that have no direct effect.

    Attributes:
      decided: Keys that the XLA compiler decides about.
      elsewhere: Enabled keys that are no part of the strategy, with their replacements.
    """

    decided: tuple[str, ...]
    elsewhere: dict[str, str]


def classify_keys(config: Mapping[str, Any]) -> ClassifiedKeys:
    """Classify all keys of a configuration.

    Args:
      config: The configuration.

    Returns:
      The keys that have no direct effect.

    Raises:
      ValueError: If a key is unknown, if an unsupported feature is enabled, if a value is "auto", or
        if it has a wrong type. The message lists all such keys.
    """
    decided, replaced, unknown, unsupported, automatic, wrong = [], {}, [], [], [], []
    for part, key, value in _iterate_keys(config):
        path = f"{part}.{key}" if part else str(key)
        kind = _KEY_CLASSES[part].get(key) if part in _KEY_CLASSES else "read"
        if kind is None:
            unknown.append((part, path))
        elif kind == "refused":
            advice, harmless = _UNSUPPORTED[path]
            if value is not None and value not in harmless if harmless else _is_enabled(value):
                unsupported.append(f"{path} ({advice})")
        elif kind == "elsewhere":
            if _is_enabled(value):
                replaced[path] = _REPLACEMENTS[path]
        elif kind == "decided":
            decided.append(path)
        elif value == "auto":
            automatic.append(path)
        elif (expected := _find_expected_value(path, value)) is not None:
            wrong.append(f"{path} must be {expected}, got {value!r}")
    if unknown:
        raise InvalidValueError(
            f"from_deepspeed: {[path for _, path in unknown]} have no counterpart here{_suggest_key(*unknown[0])} Take them "
            "out of the configuration, and use the options of MeshStrategy, compile or fit instead."
        )
    if unsupported:
        raise InvalidValueError(
            f"from_deepspeed: not available here, and asked for: {', '.join(unsupported)} Take it out of the configuration."
        )
    if automatic:
        raise InvalidValueError(
            f'from_deepspeed: {automatic} are "auto", which only the trainer of another library replaces. Write their '
            "values, or leave the keys out."
        )
    if wrong:
        raise InvalidValueError(f"from_deepspeed: {'; '.join(wrong)}.")
    return ClassifiedKeys(tuple(decided), replaced)


def expand_short_keys(zero: Mapping[str, Any]) -> dict[str, Any]:
    """Add the prefix "stage3_" to keys of "zero_optimization" that DeepSpeed also accepts without it.

    Args:
      zero: The section "zero_optimization".

    Returns:
      The section with full keys.

    Raises:
      ValueError: If both forms of a key occur.
    """
    known = _KEY_CLASSES["zero_optimization"]
    keys = {key: f"stage3_{key}" if f"stage3_{key}" in known else key for key in zero}
    twice = [key for key, full in keys.items() if key != full and full in zero]
    if twice:
        raise InvalidValueError(
            f"from_deepspeed: zero_optimization has {twice} with and without the prefix 'stage3_'; write each key once."
        )
    return {keys[key]: value for key, value in zero.items()}


def _find_expected_value(path: str, value: Json) -> str | None:
    """Return the description of the expected value, or None if `value` is of the right type."""
    if value is None:
        return None
    names = _SECTION_KEYS.get("bf16" if path == "bfloat16" else path)
    if names is not None:
        if isinstance(value, Mapping) or value is False:
            return None
        return f"an object{f' with keys such as {names[0]!r}' if names else ''}"
    expected = _EXPECTED_VALUES.get(path)
    return None if expected is None or _has_kind(value, expected) else expected


def _has_kind(value: Json, kind: str) -> bool:
    if kind == "true or false":
        return isinstance(value, bool)
    if kind == "a string":
        return isinstance(value, str)
    if kind == "a number of at least 0":
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        return is_number and 0 <= value < math.inf
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    return is_pair and all(_has_kind(one, "a number of at least 0") for one in value)


def _build_key_classes() -> dict[str, dict[str, str]]:
    """Map every known key of every section to its class."""
    classes: dict[str, dict[str, str]] = {part: {} for part in _SUPPORTED}
    for kind, table in (("read", _SUPPORTED), ("decided", _COMPILER_DECIDED)):
        for part, keys in table.items():
            classes[part] |= dict.fromkeys(keys.split(), kind)
    for kind, paths in (("elsewhere", _REPLACEMENTS), ("refused", _UNSUPPORTED)):
        for path in paths:
            part, _, key = path.rpartition(".")
            classes[part][key] = kind
    return classes


_KEY_CLASSES = _build_key_classes()
# Supported keys of each section; the parameters of optimizers and schedulers depend on their type.
_SECTION_KEYS = {
    **{section: keys.split() for section, keys in _SUPPORTED.items() if section},
    **{"optimizer.params": ["lr"], "scheduler.params": []},
}
_EXPECTED_VALUES = {
    f"{section}.{key}" if section else key: kind
    for kind, sections in _VALUE_KINDS.items()
    for section, keys in sections.items()
    for key in keys.split()
}


def _iterate_keys(
    config: Mapping[str, Json], section: str = "", off: bool = False
) -> Iterator[tuple[str, str, Any]]:
    """Yield (section, key, value) of all keys; values in a disabled section are None."""
    for key, value in config.items():
        yield section, key, None if off else value
        path = (
            "bf16" if key == "bfloat16" and not section else f"{section}.{key}" if section else key
        )
        # The arguments of optimizers and schedulers are visited only to find "auto".
        if isinstance(value, Mapping) and (path in _KEY_CLASSES or key == "params"):
            yield from _iterate_keys(value, path, off or not _is_enabled(value))


def _is_enabled(value: Json) -> bool:
    """Check whether a value enables a feature."""
    if isinstance(value, Mapping):
        return bool(value) and bool(value.get("enabled", True))
    return value is not None and value is not False


def _suggest_key(section: str, path: str) -> str:
    """Return the end of an error sentence, with a similar known key if there is one."""
    close = difflib.get_close_matches(path.rpartition(".")[2], _KEY_CLASSES[section], n=1)
    return (
        f" (did you mean {f'{section}.{close[0]}' if section else close[0]!r}?)." if close else "."
    )
