"""Keras' training loop on several devices: one program over the global batch.

A step sees the global batch, split over the mesh along its first axis; XLA divides the work. So
results are those of one device, also of batch normalisation, dropout and metrics. A batch that the
devices do not divide is computed by all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.variables.variable_creation import variable_creator_scope
from meshflow.distribute.replicas.context import ReplicaContext, entered
from meshflow.distribute.strategy import Strategy, get_strategy, has_strategy
from meshflow.keras.engine.training.dataset_creator import DatasetCreator
from meshflow.placement.batches import BATCH_DIMENSIONS, BatchPlacer

__all__ = [
    "check_metrics",
    "check_variables",
    "current_strategy",
    "distributed_input",
    "on_devices",
    "own_scope",
    "strategy_of",
]


def on_devices(model: Any, step: Any) -> Any:
    """Gives a model's compiled step the placement of its strategy, or of its variables' mesh."""
    strategy = strategy_of(model)
    if strategy is not None:
        if strategy.places:
            step.place = _placing(strategy, model)
            step.place_many = strategy.place_batches
            step.around = lambda: _one_replica(strategy)
        if hasattr(strategy, "trains"):
            strategy.trains(model)
        if model.built and hasattr(strategy, "warn_of_unused"):
            strategy.warn_of_unused()
        return step
    mesh = next((v.layout.mesh for v in _variables(model) if v.layout is not None), None)
    if mesh is not None:
        step.place = BatchPlacer(
            mesh, next((n for n in mesh.dim_names if n in BATCH_DIMENSIONS), None)
        )
        for layer in model._flatten_layers():
            if getattr(layer, "_layout_map", None) is not None:
                layer._layout_map.warn_of_unused()
    return step


def _placing(strategy: Any, model: Any) -> Any:
    if getattr(strategy, "_planner", None) is None:
        return strategy.place_batch

    def place(batch: Any) -> Any:
        strategy.decide(model, batch)
        return strategy.place_batch(batch)

    return place


def distributed_input(model: Any, x: Any) -> Any:
    """A dataset as the workers of a strategy share it, or as a function makes it; other inputs as they are."""
    strategy = strategy_of(model)
    if isinstance(x, DatasetCreator):
        return (strategy or get_strategy()).distribute_datasets_from_function(x, x.input_options)
    if getattr(strategy, "workers", 1) > 1 and hasattr(x, "_elements"):
        return strategy.experimental_distribute_dataset(x)  # type: ignore[union-attr]
    return x


def current_strategy() -> Strategy | None:
    """The strategy whose scope is open, or None."""
    return get_strategy() if has_strategy() else None


@contextmanager
def own_scope(model: Any) -> Iterator[None]:
    """The scope of the strategy that a model was made in, unless some scope is open.

    Args:
      model: the model.
    """
    begun = getattr(model, "_strategy_at_start", None)
    with nullcontext() if begun is None or has_strategy() else begun.scope():
        yield


def _foreign(variables: Iterable[Any]) -> list[str]:
    """Names of variables that are not on the servers of the strategy in force; none where it has no servers."""
    strategy = current_strategy()
    if strategy is None or not strategy.hosts_variables:
        return []
    return [v.name for v in variables if not strategy.extended.variable_created_in_scope(v)]


def check_variables(model: Any) -> None:
    """Refuses a model whose variables are not where the strategy in force has its.

    Args:
      model: the model.

    Raises:
      ValueError: naming them.
    """
    foreign = _foreign(_variables(model))
    if foreign:
        raise InvalidValueError(
            f"Variable ({foreign[0]}) was not created in the distribution strategy scope of ({current_strategy()}). It is "
            "most likely because some layers, model, or optimizer was being created outside the distribution strategy "
            "scope: make and compile the model in `with strategy.scope():`."
        )


def check_metrics(metrics: Iterable[Any]) -> None:
    """Refuses metrics whose variables are not where the strategy in force has its.

    Args:
      metrics: metrics; names and functions among them are passed over.

    Raises:
      ValueError: naming the metric and its variables.
    """
    for metric in metrics:
        foreign = _foreign(getattr(metric, "variables", ()))
        if foreign:
            raise InvalidValueError(
                f"Metric {metric.name} passed to `model.compile` was created inside a different distribution strategy "
                f"scope than the model: {foreign}. All metrics must be created in the same distribution strategy scope "
                "as the model. If you pass in a string identifier of a metric to compile, the metric will automatically "
                "be created in the correct distribution strategy scope."
            )


def _variables(model: Any) -> list[Any]:
    return list(model.variables) if model.built else []


def strategy_of(model: Any) -> Strategy | None:
    """The strategy that a model is trained under: that of the open scope, of `compile`, its own, or its variables'.

    Args:
      model: the model; None for that of the scope alone.
    """
    if model is None:
        return current_strategy()
    known = current_strategy() or getattr(model, "_strategy_at_compile", None)
    # A model whose layers are made by its first call has no variables to ask.
    known = known or getattr(model, "_strategy_at_start", None)
    if known is not None:
        return known
    owners = (getattr(v, "_distribute_strategy", None) for v in _variables(model))
    return next((s for s in owners if s is not None), None)


@contextmanager
def _one_replica(strategy: Strategy) -> Iterator[None]:
    saved, context.num_replicas = context.num_replicas, 1
    try:
        with (
            entered(ReplicaContext(strategy, 0)),
            variable_creator_scope(strategy._create_variable),
        ):
            yield
    finally:
        context.num_replicas = saved
