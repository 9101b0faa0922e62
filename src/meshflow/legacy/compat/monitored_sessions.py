"""`tf.compat.v1.train.MonitoredSession` and its relatives: sessions that initialize variables and call hooks."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from meshflow.checkpoint.state_file import get_checkpoint_state, latest_checkpoint
from meshflow.core.runtime.errors import AbortedError, OutOfRangeError, UnavailableError
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree, StrPath
from meshflow.legacy.compat.graph_names import (
    global_variables_initializer,
    local_variables_initializer,
)
from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.compat.saver import Saver
from meshflow.legacy.compat.session_hooks import (
    CheckpointSaverHook,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    StepCounterHook,
    SummarySaverHook,
)
from meshflow.legacy.compat.summaries import merge_all
from meshflow.legacy.graph.graph import get_default_graph
from meshflow.legacy.graph.sessions import Session

__all__ = [
    "ChiefSessionCreator",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "Scaffold",
    "SessionCreator",
    "SingularMonitoredSession",
    "WorkerSessionCreator",
    "assert_global_step",
    "basic_train_loop",
    "start_queue_runners",
]

_log = logging.getLogger("meshflow")
# Consecutive failures of a run after which its error is raised.
_MAX_FAILURES = 5


class Scaffold:
    """Operations and objects that a monitored session needs; those that are not passed are created.

    Args:
      init_op: Operation that initializes variables if there is no checkpoint.
      init_feed_dict: Values of tensors for `init_op`.
      init_fn: Function of the scaffold and the session that is called after `init_op`.
      ready_op: Ignored.
      ready_for_local_init_op: Ignored.
      local_init_op: Operation that initializes local variables and tables.
      summary_op: Serialized summaries.
      saver: The saver.
      copy_from_scaffold: Another scaffold with objects that are defaults.
      local_init_feed_dict: Values of tensors for `local_init_op`.
    """

    def __init__(
        self,
        init_op: Any = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[..., Any] | None = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        local_init_op: Any = None,
        summary_op: Any = None,
        saver: Saver | None = None,
        copy_from_scaffold: Scaffold | None = None,
        local_init_feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        other = copy_from_scaffold
        self.init_op: Any = other.init_op if init_op is None and other else init_op
        self.init_fn: Any = other.init_fn if init_fn is None and other else init_fn
        self.saver: Saver | None = other.saver if saver is None and other else saver
        self.init_feed_dict, self.local_init_feed_dict = init_feed_dict, local_init_feed_dict
        self.ready_op, self.ready_for_local_init_op = ready_op, ready_for_local_init_op
        self.local_init_op, self.summary_op = local_init_op, summary_op

    def finalize(self) -> Scaffold:
        """Create the operations and objects that were not passed."""
        graph = get_default_graph()
        if self.init_op is None:
            self.init_op = global_variables_initializer()
        if self.local_init_op is None:
            tables = graph.get_collection("table_initializer")
            self.local_init_op = graph.group([local_variables_initializer(), *tables])
        if self.summary_op is None:
            self.summary_op = merge_all()
        if self.saver is None:
            savers = graph.get_collection("savers")
            self.saver = savers[0] if savers else Saver(allow_empty=True)
        return self


class SessionCreator:
    """Interface of objects that create a session."""

    def create_session(self) -> Session:
        """Create a session with initialized variables."""
        raise NotImplementedError("Subclasses of SessionCreator need the method create_session.")


class ChiefSessionCreator(SessionCreator):
    """Creator of a session that restores the latest checkpoint, or initializes variables.

    Args:
      scaffold: See `Scaffold`.
      master: Ignored.
      config: Settings of the session.
      checkpoint_dir: Folder of checkpoints.
      checkpoint_filename_with_path: Path of the checkpoint.
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: Any = None,
        checkpoint_dir: StrPath | None = None,
        checkpoint_filename_with_path: StrPath | None = None,
    ) -> None:
        self._scaffold, self._config = scaffold or Scaffold(), config
        self._folder, self._path = checkpoint_dir, checkpoint_filename_with_path

    def create_session(self) -> Session:
        """Create the session."""
        scaffold = self._scaffold.finalize()
        session = Session(config=self._config)
        try:
            self._initialize(scaffold, session)
        except BaseException:
            session.close()
            raise
        return session

    def _initialize(self, scaffold: Scaffold, session: Session) -> None:
        path = self._path
        if path is None and self._folder is not None:
            path = latest_checkpoint(self._folder)
        if path is not None:
            assert scaffold.saver is not None
            scaffold.saver.restore(session, path)
            state = None if self._folder is None else get_checkpoint_state(self._folder)
            if state is not None and self._path is None:
                # The saver also deletes the checkpoints of earlier runs.
                scaffold.saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
        else:
            session.run(scaffold.init_op, scaffold.init_feed_dict)
            if scaffold.init_fn is not None:
                scaffold.init_fn(scaffold, session)
        session.run(scaffold.local_init_op, scaffold.local_init_feed_dict)


class WorkerSessionCreator(ChiefSessionCreator):
    """Creator of the session of a worker; a single process initializes its own variables."""


class MonitoredSession:
    """Session that initializes variables, calls hooks, and ends if one of them requests it.

    An `AbortedError` or `UnavailableError` in a run makes the creator create another session, from the latest
    checkpoint if there is one; the run is then repeated.

    Args:
      session_creator: Creator of the session.
      hooks: `SessionRunHook`s.
      stop_grace_period_secs: Ignored.
    """

    def __init__(
        self,
        session_creator: SessionCreator | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        stop_grace_period_secs: float = 120,
    ) -> None:
        self._hooks = list(hooks or [])
        self.graph = get_default_graph()
        self._was_finalized = self.graph.finalized
        for hook in self._hooks:
            hook.begin()
        self._creator = session_creator or ChiefSessionCreator()
        self.session: Any = None
        try:
            self._call_with_recovery(lambda: None)
        except BaseException as error:
            self._close(error)
            raise

    # Errors after which another session is created.
    _recovered_errors: tuple[type[Exception], ...] = (AbortedError, UnavailableError)

    def _create_session(self) -> None:
        self.coordinator = tf.train.Coordinator()
        with self.graph.as_default():
            self.session = self._creator.create_session()
        self.graph.finalize()
        for hook in self._hooks:
            hook.after_create_session(self.session, self.coordinator)

    def _call_with_recovery(self, function: Callable[[], Any]) -> Any:
        num_failures = 0
        while True:
            try:
                if self.session is None:
                    self._create_session()
                return function()
            except self._recovered_errors as error:
                num_failures += 1
                if num_failures == _MAX_FAILURES:
                    raise
                _log.info("A session failed, and is created again: %s", error)
                if self.session is not None:
                    self.session.close()
                    self.session = None

    def run(
        self,
        fetches: PyTree,
        feed_dict: Mapping[Any, Any] | None = None,
        options: object = None,
        run_metadata: object = None,
    ) -> PyTree:
        """Run operations as `Session.run`, with the fetches and feeds of hooks.

        Raises:
          RuntimeError: If two hooks feed the same tensor, the session is closed, or a hook has requested the end.
        """
        self._check_running()
        return self._call_with_recovery(
            lambda: self._run_with_hooks(fetches, feed_dict, options, run_metadata)
        )

    def _check_running(self) -> None:
        if self.should_stop():
            raise RuntimeError("Run called even after should_stop requested.")

    def _run_with_hooks(
        self,
        fetches: PyTree,
        feed_dict: Mapping[Any, Any] | None = None,
        options: object = None,
        run_metadata: object = None,
    ) -> PyTree:
        arguments = SessionRunArgs(fetches, feed_dict)
        context = SessionRunContext(arguments, self.session)
        feeds, added = dict(feed_dict or {}), {}
        for index, hook in enumerate(self._hooks):
            extra = hook.before_run(context)
            if extra is None:
                continue
            if extra.fetches is not None:
                added[str(index)] = extra.fetches
            for key, value in (extra.feed_dict or {}).items():
                if key in feeds:
                    raise RuntimeError(f"Same tensor is fed by two hooks: {key}.")
                feeds[key] = value
        results, of_hooks = self.session.run((fetches, added), feeds)
        for index, hook in enumerate(self._hooks):
            hook.after_run(
                context, SessionRunValues(of_hooks.get(str(index)), options, run_metadata)
            )
        if context.stop_requested:
            self.coordinator.request_stop()
        return results

    def run_step_fn(self, step_fn: Callable[..., Any]) -> Any:
        """Call a function of a context with the `session`, `run_with_hooks` and `request_stop`.

        Raises:
          RuntimeError: If the session is closed, or a hook has requested the end.
          ValueError: If the parameter of the function is not `step_context`.
        """
        if list(inspect.signature(step_fn).parameters) != ["step_context"]:
            raise ValueError(
                f"`step_fn` must have one parameter with the name `step_context`: {step_fn}."
            )
        self._check_running()
        return self._call_with_recovery(
            lambda: step_fn(_StepContext(self.session, self._run_with_hooks))
        )

    def should_stop(self) -> bool:
        """Return whether a hook has requested the end, or the session is closed."""
        return self.session is None or bool(self.coordinator.should_stop())

    def close(self) -> None:
        """Call `end` of the hooks, and close the session."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        try:
            if error is None and self.session is not None:
                for hook in self._hooks:
                    hook.end(self.session)
        finally:
            if self.session is not None:
                self.session.close()
                self.session = None
            self.graph.finalized = self._was_finalized

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:  # fmt: skip
        is_end = isinstance(error, (OutOfRangeError, StopIteration))
        self._close(None if is_end else error)
        # The end of the data ends training.
        return is_end


class _StepContext:
    """Argument of the function of `run_step_fn`."""

    def __init__(self, session: Session, run_with_hooks: Callable[..., Any]) -> None:
        self.session, self.run_with_hooks = session, run_with_hooks

    def request_stop(self) -> None:
        """End training at once.

        Raises:
          StopIteration: Always; the `with` block of the session ends without an error.
        """
        raise StopIteration("step_fn has requested the iterations to stop.")


class SingularMonitoredSession(MonitoredSession):
    """`MonitoredSession` with a method that returns the session, and without recovery from errors.

    Args:
      hooks: `SessionRunHook`s.
      scaffold: See `Scaffold`.
      master: Ignored.
      config: Settings of the session.
      checkpoint_dir: Folder of checkpoints.
      stop_grace_period_secs: Ignored.
      checkpoint_filename_with_path: Path of the checkpoint.
    """

    _recovered_errors = ()

    def __init__(
        self,
        hooks: Sequence[SessionRunHook] | None = None,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: Any = None,
        checkpoint_dir: StrPath | None = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: StrPath | None = None,
    ) -> None:
        creator = ChiefSessionCreator(
            scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path
        )
        super().__init__(creator, hooks)

    def raw_session(self) -> Session:
        """Return the session."""
        session: Session = self.session
        return session


def MonitoredTrainingSession(
    master: str = "",
    is_chief: bool = True,
    checkpoint_dir: StrPath | None = None,
    scaffold: Scaffold | None = None,
    hooks: Sequence[SessionRunHook] | None = None,
    chief_only_hooks: Sequence[SessionRunHook] | None = None,
    save_checkpoint_secs: float | None = None,
    save_summaries_steps: int | None = None,
    save_summaries_secs: float | None = None,
    config: Any = None,
    stop_grace_period_secs: float = 120,
    log_step_count_steps: int | None = 100,
    max_wait_secs: float = 7200,
    save_checkpoint_steps: int | None = None,
    summary_dir: StrPath | None = None,
    save_graph_def: bool = True,
) -> MonitoredSession:
    """Create a `MonitoredSession` for training, which saves checkpoints and summaries.

    Args:
      master: Ignored.
      is_chief: Whether this process saves.
      checkpoint_dir: Folder of checkpoints.
      scaffold: See `Scaffold`.
      hooks: `SessionRunHook`s.
      chief_only_hooks: More hooks of the process that saves.
      save_checkpoint_secs: Interval of checkpoints in seconds. Default: 600, if `save_checkpoint_steps` is None.
      save_summaries_steps: Interval of summaries in steps. Default: 100, if `save_summaries_secs` is None.
      save_summaries_secs: Interval of summaries in seconds.
      config: Settings of the session.
      stop_grace_period_secs: Ignored.
      log_step_count_steps: Interval in steps at which the steps per second are logged, or None.
      max_wait_secs: Ignored.
      save_checkpoint_steps: Interval of checkpoints in steps.
      summary_dir: Folder of summaries. Default: `checkpoint_dir`.
      save_graph_def: Ignored.
    """
    if save_summaries_steps is None and save_summaries_secs is None:
        save_summaries_steps = 100
    if save_checkpoint_steps is None and save_checkpoint_secs is None:
        save_checkpoint_secs = 600
    scaffold, folder = scaffold or Scaffold(), summary_dir or checkpoint_dir
    all_hooks = list(chief_only_hooks or []) if is_chief else []
    if is_chief and folder:
        if log_step_count_steps and log_step_count_steps > 0:
            all_hooks.append(StepCounterHook(log_step_count_steps, output_dir=folder))
        if (save_summaries_steps or 0) > 0 or (save_summaries_secs or 0) > 0:
            all_hooks.append(
                SummarySaverHook(
                    save_summaries_steps, save_summaries_secs, folder, scaffold=scaffold
                )
            )
    saves = (save_checkpoint_secs or 0) > 0 or (save_checkpoint_steps or 0) > 0
    if is_chief and checkpoint_dir and saves:
        all_hooks.append(
            CheckpointSaverHook(
                checkpoint_dir, save_checkpoint_secs, save_checkpoint_steps, scaffold=scaffold
            )
        )
    creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir)
    return MonitoredSession(creator, [*all_hooks, *(hooks or [])])


def assert_global_step(global_step_tensor: Variable) -> None:
    """Check that a variable is a scalar integer.

    Raises:
      TypeError: If it is not.
    """
    if not global_step_tensor.dtype.is_integer or global_step_tensor.shape.rank not in (0, None):
        raise TypeError(
            f"Existing 'global_step' must be a scalar integer, got {global_step_tensor}."
        )


def basic_train_loop(
    supervisor: Any, train_step_fn: Callable[..., Any], args: tuple[object, ...] | None = None, kwargs: Mapping[str, object] | None = None, master: str = ""
) -> None:  # fmt: skip
    """Call a function of a session until a supervisor stops.

    Args:
      supervisor: Object with the methods `managed_session` and `should_stop`.
      train_step_fn: Function of the session, `args` and `kwargs`.
      args: Positional arguments.
      kwargs: Keyword arguments.
      master: Ignored.
    """
    with supervisor.managed_session(master) as session:
        while not supervisor.should_stop():
            train_step_fn(session, *(args or ()), **(kwargs or {}))


def start_queue_runners(
    sess: object = None,
    coord: object = None,
    daemon: bool = True,
    start: bool = True,
    collection: object = "queue_runners",
) -> list[object]:
    """Return an empty list: datasets provide elements without threads of queues. The arguments are ignored."""
    return []
