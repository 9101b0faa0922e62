"""`AdaScale`: learning rates for larger batches, by how much the gradients of their parts differ."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.gradients.tape import no_tapes
from meshflow.core.runtime.context import context
from meshflow.core.values.convert import constant, convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.distribute.replicas.context import spanning
from meshflow.keras import registry, serialization
from meshflow.keras.optimizers.base import Optimizer
from meshflow.keras.optimizers.hooks import densified
from meshflow.keras.optimizers.optax_adapter import OptaxOptimizer
from meshflow.keras.optimizers.wrapping import WrappingOptimizer, check_inner
from meshflow.ops import array, math
from meshflow.placement.layout import Layout

__all__ = ["AdaScale"]

_STATE = ("gain", "position", "variance", "square", "squares", "count")
# No variance is smaller: where gradients are all alike the gain is 1.
_LEAST = 1e-6


class AdaScale(WrappingOptimizer):
    """AdaScale (Johnson et al. 2020, arXiv:2007.05105): a batch of `scale` times the size takes `gain` steps at once.

    It wraps the optimizer that was tuned for small batches. An update's gradient is the mean of those of its parts:
    of each device and micro-batch under a `tf.distribute.MeshStrategy`, of each replica of `Strategy.run`, and of
    each step that `gradient_accumulation_steps` adds up. How far these are from each other says how much a
    larger batch is worth, between 1 and `scale`. The learning rate is multiplied by it, and a schedule goes on by as
    many steps. `fit` shows it as "gain".

    Formula:
      `V = S / (n - 1) * (mean(|g_i|^2) - |mean(g_i)|^2)` and `U = |mean(g_i)|^2 - V / S` of one update, V at least
      1e-6 and U at least 0; `v = a * v + (1 - a) * V`, `u = a * u + (1 - a) * U`, `gain = (v + u) / (v / S + u)`; the
      update is that of the inner optimizer for mean(g_i) with `lr(floor(T)) * gain` as learning rate, then
      `T = T + gain`. g_i are the gradients of the n parts, S the scale, a the smoothing, lr the inner learning rate
      or schedule, T the steps gained so far, of which floor takes the whole ones, v and u the averages of variance V
      and squared mean U, and gain what an update gains in steps.

    Args:
      inner_optimizer: the optimizer of the small batch. It gets its learning rate from `_decayed_lr`, as all of
        this package do and those of yours whose `update_step` takes a third argument.
      scale: how many times the small batch's size the batch has; default the number of parts.
      smoothing: of the averages, from 0 to below 1; default max(1 - scale / 1000, 0), as in the paper.
      name: a new name for the inner optimizer.

    Attributes:
      inner_optimizer: the optimizer inside.

    Raises:
      TypeError: when `inner_optimizer` is none, or one with loss scaling, which goes around this one.
      ValueError: for a scale below 1 and a smoothing outside [0, 1); in training, when updates have one part only.

    Example:
      >>> import meshflow as tf
      >>> sgd = tf.keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
      >>> w, optimizer = tf.Variable(0.0), tf.keras.optimizers.AdaScale(sgd)
      >>> for gradient in (1.0, 3.0):
      ...     _ = optimizer.apply_gradients([(tf.constant(gradient), w)])
      >>> round(float(optimizer.gain), 3), round(float(w), 3)
      (1.25, -0.25)
    """

    _OWN = frozenset(("_optimizer", "_scale", "_smoothing", "_state", "_noted"))
    # Strategies that compute gradients device by device are to say how large each is.
    _measures_shares = True

    def __init__(
        self,
        inner_optimizer: Any,
        scale: float | None = None,
        smoothing: float | None = None,
        name: str | None = None,
    ) -> None:
        check_inner(inner_optimizer)
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
        # What a strategy said of the gradients that come next.
        self._noted: tuple[Any, int] | None = None
        inner_optimizer._pace = self
        if name is not None:
            inner_optimizer._name = name

    @property
    def gain(self) -> Tensor:
        """How many steps the last update was worth, a float32 scalar; 1 before the first."""
        return self._state["gain"].value() if self._state else constant(1.0)

    @property
    def gained_steps(self) -> Tensor:
        """How many steps all updates so far were worth, a float32 scalar; schedules are called with it."""
        return self._state["position"].value() if self._state else constant(0.0)

    @property
    def scale(self) -> float | None:
        """How many times the small batch's size the batch has; None for the number of its parts."""
        return self._scale

    @property
    def smoothing(self) -> float | None:
        """The averages' smoothing; None for that of the paper."""
        return self._smoothing

    def _shown(self) -> dict[str, Tensor]:
        """What `fit` shows beside metrics."""
        return {"gain": self.gain}

    # ---- steps -----------------------------------------------------------------------------

    def build(self, var_list: Any) -> None:
        """Makes the inner optimizer's slots, and the state of this one.

        Args:
          var_list: the variables to be trained.
        """
        _ = self.iterations
        if not self._state:
            for name in _STATE:
                made = self._optimizer.add_weight(
                    f"adascale_{name}", initializer="ones" if name == "gain" else "zeros"
                )
                if self._mesh is not None:
                    made._layout = Layout.replicated(self._mesh, 0)
                self._state[name] = made
        super().build(var_list)

    def apply_gradients(
        self,
        grads_and_vars: Any,
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
        skip_gradients_aggregation: bool = False,
    ) -> Any:
        """Updates variables with the learning rate that the gradients' differences allow.

        Args:
          grads_and_vars: pairs (gradient, variable).
          name: ignored.
          experimental_aggregate_gradients: False leaves out the sum over replicas.
          skip_gradients_aggregation: True leaves it out too.

        Returns:
          The step number.

        Raises:
          ValueError: when there is no gradient at all, or when updates have one part only.
        """
        pairs = [(g, v) for g, v in grads_and_vars]
        summed = skip_gradients_aggregation or not experimental_aggregate_gradients
        with no_tapes():
            given = [(g, v) for g, v in pairs if g is not None]
            if given:
                self.build([v for _, v in given])
                squares, count = self._parts(given, summed)
                self._state["squares"].assign_add(math.cast(squares, "float32"))
                self._state["count"].assign_add(np.float32(count))
        return self._optimizer.apply_gradients(
            pairs, name, experimental_aggregate_gradients, skip_gradients_aggregation
        )

    def _parts(self, pairs: list[tuple[Any, Variable]], summed: bool) -> tuple[Any, int]:
        """The sum of squared norms of the parts' gradients, and how many parts there are."""
        noted, self._noted = self._noted, None
        if context.closure is not None:
            raise NotImplementedError(
                "AdaScale is not available with parameter servers, whose workers do not wait for each other."
            )
        if noted is not None:
            return noted
        replica = None if summed else spanning()
        if replica is not None:
            several = replica.num_replicas_in_sync
            own = _squared_norm(pairs) * float(several) ** 2
            return replica.all_reduce("SUM", own), several
        if not self._optimizer.gradient_accumulation_steps:
            raise ValueError(
                "AdaScale needs the gradients of several parts of each batch, and here is one. Train with a "
                "tf.distribute.MeshStrategy whose rules split the batch or whose options have micro_batches, or pass "
                "gradient_accumulation_steps to the inner optimizer or to compile."
            )
        return _squared_norm(pairs), 1

    def _note_shares(self, squares: Any, count: int) -> None:
        """Takes what a strategy says of the gradients that are applied next.

        Args:
          squares: the sum of the squared norms of the shares' gradients, a float32 scalar.
          count: how many shares there were.
        """
        self._noted = squares, count

    # ---- what the inner optimizer asks -----------------------------------------------------

    def _measure(self, pairs: list[tuple[Any, Variable]]) -> None:
        """Moves the gain by the gradients of an update, which are the means of those of its parts."""
        state = self._state
        count, square = state["count"].value(), _squared_norm(pairs)
        scale = count if self._scale is None else convert_to_tensor(self._scale)
        smoothing = (
            math.maximum(1.0 - scale / 1000.0, 0.0)
            if self._smoothing is None
            else convert_to_tensor(self._smoothing)
        )
        spread = (state["squares"].value() / count - square) / math.maximum(count - 1.0, 1.0)
        # The last batch of an epoch may be of one part: it says nothing.
        several = math.greater(count, 1.0)
        smoothing = array.where(several, smoothing, 1.0)
        new = {"variance": math.maximum(scale * spread, _LEAST)}
        new["square"] = math.maximum(square - spread, 0.0)
        for name, value in new.items():
            average = smoothing * state[name].value() + (1.0 - smoothing) * value
            state[name].assign(average)
        v, u = state["variance"].value(), state["square"].value()
        state["gain"].assign(array.where(several, (v + u) / (v / scale + u), self.gain))
        for name in ("squares", "count"):
            state[name].assign(np.float32(0))

    def _advance(self) -> None:
        """Counts the steps that an update was worth."""
        self._state["position"].assign_add(self.gain)

    # ---- configuration ---------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """The configuration, with the inner optimizer's."""
        return {
            "inner_optimizer": serialization.serialize(self._optimizer),
            "scale": self._scale,
            "smoothing": self._smoothing,
        }


def _squared_norm(pairs: list[tuple[Any, Variable]]) -> Any:
    total: Any = constant(0.0)
    for gradient, var in pairs:
        if isinstance(gradient, IndexedSlices):
            gradient = densified(gradient, var)
        gradient = math.cast(convert_to_tensor(gradient), "float32")
        total = total + math.reduce_sum(gradient * gradient)
    return total


registry.OPTIMIZERS.table |= registry.name_table(AdaScale)
