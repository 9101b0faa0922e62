"""Translation of out-of-memory errors of Python and XLA to TensorFlow's `ResourceExhaustedError`."""

from __future__ import annotations

import jax

from meshflow.core.runtime.errors import OutOfMemoryError

__all__ = ["translate_memory_error"]

# Parts of the messages of XLA and of the libraries that it uses.
_OUT_OF_MEMORY_SIGNS = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory", "std::bad_alloc")


def translate_memory_error(error: BaseException, subject: str) -> OutOfMemoryError | None:
    """Return the error to raise for an out-of-memory error; None for any other error.

    Args:
      error: The caught exception.
      subject: The op, function or array that ran out of memory, for the message.
    """
    if isinstance(error, OutOfMemoryError):
        # The place that is nearest to the allocation has already translated the error.
        return None
    is_out_of_memory = isinstance(error, MemoryError)
    if not is_out_of_memory and isinstance(error, jax.errors.JaxRuntimeError):
        is_out_of_memory = any(sign in str(error) for sign in _OUT_OF_MEMORY_SIGNS)
    if not is_out_of_memory:
        return None
    lines = str(error).strip().splitlines() or ["no memory is left"]
    return OutOfMemoryError(f"{subject}: {lines[0].removeprefix('RESOURCE_EXHAUSTED: ')}")
