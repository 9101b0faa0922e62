"""Servers and workers that are started externally; see `tf.distribute.Server`.

Such a process listens at its address in the cluster until a coordinator connects, works for it
until it stops, and then listens again, so it is also available to a coordinator that was restarted.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from meshflow.core.runtime.errors import FailedPreconditionError
from meshflow.distribute.cluster.addresses import (
    choose_listening_host,
    find_route_address,
    is_loopback,
    open_listening_socket,
    parse_address,
)
from meshflow.distribute.cluster.channel import SECRET_VARIABLE, get_secret
from meshflow.distribute.cluster.cluster_spec import ClusterSpec
from meshflow.distribute.parameter_server.transport.connection import (
    Connection,
    ConnectionLostError,
    accept_connections,
    close_listener,
    connect,
)

# The listeners in this process, by address.
_local_listeners: dict[str, TaskListener] = {}
# Seconds between two attempts to connect to a process that does not listen yet.
_RETRY_SECONDS = 0.5
# Seconds that a process may take to confirm a request.
_REPLY_SECONDS = 20.0


def get_job_secret(addresses: Iterable[str]) -> str:
    """Return the secret of the processes of a job.

    Args:
      addresses: Addresses of the processes.

    Raises:
      FailedPreconditionError: If they are on several machines and no secret is set.
    """
    if get_secret():
        return get_secret()
    remote = [a for a in addresses if not is_loopback(parse_address(a)[0])]
    if remote:
        raise FailedPreconditionError(
            f"A cluster with the address {remote[0]} needs a secret, because its processes run code that they "
            f"receive: set the environment variable {SECRET_VARIABLE} to the same long random text on all machines."
        )
    return _get_user_secret()


def _get_user_secret() -> str:
    """Return the secret that all processes of a user on this machine share."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshflow"
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / "secret"
    with contextlib.suppress(FileExistsError):
        temporary = cache / f"secret.{os.getpid()}.{threading.get_ident()}"
        temporary.touch(mode=0o600)
        temporary.write_text(secrets.token_hex(32))
        try:
            os.link(temporary, path)  # Linking is atomic, and the first secret wins.
        finally:
            temporary.unlink()
    if path.stat().st_uid != os.getuid() or path.stat().st_mode & 0o077:
        raise FailedPreconditionError(
            f"{path} can be read by other users. Delete it, and a new secret will be created."
        )
    return path.read_text()


class TaskListener:
    """Listener of one task of a cluster at its address.

    Args:
      cluster_spec: The addresses by job.
      job_name: "worker" or "ps". Any other job only waits, as an evaluator does.
      task_index: Index of the task in its job.
      serve: Function that makes the calling thread a server or worker of a coordinator.
    """

    def __init__(
        self,
        cluster_spec: ClusterSpec | Mapping[str, Any],
        job_name: str,
        task_index: int,
        serve: Callable[[dict[str, Any], str], None],
    ) -> None:
        self._spec, self._job, self._task_index = ClusterSpec(cluster_spec), job_name, task_index
        self.address = self._spec.task_address(job_name, task_index)
        self._serve = serve
        self._stop_requested = threading.Event()
        self._listener: socket.socket | None = None
        self._folder: Path | None = None
        self._started = threading.Lock()

    def start(self) -> None:
        """Start to listen.

        Raises:
          UnavailableError: If the port is in use.
        """
        with self._started:
            if self._listener is not None:
                return
            if self._job not in ("worker", "ps"):
                return
            spec = self._spec
            addresses = [spec.task_address(j, i) for j in spec.jobs for i in spec.task_indices(j)]
            secret = get_job_secret(addresses)
            host, port = parse_address(self.address)
            others = [parse_address(a)[0] for a in addresses if a != self.address]
            name = f"{self._job} {self._task_index}"
            self._listener = open_listening_socket(choose_listening_host(host, others), port, name)
            _local_listeners[self.address] = self
            threading.Thread(
                target=accept_connections,
                args=(
                    self._listener,
                    secret,
                    lambda connection: self._handle_coordinator(connection, secret),
                ),
                daemon=True,
            ).start()

    def _handle_coordinator(self, connection: Connection, secret: str) -> None:
        """Work for the coordinator that has connected."""
        try:
            fields, job = connection.receive()
            if self._job == "ps" and fields.pop("durable"):
                user = os.getuid() if hasattr(os, "getuid") else "user"
                base = Path(tempfile.gettempdir()) / f"meshflow-servers-{user}"
                base.mkdir(mode=0o700, exist_ok=True)
                folder = base / job / f"server-{self._task_index}"
                if self._folder != folder:
                    self._delete_journal()
                self._folder = folder
                fields["folder"] = str(folder)
            fields.pop("durable", None)
            connection.send(True)
        finally:
            connection.close()
        self._serve(fields, secret)

    def _delete_journal(self) -> None:
        """Delete the journal of a finished job."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._folder.parent.rmdir()

    def join(self) -> None:
        """Wait until `stop` is called.

        As in TensorFlow, the program normally waits until it is killed.
        """
        self.start()
        self._stop_requested.wait()

    def stop(self) -> None:
        """Stop listening, and let `join` return."""
        with self._started:
            _local_listeners.pop(self.address, None)
            if self._listener is not None:
                close_listener(self._listener)
                self._listener = None
        self._delete_journal()
        self._stop_requested.set()


def is_in_this_process(spec: ClusterSpec) -> bool:
    """Check whether all workers and servers of a cluster have a `TaskListener` in this process.

    Args:
      spec: The addresses by job.
    """
    tasks = [spec.task_address(j, i) for j in ("worker", "ps") for i in spec.task_indices(j)]
    return all(address in _local_listeners for address in tasks)


class ExternalProcesses:
    """Launcher for processes that are started externally. It only requests their work.

    Args:
      spec: The addresses by job.
      durable: Whether servers keep a journal.
    """

    can_resize = False

    def __init__(self, spec: ClusterSpec, durable: bool) -> None:
        self._spec, self._durable = spec, durable
        self._stopped = False
        # The last error of the connection to each address, and the number of the last request.
        self._failures: dict[str, str] = {}
        self._num_starts: dict[str, int] = {}
        self._job = secrets.token_hex(8)
        self.addresses = [
            spec.task_address(j, i) for j in ("worker", "ps") for i in spec.task_indices(j)
        ]
        self.secret = get_job_secret(self.addresses)
        first = parse_address(self.addresses[0])[0]
        self.host = "127.0.0.1" if is_loopback(first) else find_route_address(first) or first

    def launch(
        self, kind: str, index: int, coordinator: str, secret: str, servers: int, num_starts: int
    ) -> None:
        """Request a process to work for the coordinator, as soon as it listens."""
        fields = {
            "kind": kind, "number": index, "coordinator": coordinator, "servers": servers,
            "num_starts": num_starts, "durable": self._durable,
        }  # fmt: skip
        self._num_starts[self._spec.task_address(kind, index)] = num_starts
        threading.Thread(target=self._request_work, args=(fields,), daemon=True).start()

    def _request_work(self, fields: dict[str, Any]) -> None:
        address = self._spec.task_address(fields["kind"], fields["number"])
        while not self._stopped and self._num_starts[address] == fields["num_starts"]:
            try:
                connection = connect(address, self.secret)
                # The process may be suspended.
                connection.socket.settimeout(_REPLY_SECONDS)
                try:
                    connection.send((fields, self._job))
                    connection.receive()
                    return
                finally:
                    connection.close()
            except ConnectionLostError as error:
                self._failures[address] = str(error)
            time.sleep(_RETRY_SECONDS)

    def describe_process(self, kind: str, index: int) -> str:
        """Return the address of a process, with the error of the last attempt to connect."""
        address = self._spec.task_address(kind, index)
        return f" ({self._failures.get(address, address)})"

    def is_dead(self, kind: str, index: int) -> bool:
        """Return False, because the owner of the processes monitors them."""
        return False

    def kill(self, kind: str, index: int) -> None:
        """Do nothing, because this process does not own the processes."""

    def stop(self) -> None:
        """Stop the requests."""
        self._stopped = True
