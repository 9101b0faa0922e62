"""Calls of saved functions by executables of the user's cache: where one is found, nothing is traced.

Of a function and operands of some shapes three things are kept: the executable, the one that prepares its weights
where there is such a part, and a plan, which says which arrays they take and give.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from meshflow.core.functions.concrete_function import ConcreteFunction, Settings
from meshflow.core.functions.kept_executables import compiled, key_of, loaded, only_device
from meshflow.core.functions.prepacked_weights import PrepackedWeights
from meshflow.core.runtime import compiled_programs
from meshflow.core.runtime.context import context, writing
from meshflow.core.runtime.forks import Fork
from meshflow.core.tracing.pass_pipeline import PassPipeline
from meshflow.core.tracing.trace import Slot
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.kernels import library

__all__ = ["KeptCalls"]

# Names of entries are those of executables and a word, in hexadecimal digits as they are.
_PLAN, _WEIGHTS = "a1", "a2"
# What a graph's ops are, in the source.
_MEANING = ("saved_model", "ops", "passes", "kernels")


class _Call:
    """An executable with what it is called with.

    Args:
      main: the executable.
      weights: what prepares its last operands, or None.
      captures: the function's captures that it takes, in its order.
      results: numbers of its outputs, in the order of the function's results.
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

    def __call__(self, arrays: Sequence[Any]) -> list[Tensor]:
        with writing:
            captured = [c._value for c in self._captures]
        kept = self._weights(captured) if self._weights is not None else ()
        outputs = self._main(*arrays, *captured, *kept)
        return [Tensor(outputs[i]) for i in self._results]


class KeptCalls:
    """The calls of a saved function that writes nothing.

    Args:
      about: what tells the function from others, of its file's bytes.
      captures: variables and constants that it uses.
      traced: gives it traced for tensors, where nothing is kept.
    """

    def __init__(
        self,
        about: bytes,
        captures: Sequence[Any],
        traced: Callable[[Sequence[Tensor]], ConcreteFunction],
    ) -> None:
        self._about, self._captures, self._traced = about, captures, traced
        self._calls: dict[Any, _Call | None] = {}
        self._making = threading.RLock()
        self._plain = all(type(c) in (Variable, Tensor) for c in captures)

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """The results, or None where the function itself must be called, as where its gradient is wanted.

        Args:
          tensors: its arguments.
        """
        if not self._plain or not _alone():
            return None
        arrays = [t._value for t in tensors]
        key = tuple((a.shape, a.dtype) for a in arrays)
        if key not in self._calls:
            with self._making:
                if key not in self._calls:
                    # What cannot be compiled runs op by op, or says why.
                    with contextlib.suppress(Exception):
                        self._calls[key] = self._call(tensors, arrays)
                    self._calls.setdefault(key, None)
        call = self._calls[key]
        if call is None:
            return None
        if Settings.progress is not None:
            Settings.progress()
        try:
            return call(arrays)
        except (TypeError, ValueError, RuntimeError, MemoryError):
            # Nothing was written: the function itself tells what is wrong, or takes arrays that lie elsewhere.
            return None

    def _call(self, tensors: Sequence[Tensor], arrays: Sequence[Any]) -> _Call | None:
        values = [*arrays, *(c._value for c in self._captures)]
        device = only_device(values)
        if device is None:
            return None
        shapes = [(tuple(v.shape), str(v.dtype)) for v in values]
        whole = (
            shapes,
            os.environ.get("XLA_FLAGS"),
            os.environ.get("MESHFLOW_KERNELS"),
            _meaning(),
        )
        key = key_of(repr(whole).encode() + self._about, device)
        return self._found(key, len(arrays), device) or self._made(key, tensors, device)

    def _found(self, key: str, count: int, device: Any) -> _Call | None:
        data = compiled_programs.kept(key + _PLAN)
        if data is None:
            return None
        # Executables call them by name.
        library.load()
        plan = json.loads(data)
        captures, reads, gives = (plan[name] for name in ("captures", "reads", "gives"))
        main = loaded(key, count + len(captures) + gives, plan["outputs"], device)
        weights = loaded(key + _WEIGHTS, len(reads), gives, device) if gives else None
        if main is None or (gives and weights is None):
            return None
        keeper = None if weights is None else PrepackedWeights(weights, reads)
        return _Call(main, keeper, [self._captures[i] for i in captures], plan["results"])

    def _made(self, key: str, tensors: Sequence[Tensor], device: Any) -> _Call | None:
        """The call by what is compiled now, and kept; None for a function that does more than give results."""
        concrete = self._traced(tensors)
        parts, traced = concrete.pure_parts(), concrete.traced
        numbers = {id(c): i for i, c in enumerate(self._captures)}
        places = [numbers.get(id(c)) for c in traced.captures]
        slots = nest.flatten(traced.structure)
        if parts is None or None in places or not all(isinstance(s, Slot) for s in slots):
            return None
        main, keeper = parts
        captured = [c._value for c in traced.captures]
        made: list[Any] = []
        is_whole = True
        if keeper is not None:
            taken = [captured[i] for i in keeper.reads]
            early, is_whole = compiled(keeper.run, taken, key + _WEIGHTS)
            keeper = PrepackedWeights(early, keeper.reads)
            made = keeper(captured)
        run, is_kept = compiled(main, [*(t._value for t in tensors), *captured, *made], key)
        results = [s.index for s in slots]
        plan = {
            "captures": places,
            "reads": [] if keeper is None else list(keeper.reads),
            "gives": len(made),
            "outputs": len(traced.closed.out_avals),
            "results": results,
        }
        if is_whole and is_kept:
            compiled_programs.put(key + _PLAN, json.dumps(plan).encode())
        return _Call(run, keeper, traced.captures, results)


def _alone() -> bool:
    """Whether a call is a program of its own, as it was compiled for files."""
    inside = context.trace is not None or context.tapes or context.recording is not None
    moved = context.placing is not None or context.reading is not None or context.on_host
    changed = Settings.run_eagerly or PassPipeline.active or Fork.late
    # JAX defines its options at run time.
    return not (inside or moved or changed or jax.config.jax_debug_nans)  # type: ignore[attr-defined]


@functools.cache
def _meaning() -> list[tuple[str, int]]:
    """What changes when the source does that says what ops of graphs are."""
    root = Path(__file__).parents[2]
    return sorted(stamp for folder in _MEANING for stamp in _stamps(str(root / folder)))


def _stamps(folder: str) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".so")):
                yield entry.path, entry.stat().st_mtime_ns
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _stamps(entry.path)
