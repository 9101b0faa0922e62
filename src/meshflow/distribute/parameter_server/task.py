"""`tf.distribute.Server`: a program that is a worker or a parameter server of a cluster."""

from __future__ import annotations

import logging
import socket
from typing import Any

from meshflow.core.config import config_threading
from meshflow.core.config.session_config import ConfigProto
from meshflow.core.runtime.errors import InternalError, InvalidValueError, NotFoundError
from meshflow.distribute.cluster.cluster_spec import ClusterSpec
from meshflow.distribute.parameter_server.host import served

__all__ = ["Server", "ServerDef"]

_log = logging.getLogger("meshflow")


class ServerDef:
    """What a server is.

    Args:
      cluster: the addresses of all tasks, a `tf.train.ClusterSpec`.
      job_name: its job.
      task_index: its number in the job.
      protocol: how it is spoken to.
      default_session_config: a `ConfigProto`.

    Example:
      >>> import meshflow as tf
      >>> tf.train.ServerDef(cluster={"ps": ["localhost:2222"]}, job_name="ps").cluster.num_tasks("ps")
      1
    """

    def __init__(
        self,
        cluster: Any = (),
        job_name: str = "",
        task_index: int = 0,
        protocol: str = "",
        default_session_config: ConfigProto | None = None,
    ) -> None:
        self.cluster = ClusterSpec(dict(cluster) if cluster == () else cluster)
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
    """One task of a cluster: listens at its address, and works for the coordinator that calls.

    Args:
      server_or_cluster_def: a `tf.train.ClusterSpec`, a dictionary as it takes, or a `tf.train.ServerDef`.
      job_name: this task's job, such as "worker" or "ps"; default the only one.
      task_index: its number in the job; default the only one.
      protocol: "grpc", whose name is kept for TensorFlow's programs.
      config: a `tf.compat.v1.ConfigProto`.
      start: whether it begins at once.

    Raises:
      ValueError: when job or task are not given, and there are several.
      InternalError: when the cluster has no such job or task.
      TypeError: for something else than a cluster.
      NotFoundError: for another protocol.
      UnavailableError: when the port is in use.

    Example:
      >>> import meshflow as tf
      >>> cluster = {"worker": ["localhost:2222"], "ps": ["localhost:2223"], "chief": ["localhost:2224"]}
      >>> server = tf.distribute.Server(cluster, job_name="worker", task_index=0, start=False)
      >>> server.target, server.server_def.job_name
      ('grpc://localhost:2222', 'worker')
    """

    def __init__(
        self,
        server_or_cluster_def: Any,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: ConfigProto | None = None,
        start: bool = True,
    ) -> None:
        self._def = _described(server_or_cluster_def, job_name, task_index, protocol, config)
        _check(self._def)
        _set_threads(self._def.default_session_config)
        own = self._def
        self._serving = served(own.cluster, own.job_name, own.task_index)
        if start:
            self.start()

    def start(self) -> None:
        """Begins to listen.

        Raises:
          UnavailableError: when the port is in use.
        """
        self._serving.start()

    def join(self) -> None:
        """Waits for ever: whoever started the program ends it."""
        self._serving.join()

    @property
    def server_def(self) -> ServerDef:
        """What the server is."""
        return self._def

    @property
    def target(self) -> str:
        """Its address, with the protocol."""
        return f"{self._def.protocol}://{self._serving.address}"

    @staticmethod
    def create_local_server(config: ConfigProto | None = None, start: bool = True) -> Server:
        """A cluster of this program alone.

        Args:
          config: a `tf.compat.v1.ConfigProto`.
          start: whether it begins at once.

        Example:
          >>> import meshflow as tf
          >>> tf.distribute.Server.create_local_server().server_def.job_name
          'localhost'
        """
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        cluster = {"localhost": [f"localhost:{port}"]}
        return Server(cluster, protocol="grpc", config=config, start=start)


def _described(
    given: Any, job: str | None, task: int | None, protocol: str | None, config: Any
) -> ServerDef:
    known = given if isinstance(given, ServerDef) else None
    if known is None:
        try:
            cluster = ClusterSpec(given)
        except TypeError:
            raise TypeError(
                "Could not convert `server_or_cluster_def` to a `tf.train.ServerDef` or `tf.train.ClusterSpec`, "
                f"got {given!r}."
            ) from None
        known = ServerDef(cluster)
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
        known.cluster,
        known.job_name if job is None else job,
        known.task_index if task is None else task,
        protocol or known.protocol or "grpc",
        config or known.default_session_config,
    )


def _check(server: ServerDef) -> None:
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
        number = getattr(config, f"{kind}_op_parallelism_threads")
        if number:
            try:
                getattr(config_threading, f"set_{kind}_op_parallelism_threads")(number)
            except RuntimeError as error:
                _log.warning("Server: the number of threads stays as it is: %s", error)
