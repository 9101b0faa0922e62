"""Schedules of `tf.compat.v1.train`: functions of the global step, computed at each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from meshflow.core.runtime.eager import executing_eagerly
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.legacy.compat.public_package import tf

__all__ = [
    "cosine_decay",
    "cosine_decay_restarts",
    "exponential_decay",
    "inverse_time_decay",
    "linear_cosine_decay",
    "natural_exp_decay",
    "noisy_linear_cosine_decay",
    "piecewise_constant",
    "piecewise_constant_decay",
    "polynomial_decay",
]

# A step: a number, a variable, or a function that returns it.
StepLike: TypeAlias = Any
_Rate = Tensor | Callable[[], Tensor]


def _evaluate(schedule: Callable[[TensorLike], Tensor], step: StepLike) -> Any:
    """Return a function of no arguments in eager execution, and the rate in functions."""
    if executing_eagerly():
        return lambda: schedule(tf.convert_to_tensor(step() if callable(step) else step))
    return schedule(tf.convert_to_tensor(step))


def exponential_decay(
    learning_rate: TensorLike,
    global_step: StepLike,
    decay_steps: TensorLike,
    decay_rate: TensorLike,
    staircase: bool = False,
    name: str | None = None,
) -> _Rate:
    """Compute `learning_rate * decay_rate ^ (global_step / decay_steps)`.

    Example:
      >>> rate = tf.compat.v1.train.exponential_decay(0.5, tf.Variable(4), 2, 0.5)
      >>> float(rate())
      0.125
    """
    schedules = tf.keras.optimizers.schedules
    return _evaluate(
        schedules.ExponentialDecay(learning_rate, decay_steps, decay_rate, staircase), global_step
    )


def natural_exp_decay(
    learning_rate: TensorLike,
    global_step: StepLike,
    decay_steps: TensorLike,
    decay_rate: TensorLike,
    staircase: bool = False,
    name: str | None = None,
) -> _Rate:
    """Compute `learning_rate * exp(-decay_rate * global_step / decay_steps)`."""
    return exponential_decay(
        learning_rate, global_step, decay_steps, tf.exp(-tf.cast(decay_rate, tf.float32)), staircase
    )


def inverse_time_decay(
    learning_rate: TensorLike,
    global_step: StepLike,
    decay_steps: TensorLike,
    decay_rate: TensorLike,
    staircase: bool = False,
    name: str | None = None,
) -> _Rate:
    """Compute `learning_rate / (1 + decay_rate * global_step / decay_steps)`."""
    schedules = tf.keras.optimizers.schedules
    return _evaluate(
        schedules.InverseTimeDecay(learning_rate, decay_steps, decay_rate, staircase), global_step
    )


def polynomial_decay(
    learning_rate: TensorLike,
    global_step: StepLike,
    decay_steps: TensorLike,
    end_learning_rate: TensorLike = 0.0001,
    power: TensorLike = 1.0,
    cycle: bool = False,
    name: str | None = None,
) -> _Rate:
    """Decay to `end_learning_rate` in `decay_steps` by a power of the remaining fraction."""
    schedules = tf.keras.optimizers.schedules
    schedule = schedules.PolynomialDecay(
        learning_rate, decay_steps, end_learning_rate, power, cycle
    )
    return _evaluate(schedule, global_step)


def piecewise_constant(
    x: Any, boundaries: Sequence[TensorLike], values: Sequence[TensorLike], name: str | None = None
) -> _Rate:
    """Return `values[i]` while the step is at most `boundaries[i]`, then the last value."""
    return _evaluate(tf.keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, values), x)


piecewise_constant_decay = piecewise_constant


def cosine_decay(
    learning_rate: TensorLike,
    global_step: StepLike,
    decay_steps: TensorLike,
    alpha: TensorLike = 0.0,
    name: str | None = None,
) -> _Rate:
    """Decay to `alpha * learning_rate` by half a cosine."""
    return _evaluate(
        tf.keras.optimizers.schedules.CosineDecay(learning_rate, decay_steps, alpha), global_step
    )


def cosine_decay_restarts(
    learning_rate: TensorLike,
    global_step: StepLike,
    first_decay_steps: TensorLike,
    t_mul: TensorLike = 2.0,
    m_mul: TensorLike = 1.0,
    alpha: TensorLike = 0.0,
    name: str | None = None,
) -> _Rate:
    """Decay by half cosines that restart after longer and longer periods."""
    schedules = tf.keras.optimizers.schedules
    schedule = schedules.CosineDecayRestarts(learning_rate, first_decay_steps, t_mul, m_mul, alpha)
    return _evaluate(schedule, global_step)


def linear_cosine_decay(
    learning_rate: TensorLike,
    global_step: StepLike,
    decay_steps: TensorLike,
    num_periods: float = 0.5,
    alpha: float = 0.0,
    beta: float = 0.001,
    name: str | None = None,
) -> _Rate:
    """Compute `learning_rate * ((alpha + linear) * cosine + beta)` of linear and cosine decays."""
    return _decay_noisily(learning_rate, global_step, decay_steps, None, num_periods, alpha, beta)


def noisy_linear_cosine_decay(
    learning_rate: TensorLike,
    global_step: StepLike,
    decay_steps: TensorLike,
    initial_variance: float = 1.0,
    variance_decay: float = 0.55,
    num_periods: float = 0.5,
    alpha: float = 0.0,
    beta: float = 0.001,
    name: str | None = None,
) -> _Rate:
    """Decay as `linear_cosine_decay`, with noise of variance `initial_variance / (1 + step) ^ variance_decay`."""
    noise = (initial_variance, variance_decay)
    return _decay_noisily(learning_rate, global_step, decay_steps, noise, num_periods, alpha, beta)


def _decay_noisily(
    learning_rate: TensorLike,
    global_step: StepLike,
    decay_steps: TensorLike,
    noise: tuple[float, float] | None,
    num_periods: float,
    alpha: float,
    beta: float,
) -> _Rate:
    def schedule(step: TensorLike) -> Tensor:
        rate = tf.convert_to_tensor(learning_rate)
        total = tf.cast(decay_steps, rate.dtype)
        step = tf.minimum(tf.cast(step, rate.dtype), total)
        linear = (total - step) / total
        if noise is not None:
            deviation = tf.sqrt(noise[0] / (1 + step) ** noise[1])
            linear += tf.random.normal(linear.shape, stddev=deviation)
        cosine = 0.5 * (1 + tf.cos(3.141592653589793 * 2 * num_periods * step / total))
        return rate * ((alpha + linear) * cosine + beta)

    return _evaluate(schedule, global_step)
