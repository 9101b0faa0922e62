"""Functions of TensorFlow's graphs as programs that saved functions run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError, ValueNeededError
from meshflow.core.tracing.trace import RowsSlot, Slot, Traced, fill
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.ops.casting import cast
from meshflow.ops.random import stateful
from meshflow.saved_model.functions import COMPOSITES
from meshflow.saved_model.graph.attributes import HostNeeded
from meshflow.saved_model.graph.interpreter import (
    Library,
    RandomNeeded,
    Run,
    Stored,
    is_text,
)

__all__ = ["GraphProgram", "slots_of"]

# Gives flat results for flat arguments and captures in a run.
Body = Callable[[Run, list[Any]], list[Any]]


def slots_of(structure: Any) -> tuple[Any, list[TensorSpec]]:
    """A nested result with numbered `Slot`s for its specs, in TensorFlow's order, and the specs of its tensors.

    Args:
      structure: with `TensorSpec`s for tensors, and specs of sparse tensors and `tf.IndexedSlices`.
    """
    specs: list[TensorSpec] = []

    def slot(leaf: Any) -> Any:
        if isinstance(leaf, TensorSpec):
            specs.append(leaf)
            return Slot(len(specs) - 1)
        if not isinstance(leaf, COMPOSITES):
            return leaf
        parts = [slot(part) for part in leaf._component_specs()]
        return RowsSlot(lambda tensors: leaf.value_type(*tensors), parts)

    slots = [slot(leaf) for leaf in nest.flatten(structure)]
    return nest.pack_sequence_as(structure, slots), specs


class GraphProgram:
    """A function of a graph, compiled for each size of its arguments; with strings or tables it runs op by op.

    Args:
      name: the function's name, for errors.
      library: the functions that it calls.
      body: what it does: gives results in a run for arguments, followed by what it captures.
      captured: what it captures: variables, known arrays, tables.
      structure: the nested result with `Slot`s.
      specs: specs of the results.
      on_host: whether it has ops that no compiled program has.
      about: what tells it from other programs in files, or None.
    """

    def __init__(
        self,
        name: str,
        library: Library,
        body: Body,
        captured: Sequence[Any],
        structure: Any,
        specs: Sequence[TensorSpec],
        on_host: bool = False,
        about: bytes | None = None,
    ) -> None:
        self.about = about
        self._name, self._library, self._body = name, library, body
        variables: dict[int, Variable] = {}
        self._captured = []
        for item in captured:
            if isinstance(item, Variable):
                variables.setdefault(id(item), item)
                item = Stored(list(variables).index(id(item)))
            self._captured.append(item)
        self.captures: list[Any] = list(variables.values())
        self._structure, self._specs = structure, list(specs)
        self._sized: dict[Any, Traced] = {}
        # Whether it needs random numbers: their key is then its last argument.
        self._draws = False
        self._on_host = on_host or any(is_text(c) for c in self._captured)

    @property
    def on_host(self) -> bool:
        """Whether it is known to have strings or tables."""
        return self._on_host

    @property
    def out_specs(self) -> list[TensorSpec]:
        """Specs of the results."""
        return self._specs

    def call(self, tensors: Sequence[Tensor]) -> Any:
        """Runs it.

        Raises:
          UnimplementedError: for an op that is not known, naming it and its node.
        """
        if not self._on_host and all(t.dtype.name != "string" for t in tensors):
            try:
                return self._traced_call(tensors)
            except HostNeeded:
                self._on_host = True
        try:
            return self._by_host(tensors)
        except HostNeeded:
            raise ValueNeededError(
                f"{self._name} has strings, tables or sizes that it computes, so it runs op by op."
            ) from None

    def _traced_call(self, tensors: Sequence[Tensor]) -> Any:
        if not self._draws:
            try:
                return self._traced(tensors).call(tensors)
            except RandomNeeded:
                self._draws = True
        given = [*tensors, _new_key()]
        return self._traced(given).call(given)

    def _traced(self, tensors: Sequence[Tensor]) -> Traced:
        key = tuple(tuple(t.shape.as_list()) for t in tensors)
        if key not in self._sized:
            written: list[int] = []
            given = len(tensors)

            def run(*arrays: Any) -> list[Any]:
                key = arrays[given - 1] if self._draws else None
                state = Run(self._library, arrays[given:], key=key)
                results = self._body(state, [*arrays[: given - self._draws], *self._captured])
                written[:] = state.written
                return [self._result(r) for r in (*results, *(state.values[n] for n in written))]

            arrays = [t._value for t in tensors] + [v._value for v in self.captures]
            specs = [jax.ShapeDtypeStruct(tuple(a.shape), a.dtype) for a in arrays]
            closed = jax.make_jaxpr(run)(*specs)
            writes = [self.captures[n] for n in written]
            count = len(closed.out_avals) - len(writes)
            self._sized[key] = Traced(
                self._name, closed, self.captures, writes, self._structure, count
            )
        return self._sized[key]

    def _result(self, value: Any) -> Any:
        if not hasattr(value, "dtype") or is_text(value):
            raise InvalidArgumentError(f"{self._name} returns what is no array: {value!r}.")
        return jnp.asarray(value)

    def _by_host(self, tensors: Sequence[Tensor]) -> Any:
        given = [t._concrete("what sizes or strings are made of") for t in tensors]
        values = [v._value for v in self.captures]
        state = Run(self._library, values, host=True, key=_new_key()._value)
        results = self._body(state, [*given, *self._captured])
        for number in state.written:
            self.captures[number].assign(Tensor(state.values[number]))
        made = [Tensor(r if is_text(r) else jnp.asarray(r)) for r in results]
        return fill(self._structure, made)


def _new_key() -> Tensor:
    """Two words of a key, from the state that `tf.random.set_seed` sets."""
    words = stateful.uniform([2], 0, np.iinfo(np.int32).max, "int32")
    return cast(words, "uint32")


def known(value: Any) -> np.ndarray:
    """A constant's value as what stays known.

    Args:
      value: a tensor or an array.
    """
    return np.asarray(value._value if isinstance(value, Tensor) else value)
