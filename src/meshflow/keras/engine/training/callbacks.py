"""`Callback`, the list that calls them, and the callbacks every `fit` has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.runtime.annotations import CALLBACK, region
from meshflow.core.values.tensor import Tensor
from meshflow.keras.engine.training.progress_bar import Progbar, say

_BATCH_HOOKS = {
    mode: (f"on_{mode}_batch_begin", f"on_{mode}_batch_end")
    for mode in ("train", "test", "predict")
}


class Callback:
    """Base class of callbacks; subclasses override the hooks they need.

    Attributes:
      model: the model being trained.
      params: dictionary with `verbose`, `epochs`, `steps`.

    Example:
      >>> import meshflow as tf
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
        """Told the training's parameters."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Told the model."""
        self.model = model

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Before an epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """After an epoch; logs hold its metrics."""

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Old name of `on_train_batch_begin`."""

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Old name of `on_train_batch_end`."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Before a training step."""
        self.on_batch_begin(batch, logs=logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """After a training step."""
        self.on_batch_end(batch, logs=logs)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Before an evaluation step."""

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """After an evaluation step."""

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Before a prediction step."""

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """After a prediction step."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Before training."""

    def on_train_end(self, logs: Any = None) -> None:
        """After training."""

    def on_test_begin(self, logs: Any = None) -> None:
        """Before evaluation."""

    def on_test_end(self, logs: Any = None) -> None:
        """After evaluation."""

    def on_predict_begin(self, logs: Any = None) -> None:
        """Before prediction."""

    def on_predict_end(self, logs: Any = None) -> None:
        """After prediction."""


def has_batch_hook(callback: Callback, mode: str) -> bool:
    """Whether a callback does something at batches."""
    names = [*_BATCH_HOOKS[mode], *(("on_batch_begin", "on_batch_end") if mode == "train" else ())]
    own = vars(callback)
    return any(
        getattr(type(callback), n, None) is not getattr(Callback, n) or n in own for n in names
    )


class _NoCallbackError(TypeError, AttributeError):
    """TensorFlow's programs fail with the one or the other."""


def _check_callback(callback: Any) -> None:
    if isinstance(callback, type) or not hasattr(callback, "set_model"):
        kind = "the class" if isinstance(callback, type) else "an object of type"
        name = callback.__name__ if isinstance(callback, type) else type(callback).__name__
        raise _NoCallbackError(
            f"`callbacks` must hold tf.keras.callbacks.Callback objects, got {kind} {name}: {callback!r}."
        )


class CallbackList:
    """Calls several callbacks.

    Args:
      callbacks: a callback or list.
      add_history: whether to add a `History`.
      add_progbar: whether to add a progress bar.
      model: the model.
      **params: `verbose`, `epochs`, `steps`.

    Example:
      >>> import meshflow as tf
      >>> seen = []
      >>> begin = tf.keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: seen.append(epoch))
      >>> callbacks = tf.keras.callbacks.CallbackList([begin], epochs=2)
      >>> callbacks.on_epoch_begin(0)
      >>> callbacks.on_epoch_begin(1)
      >>> seen
      [0, 1]
    """

    # Each calls the hook of that name of all callbacks; made below.
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
        callbacks: Any = None,
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
        if add_progbar and not any(isinstance(c, ProgbarLogger) for c in self.callbacks):
            self.callbacks.append(ProgbarLogger(count_mode="steps"))
        if add_history:
            history = next((c for c in self.callbacks if isinstance(c, History)), None) or History()
            if history not in self.callbacks:
                self.callbacks.append(history)
            if model is not None:
                model.history = history
        for callback in self.callbacks:
            callback.set_params(params)
            if model is not None:
                callback.set_model(model)
        self._batch = {
            mode: [c for c in self.callbacks if has_batch_hook(c, mode)] for mode in _BATCH_HOOKS
        }

    def append(self, callback: Callback) -> None:
        """Adds a callback."""
        self.callbacks.append(callback)
        for mode, found in self._batch.items():
            if has_batch_hook(callback, mode):
                found.append(callback)

    def set_model(self, model: Any) -> None:
        """Tells all callbacks the model."""
        for callback in self.callbacks:
            callback.set_model(model)

    def set_params(self, params: dict[str, Any]) -> None:
        """Tells all callbacks the parameters."""
        for callback in self.callbacks:
            callback.set_params(params)

    def has_batch_hooks(self, mode: str) -> bool:
        """Whether any callback wants to know of batches."""
        return bool(self._batch[mode])

    def __iter__(self) -> Any:
        return iter(self.callbacks)


def _caller(name: str) -> Callable[..., None]:
    mode = next((m for m, hooks in _BATCH_HOOKS.items() if name in hooks), None)
    takes_number = mode is not None or "epoch" in name

    def call(self: CallbackList, *args: Any) -> None:
        number = (args[0],) if takes_number else ()
        given = args[len(number)] if len(args) > len(number) else None
        logs = {} if given is None else given
        for callback in self._batch[mode] if mode else self.callbacks:
            own = logs
            if mode is not None and not getattr(callback, "_takes_tensors", False):
                own = numbers(logs)
            with region(CALLBACK, type(callback).__name__):
                getattr(callback, name)(*number, own)

    call.__name__ = name
    call.__doc__ = f"Calls `{name}` of all callbacks."
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
    setattr(CallbackList, _name, _caller(_name))


def numbers(logs: Any) -> Any:
    """Logs with Python numbers in place of scalar tensors; waits for the step to finish."""
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
    """Keeps the metrics of every epoch; `fit` returns it.

    Attributes:
      history: dictionary from metric name to a list of values.
      epoch: the epochs' numbers.

    Example:
      >>> import meshflow as tf
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
      >>> model.compile(tf.keras.optimizers.SGD(0.25), "mse")
      >>> history = model.fit(tf.ones([2, 1]), tf.zeros([2, 1]), epochs=2, verbose=0)
      >>> history.epoch, history.history
      ([0, 1], {'loss': [1.0, 0.0]})
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: dict[str, list[Any]] = {}
        self.epoch: list[int] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts the list of epochs."""
        self.epoch = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keeps an epoch's metrics."""
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)
        self.model.history = self


class ProgbarLogger(Callback):
    """Shows a progress bar.

    Args:
      count_mode: 'steps' or 'samples'.
      stateful_metrics: accepted; metrics are always shown as they are.
    """

    _takes_tensors = True

    def __init__(self, count_mode: str = "samples", stateful_metrics: Any = None) -> None:
        super().__init__()
        if count_mode not in ("steps", "samples"):
            raise ValueError(
                f"Unknown `count_mode`: {count_mode}. Expected values are ['samples', 'steps']"
            )
        self._bar: Progbar | None = None
        self._seen = 0
        self._training = False
        self._epochs: Any = 1

    def _start(self) -> None:
        self._bar, self._seen = None, 0

    def _ensure(self) -> Progbar:
        if self._bar is None:
            self._bar = Progbar(
                self.params.get("steps"), verbose=int(self.params.get("verbose") or 0)
            )
        return self._bar

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes the number of epochs."""
        self._training = True
        self._epochs = self.params.get("epochs", 1)

    def on_train_end(self, logs: Any = None) -> None:
        """Training is over."""
        self._training = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Writes the epoch's number."""
        self._start()
        if self.params.get("verbose") and self._epochs > 1:
            say(f"Epoch {epoch + 1}/{self._epochs}")
        self._ensure()

    def _advance(self, batch: int, logs: Any, finish: bool = False) -> None:
        bar = self._ensure()
        self._seen = batch + 1
        shown = [(n, v) for n, v in (logs or {}).items() if n not in ("batch", "size", "outputs")]
        bar.stateful_metrics.update(n for n, _ in shown)
        bar.update(self._seen, shown, finalize=finish)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Moves the bar."""
        self._advance(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Ends the bar."""
        bar = self._ensure()
        if bar.target is None:
            bar.target = self._seen
        self._advance(self._seen - 1, logs, finish=True)

    def on_test_begin(self, logs: Any = None) -> None:
        """Starts a bar, unless this is validation."""
        if not self._training:
            self._start()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Moves the bar, unless this is validation."""
        if not self._training:
            self._advance(batch, logs)

    def on_test_end(self, logs: Any = None) -> None:
        """Ends the bar, unless this is validation."""
        if not self._training:
            self._advance(self._seen - 1, logs, finish=True)

    def on_predict_begin(self, logs: Any = None) -> None:
        """Starts a bar."""
        self._start()

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """Moves the bar."""
        self._advance(batch, None)

    def on_predict_end(self, logs: Any = None) -> None:
        """Ends the bar."""
        self._advance(self._seen - 1, None, finish=True)
