"""The losses and metrics of `compile`, matched to a model's outputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.annotations import annotate_scope
from meshflow.core.runtime.context import context
from meshflow.core.values import dtypes, nest
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.distribute.replicas.context import get_spanning_context
from meshflow.distribute.replicas.shares import current_shares
from meshflow.environment.types import PyTree
from meshflow.keras import losses as losses_module
from meshflow.keras import metrics as metrics_module
from meshflow.keras.engine.layer.call_errors import add_arguments
from meshflow.keras.engine.training.share_losses import is_defined_by_user, scale_user_loss
from meshflow.keras.losses.base import multiply_weights
from meshflow.keras.metrics import Mean
from meshflow.ops import math
from meshflow.ops.array import expand_dims
from meshflow.ops.math import cast
from meshflow.ops.ragged import convert_values

_log = logging.getLogger("meshflow")


class OutputContainer:
    """Base class that matches structures of losses or metrics to flat outputs.

    A structure is a single value, a list, or a dictionary by output name.

    Args:
      output_names: Names of the model's outputs, or None until it has been called.
    """

    def __init__(self, output_names: list[str] | None = None) -> None:
        self.output_names = output_names
        # The keys of outputs in a dictionary. Logs use the layer names in `output_names` instead.
        self._output_keys: list[str] = []
        self.built = False

    def _find_output_names(self, y_pred: PyTree) -> list[str]:
        self._output_keys = sorted(y_pred) if isinstance(y_pred, Mapping) else []
        count = len(self._output_keys or nest.flatten(y_pred))
        if self.output_names is not None and len(self.output_names) == count:
            return list(self.output_names)
        return self._output_keys or [f"output_{i + 1}" for i in range(count)]

    def _list_per_output(self, entries: PyTree, label: str) -> list[Any]:
        """Return one entry per output from a structure of losses, weights or metrics.

        As in TensorFlow, the first outputs use the entries of a list of losses or weights with another length.
        """
        names: list[str] = self.output_names  # type: ignore[assignment]
        if isinstance(entries, Mapping):
            names = _choose_keys(entries, names, self._output_keys)
            unknown = sorted(set(entries) - set(names))
            if unknown:
                raise ValueError(
                    f"Found unexpected {label} keys {unknown} that do not correspond to any model output: {names}."
                )
            return [entries.get(name) for name in names]
        if isinstance(entries, (list, tuple)):
            message = (
                f"The model has {len(names)} outputs {names}, but got {len(entries)} {label}: {entries}. Pass one "
                "per output, or a dictionary by output name."
            )
            if len(entries) != len(names):
                if label == "metrics" and len(names) > 1:
                    raise ValueError(message)
                _log.warning("%s The first outputs use the first entries.", message)
            return [*entries[: len(names)], *[None] * (len(names) - len(entries))]
        return [entries] * len(names)


def _choose_keys(entries: Mapping[str, Any], names: list[str], keys: Iterable[str]) -> list[str]:
    """Return the keys of a dictionary by output: those of the model's own dictionary, or layer names."""
    return sorted(keys) if keys and set(entries) <= set(keys) else names


def flatten_targets(structure: PyTree, names: list[str], y_pred: PyTree, label: str) -> list[Any]:
    """Return targets or weights in the order of the flat outputs.

    Args:
      structure: Targets or weights: None, an array for all outputs, a list, or a dictionary by
        output.
      names: Names of the outputs.
      y_pred: The model's outputs.
      label: "targets" or "sample_weight", for error messages.

    Raises:
      ValueError: if their number or names do not match the outputs.
    """
    if structure is None:
        return [None] * len(names)
    if isinstance(structure, Mapping):
        names = _choose_keys(structure, names, y_pred if isinstance(y_pred, Mapping) else ())
        unknown = sorted(set(structure) - set(names))
        if unknown:
            raise ValueError(
                f"Found unexpected {label} keys {unknown}; the model's outputs are {names}."
            )
        return [structure.get(name) for name in names]
    flat = nest.flatten(structure)
    if len(flat) == 1 and (label == "sample_weight" or not isinstance(structure, (list, tuple))):
        # A single array is used for all outputs; often only one of them has a loss.
        return flat * len(names)
    if len(names) == 1 and label == "targets" and len(flat) > 1:
        # TensorFlow ignores the other targets.
        return flat[:1]
    if len(flat) != len(names):
        raise ValueError(
            f"The model has {len(names)} outputs {names}, but {len(flat)} arrays were given as {label}. Pass one "
            "per output, or a dictionary by output name."
        )
    return flat


def _match_target(y_true: PyTree, y_pred: Tensor) -> Tensor | None:
    """Convert targets to the prediction's dtype if both are floats, and add a missing last axis."""
    if y_true is None:
        return None
    y_true = convert_values(y_true)
    are_floats = y_true.dtype.is_floating and y_pred.dtype.is_floating
    # Predictions may be other objects with a shape, such as distributions.
    rank = len(y_pred.shape)
    # Class indices are not cast to a smaller dtype: 257 would become 256 in bfloat16.
    are_class_indices = (
        rank > 1 and y_pred.shape[-1] != 1 and y_true.shape[-1:] != y_pred.shape[-1:]
    )
    loses_digits = are_class_indices and y_pred.dtype.size < y_true.dtype.size
    if are_floats and not loses_digits and y_true.dtype is not y_pred.dtype:
        y_true = cast(y_true, y_pred.dtype)
    if y_true.ndim == 1 and rank == 2:
        y_true = expand_dims(y_true, -1)
    return y_true


class LossesContainer(OutputContainer):
    """The total loss of a model.

    Args:
      losses: A loss, or losses by output; None if only `add_loss` is used.
      loss_weights: Factors by output.
      output_names: Names of the outputs.
      total_loss_mean: Running mean of the total loss.
    """

    def __init__(
        self,
        losses: PyTree,
        loss_weights: PyTree = None,
        output_names: list[str] | None = None,
        total_loss_mean: Mean | None = None,
    ) -> None:
        super().__init__(output_names)
        self._user_losses = losses
        self._user_loss_weights = loss_weights
        # The entries as they were passed, until the outputs are known.
        self._losses: list[Any] = [] if losses is None else nest.flatten(losses)
        self._loss_weights: list[Any] = []
        self._total = total_loss_mean or Mean(name="loss")
        self._per_output_metrics: list[Any] = []
        # The shapes of the latest predictions, and functions to call once they are known: checks of
        # the first batch.
        self.prediction_shapes: list[TensorShape] = []
        self.trace_callbacks: list[Callable[[], None]] = []

    @property
    def metrics(self) -> list[Any]:
        """Return the running means of the total loss and, if there are several outputs, of each loss.

        The list is empty before the first loss.
        """
        if not self.built:
            return []
        return [self._total, *(m for m in self._per_output_metrics if m is not None)]

    def build(self, y_pred: PyTree) -> None:
        """Match losses to outputs when the outputs are first known.

        Args:
          y_pred: The model's outputs.
        """
        self.output_names = self._find_output_names(y_pred)
        losses = self._list_per_output(self._user_losses, "loss")
        self._losses = [None if loss is None else _as_loss(loss) for loss in losses]
        for loss in self._losses:
            if loss is not None:
                loss._is_scaled_by_model = True
        self._loss_weights = self._list_per_output(self._user_loss_weights, "loss_weights")
        if len(self.output_names) > 1:
            self._per_output_metrics = [
                None if loss is None else Mean(name=f"{name}_loss")
                for name, loss in zip(self.output_names, self._losses, strict=True)
            ]
        if isinstance(self._user_loss_weights, (list, tuple)) and self._user_loss_weights:
            # As in TensorFlow, the loss of an output after the last weight is 0.
            count = len(self._user_loss_weights)
            self._losses[count:] = [None] * len(self._losses[count:])
        self.built = True

    @property
    def losses(self) -> list[Any]:
        """Return the loss object of each output; empty before the first call of the model."""
        return self._losses if self.built else []

    @property
    def _total_loss_mean(self) -> Mean:
        """Return the running mean of the total loss; programs for TensorFlow read this attribute."""
        return self._total

    @annotate_scope("loss")
    def __call__(
        self,
        y_true: PyTree,
        y_pred: PyTree,
        sample_weight: PyTree = None,
        regularization_losses: Sequence[Tensor] | None = None,
    ) -> Any:
        """Compute the weighted sum of all losses, and update the running means.

        Args:
          y_true: Targets in the structure of the outputs.
          y_pred: The model's outputs.
          sample_weight: Weights per example, by output.
          regularization_losses: Scalar tensors to add to the sum.

        Returns:
          A scalar tensor, or None if there is no loss.

        Raises:
          ValueError: if a target is missing.
        """
        # A model without fixed outputs may return another structure than before.
        if not self.built or len(nest.flatten(y_pred)) != len(self._losses):
            self.build(y_pred)
        names: list[str] = self.output_names  # type: ignore[assignment]
        predictions = nest.flatten(y_pred)
        # Symbolic sizes cannot be pickled with the model.
        self.prediction_shapes = [
            TensorShape([n if isinstance(n, int) else None for n in p.shape]) for p in predictions
        ]
        callbacks, self.trace_callbacks = self.trace_callbacks, []
        for callback in callbacks:
            callback()
        targets = flatten_targets(y_true, names, y_pred, "targets")
        weights = flatten_targets(sample_weight, names, y_pred, "sample_weight")
        # `Strategy.run` sums gradients over replicas, so the mean loss of a replica is divided by
        # their number.
        replicas = 1 if get_spanning_context() is None else context.num_replicas
        shares = current_shares()
        terms: list[Any] = []
        displayed: list[Any] = []
        batch = predictions[0].shape[0] if len(predictions[0].shape) else 1
        rows = zip(
            names, predictions, targets, weights, self._losses, self._loss_weights, strict=True
        )
        for i, (name, prediction, target, weight, loss, factor) in enumerate(rows):
            if loss is None:
                continue
            if target is None:
                raise ValueError(
                    f"No target was given for output '{name}' which has a loss; pass y (or a dictionary with the "
                    f"key {name!r})."
                )
            try:
                value = loss(_match_target(target, prediction), prediction, sample_weight=weight)
            except Exception as error:
                arguments = {"y_true": target, "y_pred": prediction, "sample_weight": weight}
                step = f'computing loss "{loss.name}" of output "{name}"'
                add_arguments(error, step, arguments)
                raise
            is_sum = getattr(loss, "reduction", None) == "sum"
            if is_sum and shares is not None:
                value = value * shares.sum_factor
            elif shares is not None and is_defined_by_user(getattr(loss, "fn", type(loss))):
                value = scale_user_loss(
                    lambda t, p, w, loss=loss: loss(_match_target(t, p), p, sample_weight=w),
                    (target, prediction, weight),
                    value,
                    shares,
                    f"The loss {loss.name!r}",
                )
            full_value = value * float(replicas) if is_sum and replicas > 1 else value
            if len(names) > 1:
                _update_mean(self._per_output_metrics[i], full_value, batch)
            displayed.append(full_value if factor is None else full_value * factor)
            terms.append(value if is_sum or replicas == 1 else value / float(replicas))
            if factor is not None:
                terms[-1] = terms[-1] * factor
        for penalty in regularization_losses or []:
            displayed.append(penalty)
            terms.append(penalty if replicas == 1 else penalty / float(replicas))
        if not terms:
            return None
        total = _sum_terms(terms)
        displayed_total = total if replicas == 1 else _sum_terms(displayed)
        _update_mean(self._total, displayed_total, batch)
        return total

    def reset_state(self) -> None:
        """Reset the running means."""
        for metric in self.metrics:
            metric.reset_state()


def _sum_terms(terms: list[Any]) -> Tensor:
    """Sum the terms in the widest dtype, so that no float16 output lowers the precision of others."""
    dtype = max((t.dtype for t in terms), key=lambda d: (d.size, d.is_floating))
    return math.add_n([math.cast(t, dtype) for t in terms]) if len(terms) > 1 else terms[0]


def _update_mean(metric: Mean, value: Tensor, batch: TensorLike) -> None:
    """Update a running mean with a batch's value, or record the value of a share of a batch."""
    shares = current_shares()
    if shares is None:
        metric.update_state(value, sample_weight=batch)
    else:
        shares.record_metric(metric, value)


def _as_loss(loss: Any) -> losses_module.Loss:
    loss = losses_module.get(loss)
    if isinstance(loss, losses_module.Loss):
        return loss
    name = getattr(loss, "__name__", None)
    return losses_module.LossFunctionWrapper(loss, name=name)


class MetricsContainer(OutputContainer):
    """The metrics of `compile`, per output.

    Args:
      metrics: Metrics, or metrics by output.
      weighted_metrics: Metrics that receive sample weights, or such metrics by output.
      output_names: Names of the outputs.
    """

    def __init__(
        self,
        metrics: PyTree,
        weighted_metrics: PyTree = None,
        output_names: list[str] | None = None,
    ) -> None:
        super().__init__(output_names)
        self._user_metrics = metrics
        self._user_weighted_metrics = weighted_metrics
        self._unweighted: list[list[Any]] = []
        self._weighted: list[list[Any]] = []

    @property
    def metrics(self) -> list[Any]:
        """Return all metric objects in order; before the first batch only those that the user created."""
        if not self.built:
            flat = [*nest.flatten(self._user_metrics), *nest.flatten(self._user_weighted_metrics)]
            return [m for m in flat if getattr(m, "_is_metric", False)]
        return self._list_metrics()

    def build(self, y_pred: PyTree, y_true: PyTree) -> None:
        """Create metric objects for the outputs; the shapes decide which kind of accuracy is used.

        Args:
          y_pred: The model's outputs.
          y_true: Targets in the structure of the outputs.
        """
        self.output_names = self._find_output_names(y_pred)
        predictions = nest.flatten(y_pred)
        targets = flatten_targets(y_true, self.output_names, y_pred, "targets")
        self._unweighted = self._make_metrics(self._user_metrics, targets, predictions)
        self._weighted = self._make_metrics(self._user_weighted_metrics, targets, predictions)
        self._make_names_unique()
        self.built = True

    def _make_metrics(
        self, structure: PyTree, targets: list[Any], predictions: list[Any]
    ) -> list[list[Any]]:
        """Return the metric objects of each output."""
        names: list[str] = self.output_names  # type: ignore[assignment]
        if structure is None:
            return [[] for _ in names]
        if isinstance(structure, Mapping) or (
            isinstance(structure, (list, tuple))
            and structure
            and all(isinstance(g, (list, tuple)) for g in structure)
        ):
            per_output = self._list_per_output(structure, "metrics")
        else:
            flat = list(structure) if isinstance(structure, (list, tuple)) else [structure]
            if len(names) == 1:
                per_output = [flat]
            else:
                # Every output gets the same metrics, each with its own state.
                per_output = [
                    flat if i == 0 else [_copy_metric(m) for m in flat] for i in range(len(names))
                ]
        result = []
        for name, metrics, target, prediction in zip(
            names, per_output, targets, predictions, strict=True
        ):
            group = metrics if isinstance(metrics, (list, tuple)) else [metrics]
            objects = [_as_metric(m, target, prediction) for m in group if m is not None]
            if len(names) > 1:
                for metric in objects:
                    if not metric.name.startswith(f"{name}_"):
                        metric._name = f"{name}_{metric.name}"
            result.append(objects)
        return result

    def _make_names_unique(self) -> None:
        names: list[str] = self.output_names  # type: ignore[assignment]
        prefixes = [f"{name}_" if len(names) > 1 else "" for name in names]
        for prefix, unweighted, weighted in zip(
            prefixes, self._unweighted, self._weighted, strict=True
        ):
            unweighted_names = {m.name for m in unweighted}
            for metric in weighted:
                if metric.name in unweighted_names:
                    metric._name = f"{prefix}weighted_{metric.name.removeprefix(prefix)}"
        counts: dict[str, int] = {}
        for metric in self._list_metrics():
            count = counts.get(metric.name, 0)
            counts[metric.name] = count + 1
            if count:
                metric._name = f"{metric.name}_{count}"

    def _list_metrics(self) -> list[Any]:
        pairs = zip(self._unweighted, self._weighted, strict=True)
        return [m for pair in pairs for group in pair for m in group]

    def update_state(self, y_true: PyTree, y_pred: PyTree, sample_weight: PyTree = None) -> None:
        """Update every metric with a batch.

        Args:
          y_true: Targets in the structure of the outputs.
          y_pred: The model's outputs.
          sample_weight: Weights per example, by output.
        """
        if self._user_metrics is None and self._user_weighted_metrics is None:
            return
        if not self.built:
            self.build(y_pred, y_true)
        names: list[str] = self.output_names  # type: ignore[assignment]
        targets = flatten_targets(y_true, names, y_pred, "targets")
        weights = flatten_targets(sample_weight, names, y_pred, "sample_weight")
        rows = zip(
            nest.flatten(y_pred), targets, weights, self._unweighted, self._weighted, strict=True
        )
        for prediction, target, weight, unweighted, weighted in rows:
            if target is None:
                continue
            target = _match_target(target, prediction)
            mask = getattr(prediction, "_keras_mask", None)
            for metric in unweighted:
                arguments = {} if mask is None else {"sample_weight": cast(mask, dtypes.float32)}
                metric.update_state(target, prediction, **arguments)
            if mask is not None:
                factors = cast(mask, dtypes.float32)
                weight = factors if weight is None else multiply_weights(weight, factors)
            for metric in weighted:
                metric.update_state(target, prediction, sample_weight=weight)

    def reset_state(self) -> None:
        """Reset every metric."""
        for metric in self.metrics:
            metric.reset_state()


def _copy_metric(metric: Any) -> Any:
    if getattr(metric, "_is_metric", False):
        return type(metric).from_config(metric.get_config())
    return metric


def _as_metric(metric: Any, y_true: TensorLike, y_pred: TensorLike) -> Any:
    """Convert a name, function or object to a metric object; the shapes resolve 'accuracy'."""
    if getattr(metric, "_is_metric", False):
        return metric
    identifier = metric
    if isinstance(metric, str) and metric.lower() in ("accuracy", "acc", "crossentropy", "ce"):
        metric = _resolve_metric(metric.lower(), y_true, y_pred)
    elif isinstance(metric, losses_module.Loss):
        loss = metric
        return metrics_module.MeanMetricWrapper(loss.call, name=loss.name or type(loss).__name__)
    else:
        metric = metrics_module.get(metric)
    if isinstance(metric, type):
        metric = metric()
    if getattr(metric, "_is_metric", False):
        return metric
    name = identifier if isinstance(identifier, str) else getattr(identifier, "__name__", "metric")
    return metrics_module.MeanMetricWrapper(metric, name=name)


def _get_shape(value: TensorLike) -> tuple[Any, ...]:
    return tuple(value.shape) if hasattr(value, "shape") else np.shape(value)


def _resolve_metric(name: str, y_true: TensorLike, y_pred: TensorLike) -> Callable[..., Any]:
    true_shape, pred_shape = _get_shape(y_true), _get_shape(y_pred)
    is_binary = pred_shape[-1:] == (1,)
    is_sparse = len(true_shape) < len(pred_shape) or (
        bool(true_shape) and true_shape[-1] == 1 and bool(pred_shape) and pred_shape[-1] > 1
    )
    kind = "binary" if is_binary else "sparse_categorical" if is_sparse else "categorical"
    suffix = "accuracy" if name in ("accuracy", "acc") else "crossentropy"
    return getattr(metrics_module, f"{kind}_{suffix}")
