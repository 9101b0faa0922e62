"""How the processes of a job find each other.

Worker 0 (or `meshflow launch`) holds a *meeting point*: every worker connects to it and says which worker
it is. When all are there it tells them the address of JAX's coordination service, which they then join.
Meeting first is what makes clear errors possible: JAX's service ends the process when somebody is missing
or a port is in use.

A worker started by `meshflow launch` keeps the connection and reports on it that it lives and makes
progress.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax

from meshflow.core import random
from meshflow.core.concrete_function import Settings
from meshflow.core.errors import DeadlineExceededError, InvalidValueError, UnavailableError

__all__ = [
    "COORDINATOR",
    "LEAVING",
    "TIMEOUT",
    "WATCHDOG",
    "MeetingPoint",
    "bind_address",
    "join_cluster",
    "messages",
]

# Set by `meshflow launch`: the address of its meeting point.
COORDINATOR = "MESHFLOW_COORDINATOR"
# Also: for how many seconds worker and launcher may not hear each other.
WATCHDOG = "MESHFLOW_WATCHDOG"
TIMEOUT = "MESHFLOW_JOIN_TIMEOUT"
# The network device for sums between CPUs, for machines with several; the variable that PyTorch reads.
INTERFACE = "GLOO_SOCKET_IFNAME"
# How often a worker tells its launcher that it lives.
_BEAT = 0.2
# How long a worker that is ready to leave waits for the others.
LEAVING = 3600


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit():
        raise InvalidValueError(f"{text!r} is not the address of a worker: expected 'host:port'.")
    return host.strip("[]") or "localhost", int(port)


def bind_address(port: int) -> str:
    """Where a service listens that is to be reached from everywhere."""
    return f"[::]:{port}" if socket.has_dualstack_ipv6() else f"0.0.0.0:{port}"


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket) -> dict[str, Any]:
    """The next line; an empty message when the other side has left or speaks another language."""
    data = b""
    while not data.endswith(b"\n") and len(data) < 1 << 16:
        # One byte at a time: what comes after the line belongs to somebody else.
        byte = connection.recv(1)
        if not byte:
            return {}
        data += byte
    try:
        message = json.loads(data)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def messages(connection: socket.socket) -> Iterator[dict[str, Any]]:
    """What a worker reports, until it is gone.

    Args:
      connection: one of a meeting point.
    """
    with _ignoring_loss():
        while message := _receive(connection):
            yield message


class MeetingPoint:
    """Waits until all workers of a job have said hello.

    Args:
      port: where to listen; 0 for any free port.
      tasks: names of the workers, such as "worker:0".
      addresses: their addresses, for errors.
      present: numbers of the workers that need not come.

    Raises:
      UnavailableError: when the port is in use.
    """

    def __init__(
        self, port: int, tasks: Sequence[str], addresses: Sequence[str], present: Sequence[int] = ()
    ) -> None:
        self._tasks, self._addresses = list(tasks), list(addresses)
        self._present = set(present)
        self.connections: dict[int, socket.socket] = {}
        dual = socket.has_dualstack_ipv6()
        self._socket = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
        if dual:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("", port))
        except OSError as error:
            self._socket.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            why = "in use by another program" if error.errno == errno.EADDRINUSE else "not allowed"
            raise UnavailableError(
                f"Port {port}, where {self._tasks[0]} must listen for the other workers, is {why}. "
                "End that program, or give TF_CONFIG another port on all workers."
            ) from None
        self._socket.listen(128)
        self.port: int = self._socket.getsockname()[1]

    def _missing(self) -> list[int]:
        known = self._present | set(self.connections)
        return [i for i in range(len(self._tasks)) if i not in known]

    def gather(self, timeout: float, from_first: bool = False) -> None:
        """Waits for all workers.

        Args:
          timeout: seconds.
          from_first: whether they count from when the first worker comes.

        Raises:
          DeadlineExceededError: naming the workers that did not come.
          InvalidValueError: when the workers were told of different clusters.
        """
        start = time.monotonic()
        try:
            while self._missing():
                left = start + timeout - time.monotonic()
                if from_first and not self.connections:
                    left, start = timeout, time.monotonic()
                if left <= 0:
                    names = ", ".join(
                        f"{self._tasks[i]} ({self._addresses[i]})" for i in self._missing()
                    )
                    raise DeadlineExceededError(
                        f"Waited {timeout:g} s for {names} to join the cluster of {len(self._tasks)} "
                        f"workers. Is it running, with the same TF_CONFIG cluster, and can it reach "
                        f"{self._addresses[0]}? {TIMEOUT} sets the time to wait, in seconds."
                    )
                self._socket.settimeout(left)
                try:
                    connection, _ = self._socket.accept()
                except TimeoutError:
                    continue
                self._greet(connection)
        except Exception as error:
            for connection in self.connections.values():
                with _ignoring_loss():
                    _send(connection, {"error": str(error), "kind": type(error).__name__})
            self.close()
            raise

    def _greet(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        try:
            hello = _receive(connection)
        except OSError:
            hello = {}
        if "worker" not in hello:
            connection.close()  # somebody who is looking for another service
            return
        number, workers = int(hello["worker"]), int(hello["workers"])
        problem = None
        if workers != len(self._tasks):
            problem = (
                f"worker number {number} was told of a cluster of {workers} workers, "
                f"{self._tasks[0]} of {len(self._tasks)}"
            )
        elif hello.get("addresses") not in (None, self._addresses):
            problem = (
                f"worker number {number} was told of the workers {hello['addresses']}, "
                f"{self._tasks[0]} of {self._addresses}"
            )
        elif number in self.connections or number in self._present:
            problem = f"two processes say that they are {self._tasks[number]}"
        if problem is None:
            connection.settimeout(None)
            self.connections[number] = connection
            return
        error = InvalidValueError(
            f'The processes of the cluster disagree: {problem}. All must have the same "cluster" in '
            'TF_CONFIG, and each a "task" of its own.'
        )
        with _ignoring_loss():
            _send(connection, {"error": str(error), "kind": type(error).__name__})
        connection.close()
        raise error

    def release(self, service: str) -> None:
        """Tells all workers where the coordination service is.

        Args:
          service: its address.
        """
        for connection in self.connections.values():
            with _ignoring_loss():
                _send(connection, {"go": service})

    def stop_listening(self) -> None:
        """Gives the port back; connections stay."""
        self._socket.close()

    def close(self) -> None:
        """Ends it, with all connections."""
        self._socket.close()
        for connection in self.connections.values():
            connection.close()
        self.connections.clear()


class _ignoring_loss:
    """A worker that is gone needs no answer."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, *_: Any) -> bool:
        return kind is not None and issubclass(kind, OSError)


def _meet(
    address: str, hello: dict[str, Any], me: str, host: str, timeout: float
) -> tuple[str, socket.socket]:
    """Says hello at a meeting point; returns the coordination service's address and the connection."""
    start = time.monotonic()

    def left() -> float:
        return start + timeout - time.monotonic()

    while True:
        try:
            connection = socket.create_connection(_address(address), timeout=min(5, timeout))
            break
        except socket.gaierror as error:
            raise UnavailableError(
                f"{me} does not find {host} at {address}: {error.strerror}. Correct the address."
            ) from None
        except OSError:
            if left() <= 0:
                raise DeadlineExceededError(
                    f"{me} waited {timeout:g} s for {host} at {address}: nothing answers there. Start "
                    f"it, or correct its address in TF_CONFIG. {TIMEOUT} sets the time to wait, in seconds."
                ) from None
            time.sleep(0.1)
    _send(connection, hello)
    # The other side gives up by itself and says why; only when it is stuck this side must.
    connection.settimeout(max(left(), 1) + 5)
    try:
        answer = _receive(connection)
    except TimeoutError:
        raise DeadlineExceededError(
            f"{me} waited {timeout:g} s for an answer of {host} at {address}: another program listens "
            "there, or it is stuck."
        ) from None
    except OSError:
        answer = {}
    if "error" in answer:
        kinds = {k.__name__: k for k in (DeadlineExceededError, InvalidValueError)}
        raise kinds.get(answer.get("kind", ""), UnavailableError)(answer["error"])
    if "go" not in answer:
        raise UnavailableError(
            f"{me} reached {host} at {address}, which ended before all workers had joined, or is "
            "another program."
        )
    connection.settimeout(None)
    return answer["go"], connection


def _start_service(port: int, workers: int) -> Any:
    """JAX's coordination service, in this process."""
    from jax._src.lib import _jax

    return _jax.get_distributed_runtime_service(
        bind_address(port), workers, heartbeat_timeout=100, shutdown_timeout=LEAVING
    )


def _connect(service: str, index: int, workers: int, here: str) -> None:
    # Private, and in this module only: in JAX's own `initialize` worker 0 always hosts the service,
    # which then ends with that worker.
    from jax._src import distributed, xla_bridge
    from jax._src.lib import _jax

    state = distributed.global_state
    state.coordinator_address, state.process_id, state.num_processes = service, index, workers
    state.client = _jax.get_distributed_runtime_client(
        service, index, init_timeout=120, heartbeat_timeout=100, use_compression=True
    )
    state.client.connect()
    _exit_at_once_after_errors()
    # By itself gloo listens where this machine's own name leads, on many machines the loopback device.
    interface = os.environ.get(INTERFACE)
    where = {"interface": interface} if interface else {"hostname": here}
    collectives = _jax.make_gloo_tcp_collectives(distributed_client=state.client, **where)
    xla_bridge.register_backend_factory(
        "cpu", partial(xla_bridge.make_cpu_client, collectives), fail_quietly=False
    )


def _local_address(connection: socket.socket) -> str:
    """By which address the other side reaches this machine."""
    return connection.getsockname()[0].removeprefix("::ffff:")


_joined: list[Any] = []


def join_cluster(tasks: Sequence[str], addresses: Sequence[str], index: int) -> None:
    """Makes this process one of several; must run before the first op.

    A single worker joins only to report to its launcher.

    Args:
      tasks: names of the workers, such as "worker:0".
      addresses: their addresses.
      index: this process's number among them.

    Raises:
      RuntimeError: when ops have run already.
      DeadlineExceededError: when a worker does not join in time.
      UnavailableError: when a port is in use.
      InvalidValueError: when the workers disagree about the cluster.
    """
    from jax._src import xla_bridge

    cluster = [list(tasks), list(addresses), index]
    if _joined:
        if _joined != cluster:
            raise RuntimeError(
                f"This process is {_joined[0][_joined[2]]} of {_joined[1]} already; it cannot be "
                f"{tasks[index]} of {list(addresses)} too."
            )
        return
    if len(tasks) > 1 and xla_bridge.backends_are_initialized():
        raise RuntimeError(
            "Collective ops must be configured at program startup: tensors or variables were made "
            "before. Create the MultiWorkerMirroredStrategy at the beginning of the program."
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    timeout = float(os.environ.get(TIMEOUT, 300))
    launcher = os.environ.get(COORDINATOR)
    hello = {"worker": index, "workers": len(tasks), "addresses": list(addresses)}
    if launcher:
        hello["addresses"] = None
        service, connection = _meet(launcher, hello, tasks[index], "the launcher", timeout)
        here = _local_address(connection)
        _report(connection)
    elif index == 0:
        port = _address(addresses[0])[1]
        point = MeetingPoint(port, tasks, addresses, present=[0])
        point.gather(timeout)
        # The service takes over the port: it is the one that firewalls know.
        point.stop_listening()
        from jax._src import distributed

        distributed.global_state.service = _start_service(port, len(tasks))
        point.release(addresses[0])
        here = next(map(_local_address, point.connections.values()), "localhost")
        point.close()
        service = f"localhost:{port}"
    else:
        service, connection = _meet(addresses[0], hello, tasks[index], tasks[0], timeout)
        here = _local_address(connection)
        connection.close()
    if len(tasks) > 1:
        _connect(service, index, len(tasks), here)
        _share_seeds()
    _joined.extend(cluster)


def _share_seeds() -> None:
    """Makes seeds that nobody sets worker 0's, for equal initial values, shuffling and dropout everywhere."""
    from jax._src import distributed

    client: Any = distributed.global_state.client
    key = "meshflow/entropy"
    if distributed.global_state.process_id == 0:
        client.key_value_set(key, str(random._global._entropy))
    else:
        random._global._entropy = int(client.blocking_key_value_get(key, 600_000))


def _report(connection: socket.socket) -> None:
    """Tells the launcher that this process lives, and how often it made progress; ends with it."""
    steps = 0

    def progress() -> None:
        nonlocal steps
        steps += 1

    def work() -> None:
        while True:
            try:
                _send(connection, {"steps": steps})
            except OSError:
                # Without its launcher a worker has nobody to be restarted by.
                os._exit(1)
            time.sleep(_BEAT)

    Settings.progress = progress
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # A network that is gone closes no connection: without this, sending "succeeds" for minutes.
        silent = float(os.environ.get(WATCHDOG, 600))
        connection.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(int(silent * 1000), 1)
        )
    threading.Thread(target=work, name="meshflow report", daemon=True).start()


def _exit_at_once_after_errors() -> None:
    """Lets a process that failed leave without waiting for the others, who wait for it."""
    failed = threading.Event()
    previous = sys.excepthook

    def note(*error: Any) -> None:
        failed.set()
        previous(*error)

    def leave() -> None:
        if failed.is_set():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    sys.excepthook = note
    atexit.register(leave)
