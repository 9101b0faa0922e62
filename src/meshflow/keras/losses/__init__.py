"""`tf.keras.losses`: losses as functions and as classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.runtime.tracebacks import hide_frames_of_errors
from meshflow.core.values.tensor import TensorLike
from meshflow.environment.types import Config, Json
from meshflow.keras import registry, serialization
from meshflow.keras.losses import functions as _f
from meshflow.keras.losses.base import (
    FunctionLoss,
    Loss,
    LossFunctionWrapper,
    Reduction,
    ReductionName,
    define_loss,
)
from meshflow.keras.losses.functions import *
from meshflow.keras.registry import CustomObjects, KerasObject


@define_loss(
    _f.binary_crossentropy,
    example=("BinaryCrossentropy(from_logits=True)([[0.0, 1.0]], [[0.0, 0.0]])", "0.693"),
)
class BinaryCrossentropy(FunctionLoss):
    """Cross entropy for labels 0 and 1."""

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: ReductionName | None = "auto",
        name: str | None = "binary_crossentropy",
    ) -> None: ...


@define_loss(
    _f.binary_focal_crossentropy,
    example=("BinaryFocalCrossentropy(gamma=1.0)([[0.0, 1.0]], [[0.5, 0.5]])", "0.347"),
)
class BinaryFocalCrossentropy(FunctionLoss):
    """Focal cross entropy for labels 0 and 1."""

    def __init__(
        self,
        apply_class_balancing: bool = False,
        alpha: float = 0.25,
        gamma: float = 2.0,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: ReductionName | None = "auto",
        name: str | None = "binary_focal_crossentropy",
    ) -> None: ...


@define_loss(
    _f.categorical_crossentropy,
    example=("CategoricalCrossentropy(label_smoothing=0.5)([[0.0, 1.0]], [[0.25, 0.75]])", "0.562"),
)
class CategoricalCrossentropy(FunctionLoss):
    """Cross entropy for one-hot labels."""

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: ReductionName | None = "auto",
        name: str | None = "categorical_crossentropy",
    ) -> None: ...


@define_loss(
    _f.categorical_focal_crossentropy,
    example=("CategoricalFocalCrossentropy(alpha=1.0)([[0.0, 1.0]], [[0.5, 0.5]])", "0.173"),
)
class CategoricalFocalCrossentropy(FunctionLoss):
    """Focal cross entropy for one-hot labels."""

    def __init__(
        self,
        alpha: float | TensorLike = 0.25,
        gamma: float = 2.0,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: ReductionName | None = "auto",
        name: str | None = "categorical_focal_crossentropy",
    ) -> None: ...


@define_loss(
    _f.categorical_hinge, example=("CategoricalHinge()([[0.0, 1.0]], [[0.5, 0.25]])", "1.25")
)
class CategoricalHinge(FunctionLoss):
    """Hinge loss over classes."""


@define_loss(
    _f.cosine_similarity, example=("CosineSimilarity()([[1.0, 0.0]], [[3.0, 4.0]])", "-0.6")
)
class CosineSimilarity(FunctionLoss):
    """Negative cosine similarity of labels and predictions."""

    def __init__(
        self,
        axis: int = -1,
        reduction: ReductionName | None = "auto",
        name: str | None = "cosine_similarity",
    ) -> None: ...


@define_loss(_f.hinge, example=("Hinge()([[-1.0, 1.0]], [[0.5, 0.5]])", "1.0"))
class Hinge(FunctionLoss):
    """Hinge loss."""


@define_loss(_f.huber, example=("Huber(delta=2.0)([[0.0], [0.0]], [[1.0], [5.0]])", "4.25"))
class Huber(FunctionLoss):
    """Loss that is quadratic for small errors and linear for large ones."""

    def __init__(
        self,
        delta: float = 1.0,
        reduction: ReductionName | None = "auto",
        name: str | None = "huber_loss",
    ) -> None: ...


@define_loss(_f.kl_divergence, example=("KLDivergence()([[0.5, 0.5]], [[0.25, 0.75]])", "0.144"))
class KLDivergence(FunctionLoss):
    """Kullback-Leibler divergence."""


@define_loss(_f.log_cosh, example=("LogCosh()([[0.0]], [[1.0]])", "0.434"))
class LogCosh(FunctionLoss):
    """Logarithm of the hyperbolic cosine of the error."""


@define_loss(
    _f.mean_absolute_error, example=("MeanAbsoluteError()([[1.0], [2.0]], [[3.0], [6.0]])", "3.0")
)
class MeanAbsoluteError(FunctionLoss):
    """Mean absolute error."""


@define_loss(
    _f.mean_absolute_percentage_error,
    example=("MeanAbsolutePercentageError()([[2.0], [4.0]], [[1.0], [3.0]])", "37.5"),
)
class MeanAbsolutePercentageError(FunctionLoss):
    """Mean absolute relative error, in percent."""


@define_loss(
    _f.mean_squared_error,
    example=("MeanSquaredError()([[0.0], [0.0]], [[1.0], [3.0]], sample_weight=[1.0, 0.0])", "0.5"),
)
class MeanSquaredError(FunctionLoss):
    """Mean squared error."""


@define_loss(
    _f.mean_squared_logarithmic_error,
    example=("MeanSquaredLogarithmicError()([[0.0]], [[1.0]])", "0.48"),
)
class MeanSquaredLogarithmicError(FunctionLoss):
    """Mean squared error of logarithms."""


@define_loss(_f.poisson, example=("Poisson()([[2.0, 0.0]], [[1.0, 3.0]])", "2.0"))
class Poisson(FunctionLoss):
    """Poisson loss."""


@define_loss(
    _f.sparse_categorical_crossentropy,
    example=("SparseCategoricalCrossentropy()([1, 0], [[0.5, 0.5], [0.25, 0.75]])", "1.04"),
)
class SparseCategoricalCrossentropy(FunctionLoss):
    """Cross entropy for class indices."""

    def __init__(
        self,
        from_logits: bool = False,
        ignore_class: int | None = None,
        reduction: ReductionName | None = "auto",
        name: str | None = "sparse_categorical_crossentropy",
    ) -> None: ...


@define_loss(_f.squared_hinge, example=("SquaredHinge()([[-1.0, 1.0]], [[1.0, 0.0]])", "2.5"))
class SquaredHinge(FunctionLoss):
    """Squared hinge loss."""


mse = MSE = _f.mean_squared_error
mae = MAE = _f.mean_absolute_error
mape = MAPE = _f.mean_absolute_percentage_error
msle = MSLE = _f.mean_squared_logarithmic_error
kld = KLD = kullback_leibler_divergence = _f.kl_divergence
logcosh = _f.log_cosh

_FUNCTIONS = {
    name: value
    for name, value in vars(_f).items()
    if callable(value)
    and getattr(value, "__module__", "") == _f.__name__
    and not name.startswith("_")
}
_CLASSES = {
    c.__name__: c
    for c in list(globals().values())
    if isinstance(c, type) and issubclass(c, Loss) and c is not FunctionLoss
}
_ALIASES = {
    **{n: mse for n in ("mse", "MSE")},
    **{n: mae for n in ("mae", "MAE")},
    **{n: mape for n in ("mape", "MAPE")},
    **{n: msle for n in ("msle", "MSLE")},
    **{n: kld for n in ("kld", "KLD", "kullback_leibler_divergence")},
    "logcosh": logcosh,
    "bce": _f.binary_crossentropy,
    "huber_loss": _f.huber,
}
_REGISTRY = registry.create_registry(
    "loss function", "keras.losses", {**_CLASSES, **_FUNCTIONS, **_ALIASES}
)

__all__ = sorted(
    {
        *_CLASSES,
        *_FUNCTIONS,
        *("Reduction", "MSE", "mse", "MAE", "mae", "MAPE", "mape", "MSLE", "msle", "KLD", "kld"),
        *("logcosh", "kullback_leibler_divergence"),
        "get",
        "serialize",
        "deserialize",
    }
)


@hide_frames_of_errors
def get(identifier: object) -> KerasObject:
    """Return the loss for a name, class, object, function or configuration; None for None.

    Raises:
      ValueError: If the name is unknown.

    Example:
      >>> tf.keras.losses.get("mse").__name__
      'mean_squared_error'
    """
    if isinstance(identifier, Loss):
        return identifier  # type: ignore[return-value]
    return _REGISTRY.get(identifier)


def serialize(loss: object, use_legacy_format: bool = False) -> Config:
    """Return the configuration or name of a loss.

    Example:
      >>> tf.keras.losses.serialize(tf.keras.losses.huber)["config"]
      'huber'
    """
    return serialization.serialize(loss, use_legacy_format)


def deserialize(
    name: str | Config | None, custom_objects: CustomObjects = None, use_legacy_format: bool = False
) -> KerasObject:
    """Return the loss for a name or configuration.

    Example:
      >>> config = tf.keras.losses.serialize(tf.keras.losses.Huber(delta=3.0))
      >>> tf.keras.losses.deserialize(config).delta
      3.0
    """
    return _REGISTRY.deserialize(name, custom_objects)
