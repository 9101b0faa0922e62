"""Telling a mistake in a user's function from a function that only cannot be traced.

TensorFlow traces a function when it is given to a dataset, and raises there what is wrong with it.
Functions that call Python cannot be traced and run as they are, so not every error is a mistake.
"""

from __future__ import annotations

import dis
import os
from types import TracebackType

from meshflow.core.autograph.policy import is_users_file
from meshflow.core.runtime import errors

_STAGING = os.sep + os.path.join("meshflow", "core", "staging") + os.sep
_RAISE = dis.opmap["RAISE_VARARGS"]
# How messages show what is only known at run time.
_SYMBOLS = ("symbolic", "Tensor(", "Traced", "Tracer")
# What no other value of a tensor would have prevented.
_LOOKUPS = (NameError, KeyError)


def is_user_error(error: Exception, sizes_known: bool) -> bool:
    """Whether an error of a function that was traced would meet its elements, too.

    Args:
      error: the error.
      sizes_known: whether it was traced for the sizes that elements have; otherwise what it says of shapes
        counts for nothing.
    """
    last = error.__traceback__
    while last is not None:
        if _STAGING in last.tb_frame.f_code.co_filename:
            return False  # Perhaps of a branch that no element takes.
        if last.tb_next is None:
            break
        last = last.tb_next
    if isinstance(error, errors.DtypeMismatchError):
        return True
    if isinstance(error, errors.InvalidValueError):
        # What needs a value, not a shape, names the symbol that it got instead.
        return sizes_known and not any(word in str(error) for word in _SYMBOLS)
    if last is None or not is_users_file(last.tb_frame.f_code.co_filename):
        return False
    return isinstance(error, _LOOKUPS) or (sizes_known and _raised(last))


def _raised(last: TracebackType) -> bool:
    """Whether a frame ended with a `raise` or `assert` of its own."""
    return last.tb_frame.f_code.co_code[last.tb_lasti] == _RAISE
