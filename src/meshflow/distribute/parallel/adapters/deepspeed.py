"""Translation of a DeepSpeed configuration into a strategy and into arguments of `compile` and `fit`."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Mapping
from typing import Any

from meshflow.core.runtime.devices import get_default_device_type, list_devices
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.parallel.adapters.deepspeed_keys import classify_keys, expand_short_keys
from meshflow.distribute.parallel.adapters.deepspeed_optimizers import build_optimizer_config
from meshflow.distribute.parallel.adapters.mesh_tensorflow import create_local_mesh
from meshflow.distribute.parallel.rules import ShardingRules
from meshflow.distribute.parallel.strategy import MeshStrategy
from meshflow.environment.types import Config, Json, StrPath
from meshflow.placement.mesh import Mesh

# DeepSpeed accepts comments and a comma before a closing bracket. The first group matches strings,
# which must not change.
_COMMENT_PATTERN = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|#[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA_PATTERN = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])')


@dataclasses.dataclass(frozen=True)
class DeepSpeedSettings:
    """Settings of a DeepSpeed configuration, as the values that a training script passes on.

    Attributes:
      strategy: The `MeshStrategy`.
      optimizer: Value for `compile(optimizer=)`: class name and arguments, including the learning
        rate schedule and, with fp16, the loss scale. None if the configuration has no optimizer.
      batch_size: Value for `fit(batch_size=)`: examples of a step on all devices. None if the
        configuration does not define it.
      policy: Value for `tf.keras.mixed_precision.set_global_policy`.
      decided: Keys that have no effect because the XLA compiler makes these decisions.
      elsewhere: Keys of features that are no part of the strategy, such as logging, with the
        replacement in Meshflow.
    """

    strategy: MeshStrategy
    optimizer: Config | None
    batch_size: int | None
    policy: str
    decided: tuple[str, ...]
    elsewhere: dict[str, str]


def from_deepspeed(
    config: StrPath | Mapping[str, Any],
    mesh: Mesh | None = None,
    rules: str | None = None,
) -> DeepSpeedSettings:
    """Create a strategy, and the related training settings, from a DeepSpeed configuration.

    Args:
      config: Path of the JSON file, or its content as a dictionary.
      mesh: Mesh of the strategy. By default all devices form the dimension "data", or "node" and
        "data" with `zero_hpz_partition_size`. The dimensions "model" and "stage" are added if
        `tensor_parallel.autotp_size` or `pipeline.stages` exceeds 1.
      rules: Rules of the `MeshStrategy`. By default they split the batch, and "heads", "hidden" and
        "vocab" over "model".

    Returns:
      A `DeepSpeedSettings`.

    Raises:
      ValueError: If a key is unknown, if a value has a wrong type, if values contradict each other, or
        if a requested feature has no counterpart.

    Example:
      >>> settings = tf.distribute.from_deepspeed({
      ...     "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
      ...     "zero_optimization": {"stage": 3, "overlap_comm": True}, "gradient_clipping": 1.0,
      ...     "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}}, tf.experimental.dtensor.create_mesh({"data": 4}))
      >>> settings.batch_size, settings.policy, settings.optimizer["config"]["global_clipnorm"], settings.decided
      (64, 'mixed_bfloat16', 1.0, ('zero_optimization.overlap_comm',))
    """
    if not isinstance(config, Mapping | str | os.PathLike):
        raise InvalidValueError(
            f"from_deepspeed: config must be a dictionary or the path of a JSON file, got {type(config).__name__}."
        )
    content = config if isinstance(config, Mapping) else _read_config(config)
    return _build_settings(content, mesh, rules)


def _read_config(path: StrPath) -> Mapping[str, Any]:
    """Read a configuration file, which may contain comments and trailing commas."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for pattern in (_COMMENT_PATTERN, _TRAILING_COMMA_PATTERN):
        text = pattern.sub(lambda match: match.group(1) or "", text)
    try:
        content = json.loads(text, object_pairs_hook=_build_unique_dict)
    except json.JSONDecodeError as error:
        raise InvalidValueError(
            f"from_deepspeed: {os.fspath(path)!r} is not valid JSON: {error}."
        ) from None
    if not isinstance(content, Mapping):
        raise InvalidValueError(
            f"from_deepspeed: {os.fspath(path)!r} must contain one JSON object, got {type(content).__name__}."
        )
    return content


def _build_unique_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        raise InvalidValueError(
            f"from_deepspeed: the keys {duplicates} occur twice; write each key once."
        )
    return content


def _build_settings(
    config: Mapping[str, Any], mesh: Mesh | None, rules: str | None
) -> DeepSpeedSettings:
    zero = config.get("zero_optimization") or {}
    if zero is True:
        # The oldest form of the key is a Boolean.
        zero = {"stage": 1}
    if isinstance(zero, Mapping):
        zero = expand_short_keys(zero)
        config = {**config, "zero_optimization": zero}
    keys = classify_keys(config)
    mesh, rules, choices = _build_mesh(config, zero, mesh, rules)
    choices["zero"] = _get_integer(zero, "zero_optimization.stage", 0, 0)
    if choices["zero"] > 3:
        raise InvalidValueError(
            f"from_deepspeed: zero_optimization.stage must be 0, 1, 2 or 3, got {choices['zero']}."
        )
    for name in ("max_live_parameters", "prefetch_bucket_size"):
        size = _get_integer(zero, f"zero_optimization.stage3_{name}", -1, 0)
        if choices["zero"] == 3 and size >= 0:
            choices[name] = size
    choices |= _get_offload_options(zero)
    checkpointing = config.get("activation_checkpointing") or {}
    if checkpointing.get("cpu_checkpointing"):
        choices["offload"] = {**choices.get("offload", {}), "activations": ".*"}
    interval = _get_integer(config.get("pipeline"), "pipeline.activation_checkpoint_interval", 0, 0)
    if (
        any(checkpointing.get(k) for k in ("partition_activations", "cpu_checkpointing"))
        or interval
    ):
        choices["recompute"] = "layer"
    if str((config.get("optimizer") or {}).get("type")).lower() == "onebitadam":
        choices["compress"] = "1bit"
    elif zero.get("zero_quantized_gradients"):
        choices["compress"] = "int8"
    devices = math.prod(
        mesh.dim_size(name) for name in ShardingRules(rules, mesh).dimensions("batch")
    )
    batch_size, micro_batches = _resolve_batch_size(config, devices)
    strategy = MeshStrategy(mesh, rules, micro_batches=micro_batches, **choices)
    optimizer = _wrap_loss_scale(build_optimizer_config(config), config.get("fp16") or {})
    return DeepSpeedSettings(
        strategy, optimizer, batch_size, _select_policy(config), keys.decided, keys.elsewhere
    )


def _build_mesh(
    config: Mapping[str, Any], zero: Mapping[str, Any], mesh: Mesh | None, rules: str | None
) -> tuple[Mesh, str, dict[str, Any]]:
    """Build the mesh, its rules, and the options that refer to its dimensions."""
    group_size = _get_zero_group_size(zero)
    tensors = _get_integer(config.get("tensor_parallel"), "tensor_parallel.autotp_size", 0, 0)
    stages = _get_integer(config.get("pipeline"), "pipeline.stages", 1, 1)
    sizes = {"stage": stages, "data": group_size, "model": tensors}
    sizes = {name: size for name, size in sizes.items() if size > 1}
    if mesh is None:
        count, required = len(list_devices(get_default_device_type())), math.prod(sizes.values())
        if count % required:
            raise InvalidValueError(
                f"from_deepspeed: the configuration needs {required} devices ({sizes}), but the number of available "
                f"devices, {count}, is not divisible by {required}."
            )
        rest = {"node": count // required} if group_size > 1 else {"data": count // required}
        mesh = create_local_mesh({**rest, **sizes})
    for name, size in sizes.items():
        if name not in mesh or mesh.dim_size(name) != size:
            raise InvalidValueError(
                f"from_deepspeed: the configuration splits over {size} devices along {name!r}, but mesh= has the "
                f"dimensions {dict(zip(mesh.dim_names, mesh.shape(), strict=True))}. Leave mesh= out, or add that "
                "dimension."
            )
    if rules is None:
        split = ["batch:node+data" if group_size > 1 else "batch:data"]
        split += [f"{name}:model" for name in ("heads", "hidden", "vocab") if tensors > 1]
        rules = ", ".join(split)
    choices: dict[str, Any] = {"zero_over": "data"} if group_size > 1 else {}
    return mesh, rules, choices | ({"pipeline": "stage"} if stages > 1 else {})


def _get_integer(part: Mapping[str, Json] | None, path: str, default: int, minimum: int) -> int:
    """Return an integer of a section of the configuration; 2.0 counts as an integer."""
    value = (part or {}).get(path.rpartition(".")[2])
    if value is None:
        return default
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    is_integer = is_number and float(value).is_integer()
    if not is_integer or value < minimum:
        raise InvalidValueError(
            f"from_deepspeed: {path} must be an integer of at least {minimum}, got {value!r}."
        )
    return int(value)


def _get_zero_group_size(zero: Mapping[str, Any]) -> int:
    """Return the number of neighboring devices that ZeRO shards states over; 1 means all devices."""
    hierarchical = _get_integer(zero, "zero_optimization.zero_hpz_partition_size", 1, 0)
    mics = _get_integer(zero, "zero_optimization.mics_shard_size", -1, -1)
    if mics > 0 and hierarchical > 1 and mics != hierarchical:
        raise InvalidValueError(
            f"from_deepspeed: zero_hpz_partition_size={hierarchical} and mics_shard_size={mics} both say over how "
            "many devices states are sharded. Set only one of them."
        )
    return max(1, mics if mics > 0 else hierarchical)


def _get_offload_options(zero: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that offload states to the host's memory or to files."""
    oldest = {"cpu_offload": "optimizer", "cpu_offload_param": "parameters"}
    patterns = {kind: ".*" for key, kind in oldest.items() if zero.get(key)}
    folders = {}
    for key, kind in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        part = zero.get(key) or {}
        device = part.get("device", "none")
        if device not in ("none", "cpu", "nvme") or (
            device == "nvme" and not part.get("nvme_path")
        ):
            raise InvalidValueError(
                f"from_deepspeed: {key}.device={device!r} must be 'none', 'cpu', the host's memory, or 'nvme' with an "
                "nvme_path."
            )
        if device != "none":
            patterns[kind] = ".*"
        if device == "nvme":
            folders[kind] = part["nvme_path"]
    choices: dict[str, Any] = {"offload": patterns} if patterns else {}
    return choices | ({"offload_to": folders} if folders else {})


def _resolve_batch_size(config: Mapping[str, Any], devices: int) -> tuple[int | None, int]:
    """Return the global batch size, or None, and the number of micro-batches per device."""
    total = _get_integer(config, "train_batch_size", 0, 1)
    micro = _get_integer(config, "train_micro_batch_size_per_gpu", 0, 1)
    accumulated = _get_integer(config, "gradient_accumulation_steps", 0, 1)
    if not accumulated:
        # Any two of the three values determine the third.
        accumulated = max(1, total // (micro * devices)) if total and micro else 1
    micro = micro or total // (accumulated * devices)
    product = micro * accumulated * devices
    if total not in (0, product):
        raise InvalidValueError(
            f"from_deepspeed: train_batch_size={total} is not train_micro_batch_size_per_gpu={micro} x "
            f"gradient_accumulation_steps={accumulated} x {devices} devices = {product}. Correct one of them, or set "
            "only two of the three."
        )
    return product or None, accumulated


def _select_policy(config: Mapping[str, Any]) -> str:
    """Return the mixed precision policy that the configuration enables, or "float32"."""
    bfloat16 = config.get("bf16") or config.get("bfloat16") or {}
    cast = config.get("torch_autocast") or {}
    policies = {
        "fp16": ((config.get("fp16") or {}).get("enabled"), "mixed_float16"),
        "bf16": (bfloat16.get("enabled"), "mixed_bfloat16"),
        "torch_autocast": (cast.get("enabled"), f"mixed_{cast.get('dtype', 'bfloat16')}"),
    }
    enabled = {name: policy for name, (is_on, policy) in policies.items() if is_on}
    if len(enabled) > 1:
        raise InvalidValueError(
            f"from_deepspeed: {' and '.join(enabled)} are both enabled; choose one."
        )
    selected = next(iter(enabled.values()), "float32")
    if selected not in ("float32", "mixed_float16", "mixed_bfloat16"):
        raise InvalidValueError(
            f"from_deepspeed: torch_autocast.dtype must be 'bfloat16' or 'float16', got {cast['dtype']!r}."
        )
    return selected


def _wrap_loss_scale(optimizer: Config | None, half: Mapping[str, Any]) -> Config | None:
    """Wrap an optimizer configuration in that of a `LossScaleOptimizer` if fp16 is enabled."""
    if not half.get("enabled"):
        return optimizer
    if optimizer is None:
        requested = [
            k for k in ("loss_scale", "initial_scale_power", "loss_scale_window") if half.get(k)
        ]
        if requested:
            raise InvalidValueError(
                f"from_deepspeed: fp16 sets {requested}, but the configuration has no optimizer: wrap your own in a "
                "tf.keras.mixed_precision.LossScaleOptimizer."
            )
        return None
    fixed = float(half.get("loss_scale") or 0.0)
    scale: dict[str, Any] = (
        {"dynamic": False, "initial_scale": fixed}
        if fixed
        else {
            "initial_scale": 2.0 ** _get_integer(half, "fp16.initial_scale_power", 16, 0),
            "dynamic_growth_steps": _get_integer(half, "fp16.loss_scale_window", 1000, 1),
        }
    )
    return {"class_name": "LossScaleOptimizer", "config": {"inner_optimizer": optimizer, **scale}}
