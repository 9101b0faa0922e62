"""Messages of TensorFlow Serving's gRPC services, and conversions of arrays to and from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.dtypes import as_dtype
from meshflow.environment.protobuf_messages import MessageTable, declare_messages
from meshflow.io.messages import EXAMPLE_MESSAGES, TENSOR_MESSAGES, Message
from meshflow.io.tensors import make_ndarray, to_tensor_proto
from meshflow.saved_model.graph.format.messages import SIGNATURE_MESSAGES
from meshflow.saved_model.graph.format.nodes import STRING, to_dtype_enum, write_shape
from meshflow.serving.protocol import MAX_STRINGS, Specs, check_names, check_shape, decode_text

if TYPE_CHECKING:
    from meshflow.serving.versions import ServedSignature

# Codes of the states of a version.
STATE_CODES = {"START": 10, "LOADING": 20, "AVAILABLE": 30, "UNLOADING": 40, "END": 50}

_MESSAGES: MessageTable = {
    **TENSOR_MESSAGES,
    **EXAMPLE_MESSAGES,
    **SIGNATURE_MESSAGES,
    "Int64Value": {"value": (1, "int64")},
    "Any": {"type_url": (1, "string"), "value": (2, "bytes")},
    "StatusProto": {"error_code": (1, "int32"), "error_message": (2, "string")},
    "ModelSpec": {
        "name": (1, "string"),
        "version": (2, "|Int64Value"),
        "signature_name": (3, "string"),
        "version_label": (4, "|string"),
    },
    "PredictRequest": {
        "model_spec": (1, "ModelSpec"),
        "inputs": (2, "{}TensorProto"),
        "output_filter": (3, "*string"),
    },
    "PredictResponse": {"outputs": (1, "{}TensorProto"), "model_spec": (2, "ModelSpec")},
    "SignatureDefMap": {"signature_def": (1, "{}SignatureDef")},
    "GetModelMetadataRequest": {
        "model_spec": (1, "ModelSpec"),
        "metadata_field": (2, "*string"),
    },
    "GetModelMetadataResponse": {"model_spec": (1, "ModelSpec"), "metadata": (2, "{}Any")},
    "GetModelStatusRequest": {"model_spec": (1, "ModelSpec")},
    "ModelVersionStatus": {
        "version": (1, "int64"),
        "state": (2, "int32"),
        "status": (3, "StatusProto"),
    },
    "GetModelStatusResponse": {"model_version_status": (1, "*ModelVersionStatus")},
    # Classification and regression.
    "ExampleList": {"examples": (1, "*Example")},
    "ExampleListWithContext": {"examples": (1, "*Example"), "context": (2, "Example")},
    "Input": {
        "example_list": (1, "|ExampleList"),
        "example_list_with_context": (2, "|ExampleListWithContext"),
    },
    "Class": {"label": (1, "string"), "score": (2, "float")},
    "Classifications": {"classes": (1, "*Class")},
    "ClassificationResult": {"classifications": (1, "*Classifications")},
    "ClassificationRequest": {"model_spec": (1, "ModelSpec"), "input": (2, "Input")},
    "ClassificationResponse": {
        "result": (1, "ClassificationResult"),
        "model_spec": (2, "ModelSpec"),
    },
    "Regression": {"value": (1, "float")},
    "RegressionResult": {"regressions": (1, "*Regression")},
    "RegressionRequest": {"model_spec": (1, "ModelSpec"), "input": (2, "Input")},
    "RegressionResponse": {"result": (1, "RegressionResult"), "model_spec": (2, "ModelSpec")},
    "InferenceTask": {"model_spec": (1, "ModelSpec"), "method_name": (2, "string")},
    "InferenceResult": {
        "model_spec": (1, "ModelSpec"),
        "classification_result": (2, "|ClassificationResult"),
        "regression_result": (3, "|RegressionResult"),
    },
    "MultiInferenceRequest": {"tasks": (1, "*InferenceTask"), "input": (2, "Input")},
    "MultiInferenceResponse": {"results": (1, "*InferenceResult")},
    # Configuration files that list models.
    "ServableVersionPolicy": {
        "latest": (100, "|ServableVersionPolicy.Latest"),
        "all": (101, "|ServableVersionPolicy.All"),
        "specific": (102, "|ServableVersionPolicy.Specific"),
    },
    "ServableVersionPolicy.Latest": {"num_versions": (1, "uint32")},
    "ServableVersionPolicy.All": {},
    "ServableVersionPolicy.Specific": {"versions": (1, "*int64")},
    "ModelConfig": {
        "name": (1, "string"),
        "base_path": (2, "string"),
        "model_platform": (4, "string"),
        "model_version_policy": (7, "ServableVersionPolicy"),
        "version_labels": (8, "{}int64"),
    },
    "ModelConfigList": {"config": (1, "*ModelConfig")},
    "ModelServerConfig": {"model_config_list": (1, "ModelConfigList")},
}

_classes = declare_messages("meshflow/serving.proto", _MESSAGES)
ModelSpec = _classes["ModelSpec"]
PredictRequest = _classes["PredictRequest"]
PredictResponse = _classes["PredictResponse"]
GetModelMetadataRequest = _classes["GetModelMetadataRequest"]
GetModelMetadataResponse = _classes["GetModelMetadataResponse"]
GetModelStatusRequest = _classes["GetModelStatusRequest"]
GetModelStatusResponse = _classes["GetModelStatusResponse"]
SignatureDefMap = _classes["SignatureDefMap"]
ClassificationRequest = _classes["ClassificationRequest"]
ClassificationResponse = _classes["ClassificationResponse"]
RegressionRequest = _classes["RegressionRequest"]
RegressionResponse = _classes["RegressionResponse"]
MultiInferenceRequest = _classes["MultiInferenceRequest"]
MultiInferenceResponse = _classes["MultiInferenceResponse"]
ModelServerConfig = _classes["ModelServerConfig"]


def decode_inputs(inputs: Mapping[str, Message], max_bytes: int) -> dict[str, np.ndarray]:
    """Decode the inputs of a request.

    Args:
      inputs: `TensorProto` messages by name.
      max_bytes: Maximum size of each array. A message may repeat its last value, so that its array
        is larger than the message.

    Raises:
      InvalidArgumentError: The messages are invalid, or declare larger arrays.
    """
    arrays = {}
    for name, tensor in inputs.items():
        try:
            size = math.prod(d.size for d in tensor.tensor_shape.dim)
            if size * as_dtype(tensor.dtype).size > max_bytes:
                raise ValueError(f"its shape needs more than {max_bytes} bytes")
            if len(tensor.string_val) > MAX_STRINGS or (
                tensor.dtype == STRING and size > MAX_STRINGS
            ):
                raise ValueError(f"a request may have {MAX_STRINGS} strings: split it")
            arrays[name] = make_ndarray(tensor)
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidArgumentError(
                f"Failed to process the values of input '{name}': {error}"
            ) from None
    return arrays


def check_inputs(
    inputs: Mapping[str, Message], arrays: Mapping[str, np.ndarray], specs: Specs
) -> None:
    """Check the decoded inputs of a request.

    Args:
      inputs: `TensorProto` messages by name, of which only the dtypes are used.
      arrays: The arrays by name.
      specs: Specs of the signature's inputs.

    Raises:
      InvalidArgumentError: The inputs do not match the specs.
    """
    check_names(inputs, specs, "inputs")
    for name, spec in specs.items():
        if inputs[name].dtype != to_dtype_enum(spec.dtype):
            raise InvalidArgumentError(
                f"Input '{name}' has the dtype code {inputs[name].dtype}, expected {to_dtype_enum(spec.dtype)} "
                f"({spec.dtype.name})."
            )
        check_shape(name, arrays[name], spec)


def encode_outputs(
    outputs: Mapping[str, np.ndarray], requested: Iterable[str]
) -> dict[str, Message]:
    """Encode results as messages by name.

    Args:
      outputs: Arrays by name.
      requested: Names of the requested outputs; empty for all.

    Raises:
      InvalidArgumentError: The signature lacks a requested output.
    """
    names = set(requested)
    unknown = sorted(names - set(outputs))
    if unknown:
        raise InvalidArgumentError(
            f"output_filter has {unknown}, but the outputs of the signature are {sorted(outputs)}."
        )
    return {n: to_tensor_proto(a) for n, a in outputs.items() if not names or n in names}


def make_signature_map(signatures: Mapping[str, ServedSignature]) -> Message:
    """Return a `SignatureDefMap` of signatures."""
    signature_map = SignatureDefMap()
    for name, signature in signatures.items():
        definition = signature_map.signature_def[name]
        definition.method_name = "tensorflow/serving/predict"
        for infos, specs in (
            (definition.inputs, signature.inputs),
            (definition.outputs, signature.outputs),
        ):
            for key, spec in specs.items():
                info = infos[key]
                info.name, info.dtype = key, to_dtype_enum(spec.dtype)
                write_shape(info.tensor_shape, None if spec.shape.rank is None else spec.shape)
    return signature_map


def fill_classes(result: Message, labels: np.ndarray | None, scores: np.ndarray | None) -> None:
    """Fill a `ClassificationResult` with labels and scores [examples, classes], if not None."""
    available = next(a for a in (labels, scores) if a is not None)
    for row in range(available.shape[0]):
        classes = result.classifications.add().classes
        for column in range(available.shape[1]):
            entry = classes.add()
            if labels is not None:
                entry.label = decode_text(labels[row, column])
            if scores is not None:
                entry.score = scores[row, column]


def fill_values(result: Message, values: np.ndarray) -> None:
    """Fill a `RegressionResult` with one value per example."""
    for value in values:
        result.regressions.add(value=value)
