"""Which errors say what is wrong with a file."""

import inspect
import linecache

import meshflow as tf


def is_clear(error):
    """Whether an error is one of ours, or one that says what is wrong with a file."""
    if "no memory" in str(error):
        return False
    if isinstance(error, tf.errors.OpError) or type(error) in (ValueError, OSError):
        return True
    ours = type(error).__module__.startswith("meshflow")
    return (ours and isinstance(error, ValueError)) or _is_said(error)


def _is_said(error):
    """Whether our code raised it in words of its own, or a signature did, of arguments that are wrong or not supported."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename
    return (
        type(error) in (TypeError, NotImplementedError)
        and ("/meshflow/" in file or file == inspect.__file__)
        and "raise " in linecache.getline(file, trace.tb_lineno)
    )
