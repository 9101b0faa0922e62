"""Error codes of gRPC and their HTTP statuses."""

from __future__ import annotations

from meshflow.core.runtime import errors
from meshflow.core.runtime.errors import OpError

# HTTP statuses of the codes of gRPC, as TensorFlow Serving uses them.
HTTP_STATUS = {
    "OK": 200, "CANCELLED": 499, "UNKNOWN": 500, "INVALID_ARGUMENT": 400, "DEADLINE_EXCEEDED": 504, "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409, "PERMISSION_DENIED": 403, "RESOURCE_EXHAUSTED": 503, "FAILED_PRECONDITION": 412,
    "ABORTED": 409, "OUT_OF_RANGE": 416, "UNIMPLEMENTED": 501, "INTERNAL": 500, "UNAVAILABLE": 503, "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}  # fmt: skip
_CODE_NAMES = {getattr(errors, name): name for name in HTTP_STATUS}
# Messages quote parts of requests, so they could be as large as these.
_MAX_MESSAGE_LENGTH = 4000


class HttpError(Exception):
    """An error with an HTTP status that corresponds to no code of gRPC.

    Args:
      status: HTTP status.
      message: Description of the error.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status, self.message = status, message


def describe_error(error: Exception) -> tuple[str, str]:
    """Return code name and message of an error; errors without a code are internal errors.

    Example:
      >>> from meshflow.serving.errors import describe_error
      >>> describe_error(tf.errors.NotFoundError("there is no such model"))
      ('NOT_FOUND', 'there is no such model')
      >>> describe_error(MemoryError())[0]
      'RESOURCE_EXHAUSTED'
    """
    if isinstance(error, OpError):
        return _CODE_NAMES[error.error_code], _shorten_message(str(error))
    if isinstance(error, MemoryError):
        message = "The server has not enough memory for the request: send less data."
        return "RESOURCE_EXHAUSTED", message
    return "INTERNAL", _shorten_message(f"{type(error).__name__}: {error}")


def _shorten_message(message: str) -> str:
    """Shorten a message that is too long for a response."""
    if len(message) <= _MAX_MESSAGE_LENGTH:
        return message
    return message[:_MAX_MESSAGE_LENGTH] + " ..."
