"""Optimizers of the embedding tables of `tf.tpu.experimental.embedding`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.keras import initializers
from meshflow.ops import array, math
from meshflow.raw_ops.training import apply_formula

# A learning rate, or a function that returns it.
RateLike = float | Callable[[], TensorLike]
_CreateSlots = Callable[[Variable, list[str], list[Any]], Any]


class TableOptimizer:
    """Base class of the optimizers of tables.

    Attributes:
      _op: Formula of the update.
      _slots: Argument of the formula, and initial value or attribute, by the name of each slot.
    """

    _op = ""
    _slots: dict[str, tuple[str, Any]] = {}

    def __init__(
        self,
        learning_rate: RateLike,
        use_gradient_accumulation: bool = True,
        clip_weight_min: float | None = None,
        clip_weight_max: float | None = None,
        weight_decay_factor: float | None = None,
        multiply_weight_decay_factor_by_learning_rate: bool | None = None,
        clipvalue: float | tuple[float, float] | None = None,
        slot_variable_creation_fn: _CreateSlots | None = None,
        low_dimensional_packing_status: bool = False,
    ) -> None:
        if not callable(learning_rate) and learning_rate <= 0:
            raise ValueError(
                f"{type(self).__name__}: learning_rate must be positive, got {learning_rate}."
            )
        if multiply_weight_decay_factor_by_learning_rate and weight_decay_factor is None:
            raise ValueError(
                "multiply_weight_decay_factor_by_learning_rate must be False if weight_decay_factor is None."
            )
        self.learning_rate = learning_rate
        self.use_gradient_accumulation = use_gradient_accumulation
        self.clip_weight_min, self.clip_weight_max = clip_weight_min, clip_weight_max
        self.weight_decay_factor = weight_decay_factor
        self.multiply_weight_decay_factor_by_learning_rate = (
            multiply_weight_decay_factor_by_learning_rate
        )
        self.clipvalue = (
            (-clipvalue, clipvalue) if isinstance(clipvalue, (int, float)) else clipvalue
        )
        self.slot_variable_creation_fn = slot_variable_creation_fn
        self.low_dimensional_packing_status = low_dimensional_packing_status

    def create_slots(self, table: Variable) -> dict[str, Variable]:
        """Return the slots of a table by name."""
        values = {
            n: getattr(self, v) if isinstance(v, str) else v for n, (_, v) in self._slots.items()
        }
        if self.slot_variable_creation_fn is not None:
            makers = [initializers.Constant(v) for v in values.values()]
            made = self.slot_variable_creation_fn(table, list(values), makers)
            return dict(made) if isinstance(made, Mapping) else dict(zip(values, made, strict=True))
        return {
            name: Variable(
                array.fill(table.shape, math.cast(value, table.dtype)), trainable=False, name=name
            )
            for name, value in values.items()
        }

    def _list_options(self, rate: TensorLike) -> dict[str, Any]:
        return {"lr": rate}

    def apply(
        self, table: Variable, slots: Mapping[str, Variable], rows: Tensor, gradient: Tensor
    ) -> None:
        """Update rows of a table."""
        rate = self.learning_rate() if callable(self.learning_rate) else self.learning_rate
        if self.clipvalue is not None:
            low, high = (
                (-float("inf") if i == 0 else float("inf")) if v is None else v
                for i, v in enumerate(self.clipvalue)
            )
            gradient = math.clip_by_value(gradient, low, high)
        if self.weight_decay_factor is not None:
            factor = self.weight_decay_factor
            if self.multiply_weight_decay_factor_by_learning_rate:
                factor = factor * rate
            gradient = gradient + factor * array.gather(table, rows)
        arguments = {self._slots[name][0]: slot for name, slot in slots.items()}
        name = "delta" if self._op == "GradientDescent" else "grad"
        apply_formula(
            self._op, rows, var=table, **arguments, **self._list_options(rate), **{name: gradient}
        )
        if self.clip_weight_min is not None or self.clip_weight_max is not None:
            low = -float("inf") if self.clip_weight_min is None else self.clip_weight_min
            high = float("inf") if self.clip_weight_max is None else self.clip_weight_max
            values = math.clip_by_value(array.gather(table, rows), low, high)
            table.scatter_update(IndexedSlices(values, rows))


class SGD(TableOptimizer):
    """Gradient descent.

    Args:
      learning_rate: Positive number, or a function without arguments.
      use_gradient_accumulation: Ignored: gradients of a row are always summed.
      clip_weight_min: Smallest weight.
      clip_weight_max: Largest weight.
      weight_decay_factor: Factor of the weights that are added to their gradients.
      multiply_weight_decay_factor_by_learning_rate: Whether the factor is multiplied by the learning rate.
      clipvalue: Largest absolute value of a gradient, or a pair of bounds.
      low_dimensional_packing_status: Ignored.
    """

    _op = "GradientDescent"

    def __init__(
        self,
        learning_rate: RateLike = 0.01,
        use_gradient_accumulation: bool = True,
        clip_weight_min: float | None = None,
        clip_weight_max: float | None = None,
        weight_decay_factor: float | None = None,
        multiply_weight_decay_factor_by_learning_rate: bool | None = None,
        clipvalue: float | tuple[float, float] | None = None,
        low_dimensional_packing_status: bool = False,
    ) -> None:
        super().__init__(
            learning_rate,
            use_gradient_accumulation,
            clip_weight_min,
            clip_weight_max,
            weight_decay_factor,
            multiply_weight_decay_factor_by_learning_rate,
            clipvalue,
            low_dimensional_packing_status=low_dimensional_packing_status,
        )

    def _list_options(self, rate: TensorLike) -> dict[str, Any]:
        return {"alpha": rate}


class Adagrad(TableOptimizer):
    """Adagrad; further arguments as in `SGD`.

    Args:
      learning_rate: Positive number, or a function without arguments.
      initial_accumulator_value: First value of the sum of squares.
      **kwargs: Other arguments, and `slot_variable_creation_fn`.
    """

    _op, _slots = "Adagrad", {"accumulators": ("accum", "initial_accumulator_value")}

    def __init__(
        self, learning_rate: RateLike = 0.001, initial_accumulator_value: float = 0.1, **kwargs: Any
    ) -> None:
        super().__init__(learning_rate, **kwargs)
        if initial_accumulator_value <= 0:
            raise ValueError(
                f"initial_accumulator_value must be positive, got {initial_accumulator_value}."
            )
        self.initial_accumulator_value = initial_accumulator_value


class AdagradMomentum(TableOptimizer):
    """Adagrad with momentum of the scaled gradients; further arguments as in `SGD`.

    Args:
      learning_rate: Positive number, or a function without arguments.
      momentum: Decay of the momentum.
      use_nesterov: Whether the update anticipates the momentum.
      exponent: Root of the sum; only 2 is available.
      beta2: Decay of the sum of squares; 1 for a sum.
      epsilon: Added to the sum of squares.
      **kwargs: Other arguments, and `slot_variable_creation_fn`.
    """

    _slots = {"accumulators": ("accum", 0.0), "momenta": ("mom", 0.0)}

    def __init__(
        self,
        learning_rate: RateLike = 0.001,
        momentum: float = 0.0,
        use_nesterov: bool = False,
        exponent: float = 2,
        beta2: float = 1,
        epsilon: float = 1e-10,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, **kwargs)
        if exponent <= 0:
            raise ValueError("Precondition exponent must >0")
        self.momentum, self.use_nesterov, self.exponent = momentum, use_nesterov, exponent
        self.beta2, self.epsilon = beta2, epsilon

    def apply(
        self, table: Variable, slots: Mapping[str, Variable], rows: Tensor, gradient: Tensor
    ) -> None:
        """Update rows of a table."""
        rate = self.learning_rate() if callable(self.learning_rate) else self.learning_rate
        accum, mom = (array.gather(slots[name], rows) for name in ("accumulators", "momenta"))
        square = math.pow(math.abs(gradient), self.exponent)
        accum = (
            accum + square if self.beta2 == 1 else accum * self.beta2 + square * (1 - self.beta2)
        )
        scaled = gradient / math.pow(accum + self.epsilon, 1 / self.exponent)
        mom = mom * self.momentum + scaled
        step = scaled + self.momentum * mom if self.use_nesterov else mom
        for variable, value in (
            (slots["accumulators"], accum),
            (slots["momenta"], mom),
            (table, array.gather(table, rows) - rate * step),
        ):
            variable.scatter_update(IndexedSlices(value, rows))


class Adam(TableOptimizer):
    """Adam, which updates only the rows of a batch; further arguments as in `SGD`.

    Args:
      learning_rate: Positive number, or a function without arguments.
      beta_1: Decay of the averages of gradients.
      beta_2: Decay of the averages of squares.
      epsilon: Added to the root.
      lazy_adam: Ignored: other rows are never updated.
      sum_inside_sqrt: Ignored.
      **kwargs: Other arguments, and `slot_variable_creation_fn`.
    """

    _op, _slots = "Adam", {"momenta": ("m", 0.0), "velocities": ("v", 0.0)}

    def __init__(
        self,
        learning_rate: RateLike = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        lazy_adam: bool = True,
        sum_inside_sqrt: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, **kwargs)
        if not 0 <= beta_1 < 1 or not 0 <= beta_2 < 1 or epsilon <= 0:
            raise ValueError(
                f"Adam: expected 0 <= beta < 1 and epsilon > 0, got {beta_1}, {beta_2}, {epsilon}."
            )
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.lazy_adam, self.sum_inside_sqrt = lazy_adam, sum_inside_sqrt
        self._step: Variable | None = None

    def _list_options(self, rate: TensorLike) -> dict[str, Any]:
        step = 1.0 if self._step is None else math.cast(self._step, "float32")
        powers = {
            f"beta{i}_power": math.pow(b, step) for i, b in ((1, self.beta_1), (2, self.beta_2))
        }
        return {
            "lr": rate,
            "beta1": self.beta_1,
            "beta2": self.beta_2,
            "epsilon": self.epsilon,
            **powers,
        }

    def create_slots(self, table: Variable) -> dict[str, Variable]:
        """Create the moments of a table, and the step that all tables share."""
        self._step = self._step or Variable(0, trainable=False, name="step")
        return super().create_slots(table)


class FTRL(TableOptimizer):
    """FTRL; further arguments as in `SGD`.

    Args:
      learning_rate: Positive number, or a function without arguments.
      learning_rate_power: Power of the sum of squares, not positive.
      l1_regularization_strength: Factor of the absolute values.
      l2_regularization_strength: Factor of the squares.
      beta: Smoothing of the learning rate.
      initial_accumulator_value: First value of the sum of squares.
      **kwargs: Other arguments, and `slot_variable_creation_fn`.
    """

    _op = "Ftrl"
    _slots = {"accumulators": ("accum", "initial_accumulator_value"), "linears": ("linear", 0.0)}

    def __init__(
        self,
        learning_rate: RateLike = 0.001,
        learning_rate_power: float = -0.5,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        beta: float = 0.0,
        initial_accumulator_value: float = 0.1,
        **kwargs: Any,
    ) -> None:
        for name in ("multiply_linear_by_learning_rate", "allow_zero_accumulator"):
            setattr(self, name, kwargs.pop(name, False))
        super().__init__(learning_rate, **kwargs)
        self.learning_rate_power, self.beta = learning_rate_power, beta
        self.l1_regularization_strength = l1_regularization_strength
        self.l2_regularization_strength = l2_regularization_strength
        self.initial_accumulator_value = initial_accumulator_value

    def _list_options(self, rate: TensorLike) -> dict[str, Any]:
        l2 = self.l2_regularization_strength + (self.beta / (2 * rate) if self.beta else 0.0)
        return {
            "lr": rate,
            "lr_power": self.learning_rate_power,
            "l1": self.l1_regularization_strength,
            "l2": l2,
        }
