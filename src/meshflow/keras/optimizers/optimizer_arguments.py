"""Types of the arguments of optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import numpy as np

from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.keras.optimizers.learning_rate_schedule import LearningRateSchedule

if TYPE_CHECKING:
    from meshflow.placement.mesh import Mesh

# A number, a schedule, or a function without arguments.
LearningRate: TypeAlias = (
    float | np.generic | Tensor | Variable | LearningRateSchedule | Callable[[], Any]
)


class ClippingArguments(TypedDict, total=False):
    """Arguments that all optimizers pass to `Optimizer` by `**kwargs`."""

    lr: LearningRate
    decay: float
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    mesh: Mesh | None
    is_legacy_optimizer: bool
    jit_compile: bool


class BaseOptimizerArguments(ClippingArguments, total=False):
    """Further arguments of `Optimizer`."""

    learning_rate: LearningRate


class AveragingArguments(ClippingArguments, total=False):
    """Further arguments of optimizers that declare `weight_decay`."""

    gradient_aggregator: Callable[[Any], Any] | None
    gradient_transformers: Sequence[Callable[[Any], Any]] | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    gradient_accumulation_steps: int | None


class OptimizerArguments(AveragingArguments, total=False):
    """Further arguments of optimizers."""

    weight_decay: float | None


class NadamArguments(OptimizerArguments, total=False):
    """Further arguments of `Nadam`."""

    schedule_decay: float
