"""Checkpoints of several workers: selection of the writing worker, and checkpoints at preemption."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np

from meshflow.checkpoint import Checkpoint, CheckpointManager
from meshflow.checkpoint.object_graph import ObjectGraph
from meshflow.core.tracing.trace import init_scope
from meshflow.core.variables.variable import Variable
from meshflow.distribute.multi_worker.host_collectives import all_gather_values
from meshflow.environment.types import StrPath

if TYPE_CHECKING:
    from meshflow.distribute.cluster.resolvers import ClusterResolver

_Result = TypeVar("_Result")

# Exit code of a process that saved its state after SIGTERM, equal to that of a process killed by
# SIGTERM.
PREEMPTED_EXIT_CODE = 143


def is_true_on_any_worker(condition: bool) -> bool:
    """Check whether a condition is true on any worker; all workers must call this function."""
    return condition if jax.process_count() == 1 else any(all_gather_values(condition))


def write_once(root: object, write: Callable[[], _Result]) -> _Result | None:
    """Write a checkpoint on one worker, or on all workers if each has a part of the values.

    Args:
      root: Object that is saved; all workers must pass the same.
      write: Function that writes the checkpoint.

    Returns:
      The result of `write`, or None on workers that do not call it.
    """
    if jax.process_count() == 1:
        return write()
    graph = ObjectGraph(root)
    # Reading variables with different values on replicas, such as metrics, is a collective, so all
    # workers must read equally often.
    is_distributed = any(
        _has_remote_shards(o._value) for o in graph.objects if isinstance(o, Variable)
    )
    if is_distributed or jax.process_index() == 0:
        return write()
    for _ in graph.iterate_values():
        pass
    return None


def _has_remote_shards(value: object) -> bool:
    """Check whether other workers have shards of an array that this worker does not have."""
    sharding = getattr(value, "sharding", None)
    return sharding is not None and not (
        sharding.is_fully_addressable or sharding.is_fully_replicated
    )


class TerminationConfig:
    """Configuration of a `PreemptionCheckpointHandler`: detection of preemption, and reaction to it.

    Args:
      termination_watcher_fn: Function that returns whether this worker will be terminated; called
        once per second.
      exit_fn: Function that ends the process after saving; default `sys.exit(143)`.
      grace_period: Number of seconds to continue training before saving; default 0.
      save_fn: Function that saves instead of the handler; called with the arguments of
        `save_checkpoint_if_preempted`.

    Example:
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
    """Handler that saves a training loop after the same step on all workers if one is preempted.

    A worker is preempted by SIGTERM, or if `TerminationConfig.termination_watcher_fn` returns True.
    The constructor restores the latest checkpoint.

    Args:
      cluster_resolver: Ignored; cluster resolver of the strategy.
      checkpoint_or_checkpoint_manager: Checkpoint to save and restore.
      checkpoint_dir: Folder for a `Checkpoint`, which all workers share.
      termination_config: A `TerminationConfig`.

    Raises:
      ValueError: If a `Checkpoint` is passed without a folder.

    Example:
      >>> import tempfile
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
        cluster_resolver: ClusterResolver | None,
        checkpoint_or_checkpoint_manager: Checkpoint | CheckpointManager,
        checkpoint_dir: StrPath | None = None,
        termination_config: TerminationConfig | None = None,
    ) -> None:
        del cluster_resolver
        manager = checkpoint_or_checkpoint_manager
        if not isinstance(manager, CheckpointManager):
            if not isinstance(manager, Checkpoint):
                raise ValueError(
                    "PreemptionCheckpointHandler: checkpoint_or_checkpoint_manager must be a "
                    f"tf.train.Checkpoint or tf.train.CheckpointManager, got {manager!r}."
                )
            if not checkpoint_dir:
                raise ValueError(
                    "When a checkpoint is passed, a checkpoint_dir must be passed as well, got "
                    f"{checkpoint_dir!r}."
                )
            manager = CheckpointManager(manager, checkpoint_dir, max_to_keep=1)
        self._manager = manager
        self._config = termination_config or TerminationConfig()
        with init_scope():
            self._run_count = Variable(np.int64(0), trainable=False, name="total_run_calls")
        manager.checkpoint.preemption_total_run_calls = self._run_count
        manager.restore_or_initialize()
        self._preempted = threading.Event()
        self._preemption_time: float | None = None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: self._preempted.set())
        if self._config.termination_watcher_fn is not None:
            threading.Thread(target=self._poll_watcher, name="preemption", daemon=True).start()

    def _poll_watcher(self) -> None:
        assert self._config.termination_watcher_fn is not None
        while not self._preempted.is_set():
            if self._config.termination_watcher_fn():
                self._preempted.set()
            time.sleep(1)

    @property
    def total_run_calls(self) -> int:
        """Return the number of calls of `run`, including those before the restored checkpoint."""
        return int(self._run_count)

    def run(
        self, distributed_train_function: Callable[..., _Result], *args: Any, **kwargs: Any
    ) -> _Result:
        """Call a training function, then save and exit if any worker was preempted.

        Args:
          distributed_train_function: Function that trains for one or more steps.
          *args: Arguments of the function.
          **kwargs: Keyword arguments of the function.
        """
        result = distributed_train_function(*args, **kwargs)
        self._run_count.assign_add(1)
        self.save_checkpoint_if_preempted()
        return result

    def save_checkpoint_if_preempted(self, *args: Any, **kwargs: Any) -> None:
        """Save and exit if any worker was preempted; all workers must call this method.

        Args:
          *args: Arguments of `CheckpointManager.save`, or of `TerminationConfig.save_fn`.
          **kwargs: Keyword arguments of the same function.
        """
        if not is_true_on_any_worker(self._preempted.is_set()):
            return
        if self._preemption_time is None:
            self._preemption_time = time.monotonic()
        # The grace period may end on one worker before the others.
        if not is_true_on_any_worker(
            time.monotonic() - self._preemption_time >= (self._config.grace_period or 0)
        ):
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
        sys.exit(PREEMPTED_EXIT_CODE)

    @contextlib.contextmanager
    def watch_preemption_scope(self) -> Iterator[None]:
        """Save and exit at the end of the `with` block if any worker was preempted."""
        yield
        self.save_checkpoint_if_preempted()
