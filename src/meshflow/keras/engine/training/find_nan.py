"""`FindNaN`: the callback that finds the cause of the first NaN of a training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from meshflow.environment.types import Logs
from meshflow.keras.engine.training.callbacks import Callback, CallbackList
from meshflow.keras.engine.training.nan_search import NaNReport, NaNSearch

_log = logging.getLogger("meshflow")


class FindNaN(Callback):
    """Callback that finds the cause of the first NaN or infinity in the loss or the weights.

    It logs the step, the layer, the op with its line of source, and the rows of the batch that lead
    to the value. Then it stops the training; the weights and the optimizer have their values from
    before this step. `fit(debug="nan")` adds this callback.

    Until then it checks the loss and the weights at the end of an epoch and every 256 steps, more often
    for large batches, and about once a second for short steps. It keeps a copy of the variables that
    the step changes, and the batches since the last check (up to 256 MB).

    Attributes:
      report: The `NaNReport` with the attributes `step`, `epoch`, `batch`, `layer`, `op`,
        `is_gradient`, `source`, `rows`, `location` and `value`; None if there was no NaN.

    Example:
      >>> model = tf.keras.Sequential([tf.keras.layers.Lambda(tf.math.log, name="logarithm"), tf.keras.layers.Dense(1)])
      >>> model.compile("sgd", "mse")
      >>> finder = tf.keras.callbacks.FindNaN()
      >>> x = tf.constant([[1.0], [2.0], [0.0], [3.0]])
      >>> _ = model.fit(x, x, shuffle=False, epochs=9, verbose=0, callbacks=[finder])
      >>> finder.report.layer, finder.report.op, finder.report.rows, finder.report.step
      ('logarithm', 'log', [2], 0)
    """

    def __init__(self) -> None:
        super().__init__()
        self.report: NaNReport | None = None
        self._search: NaNSearch | None = None

    def watch(self, run: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
        """Return a function that runs batches and checks the results.

        Args:
          run: Function that runs a list of batches.
        """
        self._search = NaNSearch(self.model, run, self._receive)
        return self._search.run

    def _receive(self, report: NaNReport) -> None:
        self.report = report
        self.model.stop_training = True
        _log.error("%s", report)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Discard the report of an earlier training."""
        self.report = None

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Record the index of the epoch."""
        if self._search is not None:
            self._search.begin_epoch(epoch)

    def check_steps(self) -> None:
        """Check the steps since the last check, and search if they are not finite."""
        if self._search is not None:
            self._search.check()

    def on_train_end(self, logs: Logs = None) -> None:
        """Release the batches and the copies of variables."""
        self._search = None


def get_nan_finder(
    model: Any, listeners: CallbackList, debug: str | None, is_asynchronous: bool
) -> FindNaN | None:
    """Return the `FindNaN` among callbacks; add one if `fit` was called with `debug="nan"`.

    Args:
      model: The model.
      listeners: The callbacks.
      debug: The argument of `fit`.
      is_asynchronous: Whether other processes or threads run the steps.

    Raises:
      ValueError: If `debug` is unknown, or the steps run asynchronously.
    """
    if debug not in (None, "nan"):
        raise ValueError(f"fit: debug must be None or 'nan', got {debug!r}.")
    finder = next((c for c in listeners.callbacks if isinstance(c, FindNaN)), None)
    if finder is None and debug == "nan":
        finder = FindNaN()
        finder.set_model(model)
        listeners.append(finder)
    if finder is not None and is_asynchronous:
        raise ValueError(
            "FindNaN and fit(debug='nan') cannot repeat the asynchronous steps of a ParameterServerStrategy. Train with "
            "another strategy to find the NaN."
        )
    return finder
