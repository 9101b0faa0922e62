"""Counts of the bytes that a program has in host memory, and that it moves there or to files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from meshflow.environment.inner_jaxprs import AnyJaxpr, find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.types import Array, JaxprEqn
from meshflow.placement.activation_files import count_stored_bytes


def count_host_bytes(arrays: Sequence[Array]) -> int:
    """Count the bytes of the shards of one device that are in host memory."""
    total = 0
    for array in arrays:
        sharding = getattr(array, "sharding", None)
        if sharding is not None and sharding.memory_kind == "pinned_host":
            total += math.prod(sharding.shard_shape(array.shape)) * array.dtype.itemsize
    return total


def count_bytes_to_host(jaxpr: AnyJaxpr) -> int:
    """Count the bytes that a program moves to host memory; inside `shard_map`, those of one device."""
    return _sum_over_equations(jaxpr, _count_device_put)


def count_bytes_to_files(jaxpr: AnyJaxpr) -> int:
    """Count the bytes that a program writes to activation files; see `count_bytes_to_host`."""
    return _sum_over_equations(jaxpr, count_stored_bytes)


def _sum_over_equations(jaxpr: AnyJaxpr, count: Callable[[JaxprEqn], int]) -> int:
    return sum(_count_equation(e, count) for e in to_open_jaxpr(jaxpr).eqns)


def _count_equation(equation: JaxprEqn, count: Callable[[JaxprEqn], int]) -> int:
    moved = count(equation)
    if moved:
        return moved
    inside = [_sum_over_equations(program, count) for program in find_inner_jaxprs(equation)]
    if equation.primitive.name == "cond":
        return max(inside)
    return sum(inside) * (equation.params["length"] if equation.primitive.name == "scan" else 1)


def _count_device_put(equation: JaxprEqn) -> int:
    if equation.primitive.name != "device_put":
        return 0
    pairs = zip(equation.outvars, equation.params["devices"], strict=True)
    return sum(_count_bytes(v) for v, target in pairs if _is_host(target))


def _count_bytes(variable: Any) -> int:
    return int(variable.aval.size) * int(variable.aval.dtype.itemsize)


def _is_host(target: object) -> bool:
    return target is jax.memory.Space.Host or getattr(target, "memory_kind", None) == "pinned_host"
