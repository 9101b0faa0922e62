"""Functions of strings and tables in files: calls of the host and parts of a program, in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import DataLossError
from meshflow.core.tracing.trace import Slot
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, as_dtype
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.lookup.table import Table
from meshflow.ops.deferred_host_values import Pending
from meshflow.saved_model.assets import Asset
from meshflow.saved_model.functions import Program, compiled
from meshflow.saved_model.host_calls import HOST_CALLS, Value
from meshflow.saved_model.structures import packed, unpacked

__all__ = ["HostPart", "PlanProgram", "ProgramPart", "packed_argument", "unpacked_argument"]


def packed_argument(value: Any, place: Callable[[Any], int]) -> Any:
    """An argument of a call of the host as JSON.

    Args:
      value: `Value`s, arrays, tables, files, slices and plain values, nested in lists and dictionaries.
      place: gives the number of the object that a table or file is.

    Raises:
      Unsaved: for anything else.
    """
    if isinstance(value, Value):
        return {"value": value.number}
    if isinstance(value, (Asset, Table)):
        return {"object": place(value)}
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        texts = array.dtype.kind in "OSU"
        flat = [_text(v) for v in array.reshape(-1)] if texts else array.reshape(-1).tolist()
        return {
            "array": flat,
            "shape": list(array.shape),
            "kind": as_dtype("string" if texts else array.dtype).name,
        }
    if isinstance(value, bytes):
        return packed_argument(np.array(value, object), place)
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if value is Ellipsis:
        return {"slice": None}
    if isinstance(value, (list, tuple)):
        return {"list": [packed_argument(v, place) for v in value]}
    if isinstance(value, DType):
        return packed(value)
    if isinstance(value, Mapping):
        return {"entries": {k: packed_argument(v, place) for k, v in value.items()}}
    return packed(value)


def _text(value: Any) -> str:
    return (value.encode() if isinstance(value, str) else value).decode("latin-1")


def unpacked_argument(data: Any, objects: Sequence[Any]) -> Any:
    """The argument that `packed_argument` wrote.

    Args:
      data: its result.
      objects: by number.
    """
    if not isinstance(data, dict):
        return unpacked(data)
    if "value" in data:
        return Value(data["value"])
    if "object" in data:
        return objects[data["object"]]
    if "array" in data:
        kind = as_dtype(data["kind"])
        if kind.name != "string":
            return np.array(data["array"], kind.as_numpy_dtype).reshape(data["shape"])
        texts = np.empty(len(data["array"]), object)
        texts[:] = [v.encode("latin-1") for v in data["array"]]
        return texts.reshape(data["shape"])
    if "slice" in data:
        return Ellipsis if data["slice"] is None else slice(*data["slice"])
    if "list" in data:
        return [unpacked_argument(v, objects) for v in data["list"]]
    if "entries" in data:
        return {k: unpacked_argument(v, objects) for k, v in data["entries"].items()}
    return unpacked(data)


class _Part(Protocol):
    """A step of a plan."""

    @property
    def captures(self) -> list[Any]:
        """Variables and constants that it uses."""

    def run(self, values: dict[int, Any]) -> None:
        """Adds what it gives to the values that there are."""


class HostPart:
    """A call of the host.

    Args:
      name: of the function in `HOST_CALLS`.
      first: its first argument.
      more: its other arguments by name.
      result: the value that it gives.
    """

    def __init__(self, name: str, first: Any, more: Mapping[str, Any], result: int) -> None:
        if name not in HOST_CALLS:
            raise DataLossError(f"a saved function calls {name!r}, which is not known here.")
        self._name, self._first, self._more, self._result = name, first, more, result
        self.captures: list[Any] = []

    def run(self, values: dict[int, Any]) -> None:
        """Calls it."""

        def known(leaf: Any) -> Any:
            if isinstance(leaf, np.ndarray):
                return Tensor(leaf)
            if isinstance(leaf, Asset):
                return leaf.asset_path
            if not isinstance(leaf, Value):
                return leaf
            found = values[leaf.number]
            if context.recording is not None:
                # It is saved again.
                return found
            return Tensor(
                np.asarray(found._concrete(f"a saved function of strings ({self._name})"))
            )

        first, more = nest.map_structure(known, (self._first, dict(self._more)))
        if isinstance(more.get("key"), list):
            more["key"] = tuple(more["key"])
        result = HOST_CALLS[self._name].function(first, **more)
        values[self._result] = result if isinstance(result, Pending) else convert_to_tensor(result)


class ProgramPart:
    """A part of a program.

    Args:
      name: of the function.
      program: gives a list.
      inputs: the values that it takes.
      outputs: the values that its results are.
    """

    def __init__(
        self, name: str, program: Program, inputs: Sequence[int], outputs: Sequence[int]
    ) -> None:
        self._program, self._inputs, self._outputs = program, inputs, outputs
        self._run = compiled(name, program)

    @property
    def captures(self) -> list[Any]:
        """Variables and constants that it uses."""
        return self._program.captures

    def run(self, values: dict[int, Any]) -> None:
        """Runs it."""
        results = self._run(*[values[n] for n in self._inputs])
        values.update(zip(self._outputs, results, strict=True))


class PlanProgram:
    """A function of strings and tables that was saved.

    Args:
      parts: its steps.
      results: the values that it returns.
      structure: the nested result with `Slot`s.
      specs: specs of the results.
    """

    on_host = True
    about = None

    def __init__(
        self,
        parts: Sequence[_Part],
        results: Sequence[int],
        structure: Any,
        specs: Sequence[TensorSpec],
    ) -> None:
        self._parts, self._results, self._structure = parts, results, structure
        self.out_specs = list(specs)

    @property
    def captures(self) -> list[Any]:
        """Variables and constants that it uses."""
        return list({id(c): c for part in self._parts for c in part.captures}.values())

    def call(self, tensors: Sequence[Tensor]) -> Any:
        """Runs it; strings must be known."""
        values: dict[int, Any] = dict(enumerate(tensors))
        for part in self._parts:
            part.run(values)
        results = [values[n] for n in self._results]
        return nest.map_structure(
            lambda leaf: results[leaf.index] if isinstance(leaf, Slot) else leaf, self._structure
        )
