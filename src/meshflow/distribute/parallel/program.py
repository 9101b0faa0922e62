"""What a strategy that computes gradients itself is given, and what it gives back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from meshflow.core.variables.variable import Variable

__all__ = ["Gradients", "LossProgram", "Sending"]


class LossProgram(Protocol):
    """A model's forward pass and loss as functions of rows, to be traced; Keras makes it of a model.

    Attributes:
      model: the model.
      variables: the variables whose gradients are wanted.
      measures: whether the norms of the shares' gradients are wanted.
    """

    model: Any
    measures: bool
    variables: Sequence[Variable]

    def run(self, x: Any, y: Any, sample_weight: Any) -> tuple[Any, list[Any], Any]:
        """`forward`, then `loss`.

        Returns:
          The loss, the noted values, and the predictions.
        """

    def add_slot(self, variable: Variable, name: str, shape: Any) -> Variable:
        """A slot of zeros of a variable's optimizer; the same when it is asked for again."""

    def restore_slots(self) -> None:
        """Gives slots that were added the values that restored files hold for them."""

    def sending(self) -> Sending:
        """What the optimizer says about gradients that are sent in few bits."""

    def forward(self, x: Any) -> Any:
        """The model's predictions in training."""

    def loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> tuple[Any, list[Any]]:
        """The loss to be differentiated, scaled where the optimizer scales it, and values to be averaged and shown.

        Both are of a share: the mean over all shares is that of the batch; see `Shares`.
        """


@dataclasses.dataclass(frozen=True)
class Sending:
    """What an optimizer says about gradients that are sent in few bits.

    Attributes:
      updates: how many updates it has made, a scalar tensor.
      scale: what it multiplies losses by, a float32 scalar tensor; None for nothing.
      warm_up: after how many updates its momentum is sent in place of gradients; None if it never is.
      decay: of this momentum, a scalar tensor.
      momentum: the slot that holds it, by variable.
    """

    updates: Any
    scale: Any = None
    warm_up: int | None = None
    decay: Any = None
    momentum: Callable[[Variable], Variable] | None = None


@dataclasses.dataclass
class Gradients:
    """What a region gives.

    Attributes:
      noted: the values that the program noted, averaged over all shares.
      gradients: of the mean of the losses, for each variable; None where it has none.
      predictions: of all rows, or None where nobody asks for them.
      squares: the sum of the squared norms of the shares' gradients; None where nobody asks for it, or nobody knows.
      shares: how many different shares these are.
    """

    noted: list[Any]
    gradients: list[Any]
    predictions: Any
    squares: Any = None
    shares: int = 1
