"""Keras' loops under `ParameterServerStrategy`: steps are closures that workers run without waiting for each other.

The handlers here have the methods of `DataHandler`. What they give in the place of batches is what a closure takes, and
`run` schedules closures instead of computing; `finish` waits for them at the end of an epoch. The state of metrics is
on the servers like all variables, so an epoch's numbers are those of all workers' steps.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import CancelledError, InvalidValueError, OutOfRangeError
from meshflow.core.variables.random import place, place_of_pass
from meshflow.distribute.parameter_server.coordinator import ClusterCoordinator
from meshflow.distribute.parameter_server.strategy import ParameterServerStrategy
from meshflow.keras.engine.training.callbacks import has_batch_hook
from meshflow.keras.engine.training.data_adapter import DataHandler
from meshflow.keras.engine.training.dataset_creator import DatasetCreator, check_steps
from meshflow.keras.engine.training.global_batch import (
    check_metrics,
    distributed_input,
    strategy_of,
)
from meshflow.keras.engine.training.orders import Orders
from meshflow.keras.engine.training.step import CompiledStep
from meshflow.keras.engine.training.training_state import Resumption

__all__ = ["data_handler", "only_epochs", "verbosity"]

# Threads share models; tracing a step leaves marks on its layers until it is done.
_tracing = threading.RLock()


def coordinated(model: Any) -> ParameterServerStrategy | None:
    """The strategy of a model whose steps workers run; None for others.

    Args:
      model: the model.
    """
    strategy = strategy_of(model)
    return strategy if isinstance(strategy, ParameterServerStrategy) else None


def data_handler(model: Any, mode: str, x: Any, y: Any = None, **settings: Any) -> Any:
    """What a loop takes batches from.

    Args:
      model: the model.
      mode: "train", "test" or "predict".
      x: inputs, or an iterable of batches.
      y: targets.
      **settings: arguments of `DataHandler`.

    Returns:
      A `DataHandler`, or one with its methods for models on parameter servers.

    Raises:
      ValueError: when the parts do not fit together, or steps must be given and are not.
    """
    steps, strategy = settings.get("steps_per_epoch"), coordinated(model)
    if mode == "predict" or strategy is None:
        # Predictions are computed by the coordinator.
        check_steps(x, steps)
        return DataHandler(distributed_input(model, x), y, **settings)
    if model.run_eagerly:
        raise InvalidValueError(
            "When using `Model` with `ParameterServerStrategy`, `run_eagerly` is not supported."
        )
    shards = model._exact_shards(strategy.cluster.worker_count) if mode == "test" else 0
    check_steps(x, steps, shards)
    if mode == "test" and (shards or steps is None):
        return ShardedEvaluation(model, strategy, x, y, shards, settings)
    return ScheduledSteps(model, strategy, mode, x, y, settings)


def _is_dataset(x: Any) -> bool:
    """Whether inputs are a dataset, or a function that makes one for each worker."""
    return isinstance(x, DatasetCreator) or hasattr(x, "element_spec")


def _check_finite(x: Any) -> None:
    if getattr(x, "infinite", False):
        raise InvalidValueError(
            "When providing an infinite dataset, you must specify the number of steps to run: give `steps_per_epoch`, "
            "`steps` or `validation_steps`, or leave out `repeat()`."
        )


def _batches_of(x: Any, data: WorkerInput) -> int | None:
    """How many batches a worker finds in one pass over its data; None when that is not known."""
    if not _is_dataset(x):
        return data.handler().steps
    _check_finite(x)
    known = int(x.cardinality()) if hasattr(x, "cardinality") else -1
    return known if known >= 0 else None


class WorkerInput:
    """The batches of one worker; iterated there.

    Args:
      x: inputs, a dataset or a `DatasetCreator`.
      y: targets.
      settings: arguments of `DataHandler`.
    """

    def __init__(self, x: Any, y: Any, settings: dict[str, Any]) -> None:
        known = ("sample_weight", "batch_size", "steps_per_epoch", "shuffle", "class_weight")
        self._x, self._y = x, y
        self._settings = {name: settings[name] for name in known if name in settings}
        # Workers see the same arrays in orders of their own.
        shuffled = settings.get("shuffle") and not _is_dataset(x)
        self._place = place_of_pass() if shuffled else place(0)

    def handler(self) -> DataHandler:
        """A handler of these data, on the worker that calls."""
        handler = DataHandler(distributed_input(None, self._x), self._y, **self._settings)
        source, closure = handler._source, context.closure
        if source._orders is not None:
            worker = 0 if closure is None else closure.worker
            low, high, key = self._place
            source._orders = Orders(place(key, high + worker, low))
        return handler

    def __iter__(self) -> Iterator[Any]:
        return self.handler().stream()


class KerasStep:
    """A model's step as a function for workers.

    Args:
      model: the model.
      kind: "train" or "test".
    """

    def __init__(self, model: Any, kind: str) -> None:
        self._model, self._kind = model, kind
        self._step: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # In another process the step is compiled there.
        return {"_model": self._model, "_kind": self._kind, "_step": None}

    def __call__(self, batches: Iterator[Any]) -> Any:
        """Runs the step on the worker's next batch.

        Args:
          batches: the worker's batches.

        Raises:
          OutOfRangeError: when there are no more.
        """
        try:
            batch = next(batches)
        except StopIteration:
            raise OutOfRangeError(
                "End of sequence: a worker's dataset has no more batches."
            ) from None
        return self.on(batch)

    def on(self, batch: Any) -> Any:
        """Runs the step on a batch."""
        step = self._step
        if isinstance(step, CompiledStep) and step.knows(batch):
            return step(batch)
        with _tracing:
            if self._step is None:
                self._step = self._model._new_step(self._kind)
            return self._step(batch)


class _Scheduled:
    """What the handlers of closures have in common; a base class.

    Args:
      model: the model.
      strategy: its strategy.
      kind: "train" or "test".
      data: the data as workers take them.

    Attributes:
      steps: closures per epoch, None when not known.
      tracked: whether somebody will ask for the `position`.
      exhausted: whether some worker's data ended before the steps that were wanted.
      checks_labels: whether batches can be looked at here.
    """

    steps: int | None
    checks_labels = False

    def __init__(self, model: Any, strategy: Any, kind: str, data: WorkerInput) -> None:
        self._model, self._data = model, data
        self._coordinator = ClusterCoordinator(strategy)
        self.tracked = self.exhausted = False
        self._step: KerasStep = model._kept_step(
            f"asynchronous_{kind}", lambda: KerasStep(model, kind)
        )
        model._kept_step(f"prepared_{kind}", lambda: _prepared(model, strategy, kind, data))

    def _schedule(self, function: Any, *args: Any) -> Any:
        try:
            return self._coordinator.schedule(function, args=args)
        except OutOfRangeError:
            self._end_of_data()
            return None

    def finish(self, logs: Any) -> Any:
        """The numbers of an epoch, when all of its steps are over.

        Args:
          logs: what the last `run` returned.
        """
        try:
            self._coordinator.join()
        except OutOfRangeError:
            self._end_of_data()
        if logs is None:
            return None
        try:
            last = logs.fetch()
        except (CancelledError, OutOfRangeError):
            last = {}
        # What the last closure saw is not yet what the others did at the same time.
        seen = self._model.get_metrics_result()
        return {**last, **seen} if isinstance(last, dict) else seen

    def _end_of_data(self) -> None:
        if not self.exhausted:
            warnings.warn(
                "Your input ran out of data; interrupting training. Under `ParameterServerStrategy` a worker may take "
                "more batches than the others: have every worker's dataset `repeat()`.",
                stacklevel=2,
            )
        self.exhausted = True


class ScheduledSteps(_Scheduled):
    """A closure for each step, on the next batch of the worker that runs it.

    Args:
      model: the model.
      strategy: its strategy.
      kind: "train" or "test".
      x: inputs.
      y: targets.
      settings: arguments of `DataHandler`.

    Raises:
      ValueError: when the number of steps is not known.
    """

    def __init__(
        self, model: Any, strategy: Any, kind: str, x: Any, y: Any, settings: dict[str, Any]
    ) -> None:
        data = WorkerInput(x, y, settings)
        self.steps = settings.get("steps_per_epoch")
        # Without a number of steps an epoch has as many as one pass over the data, and workers begin a new one for it.
        self._renews = self.steps is None
        if self.steps is None:
            self.steps = _batches_of(x, data)
        if self.steps is None:
            raise InvalidValueError(
                "`steps_per_epoch` must be specified with `ParameterServerStrategy` for a dataset that does not know its "
                "length (`cardinality`): workers take batches from datasets of their own."
            )
        super().__init__(model, strategy, kind, data)
        self._first, self._last = settings.get("initial_epoch", 0), settings.get("epochs", 1)
        self._done = 0

    def epochs(self) -> Iterator[tuple[int, Iterator[Any]]]:
        """For every epoch its number, and what its closures take."""
        data = self._coordinator.create_per_worker_dataset(self._data)
        batches = iter(data)
        for epoch in range(self._first, self._last):
            yield epoch, self._epoch(batches)
            if self._renews:
                batches = iter(data)
            if self.exhausted:
                return

    def _epoch(self, batches: Any) -> Iterator[Any]:
        done, self._done = self._done, 0
        for _ in range((self.steps or 0) - done):
            if self.exhausted:
                return
            yield batches

    def run(self, group: Sequence[Any]) -> Any:
        """Schedules a step for each item, and gives the last one's `RemoteValue`."""
        result = None
        for batches in group:
            result = self._schedule(self._step, batches)
        return result

    def position(self) -> dict[str, Any]:
        """Where in the data the training is: workers begin theirs again."""
        return {"source": {"random": {"places": {}}}, "batches": 0}

    def resume(self, resumption: Resumption) -> None:
        """Goes on at the epoch where an earlier process was, at the next call of `epochs`."""
        self._first, self._done = resumption.epoch, resumption.step


class ShardedEvaluation(_Scheduled):
    """All data evaluated, each batch once: a closure for each share of the batches.

    A share whose worker is lost is evaluated again, and counts once.

    Args:
      model: the model.
      strategy: its strategy.
      x: inputs.
      y: targets.
      shards: how many shares; 0 for one for each worker.
      settings: arguments of `DataHandler`.
    """

    def __init__(
        self, model: Any, strategy: Any, x: Any, y: Any, shards: int, settings: dict[str, Any]
    ) -> None:
        if shards and getattr(x, "infinite", False):
            raise InvalidValueError(
                "When performing exact evaluation, the dataset must be finite. Make sure not to call `repeat()` on your "
                "dataset."
            )
        _check_finite(x)
        super().__init__(model, strategy, "test", WorkerInput(x, y, settings))
        self.steps = shards or strategy.cluster.worker_count

    def epochs(self) -> Iterator[tuple[int, Iterator[Any]]]:
        """One epoch, with the numbers of the shares."""
        yield 0, iter(range(self.steps or 1))

    def run(self, group: Sequence[Any]) -> Any:
        """Schedules the evaluation of some shares."""
        result = None
        for number in group:
            result = self._schedule(_evaluate_share, self._step, self._data, number, self.steps)
        return result


def _evaluate_share(step: KerasStep, data: WorkerInput, number: int, shares: int) -> Any:
    """Evaluates every so many-th batch."""
    result: Any = {}
    handler = data.handler()
    for _, batches in handler.epochs():
        for batch in itertools.islice(batches, number, None, shares):
            result = step.on(batch)
    return result


def _prepared(model: Any, strategy: Any, kind: str, data: WorkerInput) -> bool:
    """Makes the variables that a model's first step would make, where all workers find them."""
    batch = next(iter(data), None)
    if batch is None:
        raise InvalidValueError(
            f"Model {model.name}: the data have no batches. Check that the dataset yields at least one."
        )
    with strategy.scope():
        step = model._new_step(kind)
        if isinstance(step, CompiledStep):
            step.prepare(batch)
            if kind == "train" and hasattr(model.optimizer, "apply_gradients"):
                # Or the first closure would find out, and take its batch for nothing.
                strategy.make_state(model.optimizer, model.trainable_variables)
        else:
            # A step of which a part runs on the host can only be run: one that trains nothing.
            model._new_step("test")(batch)
            model.reset_metrics()
        check_metrics(model.metrics)
    return True


def verbosity(model: Any, verbose: Any) -> Any:
    """How much a loop says.

    Args:
      model: the model.
      verbose: 0, 1, 2 or "auto".

    Raises:
      ValueError: for a bar of the steps of several workers.
    """
    if coordinated(model) is None:
        return 1 if verbose == "auto" else verbose
    if verbose == 1:
        raise InvalidValueError(
            f"`verbose=1` is not allowed with `ParameterServerStrategy` for performance reasons. Received: "
            f"verbose={verbose}"
        )
    return 2 if verbose == "auto" else verbose


def only_epochs(model: Any, callbacks: Sequence[Any]) -> None:
    """Refuses callbacks that want to know of batches, which workers do in no order.

    Args:
      model: the model.
      callbacks: the callbacks.

    Raises:
      ValueError: naming those that do.
    """
    if coordinated(model) is None:
        return
    refused = [
        c
        for c in callbacks
        if not type(c).__module__.startswith("meshflow.keras.")
        or type(c).__name__ == "LambdaCallback"
    ]
    refused = [
        c for c in refused if any(has_batch_hook(c, m) for m in ("train", "test", "predict"))
    ]
    if refused:
        raise InvalidValueError(
            "Batch-level `Callback`s are not supported with `ParameterServerStrategy`. Found unsupported callbacks: "
            f"{refused}"
        )
