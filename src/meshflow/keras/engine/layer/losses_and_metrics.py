"""Losses and metrics that layers add, and iteration over sublayers."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.distribute.replicas.shares import current_shares
from meshflow.environment.types import PyTree
from meshflow.keras import settings
from meshflow.keras.engine.layer.helpers import remove_duplicates
from meshflow.keras.engine.layer.tracking import Tracker
from meshflow.keras.engine.symbolic.call_signature import call_state
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.metrics.means import Mean

# Values that `add_metric` received by name of the metric, while a call is recorded.
_recorded_values: contextvars.ContextVar[dict[str, Tensor] | None] = contextvars.ContextVar(
    "recorded_values", default=None
)


@contextlib.contextmanager
def record_added_metrics() -> Iterator[dict[str, Tensor]]:
    """Record the tensors that `add_metric` receives in this context, by the names of the metrics."""
    values: dict[str, Tensor] = {}
    token = _recorded_values.set(values)
    try:
        yield values
    finally:
        _recorded_values.reset(token)


def adds_losses_or_metrics(layer: Any) -> bool:
    """Check whether a call of a layer or of a sublayer added losses or metrics, or has regularizers."""
    return any(part._adds_terms or part._regularized for part in flatten_layers(layer))


def flatten_layers(layer: Any, recursive: bool = True, include_self: bool = True) -> Iterator[Any]:
    """Yield a layer and its sublayers, with repetitions of those that it has several times."""
    return layer._flatten_layers(recursive, include_self)


class LayerLosses:
    """Methods of `Layer` that collect the losses and metrics of a layer and its sublayers."""

    _losses: list[Any]
    # Placeholders of losses that symbolic calls would add; the first call on tensors removes them.
    _inferred_losses: list[KerasTensor]
    _own_metrics: list[Any]

    @property
    def _metrics(self) -> list[Any]:
        """Return the layer's own metrics, without those of inner layers."""
        return [*self._own_metrics, *self._tracked.metrics]

    # Whether a call added a loss or metric.
    _adds_terms = False

    if TYPE_CHECKING:
        # Attributes that other base classes of `Layer` define.
        @property
        def name(self) -> str:
            """Return the name of the layer."""

        @property
        def _tracked(self) -> Tracker: ...

    def _flatten_layers(self, recursive: bool = True, include_self: bool = True) -> Iterator[Any]:
        if include_self:
            yield self
        for layer in self._tracked.layers:
            yield from layer._flatten_layers() if recursive else (layer,)

    @property
    def losses(self) -> list[Tensor]:
        """Return the losses of this layer and its sublayers: `add_loss` and regularizers.

        Layers that were only called on symbolic tensors contribute symbolic losses.
        """
        collected: list[Any] = []
        for layer in self._list_unique_layers():
            collected += [loss for loss in layer._losses if not callable(loss)]
            collected += layer._inferred_losses
            values = [loss() for loss in layer._losses if callable(loss)]
            collected += [
                convert_to_tensor(value, dtype_hint=settings.floatx())
                for value in values
                if value is not None
            ]
            collected += [compute_penalty(regularize, v) for v, regularize in layer._regularized]
        return collected

    def _list_unique_layers(self) -> list[Any]:
        return remove_duplicates(list(self._flatten_layers()))

    def _mark_added_term(self) -> None:
        # Assignments to layers are tracked, which would slow down every call.
        if not self._adds_terms:
            self._adds_terms = True

    def add_loss(self, losses: PyTree, **kwargs: Any) -> None:
        """Add losses to the loss that training minimizes.

        Args:
          losses: Scalar tensor or list of them (which depend on the inputs if added in `call`), or
            functions without arguments.
          **kwargs: `inputs` is accepted and ignored.

        Raises:
          TypeError: If another keyword is passed.

        Example:
          >>> class Small(tf.keras.layers.Layer):
          ...     def call(self, inputs):
          ...         self.add_loss(0.5 * tf.reduce_sum(tf.abs(inputs)))
          ...         return inputs
          >>> layer = Small()
          >>> _ = layer(tf.constant([[1.0, -3.0]]))
          >>> [float(loss) for loss in layer.losses]
          [2.0]
        """
        kwargs.pop("inputs", None)
        if kwargs:
            raise TypeError(f"Unknown keyword arguments: {sorted(kwargs)}")
        self._mark_added_term()
        for loss in nest.flatten(losses):
            if loss is None:
                continue
            if isinstance(loss, KerasTensor):
                self._add_symbolic_loss(loss)
            elif callable(loss) and not isinstance(loss, Variable):
                self._losses.append(loss)
            elif not call_state.layers:
                raise ValueError(
                    "Expected a symbolic Tensors or a callable for the loss value. Please wrap your loss computation in "
                    f"a zero argument `lambda`. add_loss of layer {self.name!r} received {loss!r} outside of its `call`."
                )
            else:
                self._losses.append(convert_to_tensor(loss, dtype_hint=settings.floatx()))

    def _add_symbolic_loss(self, loss: KerasTensor) -> None:
        raise ValueError(
            "Expected a symbolic Tensor only in `Model.add_loss` of a Functional model; layer "
            f"{self.name} received {loss!r}. Call add_loss inside the layer's `call`."
        )

    def add_update(self, updates: PyTree, inputs: object = None) -> None:
        """Run updates that are functions, if the layer and those that call it are trainable.

        Other updates took effect when they were created.

        Args:
          updates: Function without arguments, result of an assignment, or a list of these.
          inputs: Ignored.
        """
        del inputs
        if not all(layer.trainable for layer in (self, *call_state.layers)):
            return
        for update in nest.flatten(updates):
            if callable(update):
                update()

    @property
    def updates(self) -> list[Any]:
        """Return an empty list, because assignments take effect immediately."""
        return []

    def _clear_losses(self) -> None:
        """Remove losses that depend on inputs, before the outermost call adds new ones."""
        for layer in self._flatten_layers():
            if layer._inferred_losses:
                layer._inferred_losses = []
            if layer._losses:
                layer._losses = [loss for loss in layer._losses if callable(loss)]

    def _forget_loss_values(self) -> None:
        """Replace the losses of a trace by placeholders."""
        for layer in self._flatten_layers():
            values = [loss for loss in layer._losses if not callable(loss)]
            if values:
                layer._losses = [loss for loss in layer._losses if callable(loss)]
                layer._inferred_losses = [make_loss_placeholder(layer) for _ in values]

    @property
    def metrics(self) -> Sequence[Any]:
        """Return the metrics of this layer and its sublayers."""
        collected: list[Any] = []
        for layer in self._list_unique_layers():
            collected += layer._tracked.metrics + layer._own_metrics
        return remove_duplicates(collected)

    def add_metric(self, value: Any, name: str | None = None, **kwargs: Any) -> None:
        """Add a tensor computed in `call` to the metrics that training reports.

        Args:
          value: Tensor, of which the mean over batches is reported; or the result of calling a
            metric of this layer, which is reported already.
          name: Name of the metric; not needed for the result of a metric.
          **kwargs: `aggregation='mean'` is accepted.

        Raises:
          ValueError: If a tensor is passed without a name, or if several metrics of the layer have the name.
        """
        kwargs.pop("aggregation", None)
        if kwargs:
            raise TypeError(f"Unknown keyword arguments: {sorted(kwargs)}")
        count = sum(m.name == name for m in remove_duplicates(self._tracked.metrics))
        if count > 1:
            raise ValueError(
                "Please provide different names for the metrics you have added. We found "
                f"{count} metrics with the name: {name!r}"
            )
        if any(metric.is_latest_result(value) for metric in self.metrics):
            return
        if name is None:
            raise ValueError(
                "Please provide a name for your metric like `self.add_metric(tf.reduce_sum(inputs), name='mean_activation')`"
            )
        if isinstance(value, KerasTensor):
            self._add_symbolic_metric(value, name)
            return
        if not call_state.layers and getattr(self, "_graph", None) is not None:
            raise ValueError(
                "Expected a symbolic Tensor for the metric value of a Functional model, received: "
                f"{value!r}. Compute it from the model's inputs or outputs, or call add_metric inside a layer."
            )
        metric = next((m for m in self._own_metrics if m.name == name), None)
        if metric is None:
            metric = Mean(name=name)
            self._own_metrics.append(metric)
        self._mark_added_term()
        recorded = _recorded_values.get()
        if recorded is not None:
            recorded[name] = convert_to_tensor(value)
        shares = current_shares()
        # The weights of the shares of a batch sum to 1, so that a batch counts once.
        parts = 1 if shares is None else shares.sum_factor
        metric.update_state(value, sample_weight=None if parts == 1 else 1 / parts)

    def _add_symbolic_metric(self, value: KerasTensor, name: str) -> None:
        raise ValueError(
            f"Layer {self.name}: add_metric({name!r}) on a symbolic tensor is only supported for models."
        )


def compute_penalty(regularize: Callable[..., Any], value: Any) -> Tensor:
    """Compute a regularization loss; the regularizer may return a Python number."""
    return convert_to_tensor(regularize(value), dtype_hint=settings.floatx())


def make_loss_placeholder(layer: Any) -> KerasTensor:
    """Make a symbolic scalar for a loss that a layer adds."""
    return KerasTensor(TensorSpec((), layer.compute_dtype or settings.floatx()))
