"""`tf.keras.constraints`: projections that are applied to weights after each update."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshflow.core.runtime.tracebacks import hide_frames_of_errors
from meshflow.core.values.tensor import TensorLike
from meshflow.environment.types import Config, overridable
from meshflow.keras import registry, serialization, settings
from meshflow.keras.registry import CustomObjects, KerasObject
from meshflow.ops import math
from meshflow.ops.array import gather_nd

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
    """Base class of constraints: callables that map a weight to its projection.

    Example:
      >>> class AtMostOne(tf.keras.constraints.Constraint):
      ...     def __call__(self, w):
      ...         return tf.minimum(w, 1.0)
      >>> AtMostOne()(tf.constant([0.5, 3.0])).numpy().tolist()
      [0.5, 1.0]
    """

    @overridable
    def __call__(self, w: TensorLike) -> TensorLike:
        """Return the projected weight."""
        return w

    def get_config(self) -> Config:
        """Return the configuration."""
        return {}

    @classmethod
    def from_config(cls, config: Config) -> Constraint:
        """Create a constraint from its configuration."""
        return cls(**config)


def _compute_norms(w: TensorLike, axis: int | Sequence[int]) -> TensorLike:
    return math.sqrt(math.reduce_sum(math.square(w), axis=axis, keepdims=True))


class MaxNorm(Constraint):
    """Constraint that limits the norms along `axis` to `max_value`.

    Args:
      max_value: Largest norm.
      axis: Axis or axes that form one vector.

    Example:
      >>> w = tf.constant([[3.0, 0.3], [4.0, 0.4]])
      >>> tf.keras.constraints.MaxNorm(1.0)(w).numpy().round(3)
      array([[0.6, 0.3],
             [0.8, 0.4]], dtype=float32)
    """

    def __init__(self, max_value: float = 2, axis: int | Sequence[int] = 0) -> None:
        self.max_value, self.axis = max_value, axis

    def __call__(self, w: TensorLike) -> TensorLike:
        """Return the projected weight."""
        norms = _compute_norms(w, self.axis)
        return w * (
            math.clip_by_value(norms, 0.0, float(self.max_value)) / (norms + settings.epsilon())
        )

    def get_config(self) -> Config:
        """Return the configuration."""
        return {"max_value": self.max_value, "axis": self.axis}


class NonNeg(Constraint):
    """Constraint that replaces negative weights by zero.

    Example:
      >>> tf.keras.constraints.NonNeg()(tf.constant([-1.0, 2.0])).numpy().tolist()
      [0.0, 2.0]
    """

    def __call__(self, w: TensorLike) -> TensorLike:
        """Return the projected weight."""
        return math.maximum(w, 0.0)


class UnitNorm(Constraint):
    """Constraint that scales vectors along `axis` to norm 1.

    Args:
      axis: Axis or axes that form one vector.

    Example:
      >>> tf.keras.constraints.UnitNorm()(tf.constant([[3.0], [4.0]])).numpy().round(3)
      array([[0.6],
             [0.8]], dtype=float32)
    """

    def __init__(self, axis: int | Sequence[int] = 0) -> None:
        self.axis = axis

    def __call__(self, w: TensorLike) -> TensorLike:
        """Return the projected weight."""
        return w / (_compute_norms(w, self.axis) + settings.epsilon())

    def get_config(self) -> Config:
        """Return the configuration."""
        return {"axis": self.axis}


class MinMaxNorm(Constraint):
    """Constraint that keeps the norms along `axis` between two values.

    Args:
      min_value: Smallest norm.
      max_value: Largest norm.
      rate: Fraction of the distance to the interval by which each update changes a norm.
      axis: Axis or axes that form one vector.

    Example:
      >>> w = tf.constant([[3.0, 0.3], [4.0, 0.4]])
      >>> tf.keras.constraints.MinMaxNorm(1.0, 2.0)(w).numpy().round(3)
      array([[1.2, 0.6],
             [1.6, 0.8]], dtype=float32)
    """

    def __init__(
        self,
        min_value: float = 0.0,
        max_value: float = 1.0,
        rate: float = 1.0,
        axis: int | Sequence[int] = 0,
    ) -> None:
        self.min_value, self.max_value, self.rate, self.axis = min_value, max_value, rate, axis

    def __call__(self, w: TensorLike) -> TensorLike:
        """Return the projected weight."""
        norms = _compute_norms(w, self.axis)
        clipped = math.clip_by_value(norms, float(self.min_value), float(self.max_value))
        new_norms = clipped * self.rate + norms * (1 - self.rate)
        return w * (new_norms / (norms + settings.epsilon()))

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            "min_value": self.min_value,
            "max_value": self.max_value,
            "rate": self.rate,
            "axis": self.axis,
        }


class RadialConstraint(Constraint):
    """Constraint that makes convolution kernels symmetric around their center.

    Example:
      >>> kernel = tf.reshape(tf.range(9.0), [3, 3, 1, 1])
      >>> radial = tf.keras.constraints.RadialConstraint()(kernel)
      >>> bool(tf.reduce_all(radial == tf.transpose(radial, [1, 0, 2, 3])))
      True
    """

    def __call__(self, w: TensorLike) -> TensorLike:
        """Return the kernel with one value for each square ring of the window.

        Rings are numbered from the center outwards. As in Keras, they take the elements of the
        diagonal in order, from the element above the center.
        """
        if len(w.shape) != 4 or w.shape[0] != w.shape[1]:
            raise ValueError(
                f"The weight tensor must have rank 4 and a square window. Received shape: {tuple(w.shape)}"
            )
        n, start = w.shape[0], w.shape[0] // 2
        position = np.arange(n)
        edge_distance = np.minimum(position, n - 1 - position)
        ring = (n + 1) // 2 - 1 - np.minimum(edge_distance[:, None], edge_distance)
        diagonal = start - 1 + ring + (ring > 0) * (n % 2 == 0)
        return gather_nd(w, np.stack([diagonal, diagonal], -1).astype(np.int32))


max_norm, non_neg, unit_norm, min_max_norm, radial_constraint = (
    MaxNorm,
    NonNeg,
    UnitNorm,
    MinMaxNorm,
    RadialConstraint,
)
_REGISTRY = registry.create_registry(
    "constraint",
    "keras.constraints",
    registry.make_name_table(
        *(MaxNorm, NonNeg, UnitNorm, MinMaxNorm, RadialConstraint, Constraint),
        **{"nonneg": NonNeg, "maxnorm": MaxNorm},
    ),
)


@hide_frames_of_errors
def get(identifier: object) -> KerasObject:
    """Return the constraint for a name, class, object, function or configuration; None for None.

    Example:
      >>> tf.keras.constraints.get("non_neg")(tf.constant([-1.0, 2.0])).numpy().tolist()
      [0.0, 2.0]
    """
    return _REGISTRY.get(identifier)


def serialize(constraint: object, use_legacy_format: bool = False) -> Config:
    """Return the configuration of a constraint.

    Example:
      >>> tf.keras.constraints.serialize(tf.keras.constraints.MaxNorm(3))["config"]
      {'max_value': 3, 'axis': 0}
    """
    return serialization.serialize(constraint, use_legacy_format)


def deserialize(
    config: str | Config | None,
    custom_objects: CustomObjects = None,
    use_legacy_format: bool = False,
) -> KerasObject:
    """Create a constraint from its configuration.

    Example:
      >>> tf.keras.constraints.deserialize({"class_name": "MaxNorm", "config": {"max_value": 3}}).max_value
      3
    """
    return _REGISTRY.deserialize(config, custom_objects)
