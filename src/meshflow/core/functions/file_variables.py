"""Programs that read variables from files at their first use, and write known values early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.tracing.trace import TracedFunction
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Array, Atom, ClosedJaxpr, JaxprEqn, Var

# A program takes and returns this array instead of a variable in a file.
_PLACEHOLDER = np.zeros((0,), np.float32)


def is_in_file(value: object) -> bool:
    """Check whether a capture is a variable in a file."""
    return getattr(value, "_held", None) is not None


class FileVariables:
    """The variables of a traced function that are in files."""

    def __init__(self, traced: TracedFunction) -> None:
        self.num_results, self._num_writes = traced.num_results, len(traced.writes)
        self.capture_offset = len(traced.closed_jaxpr.in_avals) - len(traced.captures)
        self.read_files = {i: c._held for i, c in enumerate(traced.captures) if is_in_file(c)}
        self.written_files = {i: v._held for i, v in enumerate(traced.writes) if is_in_file(v)}
        files = [*self.read_files.values(), *self.written_files.values()]
        self.stores = list({id(f.store): f.store for f in files}.values())

    def __bool__(self) -> bool:
        return bool(self.stores)

    def make_operands(self, captured: Sequence[Any]) -> list[Any]:
        """Return the operands of the program for its captures."""
        values = [_PLACEHOLDER if i in self.read_files else v for i, v in enumerate(captured)]
        return [*values, *(store.token for store in self.stores)]

    def take_tokens(self, outputs: list[Any]) -> list[Any]:
        """Return the outputs of a program without its tokens, which are passed to the stores."""
        end = self._num_writes + len(self.stores)
        for store, token in zip(self.stores, outputs[self._num_writes : end], strict=True):
            store.token = token
        return [*outputs[: self._num_writes], *outputs[end:]]

    def is_output(self, index: int) -> bool:
        """Check whether the new value of a written variable is an output of the program."""
        return index not in self.written_files

    def make_program(self, closed: ClosedJaxpr) -> Callable[..., list[Any]]:
        """Return a program that reads and writes files, with tokens as last inputs and outputs."""

        def run(*arrays: Array) -> list[Any]:
            tokens = dict(zip(map(id, self.stores), arrays[-len(self.stores) :], strict=True))
            return _FileProgramRun(
                self, closed, arrays[: -len(self.stores)], tokens
            ).compute_outputs()

        return run


class _FileProgramRun:
    """One evaluation of a program."""

    def __init__(
        self,
        streams: FileVariables,
        closed: ClosedJaxpr,
        values: Sequence[Array],
        tokens: dict[int, Array],
    ) -> None:
        self._streams, self._jaxpr, self._tokens = streams, closed.jaxpr, tokens
        inputs = closed.jaxpr.invars
        self._pending = {
            inputs[streams.capture_offset + i]: h for i, h in streams.read_files.items()
        }
        self._values: dict[Var, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        self._values |= {
            v: a for v, a in zip(inputs, values, strict=True) if v not in self._pending
        }

    def compute_outputs(self) -> list[Any]:
        outputs, first = self._jaxpr.outvars, self._streams.num_results
        files_by_var: dict[Var, list[Any]] = {}
        unchanged = []
        for index, file in self._streams.written_files.items():
            variable = outputs[first + index]
            if isinstance(variable, jex_core.Literal) or variable in self._jaxpr.invars:
                unchanged.append((variable, file))
            else:
                files_by_var.setdefault(variable, []).append(file)
        for equation in self._jaxpr.eqns:
            self._compute(equation, files_by_var)
        for variable, file in unchanged:
            self._write_file(file, self._read_atom(variable))
        written = self._streams.written_files
        values = [
            jnp.zeros((0,)) if i - first in written else self._read_atom(v)
            for i, v in enumerate(outputs)
        ]
        return [*values, *(self._tokens[id(store)] for store in self._streams.stores)]

    def _compute(self, equation: JaxprEqn, files_by_var: dict[Var, list[Any]]) -> None:
        operands = [self._read_atom(v) for v in equation.invars]
        primitive = equation.primitive
        results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
        results = results if primitive.multiple_results else [results]
        for variable, result in zip(equation.outvars, results, strict=True):
            self._values[variable] = result
            for file in files_by_var.get(variable, ()):
                self._write_file(file, result)

    def _read_atom(self, atom: Atom) -> Any:
        if isinstance(atom, jex_core.Literal):
            return atom.val
        if atom in self._pending:
            file = self._pending.pop(atom)
            key = id(file.store)
            self._values[atom], self._tokens[key] = file.read(self._tokens[key])
        return self._values[atom]

    def _write_file(self, file: Any, value: Array) -> None:
        key = id(file.store)
        self._tokens[key] = file.write(value, self._tokens[key])
