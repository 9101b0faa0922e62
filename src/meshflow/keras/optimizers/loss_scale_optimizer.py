"""`LossScaleOptimizer`: scale the loss, so that small float16 gradients do not underflow.

The loss is multiplied by a scale before gradients are computed, and gradients are divided by it. A
step with a gradient that is not finite changes only the scale, the step count and the count of
skipped steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeVar, cast

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.gradients.tape import GradientTape, suspend_tapes
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.stage_buffers import get_storage
from meshflow.distribute.strategy import get_strategy
from meshflow.environment.signatures import ConstructorSignature
from meshflow.environment.types import PyTree
from meshflow.keras import registry, serialization
from meshflow.keras.optimizers import loss_scale as scales
from meshflow.keras.optimizers.hooks import check_gradient_rows
from meshflow.keras.optimizers.loss_scale import ScaleState, are_finite
from meshflow.keras.optimizers.wrapping_optimizer import (
    CheckpointNode,
    WrappingOptimizer,
    check_inner_optimizer,
)
from meshflow.ops import array, math

_log = logging.getLogger("meshflow")
_T = TypeVar("_T")


class LossScaleOptimizer(WrappingOptimizer):
    """Optimizer that scales the loss for another optimizer, by default with a dynamic scale.

    Formula:
      `g = h / s`, where h is the gradient of the scaled loss `s * loss`, loss the loss, g the
      gradient that the inner optimizer applies, and s the scale: `s = 2 * s` after
      `dynamic_growth_steps` consecutive steps with finite gradients, `s = s / 2` after a step with
      other gradients, which changes nothing else (Micikevicius et al. 2018, arXiv:1710.03740).

    Args:
      inner_optimizer: The optimizer that updates variables.
      dynamic: Whether the scale changes; a fixed one requires `initial_scale`.
      initial_scale: The initial scale; default 2**15.
      dynamic_growth_steps: Number of steps with finite gradients after which the scale doubles;
        default 2000.

    Attributes:
      inner_optimizer: The wrapped optimizer.
      skipped_steps: Number of skipped steps, an int64 variable.

    Raises:
      TypeError: If `inner_optimizer` is no optimizer or scales losses already, or `dynamic` is no
        bool.
      ValueError: If settings exclude each other, or the current strategy has no loss scaling (TPUs,
        central storage).

    Example:
      >>> optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.25))
      >>> v = tf.Variable(1.0)
      >>> with tf.GradientTape() as tape:
      ...     loss = v * v
      ...     scaled_loss = optimizer.get_scaled_loss(loss)
      >>> scaled = tape.gradient(scaled_loss, [v])
      >>> gradients = optimizer.get_unscaled_gradients(scaled)
      >>> _ = optimizer.apply_gradients(zip(gradients, [v]))
      >>> float(v)
      0.5
    """

    _OWN_ATTRIBUTES = frozenset(
        ("_optimizer", "_state", "_dynamic", "_initial", "_growth", "_warned")
    )

    __signature__ = ConstructorSignature()

    def __new__(cls, inner_optimizer: Any = None, *_: Any, **__: Any) -> Self:
        """Create a `LossScaleOptimizerV3` unless the inner optimizer is legacy, as in TensorFlow."""
        modules = {registry.get_public_module(base) for base in type(inner_optimizer).__mro__}
        is_new = inner_optimizer is not None and "keras.optimizers.legacy" not in modules
        subclass: Any = LossScaleOptimizerV3 if is_new and cls is LossScaleOptimizer else cls
        return cast(Self, super().__new__(subclass))

    def __init__(
        self,
        inner_optimizer: Any,
        dynamic: bool = True,
        initial_scale: float | None = None,
        dynamic_growth_steps: int | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            raise TypeError(
                f"LossScaleOptimizer got unexpected keyword arguments {sorted(kwargs)}; pass them to the inner optimizer."
            )
        if isinstance(inner_optimizer, LossScaleOptimizer):
            raise TypeError(
                f"LossScaleOptimizer cannot wrap another LossScaleOptimizer, but got: {inner_optimizer}"
            )
        check_inner_optimizer(inner_optimizer)
        if getattr(inner_optimizer, "_is_wrapped_by_loss_scale_optimizer", False):
            raise ValueError(
                '"inner_optimizer" is already wrapped by a LossScaleOptimizer. Create a new optimizer, or '
                "use the existing LossScaleOptimizer."
            )
        _check_strategy()
        if not isinstance(dynamic, bool):
            raise TypeError(
                f'"dynamic" argument to LossScaleOptimizer.__init__ must be a bool, but got: {dynamic!r}'
            )
        if not dynamic and dynamic_growth_steps is not None:
            raise ValueError(
                f'"dynamic_growth_steps" must be None if "dynamic" is False, but got: {dynamic_growth_steps}'
            )
        if not dynamic and initial_scale is None:
            raise ValueError('"initial_scale" must be specified if "dynamic" is False')
        if initial_scale is not None and initial_scale <= 0:
            raise ValueError(f'"initial_scale" must be positive, but got: {initial_scale}')
        growth = scales.GROWTH_STEPS if dynamic_growth_steps is None else int(dynamic_growth_steps)
        inner_optimizer._is_wrapped_by_loss_scale_optimizer = True
        self._optimizer = inner_optimizer
        self._dynamic = dynamic
        self._initial = scales.DEFAULT_SCALE if initial_scale is None else float(initial_scale)
        self._growth = growth if dynamic else None
        self._state = ScaleState(self._initial, self._growth)
        self._warned: set[str] = set()
        if name is not None:
            inner_optimizer._name = name

    # ---- the scale -------------------------------------------------------------------------

    @property
    def dynamic(self) -> bool:
        """Return whether the scale changes."""
        return self._dynamic

    @property
    def loss_scale(self) -> Tensor:
        """Return the current scale, a float32 scalar."""
        return self._state.scale.value()

    @property
    def dynamic_scale(self) -> Variable:
        """Return the scale's variable, under its name in Keras 3."""
        return self._state.scale

    @property
    def dynamic_counter(self) -> Variable | None:
        """Return the count of finite steps since the last change, an int64 variable; None if fixed."""
        return self._state.good_steps if self._dynamic else None

    @property
    def initial_scale(self) -> float:
        """Return the initial scale."""
        return self._initial

    @property
    def dynamic_growth_steps(self) -> int | None:
        """Return the number of steps after which the scale doubles; None if fixed."""
        return self._growth

    @property
    def skipped_steps(self) -> Variable:
        """Return the number of skipped steps, an int64 variable."""
        return self._state.skipped_steps

    def get_scaled_loss(self, loss: Tensor | Callable[[], Tensor]) -> Any:
        """Multiply a loss by the scale.

        Args:
          loss: A tensor, or a function without arguments that returns one.

        Returns:
          A tensor of the loss's dtype, or a function that returns it.
        """
        self._warned.add("scaled")
        if callable(loss) and not isinstance(loss, (Tensor, Variable)):
            return lambda: self.get_scaled_loss(loss())
        return loss * math.cast(self.loss_scale, loss.dtype)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Multiply a loss by the scale; Keras 3's name of `get_scaled_loss`.

        Args:
          loss: A tensor.
        """
        return self.get_scaled_loss(loss)

    def get_unscaled_gradients(self, grads: Sequence[Any]) -> list[Any]:
        """Divide gradients by the scale.

        Args:
          grads: Tensors, `tf.IndexedSlices` or None, for which the result is None, too.
        """
        self._warned.add("unscaled")
        reciprocal = np.float32(1) / self.loss_scale

        def unscale(gradient: Any) -> Any:
            if gradient is None:
                return None
            if isinstance(gradient, IndexedSlices):
                values = gradient.values * math.cast(reciprocal, gradient.values.dtype)
                return IndexedSlices(values, gradient.indices, gradient.dense_shape)
            return gradient * math.cast(reciprocal, gradient.dtype)

        return [unscale(g) for g in grads]

    def _transform_loss(self, loss: Tensor) -> Tensor:
        return self.get_scaled_loss(super()._transform_loss(loss))

    def _get_gradients(
        self, tape: GradientTape, loss: Tensor, var_list: PyTree, grad_loss: TensorLike = None
    ) -> list[Any]:
        return self.get_unscaled_gradients(super()._get_gradients(tape, loss, var_list, grad_loss))

    # ---- steps -----------------------------------------------------------------------------

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
        skip_gradients_aggregation: bool = False,
    ) -> Variable:
        """Update variables if all gradients are finite, and update the scale.

        Args:
          grads_and_vars: Pairs (gradient, variable), with unscaled gradients.
          name: Ignored.
          experimental_aggregate_gradients: Whether to sum gradients over replicas.
          skip_gradients_aggregation: Whether to skip this sum.

        Returns:
          The step count, which includes skipped steps.

        Raises:
          ValueError: If there is no gradient at all, or the current strategy has no loss scaling.
        """
        # The constructor checks, too, but optimizers are often created outside the strategy's
        # scope.
        _check_strategy()
        self._warn_of_omissions()
        pairs = check_gradient_rows(grads_and_vars)
        variables = [v for g, v in pairs if g is not None]
        with suspend_tapes():
            # Gradients are summed first, so that an overflow on one replica skips the step on all
            # of them.
            if variables and experimental_aggregate_gradients and not skip_gradients_aggregation:
                summed = iter(
                    self._optimizer._aggregate_gradients([p for p in pairs if p[0] is not None])
                )
                pairs = [next(summed) if g is not None else (g, v) for g, v in pairs]
            finite = are_finite([g for g, _ in pairs])
            if variables:
                self._optimizer.build(variables)
            self._apply_if(finite, pairs, variables, name)
            self._state.update(finite)
        return self.iterations

    def _apply_if(
        self, finite: Tensor, pairs: list[Any], variables: list[Variable], name: str | None
    ) -> None:
        def apply() -> None:
            self._optimizer.apply_gradients(pairs, name, experimental_aggregate_gradients=False)

        # A skipped step has no effect on the averages of gradient accumulation.
        accumulates = bool(getattr(self._optimizer, "gradient_accumulation_steps", None))
        if not isinstance(finite.array, jax.core.Tracer):
            if bool(finite):
                apply()
            elif not accumulates:
                self.iterations.assign_add(1)
            return
        # The program contains both outcomes: the update, and a select that XLA fuses into it. If an
        # update changes some rows only, the select redirects their indices past the end instead, so
        # that the program needs no copy of the table.
        steps = self.iterations
        changed = map(get_storage, (*variables, *self._optimizer.variables))
        state = {id(v): v for v in changed}
        for i, (gradient, variable) in enumerate(pairs):
            if accumulates or not isinstance(gradient, IndexedSlices):
                continue
            row_variables = self._optimizer._get_row_updated_variables(variable)
            if row_variables:
                end = array.fill(gradient.indices.shape, variable.shape[0])
                rows = array.where(finite, gradient.indices, math.cast(end, gradient.indices.dtype))
                rows._skips_bounds_check = True
                pairs[i] = IndexedSlices(gradient.values, rows, gradient.dense_shape), variable
            for row_variable in row_variables:
                state.pop(id(row_variable), None)
        old_values = {key: v.value() for key, v in state.items()}
        apply()
        for key, variable in state.items():
            if accumulates or variable is not steps:
                variable.assign(array.where(finite, variable.value(), old_values[key]))

    def apply(
        self, gradients: Sequence[Any], trainable_variables: Sequence[Variable] | None = None
    ) -> Variable:
        """Update variables with gradients of the scaled loss, as Keras 3 does.

        Args:
          gradients: A list of scaled gradients.
          trainable_variables: Variables of the gradients; default the variables of `build`.
        """
        if trainable_variables is None:
            trainable_variables = [self._owners[key] for key in self._index_dict]
        unscaled = self.get_unscaled_gradients(gradients)
        return self.apply_gradients(zip(unscaled, trainable_variables, strict=True))

    def _warn_of_omissions(self) -> None:
        steps = {"scaled": "get_scaled_loss", "unscaled": "get_unscaled_gradients"}
        missing = [f"LossScaleOptimizer.{m}()" for s, m in steps.items() if s not in self._warned]
        self._warned.update(steps)
        if missing:
            _log.warning(
                f"You forgot to call {' and '.join(missing)} before LossScaleOptimizer.apply_gradients(): "
                "the gradients belong to another loss. Scale the loss, and unscale its gradients."
            )

    @property
    def _scale_weights(self) -> list[Variable]:
        return [self._state.scale, self._state.good_steps] if self._dynamic else []

    def _own_children(self) -> dict[str, Any]:
        scale = CheckpointNode(
            current_loss_scale=self._state.scale, good_steps=self._state.good_steps
        )
        skipped = self._state.skipped_steps
        return {"base_optimizer": self._optimizer, "loss_scale": scale, "skipped_steps": skipped}

    def get_config(self) -> dict[str, Any]:
        """Return the configuration, with the inner optimizer's."""
        return {
            "inner_optimizer": serialization.serialize(self._optimizer),
            "dynamic": self._dynamic,
            "initial_scale": self._initial,
            "dynamic_growth_steps": self._growth,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        """Create an optimizer from its configuration, including that of TensorFlow 2.1 to 2.3.

        Args:
          config: The result of `get_config`.
          custom_objects: Further classes by name.

        Raises:
          ValueError: If an old configuration has a multiplier other than 2.
        """
        if "loss_scale" in config:
            return _from_old_config(cls, dict(config), custom_objects)
        return super().from_config(config, custom_objects)


class LossScaleOptimizerV3(LossScaleOptimizer):
    """Class of a `LossScaleOptimizer` around a new optimizer (not in `optimizers.legacy`).

    Example:
      >>> type(tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD())).__name__
      'LossScaleOptimizerV3'
    """


def _check_strategy() -> None:
    """Raise an error if the current strategy does not support loss scaling."""
    strategy = get_strategy()
    if strategy.no_loss_scaling is not None:
        raise ValueError(
            f"Loss scaling is not supported with the tf.distribute.Strategy: {type(strategy).__name__}. "
            f"{strategy.no_loss_scaling}"
        )


def convert_loss_scale(scale: object) -> dict[str, Any]:
    """Return the arguments of `LossScaleOptimizer` that are equivalent to an old loss scale.

    Args:
      scale: A `FixedLossScale` or `DynamicLossScale`.

    Raises:
      TypeError: If the loss scale has another class.
      ValueError: If the multiplier is not 2.
    """
    if isinstance(scale, scales.FixedLossScale):
        return {"dynamic": False, "initial_scale": float(scale())}
    if not isinstance(scale, scales.DynamicLossScale):
        raise TypeError(
            "Passing a LossScale that is not a FixedLossScale or a DynamicLossScale is no longer supported. "
            f"Got: {scale!r}"
        )
    if scale.multiplier != scales.MULTIPLIER:
        raise ValueError(
            'When passing a DynamicLossScale to "loss_scale", DynamicLossScale.multiplier must be 2. Got: '
            f"{scale!r}"
        )
    return {
        "initial_scale": scale.initial_loss_scale,
        "dynamic_growth_steps": scale.increment_period,
    }


def _from_old_config(
    cls: Callable[..., _T], config: dict[str, Any], custom_objects: dict[str, Any] | None
) -> _T:
    inner = registry.OPTIMIZERS.deserialize(config["optimizer"], custom_objects)
    scale = scales.get(config["loss_scale"])
    if isinstance(scale, scales.DynamicLossScale) and scale.multiplier != scales.MULTIPLIER:
        raise ValueError(
            "Cannot deserialize LossScaleOptimizer with a DynamicLossScale whose multiplier is not 2. Got "
            f"DynamicLossScale: {scale!r}"
        )
    return cls(inner, **convert_loss_scale(scale))


registry.OPTIMIZERS.table |= registry.make_name_table(
    LossScaleOptimizer,
    LossScaleOptimizerV1=LossScaleOptimizer,
    LossScaleOptimizerV3=LossScaleOptimizerV3,
)
