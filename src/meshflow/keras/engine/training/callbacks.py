"""`Callback`, `CallbackList`, and the callbacks that every `fit` uses."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.annotations import CALLBACK, region
from meshflow.core.values.tensor import Tensor
from meshflow.environment.html_tables import format_curves, format_table
from meshflow.environment.types import Logs, overridable
from meshflow.keras.engine.training.progress_bar import Progbar, print_line

_log = logging.getLogger("meshflow")
_BATCH_HOOKS = {
    mode: (f"on_{mode}_batch_begin", f"on_{mode}_batch_end")
    for mode in ("train", "test", "predict")
}


class Callback:
    """Base class of callbacks; subclasses override the hooks that they need.

    Attributes:
      model: The model that is trained.
      params: Dictionary with `verbose`, `epochs` and `steps`.

    Example:
      >>> class Names(tf.keras.callbacks.Callback):
      ...     def on_epoch_end(self, epoch, logs=None):
      ...         print(epoch, sorted(logs))
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.compile("sgd", "mse")
      >>> _ = model.fit(tf.ones([4, 2]), tf.ones([4]), epochs=2, verbose=0, callbacks=[Names()])
      0 ['loss']
      1 ['loss']
    """

    def __init__(self) -> None:
        self.validation_data = None
        self.model: Any = None
        self.params: dict[str, Any] = {}

    def set_params(self, params: dict[str, Any]) -> None:
        """Set the parameters of the training."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Set the model."""
        self.model = model

    # Subclasses set this attribute to receive tensors, which do not wait for the step.
    _supports_tf_logs = False

    def _implements_train_batch_hooks(self) -> bool:
        return has_batch_hook(self, "train")

    def _implements_test_batch_hooks(self) -> bool:
        return has_batch_hook(self, "test")

    def _implements_predict_batch_hooks(self) -> bool:
        return has_batch_hook(self, "predict")

    @overridable
    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Run before an epoch."""

    @overridable
    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Run after an epoch; `logs` holds its metrics."""

    @overridable
    def on_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Run before a training step; the old name of `on_train_batch_begin`."""

    @overridable
    def on_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Run after a training step; the old name of `on_train_batch_end`."""

    @overridable
    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Run before a training step."""
        self.on_batch_begin(batch, logs=logs)

    @overridable
    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Run after a training step."""
        self.on_batch_end(batch, logs=logs)

    @overridable
    def on_test_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Run before an evaluation step."""

    @overridable
    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Run after an evaluation step."""

    @overridable
    def on_predict_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Run before a prediction step."""

    @overridable
    def on_predict_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Run after a prediction step."""

    @overridable
    def on_train_begin(self, logs: Logs = None) -> None:
        """Run before training."""

    @overridable
    def on_train_end(self, logs: Logs = None) -> None:
        """Run after training."""

    @overridable
    def on_test_begin(self, logs: Logs = None) -> None:
        """Run before evaluation."""

    @overridable
    def on_test_end(self, logs: Logs = None) -> None:
        """Run after evaluation."""

    @overridable
    def on_predict_begin(self, logs: Logs = None) -> None:
        """Run before prediction."""

    @overridable
    def on_predict_end(self, logs: Logs = None) -> None:
        """Run after prediction."""


def has_batch_hook(callback: Callback, mode: str) -> bool:
    """Check whether a callback overrides a batch hook."""
    names = [*_BATCH_HOOKS[mode], *(("on_batch_begin", "on_batch_end") if mode == "train" else ())]
    attributes = vars(callback)
    return any(
        getattr(type(callback), n, None) is not getattr(Callback, n) or n in attributes
        for n in names
    )


def _has_batch_hook(callback: Callback, mode: str) -> bool:
    """Check whether to call the batch hooks of a callback, which may override the answer."""
    method = getattr(callback, f"_implements_{mode}_batch_hooks", None)
    return has_batch_hook(callback, mode) if method is None else method()


class _InvalidCallbackError(TypeError, AttributeError):
    """Error that is a `TypeError` and an `AttributeError`, because TensorFlow raises either of them."""


def _check_callback(callback: object) -> None:
    if isinstance(callback, type) or not hasattr(callback, "set_model"):
        kind = "the class" if isinstance(callback, type) else "an object of type"
        name = callback.__name__ if isinstance(callback, type) else type(callback).__name__
        raise _InvalidCallbackError(
            f"`callbacks` must hold tf.keras.callbacks.Callback objects, got {kind} {name}: {callback!r}."
        )


class _SlowHookCheck:
    """Check, over the first batches, whether the batch hooks of callbacks take longer than the batches.

    As in Keras, a warning names each hook that does, and the check ends after five batches.
    """

    _BATCHES = 5

    def __init__(self) -> None:
        self._hook_times: defaultdict[str, list[float]] = defaultdict(list)
        self._batch_times: list[float] = []
        self._batch_start: float | None = None
        self.is_complete = False

    def record(self, hook: str, start: float) -> None:
        """Add a call of all callbacks' hook, which started at `start` in seconds and ends now."""
        now = time.perf_counter()
        self._hook_times[hook].append(now - start)
        if hook.endswith("_begin"):
            self._batch_start = now
            return
        # The first batch includes the compilation of its step.
        if self._batch_start is not None and len(self._hook_times[hook]) > 1:
            self._batch_times.append(start - self._batch_start)
        if len(self._batch_times) >= self._BATCHES:
            self.is_complete = True
            batch_time = sum(self._batch_times) / len(self._batch_times)
            for name, times in self._hook_times.items():
                hook_time = sum(times) / len(times)
                if hook_time > batch_time:
                    _log.warning(
                        f"Callback method `{name}` is slow compared to the batch time (batch time: {batch_time:.4f}s vs "
                        f"`{name}` time: {hook_time:.4f}s). Check your callbacks."
                    )


class CallbackList:
    """A list of callbacks, with a method for each hook that calls the hook of all of them.

    Args:
      callbacks: A callback, or a list of them.
      add_history: Whether to add a `History`.
      add_progbar: Whether to add a progress bar.
      model: The model.
      **params: `verbose`, `epochs` and `steps`.

    Example:
      >>> seen = []
      >>> begin = tf.keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: seen.append(epoch))
      >>> callbacks = tf.keras.callbacks.CallbackList([begin], epochs=2)
      >>> callbacks.on_epoch_begin(0)
      >>> callbacks.on_epoch_begin(1)
      >>> seen
      [0, 1]
    """

    # The loop after this class defines these methods.
    on_train_begin: Callable[..., None]
    on_train_end: Callable[..., None]
    on_test_begin: Callable[..., None]
    on_test_end: Callable[..., None]
    on_predict_begin: Callable[..., None]
    on_predict_end: Callable[..., None]
    on_epoch_begin: Callable[..., None]
    on_epoch_end: Callable[..., None]
    on_train_batch_begin: Callable[..., None]
    on_train_batch_end: Callable[..., None]
    on_test_batch_begin: Callable[..., None]
    on_test_batch_end: Callable[..., None]
    on_predict_batch_begin: Callable[..., None]
    on_predict_batch_end: Callable[..., None]

    def __init__(
        self,
        callbacks: Callback | Sequence[Callback] | None = None,
        add_history: bool = False,
        add_progbar: bool = False,
        model: Any = None,
        **params: Any,
    ) -> None:
        self.callbacks: list[Any] = (
            list(callbacks)
            if isinstance(callbacks, (list, tuple))
            else [callbacks]
            if callbacks
            else []
        )
        for callback in self.callbacks:
            _check_callback(callback)
        self._history = next((c for c in self.callbacks if isinstance(c, History)), None)
        if add_history and self._history is None:
            self._history = History()
            self.callbacks.append(self._history)
        self._progbar = next((c for c in self.callbacks if isinstance(c, ProgbarLogger)), None)
        if add_progbar and self._progbar is None:
            self._progbar = ProgbarLogger(count_mode="steps")
            self.callbacks.append(self._progbar)
        self.params: dict[str, Any] = {}
        self.model: Any = None
        if model is not None:
            self.set_model(model)
        self.set_params(params)
        self._batch_callbacks = {
            mode: [c for c in self.callbacks if _has_batch_hook(c, mode)] for mode in _BATCH_HOOKS
        }
        # The package's own callbacks are not timed.
        modules = {type(callback).__module__.split(".")[0] for callback in self.callbacks}
        self._slow_hook_check = _SlowHookCheck() if modules - {"meshflow"} else None

    def append(self, callback: Callback) -> None:
        """Add a callback."""
        self.callbacks.append(callback)
        for mode, callbacks in self._batch_callbacks.items():
            if _has_batch_hook(callback, mode):
                callbacks.append(callback)

    def set_model(self, model: Any) -> None:
        """Set the model of all callbacks."""
        self.model = model
        if self._history is not None:
            model.history = self._history
        for callback in self.callbacks:
            callback.set_model(model)

    def set_params(self, params: dict[str, Any]) -> None:
        """Set the parameters of all callbacks."""
        self.params = params
        for callback in self.callbacks:
            callback.set_params(params)

    def has_batch_hooks(self, mode: str) -> bool:
        """Check whether any callback has a batch hook."""
        return bool(self._batch_callbacks[mode])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.callbacks)

    # Programs that run their own loops read these names.
    @property
    def _batch_hooks_support_tf_logs(self) -> bool:
        lists = self._batch_callbacks.values()
        return all(getattr(c, "_supports_tf_logs", False) for callbacks in lists for c in callbacks)

    @property
    def _should_call_train_batch_hooks(self) -> bool:
        return self.has_batch_hooks("train")

    @property
    def _should_call_test_batch_hooks(self) -> bool:
        return self.has_batch_hooks("test")

    @property
    def _should_call_predict_batch_hooks(self) -> bool:
        return self.has_batch_hooks("predict")


def _make_hook_caller(name: str) -> Callable[..., None]:
    mode = next((m for m, hooks in _BATCH_HOOKS.items() if name in hooks), None)
    takes_index = mode is not None or "epoch" in name

    def call(self: CallbackList, *args: Any, logs: Any = None, **index_argument: int) -> None:
        args = (*index_argument.values(), *args)
        index = (args[0],) if takes_index else ()
        if len(args) > len(index):
            logs = args[len(index)]
        logs = {} if logs is None else logs
        callbacks = self._batch_callbacks[mode] if mode else self.callbacks
        if mode is not None and not all(getattr(c, "_supports_tf_logs", False) for c in callbacks):
            # All callbacks see the changes of earlier ones.
            logs = convert_logs(logs)
        start = time.perf_counter()
        for callback in callbacks:
            with region(CALLBACK, type(callback).__name__):
                getattr(callback, name)(*index, logs)
        check = self._slow_hook_check
        if mode is not None and check is not None and not check.is_complete:
            check.record(name, start)

    call.__name__ = name
    call.__doc__ = f"Call `{name}` of all callbacks."
    return call


for _name in (
    *(hook for hooks in _BATCH_HOOKS.values() for hook in hooks),
    *(
        "on_epoch_begin",
        "on_epoch_end",
        "on_train_begin",
        "on_train_end",
        "on_test_begin",
        "on_test_end",
    ),
    *("on_predict_begin", "on_predict_end"),
):
    setattr(CallbackList, _name, _make_hook_caller(_name))


def convert_logs(logs: Any) -> Any:
    """Replace scalar tensors in logs by Python numbers, which waits for the step to finish.

    Args:
      logs: Logs by name. A value of another type is returned unchanged.
    """
    if not isinstance(logs, dict):
        return logs
    result = {}
    for name, value in logs.items():
        if isinstance(value, Tensor):
            value = value.numpy()
        result[name] = (
            value.item()
            if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0
            else value
        )
    return result


class History(Callback):
    """Callback that records the metrics of every epoch; `fit` returns it.

    Attributes:
      history: Dictionary from metric name to a list of values, one per epoch.
      epoch: Indices of the epochs.

    Example:
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
      >>> model.compile(tf.keras.optimizers.SGD(0.25), "mse")
      >>> history = model.fit(tf.ones([2, 1]), tf.zeros([2, 1]), epochs=2, verbose=0)
      >>> history.epoch, history.history
      ([0, 1], {'loss': [1.0, 0.0]})
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: dict[str, list[float]] = {}
        self.epoch: list[int] = []

    def _repr_html_(self) -> str:
        curves: dict[str, dict[str, list[float]]] = {}
        for name, values in self.history.items():
            if all(isinstance(value, (int, float, np.generic)) for value in values):
                curves.setdefault(name.removeprefix("val_"), {})[name] = values
        head = ["metric", "first", "last", "lowest", "highest"]
        rows = [
            [name, *(f"{v:.4g}" for v in (values[0], values[-1], min(values), max(values)))]
            for lines in curves.values()
            for name, values in lines.items()
        ]
        table = format_table(head, rows, f"History, epochs: {len(self.epoch)}")
        return "".join(format_curves(name, lines) for name, lines in curves.items()) + table

    def on_train_begin(self, logs: Logs = None) -> None:
        """Clear the list of epochs."""
        self.epoch = []

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Record the metrics of an epoch."""
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)
        self.model.history = self


class ProgbarLogger(Callback):
    """Callback that shows a progress bar.

    Args:
      count_mode: 'steps' or 'samples'.
      stateful_metrics: Ignored: all metrics are shown without averaging.

    Attributes:
      use_steps: Whether `count_mode` is 'steps'.
    """

    _supports_tf_logs = True

    def __init__(
        self, count_mode: str = "samples", stateful_metrics: Iterable[str] | None = None
    ) -> None:
        super().__init__()
        if count_mode not in ("steps", "samples"):
            raise ValueError(
                f"Unknown `count_mode`: {count_mode}. Expected values are ['samples', 'steps']"
            )
        self.use_steps = count_mode == "steps"
        self._bar: Progbar | None = None
        self._seen = self._first_step = 0
        self._training = False
        self._epochs: Any = 1

    def _calls_batch_hooks(self) -> bool:
        """Return whether the bar moves; with `verbose=2`, only the end of an epoch is printed."""
        return self.params.get("verbose", 1) == 1

    _implements_train_batch_hooks = _calls_batch_hooks
    _implements_test_batch_hooks = _calls_batch_hooks
    _implements_predict_batch_hooks = _calls_batch_hooks

    @property
    def target(self) -> int | None:
        """Return the number of steps, as far as it is known."""
        return None if self._bar is None else self._bar.target

    def _reset_bar(self) -> None:
        self._bar, self._seen = None, 0

    def _get_bar(self) -> Progbar:
        if self._bar is None:
            self._bar = Progbar(
                self.params.get("steps"), verbose=int(self.params.get("verbose") or 0)
            )
        return self._bar

    def on_train_begin(self, logs: Logs = None) -> None:
        """Store the number of epochs."""
        self._training = True
        self._epochs = self.params.get("epochs", 1)

    def on_train_end(self, logs: Logs = None) -> None:
        """Leave the training mode."""
        self._training = False

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Print the number of the epoch."""
        self._reset_bar()
        if self.params.get("verbose") and self._epochs > 1:
            print_line(f"Epoch {epoch + 1}/{self._epochs}")
        if self._get_bar().target is None:
            self._first_step = self._count_steps("_train_counter")

    def _update_bar(self, batch: int, logs: Logs, finish: bool = False) -> None:
        bar = self._get_bar()
        self._seen = batch + 1
        values = [(n, v) for n, v in (logs or {}).items() if n not in ("batch", "size", "outputs")]
        bar.stateful_metrics.update(n for n, _ in values)
        bar.update(self._seen, values, finalize=finish)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Update the bar."""
        self._update_bar(batch, logs)

    def _count_steps(self, counter: str) -> int:
        return int(getattr(self.model, counter, 0))

    def _finish_bar(self, counter: str, logs: Logs) -> None:
        """Print the end of the bar; the model's counter of steps replaces batch hooks that were not called."""
        bar = self._get_bar()
        if bar.target is None:
            bar.target = self._seen or self._count_steps(counter) - self._first_step
        self._update_bar((self._seen or bar.target) - 1, logs, finish=True)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Finish the bar."""
        self._finish_bar("_train_counter", logs)

    def on_test_begin(self, logs: Logs = None) -> None:
        """Start a bar, unless this is the validation of `fit`."""
        if not self._training:
            self._reset_bar()

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Update the bar, unless this is the validation of `fit`."""
        if not self._training:
            self._update_bar(batch, logs)

    def on_test_end(self, logs: Logs = None) -> None:
        """Finish the bar, unless this is the validation of `fit`."""
        if not self._training:
            self._finish_bar("_test_counter", logs)

    def on_predict_begin(self, logs: Logs = None) -> None:
        """Start a bar."""
        self._reset_bar()

    def on_predict_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Update the bar."""
        self._update_bar(batch, None)

    def on_predict_end(self, logs: Logs = None) -> None:
        """Finish the bar."""
        self._finish_bar("_predict_counter", None)
