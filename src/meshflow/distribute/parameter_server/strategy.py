"""`ParameterServerStrategy`, for asynchronous training."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import FailedPreconditionError, InvalidValueError
from meshflow.core.tracing.trace import init_scope
from meshflow.core.variables.random_streams import STATE_NAME
from meshflow.core.variables.variable import Variable, get_full_name, get_value_shape
from meshflow.distribute.input import InputContext
from meshflow.distribute.parameter_server.cluster.cluster import (
    Cluster,
    InProcessCluster,
    WorkerSideCluster,
)
from meshflow.distribute.parameter_server.cluster.external_processes import (
    ExternalProcesses,
    is_in_this_process,
)
from meshflow.distribute.parameter_server.cluster.local_processes import LocalProcesses
from meshflow.distribute.parameter_server.cluster.ray_processes import RayProcesses
from meshflow.distribute.parameter_server.cluster.remote_cluster import RemoteCluster
from meshflow.distribute.parameter_server.cluster.roles import current_worker
from meshflow.distribute.parameter_server.extended import ParameterServerExtended
from meshflow.distribute.parameter_server.server.journal import JournalFolder
from meshflow.distribute.parameter_server.transport.gradient_compression import check_compression
from meshflow.distribute.parameter_server.transport.messages import ClosureOptions
from meshflow.distribute.parameter_server.variables.hosted_variable import (
    HostedVariable,
    Optimizer,
    get_requested_servers,
    place_on_servers,
)
from meshflow.distribute.parameter_server.variables.sharding import create_sharded_variable
from meshflow.distribute.parameter_server.worker.calls import (
    ClosureCall,
    StateNeededError,
    VariablesNeededError,
)
from meshflow.distribute.parameter_server.worker.dry_run import DryRunWorker
from meshflow.distribute.parameter_server.worker.server_client import call_outside_closure
from meshflow.distribute.strategy import Strategy, _check_variable_options
from meshflow.environment.garbage_collection import collect_garbage
from meshflow.environment.types import PyTree, StrPath

# The jobs that the cluster of a resolver may have.
_JOBS = {"chief", "evaluator", "ps", "worker"}


class ParameterServerStrategy(Strategy):
    """Asynchronous training: parameter servers hold the variables, and workers compute gradients.

    Workers do not wait for each other. Every update of a closure is applied exactly once, even if a
    worker dies.

    Args:
      cluster_resolver: Description of the processes of the cluster; None for a cluster of this
        machine or of Ray.
      variable_partitioner: A `tf.distribute.experimental.partitioners.Partitioner`, which decides
        into how many shards a variable is split.
      engine: Without a resolver: "ray" for processes on a Ray cluster (the default), "processes"
        for processes of this machine, "threads" for servers and workers in this process.
      workers: Number of workers, without a resolver.
      servers: Number of parameter servers, without a resolver.
      address: Address of a Ray cluster. By default, the connected cluster, or a new one on this
        machine.
      resources_per_worker: Resources that Ray reserves for each worker, for example `{"GPU": 1}`.
        By default none.
      durable: Whether servers keep a journal on disk, from which a server that died is restored.
      backup_dir: Folder in which the job creates a folder with the journals, which the machines of
        all servers must share. By default a temporary folder of this machine.
      patience: Seconds that the processes of the cluster may take to report to the coordinator.
      max_staleness: Maximum number of closures by which a worker may be ahead of any other active
        worker. With 0, all workers finish a closure before any starts the next one; None means no
        limit.
      queue_size: Maximum number of waiting closures; `schedule` blocks when there are as many.
      backup_closures: Whether an idle worker also runs a closure that takes another worker three
        times as long as usual. The first result is used.
      compression: How gradients are sent: None without compression, "bfloat16", or the fraction of
        the largest elements of dense gradients, for example 0.01. Elements that are left out are
        added to the worker's next gradient.
      report_every: Seconds between two progress lines on stderr, which are followed by a summary at
        the end; None for no lines.
      log_dir: Folder for curves of the same statistics, for TensorBoard; None for no curves.

    Raises:
      ValueError: For an unknown engine, or less than one worker or server.
      FailedPreconditionError: If a worker's closure creates the strategy.

    Example:
      >>> strategy = tf.distribute.ParameterServerStrategy(engine="threads", workers=2)
      >>> with strategy.scope():
      ...     counter = tf.Variable(0)
      >>> coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
      >>> @tf.function
      ... def step():
      ...     counter.assign_add(1)
      >>> for _ in range(10):
      ...     _ = coordinator.schedule(step)
      >>> coordinator.join()
      >>> int(counter)
      10
    """

    hosts_variables = True
    no_loss_scaling = "Each asynchronous worker would have its own loss scale."
    extended: ParameterServerExtended

    def __init__(
        self,
        cluster_resolver: Any = None,
        variable_partitioner: Callable[..., Sequence[int]] | None = None,
        *,
        engine: str | None = None,
        workers: int = 2,
        servers: int = 1,
        address: str | None = None,
        resources_per_worker: Mapping[str, float] | None = None,
        durable: bool = True,
        backup_dir: str | os.PathLike[str] | None = None,
        patience: float = 120.0,
        max_staleness: int | None = None,
        queue_size: int = 4096,
        backup_closures: bool = False,
        compression: str | float | None = None,
        report_every: float | None = None,
        log_dir: StrPath | None = None,
    ) -> None:
        if current_worker.worker_id is not None and engine != "threads":
            raise FailedPreconditionError(
                f"Worker {current_worker.worker_id} of parameter servers would start a cluster of its own: a closure, or a module that "
                "it imports, creates a ParameterServerStrategy. Create it in the main program, or in a function called there."
            )
        if workers < 1 or servers < 1:
            raise InvalidValueError(
                f"ParameterServerStrategy: workers and servers must be at least 1, got {workers} and {servers}."
            )
        if variable_partitioner is not None and not callable(variable_partitioner):
            raise InvalidValueError(
                f"ParameterServerStrategy: variable_partitioner must be a Partitioner, got {variable_partitioner!r}."
            )
        if max_staleness is not None and max_staleness < 0:
            raise InvalidValueError(
                f"ParameterServerStrategy: max_staleness must not be negative, got {max_staleness}."
            )
        if queue_size < 1:
            raise InvalidValueError(
                f"ParameterServerStrategy: queue_size must be at least 1, got {queue_size}."
            )
        self.options = ClosureOptions(
            max_staleness, queue_size, backup_closures, check_compression(compression), report_every,
            None if log_dir is None else os.fspath(log_dir),
        )  # fmt: skip
        self._initialize([jax.local_devices()[0]])
        self._resolver = cluster_resolver
        self._variable_partitioner = variable_partitioner
        # Servers that are separate programs have their own folders.
        has_folder = durable and engine != "threads" and cluster_resolver is None
        folder = JournalFolder(backup_dir) if has_folder else None
        if cluster_resolver is not None:
            self.cluster: Cluster = _create_cluster(cluster_resolver, durable, patience)
        elif engine == "threads":
            self.cluster = InProcessCluster(workers, servers)
        elif engine == "processes":
            launcher = LocalProcesses(folder, workers)
            self.cluster = RemoteCluster(launcher, workers, servers, patience=patience)
        elif engine in (None, "ray"):
            actors = RayProcesses(folder, workers, address, resources_per_worker)
            self.cluster = RemoteCluster(actors, workers, servers, actors.host, patience)
        else:
            raise InvalidValueError(
                f"ParameterServerStrategy: engine must be 'ray', 'processes' or 'threads', got {engine!r}."
            )
        self.extended = ParameterServerExtended(
            self, self.cluster.worker_count, len(self.cluster.servers)
        )
        # The number of hosted variables so far, which is the key of the last one.
        self.num_variables = 0
        self._optimizer_keys = itertools.count(1)
        self._server_bytes = [0] * len(self.cluster.servers)
        self._creation_lock = threading.RLock()
        # This lock is held during dry runs of closures and while functions are pickled, so that no
        # partly built object is sent. A thread that traces a function may need the lock above,
        # which is therefore held only briefly.
        self.build_lock = threading.RLock()
        # By optimizer, the variables for which servers have its slots.
        self.slot_keys: dict[int, set[int]] = {}
        self._variables: weakref.WeakValueDictionary[int, HostedVariable] = (
            weakref.WeakValueDictionary()
        )
        self._private_creators: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimizers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        # The `ClusterCoordinator` of this strategy, after it was created.
        self._cluster_coordinator: Any = None

    @classmethod
    def create_for_worker(
        cls, workers: int, servers: int, options: ClosureOptions
    ) -> ParameterServerStrategy:
        """Return the strategy that closures see in a worker's own process.

        Args:
          workers: Number of workers.
          servers: Number of parameter servers.
          options: Options of closures.
        """
        strategy = cls.__new__(cls)
        strategy.options = options
        strategy._initialize([jax.local_devices()[0]])
        strategy._resolver = strategy._variable_partitioner = None
        strategy.cluster, strategy.num_variables = WorkerSideCluster(workers, servers), 0
        strategy.extended = ParameterServerExtended(strategy, workers, servers)
        return strategy

    @property
    def cluster_resolver(self) -> Any:
        """Return the cluster resolver, or None."""
        return self._resolver

    # ---- running ---------------------------------------------------------------------------

    def run(
        self, fn: Callable[..., Any], args: PyTree = (), kwargs: PyTree = None, options: Any = None
    ) -> PyTree:
        """Call a function for the single replica of a worker; see `Strategy.run`.

        Args:
          fn: The function.
          args: Its arguments.
          kwargs: Its keyword arguments.
          options: Accepted for compatibility with TensorFlow.
        """
        self.extended.warn_outside_closure()
        return super().run(fn, args, kwargs, options)

    def reduce(self, reduce_op: Any, value: PyTree, axis: int | None = None) -> PyTree:
        """Reduce the value of the single replica along an axis; see `Strategy.reduce`.

        Args:
          reduce_op: `ReduceOp` or its name.
          value: Value of the replica.
          axis: The axis; None for no reduction.
        """
        self.extended.warn_outside_closure()
        return super().reduce(reduce_op, value, axis)

    # ---- variables -------------------------------------------------------------------------

    def _create_variable(self, next_creator: Callable[..., Variable], **kwargs: Any) -> Variable:
        _check_variable_options(kwargs)
        if kwargs.get("name") == STATE_NAME:
            # The seed of random numbers belongs to a worker.
            return next_creator(**kwargs)
        closure, is_worker = context.worker_closure, isinstance(self.cluster, WorkerSideCluster)
        if is_worker if closure is None else closure.has_private_variables:
            return next_creator(**kwargs)
        if closure is not None:
            # A variable that one worker's closure creates, such as a weight of a layer, is shared
            # by all workers. The dry run of the closure creates it, except for variables without a
            # remaining reference.
            if is_worker or not (closure.is_dry_run or context.trace):
                raise VariablesNeededError(self.num_variables)
            with init_scope():
                return call_outside_closure(self._create_variable, next_creator, **kwargs)
        if self._variable_partitioner is not None and get_requested_servers() is None:
            servers = len(self.cluster.servers)
            partitioner = self._variable_partitioner
            created: Any = create_sharded_variable(
                self.create_hosted_variable, servers, partitioner, kwargs
            )
            return created
        return self.create_hosted_variable(**kwargs)

    def create_hosted_variable(self, **kwargs: Any) -> HostedVariable:
        """Create a variable on the server with the least data, or on the servers that were requested.

        Args:
          **kwargs: Arguments of `tf.Variable`.
        """
        saved, context.variable_creators = context.variable_creators, []
        try:
            variable = HostedVariable(**kwargs)
        finally:
            context.variable_creators = saved
        if variable.dtype.name == "string" or not variable.shape.is_fully_defined():
            raise InvalidValueError(
                f"Variable {variable.name} of dtype {variable.dtype.name} and shape {variable.shape}: parameter servers host "
                "numeric variables with a fixed shape. Create this variable outside the strategy's scope."
            )
        with self._creation_lock:
            size = int(np.prod(get_value_shape(variable), dtype=np.int64)) * variable.dtype.size
            servers = get_requested_servers() or (
                self._server_bytes.index(min(self._server_bytes)),
            )
            if max(servers) >= len(self._server_bytes):
                raise InvalidValueError(
                    f"Variable {variable.name} is to be on parameter server {max(servers)}, and there are "
                    f"{len(self._server_bytes)}. Server indices start at 0."
                )
            for index in servers:
                self._server_bytes[index] += max(size, 1)
            key = self.num_variables = self.num_variables + 1
            self.cluster.host_variable(variable, key, servers)
            self._variables[key] = variable
        variable._distribute_strategy = self  # type: ignore[attr-defined]
        return variable

    def creates_private_variables(self, function: Callable[..., Any]) -> bool:
        """Check whether a function is known to create variables that belong to each worker.

        Args:
          function: The function.
        """
        with contextlib.suppress(TypeError):
            return function in self._private_creators
        return False

    def create_variables(self, call: ClosureCall, num_known: int) -> bool:
        """Create the variables of a closure for all workers, by a dry run.

        TensorFlow creates them when a function is first scheduled.

        Args:
          call: The closure.
          num_known: Number of variables when the function was sent.

        Returns:
          Whether there are more variables now, with which the closure must run again. Otherwise,
          the program keeps no reference to the closure's variables, and each worker has its own.
        """
        with self.build_lock:
            old_count = self.num_variables
            if old_count != num_known:
                return True
            while True:
                try:
                    DryRunWorker(self).run_dry(call)
                    break
                except StateNeededError as error:
                    self.create_slots(error.optimizer, error.variables)
            new_keys = range(old_count + 1, self.num_variables + 1)
            if new_keys:
                collect_garbage()
            if any(key in self._variables for key in new_keys):
                return True
            with contextlib.suppress(TypeError):
                self._private_creators.add(call.function)
            return False

    # ---- optimizers ------------------------------------------------------------------------

    def create_slots(self, optimizer: Optimizer, variables: Sequence[HostedVariable]) -> None:
        """Create the slots of an optimizer on the servers, and add the optimizer to them.

        Args:
          optimizer: The optimizer.
          variables: The variables that a closure trains.
        """
        with self._creation_lock, self.scope():
            key = self.get_optimizer_key(optimizer)
            slot_keys = self.slot_keys.get(key, set())
            if all(v.key in slot_keys for v in variables):
                return
            with place_on_servers(range(len(self.cluster.servers))):
                self._host_shared_state(optimizer)
            optimizer.build(variables)
            if (steps := optimizer._accumulated_steps) is not None:
                self.cluster.host_on_all_servers(steps)
            self.cluster.add_optimizer(key, optimizer)
            self.slot_keys[key] = slot_keys | {v.key for v in variables}

    def _host_shared_state(self, optimizer: Optimizer) -> None:
        """Host the step counter and the hyperparameters of an optimizer on all servers.

        Those that were created outside the scope are ordinary variables, which are replaced by
        hosted variables with the same value.
        """

        def host_shared(variable: Variable) -> HostedVariable:
            if isinstance(variable, HostedVariable):
                self.cluster.host_on_all_servers(variable)
                return variable
            return self.create_hosted_variable(
                initial_value=variable.numpy(), trainable=False, name=get_full_name(variable)
            )

        iterations = optimizer.iterations
        hosted = optimizer._iterations = host_shared(iterations)
        optimizer._weights = [hosted if w is iterations else w for w in optimizer._weights]
        for name, variable in optimizer._hyper_variables().items():
            optimizer._hyper[name] = host_shared(variable)

    def get_optimizer_key(self, optimizer: Optimizer) -> int:
        """Return the key of an optimizer in all processes.

        Args:
          optimizer: The optimizer.
        """
        with self._creation_lock:
            key: int | None = optimizer.__dict__.get("_hosted_key")
            if key is None:
                key = optimizer._hosted_key = next(self._optimizer_keys)
                self._optimizers[key] = optimizer
            return key

    def look_up(
        self, optimizer: int, keys: Sequence[int]
    ) -> tuple[Optimizer, list[HostedVariable]]:
        """Return the optimizer and the variables of keys.

        Args:
          optimizer: Key of the optimizer.
          keys: Keys of the variables.
        """
        return self._optimizers[optimizer], [self._variables[key] for key in keys]

    # ---- input -----------------------------------------------------------------------------

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: Any = None
    ) -> Any:
        """Return the dataset of a function; see `Strategy.distribute_datasets_from_function`.

        In a dataset function of `create_per_worker_dataset`, the context is that of the worker.

        Args:
          dataset_fn: A function that takes an `InputContext`.
          options: Accepted for compatibility with TensorFlow.
        """
        worker = 0 if context.worker_closure is None else context.worker_closure.worker_id
        return dataset_fn(InputContext(self.cluster.worker_count, worker, 1))

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Return the dataset itself, because every worker takes all of its elements.

        Args:
          dataset: A dataset.
          options: Accepted for compatibility with TensorFlow.
        """
        return dataset

    def __repr__(self) -> str:
        cluster = self.cluster
        return f"<{type(self).__name__} of {cluster.worker_count} workers and {len(cluster.servers)} servers>"


def _create_cluster(resolver: Any, durable: bool, patience: float) -> Cluster:
    """Create the cluster that a resolver describes."""
    if not hasattr(resolver, "cluster_spec"):
        raise InvalidValueError(
            "ParameterServerStrategy: cluster_resolver must be a tf.distribute.cluster_resolver.ClusterResolver, got "
            f"{resolver!r}."
        )
    spec = resolver.cluster_spec()
    unknown = sorted({*spec.jobs} - _JOBS)
    if unknown:
        raise InvalidValueError(
            f"Disallowed task type found in cluster spec: ParameterServerStrategy takes {sorted(_JOBS)}, got {unknown}."
        )
    if "chief" in spec.jobs and spec.num_tasks("chief") > 1:
        raise InvalidValueError(
            f"There must be at most one 'chief' job, and the cluster of the ParameterServerStrategy has {spec.num_tasks('chief')}."
        )
    missing = [job for job in ("worker", "ps") if job not in spec.jobs or not spec.num_tasks(job)]
    if missing:
        raise InvalidValueError(
            f"There must be at least one {missing[0]}: ParameterServerStrategy needs a cluster with the jobs 'worker' and "
            f"'ps', got {spec!r}."
        )
    workers, servers = spec.num_tasks("worker"), spec.num_tasks("ps")
    if is_in_this_process(spec):
        # The program has started all servers itself, as tests do.
        return InProcessCluster(workers, servers)
    launcher = ExternalProcesses(spec, durable)
    return RemoteCluster(
        launcher, workers, servers, launcher.host, patience, secret=launcher.secret
    )
