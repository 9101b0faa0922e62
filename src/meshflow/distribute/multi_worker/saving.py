"""Checkpoints of several workers: who writes, and saving when one of them is told to end."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from meshflow.checkpoint import Checkpoint, CheckpointManager
from meshflow.checkpoint.graph import ObjectGraph
from meshflow.core.tracing.trace import init_scope
from meshflow.core.variables.variable import Variable
from meshflow.distribute.multi_worker.host_collectives import all_gathered

__all__ = ["PreemptionCheckpointHandler", "TerminationConfig", "any_worker", "write_once"]

# The code of a process that was told to end and has saved its state: the end of one by SIGTERM.
PREEMPTED = 143


def any_worker(told: bool) -> bool:
    """Whether something holds for any worker; all workers must ask."""
    return told if jax.process_count() == 1 else any(all_gathered(told))


def write_once(root: Any, write: Callable[[], Any]) -> Any:
    """Writes a checkpoint on the worker that has to, or on all when each holds a part.

    Args:
      root: the object whose values are written; all workers call with the same.
      write: writes it.

    Returns:
      What `write` returns; None where it was not called.
    """
    if jax.process_count() == 1:
        return write()
    graph = ObjectGraph(root)
    # Reading what replicas have of their own, as metrics do, needs all workers, equally often.
    together = any(_elsewhere(o._value) for o in graph.objects if isinstance(o, Variable))
    if together or jax.process_index() == 0:
        return write()
    for _ in graph.values():
        pass
    return None


def _elsewhere(value: Any) -> bool:
    """Whether other workers hold parts of an array, on devices or in files, that this one does not."""
    where = getattr(value, "sharding", None)
    return where is not None and not (where.is_fully_addressable or where.is_fully_replicated)


class TerminationConfig:
    """How a `PreemptionCheckpointHandler` learns that a worker is about to end, and what it does then.

    Args:
      termination_watcher_fn: returns whether this worker will be ended; asked once a second.
      exit_fn: ends the process after saving; default `sys.exit(143)`.
      grace_period: for how many seconds to train on before saving; default 0.
      save_fn: saves instead of the handler; called with the arguments of `save_checkpoint_if_preempted`.

    Example:
      >>> import meshflow as tf
      >>> config = tf.distribute.experimental.TerminationConfig(grace_period=30)
      >>> config.grace_period
      30
    """

    def __init__(
        self,
        termination_watcher_fn: Callable[[], bool] | None = None,
        exit_fn: Callable[[], Any] | None = None,
        grace_period: float | None = None,
        save_fn: Callable[..., Any] | None = None,
    ) -> None:
        self.termination_watcher_fn = termination_watcher_fn
        self.exit_fn = exit_fn
        self.grace_period = grace_period
        self.save_fn = save_fn


class PreemptionCheckpointHandler:
    """Saves a custom training loop when any worker is told to end, after the same step on all workers.

    A worker is told by SIGTERM, or by `TerminationConfig.termination_watcher_fn`. The handler restores
    the latest checkpoint when it is made.

    Args:
      cluster_resolver: the strategy's cluster resolver; accepted.
      checkpoint_or_checkpoint_manager: what is saved and restored.
      checkpoint_dir: the folder, for a `Checkpoint`; one that all workers share.
      termination_config: a `TerminationConfig`.

    Raises:
      ValueError: for a `Checkpoint` without a folder.

    Example:
      >>> import tempfile
      >>> import meshflow as tf
      >>> total = tf.Variable(0.0)
      >>> handler = tf.distribute.experimental.PreemptionCheckpointHandler(
      ...     None, tf.train.Checkpoint(total=total), tempfile.mkdtemp()
      ... )
      >>> for _ in range(handler.total_run_calls, 3):
      ...     _ = handler.run(total.assign_add, 2.0)
      >>> handler.total_run_calls, float(total)
      (3, 6.0)
    """

    def __init__(
        self,
        cluster_resolver: Any,
        checkpoint_or_checkpoint_manager: Any,
        checkpoint_dir: Any = None,
        termination_config: TerminationConfig | None = None,
    ) -> None:
        del cluster_resolver
        kept = checkpoint_or_checkpoint_manager
        if not isinstance(kept, CheckpointManager):
            if not isinstance(kept, Checkpoint):
                raise ValueError(
                    "PreemptionCheckpointHandler: checkpoint_or_checkpoint_manager must be a "
                    f"tf.train.Checkpoint or tf.train.CheckpointManager, got {kept!r}."
                )
            if not checkpoint_dir:
                raise ValueError(
                    "When a checkpoint is passed, a checkpoint_dir must be passed as well, got "
                    f"{checkpoint_dir!r}."
                )
            kept = CheckpointManager(kept, checkpoint_dir, max_to_keep=1)
        self._manager = kept
        self._config = termination_config or TerminationConfig()
        with init_scope():
            self._runs = Variable(np.int64(0), trainable=False, name="total_run_calls")
        kept.checkpoint.preemption_total_run_calls = self._runs
        kept.restore_or_initialize()
        self._told = threading.Event()
        self._told_at: float | None = None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: self._told.set())
        if self._config.termination_watcher_fn is not None:
            threading.Thread(target=self._ask, name="preemption", daemon=True).start()

    def _ask(self) -> None:
        assert self._config.termination_watcher_fn is not None
        while not self._told.is_set():
            if self._config.termination_watcher_fn():
                self._told.set()
            time.sleep(1)

    @property
    def total_run_calls(self) -> int:
        """How often `run` was called, also before the latest checkpoint that was restored."""
        return int(self._runs)

    def run(self, distributed_train_function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a training function, then saves and ends the process if any worker was told to end.

        Args:
          distributed_train_function: does one or more steps.
          *args: its arguments.
          **kwargs: its keyword arguments.

        Returns:
          What it returns.
        """
        result = distributed_train_function(*args, **kwargs)
        self._runs.assign_add(1)
        self.save_checkpoint_if_preempted()
        return result

    def save_checkpoint_if_preempted(self, *args: Any, **kwargs: Any) -> None:
        """Saves and ends the process if any worker was told to end; all workers must call it.

        Args:
          *args: arguments of `CheckpointManager.save`, or of `TerminationConfig.save_fn`.
          **kwargs: their keyword arguments.
        """
        if not any_worker(self._told.is_set()):
            return
        if self._told_at is None:
            self._told_at = time.monotonic()
        # The time may be over on one worker first.
        if not any_worker(time.monotonic() - self._told_at >= (self._config.grace_period or 0)):
            return
        save = self._config.save_fn or self._manager.save
        if self._config.save_fn is not None:
            save(*args, **kwargs)
        else:
            write_once(self._manager.checkpoint, lambda: save(*args, **kwargs))
        if self._config.exit_fn is not None:
            self._config.exit_fn()
            return
        print("Told to end: training is saved.", file=sys.stderr)
        sys.exit(PREEMPTED)

    @contextlib.contextmanager
    def watch_preemption_scope(self) -> Iterator[None]:
        """Saves at the end of the `with` block if any worker was told to end."""
        yield
        self.save_checkpoint_if_preempted()
