"""Elementwise updates of whole arrays on the CPU, whose new values lie beside the old ones: XLA's code reads what it writes
before, as the caches do not hold it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.kernels import elementwise, library
from meshflow.kernels.composite_primitives import register as register_composite
from meshflow.kernels.elementwise import Program

# Bytes of an array below which its new value stays in the caches.
LEAST_SIZE = 1 << 24

# Operands: arrays and scalars. Parameters: `rule`, a program of them, and `kept`, which results have other memory than the array
# of their place. Results: new values of the first arrays.
renewed_p = jex_core.Primitive("renewed")
renewed_p.multiple_results = True


def _renewed(*given: Any, rule: Program, kept: tuple[bool, ...]) -> list[Any]:
    return rule(given[: rule.arrays], given[rule.arrays :])


def _abstract(*given: Any, rule: Program, kept: tuple[bool, ...]) -> list[Any]:
    return [a.strip_weak_type() for a in given[: len(rule.results)]]


def _choose(operands: Any, results: Any, parameters: dict[str, Any]) -> Any:
    """A function that calls the handler, or None where XLA's code is taken."""
    loaded = library.load()
    if loaded is None or not loaded.has_handler(library.RENEW):
        return None
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in results]
    places = {n: n for n, kept in enumerate(parameters["kept"]) if not kept}
    call = jax.ffi.ffi_call(library.RENEW, shapes, input_output_aliases=places)
    return functools.partial(call, program=parameters["rule"].packed())


def renewed(
    rule: Callable[..., Sequence[Any]], arrays: Sequence[Any], gradient: Any, kept: Sequence[bool]
) -> list[Any]:
    """What an update makes of arrays and a gradient of their shape.

    Args:
      rule: the update, called with the arrays and the gradient.
      arrays: the arrays.
      gradient: the gradient.
      kept: of which arrays the old value is still needed.
    """
    given = [*arrays, gradient]
    found = None
    if gradient.size * np.dtype(gradient.dtype).itemsize >= LEAST_SIZE:
        found = elementwise.read(
            lambda *parts: rule(parts[:-1], parts[-1]),
            [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in given],
        )
    if found is None or not _stay_in_place(found[0]):
        return list(rule(arrays, gradient))
    program, scalars = found
    return renewed_p.bind(*given, *scalars, rule=program, kept=tuple(kept))


def _stay_in_place(program: Program) -> bool:
    """Whether no array becomes another's new value, which may be written over the former."""
    return all(n >= program.arrays or n == place for place, n in enumerate(program.results))


def register() -> None:
    """Makes the primitive known to JAX."""
    register_composite(renewed_p, _renewed, _abstract, _choose)
