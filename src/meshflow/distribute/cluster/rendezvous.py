"""Rendezvous: the listener that all processes of a job connect to at the start.

Every worker connects and sends its index in a hello message. A peer is refused and logged if it
does not have the job's secret, sends an invalid message or none, or repeats the index of a
connected worker; the rendezvous then continues to wait for the workers of the job.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Sequence

from meshflow.core.runtime.errors import DeadlineExceededError, InvalidValueError, UnavailableError
from meshflow.distribute.cluster import addresses as network
from meshflow.distribute.cluster.channel import SECRET_VARIABLE, SignedChannel, UntrustedPeerError
from meshflow.environment.types import Json

TIMEOUT_VARIABLE = "MESHFLOW_JOIN_TIMEOUT"
# Seconds that a peer may be silent after it connects, and number of such peers at a time.
_HELLO_SECONDS, _GREETINGS = 10.0, 64
# Number of refusals that are logged, so that a port scan does not fill the disk.
_MAX_LOGGED_REFUSALS = 20
_log = logging.getLogger("meshflow")


class Rendezvous:
    """Listener that waits until all workers of a job have sent a hello message.

    Args:
      host: Address to listen on; "" for all interfaces.
      port: Port number; 0 selects a free port.
      tasks: Names of the workers, such as "worker:0".
      addresses: Addresses of the workers, for error messages.
      secret: Secret of the job.
      present: Indices of workers that do not have to connect.

    Raises:
      UnavailableError: If the port is in use.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tasks: Sequence[str],
        addresses: Sequence[str],
        secret: str,
        present: Sequence[int] = (),
    ) -> None:
        self._tasks, self._addresses, self._secret = list(tasks), list(addresses), secret
        self._exempt = set(present)
        self.connections: dict[int, SignedChannel] = {}
        self._refusals: list[str] = []
        self._condition = threading.Condition()
        self._pending_slots = threading.Semaphore(_GREETINGS)
        self._pending: set[socket.socket] = set()
        self._is_open = True
        self._socket = network.open_listening_socket(host, port, self._tasks[0])
        self._socket.settimeout(0.5)
        self.port: int = self._socket.getsockname()[1]
        self._acceptor = threading.Thread(
            target=self._accept_connections, name="meshflow meeting", daemon=True
        )
        self._acceptor.start()

    def _list_missing(self) -> list[int]:
        connected = self._exempt | set(self.connections)
        return [i for i in range(len(self._tasks)) if i not in connected]

    def wait_for_workers(self, timeout: float, from_first: bool = False) -> None:
        """Wait until all workers are connected.

        Args:
          timeout: Time limit in seconds.
          from_first: Whether the time starts when the first worker connects.

        Raises:
          DeadlineExceededError: If workers are missing; the message names them and the refused
            peers.
          UnavailableError: If the rendezvous is closed meanwhile.
        """
        start = time.monotonic()
        try:
            with self._condition:
                while self._list_missing() or self._drop_disconnected():
                    if not self._is_open:
                        raise UnavailableError("The job ended before all workers had joined.")
                    if from_first and not self.connections:
                        start = time.monotonic()
                    remaining = start + timeout - time.monotonic()
                    if remaining <= 0:
                        raise DeadlineExceededError(self._format_timeout(timeout))
                    self._condition.wait(remaining)
        except Exception as error:
            for channel in list(self.connections.values()):
                _send_error(channel, error)
            self.close()
            raise

    def _drop_disconnected(self) -> bool:
        """Remove workers that disconnected before all were connected; return whether there were any."""
        disconnected = [
            index for index, channel in self.connections.items() if channel.is_disconnected()
        ]
        for index in disconnected:
            self.connections.pop(index).close()
        return bool(disconnected)

    def _format_timeout(self, timeout: float) -> str:
        names = ", ".join(f"{self._tasks[i]} ({self._addresses[i]})" for i in self._list_missing())
        refused = f" Refused meanwhile: {'; '.join(self._refusals)}." if self._refusals else ""
        return (
            f"Waited {timeout:g} s for {names} to join the cluster of {len(self._tasks)} "
            f"workers. Is it running, with the same TF_CONFIG cluster, and can it reach "
            f"{self._addresses[0]}? {TIMEOUT_VARIABLE} sets the time to wait, in seconds.{refused}"
        )

    def _accept_connections(self) -> None:
        while self._is_open:
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:
                if self._is_open:
                    time.sleep(0.1)  # no file descriptors are left, or the peer has disconnected
                continue
            self._pending_slots.acquire()
            with self._condition:
                self._pending.add(connection)
            threading.Thread(
                target=self._handle_connection, args=(connection,), daemon=True
            ).start()

    def _handle_connection(self, connection: socket.socket) -> None:
        peer = "an unknown address"
        try:
            host, port, *_ = connection.getpeername()
            peer = f"{host} port {port}"
            channel = SignedChannel(connection, self._secret, True, _HELLO_SECONDS)
            problem = self._admit_worker(channel, channel.receive())
            if problem is not None:
                self._log_refusal(peer, problem)
                _send_error(
                    channel,
                    InvalidValueError(
                        f"The processes of the cluster disagree: {problem}. "
                        'All must have the same "cluster" in TF_CONFIG, and each a "task" of its own.'
                    ),
                )
                channel.close()
        except UntrustedPeerError as reason:
            self._log_refusal(peer, str(reason))
            with contextlib.suppress(OSError):
                connection.sendall(b'{"error": "refused"}\n')
            connection.close()
        except OSError as reason:
            if self._is_open:
                self._log_refusal(
                    peer, "it sends nothing" if isinstance(reason, TimeoutError) else str(reason)
                )
            connection.close()
        finally:
            with self._condition:
                self._pending.discard(connection)
            self._pending_slots.release()

    def _admit_worker(self, channel: SignedChannel, hello: dict[str, Json]) -> str | None:
        """Add a worker to the connections, or return the reason to refuse it."""
        index, workers = hello.get("worker"), hello.get("workers")
        if type(index) is not int or type(workers) is not int:
            raise UntrustedPeerError("its hello contains no worker index")
        if workers != len(self._tasks):
            return (
                f"worker number {index} was told of a cluster of {workers} workers, "
                f"{self._tasks[0]} of {len(self._tasks)}"
            )
        if not 0 <= index < workers:
            return f"a process claims to be worker {index} of {workers}"
        if hello.get("addresses") not in (None, self._addresses):
            return (
                f"worker number {index} was told of the workers {hello['addresses']!r}, "
                f"{self._tasks[0]} of {self._addresses}"
            )
        with self._condition:
            connected = self.connections.get(index)
            if index in self._exempt or (connected is not None and not connected.is_disconnected()):
                return f"two processes say that they are {self._tasks[index]}"
            channel.set_timeout(None)
            self.connections[index] = channel
            self._pending.discard(channel.socket)
            self._condition.notify_all()
        return None

    def _log_refusal(self, peer: str, reason: str) -> None:
        with self._condition:
            if len(self._refusals) < _MAX_LOGGED_REFUSALS:
                self._refusals.append(f"{peer}, {reason[:500]}")
                _log.warning(
                    "A process at %s was refused at the meeting point: %s.", peer, reason[:500]
                )

    def send_service_address(self, service: str) -> None:
        """Send the address of the coordination service to all workers."""
        for channel in list(self.connections.values()):
            with contextlib.suppress(OSError):
                channel.send({"go": service})

    def stop_listening(self) -> None:
        """Close the listening port; connections to workers remain open."""
        with self._condition:
            self._is_open = False
            self._condition.notify_all()
        # Without the shutdown, the port would be in use as long as the other thread waits in
        # `accept`.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._condition:
            pending = list(self._pending)
        for connection in pending:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._socket.close()

    def close(self) -> None:
        """Close the port and all connections."""
        self.stop_listening()
        while self.connections:
            self.connections.popitem()[1].close()


def _send_error(channel: SignedChannel, error: Exception) -> None:
    """Send an error to a worker, unless it has disconnected."""
    with contextlib.suppress(OSError):
        channel.send({"error": str(error), "kind": type(error).__name__})


def join_rendezvous(
    address: str, hello: dict[str, Json], secret: str, task: str, host: str, timeout: float
) -> tuple[str, SignedChannel]:
    """Connect to a rendezvous; return the address of the coordination service and the connection.

    Args:
      address: Address of the rendezvous.
      hello: Index of this worker, number of workers, and their addresses.
      secret: Secret of the job.
      task: Name of this worker, for error messages.
      host: Name of the process that hosts the rendezvous, for error messages.
      timeout: Time in seconds to wait for all other workers.

    Raises:
      DeadlineExceededError: If the host does not answer or a worker does not connect in time.
      UnavailableError: If the host is not found, ends, or has another secret.
      InvalidValueError: If the host has another description of the cluster.
    """
    start = time.monotonic()
    connection = _connect_with_retry(address, task, host, timeout)
    # The host enforces the timeout and sends the reason; this side waits longer, in case the host
    # hangs.
    remaining = max(start + timeout - time.monotonic(), 1) + 5
    try:
        channel = SignedChannel(connection, secret, False, remaining)
        channel.send(hello)
        answer = channel.receive()
    except TimeoutError:
        raise DeadlineExceededError(
            f"{task} waited {timeout:g} s for an answer of {host} at {address}: another program listens "
            "there, or it is stuck."
        ) from None
    except UntrustedPeerError:
        raise UnavailableError(
            f"{task} and {host} at {address} do not know the same secret: start all workers of the job "
            f"with the same {SECRET_VARIABLE}, or all without; or another program listens there."
        ) from None
    except OSError:
        answer = {}
    if "error" in answer:
        classes = {k.__name__: k for k in (DeadlineExceededError, InvalidValueError)}
        raise classes.get(answer.get("kind", ""), UnavailableError)(answer["error"])
    if "go" not in answer:
        raise UnavailableError(
            f"{task} reached {host} at {address}, which ended before all workers had joined, or is "
            "another program."
        )
    channel.set_timeout(None)
    return answer["go"], channel


def _connect_with_retry(address: str, task: str, host: str, timeout: float) -> socket.socket:
    """Connect to an address, and retry until a process listens there."""
    start = time.monotonic()
    while True:
        try:
            return socket.create_connection(network.parse_address(address), timeout=min(5, timeout))
        except socket.gaierror as error:
            raise UnavailableError(
                f"{task} cannot resolve the address {address} of {host}: {error.strerror}. Correct the address."
            ) from None
        except OSError:
            if time.monotonic() - start >= timeout:
                raise DeadlineExceededError(
                    f"{task} waited {timeout:g} s for {host} at {address}: nothing answers there. Start "
                    f"it, or correct its address in TF_CONFIG. {TIMEOUT_VARIABLE} sets the time to wait, in seconds."
                ) from None
            time.sleep(0.1)
