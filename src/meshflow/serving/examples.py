"""Classification and regression requests, which contain `tf.train.Example` messages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import FailedPreconditionError, InvalidArgumentError
from meshflow.environment.types import Json
from meshflow.io.messages import Example, Message
from meshflow.serving.protocol import decoded_bytes, is_bytes, shortest, text_of
from meshflow.serving.versions import Signature

__all__ = [
    "CLASSIFY",
    "REGRESS",
    "check_method",
    "classes_json",
    "classified",
    "examples_of",
    "from_json",
    "regressed",
]

CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"
_INPUT, _CLASSES, _SCORES, _VALUES = "inputs", "classes", "scores", "outputs"
_LARGEST = float(np.finfo(np.float32).max)


def from_json(body: Mapping[str, Json]) -> list[bytes]:
    """Return the serialized examples of a REST request, each merged with the common context.

    Args:
      body: JSON of the request: {"examples": [{feature: value or list}], "context": {feature: value
        or list}}.

    Raises:
      InvalidArgumentError: The JSON has another structure.
    """
    rows = body.get("examples")
    if not isinstance(rows, list) or not rows:
        raise InvalidArgumentError("Expecting 'examples' value to be a list that is not empty.")
    context = _example(body["context"]) if "context" in body else b""
    return [context + _example(row) for row in rows]


def _example(features: Json) -> bytes:
    """Serialize a JSON object of features as an example."""
    if not isinstance(features, Mapping):
        raise InvalidArgumentError(f"Example must be JSON object, got {features!r:.100}.")
    example = Example()
    for name, content in features.items():
        feature = example.features.feature[name]
        for value in content if isinstance(content, list) else [content]:
            _add(feature, name, value)
    return bytes(example.SerializeToString())


def _add(feature: Message, name: str, value: Json) -> None:
    """Append a JSON value to a feature: a string or bytes, an integer or Boolean, or a float."""
    if isinstance(value, float):
        kind = "float_list"
        if math.isfinite(value) and abs(value) > _LARGEST:
            raise InvalidArgumentError(f"Feature: {name} has {value}, which is outside of float32.")
    elif isinstance(value, int):
        kind = "int64_list"
        if not -(1 << 63) <= value < 1 << 63:
            raise InvalidArgumentError(f"Feature: {name} has {value}, which is outside of int64.")
    elif isinstance(value, str) or is_bytes(value):
        kind, value = "bytes_list", decoded_bytes(value)
    else:
        raise InvalidArgumentError(
            f"Feature: {name} has element with unexpected JSON type: {type(value).__name__}"
        )
    if feature.WhichOneof("kind") not in (None, kind):
        expected = feature.WhichOneof("kind").removesuffix("_list")
        raise InvalidArgumentError(
            f"Unexpected element type in feature: {name} expecting type: {expected}, got {value!r:.100}"
        )
    getattr(feature, kind).value.append(value)


def examples_of(message: Message) -> list[bytes]:
    """Return the serialized examples of an `Input` message, each merged with the common context.

    Raises:
      InvalidArgumentError: The message has no examples.
    """
    kind = message.WhichOneof("kind")
    example_list = getattr(message, kind) if kind else None
    if example_list is None or not example_list.examples:
        raise InvalidArgumentError("Input is empty.")
    # Concatenated messages parse as one example with the features of both.
    context = (
        example_list.context.SerializeToString() if kind == "example_list_with_context" else b""
    )
    return [context + example.SerializeToString() for example in example_list.examples]


def check_method(signature: Signature, method: str) -> None:
    """Check that a signature classifies, or that it regresses.

    Args:
      signature: The signature.
      method: `CLASSIFY` or `REGRESS`.

    Raises:
      InvalidArgumentError: The signature has another number of inputs or outputs.
      FailedPreconditionError: The inputs or outputs have other names or dtypes.
    """
    results = {_CLASSES, _SCORES} if method == CLASSIFY else {_VALUES}
    if len(signature.inputs) != 1:
        raise InvalidArgumentError("Expected one input Tensor.")
    if not 1 <= len(signature.outputs) <= len(results):
        count = "one or two output Tensors" if method == CLASSIFY else "one output Tensor"
        raise InvalidArgumentError(f"Expected {count}, found {len(signature.outputs)}.")
    task = "classification" if method == CLASSIFY else "regression"
    if _INPUT not in signature.inputs or signature.inputs[_INPUT].dtype.name != "string":
        raise FailedPreconditionError(
            f"No {task} inputs found in the signature {signature.name!r}: expected strings named {_INPUT!r} with "
            f"serialized tf.train.Examples, got {dict(signature.inputs)}."
        )
    if not set(signature.outputs) <= results:
        raise FailedPreconditionError(
            f"No {task} outputs found in the signature {signature.name!r}: expected {sorted(results)}, "
            f"got {sorted(signature.outputs)}."
        )


async def _outputs(signature: Signature, examples: list[bytes]) -> Mapping[str, np.ndarray]:
    feed = np.empty(len(examples), object)
    feed[:] = examples
    return await signature.answer({_INPUT: feed})


async def classified(signature: Signature, examples: list[bytes]) -> tuple[np.ndarray | None, np.ndarray | None]:  # fmt: skip
    """Return labels and scores [examples, classes] of a signature; None for a missing output.

    Raises:
      InvalidArgumentError: The results have another shape or dtype.
    """
    outputs = await _outputs(signature, examples)
    for name, array in outputs.items():
        expected = "DT_STRING" if name == _CLASSES else "DT_FLOAT"
        if array.ndim != 2:
            raise InvalidArgumentError(
                f"Expected Tensor shape: [batch_size num_classes] but got {list(array.shape)}"
            )
        if array.dtype != (object if name == _CLASSES else np.float32):
            raise InvalidArgumentError(
                f"Expected {name} Tensor of {expected}. Got: {array.dtype.name}"
            )
        if len(array) != len(examples):
            raise InvalidArgumentError(
                f"Expected {name} output batch size of {len(examples)}. Got: {len(array)}"
            )
    if len({array.shape for array in outputs.values()}) > 1:
        raise InvalidArgumentError(
            f"Tensors class and score should match in dim_size(1). Got {[a.shape[1] for a in outputs.values()]}"
        )
    return outputs.get(_CLASSES), outputs.get(_SCORES)


async def regressed(signature: Signature, examples: list[bytes]) -> np.ndarray:
    """Return the predicted value of each example.

    Raises:
      InvalidArgumentError: The results have another shape or dtype.
    """
    (array,) = (await _outputs(signature, examples)).values()
    if array.ndim not in (1, 2) or array.shape[1:] not in ((), (1,)):
        raise InvalidArgumentError(
            f"Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got {list(array.shape)}"
        )
    if len(array) != len(examples):
        raise InvalidArgumentError(
            f"Input batch size did not match output batch size: {len(examples)} vs. {len(array)}"
        )
    if array.dtype != np.float32:
        raise InvalidArgumentError(f"Expected output Tensor of DT_FLOAT. Got: {array.dtype.name}")
    return array.reshape(-1)


def classes_json(labels: np.ndarray | None, scores: np.ndarray | None) -> list[list[list[Any]]]:
    """Return pairs of label and score per class and example; a missing output has "" or 0."""
    available = next(a for a in (labels, scores) if a is not None)
    texts = np.full(available.shape, b"", object) if labels is None else labels
    numbers = shortest(np.zeros(available.shape, np.float32) if scores is None else scores).tolist()
    return [
        [[text_of(label), score] for label, score in zip(*row, strict=True)]
        for row in zip(texts.tolist(), numbers, strict=True)
    ]
