"""Errors in calls of layers: the message names the layer and the arguments of the call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from meshflow.core.runtime import errors, tracebacks
from meshflow.core.values import nest
from meshflow.core.variables.variable_creation import VariableNeedsEagerError
from meshflow.environment.types import PyTree

# Errors that other parts of Meshflow catch, or that are no fault of a layer.
_CONTROL_FLOW_ERRORS = (errors.ValueNeededError, VariableNeedsEagerError, StopIteration)
# Maximum number of characters of an argument that is no tensor.
_MAX_ARGUMENT_LENGTH = 200
_NUMBER = re.compile(r"\d+")


class NamedLayer(Protocol):
    """A layer, for messages."""

    @property
    def name(self) -> str:
        """Return the name of the layer."""


@dataclass
class LayerCall:
    """A call of a layer.

    Attributes:
      layer: The layer.
      function: The layer's function, for the names of its arguments.
      args: Positional arguments of the call.
      kwargs: Keyword arguments of the call.
    """

    layer: NamedLayer
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]

    def name_arguments(self) -> dict[str, Any]:
        """Return the arguments by name."""
        try:
            signature = inspect.signature(self.function)
            return signature.bind_partial(*self.args, **self.kwargs).arguments
        except (TypeError, ValueError):
            return {**{f"args[{i}]": value for i, value in enumerate(self.args)}, **self.kwargs}

    def describe(self, error: Exception) -> None:
        """Add the layer and the arguments to the message of an error, unless it names the layer."""
        subject = f'layer "{self.layer.name}"'
        if subject in str(error).replace("Layer", "layer"):
            return
        step = f"calling {subject} (type {type(self.layer).__name__})"
        add_arguments(error, step, self.name_arguments())
        setattr(error, "_failed_layer", self.layer)


def describe_error(error: Exception, call: LayerCall) -> None:
    """Add the layer and the arguments of its call to the message of an error.

    Only the innermost layer is added; outer layers do not change the message again. Internal frames
    are removed from the traceback.

    Args:
      error: Error that the call raised, which is changed.
      call: The call.
    """
    tracebacks.hide_frames(error)
    if getattr(error, "_failed_layer", None) is None:
        call.describe(error)


def make_symbolic_error(error: Exception, call: LayerCall) -> Exception:
    """Return the error of a call on symbolic tensors, which names the layer and symbolic shapes.

    TensorFlow's errors about shapes and dtypes become `ValueError` and `TypeError`, as in Keras.

    Args:
      error: Error that the inference of the outputs raised.
      call: The call.
    """
    tracebacks.hide_frames(error)
    if getattr(error, "_failed_layer", None) is not call.layer:
        call.describe(error)
    if not isinstance(error, errors.InvalidArgumentError):
        return error
    is_dtype_error = isinstance(error, errors.DtypeMismatchError)
    converted = (TypeError if is_dtype_error else ValueError)(str(error))
    setattr(converted, "_failed_layer", call.layer)
    return converted.with_traceback(error.__traceback__)


def add_arguments(error: Exception, step: str, arguments: dict[str, Any]) -> None:
    """Add a step of the computation and its arguments to the message of an error.

    Args:
      error: The error, which is changed.
      step: Description of the step, for example 'calling layer "dense"'.
      arguments: Arguments of the step by name.
    """
    if isinstance(error, _CONTROL_FLOW_ERRORS):
        return
    subject = step.partition(" ")[2]
    lines = [f"  • {name}={_format_argument(value)}" for name, value in arguments.items()]
    start = f"Exception encountered when {step}."
    call = "\n".join([f"Call arguments received by {subject}:", *lines])
    if not replace_message(error, f"{start}\n\n{error}\n\n{call}"):
        error.add_note(f"{start}\n\n{call}")


def replace_message(error: Exception, message: str) -> bool:
    """Replace the message of an error; return False if it has no plain message."""
    if len(error.args) != 1 or not isinstance(error.args[0], str):
        return False
    error.args = (message,)
    if isinstance(error, errors.OpError):
        error.message = message
    return True


def _format_argument(value: PyTree) -> str:
    return str(nest.map_structure(lambda leaf: _ArgumentText(_format_leaf(leaf)), value))


class _ArgumentText:
    """Text of an argument, which containers show without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _format_leaf(value: object) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        text = repr(value)
        limit = _MAX_ARGUMENT_LENGTH
        return text if len(text) <= limit else f"{text[:limit]}..."
    return f"tf.Tensor(shape={shape}, dtype={getattr(dtype, 'name', dtype)})"


def merge_messages(first: str, second: str | None, sizes: tuple[int, int]) -> str:
    """Replace the placeholders of unknown sizes in a message by None.

    Args:
      first: Message of the error with the first placeholder size.
      second: Message of the error with the second one; None if there is none.
      sizes: The placeholder sizes. Numbers in the messages that change with them, such as a number
        of elements, are replaced by multiples of None.
    """
    if second is None or _NUMBER.sub("#", first) != _NUMBER.sub("#", second):
        return re.sub(rf"\b({sizes[0]}|{sizes[1]})\b", "None", first)
    others = iter(_NUMBER.findall(second))
    return _NUMBER.sub(lambda m: _merge_numbers(int(m.group()), int(next(others)), sizes), first)


def _merge_numbers(first: int, second: int, sizes: tuple[int, int]) -> str:
    if first == second:
        return str(first)
    factor, remainder = divmod(second - first, sizes[1] - sizes[0])
    offset = first - factor * sizes[0]
    if remainder or factor < 1:
        return "None"
    product = "None" if factor == 1 else f"None * {factor}"
    if not offset:
        return product
    return f"({product} {'+' if offset > 0 else '-'} {abs(offset)})"
