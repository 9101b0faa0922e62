"""Calls between the processes of a job: pickles that only who knows the job's secret can write, arrays beside them.

A connection begins with the greeting of `distribute.cluster.channel`, which gives it a key of its own. Whatever is unpickled was
signed with that key and counted. The bytes of arrays are not signed: they hold numbers, nothing that runs. Between
processes of one machine large arrays go by memory that both have.
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
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime import transfers
from meshflow.core.runtime.annotations import WAITING, region
from meshflow.core.runtime.errors import UnknownError
from meshflow.distribute.cluster.addresses import is_loopback, parse
from meshflow.distribute.cluster.channel import Channel, Mistrusted
from meshflow.distribute.parameter_server import segments
from meshflow.distribute.parameter_server.buffers import Buffers

__all__ = ["Caller", "Lost", "Wire", "answer", "connect", "dump_error"]

_HEAD = struct.Struct("!QI")
# Of an array: its bytes, and the number of its segment, or 0 when it follows the message; most descriptors of a message.
_PLACE, _NEW, _DESCRIPTORS = struct.Struct("!QI"), 1 << 31, 253
_SIGNED = hashlib.sha256().digest_size
# Arrays of so many bytes go with their message in one piece.
_JOINED = 1 << 17
# Longest pickle, without arrays, and most arrays, of a message.
_LONGEST, _MOST = 1 << 31, 1 << 20
_GREETING = 20.0
# Linux has names for sockets that are no files, and go with the process.
_LOCAL, _NAME = sys.platform == "linux", "\0meshflow-%d"


class Lost(ConnectionError):
    """The other side has left, or speaks another language."""


class RemoteTraceback(Exception):
    """Where in another process an exception was raised.

    Args:
      text: the traceback's text.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class _Pickler(pickle.Pickler):
    """Pickles device arrays as host arrays, whose bytes go apart."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, jax.Array):
            return _device_array, (np.asarray(obj),)
        return NotImplemented


def _device_array(array: np.ndarray) -> Any:
    """Arrays stay on the host until they are used: many are only passed on."""
    return array


class Wire:
    """One end of a connection between processes of a job.

    Args:
      channel: the greeting that went before.
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
        # Where large arrays are received, and where those are written that are to be sent.
        self._kept, self._written = Buffers(), Buffers()
        shares = segments.POSSIBLE and self.socket.family == socket.AF_UNIX
        self._outgoing = segments.Outgoing() if shares else None
        self._incoming = segments.Incoming() if shares else None

    def lend(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Memory for an array of the next message, where it need not be copied again.

        Args:
          shape: its shape.
          dtype: its dtype, of fixed size.
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
        memory = self._outgoing.lend(size) if self._outgoing is not None else None
        return np.ndarray(shape, dtype, self._written.get(size) if memory is None else memory)

    def placing(self, sizes: Sequence[int]) -> contextlib.AbstractContextManager[None]:
        """Arrays that programs make inside lie where the other side reads them, where both are on one machine.

        Args:
          sizes: how many bytes, of one array each; what is smaller or larger lies elsewhere.
        """
        return contextlib.nullcontext() if self._outgoing is None else self._outgoing.placing(sizes)

    def fits(self, array: Any) -> bool:
        """Whether an array would go without a copy: it lies where the other side reads it, and has none now.

        Args:
          array: one of NumPy, or of a CPU.
        """
        segment = self._segment_of(array)
        return segment is not None and not segment.is_used

    def reads(self, array: Any) -> bool:
        """Whether the other side reads an array where it lies.

        Args:
          array: one of NumPy, or of a CPU.
        """
        return self._segment_of(array) is not None

    def is_free(self, array: Any) -> bool:
        """Whether the other side does not read an array any more.

        Args:
          array: one of NumPy, or of a CPU.
        """
        segment = self._segment_of(array)
        return segment is None or not segment.is_used

    def _segment_of(self, array: Any) -> segments.Segment | None:
        return None if self._outgoing is None else self._outgoing.segment_of(np.asarray(array))

    def send(self, message: Any) -> None:
        """Sends a message.

        Args:
          message: what can be pickled.

        Raises:
          Lost: when the other side is gone.
        """
        body, arrays = dumped(message)
        new, places, inline = self._placed(arrays)
        head = _HEAD.pack(len(body), len(arrays))
        signature = self._signature(0, head + places, body)
        parts: list[Any] = [head, signature, places, body]
        if sum(a.nbytes for a in inline) < _JOINED:
            # Who receives wakes up once.
            parts, inline = [*parts, *inline], []
        start = b"".join(parts)
        try:
            if new:
                done = socket.send_fds(self.socket, [start], [s.descriptor for s in new])
                start = start[done:]
            self.socket.sendall(start)
            for array in inline:
                self.socket.sendall(array)
        except OSError as error:
            raise Lost(str(error)) from error
        finally:
            for segment in new:
                segment.close()
            if self._outgoing is not None:
                self._outgoing.sent()
        self.sent += len(head) + _SIGNED + len(places) + len(body) + sum(a.nbytes for a in arrays)

    def _placed(self, arrays: list[memoryview]) -> tuple[list[Any], bytes, list[memoryview]]:
        """Segments that the other side does not know, where each array is, and those that follow the message."""
        if self._outgoing is None:
            return [], b"".join(_PLACE.pack(a.nbytes, 0) for a in arrays), arrays
        new, places, inline = [], [], []
        for array in arrays:
            found = self._outgoing.of(array)
            if found is None:
                inline.append(array)
                places.append(_PLACE.pack(array.nbytes, 0))
                continue
            is_new = found.descriptor is not None
            if is_new:
                new.append(found)
            places.append(_PLACE.pack(array.nbytes, found.number | is_new * _NEW))
        return new, b"".join(places), inline

    def receive(self) -> Any:
        """The next message.

        Raises:
          Lost: when the other side is gone, or does not know the secret.
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
        head = self._head(descriptors)
        length, count = _HEAD.unpack_from(head)
        if length > _LONGEST or count > _MOST:
            raise Lost("a message is longer than any that is sent")
        places = self._read(bytearray(_PLACE.size * count))
        body = self._read(bytearray(length))
        signature = bytes(head[_HEAD.size :])
        if not hmac.compare_digest(
            signature, self._signature(1, head[: _HEAD.size] + places, body)
        ):
            raise Lost("a message was not signed by a process of the job")
        new = iter(descriptors)
        arrays = [self._array(size, place, new) for size, place in _PLACE.iter_unpack(places)]
        self.received += len(head) + len(places) + length + sum(a.nbytes for a in arrays)
        return pickle.loads(body, buffers=arrays)

    def _array(self, size: int, place: int, new: Iterator[int]) -> np.ndarray:
        """The bytes of an array."""
        if not place:
            return self._read(self._kept.get(size))
        descriptor = next(new, None) if place & _NEW else None
        if self._incoming is None or (place & _NEW and descriptor is None):
            raise Lost("a segment of memory did not arrive")
        try:
            return self._incoming.take(place & ~_NEW, size, descriptor)
        except (OSError, ValueError) as error:
            raise Lost(str(error)) from error

    def close(self) -> None:
        """Ends the connection, also for who waits for a message."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _head(self, descriptors: list[int]) -> Any:
        """The first part of a message, with which descriptors of segments come."""
        head = bytearray(_HEAD.size + _SIGNED)
        if self._incoming is None:
            return self._read(head)
        try:
            first, found, _, _ = socket.recv_fds(
                self.socket, len(head), _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise Lost(str(error)) from error
        descriptors.extend(found)
        if not first:
            raise Lost("the other side has left")
        head[: len(first)] = first
        self._read(memoryview(head)[len(first) :])
        return head

    def _read(self, buffer: Any) -> Any:
        view = memoryview(buffer).cast("B")
        try:
            while view:
                count = self.socket.recv_into(view)
                if not count:
                    raise Lost("the other side has left")
                view = view[count:]
        except OSError as error:
            if isinstance(error, Lost):
                raise
            raise Lost(str(error)) from error
        return buffer

    def _signature(self, way: int, head: Any, body: Any) -> bytes:
        count, self._counts[way] = self._counts[way], self._counts[way] + 1
        # In one piece, unlike `hmac.new`, which takes longer than the hash of a short message.
        signed = b"".join((b"%s %d " % (self._ways[way], count), head, body))
        return hmac.digest(self._key, signed, "sha256")


def dumped(message: Any) -> tuple[bytes, list[memoryview]]:
    """A message as a pickle, and the arrays that belong to it."""
    buffers: list[pickle.PickleBuffer] = []
    out = io.BytesIO()
    _Pickler(out, protocol=5, buffer_callback=buffers.append).dump(message)
    return out.getvalue(), [memoryview(b.raw()) for b in buffers]


def connect(address: str, secret: str, timeout: float = _GREETING) -> Wire:
    """A connection to a process of the job.

    Args:
      address: as 'host:port'.
      secret: the job's.
      timeout: how many seconds the other side may take to answer.

    Raises:
      Lost: when nobody answers.
    """
    try:
        made = _on_this_machine(address) or socket.create_connection(parse(address), timeout)
        channel = Channel(made, secret, False, timeout)
        channel.send({"hello": "parameter server"})
        if not channel.receive():
            raise Lost("it has ended the connection, as one does that knows another secret")
    except (OSError, Mistrusted) as error:
        raise Lost(f"{address}: {error}") from error
    return Wire(channel)


def _on_this_machine(address: str) -> socket.socket | None:
    """A connection that does not go through the network's layers, which takes half of the time; None where there is none."""
    host, port = parse(address)
    if not (is_loopback(host) and _LOCAL):
        return None
    made = socket.socket(socket.AF_UNIX)
    try:
        made.connect(_NAME % port)
        return made
    except OSError:
        made.close()
        return None


def _beside(listener: socket.socket) -> socket.socket | None:
    """Listens for `_on_this_machine`, for who calls this port. The greeting is the same."""
    host, port = listener.getsockname()[:2]
    if not (is_loopback(host) and _LOCAL):
        return None
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(_NAME % port)
        made.listen(128)
        return made
    except OSError:
        made.close()
        return None


def accept(made: socket.socket, secret: str) -> Wire:
    """The other end of `connect`.

    Args:
      made: the accepted connection.
      secret: the job's.

    Raises:
      Lost: when the caller does not know the secret.
    """
    try:
        channel = Channel(made, secret, True, _GREETING)
        if not channel.receive():
            raise Lost("the caller has left")
        channel.send({"hello": "parameter server"})
    except (OSError, Mistrusted) as error:
        made.close()
        raise Lost(str(error)) from error
    return Wire(channel)


class Caller:
    """Calls methods of an object in another process, one at a time.

    Args:
      wire: the connection.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._lock = threading.Lock()

    def call(self, method: str, *args: Any) -> Any:
        """What the method returns.

        Args:
          method: its name.
          *args: its arguments.

        Raises:
          Lost: when the other side is gone; whether the call was done is not known.
          Exception: what the method raised.
        """
        with self._lock:
            self.wire.send((method, args))
            kind, value = self.wire.receive()
        if kind == "value":
            return value
        raise loaded_error(value)


def answer(wire: Wire, methods: Mapping[str, Callable[..., Any]]) -> None:
    """Answers calls until the other side is gone.

    Args:
      wire: the connection.
      methods: what may be called.
    """
    try:
        with contextlib.suppress(Lost):
            while True:
                # Nothing is kept of a call: the caller fills its memory again.
                wire.send(_answer_of(wire, methods))
    finally:
        wire.close()


def _answer_of(wire: Wire, methods: Mapping[str, Callable[..., Any]]) -> tuple[str, Any]:
    try:
        # The caller waits for an answer also to what cannot be made of its pickle here.
        with region(WAITING):
            method, args = wire.receive()
    except Lost:
        raise
    except Exception as error:
        return "error", dump_error(error)
    try:
        return "value", methods[method](*args)
    except BaseException as error:
        return "error", dump_error(error)


def dump_error(
    error: BaseException, dumps: Callable[[Any], bytes] = pickle.dumps
) -> tuple[bytes, str]:
    """An exception for another process, and its traceback's text.

    Args:
      error: the exception.
      dumps: makes a pickle.
    """
    text = "".join(traceback.format_exception(error))
    # A class whose constructor has arguments of its own cannot be called with those of `Exception`.
    parts = _bare_error, (type(error), error.args, vars(error))
    for sent in (lambda: dumps(error), lambda: dumps(_Reduced(*parts))):
        with contextlib.suppress(Exception):
            data = sent()
            pickle.loads(data)
            return data, text
    return pickle.dumps(UnknownError(f"{type(error).__name__}: {error}")), text


class _Reduced:
    """What is another object after it was pickled.

    Args:
      *parts: the function that makes it, and its arguments.
    """

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __reduce__(self) -> Any:
        return self._parts


def _bare_error(kind: type[BaseException], args: Any, attributes: dict[str, Any]) -> BaseException:
    """An exception, without a call of its class's own constructor."""
    made = kind.__new__(kind, *args)
    made.args = args
    made.__dict__.update(attributes)
    return made


def loaded_error(dumped: tuple[bytes, str]) -> BaseException:
    """An exception of another process, with its traceback there as the cause."""
    error: BaseException = pickle.loads(dumped[0])
    error.__cause__ = RemoteTraceback(dumped[1])
    return error


def accepting(listener: socket.socket, secret: str, serve: Callable[[Wire], None]) -> None:
    """Serves every caller in a thread of its own, until the listener is closed.

    Args:
      listener: a socket that listens.
      secret: the job's.
      serve: called with each connection.
    """

    def one(made: socket.socket) -> None:
        with contextlib.suppress(Lost):
            serve(accept(made, secret))

    def all_of(socket: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                made, _ = socket.accept()
                threading.Thread(target=one, args=(made,), daemon=True).start()

    local = _beside(listener)
    if local is not None:
        threading.Thread(target=all_of, args=(local,), daemon=True).start()
    all_of(listener)
    if local is not None:
        end(local)


def end(listener: socket.socket) -> None:
    """Stops listening, also for who waits for a connection.

    Args:
      listener: a socket that listens.
    """
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
