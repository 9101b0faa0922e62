"""DeepSpeed's configuration file as a `MeshStrategy`, and what `compile` and `fit` are to be given."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Mapping
from typing import Any

from meshflow.core.runtime.devices import devices_of, main_kind
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.parallel.adapters.deepspeed_keys import keys_of
from meshflow.distribute.parallel.adapters.deepspeed_optimizers import optimizer_of
from meshflow.distribute.parallel.adapters.mesh_tensorflow import mesh_of_sizes
from meshflow.distribute.parallel.rules import Rules
from meshflow.distribute.parallel.strategy import MeshStrategy
from meshflow.placement.mesh import Mesh

__all__ = ["DeepSpeedSettings", "from_deepspeed"]

# Comments, and commas before a closing bracket, which DeepSpeed's reader takes; strings stay as they are.
_COMMENTS = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|#[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMAS = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])')


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
      elsewhere: keys that ask for what is not the strategy's, such as logs, with what does it here.
    """

    strategy: MeshStrategy
    optimizer: dict[str, Any] | None
    batch_size: int | None
    policy: str
    decided: tuple[str, ...]
    elsewhere: dict[str, str]


def from_deepspeed(
    config: str | os.PathLike[str] | Mapping[str, Any],
    mesh: Mesh | None = None,
    rules: str | None = None,
) -> DeepSpeedSettings:
    """A strategy, and what else scripts need, of a DeepSpeed configuration.

    Args:
      config: the path of the JSON file, or what is in it.
      mesh: the mesh; default all devices along "data", or "node" and "data" with `zero_hpz_partition_size`; "model" and
        "stage" are dimensions as well where `tensor_parallel.autotp_size` and `pipeline.stages` are more than 1.
      rules: the rules of the `MeshStrategy`; default those that split the batch, and "heads", "hidden" and "vocab" over
        "model".

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
    given = config if isinstance(config, Mapping) else _read(config)
    return _settings(given, mesh, rules)


def _read(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """What is in a file."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for pattern in (_COMMENTS, _LAST_COMMAS):
        text = pattern.sub(lambda match: match.group(1) or "", text)
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise InvalidValueError(
            f"from_deepspeed: {os.fspath(path)!r} is no JSON: {error}."
        ) from None
    if not isinstance(found, Mapping):
        raise InvalidValueError(
            f"from_deepspeed: {os.fspath(path)!r} must hold one object in braces, got {type(found).__name__}."
        )
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InvalidValueError(f"from_deepspeed: {twice} are given twice; give each key once.")
    return found


def _settings(config: Mapping[str, Any], mesh: Mesh | None, rules: str | None) -> DeepSpeedSettings:
    zero = config.get("zero_optimization") or {}
    if zero is True:
        # Its oldest form.
        zero = {"stage": 1}
        config = {**config, "zero_optimization": zero}
    keys = keys_of(config)
    mesh, rules, choices = _divided(config, zero, mesh, rules)
    choices["zero"] = _integer(zero, "zero_optimization.stage", 0, 0)
    if choices["zero"] > 3:
        raise InvalidValueError(
            f"from_deepspeed: zero_optimization.stage must be 0, 1, 2 or 3, got {choices['zero']}."
        )
    choices |= _offload(zero)
    checkpointing = config.get("activation_checkpointing") or {}
    if checkpointing.get("cpu_checkpointing"):
        choices["offload"] = {**choices.get("offload", {}), "activations": ".*"}
    interval = _integer(config.get("pipeline"), "pipeline.activation_checkpoint_interval", 0, 0)
    if (
        any(checkpointing.get(k) for k in ("partition_activations", "cpu_checkpointing"))
        or interval
    ):
        choices["recompute"] = "layer"
    if str((config.get("optimizer") or {}).get("type")).lower() == "onebitadam":
        choices["compress"] = "1bit"
    elif zero.get("zero_quantized_gradients"):
        choices["compress"] = "int8"
    devices = math.prod(mesh.dim_size(name) for name in Rules(rules, mesh).dimensions("batch"))
    batch_size, micro_batches = _batch_size(config, devices)
    strategy = MeshStrategy(mesh, rules, micro_batches=micro_batches, **choices)
    optimizer = _with_loss_scale(optimizer_of(config), config.get("fp16") or {})
    return DeepSpeedSettings(
        strategy, optimizer, batch_size, _policy(config), keys.decided, keys.elsewhere
    )


def _divided(
    config: Mapping[str, Any], zero: Mapping[str, Any], mesh: Mesh | None, rules: str | None
) -> tuple[Mesh, str, dict[str, Any]]:
    """The mesh, its rules, and the options that name its dimensions."""
    inner = _inner(zero)
    tensors = _integer(config.get("tensor_parallel"), "tensor_parallel.autotp_size", 0, 0)
    stages = _integer(config.get("pipeline"), "pipeline.stages", 1, 1)
    sizes = {"stage": stages, "data": inner, "model": tensors}
    sizes = {name: size for name, size in sizes.items() if size > 1}
    if mesh is None:
        count, taken = len(devices_of(main_kind())), math.prod(sizes.values())
        if count % taken:
            raise InvalidValueError(
                f"from_deepspeed: {sizes} of the configuration are {taken} devices, which do not divide the {count} "
                "that there are."
            )
        rest = {"node": count // taken} if inner > 1 else {"data": count // taken}
        mesh = mesh_of_sizes({**rest, **sizes})
    for name, size in sizes.items():
        if name not in mesh or mesh.dim_size(name) != size:
            raise InvalidValueError(
                f"from_deepspeed: the configuration divides {size} devices along {name!r}, and mesh= is "
                f"{dict(zip(mesh.dim_names, mesh.shape(), strict=True))}. Leave mesh= out, or give it that dimension."
            )
    if rules is None:
        split = ["batch:node+data" if inner > 1 else "batch:data"]
        split += [f"{name}:model" for name in ("heads", "hidden", "vocab") if tensors > 1]
        rules = ", ".join(split)
    choices: dict[str, Any] = {"zero_over": "data"} if inner > 1 else {}
    return mesh, rules, choices | ({"pipeline": "stage"} if stages > 1 else {})


def _integer(part: Any, path: str, default: int, least: int) -> int:
    """A whole number of a part, such as 2 or 2.0."""
    value = (part or {}).get(path.rpartition(".")[2])
    if value is None:
        return default
    whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value)
    if not whole or value < least:
        raise InvalidValueError(
            f"from_deepspeed: {path} must be a whole number of at least {least}, got {value!r}."
        )
    return int(value)


def _inner(zero: Mapping[str, Any]) -> int:
    """Over how many neighbouring devices states are split: all with 1."""
    hierarchical = _integer(zero, "zero_optimization.zero_hpz_partition_size", 1, 0)
    mics = _integer(zero, "zero_optimization.mics_shard_size", -1, -1)
    if mics > 0 and hierarchical > 1 and mics != hierarchical:
        raise InvalidValueError(
            f"from_deepspeed: zero_hpz_partition_size={hierarchical} and mics_shard_size={mics} both say over how "
            "many devices states are split; give one."
        )
    return max(1, mics if mics > 0 else hierarchical)


def _offload(zero: Mapping[str, Any]) -> dict[str, Any]:
    """What lies in the host's memory or in files, as options."""
    oldest = {"cpu_offload": "optimizer", "cpu_offload_param": "parameters"}
    found = {ours: ".*" for key, ours in oldest.items() if zero.get(key)}
    folders = {}
    for key, ours in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
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
            found[ours] = ".*"
        if device == "nvme":
            folders[ours] = part["nvme_path"]
    choices: dict[str, Any] = {"offload": found} if found else {}
    return choices | ({"offload_to": folders} if folders else {})


def _batch_size(config: Mapping[str, Any], devices: int) -> tuple[int | None, int]:
    """The rows of a step on all devices, where they are said, and into how many parts a device's are divided."""
    whole = _integer(config, "train_batch_size", 0, 1)
    micro = _integer(config, "train_micro_batch_size_per_gpu", 0, 1)
    accumulated = _integer(config, "gradient_accumulation_steps", 0, 1)
    if not accumulated:
        # Of the three, two say the third.
        accumulated = max(1, whole // (micro * devices)) if whole and micro else 1
    micro = micro or whole // (accumulated * devices)
    found = micro * accumulated * devices
    if whole not in (0, found):
        raise InvalidValueError(
            f"from_deepspeed: train_batch_size={whole} is not train_micro_batch_size_per_gpu={micro} x "
            f"gradient_accumulation_steps={accumulated} x {devices} devices = {found}. Give one that is, or two of the "
            "three."
        )
    return found or None, accumulated


def _policy(config: Mapping[str, Any]) -> str:
    """The policy of the one kind of mixed precision that is enabled."""
    brain = config.get("bf16") or config.get("bfloat16") or {}
    cast = config.get("torch_autocast") or {}
    of = {
        "fp16": ((config.get("fp16") or {}).get("enabled"), "mixed_float16"),
        "bf16": (brain.get("enabled"), "mixed_bfloat16"),
        "torch_autocast": (cast.get("enabled"), f"mixed_{cast.get('dtype', 'bfloat16')}"),
    }
    enabled = {name: policy for name, (on, policy) in of.items() if on}
    if len(enabled) > 1:
        raise InvalidValueError(
            f"from_deepspeed: {' and '.join(enabled)} are both enabled; choose one."
        )
    found = next(iter(enabled.values()), "float32")
    if found not in ("float32", "mixed_float16", "mixed_bfloat16"):
        raise InvalidValueError(
            f"from_deepspeed: torch_autocast.dtype must be 'bfloat16' or 'float16', got {cast['dtype']!r}."
        )
    return found


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
