"""`tf.errors`: exception classes."""

from meshflow.core.errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InaccessibleTensorError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OperatorNotAllowedInGraphError,
    OpError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnknownError,
)

__all__ = [
    *("AbortedError", "AlreadyExistsError", "CancelledError", "DataLossError", "DeadlineExceededError"),
    *("FailedPreconditionError", "InaccessibleTensorError", "InternalError", "InvalidArgumentError", "NotFoundError"),
    *("OpError", "OperatorNotAllowedInGraphError", "OutOfRangeError", "PermissionDeniedError"),
    *("ResourceExhaustedError", "UnauthenticatedError", "UnavailableError", "UnimplementedError", "UnknownError"),
]
