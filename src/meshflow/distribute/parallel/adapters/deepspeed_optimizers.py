"""DeepSpeed's optimizers as configurations of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.parallel.adapters.deepspeed_schedules import schedule_of

__all__ = ["optimizer_of"]


@dataclasses.dataclass(frozen=True)
class _Kind:
    """An optimizer of DeepSpeed: our class, our names of its arguments, and its defaults.

    Attributes:
      name: our class.
      arguments: what else is read besides lr and betas, with our names.
      defaults: what it does where nothing is said, as our arguments.
      only: arguments that have no counterpart, with the values at which they do nothing.
      unused: arguments about how it computes, and not what.
    """

    name: str
    arguments: dict[str, str]
    defaults: dict[str, Any]
    only: dict[str, Any] = dataclasses.field(default_factory=dict)
    unused: str = "fused foreach capturable differentiable set_grad_none"


_ADAM = {"eps": "epsilon", "weight_decay": "weight_decay"}
_ADAM_DEFAULTS = {"learning_rate": 1e-3, "epsilon": 1e-8, "weight_decay": 0.0}
_KINDS = {
    "adam": _Kind(
        "Adam",
        {**_ADAM, "amsgrad": "amsgrad"},
        {"learning_rate": 1e-3, "epsilon": 1e-8},
        {"bias_correction": True, "maximize": False, "weight_decay": 0},
    ),
    "adamw": _Kind(
        "AdamW",
        {**_ADAM, "amsgrad": "amsgrad"},
        _ADAM_DEFAULTS,
        {"bias_correction": True, "maximize": False},
    ),
    "sgd": _Kind(
        "SGD",
        {"momentum": "momentum", "nesterov": "nesterov", "weight_decay": "weight_decay"},
        {"learning_rate": 1e-3},
        {"dampening": 0, "maximize": False},
    ),
    # Its epsilon is added to the root, as TensorFlow's was until 2.10.
    "adagrad": _Kind(
        "Adagrad",
        {"eps": "epsilon", "initial_accumulator_value": "initial_accumulator_value"},
        {"learning_rate": 1e-2, "epsilon": 1e-10, "initial_accumulator_value": 0.0},
        {"weight_decay": 0, "lr_decay": 0, "maximize": False},
    ),
    "lion": _Kind("Lion", {"weight_decay": "weight_decay"}, {"learning_rate": 1e-3}),
    "lamb": _Kind(
        "Lamb",
        _ADAM,
        _ADAM_DEFAULTS,
        # Trust ratios have no bounds here; without a word of them theirs are wide.
        {"bias_correction": True, "eps_inside_sqrt": False, "amsgrad": False},
    ),
    "onebitadam": _Kind(
        "OneBitAdam",
        {**_ADAM, "freeze_step": "freeze_step"},
        _ADAM_DEFAULTS,
        unused="cuda_aware comm_backend_name bias_correction",
    ),
}
_WITH_BETAS = ("Adam", "AdamW", "Lamb", "Lion", "OneBitAdam")


def optimizer_of(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The configuration of an optimizer, with the schedule of its learning rate and clipping.

    Args:
      config: a DeepSpeed configuration.

    Returns:
      A class name and arguments; None when the configuration has no optimizer.

    Raises:
      ValueError: for optimizers and arguments without a counterpart, and for clipping or a schedule of none.
    """
    given = config.get("optimizer")
    clip = float(config.get("gradient_clipping") or 0.0)
    if given is None:
        _check_alone(config, clip)
        return None
    parameters = dict(given.get("params") or {})
    kind = _kind(str(given.get("type")), parameters)
    arguments = _arguments(kind, parameters)
    if clip and kind.name == "OneBitAdam":
        raise InvalidValueError(
            "from_deepspeed: gradient_clipping has no counterpart under OneBitAdam, whose gradients nobody knows."
        )
    if config.get("scheduler"):
        rate = arguments.get("learning_rate")
        schedule = schedule_of(config["scheduler"], rate, kind.name in _WITH_BETAS)
        arguments["learning_rate"] = schedule
    if clip:
        arguments["global_clipnorm"] = clip
    arguments = {**kind.defaults, **arguments, "is_legacy_optimizer": kind.name == "Adagrad"}
    return {"class_name": kind.name, "config": {"name": kind.name, **arguments}}


def _check_alone(config: Mapping[str, Any], clip: float) -> None:
    if clip:
        raise InvalidValueError(
            "from_deepspeed: gradient_clipping without an optimizer in the configuration: give your own "
            f"global_clipnorm={clip}, and take the key out."
        )
    if config.get("scheduler"):
        raise InvalidValueError(
            "from_deepspeed: a scheduler without an optimizer in the configuration: give your own a schedule of "
            "tf.keras.optimizers.schedules as learning rate, and take the key out."
        )


def _kind(name: str, parameters: dict[str, Any]) -> _Kind:
    """The optimizer; what chooses between kinds of Adam is taken out of its parameters."""
    kind = _KINDS.get(name.lower())
    if kind is None:
        raise InvalidValueError(
            f"from_deepspeed: optimizer {name!r} has no counterpart; known are {sorted(_KINDS)}."
        )
    if kind.name not in ("Adam", "AdamW"):
        return kind
    of_torch = parameters.pop("torch_adam", False)
    apart = parameters.pop("adam_w_mode", True) or kind.name == "AdamW"
    if apart and of_torch:
        parameters.setdefault("weight_decay", 0.01)
    return _KINDS["adamw"] if apart and parameters.get("weight_decay") else kind


def _arguments(kind: _Kind, parameters: dict[str, Any]) -> dict[str, Any]:
    """Our arguments of what is given."""
    found: dict[str, Any] = {}
    if "betas" in parameters and kind.name in _WITH_BETAS:
        found["beta_1"], found["beta_2"] = parameters.pop("betas")
    if "max_grad_norm" in parameters:
        raise InvalidValueError(
            'from_deepspeed: optimizer.params.max_grad_norm is "gradient_clipping" of the configuration.'
        )
    bounds = sorted({"max_coeff", "min_coeff"} & set(parameters))
    if kind.name == "Lamb" and bounds:
        raise InvalidValueError(
            f"from_deepspeed: optimizer.params {bounds} bound Lamb's trust ratios, which have no bounds in "
            "tf.keras.optimizers.Lamb. Take them out of the configuration."
        )
    for name in kind.unused.split():
        parameters.pop(name, None)
    # A decay that is part of the gradient goes through momentum and scales, one that stands apart does not.
    only = {**kind.only, "weight_decay": 0} if parameters.get("momentum") else kind.only
    for name, value in only.items():
        if name in parameters and parameters[name] != value:
            advice = (
                " A decay that is part of the gradient is a kernel_regularizer=tf.keras.regularizers.L2(decay / 2)."
                if name == "weight_decay"
                else ""
            )
            raise InvalidValueError(
                f"from_deepspeed: optimizer.params.{name}={parameters[name]!r} has no counterpart in "
                f"tf.keras.optimizers.{kind.name}; it must be {value!r}.{advice}"
            )
        if name not in kind.arguments:
            parameters.pop(name, None)
    names = {"lr": "learning_rate", **kind.arguments}
    unknown = sorted(set(parameters) - set(names))
    if unknown:
        raise InvalidValueError(
            f"from_deepspeed: optimizer.params has unknown keys {unknown}; those of {kind.name} are "
            f"{sorted({*names, *only, *(['betas'] if kind.name in _WITH_BETAS else [])})}."
        )
    return found | {names[key]: value for key, value in parameters.items()}
