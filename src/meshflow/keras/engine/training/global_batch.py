"""Keras's training loop on several devices, as one program over the global batch.

A step receives the global batch, which is split over the mesh along its first axis, and XLA
partitions the computation. The results therefore equal those of a single device, also for batch
normalization, dropout and metrics. If the batch size is not divisible by the number of devices,
every device computes the full batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.variables.variable_creation import variable_creator_scope
from meshflow.data.structure import ElementLeaf
from meshflow.distribute.replicas.context import ReplicaContext, context_scope
from meshflow.distribute.strategy import Strategy, get_strategy, has_strategy
from meshflow.environment.types import PyTree
from meshflow.keras.engine.layer.losses_and_metrics import flatten_layers
from meshflow.keras.engine.training.dataset_creator import DatasetCreator
from meshflow.placement.batches import BATCH_DIMENSIONS, BatchPlacer

if TYPE_CHECKING:
    from meshflow.core.variables.variable import Variable
    from meshflow.keras.engine.training.step import CompiledStep


def place_step(model: Any, step: CompiledStep) -> CompiledStep:
    """Set the placement of a model's compiled step: that of its strategy, or of the mesh of its variables.

    Args:
      model: The model.
      step: The step; it is changed in place.

    Returns:
      The step.
    """
    strategy = find_strategy(model)
    if strategy is not None:
        if strategy.needs_placement:
            step.place_batch = _make_placer(strategy, model)
            step.place_batches = strategy.place_batches
            step.make_trace_scope = lambda: _single_replica_scope(strategy)
        if hasattr(strategy, "register_training"):
            strategy.register_training(model)
        if model.built:
            warn_about_unused_layouts(model)
        return step
    mesh = next((v.layout.mesh for v in _list_variables(model) if v.layout is not None), None)
    if mesh is not None:
        step.place_batch = BatchPlacer(
            mesh, next((n for n in mesh.dim_names if n in BATCH_DIMENSIONS), None)
        )
        warn_about_unused_layouts(model)
    return step


def weight_creation_scope(model: Any) -> AbstractContextManager[None]:
    """Return the context in which a step in eager mode runs, so that it creates weights with layouts.

    Args:
      model: The model.

    Returns:
      The scope of the model's strategy; an empty context for a built model, or without a mesh.
    """
    strategy = None if model.built else find_strategy(model)
    if strategy is None or not strategy.needs_placement:
        return nullcontext()
    return _single_replica_scope(strategy)


def warn_about_unused_layouts(model: Any) -> None:
    """Warn about rules and keys of layout maps that match no weight of a built model, once for each.

    Args:
      model: The model.
    """
    maps = [getattr(layer, "_layout_map", None) for layer in flatten_layers(model)]
    for rules in (find_strategy(model), *maps):
        warn = getattr(rules, "warn_of_unused", None)
        if warn is not None:
            warn()


def _make_placer(strategy: Any, model: Any) -> Callable[[PyTree], PyTree]:
    """Return the function that places a batch, after a planner has chosen the placement."""
    if getattr(strategy, "_planner", None) is None:
        return strategy.place_batch

    def place(batch: PyTree) -> PyTree:
        strategy.run_planner(model, batch)
        return strategy.place_batch(batch)

    return place


def distribute_input(model: Any, x: PyTree) -> PyTree:
    """Distribute a dataset, its iterator or a `DatasetCreator` over the workers of a model's strategy.

    Args:
      model: The model, or None for the strategy in scope.
      x: Inputs.

    Returns:
      The distributed dataset; `x` itself if it is of another type or there is a single worker.
    """
    strategy = find_strategy(model)
    if isinstance(x, DatasetCreator):
        return (strategy or get_strategy()).distribute_datasets_from_function(x, x.input_options)
    if getattr(strategy, "num_workers", 1) > 1 and isinstance(x, ElementLeaf):
        dataset: Any = x
        return strategy.experimental_distribute_dataset(dataset)  # type: ignore[union-attr]
    return x


def get_current_strategy() -> Strategy | None:
    """Return the strategy in scope, or None."""
    return get_strategy() if has_strategy() else None


@contextmanager
def model_scope(model: Any) -> Iterator[None]:
    """Enter the scope of the strategy that a model was created under, unless a scope is open already.

    Args:
      model: The model.
    """
    strategy = getattr(model, "_strategy_at_start", None)
    with nullcontext() if strategy is None or has_strategy() else strategy.scope():
        yield


def _find_foreign_variables(variables: Iterable[Variable]) -> list[str]:
    """Return the names of variables that are not on the current strategy's servers, if it has any."""
    strategy = get_current_strategy()
    if strategy is None or not strategy.hosts_variables:
        return []
    return [v.name for v in variables if not strategy.extended.variable_created_in_scope(v)]


def check_variables(model: Any) -> None:
    """Check that a model's variables were created under the current strategy.

    Args:
      model: The model.

    Raises:
      ValueError: if a variable was not; the message names it.
    """
    foreign = _find_foreign_variables(_list_variables(model))
    if foreign:
        raise InvalidValueError(
            f"Variable ({foreign[0]}) was not created in the distribution strategy scope of ({get_current_strategy()}). It is "
            "most likely because some layers, model, or optimizer was being created outside the distribution strategy "
            "scope: make and compile the model in `with strategy.scope():`."
        )


def check_metrics(metrics: Iterable[Any]) -> None:
    """Check that the variables of metrics were created under the current strategy.

    Args:
      metrics: Metrics; names and functions among them are ignored.

    Raises:
      ValueError: if a variable was not; the message names it and its metric.
    """
    for metric in metrics:
        foreign = _find_foreign_variables(getattr(metric, "variables", ()))
        if foreign:
            raise InvalidValueError(
                f"Metric {metric.name} passed to `model.compile` was created inside a different distribution strategy "
                f"scope than the model: {foreign}. All metrics must be created in the same distribution strategy scope "
                "as the model. If you pass in a string identifier of a metric to compile, the metric will automatically "
                "be created in the correct distribution strategy scope."
            )


def _list_variables(model: Any) -> list[Variable]:
    try:
        return list(model.variables) if model.built else []
    except ValueError:
        # A model of a library may declare that it is built before its parts are.
        return []


def find_strategy(model: Any) -> Strategy | None:
    """Return the strategy that a model is trained under.

    This is the strategy in scope, or that of `compile`, or that of the model's creation, or that of
    its variables, in this order.

    Args:
      model: The model, or None for the strategy in scope.
    """
    if model is None:
        return get_current_strategy()
    strategy = get_current_strategy() or getattr(model, "_strategy_at_compile", None)
    # A model that creates its layers in the first call has no variables yet.
    strategy = strategy or getattr(model, "_strategy_at_start", None)
    if strategy is not None:
        return strategy
    owners = (getattr(v, "_distribute_strategy", None) for v in _list_variables(model))
    return next((s for s in owners if s is not None), None)


@contextmanager
def _single_replica_scope(strategy: Strategy) -> Iterator[None]:
    """Trace a step as the single replica of a strategy."""
    num_replicas, context.num_replicas = context.num_replicas, 1
    try:
        with (
            context_scope(ReplicaContext(strategy, 0)),
            variable_creator_scope(strategy._create_variable),
        ):
            yield
    finally:
        context.num_replicas = num_replicas
