"""What a map function does with strings, and with images whose sizes differ from element to element.

Programs have neither. While such a function is traced, a `Pending` stands for each value of that kind,
and what is done to it is kept as a graph of `Call`s, which run on the host for each element. A result
of known size, as an image that has been resized, is an `Input` of the program that is traced from
there on, and which runs on many elements at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import jax
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.tracing.trace import init_scope, trace_shapes
from meshflow.core.values import dtypes, nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor

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
# Sizes that stand for unknown ones while a call's results are inferred.
STAND_INS = (7, 1021)


class Unrecordable(Exception):
    """A map function needs a value that is known only for each element."""


class Argument(NamedTuple):
    """Where a value comes from: a leaf of the element.

    Attributes:
      number: which.
    """

    number: int


class Draw(NamedTuple):
    """Where a value comes from: the key of a random op.

    Attributes:
      seed: the op's own seed, or None.
      used: how many numbers of the counter belong to it.
      position: how many keys are drawn before.
    """

    seed: int | None
    used: int
    position: int


class Call:
    """A function that runs on the host.

    Args:
      function: the function, given tensors.
      args: its arguments, `Pending`s and tensors that stand for inputs among them.
      kwargs: its keyword arguments.
      batch: from a vector of strings, the only argument for all elements, to stacked results; or None.
    """

    def __init__(
        self, function: Callable[..., Any], args: Any, kwargs: Any, batch: Any = None
    ) -> None:
        self.function, self.args, self.kwargs, self.batch = function, args, kwargs, batch


class Part(NamedTuple):
    """Where a value comes from: a call.

    Attributes:
      call: the call.
      number: which leaf of its result.
    """

    call: Call
    number: int


class Pending:
    """Stands for a value that is known only for each element.

    Args:
      recording: what keeps what is done to it.
      spec: its spec.
      source: an `Argument` or a `Part`.
    """

    def __init__(self, recording: Recording, spec: TensorSpec, source: Any) -> None:
        self._recording, self.spec, self.source = recording, spec, source

    @property
    def dtype(self) -> dtypes.DType:
        """The element type."""
        return self.spec.dtype

    @property
    def shape(self) -> TensorShape:
        """The shape, with unknown sizes."""
        return self.spec.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.spec.shape)

    def get_shape(self) -> TensorShape:
        """The shape, with unknown sizes."""
        return self.spec.shape

    def __getitem__(self, key: Any) -> Any:
        return self._recording.call(_item, (self, key), {})

    def __repr__(self) -> str:
        raise Unrecordable("a text of its value")

    def __bool__(self) -> bool:
        raise Unrecordable("a truth value")

    def __len__(self) -> int:
        raise Unrecordable("a length")

    def __iter__(self) -> Any:
        raise Unrecordable("its parts one by one")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise Unrecordable("an array")

    def _as_tensor(self) -> Tensor:
        raise Unrecordable("a tensor of unknown size or a string")


def _item(value: Any, key: Any) -> Any:
    return value[key]


class Recording:
    """What a map function did while it was traced.

    Attributes:
      inputs: what the program captures in the place of inputs that come from the host, with their sources.
      calls: how many calls it has.
      on_host: whether there are functions among them that no program should do for all sizes.
      sources: where the tensors that stand for these inputs come from, by identity.
      inlines: whether functions that are called become parts of the one that calls them.
    """

    inlines = False

    def __init__(self) -> None:
        self.inputs: list[tuple[Tensor, Any]] = []
        self.sources: dict[int, Any] = {}
        self.calls = 0
        self.on_host = False
        self._kept: list[Tensor] = []
        self._draws = 0

    def argument(self, spec: TensorSpec, number: int) -> Pending:
        """A leaf of the element that no program can take."""
        return Pending(self, spec, Argument(number))

    def takes(self, args: Any, kwargs: Any) -> bool:
        """Whether a call has a `Pending` among its arguments."""
        return any(map(_holds, args)) or (bool(kwargs) and any(map(_holds, kwargs.values())))

    def takes_values(self, values: Any) -> bool:
        """Whether a call for whose result's size some values decide can be kept."""
        return False

    def takes_number(self, value: Any) -> bool:
        """Whether a call that makes strings of numbers has a `Pending` as its argument."""
        return _holds(value)

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any, spec: Any = None) -> Any:
        """Keeps a call.

        Args:
          function: the function.
          args: its arguments.
          kwargs: its keyword arguments.
          spec: the spec of its result; None to find it out.

        Returns:
          Its result: tensors where sizes are known, and `Pending`s.
        """
        if spec is None:
            spec = self._inferred(function, args, kwargs)
        return self._results(Call(function, args, kwargs), spec)

    def parsed(self, text: Pending, batch: Callable[[Any], Any], spec: Any) -> Any:
        """Keeps a call that parses strings.

        Args:
          text: a string scalar.
          batch: from a vector of strings to stacked tensors.
          spec: the spec of the tensors of one string.
        """
        if text.spec.shape.rank != 0:
            raise Unrecordable("several strings to be parsed")
        return self._results(Call(batch, (text,), {}, batch), spec)

    def examples(
        self, texts: Pending, features: Any, batch: Callable[[Any], Any], specs: Callable[[], Any]
    ) -> Any:
        """Keeps a call that parses serialized examples.

        Args:
          texts: a string scalar.
          features: what is parsed, by name.
          batch: from a vector of strings to stacked tensors.
          specs: gives the specs of the tensors of one string.
        """
        return self.parsed(texts, batch, specs())

    def text(self, function: Any, text: Pending, args: Any, kwargs: Any, dtype: Any) -> Any:
        """Keeps a call of a function that gives something for each string.

        Args:
          function: the function.
          text: its first argument.
          args: its others.
          kwargs: its keyword arguments.
          dtype: of its results.
        """
        batch = lambda texts: function(texts, *args, **kwargs)
        return self.parsed(text, batch, TensorSpec([], dtype))

    def looked_up(self, table: Any, text: Pending) -> Any:
        """What a table of words has for strings; a table is asked for each element by itself."""
        raise Unrecordable("a string")

    def of_table(self, name: str, keys: Any, table: Any, **more: Any) -> Any:
        """What is done with a table that changes, for values that are known only for each element."""
        raise Unrecordable("a string")

    def key(self, seed: int | None, used: int) -> Tensor | None:
        """The key of a random op, or None for the key that it has otherwise.

        Args:
          seed: the op's own.
          used: how many numbers of the counter belong to it.
        """
        self._check_place()
        draw = Draw(seed, used, self._draws)
        self._draws += 1
        return self._input(TensorSpec([3], dtypes.int64), draw)

    def _check_place(self) -> None:
        if context.trace is None or context.trace.parent is not None:
            raise Unrecordable("something done in a loop or a branch")

    def _results(self, call: Call, spec: Any) -> Any:
        self._check_place()
        self.calls += 1
        for value in nest.flatten((call.args, call.kwargs)):
            inside = isinstance(value, Pending) or id(value) in self.sources
            if not inside and is_unknown(value):
                raise Unrecordable("a result of the program")
        leaves = [
            self._input(leaf, Part(call, i))
            if is_known(leaf)
            else Pending(self, leaf, Part(call, i))
            for i, leaf in enumerate(nest.flatten(spec))
        ]
        return nest.pack_sequence_as(spec, leaves)

    def _input(self, spec: TensorSpec, source: Any) -> Tensor:
        with init_scope():
            # No host array, which would be taken for a constant.
            captured = Tensor(jax.numpy.zeros(spec.shape.as_list(), spec.dtype.dtype))
        found = Tensor(context.trace.value_of(captured))  # type: ignore[union-attr]
        self.inputs.append((captured, source))
        self.sources[id(found)] = source
        self._kept.append(found)
        return found

    def _inferred(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The spec of a call's result, found by two traces with different sizes."""
        op = getattr(function, "op", None)
        texts = any(
            isinstance(v, Pending) and v.dtype is dtypes.string for v in (*args, *kwargs.values())
        )
        compares = op is not None and op.strings == "compares"
        if texts and function is not _item and not compares:
            raise Unrecordable("a string")
        saved, context.recording = context.recording, None
        try:
            found = [
                trace_shapes(function, *nest.map_structure(_stand_in(size), (args, kwargs)))
                for size in STAND_INS
            ]
        except Exception as error:
            raise Unrecordable(f"what {function.__name__} needs ({error})") from error
        finally:
            context.recording = saved
        spec = nest.map_structure(_merged, *found)
        return TensorSpec(spec.shape, dtypes.string) if texts and function is _item else spec


def is_known(spec: Any) -> bool:
    """Whether a program can take values of a spec."""
    return spec.dtype is not dtypes.string and spec.shape.is_fully_defined()


def is_unknown(value: Any) -> bool:
    """Whether a value is known only for each element."""
    symbolic = isinstance(value, Tensor) and isinstance(value._value, jax.core.Tracer)
    return symbolic or _holds(value)


def _holds(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds, value))
    return isinstance(value, Pending)


def _stand_in(size: int) -> Callable[[Any], Any]:
    """What stands for an argument in a trace that finds out shapes; integers for strings."""

    def leaf(value: Any) -> Any:
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

    return leaf


def _merged(first: Any, second: Any) -> Any:
    if not isinstance(first, TensorSpec) or first.shape.rank != second.shape.rank:
        raise Unrecordable("a result that is no tensor of known rank")
    sizes = zip(first.shape.as_list(), second.shape.as_list(), strict=True)
    # Nothing may be left of a stand-in where something is left of a real size.
    return TensorSpec([a if a == b and a else None for a, b in sizes], first.dtype)


def saving(*values: Any) -> Recording | None:
    """What keeps calls of the host while a function is saved, for values that only its calls will know; or None.

    Args:
      *values: what decides on the size of a result.
    """
    recording = context.recording
    return recording if recording is not None and recording.takes_values(values) else None


def waits(spec: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """Lets a function be called with values that are known only for each element.

    Args:
      spec: from its arguments to the spec of its result; default: found out by tracing it.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def public(*args: Any, **kwargs: Any) -> Any:
            recording = context.recording
            if recording is not None and recording.takes(args, kwargs):
                recording.on_host = True
                known = None if spec is None else spec(*args, **kwargs)
                return recording.call(public, args, kwargs, known)
            return function(*args, **kwargs)

        return cast(F, public)

    return decorate


def waits_for_text(spec: Any) -> Callable[[F], F]:
    """Lets a function of strings be called with one that is known only for each element.

    Args:
      spec: the dtype of its results, which have the shape of its first argument, the strings.
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
            return recording.text(function, text, rest, kwargs, spec)

        return cast(F, public)

    return decorate


def values_of(call: Call, known: Callable[[Any], Any]) -> list[Any]:
    """What a call gives for one element, as host arrays.

    Args:
      call: the call.
      known: the tensor for a `Pending`, or for what stands for an input; None for all else.
    """

    def leaf(value: Any) -> Any:
        found = known(value) if isinstance(value, (Pending, Tensor)) else None
        return value if found is None else found

    args, kwargs = nest.map_structure(leaf, (call.args, call.kwargs))
    found = call.function(*args, **kwargs)
    return [np.asarray(convert_to_tensor(t)._value) for t in nest.flatten(found)]
