"""The HTTP side of serving: TensorFlow Serving's REST protocol."""

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
# Seconds without a byte of a request's body.
_SILENCE = 30.0


class Rest:
    """Answers requests.

    Args:
      models: what is served.
      metrics: where requests are counted.
    """

    def __init__(self, models: Models, metrics: Metrics) -> None:
        self._models, self._metrics = models, metrics

    async def answer(self, request: Request) -> Response:
        """Answers any request."""
        path = request.url.path
        if path == _METRICS and request.method == "GET":
            return PlainTextResponse(self._metrics.text(self._models.batches()))
        if not path.lower().startswith("/v1/"):
            return _json({"error": f"Malformed request: {request.method} {path}"}, 404)
        call = _CALL.fullmatch(path) if request.method == "POST" else None
        about = _ABOUT.fullmatch(path) if request.method == "GET" else None
        start, state = time.perf_counter(), "OK"
        try:
            if call is not None:
                return _json(await self._called(request, call))
            if about is not None:
                return _json((self._metadata if about["metadata"] else self._status)(about))
            raise InvalidArgumentError(f"Malformed request: {request.method} {path}")
        except HTTPException as error:
            state = "INVALID_ARGUMENT"
            return _json({"error": error.detail}, error.status_code)
        except ClientDisconnect:
            state = "CANCELLED"
            return _json({"error": "The client went away."}, HTTP_STATUS[state])
        except Exception as error:
            state, why = told(error)
            return _json({"error": why}, HTTP_STATUS[state])
        finally:
            # Names that are made up are not counted: there is no end of them.
            if call is not None and self._models.has(call["name"]):
                self._metrics.add(call["name"], state, time.perf_counter() - start)

    async def _called(self, request: Request, call: re.Match[str]) -> dict[str, Any]:
        """Predicts, classifies or regresses."""
        body, name = parsed(await _body(request, self._models.settings.most_bytes))
        version = self._models.find(call["name"], *_chosen(call))
        signature, method = version.signature(name), call["method"].lower()
        return await _while_connected(request, self._result(signature, method, body))

    async def _result(
        self, signature: Signature, method: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        if method == "predict":
            arrays, rows = columns(body, signature.inputs)
            return response(await signature.answer(arrays), rows)
        examples.check_method(signature, examples.CLASSIFY if method == "classify" else examples.REGRESS)  # fmt: skip
        given = examples.from_json(body)
        if method == "classify":
            return {"results": examples.classes_json(*await examples.classified(signature, given))}
        return {"results": shortest(await examples.regressed(signature, given)).tolist()}

    def _status(self, about: re.Match[str]) -> dict[str, Any]:
        """Which versions there are, and in which state."""
        entries = [
            {
                "version": str(number),
                "state": state,
                "status": {"error_code": "UNKNOWN" if error else "OK", "error_message": error},
            }
            for number, (state, error) in self._models.states_of(
                about["name"], *_chosen(about)
            ).items()
        ]
        return {"model_version_status": entries}

    def _metadata(self, about: re.Match[str]) -> dict[str, Any]:
        """What the signatures take and return."""
        version = self._models.find(about["name"], *_chosen(about))
        signatures = {
            name: {
                "inputs": described(signature.inputs),
                "outputs": described(signature.outputs),
                "method_name": "tensorflow/serving/predict",
            }
            for name, signature in version.signatures.items()
        }
        spec = {"name": about["name"], "signature_name": "", "version": str(version.number)}
        return {
            "model_spec": spec,
            "metadata": {"signature_def": {"signature_def": signatures}},
        }


def _chosen(address: re.Match[str]) -> tuple[int | None, str | None]:
    """The number or the label of the version that is asked for."""
    number = address["version"]
    if number is not None and len(number) > 18:
        raise InvalidArgumentError(f"Failed to convert version: {number:.40} to numeric.")
    return None if number is None else int(number), address["label"]


async def _body(request: Request, most: int) -> bytes:
    """A request's body.

    Raises:
      HTTPException: when it is larger than that, or compressed by anything but gzip.
      InvalidArgumentError: when it is no gzip, but says so.
      DeadlineExceededError: when it does not come.
    """
    parts: list[bytes] = []
    size = 0
    stream = request.stream()
    while True:
        try:
            part = await asyncio.wait_for(anext(stream), _SILENCE)
        except StopAsyncIteration:
            return _unpacked(b"".join(parts), request.headers.get("content-encoding", ""), most)
        except TimeoutError:
            raise DeadlineExceededError(
                f"The request's body did not come within {_SILENCE:g} seconds."
            ) from None
        parts.append(part)
        size += len(part)
        if size > most:
            raise _too_large(most)


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of what is done for a request whose body was read, unless its client goes away before.

    Raises:
      ClientDisconnect: when it does; the work is cancelled.
    """
    working = asyncio.ensure_future(work)
    # After the body nothing comes but that.
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return await working
    finally:
        gone.cancel()
        working.cancel()


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"The request is larger than {most} bytes, the most that is taken.")


def _unpacked(content: bytes, encoding: str, most: int) -> bytes:
    """What a request's body is before it was compressed."""
    if encoding.lower() in ("", "identity"):
        return content
    if encoding.lower() != "gzip":
        raise HTTPException(
            415, f"The request's Content-Encoding is {encoding:.40}, expected gzip."
        )
    unpacker = zlib.decompressobj(wbits=31)
    try:
        found = unpacker.decompress(content, most + 1)
    except zlib.error as error:
        raise InvalidArgumentError(f"The request's body is no gzip: {error}.") from None
    if len(found) > most:
        raise _too_large(most)
    if not unpacker.eof:
        raise InvalidArgumentError("The request's body is no gzip: it is cut off.")
    return found


def _json(content: Any, status: int = 200) -> Response:
    # As TensorFlow Serving, with NaN and Infinity.
    return Response(json.dumps(content), status, media_type="application/json")
