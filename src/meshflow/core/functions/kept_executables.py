"""Executables of programs that files hold, from the user's cache.

JAX keeps executables as well, but finds them by the lowered program, which takes longer to make than an executable to
load. A function that only calls a program of a file is told from others by that file's bytes: neither is it lowered
again, nor are the bytes understood.
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
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from meshflow._version import __version__
from meshflow.core.functions.scope_names import apart
from meshflow.core.runtime import compiled_programs
from meshflow.core.runtime.exported_lowerings import calls_lapack
from meshflow.environment import processor

__all__ = ["KeptProgram", "compiled", "kept_program", "key_of", "loaded", "only_device"]

# Of what is kept: another number when it is kept otherwise.
_FORM = 2


class KeptProgram:
    """A jitted program of one signature whose executable is kept in the user's cache.

    Args:
      program: the program, by `jax.jit`.
      about: what tells it from others.
      results: how many arrays it returns.
    """

    def __init__(self, program: Any, about: bytes, results: int) -> None:
        self._program, self._about, self._results = program, about, results
        self._executable: Callable[..., Any] | None = None
        self.trace, self.lower = program.trace, program.lower

    def __call__(self, *operands: Any) -> Any:
        """Runs it."""
        executable = self._executable
        if executable is None:
            executable = self._executable = self._found(operands)
        try:
            return executable(*operands)
        except (TypeError, ValueError):
            # An executable is for one place of the operands; nothing ran.
            if executable is self._program:
                raise
            return self._program(*operands)

    def _found(self, operands: Sequence[Any]) -> Callable[..., Any]:
        device = only_device(operands)
        if device is None:
            return self._program
        key = key_of(self._about, device)
        found = loaded(key, len(operands), self._results, device)
        return found or compiled(self._program, operands, key)[0]


def key_of(about: bytes, device: Any) -> str:
    """What the executable of a program is found by, on this machine.

    Args:
      about: what tells the program from others.
      device: the device that it is for.
    """
    return hashlib.sha256(_machine(device) + about).hexdigest()


def loaded(key: str, operands: int, results: int, device: Any) -> Callable[..., Any] | None:
    """An executable that is kept, or None.

    Args:
      key: of `key_of`.
      operands: how many arrays it takes.
      results: how many it gives.
      device: the device that it is for.
    """
    data = compiled_programs.kept(key)
    if data is not None:
        taken = jax.tree.structure(((0,) * operands, {}))
        given = jax.tree.structure([0] * results)
        # Of any kind: another version may have written it.
        with contextlib.suppress(Exception):
            found: Callable[..., Any] = deserialize_and_load(
                data, taken, given, execution_devices=[device]
            )
            return found
    return None


def compiled(program: Any, operands: Sequence[Any], key: str) -> tuple[Callable[..., Any], bool]:
    """Compiles a program and keeps its executable, unless another process cannot use it.

    Args:
      program: the program, by `jax.jit`.
      operands: what it is called with.
      key: of `key_of`.

    Returns:
      The executable, and whether it was given to the cache.
    """
    # One that JAX's cache gives has no code to be written once more.
    with apart():
        made: jax.stages.Compiled = program.lower(*operands).compile()
    with contextlib.suppress(ValueError, NotImplementedError):
        data = serialize(made)[0]
        if not calls_lapack(data):
            compiled_programs.put(key, data)
            return made, True
    return made, False


def kept_program(program: Any, closed: Any, donated: Sequence[int], name: str) -> Any:
    """The program with its executable from the cache, or as it is when it does more than call one of a file.

    Args:
      program: the program, by `jax.jit`.
      closed: what it does, a `ClosedJaxpr`.
      donated: numbers of the operands whose memory it takes.
      name: its name in profiles.
    """
    about = None if closed.consts else _described(closed.jaxpr)
    if about is None:
        return program
    avals = [str(aval) for aval in closed.in_avals]
    whole = repr((name, avals, list(donated), os.environ.get("XLA_FLAGS"))).encode() + about
    return KeptProgram(program, whole, len(closed.out_avals))


def _described(jaxpr: Any) -> bytes | None:
    """What a program does whose only equation calls one of a file, else None."""
    if len(jaxpr.eqns) != 1:
        return None
    (equation,) = jaxpr.eqns
    places = {id(v): i for i, v in enumerate((*jaxpr.invars, *equation.outvars))}
    wires = [[places.get(id(v)) for v in some] for some in (equation.invars, jaxpr.outvars)]
    if any(None in some for some in wires):
        return None
    if equation.primitive.name == "custom_vjp_call":
        inner = equation.params["call_jaxpr"]
        about = None if inner.consts else _described(inner.jaxpr)
    elif equation.primitive.name == "call_exported":
        about = _bytes_of(equation.params["exported"])
    else:
        return None
    return None if about is None else repr(wires).encode() + about


def _bytes_of(exported: Any) -> bytes | None:
    # Calls of linear algebra go to addresses that JAX finds while it lowers a program.
    if calls_lapack(exported.mlir_module_serialized) or exported.nr_devices != 1:
        return None
    about = (
        *(exported.in_avals, exported.out_avals, exported.platforms, exported.module_kept_var_idx),
        *(exported.uses_global_constants, exported.calling_convention_version),
        *(exported.in_shardings_hlo, exported.out_shardings_hlo),
    )
    return repr(about).encode() + hashlib.sha256(exported.mlir_module_serialized).digest()


def only_device(operands: Sequence[Any]) -> Any:
    """The default device, when all operands are there or on the host."""
    # JAX defines its options at run time.
    device = jax.config.jax_default_device or jax.local_devices()[0]  # type: ignore[attr-defined]
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


def _machine(device: Any) -> bytes:
    """What an executable is for: versions, the device, the processor, and JAX's options."""
    options = sorted((name, str(value)) for name, value in jax.config.values.items())
    about = (device.device_kind, device.client.platform_version, device.id, options)
    return repr((_host(), about)).encode()


@functools.cache
def _host() -> tuple[Any, ...]:
    threads = os.environ.get("NPROC"), os.cpu_count()
    return (
        _FORM,
        __version__,
        jax.__version__,
        jax.lib.__version__,
        platform.machine(),
        processor.flags(),
        threads,
    )
