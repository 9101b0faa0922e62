"""The HTTP side of serving: TensorFlow Serving's REST protocol as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from meshflow.environment import extras
from meshflow.serving.metrics import Metrics
from meshflow.serving.protocol import BadRequest, NotFound, columns, described, response
from meshflow.serving.versions import Settings, Version, Versions

__all__ = ["application"]

_NEEDS = "Serving needs the packages starlette and uvicorn"
_OK = {"error_code": "OK", "error_message": ""}


def application(
    name: str,
    folder: Any,
    settings: Settings | None = None,
    grpc: tuple[str, int] | None = None,
    started: Callable[[int], None] = lambda port: None,
) -> Any:
    """An ASGI application that serves a saved model.

    Args:
      name: the model's, in addresses.
      folder: a saved model, or a folder of its versions, whose names are numbers.
      settings: a `Settings`.
      grpc: host and port (0 for a free one) where gRPC is answered too, or None.
      started: called with that port when it is listened on.

    Raises:
      ImportError: without the extra `serving`.
    """
    applications = extras.load("starlette.applications", "serving", _NEEDS)
    routing = extras.load("starlette.routing", "serving", _NEEDS)
    served = _Served(Versions(name, folder, settings or Settings()))
    remote = served.rpc(*grpc) if grpc is not None else None

    @contextlib.asynccontextmanager
    async def life(_: Any) -> AsyncIterator[None]:
        await served.versions.refresh()
        watch = asyncio.create_task(served.versions.watch())
        if remote is not None:
            await remote.start()
            started(remote.port)
        yield
        if remote is not None:
            await remote.stop()
        watch.cancel()

    root = f"/v1/models/{name}"
    routes = []
    for path in (root, root + "/versions/{version:int}", root + "/labels/{label}"):
        routes += [
            routing.Route(path + ":predict", served.predict, methods=["POST"]),
            routing.Route(path + "/metadata", served.metadata),
            routing.Route(path, served.status),
        ]
    routes += [
        routing.Route("/monitoring/prometheus/metrics", served.monitoring),
        routing.Route("/{rest:path}", served.unknown, methods=["GET", "POST"]),
    ]
    return applications.Starlette(routes=routes, lifespan=life)


class _Served:
    def __init__(self, versions: Versions) -> None:
        self.versions, self._metrics = versions, Metrics(versions.name)
        self._responses = extras.load("starlette.responses", "serving", _NEEDS)

    def rpc(self, host: str, port: int) -> Any:
        """What answers gRPC for the same versions."""
        from meshflow.serving.rpc import RpcServer  # noqa: PLC0415 - it needs an optional package

        return RpcServer(self.versions, self._metrics, host, port)

    def _version(self, request: Any) -> Version:
        found = request.path_params
        return self.versions.find(found.get("version"), found.get("label"))

    def _json(self, content: Any, status: int = 200) -> Any:
        # As TensorFlow Serving, with NaN and Infinity.
        text = json.dumps(content)
        return self._responses.Response(text, status, media_type="application/json")

    async def predict(self, request: Any) -> Any:
        """Runs a signature."""
        start, state = time.perf_counter(), "OK"
        try:
            body = _parsed(await request.body())
            name = body.get("signature_name") if isinstance(body, dict) else None
            signature = self._version(request).signature(name)
            arrays, rows = columns(body, signature.inputs)
            return self._json(response(await signature.answer(arrays), rows))
        except NotFound as error:
            state = "NOT_FOUND"
            return self._json({"error": str(error)}, 404)
        except BadRequest as error:
            state = "INVALID_ARGUMENT"
            return self._json({"error": str(error)}, 400)
        except Exception as error:
            state = "INTERNAL"
            return self._json({"error": f"{type(error).__name__}: {error}"}, 500)
        finally:
            self._metrics.add(state, time.perf_counter() - start)

    async def status(self, request: Any) -> Any:
        """Which versions there are, and in which state."""
        found = request.path_params
        try:
            states = dict(self.versions.states)
            if "label" in found:
                number = self.versions.find(label=found["label"]).number
                states = {number: states[number]}
            elif "version" in found:
                if found["version"] not in states:
                    raise NotFound(
                        f"Could not find version {found['version']} of model {self.versions.name}"
                    )
                states = {found["version"]: states[found["version"]]}
        except NotFound as error:
            return self._json({"error": str(error)}, 404)
        entries = [
            {
                "version": str(number),
                "state": state,
                "status": {"error_code": "UNKNOWN", "error_message": error} if error else _OK,
            }
            for number, (state, error) in sorted(states.items(), reverse=True)
        ]
        return self._json({"model_version_status": entries})

    async def metadata(self, request: Any) -> Any:
        """What the signatures take and return."""
        try:
            version = self._version(request)
        except NotFound as error:
            return self._json({"error": str(error)}, 404)
        signatures = {
            name: {
                "inputs": described(signature.inputs),
                "outputs": described(signature.outputs),
                "method_name": "tensorflow/serving/predict",
            }
            for name, signature in version.signatures.items()
        }
        about = {"name": self.versions.name, "signature_name": "", "version": str(version.number)}
        content = {"signature_def": {"signature_def": signatures}}
        return self._json({"model_spec": about, "metadata": content})

    async def monitoring(self, request: Any) -> Any:
        """Counts and times for Prometheus."""
        batchers = [
            s.batcher
            for v in list(self.versions.available.values())
            for s in v.signatures.values()
            if s.batcher is not None
        ]
        text = self._metrics.text(sum(b.calls for b in batchers), sum(b.rows for b in batchers))
        return self._responses.PlainTextResponse(text)

    async def unknown(self, request: Any) -> Any:
        """Any other address."""
        path = request.url.path
        known = path.startswith("/v1/models/")
        if known and not path.startswith(f"/v1/models/{self.versions.name}"):
            other = path.removeprefix("/v1/models/").split("/")[0].split(":")[0]
            return self._json({"error": f"Servable not found for request: Latest({other})"}, 404)
        return self._json({"error": f"Malformed request: {request.method} {path}"}, 400 if known else 404)  # fmt: skip


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"JSON Parse error: {error}") from None
