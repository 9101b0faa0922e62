"""What `compile` is given, matched to a model's outputs: losses and metrics per output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meshflow.core.runtime.annotations import scoped
from meshflow.core.runtime.context import context
from meshflow.core.values import dtypes, nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.distribute.replicas.context import spanning
from meshflow.distribute.replicas.shares import current_shares
from meshflow.keras import losses as losses_module
from meshflow.keras import metrics as metrics_module
from meshflow.keras.metrics import Mean
from meshflow.ops import math
from meshflow.ops.array import expand_dims
from meshflow.ops.math import cast


class Container:
    """Matches user structures (single, list, or dictionary by output name) to flat outputs.

    Args:
      output_names: names of the model's outputs, or None until it has been called.
    """

    def __init__(self, output_names: list[str] | None = None) -> None:
        self.output_names = output_names
        # Of outputs in a dictionary; logs name them after their layers, as `output_names` does.
        self._keys: list[str] = []
        self.built = False

    def _names_from(self, y_pred: Any) -> list[str]:
        self._keys = sorted(y_pred) if isinstance(y_pred, Mapping) else []
        count = len(self._keys or nest.flatten(y_pred))
        if self.output_names is not None and len(self.output_names) == count:
            return list(self.output_names)
        return self._keys or [f"output_{i + 1}" for i in range(count)]

    def _per_output(self, given: Any, what: str, default: Any = None) -> list[Any]:
        """One entry per output from a structure of losses, weights or metrics."""
        names: list[str] = self.output_names  # type: ignore[assignment]
        if isinstance(given, Mapping):
            names = _keys_for(given, names, self._keys)
            unknown = sorted(set(given) - set(names))
            if unknown:
                raise ValueError(
                    f"Found unexpected {what} keys {unknown} that do not correspond to any model output: {names}."
                )
            return [given.get(name, default) for name in names]
        if isinstance(given, (list, tuple)):
            if len(given) != len(names):
                raise ValueError(
                    f"The model has {len(names)} outputs {names}, but {len(given)} {what} were given: {given}."
                )
            return list(given)
        return [given] * len(names)


def _keys_for(given: Mapping[str, Any], names: list[str], keys: Any) -> list[str]:
    """What a dictionary calls the outputs: the keys of the model's own dictionary, or the names of layers."""
    return sorted(keys) if keys and set(given) <= set(keys) else names


def flat_targets(structure: Any, names: list[str], y_pred: Any, what: str) -> list[Any]:
    """Targets or weights in the order of the flat outputs.

    Raises:
      ValueError: when their number or names do not match the outputs.
    """
    if structure is None:
        return [None] * len(names)
    if isinstance(structure, Mapping):
        names = _keys_for(structure, names, y_pred if isinstance(y_pred, Mapping) else ())
        unknown = sorted(set(structure) - set(names))
        if unknown:
            raise ValueError(
                f"Found unexpected {what} keys {unknown}; the model's outputs are {names}."
            )
        return [structure.get(name) for name in names]
    flat = nest.flatten(structure)
    if len(flat) == 1 and (what == "sample_weight" or not isinstance(structure, (list, tuple))):
        # One array serves all outputs, such as the one of several that has a loss.
        return flat * len(names)
    if len(flat) != len(names):
        raise ValueError(
            f"The model has {len(names)} outputs {names}, but {len(flat)} arrays were given as {what}. Give one "
            "per output, or a dictionary by output name."
        )
    return flat


def _match(y_true: Any, y_pred: Tensor) -> Any:
    """Targets with the dtype of the prediction when both are floats, and a last axis if missing."""
    if y_true is None:
        return None
    y_true = convert_to_tensor(y_true)
    floats = y_true.dtype.is_floating and y_pred.dtype.is_floating
    # Class numbers are no quantities: 257 is 256 in bfloat16.
    numbers = y_pred.ndim > 1 and y_pred.shape[-1] != 1 and y_true.shape[-1:] != y_pred.shape[-1:]
    if floats and not numbers and y_true.dtype is not y_pred.dtype:
        y_true = cast(y_true, y_pred.dtype)
    if y_true.ndim == 1 and y_pred.ndim == 2:
        y_true = expand_dims(y_true, -1)
    return y_true


class LossesContainer(Container):
    """The total loss of a model.

    Args:
      losses: a loss, or losses by output; None when only `add_loss` is used.
      loss_weights: numbers by output.
      output_names: names of the outputs.
    """

    def __init__(
        self, losses: Any, loss_weights: Any = None, output_names: list[str] | None = None
    ) -> None:
        super().__init__(output_names)
        self._user_losses = losses
        self._user_weights = loss_weights
        self._losses: list[Any] = []
        self._weights: list[Any] = []
        self._total = _mean("loss")
        self._per_output_metrics: list[Any] = []
        # Shapes of the latest predictions, and what waits for them: checks of the first batch.
        self.predicted_shapes: list[TensorShape] = []
        self.when_traced: list[Callable[[], None]] = []

    @property
    def metrics(self) -> list[Any]:
        """Running means: the total loss, and each output's when there are several; none before the first loss."""
        if not self.built:
            return []
        return [self._total, *(m for m in self._per_output_metrics if m is not None)]

    def build(self, y_pred: Any) -> None:
        """Matches losses to outputs when the outputs are first seen."""
        self.output_names = self._names_from(y_pred)
        given = self._per_output(self._user_losses, "loss")
        self._losses = [None if loss is None else _as_loss(loss) for loss in given]
        for loss in self._losses:
            if loss is not None:
                loss._scaled_by_model = True
        self._weights = self._per_output(self._user_weights, "loss_weights")
        if len(self.output_names) > 1:
            self._per_output_metrics = [
                None if loss is None else _mean(f"{name}_loss")
                for name, loss in zip(self.output_names, self._losses, strict=True)
            ]
        self.built = True

    @property
    def losses(self) -> list[Any]:
        """The loss object of each output; empty before the model has been called."""
        return self._losses

    @scoped("loss")
    def __call__(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None, regularization_losses: Any = None
    ) -> Any:
        """The weighted sum of all losses, a scalar tensor.

        Args:
          y_true: targets in the structure of the outputs.
          y_pred: the model's outputs.
          sample_weight: weights per example, by output.
          regularization_losses: scalar tensors added to the sum.

        Raises:
          ValueError: when a target is missing.
        """
        if not self.built:
            self.build(y_pred)
        names: list[str] = self.output_names  # type: ignore[assignment]
        predictions = nest.flatten(y_pred)
        self.predicted_shapes = [p.shape for p in predictions]
        waiting, self.when_traced = self.when_traced, []
        for check in waiting:
            check()
        targets = flat_targets(y_true, names, y_pred, "targets")
        weights = flat_targets(sample_weight, names, y_pred, "sample_weight")
        # In `Strategy.run` gradients are summed over replicas: a mean counts for its replica's share.
        replicas = 1 if spanning() is None else context.num_replicas
        shares = current_shares()
        terms: list[Any] = []
        shown: list[Any] = []
        batch = predictions[0].shape[0] if predictions[0].ndim else 1
        rows = zip(names, predictions, targets, weights, self._losses, self._weights, strict=True)
        for i, (name, prediction, target, weight, loss, factor) in enumerate(rows):
            if loss is None:
                continue
            if target is None:
                raise ValueError(
                    f"No target was given for output '{name}' which has a loss; pass y (or a dictionary with the "
                    f"key {name!r})."
                )
            value = loss(_match(target, prediction), prediction, sample_weight=weight)
            sums = getattr(loss, "reduction", None) == "sum"
            if sums and shares is not None:
                value = value * float(shares.count)
            whole = value * float(replicas) if sums and replicas > 1 else value
            if len(names) > 1:
                _update(self._per_output_metrics[i], whole, batch)
            shown.append(whole if factor is None else whole * factor)
            terms.append(value if sums or replicas == 1 else value / float(replicas))
            if factor is not None:
                terms[-1] = terms[-1] * factor
        for penalty in regularization_losses or []:
            shown.append(penalty)
            terms.append(penalty if replicas == 1 else penalty / float(replicas))
        if not terms:
            return None
        total = _total(terms)
        seen = total if replicas == 1 else _total(shown)
        _update(self._total, seen, batch)
        return total

    def reset_state(self) -> None:
        """Starts the running means again."""
        for metric in self.metrics:
            metric.reset_state()


def _total(terms: list[Any]) -> Any:
    """The sum in the widest dtype, so that one float16 output does not lower all others."""
    kind = max((t.dtype for t in terms), key=lambda d: (d.size, d.is_floating))
    return math.add_n([math.cast(t, kind) for t in terms]) if len(terms) > 1 else terms[0]


def _update(metric: Any, value: Any, batch: Any) -> None:
    """Updates a running mean by a batch's value; a share of a batch only notes its own."""
    shares = current_shares()
    if shares is None:
        metric.update_state(value, sample_weight=batch)
    else:
        shares.note(metric, value)


def _mean(name: str) -> Any:
    return Mean(name=name)


def _as_loss(loss: Any) -> Any:
    loss = losses_module.get(loss)
    if isinstance(loss, losses_module.Loss):
        return loss
    name = getattr(loss, "__name__", None)
    return losses_module.LossFunctionWrapper(loss, name=name)


class MetricsContainer(Container):
    """The metrics given to `compile`, per output.

    Args:
      metrics: metrics, or metrics by output.
      weighted_metrics: metrics that see sample weights, likewise.
      output_names: names of the outputs.
    """

    def __init__(
        self, metrics: Any, weighted_metrics: Any = None, output_names: list[str] | None = None
    ) -> None:
        super().__init__(output_names)
        self._user_metrics = metrics
        self._user_weighted = weighted_metrics
        self._plain: list[list[Any]] = []
        self._weighted: list[list[Any]] = []

    @property
    def metrics(self) -> list[Any]:
        """All metric objects, in order; before the first batch those that are known already."""
        if not self.built:
            flat = [*nest.flatten(self._user_metrics), *nest.flatten(self._user_weighted)]
            return [m for m in flat if getattr(m, "_is_metric", False)]
        return self._grouped()

    def build(self, y_pred: Any, y_true: Any) -> None:
        """Makes metric objects for the outputs, choosing kinds of accuracy by shape."""
        self.output_names = self._names_from(y_pred)
        predictions = nest.flatten(y_pred)
        targets = flat_targets(y_true, self.output_names, y_pred, "targets")
        self._plain = self._objects(self._user_metrics, targets, predictions)
        self._weighted = self._objects(self._user_weighted, targets, predictions)
        self._make_names_unique()
        self.built = True

    def _objects(self, given: Any, targets: list[Any], predictions: list[Any]) -> list[list[Any]]:
        names: list[str] = self.output_names  # type: ignore[assignment]
        if given is None:
            return [[] for _ in names]
        if isinstance(given, Mapping) or (
            isinstance(given, (list, tuple))
            and given
            and all(isinstance(g, (list, tuple)) for g in given)
        ):
            per_output = self._per_output(given, "metrics")
        elif isinstance(given, (list, tuple)) and len(names) > 1 and len(given) == len(names):
            per_output = [[g] for g in given]
        else:
            flat = list(given) if isinstance(given, (list, tuple)) else [given]
            if len(names) == 1:
                per_output = [flat]
            else:
                # The same metrics for every output, each with state of its own.
                per_output = [
                    flat if i == 0 else [_copy(m) for m in flat] for i in range(len(names))
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
        counts: dict[str, int] = {}
        for metric in self._grouped():
            number = counts.get(metric.name, 0)
            counts[metric.name] = number + 1
            if number:
                metric._name = f"{metric.name}_{number}"

    def _grouped(self) -> list[Any]:
        pairs = zip(self._plain, self._weighted, strict=True)
        return [m for pair in pairs for group in pair for m in group]

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Updates every metric with one batch."""
        if self._user_metrics is None and self._user_weighted is None:
            return
        if not self.built:
            self.build(y_pred, y_true)
        names: list[str] = self.output_names  # type: ignore[assignment]
        targets = flat_targets(y_true, names, y_pred, "targets")
        weights = flat_targets(sample_weight, names, y_pred, "sample_weight")
        rows = zip(nest.flatten(y_pred), targets, weights, self._plain, self._weighted, strict=True)
        for prediction, target, weight, plain, weighted in rows:
            if target is None:
                continue
            target = _match(target, prediction)
            mask = getattr(prediction, "_keras_mask", None)
            for metric in plain:
                metric.update_state(
                    target,
                    prediction,
                    **({"sample_weight": _as_weight(mask)} if mask is not None else {}),
                )
            for metric in weighted:
                metric.update_state(target, prediction, sample_weight=weight)

    def reset_state(self) -> None:
        """Resets every metric."""
        for metric in self.metrics:
            metric.reset_state()


def _as_weight(mask: Any) -> Any:
    return cast(mask, dtypes.float32)


def _copy(metric: Any) -> Any:
    if getattr(metric, "_is_metric", False):
        return type(metric).from_config(metric.get_config())
    return metric


def _as_metric(metric: Any, y_true: Any, y_pred: Any) -> Any:
    """A metric object from a name, function or object; 'accuracy' is resolved by shape."""
    if getattr(metric, "_is_metric", False):
        return metric
    given = metric
    if metric in ("accuracy", "acc", "crossentropy", "ce"):
        metric = _resolve(metric, y_true, y_pred)
    elif isinstance(metric, losses_module.Loss):
        loss = metric
        return metrics_module.MeanMetricWrapper(loss.call, name=loss.name or type(loss).__name__)
    else:
        metric = metrics_module.get(metric)
    if isinstance(metric, type):
        metric = metric()
    if getattr(metric, "_is_metric", False):
        return metric
    name = given if isinstance(given, str) else getattr(given, "__name__", "metric")
    return metrics_module.MeanMetricWrapper(metric, name=name)


def _shape(value: Any) -> tuple[Any, ...]:
    return tuple(value.shape) if hasattr(value, "shape") else np.shape(value)


def _resolve(name: str, y_true: Any, y_pred: Any) -> Callable[..., Any]:
    true_shape, pred_shape = _shape(y_true), _shape(y_pred)
    is_binary = pred_shape[-1:] == (1,)
    is_sparse = len(true_shape) < len(pred_shape) or (
        bool(true_shape) and true_shape[-1] == 1 and bool(pred_shape) and pred_shape[-1] > 1
    )
    kind = "binary" if is_binary else "sparse_categorical" if is_sparse else "categorical"
    suffix = "accuracy" if name in ("accuracy", "acc") else "crossentropy"
    return getattr(metrics_module, f"{kind}_{suffix}")
