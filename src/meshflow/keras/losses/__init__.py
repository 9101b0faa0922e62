"""`tf.keras.losses`: losses as functions and as classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.environment.types import Config
from meshflow.keras import registry, serialization
from meshflow.keras.losses import functions as _f
from meshflow.keras.losses.base import Loss, LossFunctionWrapper, Reduction, define
from meshflow.keras.losses.functions import *
from meshflow.keras.registry import CustomObjects

BinaryCrossentropy = define(
    "BinaryCrossentropy",
    _f.binary_crossentropy,
    "Cross entropy for labels 0 and 1.",
    example=("BinaryCrossentropy(from_logits=True)([[0.0, 1.0]], [[0.0, 0.0]])", "0.693"),
)
BinaryFocalCrossentropy = define(
    "BinaryFocalCrossentropy",
    _f.binary_focal_crossentropy,
    "Focal cross entropy for labels 0 and 1.",
    example=("BinaryFocalCrossentropy(gamma=1.0)([[0.0, 1.0]], [[0.5, 0.5]])", "0.347"),
)
CategoricalCrossentropy = define(
    "CategoricalCrossentropy",
    _f.categorical_crossentropy,
    "Cross entropy for one-hot labels.",
    example=("CategoricalCrossentropy(label_smoothing=0.5)([[0.0, 1.0]], [[0.25, 0.75]])", "0.562"),
)
CategoricalFocalCrossentropy = define(
    "CategoricalFocalCrossentropy",
    _f.categorical_focal_crossentropy,
    "Focal cross entropy for one-hot labels.",
    example=("CategoricalFocalCrossentropy(alpha=1.0)([[0.0, 1.0]], [[0.5, 0.5]])", "0.173"),
)
CategoricalHinge = define(
    "CategoricalHinge",
    _f.categorical_hinge,
    "Hinge loss over classes.",
    example=("CategoricalHinge()([[0.0, 1.0]], [[0.5, 0.25]])", "1.25"),
)
CosineSimilarity = define(
    "CosineSimilarity",
    _f.cosine_similarity,
    "Negative cosine similarity of labels and predictions.",
    example=("CosineSimilarity()([[1.0, 0.0]], [[3.0, 4.0]])", "-0.6"),
)
Hinge = define(
    "Hinge",
    _f.hinge,
    "Hinge loss.",
    example=("Hinge()([[-1.0, 1.0]], [[0.5, 0.5]])", "1.0"),
)
Huber = define(
    "Huber",
    _f.huber,
    "Loss that is quadratic for small errors and linear for large ones.",
    "huber_loss",
    example=("Huber(delta=2.0)([[0.0], [0.0]], [[1.0], [5.0]])", "4.25"),
)
KLDivergence = define(
    "KLDivergence",
    _f.kl_divergence,
    "Kullback-Leibler divergence.",
    example=("KLDivergence()([[0.5, 0.5]], [[0.25, 0.75]])", "0.144"),
)
LogCosh = define(
    "LogCosh",
    _f.log_cosh,
    "Logarithm of the hyperbolic cosine of the error.",
    example=("LogCosh()([[0.0]], [[1.0]])", "0.434"),
)
MeanAbsoluteError = define(
    "MeanAbsoluteError",
    _f.mean_absolute_error,
    "Mean absolute error.",
    example=("MeanAbsoluteError()([[1.0], [2.0]], [[3.0], [6.0]])", "3.0"),
)
MeanAbsolutePercentageError = define(
    "MeanAbsolutePercentageError",
    _f.mean_absolute_percentage_error,
    "Mean absolute relative error, in percent.",
    example=("MeanAbsolutePercentageError()([[2.0], [4.0]], [[1.0], [3.0]])", "37.5"),
)
MeanSquaredError = define(
    "MeanSquaredError",
    _f.mean_squared_error,
    "Mean squared error.",
    example=("MeanSquaredError()([[0.0], [0.0]], [[1.0], [3.0]], sample_weight=[1.0, 0.0])", "0.5"),
)
MeanSquaredLogarithmicError = define(
    "MeanSquaredLogarithmicError",
    _f.mean_squared_logarithmic_error,
    "Mean squared error of logarithms.",
    example=("MeanSquaredLogarithmicError()([[0.0]], [[1.0]])", "0.48"),
)
Poisson = define(
    "Poisson",
    _f.poisson,
    "Poisson loss.",
    example=("Poisson()([[2.0, 0.0]], [[1.0, 3.0]])", "2.0"),
)
SparseCategoricalCrossentropy = define(
    "SparseCategoricalCrossentropy",
    _f.sparse_categorical_crossentropy,
    "Cross entropy for class indices.",
    omitted=("axis",),
    example=("SparseCategoricalCrossentropy()([1, 0], [[0.5, 0.5], [0.25, 0.75]])", "1.04"),
)
SquaredHinge = define(
    "SquaredHinge",
    _f.squared_hinge,
    "Squared hinge loss.",
    example=("SquaredHinge()([[-1.0, 1.0]], [[1.0, 0.0]])", "2.5"),
)

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
    c.__name__: c for c in list(globals().values()) if isinstance(c, type) and issubclass(c, Loss)
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
_FAMILY = registry.family("loss function", "keras.losses", {**_CLASSES, **_FUNCTIONS, **_ALIASES})

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


def get(identifier: object) -> Loss | Callable[..., Any] | None:
    """Return the loss for a name, class, object, function or configuration; None for None.

    Raises:
      ValueError: If the name is unknown.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.losses.get("mse").__name__
      'mean_squared_error'
    """
    if isinstance(identifier, Loss):
        return identifier
    return _FAMILY.get(identifier)


def serialize(loss: object, use_legacy_format: bool = False) -> Config | str | None:
    """Return the configuration or name of a loss.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.losses.serialize(tf.keras.losses.huber)["config"]
      'huber'
    """
    return serialization.serialize(loss, use_legacy_format)


def deserialize(
    name: str | Config | None, custom_objects: CustomObjects = None, use_legacy_format: bool = False
) -> Loss | Callable[..., Any] | None:
    """Return the loss for a name or configuration.

    Example:
      >>> import meshflow as tf
      >>> config = tf.keras.losses.serialize(tf.keras.losses.Huber(delta=3.0))
      >>> tf.keras.losses.deserialize(config).delta
      3.0
    """
    return _FAMILY.deserialize(name, custom_objects)
