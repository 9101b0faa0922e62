"""`tf.keras.metrics`: metrics as functions and as classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras import registry, serialization
from meshflow.keras.losses import functions as _losses
from meshflow.keras.losses.functions import *
from meshflow.keras.metrics import accuracy as _accuracy
from meshflow.keras.metrics import experimental as experimental
from meshflow.keras.metrics.accuracy import *
from meshflow.keras.metrics.auc import AUC
from meshflow.keras.metrics.base import Metric
from meshflow.keras.metrics.confusion import (
    FalseNegatives,
    FalsePositives,
    Precision,
    Recall,
    TrueNegatives,
    TruePositives,
)
from meshflow.keras.metrics.fscore import F1Score, FBetaScore
from meshflow.keras.metrics.iou import BinaryIoU, IoU, MeanIoU, OneHotIoU, OneHotMeanIoU
from meshflow.keras.metrics.means import Mean, MeanMetricWrapper, MeanTensor, Sum, define_metric
from meshflow.keras.metrics.regression import MeanRelativeError, R2Score, RootMeanSquaredError
from meshflow.keras.metrics.threshold_metrics import (
    PrecisionAtRecall,
    RecallAtPrecision,
    SensitivityAtSpecificity,
    SpecificityAtSensitivity,
)
from meshflow.keras.registry import CustomObjects

BinaryCrossentropy = define_metric(
    "BinaryCrossentropy",
    _losses.binary_crossentropy,
    "Mean cross entropy for labels 0 and 1.",
    omitted=("axis",),
    example=("BinaryCrossentropy(from_logits=True)([[0.0, 1.0]], [[0.0, 0.0]])", "0.693"),
)
CategoricalCrossentropy = define_metric(
    "CategoricalCrossentropy",
    _losses.categorical_crossentropy,
    "Mean cross entropy for one-hot labels.",
    example=("CategoricalCrossentropy(label_smoothing=0.5)([[0.0, 1.0]], [[0.25, 0.75]])", "0.562"),
)
SparseCategoricalCrossentropy = define_metric(
    "SparseCategoricalCrossentropy",
    _losses.sparse_categorical_crossentropy,
    "Mean cross entropy for class indices.",
    last=("axis",),
    example=("SparseCategoricalCrossentropy()([1, 0], [[0.5, 0.5], [0.25, 0.75]])", "1.04"),
)
CategoricalHinge = define_metric(
    "CategoricalHinge",
    _losses.categorical_hinge,
    "Mean hinge loss over classes.",
    example=("CategoricalHinge()([[0.0, 1.0]], [[0.5, 0.25]])", "1.25"),
)
Hinge = define_metric(
    "Hinge",
    _losses.hinge,
    "Mean hinge loss.",
    example=("Hinge()([[-1.0, 1.0]], [[0.5, 0.5]])", "1.0"),
)
SquaredHinge = define_metric(
    "SquaredHinge",
    _losses.squared_hinge,
    "Mean squared hinge loss.",
    example=("SquaredHinge()([[-1.0, 1.0]], [[1.0, 0.0]])", "2.5"),
)
KLDivergence = define_metric(
    "KLDivergence",
    _losses.kl_divergence,
    "Mean Kullback-Leibler divergence.",
    "kullback_leibler_divergence",
    example=("KLDivergence()([[0.5, 0.5]], [[0.25, 0.75]])", "0.144"),
)
LogCoshError = define_metric(
    "LogCoshError",
    _losses.log_cosh,
    "Mean logarithm of the hyperbolic cosine of errors.",
    "logcosh",
    example=("LogCoshError()([[0.0]], [[1.0]])", "0.434"),
)
MeanAbsoluteError = define_metric(
    "MeanAbsoluteError",
    _losses.mean_absolute_error,
    "Mean absolute error.",
    example=("MeanAbsoluteError()([[1.0], [2.0]], [[3.0], [6.0]])", "3.0"),
)
MeanAbsolutePercentageError = define_metric(
    "MeanAbsolutePercentageError",
    _losses.mean_absolute_percentage_error,
    "Mean absolute relative error, in percent.",
    example=("MeanAbsolutePercentageError()([[2.0], [4.0]], [[1.0], [3.0]])", "37.5"),
)
MeanSquaredError = define_metric(
    "MeanSquaredError",
    _losses.mean_squared_error,
    "Mean squared error.",
    example=("MeanSquaredError()([[0.0], [0.0]], [[1.0], [3.0]], sample_weight=[1.0, 0.0])", "1.0"),
)
MeanSquaredLogarithmicError = define_metric(
    "MeanSquaredLogarithmicError",
    _losses.mean_squared_logarithmic_error,
    "Mean squared error of logarithms.",
    example=("MeanSquaredLogarithmicError()([[0.0]], [[1.0]])", "0.48"),
)
Poisson = define_metric(
    "Poisson",
    _losses.poisson,
    "Mean Poisson loss.",
    example=("Poisson()([[2.0, 0.0]], [[1.0, 3.0]])", "2.0"),
)


# This function replaces the loss of the same name, which the star import above includes.
def cosine_similarity(  # type: ignore[no-redef]
    y_true: TensorLike, y_pred: TensorLike, axis: int = -1
) -> Tensor:
    """Compute the cosine between labels and predictions, without the minus sign of the loss.

    Formula:
      `sum(y * p) / (|y| * |p|)` over `axis`, with labels y, predictions p, and the Euclidean norm
      |.|.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.metrics.cosine_similarity([[3.0, 4.0]], [[6.0, 8.0]]).numpy().round(3).tolist()
      [1.0]
    """
    return -_losses.cosine_similarity(y_true, y_pred, axis)


CosineSimilarity = define_metric(
    "CosineSimilarity",
    cosine_similarity,
    "Mean cosine between labels and predictions.",
    "cosine_similarity",
    example=("CosineSimilarity()([[1.0, 0.0]], [[3.0, 4.0]])", "0.6"),
)


mse = MSE = _losses.mean_squared_error
mae = MAE = _losses.mean_absolute_error
mape = MAPE = _losses.mean_absolute_percentage_error
msle = MSLE = _losses.mean_squared_logarithmic_error
kld = KLD = kullback_leibler_divergence = _losses.kl_divergence
logcosh = _losses.log_cosh

_CLASSES = {
    n: c for n, c in list(globals().items()) if isinstance(c, type) and issubclass(c, Metric)
}
_FUNCTIONS = {
    n: v
    for module in (_losses, _accuracy)
    for n, v in vars(module).items()
    if callable(v)
    and getattr(v, "__module__", "") == module.__name__
    and not n.startswith("_")
    and not isinstance(v, type)
    and n != "resolve_accuracy"
}
_REGISTRY = registry.create_registry(
    "metric function",
    "keras.metrics",
    {
        **{registry.to_snake_case(n): c for n, c in _CLASSES.items()},
        **_CLASSES,
        **_FUNCTIONS,
        **dict.fromkeys(("mse", "MSE"), mse),
        **dict.fromkeys(("mae", "MAE"), mae),
        **dict.fromkeys(("mape", "MAPE"), mape),
        **dict.fromkeys(("msle", "MSLE"), msle),
        **dict.fromkeys(("kld", "KLD", "kullback_leibler_divergence"), kld),
        "logcosh": logcosh,
        "bce": _losses.binary_crossentropy,
        "acc": _accuracy.accuracy,
        "cosine_similarity": cosine_similarity,
        "huber_loss": _losses.huber,
        "auc": AUC,
    },
)

__all__ = sorted(
    {
        *_CLASSES,
        *_FUNCTIONS,
        *("mse", "MSE", "mae", "MAE", "mape", "MAPE", "msle", "MSLE", "kld", "KLD", "logcosh"),
        "kullback_leibler_divergence",
        "get",
        "serialize",
        "deserialize",
    }
)


def get(identifier: object) -> Metric | Callable[..., Any] | None:
    """Return the metric for a name, class, object, function or configuration; None for None.

    Raises:
      ValueError: If the name is unknown.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.metrics.get("mae").__name__, type(tf.keras.metrics.get("AUC")).__name__
      ('mean_absolute_error', 'AUC')
    """
    if isinstance(identifier, Metric):
        return identifier
    return _REGISTRY.get(identifier)


def serialize(metric: object, use_legacy_format: bool = False) -> Config | str | None:
    """Return the configuration or name of a metric.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.metrics.serialize(tf.keras.metrics.mse)["config"]
      'mean_squared_error'
    """
    return serialization.serialize(metric, use_legacy_format)


def deserialize(
    config: str | Config | None,
    custom_objects: CustomObjects = None,
    use_legacy_format: bool = False,
) -> Metric | Callable[..., Any] | None:
    """Return the metric for a configuration.

    Example:
      >>> import meshflow as tf
      >>> config = tf.keras.metrics.serialize(tf.keras.metrics.BinaryAccuracy(threshold=0.25))
      >>> tf.keras.metrics.deserialize(config).get_config()["threshold"]
      0.25
    """
    return _REGISTRY.deserialize(config, custom_objects)
