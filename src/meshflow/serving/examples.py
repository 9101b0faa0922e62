"""Classification and regression requests, which contain `tf.train.Example` messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshflow.core.runtime.errors import FailedPreconditionError, InvalidArgumentError
from meshflow.environment.types import Json
from meshflow.io.messages import Example, Message
from meshflow.serving.protocol import (
    MAX_STRINGS,
    decode_bytes,
    decode_text,
    is_base64,
    shorten_floats,
)

if TYPE_CHECKING:
    from meshflow.serving.batching import Arrays
    from meshflow.serving.versions import ServedSignature

CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"
_INPUT, _CLASSES, _SCORES, _VALUES = "inputs", "classes", "scores", "outputs"
_FLOAT32_MAX = float(np.finfo(np.float32).max)


def parse_json_examples(body: Mapping[str, Json]) -> list[bytes]:
    """Return the serialized examples of a REST request, each merged with the common context.

    Args:
      body: JSON of the request: {"examples": [{feature: value or list}], "context": {feature: value
        or list}}.

    Raises:
      InvalidArgumentError: The JSON has another structure, or too many examples.
    """
    rows = body.get("examples")
    if not isinstance(rows, list) or not rows:
        raise InvalidArgumentError("Expecting 'examples' value to be a list that is not empty.")
    _check_limit(len(rows))
    context = _serialize_example(body["context"]) if "context" in body else b""
    return [context + _serialize_example(row) for row in rows]


def _serialize_example(features: Json) -> bytes:
    """Serialize a JSON object of features as an example."""
    if not isinstance(features, Mapping):
        raise InvalidArgumentError(f"Example must be JSON object, got {features!r:.100}.")
    example = Example()
    for name, content in features.items():
        feature = example.features.feature[name]
        for value in content if isinstance(content, list) else [content]:
            _add_value(feature, name, value)
    return bytes(example.SerializeToString())


def _add_value(feature: Message, name: str, value: Json) -> None:
    """Append a JSON value to a feature: a string or bytes, an integer or Boolean, or a float."""
    if isinstance(value, float):
        kind = "float_list"
        if math.isfinite(value) and abs(value) > _FLOAT32_MAX:
            raise InvalidArgumentError(f"Feature: {name} has {value}, which is outside of float32.")
    elif isinstance(value, int):
        kind = "int64_list"
        if not -(1 << 63) <= value < 1 << 63:
            raise InvalidArgumentError(f"Feature: {name} has {value}, which is outside of int64.")
    elif isinstance(value, str) or is_base64(value):
        kind, value = "bytes_list", decode_bytes(value)
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


def parse_input_message(message: Message) -> list[bytes]:
    """Return the serialized examples of an `Input` message, each merged with the common context.

    Raises:
      InvalidArgumentError: There are too many examples.
    """
    kind = message.WhichOneof("kind")
    if kind is None:
        return []
    example_list = getattr(message, kind)
    _check_limit(len(example_list.examples))
    # Concatenated messages parse as one example with the features of both.
    context = (
        example_list.context.SerializeToString() if kind == "example_list_with_context" else b""
    )
    return [context + example.SerializeToString() for example in example_list.examples]


def to_inputs(examples: Sequence[bytes]) -> dict[str, np.ndarray]:
    """Return the inputs of a signature that takes serialized examples."""
    array = np.empty(len(examples), object)
    array[:] = examples
    return {_INPUT: array}


def _check_limit(count: int) -> None:
    if count > MAX_STRINGS:
        raise InvalidArgumentError(
            f"There are {count} examples, but a request may have {MAX_STRINGS}: split it."
        )


def check_count(inputs: Arrays) -> None:
    """Check that a request has examples.

    Raises:
      InvalidArgumentError: There are none.
    """
    if not len(inputs[_INPUT]):
        raise InvalidArgumentError("Input is empty.")


def check_method(signature: ServedSignature, method: str) -> None:
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


async def answer(signature: ServedSignature, method: str, inputs: Arrays) -> Arrays:
    """Classify examples, or regress them.

    Args:
      signature: The signature, which `check_method` accepts.
      method: `CLASSIFY` or `REGRESS`.
      inputs: Serialized examples, as `to_inputs` returns them.

    Returns:
      `classes` and `scores` [examples, classes], or one of them; or `outputs` [examples].

    Raises:
      InvalidArgumentError: The results have another shape or dtype.
    """
    return await (_classify if method == CLASSIFY else _regress)(signature, inputs)


async def _classify(signature: ServedSignature, inputs: Arrays) -> Arrays:
    outputs = await signature.answer(inputs)
    count = len(inputs[_INPUT])
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
        if len(array) != count:
            raise InvalidArgumentError(
                f"Expected {name} output batch size of {count}. Got: {len(array)}"
            )
    if len({array.shape for array in outputs.values()}) > 1:
        raise InvalidArgumentError(
            f"Tensors class and score should match in dim_size(1). Got {[a.shape[1] for a in outputs.values()]}"
        )
    return outputs


async def _regress(signature: ServedSignature, inputs: Arrays) -> Arrays:
    (array,) = (await signature.answer(inputs)).values()
    count = len(inputs[_INPUT])
    if array.ndim not in (1, 2) or array.shape[1:] not in ((), (1,)):
        raise InvalidArgumentError(
            f"Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got {list(array.shape)}"
        )
    if len(array) != count:
        raise InvalidArgumentError(
            f"Input batch size did not match output batch size: {count} vs. {len(array)}"
        )
    if array.dtype != np.float32:
        raise InvalidArgumentError(f"Expected output Tensor of DT_FLOAT. Got: {array.dtype.name}")
    return {_VALUES: array.reshape(-1)}


def get_classes(outputs: Arrays) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return labels and scores [examples, classes]; None for a missing output."""
    return outputs.get(_CLASSES), outputs.get(_SCORES)


def format_classes(outputs: Arrays) -> list[list[list[Any]]]:
    """Return pairs of label and score per class and example; a missing output has "" or 0."""
    labels, scores = get_classes(outputs)
    shape = next(iter(outputs.values())).shape
    texts = np.full(shape, b"", object) if labels is None else labels
    numbers = shorten_floats(np.zeros(shape, np.float32) if scores is None else scores).tolist()
    return [
        [[decode_text(label), score] for label, score in zip(*row, strict=True)]
        for row in zip(texts.tolist(), numbers, strict=True)
    ]


def format_values(outputs: Arrays) -> list[float]:
    """Return the predicted value of each example."""
    return shorten_floats(outputs[_VALUES]).tolist()
