"""`ConcreteFunction`: a traced function for one input signature, compiled.

It owns a `Traced` and its compiled form, in which variables that the function writes are donated,
so that XLA updates them in place.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.functions.kept_executables import KeptProgram, kept_program
from meshflow.core.functions.prepacked_weights import PrepackedWeights, divided
from meshflow.core.functions.scope_names import announce
from meshflow.core.functions.signatures import describe, heading, match, named_specs
from meshflow.core.functions.strays import Strays
from meshflow.core.functions.streams import Streams, in_files
from meshflow.core.runtime import transfers
from meshflow.core.runtime.collection import resting
from meshflow.core.runtime.context import context, writing
from meshflow.core.runtime.device_to_host import lost_worker
from meshflow.core.runtime.errors import DtypeMismatchError, NotFiniteError
from meshflow.core.runtime.exhaustion import exhausted
from meshflow.core.runtime.forks import Fork, after_fork
from meshflow.core.runtime.placement_errors import is_placement_error, placement_error
from meshflow.core.tracing import host_callbacks
from meshflow.core.tracing.pass_pipeline import PassPipeline, ready
from meshflow.core.tracing.trace import Traced, is_array_like
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.jax_internals import jex_core, persistent_cache_min_compile_time_secs


class Settings:
    """Process-wide switches of `tf.config`.

    Attributes:
      run_eagerly: functions run as plain Python.
      progress: called whenever a compiled function was started; set by who watches this process.
    """

    run_eagerly = False
    progress: Callable[[], None] | None = None


_compiling = threading.RLock()


class Signed:
    """A function for one signature: how it is called and printed.

    Attributes:
      name: the function's name.
      structured_input_signature: (args, kwargs) with `TensorSpec`s for tensors.
    """

    name: str
    structured_input_signature: tuple[Any, Any]
    _parameters: Sequence[str] = ()

    @property
    def structured_outputs(self) -> Any:
        """The result structure with specs for tensors."""
        raise NotImplementedError

    @property
    def _any_traced(self) -> Traced:
        """The traced function, or one of several that differ in sizes only."""
        raise NotImplementedError

    @property
    def inputs(self) -> list[Any]:
        """Specs of the tensor arguments, then the captures."""
        specs = [
            s for s in nest.flatten(self.structured_input_signature) if isinstance(s, TypeSpec)
        ]
        return [*specs, *self.captured_inputs]

    @property
    def outputs(self) -> list[TensorSpec]:
        """Specs of the result tensors."""
        return [s for s in nest.flatten(self.structured_outputs) if isinstance(s, TensorSpec)]

    @property
    def output_shapes(self) -> Any:
        """Shapes of the results."""
        return nest.map_structure(
            lambda s: s.shape if isinstance(s, TensorSpec) else s, self.structured_outputs
        )

    @property
    def output_dtypes(self) -> Any:
        """Dtypes of the results."""
        return nest.map_structure(
            lambda s: s.dtype if isinstance(s, TensorSpec) else s, self.structured_outputs
        )

    @property
    def captured_inputs(self) -> list[Any]:
        """Outer tensors and variables that the function uses."""
        return list(self._any_traced.captures)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Variables that the function reads or writes."""
        return tuple(c for c in self.captured_inputs if isinstance(c, Variable))

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """The trainable ones among `variables`."""
        return tuple(v for v in self.variables if v.trainable)

    @property
    def graph(self) -> Any:
        """The computation as a JAX `ClosedJaxpr`."""
        return self._any_traced.closed

    def _tensor_arguments(self, specs: Sequence[Any], args: Any, kwargs: Any) -> list[Any]:
        """The values of a call for the specs: written like the original call, or tensors only."""
        try:
            return match(self.name, self.structured_input_signature, self._parameters, args, kwargs)
        except TypeError:
            given = nest.flatten(args)
            for spec in specs[len(given) :]:
                if spec.name in kwargs:
                    given.append(kwargs[spec.name])
            counts = (len(specs), len(nest.flatten(args)) + len(kwargs))
            if counts != (len(given),) * 2 or not all(
                is_array_like(v) or isinstance(v, Variable) for v in given
            ):
                raise
            return given

    def pretty_printed_signature(self, verbose: bool = True) -> str:
        """What the function takes and returns, in several lines, or only its first when not verbose."""
        signature = self.structured_input_signature
        if not verbose:
            return heading(self.name, signature, self._parameters)
        return describe(self.name, signature, self._parameters, self.structured_outputs)

    def __repr__(self) -> str:
        return (
            f"<ConcreteFunction {self.pretty_printed_signature(verbose=False)} at 0x{id(self):X}>"
        )

    def __str__(self) -> str:
        return f"ConcreteFunction {self.pretty_printed_signature()}"


class ConcreteFunction(Signed):
    """A function traced for one input signature.

    Attributes:
      name: the function's name.
      structured_input_signature: (args, kwargs) with `TensorSpec`s for tensors.
      structured_outputs: the result structure with `TensorSpec`s for tensors.
      retraced: makes what traces the function again where it is called, for who cannot use this trace; or None.

    Example:
      >>> import meshflow as tf
      >>> double = tf.function(lambda x: 2 * x).get_concrete_function(tf.TensorSpec([2], tf.float32))
      >>> print(double.structured_outputs.shape, double(tf.constant([1.0, 2.0])).numpy())
      (2,) [2. 4.]
    """

    def __init__(
        self, traced: Traced, signature: tuple[Any, Any], parameters: Sequence[str] = ()
    ) -> None:
        self.name = traced.name
        self.traced = traced
        # When its function last called it, in calls; and the arguments that it is found by the identity of.
        self.used = 0
        self.found_by: list[Any] = []
        # Whether it only calls a program that a file holds.
        self.is_stored = False
        self.retraced: Callable[[], Any] | None = None
        self._parameters = parameters
        self.structured_input_signature = named_specs(signature, parameters)
        written = {id(v) for v in traced.writes}
        offset = len(traced.closed.in_avals) - len(traced.captures)
        own = [
            (i, c)
            for i, c in enumerate(traced.captures)
            if id(c) in written and not (in_files(c) or c._is_lent)
        ]
        self._strays = Strays([(i, c) for i, c in own if not c._in_host_memory])
        donated = [offset + i for i, _ in own]
        self._donated = [c for _, c in own]
        # Variables whose shape may change, with the shape that was traced.
        self.sized = [
            (c, c._shape)
            for c in traced.captures
            if isinstance(c, Variable) and not c.shape.is_fully_defined()
        ]
        # Checks and other calls of Python: when one fails, the variables keep their values.
        self._calls_python = bool(traced.closed.effects)
        if self._calls_python:
            donated, self._donated = [], []
        self._donated_at = tuple(donated)
        self._keeper: PrepackedWeights | None = None
        self._streams = Streams(traced)
        # Compiled when it is first called: variables may have no values yet.
        self._version = -1
        self._is_lowered = False

    @property
    def _any_traced(self) -> Traced:
        return self.traced

    def _compile(self, ordered: bool = True) -> None:
        version = PassPipeline.version
        # Captured variables are looked at, for which some take `writing`: it comes first, as in who holds it already.
        with writing, _compiling, resting:
            # Another thread may have come first.
            if self._version != version or not ordered:
                self._make_program(ordered)
                self._version = version

    def _make_program(self, ordered: bool) -> None:
        traced = self.traced
        closed = self._rewritten()
        if not ordered:
            closed = host_callbacks.unordered(closed)
        offset = len(closed.in_avals) - len(traced.captures)
        from_host = [offset + i for i, c in enumerate(traced.captures) if in_host_memory(c)]
        to_host = [i for i, v in enumerate(traced.writes) if in_host_memory(v)]
        if not self._calls_python and not from_host and not self._streams:
            written = {id(v) for v in traced.writes}
            closed, self._keeper = divided(closed, traced.captures, written, self.name)
        run = self._streams.program(closed) if self._streams else jex_core.jaxpr_as_fun(closed)
        program = _named(closed, run, self.name, traced.count, from_host, to_host)
        # JAX takes out operands that nothing reads, and with them the memory for a new value.
        keep = not _reads(closed.jaxpr, self._donated_at)
        self._compiled = jax.jit(program, donate_argnums=self._donated_at, keep_unused=keep)
        if self.is_stored and not (self._calls_python or from_host or to_host or self._streams):
            self._compiled = kept_program(self._compiled, closed, self._donated_at, self.name)
        self._is_lowered = False

    def _rewritten(self) -> jex_core.ClosedJaxpr:
        """The program as the passes in force leave it."""
        return ready(self.traced.closed)

    def lowered(
        self,
        arrays: Sequence[Any],
        captured: Sequence[Any],
        platforms: tuple[str, ...] | None = None,
    ) -> Any:
        """The compiled program before XLA's passes, a `jax.stages.Lowered`.

        Args:
          arrays: the arguments, or their shapes and dtypes.
          captured: the captures' arrays.
          platforms: JAX's names of those that it is for, such as "tpu"; default that of the devices.
        """
        self.prepare()
        traced = self._compiled.trace(*self._operands(arrays, captured))
        return traced.lower(lowering_platforms=platforms)

    def _operands(self, arrays: Sequence[Any], captured: Sequence[Any]) -> list[Any]:
        kept = self._keeper(captured) if self._keeper is not None else ()
        if self._streams:
            captured = self._streams.operands(captured)
        return [*arrays, *captured, *kept]

    @property
    def structured_outputs(self) -> Any:
        """The result structure with specs for tensors."""
        structure = self.traced.rebuild(self.traced.out_specs)

        def described(leaf: Any) -> Any:
            if isinstance(leaf, IndexedSlices):
                return leaf._type_spec
            return TensorSpec.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf

        return nest.map_structure(described, structure)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function on arguments that fit its signature.

        Raises:
          TypeError: when the arguments do not fit.
        """
        specs = [
            s for s in nest.flatten(self.structured_input_signature) if isinstance(s, TypeSpec)
        ]
        given = self._tensor_arguments(specs, args, kwargs)
        tensors = []
        for spec, value in zip(specs, given, strict=True):
            tensor = convert_to_tensor(value, dtype_hint=spec.dtype)
            if not spec.is_compatible_with(tensor):
                raise DtypeMismatchError(
                    f"{self.name} was traced for {spec}, got a tensor of shape {tensor.shape} and dtype "
                    f"{tensor.dtype.name}."
                )
            tensors.append(tensor)
        return self.run(tensors)

    def run(self, tensors: Sequence[Tensor]) -> Any:
        """Runs on tensors that are known to fit."""
        if context.trace is not None or context.tapes:
            return self.traced.call(tensors)
        return self.run_arrays([t._value for t in tensors])

    @property
    def is_ready(self) -> bool:
        """Whether the program is made, as the passes in force leave it."""
        return self._version == PassPipeline.version

    def prepare(self) -> None:
        """Makes the program, unless it is there."""
        if not self.is_ready:
            self._compile()

    def pure_parts(self) -> tuple[Any, PrepackedWeights | None] | None:
        """The jitted program, and what prepares its last operands, if it does nothing but give results; else None."""
        self.prepare()
        does_more = self.traced.writes or self._calls_python or self._streams
        if does_more or any(in_host_memory(c) for c in self.traced.captures):
            return None
        return self._compiled, self._keeper

    def run_arrays(self, arrays: list[Any], lock: Any = writing) -> Any:
        """The short way: no tape, no enclosing trace.

        Args:
          arrays: the arguments.
          lock: held while variables are read and written; another one where nobody else has these variables.
        """
        if Fork.late:
            raise after_fork()
        self.prepare()
        if Settings.progress is not None:
            Settings.progress()
        traced = self.traced
        if self._donated:
            with lock:
                keep_shared(self._donated)
                results = self._launch(arrays, [c._value for c in traced.captures], lock)
        else:
            with lock:
                captured = [c._value for c in traced.captures]
            results = self._launch(arrays, captured, lock)
        if context.placing is not None:
            results = [context.placing(o) for o in results]
        return traced.rebuild([Tensor(o) for o in results])

    def _keeping(self) -> contextlib.AbstractContextManager[Any]:
        """Where programs of files are compiled, which are compiled alike in every process: also short ones are kept."""
        if not self.is_stored or isinstance(self._compiled, KeptProgram):
            return contextlib.nullcontext()
        return persistent_cache_min_compile_time_secs(0.0)

    def _launch(self, arrays: list[Any], captured: list[Any], lock: Any = writing) -> list[Any]:
        """Runs the program and writes what it writes; its results."""
        traced = self.traced
        captured = self._strays.moved(arrays, captured)
        try:
            if self._calls_python:
                outputs = self._finish(self._operands(arrays, captured))
            elif self._is_lowered:
                outputs = self._compiled(*self._operands(arrays, captured))
            else:
                with resting, self._keeping():
                    outputs = self._compiled(*self._operands(arrays, captured))
                self._is_lowered = True
        except FloatingPointError as error:
            raise NotFiniteError(f"{NotFiniteError.TEXT}, in function {self.name}") from error
        except (jax.errors.JaxRuntimeError, MemoryError, ValueError) as error:
            if is_placement_error(error):
                names = [f"argument {i}" for i in range(len(arrays))]
                names += [getattr(c, "_shared_name", "") for c in traced.captures]
                values = list(zip(names, [*arrays, *captured], strict=True))
                raise placement_error(self.name, values) from None
            known = exhausted(error, f"function {self.name}") or lost_worker(error)
            if known is None:
                raise
            raise known from error
        count = len(traced.writes)
        with lock:
            if self._streams:
                outputs = self._streams.taken(outputs)
            for number, (variable, value) in enumerate(zip(traced.writes, outputs, strict=False)):
                if self._streams.assigned(number):
                    variable._value = value
        return list(outputs[count:])

    def _finish(self, arrays: list[Any]) -> Any:
        try:
            return host_callbacks.finish(self._compiled, *arrays)
        except ValueError as error:
            # Nothing ran: where the arguments lie is known only now.
            if not host_callbacks.needs_no_order(error):
                raise
        self._compile(ordered=False)
        return host_callbacks.finish(self._compiled, *arrays)


def keep_shared(variables: Iterable[Variable]) -> None:
    """Copies buffers that somebody else holds too (a tensor read earlier), before they are given to a program."""
    for variable in variables:
        if sys.getrefcount(variable._value) > 2:
            variable._value = transfers.duplicate(variable._value)


def _reads(jaxpr: Any, operands: Sequence[int]) -> bool:
    """Whether a program reads all of these operands."""
    read = {id(v) for eqn in jaxpr.eqns for v in eqn.invars} | {id(v) for v in jaxpr.outvars}
    return all(id(jaxpr.invars[i]) in read for i in operands)


def in_host_memory(value: Any) -> bool:
    """Whether a captured value is a variable that lies in the host's memory between programs."""
    return isinstance(value, Variable) and value._in_host_memory


def _named(
    closed: jex_core.ClosedJaxpr,
    run: Callable[..., list[Any]],
    name: str,
    count: int,
    from_host: Sequence[int],
    to_host: Sequence[int],
) -> Callable[..., Any]:
    """A program with its name: new values of variables, which take the donated buffers, then `count` results.

    Operands and new values of variables in the host's memory, by their numbers, are moved by the program.
    """
    device, host = jax.memory.Space.Device, jax.memory.Space.Host

    def compiled(*arrays: Any) -> Any:
        announce(closed)
        operands = list(arrays)
        for i in from_host:
            operands[i] = jax.device_put(operands[i], device)
        outputs = run(*operands)
        written = outputs[count:]
        for i in to_host:
            written[i] = jax.device_put(written[i], host)
        return [*written, *outputs[:count]]

    compiled.__name__ = compiled.__qualname__ = name
    return compiled
