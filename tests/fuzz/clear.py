"""Decide which errors describe an invalid file."""

import inspect
import linecache

import meshflow as tf


def is_clear(error):
    """Return whether an error is ours, or describes an invalid file."""
    if "no memory" in str(error):
        return False
    if isinstance(error, tf.errors.OpError) or type(error) in (ValueError, OSError):
        return True
    ours = type(error).__module__.startswith("meshflow")
    return (ours and isinstance(error, ValueError)) or _is_said(error)


def _is_said(error):
    """Return whether our code raised the error, or a signature raised it for wrong or unsupported
    arguments."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename
    return (
        type(error) in (TypeError, NotImplementedError)
        and ("/meshflow/" in file or file == inspect.__file__)
        and "raise " in linecache.getline(file, trace.tb_lineno)
    )
