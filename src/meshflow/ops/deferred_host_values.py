"""Placeholders for values of a traced function that XLA programs cannot hold.

These are strings, and images with sizes that differ from element to element. While a map function
is traced, each such value is represented by a `DeferredValue`, and the functions that are applied
to it are recorded as a graph of `RecordedHostCall`s, which run on the host for each element. A result of
static shape, for example a resized image, becomes an input of the traced program, which then runs
on many elements at once.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

import jax
import jax.export
import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.context import context
from meshflow.core.tracing.trace import init_scope, trace_shapes
from meshflow.core.values import dtypes, nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree

F = TypeVar("F", bound=Callable[..., Any])
_Function: TypeAlias = Callable[..., Any]
_Args: TypeAlias = Sequence[Any]
_Kwargs: TypeAlias = Mapping[str, Any]
# The values of all elements of a group: stacked, or one array for each element.
Column: TypeAlias = "np.ndarray | list[np.ndarray]"
# A function that maps a vector of values of all elements to tensors or ragged tensors with a row for each value.
_BatchFunction: TypeAlias = Callable[[Tensor], PyTree]
# These sizes replace unknown ones while the specs of a call's results are inferred.
PROBE_SIZES = (7, 1021)
# Types of arguments that may contain values.
_NESTS = (list, tuple, dict)
# Treatments of strings by ops that compute each element by itself.
_ELEMENTWISE = ("compares", "joins")


class UnrecordableError(Exception):
    """Error for a traced function that needs a value which is only known for each element."""


class Argument(NamedTuple):
    """Source of a value: a leaf of the element.

    Attributes:
      leaf_index: Index of the leaf.
    """

    leaf_index: int


class KeyDraw(NamedTuple):
    """Source of a value: the key of a random op.

    Attributes:
      seed: Seed of the op, or None.
      num_counters: Number of counter values that the op uses.
      position: Number of keys that are drawn before.
    """

    seed: int | None
    num_counters: int
    position: int


class RecordedHostCall:
    """Recorded call of a function that runs on the host.

    Args:
      function: Function of tensors.
      args: Its arguments, including `DeferredValue`s and placeholders of inputs.
      kwargs: Its keyword arguments.
      operand: The only argument that differs from element to element, if `batch` is set and needs no other ones.
      batch: Maps the arrays of `operand` of a group of elements to a column for each result; without an operand, it maps
        lists with the arrays and constants among the arguments of each element. None if there is no such function.
    """

    def __init__(
        self,
        function: _Function,
        args: _Args,
        kwargs: _Kwargs,
        operand: DeferredValue | None = None,
        batch: Callable[[list[Any]], list[Column]] | None = None,
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.operand, self.batch = operand, batch


def _run_on_flat_values(function: _BatchFunction, arrays: list[np.ndarray]) -> list[Column]:
    """Call a function once with the values of all elements in a vector."""
    shapes = [a.shape for a in arrays]
    are_scalars = not any(shapes)
    if are_scalars:
        values = np.empty(len(arrays), arrays[0].dtype)
        values[:] = [a[()] for a in arrays]
    else:
        values = np.concatenate([a.reshape(-1) for a in arrays])
    columns: list[Column] = []
    for result in nest.flatten(function(Tensor(values))):
        if hasattr(result, "row_splits"):
            rows, ends = np.asarray(result.values.array), result.row_splits.numpy().tolist()
            columns.append([rows[i:j] for i, j in itertools.pairwise(ends)])
        elif are_scalars:
            columns.append(np.asarray(result.array))
        else:
            parts = np.split(np.asarray(result.array), np.cumsum([a.size for a in arrays])[:-1])
            columns.append([p.reshape(shape) for p, shape in zip(parts, shapes, strict=True)])
    return columns


def _get_items(key: object, arrays: list[np.ndarray]) -> list[Column]:
    """Return the items of the arrays of all elements."""
    return [[_get_array_item(array, key) for array in arrays]]


def _get_array_item(array: np.ndarray, key: object) -> np.ndarray:
    item = array[cast(Any, key)]
    if not isinstance(item, np.ndarray):
        item, value = np.empty((), array.dtype), item
        item[()] = value
    # A view of a small part would keep the complete array in memory.
    return item.copy() if 2 * item.nbytes < array.nbytes else item


class CallResult(NamedTuple):
    """Source of a value: the result of a call.

    Attributes:
      call: The call.
      leaf_index: Index of the leaf in its result.
    """

    call: RecordedHostCall
    leaf_index: int


_Source: TypeAlias = Argument | KeyDraw | CallResult


class DeferredValue:
    """Placeholder for a value that is only known for each element.

    Using the value itself raises an `UnrecordableError`.

    Args:
      recording: Recorder of the calls on it.
      spec: Spec of the value.
      source: `Argument` or `CallResult` that produces the value; subclasses may use an index.
    """

    def __init__(self, recording: HostCallRecording, spec: TensorSpec, source: Any) -> None:
        self._recording, self.spec, self.source = recording, spec, source

    @property
    def dtype(self) -> dtypes.DType:
        """Return the dtype."""
        return self.spec.dtype

    @property
    def shape(self) -> TensorShape:
        """Return the shape, with unknown sizes."""
        return self.spec.shape

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.spec.shape)

    def get_shape(self) -> TensorShape:
        """Return the shape, with unknown sizes."""
        return self.spec.shape

    def __getitem__(self, key: object) -> PyTree:
        return self._recording.get_item(self, key)

    def __repr__(self) -> str:
        raise UnrecordableError("its value as text")

    def __bool__(self) -> bool:
        raise UnrecordableError("its truth value")

    def __len__(self) -> int:
        raise UnrecordableError("its length")

    def __iter__(self) -> NoReturn:
        raise UnrecordableError("an iterator over its values")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise UnrecordableError("an array")

    def _as_tensor(self) -> Tensor:
        raise UnrecordableError("a tensor of unknown size or a string")


class FullSparseVector(SparseTensor):
    """A sparse vector of an element that stores all of its values in order, as features of variable length do.

    Args:
      values: The values.
    """

    def __init__(self, values: DeferredValue) -> None:
        self._values = values  # type: ignore[assignment]

    @property
    def indices(self) -> NoReturn:
        """Raise an UnrecordableError."""
        raise UnrecordableError("indices of a sparse vector")

    @property
    def shape(self) -> TensorShape:
        """Return the shape, of unknown size."""
        return self._values.shape

    @property
    def dense_shape(self) -> NoReturn:
        """Raise an UnrecordableError."""
        raise UnrecordableError("the shape of a sparse vector")


def _get_item(value: Any, key: object) -> Any:
    return value[key]


def _get_computed_item(value: Any, parts: list[Any]) -> Any:
    """Return an item of a tensor; the bounds of slices are lists, so that they may be replaced."""
    return value[_make_key(parts)]


def _make_key(parts: list[Any]) -> tuple[Any, ...]:
    return tuple([slice(*part) if type(part) is list else part for part in parts])


def _get_computed_items(parts: list[Any], rows: list[list[Any]]) -> list[Column]:
    """Return the items for lists with an array and the numbers of its key."""
    items = []
    for array, *numbers in rows:
        known = iter([n if n is None or n is Ellipsis else int(n) for n in numbers])
        key = [[next(known) for _ in p] if type(p) is list else next(known) for p in parts]
        items.append(_get_array_item(array, _make_key(key)))
    return [items]


class HostCallRecording:
    """Record of the host calls of a function while it is traced.

    Attributes:
      inputs: Tensors that the program captures for values from the host, with their sources.
      on_host: Whether functions of images were recorded, which no program should run for all sizes.
      sources: Sources of the placeholders of inputs in the trace, by id.
      inlines: Whether functions that the traced function calls become part of it.
      defers_numbers: Whether to record ops on numbers of known shape, too, which other calls may need.
    """

    inlines = False

    def __init__(self, defers_numbers: bool = False) -> None:
        self.defers_numbers = defers_numbers
        self.inputs: list[tuple[Tensor, _Source]] = []
        self.sources: dict[int, _Source] = {}
        self.on_host = False
        # The tensors are kept alive because their ids are keys of `sources`.
        self._input_tensors: list[Tensor] = []
        self._num_draws = 0

    def make_argument(self, spec: TensorSpec, index: int) -> DeferredValue:
        """Create the placeholder for a leaf of the element that no program can take."""
        return DeferredValue(self, spec, Argument(index))

    def should_record(self, args: _Args, kwargs: _Kwargs) -> bool:
        """Check whether a call has a `DeferredValue` among its arguments."""
        return any(map(_contains_deferred, args)) or (
            bool(kwargs) and any(map(_contains_deferred, kwargs.values()))
        )

    def should_record_values(self, values: Iterable[Any]) -> bool:
        """Check whether to record a call if its result size depends on these values."""
        return False

    def should_record_number(self, value: TensorLike) -> bool:
        """Check whether a call that formats numbers as strings has a `DeferredValue`."""
        return _contains_deferred(value)

    def call(
        self, function: _Function, args: _Args, kwargs: _Kwargs, spec: PyTree = None
    ) -> PyTree:
        """Record a call, and return its result with the given or inferred spec.

        The result contains tensors where shapes are static, and `DeferredValue`s otherwise.
        """
        if spec is None:
            spec = self._infer_spec(function, args, kwargs)
        op = getattr(function, "op", None)
        operands = [a for a in args if isinstance(a, DeferredValue)]
        if op is not None and op.strings in _ELEMENTWISE and len(operands) == 1 and not kwargs:
            others = [a for a in args if a is not operands[0]]
            if not any(map(is_runtime_value, others)) and not any(map(np.ndim, others)):
                batch = lambda t: function(*[t if a is operands[0] else a for a in args])
                run = functools.partial(_run_on_flat_values, batch)
                return self._record_call(
                    RecordedHostCall(function, args, {}, operands[0], run), spec
                )
        return self._record_call(RecordedHostCall(function, args, kwargs), spec)

    def get_item(self, value: DeferredValue, key: object) -> PyTree:
        """Record the indexing of a value."""
        keys = key if type(key) is tuple else (key,)
        is_constant = all(map(_is_constant_key, keys))
        if self.defers_numbers and value.shape.rank is not None and not is_constant:
            parts = [[k.start, k.stop, k.step] if isinstance(k, slice) else k for k in keys]
            flat = [n for part in parts for n in (part if type(part) is list else [part])]
            is_list = any(isinstance(k, (list, tuple)) for k in keys)
            if is_list or not all(_is_constant_key(n) or _is_deferred_integer(n) for n in flat):
                raise UnrecordableError("an index")
            spec = TensorSpec(_index_sizes(value.shape.as_list(), keys), value.dtype)
            batch = functools.partial(_get_computed_items, parts)
            call = RecordedHostCall(_get_computed_item, (value, parts), {}, None, batch)
            return self._record_call(call, spec)
        if value.shape.rank is None or not is_constant:
            return self.call(_get_item, (value, key), {})
        spec = TensorSpec(_index_sizes(value.shape.as_list(), keys), value.dtype)
        call = RecordedHostCall(
            _get_item, (value, key), {}, value, functools.partial(_get_items, key)
        )
        return self._record_call(call, spec)

    def parse(self, text: DeferredValue, batch: _BatchFunction, spec: PyTree) -> PyTree:
        """Record a call that parses a string scalar to tensors with a spec.

        Args:
          text: The string.
          batch: Maps a vector of strings to stacked tensors, or to ragged tensors.
          spec: Spec of the results for one string.
        """
        if text.spec.shape.rank != 0:
            raise UnrecordableError("to parse several strings")
        return self._record_batch(batch, text, batch, spec)

    def measure(
        self,
        function: _Function,
        value: DeferredValue,
        get_sizes: Callable[[np.ndarray], Any],
        spec: TensorSpec,
    ) -> PyTree:
        """Record a call that returns sizes of a value."""

        def batch(arrays: list[np.ndarray]) -> list[Column]:
            return [np.array([get_sizes(a) for a in arrays], spec.dtype.dtype)]

        call = RecordedHostCall(function, (value, spec.dtype), {}, value, batch)
        return self._record_call(call, spec)

    def _record_batch(
        self, function: _Function, operand: DeferredValue, batch: _BatchFunction, spec: PyTree
    ) -> PyTree:
        run = functools.partial(_run_on_flat_values, batch)
        return self._record_call(RecordedHostCall(function, (operand,), {}, operand, run), spec)

    def parse_examples(
        self,
        texts: DeferredValue,
        features: Mapping[str, Any],
        batch: _BatchFunction,
        specs: Callable[[], PyTree],
    ) -> PyTree:
        """Record a call that parses a serialized example; `specs` returns the specs for one."""
        return self.parse(texts, batch, specs())

    def call_on_text(
        self,
        function: _Function,
        text: DeferredValue,
        args: _Args,
        kwargs: _Kwargs,
        dtype: DTypeLike,
    ) -> PyTree:
        """Record a call of an elementwise function of strings, with results of a dtype."""
        if any(map(np.ndim, (*args, *kwargs.values()))):
            raise UnrecordableError("to broadcast a string")
        batch = lambda texts: function(texts, *args, **kwargs)
        return self._record_batch(batch, text, batch, TensorSpec(text.shape, dtype))

    def look_up(self, table: PyTree, keys: PyTree) -> PyTree:
        """Record the lookup of keys in a table that does not change."""
        if not isinstance(keys, DeferredValue) or keys.shape.rank is None:
            raise UnrecordableError("a key")
        spec = TensorSpec(keys.shape, table.value_dtype)
        return self._record_batch(table.lookup, keys, table.lookup, spec)

    def use_table(self, name: str, keys: TensorLike, table: Any, **more: Any) -> PyTree:
        """Raise an error: map functions cannot use mutable tables with deferred values."""
        raise UnrecordableError("a string")

    def draw_key(self, seed: int | None, used: int) -> Tensor | None:
        """Create an input for the key of a random op; None selects the usual key.

        Args:
          seed: Seed of the op.
          used: Number of counter values that the op uses.
        """
        self._check_top_level()
        draw = KeyDraw(seed, used, self._num_draws)
        self._num_draws += 1
        return self._add_input(TensorSpec([3], dtypes.int64), draw)

    def _check_top_level(self) -> None:
        if context.trace is None or context.trace.parent is not None:
            raise UnrecordableError("a host call in a loop or a branch")

    def _record_call(self, call: RecordedHostCall, spec: PyTree) -> PyTree:
        self._check_top_level()
        for value in nest.flatten((call.args, call.kwargs)):
            is_recorded = isinstance(value, DeferredValue) or id(value) in self.sources
            if not is_recorded and is_runtime_value(value):
                raise UnrecordableError("a result of the program")
        leaves = [
            self._add_input(leaf, CallResult(call, i))
            if is_valid_input(leaf) and not self.defers_numbers
            else DeferredValue(self, leaf, CallResult(call, i))
            for i, leaf in enumerate(nest.flatten(spec))
        ]
        return nest.pack_sequence_as(spec, leaves)

    def _add_input(self, spec: TensorSpec, source: _Source) -> Tensor:
        with init_scope():
            # A host array would be used as a constant.
            captured = Tensor(jax.device_put(np.zeros(spec.shape.as_list(), spec.dtype.dtype)))
        placeholder = Tensor(context.trace.lookup(captured))  # type: ignore[union-attr]
        self.inputs.append((captured, source))
        self.sources[id(placeholder)] = source
        self._input_tensors.append(placeholder)
        return placeholder

    def _infer_spec(self, function: _Function, args: _Args, kwargs: _Kwargs) -> PyTree:
        """Infer the spec of a call's result from two traces with different sizes."""
        op = getattr(function, "op", None)
        if op is not None and op.name == "reshape" and len(args) == 2:
            value, sizes = args
            if isinstance(value, DeferredValue) and _are_integers(sizes):
                return TensorSpec([None if n < 0 else n for n in sizes], value.dtype)
        has_strings = any(
            isinstance(v, DeferredValue) and v.dtype is dtypes.string
            for v in nest.flatten((args, kwargs))
        )
        treatment = None if op is None else op.strings
        if has_strings and function is not _get_item and treatment is None:
            raise UnrecordableError("a string")
        saved, context.host_recorder = context.host_recorder, None
        try:
            specs = [
                trace_shapes(function, *nest.map_structure(_make_placeholder(size), (args, kwargs)))
                for size in PROBE_SIZES
            ]
        except Exception as error:
            raise UnrecordableError(f"what {function.__name__} needs ({error})") from error
        finally:
            context.host_recorder = saved
        spec = nest.map_structure(_merge_specs, *specs)
        if not has_strings or treatment == "compares":
            return spec
        return nest.map_structure(lambda part: TensorSpec(part.shape, dtypes.string), spec)


def _are_integers(values: object) -> bool:
    return isinstance(values, (list, tuple)) and all(type(n) is int for n in values)


def _is_deferred_integer(part: object) -> bool:
    return isinstance(part, DeferredValue) and part.shape.rank == 0 and part.dtype.is_integer


def _is_constant_key(key: object) -> bool:
    if isinstance(key, slice):
        return key.step != 0 and all(map(_is_constant_key, (key.start, key.stop, key.step)))
    return type(key) in (int, type(None), type(Ellipsis))


def _index_sizes(sizes: Sequence[int | None], keys: tuple[Any, ...]) -> list[int | None]:
    """Return the sizes of an array at constant keys; a part of an unknown size is unknown.

    Raises:
      UnrecordableError: If a key is outside of the array.
    """
    num_axes = sum(key is not None and key is not Ellipsis for key in keys)
    ellipses = [i for i, key in enumerate(keys) if key is Ellipsis]
    if num_axes > len(sizes) or len(ellipses) > 1:
        raise UnrecordableError("an index for more dimensions")
    start = ellipses[0] if ellipses else len(keys)
    full = (slice(None),) * (len(sizes) - num_axes)
    rest = iter(sizes)
    result: list[int | None] = []
    for key in (*keys[:start], *full, *keys[start + 1 :]):
        if key is None:
            result.append(1)
            continue
        size = next(rest)
        if isinstance(key, slice):
            is_known = size is not None and _is_constant_key(key)
            result.append(len(range(*key.indices(size or 0))) if is_known else None)
        elif isinstance(key, DeferredValue):
            continue
        elif size is not None and not -size <= key < size:
            raise UnrecordableError(f"index {key} of {size} elements")
    return result


def is_valid_input(spec: TensorSpec) -> bool:
    """Check whether a program can take values of a spec."""
    return spec.dtype is not dtypes.string and spec.shape.is_fully_defined()


def is_runtime_value(value: object) -> bool:
    """Check whether a value is only known for each element."""
    symbolic = isinstance(value, Tensor) and isinstance(value.array, jax.core.Tracer)
    return symbolic or _contains_deferred(value)


def _contains_deferred(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_contains_deferred, value))
    return isinstance(value, DeferredValue)


def _make_placeholder(size: int) -> Callable[[Any], Any]:
    """Return a function that replaces arguments for shape inference, with integers for strings."""

    def replace_leaf(value: Any) -> Any:
        if isinstance(value, (str, bytes)):
            return 0
        if isinstance(value, np.ndarray) and value.dtype.kind in "USO":
            return np.zeros(value.shape, np.int32)
        if not isinstance(value, (DeferredValue, Tensor)):
            return value
        if value.shape.rank is None:
            raise UnrecordableError("a rank")
        sizes = [size if n is None else n for n in value.shape.as_list()]
        return TensorSpec(sizes, dtypes.int32 if value.dtype is dtypes.string else value.dtype)

    return replace_leaf


def _merge_specs(first: object, second: Any) -> TensorSpec:
    if not isinstance(first, TensorSpec) or first.shape.rank != second.shape.rank:
        raise UnrecordableError("a result that is not a tensor of known rank")
    sizes = zip(first.shape.as_list(), second.shape.as_list(), strict=True)
    # A size is also unknown if it is 0 in both traces, because a slice of a probe size may leave
    # elements of the real size.
    are_known = lambda a, b: a == b and a and not jax.export.is_symbolic_dim(a)
    return TensorSpec([a if are_known(a, b) else None for a, b in sizes], first.dtype)


def find_recording(*values: Any) -> HostCallRecording | None:
    """Return the active recording if it records calls with result sizes that depend on these values.

    Only recordings of functions that are being saved do.

    Args:
      *values: Values that determine the size of a result.
    """
    recording = context.host_recorder
    return recording if recording is not None and recording.should_record_values(values) else None


def defer_host_values(spec: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """Decorate a function so that it accepts values that are only known for each element.

    Args:
      spec: Function that maps its arguments to the spec of its result; by default it is inferred by
        tracing.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def public(*args: Any, **kwargs: Any) -> Any:
            recording = context.host_recorder
            if recording is not None and recording.should_record(args, kwargs):
                recording.on_host = True
                result_spec = None if spec is None else spec(*args, **kwargs)
                return recording.call(public, args, kwargs, result_spec)
            return function(*args, **kwargs)

        return cast(F, public)

    return decorate


def defer_numbers(function: F) -> F:
    """Decorate a function of numbers that is no single op, so that recordings of all ops on numbers contain it.

    Args:
      function: The function; it may have sizes among its arguments.
    """

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        recording = context.host_recorder
        if recording is None or not (
            recording.defers_numbers and recording.should_record(args, kwargs)
        ):
            return function(*args, **kwargs)
        return recording.call(public, args, kwargs)

    public.is_numeric = True  # type: ignore[attr-defined]
    return cast(F, public)


def defer_sizes(get_sizes: Callable[[Any], Any]) -> Callable[[F], F]:
    """Decorate a function of a tensor that returns sizes, so that it accepts values of each element.

    Args:
      get_sizes: Returns the sizes of a host array; the sizes of its result have a known shape.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def public(
            input: PyTree, out_type: DTypeLike = dtypes.int32, name: str | None = None
        ) -> PyTree:
            recording = context.host_recorder
            if recording is None or recording.inlines or not isinstance(input, DeferredValue):
                return function(input, out_type, name=name)
            dtype = dtypes.as_dtype(out_type)
            example = np.asarray(get_sizes(np.broadcast_to(np.int8(0), (0,) * input.ndim)))
            return recording.measure(function, input, get_sizes, TensorSpec(example.shape, dtype))

        return cast(F, public)

    return decorate


def defer_strings(
    dtype: DTypeLike | Callable[..., DTypeLike], takes_numbers: bool = False
) -> Callable[[F], F]:
    """Decorate an elementwise function of strings so that it accepts strings of each element.

    Args:
      dtype: The dtype of its result, which has the shape of its first argument, the strings; or a function of its
        arguments that returns this dtype.
      takes_numbers: Whether functions that are being saved may compute other arguments, such as positions.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def public(*args: Any, **kwargs: Any) -> Any:
            recording = context.host_recorder
            if recording is None or not recording.should_record(args, kwargs):
                return function(*args, **kwargs)
            if takes_numbers and recording.inlines:
                return recording.call(public, args, kwargs)
            text, *rest = args or (None,)
            if not isinstance(text, DeferredValue) or any(
                map(is_runtime_value, (*rest, *kwargs.values()))
            ):
                raise UnrecordableError("a string")
            result = dtype(*args, **kwargs) if inspect.isfunction(dtype) else dtype
            return recording.call_on_text(function, text, rest, kwargs, result)

        return cast(F, public)

    return decorate


def is_item(call: RecordedHostCall) -> bool:
    """Check whether a call indexes a value."""
    return call.function is _get_item


def call_function(
    call: RecordedHostCall, get_tensor: Callable[[DeferredValue | Tensor], Any]
) -> list[Tensor]:
    """Call the function of a host call, and return the leaves of its result.

    Args:
      call: The call.
      get_tensor: Returns the tensor for a `DeferredValue` or the placeholder of an input; None for
        other values.
    """

    def replace_leaf(value: Any) -> Any:
        tensor = get_tensor(value) if isinstance(value, (DeferredValue, Tensor)) else None
        return value if tensor is None else tensor

    args: Any = [
        nest.map_structure(replace_leaf, a) if type(a) in _NESTS else replace_leaf(a)
        for a in call.args
    ]
    kwargs = nest.map_structure(replace_leaf, call.kwargs) if call.kwargs else {}
    result = call.function(*args, **kwargs)
    leaves = [result] if type(result) is Tensor else nest.flatten(result)
    return [t if type(t) is Tensor else convert_to_tensor(t) for t in leaves]
