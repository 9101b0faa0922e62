"""Limits on HTTP connections: their number, the size and time of a head, pipelining, slow readers."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from meshflow.serving.metrics import Metrics

# The first line and the headers of a request.
_MAX_HEAD_BYTES = 1 << 16
_HEAD_SECONDS = 10.0
_MAX_PIPELINED_REQUESTS = 8
# Parsing more bytes or more chunks at a time would delay other connections.
_RECEIVED_BYTES, _RECEIVED_BYTES_OF_CHUNKS = 1 << 16, 1 << 12
_MAX_CHUNKS = 256
# A client must read this many bytes of a response within this time.
_SENT_BYTES, _SEND_SECONDS = 1 << 20, 10.0


def make_protocol_class(metrics: Metrics, max_connections: int) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol with limits.

    Args:
      metrics: Counter of closed connections.
      max_connections: Maximum number of connections; more are answered with status 503.
    """

    class LimitedProtocol(HttpToolsProtocol):
        """An HTTP connection with limits."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._head_timer: asyncio.TimerHandle | None = None
            self._head_bytes = 0
            self._send_timer: asyncio.TimerHandle | None = None
            self._num_chunks = 0

        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= max_connections:
                self.transport = transport
                self._reject("connections", b"503 Service Unavailable")
                return
            super().connection_made(transport)
            _limit_reads(transport, _RECEIVED_BYTES)
            self._start_head_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_head_timer()
            self._stop_send_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            is_waiting = self.cycle is None or self.cycle.response_complete
            if is_waiting and self._head_timer is None:
                self._start_head_timer()
            self._head_bytes += len(data)
            self._num_chunks = 0
            super().data_received(data)
            if self._num_chunks > _MAX_CHUNKS:
                _limit_reads(self.transport, _RECEIVED_BYTES_OF_CHUNKS)
            if self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
                self._reject("head", b"431 Request Header Fields Too Large")

        def on_headers_complete(self) -> None:
            self._stop_head_timer()
            if self.transport.is_closing():
                return
            if len(self.pipeline) >= _MAX_PIPELINED_REQUESTS:
                self._close("pipelined")
                return
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._head_bytes = 0
            self._num_chunks += 1
            if not self.transport.is_closing():
                super().on_body(body)

        def on_message_complete(self) -> None:
            self._head_bytes = 0
            if not self.transport.is_closing():
                super().on_message_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch_sending(self.transport.get_write_buffer_size())

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_send_timer()

        def _watch_sending(self, size: int) -> None:
            """Close the connection unless the client reads enough of the response."""

            def check() -> None:
                remaining = self.transport.get_write_buffer_size()
                if remaining > max(size - _SENT_BYTES, 0):
                    self._close("stalled")
                else:
                    self._watch_sending(remaining)

            self._send_timer = self.loop.call_later(_SEND_SECONDS, check)

        def _stop_send_timer(self) -> None:
            if self._send_timer is not None:
                self._send_timer.cancel()
                self._send_timer = None

        def _start_head_timer(self) -> None:
            self._head_bytes = 0
            self._head_timer = self.loop.call_later(_HEAD_SECONDS, self._close, "head")

        def _stop_head_timer(self) -> None:
            self._head_bytes = 0
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _close(self, reason: str) -> None:
            """Close the connection at once."""
            metrics.count_rejection(reason)
            self.transport.abort()

        def _reject(self, reason: str, status: bytes) -> None:
            """Answer with an error and close the connection."""
            metrics.count_rejection(reason)
            head = b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(head)
            self.transport.close()

    return LimitedProtocol


def _limit_reads(transport: Any, size: int) -> None:
    """Limit the number of bytes that one of asyncio's transports receives at a time."""
    transport.max_size = size
