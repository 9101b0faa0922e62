"""`tf.compat.v1.train`: hooks, which a monitored session calls around each of its runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from meshflow.core.values.tensor import TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree, StrPath
from meshflow.files import gfile
from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.compat.saver import Saver
from meshflow.legacy.compat.summaries import FileWriter, FileWriterCache
from meshflow.legacy.compat.train import get_global_step
from meshflow.legacy.graph.sessions import Session

__all__ = [
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "FeedFnHook",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "LoggingTensorHook",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
]

_log = logging.getLogger("meshflow")


class SavedScaffold(Protocol):
    """Interface of `Scaffold` for hooks."""

    saver: Saver | None
    summary_op: PyTree


class SessionRunArgs(NamedTuple):
    """Fetches and feeds that a hook adds to a run.

    Attributes:
      fetches: Structure of tensors, operations and names, or None.
      feed_dict: Values of tensors.
      options: Ignored.
    """

    fetches: PyTree
    feed_dict: Mapping[Any, Any] | None = None
    options: object = None


class SessionRunValues(NamedTuple):
    """Results of a run for a hook.

    Attributes:
      results: Values of the fetches that the hook added.
      options: Options of the run.
      run_metadata: None.
    """

    results: PyTree
    options: object
    run_metadata: object


class SessionRunContext:
    """A call of `run` that hooks observe.

    Attributes:
      original_args: `SessionRunArgs` of the caller.
      session: The session.
      stop_requested: Whether a hook has requested the end of training.
    """

    def __init__(self, original_args: SessionRunArgs, session: Session) -> None:
        self.original_args, self.session = original_args, session
        self.stop_requested = False

    def request_stop(self) -> None:
        """Make `should_stop` of the session return True after this run."""
        self.stop_requested = True


class SessionRunHook:
    """Base class of hooks; subclasses override some of the methods."""

    def begin(self) -> None:
        """Prepare; the graph can still be changed."""

    def after_create_session(self, session: Session, coord: object) -> None:
        """Use a new session with initialized variables."""

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Return fetches and feeds to add to a run, or None."""

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Use the results of a run."""

    def end(self, session: Session) -> None:
        """Finish, at the end of the session without an error."""


class SecondOrStepTimer:
    """Timer that triggers at intervals of seconds or steps.

    Args:
      every_secs: Interval in seconds.
      every_steps: Interval in steps.

    Raises:
      ValueError: If both or neither interval is passed.
    """

    def __init__(self, every_secs: float | None = None, every_steps: int | None = None) -> None:
        if (every_secs is None) == (every_steps is None):
            raise ValueError("exactly one of every_secs and every_steps should be provided.")
        self._seconds, self._steps = every_secs, every_steps
        self.reset()

    def reset(self) -> None:
        """Forget the last trigger."""
        self._last_step: int | None = None
        self._last_time: float | None = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Return whether the interval since the last trigger has passed."""
        if self._last_step is None or self._last_time is None:
            return True
        if self._last_step == step:
            return False
        if self._seconds is not None:
            return time.time() >= self._last_time + self._seconds
        return step >= self._last_step + (self._steps or 0)

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Set the last trigger, and return the seconds and steps since the one before, or None."""
        now = time.time()
        elapsed = (
            (None, None)
            if self._last_step is None or self._last_time is None
            else (now - self._last_time, step - self._last_step)
        )
        self._last_step, self._last_time = step, now
        return elapsed

    def last_triggered_step(self) -> int | None:
        """Return the step of the last trigger, or None."""
        return self._last_step


def _require_global_step(hook: SessionRunHook) -> Variable:
    step = get_global_step()
    if step is None:
        raise RuntimeError(f"Global step should be created to use {type(hook).__name__}.")
    return step


class _StepHook(SessionRunHook):
    """Hook that acts at some global steps."""

    def begin(self) -> None:
        """Find the global step."""
        self._step = _require_global_step(self)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step."""
        return SessionRunArgs(self._step)

    def _find_step(
        self,
        run_context: SessionRunContext,
        run_values: SessionRunValues,
        is_due: Callable[[int], bool],
    ) -> int | None:
        """Return the global step after a run if it is due, or None."""
        # The fetched value may be that before the run, which saves another run for most steps.
        if not is_due(int(run_values.results) + 1):
            return None
        step = int(run_context.session.run(self._step))
        return step if is_due(step) else None


class StopAtStepHook(_StepHook):
    """Hook that ends training.

    Args:
      num_steps: Number of steps after the first run.
      last_step: Value of the global step at the end.

    Raises:
      ValueError: If both or neither number is passed.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if (num_steps is None) == (last_step is None):
            raise ValueError("Exactly one of num_steps or last_step must be specified.")
        self._num_steps, self._last_step = num_steps, last_step

    def after_create_session(self, session: Session, coord: object) -> None:
        """Determine the last step, which does not change if the session is created again."""
        if self._last_step is None:
            self._last_step = int(session.run(self._step)) + (self._num_steps or 0)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Request the end at the last step."""
        last = self._last_step or 0
        if self._find_step(run_context, run_values, lambda step: step >= last) is not None:
            run_context.request_stop()


class NanLossDuringTrainingError(RuntimeError):
    """Error of `NanTensorHook`."""

    def __str__(self) -> str:
        return "NaN loss during training."


class NanTensorHook(SessionRunHook):
    """Hook that ends training if a loss is not a number.

    Args:
      loss_tensor: The loss.
      fail_on_nan_loss: Whether to raise `NanLossDuringTrainingError` instead.
    """

    def __init__(self, loss_tensor: TensorLike, fail_on_nan_loss: bool = True) -> None:
        self._loss, self._fails = loss_tensor, fail_on_nan_loss

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the loss."""
        return SessionRunArgs(self._loss)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Check the loss."""
        if not np.isnan(run_values.results):
            return
        if self._fails:
            _log.error("Model diverged with loss = NaN.")
            raise NanLossDuringTrainingError
        _log.warning("Model diverged with loss = NaN.")
        run_context.request_stop()


class LoggingTensorHook(SessionRunHook):
    """Hook that logs the values of tensors.

    Args:
      tensors: Tensors, or tensors by label.
      every_n_iter: Interval in runs.
      every_n_secs: Interval in seconds.
      at_end: Whether to log at the end; without an interval, only then.
      formatter: Function of the values by label that returns the text.

    Raises:
      ValueError: If no interval or two intervals are passed, or the interval is not positive.
    """

    def __init__(
        self,
        tensors: PyTree,
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[Mapping[str, Any]], str] | None = None,
    ) -> None:
        only_at_end = at_end and every_n_iter is None and every_n_secs is None
        if not only_at_end and (every_n_iter is None) == (every_n_secs is None):
            raise ValueError(
                "either at_end and/or exactly one of every_n_iter and every_n_secs must be provided."
            )
        if every_n_iter is not None and every_n_iter <= 0:
            raise ValueError(f"invalid every_n_iter={every_n_iter}.")
        is_named = isinstance(tensors, Mapping)
        self._tensors = (
            dict(tensors) if is_named else {getattr(t, "name", str(t)): t for t in tensors}
        )
        self._formatter, self._at_end = formatter, at_end
        self._timer = None if only_at_end else SecondOrStepTimer(every_n_secs, every_n_iter)

    def begin(self) -> None:
        """Start to count."""
        self._count = 0
        if self._timer is not None:
            self._timer.reset()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Fetch the tensors if it is time."""
        timer = self._timer
        self._is_due = timer is not None and timer.should_trigger_for_step(self._count)
        return SessionRunArgs(self._tensors) if self._is_due else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Log the values."""
        if self._is_due and self._timer is not None:
            seconds, _ = self._timer.update_last_triggered_step(self._count)
            self._write(run_values.results, seconds)
        self._count += 1

    def end(self, session: Session) -> None:
        """Log the values at the end."""
        if self._at_end:
            self._write(session.run(self._tensors), None)

    def _write(self, values: Mapping[str, Any], seconds: float | None) -> None:
        if self._formatter is not None:
            _log.info(self._formatter(values))
            return
        text = ", ".join(f"{label} = {values[label]}" for label in self._tensors)
        _log.info("%s%s", text, "" if seconds is None else f" ({seconds:.3f} sec)")


class CheckpointSaverListener:
    """Base class of objects that a `CheckpointSaverHook` calls around each checkpoint."""

    def begin(self) -> None:
        """Prepare; the graph can still be changed."""

    def before_save(self, session: Session, global_step_value: int) -> None:
        """Use the session before a checkpoint is written."""

    def after_save(self, session: Session, global_step_value: int) -> bool | None:
        """Use the session after a checkpoint is written; return True to end training."""

    def end(self, session: Session, global_step_value: int) -> None:
        """Finish."""


class CheckpointSaverHook(_StepHook):
    """Hook that writes checkpoints, also of the first and the last step.

    Args:
      checkpoint_dir: Folder.
      save_secs: Interval in seconds.
      save_steps: Interval in steps.
      saver: The saver. Default: that of the scaffold, or one of all global variables.
      checkpoint_basename: Start of the file names.
      scaffold: See `Scaffold`.
      listeners: Objects that are called around each checkpoint.
      save_graph_def: Ignored.
    """

    def __init__(
        self,
        checkpoint_dir: StrPath,
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Saver | None = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: SavedScaffold | None = None,
        listeners: Iterable[CheckpointSaverListener] | None = None,
        save_graph_def: bool = True,
    ) -> None:
        if saver is not None and scaffold is not None:
            raise ValueError("You cannot provide both saver and scaffold.")
        self._saver, self._scaffold = saver, scaffold
        self._path = gfile.join(checkpoint_dir, checkpoint_basename)
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._listeners = list(listeners or [])

    def begin(self) -> None:
        """Find the global step."""
        super().begin()
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: Session, coord: object) -> None:
        """Write the first checkpoint."""
        step = int(session.run(self._step))
        self._save(session, step)
        self._timer.update_last_triggered_step(step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Write a checkpoint if it is time."""
        step = self._find_step(run_context, run_values, self._timer.should_trigger_for_step)
        if step is not None:
            self._timer.update_last_triggered_step(step)
            if self._save(run_context.session, step):
                run_context.request_stop()

    def end(self, session: Session) -> None:
        """Write the last checkpoint."""
        step = int(session.run(self._step))
        if step != self._timer.last_triggered_step():
            self._save(session, step)
        for listener in self._listeners:
            listener.end(session, step)

    def _get_saver(self) -> Saver:
        if self._saver is None and self._scaffold is not None:
            self._saver = self._scaffold.saver
        if self._saver is None:
            self._saver = Saver()
        return self._saver

    def _save(self, session: Session, step: int) -> bool:
        _log.info("Saving checkpoints for %d into %s.", step, self._path)
        for listener in self._listeners:
            listener.before_save(session, step)
        self._get_saver().save(session, self._path, global_step=step)
        return any([listener.after_save(session, step) for listener in self._listeners])


class SummarySaverHook(SessionRunHook):
    """Hook that writes summaries.

    Args:
      save_steps: Interval in steps.
      save_secs: Interval in seconds.
      output_dir: Folder of the event file.
      summary_writer: The writer instead of one for the folder.
      scaffold: Object with the attribute `summary_op`, which is written.
      summary_op: Serialized summary, instead of a scaffold.

    Raises:
      ValueError: If both or neither of `scaffold` and `summary_op` are passed.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: StrPath | None = None,
        summary_writer: FileWriter | None = None,
        scaffold: SavedScaffold | None = None,
        summary_op: TensorLike | None = None,
    ) -> None:
        if (scaffold is None) == (summary_op is None):
            raise ValueError("Exactly one of scaffold or summary_op must be provided.")
        self._summary, self._scaffold = summary_op, scaffold
        self._folder, self._writer = output_dir, summary_writer
        self._timer = SecondOrStepTimer(save_secs, save_steps)

    def begin(self) -> None:
        """Find the global step and the writer."""
        self._step = _require_global_step(self)
        if self._writer is None and self._folder is not None:
            self._writer = FileWriterCache.get(self._folder)
        self._next_step: int | None = None

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Fetch the summaries if it is time."""
        summary = self._summary if self._scaffold is None else self._scaffold.summary_op
        step = self._next_step
        self._is_due = summary is not None and (
            step is None or self._timer.should_trigger_for_step(step)
        )
        fetches = {"step": self._step} | ({"summary": summary} if self._is_due else {})
        return SessionRunArgs(fetches)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Write the summaries."""
        step = int(run_values.results["step"]) + 1
        if self._is_due:
            step = int(run_context.session.run(self._step))
            self._timer.update_last_triggered_step(step)
            if self._writer is not None:
                self._writer.add_summary(run_values.results["summary"], step)
        self._next_step = step + 1

    def end(self, session: Session) -> None:
        """Write the file."""
        if self._writer is not None:
            self._writer.flush()


class StepCounterHook(_StepHook):
    """Hook that measures steps per second.

    Args:
      every_n_steps: Interval in steps.
      every_n_secs: Interval in seconds.
      output_dir: Folder of the event file.
      summary_writer: The writer instead of one for the folder.
    """

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: StrPath | None = None,
        summary_writer: FileWriter | None = None,
    ) -> None:
        self._timer = SecondOrStepTimer(every_n_secs, every_n_steps)
        self._folder, self._writer = output_dir, summary_writer

    def begin(self) -> None:
        """Find the global step and the writer."""
        super().begin()
        if self._writer is None and self._folder is not None:
            self._writer = FileWriterCache.get(self._folder)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Log the steps per second if it is time."""
        step = self._find_step(run_context, run_values, self._timer.should_trigger_for_step)
        if step is None:
            return
        seconds, steps = self._timer.update_last_triggered_step(step)
        if seconds and steps is not None:
            tag = f"{self._step.name.partition(':')[0]}/sec"
            _log.info("%s: %g", tag, steps / seconds)
            if self._writer is not None:
                value = tf.compat.v1.Summary.Value(tag=tag, simple_value=steps / seconds)
                self._writer.add_summary(tf.compat.v1.Summary(value=[value]), step)


class FinalOpsHook(SessionRunHook):
    """Hook that computes tensors at the end of a session.

    Args:
      final_ops: Structure of tensors and operations.
      final_ops_feed_dict: Values of tensors.
    """

    def __init__(
        self, final_ops: PyTree, final_ops_feed_dict: Mapping[Any, Any] | None = None
    ) -> None:
        self._fetches, self._feeds = final_ops, final_ops_feed_dict
        self.final_ops_values: PyTree = None

    def end(self, session: Session) -> None:
        """Compute the tensors."""
        if self._fetches is not None:
            self.final_ops_values = session.run(self._fetches, self._feeds)


class FeedFnHook(SessionRunHook):
    """Hook that feeds tensors.

    Args:
      feed_fn: Function that returns the values of tensors.
    """

    def __init__(self, feed_fn: Callable[[], Mapping[Any, Any]]) -> None:
        self.feed_fn = feed_fn

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Feed the values."""
        return SessionRunArgs(None, self.feed_fn())


class GlobalStepWaiterHook(SessionRunHook):
    """Hook that waits for a global step, which other workers increase.

    Args:
      wait_until_step: The step. A single process never waits, because nothing else would increase it.
    """

    def __init__(self, wait_until_step: int) -> None:
        self.wait_until_step = wait_until_step
