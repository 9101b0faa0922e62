"""Elementwise updates of large arrays on the CPU that keep the old values.

XLA's code reads the destination from memory before it writes it, because it is not in the caches;
the handler only writes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from meshflow.environment.jax_internals import jex_core
from meshflow.kernels import elementwise, library
from meshflow.kernels.composite_primitives import register as register_composite
from meshflow.kernels.elementwise import ElementwiseProgram
from meshflow.kernels.library import Avals, HandlerCall

# Bytes of an array below which its new value fits in the caches.
MIN_BYTES = 1 << 24

# Operands: arrays and scalars. Parameters: `rule`, a program of them, and `kept`: for each result,
# whether it needs other memory than the array that it replaces. Results: new values of the first
# arrays.
array_update_p = jex_core.Primitive("renewed")
array_update_p.multiple_results = True


def _compute_updates(
    *operands: Array, rule: ElementwiseProgram, kept: tuple[bool, ...]
) -> list[Array]:
    return rule(operands[: rule.num_arrays], operands[rule.num_arrays :])


def _infer_results(
    *avals: jax.core.ShapedArray, rule: ElementwiseProgram, kept: tuple[bool, ...]
) -> list[jax.core.AbstractValue]:
    return [a.strip_weak_type() for a in avals[: len(rule.results)]]


def _choose_handler(
    operands: Avals, results: Avals, parameters: dict[str, Any]
) -> HandlerCall | None:
    """Return a function that calls the handler, or None to use XLA's code."""
    loaded = library.load()
    if loaded is None or not loaded.has_handler(library.RENEW):
        return None
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in results]
    aliases = {n: n for n, kept in enumerate(parameters["kept"]) if not kept}
    call = jax.ffi.ffi_call(library.RENEW, shapes, input_output_aliases=aliases)
    return functools.partial(call, program=parameters["rule"].encode())


def update_arrays(
    rule: Callable[..., Sequence[Any]],
    arrays: Sequence[Array],
    gradient: Array,
    kept: Sequence[bool],
) -> list[Array]:
    """Update arrays with a gradient of their shape.

    Args:
      rule: The update, called with the list of arrays and the gradient.
      arrays: The arrays.
      gradient: The gradient.
      kept: For each array, whether its old value is still needed.
    """
    operands = [*arrays, gradient]
    parsed = None
    if gradient.size * np.dtype(gradient.dtype).itemsize >= MIN_BYTES:
        parsed = elementwise.read_program(
            lambda *parts: rule(parts[:-1], parts[-1]),
            [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in operands],
        )
    if parsed is None or not _is_in_place(parsed[0]):
        return list(rule(arrays, gradient))
    program, scalars = parsed
    return array_update_p.bind(*operands, *scalars, rule=program, kept=tuple(kept))


def _is_in_place(program: ElementwiseProgram) -> bool:
    """Check whether no array becomes the new value of another, which could overwrite it early."""
    return all(n >= program.num_arrays or n == index for index, n in enumerate(program.results))


def register() -> None:
    """Register the primitive with JAX."""
    register_composite(array_update_p, _compute_updates, _infer_results, _choose_handler)
