"""Limits of retracing: a warning about frequent retracing with its cause, and the number of cached traces."""

from __future__ import annotations

import inspect
import logging
import os
import reprlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshflow.core.values.specs import TensorSpec

_log = logging.getLogger("meshflow")

# Maximum number of traces of a function. Beyond it, the trace with the oldest last call is deleted.
MAX_TRACES = 512
_RECENT_CALLS = 10
_MIN_TRACES_TO_WARN = 5
_MAX_WARNINGS = 2
_MESSAGE = (
    "%d out of the last %d calls to %s triggered tf.function retracing. Tracing is expensive and the excessive "
    "number of tracings could be due to (1) creating @tf.function repeatedly in a loop, (2) passing tensors with "
    "different shapes, (3) passing Python objects instead of tensors. Cause of the latest: %s"
)
# Maximum number of differences that a message lists, and of earlier traces that are compared.
_MAX_CHANGES = 3
MAX_COMPARED = 32


class CallHistory:
    """The latest calls of all functions created from one piece of code, and which of them traced.

    Functions that are repeatedly created from the same code, for example by a decorator in a loop,
    share a history, because each of them is traced only once.

    Args:
      warns: Whether to warn about frequent traces.
      message: Text of the warning, with places for the number of traces, the number of calls, the name
        and the cause.

    Attributes:
      calls: Number of calls.
    """

    def __init__(self, warns: bool = True, message: str = _MESSAGE) -> None:
        self.calls = 0
        self._warns = warns
        self._message = message
        self._traced_calls: list[int] = []
        self._warnings = 0
        self._num_traces = 0

    def add_trace(self, name: str, explain: Callable[[], str]) -> None:
        """Record that the present call traced; warn if many of the latest calls did.

        Args:
          name: Name of the function or layer.
          explain: Returns the cause of the trace, and a fix.
        """
        if not self._warns:
            return
        self._num_traces += 1
        # A record with a function instead of a text would keep the function while a handler keeps the record.
        if self._num_traces > 1 and _log.isEnabledFor(logging.INFO):
            _log.info("%s was traced again: %s", name, explain())
        self._traced_calls = [
            call for call in self._traced_calls if call > self.calls - _RECENT_CALLS
        ]
        self._traced_calls.append(self.calls)
        if len(self._traced_calls) < _MIN_TRACES_TO_WARN or self._warnings == _MAX_WARNINGS:
            return
        self._warnings += 1
        _log.warning(
            self._message,
            len(self._traced_calls),
            min(self.calls, _RECENT_CALLS),
            name,
            explain(),
        )


def describe_function(function: Callable[..., Any], owner: object = None) -> str:
    """Return the name of a function with its line, and with the name of the layer that owns it.

    Args:
      function: The function.
      owner: The object that the function is a method of, or None.
    """
    unwrapped = inspect.unwrap(function)
    name = str(getattr(unwrapped, "__qualname__", type(unwrapped).__name__))
    name = name.rpartition("<locals>.")[2]
    code = getattr(unwrapped, "__code__", None)
    if code is not None:
        name += f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
    is_layer = hasattr(owner, "trainable_weights")
    return f"{name} of layer {getattr(owner, 'name', None)!r}" if is_layer else name


@dataclass
class _Change:
    """A difference between the arguments of two calls, and how to avoid it."""

    text: str
    fix: str


_SHAPE_FIX = (
    "XLA compiles each shape separately: use batches of one size (drop_remainder=True), and pad to a few fixed sizes "
    "(padded_batch, keras.utils.pad_sequences, bucket_by_sequence_length)"
)
_DTYPE_FIX = "cast it to one dtype before the call"
_NUMBER_FIX = "pass a tensor, such as tf.constant({value!r}), because the value of a Python number is part of the program"
_OBJECT_FIX = "pass the same object in each call, or define __eq__ and __hash__, or pass tensors"
_STRUCTURE_FIX = "pass the same structure in each call"


def explain_change(earlier: Sequence[dict[str, Any]], latest: dict[str, Any]) -> str:
    """Explain why arguments do not fit any earlier trace: describe the differences from the most similar one.

    Args:
      earlier: The arguments of earlier traces by label, the latest first: `TensorSpec`s for tensors.
      latest: The arguments of the present trace.
    """
    if not earlier:
        return (
            "another function was created from the same code, and each function is traced once. Fix: create the "
            "tf.function (or the layer or model) once, outside of the loop."
        )
    changes = min((_list_changes(before, latest) for before in earlier), key=len)
    if not changes:
        return "the device, strategy or thread of the call differs from that of earlier calls."
    texts = [change.text for change in changes[:_MAX_CHANGES]]
    if len(changes) > _MAX_CHANGES:
        texts.append(f"{len(changes) - _MAX_CHANGES} more arguments differ")
    fixes = list(dict.fromkeys(change.fix for change in changes))
    return f"{', and '.join(texts)}. Fix: {'; '.join(fixes)}."


def _list_changes(before: dict[str, Any], after: dict[str, Any]) -> list[_Change]:
    changes = []
    for label in dict.fromkeys([*before, *after]):
        if label not in before or label not in after:
            verb = "is new" if label not in before else "is missing"
            changes.append(_Change(f"{label} {verb}", _STRUCTURE_FIX))
            continue
        change = _compare(label, before[label], after[label])
        if change is not None:
            changes.append(change)
    return changes


def _compare(label: str, before: object, after: object) -> _Change | None:
    """Describe the difference between two arguments, or return None if they are equal."""
    if isinstance(before, TensorSpec) and isinstance(after, TensorSpec):
        if before.dtype != after.dtype:
            text = f"{label} has dtype {after.dtype.name} after {before.dtype.name}"
            return _Change(text, _DTYPE_FIX)
        if before.shape != after.shape:
            return _Change(f"{label} has shape {after.shape} after {before.shape}", _SHAPE_FIX)
        return None
    if isinstance(after, TensorSpec) or isinstance(before, TensorSpec):
        text = f"{label} is {_describe_value(after)} after {_describe_value(before)}"
        return _Change(text, "pass a tensor in each call")
    if before is after or (type(before) is type(after) and _are_equal(before, after)):
        return None
    if isinstance(after, (int, float, complex)) and not isinstance(after, bool):
        fix = _NUMBER_FIX.format(value=after)
    elif isinstance(after, (bool, str, bytes)) or after is None:
        fix = "use few different values: each value has its own program"
    else:
        fix = _OBJECT_FIX
    text = f"{label} is {_describe_value(after)} after {_describe_value(before)}"
    return _Change(text, fix)


def _are_equal(before: object, after: object) -> bool:
    try:
        return bool(before == after)
    except Exception:
        return False


def _describe_value(value: object) -> str:
    if isinstance(value, TensorSpec):
        return f"a tensor of shape {value.shape} and dtype {value.dtype.name}"
    if value is None or isinstance(value, (int, float, complex, str, bytes)):
        return reprlib.repr(value)
    name = getattr(value, "name", None)
    return f"the {type(value).__name__} " + (
        repr(name) if isinstance(name, str) else f"at 0x{id(value):x}"
    )


_histories: weakref.WeakKeyDictionary[Any, CallHistory] = weakref.WeakKeyDictionary()


def get_history(function: Callable[..., Any]) -> CallHistory:
    """Return the history of the code of a Python function.

    Args:
      function: A function, method or other callable. If its attribute `is_stored_program` is true,
        it only calls programs that were traced before, and no Python code runs again.
    """
    if getattr(function, "is_stored_program", False):
        return CallHistory(warns=False)
    unwrapped = inspect.unwrap(function)
    unwrapped = getattr(unwrapped, "__func__", unwrapped)
    try:
        return _histories.setdefault(getattr(unwrapped, "__code__", unwrapped), CallHistory())
    except TypeError:  # The object does not support weak references or hashing.
        return CallHistory()


def warn_eager_fallback(name: str, error: BaseException) -> None:
    """Log that a function is not compiled, with the reason."""
    _log.warning(
        "%s runs op by op, not compiled, as sizes in compiled programs are static: %s", name, error
    )
