"""`tf.keras.constraints`: projections applied to weights after each update."""

from __future__ import annotations

from typing import Any

from meshflow.keras import backend, identify
from meshflow.ops import math

__all__ = [
    "Constraint",
    "MaxNorm",
    "MinMaxNorm",
    "NonNeg",
    "RadialConstraint",
    "UnitNorm",
    "deserialize",
    "get",
    "max_norm",
    "min_max_norm",
    "non_neg",
    "radial_constraint",
    "serialize",
    "unit_norm",
]


class Constraint:
    """Base class: called with a weight, gives its projection."""

    def __call__(self, w: Any) -> Any:
        """The projected weight."""
        return w

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Constraint:
        """The constraint with a configuration."""
        return cls(**config)


def _norms(w: Any, axis: Any) -> Any:
    return math.sqrt(math.reduce_sum(math.square(w), axis=axis, keepdims=True))


class MaxNorm(Constraint):
    """Norms along `axis` of at most `max_value`.

    Args:
      max_value: the largest norm.
      axis: dimension or dimensions that make up one vector.
    """

    def __init__(self, max_value: float = 2, axis: Any = 0) -> None:
        self.max_value, self.axis = max_value, axis

    def __call__(self, w: Any) -> Any:
        """The projected weight."""
        norms = _norms(w, self.axis)
        return w * (
            math.clip_by_value(norms, 0.0, float(self.max_value)) / (norms + backend.epsilon())
        )

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {"max_value": self.max_value, "axis": self.axis}


class NonNeg(Constraint):
    """No negative weights."""

    def __call__(self, w: Any) -> Any:
        """The projected weight."""
        return math.maximum(w, 0.0)


class UnitNorm(Constraint):
    """Norm 1 along `axis`.

    Args:
      axis: dimension or dimensions that make up one vector.
    """

    def __init__(self, axis: Any = 0) -> None:
        self.axis = axis

    def __call__(self, w: Any) -> Any:
        """The projected weight."""
        return w / (_norms(w, self.axis) + backend.epsilon())

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {"axis": self.axis}


class MinMaxNorm(Constraint):
    """Norms along `axis` between two values.

    Args:
      min_value: the smallest norm.
      max_value: the largest norm.
      rate: how far towards the interval each step goes, 1 all the way.
      axis: dimension or dimensions that make up one vector.
    """

    def __init__(
        self, min_value: float = 0.0, max_value: float = 1.0, rate: float = 1.0, axis: Any = 0
    ) -> None:
        self.min_value, self.max_value, self.rate, self.axis = min_value, max_value, rate, axis

    def __call__(self, w: Any) -> Any:
        """The projected weight."""
        norms = _norms(w, self.axis)
        wanted = math.clip_by_value(
            norms, float(self.min_value), float(self.max_value)
        ) * self.rate + norms * (1 - self.rate)
        return w * (wanted / (norms + backend.epsilon()))

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            "min_value": self.min_value,
            "max_value": self.max_value,
            "rate": self.rate,
            "axis": self.axis,
        }


class RadialConstraint(Constraint):
    """Convolution kernels that are symmetric around their centre."""

    def __call__(self, w: Any) -> Any:
        """The projected weight: each ring takes its first element's value."""
        import numpy as np

        from meshflow.ops.array import gather_nd, transpose

        if len(w.shape) != 4 or w.shape[0] != w.shape[1]:
            raise ValueError(
                f"The weight tensor must have rank 4 and a square window. Received shape: {tuple(w.shape)}"
            )
        n = w.shape[0]
        ring = [[min(i, j, n - 1 - i, n - 1 - j) for j in range(n)] for i in range(n)]
        index = np.array([[[r, n // 2] for r in row] for row in ring], np.int32)
        return gather_nd(transpose(w, [0, 1, 2, 3]), index)


max_norm, non_neg, unit_norm, min_max_norm, radial_constraint = (
    MaxNorm,
    NonNeg,
    UnitNorm,
    MinMaxNorm,
    RadialConstraint,
)
_TABLE = identify.name_table(
    MaxNorm, NonNeg, UnitNorm, MinMaxNorm, RadialConstraint, nonneg=NonNeg, maxnorm=MaxNorm
)


def get(identifier: Any) -> Any:
    """A constraint from a name, class, object, function or configuration; None is None."""
    return identify.lookup(identifier, _TABLE, "constraint")


def serialize(constraint: Any) -> Any:
    """The configuration of a constraint."""
    return identify.serialize(constraint)


def deserialize(config: Any, custom_objects: Any = None) -> Any:
    """The constraint with a configuration."""
    return identify.lookup(config, _TABLE, "constraint", custom_objects)
