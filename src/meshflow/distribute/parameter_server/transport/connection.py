"""Authenticated connections between the processes of a job, and remote calls over them.

A message is a pickle, followed by the bytes of its arrays. A connection starts with the handshake
of `distribute.cluster.channel`, which derives a key for it from the secret of the job. Every pickle
is signed with that key and a message counter before it is loaded, so only processes of the job can
run code here. The bytes of arrays are not signed, because they hold only data. Between processes of
one machine, large arrays are in shared memory instead; see `shared_memory`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import importlib.util
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
from meshflow.distribute.cluster.addresses import is_loopback, parse_address
from meshflow.distribute.cluster.channel import SignedChannel, UntrustedPeerError
from meshflow.distribute.parameter_server.transport import shared_memory
from meshflow.distribute.parameter_server.transport.memory_pools import BufferPool
from meshflow.environment.types import Array

# Header of a message: the length of the pickle, and the number of arrays.
_HEAD = struct.Struct("!QI")
# Header of an array: its size in bytes, and the id of its segment, or 0 if the bytes follow in the
# stream. A flag marks the first use of a segment, with which its descriptor is sent. Linux sends at
# most 253 descriptors with a message.
_ARRAY_HEADER, _NEW_SEGMENT, _MAX_DESCRIPTORS = struct.Struct("!QI"), 1 << 31, 253
_SIGNATURE_BYTES = hashlib.sha256().digest_size
# Arrays of less than this many bytes in total are sent in one piece with their message.
_MAX_JOINED_BYTES = 1 << 17
# A longer pickle, or more arrays, are refused.
_MAX_PICKLE_BYTES, _MAX_ARRAYS = 1 << 31, 1 << 20
# Seconds that the handshake may take.
_HANDSHAKE_SECONDS = 20.0
# Linux has abstract socket addresses, which are no files and disappear with the process.
_HAS_ABSTRACT_SOCKETS, _SOCKET_NAME = sys.platform == "linux", "\0meshflow-%d"

_Buffer = TypeVar("_Buffer", bytearray, memoryview, np.ndarray)


class ConnectionLostError(ConnectionError):
    """The connection is closed, or the process at its other end does not speak the protocol."""


class FencedError(ConnectionLostError):
    """This process was replaced while it was suspended, so it must not answer its callers."""


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


class _HostArrayPickler(pickle.Pickler):
    """Pickler that stores device arrays as host arrays, with their bytes outside the pickle."""

    def reducer_override(self, obj: object) -> Any:
        return _reduce_array(obj)


def _reduce_array(obj: object) -> Any:
    """Return how a device array is pickled, or `NotImplemented` for other objects."""
    return (_keep_on_host, (np.asarray(obj),)) if isinstance(obj, jax.Array) else NotImplemented


def _keep_on_host(array: np.ndarray) -> np.ndarray:
    """Return the array unchanged.

    Arrays are transferred to a device when they are used, because many are only forwarded.
    """
    return array


class Connection:
    """One end of a connection between processes of a job.

    Args:
      channel: The channel after its handshake.

    Attributes:
      socket: The socket of the connection.
      sent: Number of bytes sent.
      received: Number of bytes received.
    """

    def __init__(self, channel: SignedChannel) -> None:
        self.socket = channel.socket
        self.socket.settimeout(None)
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self.socket.setsockopt(socket.SOL_SOCKET, option, 1 << 22)
        self._key, self._ways = channel.key, channel.directions
        self._counts = [0, 0]
        self.sent = self.received = 0
        # Pools of memory for large arrays that are received, and for those that the caller fills in
        # order to send them.
        self._receive_pool, self._send_pool = BufferPool(), BufferPool()
        shares_memory = shared_memory.IS_SUPPORTED and self.socket.family == socket.AF_UNIX
        self._outgoing = shared_memory.OutgoingSegments() if shares_memory else None
        self._incoming = shared_memory.IncomingSegments() if shares_memory else None

    def lend(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Reserve memory for an array of the next message, so that it is sent without another copy.

        Args:
          shape: Shape of the array.
          dtype: Dtype of the array, of fixed size.
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
        memory = self._outgoing.lend(size) if self._outgoing is not None else None
        return np.ndarray(shape, dtype, self._send_pool.get(size) if memory is None else memory)

    def offer_output_memory(self, sizes: Sequence[int]) -> contextlib.AbstractContextManager[None]:
        """Offer shared memory for the outputs of programs that run in this context.

        Nothing happens if the processes are on different machines.

        Args:
          sizes: The size in bytes of each output. Other outputs are in ordinary memory.
        """
        return (
            contextlib.nullcontext()
            if self._outgoing is None
            else self._outgoing.offer_output_memory(sizes)
        )

    def can_share(self, array: Array) -> bool:
        """Check whether an array would be sent without a copy.

        This holds if it is in shared memory that the receiver has released.

        Args:
          array: A NumPy array, or an array of a CPU device.
        """
        segment = self._find_segment(array)
        return segment is not None and not segment.is_used

    def is_shared(self, array: Array) -> bool:
        """Check whether an array is in memory that the other process reads directly.

        Args:
          array: A NumPy array, or an array of a CPU device.
        """
        return self._find_segment(array) is not None

    def is_free(self, array: Array) -> bool:
        """Check whether the other process has released the memory of an array.

        Args:
          array: A NumPy array, or an array of a CPU device.
        """
        segment = self._find_segment(array)
        return segment is None or not segment.is_used

    def _find_segment(self, array: Array) -> shared_memory.SharedSegment | None:
        return None if self._outgoing is None else self._outgoing.find_segment(np.asarray(array))

    def send(self, message: object) -> None:
        """Send a message.

        Args:
          message: Any object that can be pickled.

        Raises:
          ConnectionLostError: If the connection is closed.
        """
        body, arrays = pickle_message(message)
        new, array_headers, streamed = self._place_arrays(arrays)
        head = _HEAD.pack(len(body), len(arrays))
        signature = self._sign_next(0, head + array_headers, body)
        parts: list[Any] = [head, signature, array_headers, body]
        if sum(a.nbytes for a in streamed) < _MAX_JOINED_BYTES:
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
            raise ConnectionLostError(str(error)) from error
        finally:
            for segment in new:
                segment.close()
            if self._outgoing is not None:
                self._outgoing.finish_message()
        self.sent += (
            len(head)
            + _SIGNATURE_BYTES
            + len(array_headers)
            + len(body)
            + sum(a.nbytes for a in arrays)
        )

    def _place_arrays(
        self, arrays: list[memoryview]
    ) -> tuple[list[shared_memory.SharedSegment], bytes, list[memoryview]]:
        """Store large arrays in segments.

        Returns:
          The segments that the receiver does not know yet, the headers of all arrays, and the
          arrays to send after the message.
        """
        if self._outgoing is None:
            return [], b"".join(_ARRAY_HEADER.pack(a.nbytes, 0) for a in arrays), arrays
        new: list[shared_memory.SharedSegment] = []
        headers: list[bytes] = []
        streamed: list[memoryview] = []
        for array in arrays:
            segment = self._outgoing.store_array(array)
            if segment is None:
                streamed.append(array)
                headers.append(_ARRAY_HEADER.pack(array.nbytes, 0))
                continue
            is_new = segment.descriptor is not None
            if is_new:
                new.append(segment)
            headers.append(
                _ARRAY_HEADER.pack(array.nbytes, segment.segment_id | is_new * _NEW_SEGMENT)
            )
        return new, b"".join(headers), streamed

    def receive(self) -> Any:
        """Receive the next message.

        Raises:
          ConnectionLostError: If the connection is closed, or the other process does not know the
            secret.
        """
        transfers.release_deleted_arrays()
        if self._incoming is not None:
            self._incoming.start_message()
        descriptors: list[int] = []
        try:
            return self._receive_message(descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _receive_message(self, descriptors: list[int]) -> Any:
        header = self._receive_header(descriptors)
        length, count = _HEAD.unpack_from(header)
        if length > _MAX_PICKLE_BYTES or count > _MAX_ARRAYS:
            raise ConnectionLostError("a message exceeds the size limits of the protocol")
        array_headers = self._read_into(bytearray(_ARRAY_HEADER.size * count))
        body = self._read_into(bytearray(length))
        signature = bytes(header[_HEAD.size :])
        if not hmac.compare_digest(
            signature, self._sign_next(1, header[: _HEAD.size] + array_headers, body)
        ):
            raise ConnectionLostError("a message was not signed by a process of the job")
        new_descriptors = iter(descriptors)
        arrays = [
            self._receive_array(size, place, new_descriptors)
            for size, place in _ARRAY_HEADER.iter_unpack(array_headers)
        ]
        self.received += len(header) + len(array_headers) + length + sum(a.nbytes for a in arrays)
        return pickle.loads(body, buffers=arrays)

    def _receive_array(
        self, size: int, segment_word: int, new_descriptors: Iterator[int]
    ) -> np.ndarray:
        """Receive the bytes of an array, or map the segment that holds them.

        Args:
          size: Number of bytes.
          segment_word: Id of the segment with the flag for new segments, or 0.
          new_descriptors: The descriptors of new segments that arrived with the message.
        """
        if not segment_word:
            return self._read_into(self._receive_pool.get(size))
        descriptor = next(new_descriptors, None) if segment_word & _NEW_SEGMENT else None
        if self._incoming is None or (segment_word & _NEW_SEGMENT and descriptor is None):
            raise ConnectionLostError("the descriptor of a shared memory segment did not arrive")
        try:
            return self._incoming.map_array(segment_word & ~_NEW_SEGMENT, size, descriptor)
        except (OSError, ValueError) as error:
            raise ConnectionLostError(str(error)) from error

    def close(self) -> None:
        """Close the connection, which also wakes up threads that wait for a message."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _receive_header(self, descriptors: list[int]) -> bytearray:
        """Receive the header and the signature of a message, and append its descriptors."""
        header = bytearray(_HEAD.size + _SIGNATURE_BYTES)
        if self._incoming is None:
            self._read_into(header)
            return header
        try:
            first, new_descriptors, _, _ = socket.recv_fds(
                self.socket, len(header), _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise ConnectionLostError(str(error)) from error
        descriptors.extend(new_descriptors)
        if not first:
            raise ConnectionLostError("the other process has closed the connection")
        header[: len(first)] = first
        self._read_into(memoryview(header)[len(first) :])
        return header

    def _read_into(self, buffer: _Buffer) -> _Buffer:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        try:
            while view:
                count = self.socket.recv_into(view)
                if not count:
                    raise ConnectionLostError("the other process has closed the connection")
                view = view[count:]
        except OSError as error:
            if isinstance(error, ConnectionLostError):
                raise
            raise ConnectionLostError(str(error)) from error
        return buffer

    def _sign_next(
        self, direction: int, header: bytes | bytearray, body: bytes | bytearray
    ) -> bytes:
        count, self._counts[direction] = self._counts[direction], self._counts[direction] + 1
        # One call for the joined bytes, because `hmac.new` takes longer than the hash of a short
        # message.
        signed = b"".join((b"%s %d " % (self._ways[direction], count), header, body))
        return hmac.digest(self._key, signed, "sha256")


def pickle_message(message: object) -> tuple[bytes, list[memoryview]]:
    """Return the pickle of a message, and the bytes of its arrays.

    Values of classes that cannot be imported, such as extension types of a script, are pickled by cloudpickle, which
    returns them to the process that defines the class as values of that class.
    """
    try:
        return _pickle_by(_HostArrayPickler, message)
    except (pickle.PicklingError, AttributeError):
        if importlib.util.find_spec("cloudpickle") is None:
            raise
        return _pickle_by(_define_value_pickler(), message)


def _pickle_by(pickler: type[Any], message: object) -> tuple[bytes, list[memoryview]]:
    buffers: list[pickle.PickleBuffer] = []
    out = io.BytesIO()
    pickler(out, protocol=5, buffer_callback=buffers.append).dump(message)
    return out.getvalue(), [memoryview(b.raw()) for b in buffers]


@functools.cache
def _define_value_pickler() -> type[Any]:
    base = importlib.import_module("cloudpickle").Pickler

    class ValuePickler(base):  # type: ignore[misc, valid-type]  # the package is optional
        def reducer_override(self, obj: object) -> Any:
            reduced = _reduce_array(obj)
            return super().reducer_override(obj) if reduced is NotImplemented else reduced

    return ValuePickler


def connect(address: str, secret: str, timeout: float = _HANDSHAKE_SECONDS) -> Connection:
    """Connect to a process of the job.

    Args:
      address: The address as 'host:port'.
      secret: Secret of the job.
      timeout: Seconds to wait for the other process to answer.

    Raises:
      ConnectionLostError: If no process of the job answers.
    """
    try:
        connection = _connect_local(address) or socket.create_connection(
            parse_address(address), timeout
        )
        channel = SignedChannel(connection, secret, False, timeout)
        channel.send({"hello": "parameter server"})
        if not channel.receive():
            raise ConnectionLostError(
                "it has closed the connection, possibly because it has another secret"
            )
    except (OSError, UntrustedPeerError) as error:
        raise ConnectionLostError(f"{address}: {error}") from error
    return Connection(channel)


def _connect_local(address: str) -> socket.socket | None:
    """Connect by a Unix socket, or return None if the process is not on this machine.

    A Unix socket takes half the time of TCP.
    """
    host, port = parse_address(address)
    if not (is_loopback(host) and _HAS_ABSTRACT_SOCKETS):
        return None
    local = socket.socket(socket.AF_UNIX)
    try:
        local.connect(_SOCKET_NAME % port)
        return local
    except OSError:
        local.close()
        return None


def _listen_local(listener: socket.socket) -> socket.socket | None:
    """Listen on the Unix socket to which `_connect_local` connects for this port.

    The handshake is the same as for TCP.
    """
    host, port = listener.getsockname()[:2]
    if not (is_loopback(host) and _HAS_ABSTRACT_SOCKETS):
        return None
    local = socket.socket(socket.AF_UNIX)
    try:
        local.bind(_SOCKET_NAME % port)
        local.listen(128)
        return local
    except OSError:
        local.close()
        return None


def accept(connection: socket.socket, secret: str) -> Connection:
    """Perform the handshake of an accepted connection, as the counterpart of `connect`.

    Args:
      connection: The accepted connection.
      secret: Secret of the job.

    Raises:
      ConnectionLostError: If the caller does not know the secret.
    """
    try:
        channel = SignedChannel(connection, secret, True, _HANDSHAKE_SECONDS)
        if not channel.receive():
            raise ConnectionLostError("the caller has closed the connection")
        channel.send({"hello": "parameter server"})
    except (OSError, UntrustedPeerError) as error:
        connection.close()
        raise ConnectionLostError(str(error)) from error
    return Connection(channel)


class RemoteCaller:
    """Caller of methods in another process, one at a time.

    Args:
      connection: The connection.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
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
            try:
                self.connection.send((method, args))
                kind, value = self.connection.receive()
            except (KeyboardInterrupt, SystemExit, MemoryError):
                # The next call would receive the answer to this one.
                self.connection.close()
                raise
        if kind == "value":
            return value
        raise load_error(value)


def answer_calls(connection: Connection, methods: Mapping[str, Callable[..., Any]]) -> None:
    """Execute the calls that arrive on a connection until it is closed.

    Args:
      connection: The connection.
      methods: The methods that may be called, by name.

    Raises:
      FencedError: If a method has raised it. The call is not answered.
    """
    try:
        while True:
            # No variable refers to a call after this line, so the caller can reuse the memory of
            # its arrays.
            connection.send(_answer_call(connection, methods))
    except FencedError:
        raise
    except ConnectionLostError:
        pass
    finally:
        connection.close()


def _answer_call(
    connection: Connection, methods: Mapping[str, Callable[..., Any]]
) -> tuple[str, Any]:
    try:
        # The caller expects an answer even if its pickle cannot be loaded in this process.
        with region(WAITING):
            method, args = connection.receive()
    except ConnectionLostError:
        raise
    except Exception as error:
        return "error", dump_error(error)
    return execute_call(methods, method, args)


def execute_call(
    methods: Mapping[str, Callable[..., Any]], method: str, args: Sequence[Any]
) -> tuple[str, Any]:
    """Execute a call, and return the answer to `RemoteCaller.call`.

    Args:
      methods: The methods that may be called, by name.
      method: Name of the method.
      args: Its arguments.

    Raises:
      FencedError: If the method has raised it.
    """
    try:
        return "value", methods[method](*args)
    except FencedError:
        raise
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
    parts = _rebuild_error, (type(error), error.args, vars(error))
    for dump in (lambda: dumps(error), lambda: dumps(_ReducedObject(*parts))):
        with contextlib.suppress(Exception):
            data = dump()
            pickle.loads(data)
            return data, text
    return pickle.dumps(UnknownError(f"{type(error).__name__}: {error}")), text


class _ReducedObject:
    """Object that is unpickled as the result of a function call.

    Args:
      *parts: The function, and the tuple of its arguments.
    """

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __reduce__(self) -> Any:
        return self._parts


def _rebuild_error(
    error_class: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]
) -> BaseException:
    """Create an exception without calling the constructor of its class."""
    error = error_class.__new__(error_class, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


def load_error(pickled: tuple[bytes, str]) -> BaseException:
    """Load an exception of another process, with its traceback there as the cause."""
    error: BaseException = pickle.loads(pickled[0])
    error.__cause__ = RemoteTraceback(pickled[1])
    return error


def accept_connections(
    listener: socket.socket, secret: str, serve: Callable[[Connection], None]
) -> None:
    """Accept connections and serve each in its own thread, until the listener is closed.

    Args:
      listener: A listening socket.
      secret: Secret of the job.
      serve: Called with each connection.
    """

    def serve_one(connection: socket.socket) -> None:
        with contextlib.suppress(ConnectionLostError):
            serve(accept(connection, secret))

    def accept_all(socket: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = socket.accept()
                threading.Thread(target=serve_one, args=(connection,), daemon=True).start()

    local = _listen_local(listener)
    if local is not None:
        threading.Thread(target=accept_all, args=(local,), daemon=True).start()
    accept_all(listener)
    if local is not None:
        close_listener(local)


def close_listener(listener: socket.socket) -> None:
    """Close a listening socket, which also wakes up threads that wait for a connection.

    Args:
      listener: A listening socket.
    """
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
