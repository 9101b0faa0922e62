"""Functions of strings and tables while they are saved: which calls the host makes, and which values programs take and give.

The function is traced once. What XLA does not have is noted as a call of the host, for which a `Text` stands, or for
numbers a new input of the program. Numbers that such a call needs are results of the program. A call that needs what a
program made of another call's result divides it: the first part runs, then the host, then the next part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.tracing.trace import bind_capture
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import as_dtype, string
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.io.features import FixedLenFeature
from meshflow.lookup.mutable import MutableHashTable
from meshflow.lookup.table import Table
from meshflow.ops.deferred_host_values import Pending, Recording, Unrecordable
from meshflow.ops.files import host_bytes
from meshflow.saved_model.assets import AssetFile
from meshflow.saved_model.dividing import Cut, Noted, divided
from meshflow.saved_model.host_calls import HOST_CALLS, Value
from meshflow.saved_model.programs import TextArgument, traced_for_export
from meshflow.saved_model.steps import HostStep, Recorded

__all__ = ["recorded"]


class _Text(Pending):
    """Stands for strings."""

    _recording: _Recorder

    @property
    def number(self) -> int:
        """Which value it is."""
        return int(self.source)

    def __getitem__(self, key: Any) -> Any:
        return self._recording.note("item", self, {"key": key})

    def __add__(self, other: Any) -> Any:
        return self._recording.note("join", [self, other], {"separator": ""})

    def __radd__(self, other: Any) -> Any:
        return self._recording.note("join", [other, self], {"separator": ""})

    def __eq__(self, other: Any) -> Any:
        return self._recording.note("equal", self, {"y": other})

    def __ne__(self, other: Any) -> Any:
        return self._recording.note("not_equal", self, {"y": other})

    __hash__ = object.__hash__


_NAMES = {"_select": "where", "stepped": "steps"}


class _Recorder(Recording):
    """Notes calls of the host."""

    inlines = True

    def __init__(self, count: int) -> None:
        super().__init__()
        self.steps: list[HostStep] = []
        self.count = count
        # Values that a program makes and the host takes.
        self.demands: list[tuple[int, Tensor]] = []
        self._numbers: dict[int, int] = {}
        self._held: list[Tensor] = []

    def takes(self, args: Any, kwargs: Any) -> bool:
        """Whether a call has strings and something that is not known, or a table that changes."""
        leaves = nest.flatten((list(args), kwargs))
        if any(isinstance(v, (Pending, MutableHashTable)) for v in leaves):
            return True
        # A word among the arguments is a setting, in a list it is a tensor's element.
        settings = [v for v in (*args, *kwargs.values()) if isinstance(v, (str, bytes))]
        texts = sum(map(_is_text, leaves)) > len(settings) or any(
            isinstance(v, Table) and string in (v.key_dtype, v.value_dtype) for v in leaves
        )
        return texts and any(map(_is_traced, leaves))

    def takes_values(self, values: Any) -> bool:
        """Whether one of some values is known only when the function runs."""
        return any(isinstance(v, Pending) or _is_traced(v) for v in nest.flatten(list(values)))

    def takes_number(self, value: Any) -> bool:
        """Whether a call that makes strings of numbers has some that are not known."""
        return self.takes((value,), {}) or _is_traced(value)

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any, spec: Any = None) -> Any:
        """Notes a call."""
        # What a public function ends in may have its name with a line before.
        name = _NAMES.get(function.__name__, function.__name__.lstrip("_"))
        if name not in HOST_CALLS:
            raise Unrecordable(f"strings in {getattr(function, '__module__', '')}.{name}")
        first, more = HOST_CALLS[name].bound(function, args, kwargs)
        return self.note(name, first, more)

    def text(self, function: Any, text: Any, args: Any, kwargs: Any, dtype: Any) -> Any:
        """Notes a call of a function of strings."""
        return self.call(function, (text, *args), kwargs)

    def parsed(self, text: Any, batch: Any, spec: Any) -> Any:
        """Examples are not parsed in saved functions."""
        raise Unrecordable("strings that are parsed")

    def examples(self, texts: Any, features: Any, batch: Any, specs: Any) -> Any:
        """Notes a call for each feature."""
        found = {}
        for key, feature in features.items():
            if not isinstance(feature, FixedLenFeature):
                raise Unrecordable(f"examples parsed for a feature of variable length ({key!r})")
            value = feature.default_value
            kind = as_dtype(feature.dtype)
            if value is not None and kind is string:
                value = host_bytes(value, f"the default of {key!r}")
            elif value is not None:
                value = np.asarray(value, kind.as_numpy_dtype)
            more = {
                "feature": key,
                "shape": TensorShape(feature.shape).as_list(),
                "dtype": kind,
                "default": value,
            }
            found[key] = self.note("feature", texts, more)
        return found

    def looked_up(self, table: Any, text: Any) -> Any:
        """Notes a lookup."""
        return self.note("lookup", text, {"table": table, "default": None})

    def of_table(self, name: str, keys: Any, table: Any, **more: Any) -> Any:
        """Notes what is done with a table that changes."""
        return self.note(name, keys, {"table": table, **more} if keys is not table else {})

    def key(self, seed: int | None, used: int) -> Any:
        """Random numbers are a program's."""

    def argument(self, spec: TensorSpec, number: int) -> Pending:
        """An argument of strings."""
        return _Text(self, spec, number)

    def note(self, name: str, first: Any, more: Mapping[str, Any]) -> Any:
        """Notes a call of one of the functions of the table.

        Returns:
          A `_Text`, or a tensor of the program.
        """
        self._check_place()
        shapes = (
            nest.map_structure(_of_tensor, first),
            {
                k: nest.map_structure(_of_tensor if k in _TENSORS else _stand_in, v)
                for k, v in more.items()
            },
        )
        try:
            spec = HOST_CALLS[name].spec(*shapes, own=getattr(first, "dtype", None))
        except Unrecordable:
            raise
        except Exception as error:  # of any kind: arguments that do not fit
            raise Unrecordable(f"strings in {name} ({error})") from error
        step = HostStep(
            name, self._taken(first), {k: self._taken(v) for k, v in more.items()}, self.count, spec
        )
        self.count += 1
        self.steps.append(step)
        return self._given(step.result, spec)

    def _given(self, number: int, spec: TensorSpec) -> Any:
        if spec.dtype is string:
            return _Text(self, spec, number)
        scope: Any = context.trace
        cut = Cut(number, tuple(spec.shape), spec.dtype.dtype)
        found = Tensor(bind_capture(len(scope.sources), cut.shape, cut.dtype))
        scope.sources.append(cut)
        self._numbers[id(found)] = number
        self._held.append(found)
        return found

    def _taken(self, value: Any) -> Any:
        """An argument of a call, with numbers of values."""
        if isinstance(value, (list, tuple)):
            return [self._taken(v) for v in value]
        if isinstance(value, dict):
            return {k: self._taken(v) for k, v in value.items()}
        if isinstance(value, _Text):
            return Value(value.number)
        if hasattr(value, "_as_tensor") and not isinstance(value, Table):
            value = value._as_tensor()
        if is_symbolic_dim(value):
            value = jnp.asarray(value, np.int32)
        if isinstance(value, (jax.Array, jax.core.Tracer)):
            value = Tensor(value)
        if not isinstance(value, Tensor):
            return value
        if id(value) in self._numbers:
            return Value(self._numbers[id(value)])
        if not isinstance(value._value, jax.core.Tracer):
            array = np.asarray(value._value)
            path = array.item() if array.dtype.hasobject and not array.ndim else None
            return path.asset if isinstance(path, AssetFile) else array
        self.demands.append((self.count, value))
        self._numbers[id(value)] = self.count
        self._held.append(value)
        self.count += 1
        return Value(self.count - 1)

    def result(self, value: Any) -> Any:
        """What stands for a result of the function: a tensor of the program, or a `Value`."""
        if isinstance(value, _Text):
            return Value(value.number)
        tensor = convert_to_tensor(value)
        if id(tensor) in self._numbers:
            return Value(self._numbers[id(tensor)])
        if _is_text(tensor):
            # Strings that are known: the host makes them.
            return Value(self.note("join", [tensor], {"separator": ""}).number)
        return tensor


def _is_text(value: Any) -> bool:
    if isinstance(value, (str, bytes)):
        return True
    array = value._value if isinstance(value, Tensor) else value
    return isinstance(array, np.ndarray) and array.dtype.kind in "OSU"


def _is_traced(value: Any) -> bool:
    array = value._value if isinstance(value, Tensor) else value
    return isinstance(array, jax.core.Tracer)


# Arguments of calls that may be words and are tensors.
_TENSORS = ("x", "y", "values")


def _of_tensor(value: Any) -> Any:
    return _stand_in(np.array(value, object) if isinstance(value, (str, bytes)) else value)


def _stand_in(value: Any) -> Any:
    """An array of the size of an argument; integers for strings."""
    if isinstance(value, Pending):
        if value.spec.shape.rank is None:
            raise Unrecordable("strings of unknown rank")
        return jnp.zeros(tuple(value.spec.shape), np.int32)
    if hasattr(value, "_as_tensor") and not isinstance(value, Table):
        value = value._as_tensor()
    if _is_text(value) and not isinstance(value, (str, bytes)):
        return jnp.zeros(np.shape(value._value if isinstance(value, Tensor) else value), np.int32)
    return value._value if isinstance(value, Tensor) else value


@contextlib.contextmanager
def _recording(what: _Recorder) -> Iterator[None]:
    saved, context.recording = context.recording, what
    try:
        yield
    finally:
        context.recording = saved


def recorded(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Recorded:
    """A function as calls of the host and parts of a program.

    Args:
      name: of the function, for errors.
      function: the function.
      args: its arguments, with `TensorSpec`s for tensors.
      kwargs: its keyword arguments, likewise.

    Raises:
      UnimplementedError: when something else is done with strings, naming it.
    """
    about: dict[str, Any] = {}

    def whole(*given: Any, **named: Any) -> Any:
        flat, place = [], 0
        leaves = nest.flatten((given, named))
        count = sum(isinstance(v, (Tensor, TextArgument)) for v in leaves)
        recorder = about["recorder"] = _Recorder(count)
        for leaf in leaves:
            if isinstance(leaf, TextArgument):
                flat.append(recorder.argument(leaf.spec, place))
            else:
                if isinstance(leaf, Tensor):
                    recorder._numbers[id(leaf)] = place
                    recorder._held.append(leaf)
                flat.append(leaf)
            place += isinstance(leaf, (Tensor, TextArgument))
        positional, by_name = nest.pack_sequence_as((given, named), flat)
        with _recording(recorder):
            results = function(*positional, **by_name)
            found = nest.map_structure(
                lambda r: recorder.result(r) if becomes_tensor(r) else r, results
            )
        about["found"] = found
        tensors = [v for v in nest.flatten(found) if isinstance(v, Tensor)]
        return [*tensors, *(t for _, t in recorder.demands)]

    try:
        traced = traced_for_export(whole, args, kwargs)
    except Unrecordable as error:
        raise UnimplementedError(
            f"{name} has {error}, which is not among what can be saved of strings: {', '.join(sorted(HOST_CALLS))}."
        ) from error
    recorder = about["recorder"]
    noted = Noted(recorder.steps, recorder.count, recorder.demands)
    return divided(traced, noted, about["found"], (args, kwargs))


def becomes_tensor(value: Any) -> bool:
    """Whether a result is a tensor, or strings."""
    return isinstance(value, (Tensor, _Text, np.ndarray, np.generic)) or hasattr(
        value, "_as_tensor"
    )
