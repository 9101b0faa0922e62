"""Keras's training loops under `ParameterServerStrategy`.

Workers run the steps as closures without waiting for each other.

The handlers here have the methods of `DataHandler`. Instead of batches they yield the arguments of
closures, `run` schedules closures instead of computing steps, and `finish_epoch` waits for them at
the end of an epoch. Like all variables, the state of metrics is on the servers, so an epoch's
metrics cover the steps of all workers.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import CancelledError, InvalidValueError, OutOfRangeError
from meshflow.core.variables.random_streams import make_pass_state, make_state
from meshflow.distribute.parameter_server.coordination.cluster_coordinator import ClusterCoordinator
from meshflow.distribute.parameter_server.strategy import ParameterServerStrategy
from meshflow.environment.types import PyTree
from meshflow.keras.engine.training.callbacks import Callback, has_batch_hook
from meshflow.keras.engine.training.data_adapter import DataHandler
from meshflow.keras.engine.training.dataset_creator import DatasetCreator, check_steps
from meshflow.keras.engine.training.global_batch import (
    check_metrics,
    distribute_input,
    find_strategy,
)
from meshflow.keras.engine.training.shuffle_orders import ShuffleOrders
from meshflow.keras.engine.training.step import CompiledStep
from meshflow.keras.engine.training.training_state import Resumption
from meshflow.keras.literals import Verbosity

# Threads share models, and tracing a step changes attributes of its layers until it ends.
_trace_lock = threading.RLock()


def find_parameter_server_strategy(model: Any) -> ParameterServerStrategy | None:
    """Return the strategy of a model that is trained by workers, or None for other models.

    Args:
      model: The model.
    """
    strategy = find_strategy(model)
    return strategy if isinstance(strategy, ParameterServerStrategy) else None


def make_data_handler(
    model: Any, mode: str, x: PyTree, y: PyTree = None, **settings: Any
) -> AnyHandler:
    """Create the handler that a training, evaluation or prediction loop reads its batches from.

    Args:
      model: The model.
      mode: "train", "test" or "predict".
      x: Inputs, or an iterable of batches.
      y: Targets.
      **settings: Other arguments of `DataHandler`.

    Returns:
      A `DataHandler`, or for models on parameter servers an object with the same methods.

    Raises:
      ValueError: if the arguments do not fit together, or the number of steps is required but
        missing.
    """
    steps, strategy = settings.get("steps_per_epoch"), find_parameter_server_strategy(model)
    if mode == "predict" or strategy is None:
        # The coordinator computes predictions itself.
        check_steps(x, steps)
        return DataHandler(distribute_input(model, x), y, **settings)
    if model.run_eagerly:
        raise InvalidValueError(
            "When using `Model` with `ParameterServerStrategy`, `run_eagerly` is not supported."
        )
    shards = model._count_evaluation_shards(strategy.cluster.worker_count) if mode == "test" else 0
    check_steps(x, steps, shards)
    if mode == "test" and (shards or steps is None):
        return ShardedEvaluation(model, strategy, x, y, shards, settings)
    return ScheduledSteps(model, strategy, mode, x, y, settings)


def _is_dataset(x: PyTree) -> bool:
    """Check whether inputs are a dataset, or a function that creates one for each worker."""
    return isinstance(x, DatasetCreator) or hasattr(x, "element_spec")


def _check_finite(x: PyTree) -> None:
    if getattr(x, "infinite", False):
        raise InvalidValueError(
            "When providing an infinite dataset, you must specify the number of steps to run: pass `steps_per_epoch`, "
            "`steps` or `validation_steps`, or leave out `repeat()`."
        )


def _count_batches(x: PyTree, data: WorkerInput) -> int | None:
    """Return the number of batches in one pass over a worker's data, or None if it is not known."""
    if not _is_dataset(x):
        return data.make_handler().steps
    _check_finite(x)
    count = int(x.cardinality()) if hasattr(x, "cardinality") else -1
    return count if count >= 0 else None


class WorkerInput:
    """The batches of one worker, which iterates over them.

    Args:
      x: Inputs, a dataset or a `DatasetCreator`.
      y: Targets.
      settings: Arguments of `DataHandler`.
    """

    def __init__(self, x: PyTree, y: PyTree, settings: dict[str, Any]) -> None:
        names = (
            *("sample_weight", "batch_size", "steps_per_epoch", "shuffle"),
            *("class_weight", "output_names"),
        )
        self._x, self._y = x, y
        self._settings = {name: settings[name] for name in names if name in settings}
        # Every worker shuffles the same arrays into a different order.
        is_shuffled = settings.get("shuffle") and not _is_dataset(x)
        self._generator_state = make_pass_state() if is_shuffled else make_state(0)

    def make_handler(self) -> DataHandler:
        """Create a handler of these data on the calling worker."""
        handler = DataHandler(distribute_input(None, self._x), self._y, **self._settings)
        source, closure = handler.source, context.worker_closure
        if source.orders is not None:
            worker = 0 if closure is None else closure.worker_id
            counter_low, counter_high, key = self._generator_state
            source.orders = ShuffleOrders(make_state(key, counter_high + worker, counter_low))
        return handler

    def __iter__(self) -> Iterator[Any]:
        return self.make_handler().iterate_batches()


class KerasStep:
    """A model's step as a function that workers call.

    Args:
      model: The model.
      kind: "train" or "test".
    """

    def __init__(self, model: Any, kind: str) -> None:
        self._model, self._kind = model, kind
        self._step: Callable[[PyTree], Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Another process compiles its own step.
        return {"_model": self._model, "_kind": self._kind, "_step": None}

    def __call__(self, batches: Iterator[PyTree]) -> Any:
        """Run the step on the worker's next batch.

        Args:
          batches: The worker's batches.

        Returns:
          The result of the step.

        Raises:
          OutOfRangeError: if there are no more batches.
        """
        try:
            batch = next(batches)
        except StopIteration:
            raise OutOfRangeError(
                "End of sequence: a worker's dataset has no more batches."
            ) from None
        return self.run_on_batch(batch)

    def run_on_batch(self, batch: PyTree) -> PyTree:
        """Run the step on a batch."""
        step = self._step
        if isinstance(step, CompiledStep) and step.is_traced_for(batch):
            return step(batch)
        with _trace_lock:
            if self._step is None:
                self._step = self._model._make_step(self._kind)
            return self._step(batch)


class _ClosureHandler:
    """Base class of the handlers that schedule closures.

    Args:
      model: The model.
      strategy: The model's strategy.
      kind: "train" or "test".
      data: The data in the form that workers read.

    Attributes:
      steps: Number of closures per epoch, or None if it is not known.
      tracked: Whether a callback will read the `get_position` of the data.
      exhausted: Whether a worker's data ended before the requested number of steps.
      checks_labels: Whether this process can check the labels of batches.
    """

    steps: int | None
    checks_labels = False

    def __init__(
        self, model: Any, strategy: ParameterServerStrategy, kind: str, data: WorkerInput
    ) -> None:
        self._model, self._data = model, data
        self._coordinator = ClusterCoordinator(strategy)
        self.tracked = self.exhausted = False
        self._step: KerasStep = model._get_cached(
            f"asynchronous_{kind}", lambda: KerasStep(model, kind)
        )
        model._get_cached(
            f"prepared_{kind}", lambda: _create_variables(model, strategy, kind, data)
        )

    def iterate_epochs(self) -> Iterator[tuple[int, Iterator[Any]]]:
        """Yield the index of each epoch with the arguments of its closures."""
        raise NotImplementedError

    def run(self, group: Sequence[Any]) -> PyTree:
        """Schedule a closure for each item of a group, and return the last one's `RemoteValue`."""
        raise NotImplementedError

    def get_position(self) -> dict[str, Any]:
        """Return the position in the data."""
        raise NotImplementedError

    def resume(self, resumption: Resumption) -> None:
        """Continue at a position of an earlier process."""
        raise NotImplementedError

    def _schedule(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return self._coordinator.schedule(function, args=args)
        except OutOfRangeError:
            self._report_end_of_data()
            return None

    def finish_epoch(self, logs: PyTree) -> PyTree:
        """Wait for all steps of an epoch, and return its metrics.

        Args:
          logs: Result of the last call of `run`.
        """
        try:
            self._coordinator.join()
        except OutOfRangeError:
            self._report_end_of_data()
        if logs is None:
            return None
        try:
            last = logs.fetch()
        except (CancelledError, OutOfRangeError):
            last = {}
        # The last closure may have read the metrics before other closures, which ran at the same
        # time, updated them.
        metrics = self._model.get_metrics_result()
        return {**last, **metrics} if isinstance(last, dict) else metrics

    def _report_end_of_data(self) -> None:
        if not self.exhausted:
            warnings.warn(
                "Your input ran out of data; interrupting training. Under `ParameterServerStrategy` a worker may take "
                "more batches than the others: have every worker's dataset `repeat()`.",
                stacklevel=2,
            )
        self.exhausted = True


class ScheduledSteps(_ClosureHandler):
    """Handler with a closure for each step, which runs on the next batch of its worker.

    Args:
      model: The model.
      strategy: The model's strategy.
      kind: "train" or "test".
      x: Inputs.
      y: Targets.
      settings: Arguments of `DataHandler`.

    Raises:
      ValueError: if the number of steps is not known.
    """

    def __init__(
        self,
        model: Any,
        strategy: ParameterServerStrategy,
        kind: str,
        x: PyTree,
        y: PyTree,
        settings: dict[str, Any],
    ) -> None:
        data = WorkerInput(x, y, settings)
        self.steps = settings.get("steps_per_epoch")
        # Without an explicit number of steps, an epoch is one pass over a worker's data, and
        # workers start a new pass for each epoch.
        self._renews = self.steps is None
        if self.steps is None:
            self.steps = _count_batches(x, data)
        if self.steps is None:
            raise InvalidValueError(
                "`steps_per_epoch` must be specified with `ParameterServerStrategy` for a dataset of unknown length "
                "(`cardinality`), because each worker takes batches from its own dataset."
            )
        super().__init__(model, strategy, kind, data)
        self._first, self._last = settings.get("initial_epoch", 0), settings.get("epochs", 1)
        self._done = 0

    def iterate_epochs(self) -> Iterator[tuple[int, Iterator[Any]]]:
        """Yield the index of each epoch with the arguments of its closures."""
        data = self._coordinator.create_per_worker_dataset(self._data)
        batches = iter(data)
        for epoch in range(self._first, self._last):
            yield epoch, self._iterate_epoch(batches)
            if self._renews:
                batches = iter(data)
            if self.exhausted:
                return

    def _iterate_epoch(self, batches: Iterator[Any]) -> Iterator[Any]:
        done, self._done = self._done, 0
        for _ in range((self.steps or 0) - done):
            if self.exhausted:
                return
            yield batches

    def run(self, group: Sequence[Any]) -> PyTree:
        """Schedule a step for each item, and return the last step's `RemoteValue`."""
        result = None
        for batches in group:
            result = self._schedule(self._step, batches)
        return result

    def get_position(self) -> dict[str, Any]:
        """Return the start of the data as the position, because workers read their data again."""
        return {"source": {"random": {"places": {}}}, "batches": 0}

    def resume(self, resumption: Resumption) -> None:
        """Continue, at the next call of `iterate_epochs`, where an earlier process stopped."""
        self._first, self._done = resumption.epoch, resumption.step


# The handlers that loops accept.
AnyHandler: TypeAlias = DataHandler | _ClosureHandler


class ShardedEvaluation(_ClosureHandler):
    """Handler that evaluates each batch exactly once, with a closure for each share of the batches.

    If a worker is lost, another one evaluates its share again, and the share counts once.

    Args:
      model: The model.
      strategy: The model's strategy.
      x: Inputs.
      y: Targets.
      shards: Number of shares; 0 for one per worker.
      settings: Arguments of `DataHandler`.
    """

    def __init__(
        self,
        model: Any,
        strategy: ParameterServerStrategy,
        x: PyTree,
        y: PyTree,
        shards: int,
        settings: dict[str, Any],
    ) -> None:
        if shards and getattr(x, "infinite", False):
            raise InvalidValueError(
                "When performing exact evaluation, the dataset must be finite. Make sure not to call `repeat()` on your "
                "dataset."
            )
        _check_finite(x)
        super().__init__(model, strategy, "test", WorkerInput(x, y, settings))
        self.steps = shards or strategy.cluster.worker_count

    def iterate_epochs(self) -> Iterator[tuple[int, Iterator[Any]]]:
        """Yield one epoch with the indices of the shares."""
        yield 0, iter(range(self.steps or 1))

    def run(self, group: Sequence[Any]) -> PyTree:
        """Schedule the evaluation of shares."""
        result = None
        for index in group:
            result = self._schedule(_evaluate_share, self._step, self._data, index, self.steps)
        return result


def _evaluate_share(step: KerasStep, data: WorkerInput, index: int, num_shares: int) -> PyTree:
    """Evaluate every `num_shares`-th batch, starting at `index`."""
    result: Any = {}
    handler = data.make_handler()
    for _, batches in handler.iterate_epochs():
        for batch in itertools.islice(batches, index, None, num_shares):
            result = step.run_on_batch(batch)
    return result


def _create_variables(
    model: Any, strategy: ParameterServerStrategy, kind: str, data: WorkerInput
) -> bool:
    """Create the variables that a model's first step needs on the servers, where all workers find them."""
    batch = next(iter(data), None)
    if batch is None:
        raise InvalidValueError(
            f"Model {model.name}: the data have no batches. Check that the dataset yields at least one."
        )
    with strategy.scope():
        step = model._make_step(kind)
        if isinstance(step, CompiledStep):
            step.prepare(batch)
            if kind == "train" and hasattr(model.optimizer, "apply_gradients"):
                # Otherwise the first closure would create the state, and would take its batch
                # without training on it.
                strategy.create_slots(model.optimizer, model.trainable_variables)
        else:
            # A step that partly runs on the host cannot be traced. A test step creates the
            # variables without training.
            model._make_step("test")(batch)
            model.reset_metrics()
        check_metrics(model.metrics)
    return True


def resolve_verbosity(model: Any, verbose: Verbosity) -> int:
    """Resolve the argument `verbose` of a loop.

    Args:
      model: The model.
      verbose: 0, 1, 2 or "auto".

    Raises:
      ValueError: if a progress bar is requested for the steps of several workers.
    """
    if find_parameter_server_strategy(model) is None:
        return 1 if verbose == "auto" else int(verbose)
    if verbose == 1:
        raise InvalidValueError(
            f"`verbose=1` is not allowed with `ParameterServerStrategy` for performance reasons. Received: "
            f"verbose={verbose}"
        )
    return 2 if verbose == "auto" else int(verbose)


def check_callbacks(model: Any, callbacks: Sequence[Callback]) -> None:
    """Reject callbacks with batch hooks for models on parameter servers, where batches have no order.

    Args:
      model: The model.
      callbacks: The callbacks.

    Raises:
      ValueError: if a callback has a batch hook.
    """
    if find_parameter_server_strategy(model) is None:
        return
    rejected = [
        c
        for c in callbacks
        if not type(c).__module__.startswith("meshflow.keras.")
        or type(c).__name__ == "LambdaCallback"
    ]
    rejected = [
        c for c in rejected if any(has_batch_hook(c, m) for m in ("train", "test", "predict"))
    ]
    if rejected:
        raise InvalidValueError(
            "Batch-level `Callback`s are not supported with `ParameterServerStrategy`. Found unsupported callbacks: "
            f"{rejected}"
        )
