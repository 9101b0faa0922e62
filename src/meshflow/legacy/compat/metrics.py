"""Metrics of `tf.compat.v1.metrics`, in functions and graphs.

Each returns the value before the update, and the updated value. As in TensorFlow, they raise an error
in eager execution.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from meshflow.core.runtime.eager import executing_eagerly
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.graph.graph import get_default_graph, has_explicit_graph

# Names of the tensors of each metric, its class, and its options with their arguments of the class.
_METRICS: dict[str, tuple[str, str, dict[str, str]]] = {
    "accuracy": ("labels predictions", "Accuracy", {}),
    "auc": (
        "labels predictions",
        "AUC",
        {
            "num_thresholds": "num_thresholds",
            "curve": "curve",
            "summation_method": "summation_method",
        },
    ),
    "false_negatives": ("labels predictions", "FalseNegatives", {}),
    "false_negatives_at_thresholds": (
        "labels predictions",
        "FalseNegatives",
        {"thresholds": "thresholds"},
    ),
    "false_positives": ("labels predictions", "FalsePositives", {}),
    "false_positives_at_thresholds": (
        "labels predictions",
        "FalsePositives",
        {"thresholds": "thresholds"},
    ),
    "mean": ("values", "Mean", {}),
    "mean_absolute_error": ("labels predictions", "MeanAbsoluteError", {}),
    "mean_iou": ("labels predictions", "MeanIoU", {"num_classes": "num_classes"}),
    "mean_relative_error": (
        "labels predictions",
        "MeanRelativeError",
        {"normalizer": "normalizer"},
    ),
    "mean_squared_error": ("labels predictions", "MeanSquaredError", {}),
    "mean_tensor": ("values", "MeanTensor", {}),
    "precision": ("labels predictions", "Precision", {}),
    "precision_at_thresholds": ("labels predictions", "Precision", {"thresholds": "thresholds"}),
    "recall": ("labels predictions", "Recall", {}),
    "recall_at_thresholds": ("labels predictions", "Recall", {"thresholds": "thresholds"}),
    "root_mean_squared_error": ("labels predictions", "RootMeanSquaredError", {}),
    "sensitivity_at_specificity": (
        "labels predictions",
        "SensitivityAtSpecificity",
        {"specificity": "specificity", "num_thresholds": "num_thresholds"},
    ),
    "specificity_at_sensitivity": (
        "labels predictions",
        "SpecificityAtSensitivity",
        {"sensitivity": "sensitivity", "num_thresholds": "num_thresholds"},
    ),
    "true_negatives": ("labels predictions", "TrueNegatives", {}),
    "true_negatives_at_thresholds": (
        "labels predictions",
        "TrueNegatives",
        {"thresholds": "thresholds"},
    ),
    "true_positives": ("labels predictions", "TruePositives", {}),
    "true_positives_at_thresholds": (
        "labels predictions",
        "TruePositives",
        {"thresholds": "thresholds"},
    ),
}
# The states of metrics exist as long as the process, like the local variables of a graph.
_states: list[Any] = []


def _make_metric(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    tensors, keras_name, options = _METRICS[name]
    arguments = [*tensors.split(), *options]

    def metric(
        *args: Any,
        weights: Any = None,
        metrics_collections: Iterable[object] | None = None,
        updates_collections: Iterable[object] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        if executing_eagerly():
            raise RuntimeError(
                f"tf.metrics.{label} is not supported when eager execution is enabled. Use tf.keras.metrics.{keras_name}."
            )
        values = {**dict(zip(arguments, args, strict=False)), **kwargs}
        settings = {new: values[old] for old, new in options.items() if old in values}
        make_state = functools.partial(getattr(tf.keras.metrics, keras_name), **settings)
        operands = [values[n] for n in tensors.split()]
        if has_explicit_graph():
            return _record_metric(
                make_state, operands, weights, metrics_collections, updates_collections, name or label
            )  # fmt: skip
        with init_scope():
            state = make_state()
            _states.append(state)
            # The variables are created before the value is read.
            zeros = [tf.zeros([1, *tf.TensorShape(getattr(v, "shape", []))[1:]]) for v in operands]
            if not state.weights:
                state.update_state(*zeros)
                state.reset_state()
        before = state.result()
        state.update_state(*operands, sample_weight=weights)
        return before, state.result()

    label = name
    metric.__name__ = metric.__qualname__ = name
    metric.__doc__ = (
        f"Return the value of `tf.keras.metrics.{keras_name}` before and after an update by `{', '.join(arguments)}`.\n\n"
        "Raises:\n  RuntimeError: In eager execution."
    )
    return metric


def _record_metric(
    make_state: Callable[[], Any],
    tensors: Iterable[TensorLike],
    weights: Any,
    metrics_collections: Iterable[object] | None,
    updates_collections: Iterable[object] | None,
    name: str,
) -> tuple[Tensor, Tensor]:
    """Add a metric to the default graph; return its value, and the operation that updates and returns it."""
    graph = get_default_graph()
    state: Any = None
    operands = list(map(tf.convert_to_tensor, tensors))

    def update(*args: Any) -> Tensor:
        state.update_state(*args[:-1], sample_weight=args[-1])
        result: Tensor = state.result()
        return result

    with (
        graph.set_variable_collections(["local_variables", "metric_variables"]),
        tf.name_scope(name),
    ):
        state = make_state()
        if not state.weights:
            sizes = [[1, *[n or 1 for n in o.shape.as_list()[1:]]] for o in operands]
            zeros = [tf.zeros(s, o.dtype) for s, o in zip(sizes, operands, strict=True)]
            graph.record(update, (*zeros, None))
        value = graph.record(lambda: state.result(), name="value")
        update_op = graph.record(update, (*operands, weights), name="update_op")
    for variable in state.weights:
        if variable in graph.get_collection("trainable_variables"):
            graph.get_collection_ref("trainable_variables").remove(variable)
    graph.add_to_collections(metrics_collections or [], value)
    graph.add_to_collections(updates_collections or [], update_op)
    return value, update_op


globals().update({_name: _make_metric(_name) for _name in _METRICS})
__all__ = sorted(_METRICS)
