"""Translation of out-of-memory errors of Python and XLA to TensorFlow's `ResourceExhaustedError`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from meshflow.core.runtime.errors import OutOfMemoryError
from meshflow.environment.jax_internals import DeviceArray

# Parts of the messages of XLA and of the libraries that it uses.
_OUT_OF_MEMORY_SIGNS = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory", "std::bad_alloc")

# Smallest results of a program that may not fit into memory.
_MIN_LARGE_BYTES = 1 << 30
# The same in elements of the largest dtype.
_MIN_LARGE_SIZE = _MIN_LARGE_BYTES // 16


def may_exhaust_memory(results: Sequence[Any]) -> bool:
    """Check whether a program must be awaited, because its results may not fit into the host's memory.

    JAX 0.10 to 0.12 ends the process when NumPy reads a CPU array that could not be allocated, unless the
    program was awaited, which raises the error.

    Args:
      results: Abstract values of the results.
    """
    # Other results are tokens, or have symbolic sizes.
    shapes = [(a.shape, a.dtype) for a in results if hasattr(a, "shape")]
    sized = [(s, dtype) for s, dtype in shapes if all(isinstance(n, int) for n in s)]
    num_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in sized)
    return jax.default_backend() == "cpu" and num_bytes >= _MIN_LARGE_BYTES


def await_large_results(program: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that awaits large results of a compiled program, see `may_exhaust_memory`.

    Args:
      program: A jitted function.
    """

    def run(*values: Any) -> Any:
        results = program(*values)
        # Reading `nbytes` and the leaves takes as long as a small program.
        if type(results) is DeviceArray and math.prod(results.shape) < _MIN_LARGE_SIZE:
            return results
        large = [a for a in jax.tree.leaves(results) if a.nbytes >= _MIN_LARGE_BYTES]
        if not may_exhaust_memory(large):
            return results
        try:
            return jax.block_until_ready(results)
        except jax.errors.JaxRuntimeError as error:
            subject = f"a tensor of shape {tuple(large[0].shape)}"
            raise translate_memory_error(error, subject) or error from error

    return run


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
