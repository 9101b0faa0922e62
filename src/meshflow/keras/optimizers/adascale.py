"""`AdaScale`: scale learning rates for large batches by the variance of their gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.gradients.tape import suspend_tapes
from meshflow.core.runtime.context import context
from meshflow.core.values.convert import constant, convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.distribute.replicas.context import get_spanning_context
from meshflow.keras import registry, serialization
from meshflow.keras.optimizers.base import Optimizer
from meshflow.keras.optimizers.hooks import densify_gradient
from meshflow.keras.optimizers.optax_adapter import OptaxOptimizer
from meshflow.keras.optimizers.state import GradientPairs
from meshflow.keras.optimizers.wrapping_optimizer import WrappingOptimizer, check_inner_optimizer
from meshflow.ops import array, math
from meshflow.placement.layout import Layout

_STATE_NAMES = ("gain", "position", "variance", "square", "squares", "count")
# Minimum variance. If all gradients are equal, the gain is 1.
_MIN_VARIANCE = 1e-6


class AdaScale(WrappingOptimizer):
    """AdaScale (Johnson et al. 2020, arXiv:2007.05105): larger batches count as `gain` steps.

    AdaScale wraps an optimizer that was tuned for small batches; the batch is now `scale` times
    larger. The gradient of an update is the mean of the gradients of its parts: of the devices and
    micro-batches of a `tf.distribute.MeshStrategy`, of the replicas of `Strategy.run`, or of the
    steps of `gradient_accumulation_steps`. Their variance determines how many steps the larger
    batch is worth, between 1 and `scale`. The learning rate is multiplied by this gain, and
    schedules advance by as many steps. `fit` displays it as "gain".

    Formula:
      `V = S / (n - 1) * (mean(|g_i|^2) - |mean(g_i)|^2)` and `U = |mean(g_i)|^2 - V / S` of one
      update, V at least 1e-6 and U at least 0; `v = a * v + (1 - a) * V`,
      `u = a * u + (1 - a) * U`, `gain = (v + u) / (v / S + u)`. The update is that of the inner
      optimizer for mean(g_i) with the learning rate `lr(floor(T)) * gain`; then `T = T + gain`. g_i
      are the gradients of the n parts, S the scale, a the smoothing, lr the inner learning rate or
      schedule, T the gained steps so far, floor the rounding down to an integer, v and u the
      averages of variance V and squared mean U, and gain the number of steps that an update is
      worth.

    Args:
      inner_optimizer: The optimizer of the small batch. It must read its learning rate from
        `_decayed_lr`, as the optimizers of this package and user-defined ones with a third argument
        of `update_step` do.
      scale: Size of the batch divided by the size of the small batch; default the number of parts.
      smoothing: Smoothing of the averages, from 0 to below 1; default max(1 - scale / 1000, 0), as
        in the paper.
      name: A new name for the inner optimizer.

    Attributes:
      inner_optimizer: The wrapped optimizer.

    Raises:
      TypeError: If `inner_optimizer` is no optimizer, or a `LossScaleOptimizer`, which must wrap
        this one.
      ValueError: If the scale is below 1 or the smoothing outside [0, 1); in training, if updates
        have a single part.

    Example:
      >>> sgd = tf.keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
      >>> w, optimizer = tf.Variable(0.0), tf.keras.optimizers.AdaScale(sgd)
      >>> for gradient in (1.0, 3.0):
      ...     _ = optimizer.apply_gradients([(tf.constant(gradient), w)])
      >>> round(float(optimizer.gain), 3), round(float(w), 3)
      (1.25, -0.25)
    """

    _OWN_ATTRIBUTES = frozenset(("_optimizer", "_scale", "_smoothing", "_state", "_share_norms"))
    # Strategies that compute gradients on each device must also compute their norms.
    _needs_share_norms = True

    def __init__(
        self,
        inner_optimizer: Any,
        scale: float | None = None,
        smoothing: float | None = None,
        name: str | None = None,
    ) -> None:
        check_inner_optimizer(inner_optimizer)
        if not isinstance(inner_optimizer, Optimizer) or hasattr(
            inner_optimizer, "get_unscaled_gradients"
        ):
            raise TypeError(
                "AdaScale wraps a tf.keras optimizer, and a LossScaleOptimizer goes around it: "
                f"LossScaleOptimizer(AdaScale(optimizer)). Got: {inner_optimizer!r}"
            )
        if isinstance(inner_optimizer, OptaxOptimizer):
            raise TypeError(
                f"AdaScale cannot wrap {inner_optimizer!r}, whose learning rate optax keeps. Use an optimizer of tf.keras."
            )
        if scale is not None and not scale >= 1:
            raise ValueError(f"AdaScale: `scale` must be at least 1. Received: scale={scale!r}")
        if smoothing is not None and not 0 <= smoothing < 1:
            raise ValueError(
                f"AdaScale: `smoothing` must be in the range [0, 1). Received: smoothing={smoothing!r}"
            )
        self._optimizer = inner_optimizer
        self._scale = None if scale is None else float(scale)
        self._smoothing = None if smoothing is None else float(smoothing)
        self._state: dict[str, Variable] = {}
        # Squared norms and number of the next gradients' shares, if a strategy has set them.
        self._share_norms: tuple[Any, int] | None = None
        inner_optimizer._adascale = self
        if name is not None:
            inner_optimizer._name = name

    @property
    def gain(self) -> Tensor:
        """Return the number of steps that the last update was worth, a float32 scalar; initially 1."""
        return self._state["gain"].value() if self._state else constant(1.0)

    @property
    def gained_steps(self) -> Tensor:
        """Return the number of steps that all updates were worth, a float32 scalar, for schedules."""
        return self._state["position"].value() if self._state else constant(0.0)

    @property
    def scale(self) -> float | None:
        """Return the batch size relative to the small batch; None for the number of parts."""
        return self._scale

    @property
    def smoothing(self) -> float | None:
        """Return the smoothing of the averages; None for the paper's default."""
        return self._smoothing

    def _get_extra_logs(self) -> dict[str, Tensor]:
        """Return the values that `fit` displays in addition to metrics."""
        return {"gain": self.gain}

    # ---- steps -----------------------------------------------------------------------------

    def build(self, var_list: Sequence[Variable]) -> None:
        """Create the inner optimizer's slots, and the state of the wrapper.

        Args:
          var_list: All variables to be trained.
        """
        _ = self.iterations
        if not self._state:
            for name in _STATE_NAMES:
                variable = self._optimizer.add_weight(
                    f"adascale_{name}", initializer="ones" if name == "gain" else "zeros"
                )
                if self._mesh is not None:
                    variable.layout = Layout.replicated(self._mesh, 0)
                self._state[name] = variable
        super().build(var_list)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
        skip_gradients_aggregation: bool = False,
    ) -> Variable:
        """Update variables with the learning rate that the variance of the gradients allows.

        Args:
          grads_and_vars: Pairs (gradient, variable).
          name: Ignored.
          experimental_aggregate_gradients: Whether to sum gradients over replicas.
          skip_gradients_aggregation: Whether to skip this sum.

        Returns:
          The step count.

        Raises:
          ValueError: If there is no gradient at all, or updates have a single part.
        """
        pairs = [(g, v) for g, v in grads_and_vars]
        is_summed = skip_gradients_aggregation or not experimental_aggregate_gradients
        with suspend_tapes():
            filtered = [(g, v) for g, v in pairs if g is not None]
            if filtered:
                self.build([v for _, v in filtered])
                squares, count = self._measure_parts(filtered, is_summed)
                self._state["squares"].assign_add(math.cast(squares, "float32"))
                self._state["count"].assign_add(np.float32(count))
        return self._optimizer.apply_gradients(
            pairs, name, experimental_aggregate_gradients, skip_gradients_aggregation
        )

    def _measure_parts(self, pairs: GradientPairs, is_summed: bool) -> tuple[Tensor, int]:
        """Return the sum of the squared norms of the parts' gradients, and the number of parts."""
        share_norms, self._share_norms = self._share_norms, None
        if context.worker_closure is not None:
            raise NotImplementedError(
                "AdaScale is not available with parameter servers, because their workers run independently."
            )
        if share_norms is not None:
            return share_norms
        replica = None if is_summed else get_spanning_context()
        if replica is not None:
            num_replicas = replica.num_replicas_in_sync
            square = _compute_squared_norm(pairs) * float(num_replicas) ** 2
            return replica.all_reduce("SUM", square), num_replicas
        if not self._optimizer.gradient_accumulation_steps:
            raise ValueError(
                "AdaScale needs the gradients of several parts of each batch, but the batch has a single part. Train with "
                "a tf.distribute.MeshStrategy whose rules split the batch or whose options have micro_batches, or pass "
                "gradient_accumulation_steps to the inner optimizer or to compile."
            )
        return _compute_squared_norm(pairs), 1

    def _set_share_norms(self, squares: Tensor, count: int) -> None:
        """Set the norms that a strategy computed for the gradients that are applied next.

        Args:
          squares: Sum of the squared norms of the shares' gradients, a float32 scalar.
          count: Number of shares.
        """
        self._share_norms = squares, count

    # ---- hooks that the inner optimizer calls ----------------------------------------------

    def update_gain(self, pairs: GradientPairs) -> None:
        """Update the gain from the gradients of an update, which are means over its parts."""
        state = self._state
        count, square = state["count"].value(), _compute_squared_norm(pairs)
        scale = count if self._scale is None else convert_to_tensor(self._scale)
        smoothing = (
            math.maximum(1.0 - scale / 1000.0, 0.0)
            if self._smoothing is None
            else convert_to_tensor(self._smoothing)
        )
        variance = (state["squares"].value() / count - square) / math.maximum(count - 1.0, 1.0)
        # The last batch of an epoch may have a single part, which has no variance.
        has_parts = math.greater(count, 1.0)
        smoothing = array.where(has_parts, smoothing, 1.0)
        new = {"variance": math.maximum(scale * variance, _MIN_VARIANCE)}
        new["square"] = math.maximum(square - variance, 0.0)
        for name, value in new.items():
            average = smoothing * state[name].value() + (1.0 - smoothing) * value
            state[name].assign(average)
        v, u = state["variance"].value(), state["square"].value()
        state["gain"].assign(array.where(has_parts, (v + u) / (v / scale + u), self.gain))
        for name in ("squares", "count"):
            state[name].assign(np.float32(0))

    def advance_steps(self) -> None:
        """Advance the step of schedules by the gain of an update."""
        self._state["position"].assign_add(self.gain)

    # ---- configuration ---------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """Return the configuration, with the inner optimizer's."""
        return {
            "inner_optimizer": serialization.serialize(self._optimizer),
            "scale": self._scale,
            "smoothing": self._smoothing,
        }


def _compute_squared_norm(pairs: GradientPairs) -> Tensor:
    total = constant(0.0)
    for gradient, var in pairs:
        if isinstance(gradient, IndexedSlices):
            gradient = densify_gradient(gradient, var)
        gradient = math.cast(convert_to_tensor(gradient), "float32")
        total = total + math.reduce_sum(gradient * gradient)
    return total


registry.OPTIMIZERS.table |= registry.make_name_table(AdaScale)
