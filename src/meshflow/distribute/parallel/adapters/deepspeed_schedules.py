"""DeepSpeed's schedules of learning rates as configurations of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError

__all__ = ["schedule_of"]

_WARMUP = {
    "warmup_min_lr": "minimum_learning_rate",
    "warmup_max_lr": "learning_rate",
    "warmup_num_steps": "warmup_steps",
    "warmup_type": "rise",
}
# By DeepSpeed's names: our class, its arguments, and what else is read.
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


def schedule_of(scheduler: Mapping[str, Any], rate: Any, has_betas: bool) -> dict[str, Any]:
    """The configuration of a schedule.

    Args:
      scheduler: what the configuration has for "scheduler".
      rate: the optimizer's learning rate; None when the configuration has none.
      has_betas: whether the optimizer has the momentum that a cycle would move.

    Raises:
      ValueError: for an unknown schedule, unknown or missing arguments, and momentum that moves.
    """
    kind, given = scheduler.get("type"), dict(scheduler.get("params") or {})
    if kind not in _SCHEDULES:
        raise InvalidValueError(
            f"from_deepspeed: scheduler {kind!r} has no counterpart; known are {sorted(_SCHEDULES)}."
        )
    name, arguments, more = _SCHEDULES[kind]
    given.pop("last_batch_iteration", None)
    unknown = sorted(set(given) - {*arguments, *more})
    if unknown:
        raise InvalidValueError(f"from_deepspeed: scheduler.params has unknown keys {unknown}.")
    found = {
        ours: given[theirs] for theirs, ours in arguments.items() if given.get(theirs) is not None
    }
    if name == "WarmupSchedule":
        found |= _warmup(str(kind), given, found, rate)
    if kind == "OneCycle":
        if has_betas and given.get("cycle_momentum", True):
            raise InvalidValueError(
                "from_deepspeed: OneCycle moves momentum as well, which has no counterpart here. Pass "
                '"cycle_momentum": false.'
            )
        _needed(given, "cycle_min_lr", "cycle_max_lr")
    return {"class_name": name, "config": found}


def _warmup(kind: str, given: dict[str, Any], found: dict[str, Any], rate: Any) -> dict[str, Any]:
    # As there, a warm-up has at least two steps.
    more: dict[str, Any] = {"warmup_steps": max(2, found.get("warmup_steps", 1000))}
    if kind == "WarmupLR":
        highest = rate if rate is not None else 0.001
        return {**more, "learning_rate": found.get("learning_rate", highest)}
    _needed(given, "total_num_steps")
    if kind == "WarmupDecayLR":
        low = found.get("minimum_learning_rate", 0.0)
        highest = found.get("learning_rate", 0.001)
        return {**more, "decay": "linear", "final_learning_rate": low, "learning_rate": highest}
    if rate is None:
        raise InvalidValueError(
            "from_deepspeed: WarmupCosineLR multiplies the optimizer's learning rate: give optimizer.params.lr."
        )
    return {
        **more,
        "decay": "cosine",
        "learning_rate": rate,
        "minimum_learning_rate": rate * given.get("warmup_min_ratio", 0.0),
        "final_learning_rate": rate * given.get("cos_min_ratio", 0.0001),
    }


def _needed(given: dict[str, Any], *names: str) -> None:
    missing = [name for name in names if given.get(name) is None]
    if missing:
        raise InvalidValueError(f"from_deepspeed: scheduler.params lacks {missing}.")
