"""Functions of strings and tables while they are saved: which calls the host makes, and which values programs take and give.

The function is traced once. What XLA does not have is noted as a call of the host, for which a `Text` stands, or for
numbers a new input of the program. Numbers that such a call needs are results of the program. A call that needs what a
program made of another call's result divides it: the first part runs, then the host, then the next part.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.tracing.trace import Slot, Traced, bind_capture
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import as_dtype, string
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.jax_internals import dce_jaxpr, jex_core
from meshflow.io.features import FixedLenFeature
from meshflow.lookup.mutable import MutableHashTable
from meshflow.lookup.table import Table
from meshflow.ops.deferred_host_values import Pending, Recording, Unrecordable
from meshflow.ops.files import host_bytes
from meshflow.saved_model.assets import AssetFile
from meshflow.saved_model.host_calls import HOST_CALLS, Value
from meshflow.saved_model.programs import Program, TextArgument, known_sizes, traced_for_export

__all__ = ["ByRank", "HostStep", "Plan", "ProgramStep", "Recorded", "recorded"]


@dataclasses.dataclass
class HostStep:
    """A call of the host.

    Attributes:
      name: of the function in `HOST_CALLS`.
      first: its first argument, with `Value`s, arrays, tables.
      more: its other arguments by name.
      result: the value that it gives.
      spec: its spec.
    """

    name: str
    first: Any
    more: dict[str, Any]
    result: int
    spec: TensorSpec


@dataclasses.dataclass
class ProgramStep:
    """A part of the program.

    Attributes:
      traced: what it does.
      inputs: the values that it takes before what it captures.
      outputs: the values that its results are.
    """

    traced: Traced
    inputs: list[int]
    outputs: list[int]


@dataclasses.dataclass
class Recorded:
    """A function as steps.

    Attributes:
      steps: in their order.
      results: the values that it returns.
      structure: the nested result with `Slot`s.
      specs: specs of the results.
    """

    steps: list[HostStep | ProgramStep]
    results: list[int]
    structure: Any
    specs: list[TensorSpec]


@dataclasses.dataclass
class Plan:
    """A function as calls of the host and programs, as TensorFlow's writer takes it.

    Attributes:
      name: of the function.
      arguments: (args, kwargs) with `TensorSpec`s for tensors.
      recorded: what it does.
      parts: `HostStep`s, and pairs of a `ProgramStep` and its `Program`.
    """

    name: str
    arguments: Any
    recorded: Recorded
    parts: list[HostStep | tuple[ProgramStep, Program]]

    @property
    def specs(self) -> list[TensorSpec]:
        """Specs of the arguments that are tensors, in TensorFlow's order."""
        return [s for s in nest.flatten(self.arguments) if isinstance(s, TensorSpec)]

    @property
    def returned(self) -> Any:
        """The nested result with `TensorSpec`s for tensors."""
        specs = self.recorded.specs

        def spec(leaf: Any) -> Any:
            if not isinstance(leaf, Slot):
                return leaf
            return TensorSpec(known_sizes(specs[leaf.index].shape), specs[leaf.index].dtype)

        return nest.map_structure(spec, self.recorded.structure)

    def why_not(self) -> str | None:
        """What of it TensorFlow cannot run, or None."""
        programs = [part[1] for part in self.parts if not isinstance(part, HostStep)]
        return next(filter(None, (p.why_not() for p in programs)), None)


@dataclasses.dataclass
class ByRank:
    """A function that takes tensors of unknown rank, as programs for each rank.

    Attributes:
      name: of the function.
      arguments: (args, kwargs) with `TensorSpec`s for tensors.
      programs: what it does, by rank.
    """

    name: str
    arguments: Any
    programs: dict[int, Program | Plan]

    @property
    def specs(self) -> list[TensorSpec]:
        """Specs of the arguments that are tensors, in TensorFlow's order."""
        return [s for s in nest.flatten(self.arguments) if isinstance(s, TensorSpec)]

    @property
    def returned(self) -> Any:
        """The nested result with `TensorSpec`s of unknown shape for tensors."""
        first = next(iter(self.programs.values()))
        return nest.map_structure(lambda s: TensorSpec(None, s.dtype), first.returned)

    def why_not(self) -> str | None:
        """What of it TensorFlow cannot run, or None."""
        return next(filter(None, (p.why_not() for p in self.programs.values())), None)


class _Cut:
    """What a program captures in the place of a value of the host."""

    def __init__(self, number: int, shape: Any, dtype: Any) -> None:
        self.number, self.shape, self.dtype = number, shape, dtype


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
        cut = _Cut(number, tuple(spec.shape), spec.dtype.dtype)
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
    return _steps(name, traced, about["recorder"], about["found"], (args, kwargs))


def becomes_tensor(value: Any) -> bool:
    """Whether a result is a tensor, or strings."""
    return isinstance(value, (Tensor, _Text, np.ndarray, np.generic)) or hasattr(
        value, "_as_tensor"
    )


class _Divided:
    """A traced function, of which parts are taken.

    Args:
      traced: the function.
      recorder: what was noted of it.
      numbers: which arguments its inputs are.
    """

    def __init__(self, traced: Traced, recorder: _Recorder, numbers: list[int]) -> None:
        self._traced, self._recorder = traced, recorder
        self._jaxpr = traced.closed.jaxpr
        # The value that each input is; captures are themselves.
        self._sources: list[Any] = [*numbers, *traced.captures]

    def level(self, output: int, levels: Mapping[int, int]) -> int:
        """After which of the host's levels an output can be computed."""
        used = [i == output for i in range(len(self._jaxpr.outvars))]
        small, inputs = dce_jaxpr(self._jaxpr, used)
        needed = [_number(s) for s, u in zip(self._sources, inputs, strict=True) if u]
        values = [levels[n] for n in needed if isinstance(n, int)]
        missing = _symbols(small) - _plain(v.aval for v in small.invars)
        return max([*values, *(self._level_of_size(name, levels) for name in missing)], default=0)

    def _level_of_size(self, name: str, levels: Mapping[int, int]) -> int:
        """After which of the levels a size is known that only its name tells of."""
        pairs = zip(self._sources, self._jaxpr.invars, strict=True)
        numbers = [_number(source) for source, var in pairs if name in _plain([var.aval])]
        return min((levels[n] for n in numbers if n in levels), default=0)

    def part(self, outputs: Sequence[int], writes: Sequence[Any], known: Sequence[int]) -> Any:
        """The part that computes some outputs, and the values that it takes.

        Args:
          outputs: which, and those of `writes` after them.
          writes: the variables that it writes.
          known: values that there are by then.
        """
        jaxpr = self._jaxpr
        last = len(jaxpr.outvars) - len(self._traced.writes)
        wanted = [*outputs, *(range(last, len(jaxpr.outvars)) if writes else ())]
        used = [i in wanted for i in range(len(jaxpr.outvars))]
        small, inputs = dce_jaxpr(jaxpr, used)
        # In the order that was asked for.
        rank = {i: n for n, i in enumerate(sorted(wanted))}
        outs = [small.outvars[rank[i]] for i in wanted]
        kept = [s for s, is_used in zip(self._sources, inputs, strict=True) if is_used]
        pairs = list(zip(kept, small.invars, strict=True))
        values = [(_number(s), v) for s, v in pairs if isinstance(_number(s), int)]
        captures = [(s, v) for s, v in pairs if not isinstance(_number(s), int)]
        # Sizes are taken from what comes in.
        missing = _symbols(small) - _plain(v.aval for _, v in pairs)
        for source, var in zip(self._sources, jaxpr.invars, strict=True):
            number = _number(source)
            if (
                isinstance(number, int)
                and number in known
                and missing & _plain([var.aval])
                and number not in dict(values)
            ):
                values.append((number, var))
                missing -= _plain([var.aval])
        if missing:
            raise Unrecordable("sizes of strings in what is computed of no strings")
        small = small.replace(
            invars=[v for _, v in (*values, *captures)],
            outvars=outs,
            debug_info=small.debug_info.with_unknown_names(),
        )
        closed = jex_core.ClosedJaxpr(small, self._traced.closed.consts)
        slots = [Slot(i) for i in range(len(outputs))]
        held = [s for s, _ in captures]
        traced = Traced(self._traced.name, closed, held, list(writes), slots, len(outputs))
        return traced, [n for n, _ in values]


def _number(source: Any) -> Any:
    return source.number if isinstance(source, _Cut) else source


def _symbols(jaxpr: Any) -> set[str]:
    """Names of the sizes that are symbols in what is computed."""
    sizes = [n for q in jaxpr.eqns for e in q.outvars for n in getattr(e.aval, "shape", ())]
    # A size as a number is no array's.
    sizes += [q.params.get("dim") for q in jaxpr.eqns]
    return {name for n in sizes if is_symbolic_dim(n) for name in n._get_vars()}


def _plain(avals: Any) -> set[str]:
    """Names of those that an array tells."""
    sizes = [n for a in avals for n in getattr(a, "shape", ()) if is_symbolic_dim(n)]
    # A size that is perhaps 0 is one less than a name.
    return {text for n in sizes for text in (str(n), str(n + 1)) if text.isidentifier()}


def _steps(name: str, traced: Traced, recorder: _Recorder, found: Any, arguments: Any) -> Recorded:
    """The recorded function in the order in which it can be run."""
    specs = [s for s in nest.flatten(arguments) if isinstance(s, TensorSpec)]
    numbers = [i for i, s in enumerate(specs) if s.dtype is not string]
    divided = _Divided(traced, recorder, numbers)
    leaves = [v for v in nest.flatten(found) if isinstance(v, (Tensor, Value))]
    tensors = [v for v in leaves if isinstance(v, Tensor)]
    # Values of the program's results: those that are returned, and those that the host takes.
    made = [
        *range(recorder.count, recorder.count + len(tensors)),
        *(n for n, _ in recorder.demands),
    ]
    levels = dict.fromkeys(range(len(specs)), 0)
    of_host: dict[int, list[HostStep]] = {}
    programs: dict[int, list[int]] = {}
    demanded = {n: len(tensors) + i for i, (n, _) in enumerate(recorder.demands)}

    def program_level(output: int) -> int:
        level = divided.level(output, levels)
        programs.setdefault(level, []).append(output)
        return level

    at_least = 0
    for step in recorder.steps:
        level = 0
        for value in _values((step.first, step.more)):
            if value in demanded and value not in levels:
                levels[value] = program_level(demanded[value]) + 1
            level = max(level, levels[value])
        if any(isinstance(v, MutableHashTable) for v in nest.flatten((step.first, step.more))):
            level = at_least = max(level, at_least)
        levels[step.result] = level
        of_host.setdefault(level, []).append(step)
    for output in range(len(tensors)):
        program_level(output)
    last = len(made)
    if traced.writes:
        written = [divided.level(last + i, levels) for i in range(len(traced.writes))]
        programs.setdefault(max([*programs, *written]), [])
    final = max(programs, default=-1)
    steps: list[HostStep | ProgramStep] = []
    for level in range(max([*of_host, *programs], default=-1) + 1):
        steps += of_host.get(level, [])
        if level in programs:
            writes = traced.writes if level == final else []
            known = [n for n, at in levels.items() if at <= level]
            part, inputs = divided.part(sorted(programs[level]), writes, known)
            steps.append(ProgramStep(part, inputs, [made[i] for i in sorted(programs[level])]))
    order = iter(made)
    results = [v.number if isinstance(v, Value) else next(order) for v in leaves]
    places = iter(range(len(leaves)))
    structure = nest.map_structure(
        lambda v: Slot(next(places)) if isinstance(v, (Tensor, Value)) else v, found
    )
    known_specs = {s.result: s.spec for s in recorder.steps} | dict(enumerate(specs))
    known_specs |= {n: TensorSpec(t.shape, t.dtype) for n, t in zip(made, tensors, strict=False)}
    return Recorded(steps, results, structure, [known_specs[n] for n in results])


def _values(arguments: Any) -> list[int]:
    return [v.number for v in nest.flatten(arguments) if isinstance(v, Value)]
