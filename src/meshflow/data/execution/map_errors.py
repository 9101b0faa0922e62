"""Classification of errors that a map function raises while it is traced.

TensorFlow traces a function when it is passed to a dataset, and raises errors of the function
immediately. A function that calls Python code cannot be traced and runs eagerly, so not every error
while tracing is a mistake in the function.
"""

from __future__ import annotations

import dis
from types import TracebackType

from meshflow.core.autograph.policy import is_user_file
from meshflow.core.runtime import errors
from meshflow.core.tracing.trace import STAGED_CODE_MARK

_RAISE = dis.opmap["RAISE_VARARGS"]
# These words occur in messages about values that are only known at run time.
_SYMBOLS = ("symbolic", "Tensor(", "Traced", "Tracer")
# These errors do not depend on the value of a tensor.
_LOOKUPS = (NameError, KeyError)


def is_user_error(error: Exception, sizes_known: bool) -> bool:
    """Check whether an error of a traced function would occur for real elements, too.

    Args:
      error: The error.
      sizes_known: Whether the function was traced for the actual sizes of the elements; otherwise
        errors about shapes are not meaningful.
    """
    if getattr(error, STAGED_CODE_MARK, False):
        return False  # The error may belong to a branch that no element takes.
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if isinstance(error, errors.DtypeMismatchError):
        return True
    if isinstance(error, errors.InvalidValueError):
        # An error about a value, not a shape, mentions the symbolic tensor.
        return sizes_known and not any(word in str(error) for word in _SYMBOLS)
    if last is None or not is_user_file(last.tb_frame.f_code.co_filename):
        return False
    return isinstance(error, _LOOKUPS) or (sizes_known and _is_explicit_raise(last))


def _is_explicit_raise(last: TracebackType) -> bool:
    """Check whether a frame ended with a `raise` or `assert` statement."""
    return last.tb_frame.f_code.co_code[last.tb_lasti] == _RAISE
