"""`compile`, `fit`, `evaluate`, `predict`: how models are trained.

`Trainer` is the half of `Model` that trains. The steps (`train_step`, `test_step`,
`predict_step`) are plain Python that users may override; `meshflow.keras.engine.step` compiles
them. The loops here take batches from a `DataHandler`, run the compiled step and call the callbacks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from meshflow.core import nest
from meshflow.core.concrete_function import Settings
from meshflow.core.tensor import Tensor
from meshflow.distribute.strategy import get_strategy
from meshflow.distribute.whole_batch import current_strategy, distributed_input
from meshflow.keras.engine.compile_utils import LossesContainer, MetricsContainer
from meshflow.keras.engine.data_adapter import (
    DataHandler,
    train_validation_split,
    unpack_x_y_sample_weight,
)
from meshflow.keras.engine.interrupt import Interruptible
from meshflow.keras.engine.label_guard import LabelGuard
from meshflow.keras.engine.resuming import Resumption
from meshflow.keras.engine.step import CompiledStep
from meshflow.keras.engine.training_steps import TrainingSteps

if TYPE_CHECKING:
    from meshflow.keras.callbacks import CallbackList, History
    from meshflow.keras.mixed_precision.policy import Policy


class Trainer(TrainingSteps):
    """Training, evaluation and prediction; mixed into `Model`."""

    _is_compiled = False

    if TYPE_CHECKING:
        # What `Layer` and `Model` give it.
        @property
        def output_names(self) -> list[str] | None: ...
        @property
        def name(self) -> str: ...
        @property
        def dynamic(self) -> bool: ...
        @property
        def dtype_policy(self) -> Policy: ...

    def _init_training(self) -> None:
        self.optimizer: Any = None
        self.compiled_loss: LossesContainer | None = None
        self.compiled_metrics: MetricsContainer | None = None
        self.loss: Any = None
        self.stop_training = False
        self.history: Any = None
        # Set by a callback when training goes on where an earlier process was.
        self._resumption: Resumption | None = None
        self._handler: DataHandler | None = None
        self._is_compiled = False
        self._run_eagerly: bool | None = None
        self._steps_per_execution = 1
        self._reset_compiled()

    def _reset_compiled(self) -> None:
        """Forgets compiled steps: the model or how it is trained has changed."""
        self.train_function: Any = None
        self.test_function: Any = None
        self.predict_function: Any = None
        self._steps: dict[str, CompiledStep] = {}

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        metrics: Any = None,
        loss_weights: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool | None = None,
        steps_per_execution: int | str | None = None,
        jit_compile: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """Sets how the model is trained.

        Args:
          optimizer: an optimizer, its name, or an optax transformation.
          loss: a loss, its name or function, or these by output.
          metrics: metrics to report, or these by output; `'accuracy'` picks the kind by shape.
          loss_weights: factors of the losses by output.
          weighted_metrics: metrics that take sample weights.
          run_eagerly: whether steps run as plain Python.
          steps_per_execution: how many batches one call of the compiled program processes.
          jit_compile: accepted; steps are always compiled by XLA.
          **kwargs: `auto_scale_loss` and `pss_evaluation_shards` are accepted.

        Raises:
          TypeError: for an unknown keyword.
          ValueError: when `steps_per_execution` is not positive.
        """
        from meshflow.keras import losses, optimizers

        for accepted in (
            "auto_scale_loss",
            "pss_evaluation_shards",
            "distribute",
            "experimental_steps_per_execution",
        ):
            value = kwargs.pop(accepted, None)
            if accepted == "experimental_steps_per_execution" and value:
                steps_per_execution = value
        if kwargs:
            raise TypeError(f"Invalid keyword argument(s) in `compile()`: {sorted(kwargs)}")
        if steps_per_execution == "auto":
            steps_per_execution = None
        if steps_per_execution is not None and int(steps_per_execution) < 1:
            raise ValueError(f"steps_per_execution must be at least 1, got {steps_per_execution}.")
        for name in nest.flatten(loss):
            if isinstance(name, str):
                losses.get(name)  # an unknown name is an error now, not when training starts
        self.optimizer = _get_optimizers(
            optimizer, lambda o: scaled_for(self.dtype_policy, optimizers.get(o))
        )
        if isinstance(loss, LossesContainer):
            self.compiled_loss = loss
        else:
            self.compiled_loss = LossesContainer(loss, loss_weights, self.output_names)
        self.compiled_metrics = MetricsContainer(metrics, weighted_metrics, self.output_names)
        self.loss = loss if loss is not None else {}
        self._compile_arguments = {
            "optimizer": optimizer,
            "loss": loss,
            "metrics": metrics,
            "loss_weights": loss_weights,
            "weighted_metrics": weighted_metrics,
            "run_eagerly": run_eagerly,
            "steps_per_execution": steps_per_execution,
        }
        self._run_eagerly = run_eagerly
        self._steps_per_execution = int(steps_per_execution or 1)
        self._is_compiled = True
        self._strategy_at_compile = current_strategy()
        self._reset_compiled()

    @property
    def distribute_strategy(self) -> Any:
        """The strategy in whose scope the model was compiled, or the one in force."""
        return self.__dict__.get("_strategy_at_compile") or get_strategy()

    @property
    def run_eagerly(self) -> bool:
        """Whether steps run as plain Python."""
        if self.dynamic and self._run_eagerly is False:
            raise ValueError(
                f"Model {self.name} contains layers that can only run eagerly (`dynamic=True`), so it cannot be "
                "compiled with `run_eagerly=False`."
            )
        return bool(self._run_eagerly) or self.dynamic or Settings.run_eagerly

    @run_eagerly.setter
    def run_eagerly(self, value: bool) -> None:
        self._run_eagerly = value
        self._reset_compiled()

    @property
    def metrics(self) -> list[Any]:
        """Metrics that training reports: the loss, those of `compile`, those of the layers."""
        collected: list[Any] = []
        if self._is_compiled:
            collected += self.compiled_loss.metrics  # type: ignore[union-attr]
            collected += self.compiled_metrics.metrics  # type: ignore[union-attr]
        collected += super().metrics
        return list({id(m): m for m in collected}.values())

    @property
    def metrics_names(self) -> list[str]:
        """Names of the metrics, in the order `evaluate` returns their values."""
        return [m.name for m in self.metrics]

    def reset_metrics(self) -> None:
        """Starts all metrics again."""
        for metric in self.metrics:
            metric.reset_state()

    def _assert_compiled(self) -> None:
        if not self._is_compiled:
            raise RuntimeError(
                f"You must compile your model before training/testing. Use `model.compile(optimizer, loss)` ({self.name})."
            )

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
        """
        del max_queue_size, workers, use_multiprocessing
        self._assert_compiled()
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = train_validation_split(
                (x, y, sample_weight), validation_split=validation_split
            )
        handler = DataHandler(
            distributed_input(self, x),
            y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            initial_epoch=initial_epoch,
            epochs=epochs,
            shuffle=shuffle,
            class_weight=class_weight,
        )
        listeners = self._callbacks(callbacks, verbose, epochs, handler.steps, add_history=True)
        guard = LabelGuard(self)
        self.stop_training = False
        run = self._runner("train")
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
                logs = self._run_epoch(batches, run, listeners, "train", interruptible, guard, done)
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
                epoch_logs = _numbers(epoch_logs)
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
        for batch in _with_lookahead(batches):
            if batch is not _END:
                if guard is not None:
                    guard.check(batch)
                group.append(batch)
            if len(group) == per_call or (batch is _END and group):
                if notify:
                    begin(step)
                result = run(group)
                if notify:
                    end(
                        step + len(group) - 1,
                        result if isinstance(result, dict) else {"outputs": result},
                    )
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
        return DataHandler(
            distributed_input(self, x),
            y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps,
            epochs=1,
            shuffle=False,
        )

    def _evaluate(self, handler: DataHandler, listeners: CallbackList) -> dict[str, Any]:
        run = self._runner("test")
        self.reset_metrics()
        listeners.on_test_begin()
        logs: Any = None
        with Interruptible() as interruptible:
            for _, batches in handler.epochs():
                self.reset_metrics()
                logs = self._run_epoch(
                    batches, run, listeners, "test", interruptible, LabelGuard(self)
                )
        if logs is None:
            raise ValueError(
                "Unexpected result of `test_function` (Empty Logs): the data has no batches."
            )
        numbers = _numbers(logs)
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
        """
        del max_queue_size, workers, use_multiprocessing
        kwargs.pop("_use_cached_eval_dataset", None)
        if kwargs:
            raise TypeError(f"Invalid keyword arguments: {sorted(kwargs)}")
        self._assert_compiled()
        handler = DataHandler(
            distributed_input(self, x),
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
        """
        del max_queue_size, workers, use_multiprocessing
        handler = DataHandler(
            distributed_input(self, x),
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

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        reset_metrics: bool = True,
        return_dict: bool = False,
    ) -> Any:
        """One training step on the given arrays.

        Args:
          x: inputs.
          y: targets.
          sample_weight: weight of each example.
          class_weight: weight of each class, by integer label.
          reset_metrics: whether the metrics cover this batch only.
          return_dict: whether values come by name.

        Returns:
          The loss, or a list [loss, *metrics], or a dictionary.
        """
        self._assert_compiled()
        return self._on_batch(
            "train", x, y, sample_weight, class_weight, reset_metrics, return_dict
        )

    def test_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        reset_metrics: bool = True,
        return_dict: bool = False,
    ) -> Any:
        """Evaluates the given arrays as one batch; arguments as in `train_on_batch`."""
        self._assert_compiled()
        return self._on_batch("test", x, y, sample_weight, None, reset_metrics, return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """The model's outputs for the given arrays, as NumPy arrays."""
        batch = self._single_batch(x, None, None, None)
        return nest.map_structure(np.asarray, self._step("predict")(batch))

    def _single_batch(self, x: Any, y: Any, sample_weight: Any, class_weight: Any) -> Any:
        size = len(nest.flatten(x)[0])
        handler = DataHandler(
            x,
            y,
            sample_weight=sample_weight,
            batch_size=size,
            epochs=1,
            shuffle=False,
            class_weight=class_weight,
        )
        _, batches = next(iter(handler.epochs()))
        return next(iter(batches))

    def _on_batch(
        self,
        kind: str,
        x: Any,
        y: Any,
        sample_weight: Any,
        class_weight: Any,
        reset: bool,
        return_dict: bool,
    ) -> Any:
        if reset:
            self.reset_metrics()
        batch = self._single_batch(x, y, sample_weight, class_weight)
        LabelGuard(self).check(batch)
        logs = _numbers(self._step(kind)(batch))
        if return_dict:
            return logs
        values = list(logs.values())
        return values[0] if len(values) == 1 else values

    def _callbacks(
        self, callbacks: Any, verbose: Any, epochs: int, steps: int | None, add_history: bool
    ) -> CallbackList:
        from meshflow.keras.callbacks import CallbackList

        if isinstance(callbacks, CallbackList):
            return callbacks
        if verbose == "auto":
            verbose = 1
        return CallbackList(
            callbacks,
            add_history=add_history,
            add_progbar=bool(verbose),
            model=self,
            verbose=verbose,
            epochs=epochs,
            steps=steps,
        )

    def fit_generator(self, generator: Any, *args: Any, **kwargs: Any) -> Any:
        """The old name of `fit` for generators."""
        _warn_of_old_name("fit")
        names = (
            *("steps_per_epoch", "epochs", "verbose", "callbacks", "validation_data"),
            *("validation_steps", "validation_freq", "class_weight"),
        )
        return self.fit(generator, **dict(zip(names, args, strict=False)), **kwargs)

    def evaluate_generator(self, generator: Any, *args: Any, **kwargs: Any) -> Any:
        """The old name of `evaluate` for generators; silent unless told otherwise."""
        _warn_of_old_name("evaluate")
        given = dict(zip(("steps", "callbacks"), args, strict=False))
        return self.evaluate(generator, **{"verbose": 0, **given, **kwargs})

    def predict_generator(self, generator: Any, *args: Any, **kwargs: Any) -> Any:
        """The old name of `predict` for generators; silent unless told otherwise."""
        _warn_of_old_name("predict")
        given = dict(zip(("steps", "callbacks"), args, strict=False))
        return self.predict(generator, **{"verbose": 0, **given, **kwargs})


def _warn_of_old_name(method: str) -> None:
    warnings.warn(
        f"`Model.{method}_generator` is deprecated. Use `Model.{method}`.",
        DeprecationWarning,
        stacklevel=3,
    )


_END = object()


def _with_lookahead(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches
    yield _END


def _validates(epoch: int, frequency: Any) -> bool:
    if isinstance(frequency, int):
        return (epoch + 1) % frequency == 0
    return epoch + 1 in frequency


def _numbers(logs: Any) -> dict[str, Any]:
    """Logs with Python numbers for scalar tensors."""
    if not isinstance(logs, dict):
        return {}
    return {name: _number(value) for name, value in logs.items()}


def _number(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.numpy()
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0:
        return value.item()
    return value


def scaled_for(policy: Any, optimizer: Any) -> Any:
    """An optimizer as a policy needs it: float16 gradients need a scaled loss."""
    # Policies of TensorFlow 2.1-2.3 hold a loss scale themselves.
    scale = getattr(policy, "loss_scale", "dynamic" if policy.name == "mixed_float16" else None)
    if scale is None or optimizer is None:
        return optimizer
    from meshflow.keras.mixed_precision import loss_scale
    from meshflow.keras.mixed_precision.loss_scale_optimizer import LossScaleOptimizer, settings

    if isinstance(optimizer, LossScaleOptimizer) or not hasattr(optimizer, "apply_gradients"):
        return optimizer
    return LossScaleOptimizer(optimizer, **settings(loss_scale.get(scale)))


def _get_optimizers(optimizer: Any, get: Callable[[Any], Any]) -> Any:
    # An optax transformation is a named tuple; only a list means several optimizers.
    return [get(o) for o in optimizer] if isinstance(optimizer, list) else get(optimizer)
