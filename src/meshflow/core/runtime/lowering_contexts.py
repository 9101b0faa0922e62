"""MLIR contexts that several lowerings share, and a limit on the sizes of arrays in programs.

JAX creates a context for each program that it lowers, loads every dialect into it (2.5 ms, a fifth
of the cost of the first call of an op), and keeps it (more than 1 MB) as long as the program.
Several modules can share a context.

XLA ends the process if the size of an array overflows 64 bits, so such a program raises an error while JAX lowers it.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import jax

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.environment import jax_internals

# Larger than any memory, and small enough for XLA's 64-bit arithmetic.
_MAX_BYTES = 1 << 62

# A shared context, with everything that its programs leave in it, lives as long as any of them.
# This bounds their number.
PROGRAMS_PER_CONTEXT = 64


def make_shared_factory(
    make: Callable[[], Any], programs: int = PROGRAMS_PER_CONTEXT
) -> Callable[[], Any]:
    """Return a factory that returns the same context for several programs in a row.

    Only the main thread shares contexts. A context loads dialects without a lock, and XLA's
    threads, which lower parts of partitioned programs, cannot keep one: no Python object may be
    destroyed at the exit of such a thread.

    Args:
      make: Creates a context.
      programs: Number of programs that share a context.
    """
    latest, num_free = None, 0

    def context() -> Any:
        nonlocal latest, num_free
        if threading.get_ident() != threading.main_thread().ident:
            return make()
        if not num_free:
            latest, num_free = make(), programs
        num_free -= 1
        return latest

    return context


def install_shared_contexts() -> None:
    """Make JAX lower programs in shared contexts."""
    module = jax_internals.mlir_lowering
    make = getattr(module, "make_ir_context", None)
    if make is not None:
        module.make_ir_context = make_shared_factory(make)


def install_size_limit() -> None:
    """Make the lowering of an array with at least 2^62 bytes raise `InvalidArgumentError`."""
    handlers = getattr(jax_internals.mlir_lowering, "ir_type_handlers", {})
    make_type = handlers.get(jax.core.ShapedArray)
    if make_type is None:
        return

    @functools.wraps(make_type)
    def make_type_of_allowed_size(*args: Any) -> object:
        shape, dtype = args[-1].shape, args[-1].dtype
        if all(isinstance(size, int) for size in shape):
            num_bytes = math.prod(shape) * dtype.itemsize
            if num_bytes >= _MAX_BYTES:
                raise InvalidValueError(
                    f"Encountered overflow when multiplying the sizes of shape {list(shape)}: a {dtype.name} array of "
                    f"this shape would have {num_bytes} bytes. Use smaller sizes."
                )
        return make_type(*args)

    handlers[jax.core.ShapedArray] = make_type_of_allowed_size
