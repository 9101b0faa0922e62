"""Recorder that separates a function of strings and tables into host calls and programs.

The function is traced once. A call that XLA does not support is recorded as a host call. Its result
is represented by a
`_StringPlaceholder` or, for numbers, by a new input of the program. Numbers that such a call takes
become results of the
program. A call may take results of the program that depend on another call; the program is then
partitioned: the first part runs,
then the host call, then the next part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.tracing.trace import bind_capture
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype, string
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.symbolic_sizes import has_symbolic_size, make_sizes_tensor
from meshflow.core.values.tensor import Tensor, read_tensor
from meshflow.environment.jax_internals import list_dimensions
from meshflow.environment.types import Array, PyTree
from meshflow.io.features import FixedLenFeature
from meshflow.lookup.mutable_tables import MutableHashTable
from meshflow.lookup.table import Table
from meshflow.ops import debugging, math
from meshflow.ops.deferred_host_values import DeferredValue, HostCallRecording, UnrecordableError
from meshflow.ops.files import to_host_strings
from meshflow.saved_model.host_steps.host_calls import HOST_CALLS, PlanValue
from meshflow.saved_model.host_steps.partitioning import (
    HostRecording,
    HostResult,
    partition_function,
)
from meshflow.saved_model.host_steps.plan import HostStep, RecordedFunction
from meshflow.saved_model.manifest.assets import AssetFile
from meshflow.saved_model.manifest.composite_values import ComponentFunction
from meshflow.saved_model.programs.stablehlo import (
    StringArgument,
    trace_for_export,
)


class _StringPlaceholder(DeferredValue):
    """Placeholder for strings."""

    _recording: _HostCallRecorder

    @property
    def index(self) -> int:
        """Return the index of the value."""
        return int(self.source)

    def __getitem__(self, key: Any) -> Tensor | _StringPlaceholder:
        return self._recording.record("item", self, {"key": key})

    def __add__(self, other: Any) -> Tensor | _StringPlaceholder:
        return self._recording.record("join", [self, other], {"separator": ""})

    def __radd__(self, other: Any) -> Tensor | _StringPlaceholder:
        return self._recording.record("join", [other, self], {"separator": ""})

    def __eq__(self, other: object) -> Any:
        return self._recording.record("equal", self, {"y": other})

    def __ne__(self, other: object) -> Any:
        return self._recording.record("not_equal", self, {"y": other})

    __hash__ = object.__hash__


# Names in `HOST_CALLS`, and in files, by the names of their functions. A public function may call an
# op with the same name after an underscore.
_NAMES = {call.function.__name__.lstrip("_"): name for name, call in HOST_CALLS.items()}
_NAMES["select"] = "where"


class _HostCallRecorder(HostCallRecording):
    """Recorder of host calls."""

    inlines = True

    def __init__(self, count: int) -> None:
        super().__init__()
        self.steps: list[HostStep] = []
        self.count = count
        # Indices and tensors of the values that the program computes and host calls take.
        self.demands: list[tuple[int, Tensor]] = []
        self.value_indices: dict[int, int] = {}
        # The tensors are kept alive because their ids are keys of `value_indices`.
        self.kept_tensors: list[Tensor] = []
        # Symbols of sizes of arguments, and of sizes that host calls return.
        self.size_names: set[str] = set()

    def should_record(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Check whether a call takes strings together with a traced value, or a mutable table."""
        leaves = nest.flatten((list(args), kwargs))
        if any(isinstance(v, (DeferredValue, MutableHashTable)) for v in leaves):
            return True
        # A string that is an argument itself is a setting. In a list it is an element of a tensor.
        settings = [v for v in (*args, *kwargs.values()) if isinstance(v, (str, bytes))]
        texts = sum(map(_is_text, leaves)) > len(settings) or any(
            isinstance(v, Table) and string in (v.key_dtype, v.value_dtype) for v in leaves
        )
        return texts and any(map(_is_traced, leaves))

    def should_record_values(self, values: Iterable[Any]) -> bool:
        """Check whether one of the values is known only when the function runs."""
        return any(
            isinstance(v, DeferredValue) or _is_traced(v) for v in nest.flatten(list(values))
        )

    def should_record_number(self, value: Any) -> bool:
        """Check whether a call that formats numbers as strings takes a traced number."""
        return self.should_record((value,), {}) or _is_traced(value)

    def call(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        spec: PyTree = None,
    ) -> Tensor | _StringPlaceholder:
        """Record a call."""
        name = function.__name__.lstrip("_")
        name = _NAMES.get(name, name)
        if name == "add":
            values = [*args[:2], *(kwargs[k] for k in ("x", "y") if k in kwargs)]
            return self.record("join", values, {"separator": ""})
        if name not in HOST_CALLS:
            raise UnrecordableError(f"strings in {getattr(function, '__module__', '')}.{name}")
        first, more = HOST_CALLS[name].bind_arguments(function, args, kwargs)
        return self.record(name, first, more)

    def call_on_text(
        self,
        function: Callable[..., Any],
        text: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        dtype: DTypeLike,
    ) -> Tensor | _StringPlaceholder:
        """Record a call of a function of strings."""
        return self.call(function, (text, *args), kwargs)

    def parse(self, text: Any, batch: Any, spec: PyTree) -> NoReturn:
        """Raise an error: saved functions cannot parse examples of this form."""
        raise UnrecordableError("strings that are parsed")

    def parse_examples(
        self, texts: Any, features: Mapping[str, Any], batch: Any, specs: PyTree
    ) -> dict[str, Tensor | _StringPlaceholder]:
        """Record a call for each feature."""
        values = {}
        for key, feature in features.items():
            if not isinstance(feature, FixedLenFeature):
                raise UnrecordableError(
                    f"examples parsed for a feature of variable length ({key!r})"
                )
            default = feature.default_value
            dtype = as_dtype(feature.dtype)
            if default is not None and dtype is string:
                default = to_host_strings(default, f"the default of {key!r}")
            elif default is not None:
                default = np.asarray(default, dtype.as_numpy_dtype)
            more = {
                "feature": key,
                "shape": TensorShape(feature.shape).as_list(),
                "dtype": dtype,
                "default": default,
            }
            values[key] = self.record("feature", texts, more)
        return values

    def look_up(self, table: Table, text: Any) -> Tensor | _StringPlaceholder:
        """Record a lookup."""
        return self.record("lookup", text, {"table": table, "default": None})

    def use_table(
        self, name: str, keys: Any, table: Table, **more: Any
    ) -> Tensor | _StringPlaceholder:
        """Record an operation on a mutable table."""
        return self.record(name, keys, {"table": table, **more} if keys is not table else {})

    def record_sizes(self, value: Tensor, known: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Record a computation of sizes, and return them as symbols.

        Where the trace has an integer, or symbols of other values, an assertion compares these with the size.

        Args:
          value: The sizes, a traced scalar or vector.
          known: The sizes that are known, as for `make_sizes`; default none.
        """
        known = list(known or [None] * (value.array.shape[0] if value.ndim else 1))
        result = self.record("sizes", value, {"known": known})
        assert isinstance(result, Tensor)
        sizes = tuple(result.array.shape[:-1])
        message = "A saved function takes and computes tensors with equal sizes:"
        for axis, size in enumerate(sizes):
            names = list_dimensions(size)
            if not isinstance(known[axis], int) and self.size_names.issuperset(names):
                found = value[axis] if value.ndim else value
                expected = make_sizes_tensor(size, found.dtype.dtype)
                debugging.record_assertion(math.equal(found, expected), message, found, expected)
            self.size_names |= names
        return sizes

    def draw_key(self, seed: int | None, used: int) -> None:
        """Return None: the program draws random numbers."""

    def make_argument(self, spec: TensorSpec, number: int) -> DeferredValue:
        """Return the placeholder of a string argument."""
        return self._make_text(spec, number)

    def _make_text(self, spec: TensorSpec, index: int) -> _StringPlaceholder:
        text = _StringPlaceholder(self, spec, index)
        if has_symbolic_size(spec.shape):
            # A program cannot take strings, but it may need their sizes.
            self.record("shape", text, {})
        return text

    def record(self, name: str, first: Any, more: Mapping[str, Any]) -> Tensor | _StringPlaceholder:
        """Record a call of a function in `HOST_CALLS`.

        Returns:
          A `_StringPlaceholder`, or a tensor of the program.
        """
        self._check_top_level()
        examples = (
            nest.map_structure(_make_tensor_example, first),
            {
                k: nest.map_structure(
                    _make_tensor_example if k in _TENSOR_ARGUMENTS else _make_example, v
                )
                for k, v in more.items()
            },
        )
        try:
            spec = HOST_CALLS[name].infer_spec(*examples, getattr(first, "dtype", None))
        except UnrecordableError:
            raise
        except Exception as error:  # the arguments may not fit
            raise UnrecordableError(f"strings in {name} ({error})") from error
        step = HostStep(
            name,
            self._convert_argument(first),
            {k: self._convert_argument(v) for k, v in more.items()},
            self.count,
            spec,
        )
        self.count += 1
        self.steps.append(step)
        return self._make_result(step.result, spec)

    def _make_result(self, index: int, spec: TensorSpec) -> Tensor | _StringPlaceholder:
        if spec.dtype is string:
            return self._make_text(spec, index)
        scope: Any = context.trace
        capture = HostResult(index, tuple(spec.shape), spec.dtype.dtype)
        tensor = Tensor(bind_capture(len(scope.sources), capture.shape, capture.dtype))
        scope.sources.append(capture)
        self.value_indices[id(tensor)] = index
        self.kept_tensors.append(tensor)
        return tensor

    def _convert_argument(self, value: Any) -> Any:
        """Convert an argument of a call: values of the plan to `PlanValue`s, tensors to arrays."""
        if isinstance(value, (list, tuple)):
            return [self._convert_argument(v) for v in value]
        if isinstance(value, dict):
            return {k: self._convert_argument(v) for k, v in value.items()}
        if isinstance(value, _StringPlaceholder):
            return PlanValue(value.index)
        if not isinstance(value, Table):
            value = read_tensor(value)
        if is_symbolic_dim(value):
            value = jnp.asarray(value, np.int32)
        if isinstance(value, (jax.Array, jax.core.Tracer)):
            value = Tensor(value)
        if not isinstance(value, Tensor):
            return value
        if id(value) in self.value_indices:
            return PlanValue(self.value_indices[id(value)])
        if not isinstance(value.array, jax.core.Tracer):
            array = np.asarray(value.array)
            path = array.item() if array.dtype.hasobject and not array.ndim else None
            return path.asset if isinstance(path, AssetFile) else array
        self.demands.append((self.count, value))
        self.value_indices[id(value)] = self.count
        self.kept_tensors.append(value)
        self.count += 1
        return PlanValue(self.count - 1)

    def convert_result(self, value: Any) -> Tensor | PlanValue:
        """Convert a result of the function to a tensor of the program or a `PlanValue`."""
        if isinstance(value, _StringPlaceholder):
            return PlanValue(value.index)
        tensor = convert_to_tensor(value)
        if id(tensor) in self.value_indices:
            return PlanValue(self.value_indices[id(tensor)])
        if _is_text(tensor):
            # A constant string is a result of a host call.
            constant: Any = self.record("join", [tensor], {"separator": ""})
            return PlanValue(constant.index)
        return tensor


def _is_text(value: object) -> bool:
    if isinstance(value, (str, bytes)):
        return True
    array = value.array if isinstance(value, Tensor) else value
    return isinstance(array, np.ndarray) and array.dtype.kind in "OSU"


def _is_traced(value: object) -> bool:
    array = value.array if isinstance(value, Tensor) else value
    return isinstance(array, jax.core.Tracer)


# Arguments that may be strings and are tensors, not settings.
_TENSOR_ARGUMENTS = ("x", "y", "values")


def _make_tensor_example(value: Any) -> Array:
    return _make_example(np.array(value, object) if isinstance(value, (str, bytes)) else value)


def _make_example(value: Any) -> Any:
    """Return an array with the shape of an argument, with integers in place of strings."""
    if isinstance(value, DeferredValue):
        if value.spec.shape.rank is None:
            raise UnrecordableError("strings of unknown rank")
        return jnp.zeros(tuple(value.spec.shape), np.int32)
    if not isinstance(value, Table):
        value = read_tensor(value)
    if _is_text(value) and not isinstance(value, (str, bytes)):
        return jnp.zeros(np.shape(value.array if isinstance(value, Tensor) else value), np.int32)
    return value.array if isinstance(value, Tensor) else value


@contextlib.contextmanager
def _install_recorder(recorder: _HostCallRecorder) -> Iterator[None]:
    saved, context.host_recorder = context.host_recorder, recorder
    try:
        yield
    finally:
        context.host_recorder = saved


def record_function(
    name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> RecordedFunction:
    """Record a function as host calls and programs.

    Args:
      name: Name of the function, for errors.
      function: The function.
      args: Its arguments, with `TensorSpec`s for tensors.
      kwargs: Its keyword arguments, with `TensorSpec`s for tensors.

    Raises:
      UnimplementedError: If the function uses strings in another way. The message names the
        function.
    """
    state: dict[str, Any] = {}
    components = ComponentFunction(function, args, kwargs)

    def record(*positional: Any, **by_name: Any) -> list[Tensor]:
        flat, index = [], 0
        leaves = nest.flatten((positional, by_name))
        count = sum(isinstance(v, (Tensor, StringArgument)) for v in leaves)
        recorder = state["recorder"] = _HostCallRecorder(count)
        for leaf in leaves:
            if isinstance(leaf, StringArgument):
                flat.append(recorder.make_argument(leaf.spec, index))
            else:
                if isinstance(leaf, Tensor):
                    recorder.value_indices[id(leaf)] = index
                    recorder.size_names.update(*map(list_dimensions, leaf.array.shape))
                    recorder.kept_tensors.append(leaf)
                flat.append(leaf)
            index += isinstance(leaf, (Tensor, StringArgument))
        args, kwargs = nest.pack_sequence_as((positional, by_name), flat)
        with _install_recorder(recorder):
            results = components(*args, **kwargs)
            results = nest.map_structure(
                lambda r: recorder.convert_result(r) if is_tensor_result(r) else r, results
            )
        state["results"] = results
        tensors = [v for v in nest.flatten(results) if isinstance(v, Tensor)]
        return [*tensors, *(t for _, t in recorder.demands)]

    try:
        traced = trace_for_export(record, *components.arguments)
    except UnrecordableError as error:
        raise UnimplementedError(
            f"{name} has {error}, which is not among what can be saved of strings: {', '.join(sorted(HOST_CALLS))}."
        ) from error
    recorder = state["recorder"]
    recording = HostRecording(recorder.steps, recorder.count, recorder.demands)
    recorded = partition_function(traced, recording, state["results"], (args, kwargs))
    recorded.structure = components.join_slots(recorded.structure)
    return recorded


def is_tensor_result(value: object) -> bool:
    """Check whether a result of the function becomes a tensor or strings."""
    return isinstance(value, (Tensor, _StringPlaceholder, np.ndarray, np.generic)) or hasattr(
        value, "_as_tensor"
    )
