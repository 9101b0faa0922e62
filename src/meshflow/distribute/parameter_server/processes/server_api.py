"""`tf.distribute.Server`, which makes a program a worker or a parameter server of a cluster."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from typing import Any, TypeAlias

from meshflow.core.config import config_threading
from meshflow.core.config.session_config import ConfigProto
from meshflow.core.runtime.errors import InternalError, InvalidValueError, NotFoundError
from meshflow.distribute.cluster.cluster_spec import ClusterSpec
from meshflow.distribute.parameter_server.processes.entry_point import make_listener

_log = logging.getLogger("meshflow")

# A cluster: the addresses of tasks, by job.
ClusterLike: TypeAlias = ClusterSpec | Mapping[str, Any]


class ServerDef:
    """Description of a task of a cluster.

    Args:
      cluster: The addresses of all tasks, a `tf.train.ClusterSpec`.
      job_name: Job of the task.
      task_index: Index of the task in its job.
      protocol: Protocol of its connections.
      default_session_config: A `ConfigProto`.

    Example:
      >>> tf.train.ServerDef(cluster={"ps": ["localhost:2222"]}, job_name="ps").cluster.num_tasks("ps")
      1
    """

    def __init__(
        self,
        cluster: ClusterLike | tuple[()] = (),
        job_name: str = "",
        task_index: int = 0,
        protocol: str = "",
        default_session_config: ConfigProto | None = None,
    ) -> None:
        self.cluster = ClusterSpec({} if cluster == () else cluster)
        self.job_name, self.task_index, self.protocol = job_name, task_index, protocol
        self.default_session_config = default_session_config or ConfigProto()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerDef) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"ServerDef(cluster={self.cluster!r}, job_name={self.job_name!r}, task_index={self.task_index}, "
            f"protocol={self.protocol!r})"
        )


class Server:
    """A task of a cluster.

    It listens at its address, and works for the coordinator that connects.

    Args:
      server_or_cluster_def: A `tf.train.ClusterSpec`, a dictionary for one, or a
        `tf.train.ServerDef`.
      job_name: Job of this task, such as "worker" or "ps". By default the only job.
      task_index: Index of the task in its job. By default the only task.
      protocol: "grpc", for compatibility with TensorFlow. The actual protocol is Meshflow's own.
      config: A `tf.compat.v1.ConfigProto`.
      start: Whether to start listening.

    Raises:
      ValueError: If the job or the task is not specified, and there are several.
      InternalError: If the cluster has no such job or task.
      TypeError: If the first argument is no cluster.
      NotFoundError: For another protocol.
      UnavailableError: If the port is in use.

    Example:
      >>> cluster = {"worker": ["localhost:2222"], "ps": ["localhost:2223"], "chief": ["localhost:2224"]}
      >>> server = tf.distribute.Server(cluster, job_name="worker", task_index=0, start=False)
      >>> server.target, server.server_def.job_name
      ('grpc://localhost:2222', 'worker')
    """

    def __init__(
        self,
        server_or_cluster_def: ServerDef | ClusterLike,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: ConfigProto | None = None,
        start: bool = True,
    ) -> None:
        self._def = _resolve_definition(
            server_or_cluster_def, job_name, task_index, protocol, config
        )
        _check_definition(self._def)
        _set_threads(self._def.default_session_config)
        definition = self._def
        self._listener = make_listener(
            definition.cluster, definition.job_name, definition.task_index
        )
        if start:
            self.start()

    def start(self) -> None:
        """Start to listen.

        Raises:
          UnavailableError: If the port is in use.
        """
        self._listener.start()

    def join(self) -> None:
        """Wait until the program is killed."""
        self._listener.join()

    @property
    def server_def(self) -> ServerDef:
        """Return the description of the task."""
        return self._def

    @property
    def target(self) -> str:
        """Return the address of the task with its protocol."""
        return f"{self._def.protocol}://{self._listener.address}"

    @staticmethod
    def create_local_server(config: ConfigProto | None = None, start: bool = True) -> Server:
        """Create a server for a cluster that consists only of this program.

        Args:
          config: A `tf.compat.v1.ConfigProto`.
          start: Whether to start listening.

        Example:
          >>> tf.distribute.Server.create_local_server().server_def.job_name
          'localhost'
        """
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        cluster = {"localhost": [f"localhost:{port}"]}
        return Server(cluster, protocol="grpc", config=config, start=start)


def _resolve_definition(
    definition: ServerDef | ClusterLike,
    job: str | None,
    task: int | None,
    protocol: str | None,
    config: ConfigProto | None,
) -> ServerDef:
    base = definition if isinstance(definition, ServerDef) else None
    if base is None:
        try:
            cluster = ClusterSpec(definition)
        except TypeError:
            raise TypeError(
                "Could not convert `server_or_cluster_def` to a `tf.train.ServerDef` or `tf.train.ClusterSpec`, "
                f"got {definition!r}."
            ) from None
        base = ServerDef(cluster)
        if job is None and len(cluster.jobs) != 1:
            raise InvalidValueError(
                f"Must specify an explicit `job_name`: the cluster has the jobs {cluster.jobs}."
            )
        job = cluster.jobs[0] if job is None else job
        tasks = cluster.task_indices(job) if job in cluster.jobs else []
        if task is None and len(tasks) > 1:
            raise InvalidValueError(
                f"Must specify an explicit `task_index`: the job {job!r} has {len(tasks)} tasks."
            )
        task = tasks[0] if task is None and tasks else task
    return ServerDef(
        base.cluster,
        base.job_name if job is None else job,
        base.task_index if task is None else task,
        protocol or base.protocol or "grpc",
        config or base.default_session_config,
    )


def _check_definition(server: ServerDef) -> None:
    if server.protocol != "grpc":
        raise NotFoundError(
            f"No server factory registered for the given ServerDef: the protocol must be 'grpc', got "
            f"{server.protocol!r}."
        )
    if server.job_name not in server.cluster.jobs:
        raise InternalError(
            f'Job "{server.job_name}" was not defined in cluster, which has {server.cluster.jobs}.'
        )
    if server.task_index not in server.cluster.task_indices(server.job_name):
        raise InternalError(
            f'Task {server.task_index} was not defined in job "{server.job_name}", which has the tasks '
            f"{server.cluster.task_indices(server.job_name)}."
        )


def _set_threads(config: ConfigProto) -> None:
    for kind in ("intra", "inter"):
        num_threads = getattr(config, f"{kind}_op_parallelism_threads")
        if num_threads:
            try:
                getattr(config_threading, f"set_{kind}_op_parallelism_threads")(num_threads)
            except RuntimeError as error:
                _log.warning("Server: cannot change the number of threads any more: %s", error)
