"""Calls of saved functions by executables from the user's cache, without tracing.

For a function and operands of some shapes, the cache holds up to three entries: the executable, the
executable that prepares its weights, if any, and a plan with the arrays that they take and return.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jax

from meshflow.core.functions.concrete_function import ConcreteFunction, FunctionSettings
from meshflow.core.functions.executable_cache import (
    compile_and_store,
    get_only_device,
    load_executable,
    make_key,
)
from meshflow.core.functions.prepacked_weights import PrepackedWeights
from meshflow.core.functions.retracing import MAX_TRACES
from meshflow.core.runtime import compilation_cache
from meshflow.core.runtime.bounds_checks import BoundsChecking
from meshflow.core.runtime.context import context, variable_lock
from meshflow.core.runtime.forks import ForkState
from meshflow.core.tracing.pass_pipeline import PassPipeline
from meshflow.core.tracing.trace import TensorSlot
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Array
from meshflow.kernels import library

# Suffixes of the keys of executables, because the names of cache entries are hexadecimal.
_PLAN_SUFFIX, _WEIGHTS_SUFFIX = "a1", "a2"
# Source folders that define the ops of a graph.
_SOURCE_FOLDERS = ("saved_model", "ops", "passes", "kernels")


class _CachedCall:
    """An executable and its constant operands.

    Args:
      main: The executable.
      weights: Computes its last operands, or None.
      captures: The captures of the function that the executable takes, in its order.
      results: Indices of its outputs, in the order of the function's results.
    """

    def __init__(
        self,
        main: Callable[..., Any],
        weights: PrepackedWeights | None,
        captures: Sequence[Any],
        results: Sequence[int],
    ) -> None:
        self._main, self._weights = main, weights
        self._captures, self._results = captures, results

    def __call__(self, arrays: Sequence[Array]) -> list[Tensor]:
        with variable_lock:
            captured = [c._value for c in self._captures]
        weights = self._weights(captured) if self._weights is not None else ()
        outputs = self._main(*arrays, *captured, *weights)
        return [Tensor(outputs[i]) for i in self._results]


class _InterpretedCall:
    """A function that runs op by op until its compilation pays off.

    Args:
      concrete: The function.
    """

    def __init__(self, concrete: ConcreteFunction) -> None:
        self.should_run = concrete.should_interpret
        self._interpret = concrete.interpret

    def __call__(self, arrays: Sequence[Array]) -> list[Tensor]:
        return nest.flatten(self._interpret(arrays))


# A call of a function with certain sizes; None if the function must be called.
_Call: TypeAlias = "_CachedCall | _InterpretedCall | None"


class CachedCalls:
    """The calls of a saved function without side effects.

    Args:
      fingerprint: Identifies the function, by the bytes of its file.
      captures: Variables and constants that the function uses.
      trace: Traces the function for tensors if the cache has no entry.
      find_general: Returns a trace with symbols for the unknown sizes of the tensors, or None.

    Attributes:
      interprets: Whether the function runs op by op until its compilation pays off.
    """

    interprets = True

    def __init__(
        self,
        fingerprint: bytes,
        captures: Sequence[Any],
        trace: Callable[[Sequence[Tensor]], ConcreteFunction],
        find_general: Callable[[Sequence[Tensor]], ConcreteFunction | None],
    ) -> None:
        self._fingerprint, self._captures, self._trace = fingerprint, captures, trace
        self._find_general = find_general
        # Traces with symbolic sizes.
        self._general: list[ConcreteFunction] = []
        self._calls: dict[Any, _Call] = {}
        self._compile_lock = threading.RLock()
        self._is_supported = all(type(c) in (Variable, Tensor) for c in captures)

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """Return the results; None if the function must be called, for example for tapes."""
        if not self._is_supported or not _is_standalone():
            return None
        arrays = [t.array for t in tensors]
        key = BoundsChecking.mode, tuple((a.shape, a.dtype) for a in arrays)
        call = self._calls.get(key)
        if key not in self._calls or (
            isinstance(call, _InterpretedCall) and not call.should_run(arrays)
        ):
            call = self._replace_call(key, call, tensors, arrays)
        if call is None:
            return None
        if FunctionSettings.on_launch is not None:
            FunctionSettings.on_launch()
        try:
            return call(arrays)
        except (TypeError, ValueError, RuntimeError, MemoryError):
            # The call has no effects. The function raises the error, or accepts other devices.
            return None

    def _replace_call(
        self,
        key: Hashable,
        previous: _Call,
        tensors: Sequence[Tensor],
        arrays: Sequence[Array],
    ) -> _Call:
        """Load, trace or compile the function, unless another thread has done so."""
        with self._compile_lock:
            is_new = key not in self._calls
            if is_new or (previous is not None and self._calls[key] is previous):
                interprets = self.interprets and previous is None
                call = None
                # A function that cannot be compiled runs op by op, or raises the error.
                with contextlib.suppress(Exception):
                    call = self._load_or_compile(tensors, arrays, interprets)
                self._calls[key] = call
                if len(self._calls) > MAX_TRACES:
                    self._calls.pop(next(iter(self._calls)))
            return self._calls.get(key)

    def _load_or_compile(
        self, tensors: Sequence[Tensor], arrays: Sequence[Array], interprets: bool
    ) -> _Call:
        # Sizes that follow others are probably rare, so the cache is only searched when they are not.
        if interprets and self._general:
            call = self._interpret(tensors, arrays)
            if call is not None:
                return call
        values = [*arrays, *(c._value for c in self._captures)]
        device = get_only_device(values)
        if device is None:
            return None
        shapes = [(tuple(v.shape), str(v.dtype)) for v in values]
        flags = os.environ.get("XLA_FLAGS"), os.environ.get("MESHFLOW_KERNELS")
        identity = repr((shapes, flags, BoundsChecking.mode)).encode() + _hash_source_stamps()
        key = make_key(identity + self._fingerprint, device)
        loaded = self._load_call(key, len(arrays), device)
        if loaded is not None:
            return loaded
        call = self._interpret(tensors, arrays) if interprets else None
        return call or self._compile_call(key, tensors, device, interprets)

    def _interpret(
        self, tensors: Sequence[Tensor], arrays: Sequence[Array]
    ) -> _InterpretedCall | None:
        """Return a call that runs op by op with symbolic sizes, or None if that is impossible or does not pay off."""
        general = self._get_general(tensors)
        if general is None or not general.should_interpret(arrays):
            return None
        return _InterpretedCall(general)

    def _get_general(self, tensors: Sequence[Tensor]) -> ConcreteFunction | None:
        shapes = [t.array.shape for t in tensors]
        for general in self._general:
            if general.sizes is not None and general.sizes.bind(shapes) is not None:
                return general
        found = self._find_general(tensors)
        if found is None or not _is_pure(found):
            return None
        self._general.append(found)
        return found

    def _load_call(self, key: str, count: int, device: jax.Device) -> _CachedCall | None:
        data = compilation_cache.read_entry(key + _PLAN_SUFFIX)
        if data is None:
            return None
        # The executables refer to kernels of this library by name.
        library.load()
        plan = json.loads(data)
        captures, reads, num_weights = (plan[name] for name in ("captures", "reads", "gives"))
        main = load_executable(key, count + len(captures) + num_weights, plan["outputs"], device)
        weights = (
            load_executable(key + _WEIGHTS_SUFFIX, len(reads), num_weights, device)
            if num_weights
            else None
        )
        if main is None or (num_weights and weights is None):
            return None
        prepacked = None if weights is None else PrepackedWeights(weights, reads)
        return _CachedCall(main, prepacked, [self._captures[i] for i in captures], plan["results"])

    def _compile_call(
        self, key: str, tensors: Sequence[Tensor], device: jax.Device, interprets: bool
    ) -> _CachedCall | _InterpretedCall | None:
        """Compile the call and store it in the cache; return None for a function with side effects."""
        concrete = self._trace(tensors)
        traced = concrete.traced
        if not _is_pure(concrete):
            return None
        if interprets and concrete.should_interpret([t.array for t in tensors]):
            return _InterpretedCall(concrete)
        parts = concrete.get_pure_program()
        indices = {id(c): i for i, c in enumerate(self._captures)}
        capture_indices = [indices.get(id(c)) for c in traced.captures]
        if parts is None or None in capture_indices:
            return None
        main, prepacked = parts
        captured = traced.get_captured_arrays()
        weights: list[Any] = []
        is_stored = True
        if prepacked is not None:
            operands = [captured[i] for i in prepacked.reads]
            early, is_stored = compile_and_store(prepacked.run, operands, key + _WEIGHTS_SUFFIX)
            prepacked = PrepackedWeights(early, prepacked.reads)
            weights = prepacked(captured)
        run, is_main_stored = compile_and_store(
            main, [*(t.array for t in tensors), *captured, *weights], key
        )
        results = [s.index for s in nest.flatten(traced.structure)]
        plan = {
            "captures": capture_indices,
            "reads": [] if prepacked is None else list(prepacked.reads),
            "gives": len(weights),
            "outputs": len(traced.closed_jaxpr.out_avals),
            "results": results,
        }
        if is_stored and is_main_stored:
            compilation_cache.write_entry(key + _PLAN_SUFFIX, json.dumps(plan).encode())
        return _CachedCall(run, prepacked, traced.captures, results)


def _is_pure(concrete: ConcreteFunction) -> bool:
    """Check whether a function has no side effects, and only tensors as results."""
    slots = nest.flatten(concrete.traced.structure)
    return not concrete.traced.writes and all(isinstance(s, TensorSlot) for s in slots)


def _is_standalone() -> bool:
    """Check whether a call is a separate program, as compiled for files."""
    is_nested = context.trace is not None or context.tapes or context.host_recorder is not None
    is_placed = (
        context.place_output is not None
        or context.override_read is not None
        or context.computes_on_host
    )
    is_changed = FunctionSettings.run_eagerly or PassPipeline.passes or ForkState.forked_late
    # JAX defines its options at run time.
    return not (is_nested or is_placed or is_changed or jax.config.jax_debug_nans)  # type: ignore[attr-defined]


@functools.cache
def _hash_source_stamps() -> bytes:
    """Return a digest of the modification times of the sources that define the ops of graphs."""
    root = Path(__file__).parents[2]
    stamps = sorted(
        stamp for folder in _SOURCE_FOLDERS for stamp in _iterate_stamps(str(root / folder))
    )
    return hashlib.sha256(repr(stamps).encode()).digest()


def _iterate_stamps(folder: str) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".so")):
                yield entry.path, entry.stat().st_mtime_ns
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _iterate_stamps(entry.path)
