"""`meshflow.profiler.Verdict`: what a training waits for, said in a line at its end."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

from meshflow.core.runtime.errors import AlreadyExistsError
from meshflow.keras.engine.training.callbacks import Callback
from meshflow.keras.engine.training.progress_bar import say
from meshflow.profiler import sessions
from meshflow.profiler.report import Report
from meshflow.profiler.terminal import one_line


class Verdict(Callback):
    """Profiles some batches of a training, and says at its end in a line where their time goes.

    Args:
      profile_batch: the batch to profile, or the first and last of several, counted over all epochs from 1. The
        first batches compile, and are better left out.
      log_dir: the folder that keeps the profile and its page; default none.

    Raises:
      ValueError: for a `profile_batch` that makes no sense.

    Example:
      >>> import contextlib, io
      >>> import meshflow as tf
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.compile("sgd", "mse")
      >>> with contextlib.redirect_stdout(io.StringIO()) as said:
      ...     _ = model.fit(tf.ones([64, 2]), tf.ones([64, 1]), batch_size=8, verbose=0,
      ...         callbacks=[tf.profiler.Verdict((4, 8))])
      >>> "The mean step is" in said.getvalue()
      True
    """

    # Steps are not to be waited for.
    _takes_tensors = True

    def __init__(
        self, profile_batch: int | str | tuple[int, int] = (10, 20), log_dir: Any = None
    ) -> None:
        super().__init__()
        self._first, self._last = span(profile_batch)
        self._log_dir = log_dir

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins to count."""
        self._batch = 0
        self._report: Report | None = None
        self._folder = ""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begins the profile at its first batch."""
        self._batch += 1
        if self._batch == self._first:
            folder = tempfile.mkdtemp(prefix="meshflow-verdict-")
            try:
                sessions.start(folder if self._log_dir is None else self._log_dir)
            except AlreadyExistsError as error:
                shutil.rmtree(folder)
                say(f"No verdict: {error}")
                return
            self._folder = folder

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Ends the profile at its last batch."""
        if self._folder and self._batch >= self._last:
            self._finish()

    def _finish(self) -> None:
        folder, self._folder = self._folder, ""
        kept = folder if self._log_dir is None else self._log_dir
        try:
            self._report = finished_profile(self.model, kept)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def on_train_end(self, logs: Any = None) -> None:
        """Says the verdict."""
        if self._folder:
            self._finish()
        if self._report is not None:
            say(one_line(self._report))
        elif self._batch < self._first:
            say(
                f"No verdict: the training had {self._batch} batches, the profile begins at {self._first}."
            )


def finished_profile(model: Any, folder: Any) -> Report | None:
    """Ends the profile that is being taken, when the devices have done what they were given; what it says."""
    iterations = getattr(getattr(model, "optimizer", None), "iterations", None)
    if iterations is not None:
        iterations.numpy()
    return sessions.finish(str(folder))


def span(profile_batch: Any) -> tuple[int, int]:
    """The first and the last batch to profile; 0 for none.

    Raises:
      ValueError: for what is no such range.
    """
    given = profile_batch.split(",") if isinstance(profile_batch, str) else profile_batch
    try:
        ends = [int(b) for b in (given if isinstance(given, (tuple, list)) else [given])]
    except ValueError:
        ends = []
    if len(ends) not in (1, 2) or ends[0] < 0 or ends[-1] < ends[0]:
        raise ValueError(
            "profile_batch must be a non-negative integer or 2-tuple of positive integers. A pair of "
            f"positive integers signifies a range of batches to profile. Found: {profile_batch!r}"
        )
    return ends[0], ends[-1]
