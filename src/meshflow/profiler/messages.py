"""The messages of the profiler's service, which JAX, TensorFlow and TensorBoard speak too.

`/tensorflow.ProfilerService/Profile` and `Monitor`, protocol buffers over gRPC. Only the fields that are used here
are known; each message is a dictionary of the lists that its fields hold, by number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from meshflow.core.runtime.errors import DataLossError
from meshflow.environment import extras
from meshflow.environment.protobuf_wire import bytes_field, fields, number_field

__all__ = ["ProfileRequest", "ProfileResponse", "grpc", "pack", "unpack"]

SERVICE = "tensorflow.ProfilerService"
# A request's tool by which a server of Meshflow answers with the files, instead of writing them.
RETURNED = "meshflow"


def grpc() -> Any:
    """The package that carries the messages.

    Raises:
      ImportError: naming the extra that brings it.
    """
    return extras.load(
        "grpc",
        "profiler",
        "Profiles of other processes (tf.profiler.experimental.client, .server) need grpcio",
    )


def pack(content: list[tuple[int, int | str | bytes]]) -> bytes:
    """A message from its fields; a number, a text or bytes each.

    Example:
      >>> pack([(1, 150), (2, "ab")])
      b'\\x08\\x96\\x01\\x12\\x02ab'
    """
    return b"".join(
        number_field(number, value)
        if isinstance(value, int)
        else bytes_field(number, value.encode() if isinstance(value, str) else value)
        for number, value in content
    )


def unpack(message: bytes) -> dict[int, list[Any]]:
    """The fields of a message: lists of numbers or bytes by field.

    Raises:
      DataLossError: when it is cut off.

    Example:
      >>> unpack(b"\\x08\\x96\\x01\\x12\\x02ab")
      {1: [150], 2: [b'ab']}
    """
    found: dict[int, list[Any]] = {}
    try:
        for number, value in fields(message):
            found.setdefault(number, []).append(value)
    except ValueError as error:
        raise DataLossError(f"A message of the profiler's service is cut off: {error}.") from None
    return found


class ProfileRequest(NamedTuple):
    """What a client asks a server to record.

    Attributes:
      duration_ms: for how long.
      host_tracer_level: see `ProfilerOptions`.
      python_tracer_level: see `ProfilerOptions`.
      device_tracer_level: see `ProfilerOptions`.
      start_ns: nanoseconds since 1970 at which to begin; 0 for at once.
      folder: where the server writes, unless the files are `returned`.
      session: the profile's folder below that.
      host: the beginning of the files' names.
      returned: whether the answer holds the files.
    """

    duration_ms: int
    host_tracer_level: int = 2
    python_tracer_level: int = 0
    device_tracer_level: int = 1
    start_ns: int = 0
    folder: str = ""
    session: str = ""
    host: str = ""
    returned: bool = False

    def packed(self) -> bytes:
        """As bytes."""
        options = pack(
            [
                *((5, 1), (2, self.host_tracer_level), (3, self.device_tracer_level)),
                *((4, self.python_tracer_level), (8, self.start_ns), (9, self.duration_ms)),
            ]
        )
        tools = ["trace_viewer", *([RETURNED] if self.returned else [])]
        content: list[tuple[int, int | str | bytes]] = [(1, self.duration_ms), (2, 1_000_000)]
        content += [(3, tool) for tool in tools]
        content += [(4, options), (5, self.folder), (6, self.session), (7, self.host)]
        return pack(content)

    @classmethod
    def unpacked(cls, message: bytes) -> ProfileRequest:
        """From bytes."""
        found = unpack(message)
        options = unpack(found.get(4, [b""])[-1])

        def text(number: int) -> str:
            return found.get(number, [b""])[-1].decode()

        def number(at: int, default: int) -> int:
            return int(options.get(at, [default])[-1])

        return cls(
            int(number(9, 0) or found.get(1, [0])[-1]),
            number(2, 2),
            number(4, 0),
            number(3, 1),
            number(8, 0),
            text(5),
            text(6),
            text(7),
            RETURNED.encode() in found.get(3, []),
        )


class ProfileResponse(NamedTuple):
    """What a server recorded.

    Attributes:
      empty: whether nothing happened in that time.
      files: contents by the ends of the files' names; none when the server wrote them.
    """

    empty: bool
    files: dict[str, bytes]

    def packed(self) -> bytes:
        """As bytes."""
        data = [pack([(1, name), (2, content)]) for name, content in self.files.items()]
        content: list[tuple[int, int | str | bytes]] = [(6, one) for one in data]
        return pack([*content, (7, int(self.empty))])

    @classmethod
    def unpacked(cls, message: bytes) -> ProfileResponse:
        """From bytes."""
        found = unpack(message)
        files = {}
        for one in map(unpack, found.get(6, [])):
            files[one[1][0].decode()] = one.get(2, [b""])[0]
        return cls(bool(found.get(7, [0])[-1]), files)
