"""`tf.keras.metrics`: metrics as functions and as classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.runtime.tracebacks import hide_frames_of_errors
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config, Json
from meshflow.keras import registry, serialization
from meshflow.keras.losses import functions as _losses
from meshflow.keras.losses.functions import *
from meshflow.keras.metrics import accuracy as _accuracy
from meshflow.keras.metrics import experimental as experimental
from meshflow.keras.metrics import loss_metrics as _loss_metrics
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
from meshflow.keras.metrics.loss_metrics import cosine_similarity
from meshflow.keras.metrics.means import Mean, MeanMetricWrapper, MeanTensor, Sum
from meshflow.keras.metrics.regression import MeanRelativeError, R2Score, RootMeanSquaredError
from meshflow.keras.metrics.threshold_metrics import (
    PrecisionAtRecall,
    RecallAtPrecision,
    SensitivityAtSpecificity,
    SpecificityAtSensitivity,
)
from meshflow.keras.registry import CustomObjects, KerasObject

BinaryCrossentropy = _loss_metrics.BinaryCrossentropyMetric
CategoricalCrossentropy = _loss_metrics.CategoricalCrossentropyMetric
SparseCategoricalCrossentropy = _loss_metrics.SparseCategoricalCrossentropyMetric
CategoricalHinge = _loss_metrics.CategoricalHingeMetric
Hinge = _loss_metrics.HingeMetric
SquaredHinge = _loss_metrics.SquaredHingeMetric
KLDivergence = _loss_metrics.KLDivergenceMetric
LogCoshError = _loss_metrics.LogCoshErrorMetric
MeanAbsoluteError = _loss_metrics.MeanAbsoluteErrorMetric
MeanAbsolutePercentageError = _loss_metrics.MeanAbsolutePercentageErrorMetric
MeanSquaredError = _loss_metrics.MeanSquaredErrorMetric
MeanSquaredLogarithmicError = _loss_metrics.MeanSquaredLogarithmicErrorMetric
Poisson = _loss_metrics.PoissonMetric
CosineSimilarity = _loss_metrics.CosineSimilarityMetric

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


@hide_frames_of_errors
def get(identifier: object) -> KerasObject:
    """Return the metric for a name, class, object, function or configuration; None for None.

    Raises:
      ValueError: If the name is unknown.

    Example:
      >>> tf.keras.metrics.get("mae").__name__, type(tf.keras.metrics.get("AUC")).__name__
      ('mean_absolute_error', 'AUC')
    """
    if isinstance(identifier, Metric):
        return identifier  # type: ignore[return-value]
    return _REGISTRY.get(identifier)


def serialize(metric: object, use_legacy_format: bool = False) -> Config:
    """Return the configuration or name of a metric.

    Example:
      >>> tf.keras.metrics.serialize(tf.keras.metrics.mse)["config"]
      'mean_squared_error'
    """
    return serialization.serialize(metric, use_legacy_format)


def deserialize(
    config: str | Config | None,
    custom_objects: CustomObjects = None,
    use_legacy_format: bool = False,
) -> KerasObject:
    """Return the metric for a configuration.

    Example:
      >>> config = tf.keras.metrics.serialize(tf.keras.metrics.BinaryAccuracy(threshold=0.25))
      >>> tf.keras.metrics.deserialize(config).get_config()["threshold"]
      0.25
    """
    return _REGISTRY.deserialize(config, custom_objects)
