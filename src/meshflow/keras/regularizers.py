"""`tf.keras.regularizers`: penalties on weights and activations."""

from __future__ import annotations

from typing import Literal, TypedDict, Unpack

from meshflow.core.runtime.tracebacks import hide_frames_of_errors
from meshflow.core.values.tensor import TensorLike
from meshflow.environment.types import Config, overridable
from meshflow.keras import registry, serialization, settings
from meshflow.keras.registry import CustomObjects, KerasObject
from meshflow.ops import math
from meshflow.ops.array import eye

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
    """Base class of regularizers: callables that map a tensor to a scalar penalty.

    Example:
      >>> class Above(tf.keras.regularizers.Regularizer):
      ...     def __call__(self, x):
      ...         return tf.reduce_sum(tf.nn.relu(x - 1.0))
      >>> layer = tf.keras.layers.Dense(2, kernel_initializer="ones", kernel_regularizer=Above())
      >>> _ = layer(tf.ones([1, 3]))
      >>> float(layer.losses[0])
      0.0
    """

    @overridable
    def __call__(self, x: TensorLike) -> TensorLike:
        """Return the penalty for `x`, a scalar tensor."""
        return 0.0

    def get_config(self) -> Config:
        """Return the configuration."""
        raise NotImplementedError(f"{self} does not implement get_config()")

    @classmethod
    def from_config(cls, config: Config) -> Regularizer:
        """Create a regularizer from its configuration."""
        return cls(**config)


def _check_factor(value: float, name: str) -> float:
    if (
        not isinstance(value, (int, float))
        or value != value
        or value in (float("inf"), float("-inf"))
    ):
        raise ValueError(
            f"Value: {value} is not a valid regularization penalty number for {name}, expected a finite int/float value"
        )
    return settings.as_floatx(value)


class L1L2(Regularizer):
    """Penalty `l1 * sum(|x|) + l2 * sum(x^2)`.

    Args:
      l1: Factor of the absolute values.
      l2: Factor of the squares.

    Example:
      >>> float(tf.keras.regularizers.L1L2(l1=0.5, l2=0.25)(tf.constant([2.0, -4.0])))
      8.0
    """

    def __init__(self, l1: float = 0.0, l2: float = 0.0) -> None:
        self.l1 = _check_factor(0.0 if l1 is None else l1, "l1")
        self.l2 = _check_factor(0.0 if l2 is None else l2, "l2")

    def __call__(self, x: TensorLike) -> TensorLike:
        """Return the penalty."""
        total = None
        if self.l1:
            total = math.reduce_sum(math.abs(x)) * self.l1
        if self.l2:
            squares = math.reduce_sum(math.square(x)) * self.l2
            total = squares if total is None else total + squares
        return math.reduce_sum(x) * 0.0 if total is None else total

    def get_config(self) -> Config:
        """Return the configuration."""
        return {"l1": self.l1, "l2": self.l2}


class RegularizerArguments(TypedDict, total=False):
    """Former names of arguments of `L1` and `L2`."""

    l: float | None


class L1(L1L2):
    """Penalty `l1 * sum(|x|)`.

    Args:
      l1: The factor.
      **kwargs: `l`, a former name of `l1`.

    Example:
      >>> float(tf.keras.regularizers.L1(0.5)(tf.constant([1.0, -3.0])))
      2.0
    """

    def __init__(self, l1: float = 0.01, **kwargs: Unpack[RegularizerArguments]) -> None:
        factor = kwargs.pop("l", l1)
        super().__init__(l1=0.01 if factor is None else factor)
        if kwargs:
            raise TypeError(f"Argument(s) not recognized: {sorted(kwargs)}")

    def get_config(self) -> Config:
        """Return the configuration."""
        return {"l1": self.l1}


class L2(L1L2):
    """Penalty `l2 * sum(x^2)`.

    Args:
      l2: The factor.
      **kwargs: `l`, a former name of `l2`.

    Example:
      >>> float(tf.keras.regularizers.L2(0.5)(tf.constant([1.0, -3.0])))
      5.0
    """

    def __init__(self, l2: float = 0.01, **kwargs: Unpack[RegularizerArguments]) -> None:
        factor = kwargs.pop("l", l2)
        super().__init__(l2=0.01 if factor is None else factor)
        if kwargs:
            raise TypeError(f"Argument(s) not recognized: {sorted(kwargs)}")

    def get_config(self) -> Config:
        """Return the configuration."""
        return {"l2": self.l2}


class OrthogonalRegularizer(Regularizer):
    """Penalty for rows or columns of a matrix that are not orthogonal.

    Args:
      factor: Factor of the penalty.
      mode: 'rows' or 'columns'.

    Example:
      >>> penalty = tf.keras.regularizers.OrthogonalRegularizer(factor=1.0)
      >>> float(penalty(tf.eye(2))), round(float(penalty(tf.ones([2, 2]))), 3)
      (0.0, 1.0)
    """

    def __init__(self, factor: float = 0.01, mode: Literal["rows", "columns"] = "rows") -> None:
        if mode not in ("rows", "columns"):
            raise ValueError(
                f"Invalid value for argument `mode`. Expected one of {{'rows', 'columns'}}. Received: mode={mode}"
            )
        self.factor, self.mode = _check_factor(factor, "factor"), mode

    def __call__(self, x: TensorLike) -> TensorLike:
        """Return `factor` times the mean absolute product of different normalized vectors."""
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

    def get_config(self) -> Config:
        """Return the configuration."""
        return {"factor": self.factor, "mode": self.mode}


l1, l2, orthogonal_regularizer = L1, L2, OrthogonalRegularizer


def l1_l2(l1: float = 0.01, l2: float = 0.01) -> L1L2:
    """Create a regularizer with both penalties.

    Args:
      l1: Factor of the absolute values.
      l2: Factor of the squares.

    Example:
      >>> float(tf.keras.regularizers.l1_l2(l1=0.5, l2=0.25)(tf.constant([2.0, -4.0])))
      8.0
    """
    return L1L2(l1=l1, l2=l2)


_REGISTRY = registry.create_registry(
    "regularizer",
    "keras.regularizers",
    registry.make_name_table(L1L2, L1, L2, OrthogonalRegularizer, l1_l2=l1_l2),
)


@hide_frames_of_errors
def get(identifier: object) -> KerasObject:
    """Return the regularizer for a name, class, object, function or configuration; None for None.

    Example:
      >>> type(tf.keras.regularizers.get("l2")).__name__
      'L2'
    """
    if identifier == "l1_l2":
        return L1L2(l1=0.01, l2=0.01)  # type: ignore[return-value]
    return _REGISTRY.get(identifier)


def serialize(regularizer: object, use_legacy_format: bool = False) -> Config:
    """Return the configuration of a regularizer.

    Example:
      >>> tf.keras.regularizers.serialize(tf.keras.regularizers.L1(0.5))["config"]
      {'l1': 0.5}
    """
    return serialization.serialize(regularizer, use_legacy_format)


def deserialize(
    config: str | Config | None,
    custom_objects: CustomObjects = None,
    use_legacy_format: bool = False,
) -> KerasObject:
    """Create a regularizer from its configuration.

    Example:
      >>> tf.keras.regularizers.deserialize({"class_name": "L1", "config": {"l1": 0.5}}).get_config()
      {'l1': 0.5}
    """
    return _REGISTRY.deserialize(config, custom_objects)
