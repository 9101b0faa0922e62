"""Messages between the processes of a job: lines of JSON that only who knows the job's secret can write.

Both sides begin with a random number of their own. The key that signs the lines of one connection is made of
the secret and both numbers, and each line's signature counts it: a line of another connection, an earlier
one, or one sent back to its writer, is worth nothing. Lines are signed, not hidden.
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
from typing import Any

__all__ = ["SECRET", "Channel", "Mistrusted", "new_secret", "own_secret"]

# What the processes of a job share, in their environment: command lines can be seen by everybody.
SECRET = "MESHFLOW_SECRET"
# Longest line. The longest that is sent is a hello, with the addresses of all workers.
_LONGEST = 1 << 20
_SIGNATURE = hashlib.sha256().digest_size * 2
_NONCE = 32


class Mistrusted(Exception):
    """What arrives is not of this job."""


def new_secret() -> str:
    """A secret for a job."""
    return secrets.token_hex(32)


def own_secret() -> str:
    """The secret of this process's job; empty without one."""
    return os.environ.get(SECRET, "")


class Channel:
    """One end of a connection.

    Args:
      connection: the connection.
      secret: the job's.
      answers: whether this is the end that was called.
      timeout: for how many seconds it waits for the other side's first words, all in all.

    Attributes:
      key: signs what is sent on this connection.
      ways: what the signatures of this end begin with, and those of the other.

    Raises:
      Mistrusted: when the other side speaks another language.
      OSError: when it has left, or is silent.
    """

    def __init__(
        self, connection: socket.socket, secret: str, answers: bool, timeout: float
    ) -> None:
        self.socket = connection
        self._buffer = b""
        own = secrets.token_hex(_NONCE)
        self._deadline: float | None = time.monotonic() + timeout
        connection.settimeout(timeout)
        connection.sendall(json.dumps({"meshflow": own}).encode() + b"\n")
        other = _parsed(self._line()).get("meshflow")
        if not isinstance(other, str) or len(other) != len(own):
            raise Mistrusted("it does not begin as a process of Meshflow does")
        nonces = f"{own} {other}" if answers else f"{other} {own}"
        self.key = hmac.digest(secret.encode(), nonces.encode(), "sha256")
        self.ways = (b"answer", b"call") if answers else (b"call", b"answer")
        self._counts = [0, 0]

    def wait(self, timeout: float | None) -> None:
        """Sets for how long the next messages may take, all in all.

        Args:
          timeout: seconds; None for ever.
        """
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self.socket.settimeout(timeout)

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message.

        Args:
          message: what JSON can hold.
        """
        text = json.dumps(message).encode()
        self.socket.sendall(self._signature(0, text) + text + b"\n")

    def receive(self) -> dict[str, Any]:
        """The next message; an empty one when the other side has left.

        Raises:
          Mistrusted: when it does not come from a process of the job.
          OSError: when it does not come in time.
        """
        line = self._line()
        if not line:
            return {}
        signature, text = line[:_SIGNATURE], line[_SIGNATURE:]
        if not hmac.compare_digest(signature, self._signature(1, text)):
            raise Mistrusted("it does not know the job's secret")
        return _parsed(text)

    def messages(self) -> Iterator[dict[str, Any]]:
        """All messages, until the other side is gone."""
        with contextlib.suppress(OSError, Mistrusted):
            while message := self.receive():
                yield message

    def is_gone(self) -> bool:
        """Whether the other side has left; not to be asked while something is received."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Ends the connection."""
        self.socket.close()

    def _signature(self, way: int, text: bytes) -> bytes:
        count, self._counts[way] = self._counts[way], self._counts[way] + 1
        signed = b"%s %d %s" % (self.ways[way], count, text)
        return hmac.digest(self.key, signed, "sha256").hex().encode()

    def _line(self) -> bytes:
        """The next line; nothing at the end."""
        while b"\n" not in self._buffer:
            if len(self._buffer) > _LONGEST:
                raise Mistrusted(f"it sends a line of more than {_LONGEST} bytes")
            if self._deadline is not None:
                # Whoever sends a byte now and then does not keep this side waiting for ever.
                self.socket.settimeout(max(self._deadline - time.monotonic(), 0.001))
            data = self.socket.recv(1 << 16)
            if not data:
                return b""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _parsed(text: bytes) -> dict[str, Any]:
    """A message; an empty one for what is none."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}
