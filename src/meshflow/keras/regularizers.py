"""`tf.keras.regularizers`: penalties on weights and activations."""

from __future__ import annotations

from typing import Any

from meshflow.keras import identify
from meshflow.ops import math

__all__ = [
    "L1",
    "L1L2",
    "L2",
    "OrthogonalRegularizer",
    "Regularizer",
    "deserialize",
    "get",
    "l1",
    "l1_l2",
    "l2",
    "orthogonal_regularizer",
    "serialize",
]


class Regularizer:
    """Base class: called with a tensor, gives a scalar."""

    def __call__(self, x: Any) -> Any:
        """The penalty for `x`, a scalar tensor."""
        return 0.0

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        raise NotImplementedError(f"{self} does not implement get_config()")

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Regularizer:
        """The regularizer with a configuration."""
        return cls(**config)


def _factor(value: Any, name: str) -> float:
    if (
        not isinstance(value, (int, float))
        or value != value
        or value in (float("inf"), float("-inf"))
    ):
        raise ValueError(
            f"Value: {value} is not a valid regularization penalty number for {name}, expected a finite int/float value"
        )
    return float(value)


class L1L2(Regularizer):
    """`l1 * sum(|x|) + l2 * sum(x^2)`.

    Args:
      l1: factor of the absolute values.
      l2: factor of the squares.
    """

    def __init__(self, l1: float = 0.0, l2: float = 0.0) -> None:
        self.l1 = _factor(0.0 if l1 is None else l1, "l1")
        self.l2 = _factor(0.0 if l2 is None else l2, "l2")

    def __call__(self, x: Any) -> Any:
        """The penalty."""
        total = None
        if self.l1:
            total = math.reduce_sum(math.abs(x)) * self.l1
        if self.l2:
            squares = math.reduce_sum(math.square(x)) * self.l2
            total = squares if total is None else total + squares
        return math.reduce_sum(x) * 0.0 if total is None else total

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {"l1": self.l1, "l2": self.l2}


class L1(L1L2):
    """`l1 * sum(|x|)`.

    Args:
      l1: the factor.
      **kwargs: `l`, an old name of `l1`.
    """

    def __init__(self, l1: float = 0.01, **kwargs: Any) -> None:
        super().__init__(l1=kwargs.pop("l", l1))
        if kwargs:
            raise TypeError(f"Argument(s) not recognized: {sorted(kwargs)}")

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {"l1": self.l1}


class L2(L1L2):
    """`l2 * sum(x^2)`.

    Args:
      l2: the factor.
      **kwargs: `l`, an old name of `l2`.
    """

    def __init__(self, l2: float = 0.01, **kwargs: Any) -> None:
        super().__init__(l2=kwargs.pop("l", l2))
        if kwargs:
            raise TypeError(f"Argument(s) not recognized: {sorted(kwargs)}")

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {"l2": self.l2}


class OrthogonalRegularizer(Regularizer):
    """Penalizes rows (or columns) of a matrix that are not orthogonal.

    Args:
      factor: factor of the penalty.
      mode: 'rows' or 'columns'.
    """

    def __init__(self, factor: float = 0.01, mode: str = "rows") -> None:
        if mode not in ("rows", "columns"):
            raise ValueError(
                f"Invalid value for argument `mode`. Expected one of {{'rows', 'columns'}}. Received: mode={mode}"
            )
        self.factor, self.mode = _factor(factor, "factor"), mode

    def __call__(self, x: Any) -> Any:
        """The mean absolute product of different rows, times the factor."""
        from meshflow.ops.array import eye

        if len(x.shape) != 2:
            raise ValueError(
                f"Inputs to OrthogonalRegularizer must have rank 2. Received: inputs.shape={tuple(x.shape)}"
            )
        rows = self.mode == "rows"
        unit = math.l2_normalize(x, axis=1 if rows else 0)
        product = math.matmul(unit, unit, transpose_b=rows, transpose_a=not rows)
        size = x.shape[0 if rows else 1]
        total = math.reduce_sum(math.abs(product * (1.0 - eye(size, dtype=x.dtype))))
        return total * (self.factor / max(size * (size - 1), 1))

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {"factor": self.factor, "mode": self.mode}


l1, l2, orthogonal_regularizer = L1, L2, OrthogonalRegularizer


def l1_l2(l1: float = 0.01, l2: float = 0.01) -> L1L2:
    """A regularizer with both penalties."""
    return L1L2(l1=l1, l2=l2)


_TABLE = identify.name_table(L1L2, L1, L2, OrthogonalRegularizer, l1_l2=l1_l2)


def get(identifier: Any) -> Any:
    """A regularizer from a name, class, object, function or configuration; None is None."""
    if identifier == "l1_l2":
        return L1L2(l1=0.01, l2=0.01)
    return identify.lookup(identifier, _TABLE, "regularizer")


def serialize(regularizer: Any, use_legacy_format: bool = False) -> Any:
    """The configuration of a regularizer."""
    return identify.serialize(regularizer)


def deserialize(config: Any, custom_objects: Any = None, use_legacy_format: bool = False) -> Any:
    """The regularizer with a configuration."""
    return identify.lookup(config, _TABLE, "regularizer", custom_objects)
