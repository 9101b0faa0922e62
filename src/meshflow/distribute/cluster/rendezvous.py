"""The *meeting point*, where the processes of a job find each other.

Every worker connects to it and says which worker it is. Whoever does not know the job's secret, says
nonsense or nothing, or says that it is a worker that is here already is answered, logged and forgotten:
the job goes on waiting for its workers.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from meshflow.core.runtime.errors import DeadlineExceededError, InvalidValueError, UnavailableError
from meshflow.distribute.cluster import addresses as network
from meshflow.distribute.cluster.channel import SECRET, Channel, Mistrusted

__all__ = ["TIMEOUT", "Rendezvous", "join_rendezvous"]

TIMEOUT = "MESHFLOW_JOIN_TIMEOUT"
# For how many seconds a process may be silent after it connects, and how many may be so at a time.
_GREETING, _GREETINGS = 10.0, 64
# How many refusals are told in full: a port scan must not fill a disk.
_TOLD = 20
_log = logging.getLogger("meshflow")


class Rendezvous:
    """Waits until all workers of a job have said hello.

    Args:
      host: at which address to listen; "" for all.
      port: where to listen; 0 for any free port.
      tasks: names of the workers, such as "worker:0".
      addresses: their addresses, for errors.
      secret: what they know.
      present: numbers of the workers that need not come.

    Raises:
      UnavailableError: when the port is in use.
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
        known = self._present | set(self.connections)
        return [i for i in range(len(self._tasks)) if i not in known]

    def gather(self, timeout: float, from_first: bool = False) -> None:
        """Waits for all workers.

        Args:
          timeout: seconds.
          from_first: whether they count from when the first worker comes.

        Raises:
          DeadlineExceededError: naming the workers that did not come, and who was refused.
          UnavailableError: when it is closed meanwhile.
        """
        start = time.monotonic()
        try:
            with self._changed:
                while self._missing() or self._left():
                    if not self._open:
                        raise UnavailableError("The job ended before all workers had joined.")
                    if from_first and not self.connections:
                        start = time.monotonic()
                    left = start + timeout - time.monotonic()
                    if left <= 0:
                        raise DeadlineExceededError(self._late(timeout))
                    self._changed.wait(left)
        except Exception as error:
            for channel in list(self.connections.values()):
                _tell(channel, error)
            self.close()
            raise

    def _left(self) -> bool:
        """Forgets workers that have gone before the others came; whether there were any."""
        gone = [number for number, channel in self.connections.items() if channel.is_gone()]
        for number in gone:
            self.connections.pop(number).close()
        return bool(gone)

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
                    time.sleep(0.1)  # no file descriptors are left, or the caller has gone
                continue
            self._greetings.acquire()
            with self._changed:
                self._greeted.add(connection)
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        who = "an address that is gone"
        try:
            host, port, *_ = connection.getpeername()
            who = f"{host} port {port}"
            channel = Channel(connection, self._secret, True, _GREETING)
            problem = self._enter(channel, channel.receive())
            if problem is not None:
                self._refuse(who, problem)
                _tell(
                    channel,
                    InvalidValueError(
                        f"The processes of the cluster disagree: {problem}. "
                        'All must have the same "cluster" in TF_CONFIG, and each a "task" of its own.'
                    ),
                )
                channel.close()
        except Mistrusted as reason:
            self._refuse(who, str(reason))
            with contextlib.suppress(OSError):
                connection.sendall(b'{"error": "refused"}\n')
            connection.close()
        except OSError as reason:
            if self._open:
                self._refuse(
                    who, "it says nothing" if isinstance(reason, TimeoutError) else str(reason)
                )
            connection.close()
        finally:
            with self._changed:
                self._greeted.discard(connection)
            self._greetings.release()

    def _enter(self, channel: Channel, hello: dict[str, Any]) -> str | None:
        """Takes a worker in, or says why not."""
        number, workers = hello.get("worker"), hello.get("workers")
        if type(number) is not int or type(workers) is not int:
            raise Mistrusted("it does not say which worker it is")
        if workers != len(self._tasks):
            return (
                f"worker number {number} was told of a cluster of {workers} workers, "
                f"{self._tasks[0]} of {len(self._tasks)}"
            )
        if not 0 <= number < workers:
            return f"a process says that it is worker number {number} of {workers}"
        if hello.get("addresses") not in (None, self._addresses):
            return (
                f"worker number {number} was told of the workers {hello['addresses']!r}, "
                f"{self._tasks[0]} of {self._addresses}"
            )
        with self._changed:
            known = self.connections.get(number)
            if number in self._present or (known is not None and not known.is_gone()):
                return f"two processes say that they are {self._tasks[number]}"
            channel.wait(None)
            self.connections[number] = channel
            self._greeted.discard(channel.socket)
            self._changed.notify_all()
        return None

    def _refuse(self, who: str, why: str) -> None:
        with self._changed:
            if len(self._refused) < _TOLD:
                self._refused.append(f"{who}, {why[:500]}")
                _log.warning(
                    "A process at %s was refused at the meeting point: %s.", who, why[:500]
                )

    def release(self, service: str) -> None:
        """Tells all workers where the coordination service is.

        Args:
          service: its address.
        """
        for channel in list(self.connections.values()):
            with contextlib.suppress(OSError):
                channel.send({"go": service})

    def stop_listening(self) -> None:
        """Gives the port back; the workers' connections stay."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
        # Closing alone would leave the port in use while the other thread waits at it.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._changed:
            greeted = list(self._greeted)
        for connection in greeted:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._socket.close()

    def close(self) -> None:
        """Ends it, with all connections."""
        self.stop_listening()
        while self.connections:
            self.connections.popitem()[1].close()


def _tell(channel: Channel, error: Exception) -> None:
    """A worker that is gone needs no answer."""
    with contextlib.suppress(OSError):
        channel.send({"error": str(error), "kind": type(error).__name__})


def join_rendezvous(
    address: str, hello: dict[str, Any], secret: str, me: str, host: str, timeout: float
) -> tuple[str, Channel]:
    """Says hello at a meeting point; returns the coordination service's address and the connection.

    Args:
      address: of the meeting point.
      hello: which worker this is, of how many, and their addresses.
      secret: the job's.
      me: this worker's name, for errors.
      host: who holds the meeting point, for errors.
      timeout: for how many seconds to wait for all others.

    Raises:
      DeadlineExceededError: when nobody answers, or somebody does not come, in time.
      UnavailableError: when it is not found, ends, or has another secret.
      InvalidValueError: when it was told of another cluster.
    """
    start = time.monotonic()
    connection = _connected(address, me, host, timeout)
    # The other side gives up by itself and says why; only when it is stuck this side must.
    left = max(start + timeout - time.monotonic(), 1) + 5
    try:
        channel = Channel(connection, secret, False, left)
        channel.send(hello)
        answer = channel.receive()
    except TimeoutError:
        raise DeadlineExceededError(
            f"{me} waited {timeout:g} s for an answer of {host} at {address}: another program listens "
            "there, or it is stuck."
        ) from None
    except Mistrusted:
        raise UnavailableError(
            f"{me} and {host} at {address} do not know the same secret: start all workers of the job "
            f"with the same {SECRET}, or all without; or another program listens there."
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
    channel.wait(None)
    return answer["go"], channel


def _connected(address: str, me: str, host: str, timeout: float) -> socket.socket:
    """A connection, as soon as somebody listens."""
    start = time.monotonic()
    while True:
        try:
            return socket.create_connection(network.parse(address), timeout=min(5, timeout))
        except socket.gaierror as error:
            raise UnavailableError(
                f"{me} does not find {host} at {address}: {error.strerror}. Correct the address."
            ) from None
        except OSError:
            if time.monotonic() - start >= timeout:
                raise DeadlineExceededError(
                    f"{me} waited {timeout:g} s for {host} at {address}: nothing answers there. Start "
                    f"it, or correct its address in TF_CONFIG. {TIMEOUT} sets the time to wait, in seconds."
                ) from None
            time.sleep(0.1)
