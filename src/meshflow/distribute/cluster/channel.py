"""Signed messages between the processes of a job: lines of JSON that require the job's secret.

Each side of a connection first sends a random nonce. The key of the connection is derived from the
secret and both nonces, and each signature includes the direction and a message counter. Therefore,
a line that was copied from another connection, repeated, or sent back to its author is rejected.
Lines are signed, but not encrypted.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator

from meshflow.environment.types import Json

# Environment variable with the secret of a job. Other users can read command lines, but not the
# environment.
SECRET_VARIABLE = "MESHFLOW_SECRET"
# The longest message is the hello, which contains the addresses of all workers.
_MAX_LINE_BYTES = 1 << 20
_SIGNATURE_LENGTH = hashlib.sha256().digest_size * 2
_NONCE_BYTES = 32


class UntrustedPeerError(Exception):
    """Error for a peer that does not belong to this job."""


def create_secret() -> str:
    """Create a random secret for a job."""
    return secrets.token_hex(32)


def get_secret() -> str:
    """Return the secret of this process's job, or an empty string."""
    return os.environ.get(SECRET_VARIABLE, "")


class SignedChannel:
    """One end of a connection with signed messages.

    Args:
      connection: Connected socket.
      secret: Secret of the job.
      answers: Whether this end accepted the connection.
      timeout: Total time in seconds to wait for the first message of the peer.

    Attributes:
      key: Key that signs the messages of this connection.
      directions: Prefixes of the signed text: for messages of this end, and for those of the peer.

    Raises:
      UntrustedPeerError: If the peer does not use this protocol.
      OSError: If the peer disconnects or does not send its nonce in time.
    """

    def __init__(
        self, connection: socket.socket, secret: str, answers: bool, timeout: float
    ) -> None:
        self.socket = connection
        self._buffer = b""
        nonce = secrets.token_hex(_NONCE_BYTES)
        self._deadline: float | None = time.monotonic() + timeout
        connection.settimeout(timeout)
        connection.sendall(json.dumps({"meshflow": nonce}).encode() + b"\n")
        peer_nonce = _parse_message(self._read_line()).get("meshflow")
        if not isinstance(peer_nonce, str) or len(peer_nonce) != len(nonce):
            raise UntrustedPeerError("it does not speak Meshflow's protocol")
        nonces = f"{nonce} {peer_nonce}" if answers else f"{peer_nonce} {nonce}"
        self.key = hmac.digest(secret.encode(), nonces.encode(), "sha256")
        self.directions = (b"answer", b"call") if answers else (b"call", b"answer")
        self._counts = [0, 0]

    def set_timeout(self, timeout: float | None) -> None:
        """Limit the total time for receiving the next messages.

        Args:
          timeout: Time in seconds; None for no limit.
        """
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self.socket.settimeout(timeout)

    def send(self, message: dict[str, Json]) -> None:
        """Send a message."""
        text = json.dumps(message).encode()
        self.socket.sendall(self._sign(0, text) + text + b"\n")

    def receive(self) -> dict[str, Json]:
        """Receive the next message; an empty one if the peer has disconnected.

        Raises:
          UntrustedPeerError: If a process outside the job sent the message.
          OSError: If the message does not arrive in time.
        """
        line = self._read_line()
        if not line:
            return {}
        signature, text = line[:_SIGNATURE_LENGTH], line[_SIGNATURE_LENGTH:]
        if not hmac.compare_digest(signature, self._sign(1, text)):
            raise UntrustedPeerError("it does not know the job's secret")
        return _parse_message(text)

    def iterate_messages(self) -> Iterator[dict[str, Json]]:
        """Yield all messages until the peer disconnects."""
        with contextlib.suppress(OSError, UntrustedPeerError):
            while message := self.receive():
                yield message

    def is_disconnected(self) -> bool:
        """Check whether the peer has disconnected, unless another thread receives at the same time."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _sign(self, direction: int, text: bytes) -> bytes:
        count, self._counts[direction] = self._counts[direction], self._counts[direction] + 1
        signed = b"%s %d %s" % (self.directions[direction], count, text)
        return hmac.digest(self.key, signed, "sha256").hex().encode()

    def _read_line(self) -> bytes:
        """Read the next line; empty at the end of the stream."""
        while b"\n" not in self._buffer:
            if len(self._buffer) > _MAX_LINE_BYTES:
                raise UntrustedPeerError(f"it sends a line of more than {_MAX_LINE_BYTES} bytes")
            if self._deadline is not None:
                # The deadline covers the full line, so a peer cannot block this side by sending
                # single bytes.
                self.socket.settimeout(max(self._deadline - time.monotonic(), 0.001))
            data = self.socket.recv(1 << 16)
            if not data:
                return b""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _parse_message(text: bytes) -> dict[str, Json]:
    """Parse a message; return an empty one if the text is invalid."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}
