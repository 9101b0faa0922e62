"""Training steps under strategies that compute loss and gradients themselves, device by device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from meshflow.core.autograph.conversion import convert_if_enabled
from meshflow.core.tracing.trace import trace
from meshflow.core.values import nest
from meshflow.core.values.convert import constant
from meshflow.core.values.dtypes import float32
from meshflow.core.values.specs import TensorSpec
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.program import Sending
from meshflow.distribute.replicas.shares import Shares, current_shares
from meshflow.keras.engine.training.global_batch import strategy_of
from meshflow.ops import math

__all__ = [
    "ModelProgram",
    "checked",
    "differentiating",
    "evaluated",
    "leaves_gradients",
    "loss_and_gradients",
    "predicted",
]

_asked: ContextVar[bool] = ContextVar("asked", default=False)


class _Left(BaseException):
    """A training step left its gradients to Keras, which is all that was asked."""


def leaves_gradients(model: Any, batch: Any) -> bool:
    """Whether a `train_step` of one's own leaves loss and gradients to Keras: it is traced until it does.

    Args:
      model: a compiled model; its variables need no values.
      batch: what the step is given, of arrays, tensors or specs.
    """
    step = convert_if_enabled(model.train_step)
    specs = [TensorSpec(tuple(v.shape), v.dtype) for v in nest.flatten(batch) if v is not None]

    def run(*rows: Any) -> Any:
        supply = iter(rows)
        return step(nest.map_structure(lambda v: None if v is None else next(supply), batch))

    token = _asked.set(True)
    try:
        trace(run, tuple(specs), name="asked", isolated=True)
    except _Left:
        return True
    except Exception:
        # What it does besides shows when it is run.
        return False
    finally:
        _asked.reset(token)
        model._clear_losses()
    return False


def differentiating(model: Any) -> Any:
    """The model's strategy if it is that which computes gradients; otherwise None."""
    if _asked.get():
        raise _Left
    strategy = strategy_of(model)
    wanted = _measures(model) and getattr(strategy, "divides_batches", False)
    return strategy if wanted or getattr(strategy, "computes_gradients", False) else None


def _measures(model: Any) -> bool:
    """Whether the model's optimizer wants to know how large the gradients of shares are."""
    return getattr(getattr(model, "optimizer", None), "_measures_shares", False)


class ModelProgram:
    """A model's forward pass and loss on a share of a batch; see `LossProgram`.

    Args:
      model: a compiled model.
      training: whether its layers behave as in training.

    Attributes:
      metrics: the running means that the loss's values are noted for, in their order; known once `loss` was traced.
    """

    def __init__(self, model: Any, training: bool = True) -> None:
        self.model = model
        self.training = training
        self.metrics: list[Any] = []
        self.measures = training and _measures(model)

    @property
    def variables(self) -> Sequence[Variable]:
        """The variables whose gradients are wanted; of a model that is built by its first call, after that."""
        return self.model.trainable_variables

    def run(self, x: Any, y: Any, sample_weight: Any) -> tuple[Any, list[Any], Any]:
        """Predictions with their masks, and their loss; see `LossProgram`."""
        try:
            y_pred = self.forward(x)
            loss, noted = self.loss(x, y, y_pred, sample_weight)
        finally:
            # They are tensors of this trace.
            self.model._clear_losses()
        masks = [getattr(p, "_keras_mask", None) for p in nest.flatten(y_pred)]
        return loss, noted, (y_pred, masks)

    def add_slot(self, variable: Variable, name: str, shape: Any) -> Variable:
        """A slot of a variable; see `LossProgram`."""
        # The optimizer's own slots come first.
        self.model.optimizer.build(self.variables)
        return self.model.optimizer.add_slot(variable, name, shape=shape)

    def restore_slots(self) -> None:
        """Gives added slots their restored values; see `LossProgram`."""
        self.model.optimizer._run_build_hooks()

    def sending(self) -> Sending:
        """What the optimizer says about gradients in few bits; see `LossProgram`."""
        optimizer = self.model.optimizer
        one = constant(1.0)
        scale = getattr(optimizer, "_transform_loss", lambda given: given)(one)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        rest = inner._sending() if hasattr(inner, "_sending") else {}
        return Sending(optimizer.iterations.value(), None if scale is one else scale, **rest)

    def forward(self, x: Any) -> Any:
        """The model's predictions."""
        return self.model(x, training=self.training)

    def loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> tuple[Any, list[Any]]:
        """The loss as the optimizer scales it, and values to be shown."""
        shares = current_shares()
        assert isinstance(shares, Shares)
        shares.noted.clear()
        loss = self.model.compute_loss(x, y, y_pred, sample_weight)
        self.model._validate_loss(y, loss)
        if loss.ndim:
            # A loss of each example counts as their sum, as for a tape.
            loss = math.reduce_sum(loss) * float(shares.count)
        self.metrics = [metric for metric, _ in shares.noted]
        noted = [math.reduce_mean(math.cast(value, float32)) for _, value in shares.noted]
        scaled = getattr(self.model.optimizer, "_transform_loss", lambda given: given)
        return scaled(loss), noted


def loss_and_gradients(
    model: Any, strategy: Any, x: Any, y: Any, sample_weight: Any
) -> tuple[Any, list[tuple[Any, Variable]]]:
    """Has a strategy compute loss and gradients of a global batch; the running means of the loss are updated.

    Returns:
      The predictions, and (gradient, variable) pairs.
    """
    _Used.count += 1
    program = ModelProgram(model)
    made = strategy.gradients(program, x, y, sample_weight)
    y_pred = _taken(program, made, x)
    unscale = getattr(model.optimizer, "get_unscaled_gradients", lambda gradients: gradients)
    if made.squares is not None:
        (squares,) = unscale(unscale([made.squares]))
        model.optimizer._note_shares(squares, made.shares)
    return y_pred, list(zip(unscale(made.gradients), program.variables, strict=True))


class _Prediction(ModelProgram):
    """The forward pass alone."""

    def loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> tuple[Any, list[Any]]:
        return constant(0.0), []


def evaluated(model: Any, x: Any, y: Any, sample_weight: Any) -> Any:
    """Predictions for a global batch, after which the running means of the loss are updated."""
    strategy = differentiating(model)
    if y is None or not getattr(strategy, "computes_predictions", False):
        y_pred = predicted(model, x)
        model.compute_loss(x, y, y_pred, sample_weight)
        return y_pred
    program = ModelProgram(model, training=False)
    return _taken(program, strategy.predictions(program, x, y, sample_weight), x)


def predicted(model: Any, x: Any) -> Any:
    """Predictions for a global batch."""
    strategy = differentiating(model)
    if not getattr(strategy, "computes_predictions", False):
        return model(x, training=False)
    program = _Prediction(model, training=False)
    return _taken(program, strategy.predictions(program, x, None, None), x)


def _taken(program: ModelProgram, made: Any, x: Any) -> Any:
    """The predictions with their masks; the running means take what was noted."""
    y_pred, masks = made.predictions
    for prediction, mask in zip(nest.flatten(y_pred), masks, strict=True):
        if mask is not None:
            prediction._keras_mask = mask
    rows = nest.flatten(x)[0].shape[0]
    for metric, value in zip(program.metrics, made.noted, strict=True):
        metric.update_state(value, sample_weight=rows)
    return y_pred


class _Used:
    count = 0


def checked(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A training step that must leave loss and gradients to the strategy, if that computes them."""

    @functools.wraps(step)
    def run(data: Any) -> Any:
        before = _Used.count
        result = step(data)
        strategy = differentiating(model)
        if strategy is not None and _Used.count == before:
            raise ValueError(
                f"{type(model).__name__}.train_step computes gradients itself, but the options "
                f"{strategy.options.chosen()} of the MeshStrategy need the loss: they divide it over devices and "
                "micro-batches. Override compute_loss(x, y, y_pred, sample_weight) instead, call "
                "super().train_step(data), or leave these options out."
            )
        return result

    return run
