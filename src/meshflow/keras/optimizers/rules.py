"""The optimizers. Each rule is a pure function of arrays; formulas follow the papers named."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from meshflow.keras import backend
from meshflow.keras.optimizers.base import Optimizer

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lion",
    "Nadam",
    "RMSprop",
]


class SGD(Optimizer):
    """Gradient descent with momentum: `v = m * v - lr * g; w = w + v`.

    Args:
      learning_rate: number, function, or schedule.
      momentum: 0 for none.
      nesterov: whether the step looks ahead: `w = w + m * v - lr * g`.
      name: the optimizer's name.
      **kwargs: arguments of `Optimizer`.

    Example:
      >>> import meshflow as tf
      >>> v = tf.Variable(1.0)
      >>> _ = tf.keras.optimizers.SGD(0.1).apply_gradients([(tf.constant(1.0), v)])
      >>> round(float(v), 4)
      0.9
    """

    hyper_names = ("momentum",)
    _default_learning_rate = 0.01

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        name: str = "SGD",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        if isinstance(momentum, (int, float)) and not 0 <= momentum <= 1:
            raise ValueError(
                f"`momentum` must be between [0, 1]. Received: momentum={momentum} (of type {type(momentum)})."
            )
        self._uses_momentum = callable(momentum) or hasattr(momentum, "numpy") or momentum > 0
        self._set_hyper("momentum", momentum)
        self.nesterov = nesterov
        if self._uses_momentum:
            self.slot_names = ("momentum",)

    def _rule_settings(self) -> tuple[Any, ...]:
        return self._uses_momentum, self.nesterov

    @staticmethod
    def rule(
        var: Any,
        grad: Any,
        slots: Any,
        values: dict[str, Any],
        uses_momentum: bool = False,
        nesterov: bool = False,
    ) -> list[Any]:  # type: ignore[override]
        """The update."""
        step = values["lr"] * grad
        if not uses_momentum:
            return [var - step]
        velocity = values["momentum"] * slots[0] - step
        return [var + (values["momentum"] * velocity - step if nesterov else velocity), velocity]

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "nesterov": self.nesterov}


class RMSprop(Optimizer):
    """Steps divided by a running root mean square of gradients (Tieleman and Hinton 2012).

    Args:
      learning_rate: number, function, or schedule.
      rho: decay of the mean square.
      momentum: 0 for none.
      epsilon: added under the root.
      centered: whether the mean is subtracted, so that the divisor is a standard deviation.
      name: the optimizer's name.
      **kwargs: arguments of `Optimizer`.
    """

    hyper_names = ("rho", "momentum")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        name: str = "RMSprop",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        self._set_hyper("rho", rho)
        self._set_hyper("momentum", momentum)
        self.epsilon = backend.epsilon() if epsilon is None else epsilon
        self.centered = centered
        self._uses_momentum = bool(momentum)
        self.slot_names = (
            "rms",
            *(("momentum",) if momentum else ()),
            *(("mg",) if centered else ()),
        )

    def _rule_settings(self) -> tuple[Any, ...]:
        return self.epsilon, self.centered, self._uses_momentum

    @staticmethod
    def rule(
        var: Any,
        grad: Any,
        slots: Any,
        values: dict[str, Any],
        epsilon: float = 1e-7,
        centered: bool = False,
        uses_momentum: bool = False,
    ) -> list[Any]:  # type: ignore[override]
        """The update."""
        rho = values["rho"]
        rms = rho * slots[0] + (1 - rho) * grad * grad
        new = [rms]
        under = rms
        mean = None
        if centered:
            mean = rho * slots[-1] + (1 - rho) * grad
            under = rms - mean * mean
        if uses_momentum:
            velocity = values["momentum"] * slots[1] + values["lr"] * grad / jnp.sqrt(
                under + epsilon
            )
            new.append(velocity)
            step = velocity
        else:
            # Without momentum TensorFlow adds epsilon to the root, not under it.
            step = values["lr"] * grad / (jnp.sqrt(under) + epsilon)
        return [var - step, *new, *([mean] if centered else [])]

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "epsilon": self.epsilon, "centered": self.centered}


class Adam(Optimizer):
    """Adaptive moments (Kingma and Ba 2014, arXiv:1412.6980).

    `w -= lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + epsilon)`: epsilon is the paper's
    "epsilon hat", as in TensorFlow.

    Args:
      learning_rate: number, function, or schedule.
      beta_1: decay of the mean gradient.
      beta_2: decay of the mean square.
      epsilon: added to the root.
      amsgrad: whether the largest mean square so far is used (arXiv:1904.09237).
      name: the optimizer's name.
      **kwargs: arguments of `Optimizer`.
    """

    hyper_names = ("beta_1", "beta_2")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        name: str = "Adam",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        self._set_hyper("beta_1", beta_1)
        self._set_hyper("beta_2", beta_2)
        self.epsilon = backend.epsilon() if epsilon is None else epsilon
        self.amsgrad = amsgrad
        self.slot_names = ("m", "v", "vhat") if amsgrad else ("m", "v")

    def _rule_settings(self) -> tuple[Any, ...]:
        return self.epsilon, self.amsgrad

    @staticmethod
    def rule(
        var: Any,
        grad: Any,
        slots: Any,
        values: dict[str, Any],
        epsilon: float = 1e-7,
        amsgrad: bool = False,
    ) -> list[Any]:  # type: ignore[override]
        """The update."""
        b1, b2, t = values["beta_1"], values["beta_2"], values["step"]
        rate = values["lr"] * jnp.sqrt(1 - b2**t) / (1 - b1**t)
        m = slots[0] + (grad - slots[0]) * (1 - b1)
        v = slots[1] + (grad * grad - slots[1]) * (1 - b2)
        largest = jnp.maximum(slots[2], v) if amsgrad else v
        new = var - rate * m / (jnp.sqrt(largest) + epsilon)
        return [new, m, v, largest] if amsgrad else [new, m, v]

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "epsilon": self.epsilon, "amsgrad": self.amsgrad}


class AdamW(Adam):
    """Adam with decoupled weight decay (arXiv:1711.05101).

    Args:
      learning_rate: number, function, or schedule.
      weight_decay: share of each weight subtracted per step, times the learning rate.
      beta_1: decay of the mean gradient.
      beta_2: decay of the mean square.
      epsilon: added to the root.
      amsgrad: see `Adam`.
      name: the optimizer's name.
      **kwargs: arguments of `Optimizer`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        name: str = "AdamW",
        **kwargs: Any,
    ) -> None:
        if weight_decay is None:
            raise ValueError(
                "Missing value of `weight_decay` which is required and must be a float value."
            )
        super().__init__(
            learning_rate,
            beta_1,
            beta_2,
            epsilon,
            amsgrad,
            name,
            weight_decay=weight_decay,
            **kwargs,
        )


class Adamax(Optimizer):
    """Adam with the largest instead of the root mean square gradient (arXiv:1412.6980, section 7).

    Args:
      learning_rate: number, function, or schedule.
      beta_1: decay of the mean gradient.
      beta_2: decay of the largest gradient.
      epsilon: added to the divisor.
      name: the optimizer's name.
      **kwargs: arguments of `Optimizer`.
    """

    slot_names = ("m", "v")
    hyper_names = ("beta_1", "beta_2")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "Adamax",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        self._set_hyper("beta_1", beta_1)
        self._set_hyper("beta_2", beta_2)
        self.epsilon = epsilon

    def _rule_settings(self) -> tuple[Any, ...]:
        return (self.epsilon,)

    @staticmethod
    def rule(
        var: Any, grad: Any, slots: Any, values: dict[str, Any], epsilon: float = 1e-7
    ) -> list[Any]:  # type: ignore[override]
        """The update."""
        b1, b2 = values["beta_1"], values["beta_2"]
        m = slots[0] + (grad - slots[0]) * (1 - b1)
        v = jnp.maximum(b2 * slots[1], jnp.abs(grad))
        return [var - values["lr"] / (1 - b1 ** values["step"]) * m / (v + epsilon), m, v]

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "epsilon": self.epsilon}


class Nadam(Adamax):
    """Adam with Nesterov momentum (Dozat 2016); arguments as `Adamax`."""

    slot_names = ("m", "v")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "Nadam",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name, **kwargs)
        self._schedule: Any = None

    def _step_values(self, dtype: Any) -> dict[str, Any]:
        values = super()._step_values(dtype)
        if self._schedule is None:
            self._schedule = self.add_variable((), "float32", "ones", "m_schedule")
        t = values["step"]
        b1 = values["beta_1"]
        from meshflow.ops import math

        now = b1 * (1.0 - 0.5 * math.pow(0.96, 0.004 * t))
        following = b1 * (1.0 - 0.5 * math.pow(0.96, 0.004 * (t + 1.0)))
        product = math.cast(self._schedule.value(), dtype) * now
        self._schedule.assign(math.cast(product, "float32"))
        return {**values, "now": now, "following": following, "product": product}

    @staticmethod
    def rule(
        var: Any, grad: Any, slots: Any, values: dict[str, Any], epsilon: float = 1e-7
    ) -> list[Any]:  # type: ignore[override]
        """The update."""
        b1, b2 = values["beta_1"], values["beta_2"]
        now, following, product = values["now"], values["following"], values["product"]
        m = b1 * slots[0] + (1 - b1) * grad
        v = b2 * slots[1] + (1 - b2) * grad * grad
        mean = (1 - now) * grad / (1 - product) + following * m / (1 - product * following)
        return [
            var - values["lr"] * mean / (jnp.sqrt(v / (1 - b2 ** values["step"])) + epsilon),
            m,
            v,
        ]


class Adagrad(Optimizer):
    """Steps divided by the root of all squared gradients so far (Duchi et al. 2011).

    Args:
      learning_rate: number, function, or schedule.
      initial_accumulator_value: start of the sum.
      epsilon: added to the root.
      name: the optimizer's name.
      **kwargs: arguments of `Optimizer`.
    """

    slot_names = ("accumulator",)

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        name: str = "Adagrad",
        **kwargs: Any,
    ) -> None:
        if initial_accumulator_value < 0:
            raise ValueError(
                f"initial_accumulator_value must be non-negative: {initial_accumulator_value}"
            )
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        self.initial_accumulator_value, self.epsilon = initial_accumulator_value, epsilon

    def _slot_initializer(self, name: str) -> Any:
        from meshflow.keras.initializers import Constant

        return Constant(self.initial_accumulator_value)

    def _rule_settings(self) -> tuple[Any, ...]:
        return (self.epsilon,)

    @staticmethod
    def rule(
        var: Any, grad: Any, slots: Any, values: dict[str, Any], epsilon: float = 1e-7
    ) -> list[Any]:  # type: ignore[override]
        """The update."""
        total = slots[0] + grad * grad
        return [var - values["lr"] * grad / (jnp.sqrt(total) + epsilon), total]

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            **super().get_config(),
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }


class Adadelta(Optimizer):
    """Steps scaled by past steps over past gradients (arXiv:1212.5701).

    Args:
      learning_rate: number, function, or schedule.
      rho: decay of both means.
      epsilon: added under the roots.
      name: the optimizer's name.
      **kwargs: arguments of `Optimizer`.
    """

    slot_names = ("accum_grad", "accum_var")
    hyper_names = ("rho",)

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.95,
        epsilon: float = 1e-7,
        name: str = "Adadelta",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        self._set_hyper("rho", rho)
        self.epsilon = epsilon

    def _rule_settings(self) -> tuple[Any, ...]:
        return (self.epsilon,)

    @staticmethod
    def rule(
        var: Any, grad: Any, slots: Any, values: dict[str, Any], epsilon: float = 1e-7
    ) -> list[Any]:  # type: ignore[override]
        """The update."""
        rho = values["rho"]
        squares = rho * slots[0] + (1 - rho) * grad * grad
        step = jnp.sqrt(slots[1] + epsilon) / jnp.sqrt(squares + epsilon) * grad
        steps = rho * slots[1] + (1 - rho) * step * step
        return [var - values["lr"] * step, squares, steps]

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "epsilon": self.epsilon}


class Ftrl(Optimizer):
    """Follow the regularized leader (McMahan et al. 2013).

    Args:
      learning_rate: number, function, or schedule.
      learning_rate_power: power of the accumulated squares, not positive.
      initial_accumulator_value: start of the squares.
      l1_regularization_strength: L1 penalty.
      l2_regularization_strength: L2 penalty.
      name: the optimizer's name.
      l2_shrinkage_regularization_strength: L2 penalty on the gradient only.
      beta: added to the root.
      **kwargs: arguments of `Optimizer`.
    """

    slot_names = ("accumulator", "linear")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        name: str = "Ftrl",
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        **kwargs: Any,
    ) -> None:
        if (
            initial_accumulator_value < 0
            or learning_rate_power > 0
            or l1_regularization_strength < 0
            or l2_regularization_strength < 0
        ):
            raise ValueError(
                "Ftrl: initial_accumulator_value and the regularization strengths must not be negative, learning_rate_power not positive."
            )
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        self.learning_rate_power, self.initial_accumulator_value = (
            learning_rate_power,
            initial_accumulator_value,
        )
        self.l1_regularization_strength, self.l2_regularization_strength = (
            l1_regularization_strength,
            l2_regularization_strength,
        )
        self.l2_shrinkage_regularization_strength, self.beta = (
            l2_shrinkage_regularization_strength,
            beta,
        )

    def _slot_initializer(self, name: str) -> Any:
        from meshflow.keras.initializers import Constant

        return Constant(self.initial_accumulator_value if name == "accumulator" else 0.0)

    def _rule_settings(self) -> tuple[Any, ...]:
        return (
            self.learning_rate_power,
            self.l1_regularization_strength,
            self.l2_regularization_strength,
            self.l2_shrinkage_regularization_strength,
            self.beta,
        )

    @staticmethod
    def rule(
        var: Any,
        grad: Any,
        slots: Any,
        values: dict[str, Any],
        power: float = -0.5,
        l1: float = 0.0,
        l2: float = 0.0,
        shrinkage: float = 0.0,
        beta: float = 0.0,
    ) -> list[Any]:  # type: ignore[override]
        """The update."""
        lr = values["lr"]
        l2 = l2 + beta / (2 * lr)
        shrunk = grad + 2 * shrinkage * var
        total = slots[0] + grad * grad
        sigma = (total ** (-power) - slots[0] ** (-power)) / lr
        linear = slots[1] + shrunk - sigma * var
        quadratic = total ** (-power) / lr + 2 * l2
        clipped = jnp.clip(linear, -l1, l1)
        return [(clipped - linear) / quadratic, total, linear]

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        own = (
            "learning_rate_power",
            "initial_accumulator_value",
            "l1_regularization_strength",
            "l2_regularization_strength",
            "l2_shrinkage_regularization_strength",
            "beta",
        )
        return {**super().get_config(), **{k: getattr(self, k) for k in own}}


class Lion(Optimizer):
    """Steps along the sign of a mean gradient (arXiv:2302.06675).

    Args:
      learning_rate: number, function, or schedule.
      beta_1: weight of the mean in the step.
      beta_2: decay of the mean.
      name: the optimizer's name.
      **kwargs: arguments of `Optimizer`.
    """

    slot_names = ("momentum",)
    hyper_names = ("beta_1", "beta_2")

    def __init__(
        self,
        learning_rate: Any = 0.0001,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        name: str = "Lion",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        self._set_hyper("beta_1", beta_1)
        self._set_hyper("beta_2", beta_2)

    @staticmethod
    def rule(var: Any, grad: Any, slots: Any, values: dict[str, Any]) -> list[Any]:  # type: ignore[override]
        """The update."""
        b1, b2 = values["beta_1"], values["beta_2"]
        step = jnp.sign(slots[0] * b1 + grad * (1 - b1))
        return [var - values["lr"] * step, slots[0] * b2 + grad * (1 - b2)]
