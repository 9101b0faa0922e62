"""Messages of the profiler service that JAX, TensorFlow and TensorBoard also use.

The methods `/tensorflow.ProfilerService/Profile` and `Monitor` exchange protocol buffers over gRPC.
Only the fields used here are implemented; a message is a dictionary from field numbers to lists of
values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from meshflow.core.runtime.errors import DataLossError
from meshflow.environment import optional_packages
from meshflow.environment.protobuf_wire import (
    encode_bytes_field,
    encode_integer_field,
    iterate_fields,
)

SERVICE = "tensorflow.ProfilerService"
# Tool in a request that makes a Meshflow server return the files instead of writing them.
RETURN_FILES_TOOL = "meshflow"

_T = TypeVar("_T")


def load_grpc() -> Any:
    """Return the package grpc.

    Raises:
      ImportError: If it is not installed; the message names the extra.
    """
    return optional_packages.import_extra(
        "grpc",
        "profiler",
        "Profiles of other processes (tf.profiler.experimental.client, .server) need grpcio",
    )


def pack(content: list[tuple[int, int | str | bytes]]) -> bytes:
    r"""Encode a message from its fields.

    Example:
      >>> pack([(1, 150), (2, "ab")])
      b'\x08\x96\x01\x12\x02ab'
    """
    return b"".join(
        encode_integer_field(number, value)
        if isinstance(value, int)
        else encode_bytes_field(number, value.encode() if isinstance(value, str) else value)
        for number, value in content
    )


def unpack(message: bytes) -> dict[int, list[Any]]:
    r"""Decode the fields of a message: lists of integers or bytes by field number.

    Raises:
      DataLossError: If the message is truncated.

    Example:
      >>> unpack(b"\x08\x96\x01\x12\x02ab")
      {1: [150], 2: [b'ab']}
    """
    values: dict[int, list[Any]] = {}
    try:
        for number, value in iterate_fields(message):
            values.setdefault(number, []).append(value)
    except ValueError as error:
        raise DataLossError(f"A message of the profiler's service is cut off: {error}.") from None
    return values


def _get_integer(values: Mapping[int, list[Any]], field: int, default: int = 0) -> int:
    return _check_type(values.get(field, [default])[-1], int, field)


def _get_bytes(values: Mapping[int, list[Any]], field: int) -> bytes:
    return _check_type(values.get(field, [b""])[-1], bytes, field)


def _get_text(values: Mapping[int, list[Any]], field: int) -> str:
    try:
        return _get_bytes(values, field).decode()
    except UnicodeDecodeError as error:
        raise DataLossError(f"Field {field} of a message is not text: {error}.") from None


def _check_type(value: Any, expected: type[_T], field: int) -> _T:
    if not isinstance(value, expected):
        raise DataLossError(f"Field {field} of a message must be {expected.__name__}.")
    return value


class ProfileRequest(NamedTuple):
    """Request of a client to record a profile.

    Attributes:
      duration_ms: Milliseconds to record.
      host_tracer_level: See `ProfilerOptions`.
      python_tracer_level: See `ProfilerOptions`.
      device_tracer_level: See `ProfilerOptions`.
      start_ns: Start time in nanoseconds since 1970; 0 to start immediately.
      folder: Folder to which the server writes, unless `returns_files`.
      session: Subfolder of the profile.
      host: Prefix of the file names.
      returns_files: Whether the response contains the files.
    """

    duration_ms: int
    host_tracer_level: int = 2
    python_tracer_level: int = 0
    device_tracer_level: int = 1
    start_ns: int = 0
    folder: str = ""
    session: str = ""
    host: str = ""
    returns_files: bool = False

    def to_bytes(self) -> bytes:
        """Encode the request."""
        options = pack(
            [
                *((5, 1), (2, self.host_tracer_level), (3, self.device_tracer_level)),
                *((4, self.python_tracer_level), (8, self.start_ns), (9, self.duration_ms)),
            ]
        )
        tools = ["trace_viewer", *([RETURN_FILES_TOOL] if self.returns_files else [])]
        content: list[tuple[int, int | str | bytes]] = [(1, self.duration_ms), (2, 1_000_000)]
        content += [(3, tool) for tool in tools]
        content += [(4, options), (5, self.folder), (6, self.session), (7, self.host)]
        return pack(content)

    @classmethod
    def from_bytes(cls, message: bytes) -> ProfileRequest:
        """Decode a request."""
        values = unpack(message)
        options = unpack(_get_bytes(values, 4))
        return cls(
            _get_integer(options, 9) or _get_integer(values, 1),
            _get_integer(options, 2, 2),
            _get_integer(options, 4, 0),
            _get_integer(options, 3, 1),
            _get_integer(options, 8),
            _get_text(values, 5),
            _get_text(values, 6),
            _get_text(values, 7),
            RETURN_FILES_TOOL.encode() in values.get(3, []),
        )


class ProfileResponse(NamedTuple):
    """Response of a server.

    Attributes:
      empty: Whether nothing happened while recording.
      files: Contents by the endings of the file names; empty if the server wrote the files.
    """

    empty: bool
    files: dict[str, bytes]

    def to_bytes(self) -> bytes:
        """Encode the response."""
        data = [pack([(1, name), (2, content)]) for name, content in self.files.items()]
        content: list[tuple[int, int | str | bytes]] = [(6, item) for item in data]
        return pack([*content, (7, int(self.empty))])

    @classmethod
    def from_bytes(cls, message: bytes) -> ProfileResponse:
        """Decode a response."""
        values = unpack(message)
        items = [unpack(_check_type(item, bytes, 6)) for item in values.get(6, [])]
        files = {_get_text(item, 1): _get_bytes(item, 2) for item in items}
        return cls(bool(_get_integer(values, 7)), files)
