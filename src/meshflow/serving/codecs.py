"""Conversions of requests to arrays and of arrays to responses, as functions without side effects.

Their time and memory are proportional to the size of their arguments. A `CodecPool` runs them in
processes, because the interpreter does nothing else while it parses JSON.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.environment.protobuf_messages import DecodeError
from meshflow.environment.types import Json
from meshflow.serving import examples, messages
from meshflow.serving.batching import Arrays
from meshflow.serving.errors import HttpError
from meshflow.serving.protocol import Specs, make_response, parse_inputs, parse_request

# Responses of at least this many bytes are compressed for clients that accept gzip.
_MIN_GZIP_BYTES = 1000
# The names in a request; its arrays are limited separately.
_MAX_HEADER_BYTES = 1 << 16


class DecodedRequest(NamedTuple):
    """A parsed request.

    Attributes:
      signature: Name of the requested signature.
      arrays: Inputs by name; empty if the signature does not exist.
      has_rows: Whether the request contains rows instead of columns.
    """

    signature: str
    arrays: Arrays
    has_rows: bool


def decode_json_request(
    content: bytes | bytearray,
    encoding: str,
    max_bytes: int,
    method: str,
    signatures: Mapping[str, Specs],
) -> DecodedRequest:
    """Parse the body of a REST request.

    Args:
      content: The body.
      encoding: The header Content-Encoding.
      max_bytes: Maximum size of the decompressed body.
      method: "predict", "classify" or "regress".
      signatures: Specs of the inputs of each signature.

    Raises:
      HttpError: The body is too large, or compressed by another method than gzip.
      InvalidArgumentError: The body is invalid.
    """
    body, name = parse_request(_decompress(content, encoding, max_bytes))
    if method != "predict":
        return DecodedRequest(name, examples.to_inputs(examples.parse_json_examples(body)), True)
    if name not in signatures:
        return DecodedRequest(name, {}, False)
    return DecodedRequest(name, *parse_inputs(body, signatures[name]))


def make_size_error(max_bytes: int) -> HttpError:
    """Return the error for a body that is too large."""
    return HttpError(413, f"The request is larger than {max_bytes} bytes, the server's limit.")


def _decompress(content: bytes | bytearray, encoding: str, max_bytes: int) -> bytes | bytearray:
    """Decompress the body of a request if necessary."""
    if encoding.lower() in ("", "identity"):
        return content
    if encoding.lower() != "gzip":
        raise HttpError(415, f"The request's Content-Encoding is {encoding:.40}, expected gzip.")
    decompressor = zlib.decompressobj(wbits=31)
    try:
        body = decompressor.decompress(content, max_bytes + 1)
    except zlib.error as error:
        raise InvalidArgumentError(f"The request's body is not valid gzip data: {error}.") from None
    if len(body) > max_bytes:
        raise make_size_error(max_bytes)
    if not decompressor.eof:
        raise InvalidArgumentError("The request's body is not valid gzip data: it is truncated.")
    return body


def encode_json_response(
    method: str, outputs: Arrays, has_rows: bool, accepts_gzip: bool
) -> tuple[bytes, bool]:
    """Return the body of a REST response, and whether it is compressed.

    Args:
      method: "predict", "classify" or "regress".
      outputs: Outputs of the signature.
      has_rows: Whether the request contained rows.
      accepts_gzip: Whether the client accepts compressed responses.

    Raises:
      InvalidArgumentError: The outputs do not have the rows of the request.
    """
    response: dict[str, Json]
    if method == "predict":
        response = make_response(outputs, has_rows)
    elif method == "classify":
        response = {"results": examples.format_classes(outputs)}
    else:
        response = {"results": examples.format_values(outputs)}
    # Like TensorFlow Serving, the JSON contains NaN and Infinity.
    body = json.dumps(response).encode()
    if accepts_gzip and len(body) >= _MIN_GZIP_BYTES:
        # Level 1 shrinks numbers in JSON to a third; a higher level takes much longer.
        return gzip.compress(body, 1), True
    return body, False


def decode_message(message_class: str, content: bytes, max_bytes: int) -> tuple[bytes, Arrays]:
    """Parse a gRPC request, and separate its arrays from the rest.

    Args:
      message_class: Name of the message.
      content: The serialized message.
      max_bytes: Maximum size of each array.

    Returns:
      The message without the values of its inputs, serialized again, and the inputs.

    Raises:
      InvalidArgumentError: The message is invalid.
    """
    try:
        request = getattr(messages, message_class).FromString(content)
    except DecodeError as error:
        raise InvalidArgumentError(f"The request is not a valid {message_class}: {error}") from None
    arrays: Arrays = {}
    if hasattr(request, "inputs"):
        arrays = messages.decode_inputs(request.inputs, max_bytes)
        for tensor in request.inputs.values():
            dtype = tensor.dtype
            tensor.Clear()
            tensor.dtype = dtype
    elif hasattr(request, "input"):
        arrays = examples.to_inputs(examples.parse_input_message(request.input))
        request.ClearField("input")
    header = bytes(request.SerializeToString())
    if len(header) > _MAX_HEADER_BYTES:
        raise InvalidArgumentError(
            f"The {message_class} has {len(header)} bytes besides the values of its inputs, but "
            f"{_MAX_HEADER_BYTES} are allowed."
        )
    return header, arrays


def encode_outputs(outputs: Arrays, requested: Sequence[str], spec: bytes) -> bytes:
    """Return a serialized `PredictResponse`.

    Args:
      outputs: Outputs of the signature.
      requested: Names of the requested outputs; empty for all.
      spec: Serialized `ModelSpec` of the response.

    Raises:
      InvalidArgumentError: The signature lacks a requested output.
    """
    answer = messages.PredictResponse()
    answer.model_spec.ParseFromString(spec)
    for key, tensor in messages.encode_outputs(outputs, requested).items():
        answer.outputs[key].ParseFromString(tensor.SerializeToString())
    return bytes(answer.SerializeToString())


def encode_results(method: str, outputs: Arrays, spec: bytes, is_inference: bool) -> bytes:
    """Return a serialized `ClassificationResponse` or `RegressionResponse`.

    Args:
      method: `examples.CLASSIFY` or `examples.REGRESS`.
      outputs: Outputs of the signature.
      spec: Serialized `ModelSpec` of the response.
      is_inference: Whether to return a `MultiInferenceResponse` with one result instead.
    """
    is_classify = method == examples.CLASSIFY
    kind = "classification" if is_classify else "regression"
    if is_inference:
        answer = messages.MultiInferenceResponse()
        part = answer.results.add()
        result = getattr(part, f"{kind}_result")
    else:
        answer = part = getattr(messages, f"{kind.title()}Response")()
        result = part.result
    part.model_spec.ParseFromString(spec)
    if is_classify:
        messages.fill_classes(result, *examples.get_classes(outputs))
    else:
        messages.fill_values(result, next(iter(outputs.values())))
    return bytes(answer.SerializeToString())
