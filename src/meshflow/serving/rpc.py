"""The gRPC side of serving: TensorFlow Serving's PredictionService and ModelService."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from meshflow.core.runtime.errors import UnavailableError
from meshflow.environment import extras
from meshflow.serving import messages
from meshflow.serving.metrics import Metrics
from meshflow.serving.protocol import BadRequest, NotFound
from meshflow.serving.versions import Version, Versions

__all__ = ["RpcServer"]

_log = logging.getLogger("meshflow")
_ANY = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
_FIELD = "signature_def"
_UNKNOWN = 2


class RpcServer:
    """Answers in the loop that the versions live in.

    Args:
      versions: what is served.
      metrics: where requests are counted.
      host: the address that is listened on.
      port: the port; 0 for a free one.

    Attributes:
      port: the port, once it listens.

    Raises:
      ImportError: without the package grpcio (the extra `serving`).
    """

    def __init__(self, versions: Versions, metrics: Metrics, host: str, port: int) -> None:
        self._grpc = extras.load("grpc", "serving", "gRPC needs the package grpcio")
        self._versions, self._metrics = versions, metrics
        self._host, self.port = host, port
        self._server: Any = None

    async def start(self) -> None:
        """Begins to listen.

        Raises:
          UnavailableError: when the port is taken.
        """
        aio = extras.load("grpc.aio", "serving", "gRPC needs the package grpcio")
        # As TensorFlow Serving: a request may be as large as it is.
        limits = [(f"grpc.max_{way}_message_length", -1) for way in ("receive", "send")]
        server = aio.server(options=[*limits, ("grpc.so_reuseport", 0)])
        services = {
            "tensorflow.serving.PredictionService": {
                "Predict": self._method(messages.PredictRequest, self._predict, counted=True),
                "GetModelMetadata": self._method(messages.GetModelMetadataRequest, self._metadata),
            },
            "tensorflow.serving.ModelService": {
                "GetModelStatus": self._method(messages.GetModelStatusRequest, self._status)
            },
        }
        for name, methods in services.items():
            handler = self._grpc.method_handlers_generic_handler(name, methods)
            server.add_generic_rpc_handlers([handler])
        address = (
            f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"
        )
        try:
            self.port, why = server.add_insecure_port(address), ""
        except RuntimeError as error:
            self.port, why = 0, f": {error}"
        if not self.port:
            raise UnavailableError(f"meshflow serve cannot listen at {address} for gRPC{why}.")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Answers what came, and ends."""
        if self._server is not None:
            await self._server.stop(5)

    def _method(
        self, kind: Any, answer: Callable[[Any], Awaitable[Any]], counted: bool = False
    ) -> Any:
        """A handler of bytes: what is no such message is an error of the request, like any other."""

        async def run(data: bytes, call: Any) -> bytes:
            start, state, why = time.perf_counter(), "OK", ""
            try:
                try:
                    request = kind.FromString(data)
                except messages.DecodeError as error:
                    raise BadRequest(f"The request is no {kind.__name__}: {error}") from None
                return (await answer(request)).SerializeToString()
            except NotFound as error:
                state, why = "NOT_FOUND", str(error)
            except BadRequest as error:
                state, why = "INVALID_ARGUMENT", str(error)
            except Exception as error:
                state, why = "INTERNAL", f"{type(error).__name__}: {error}"
            finally:
                if counted:
                    self._metrics.add(state, time.perf_counter() - start)
            await call.abort(getattr(self._grpc.StatusCode, state), why)
            raise AssertionError  # abort raises

        return self._grpc.unary_unary_rpc_method_handler(run)

    def _version(self, spec: Any) -> Version:
        number, label = self._asked(spec)
        return self._versions.find(number, label)

    def _asked(self, spec: Any) -> tuple[int | None, str | None]:
        """Number or label of the version that is asked for."""
        if not spec.name:
            raise BadRequest("Missing ModelSpec")
        if spec.name != self._versions.name:
            raise NotFound(f"Servable not found for request: Latest({spec.name})")
        chosen = spec.WhichOneof("kind")
        return (
            spec.version.value if chosen == "version" else None,
            spec.version_label if chosen == "version_label" else None,
        )

    def _say(self, spec: Any, version: Version, signature: str = "") -> None:
        spec.name, spec.signature_name = self._versions.name, signature
        spec.version.value = version.number

    async def _predict(self, request: Any) -> Any:
        version = self._version(request.model_spec)
        name = request.model_spec.signature_name or "serving_default"
        signature = version.signature(name)
        arrays = messages.arrays_of(request.inputs, signature.inputs)
        found = messages.tensors(await signature.answer(arrays), request.output_filter)
        answer = messages.PredictResponse()
        for key, tensor in found.items():
            answer.outputs[key].ParseFromString(tensor.SerializeToString())
        self._say(answer.model_spec, version, name)
        return answer

    async def _metadata(self, request: Any) -> Any:
        unknown = sorted(set(request.metadata_field) - {_FIELD})
        if unknown or not request.metadata_field:
            raise BadRequest(f"metadata_field must be {_FIELD!r}, got {unknown or 'none'}.")
        version = self._version(request.model_spec)
        answer = messages.GetModelMetadataResponse()
        self._say(answer.model_spec, version)
        about = answer.metadata[_FIELD]
        about.type_url = _ANY
        about.value = messages.describe(version.signatures).SerializeToString()
        return answer

    async def _status(self, request: Any) -> Any:
        number, label = self._asked(request.model_spec)
        if label is not None:
            number = self._versions.find(label=label).number
        states = dict(self._versions.states)
        if number is not None and number not in states:
            raise NotFound(f"Could not find version {number} of model {self._versions.name}")
        answer = messages.GetModelStatusResponse()
        for version in sorted(states, reverse=True):
            if number not in (None, version):
                continue
            state, error = states[version]
            entry = answer.model_version_status.add(version=version)
            entry.state = messages.STATES.get(state, 0)
            entry.status.error_code = _UNKNOWN if error else 0
            entry.status.error_message = error
        return answer
