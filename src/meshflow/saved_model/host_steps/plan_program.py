"""Loaded functions of strings and tables: host calls and programs that run in sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import DataLossError
from meshflow.core.tracing.trace import fill_slots
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, as_dtype
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.unknown_sizes import is_unknown
from meshflow.environment.types import Json, PyTree
from meshflow.lookup.table import Table
from meshflow.ops.deferred_host_values import DeferredValue
from meshflow.saved_model.host_steps.host_calls import HOST_CALLS, PlanValue
from meshflow.saved_model.manifest.assets import Asset
from meshflow.saved_model.manifest.json_structures import pack_structure, unpack_structure
from meshflow.saved_model.programs.restored_functions import LazyProgram, StableHLOProgram


def pack_argument(value: PyTree, get_index: Callable[[Any], int]) -> Json:
    """Convert an argument of a host call to JSON.

    Args:
      value: `PlanValue`s, arrays, tables, assets, slices and plain values, nested in lists and
        dictionaries.
      get_index: Function that returns the index of a table or asset among the saved objects.

    Raises:
      UnsavableError: If the argument contains another value.
    """
    if isinstance(value, PlanValue):
        return {"value": value.index}
    if isinstance(value, (Asset, Table)):
        return {"object": get_index(value)}
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        is_text = array.dtype.kind in "OSU"
        flat = [_to_latin1(v) for v in array.reshape(-1)] if is_text else array.reshape(-1).tolist()
        return {
            "array": flat,
            "shape": list(array.shape),
            "kind": as_dtype("string" if is_text else array.dtype).name,
        }
    if isinstance(value, bytes):
        return pack_argument(np.array(value, object), get_index)
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if value is Ellipsis:
        return {"slice": None}
    if isinstance(value, (list, tuple)):
        return {"list": [pack_argument(v, get_index) for v in value]}
    if isinstance(value, DType):
        return pack_structure(value)
    if isinstance(value, Mapping):
        return {"entries": {k: pack_argument(v, get_index) for k, v in value.items()}}
    return pack_structure(value)


def _to_latin1(value: str | bytes) -> str:
    return (value.encode() if isinstance(value, str) else value).decode("latin-1")


def unpack_argument(data: Json, objects: Sequence[Any]) -> PyTree:
    """Convert JSON of `pack_argument` back to an argument.

    Args:
      data: Result of `pack_argument`.
      objects: Objects by index.
    """
    if not isinstance(data, dict):
        return unpack_structure(data)
    if "value" in data:
        return PlanValue(data["value"])
    if "object" in data:
        return objects[data["object"]]
    if "array" in data:
        dtype = as_dtype(data["kind"])
        if dtype.name != "string":
            return np.array(data["array"], dtype.as_numpy_dtype).reshape(data["shape"])
        texts = np.empty(len(data["array"]), object)
        texts[:] = [v.encode("latin-1") for v in data["array"]]
        return texts.reshape(data["shape"])
    if "slice" in data:
        return Ellipsis if data["slice"] is None else slice(*data["slice"])
    if "list" in data:
        return [unpack_argument(v, objects) for v in data["list"]]
    if "entries" in data:
        return {k: unpack_argument(v, objects) for k, v in data["entries"].items()}
    return unpack_structure(data)


class _PlanStep(Protocol):
    """Interface of a step of a plan."""

    @property
    def captures(self) -> list[Any]:
        """Return the captured variables and constants."""

    def list_values(self) -> tuple[list[int], list[int]]:
        """Return the indices of the values that the step takes and computes."""

    def run(self, values: dict[int, Any]) -> None:
        """Run the step and add its results to the values by index."""


# Number of captured elements up to which the steps of a plan are traced together.
_MAX_TRACED_WEIGHTS = 1 << 20

# Host calls that return sizes, or results with sizes, that depend on values.
_CALLS_WITH_UNKNOWN_SIZES = frozenset(
    [
        "non_max_suppression",
        "sizes",
        "true_places",
        "unique_counts",
        "unique_places",
        "unique_values",
    ]
)


class RestoredHostStep:
    """Host call of a loaded function.

    Args:
      name: Name of the function in `HOST_CALLS`.
      first: Its first argument.
      more: Its other arguments by name.
      result: Index of the value that it computes.
    """

    def __init__(self, name: str, first: PyTree, more: Mapping[str, Any], result: int) -> None:
        if name not in HOST_CALLS:
            raise DataLossError(
                f"a saved function calls {name!r}, which is not a known host function."
            )
        table = first if name == "size" else more.get("table")
        if (name == "size" or "table" in more) and not isinstance(table, Table):
            raise DataLossError(f"a saved function calls {name!r} of {table!r}, which is no table.")
        if isinstance(more.get("key"), list):
            more = {**more, "key": tuple(more["key"])}
        self._name, self._first, self._more, self._result = name, first, more, result
        # Functions that return the arguments from the values of the plan.
        self._read_first = self._make_reader(first)
        self._readers = {key: self._make_reader(value) for key, value in more.items()}
        self.captures: list[Any] = []

    @property
    def is_assertion(self) -> bool:
        """Check whether the step is an assertion, which traces may contain."""
        return self._name == "check_assertion"

    @property
    def has_unknown_sizes(self) -> bool:
        """Check whether sizes of the result depend on values."""
        return self._name in _CALLS_WITH_UNKNOWN_SIZES

    def list_values(self) -> tuple[list[int], list[int]]:
        """Return the indices of the values that the step takes and computes."""
        leaves = nest.flatten((self._first, dict(self._more)))
        return [v.index for v in leaves if isinstance(v, PlanValue)], [self._result]

    def run(self, values: dict[int, Any]) -> None:
        """Call the function."""
        more = {key: read(values) for key, read in self._readers.items()}
        result = HOST_CALLS[self._name].function(self._read_first(values), **more)
        values[self._result] = (
            result if isinstance(result, DeferredValue) else convert_to_tensor(result)
        )

    def _make_reader(self, argument: PyTree) -> Callable[[Mapping[int, Any]], Any]:
        if isinstance(argument, PlanValue):
            index = argument.index
            return lambda values: self._read_value(values[index])
        if isinstance(argument, (list, tuple)):
            readers, kind = [self._make_reader(item) for item in argument], type(argument)
            return lambda values: kind([read(values) for read in readers])
        if isinstance(argument, Mapping):
            items = {key: self._make_reader(item) for key, item in argument.items()}
            return lambda values: {key: read(values) for key, read in items.items()}
        if isinstance(argument, Asset):
            return lambda _: argument.asset_path
        constant = Tensor(argument) if isinstance(argument, np.ndarray) else argument
        return lambda _: constant

    def _read_value(self, value: PyTree) -> PyTree:
        if context.host_recorder is not None or self.is_assertion or is_unknown([value]):
            # If the function is being saved again, the value is a placeholder. In a trace, the sizes become symbols.
            return value
        if type(value) is Tensor and type(value.array) is np.ndarray:
            return value
        return Tensor(
            np.asarray(value.require_value(f"a saved function of strings ({self._name})"))
        )


class RestoredProgramStep:
    """Program of a loaded function that runs between host calls.

    Args:
      name: Name of the function.
      program: Program that returns a list.
      inputs: Indices of the values that it takes.
      outputs: Indices of the values that it computes.
    """

    def __init__(
        self, name: str, program: StableHLOProgram, inputs: Sequence[int], outputs: Sequence[int]
    ) -> None:
        self._program, self._inputs, self._outputs = program, inputs, outputs
        self._run = LazyProgram(name, program)

    @property
    def captures(self) -> list[Any]:
        """Return the captured variables and constants."""
        return self._program.captures

    def list_values(self) -> tuple[list[int], list[int]]:
        """Return the indices of the values that the step takes and computes."""
        return list(self._inputs), list(self._outputs)

    def run(self, values: dict[int, Any]) -> None:
        """Run the program."""
        results = self._run(*[values[n] for n in self._inputs])
        values.update(zip(self._outputs, results, strict=True))


def check_values(
    num_arguments: int,
    steps: Iterable[tuple[Sequence[int], Sequence[int]]],
    results: Sequence[int],
) -> None:
    """Check that each step of a plan takes values that an earlier step computes.

    Args:
      num_arguments: Number of values that exist at first.
      steps: Indices of the values that each step takes and computes.
      results: Indices of the values that the plan returns.

    Raises:
      ValueError: If the plan of a file is damaged.
    """
    computed = set(range(num_arguments))
    for inputs, outputs in steps:
        if not computed.issuperset(inputs):
            raise ValueError(f"a step of a plan takes the values {inputs} of {sorted(computed)}")
        computed.update(outputs)
    if not computed.issuperset(results):
        raise ValueError(f"a plan returns the values {results} of {sorted(computed)}")


def _drop_unused(parts: Sequence[_PlanStep], results: Sequence[int]) -> list[_PlanStep]:
    """Return the steps without computations of sizes and places that no other step needs, such as those of `tf.unique`."""
    used, kept = set(results), []
    for part in reversed(parts):
        inputs, outputs = part.list_values()
        is_pure = isinstance(part, RestoredHostStep) and part.has_unknown_sizes
        if not is_pure or used.intersection(outputs):
            kept.append(part)
            used.update(inputs)
    return kept[::-1]


class PlanProgram:
    """Program of a saved function of strings and tables.

    Args:
      parts: Steps in their order.
      results: Indices of the values that it returns.
      structure: Nested result with `TensorSlot`s.
      specs: Specs of the results.

    Attributes:
      has_unknown_sizes: Whether sizes of the results may depend on values.
      runs_on_host: Whether the steps run one by one: host calls that traces do not contain, or large programs.
    """

    digest = None

    def __init__(
        self,
        parts: Sequence[_PlanStep],
        results: Sequence[int],
        structure: PyTree,
        specs: Sequence[TensorSpec],
    ) -> None:
        self._parts, self._results, self._structure = (
            _drop_unused(parts, results),
            results,
            structure,
        )
        self.out_specs = list(specs)
        host_steps = [part for part in self._parts if isinstance(part, RestoredHostStep)]
        # Traced together, programs with host calls between them run op by op. The parts of large models are worth
        # compiling instead.
        arrays = (c for c in self.captures if not isinstance(c, Table))
        num_weights = sum(c.shape.num_elements() or 0 for c in arrays)
        self.runs_on_host = num_weights > _MAX_TRACED_WEIGHTS or not all(
            s.is_assertion or s.has_unknown_sizes for s in host_steps
        )
        self.has_unknown_sizes = any(step.has_unknown_sizes for step in host_steps)

    @property
    def captures(self) -> list[Any]:
        """Return the captured variables and constants."""
        return list({id(c): c for part in self._parts for c in part.captures}.values())

    def check(self, num_arguments: int) -> None:
        """Check that each step takes values that an earlier step computes.

        Args:
          num_arguments: Number of tensors that the program takes.

        Raises:
          ValueError: If the plan of a file is damaged.
        """
        check_values(num_arguments, [p.list_values() for p in self._parts], self._results)

    def call(self, tensors: Sequence[Tensor]) -> PyTree:
        """Run the steps. Strings must be concrete, not traced."""
        values: dict[int, Any] = dict(enumerate(tensors))
        for part in self._parts:
            part.run(values)
        return fill_slots(self._structure, [values[n] for n in self._results])
