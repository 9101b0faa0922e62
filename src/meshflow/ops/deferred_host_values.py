"""Placeholders for values of a traced function that XLA programs cannot hold.

These are strings, and images with sizes that differ from element to element. While a map function
is traced, each such value is represented by a `DeferredValue`, and the functions that are applied
to it are recorded as a graph of `HostCall`s, which run on the host for each element. A result of
static shape, for example a resized image, becomes an input of the traced program, which then runs
on many elements at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

import jax
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.tracing.trace import init_scope, trace_shapes
from meshflow.core.values import dtypes, nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree

__all__ = [
    "Argument",
    "Call",
    "Draw",
    "Part",
    "Pending",
    "Recording",
    "Unrecordable",
    "saving",
    "waits",
    "waits_for_text",
]

F = TypeVar("F", bound=Callable[..., Any])
_Function: TypeAlias = Callable[..., Any]
_Args: TypeAlias = Sequence[Any]
_Kwargs: TypeAlias = Mapping[str, Any]
# A function that maps a vector of strings, one per element, to stacked results.
_BatchFunction: TypeAlias = Callable[[Tensor], PyTree]
# These sizes replace unknown ones while the specs of a call's results are inferred.
STAND_INS = (7, 1021)


class Unrecordable(Exception):
    """Error for a traced function that needs a value which is only known for each element."""


class Argument(NamedTuple):
    """Source of a value: a leaf of the element.

    Attributes:
      leaf_index: Index of the leaf.
    """

    number: int


class Draw(NamedTuple):
    """Source of a value: the key of a random op.

    Attributes:
      seed: Seed of the op, or None.
      num_counters: Number of counter values that the op uses.
      position: Number of keys that are drawn before.
    """

    seed: int | None
    used: int
    position: int


class Call:
    """Recorded call of a function that runs on the host.

    Args:
      function: Function of tensors.
      args: Its arguments, including `DeferredValue`s and placeholders of inputs.
      kwargs: Its keyword arguments.
      batch: The function for strings of all elements at once; None if there is none.
    """

    def __init__(
        self, function: _Function, args: _Args, kwargs: _Kwargs, batch: _BatchFunction | None = None
    ) -> None:
        self.function, self.args, self.kwargs, self.batch = function, args, kwargs, batch


class Part(NamedTuple):
    """Source of a value: the result of a call.

    Attributes:
      call: The call.
      leaf_index: Index of the leaf in its result.
    """

    call: Call
    number: int


_Source: TypeAlias = Argument | Draw | Part


class Pending:
    """Placeholder for a value that is only known for each element.

    Using the value itself raises an `UnrecordableError`.

    Args:
      recording: Recorder of the calls on it.
      spec: Spec of the value.
      source: `Argument` or `CallResult` that produces the value; subclasses may use an index.
    """

    def __init__(self, recording: Recording, spec: TensorSpec, source: Any) -> None:
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
        return self._recording.call(_item, (self, key), {})

    def __repr__(self) -> str:
        raise Unrecordable("its value as text")

    def __bool__(self) -> bool:
        raise Unrecordable("its truth value")

    def __len__(self) -> int:
        raise Unrecordable("its length")

    def __iter__(self) -> NoReturn:
        raise Unrecordable("an iterator over its values")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise Unrecordable("an array")

    def _as_tensor(self) -> Tensor:
        raise Unrecordable("a tensor of unknown size or a string")


def _item(value: Any, key: object) -> Any:
    return value[key]


class Recording:
    """Record of the host calls of a function while it is traced.

    Attributes:
      inputs: Tensors that the program captures for values from the host, with their sources.
      num_calls: Number of recorded calls.
      on_host: Whether functions of images were recorded, which no program should run for all sizes.
      sources: Sources of the placeholders of inputs in the trace, by id.
      inlines: Whether functions that the traced function calls become part of it.
    """

    inlines = False

    def __init__(self) -> None:
        self.inputs: list[tuple[Tensor, _Source]] = []
        self.sources: dict[int, _Source] = {}
        self.calls = 0
        self.on_host = False
        # The tensors are kept alive because their ids are keys of `sources`.
        self._kept: list[Tensor] = []
        self._draws = 0

    def argument(self, spec: TensorSpec, index: int) -> Pending:
        """Create the placeholder for a leaf of the element that no program can take."""
        return Pending(self, spec, Argument(index))

    def takes(self, args: _Args, kwargs: _Kwargs) -> bool:
        """Check whether a call has a `DeferredValue` among its arguments."""
        return any(map(_holds, args)) or (bool(kwargs) and any(map(_holds, kwargs.values())))

    def takes_values(self, values: Iterable[Any]) -> bool:
        """Check whether to record a call if its result size depends on these values."""
        return False

    def takes_number(self, value: TensorLike) -> bool:
        """Check whether a call that formats numbers as strings has a `DeferredValue`."""
        return _holds(value)

    def call(
        self, function: _Function, args: _Args, kwargs: _Kwargs, spec: PyTree = None
    ) -> PyTree:
        """Record a call, and return its result with the given or inferred spec.

        The result contains tensors where shapes are static, and `DeferredValue`s otherwise.
        """
        if spec is None:
            spec = self._inferred(function, args, kwargs)
        return self._results(Call(function, args, kwargs), spec)

    def parsed(self, text: Pending, batch: _BatchFunction, spec: PyTree) -> PyTree:
        """Record a call that parses a string scalar to tensors with a spec."""
        if text.spec.shape.rank != 0:
            raise Unrecordable("to parse several strings")
        return self._results(Call(batch, (text,), {}, batch), spec)

    def examples(
        self,
        texts: Pending,
        features: Mapping[str, Any],
        batch: _BatchFunction,
        specs: Callable[[], PyTree],
    ) -> PyTree:
        """Record a call that parses a serialized example; `specs` returns the specs for one."""
        return self.parsed(texts, batch, specs())

    def text(
        self, function: _Function, text: Pending, args: _Args, kwargs: _Kwargs, dtype: DTypeLike
    ) -> PyTree:
        """Record a call of an elementwise function of strings, with results of a dtype."""
        batch = lambda texts: function(texts, *args, **kwargs)
        return self.parsed(text, batch, TensorSpec([], dtype))

    def looked_up(self, table: Any, text: Pending) -> PyTree:
        """Raise an error: strings in map functions are looked up for each element by itself."""
        raise Unrecordable("a string")

    def of_table(self, name: str, keys: TensorLike, table: Any, **more: Any) -> PyTree:
        """Raise an error: map functions cannot use mutable tables with deferred values."""
        raise Unrecordable("a string")

    def key(self, seed: int | None, used: int) -> Tensor | None:
        """Create an input for the key of a random op; None selects the usual key.

        Args:
          seed: Seed of the op.
          used: Number of counter values that the op uses.
        """
        self._check_place()
        draw = Draw(seed, used, self._draws)
        self._draws += 1
        return self._input(TensorSpec([3], dtypes.int64), draw)

    def _check_place(self) -> None:
        if context.trace is None or context.trace.parent is not None:
            raise Unrecordable("a host call in a loop or a branch")

    def _results(self, call: Call, spec: PyTree) -> PyTree:
        self._check_place()
        self.calls += 1
        for value in nest.flatten((call.args, call.kwargs)):
            is_recorded = isinstance(value, Pending) or id(value) in self.sources
            if not is_recorded and is_unknown(value):
                raise Unrecordable("a result of the program")
        leaves = [
            self._input(leaf, Part(call, i))
            if is_known(leaf)
            else Pending(self, leaf, Part(call, i))
            for i, leaf in enumerate(nest.flatten(spec))
        ]
        return nest.pack_sequence_as(spec, leaves)

    def _input(self, spec: TensorSpec, source: _Source) -> Tensor:
        with init_scope():
            # A host array would be used as a constant.
            captured = Tensor(jax.numpy.zeros(spec.shape.as_list(), spec.dtype.dtype))
        placeholder = Tensor(context.trace.value_of(captured))  # type: ignore[union-attr]
        self.inputs.append((captured, source))
        self.sources[id(placeholder)] = source
        self._kept.append(placeholder)
        return placeholder

    def _inferred(self, function: _Function, args: _Args, kwargs: _Kwargs) -> PyTree:
        """Infer the spec of a call's result from two traces with different sizes."""
        op = getattr(function, "op", None)
        has_strings = any(
            isinstance(v, Pending) and v.dtype is dtypes.string for v in (*args, *kwargs.values())
        )
        is_comparison = op is not None and op.strings == "compares"
        if has_strings and function is not _item and not is_comparison:
            raise Unrecordable("a string")
        saved, context.recording = context.recording, None
        try:
            specs = [
                trace_shapes(function, *nest.map_structure(_stand_in(size), (args, kwargs)))
                for size in STAND_INS
            ]
        except Exception as error:
            raise Unrecordable(f"what {function.__name__} needs ({error})") from error
        finally:
            context.recording = saved
        spec = nest.map_structure(_merged, *specs)
        return TensorSpec(spec.shape, dtypes.string) if has_strings and function is _item else spec


def is_known(spec: TensorSpec) -> bool:
    """Check whether a program can take values of a spec."""
    return spec.dtype is not dtypes.string and spec.shape.is_fully_defined()


def is_unknown(value: object) -> bool:
    """Check whether a value is only known for each element."""
    symbolic = isinstance(value, Tensor) and isinstance(value.array, jax.core.Tracer)
    return symbolic or _holds(value)


def _holds(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds, value))
    return isinstance(value, Pending)


def _stand_in(size: int) -> Callable[[Any], Any]:
    """Return a function that replaces arguments for shape inference, with integers for strings."""

    def replace_leaf(value: Any) -> Any:
        if isinstance(value, (str, bytes)):
            return 0
        if isinstance(value, np.ndarray) and value.dtype.kind in "USO":
            return np.zeros(value.shape, np.int32)
        if not isinstance(value, (Pending, Tensor)):
            return value
        if value.shape.rank is None:
            raise Unrecordable("a rank")
        sizes = [size if n is None else n for n in value.shape.as_list()]
        return TensorSpec(sizes, dtypes.int32 if value.dtype is dtypes.string else value.dtype)

    return replace_leaf


def _merged(first: object, second: Any) -> TensorSpec:
    if not isinstance(first, TensorSpec) or first.shape.rank != second.shape.rank:
        raise Unrecordable("a result that is not a tensor of known rank")
    sizes = zip(first.shape.as_list(), second.shape.as_list(), strict=True)
    # A size is also unknown if it is 0 in both traces, because a slice of a probe size may leave
    # elements of the real size.
    return TensorSpec([a if a == b and a else None for a, b in sizes], first.dtype)


def saving(*values: Any) -> Recording | None:
    """Return the active recording if it records calls with result sizes that depend on these values.

    Only recordings of functions that are being saved do.

    Args:
      *values: Values that determine the size of a result.
    """
    recording = context.recording
    return recording if recording is not None and recording.takes_values(values) else None


def waits(spec: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """Decorate a function so that it accepts values that are only known for each element.

    Args:
      spec: Function that maps its arguments to the spec of its result; by default it is inferred by
        tracing.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def public(*args: Any, **kwargs: Any) -> Any:
            recording = context.recording
            if recording is not None and recording.takes(args, kwargs):
                recording.on_host = True
                result_spec = None if spec is None else spec(*args, **kwargs)
                return recording.call(public, args, kwargs, result_spec)
            return function(*args, **kwargs)

        return cast(F, public)

    return decorate


def waits_for_text(dtype: DTypeLike) -> Callable[[F], F]:
    """Decorate an elementwise function of strings so that it accepts strings of each element.

    Args:
      dtype: The dtype of its result, which has the shape of its first argument, the strings.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def public(*args: Any, **kwargs: Any) -> Any:
            recording = context.recording
            if recording is None or not recording.takes(args, kwargs):
                return function(*args, **kwargs)
            text, *rest = args or (None,)
            if not isinstance(text, Pending) or any(map(is_unknown, (*rest, *kwargs.values()))):
                raise Unrecordable("a string")
            return recording.text(function, text, rest, kwargs, dtype)

        return cast(F, public)

    return decorate


def values_of(call: Call, get_tensor: Callable[[Pending | Tensor], Any]) -> list[np.ndarray]:
    """Evaluate a call for one element, as host arrays.

    Args:
      call: The call.
      get_tensor: Returns the tensor for a `DeferredValue` or the placeholder of an input; None for
        other values.
    """

    def replace_leaf(value: Any) -> Any:
        tensor = get_tensor(value) if isinstance(value, (Pending, Tensor)) else None
        return value if tensor is None else tensor

    args, kwargs = nest.map_structure(replace_leaf, (call.args, call.kwargs))
    result = call.function(*args, **kwargs)
    return [np.asarray(convert_to_tensor(t).array) for t in nest.flatten(result)]
