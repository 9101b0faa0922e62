"""`ConcreteFunction`: a function that was traced for one input signature, compiled.

It holds a `TracedFunction` and its compiled program. The program takes over (donates) the buffers
of the variables that it writes, so that XLA updates them in place.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.dispatch.tiers import (
    RARE_RUNS,
    InterpretedProgram,
    are_local,
    is_interpreter_enabled,
)
from meshflow.core.functions.call_arguments import convert_to_spec
from meshflow.core.functions.early_checks import EarlyChecks, has_bounds_checks
from meshflow.core.functions.executable_cache import CachedProgram, cache_program
from meshflow.core.functions.file_variables import FileVariables, is_in_file
from meshflow.core.functions.prepacked_weights import PrepackedWeights, split_prepacking
from meshflow.core.functions.scope_names import announce_program
from meshflow.core.functions.signatures import (
    Signature,
    name_specs,
)
from meshflow.core.functions.signed_function import SignedFunction
from meshflow.core.functions.size_variants import SizeVariants
from meshflow.core.functions.unplaced_variables import UnplacedVariables
from meshflow.core.runtime import transfers
from meshflow.core.runtime.bounds_checks import (
    BoundsChecking,
    raise_recorded_failure,
    translate_bounds_failure,
)
from meshflow.core.runtime.context import context, variable_lock
from meshflow.core.runtime.device_to_host import translate_lost_worker
from meshflow.core.runtime.errors import DtypeMismatchError, NotFiniteError, ValueNeededError
from meshflow.core.runtime.forks import ForkState, make_fork_error
from meshflow.core.runtime.memory_errors import may_exhaust_memory, translate_memory_error
from meshflow.core.runtime.placement_errors import is_placement_error, make_placement_error
from meshflow.core.tracing import host_callbacks
from meshflow.core.tracing.pass_pipeline import (
    PassPipeline,
    apply_all_passes,
    apply_installed_passes,
)
from meshflow.core.tracing.trace import TracedFunction
from meshflow.core.values import nest
from meshflow.core.values.composite import (
    CompositeTensor,
    is_composite_spec,
    split_value,
)
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.size_guards import GuardedSizes
from meshflow.core.values.specs import TensorSpec, type_spec_from_value
from meshflow.core.values.symbolic_sizes import has_symbolic_size
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable, remember_values
from meshflow.environment.garbage_collection import suspend_collector
from meshflow.environment.jax_internals import jex_core, persistent_cache_min_compile_time_secs
from meshflow.environment.types import Array, ClosedJaxpr, Jaxpr, PyTree
from meshflow.interpreter import SizeGuardError
from meshflow.kernels import library
from meshflow.passes.attention_tiling import tile_attention

Lock = contextlib.AbstractContextManager[object]


class FunctionSettings:
    """Switches of `tf.config` for the process.

    Attributes:
      run_eagerly: Whether functions run as plain Python.
      on_launch: Called when a compiled function was started; set by code that monitors the process.
      called: The functions that were called while `tf.summary.trace_on` collects graphs, or None.
    """

    run_eagerly = False
    called: dict[str, ConcreteFunction] | None = None
    on_launch: Callable[[], None] | None = None


_compile_lock = threading.RLock()
# Bytes of intermediate values from which the runs of a program do not overlap.
_LARGE_BYTES = 64 << 20
# Longest time to wait for the memory of a run that has finished.
_FREEING_MS = 5
# Number of equations from which the heap is trimmed: compiling them takes more memory and time.
_MANY_EQUATIONS = 100


class ConcreteFunction(SignedFunction):
    """A function that was traced for one input signature.

    Attributes:
      name: Name of the function.
      structured_input_signature: (args, kwargs) with `TensorSpec`s for tensors.
      structured_outputs: The result structure with `TensorSpec`s for tensors.
      retrace: Returns a function that is traced again for each call, instead of this one; or None.
      variants: This trace and others with other decisions about sizes that depend on values, or None.
      sizes: The symbols in place of unknown sizes of the arguments, or None.
      is_checked_early: Whether all callers run `early_checks` before the program.

    Example:
      >>> double = tf.function(lambda x: 2 * x).get_concrete_function(tf.TensorSpec([2], tf.float32))
      >>> print(double.structured_outputs.shape, double(tf.constant([1.0, 2.0])).numpy())
      (2,) [2. 4.]
    """

    def __init__(
        self, traced: TracedFunction, signature: Signature, parameters: Sequence[str] = ()
    ) -> None:
        self.name = traced.name
        self.traced = traced
        # Index of the last call by the `Function`, and the arguments that its key refers to by id.
        self.last_use = 0
        self.identity_arguments: list[Any] = []
        # Whether the function only calls a program from a file.
        self.is_stored = False
        self.retrace: Callable[[], SignedFunction] | None = None
        self.variants: SizeVariants[ConcreteFunction] | None = None
        self.sizes: GuardedSizes | None = None
        self.is_checked_early = False
        self._parameters = parameters
        self.structured_input_signature = name_specs(signature, parameters)
        written = {id(v) for v in traced.writes}
        offset = len(traced.closed_jaxpr.in_avals) - len(traced.captures)
        donated_captures = [
            (i, c)
            for i, c in enumerate(traced.captures)
            if id(c) in written and not (is_in_file(c) or c._is_lent)
        ]
        self._unplaced = UnplacedVariables(
            [(i, c) for i, c in donated_captures if not c._in_host_memory]
        )
        donated = [offset + i for i, _ in donated_captures]
        self._donated = [c for _, c in donated_captures]
        # Variables with a variable shape, and the shape for which the function was traced.
        self.resizable_variables = [
            (c, c._shape)
            for c in traced.captures
            if isinstance(c, Variable) and not c.shape.is_fully_defined()
        ]
        # The program contains checks or other calls of Python. If one fails, the variables keep
        # their values.
        self._calls_python = bool(traced.closed_jaxpr.effects)
        self._has_bounds_checks = has_bounds_checks(traced.closed_jaxpr)
        self._donatable = self._donated, tuple(donated)
        self._choose_donation()
        self.early_checks = EarlyChecks(traced.closed_jaxpr, offset)
        self._prepacked_weights: PrepackedWeights | None = None
        self._file_variables = FileVariables(traced)
        # The program is compiled at a call, because variables may have no values yet.
        self._interpreted_program: InterpretedProgram | None = None
        self._interpreted_version = -1
        self._version = -1
        self._is_lowered = self._is_awaited = False
        # Bytes of intermediate values of the compiled program, if they are many.
        self._large_bytes: int | None = None
        self._latest_output: weakref.ref[jax.Array] | None = None

    @property
    def _any_traced(self) -> TracedFunction:
        return self.traced

    def _choose_donation(self) -> None:
        """Let the program take over the buffers of the variables that it writes, unless it may fail."""
        self._may_fail = self._calls_python or (
            self._has_bounds_checks and bool(BoundsChecking.mode)
        )
        self._donated, self._donated_indices = ([], ()) if self._may_fail else self._donatable

    def _compile(self, ordered: bool = True) -> None:
        version = PassPipeline.version
        # The compilation reads captured variables, which may require `variable_lock`. It is
        # acquired first, because callers may hold it already.
        with variable_lock, _compile_lock, suspend_collector:
            # Another thread may have compiled the program already.
            if self._version != version or not ordered:
                self._make_program(ordered)
                self._version = version

    def _make_program(self, ordered: bool) -> None:
        traced = self.traced
        self._choose_donation()
        closed = self._rewrite()
        if not ordered:
            closed = host_callbacks.remove_ordering(closed)
        offset = len(closed.in_avals) - len(traced.captures)
        from_host = [offset + i for i, c in enumerate(traced.captures) if is_in_host_memory(c)]
        to_host = [i for i, v in enumerate(traced.writes) if is_in_host_memory(v)]
        if not self._calls_python and not from_host and not self._file_variables:
            written = {id(v) for v in traced.writes}
            closed, self._prepacked_weights = split_prepacking(
                closed, traced.captures, written, self.name
            )
        run = (
            self._file_variables.make_program(closed)
            if self._file_variables
            else jex_core.jaxpr_as_fun(closed)
        )
        self._is_awaited = may_exhaust_memory(closed.out_avals)
        program = _make_named_program(
            closed, run, self.name, traced.num_results, from_host, to_host
        )
        # JAX removes unused operands, and with them the memory for a new value.
        keep_unused = not _reads_all(closed.jaxpr, self._donated_indices)
        self._compiled = jax.jit(
            program, donate_argnums=self._donated_indices, keep_unused=keep_unused
        )
        if self.is_stored and not (
            self._calls_python or from_host or to_host or self._file_variables
        ):
            self._compiled = cache_program(self._compiled, closed, self._donated_indices, self.name)
        self._is_lowered = False

    def _rewrite(self, compiles: bool = True) -> ClosedJaxpr:
        """Return the program after the passes: all that precede compilation, or the installed ones."""
        closed = self.traced.closed_jaxpr
        if not compiles:
            return tile_attention(apply_installed_passes(closed))
        if self._has_bounds_checks:
            is_checked = bool(self._donated) or (self.is_checked_early and not self._may_fail)
            closed = self.early_checks.replace_checks(closed, is_checked, bool(self._donated))
        return apply_all_passes(closed, self.traced.allows_simplification)

    @functools.cached_property
    def _can_interpret(self) -> bool:
        traced = self.traced
        in_host_memory = any(map(is_in_host_memory, [*traced.captures, *traced.writes]))
        return not (
            (self._calls_python and not traced.has_unknown_sizes)
            or self._file_variables
            or traced.infeeds
            # Reading such a capture takes an element of its iterator.
            or traced.iterator_captures
            or in_host_memory
            or traced.sets_initial_values
            or traced.allows_simplification
        )

    @functools.cached_property
    def _step_counter(self) -> Variable | None:
        """The number of steps of an optimizer that the function updates, or None."""
        variables = (v for v in self.traced.writes if isinstance(v, Variable))
        counters = (v for v in variables if v._counts_steps)
        return next(counters, None)

    @functools.cached_property
    def _has_symbolic_sizes(self) -> bool:
        return any(has_symbolic_size(a.shape) for a in self.traced.closed_jaxpr.in_avals)

    def should_interpret(self, arrays: Sequence[Any], expected_runs: float | None = None) -> bool:
        """Check whether the next run uses the interpreter, and count it; see `tiers`.

        Args:
          arrays: The arguments.
          expected_runs: Number of all runs with these shapes, or None if it is unknown.
        """
        if self.is_ready or not (self._can_interpret and is_interpreter_enabled()):
            return False
        if self.traced.has_unknown_sizes and self._interpreted_program is not None:
            return True
        program = self._interpreted_program
        if program is None or self._interpreted_version != PassPipeline.version:
            program = self._interpreted_program = InterpretedProgram(
                self._rewrite(compiles=False), self.traced.has_unknown_sizes, shares_results=True
            )
            self._interpreted_version = PassPipeline.version
        operands = [*arrays, *[c._value for c in self.traced.captures]]
        limit = program.estimate_limit(operands)
        if not limit:
            return False
        if expected_runs is None:
            if self._step_counter is None:
                expected_runs = program.count_run(operands)
            elif self._has_symbolic_sizes:
                expected_runs = RARE_RUNS
            else:
                expected_runs = 1 + int(np.asarray(self._step_counter._value))
        return expected_runs <= limit

    def check_unknown_sizes(self) -> None:
        """Check that a program with sizes that depend on values can run op by op.

        Raises:
          ValueNeededError: If it must be compiled.
        """
        if self.traced.has_unknown_sizes and not self._can_interpret:
            raise ValueNeededError(
                f"{self.name} has sizes that depend on values, and takes elements of an iterator"
            )

    def disable_interpreter(self) -> None:
        """Compile the function for its next run."""
        self._can_interpret = False

    def interpret(self, arrays: Sequence[Any], lock: Lock = variable_lock) -> PyTree:
        """Run the function with the interpreter, after `should_interpret` returned True."""
        traced, program = self.traced, self._interpreted_program
        assert program is not None
        remember_values(traced.writes)
        with lock:
            try:
                outputs = program.run([*arrays, *[c._value for c in traced.captures]])
            except FloatingPointError as error:
                raise NotFiniteError(f"{NotFiniteError.TEXT}, in function {self.name}") from error
            except MemoryError as error:
                raise translate_memory_error(error, f"function {self.name}") or error from error
            except Exception as error:
                if not traced.has_unknown_sizes or isinstance(error, SizeGuardError):
                    raise
                # The function can run as Python, which raises TensorFlow's errors: the program had no effects.
                raise SizeGuardError({}) from error
            for variable, value in zip(traced.writes, outputs[traced.num_results :], strict=True):
                variable._value = value
        return traced.rebuild_result([Tensor(o) for o in outputs[: traced.num_results]])

    def lower(
        self,
        arrays: Sequence[Any],
        captured: Sequence[Any],
        platforms: tuple[str, ...] | None = None,
    ) -> jax.stages.Lowered:
        """Lower the program, without XLA's passes.

        Args:
          arrays: The arguments, or their shapes and dtypes.
          captured: The arrays of the captures.
          platforms: JAX's names of the target platforms, such as "tpu"; by default the present one.
        """
        self.prepare()
        traced = self._compiled.trace(*self._list_operands(arrays, captured))
        return traced.lower(lowering_platforms=platforms)

    def _list_operands(self, arrays: Sequence[Any], captured: Sequence[Any]) -> list[Any]:
        weights = self._prepacked_weights(captured) if self._prepacked_weights is not None else ()
        if self._file_variables:
            captured = self._file_variables.make_operands(captured)
        return [*arrays, *captured, *weights]

    @property
    def structured_outputs(self) -> PyTree:
        """Return the result structure with specs for tensors."""
        structure = self.traced.rebuild_result(self.traced.out_specs)

        def to_type_spec(leaf: Any) -> Any:
            if isinstance(leaf, CompositeTensor):
                # A value without tensors is known.
                return type_spec_from_value(leaf) if split_value(leaf) else leaf
            if isinstance(leaf, TensorSpec) and has_symbolic_size(leaf.shape.as_list()):
                shape = [None if is_symbolic_dim(n) else n for n in leaf.shape]
                return TensorSpec(shape, leaf.dtype, leaf.name)
            return TensorSpec.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf

        return nest.map_structure(to_type_spec, structure)

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Run the function on arguments that match its signature.

        Raises:
          TypeError: If the arguments do not match.
        """
        values = self._match_arguments(self._specs, args, kwargs)
        tensors = []
        for spec, value in zip(self._specs, values, strict=True):
            if is_composite_spec(spec):
                tensors += split_value(convert_to_spec(self.name, spec, value))
                continue
            tensor = convert_to_tensor(value, dtype_hint=spec.dtype)
            if not spec.is_compatible_with(tensor):
                raise DtypeMismatchError(
                    f"{self.name} was traced for {spec}, got a tensor of shape {tensor.shape} and dtype "
                    f"{tensor.dtype.name}."
                )
            tensors.append(tensor)
        return self.run(tensors)

    def run(self, tensors: Sequence[Tensor]) -> PyTree:
        """Run the function on tensors that are known to match the signature."""
        if context.trace is not None or context.tapes:
            return self.traced.call(tensors)
        return self.run_arrays([t.array for t in tensors])

    @property
    def is_ready(self) -> bool:
        """Return whether the program exists, for the installed passes."""
        return self._version == PassPipeline.version

    def prepare(self) -> None:
        """Compile the program if necessary."""
        if not self.is_ready:
            self._compile()

    def get_pure_program(self) -> tuple[Callable[..., Any], PrepackedWeights | None] | None:
        """Return the jitted program and its prepacked weights, or None if there are side effects."""
        self.prepare()
        has_side_effects = self.traced.writes or self._calls_python or self._file_variables
        if has_side_effects or any(is_in_host_memory(c) for c in self.traced.captures):
            return None
        return self._compiled, self._prepacked_weights

    def run_arrays(
        self,
        arrays: list[Array],
        lock: Lock = variable_lock,
        is_checked: bool = False,
        expected_runs: float | None = None,
    ) -> PyTree:
        """Run the function on arrays, without tapes and outside of traces.

        Args:
          arrays: The arguments.
          is_checked: Whether the caller has made the early checks.
          lock: Held while variables are read and written; another lock if no other thread uses these variables.
          expected_runs: Number of all runs with these shapes, or None if it is unknown.
        """
        if ForkState.forked_late:
            raise make_fork_error()
        if FunctionSettings.on_launch is not None:
            FunctionSettings.on_launch()
        if self.should_interpret(arrays, expected_runs):
            return self.interpret(arrays, lock)
        if self.traced.has_unknown_sizes:
            raise SizeGuardError({})
        self.prepare()
        traced = self.traced
        remember_values(traced.writes)
        if self.early_checks and not is_checked and self._donated:
            self.early_checks.run(arrays)
        if self._donated:
            with lock:
                copy_shared_buffers(self._donated, self._must_move_variables())
                results = self._launch(arrays, [c._value for c in traced.captures], lock)
        else:
            with lock:
                captured = [c._value for c in traced.captures]
            results = self._launch(arrays, captured, lock)
        if context.place_output is not None:
            results = [context.place_output(o) for o in results]
        return traced.rebuild_result([Tensor(o) for o in results])

    def _cache_short_compilations(self) -> contextlib.AbstractContextManager[object]:
        """Cache also short compilations of programs from files, which all processes share."""
        if not self.is_stored or isinstance(self._compiled, CachedProgram):
            return contextlib.nullcontext()
        return persistent_cache_min_compile_time_secs(0.0)

    def _must_move_variables(self) -> bool:
        """Check whether written variables may be in host memory that the program shares, so that it cannot reuse it."""
        if self._is_lowered or jax.default_backend() != "cpu":
            return False
        return are_local([v._value for v in self._donated])

    def _compile_in_little_memory(self, operands: list[Any]) -> None:
        """Compile the program before its first run, and trim the heap before and after.

        The compiler and the program do not reuse memory that other threads have freed.
        """
        if not isinstance(self._compiled, CachedProgram):
            if self._interpreted_program is not None:
                self._interpreted_program.release_memory()
            transfers.release_free_blocks()
            library.trim_heap()
            compiled = self._compiled.lower(*operands).compile()
            if jax.default_backend() == "cpu":
                sizes = compiled.memory_analysis()
                num_bytes = getattr(sizes, "temp_size_in_bytes", 0)
                self._large_bytes = num_bytes if num_bytes >= _LARGE_BYTES else None
            library.trim_heap()

    def _await_previous_run(self) -> None:
        """Wait for the previous run if the program needs much memory, which XLA would allocate a second time."""
        latest = None if self._latest_output is None else self._latest_output()
        if latest is not None:
            # Errors of the run are raised where its outputs are read, and a later program may have donated this one.
            with contextlib.suppress(RuntimeError):
                latest.block_until_ready()
            # XLA frees the memory of a run just after its outputs are ready.
            library.await_memory(self._large_bytes or 0, _FREEING_MS)

    def _launch(
        self,
        arrays: list[Array],
        captured: list[Any],
        lock: Lock = variable_lock,
    ) -> list[Any]:
        """Run the program, write the variables, and return the results."""
        traced = self.traced
        captured = self._unplaced.move_to_mesh(arrays, captured)
        try:
            if self._may_fail:
                outputs = self._run_to_completion(self._list_operands(arrays, captured))
            elif self._is_lowered:
                self._await_previous_run()
                outputs = self._compiled(*self._list_operands(arrays, captured))
            else:
                operands = self._list_operands(arrays, captured)
                with suspend_collector, self._cache_short_compilations():
                    if len(traced.closed_jaxpr.eqns) >= _MANY_EQUATIONS:
                        self._compile_in_little_memory(operands)
                    outputs = self._compiled(*operands)
                self._is_lowered = True
            if self._is_awaited:
                jax.block_until_ready(outputs)
            elif self._large_bytes is not None and outputs:
                self._latest_output = weakref.ref(outputs[0])
        except FloatingPointError as error:
            raise NotFiniteError(f"{NotFiniteError.TEXT}, in function {self.name}") from error
        except (jax.errors.JaxRuntimeError, MemoryError, ValueError) as error:
            if is_placement_error(error):
                names = [f"argument {i}" for i in range(len(arrays))]
                names += [getattr(c, "_shared_name", "") for c in traced.captures]
                values = list(zip(names, [*arrays, *captured], strict=True))
                raise make_placement_error(self.name, values) from None
            translated = (
                translate_bounds_failure(error)
                or translate_memory_error(error, f"function {self.name}")
                or translate_lost_worker(error)
            )
            if translated is None:
                raise
            raise translated from error
        checks_bounds = self.early_checks.leaves_checks
        if checks_bounds and _is_on_several_cpus(outputs):
            jax.block_until_ready(outputs)
            if not self._donated:
                raise_recorded_failure()
        count = len(traced.writes)
        with lock:
            if self._file_variables:
                outputs = self._file_variables.take_tokens(outputs)
            for index, (variable, value) in enumerate(zip(traced.writes, outputs, strict=False)):
                if self._file_variables.is_output(index):
                    variable._value = value
        if checks_bounds and self._donated:
            raise_recorded_failure()
        return list(outputs[count:])

    def _run_to_completion(self, arrays: list[Any]) -> list[Any]:
        try:
            return host_callbacks.run_to_completion(self._compiled, *arrays)
        except ValueError as error:
            # The program did not run: only now the devices of the arguments are known.
            if not host_callbacks.is_ordering_error(error):
                raise
        self._compile(ordered=False)
        return host_callbacks.run_to_completion(self._compiled, *arrays)


def copy_shared_buffers(variables: Iterable[Variable], copies_all: bool = False) -> None:
    """Copy buffers that other objects use (such as tensors that were read), or all, before they are donated."""
    for variable in variables:
        if copies_all or sys.getrefcount(variable._value) > 2:
            variable._value = transfers.duplicate(variable._value)
            if copies_all:
                # The memory is free before the next copy needs some.
                variable._value.block_until_ready()


def _reads_all(jaxpr: Jaxpr, operands: Sequence[int]) -> bool:
    read = {id(v) for eqn in jaxpr.eqns for v in eqn.invars} | {id(v) for v in jaxpr.outvars}
    return all(id(jaxpr.invars[i]) in read for i in operands)


def is_in_host_memory(value: object) -> bool:
    """Check whether a capture is a variable that is in host memory between programs."""
    return isinstance(value, Variable) and value._in_host_memory


def _is_on_several_cpus(arrays: Sequence[jax.Array]) -> bool:
    devices: set[Any] = arrays[0].sharding.device_set if arrays else set()
    return len(devices) > 1 and next(iter(devices)).platform == "cpu"


def _make_named_program(
    closed: ClosedJaxpr,
    run: Callable[..., list[Any]],
    name: str,
    count: int,
    from_host: Sequence[int],
    to_host: Sequence[int],
) -> Callable[..., Any]:
    """Return a named program with the outputs: new values of variables, then `count` results.

    The new values use the donated buffers. The program moves variables in host memory, given by the
    indices of operands and new values.
    """
    device, host = jax.memory.Space.Device, jax.memory.Space.Host

    def program(*arrays: Any) -> list[Any]:
        announce_program(closed)
        operands = list(arrays)
        for i in from_host:
            operands[i] = jax.device_put(operands[i], device)
        outputs = run(*operands)
        written = outputs[count:]
        for i in to_host:
            written[i] = jax.device_put(written[i], host)
        return [*written, *outputs[:count]]

    program.__name__ = program.__qualname__ = name
    return program
