"""Translation of DeepSpeed's optimizers into configurations of Keras optimizers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.parallel.adapters.deepspeed_schedules import build_schedule_config
from meshflow.environment.types import Config


@dataclasses.dataclass(frozen=True)
class _OptimizerMapping:
    """Keras counterpart of a DeepSpeed optimizer.

    Attributes:
      name: Name of the Keras class.
      arguments: Keras names of the supported arguments, other than lr and betas.
      defaults: DeepSpeed's defaults, as arguments of the Keras class.
      required_values: Arguments without a counterpart, with the only value that is accepted.
      ignored: Arguments that change how the update is computed, but not its result.
    """

    name: str
    arguments: dict[str, str]
    defaults: dict[str, Any]
    required_values: dict[str, Any] = dataclasses.field(default_factory=dict)
    ignored: str = "fused foreach capturable differentiable set_grad_none"


_ADAM_ARGUMENTS = {"eps": "epsilon", "weight_decay": "weight_decay"}
_ADAM_DEFAULTS = {"learning_rate": 1e-3, "epsilon": 1e-8, "weight_decay": 0.0}
_OPTIMIZERS = {
    "adam": _OptimizerMapping(
        "Adam",
        {**_ADAM_ARGUMENTS, "amsgrad": "amsgrad"},
        {"learning_rate": 1e-3, "epsilon": 1e-8},
        {"bias_correction": True, "maximize": False, "weight_decay": 0},
    ),
    "adamw": _OptimizerMapping(
        "AdamW",
        {**_ADAM_ARGUMENTS, "amsgrad": "amsgrad"},
        _ADAM_DEFAULTS,
        {"bias_correction": True, "maximize": False},
    ),
    "sgd": _OptimizerMapping(
        "SGD",
        {"momentum": "momentum", "nesterov": "nesterov", "weight_decay": "weight_decay"},
        {"learning_rate": 1e-3},
        {"dampening": 0, "maximize": False},
    ),
    # DeepSpeed adds epsilon to the square root, as TensorFlow did until 2.10.
    "adagrad": _OptimizerMapping(
        "Adagrad",
        {"eps": "epsilon", "initial_accumulator_value": "initial_accumulator_value"},
        {"learning_rate": 1e-2, "epsilon": 1e-10, "initial_accumulator_value": 0.0},
        {"weight_decay": 0, "lr_decay": 0, "maximize": False},
    ),
    "lion": _OptimizerMapping("Lion", {"weight_decay": "weight_decay"}, {"learning_rate": 1e-3}),
    "lamb": _OptimizerMapping(
        "Lamb",
        _ADAM_ARGUMENTS,
        _ADAM_DEFAULTS,
        # The Keras optimizer does not bound trust ratios. DeepSpeed's default bounds are wide.
        {"bias_correction": True, "eps_inside_sqrt": False, "amsgrad": False},
    ),
    "onebitadam": _OptimizerMapping(
        "OneBitAdam",
        {**_ADAM_ARGUMENTS, "freeze_step": "freeze_step"},
        _ADAM_DEFAULTS,
        ignored="cuda_aware comm_backend_name bias_correction",
    ),
}
_WITH_BETAS = ("Adam", "AdamW", "Lamb", "Lion", "OneBitAdam")


def build_optimizer_config(config: Mapping[str, Any]) -> Config | None:
    """Build the configuration of an optimizer, with its learning rate schedule and gradient clipping.

    Args:
      config: DeepSpeed configuration.

    Returns:
      Class name and arguments, or None if the configuration has no optimizer.

    Raises:
      ValueError: If the optimizer or an argument has no counterpart, or if the configuration has
        clipping or a schedule but no optimizer.
    """
    section = config.get("optimizer")
    clip = float(config.get("gradient_clipping") or 0.0)
    if section is None:
        _check_without_optimizer(config, clip)
        return None
    given = section.get("params") or {}
    parameters = {name: value for name, value in given.items() if value is not None}
    mapping = _select_mapping(str(section.get("type")), parameters)
    arguments = _translate_arguments(mapping, parameters)
    if clip and mapping.name == "OneBitAdam":
        raise InvalidValueError(
            "from_deepspeed: gradient_clipping has no counterpart under OneBitAdam, which sends only rounded momentum."
        )
    if config.get("scheduler"):
        rate = arguments.get("learning_rate")
        schedule = build_schedule_config(config["scheduler"], rate, mapping.name in _WITH_BETAS)
        arguments["learning_rate"] = schedule
    if clip:
        arguments["global_clipnorm"] = clip
    arguments = {**mapping.defaults, **arguments, "is_legacy_optimizer": mapping.name == "Adagrad"}
    return {"class_name": mapping.name, "config": {"name": mapping.name, **arguments}}


def _check_without_optimizer(config: Mapping[str, Any], clip: float) -> None:
    if clip:
        raise InvalidValueError(
            "from_deepspeed: gradient_clipping without an optimizer in the configuration: pass "
            f"global_clipnorm={clip} to your own optimizer, and remove the key."
        )
    if config.get("scheduler"):
        raise InvalidValueError(
            "from_deepspeed: a scheduler without an optimizer in the configuration: pass a schedule of "
            "tf.keras.optimizers.schedules as learning rate to your own optimizer, and remove the key."
        )


def _select_mapping(name: str, parameters: dict[str, Any]) -> _OptimizerMapping:
    """Select the counterpart of an optimizer; the parameters that choose a variant are removed."""
    mapping = _OPTIMIZERS.get(name.lower())
    if mapping is None:
        raise InvalidValueError(
            f"from_deepspeed: optimizer {name!r} has no counterpart; known are {sorted(_OPTIMIZERS)}."
        )
    if mapping.name not in ("Adam", "AdamW"):
        return mapping
    is_torch = parameters.pop("torch_adam", False)
    is_decoupled = parameters.pop("adam_w_mode", True) or mapping.name == "AdamW"
    if is_decoupled and is_torch:
        parameters.setdefault("weight_decay", 0.01)
    return _OPTIMIZERS["adamw"] if is_decoupled and parameters.get("weight_decay") else mapping


def _translate_arguments(mapping: _OptimizerMapping, parameters: dict[str, Any]) -> Config:
    """Translate the parameters of a DeepSpeed optimizer into arguments of the Keras class."""
    arguments: dict[str, Any] = {}
    if "betas" in parameters and mapping.name in _WITH_BETAS:
        arguments["beta_1"], arguments["beta_2"] = parameters.pop("betas")
    if "max_grad_norm" in parameters:
        raise InvalidValueError(
            'from_deepspeed: write optimizer.params.max_grad_norm as "gradient_clipping" of the configuration.'
        )
    bounds = sorted({"max_coeff", "min_coeff"} & set(parameters))
    if mapping.name == "Lamb" and bounds:
        raise InvalidValueError(
            f"from_deepspeed: optimizer.params {bounds} bound Lamb's trust ratios, which have no bounds in "
            "tf.keras.optimizers.Lamb. Take them out of the configuration."
        )
    for name in mapping.ignored.split():
        parameters.pop(name, None)
    # A decay that is added to the gradient passes through momentum and scaling, unlike a decoupled
    # one.
    required = (
        {**mapping.required_values, "weight_decay": 0}
        if parameters.get("momentum")
        else mapping.required_values
    )
    for name, value in required.items():
        if name in parameters and parameters[name] != value:
            advice = (
                " Replace a decay that is part of the gradient by kernel_regularizer=tf.keras.regularizers.L2(decay / 2)."
                if name == "weight_decay"
                else ""
            )
            raise InvalidValueError(
                f"from_deepspeed: optimizer.params.{name}={parameters[name]!r} has no counterpart in "
                f"tf.keras.optimizers.{mapping.name}; it must be {value!r}.{advice}"
            )
        if name not in mapping.arguments:
            parameters.pop(name, None)
    names = {"lr": "learning_rate", **mapping.arguments}
    unknown = sorted(set(parameters) - set(names))
    if unknown:
        raise InvalidValueError(
            f"from_deepspeed: optimizer.params has unknown keys {unknown}; those of {mapping.name} are "
            f"{sorted({*names, *required, *(['betas'] if mapping.name in _WITH_BETAS else [])})}."
        )
    return arguments | {names[key]: value for key, value in parameters.items()}
