"""Translation of DeepSpeed's learning rate schedules into configurations of Keras schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.environment.types import Config, Json

_WARMUP = {
    "warmup_min_lr": "minimum_learning_rate",
    "warmup_max_lr": "learning_rate",
    "warmup_num_steps": "warmup_steps",
    "warmup_type": "rise",
}
# For each DeepSpeed schedule: the Keras class, the Keras names of its arguments, and further
# accepted keys.
_SCHEDULES: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "WarmupLR": ("WarmupSchedule", _WARMUP, ()),
    "WarmupDecayLR": ("WarmupSchedule", {**_WARMUP, "total_num_steps": "total_steps"}, ()),
    "WarmupCosineLR": (
        "WarmupSchedule",
        {
            "warmup_num_steps": "warmup_steps",
            "warmup_type": "rise",
            "total_num_steps": "total_steps",
        },
        ("warmup_min_ratio", "cos_min_ratio"),
    ),
    "OneCycle": (
        "OneCycle",
        {
            "cycle_min_lr": "minimum_learning_rate",
            "cycle_max_lr": "maximum_learning_rate",
            "cycle_first_step_size": "first_steps",
            "cycle_second_step_size": "second_steps",
            "cycle_first_stair_count": "first_stairs",
            "cycle_second_stair_count": "second_stairs",
            "decay_step_size": "decay_steps",
            "decay_lr_rate": "decay_rate",
        },
        ("cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"),
    ),
    "LRRangeTest": (
        "LearningRateRangeTest",
        {
            "lr_range_test_min_lr": "minimum_learning_rate",
            "lr_range_test_step_size": "step_size",
            "lr_range_test_step_rate": "step_rate",
            "lr_range_test_staircase": "staircase",
        },
        (),
    ),
}


def build_schedule_config(scheduler: Mapping[str, Any], rate: Json, has_betas: bool) -> Config:
    """Build the configuration of a learning rate schedule.

    Args:
      scheduler: The "scheduler" section of the configuration.
      rate: Learning rate of the optimizer, or None if the configuration has none.
      has_betas: Whether the optimizer has a momentum that a cycle would change.

    Returns:
      Class name and arguments of the schedule.

    Raises:
      ValueError: If the schedule is unknown, if arguments are unknown or missing, or if the
        schedule would change momentum.
    """
    kind, parameters = scheduler.get("type"), dict(scheduler.get("params") or {})
    if kind not in _SCHEDULES:
        raise InvalidValueError(
            f"from_deepspeed: scheduler {kind!r} has no counterpart; known are {sorted(_SCHEDULES)}."
        )
    name, names, more = _SCHEDULES[kind]
    parameters.pop("last_batch_iteration", None)
    unknown = sorted(set(parameters) - {*names, *more})
    if unknown:
        raise InvalidValueError(f"from_deepspeed: scheduler.params has unknown keys {unknown}.")
    arguments = {
        ours: parameters[theirs]
        for theirs, ours in names.items()
        if parameters.get(theirs) is not None
    }
    if name == "WarmupSchedule":
        arguments |= _translate_warmup(str(kind), parameters, arguments, rate)
    if kind == "OneCycle":
        if has_betas and parameters.get("cycle_momentum", True):
            raise InvalidValueError(
                "from_deepspeed: OneCycle moves momentum as well, which has no counterpart here. Pass "
                '"cycle_momentum": false.'
            )
        _check_required(parameters, "cycle_min_lr", "cycle_max_lr")
    return {"class_name": name, "config": arguments}


def _translate_warmup(kind: str, parameters: Config, arguments: Config, rate: Json) -> Config:
    # DeepSpeed's warm-up has at least two steps, too.
    more: Config = {"warmup_steps": max(2, arguments.get("warmup_steps", 1000))}
    if kind == "WarmupLR":
        highest = rate if rate is not None else 0.001
        return {**more, "learning_rate": arguments.get("learning_rate", highest)}
    _check_required(parameters, "total_num_steps")
    if kind == "WarmupDecayLR":
        low = arguments.get("minimum_learning_rate", 0.0)
        highest = arguments.get("learning_rate", 0.001)
        return {**more, "decay": "linear", "final_learning_rate": low, "learning_rate": highest}
    if rate is None:
        raise InvalidValueError(
            "from_deepspeed: WarmupCosineLR multiplies the optimizer's learning rate: set optimizer.params.lr."
        )
    return {
        **more,
        "decay": "cosine",
        "learning_rate": rate,
        "minimum_learning_rate": rate * parameters.get("warmup_min_ratio", 0.0),
        "final_learning_rate": rate * parameters.get("cos_min_ratio", 0.0001),
    }


def _check_required(parameters: Config, *names: str) -> None:
    missing = [name for name in names if parameters.get(name) is None]
    if missing:
        raise InvalidValueError(f"from_deepspeed: scheduler.params lacks {missing}.")
