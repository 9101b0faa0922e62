"""gRPC server with TensorFlow Serving's PredictionService and ModelService."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from meshflow.core.runtime.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
    UnimplementedError,
)
from meshflow.environment import optional_packages
from meshflow.io.messages import Message
from meshflow.serving import codecs, examples, messages
from meshflow.serving.batching import Arrays
from meshflow.serving.codec_pool import CodecPool
from meshflow.serving.errors import describe_error
from meshflow.serving.limits import ByteBudget, ReadSlots, Reservation, limit_time
from meshflow.serving.metrics import Metrics
from meshflow.serving.models import Models
from meshflow.serving.protocol import DEFAULT_SIGNATURE
from meshflow.serving.versions import ServedSignature, Version

_log = logging.getLogger("meshflow")
_SIGNATURE_MAP_TYPE = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
_METADATA_FIELD = "signature_def"
_UNKNOWN_CODE = 2
# A call that is cancelled with fewer seconds left counts as one that exceeded its deadline.
_DEADLINE_TOLERANCE = 0.05
# More calls at a time, of one connection and of all, are rejected before gRPC reads their messages.
_MAX_STREAMS, _MAX_CALLS = 64, 1024
_MAX_METADATA_BYTES = 1 << 14
# gRPC holds complete messages before their size is known, so only some are received at a time, and
# only some of one connection, because its calls may never send their messages.
_MAX_READS, _MAX_READS_PER_CONNECTION, _READ_SECONDS = 24, 2, 1.0
# A connection without calls, or from a machine that does not respond, is closed.
_IDLE_SECONDS, _PING_SECONDS = 300, 30
_STOP_SECONDS = 1


class RpcServer:
    """A gRPC server that runs in the event loop of the models.

    Args:
      models: The served models.
      metrics: Counter of requests.
      pool: Processes that parse requests and format responses.
      budget: Bytes that requests and responses may hold.
      host: Address to listen on.
      port: Port to listen on; 0 selects a free port.

    Attributes:
      port: The port in use, after `start`.

    Raises:
      ImportError: The package grpcio (extra `serving`) is not installed.
    """

    def __init__(
        self,
        models: Models,
        metrics: Metrics,
        pool: CodecPool,
        budget: ByteBudget,
        host: str,
        port: int,
    ) -> None:
        self._grpc = optional_packages.import_extra(
            "grpc", "serving", "gRPC needs the package grpcio"
        )
        self._models, self._metrics = models, metrics
        self._pool, self._budget = pool, budget
        self._host, self.port = host, port
        self._server: Any = None
        self._reads = ReadSlots(_MAX_READS, _MAX_READS_PER_CONNECTION, _READ_SECONDS)

    async def start(self) -> None:
        """Start to listen.

        Raises:
          UnavailableError: The port is in use.
        """
        aio = optional_packages.import_extra("grpc.aio", "serving", "gRPC needs the package grpcio")
        server = aio.server(
            options=[
                ("grpc.max_receive_message_length", self._models.settings.most_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.max_concurrent_streams", _MAX_STREAMS),
                # Otherwise gRPC also receives more unread messages.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
                ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
                ("grpc.max_connection_idle_ms", 1000 * _IDLE_SECONDS),
                ("grpc.keepalive_time_ms", 1000 * _PING_SECONDS),
                ("grpc.keepalive_timeout_ms", 1000 * _PING_SECONDS),
            ],
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        services = {
            "tensorflow.serving.PredictionService": {
                "Predict": self._make_handler("PredictRequest", self._predict),
                "Classify": self._make_handler("ClassificationRequest", self._classify),
                "Regress": self._make_handler("RegressionRequest", self._regress),
                "MultiInference": self._make_handler("MultiInferenceRequest", self._infer),
                "GetModelMetadata": self._make_handler(
                    "GetModelMetadataRequest", self._get_metadata, counted=False
                ),
            },
            "tensorflow.serving.ModelService": {
                "GetModelStatus": self._make_handler(
                    "GetModelStatusRequest", self._get_status, counted=False
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
        """Finish pending requests for up to a second, and stop."""
        if self._server is not None:
            await self._server.stop(_STOP_SECONDS)

    def _make_handler(
        self,
        message_class: str,
        answer: Callable[[Any, Arrays], Awaitable[bytes]],
        counted: bool = True,
    ) -> Any:
        """Return a handler of serialized requests, which reports invalid messages like other errors.

        gRPC cancels the handler with the call or at its deadline; waiting rows are then dropped. The
        handler is that of a stream of requests, so that it is called before the request is received
        and can limit the time of that too.
        """
        parse = getattr(messages, message_class).FromString
        settings = self._models.settings

        async def run(contents: AsyncIterator[bytes], call: Any) -> bytes:
            start, state, name = time.perf_counter(), "OK", ""
            try:
                with Reservation(self._budget) as reservation:
                    async with limit_time(settings.deadline, "The request was not answered"):
                        async with self._reads.hold(call.peer()):
                            content = await anext(contents, None)
                        if content is None:
                            raise InvalidArgumentError("The call has no request.")
                        reservation.grow(len(content))
                        header, arrays = await self._pool.run(
                            self._pool.is_small_request(content), codecs.decode_message,
                            message_class, content, settings.most_bytes,
                        )  # fmt: skip
                        request = parse(header)
                        name = _get_model_name(request)
                        return await answer(request, arrays)
            except asyncio.CancelledError:
                remaining = call.time_remaining()
                late = remaining is not None and remaining < _DEADLINE_TOLERANCE
                state = "DEADLINE_EXCEEDED" if late else "CANCELLED"
                raise
            except Exception as error:
                state, message = describe_error(error)
            finally:
                if counted and self._models.has_model(name):
                    self._metrics.add(name, state, time.perf_counter() - start)
            await call.abort(getattr(self._grpc.StatusCode, state), message)
            raise AssertionError("unreachable: abort raises")

        return self._grpc.stream_unary_rpc_method_handler(run)

    def _find_version(self, spec: Message) -> Version:
        return self._models.find(spec.name, *_get_version(spec))

    def _find_signature(self, spec: Message, method: str) -> tuple[Version, ServedSignature]:
        """Return the requested version and its signature, which must support the method."""
        version = self._find_version(spec)
        signature = version.get_signature(spec.signature_name or DEFAULT_SIGNATURE)
        examples.check_method(signature, method)
        return version, signature

    async def _predict(self, request: Message, arrays: Arrays) -> bytes:
        version = self._find_version(request.model_spec)
        name = request.model_spec.signature_name or DEFAULT_SIGNATURE
        if name not in version.signatures:
            # Over HTTP, TensorFlow Serving reports this with another code and message.
            raise FailedPreconditionError(f'Serving signature key "{name}" not found.')
        signature = version.get_signature(name)
        messages.check_inputs(request.inputs, arrays, signature.inputs)
        outputs = await signature.answer(arrays)
        spec = _make_spec(request.model_spec.name, version, signature.name)
        return await self._pool.run(
            self._pool.is_small_result(outputs), codecs.encode_outputs,
            outputs, list(request.output_filter), spec,
        )  # fmt: skip

    async def _classify(self, request: Message, arrays: Arrays) -> bytes:
        return await self._run_task(request.model_spec, examples.CLASSIFY, arrays)

    async def _regress(self, request: Message, arrays: Arrays) -> bytes:
        return await self._run_task(request.model_spec, examples.REGRESS, arrays)

    async def _run_task(
        self, spec: Message, method: str, arrays: Arrays, is_inference: bool = False
    ) -> bytes:
        """Classify or regress, and return the serialized response."""
        version, signature = self._find_signature(spec, method)
        examples.check_count(arrays)
        outputs = await examples.answer(signature, method, arrays)
        return await self._pool.run(
            self._pool.is_small_result(outputs), codecs.encode_results,
            method, outputs, _make_spec(spec.name, version, signature.name), is_inference,
        )  # fmt: skip

    async def _infer(self, request: Message, arrays: Arrays) -> bytes:
        """Run several signatures of a model on the same examples."""
        signatures: list[ServedSignature] = []
        for task in request.tasks:
            if task.model_spec.name != request.tasks[0].model_spec.name:
                raise InvalidArgumentError(
                    "All ModelSpecs in a MultiInferenceRequest must access the same model name."
                )
            if task.method_name not in (examples.CLASSIFY, examples.REGRESS):
                raise UnimplementedError(f"Unsupported signature method_name: {task.method_name}")
            _, signature = self._find_signature(task.model_spec, task.method_name)
            if any(signature is other for other in signatures):
                raise InvalidArgumentError(f"Duplicate evaluation of signature: {signature.name}")
            signatures.append(signature)
        results = [
            await self._run_task(task.model_spec, task.method_name, arrays, is_inference=True)
            for task in request.tasks
        ]
        # Concatenated messages parse as one message with the results of all.
        return b"".join(results)

    async def _get_metadata(self, request: Message, _: Arrays) -> bytes:
        unknown = sorted(set(request.metadata_field) - {_METADATA_FIELD})
        if unknown or not request.metadata_field:
            raise InvalidArgumentError(
                f"metadata_field must be {_METADATA_FIELD!r}, got {unknown or 'none'}."
            )
        version = self._find_version(request.model_spec)
        answer = messages.GetModelMetadataResponse()
        answer.model_spec.ParseFromString(_make_spec(request.model_spec.name, version))
        metadata = answer.metadata[_METADATA_FIELD]
        metadata.type_url = _SIGNATURE_MAP_TYPE
        metadata.value = messages.make_signature_map(version.signatures).SerializeToString()
        return bytes(answer.SerializeToString())

    async def _get_status(self, request: Message, _: Arrays) -> bytes:
        spec = request.model_spec
        answer = messages.GetModelStatusResponse()
        states = self._models.get_states(spec.name, *_get_version(spec))
        for version, (state, error) in states.items():
            entry = answer.model_version_status.add(version=version)
            entry.state = messages.STATE_CODES.get(state, 0)
            entry.status.error_code = _UNKNOWN_CODE if error else 0
            entry.status.error_message = error
        return bytes(answer.SerializeToString())


def _get_model_name(request: Message) -> str:
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


def _get_version(spec: Message) -> tuple[int | None, str | None]:
    """Return the number or the label of the requested version."""
    field = spec.WhichOneof("kind")
    return (
        spec.version.value if field == "version" else None,
        spec.version_label if field == "version_label" else None,
    )


def _make_spec(name: str, version: Version, signature: str = "") -> bytes:
    """Return a serialized `ModelSpec` with the model, version and signature that answered."""
    spec = messages.ModelSpec(name=name, signature_name=signature)
    spec.version.value = version.number
    return bytes(spec.SerializeToString())
