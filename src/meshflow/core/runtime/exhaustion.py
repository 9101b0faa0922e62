"""Out of memory, said in TensorFlow's way wherever it happens: in programs, in transfers, on the host."""

from __future__ import annotations

import jax

from meshflow.core.runtime.errors import OutOfMemoryError

__all__ = ["exhausted"]

# What XLA and what it is made of say.
_SIGNS = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory", "std::bad_alloc")


def exhausted(error: BaseException, what: str) -> OutOfMemoryError | None:
    """The error to raise where another one says that memory is used up; None for all others.

    Args:
      error: what was raised.
      what: the op, function or array that there was no memory for.
    """
    if isinstance(error, OutOfMemoryError):
        return None  # it is said already, nearer to where it happened
    full = isinstance(error, MemoryError)
    if not full and isinstance(error, jax.errors.JaxRuntimeError):
        full = any(sign in str(error) for sign in _SIGNS)
    if not full:
        return None
    said = str(error).strip().splitlines() or ["no memory is left"]
    return OutOfMemoryError(f"{what}: {said[0].removeprefix('RESOURCE_EXHAUSTED: ')}")
