"""TensorFlow's exception classes, which Meshflow raises with its own messages.

Every class derives from `OpError` and has a canonical error code and a message:

    >>> try:
    ...     tf.reshape(tf.zeros([6]), [4])
    ... except tf.errors.InvalidArgumentError as error:
    ...     print(type(error).__name__, error.error_code)
    InvalidArgumentError 3
"""

from __future__ import annotations

from typing import Any

OK = 0
CANCELLED = 1
UNKNOWN = 2
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
ALREADY_EXISTS = 6
PERMISSION_DENIED = 7
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
ABORTED = 10
OUT_OF_RANGE = 11
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14
DATA_LOSS = 15
UNAUTHENTICATED = 16


class OpError(Exception):
    """Base class of all errors with a canonical code.

    TensorFlow's constructor is `OpError(node_def, op, message, error_code)`; the short form
    `OpError(message)` is accepted too.

    Attributes:
      message: The message.
      error_code: The canonical integer code.
      node_def: Always None; exists for code written for TensorFlow.
      op: The name of the operation, or None.

    Example:
      >>> try:
      ...     tf.io.read_file("/no/such/file")
      ... except tf.errors.OpError as error:
      ...     print(type(error).__name__, error.error_code == tf.errors.NOT_FOUND)
      NotFoundError True
    """

    _code = UNKNOWN

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.node_def = kwargs.get("node_def", args[0] if len(args) >= 3 else None)
        self.op = kwargs.get("op", args[1] if len(args) >= 3 else None)
        position = 2 if len(args) >= 3 else 0
        self.message = kwargs.get("message", args[position] if args else "")
        self.error_code = kwargs.get("error_code", args[3] if len(args) > 3 else self._code)
        super().__init__(self.message)

    def __str__(self) -> str:
        return str(self.message)

    @property
    def experimental_payloads(self) -> dict[str, str]:
        """Return an empty dictionary: errors have no further data."""
        return {}


class CancelledError(OpError):
    """An operation was cancelled before it finished.

    Example:
      >>> tf.errors.CancelledError("stopped").error_code == tf.errors.CANCELLED
      True
    """

    _code = CANCELLED


class UnknownError(OpError):
    """An error with no more specific class.

    Example:
      >>> tf.errors.UnknownError("it failed").error_code == tf.errors.UNKNOWN
      True
    """

    _code = UNKNOWN


class InvalidArgumentError(OpError):
    """An operation received an argument with an unsupported value, shape or dtype.

    Example:
      >>> try:
      ...     tf.ensure_shape([1, 2, 3], [2])
      ... except tf.errors.InvalidArgumentError:
      ...     print("the shape is not [2]")
      the shape is not [2]
    """

    _code = INVALID_ARGUMENT


class DtypeMismatchError(InvalidArgumentError, TypeError, ValueError):
    """Operands of one operation have different dtypes.

    TensorFlow raises `InvalidArgumentError` for tensors, `TypeError` inside a function and
    `ValueError` for NumPy arrays that it cannot convert; this class is all of them.
    """


class InvalidValueError(InvalidArgumentError, ValueError, TypeError):
    """Operands are incompatible in shape or value.

    TensorFlow raises `InvalidArgumentError` for this eagerly and `ValueError` or `TypeError` inside
    a function; this class is all of them.
    """


class NotFiniteError(InvalidArgumentError, FloatingPointError):
    """NaN or infinity in an output while `tf.debugging.enable_check_numerics` is on."""

    TEXT = "Detected Infinity or NaN in the output of an op while tf.debugging.enable_check_numerics is on"


for _alias in (DtypeMismatchError, InvalidValueError, NotFiniteError):
    # Tracebacks show TensorFlow's class name.
    _alias.__name__ = _alias.__qualname__ = "InvalidArgumentError"


class DeadlineExceededError(OpError):
    """An operation did not finish in time.

    Example:
      >>> tf.errors.DeadlineExceededError("too late").error_code == tf.errors.DEADLINE_EXCEEDED
      True
    """

    _code = DEADLINE_EXCEEDED


class NotFoundError(OpError):
    """A file, variable or other entity was not found.

    Example:
      >>> try:
      ...     tf.io.read_file("/no/such/file")
      ... except tf.errors.NotFoundError:
      ...     print("no file")
      no file
    """

    _code = NOT_FOUND


class AlreadyExistsError(OpError):
    """An entity that should be created already exists.

    Example:
      >>> tf.errors.AlreadyExistsError("exists").error_code == tf.errors.ALREADY_EXISTS
      True
    """

    _code = ALREADY_EXISTS


class PermissionDeniedError(OpError):
    """The caller has no permission for the operation.

    Example:
      >>> tf.errors.PermissionDeniedError("no").error_code == tf.errors.PERMISSION_DENIED
      True
    """

    _code = PERMISSION_DENIED


class UnauthenticatedError(OpError):
    """The request has no valid credentials.

    Example:
      >>> tf.errors.UnauthenticatedError("no token").error_code == tf.errors.UNAUTHENTICATED
      True
    """

    _code = UNAUTHENTICATED


class ResourceExhaustedError(OpError):
    """Memory, disk or another resource ran out.

    Example:
      >>> tf.errors.ResourceExhaustedError("full").error_code == tf.errors.RESOURCE_EXHAUSTED
      True
    """

    _code = RESOURCE_EXHAUSTED


class FailedPreconditionError(OpError):
    """The system is not in the state that the operation needs.

    Example:
      >>> tf.errors.FailedPreconditionError("not yet").error_code == tf.errors.FAILED_PRECONDITION
      True
    """

    _code = FAILED_PRECONDITION


class OutOfMemoryError(ResourceExhaustedError, MemoryError):
    """No memory is left, on the host or on a device; also a `MemoryError`, like Python's and NumPy's."""


OutOfMemoryError.__name__ = OutOfMemoryError.__qualname__ = "ResourceExhaustedError"


class AbortedError(OpError):
    """The operation was aborted, usually by a concurrent one.

    Example:
      >>> tf.errors.AbortedError("a newer request won").error_code == tf.errors.ABORTED
      True
    """

    _code = ABORTED


class OutOfRangeError(OpError):
    """An operation went past the valid range, for example past the end of a dataset.

    Example:
      >>> tf.errors.OutOfRangeError("the data have ended").message
      'the data have ended'
    """

    _code = OUT_OF_RANGE


class UnimplementedError(OpError):
    """The operation is not implemented for these arguments.

    Example:
      >>> tf.errors.UnimplementedError("not for strings").error_code == tf.errors.UNIMPLEMENTED
      True
    """

    _code = UNIMPLEMENTED


class InternalError(OpError):
    """An invariant of the system is broken: a bug.

    Example:
      >>> tf.errors.InternalError("a bug").error_code == tf.errors.INTERNAL
      True
    """

    _code = INTERNAL


class UnavailableError(OpError):
    """A service or worker is currently not available.

    Example:
      >>> tf.errors.UnavailableError("the worker restarts").error_code == tf.errors.UNAVAILABLE
      True
    """

    _code = UNAVAILABLE


class DataLossError(OpError):
    """Data is lost or corrupt beyond recovery.

    Example:
      >>> tf.errors.DataLossError("damaged").error_code == tf.errors.DATA_LOSS
      True
    """

    _code = DATA_LOSS


def make_none_error() -> ValueError:
    """Return the error for None in place of a tensor."""
    return ValueError(
        "Attempt to convert a value (None) with an unsupported type (NoneType) to a Tensor."
    )


# TensorFlow's error class for each exception of Python code that a program calls; the first match
# applies.
_PYTHON_ERROR_CLASSES: list[tuple[type[Exception], type[OpError]]] = [
    (StopIteration, OutOfRangeError),
    (ValueError, InvalidArgumentError),
    (TypeError, InvalidArgumentError),
    (MemoryError, ResourceExhaustedError),
    (NotImplementedError, UnimplementedError),
    (Exception, UnknownError),
]


def convert_python_error(error: Exception) -> OpError:
    """Convert an exception of Python code that a program called to TensorFlow's error.

    The result is also an instance of the exception's own class, if possible.

    Args:
      error: The exception; an error that already has a canonical code is returned unchanged.
    """
    if isinstance(error, OpError):
        return error
    error_class = next(ours for theirs, ours in _PYTHON_ERROR_CLASSES if isinstance(error, theirs))
    text = f"{type(error).__name__}: {error}"
    try:
        if isinstance(error, StopIteration):
            # A StopIteration would end the loop of a caller.
            return error_class(text)
        combined_class = type(
            error_class.__name__, (error_class, type(error)), {"__module__": error_class.__module__}
        )
        return combined_class(text)
    except TypeError:
        # The class cannot be subclassed, or its constructor takes other arguments than a message.
        return error_class(text)


class NotAvailableError(NotImplementedError, AttributeError):
    """A name of TensorFlow that Meshflow does not implement; `hasattr` returns False for it."""


class OperatorNotAllowedInGraphError(TypeError):
    """A symbolic tensor was used where Python needs a concrete value.

    Example:
      >>> @tf.function(autograph=False)
      ... def f(x):
      ...     return 1 if x > 0 else 2
      >>> try:
      ...     f(tf.constant(1))
      ... except tf.errors.OperatorNotAllowedInGraphError:
      ...     print("the value is unknown during tracing")
      the value is unknown during tracing
    """


class ValueNeededError(OperatorNotAllowedInGraphError):
    """An op needs a value that only the running program knows, usually for the size of its result.

    XLA compiles programs with static shapes. A `tf.function` or a training step that raises this
    error during tracing runs op by op instead.
    """


class ListGrowthError(ValueNeededError, ValueError):
    """A list grows in a staged block by a number of elements that only the running program knows."""


class ShapeGrowthError(ValueNeededError, ValueError):
    """A loop variable of a staged loop changes its shape, which `shape_invariants` allow."""


class VaryingValueError(ValueError, TypeError):
    """A variable of a staged branch or loop has another dtype, shape or structure in the other branch or iteration."""


class SymbolicArrayError(NotImplementedError, AttributeError):
    """A NumPy array is requested of a tensor that has no value while a function is traced."""


class InaccessibleTensorError(ValueError, TypeError):
    """A tensor created during the trace of a function is used outside that function."""
