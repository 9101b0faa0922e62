"""The loops that train models: `fit`, `evaluate` and `predict`.

`Trainer` is the base class of `Model` that trains. Its base class `CompileMethods` stores the
arguments of `compile`. The steps (`TrainingSteps`) are plain Python that users may override, and
`meshflow.keras.engine.training.step` compiles them. The loops take batches from a `DataHandler`,
run the compiled step, and call the callbacks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, overload

import numpy as np

from meshflow.core.dispatch.symbolic_calls import run_outside_of_graphs
from meshflow.core.dispatch.tiers import RunForecast
from meshflow.core.runtime.annotations import INPUT, region
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import OutOfMemoryError
from meshflow.core.runtime.tracebacks import hide_frames_of_errors
from meshflow.core.values import nest
from meshflow.data.node import DatasetNode
from meshflow.distribute.parallel.planner.auto_plan import suggest_plan
from meshflow.environment.types import PyTree
from meshflow.keras.engine.training.asynchronous_training import (
    AnyHandler,
    check_callbacks,
    make_data_handler,
    resolve_verbosity,
)
from meshflow.keras.engine.training.batch_methods import (
    SingleBatchMethods,
    get_scalar_logs,
    list_logs,
)
from meshflow.keras.engine.training.callbacks import Callback, CallbackList, History
from meshflow.keras.engine.training.class_weights import ClassWeight
from meshflow.keras.engine.training.data_adapter import (
    DataHandler,
    train_validation_split,
    unpack_x_y_sample_weight,
)
from meshflow.keras.engine.training.find_nan import FindNaN, get_nan_finder
from meshflow.keras.engine.training.generator_methods import GeneratorMethods
from meshflow.keras.engine.training.interrupt import Interruptible
from meshflow.keras.engine.training.joined_outputs import JoinedOutputs
from meshflow.keras.engine.training.label_range_check import LabelRangeCheck
from meshflow.keras.engine.training.training_state import Resumption
from meshflow.keras.literals import Verbosity
from meshflow.profiler.annotations import Trace

_log = logging.getLogger("meshflow")


class Trainer(SingleBatchMethods, GeneratorMethods):
    """Training, evaluation and prediction; a base class of `Model`."""

    # ---- loops -----------------------------------------------------------------------------

    @run_outside_of_graphs
    @hide_frames_of_errors
    def fit(
        self,
        x: PyTree = None,
        y: PyTree = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Verbosity = "auto",
        callbacks: Callback | Sequence[Callback] | CallbackList | None = None,
        validation_split: float = 0.0,
        validation_data: PyTree = None,
        shuffle: bool | Literal["batch"] = True,
        class_weight: ClassWeight | None = None,
        sample_weight: PyTree = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Collection[int] = 1,
        max_queue_size: int = 10,
        workers: int = 1,
        use_multiprocessing: bool = False,
        debug: str | None = None,
    ) -> History:
        """Train the model for a number of epochs.

        Args:
          x: Inputs: arrays, tensors, dictionaries or lists of them, a generator, a `Sequence`, a
            pandas data frame, a PyTorch `DataLoader`, or any iterable of batches.
          y: Targets; not for inputs that yield them.
          batch_size: Number of examples per step. Default: 32 for arrays.
          epochs: Index after that of the last epoch.
          verbose: 0 for no output, 1 for a progress bar, 2 for one line per epoch, or 'auto'.
          callbacks: Callbacks to call.
          validation_split: Fraction of the arrays, from their end, to use for validation.
          validation_data: Data to evaluate after each epoch: a tuple or an iterable.
          shuffle: Whether to shuffle the examples every epoch; 'batch' shuffles batches.
          class_weight: Weight of each class, by integer label; for several outputs such dictionaries
            by output name, or in a list. The weights multiply the sample weights.
          sample_weight: Weight of each example.
          initial_epoch: Index of the first epoch.
          steps_per_epoch: Number of batches per epoch. Default: one pass over the data.
          validation_steps: Number of batches of validation data. Default: all.
          validation_batch_size: Number of validation examples per step. Default: `batch_size`.
          validation_freq: Number of epochs per validation, or a collection of epochs to validate
            after.
          max_queue_size: Ignored.
          workers: Ignored.
          use_multiprocessing: Ignored.
          debug: "nan" adds the callback `FindNaN`, which finds the op and the rows of the first NaN.

        Returns:
          A `History`; its `history` maps metric names to values per epoch.

        Raises:
          RuntimeError: if the model is not compiled.
          ValueError: if data, targets and model do not fit together.

        Example:
          >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
          >>> model.compile(tf.keras.optimizers.SGD(0.25), "mse")
          >>> history = model.fit(tf.ones([4, 1]), tf.zeros([4, 1]), batch_size=4, epochs=2, verbose=0)
          >>> history.history["loss"]
          [1.0, 0.0]
        """
        del max_queue_size, workers, use_multiprocessing
        self._assert_compiled()
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = train_validation_split(
                (x, y, sample_weight), validation_split=validation_split
            )
        handler = make_data_handler(
            self,
            "train",
            x,
            y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            initial_epoch=initial_epoch,
            epochs=epochs,
            shuffle=shuffle,
            class_weight=class_weight,
            output_names=self.output_names,
        )
        for data in (x, validation_data):
            if isinstance(data, DatasetNode):
                # This warns before the first epoch if the parts of a split share elements.
                data.record_part(slice(0, None))
        if context.on_first_batch is not None:
            _, batches = next(iter(handler.iterate_epochs()))
            context.on_first_batch(self, next(iter(batches)))
        listeners = self._make_callback_list(
            callbacks, verbose, epochs, handler.steps, add_history=True
        )
        finder = get_nan_finder(self, listeners, debug, handler.run is not None)
        guard = LabelRangeCheck(self) if handler.checks_labels else None
        self.stop_training = False
        self._step_counters["train"].reset()
        self._apply_trainable_changes()
        run = self._make_train_runner(handler, finder)
        self._resumption, self._handler = None, handler
        listeners.on_train_begin()
        resumption: Resumption | None = self._resumption
        if resumption is not None:
            handler.resume(resumption)
        forecast = None
        if isinstance(handler, DataHandler) and hasattr(self.optimizer, "iterations"):
            forecast = handler.forecast_runs(int(self.optimizer.iterations))
        self._set_forecast("train", forecast)
        logs: Any = None
        epoch_logs: dict[str, Any] | None = None
        with Interruptible() as interruptible, self._suggest_smaller_plans():
            for epoch, batches in handler.iterate_epochs():
                done = 0
                if resumption is not None:
                    batches, done = resumption.resume_epoch(self, batches), resumption.step
                if not done:
                    self.reset_metrics()
                listeners.on_epoch_begin(epoch)
                if self._apply_trainable_changes():
                    # A callback changed the layers to train.
                    run = self._make_train_runner(handler, finder)
                before = logs
                logs = handler.finish_epoch(
                    self._run_epoch(batches, run, listeners, "train", interruptible, guard, done)
                )
                if finder is not None:
                    finder.check_steps()
                if logs is None and handler.exhausted:
                    # The previous epoch used up the data, so its metrics are those at the end of
                    # the training.
                    logs = before
                if logs is None and done:
                    # The earlier process stopped between the last step and the end of the epoch.
                    logs = resumption.logs  # type: ignore[union-attr]
                resumption = None
                if logs is None:
                    raise ValueError(
                        "Unexpected result of `train_function` (Empty Logs): the data has no batches in epoch "
                        f"{epoch + 1}. Check that the generator or dataset yields at least one batch per epoch."
                    )
                epoch_logs = dict(logs)
                if validation_data is not None and _should_validate(epoch, validation_freq):
                    values = self._validate(
                        validation_data,
                        validation_batch_size or batch_size,
                        validation_steps,
                        listeners,
                        forecast,
                    )
                    epoch_logs.update({f"val_{name}": value for name, value in values.items()})
                epoch_logs = get_scalar_logs(epoch_logs)
                listeners.on_epoch_end(epoch, epoch_logs)
                interruptible.raise_if_pending()
                if self.stop_training:
                    break
        self._handler = None
        listeners.on_train_end(epoch_logs)
        finalize = getattr(self.optimizer, "finalize_variable_values", None)
        if finalize is not None and getattr(self.optimizer, "use_ema", False) and epochs > 0:
            finalize(self.trainable_variables)
        return self.history

    @contextmanager
    def _suggest_smaller_plans(self) -> Iterator[None]:
        """Add a plan that would fit to the errors of training steps that run out of memory."""
        try:
            yield
        except OutOfMemoryError as error:
            traced = self._find_traced_step("train")
            if traced is None:
                raise
            (batch,), _ = traced.structured_input_signature
            message = f"{error.message.rstrip('.')}. {suggest_plan(self, batch)}"
            raise OutOfMemoryError(message) from error

    def _make_train_runner(
        self, handler: AnyHandler, finder: FindNaN | None
    ) -> Callable[[Sequence[Any]], Any]:
        """Return the function that runs one or several training steps."""
        if handler.run is not None:
            return handler.run
        run = self._make_runner("train")
        return run if finder is None else finder.watch(run)

    def _run_epoch(
        self,
        batches: Iterator[Any],
        run: Callable[[Sequence[Any]], Any],
        listeners: CallbackList,
        mode: str,
        interruptible: Interruptible,
        guard: LabelRangeCheck | None = None,
        step: int = 0,
    ) -> Any:
        """Run all batches of one pass, counted from `step`, and return the last step's result."""
        per_call = self._steps_per_execution
        notify = listeners.has_batch_hooks(mode)
        begin = getattr(listeners, f"on_{mode}_batch_begin")
        end = getattr(listeners, f"on_{mode}_batch_end")
        result: Any = None
        group: list[Any] = []
        for batch in _iterate_with_end(iter(batches)):
            if batch is not _END:
                if guard is not None:
                    guard.check(batch)
                group.append(batch)
            if len(group) == per_call or (batch is _END and group):
                if notify:
                    begin(step)
                with Trace(mode, step_num=step, _r=1):
                    result = run(group)
                if notify:
                    end(step + len(group) - 1, _make_batch_logs(result))
                step += len(group)
                group = []
                interruptible.raise_if_pending()
                if self.stop_training:
                    break
        return result

    def _validate(
        self,
        data: PyTree,
        batch_size: int | None,
        steps: int | None,
        listeners: CallbackList,
        forecast: RunForecast | None,
    ) -> dict[str, Any]:
        x, y, sample_weight = data, None, None
        if isinstance(data, (tuple, list)):
            x, y, sample_weight = unpack_x_y_sample_weight(tuple(data))
        handler = self._make_validation_handler(x, y, sample_weight, batch_size, steps)
        return self._evaluate(handler, listeners, forecast)

    def _make_validation_handler(
        self,
        x: PyTree,
        y: PyTree,
        sample_weight: PyTree,
        batch_size: int | None,
        steps: int | None,
    ) -> AnyHandler:
        return make_data_handler(
            self,
            "test",
            x,
            y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps,
            epochs=1,
            shuffle=False,
        )

    def _warn_about_unweighted_metrics(self, x: PyTree, sample_weight: PyTree) -> None:
        """Warn if sample weights are passed, but `weighted_metrics` are not decided."""
        spec = x.element_spec if isinstance(x, DatasetNode) else None
        is_weighted = sample_weight is not None or (isinstance(spec, tuple) and len(spec) == 3)
        if is_weighted and self._compile_arguments.get("weighted_metrics") is None:
            _log.warning(
                "`evaluate()` received a value for `sample_weight`, but `weighted_metrics` were not provided.  Did you mean to pass "
                "metrics to `weighted_metrics` in `compile()`?  If this is intentional you can pass `weighted_metrics=[]` to `compile()` "
                "in order to silence this warning."
            )

    def _evaluate(
        self, handler: AnyHandler, listeners: CallbackList, forecast: RunForecast | None = None
    ) -> dict[str, Any]:
        run = handler.run or self._make_runner("test")
        self._step_counters["test"].reset()
        self._set_forecast("test", forecast)
        guard = LabelRangeCheck(self) if handler.checks_labels else None
        self.reset_metrics()
        listeners.on_test_begin()
        logs: Any = None
        with Interruptible() as interruptible:
            for _, batches in handler.iterate_epochs():
                self.reset_metrics()
                logs = handler.finish_epoch(
                    self._run_epoch(batches, run, listeners, "test", interruptible, guard)
                )
        if logs is None:
            raise ValueError(
                "Unexpected result of `test_function` (Empty Logs): the data has no batches."
            )
        values = get_scalar_logs(logs)
        listeners.on_test_end(values)
        return values

    @overload
    def evaluate(
        self,
        x: PyTree = None,
        y: PyTree = None,
        batch_size: int | None = None,
        verbose: Verbosity = "auto",
        sample_weight: PyTree = None,
        steps: int | None = None,
        callbacks: Callback | Sequence[Callback] | CallbackList | None = None,
        max_queue_size: int = 10,
        workers: int = 1,
        use_multiprocessing: bool = False,
        *,
        return_dict: Literal[True],
    ) -> dict[str, float]: ...
    @overload
    def evaluate(
        self,
        x: PyTree = None,
        y: PyTree = None,
        batch_size: int | None = None,
        verbose: Verbosity = "auto",
        sample_weight: PyTree = None,
        steps: int | None = None,
        callbacks: Callback | Sequence[Callback] | CallbackList | None = None,
        max_queue_size: int = 10,
        workers: int = 1,
        use_multiprocessing: bool = False,
        return_dict: bool = False,
    ) -> PyTree: ...
    @run_outside_of_graphs
    @hide_frames_of_errors
    def evaluate(
        self,
        x: PyTree = None,
        y: PyTree = None,
        batch_size: int | None = None,
        verbose: Verbosity = "auto",
        sample_weight: PyTree = None,
        steps: int | None = None,
        callbacks: Callback | Sequence[Callback] | CallbackList | None = None,
        max_queue_size: int = 10,
        workers: int = 1,
        use_multiprocessing: bool = False,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Compute the loss and the metrics on data.

        Args:
          x: Inputs, as in `fit`.
          y: Targets.
          batch_size: Number of examples per step. Default: 32 for arrays.
          verbose: 0 for no output, 1 for a progress bar, 2 for one line, or 'auto'.
          sample_weight: Weight of each example.
          steps: Number of batches. Default: all.
          callbacks: Callbacks to call.
          max_queue_size: Ignored.
          workers: Ignored.
          use_multiprocessing: Ignored.
          return_dict: Whether to return values by name.
          **kwargs: No other keyword is accepted.

        Returns:
          The loss, or a list [loss, *metrics] (see `metrics_names`), or a dictionary.

        Raises:
          RuntimeError: if the model is not compiled.

        Example:
          >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
          >>> model.compile(loss="mse", metrics=["mae"])
          >>> model.evaluate(tf.ones([4, 1]), tf.fill([4, 1], 3.0), verbose=0)
          [4.0, 2.0]
          >>> model.evaluate(tf.ones([4, 1]), tf.fill([4, 1], 3.0), verbose=0, return_dict=True)
          {'loss': 4.0, 'mae': 2.0}
        """
        del max_queue_size, workers, use_multiprocessing
        kwargs.pop("_use_cached_eval_dataset", None)
        if kwargs:
            raise TypeError(f"Invalid keyword arguments: {sorted(kwargs)}")
        self._assert_compiled()
        self._warn_about_unweighted_metrics(x, sample_weight)
        handler = make_data_handler(
            self,
            "test",
            x,
            y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps,
            epochs=1,
            shuffle=False,
        )
        listeners = self._make_callback_list(
            callbacks, verbose, 1, handler.steps, add_history=False
        )
        logs = self._evaluate(handler, listeners)
        if return_dict:
            return logs
        return list_logs(logs, self.metrics_names)

    @run_outside_of_graphs
    @hide_frames_of_errors
    def predict(
        self,
        x: PyTree,
        batch_size: int | None = None,
        verbose: Verbosity = "auto",
        steps: int | None = None,
        callbacks: Callback | Sequence[Callback] | CallbackList | None = None,
        max_queue_size: int = 10,
        workers: int = 1,
        use_multiprocessing: bool = False,
    ) -> np.ndarray:
        """Return the model's outputs for data, computed batch by batch.

        Args:
          x: Inputs, as in `fit`.
          batch_size: Number of examples per step. Default: 32 for arrays.
          verbose: 0 for no output, 1 for a progress bar, 2 for one line, or 'auto'.
          steps: Number of batches. Default: all.
          callbacks: Callbacks to call.
          max_queue_size: Ignored.
          workers: Ignored.
          use_multiprocessing: Ignored.

        Returns:
          NumPy arrays in the structure of the outputs.

        Example:
          >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
          >>> model.predict(tf.constant([[1.0, 2.0], [3.0, 4.0]]), verbose=0).tolist()
          [[3.0], [7.0]]
        """
        del max_queue_size, workers, use_multiprocessing
        self._assert_outside_function()
        handler = make_data_handler(
            self,
            "predict",
            x,
            batch_size=batch_size,
            steps_per_epoch=steps,
            epochs=1,
            shuffle=False,
        )
        listeners = self._make_callback_list(
            callbacks, verbose, 1, handler.steps, add_history=False
        )
        notify = listeners.has_batch_hooks("predict")
        step = self._make_runner("predict")
        self._step_counters["predict"].reset()
        listeners.on_predict_begin()
        structure: PyTree = None
        columns: list[JoinedOutputs] = []
        with Interruptible() as interruptible:
            for _, batches in handler.iterate_epochs():
                for index, batch in enumerate(batches):
                    if notify:
                        listeners.on_predict_batch_begin(index)
                    outputs = step([batch])
                    parts = nest.flatten(outputs)
                    if index == 0:
                        structure = outputs
                        columns = [JoinedOutputs(handler.steps) for _ in parts]
                    for column, part in zip(columns, parts, strict=True):
                        column.append(part)
                    if notify:
                        listeners.on_predict_batch_end(index, {"outputs": outputs})
                    interruptible.raise_if_pending()
        listeners.on_predict_end()
        if not columns:
            raise ValueError(
                "Unexpected result of `predict_function` (Empty batch_outputs): the data has no batches."
            )
        return nest.pack_sequence_as(structure, [column.join() for column in columns])

    def _make_callback_list(
        self,
        callbacks: Callback | Sequence[Callback] | CallbackList | None,
        verbose: Verbosity,
        epochs: int,
        steps: int | None,
        add_history: bool,
    ) -> CallbackList:
        if isinstance(callbacks, CallbackList):
            return callbacks
        verbose = resolve_verbosity(self, verbose)
        listeners = CallbackList(
            callbacks,
            add_history=add_history,
            add_progbar=bool(verbose),
            model=self,
            verbose=verbose,
            epochs=epochs,
            steps=steps,
        )
        check_callbacks(self, listeners.callbacks)
        return listeners


def _make_batch_logs(result: PyTree) -> Mapping[str, Any]:
    """Return the logs of a step for callbacks; empty if another process computes the step."""
    if hasattr(result, "fetch"):
        return {}
    return result if isinstance(result, dict) else {"outputs": result}


_END = object()


def _iterate_with_end(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches, and `_END` after the last one, so that a loop can run an incomplete group."""
    batch: Any = None
    while batch is not _END:
        with region(INPUT):
            batch = next(batches, _END)
        yield batch


def _should_validate(epoch: int, frequency: int | Collection[int]) -> bool:
    if isinstance(frequency, int):
        return (epoch + 1) % frequency == 0
    if isinstance(frequency, str) or not isinstance(frequency, Collection):
        raise ValueError(
            f"Expected `validation_freq` to be an integer or a list of epochs, got {frequency!r}."
        )
    return epoch + 1 in frequency
