"""Interfaces between `MeshStrategy`, its region, and the Keras model that it trains.

Keras passes a `LossProgram` to a strategy that computes gradients itself, and receives a
`RegionResult`. The region sees the strategy as a `RegionStrategy`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.options import ParallelOptions
from meshflow.distribute.parallel.rules import ShardingRules
from meshflow.environment.types import PyTree
from meshflow.placement.activation_files import ActivationFiles
from meshflow.placement.mesh import Mesh


class UpdateGroup(NamedTuple):
    """Key of weights that an optimizer updates together.

    Attributes:
      is_elementwise: Whether it computes each element independently of the others, so that it can
        update an array of several weights.
      has_weight_decay: Whether it subtracts a fraction of the weights.
      is_trained: Whether it updates the weights at all.
      num_slots: Number of slots of each weight, if a pipeline finds them in the trace of a step.
    """

    is_elementwise: bool = True
    has_weight_decay: bool = False
    is_trained: bool = True
    num_slots: int = 0


class RegionStrategy(Protocol):
    """Attributes of a `MeshStrategy` that the region and the pipeline use.

    Attributes:
      mesh: Mesh of the strategy.
      options: Its options.
      rules: Its sharding rules.
      scratch: Files in which activations wait for the backward pass, or None.
      batch_dimensions: Mesh dimensions that batches are split over.
      rule_dimensions: Other mesh dimensions that rules split weights over.
      has_divided: Whether a batch has been partitioned already.
      pipelined: The pipeline of the step that was traced last.
    """

    mesh: Mesh
    options: ParallelOptions
    rules: ShardingRules
    scratch: ActivationFiles | None
    batch_dimensions: tuple[str, ...]
    rule_dimensions: set[str]
    has_divided: bool
    pipelined: Any

    @property
    def zero_dimensions(self) -> tuple[str, ...]:
        """Return the mesh dimensions that ZeRO shards over; empty with `zero=0`."""


class LossProgram(Protocol):
    """Forward pass and loss of a model as functions of examples; Keras implements it for a model.

    Attributes:
      model: The model.
      variables: Variables to differentiate with respect to.
      needs_gradient_norms: Whether the squared norms of the gradients of single shares are needed.
    """

    model: Any
    needs_gradient_norms: bool
    variables: Sequence[Variable]

    def run(self, x: PyTree, y: PyTree, sample_weight: PyTree) -> tuple[Any, list[Any], PyTree]:
        """Run `forward`, then `loss`.

        Args:
          x: Inputs of a share of the batch.
          y: Targets, or None.
          sample_weight: Weights of the examples, or None.

        Returns:
          The loss, the values for metrics, and the predictions.
        """

    def add_slot(self, variable: Variable, name: str, shape: Sequence[int]) -> Variable:
        """Create a slot of zeros in the optimizer, or return the existing slot.

        Args:
          variable: Variable that the slot belongs to.
          name: Name of the slot.
          shape: Shape of the slot.

        Returns:
          The slot.
        """

    def get_update_group(self, variable: Variable) -> UpdateGroup | None:
        """Return a key of the weights that the optimizer updates together, or None if it has none.

        Args:
          variable: A weight.
        """

    def restore_slots(self) -> None:
        """Assign values of restored files to slots that were added after the files were read."""

    def get_compression_state(self) -> CompressionState:
        """Return the state of the optimizer that compression of gradients depends on."""

    def forward(self, x: PyTree) -> PyTree:
        """Return the model's predictions in training."""

    def compute_loss(
        self, x: PyTree, y: PyTree, y_pred: PyTree, sample_weight: PyTree
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute the loss, scaled if the optimizer scales it, and the values for metrics.

        Both are values of one share. Their mean over all shares is the value of the batch; see
        `BatchShares`.
        """


@dataclasses.dataclass(frozen=True)
class CompressionState:
    """State of an optimizer that compression of gradients depends on.

    Attributes:
      updates: Number of past updates, a scalar tensor.
      scale: Factor of the loss, a float32 scalar tensor; None without loss scaling.
      warm_up: Number of updates after which the momentum is exchanged instead of gradients; None if
        it never is.
      decay: Decay of this momentum, a scalar tensor.
      momentum: Function that returns the slot of the momentum of a variable.
    """

    updates: Any
    scale: Any = None
    warm_up: int | None = None
    decay: Any = None
    momentum: Callable[[Variable], Variable] | None = None


@dataclasses.dataclass
class RegionResult:
    """Results of a region for a global batch.

    Attributes:
      metric_values: Values for metrics, averaged over all shares.
      gradients: Gradient of the mean loss for each variable, or None for a variable that the loss
        does not use.
      predictions: Predictions of all examples, or None if they were not requested.
      squared_norms: Sum of the squared norms of the gradients of single shares; None if it was not
        requested or is unknown.
      num_shares: Number of different shares.
      variables: Variables of the gradients; None if they are those of the program. Some can be
        buffers of several weights.
    """

    metric_values: list[Any]
    gradients: list[Any]
    predictions: Any
    squared_norms: Any = None
    num_shares: int = 1
    variables: list[Variable] | None = None
