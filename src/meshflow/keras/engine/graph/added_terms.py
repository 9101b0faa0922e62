"""Layers that add a tensor of a graph to the losses or metrics of its model."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Config
from meshflow.keras import registry
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.metrics.means import Mean


class AddLoss(Layer):
    """Layer that adds its input to the losses, created by `Model.add_loss` on a symbolic tensor.

    Args:
      unconditional: Whether the loss is independent of the inputs of the model; only stored.
      **kwargs: Arguments of `Layer`.
    """

    def __init__(self, unconditional: bool = False, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "autocast": False})
        self.unconditional = unconditional

    def call(self, inputs: Tensor) -> Tensor:
        """Add the inputs to the losses and return them."""
        self.add_loss(inputs)
        return inputs

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "unconditional": self.unconditional}


class AddMetric(Layer):
    """Layer that reports the mean of its input, created by `Model.add_metric` on a symbolic tensor.

    Args:
      aggregation: "mean", or None for the result of a metric; only stored.
      metric_name: Name of the metric.
      **kwargs: Arguments of `Layer`.
    """

    def __init__(
        self, aggregation: str | None = None, metric_name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.aggregation, self.metric_name = aggregation, metric_name
        # The metric is listed before the first call.
        self._own_metrics.append(Mean(name=metric_name))

    def call(self, inputs: Tensor) -> Tensor:
        """Update the metric with the inputs and return them."""
        self.add_metric(inputs, name=self.metric_name)
        return inputs

    def get_config(self) -> Config:
        """Return the configuration."""
        config = {"aggregation": self.aggregation, "metric_name": self.metric_name}
        return {**super().get_config(), **config}


def is_loss(tensor: KerasTensor) -> bool:
    """Check whether a symbolic tensor is the result of an `AddLoss` layer."""
    return isinstance(tensor.node.layer, AddLoss)


registry.LAYERS.add(AddLoss, AddMetric)
