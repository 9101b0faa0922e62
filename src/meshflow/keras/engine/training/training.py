"""`fit`, `evaluate`, `predict`: the loops that train models.

`Trainer` is the half of `Model` that trains. What `compile` was told is kept by `Compiling`; the steps
(`TrainingSteps`) are plain Python that users may override; `meshflow.keras.engine.training.step` compiles
them. The loops here take batches from a `DataHandler`, run the compiled step and call the callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshflow.core.runtime.annotations import INPUT, region
from meshflow.core.runtime.context import context
from meshflow.core.values import nest
from meshflow.keras.engine.training.asynchronous import data_handler, only_epochs, verbosity
from meshflow.keras.engine.training.batch_methods import SingleBatches, logs_as_numbers
from meshflow.keras.engine.training.callbacks import CallbackList, History
from meshflow.keras.engine.training.data_adapter import (
    DataHandler,
    train_validation_split,
    unpack_x_y_sample_weight,
)
from meshflow.keras.engine.training.generator_methods import GeneratorMethods
from meshflow.keras.engine.training.interrupt import Interruptible
from meshflow.keras.engine.training.label_range_check import LabelGuard
from meshflow.keras.engine.training.training_state import Resumption
from meshflow.profiler.annotations import Trace


class Trainer(SingleBatches, GeneratorMethods):
    """Training, evaluation and prediction; mixed into `Model`."""

    # ---- loops -----------------------------------------------------------------------------

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: Any = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
        max_queue_size: int = 10,
        workers: int = 1,
        use_multiprocessing: bool = False,
    ) -> History:
        """Trains the model for a number of epochs.

        Args:
          x: inputs: arrays, tensors, dictionaries or lists of them, a generator, a `Sequence`, a pandas
            frame, a PyTorch `DataLoader`, or any iterable of batches.
          y: targets; not for sources that yield them.
          batch_size: examples per step; default 32 for arrays.
          epochs: number of the epoch to stop after.
          verbose: 0 silent, 1 progress bar, 2 one line per epoch, 'auto'.
          callbacks: callbacks to call.
          validation_split: fraction of the arrays, from their end, kept for validation.
          validation_data: data to evaluate on after each epoch: a tuple or an iterable.
          shuffle: whether examples are shuffled every epoch; 'batch' shuffles batches.
          class_weight: weight of each class, by integer label.
          sample_weight: weight of each example.
          initial_epoch: number of the first epoch.
          steps_per_epoch: batches per epoch; default one pass over the data.
          validation_steps: batches of validation data; default all.
          validation_batch_size: default batch_size.
          validation_freq: validate every n epochs, or a collection of epochs.
          max_queue_size: accepted.
          workers: accepted.
          use_multiprocessing: accepted.

        Returns:
          A `History` whose `history` maps metric names to values per epoch.

        Raises:
          RuntimeError: when the model is not compiled.
          ValueError: when data, targets and model do not fit together.

        Example:
          >>> import meshflow as tf
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
        handler = data_handler(
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
        )
        if context.reached is not None:
            _, batches = next(iter(handler.epochs()))
            context.reached(self, next(iter(batches)))
        listeners = self._callbacks(callbacks, verbose, epochs, handler.steps, add_history=True)
        guard = LabelGuard(self) if handler.checks_labels else None
        self.stop_training = False
        run = handler.run or self._runner("train")
        self._resumption, self._handler = None, handler
        listeners.on_train_begin()
        resumption: Resumption | None = self._resumption
        if resumption is not None:
            handler.resume(resumption)
        logs: Any = None
        epoch_logs: dict[str, Any] | None = None
        with Interruptible() as interruptible:
            for epoch, batches in handler.epochs():
                done = 0
                if resumption is not None:
                    batches, done = resumption.start(self, batches), resumption.step
                if not done:
                    self.reset_metrics()
                listeners.on_epoch_begin(epoch)
                before = logs
                logs = handler.finish(
                    self._run_epoch(batches, run, listeners, "train", interruptible, guard, done)
                )
                if logs is None and handler.exhausted:
                    # The data ended with the epoch before; this one ends the training with its numbers.
                    logs = before
                if logs is None and done:
                    # The earlier process was killed between the last step and the end of the epoch.
                    logs = resumption.logs  # type: ignore[union-attr]
                resumption = None
                if logs is None:
                    raise ValueError(
                        "Unexpected result of `train_function` (Empty Logs): the data has no batches in epoch "
                        f"{epoch + 1}. Check that the generator or dataset yields at least one batch per epoch."
                    )
                epoch_logs = dict(logs)
                if validation_data is not None and _validates(epoch, validation_freq):
                    values = self._validate(
                        validation_data,
                        validation_batch_size or batch_size,
                        validation_steps,
                        listeners,
                    )
                    epoch_logs.update({f"val_{name}": value for name, value in values.items()})
                epoch_logs = logs_as_numbers(epoch_logs)
                listeners.on_epoch_end(epoch, epoch_logs)
                interruptible.check()
                if self.stop_training:
                    break
        self._handler = None
        listeners.on_train_end(epoch_logs)
        finalize = getattr(self.optimizer, "finalize_variable_values", None)
        if finalize is not None and getattr(self.optimizer, "use_ema", False) and epochs > 0:
            finalize(self.trainable_variables)
        return self.history

    def _run_epoch(
        self,
        batches: Iterator[Any],
        run: Callable[[list[Any]], Any],
        listeners: CallbackList,
        mode: str,
        interruptible: Interruptible,
        guard: LabelGuard | None = None,
        step: int = 0,
    ) -> Any:
        """Runs all batches of one pass, counting from `step`; returns the last step's result."""
        per_call = self._steps_per_execution
        notify = listeners.has_batch_hooks(mode)
        begin = getattr(listeners, f"on_{mode}_batch_begin")
        end = getattr(listeners, f"on_{mode}_batch_end")
        result: Any = None
        group: list[Any] = []
        for batch in _with_lookahead(iter(batches)):
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
                    end(step + len(group) - 1, _batch_logs(result))
                step += len(group)
                group = []
                interruptible.check()
                if self.stop_training:
                    break
        return result

    def _validate(
        self, data: Any, batch_size: Any, steps: Any, listeners: CallbackList
    ) -> dict[str, Any]:
        x, y, sample_weight = data, None, None
        if isinstance(data, (tuple, list)):
            x, y, sample_weight = unpack_x_y_sample_weight(tuple(data))
        handler = self._validation_handler(data, x, y, sample_weight, batch_size, steps)
        return self._evaluate(handler, listeners)

    def _validation_handler(
        self, key: Any, x: Any, y: Any, sample_weight: Any, batch_size: Any, steps: Any
    ) -> DataHandler:
        return data_handler(
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

    def _evaluate(self, handler: DataHandler, listeners: CallbackList) -> dict[str, Any]:
        run = handler.run or self._runner("test")
        guard = LabelGuard(self) if handler.checks_labels else None
        self.reset_metrics()
        listeners.on_test_begin()
        logs: Any = None
        with Interruptible() as interruptible:
            for _, batches in handler.epochs():
                self.reset_metrics()
                logs = handler.finish(
                    self._run_epoch(batches, run, listeners, "test", interruptible, guard)
                )
        if logs is None:
            raise ValueError(
                "Unexpected result of `test_function` (Empty Logs): the data has no batches."
            )
        numbers = logs_as_numbers(logs)
        listeners.on_test_end(numbers)
        return numbers

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        max_queue_size: int = 10,
        workers: int = 1,
        use_multiprocessing: bool = False,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Computes loss and metrics on data.

        Args:
          x: inputs, as in `fit`.
          y: targets.
          batch_size: examples per step; default 32 for arrays.
          verbose: 0 silent, 1 progress bar, 2 one line, 'auto'.
          sample_weight: weight of each example.
          steps: number of batches; default all.
          callbacks: callbacks to call.
          max_queue_size: accepted.
          workers: accepted.
          use_multiprocessing: accepted.
          return_dict: whether values come by name.
          **kwargs: nothing else is accepted.

        Returns:
          The loss, or a list [loss, *metrics] (see `metrics_names`), or a dictionary.

        Raises:
          RuntimeError: when the model is not compiled.

        Example:
          >>> import meshflow as tf
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
        handler = data_handler(
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
        listeners = self._callbacks(callbacks, verbose, 1, handler.steps, add_history=False)
        logs = self._evaluate(handler, listeners)
        if return_dict:
            return logs
        values = list(logs.values())
        return values[0] if len(values) == 1 else values

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
        max_queue_size: int = 10,
        workers: int = 1,
        use_multiprocessing: bool = False,
    ) -> Any:
        """The model's outputs for data, batch by batch.

        Args:
          x: inputs, as in `fit`.
          batch_size: examples per step; default 32 for arrays.
          verbose: 0 silent, 1 progress bar, 2 one line, 'auto'.
          steps: number of batches; default all.
          callbacks: callbacks to call.
          max_queue_size: accepted.
          workers: accepted.
          use_multiprocessing: accepted.

        Returns:
          NumPy arrays in the structure of the outputs.

        Example:
          >>> import meshflow as tf
          >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
          >>> model.predict(tf.constant([[1.0, 2.0], [3.0, 4.0]]), verbose=0).tolist()
          [[3.0], [7.0]]
        """
        del max_queue_size, workers, use_multiprocessing
        handler = data_handler(
            self,
            "predict",
            x,
            batch_size=batch_size,
            steps_per_epoch=steps,
            epochs=1,
            shuffle=False,
        )
        listeners = self._callbacks(callbacks, verbose, 1, handler.steps, add_history=False)
        step = self._runner("predict")
        listeners.on_predict_begin()
        parts: list[Any] = []
        with Interruptible() as interruptible:
            for _, batches in handler.epochs():
                for number, batch in enumerate(batches):
                    listeners.on_predict_batch_begin(number)
                    outputs = step([batch])
                    parts.append(outputs)
                    listeners.on_predict_batch_end(number, {"outputs": outputs})
                    interruptible.check()
        listeners.on_predict_end()
        if not parts:
            raise ValueError(
                "Unexpected result of `predict_function` (Empty batch_outputs): the data has no batches."
            )
        columns = zip(*[nest.flatten(p) for p in parts], strict=True)
        joined = [
            np.concatenate([np.atleast_1d(np.asarray(v)) for v in column]) for column in columns
        ]
        return nest.pack_sequence_as(parts[0], joined)

    def _callbacks(
        self, callbacks: Any, verbose: Any, epochs: int, steps: int | None, add_history: bool
    ) -> CallbackList:
        if isinstance(callbacks, CallbackList):
            return callbacks
        verbose = verbosity(self, verbose)
        listeners = CallbackList(
            callbacks,
            add_history=add_history,
            add_progbar=bool(verbose),
            model=self,
            verbose=verbose,
            epochs=epochs,
            steps=steps,
        )
        only_epochs(self, listeners.callbacks)
        return listeners


def _batch_logs(result: Any) -> dict[str, Any]:
    """What callbacks are told of a step; nothing of one that another process computes."""
    if hasattr(result, "fetch"):
        return {}
    return result if isinstance(result, dict) else {"outputs": result}


_END = object()


def _with_lookahead(batches: Iterator[Any]) -> Iterator[Any]:
    batch: Any = None
    while batch is not _END:
        with region(INPUT):
            batch = next(batches, _END)
        yield batch


def _validates(epoch: int, frequency: Any) -> bool:
    if isinstance(frequency, int):
        return (epoch + 1) % frequency == 0
    return epoch + 1 in frequency
