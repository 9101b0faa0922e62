"""A cluster of other processes: they report here, are watched, and are begun again when they die."""

from __future__ import annotations

import atexit
import contextlib
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from meshflow.core.runtime.errors import DeadlineExceededError, UnavailableError
from meshflow.distribute.cluster.addresses import listening, with_port
from meshflow.distribute.cluster.channel import new_secret
from meshflow.distribute.parameter_server.closures import dumps
from meshflow.distribute.parameter_server.cluster import Cluster, WorkerLostError
from meshflow.distribute.parameter_server.hosting import HostedVariable
from meshflow.distribute.parameter_server.messages import Rows, Wish
from meshflow.distribute.parameter_server.remote_server import RemoteServer
from meshflow.distribute.parameter_server.remote_worker import Book, Functions, RemoteWorker
from meshflow.distribute.parameter_server.wire import Caller, Lost, Wire, accepting, connect, end
from meshflow.distribute.parameter_server.worker import Call, Outcome

__all__ = ["Launcher", "RemoteCluster"]

# Values of up to so many bytes are kept by the coordinator.
_KEPT = 1 << 26
# How often in a row a process may end before it has reported.
_TRIES = 5

_log = logging.getLogger("meshflow")


class Launcher(Protocol):
    """Begins processes that run `host.serve`, and ends them.

    Attributes:
      resizes: whether it can begin more of them.
    """

    resizes: bool

    def launch(self, kind: str, number: int, coordinator: str, secret: str, servers: int) -> None:
        """Begins a process, in the place of one of the same kind and number if there was one."""

    def is_dead(self, kind: str, number: int) -> bool:
        """Whether a process has ended, as far as that is known here."""

    def kill(self, kind: str, number: int) -> None:
        """Ends a process that does not answer."""

    def about(self, kind: str, number: int) -> str:
        """What to say of a process that has not reported, after its name; empty for nothing."""

    def stop(self) -> None:
        """Ends all processes."""


class _Life:
    """One process, from when it reported until it is gone.

    Args:
      control: the connection it reported by.
      address: where it can be called.
      begun: how often a process of this kind and number had begun with it.
      pid: its process.
    """

    def __init__(self, control: Caller, address: str, begun: int, pid: int) -> None:
        self.control, self.address, self.begun = control, address, begun
        # What it has been sent, when it is ready for closures.
        self.book: Book | None = None
        self.gone = False
        self.pid = pid
        # Connections for closures: all, and those that nobody uses now.
        self.wires: list[Wire] = []
        self.idle: list[Wire] = []

    def close(self) -> None:
        """Ends all connections."""
        for wire in (self.control.wire, *self.wires):
            wire.close()


class RemoteCluster(Cluster):
    """Servers and workers in processes that a launcher begins.

    Args:
      launcher: begins them.
      workers: how many workers.
      servers: how many parameter servers.
      host: the address at which they find this process.
      patience: for how many seconds they may take to report.
      silence: for how many seconds one may give no sign of life.
      secret: what all of them know; default a new one, which the launcher gives to them.
    """

    lanes = 2

    def __init__(
        self,
        launcher: Launcher,
        workers: int,
        servers: int,
        host: str = "127.0.0.1",
        patience: float = 120.0,
        silence: float = 30.0,
        secret: str | None = None,
    ) -> None:
        super().__init__(servers)
        self._launcher, self._patience, self._silence = launcher, patience, silence
        self.worker_count = workers
        self._secret = secret or new_secret()
        self._lives: dict[tuple[str, int], _Life] = {}
        self._changed = threading.Condition()
        self._retired: set[int] = set()
        # By variable, the clock and the value when it was last read here.
        self._read: dict[int, tuple[int, Any]] = {}
        self._reading = threading.Lock()
        self._failed = ""
        self._strategy: Any = None
        self._functions: Functions | None = None
        self._wanted = [("ps", n) for n in range(servers)] + [("worker", n) for n in range(workers)]
        self._listener = listening(host, 0, "the coordinator of parameter servers")
        self.address = with_port(host, self._listener.getsockname()[1])
        self._in_thread(accepting, self._listener, self._secret, self._called)
        self.servers = [RemoteServer(n, self._where, self._secret) for n in range(servers)]
        atexit.register(_stop, weakref.ref(self))
        try:
            for kind, number in self._wanted:
                self._launch(kind, number)
            self._await([w for w in self._wanted if w[0] == "ps"])
        except BaseException:
            self.stop()
            raise

    def _in_thread(self, target: Callable[..., Any], *args: Any) -> None:
        threading.Thread(target=target, args=args, daemon=True, name="meshflow-cluster").start()

    def _launch(self, kind: str, number: int) -> None:
        self._launcher.launch(kind, number, self.address, self._secret, len(self.clocks))
        self._in_thread(self._until_reported, kind, number, self._begun(kind, number))

    def _begun(self, kind: str, number: int) -> int:
        with self._changed:
            life = self._lives.get((kind, number))
            return 0 if life is None else life.begun

    def _until_reported(self, kind: str, number: int, before: int) -> None:
        """Begins a process again that dies before it has reported."""
        for _ in range(_TRIES):
            while not self._launcher.is_dead(kind, number):
                with self._changed:
                    over = self._changed.wait_for(
                        lambda: self.stopped or self._begun(kind, number) > before, 0.5
                    )
                if over or (kind == "worker" and number in self._retired):
                    return
            if self.stopped:
                return
            self._launcher.launch(kind, number, self.address, self._secret, len(self.clocks))
        with self._changed:
            self._failed = f"{kind} {number} has ended {_TRIES} times before it had reported."
            self._changed.notify_all()

    def _check(self) -> None:
        if self.stopped:
            raise UnavailableError("The cluster of parameter servers has been stopped.")
        if self._failed:
            raise UnavailableError(self._failed)

    # ---- who reports -----------------------------------------------------------------------

    def _called(self, wire: Wire) -> None:
        """Serves a connection: a process that reports, or one that asks where a server is."""
        message = wire.receive()
        if message[0] == "where":
            with contextlib.suppress(UnavailableError):
                wire.send(self._where(*message[1:]))
            wire.close()
            return
        _, kind, number, address, pid = message
        control = Caller(wire)
        with self._changed:
            before = self._lives.get((kind, number))
            begun = 1 if before is None else before.begun + 1
            life = self._lives[kind, number] = _Life(control, address, begun, pid)
            started = self._strategy is not None
            self._changed.notify_all()
        with contextlib.suppress(Lost):
            if started:
                self._prepare(kind, life)
        self._watch(kind, number, life)

    def _prepare(self, kind: str, life: _Life) -> None:
        """Tells a worker what it has to know before its first closure."""
        if kind == "worker":
            life.control.call(
                "configure", list(sys.path), self.worker_count, tuple(self._strategy.options)
            )
            with self._changed:
                assert self._functions is not None
                life.book = Book(self._functions)
                self._changed.notify_all()

    def _watch(self, kind: str, number: int, life: _Life) -> None:
        """Until a process gives no sign of life; then there will be another one."""
        life.control.wire.socket.settimeout(self._silence)
        with contextlib.suppress(Lost):
            while not self.stopped:
                life.control.call("ping")
                time.sleep(min(1.0, self._silence / 4))
        with self._changed:
            life.gone = True
            self._changed.notify_all()
            if self.stopped or (kind == "worker" and number in self._retired):
                return
        life.close()
        what = "worker" if kind == "worker" else "parameter server"
        _log.warning("%s %d is gone; another one takes its place.", what.capitalize(), number)
        self.count("preemptions" if kind == "worker" else "server_restarts")
        self._launcher.kill(kind, number)
        with contextlib.suppress(Exception):
            self._launch(kind, number)

    def _await(self, wanted: Sequence[tuple[str, int]]) -> None:
        def missing() -> list[tuple[str, int]]:
            return [w for w in wanted if not self._ready(w)]

        with self._changed:
            if self._changed.wait_for(lambda: self._failed or not missing(), self._patience):
                self._check()
                return
            names = ", ".join(f"{k} {n}{self._launcher.about(k, n)}" for k, n in missing())
        raise DeadlineExceededError(
            f"ParameterServerStrategy: after {self._patience:g} s these have not reported to the coordinator at "
            f"{self.address}: {names}."
        )

    def _ready(self, which: tuple[str, int]) -> bool:
        life = self._lives.get(which)
        if life is None or life.gone:
            return False
        return which[0] == "ps" or self._strategy is None or life.book is not None

    def _where(self, number: int, known: int) -> tuple[str, int]:
        """Where a server is: one that has begun since, or the known one if it answers after all."""

        def newer() -> bool:
            life = self._lives.get(("ps", number))
            alive = life is not None and not life.gone and life.begun > known
            return self.stopped or bool(self._failed) or alive

        with self._changed:
            while not self._changed.wait_for(newer, 2.0):
                life = self._lives.get(("ps", number))
                if life is not None and not life.gone:
                    break
            self._check()
            life = self._lives["ps", number]
            return life.address, life.begun

    # ---- closures --------------------------------------------------------------------------

    def start(self, strategy: Any) -> None:
        """Waits for the workers."""
        self._functions = Functions(strategy)
        with self._changed:
            self._strategy = strategy
            ready = [(key[0], life) for key, life in self._lives.items()]
        for kind, life in ready:
            with contextlib.suppress(Lost):
                self._prepare(kind, life)
        self._await(self._wanted)

    def run(self, number: int, call: Call) -> Outcome:
        """Runs a closure on a worker.

        Raises:
          WorkerLostError: when the worker has died; what became of the closure is not known.
        """
        life = self._living(number)
        try:
            assert life.book is not None
            wire = self._idle(life)
            outcome = RemoteWorker(Caller(wire), self._strategy, life.book).run(call)
        except Lost as error:
            # Who watches it sees it too; until then nothing goes there.
            life.gone = True
            raise WorkerLostError(str(error)) from error
        except BaseException:
            life.idle.append(wire)
            raise
        life.idle.append(wire)
        return outcome

    def alive(self) -> int:
        """How many workers there are now."""
        with self._changed:
            return sum(self._ready(("worker", n)) for n in range(self.worker_count))

    def resize(self, workers: int) -> None:
        """Changes the number of workers."""
        if not self._launcher.resizes:
            raise NotImplementedError(
                "The workers of a cluster given by a resolver are programs of their own: begin or end those."
            )
        with self._changed:
            before, self.worker_count = self.worker_count, workers
            self._retired -= set(range(workers))
        for number in range(before, workers):
            self._launch("worker", number)

    def retire(self, number: int) -> None:
        """Ends a worker."""
        with self._changed:
            self._retired.add(number)
            life = self._lives.pop(("worker", number), None)
        if life is not None:
            life.close()
        self._launcher.kill("worker", number)

    def _living(self, number: int) -> _Life:
        with self._changed:
            self._changed.wait_for(
                lambda: self.stopped or self._failed or self._ready(("worker", number))
            )
            self._check()
            return self._lives["worker", number]

    def _idle(self, life: _Life) -> Wire:
        """A connection that nobody uses now."""
        try:
            return life.idle.pop()
        except IndexError:
            wire = connect(life.address, self._secret)
            life.wires.append(wire)
            return wire

    def read(self, variable: HostedVariable) -> Any:
        """The present value; it is sent only when it has changed since this process last read it."""
        with self._reading:
            clock, value = self._read.get(variable.key, (-1, None))
            known = (variable.key,)
            wish = Wish(unknown=known) if value is None else Wish(clock, known)
            change = self.servers[variable.servers[0]].exchange(None, wish)
            new = change.values.get(variable.key, value)
            if isinstance(new, Rows):
                value = value.copy()
                value[new.indices] = new.values
                new = value
            if new.nbytes <= _KEPT:
                self._read[variable.key] = change.clock, new
            return new

    def adopt(self, key: int, optimizer: Any) -> None:
        """Gives all servers the optimizer."""
        data = dumps(optimizer, self._strategy, "the optimizer")
        for server in self.servers:
            server.adopt(key, data)

    def pid(self, kind: str, number: int) -> int:
        """The process of a worker or server, on its machine.

        Args:
          kind: "worker" or "ps".
          number: its number.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready((kind, number)), self._patience)
            return self._lives[kind, number].pid

    # ---- the end ---------------------------------------------------------------------------

    def stop(self) -> None:
        """Ends workers and servers."""
        with self._changed:
            if self.stopped:
                return
            self.stopped = True
            self._changed.notify_all()
            lives = list(self._lives.values())
        end(self._listener)
        # Before connections end: Ray complains of processes that end by themselves.
        self._launcher.stop()
        for life in lives:
            life.close()
        for server in self.servers:
            server.close()


def _stop(cluster: weakref.ref[RemoteCluster]) -> None:
    """Ends the processes of a cluster, and removes its journals, when the program ends."""
    found = cluster()
    if found is not None:
        found.stop()
