"""How many bytes of a program lie in the host's memory, and how many it moves there or to files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from meshflow.environment.jax_internals import jex_core
from meshflow.placement.scratch import put_in_files

__all__ = ["held_by_host", "moved_to_files", "moved_to_host"]


def held_by_host(arrays: Sequence[Any]) -> int:
    """Bytes of each device's parts of arrays that lie in the host's memory.

    Args:
      arrays: arrays of JAX and others.
    """
    total = 0
    for array in arrays:
        sharding = getattr(array, "sharding", None)
        if sharding is not None and sharding.memory_kind == "pinned_host":
            total += math.prod(sharding.shard_shape(array.shape)) * array.dtype.itemsize
    return total


def moved_to_host(jaxpr: Any) -> int:
    """Bytes that a program hands to the host's memory; what is inside of `shard_map` is of one device.

    Args:
      jaxpr: the program.
    """
    return _moved(jaxpr, _to_host)


def moved_to_files(jaxpr: Any) -> int:
    """Bytes that a program puts into files until it needs them again, as `moved_to_host` counts them.

    Args:
      jaxpr: the program.
    """
    return _moved(jaxpr, put_in_files)


def _moved(jaxpr: Any, own: Callable[[Any], int]) -> int:
    return sum(_of_equation(e, own) for e in getattr(jaxpr, "jaxpr", jaxpr).eqns)


def _of_equation(equation: Any, own: Callable[[Any], int]) -> int:
    moved = own(equation)
    if moved:
        return moved
    inside = [_moved(program, own) for program in _programs(equation.params)]
    if equation.primitive.name == "cond":
        return max(inside)
    return sum(inside) * (equation.params["length"] if equation.primitive.name == "scan" else 1)


def _to_host(equation: Any) -> int:
    if equation.primitive.name != "device_put":
        return 0
    pairs = zip(equation.outvars, equation.params["devices"], strict=True)
    return sum(_bytes(v) for v, to in pairs if _is_host(to))


def _bytes(variable: Any) -> int:
    return int(variable.aval.size) * int(variable.aval.dtype.itemsize)


def _is_host(to: Any) -> bool:
    return to is jax.memory.Space.Host or getattr(to, "memory_kind", None) == "pinned_host"


def _programs(params: dict[str, Any]) -> list[Any]:
    values = [
        v for value in params.values() for v in (value if isinstance(value, tuple) else (value,))
    ]
    return [v for v in values if isinstance(v, (jex_core.ClosedJaxpr, jex_core.Jaxpr))]
