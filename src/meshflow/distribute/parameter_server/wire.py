"""Authenticated connections between the processes of a job, and remote calls over them.

A message is a pickle, followed by the bytes of its arrays. A connection starts with the handshake
of `distribute.cluster.channel`, which derives a key for it from the secret of the job. Every pickle
is signed with that key and a message counter before it is loaded, so only processes of the job can
run code here. The bytes of arrays are not signed, because they hold only data. Between processes of
one machine, large arrays are in shared memory instead; see `shared_memory`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import math
import os
import pickle
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from numpy.typing import DTypeLike

from meshflow.core.runtime import transfers
from meshflow.core.runtime.annotations import WAITING, region
from meshflow.core.runtime.errors import UnknownError
from meshflow.distribute.cluster.addresses import is_loopback, parse
from meshflow.distribute.cluster.channel import Channel, Mistrusted
from meshflow.distribute.parameter_server import segments
from meshflow.distribute.parameter_server.buffers import Buffers
from meshflow.environment.types import Array

__all__ = ["Caller", "Lost", "Wire", "answer", "connect", "dump_error"]

# Header of a message: the length of the pickle, and the number of arrays.
_HEAD = struct.Struct("!QI")
# Header of an array: its size in bytes, and the id of its segment, or 0 if the bytes follow in the
# stream. A flag marks the first use of a segment, with which its descriptor is sent. Linux sends at
# most 253 descriptors with a message.
_PLACE, _NEW, _DESCRIPTORS = struct.Struct("!QI"), 1 << 31, 253
_SIGNED = hashlib.sha256().digest_size
# Arrays of less than this many bytes in total are sent in one piece with their message.
_JOINED = 1 << 17
# A longer pickle, or more arrays, are refused.
_LONGEST, _MOST = 1 << 31, 1 << 20
# Seconds that the handshake may take.
_GREETING = 20.0
# Linux has abstract socket addresses, which are no files and disappear with the process.
_LOCAL, _NAME = sys.platform == "linux", "\0meshflow-%d"

_Buffer = TypeVar("_Buffer", bytearray, memoryview, np.ndarray)


class Lost(ConnectionError):
    """The connection is closed, or the process at its other end does not speak the protocol."""


class RemoteTraceback(Exception):
    """Traceback of an exception in another process, shown as the cause of the exception in this one.

    Args:
      text: Text of the traceback.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class _Pickler(pickle.Pickler):
    """Pickler that stores device arrays as host arrays, with their bytes outside the pickle."""

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, jax.Array):
            return _device_array, (np.asarray(obj),)
        return NotImplemented


def _device_array(array: np.ndarray) -> np.ndarray:
    """Return the array unchanged.

    Arrays are transferred to a device when they are used, because many are only forwarded.
    """
    return array


class Wire:
    """One end of a connection between processes of a job.

    Args:
      channel: The channel after its handshake.

    Attributes:
      socket: The socket of the connection.
      sent: Number of bytes sent.
      received: Number of bytes received.
    """

    def __init__(self, channel: Channel) -> None:
        self.socket = channel.socket
        self.socket.settimeout(None)
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self.socket.setsockopt(socket.SOL_SOCKET, option, 1 << 22)
        self._key, self._ways = channel.key, channel.ways
        self._counts = [0, 0]
        self.sent = self.received = 0
        # Pools of memory for large arrays that are received, and for those that the caller fills in
        # order to send them.
        self._kept, self._written = Buffers(), Buffers()
        shares_memory = segments.POSSIBLE and self.socket.family == socket.AF_UNIX
        self._outgoing = segments.Outgoing() if shares_memory else None
        self._incoming = segments.Incoming() if shares_memory else None

    def lend(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Reserve memory for an array of the next message, so that it is sent without another copy.

        Args:
          shape: Shape of the array.
          dtype: Dtype of the array, of fixed size.
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
        memory = self._outgoing.lend(size) if self._outgoing is not None else None
        return np.ndarray(shape, dtype, self._written.get(size) if memory is None else memory)

    def placing(self, sizes: Sequence[int]) -> contextlib.AbstractContextManager[None]:
        """Offer shared memory for the outputs of programs that run in this context.

        Nothing happens if the processes are on different machines.

        Args:
          sizes: The size in bytes of each output. Other outputs are in ordinary memory.
        """
        return contextlib.nullcontext() if self._outgoing is None else self._outgoing.placing(sizes)

    def fits(self, array: Array) -> bool:
        """Check whether an array would be sent without a copy.

        This holds if it is in shared memory that the receiver has released.

        Args:
          array: A NumPy array, or an array of a CPU device.
        """
        segment = self._segment_of(array)
        return segment is not None and not segment.is_used

    def reads(self, array: Array) -> bool:
        """Check whether an array is in memory that the other process reads directly.

        Args:
          array: A NumPy array, or an array of a CPU device.
        """
        return self._segment_of(array) is not None

    def is_free(self, array: Array) -> bool:
        """Check whether the other process has released the memory of an array.

        Args:
          array: A NumPy array, or an array of a CPU device.
        """
        segment = self._segment_of(array)
        return segment is None or not segment.is_used

    def _segment_of(self, array: Array) -> segments.Segment | None:
        return None if self._outgoing is None else self._outgoing.segment_of(np.asarray(array))

    def send(self, message: object) -> None:
        """Send a message.

        Args:
          message: Any object that can be pickled.

        Raises:
          ConnectionLostError: If the connection is closed.
        """
        body, arrays = dumped(message)
        new, array_headers, streamed = self._placed(arrays)
        head = _HEAD.pack(len(body), len(arrays))
        signature = self._signature(0, head + array_headers, body)
        parts: list[Any] = [head, signature, array_headers, body]
        if sum(a.nbytes for a in streamed) < _JOINED:
            # One piece wakes up the receiver only once.
            parts, streamed = [*parts, *streamed], []
        start = b"".join(parts)
        try:
            if new:
                num_sent = socket.send_fds(
                    self.socket, [start], [s.descriptor for s in new if s.descriptor is not None]
                )
                start = start[num_sent:]
            self.socket.sendall(start)
            for array in streamed:
                self.socket.sendall(array)
        except OSError as error:
            raise Lost(str(error)) from error
        finally:
            for segment in new:
                segment.close()
            if self._outgoing is not None:
                self._outgoing.sent()
        self.sent += (
            len(head) + _SIGNED + len(array_headers) + len(body) + sum(a.nbytes for a in arrays)
        )

    def _placed(
        self, arrays: list[memoryview]
    ) -> tuple[list[segments.Segment], bytes, list[memoryview]]:
        """Store large arrays in segments.

        Returns:
          The segments that the receiver does not know yet, the headers of all arrays, and the
          arrays to send after the message.
        """
        if self._outgoing is None:
            return [], b"".join(_PLACE.pack(a.nbytes, 0) for a in arrays), arrays
        new: list[segments.Segment] = []
        headers: list[bytes] = []
        streamed: list[memoryview] = []
        for array in arrays:
            segment = self._outgoing.of(array)
            if segment is None:
                streamed.append(array)
                headers.append(_PLACE.pack(array.nbytes, 0))
                continue
            is_new = segment.descriptor is not None
            if is_new:
                new.append(segment)
            headers.append(_PLACE.pack(array.nbytes, segment.number | is_new * _NEW))
        return new, b"".join(headers), streamed

    def receive(self) -> Any:
        """Receive the next message.

        Raises:
          ConnectionLostError: If the connection is closed, or the other process does not know the
            secret.
        """
        transfers.let_go()
        if self._incoming is not None:
            self._incoming.arrived()
        descriptors: list[int] = []
        try:
            return self._received(descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _received(self, descriptors: list[int]) -> Any:
        header = self._head(descriptors)
        length, count = _HEAD.unpack_from(header)
        if length > _LONGEST or count > _MOST:
            raise Lost("a message exceeds the size limits of the protocol")
        array_headers = self._read(bytearray(_PLACE.size * count))
        body = self._read(bytearray(length))
        signature = bytes(header[_HEAD.size :])
        if not hmac.compare_digest(
            signature, self._signature(1, header[: _HEAD.size] + array_headers, body)
        ):
            raise Lost("a message was not signed by a process of the job")
        new_descriptors = iter(descriptors)
        arrays = [
            self._array(size, place, new_descriptors)
            for size, place in _PLACE.iter_unpack(array_headers)
        ]
        self.received += len(header) + len(array_headers) + length + sum(a.nbytes for a in arrays)
        return pickle.loads(body, buffers=arrays)

    def _array(self, size: int, segment_word: int, new_descriptors: Iterator[int]) -> np.ndarray:
        """Receive the bytes of an array, or map the segment that holds them.

        Args:
          size: Number of bytes.
          segment_word: Id of the segment with the flag for new segments, or 0.
          new_descriptors: The descriptors of new segments that arrived with the message.
        """
        if not segment_word:
            return self._read(self._kept.get(size))
        descriptor = next(new_descriptors, None) if segment_word & _NEW else None
        if self._incoming is None or (segment_word & _NEW and descriptor is None):
            raise Lost("the descriptor of a shared memory segment did not arrive")
        try:
            return self._incoming.take(segment_word & ~_NEW, size, descriptor)
        except (OSError, ValueError) as error:
            raise Lost(str(error)) from error

    def close(self) -> None:
        """Close the connection, which also wakes up threads that wait for a message."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _head(self, descriptors: list[int]) -> bytearray:
        """Receive the header and the signature of a message, and append its descriptors."""
        header = bytearray(_HEAD.size + _SIGNED)
        if self._incoming is None:
            self._read(header)
            return header
        try:
            first, new_descriptors, _, _ = socket.recv_fds(
                self.socket, len(header), _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise Lost(str(error)) from error
        descriptors.extend(new_descriptors)
        if not first:
            raise Lost("the other process has closed the connection")
        header[: len(first)] = first
        self._read(memoryview(header)[len(first) :])
        return header

    def _read(self, buffer: _Buffer) -> _Buffer:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        try:
            while view:
                count = self.socket.recv_into(view)
                if not count:
                    raise Lost("the other process has closed the connection")
                view = view[count:]
        except OSError as error:
            if isinstance(error, Lost):
                raise
            raise Lost(str(error)) from error
        return buffer

    def _signature(
        self, direction: int, header: bytes | bytearray, body: bytes | bytearray
    ) -> bytes:
        count, self._counts[direction] = self._counts[direction], self._counts[direction] + 1
        # One call for the joined bytes, because `hmac.new` takes longer than the hash of a short
        # message.
        signed = b"".join((b"%s %d " % (self._ways[direction], count), header, body))
        return hmac.digest(self._key, signed, "sha256")


def dumped(message: object) -> tuple[bytes, list[memoryview]]:
    """Return the pickle of a message, and the bytes of its arrays."""
    buffers: list[pickle.PickleBuffer] = []
    out = io.BytesIO()
    _Pickler(out, protocol=5, buffer_callback=buffers.append).dump(message)
    return out.getvalue(), [memoryview(b.raw()) for b in buffers]


def connect(address: str, secret: str, timeout: float = _GREETING) -> Wire:
    """Connect to a process of the job.

    Args:
      address: The address as 'host:port'.
      secret: Secret of the job.
      timeout: Seconds to wait for the other process to answer.

    Raises:
      ConnectionLostError: If no process of the job answers.
    """
    try:
        connection = _on_this_machine(address) or socket.create_connection(parse(address), timeout)
        channel = Channel(connection, secret, False, timeout)
        channel.send({"hello": "parameter server"})
        if not channel.receive():
            raise Lost("it has closed the connection, possibly because it has another secret")
    except (OSError, Mistrusted) as error:
        raise Lost(f"{address}: {error}") from error
    return Wire(channel)


def _on_this_machine(address: str) -> socket.socket | None:
    """Connect by a Unix socket, or return None if the process is not on this machine.

    A Unix socket takes half the time of TCP.
    """
    host, port = parse(address)
    if not (is_loopback(host) and _LOCAL):
        return None
    local = socket.socket(socket.AF_UNIX)
    try:
        local.connect(_NAME % port)
        return local
    except OSError:
        local.close()
        return None


def _beside(listener: socket.socket) -> socket.socket | None:
    """Listen on the Unix socket to which `_connect_local` connects for this port.

    The handshake is the same as for TCP.
    """
    host, port = listener.getsockname()[:2]
    if not (is_loopback(host) and _LOCAL):
        return None
    local = socket.socket(socket.AF_UNIX)
    try:
        local.bind(_NAME % port)
        local.listen(128)
        return local
    except OSError:
        local.close()
        return None


def accept(connection: socket.socket, secret: str) -> Wire:
    """Perform the handshake of an accepted connection, as the counterpart of `connect`.

    Args:
      connection: The accepted connection.
      secret: Secret of the job.

    Raises:
      ConnectionLostError: If the caller does not know the secret.
    """
    try:
        channel = Channel(connection, secret, True, _GREETING)
        if not channel.receive():
            raise Lost("the caller has closed the connection")
        channel.send({"hello": "parameter server"})
    except (OSError, Mistrusted) as error:
        connection.close()
        raise Lost(str(error)) from error
    return Wire(channel)


class Caller:
    """Caller of methods in another process, one at a time.

    Args:
      connection: The connection.
    """

    def __init__(self, connection: Wire) -> None:
        self.wire = connection
        self._lock = threading.Lock()

    def call(self, method: str, *args: Any) -> Any:
        """Call a method in the other process and return its result.

        Args:
          method: Name of the method.
          *args: Arguments of the method.

        Raises:
          ConnectionLostError: If the connection is lost. The call may or may not have been
            executed.
          Exception: The exception that the method raised.
        """
        with self._lock:
            self.wire.send((method, args))
            kind, value = self.wire.receive()
        if kind == "value":
            return value
        raise loaded_error(value)


def answer(connection: Wire, methods: Mapping[str, Callable[..., Any]]) -> None:
    """Execute the calls that arrive on a connection until it is closed.

    Args:
      connection: The connection.
      methods: The methods that may be called, by name.
    """
    try:
        with contextlib.suppress(Lost):
            while True:
                # No variable refers to a call after this line, so the caller can reuse the memory
                # of its arrays.
                connection.send(_answer_of(connection, methods))
    finally:
        connection.close()


def _answer_of(connection: Wire, methods: Mapping[str, Callable[..., Any]]) -> tuple[str, Any]:
    try:
        # The caller expects an answer even if its pickle cannot be loaded in this process.
        with region(WAITING):
            method, args = connection.receive()
    except Lost:
        raise
    except Exception as error:
        return "error", dump_error(error)
    try:
        return "value", methods[method](*args)
    except BaseException as error:
        return "error", dump_error(error)


def dump_error(
    error: BaseException, dumps: Callable[[object], bytes] = pickle.dumps
) -> tuple[bytes, str]:
    """Pickle an exception for another process.

    Args:
      error: The exception.
      dumps: Function that pickles an object.

    Returns:
      The pickle, and the text of the traceback. An exception that cannot be pickled becomes an
      `UnknownError`.
    """
    text = "".join(traceback.format_exception(error))
    # The default pickle of an exception calls its class with `args`, which fails if the constructor
    # takes other arguments.
    parts = _bare_error, (type(error), error.args, vars(error))
    for dump in (lambda: dumps(error), lambda: dumps(_Reduced(*parts))):
        with contextlib.suppress(Exception):
            data = dump()
            pickle.loads(data)
            return data, text
    return pickle.dumps(UnknownError(f"{type(error).__name__}: {error}")), text


class _Reduced:
    """Object that is unpickled as the result of a function call.

    Args:
      *parts: The function, and the tuple of its arguments.
    """

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __reduce__(self) -> Any:
        return self._parts


def _bare_error(
    error_class: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]
) -> BaseException:
    """Create an exception without calling the constructor of its class."""
    error = error_class.__new__(error_class, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


def loaded_error(pickled: tuple[bytes, str]) -> BaseException:
    """Load an exception of another process, with its traceback there as the cause."""
    error: BaseException = pickle.loads(pickled[0])
    error.__cause__ = RemoteTraceback(pickled[1])
    return error


def accepting(listener: socket.socket, secret: str, serve: Callable[[Wire], None]) -> None:
    """Accept connections and serve each in its own thread, until the listener is closed.

    Args:
      listener: A listening socket.
      secret: Secret of the job.
      serve: Called with each connection.
    """

    def serve_one(connection: socket.socket) -> None:
        with contextlib.suppress(Lost):
            serve(accept(connection, secret))

    def accept_all(socket: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = socket.accept()
                threading.Thread(target=serve_one, args=(connection,), daemon=True).start()

    local = _beside(listener)
    if local is not None:
        threading.Thread(target=accept_all, args=(local,), daemon=True).start()
    accept_all(listener)
    if local is not None:
        end(local)


def end(listener: socket.socket) -> None:
    """Close a listening socket, which also wakes up threads that wait for a connection.

    Args:
      listener: A listening socket.
    """
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
