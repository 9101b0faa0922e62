"""Error codes of gRPC and their HTTP statuses."""

from __future__ import annotations

from meshflow.core.runtime import errors
from meshflow.core.runtime.errors import OpError

__all__ = ["HTTP_STATUS", "told"]

# HTTP statuses of the codes of gRPC, as TensorFlow Serving uses them.
HTTP_STATUS = {
    "OK": 200, "CANCELLED": 499, "UNKNOWN": 500, "INVALID_ARGUMENT": 400, "DEADLINE_EXCEEDED": 504, "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409, "PERMISSION_DENIED": 403, "RESOURCE_EXHAUSTED": 503, "FAILED_PRECONDITION": 412,
    "ABORTED": 409, "OUT_OF_RANGE": 416, "UNIMPLEMENTED": 501, "INTERNAL": 500, "UNAVAILABLE": 503, "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}  # fmt: skip
_NAMES = {getattr(errors, name): name for name in HTTP_STATUS}


def told(error: Exception) -> tuple[str, str]:
    """Return code name and message of an error; errors without a code are internal errors.

    Example:
      >>> import meshflow as tf
      >>> from meshflow.serving.errors import describe_error
      >>> describe_error(tf.errors.NotFoundError("there is no such model"))
      ('NOT_FOUND', 'there is no such model')
    """
    if isinstance(error, OpError):
        return _NAMES[error.error_code], str(error)
    return "INTERNAL", f"{type(error).__name__}: {error}"
