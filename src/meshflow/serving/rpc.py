"""gRPC server with TensorFlow Serving's PredictionService and ModelService."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from meshflow.core.runtime.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
    UnimplementedError,
)
from meshflow.environment import extras
from meshflow.io.messages import Message
from meshflow.serving import examples, messages
from meshflow.serving.errors import told
from meshflow.serving.metrics import Metrics
from meshflow.serving.models import Models
from meshflow.serving.protocol import DEFAULT_SIGNATURE
from meshflow.serving.versions import Signature, Version

__all__ = ["RpcServer"]

_log = logging.getLogger("meshflow")
_ANY = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
_FIELD = "signature_def"
_UNKNOWN = 2
# A call that is cancelled with fewer seconds left counts as one that exceeded its deadline.
_ABOUT_NOW = 0.05


class RpcServer:
    """A gRPC server that runs in the event loop of the models.

    Args:
      models: The served models.
      metrics: Counter of requests.
      host: Address to listen on.
      port: Port to listen on; 0 selects a free port.

    Attributes:
      port: The port in use, after `start`.

    Raises:
      ImportError: The package grpcio (extra `serving`) is not installed.
    """

    def __init__(self, models: Models, metrics: Metrics, host: str, port: int) -> None:
        self._grpc = extras.load("grpc", "serving", "gRPC needs the package grpcio")
        self._models, self._metrics = models, metrics
        self._host, self.port = host, port
        self._server: Any = None

    async def start(self) -> None:
        """Start to listen.

        Raises:
          UnavailableError: The port is in use.
        """
        aio = extras.load("grpc.aio", "serving", "gRPC needs the package grpcio")
        server = aio.server(
            options=[
                ("grpc.max_receive_message_length", self._models.settings.most_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
            ]
        )
        services = {
            "tensorflow.serving.PredictionService": {
                "Predict": self._method(messages.PredictRequest, self._predict),
                "Classify": self._method(messages.ClassificationRequest, self._classify),
                "Regress": self._method(messages.RegressionRequest, self._regress),
                "MultiInference": self._method(messages.MultiInferenceRequest, self._infer),
                "GetModelMetadata": self._method(
                    messages.GetModelMetadataRequest, self._metadata, counted=False
                ),
            },
            "tensorflow.serving.ModelService": {
                "GetModelStatus": self._method(
                    messages.GetModelStatusRequest, self._status, counted=False
                )
            },
        }
        for name, methods in services.items():
            handler = self._grpc.method_handlers_generic_handler(name, methods)
            server.add_generic_rpc_handlers([handler])
        address = (
            f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"
        )
        try:
            self.port, reason = server.add_insecure_port(address), ""
        except RuntimeError as error:
            self.port, reason = 0, f": {error}"
        if not self.port:
            raise UnavailableError(f"meshflow serve cannot listen on {address} for gRPC{reason}.")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Finish pending requests for up to 5 seconds, and stop."""
        if self._server is not None:
            await self._server.stop(5)

    def _method(
        self, message_class: Any, answer: Callable[[Any], Awaitable[Any]], counted: bool = True
    ) -> Any:
        """Return a handler of serialized requests, which reports invalid messages like other errors.

        gRPC cancels the handler with the call or at its deadline; waiting rows are then dropped.
        """

        async def run(content: bytes, call: Any) -> bytes:
            start, state, name = time.perf_counter(), "OK", ""
            try:
                try:
                    request = message_class.FromString(content)
                except messages.DecodeError as error:
                    raise InvalidArgumentError(
                        f"The request is not a valid {message_class.DESCRIPTOR.name}: {error}"
                    ) from None
                name = _model_of(request)
                return bytes((await answer(request)).SerializeToString())
            except asyncio.CancelledError:
                remaining = call.time_remaining()
                late = remaining is not None and remaining < _ABOUT_NOW
                state = "DEADLINE_EXCEEDED" if late else "CANCELLED"
                raise
            except Exception as error:
                state, message = told(error)
            finally:
                if counted and self._models.has(name):
                    self._metrics.add(name, state, time.perf_counter() - start)
            await call.abort(getattr(self._grpc.StatusCode, state), message)
            raise AssertionError("unreachable: abort raises")

        return self._grpc.unary_unary_rpc_method_handler(run)

    def _version(self, spec: Message) -> Version:
        return self._models.find(spec.name, *_chosen(spec))

    def _signature(self, spec: Message, method: str) -> tuple[Version, Signature]:
        """Return the requested version and its signature, which must support the method."""
        version = self._version(spec)
        signature = version.signature(spec.signature_name or DEFAULT_SIGNATURE)
        examples.check_method(signature, method)
        return version, signature

    async def _predict(self, request: Message) -> Message:
        version = self._version(request.model_spec)
        name = request.model_spec.signature_name or DEFAULT_SIGNATURE
        if name not in version.signatures:
            # Over HTTP, TensorFlow Serving reports this with another code and message.
            raise FailedPreconditionError(f'Serving signature key "{name}" not found.')
        signature = version.signature(name)
        arrays = messages.arrays_of(request.inputs, signature.inputs)
        tensors = messages.tensors(await signature.answer(arrays), request.output_filter)
        answer = messages.PredictResponse()
        for key, tensor in tensors.items():
            answer.outputs[key].ParseFromString(tensor.SerializeToString())
        _say(answer.model_spec, request.model_spec.name, version, signature.name)
        return answer

    async def _classify(self, request: Message) -> Message:
        version, signature = self._signature(request.model_spec, examples.CLASSIFY)
        rows = examples.examples_of(request.input)
        answer = messages.ClassificationResponse()
        messages.put_classes(answer.result, *await examples.classified(signature, rows))
        _say(answer.model_spec, request.model_spec.name, version, signature.name)
        return answer

    async def _regress(self, request: Message) -> Message:
        version, signature = self._signature(request.model_spec, examples.REGRESS)
        rows = examples.examples_of(request.input)
        answer = messages.RegressionResponse()
        messages.put_values(answer.result, await examples.regressed(signature, rows))
        _say(answer.model_spec, request.model_spec.name, version, signature.name)
        return answer

    async def _infer(self, request: Message) -> Message:
        """Run several signatures of a model on the same examples."""
        tasks: list[tuple[Message, Version, Signature]] = []
        for task in request.tasks:
            if task.model_spec.name != request.tasks[0].model_spec.name:
                raise InvalidArgumentError(
                    "All ModelSpecs in a MultiInferenceRequest must access the same model name."
                )
            if task.method_name not in (examples.CLASSIFY, examples.REGRESS):
                raise UnimplementedError(f"Unsupported signature method_name: {task.method_name}")
            version, signature = self._signature(task.model_spec, task.method_name)
            if any(signature is other for _, _, other in tasks):
                raise InvalidArgumentError(f"Duplicate evaluation of signature: {signature.name}")
            tasks.append((task, version, signature))
        rows = examples.examples_of(request.input)
        answer = messages.MultiInferenceResponse()
        for task, version, signature in tasks:
            result = answer.results.add()
            if task.method_name == examples.CLASSIFY:
                classes = await examples.classified(signature, rows)
                messages.put_classes(result.classification_result, *classes)
            else:
                values = await examples.regressed(signature, rows)
                messages.put_values(result.regression_result, values)
            _say(result.model_spec, task.model_spec.name, version, signature.name)
        return answer

    async def _metadata(self, request: Message) -> Message:
        unknown = sorted(set(request.metadata_field) - {_FIELD})
        if unknown or not request.metadata_field:
            raise InvalidArgumentError(
                f"metadata_field must be {_FIELD!r}, got {unknown or 'none'}."
            )
        version = self._version(request.model_spec)
        answer = messages.GetModelMetadataResponse()
        _say(answer.model_spec, request.model_spec.name, version)
        metadata = answer.metadata[_FIELD]
        metadata.type_url = _ANY
        metadata.value = messages.describe(version.signatures).SerializeToString()
        return answer

    async def _status(self, request: Message) -> Message:
        spec = request.model_spec
        answer = messages.GetModelStatusResponse()
        states = self._models.states_of(spec.name, *_chosen(spec))
        for version, (state, error) in states.items():
            entry = answer.model_version_status.add(version=version)
            entry.state = messages.STATES.get(state, 0)
            entry.status.error_code = _UNKNOWN if error else 0
            entry.status.error_message = error
        return answer


def _model_of(request: Message) -> str:
    """Return the name of the requested model."""
    if hasattr(request, "tasks"):
        if not request.tasks:
            raise InvalidArgumentError("The MultiInferenceRequest has no tasks.")
        name: str = request.tasks[0].model_spec.name
    else:
        name = request.model_spec.name
    if not name:
        raise InvalidArgumentError("Missing ModelSpec")
    return name


def _chosen(spec: Message) -> tuple[int | None, str | None]:
    """Return the number or the label of the requested version."""
    field = spec.WhichOneof("kind")
    return (
        spec.version.value if field == "version" else None,
        spec.version_label if field == "version_label" else None,
    )


def _say(spec: Message, name: str, version: Version, signature: str = "") -> None:
    """Fill the `ModelSpec` of a response with the model, version and signature that answered."""
    spec.name, spec.signature_name = name, signature
    spec.version.value = version.number
