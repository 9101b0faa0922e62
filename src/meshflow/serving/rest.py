"""HTTP handler with TensorFlow Serving's REST protocol."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from meshflow.core.runtime.errors import InvalidArgumentError, PermissionDeniedError
from meshflow.environment.types import Json
from meshflow.serving import codecs, examples
from meshflow.serving.codec_pool import CodecPool
from meshflow.serving.errors import HTTP_STATUS, HttpError, describe_error
from meshflow.serving.limits import ByteBudget, Reservation, check_host, limit_time
from meshflow.serving.metrics import Metrics
from meshflow.serving.models import Models
from meshflow.serving.protocol import describe_specs
from meshflow.serving.versions import Version

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_METRICS_PATHS = ("/metrics", "/monitoring/prometheus/metrics")
_HEALTH_PATH = "/healthz"
_MODEL_PATTERN = (
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
)
_CALL_PATTERN = re.compile(_MODEL_PATTERN + r":(?P<method>predict|classify|regress)", re.IGNORECASE)
_INFO_PATTERN = re.compile(_MODEL_PATTERN + r"(?P<metadata>/metadata)?", re.IGNORECASE)
# A request fails if its client sends no data of the body for this many seconds.
_BODY_TIMEOUT_SECONDS = 30.0
# Larger responses are sent in parts of this size, as fast as the client reads them.
_SENT_BYTES = 1 << 18
T = TypeVar("T")


class RestApi:
    """ASGI application that answers REST requests.

    Args:
      models: The served models.
      metrics: Counter of requests.
      pool: Processes that parse requests and format responses.
      budget: Bytes that requests and responses may hold.
    """

    def __init__(
        self, models: Models, metrics: Metrics, pool: CodecPool, budget: ByteBudget
    ) -> None:
        self._models, self._metrics = models, metrics
        self._pool, self._budget = pool, budget
        hosts = models.settings.hosts
        self._hosts = ("*",) if hosts is None else hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        with Reservation(self._budget) as reservation:
            response = await self.answer(Request(scope, receive), reservation)
            await response(scope, receive, send)

    async def answer(self, request: Request, reservation: Reservation) -> Response:
        """Return the response to any request.

        Args:
          request: The request.
          reservation: Bytes that the request and then its response hold.
        """
        try:
            check_host(request.headers, self._hosts)
        except PermissionDeniedError as error:
            self._metrics.count_rejection("host")
            return _make_json_response({"error": str(error)}, 403)
        path = request.scope["path"]
        if path in _METRICS_PATHS and request.method == "GET":
            return PlainTextResponse(self._format_metrics())
        if path == _HEALTH_PATH and request.method in ("GET", "HEAD"):
            problems = self._models.describe_health()
            content = {"status": "unavailable" if problems else "ok", "models": problems}
            return _make_json_response(content, 503 if problems else 200)
        if not path.lower().startswith("/v1/"):
            return _make_json_response(
                {"error": f"Malformed request: {request.method} {path}"}, 404
            )
        call = _CALL_PATTERN.fullmatch(path) if request.method == "POST" else None
        info = _INFO_PATTERN.fullmatch(path) if request.method == "GET" else None
        start, state = time.perf_counter(), "OK"
        try:
            if call is not None:
                return await self._call_method(request, call, reservation)
            if info is not None:
                return _make_json_response(
                    (self._get_metadata if info["metadata"] else self._get_status)(info)
                )
            raise InvalidArgumentError(f"Malformed request: {request.method} {path}")
        except HttpError as error:
            state = "INVALID_ARGUMENT"
            return _make_json_response({"error": error.message}, error.status)
        except ClientDisconnect:
            state = "CANCELLED"
            return _make_json_response({"error": "The client disconnected."}, HTTP_STATUS[state])
        except Exception as error:
            state, message = describe_error(error)
            return _make_json_response({"error": message}, HTTP_STATUS[state])
        finally:
            # Counts of unknown model names would let clients create unlimited metrics.
            if call is not None and self._models.has_model(call["name"]):
                self._metrics.add(call["name"], state, time.perf_counter() - start)

    def _format_metrics(self) -> str:
        """Return all metrics in Prometheus' text format."""
        gauges = {
            "bytes_in_flight": self._budget.reserved_bytes,
            "codec_failures": self._pool.failures,
        }
        return self._metrics.text(
            self._models.count_batches(), self._models.count_busy_seconds(), gauges
        )

    async def _call_method(
        self, request: Request, call: re.Match[str], reservation: Reservation
    ) -> Response:
        """Predict, classify or regress; a request that takes too long is dropped.

        Raises:
          DeadlineExceededError: The request was not answered in time. If the model computes it, the
            computation continues, because it cannot be interrupted.
        """
        settings = self._models.settings
        async with limit_time(settings.deadline, "The request was not answered"):
            content = await _read_body(request, settings.most_bytes, reservation)
            version = self._models.find(call["name"], *_parse_version(call))
            encoding = request.headers.get("content-encoding", "")
            accepts_gzip = "gzip" in request.headers.get("accept-encoding", "").lower()
            work = self._compute_response(
                version, call["method"].lower(), content, encoding, accepts_gzip
            )
            body, is_compressed = await _run_while_connected(request, work)
        reservation.replace(len(body))
        headers = {"content-encoding": "gzip"} if is_compressed else {}
        if accepts_gzip:
            headers["vary"] = "Accept-Encoding"
        return _make_response(body, headers)

    async def _compute_response(
        self, version: Version, method: str, content: bytearray, encoding: str, accepts_gzip: bool
    ) -> tuple[bytes, bool]:
        """Return the body of a response, and whether it is compressed."""
        specs = {name: signature.inputs for name, signature in version.signatures.items()}
        request = await self._pool.run(
            self._pool.is_small_request(content, encoding), codecs.decode_json_request,
            content, encoding, self._models.settings.most_bytes, method, specs,
        )  # fmt: skip
        signature = version.get_signature(request.signature)
        if method == "predict":
            outputs = await signature.answer(request.arrays)
        else:
            task = examples.CLASSIFY if method == "classify" else examples.REGRESS
            examples.check_method(signature, task)
            outputs = await examples.answer(signature, task, request.arrays)
        return await self._pool.run(
            self._pool.is_small_result(outputs), codecs.encode_json_response,
            method, outputs, request.has_rows, accepts_gzip,
        )  # fmt: skip

    def _get_status(self, info: re.Match[str]) -> dict[str, Json]:
        """Return the versions of a model and their states."""
        entries = [
            {
                "version": str(number),
                "state": state,
                "status": {"error_code": "UNKNOWN" if error else "OK", "error_message": error},
            }
            for number, (state, error) in self._models.get_states(
                info["name"], *_parse_version(info)
            ).items()
        ]
        return {"model_version_status": entries}

    def _get_metadata(self, info: re.Match[str]) -> dict[str, Json]:
        """Return the inputs and outputs of the signatures of a version."""
        version = self._models.find(info["name"], *_parse_version(info))
        signatures = {
            name: {
                "inputs": describe_specs(signature.inputs),
                "outputs": describe_specs(signature.outputs),
                "method_name": "tensorflow/serving/predict",
            }
            for name, signature in version.signatures.items()
        }
        spec = {"name": info["name"], "signature_name": "", "version": str(version.number)}
        return {
            "model_spec": spec,
            "metadata": {"signature_def": {"signature_def": signatures}},
        }


def _parse_version(path: re.Match[str]) -> tuple[int | None, str | None]:
    """Return the number or the label of the requested version."""
    number = path["version"]
    if number is not None and len(number) > 18:
        raise InvalidArgumentError(f"Failed to convert version: {number:.40} to numeric.")
    return None if number is None else int(number), path["label"]


async def _read_body(request: Request, max_bytes: int, reservation: Reservation) -> bytearray:
    """Read the body of a request.

    Raises:
      HttpError: The body is too large.
      ResourceExhaustedError: The server holds too many bytes of requests and responses.
      DeadlineExceededError: The client stopped sending.
    """
    body = bytearray()
    stream = request.stream()
    while True:
        async with limit_time(_BODY_TIMEOUT_SECONDS, "The request's body was not received"):
            part = await anext(stream, None)
        if part is None:
            return body
        reservation.grow(len(part))
        body += part
        if len(body) > max_bytes:
            raise codecs.make_size_error(max_bytes)


async def _run_while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work` unless the client disconnects before it is complete.

    Raises:
      ClientDisconnect: The client disconnected; the work is cancelled.
    """
    working = asyncio.ensure_future(work)
    # After the body, the only message of the client is its disconnection.
    disconnection = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((working, disconnection), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return await working
    finally:
        disconnection.cancel()
        working.cancel()


def _make_json_response(content: Json, status: int = 200) -> Response:
    """Return a small response."""
    headers = {"retry-after": "1"} if status == 503 else {}
    return _make_response(json.dumps(content).encode(), headers, status)


def _make_response(body: bytes, headers: dict[str, str], status: int = 200) -> Response:
    """Return a response with JSON; a large one is not copied to the buffer of the connection."""
    if len(body) <= _SENT_BYTES:
        return Response(body, status, headers, media_type="application/json")

    async def split_body() -> AsyncIterator[bytes]:
        for start in range(0, len(body), _SENT_BYTES):
            yield body[start : start + _SENT_BYTES]

    headers = {**headers, "content-length": str(len(body))}
    return StreamingResponse(split_body(), status, headers, media_type="application/json")
