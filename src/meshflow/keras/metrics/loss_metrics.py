"""Metrics that are means of losses, and the mean cosine.

The public names lack the suffix "Metric", which distinguishes these classes from those in `keras.losses`.
"""

from __future__ import annotations

from typing import Unpack

from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.losses import functions as _losses
from meshflow.keras.metrics.base import MetricArguments
from meshflow.keras.metrics.means import FunctionMetric, define_metric


def cosine_similarity(y_true: TensorLike, y_pred: TensorLike, axis: int = -1) -> Tensor:
    """Compute the cosine between labels and predictions, without the minus sign of the loss.

    Formula:
      `sum(y * p) / (|y| * |p|)` over `axis`, with labels y, predictions p, and the Euclidean norm
      |.|.

    Example:
      >>> tf.keras.metrics.cosine_similarity([[3.0, 4.0]], [[6.0, 8.0]]).numpy().round(3).tolist()
      [1.0]
    """
    return -_losses.cosine_similarity(y_true, y_pred, axis)


@define_metric(
    _losses.binary_crossentropy,
    example=("BinaryCrossentropy(from_logits=True)([[0.0, 1.0]], [[0.0, 0.0]])", "0.693"),
)
class BinaryCrossentropyMetric(FunctionMetric):
    """Mean cross entropy for labels 0 and 1."""

    def __init__(
        self,
        name: str | None = "binary_crossentropy",
        dtype: DTypeLike | None = None,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        **kwargs: Unpack[MetricArguments],
    ) -> None: ...


@define_metric(
    _losses.categorical_crossentropy,
    example=("CategoricalCrossentropy(label_smoothing=0.5)([[0.0, 1.0]], [[0.25, 0.75]])", "0.562"),
)
class CategoricalCrossentropyMetric(FunctionMetric):
    """Mean cross entropy for one-hot labels."""

    def __init__(
        self,
        name: str | None = "categorical_crossentropy",
        dtype: DTypeLike | None = None,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        **kwargs: Unpack[MetricArguments],
    ) -> None: ...


@define_metric(
    _losses.sparse_categorical_crossentropy,
    example=("SparseCategoricalCrossentropy()([1, 0], [[0.5, 0.5], [0.25, 0.75]])", "1.04"),
)
class SparseCategoricalCrossentropyMetric(FunctionMetric):
    """Mean cross entropy for class indices."""

    def __init__(
        self,
        name: str | None = "sparse_categorical_crossentropy",
        dtype: DTypeLike | None = None,
        from_logits: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        **kwargs: Unpack[MetricArguments],
    ) -> None: ...


@define_metric(
    _losses.categorical_hinge, example=("CategoricalHinge()([[0.0, 1.0]], [[0.5, 0.25]])", "1.25")
)
class CategoricalHingeMetric(FunctionMetric):
    """Mean hinge loss over classes."""


@define_metric(_losses.hinge, example=("Hinge()([[-1.0, 1.0]], [[0.5, 0.5]])", "1.0"))
class HingeMetric(FunctionMetric):
    """Mean hinge loss."""


@define_metric(
    _losses.squared_hinge, example=("SquaredHinge()([[-1.0, 1.0]], [[1.0, 0.0]])", "2.5")
)
class SquaredHingeMetric(FunctionMetric):
    """Mean squared hinge loss."""


@define_metric(
    _losses.kl_divergence,
    default_name="kullback_leibler_divergence",
    example=("KLDivergence()([[0.5, 0.5]], [[0.25, 0.75]])", "0.144"),
)
class KLDivergenceMetric(FunctionMetric):
    """Mean Kullback-Leibler divergence."""


@define_metric(
    _losses.log_cosh, default_name="logcosh", example=("LogCoshError()([[0.0]], [[1.0]])", "0.434")
)
class LogCoshErrorMetric(FunctionMetric):
    """Mean logarithm of the hyperbolic cosine of errors."""


@define_metric(
    _losses.mean_absolute_error,
    example=("MeanAbsoluteError()([[1.0], [2.0]], [[3.0], [6.0]])", "3.0"),
)
class MeanAbsoluteErrorMetric(FunctionMetric):
    """Mean absolute error."""


@define_metric(
    _losses.mean_absolute_percentage_error,
    example=("MeanAbsolutePercentageError()([[2.0], [4.0]], [[1.0], [3.0]])", "37.5"),
)
class MeanAbsolutePercentageErrorMetric(FunctionMetric):
    """Mean absolute relative error, in percent."""


@define_metric(
    _losses.mean_squared_error,
    example=("MeanSquaredError()([[0.0], [0.0]], [[1.0], [3.0]], sample_weight=[1.0, 0.0])", "1.0"),
)
class MeanSquaredErrorMetric(FunctionMetric):
    """Mean squared error."""


@define_metric(
    _losses.mean_squared_logarithmic_error,
    example=("MeanSquaredLogarithmicError()([[0.0]], [[1.0]])", "0.48"),
)
class MeanSquaredLogarithmicErrorMetric(FunctionMetric):
    """Mean squared error of logarithms."""


@define_metric(_losses.poisson, example=("Poisson()([[2.0, 0.0]], [[1.0, 3.0]])", "2.0"))
class PoissonMetric(FunctionMetric):
    """Mean Poisson loss."""


@define_metric(cosine_similarity, example=("CosineSimilarity()([[1.0, 0.0]], [[3.0, 4.0]])", "0.6"))
class CosineSimilarityMetric(FunctionMetric):
    """Mean cosine between labels and predictions."""

    def __init__(
        self,
        name: str | None = "cosine_similarity",
        dtype: DTypeLike | None = None,
        axis: int = -1,
        **kwargs: Unpack[MetricArguments],
    ) -> None: ...
