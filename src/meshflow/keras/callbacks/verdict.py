"""`meshflow.profiler.Verdict`: a one-line summary of the time per training step."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence

from meshflow.core.runtime.errors import AlreadyExistsError
from meshflow.environment.types import Logs, StrPath
from meshflow.keras.engine.training.callbacks import Callback
from meshflow.keras.engine.training.progress_bar import print_line
from meshflow.profiler import sessions
from meshflow.profiler.report import Report
from meshflow.profiler.terminal import format_line


class Verdict(Callback):
    """Callback that profiles some batches and prints a summary at the end of training.

    Args:
      profile_batch: Batch to profile, or the first and last of several, counted from 1 over all
        epochs. The first batches compile and should be excluded.
      log_dir: Directory for the profile and its page; None to keep neither.

    Raises:
      ValueError: If `profile_batch` is not a batch or a range.

    Example:
      >>> import contextlib, io
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.compile("sgd", "mse")
      >>> with contextlib.redirect_stdout(io.StringIO()) as output:
      ...     _ = model.fit(tf.ones([64, 2]), tf.ones([64, 1]), batch_size=8, verbose=0,
      ...         callbacks=[tf.profiler.Verdict((4, 8))])
      >>> "The mean step is" in output.getvalue()
      True
    """

    # The callback reads no metrics, so training need not wait for them.
    _supports_tf_logs = True

    def __init__(
        self, profile_batch: int | str | tuple[int, int] = (10, 20), log_dir: StrPath | None = None
    ) -> None:
        super().__init__()
        self._first_batch, self._last_batch = parse_profile_batch(profile_batch)
        self._log_dir = log_dir

    def on_train_begin(self, logs: Logs = None) -> None:
        """Start to count batches."""
        self._batch = 0
        self._report: Report | None = None
        self._folder = ""

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Start the profile at the first batch of the range."""
        self._batch += 1
        if self._batch == self._first_batch:
            folder = tempfile.mkdtemp(prefix="meshflow-verdict-")
            try:
                sessions.start(folder if self._log_dir is None else self._log_dir)
            except AlreadyExistsError as error:
                shutil.rmtree(folder)
                print_line(f"No verdict: {error}")
                return
            self._folder = folder

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Stop the profile at the last batch of the range."""
        if self._folder and self._batch >= self._last_batch:
            self._stop_profile()

    def _stop_profile(self) -> None:
        folder, self._folder = self._folder, ""
        log_dir = folder if self._log_dir is None else self._log_dir
        try:
            self._report = finish_profile(self.model, log_dir)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def on_train_end(self, logs: Logs = None) -> None:
        """Print the summary."""
        if self._folder:
            self._stop_profile()
        if self._report is not None:
            print_line(format_line(self._report))
        elif self._batch < self._first_batch:
            print_line(
                f"No verdict: the training had {self._batch} batches, but the profile starts at batch {self._first_batch}."
            )


def finish_profile(model: object, folder: StrPath) -> Report | None:
    """Wait for the devices, stop the current profile, and return its report."""
    iterations = getattr(getattr(model, "optimizer", None), "iterations", None)
    if iterations is not None:
        iterations.numpy()
    return sessions.finish_session(str(folder))


def parse_profile_batch(profile_batch: int | str | Sequence[int]) -> tuple[int, int]:
    """Return the first and the last batch to profile; (0, 0) for none.

    Raises:
      ValueError: If `profile_batch` is not a batch or a range.
    """
    batches = profile_batch.split(",") if isinstance(profile_batch, str) else profile_batch
    try:
        ends = [int(b) for b in (batches if isinstance(batches, Sequence) else [batches] * 2)]
    except ValueError:
        ends = []
    if len(ends) != 2 or not 0 <= ends[0] <= ends[1]:
        raise ValueError(
            "profile_batch must be a non-negative integer or 2-tuple of positive integers. A pair of "
            f"positive integers signifies a range of batches to profile. Found: {profile_batch!r}"
        )
    return ends[0], ends[-1]
