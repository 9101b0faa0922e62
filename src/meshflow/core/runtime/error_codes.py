"""Numbers of the classes of errors."""

from __future__ import annotations

from meshflow.core.runtime import errors

_CODES = [
    "OK",
    "Cancelled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
]


def exception_type_from_error_code(error_code: int) -> type[errors.OpError]:
    """Return the class of errors with a code.

    Raises:
      KeyError: If the code is unknown, or 0 (success).
    """
    if not 0 < error_code < len(_CODES):
        raise KeyError(error_code)
    return getattr(errors, f"{_CODES[error_code]}Error")


def error_code_from_exception_type(cls: type) -> int:
    """Return the code of a class of errors; 2 (unknown) for other classes."""
    name = cls.__name__.removesuffix("Error")
    return _CODES.index(name) if name in _CODES else 2
