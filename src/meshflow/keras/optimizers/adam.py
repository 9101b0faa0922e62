"""Adam and its variants: `Adam`, `AdamW`, `Adamax`, `Nadam`, `Lion`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack, cast

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.values.dtypes import DType, DTypeLike
from meshflow.core.values.tensor import Tensor, read_tensor
from meshflow.core.variables.variable import Variable
from meshflow.keras import settings
from meshflow.keras.optimizers import row_updates
from meshflow.keras.optimizers.hooks import ApplyState
from meshflow.keras.optimizers.optimizer_arguments import (
    AveragingArguments,
    LearningRate,
    NadamArguments,
    OptimizerArguments,
)
from meshflow.keras.optimizers.update_rule import RuleOptimizer, Scalars, Slots
from meshflow.kernels import adam as kernel
from meshflow.ops import math


def _subtract_from_one(operands: tuple[Array], static: tuple[np.dtype]) -> Array:
    """Compute 1 - beta for a float64 beta; the difference of a float32 0.999 from 1 has an error of 1e-5."""
    return (1 - operands[0]).astype(static[0])


_difference_from_one = Op("subtract", _subtract_from_one, differentiable=False)


def _get_gain(values: Scalars, name: str) -> Array:
    """Return 1 - beta, the weight of a new value in an average."""
    key = f"one_minus_{name}"
    return values[key] if key in values else _complement(values[name])


def _correct_rate(values: Scalars) -> Array:
    """Compute the learning rate, with bias corrections for averages that start at zero."""
    rate, b1, b2, t = map(values.__getitem__, ("lr_t", "beta_1", "beta_2", "step"))
    dtypes = {getattr(v, "dtype", None) for v in (rate, b1, b2, t)}
    if len(dtypes) > 1 or None in dtypes:
        # Some are numbers, or they are converted.
        return rate * jnp.sqrt(1 - b2**t) / (1 - b1**t)
    # JAX traces `lax` faster than `jax.numpy`.
    root = lax.sqrt(_complement(lax.pow(b2, t)))
    return lax.div(lax.mul(rate, root), _complement(lax.pow(b1, t)))


def _complement(x: Array) -> Array:
    return lax.sub(x.dtype.type(1), x) if isinstance(x, Array) else 1 - x


class Adam(RuleOptimizer):
    """Adam: adaptive moments (Kingma and Ba 2014, arXiv:1412.6980).

    Formula:
      `m = beta_1 * m + (1 - beta_1) * g`, `v = beta_2 * v + (1 - beta_2) * g^2` and
      `w = w - lr * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)`. w is the
      variable, g its gradient, lr the learning rate, t the step count from 1, m and v the initially
      zero averages of gradients and of their squares. With `amsgrad` the largest v so far replaces
      v under the root. `epsilon` is the paper's "epsilon hat", as in TensorFlow.

    Args:
      learning_rate: Number, schedule, or function without arguments.
      beta_1: Decay of the mean gradient.
      beta_2: Decay of the mean square.
      epsilon: Value that is added to the root.
      amsgrad: Whether to use the largest mean square so far (arXiv:1904.09237).
      name: Name of the optimizer.
      **kwargs: Arguments of `Optimizer`.

    Example:
      >>> v = tf.Variable(1.0)
      >>> optimizer = tf.keras.optimizers.Adam(learning_rate=0.1)
      >>> _ = optimizer.minimize(lambda: v * v, [v])
      >>> round(float(v), 3), int(optimizer.iterations)
      (0.9, 1)
    """

    slot_names: tuple[str, ...] = ("m", "v")
    _separate_slots = ("vhat",)
    hyper_names = ("beta_1", "beta_2")
    setting_names = ("epsilon", "amsgrad")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        name: str = "Adam",
        **kwargs: Unpack[OptimizerArguments],
    ) -> None:
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        self._set_hyper("beta_1", beta_1)
        self._set_hyper("beta_2", beta_2)
        self.epsilon = epsilon or settings.epsilon()
        self.amsgrad = amsgrad
        if amsgrad:
            self.slot_names = ("m", "v", "vhat")
        self._by_rows = "all" if amsgrad else "averages"

    def _prepare_local(self, var_device: str, var_dtype: DType, apply_state: ApplyState) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        if self._since_2_11:
            values = apply_state[var_device, var_dtype]
            for name in ("beta_1", "beta_2"):
                beta = read_tensor(self._get_hyper(name))
                difference = apply(_difference_from_one, (beta,), (var_dtype.dtype,))
                values[f"one_minus_{name}"] = difference
                if var_dtype.name == "float64":
                    # As in Keras, the powers are those of a float32.
                    values[name] = math.cast(math.cast(beta, "float32"), var_dtype)

    @staticmethod
    def rule(
        var: Array,
        grad: Array,
        slots: Slots,
        values: Scalars,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
    ) -> list[Array]:
        """Compute the update; see `RuleOptimizer.rule`."""
        if not amsgrad:
            return Adam._update(var, grad, None, slots, values, epsilon)
        m, v = Adam.update_slots(grad, slots, values, epsilon)
        largest = jnp.maximum(slots[2], v)
        return [Adam.update_variable(var, grad, [m, largest], values, epsilon), m, v, largest]

    @staticmethod
    def _update(
        var: Array,
        grad: Array,
        indices: Array | None,
        slots: Slots,
        values: Scalars,
        epsilon: float,
    ) -> list[Array]:
        mean, square = slots
        first, second = _get_gain(values, "beta_1"), _get_gain(values, "beta_2")
        rate = _correct_rate(values)
        return kernel.update_variable(
            var, grad, mean, square, first, second, rate, epsilon, indices
        )

    @classmethod
    def _update_some_rows(
        cls,
        mode: str,
        var: Array,
        grad: Array,
        indices: Array,
        slots: Slots,
        arguments: tuple[Any, ...],
    ) -> list[Array]:
        if mode != "averages" or cls.rule is not Adam.rule:
            return super()._update_some_rows(mode, var, grad, indices, slots, arguments)
        values, epsilon, _ = arguments
        return cls._update(var, grad, row_updates.cast_indices(indices), slots, values, epsilon)

    @staticmethod
    def update_slots(
        grad: Array, slots: Slots, values: Scalars, epsilon: float = 1e-7, amsgrad: bool = False
    ) -> list[Array]:
        """Compute new m and v; see `RuleOptimizer.update_slots`."""
        m = slots[0] + (grad - slots[0]) * _get_gain(values, "beta_1")
        v = slots[1] + (grad * grad - slots[1]) * _get_gain(values, "beta_2")
        return [m, v]

    @staticmethod
    def update_variable(
        var: Array,
        grad: Array,
        slots: Slots,
        values: Scalars,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
    ) -> Array:
        """Compute the new variable from m and the mean square to divide by."""
        return var - _correct_rate(values) * slots[0] / (jnp.sqrt(slots[1]) + epsilon)


class AdamW(Adam):
    """Adam with decoupled weight decay (arXiv:1711.05101).

    Formula:
      `w = w - lr * weight_decay * w`, then the step of `Adam`: `m = beta_1 * m + (1 - beta_1) * g`,
      `v = beta_2 * v + (1 - beta_2) * g^2` and
      `w = w - lr * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)`. w is the
      variable, g its gradient, lr the learning rate, t the step count from 1, m and v the initially
      zero averages of gradients and of their squares.

    Args:
      learning_rate: Number, schedule, or function without arguments.
      weight_decay: Fraction of each weight that is subtracted per step, times the learning rate.
      beta_1: Decay of the mean gradient.
      beta_2: Decay of the mean square.
      epsilon: Value that is added to the root.
      amsgrad: See `Adam`.
      name: Name of the optimizer.
      **kwargs: Arguments of `Optimizer`.

    Raises:
      ValueError: If `weight_decay` is None.

    Example:
      >>> w = tf.Variable(10.0)
      >>> optimizer = tf.keras.optimizers.AdamW(0.1, weight_decay=0.5)
      >>> _ = optimizer.apply_gradients([(tf.constant(0.0), w)])
      >>> float(w)
      9.5
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        name: str = "AdamW",
        **kwargs: Unpack[AveragingArguments],
    ) -> None:
        if weight_decay is None:
            raise ValueError(
                "Missing value of `weight_decay` which is required and must be a float value."
            )
        options: OptimizerArguments = {**kwargs, "weight_decay": weight_decay}
        super().__init__(learning_rate, beta_1, beta_2, epsilon, amsgrad, name, **options)


class Adamax(RuleOptimizer):
    """Adam with the maximum instead of the mean square gradient (arXiv:1412.6980, section 7).

    Formula:
      `m = beta_1 * m + (1 - beta_1) * g`, `u = max(beta_2 * u, |g|)` and
      `w = w - lr / (1 - beta_1^t) * m / (u + epsilon)`. w is the variable, g its gradient, lr the
      learning rate, t the step count from 1, m the mean gradient and u the decaying maximum of
      gradients, both initially zero.

    Args:
      learning_rate: Number, schedule, or function without arguments.
      beta_1: Decay of the mean gradient.
      beta_2: Decay of the maximum gradient.
      epsilon: Value that is added to the divisor.
      name: Name of the optimizer.
      **kwargs: Arguments of `Optimizer`.

    Example:
      >>> w = tf.Variable(1.0)
      >>> _ = tf.keras.optimizers.Adamax(0.25).apply_gradients([(tf.constant(8.0), w)])
      >>> round(float(w), 3)
      0.75
    """

    slot_names = ("m", "v")
    _list_names = {"m": "_m", "v": "_u"}
    _variable_names = {"v": "u"}
    hyper_names = ("beta_1", "beta_2")
    setting_names = ("epsilon",)

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "Adamax",
        **kwargs: Unpack[OptimizerArguments],
    ) -> None:
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        self._set_hyper("beta_1", beta_1)
        self._set_hyper("beta_2", beta_2)
        self.epsilon = epsilon or settings.epsilon()

    @staticmethod
    def rule(
        var: Array, grad: Array, slots: Slots, values: Scalars, epsilon: float = 1e-7
    ) -> list[Array]:
        """Compute the update; see `RuleOptimizer.rule`."""
        b1, b2 = values["beta_1"], values["beta_2"]
        m = slots[0] + (grad - slots[0]) * (1 - b1)
        v = jnp.maximum(b2 * slots[1], jnp.abs(grad))
        return [var - values["lr_t"] / (1 - b1 ** values["step"]) * m / (v + epsilon), m, v]


class Nadam(RuleOptimizer):
    """Adam with Nesterov momentum (Dozat 2016).

    The momentum warms up as `b1 * (1 - 0.5 * 0.96^t)`; in `optimizers.legacy.Nadam`, as in
    TensorFlow until 2.10, as `b1 * (1 - 0.5 * 0.96^(t * 0.004))`.

    Formula:
      `m = beta_1 * m + (1 - beta_1) * g`, `v = beta_2 * v + (1 - beta_2) * g^2` and
      `w = w - lr * a / (sqrt(v / (1 - beta_2^t)) + epsilon)`, where
      `a = (1 - c) * g / (1 - q) + d * m / (1 - q * d)` is the step's direction a. w is the
      variable, g its gradient, lr the learning rate, t the step count from 1, m and v the initially
      zero averages of gradients and of their squares, `c = beta_1 * (1 - 0.5 * 0.96^t)` the
      momentum c of this step, d the momentum of the next step, and q the product of all momenta so
      far.

    Args:
      learning_rate: Number, schedule, or function without arguments.
      beta_1: Decay of the mean gradient.
      beta_2: Decay of the mean square.
      epsilon: Value that is added to the root.
      name: Name of the optimizer.
      **kwargs: Arguments of `Optimizer`, and `schedule_decay`, a factor of the warm-up's steps;
        default 1.

    Example:
      >>> w = tf.Variable(1.0)
      >>> _ = tf.keras.optimizers.Nadam(0.25).apply_gradients([(tf.constant(8.0), w)])
      >>> float(w) < 1.0
      True
    """

    slot_names = ("m", "v")
    hyper_names = ("beta_1", "beta_2")
    setting_names = ("epsilon",)
    _default_decay = 1.0

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "Nadam",
        **kwargs: Unpack[NadamArguments],
    ) -> None:
        # Configurations store the factor of the momentum's warm-up as `decay`.
        factor = kwargs.pop("decay", self._default_decay)
        kwargs["decay"] = kwargs.pop("schedule_decay", factor)
        options = cast(OptimizerArguments, kwargs)
        super().__init__(name, learning_rate=options.pop("lr", learning_rate), **options)
        self._set_hyper("beta_1", beta_1)
        self._set_hyper("beta_2", beta_2)
        self.epsilon = epsilon or settings.epsilon()
        self._momentum_cache: Any = None

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        if self._momentum_cache is None:
            dtype = var_list[0].dtype
            self._momentum_cache = self.add_weight("momentum_cache", (), dtype, "ones")
        super()._create_slots(var_list)

    def set_momentum_product(self, steps: int) -> None:
        """Set the product of momenta for a step count, for files that contain only the step count.

        Args:
          steps: Number of steps taken. The optimizer must be built.
        """
        # The bound protects against step counts in damaged files; by then the product is zero or
        # constant.
        step = np.arange(1, min(steps, 1_000_000) + 1)
        momenta = float(self.beta_1) * (1.0 - 0.5 * 0.96 ** (self._initial_decay * step))
        self._momentum_cache.assign(np.prod(momenta).astype(self._momentum_cache.dtype.dtype))

    def _decayed_lr(self, var_dtype: DTypeLike = "float32") -> Tensor:
        # In this class `decay` belongs to the momentum, not to the learning rate.
        decay, self._initial_decay = self._initial_decay, 0.0
        try:
            return super()._decayed_lr(var_dtype)
        finally:
            self._initial_decay = decay

    def _prepare(self, var_list: Sequence[Variable]) -> ApplyState:
        # All dtypes of a step use the product of the steps before.
        self._product = self._momentum_cache.value()
        return super()._prepare(var_list)

    def _prepare_local(self, var_device: str, var_dtype: DType, apply_state: ApplyState) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        values = apply_state[var_device, var_dtype]
        beta, step = values["beta_1"], values["step"]
        base = math.cast(0.96**self._initial_decay, var_dtype)
        current = beta * (1.0 - 0.5 * math.pow(base, step))
        next_momentum = beta * (1.0 - 0.5 * math.pow(base, step + 1.0))
        product = math.cast(self._product, var_dtype) * current
        self._momentum_cache.assign(math.cast(product, self._momentum_cache.dtype))
        values.update(now=current, following=next_momentum, product=product)

    @staticmethod
    def rule(
        var: Array, grad: Array, slots: Slots, values: Scalars, epsilon: float = 1e-7
    ) -> list[Array]:
        """Compute the update; see `RuleOptimizer.rule`."""
        new = Nadam.update_slots(grad, slots, values, epsilon)
        return [Nadam.update_variable(var, grad, new, values, epsilon), *new]

    @staticmethod
    def update_slots(
        grad: Array, slots: Slots, values: Scalars, epsilon: float = 1e-7
    ) -> list[Array]:
        """Compute new m and v; see `RuleOptimizer.update_slots`."""
        b1, b2 = values["beta_1"], values["beta_2"]
        m = b1 * slots[0] + (1 - b1) * grad
        v = b2 * slots[1] + (1 - b2) * grad * grad
        return [m, v]

    @staticmethod
    def update_variable(
        var: Array, grad: Array, slots: Slots, values: Scalars, epsilon: float = 1e-7
    ) -> Array:
        """Compute the new variable; see `RuleOptimizer.update_variable`."""
        m, v = slots
        now, following, product = values["now"], values["following"], values["product"]
        mean = (1 - now) * grad / (1 - product) + following * m / (1 - product * following)
        root = jnp.sqrt(v / (1 - values["beta_2"] ** values["step"])) + epsilon
        return var - values["lr_t"] * mean / root


class Lion(RuleOptimizer):
    """Steps along the sign of a mean gradient (arXiv:2302.06675).

    Formula:
      `w = w - lr * sign(beta_1 * m + (1 - beta_1) * g)`, then `m = beta_2 * m + (1 - beta_2) * g`.
      w is the variable, g its gradient, lr the learning rate, m the mean gradient, initially zero.

    Args:
      learning_rate: Number, schedule, or function without arguments.
      beta_1: Weight of the mean in the step.
      beta_2: Decay of the mean.
      name: Name of the optimizer.
      **kwargs: Arguments of `Optimizer`.

    Raises:
      ValueError: If `beta_1` is outside (0, 1].

    Example:
      >>> w = tf.Variable([1.0, 1.0])
      >>> _ = tf.keras.optimizers.Lion(0.25).apply_gradients([(tf.constant([100.0, -0.01]), w)])
      >>> w.numpy().tolist()
      [0.75, 1.25]
    """

    slot_names = ("m",)
    hyper_names = ("beta_1", "beta_2")

    def __init__(
        self,
        learning_rate: LearningRate = 0.0001,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        name: str = "Lion",
        **kwargs: Unpack[OptimizerArguments],
    ) -> None:
        if not 0 < beta_1 <= 1:
            raise ValueError(f"`beta_1` must be between ]0, 1]. Received: beta_1={beta_1}.")
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        self._set_hyper("beta_1", beta_1)
        self._set_hyper("beta_2", beta_2)

    @staticmethod
    def rule(var: Array, grad: Array, slots: Slots, values: Scalars) -> list[Array]:
        """Compute the update; see `RuleOptimizer.rule`."""
        b1, b2 = values["beta_1"], values["beta_2"]
        step = jnp.sign(slots[0] * b1 + grad * (1 - b1))
        return [var - values["lr_t"] * step, slots[0] * b2 + grad * (1 - b2)]
