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
from meshflow.distribute.cluster.channel import SECRET, Channel, Mistrusted
from meshflow.environment.types import Json

__all__ = ["TIMEOUT", "Rendezvous", "join_rendezvous"]

TIMEOUT = "MESHFLOW_JOIN_TIMEOUT"
# Seconds that a peer may be silent after it connects, and number of such peers at a time.
_GREETING, _GREETINGS = 10.0, 64
# Number of refusals that are logged, so that a port scan does not fill the disk.
_TOLD = 20
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
        self._present = set(present)
        self.connections: dict[int, Channel] = {}
        self._refused: list[str] = []
        self._changed = threading.Condition()
        self._greetings = threading.Semaphore(_GREETINGS)
        self._greeted: set[socket.socket] = set()
        self._open = True
        self._socket = network.listening(host, port, self._tasks[0])
        self._socket.settimeout(0.5)
        self.port: int = self._socket.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="meshflow meeting", daemon=True)
        self._acceptor.start()

    def _missing(self) -> list[int]:
        connected = self._present | set(self.connections)
        return [i for i in range(len(self._tasks)) if i not in connected]

    def gather(self, timeout: float, from_first: bool = False) -> None:
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
            with self._changed:
                while self._missing() or self._left():
                    if not self._open:
                        raise UnavailableError("The job ended before all workers had joined.")
                    if from_first and not self.connections:
                        start = time.monotonic()
                    remaining = start + timeout - time.monotonic()
                    if remaining <= 0:
                        raise DeadlineExceededError(self._late(timeout))
                    self._changed.wait(remaining)
        except Exception as error:
            for channel in list(self.connections.values()):
                _tell(channel, error)
            self.close()
            raise

    def _left(self) -> bool:
        """Remove workers that disconnected before all were connected; return whether there were any."""
        disconnected = [index for index, channel in self.connections.items() if channel.is_gone()]
        for index in disconnected:
            self.connections.pop(index).close()
        return bool(disconnected)

    def _late(self, timeout: float) -> str:
        names = ", ".join(f"{self._tasks[i]} ({self._addresses[i]})" for i in self._missing())
        refused = f" Refused meanwhile: {'; '.join(self._refused)}." if self._refused else ""
        return (
            f"Waited {timeout:g} s for {names} to join the cluster of {len(self._tasks)} "
            f"workers. Is it running, with the same TF_CONFIG cluster, and can it reach "
            f"{self._addresses[0]}? {TIMEOUT} sets the time to wait, in seconds.{refused}"
        )

    def _accept(self) -> None:
        while self._open:
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:
                if self._open:
                    time.sleep(0.1)  # no file descriptors are left, or the peer has disconnected
                continue
            self._greetings.acquire()
            with self._changed:
                self._greeted.add(connection)
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        peer = "an unknown address"
        try:
            host, port, *_ = connection.getpeername()
            peer = f"{host} port {port}"
            channel = Channel(connection, self._secret, True, _GREETING)
            problem = self._enter(channel, channel.receive())
            if problem is not None:
                self._refuse(peer, problem)
                _tell(
                    channel,
                    InvalidValueError(
                        f"The processes of the cluster disagree: {problem}. "
                        'All must have the same "cluster" in TF_CONFIG, and each a "task" of its own.'
                    ),
                )
                channel.close()
        except Mistrusted as reason:
            self._refuse(peer, str(reason))
            with contextlib.suppress(OSError):
                connection.sendall(b'{"error": "refused"}\n')
            connection.close()
        except OSError as reason:
            if self._open:
                self._refuse(
                    peer, "it sends nothing" if isinstance(reason, TimeoutError) else str(reason)
                )
            connection.close()
        finally:
            with self._changed:
                self._greeted.discard(connection)
            self._greetings.release()

    def _enter(self, channel: Channel, hello: dict[str, Json]) -> str | None:
        """Add a worker to the connections, or return the reason to refuse it."""
        index, workers = hello.get("worker"), hello.get("workers")
        if type(index) is not int or type(workers) is not int:
            raise Mistrusted("its hello contains no worker index")
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
        with self._changed:
            connected = self.connections.get(index)
            if index in self._present or (connected is not None and not connected.is_gone()):
                return f"two processes say that they are {self._tasks[index]}"
            channel.wait(None)
            self.connections[index] = channel
            self._greeted.discard(channel.socket)
            self._changed.notify_all()
        return None

    def _refuse(self, peer: str, reason: str) -> None:
        with self._changed:
            if len(self._refused) < _TOLD:
                self._refused.append(f"{peer}, {reason[:500]}")
                _log.warning(
                    "A process at %s was refused at the meeting point: %s.", peer, reason[:500]
                )

    def release(self, service: str) -> None:
        """Send the address of the coordination service to all workers."""
        for channel in list(self.connections.values()):
            with contextlib.suppress(OSError):
                channel.send({"go": service})

    def stop_listening(self) -> None:
        """Close the listening port; connections to workers remain open."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
        # Without the shutdown, the port would be in use as long as the other thread waits in
        # `accept`.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._changed:
            pending = list(self._greeted)
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


def _tell(channel: Channel, error: Exception) -> None:
    """Send an error to a worker, unless it has disconnected."""
    with contextlib.suppress(OSError):
        channel.send({"error": str(error), "kind": type(error).__name__})


def join_rendezvous(
    address: str, hello: dict[str, Json], secret: str, task: str, host: str, timeout: float
) -> tuple[str, Channel]:
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
    connection = _connected(address, task, host, timeout)
    # The host enforces the timeout and sends the reason; this side waits longer, in case the host
    # hangs.
    remaining = max(start + timeout - time.monotonic(), 1) + 5
    try:
        channel = Channel(connection, secret, False, remaining)
        channel.send(hello)
        answer = channel.receive()
    except TimeoutError:
        raise DeadlineExceededError(
            f"{task} waited {timeout:g} s for an answer of {host} at {address}: another program listens "
            "there, or it is stuck."
        ) from None
    except Mistrusted:
        raise UnavailableError(
            f"{task} and {host} at {address} do not know the same secret: start all workers of the job "
            f"with the same {SECRET}, or all without; or another program listens there."
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
    channel.wait(None)
    return answer["go"], channel


def _connected(address: str, task: str, host: str, timeout: float) -> socket.socket:
    """Connect to an address, and retry until a process listens there."""
    start = time.monotonic()
    while True:
        try:
            return socket.create_connection(network.parse(address), timeout=min(5, timeout))
        except socket.gaierror as error:
            raise UnavailableError(
                f"{task} cannot resolve the address {address} of {host}: {error.strerror}. Correct the address."
            ) from None
        except OSError:
            if time.monotonic() - start >= timeout:
                raise DeadlineExceededError(
                    f"{task} waited {timeout:g} s for {host} at {address}: nothing answers there. Start "
                    f"it, or correct its address in TF_CONFIG. {TIMEOUT} sets the time to wait, in seconds."
                ) from None
            time.sleep(0.1)
