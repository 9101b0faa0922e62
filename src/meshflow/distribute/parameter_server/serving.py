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
    is_loopback,
    listening,
    listening_host,
    parse,
    route_to,
)
from meshflow.distribute.cluster.channel import SECRET, own_secret
from meshflow.distribute.cluster.cluster_spec import ClusterSpec
from meshflow.distribute.parameter_server.wire import Lost, Wire, accepting, connect, end

__all__ = ["JoinedProcesses", "Serving", "all_here", "job_secret"]

# The listeners in this process, by address.
_here: dict[str, Serving] = {}
# Seconds between two attempts to connect to a process that does not listen yet.
_PAUSE = 0.5


def job_secret(addresses: Iterable[str]) -> str:
    """Return the secret of the processes of a job.

    Args:
      addresses: Addresses of the processes.

    Raises:
      FailedPreconditionError: If they are on several machines and no secret is set.
    """
    if own_secret():
        return own_secret()
    remote = [a for a in addresses if not is_loopback(parse(a)[0])]
    if remote:
        raise FailedPreconditionError(
            f"A cluster with the address {remote[0]} needs a secret, because its processes run code that they "
            f"receive: set the environment variable {SECRET} to the same long random text on all machines."
        )
    return _secret_of_user()


def _secret_of_user() -> str:
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


class Serving:
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
        self._spec, self._job, self._number = ClusterSpec(cluster_spec), job_name, task_index
        self.address = self._spec.task_address(job_name, task_index)
        self._serve = serve
        self._ended = threading.Event()
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
            secret = job_secret(addresses)
            host, port = parse(self.address)
            others = [parse(a)[0] for a in addresses if a != self.address]
            name = f"{self._job} {self._number}"
            self._listener = listening(listening_host(host, others), port, name)
            _here[self.address] = self
            threading.Thread(
                target=accepting,
                args=(self._listener, secret, lambda connection: self._called(connection, secret)),
                daemon=True,
            ).start()

    def _called(self, connection: Wire, secret: str) -> None:
        """Work for the coordinator that has connected."""
        try:
            fields, job = connection.receive()
            if self._job == "ps" and fields.pop("durable"):
                user = os.getuid() if hasattr(os, "getuid") else "user"
                base = Path(tempfile.gettempdir()) / f"meshflow-servers-{user}"
                base.mkdir(mode=0o700, exist_ok=True)
                folder = base / job / f"server-{self._number}"
                if self._folder != folder:
                    self._forget()
                self._folder = folder
                fields["folder"] = str(folder)
            fields.pop("durable", None)
            connection.send(True)
        finally:
            connection.close()
        self._serve(fields, secret)

    def _forget(self) -> None:
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
        self._ended.wait()

    def stop(self) -> None:
        """Stop listening, and let `join` return."""
        with self._started:
            _here.pop(self.address, None)
            if self._listener is not None:
                end(self._listener)
                self._listener = None
        self._forget()
        self._ended.set()


def all_here(spec: ClusterSpec) -> bool:
    """Check whether all workers and servers of a cluster have a `TaskListener` in this process.

    Args:
      spec: The addresses by job.
    """
    tasks = [spec.task_address(j, i) for j in ("worker", "ps") for i in spec.task_indices(j)]
    return all(address in _here for address in tasks)


class JoinedProcesses:
    """Launcher for processes that are started externally. It only requests their work.

    Args:
      spec: The addresses by job.
      durable: Whether servers keep a journal.
    """

    resizes = False

    def __init__(self, spec: ClusterSpec, durable: bool) -> None:
        self._spec, self._durable = spec, durable
        self._stopped = False
        # The last error of the connection to each address.
        self._failures: dict[str, str] = {}
        self._job = secrets.token_hex(8)
        self.addresses = [
            spec.task_address(j, i) for j in ("worker", "ps") for i in spec.task_indices(j)
        ]
        self.secret = job_secret(self.addresses)
        first = parse(self.addresses[0])[0]
        self.host = "127.0.0.1" if is_loopback(first) else route_to(first) or first

    def launch(self, kind: str, index: int, coordinator: str, secret: str, servers: int) -> None:
        """Request a process to work for the coordinator, as soon as it listens."""
        fields = {"kind": kind, "number": index, "coordinator": coordinator, "servers": servers}
        threading.Thread(
            target=self._ask, args=({**fields, "durable": self._durable},), daemon=True
        ).start()

    def _ask(self, fields: dict[str, Any]) -> None:
        address = self._spec.task_address(fields["kind"], fields["number"])
        while not self._stopped:
            try:
                connection = connect(address, self.secret)
                try:
                    connection.send((fields, self._job))
                    connection.receive()
                    return
                finally:
                    connection.close()
            except Lost as error:
                self._failures[address] = str(error)
            time.sleep(_PAUSE)

    def about(self, kind: str, index: int) -> str:
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
