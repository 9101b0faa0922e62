"""HTTP handler with TensorFlow Serving's REST protocol."""

from __future__ import annotations

import asyncio
import json
import re
import time
import zlib
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from meshflow.core.runtime.errors import DeadlineExceededError, InvalidArgumentError
from meshflow.environment.types import Json
from meshflow.serving import examples
from meshflow.serving.errors import HTTP_STATUS, told
from meshflow.serving.metrics import Metrics
from meshflow.serving.models import Models
from meshflow.serving.protocol import columns, described, parsed, response, shortest
from meshflow.serving.versions import Signature

__all__ = ["METHODS", "Rest"]

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_METRICS = "/monitoring/prometheus/metrics"
_MODEL = r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_CALL = re.compile(_MODEL + r":(?P<method>predict|classify|regress)", re.IGNORECASE)
_ABOUT = re.compile(_MODEL + r"(?P<metadata>/metadata)?", re.IGNORECASE)
T = TypeVar("T")
# A request fails if its client sends no data of the body for this many seconds.
_SILENCE = 30.0


class Rest:
    """Handler of REST requests.

    Args:
      models: The served models.
      metrics: Counter of requests.
    """

    def __init__(self, models: Models, metrics: Metrics) -> None:
        self._models, self._metrics = models, metrics

    async def answer(self, request: Request) -> Response:
        """Return the response to any request."""
        path = request.url.path
        if path == _METRICS and request.method == "GET":
            return PlainTextResponse(self._metrics.text(self._models.batches()))
        if not path.lower().startswith("/v1/"):
            return _json({"error": f"Malformed request: {request.method} {path}"}, 404)
        call = _CALL.fullmatch(path) if request.method == "POST" else None
        info = _ABOUT.fullmatch(path) if request.method == "GET" else None
        start, state = time.perf_counter(), "OK"
        try:
            if call is not None:
                return _json(await self._called(request, call))
            if info is not None:
                return _json((self._metadata if info["metadata"] else self._status)(info))
            raise InvalidArgumentError(f"Malformed request: {request.method} {path}")
        except HTTPException as error:
            state = "INVALID_ARGUMENT"
            return _json({"error": error.detail}, error.status_code)
        except ClientDisconnect:
            state = "CANCELLED"
            return _json({"error": "The client disconnected."}, HTTP_STATUS[state])
        except Exception as error:
            state, message = told(error)
            return _json({"error": message}, HTTP_STATUS[state])
        finally:
            # Counts of unknown model names would let clients create unlimited metrics.
            if call is not None and self._models.has(call["name"]):
                self._metrics.add(call["name"], state, time.perf_counter() - start)

    async def _called(self, request: Request, call: re.Match[str]) -> dict[str, Json]:
        """Predict, classify or regress."""
        body, name = parsed(await _body(request, self._models.settings.most_bytes))
        version = self._models.find(call["name"], *_chosen(call))
        signature, method = version.signature(name), call["method"].lower()
        return await _while_connected(request, self._result(signature, method, body))

    async def _result(
        self, signature: Signature, method: str, body: Mapping[str, Json]
    ) -> dict[str, Json]:
        if method == "predict":
            arrays, has_rows = columns(body, signature.inputs)
            return response(await signature.answer(arrays), has_rows)
        examples.check_method(signature, examples.CLASSIFY if method == "classify" else examples.REGRESS)  # fmt: skip
        rows = examples.from_json(body)
        if method == "classify":
            return {"results": examples.classes_json(*await examples.classified(signature, rows))}
        return {"results": shortest(await examples.regressed(signature, rows)).tolist()}

    def _status(self, info: re.Match[str]) -> dict[str, Json]:
        """Return the versions of a model and their states."""
        entries = [
            {
                "version": str(number),
                "state": state,
                "status": {"error_code": "UNKNOWN" if error else "OK", "error_message": error},
            }
            for number, (state, error) in self._models.states_of(
                info["name"], *_chosen(info)
            ).items()
        ]
        return {"model_version_status": entries}

    def _metadata(self, info: re.Match[str]) -> dict[str, Json]:
        """Return the inputs and outputs of the signatures of a version."""
        version = self._models.find(info["name"], *_chosen(info))
        signatures = {
            name: {
                "inputs": described(signature.inputs),
                "outputs": described(signature.outputs),
                "method_name": "tensorflow/serving/predict",
            }
            for name, signature in version.signatures.items()
        }
        spec = {"name": info["name"], "signature_name": "", "version": str(version.number)}
        return {
            "model_spec": spec,
            "metadata": {"signature_def": {"signature_def": signatures}},
        }


def _chosen(path: re.Match[str]) -> tuple[int | None, str | None]:
    """Return the number or the label of the requested version."""
    number = path["version"]
    if number is not None and len(number) > 18:
        raise InvalidArgumentError(f"Failed to convert version: {number:.40} to numeric.")
    return None if number is None else int(number), path["label"]


async def _body(request: Request, max_bytes: int) -> bytes:
    """Read the body of a request.

    Raises:
      HTTPException: The body is too large, or compressed by another method than gzip.
      InvalidArgumentError: The gzip data is invalid.
      DeadlineExceededError: The client stopped sending.
    """
    parts: list[bytes] = []
    size = 0
    stream = request.stream()
    while True:
        try:
            part = await asyncio.wait_for(anext(stream), _SILENCE)
        except StopAsyncIteration:
            encoding = request.headers.get("content-encoding", "")
            return _unpacked(b"".join(parts), encoding, max_bytes)
        except TimeoutError:
            raise DeadlineExceededError(
                f"The request's body was not received within {_SILENCE:g} seconds."
            ) from None
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
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


def _too_large(max_bytes: int) -> HTTPException:
    return HTTPException(413, f"The request is larger than {max_bytes} bytes, the server's limit.")


def _unpacked(content: bytes, encoding: str, max_bytes: int) -> bytes:
    """Decompress the body of a request if necessary."""
    if encoding.lower() in ("", "identity"):
        return content
    if encoding.lower() != "gzip":
        raise HTTPException(
            415, f"The request's Content-Encoding is {encoding:.40}, expected gzip."
        )
    decompressor = zlib.decompressobj(wbits=31)
    try:
        body = decompressor.decompress(content, max_bytes + 1)
    except zlib.error as error:
        raise InvalidArgumentError(f"The request's body is not valid gzip data: {error}.") from None
    if len(body) > max_bytes:
        raise _too_large(max_bytes)
    if not decompressor.eof:
        raise InvalidArgumentError("The request's body is not valid gzip data: it is truncated.")
    return body


def _json(content: Json, status: int = 200) -> Response:
    # Like TensorFlow Serving, the JSON contains NaN and Infinity.
    return Response(json.dumps(content), status, media_type="application/json")
