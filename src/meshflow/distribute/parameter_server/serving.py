"""Servers and workers that programs of their own are, at the addresses of a cluster: `tf.distribute.Server`.

They listen there until a coordinator says what it needs, work for it until it ends, and listen again: a coordinator that
was restarted finds them.
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
from collections.abc import Callable
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

# Servers that run in this process, by address.
_here: dict[str, Serving] = {}
# How long between two tries to reach a server that is not there yet.
_PAUSE = 0.5


def job_secret(addresses: Any) -> str:
    """What the processes of a job know, and nobody else.

    Args:
      addresses: those of the cluster's processes.

    Raises:
      FailedPreconditionError: when they are on several machines and no secret was set.
    """
    if own_secret():
        return own_secret()
    away = [a for a in addresses if not is_loopback(parse(a)[0])]
    if away:
        raise FailedPreconditionError(
            f"A cluster with the address {away[0]} needs a secret, as its processes run what they are sent: set the "
            f"environment variable {SECRET} to the same long random text on all machines."
        )
    return _secret_of_user()


def _secret_of_user() -> str:
    """One secret for all processes of a user on a machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshflow"
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / "secret"
    with contextlib.suppress(FileExistsError):
        made = cache / f"secret.{os.getpid()}.{threading.get_ident()}"
        made.touch(mode=0o600)
        made.write_text(secrets.token_hex(32))
        try:
            os.link(made, path)  # whole or not at all; the first one counts
        finally:
            made.unlink()
    if path.stat().st_uid != os.getuid() or path.stat().st_mode & 0o077:
        raise FailedPreconditionError(
            f"{path} can be read by others: delete it, and another is made."
        )
    return path.read_text()


class Serving:
    """One process of a cluster, at its address.

    Args:
      cluster_spec: addresses by job.
      job_name: "worker" or "ps"; any other one only waits, as an evaluator does.
      task_index: the number in the job.
      serve: `host.serve`: makes the calling thread a server or worker of a coordinator.
    """

    def __init__(
        self, cluster_spec: Any, job_name: str, task_index: int, serve: Callable[..., None]
    ) -> None:
        self._spec, self._job, self._number = ClusterSpec(cluster_spec), job_name, task_index
        self.address = self._spec.task_address(job_name, task_index)
        self._serve = serve
        self._ended = threading.Event()
        self._listener: socket.socket | None = None
        self._folder: Path | None = None
        self._started = threading.Lock()

    def start(self) -> None:
        """Begins to listen.

        Raises:
          UnavailableError: when the port is in use.
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
                args=(self._listener, secret, lambda wire: self._called(wire, secret)),
                daemon=True,
            ).start()

    def _called(self, wire: Wire, secret: str) -> None:
        """Works for the coordinator that calls."""
        try:
            fields, job = wire.receive()
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
            wire.send(True)
        finally:
            wire.close()
        self._serve(fields, secret)

    def _forget(self) -> None:
        """Removes the journal of a job that is over."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._folder.parent.rmdir()

    def join(self) -> None:
        """Waits, for ever unless `stop` is called: as in TensorFlow, whoever started the program ends it."""
        self.start()
        self._ended.wait()

    def stop(self) -> None:
        """Stops listening, and has `join` return."""
        with self._started:
            _here.pop(self.address, None)
            if self._listener is not None:
                end(self._listener)
                self._listener = None
        self._forget()
        self._ended.set()


def all_here(spec: Any) -> bool:
    """Whether all workers and servers of a cluster are `Serving` in this process.

    Args:
      spec: addresses by job.
    """
    tasks = [spec.task_address(j, i) for j in ("worker", "ps") for i in spec.task_indices(j)]
    return all(address in _here for address in tasks)


class JoinedProcesses:
    """The processes of a cluster that others begin, at addresses of their own.

    Args:
      spec: addresses by job.
      durable: whether servers write down what they do.
    """

    resizes = False

    def __init__(self, spec: Any, durable: bool) -> None:
        self._spec, self._durable = spec, durable
        self._stopped = False
        # The last failure to reach each address.
        self._failures: dict[str, str] = {}
        self._job = secrets.token_hex(8)
        self.addresses = [
            spec.task_address(j, i) for j in ("worker", "ps") for i in spec.task_indices(j)
        ]
        self.secret = job_secret(self.addresses)
        first = parse(self.addresses[0])[0]
        self.host = "127.0.0.1" if is_loopback(first) else route_to(first) or first

    def launch(self, kind: str, number: int, coordinator: str, secret: str, servers: int) -> None:
        """Asks a process to work for this coordinator, as soon as it is there."""
        fields = {"kind": kind, "number": number, "coordinator": coordinator, "servers": servers}
        threading.Thread(
            target=self._ask, args=({**fields, "durable": self._durable},), daemon=True
        ).start()

    def _ask(self, fields: dict[str, Any]) -> None:
        address = self._spec.task_address(fields["kind"], fields["number"])
        while not self._stopped:
            try:
                wire = connect(address, self.secret)
                try:
                    wire.send((fields, self._job))
                    wire.receive()
                    return
                finally:
                    wire.close()
            except Lost as error:
                self._failures[address] = str(error)
            time.sleep(_PAUSE)

    def about(self, kind: str, number: int) -> str:
        """The address of a process, and why it was not reached there."""
        address = self._spec.task_address(kind, number)
        return f" ({self._failures.get(address, address)})"

    def is_dead(self, kind: str, number: int) -> bool:
        """Not known: whoever begins the processes looks after them."""
        return False

    def kill(self, kind: str, number: int) -> None:
        """Nothing: they are not this process's."""

    def stop(self) -> None:
        """Asks for nothing more."""
        self._stopped = True
