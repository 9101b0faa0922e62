"""Executables of programs from files, in the user's cache.

JAX also caches executables, but their keys require the lowered program, which takes longer to
create than an executable to load. A function that only calls a program from a file is identified by
the bytes of that file, which need to be neither lowered again nor parsed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from meshflow._version import __version__
from meshflow.core.functions.scope_names import bypass_jax_cache
from meshflow.core.runtime import compilation_cache
from meshflow.core.runtime.devices import get_default_device
from meshflow.core.runtime.exported_lowerings import calls_lapack
from meshflow.environment import cpu_info
from meshflow.environment.types import ClosedJaxpr, Jaxpr

# Version of the cache entries; it changes with their format.
_FORMAT_VERSION = 2


class CachedProgram:
    """A jitted program of one signature with an executable in the user's cache.

    Args:
      program: The program, from `jax.jit`.
      fingerprint: Identifies the program.
      results: Number of arrays that it returns.
    """

    def __init__(self, program: Any, fingerprint: bytes, results: int) -> None:
        self._program, self._fingerprint, self._results = program, fingerprint, results
        self._executable: Callable[..., Any] | None = None
        self.trace, self.lower = program.trace, program.lower

    def __call__(self, *operands: Any) -> Any:
        """Run the program."""
        executable = self._executable
        if executable is None:
            executable = self._executable = self._load_or_compile(operands)
        try:
            return executable(*operands)
        except (TypeError, ValueError):
            # An executable requires operands on certain devices; nothing ran.
            if executable is self._program:
                raise
            return self._program(*operands)

    def _load_or_compile(self, operands: Sequence[Any]) -> Callable[..., Any]:
        device = get_only_device(operands)
        if device is None:
            return self._program
        key = make_key(self._fingerprint, device)
        executable = load_executable(key, len(operands), self._results, device)
        return executable or compile_and_store(self._program, operands, key)[0]


def make_key(fingerprint: bytes, device: jax.Device) -> str:
    """Return the cache key of a program's executable on this machine, for one device."""
    return hashlib.sha256(_fingerprint_machine(device) + fingerprint).hexdigest()


def load_executable(
    key: str, operands: int, results: int, device: jax.Device
) -> Callable[..., Any] | None:
    """Load an executable with the given numbers of arrays from the cache; return None if there is none."""
    data = compilation_cache.read_entry(key)
    if data is not None:
        in_tree = jax.tree.structure(((0,) * operands, {}))
        out_tree = jax.tree.structure([0] * results)
        # Any exception is possible, because another version may have written the entry.
        with contextlib.suppress(Exception):
            executable: Callable[..., Any] = deserialize_and_load(
                data, in_tree, out_tree, execution_devices=[device]
            )
            return executable
    return None


def compile_and_store(
    program: Any, operands: Sequence[Any], key: str
) -> tuple[Callable[..., Any], bool]:
    """Compile a program and cache its executable, unless other processes cannot use it.

    Returns:
      The executable, and whether the cache holds it.
    """
    # An executable from JAX's cache has no code, so it cannot be serialized again.
    with bypass_jax_cache():
        executable: jax.stages.Compiled = program.lower(*operands).compile()
    with contextlib.suppress(ValueError, NotImplementedError):
        data = serialize(executable)[0]
        if not calls_lapack(data):
            compilation_cache.write_entry(key, data)
            return executable, True
    return executable, False


def cache_program(program: Any, closed: ClosedJaxpr, donated: Sequence[int], name: str) -> Any:
    """Cache the executable of a program (from `jax.jit`) that only calls a program from a file."""
    fingerprint = None if closed.consts else _fingerprint_call(closed.jaxpr)
    if fingerprint is None:
        return program
    avals = [str(aval) for aval in closed.in_avals]
    full_fingerprint = (
        repr((name, avals, list(donated), os.environ.get("XLA_FLAGS"))).encode() + fingerprint
    )
    return CachedProgram(program, full_fingerprint, len(closed.out_avals))


def _fingerprint_call(jaxpr: Jaxpr) -> bytes | None:
    """Identify a program with a single equation that calls a program from a file; else return None."""
    if len(jaxpr.eqns) != 1:
        return None
    (equation,) = jaxpr.eqns
    indices = {id(v): i for i, v in enumerate((*jaxpr.invars, *equation.outvars))}
    wires = [[indices.get(id(v)) for v in atoms] for atoms in (equation.invars, jaxpr.outvars)]
    if any(None in atoms for atoms in wires):
        return None
    if equation.primitive.name == "custom_vjp_call":
        inner = equation.params["call_jaxpr"]
        fingerprint = None if inner.consts else _fingerprint_call(inner.jaxpr)
    elif equation.primitive.name == "call_exported":
        fingerprint = _fingerprint_exported(equation.params["exported"])
    else:
        return None
    return None if fingerprint is None else repr(wires).encode() + fingerprint


def _fingerprint_exported(exported: jax.export.Exported) -> bytes | None:
    # Calls of linear algebra use addresses that JAX determines when it lowers a program.
    if calls_lapack(exported.mlir_module_serialized) or exported.nr_devices != 1:
        return None
    properties = (
        *(exported.in_avals, exported.out_avals, exported.platforms, exported.module_kept_var_idx),
        *(exported.uses_global_constants, exported.calling_convention_version),
        *(exported.in_shardings_hlo, exported.out_shardings_hlo),
    )
    return repr(properties).encode() + hashlib.sha256(exported.mlir_module_serialized).digest()


def get_only_device(operands: Sequence[Any]) -> jax.Device | None:
    """Return the default device if all operands are on it or on the host, else None."""
    device = get_default_device()
    if isinstance(device, str):
        return None
    for operand in operands:
        if isinstance(operand, np.ndarray):
            continue
        if not isinstance(operand, jax.Array) or operand.devices() != {device}:
            return None
        if operand.sharding.memory_kind not in (None, device.default_memory().kind):
            return None
    return device


def _fingerprint_machine(device: jax.Device) -> bytes:
    """Identify the environment of an executable: versions, device, processor, and JAX's options."""
    options = [(name, str(value)) for name, value in jax.config.values.items()]
    # XLA divides loops among the processors of the process that compiles them.
    options.append(("processors", str(cpu_info.count_processors())))
    return _fingerprint_device(device, tuple(options))


@functools.lru_cache(maxsize=16)
def _fingerprint_device(device: jax.Device, options: tuple[tuple[str, str], ...]) -> bytes:
    properties = (device.device_kind, device.client.platform_version, device.id, sorted(options))
    return repr((_fingerprint_host(), properties)).encode()


@functools.cache
def _fingerprint_host() -> tuple[Any, ...]:
    return (
        _FORMAT_VERSION,
        __version__,
        jax.__version__,
        jax.lib.__version__,
        platform.machine(),
        cpu_info.read_cpu_flags(),
        os.environ.get("NPROC"),
    )
