"""The network of a simulation, in place of the module `socket`.

Connections are streams as those of TCP: bytes arrive in order or not at all, in pieces of any size, after any time. What
is sent on two connections arrives in any order. A connection that breaks does so at each end at another time, so a call
may be executed after its caller has repeated it on another connection.
"""

import collections
import errno
import socket

from simulation.scheduler import Facade, world

HOST = "127.0.0.1"
# Simulated seconds until a connection to a process that does not answer fails.
CONNECT_SECONDS = 20.0


class Network:
    """Listeners, latencies and partitions of a simulation.

    Attributes:
      latency: Mean latency in seconds.
      slow: Probability of a latency of up to `slow_seconds`.
      split: Probability that a message arrives in pieces.
      stall: Probability that a thread does not run for up to `slow_seconds` after it has received bytes.
    """

    def __init__(self, here):
        self.world = here
        self.listeners, self.next_port = {}, 20000
        self.latency, self.slow, self.slow_seconds, self.split = 0.001, 0.0, 3.0, 0.1
        self.stall = 0.0
        self.connections = []
        # By pair of processes, the time at which they reach each other again.
        self.partitions = {}

    def draw_latency(self):
        rng = self.world.rng
        seconds = rng.expovariate(1 / self.latency)
        if self.slow and rng.random() < self.slow:
            seconds += rng.random() * self.slow_seconds
        return seconds

    def get_partition_end(self, one, other):
        """The seconds until two processes reach each other; 0 if they do."""
        end = self.partitions.get(frozenset((one.name, other.name)), 0.0)
        return max(end - self.world.now, 0.0)

    def partition(self, one, other, seconds):
        self.world.note(one.name, f"does not reach {other.name} for {seconds:.1f} s")
        self.partitions[frozenset((one.name, other.name))] = self.world.now + seconds

    def reset(self, end):
        """Break a connection, at the two ends at different times, with some of what is under way."""
        if end.peer is None or end.is_closed or end.error is not None:
            return
        self.world.note(end.process.name, f"loses its connection to {end.peer.process.name}")
        end.break_off(ConnectionResetError(errno.ECONNRESET, "connection reset"))
        peer = end.peer
        peer.deliver_later("reset", None, self.world.rng.choice([0.0, 0.5, 5.0]))


class Socket:
    """A simulated socket: a listener, or one end of a connection."""

    family = socket.AF_INET

    def __init__(self, family=socket.AF_INET, kind=socket.SOCK_STREAM, process=None):
        here = world()
        here.check_alive()
        self.world, self.process = here, process or here.current.process
        self.network = here.services["network"]
        self.process.objects[self] = None
        self.timeout = None
        self.port = self.peer = None
        self.is_listening = self.is_closed = False
        # The received data, and the end of the stream.
        self.inbox, self.is_at_end, self.error = bytearray(), False, None
        self.has_shut_down = False
        self.backlog, self.readers = [], []
        self.incoming, self.last_delivery = collections.deque(), 0.0

    # ---- options ---------------------------------------------------------------------------

    def settimeout(self, timeout):
        self.timeout = timeout

    def setsockopt(self, *_):
        pass

    def getsockname(self):
        return HOST, self.port or 0

    def getpeername(self):
        if self.peer is None:
            raise OSError(errno.ENOTCONN, "not connected")
        return HOST, self.peer.port or 0

    def fileno(self):
        return -1 if self.is_closed else id(self)

    # ---- listeners -------------------------------------------------------------------------

    def bind(self, address):
        listeners, port = self.network.listeners, address[1]
        if not port:
            self.network.next_port += 1
            port = self.network.next_port
        if port in listeners:
            raise OSError(errno.EADDRINUSE, "address already in use")
        self.port = port

    def listen(self, *_):
        self.is_listening = True
        self.network.listeners[self.port] = self

    def accept(self):
        here = self.world
        here.check_alive()

        def is_ready():
            if not self.backlog and (self.has_shut_down or self.is_closed):
                raise OSError(errno.EINVAL, "the listener is closed")
            return self.backlog

        if not here.wait_until(is_ready, self.readers, self.timeout):
            raise TimeoutError("timed out")
        return self.backlog.pop(0), (HOST, 0)

    def connect(self, address):
        """Connect to a listener of the simulation."""
        here, network = self.world, self.network
        here.check_alive()
        limit = CONNECT_SECONDS if self.timeout is None else self.timeout
        here.sleep(min(network.draw_latency(), limit))
        listener = network.listeners.get(address[1])
        if listener is None or listener.process.is_dead or not listener.is_listening:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
        wait = network.get_partition_end(self.process, listener.process)
        if wait:
            here.sleep(min(wait, limit))
            if wait >= limit:
                raise TimeoutError("timed out")
            if listener.process.is_dead or not listener.is_listening:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
        # The system accepts the connection, even if the process does not.
        other = Socket(process=listener.process)
        other.peer, other.port, self.peer = self, address[1], other
        network.next_port += 1
        self.port = network.next_port
        network.connections.append(self)
        listener.backlog.append(other)
        here.wake(listener.readers)

    # ---- streams ---------------------------------------------------------------------------

    def sendall(self, data):
        here = self.world
        self._check_open()
        if self.has_shut_down or self.is_at_end:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        data = bytes(data)
        rng = here.rng
        if len(data) > 1 and rng.random() < self.network.split:
            cut = 1 + int(rng.random() * (len(data) - 1))
            self.peer.deliver_later("data", data[:cut])
            here.yield_now()
            self._check_open()
            self.process.burn("send")
            data = data[cut:]
        self.peer.deliver_later("data", data)
        self.process.burn("send")
        here.preempt()

    def send(self, data):
        self.sendall(data)
        return len(data)

    def recv(self, size, flags=0):
        data = self._wait_for_data(flags)
        chunk = bytes(data[:size])
        if not flags & socket.MSG_PEEK:
            del data[: len(chunk)]
        return chunk

    def recv_into(self, buffer):
        data = self._wait_for_data()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        del data[:count]
        return count

    def _wait_for_data(self, flags=0):
        here = self.world
        here.check_alive()

        def is_ready():
            if self.inbox or self.is_at_end:
                return True
            self._check_open()
            if flags & socket.MSG_DONTWAIT:
                raise BlockingIOError(errno.EAGAIN, "no data")
            return False

        if not here.wait_until(is_ready, self.readers, self.timeout):
            raise TimeoutError("timed out")
        if self.network.stall and here.rng.random() < self.network.stall:
            here.sleep(here.rng.random() * self.network.slow_seconds)
        return self.inbox

    def _check_open(self):
        self.world.check_alive()
        if self.error is not None:
            raise self.error
        if self.is_closed:
            raise OSError(errno.EBADF, "bad file descriptor")

    def deliver_later(self, kind, data, delay=0.0):
        """Have data, or the end of the stream, arrive here after what was sent before."""
        here = self.world
        at = max(here.now + delay + self.network.draw_latency(), self.last_delivery)
        self.last_delivery = at
        self.incoming.append((kind, data))
        here.after(at - here.now, self._deliver)

    def _deliver(self):
        if self.is_closed or self.process.is_dead or self.error is not None:
            return
        wait = self.network.get_partition_end(self.process, self.peer.process)
        if wait:
            self.world.after(wait, self._deliver)
            return
        kind, data = self.incoming.popleft()
        if kind == "data":
            if not self.is_at_end:
                self.inbox += data
        elif kind == "end":
            self.is_at_end = True
        else:
            self.break_off(ConnectionResetError(errno.ECONNRESET, "connection reset"))
        self.world.wake_all(self.readers)

    def break_off(self, error):
        self.error = error
        self.inbox.clear()
        self.world.wake_all(self.readers)

    # ---- the end ---------------------------------------------------------------------------

    def shutdown(self, *_):
        self.world.check_alive()
        if self.peer is None and not self.is_listening:
            raise OSError(errno.ENOTCONN, "not connected")
        self.has_shut_down = self.is_at_end = True
        self._stop_listening()
        if self.peer is not None:
            self.peer.deliver_later("end", None)
        self.world.wake_all(self.readers)

    def close(self):
        if self.world.current is not None and self.world.current.process.is_dead:
            return
        self.abandon()
        self.process.objects.pop(self, None)

    def abandon(self):
        """Close the socket, as the system does at the end of a process."""
        if self.is_closed:
            return
        self.is_closed = True
        self._stop_listening()
        if self.peer is not None and not (self.has_shut_down or self.process.is_silent):
            self.peer.deliver_later("end" if self.world.rng.random() < 0.5 else "reset", None)

    def _stop_listening(self):
        if self.is_listening:
            self.is_listening = False
            if self.network.listeners.get(self.port) is self:
                del self.network.listeners[self.port]
            for end in self.backlog:
                end.abandon()
            self.backlog.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def create_connection(address, timeout=None, *_, **__):
    connection = Socket()
    connection.settimeout(timeout)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def getaddrinfo(host, port, *_, **__):
    return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (HOST, port))]


SOCKET = Facade(
    socket,
    socket=Socket,
    create_connection=create_connection,
    getaddrinfo=getaddrinfo,
    gethostname=lambda: "machine",
    has_dualstack_ipv6=lambda: False,
)
