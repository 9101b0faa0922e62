"""Messages of TensorFlow Serving's gRPC services, and conversions of arrays to and from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.environment.messages import DecodeError, Table, declared
from meshflow.io.messages import EXAMPLES, TENSORS, Message
from meshflow.io.tensors import make_ndarray, tensor_proto
from meshflow.saved_model.graph.messages import SIGNATURES
from meshflow.saved_model.graph.nodes import datatype, put_shape
from meshflow.serving.protocol import Specs, check_names, check_shape, text_of

if TYPE_CHECKING:
    from meshflow.serving.versions import Signature

__all__ = [
    "ClassificationRequest",
    "ClassificationResponse",
    "DecodeError",
    "GetModelMetadataRequest",
    "GetModelMetadataResponse",
    "GetModelStatusRequest",
    "GetModelStatusResponse",
    "ModelServerConfig",
    "MultiInferenceRequest",
    "MultiInferenceResponse",
    "PredictRequest",
    "PredictResponse",
    "RegressionRequest",
    "RegressionResponse",
    "SignatureDefMap",
    "arrays_of",
    "describe",
    "put_classes",
    "put_values",
    "tensors",
]

# Codes of the states of a version.
STATES = {"START": 10, "LOADING": 20, "AVAILABLE": 30, "UNLOADING": 40, "END": 50}

_TABLE: Table = {
    **TENSORS,
    **EXAMPLES,
    **SIGNATURES,
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

_classes = declared("meshflow/serving.proto", _TABLE)
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


def arrays_of(inputs: Mapping[str, Message], specs: Specs) -> dict[str, np.ndarray]:
    """Decode the inputs of a request.

    Args:
      inputs: `TensorProto` messages by name.
      specs: Specs of the signature's inputs.

    Raises:
      InvalidArgumentError: The inputs do not match the specs.
    """
    check_names(inputs, specs, "inputs")
    arrays = {}
    for name, spec in specs.items():
        try:
            array = make_ndarray(inputs[name])
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError(
                f"Failed to process the values of input '{name}': {error}"
            ) from None
        if inputs[name].dtype != datatype(spec.dtype):
            raise InvalidArgumentError(
                f"Input '{name}' has the dtype code {inputs[name].dtype}, expected {datatype(spec.dtype)} "
                f"({spec.dtype.name})."
            )
        check_shape(name, array, spec)
        arrays[name] = array
    return arrays


def tensors(outputs: Mapping[str, np.ndarray], requested: Iterable[str]) -> dict[str, Message]:
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
    return {n: tensor_proto(a) for n, a in outputs.items() if not names or n in names}


def describe(signatures: Mapping[str, Signature]) -> Message:
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
                info.name, info.dtype = key, datatype(spec.dtype)
                put_shape(info.tensor_shape, None if spec.shape.rank is None else spec.shape)
    return signature_map


def put_classes(result: Message, labels: np.ndarray | None, scores: np.ndarray | None) -> None:
    """Fill a `ClassificationResult` with labels and scores [examples, classes], if not None."""
    available = next(a for a in (labels, scores) if a is not None)
    for row in range(available.shape[0]):
        classes = result.classifications.add().classes
        for column in range(available.shape[1]):
            entry = classes.add()
            if labels is not None:
                entry.label = text_of(labels[row, column])
            if scores is not None:
                entry.score = scores[row, column]


def put_values(result: Message, values: np.ndarray) -> None:
    """Fill a `RegressionResult` with one value per example."""
    for value in values:
        result.regressions.add(value=value)
