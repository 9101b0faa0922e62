"""The messages of TensorFlow Serving's gRPC services, and arrays in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.environment.messages import DecodeError, Table, declared
from meshflow.io.messages import EXAMPLES, TENSORS
from meshflow.io.tensors import make_ndarray, tensor_proto
from meshflow.saved_model.graph.messages import SIGNATURES
from meshflow.saved_model.graph.nodes import datatype, put_shape
from meshflow.serving.protocol import Specs, check_names, check_shape, text_of

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

# States of a version by their numbers.
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
    # The file that lists models.
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


def arrays_of(inputs: Mapping[str, Any], specs: Specs) -> dict[str, np.ndarray]:
    """The arrays of a request by the names of inputs.

    Args:
      inputs: tensors as messages, by name.
      specs: of the signature's inputs.

    Raises:
      InvalidArgumentError: for what does not fit the specs.
    """
    check_names(inputs, specs, "inputs")
    found = {}
    for name, spec in specs.items():
        try:
            array = make_ndarray(inputs[name])
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError(
                f"Failed to process the values of input '{name}': {error}"
            ) from None
        if inputs[name].dtype != datatype(spec.dtype):
            raise InvalidArgumentError(
                f"Input '{name}' has the dtype number {inputs[name].dtype}, expected {datatype(spec.dtype)} "
                f"({spec.dtype.name})."
            )
        check_shape(name, array, spec)
        found[name] = array
    return found


def tensors(outputs: Mapping[str, np.ndarray], wanted: Any) -> dict[str, Any]:
    """Results as messages by name.

    Args:
      outputs: arrays by name.
      wanted: names of those that are asked for; none for all.

    Raises:
      InvalidArgumentError: for a name that the signature does not give.
    """
    unknown = sorted(set(wanted) - set(outputs))
    if unknown:
        raise InvalidArgumentError(
            f"output_filter has {unknown}; the signature gives {sorted(outputs)}."
        )
    return {n: tensor_proto(a) for n, a in outputs.items() if not wanted or n in wanted}


def describe(signatures: Mapping[str, Any]) -> Any:
    """What signatures take and return, as a `SignatureDefMap`.

    Args:
      signatures: with `inputs` and `outputs`, by name.
    """
    made = SignatureDefMap()
    for name, signature in signatures.items():
        about = made.signature_def[name]
        about.method_name = "tensorflow/serving/predict"
        for place, specs in ((about.inputs, signature.inputs), (about.outputs, signature.outputs)):
            for key, spec in specs.items():
                info = place[key]
                info.name, info.dtype = key, datatype(spec.dtype)
                put_shape(info.tensor_shape, None if spec.shape.rank is None else spec.shape)
    return made


def put_classes(result: Any, labels: np.ndarray | None, scores: np.ndarray | None) -> None:
    """Fills a `ClassificationResult`.

    Args:
      result: the message.
      labels, scores: [examples, classes], or None for what is not known.
    """
    known = next(a for a in (labels, scores) if a is not None)
    for row in range(known.shape[0]):
        classes = result.classifications.add().classes
        for place in range(known.shape[1]):
            one = classes.add()
            if labels is not None:
                one.label = text_of(labels[row, place])
            if scores is not None:
                one.score = scores[row, place]


def put_values(result: Any, values: np.ndarray) -> None:
    """Fills a `RegressionResult`.

    Args:
      result: the message.
      values: a number for each example.
    """
    for value in values:
        result.regressions.add(value=value)
