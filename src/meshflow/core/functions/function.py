"""`tf.function` traces once for each input signature, then runs the compiled program.

A `Function` holds one `ConcreteFunction` for each signature: the structure of the arguments, the
shapes and dtypes of tensors, and the values of all other arguments (see `call_arguments`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MethodType
from typing import Any

from meshflow.core.autograph import convert
from meshflow.core.dispatch.tiers import is_interpreter_enabled
from meshflow.core.functions import general_traces, retracing
from meshflow.core.functions.call_arguments import (
    CallArguments,
    to_spec,
)
from meshflow.core.functions.compiler_ir import make_program_reader
from meshflow.core.functions.concrete_function import ConcreteFunction, FunctionSettings
from meshflow.core.functions.created_variables import captures_tracers, check_created_variables
from meshflow.core.functions.retracing import get_history
from meshflow.core.functions.shape_polymorphic import ShapePolymorphicFunction, has_string_specs
from meshflow.core.functions.signatures import Args, FunctionSpec, Kwargs
from meshflow.core.functions.size_variants import SizeVariants, allow_unknown_sizes
from meshflow.core.functions.value_conversions import (
    check_unchanged,
    convert_result,
    is_tensor_or_spec,
    list_tensors,
    make_zeros,
    specify_strings,
    specify_tensors,
    specify_varying_parts,
    to_blank_tensor,
    to_result,
    to_size_tensor,
)
from meshflow.core.iterators.callback_infeed import ElementShapesError, TakenElements
from meshflow.core.iterators.iterator_captures import fetch_elements
from meshflow.core.runtime.context import context, emulate_graph
from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.runtime.identity_weak_dict import IdentityWeakDict
from meshflow.core.runtime.tracebacks import hide_frames, hide_frames_of_errors
from meshflow.core.tracing.trace import trace
from meshflow.core.values import nest
from meshflow.core.values.size_guards import GuardedSizes
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.trace_families import TraceFamily
from meshflow.core.variables.variable_creation import VariableNeedsEagerError
from meshflow.environment.types import Array, PyTree
from meshflow.interpreter import SizeGuardError

# Number of signatures of calls that were not compiled to remember.
_MAX_PYTHON_CALLS = 10


class Function:
    """A Python function that runs compiled; created by `tf.function`.

    Attributes:
      python_function: The original function; for a method, bound to its object.
      input_signature: A tuple of specs or None.
      python_calls: Arguments of calls that could not be compiled, with specs for tensors, by their keys; they can be saved.

    Example:
      >>> @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
      ... def total(x):
      ...     return tf.reduce_sum(x)
      >>> total([1.0, 2.0]).numpy().item(), total.input_signature[0].shape
      (3.0, TensorShape([None]))
    """

    def __init__(
        self,
        python_function: Callable[..., Any],
        input_signature: Sequence[Any] | None = None,
        autograph: bool = True,
        reduce_retracing: bool | None = False,
        name: str | None = None,
        instance: Callable[[], Any] | None = None,
        jit_compile: bool = False,
        attributes: Mapping[str, Any] | None = None,
        autograph_options: object = None,
    ) -> None:
        self._python_function = python_function
        self._instance = instance
        self.input_signature = None if input_signature is None else tuple(input_signature)
        self._autograph = autograph
        self._name = name or str(
            getattr(python_function, "__name__", type(python_function).__name__)
        )
        self._arguments = CallArguments(
            self._name, python_function, self.input_signature, method=instance is not None
        )
        self._cache: dict[Hashable, ConcreteFunction] = {}
        self._num_traces = 0
        self._trace_lock = threading.RLock()
        self._polymorphic_functions: dict[Hashable, ShapePolymorphicFunction] = {}
        self._bound_methods = IdentityWeakDict()
        # The method as an attribute of its object, while something holds it.
        self._present_method: Callable[[], BoundMethod | None] = lambda: None
        self._history = get_history(python_function)
        self._created_variables = False
        self._runs_as_python_on_host = False
        self._jit_compile = jit_compile
        self._runs_op_by_op = False
        # Whether the function reads tensors of a version 1 graph, so that no program is valid for all runs.
        self.reads_graph = False
        self._converted_function: Callable[..., Any] | None = None
        self._reduce_retracing = reduce_retracing
        # These options have no effect.
        self._attributes, self._experimental_autograph_options = attributes or {}, autograph_options
        self._families: dict[Hashable, TraceFamily[ConcreteFunction]] = {}
        # Specs of the first calls, if these were traced with symbolic sizes.
        self._first_calls: list[Any] = []
        self.python_calls: dict[Hashable, tuple[Args, Kwargs]] = {}
        self._signature_sizes = general_traces.list_declared_sizes(self.input_signature or ())
        # A function from a file runs op by op with symbolic sizes. Its programs for certain sizes are those of the file.
        self._is_stored = getattr(python_function, "is_stored_program", False)
        functools.update_wrapper(self, python_function, updated=())

    @property
    def function_spec(self) -> FunctionSpec:
        """Return the parameters of the function."""
        signature = self._arguments.get_python_signature()
        if signature is None:
            signature = inspect.signature(self._python_function)
        return FunctionSpec(signature, self.input_signature, self._name, self._jit_compile)

    def _decorate(self, decorator: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Decorate the Python function in place, before it is traced; Sonnet adds name scopes by this private method.

        Raises:
          ValueError: If the function was called or traced before.
        """
        if self._cache or self._families:
            raise ValueError(
                f"Functions cannot be decorated after they have been traced, and {self._name} has been. Decorate it first."
            )
        self._python_function = decorator(self._python_function)

    def _list_settings(self, owner: Callable[[], Any] | None = None) -> tuple[Any, ...]:
        """Return the arguments of the constructor after the Python function."""
        settings = self._autograph, self._reduce_retracing, self._name, owner, self._jit_compile
        options = self._attributes, self._experimental_autograph_options
        return self.input_signature, *settings, *options

    def _clone(self, python_function: Callable[..., Any]) -> Function:
        """Return a function with the same options that runs another Python function."""
        return Function(python_function, *self._list_settings())

    # ---- methods ---------------------------------------------------------------------------

    def __get__(self, instance: object, owner: type | None = None) -> Function:
        if instance is None:
            return self
        bound = self._bound_methods.get(instance)
        if bound is None:
            # The instance is held weakly, because a compiled method must not keep it alive.
            bound = self._bound_methods[instance] = self.bind_to(weakref.ref(instance))
        method = bound._present_method()
        if method is None:
            method = BoundMethod.__new__(BoundMethod)
            method.__dict__, method._function, method._owner = bound.__dict__, bound, instance
            bound._present_method = weakref.ref(method)
        return method

    def bind_to(self, owner: Callable[[], Any]) -> Function:
        """Create a method with the same function, bound to the object that `owner` returns."""
        bound = Function(self._python_function, *self._list_settings(owner))
        signature = self._arguments.get_python_signature()
        if signature is not None:
            # `inspect.signature` would otherwise include `self`.
            signature = signature.replace(parameters=[*signature.parameters.values()][1:])
            setattr(bound, "__signature__", signature)
        return bound

    @property
    def python_function(self) -> Callable[..., Any]:
        """Return the original function; for a method, bound to its object."""
        if self._instance is None:
            return self._python_function

        return MethodType(self._python_function, self._get_owner())

    def _run_python(self, args: Args, kwargs: Kwargs) -> PyTree:
        """Run the function as plain Python if it cannot be compiled."""
        if not self._is_stored and len(self.python_calls) < _MAX_PYTHON_CALLS and not context.tapes:
            call = nest.map_structure(specify_tensors, (args, kwargs))
            self.python_calls.setdefault(self._arguments.make_key(*call)[1], call)
        with emulate_graph():
            return self._call_python(self._python_function, args, kwargs)

    def _get_owner(self) -> Any:
        instance = self._instance() if self._instance is not None else None
        if instance is None:
            raise ReferenceError(f"{self._name} was called after its object was deleted.")
        return instance

    def _call_python(self, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> PyTree:
        if self._instance is None:
            return function(*args, **kwargs)
        return function(self._get_owner(), *args, **kwargs)

    # ---- calling ---------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Run the trace for these arguments; trace the function on the first call of this kind."""
        if context.graph is not None and context.trace is None:
            return context.graph.call(self, args, kwargs)
        if FunctionSettings.run_eagerly or (
            self._runs_as_python_on_host and context.computes_on_host
        ):
            return self._call_python(self._python_function, args, kwargs)
        if (
            self.reads_graph
            or (context.host_recorder is not None and context.host_recorder.inlines)
            or (context.size_probe is not None and context.size_probe.size)
        ):
            return self._call_python(self._get_converted(), args, kwargs)
        if self._runs_op_by_op and context.trace is None:
            return self._run_python(args, kwargs)
        if self.input_signature is not None:
            try:
                args, kwargs = self._arguments.convert_to_signature(args, kwargs)
            except Exception as error:
                hide_frames(error)
                raise
        self._history.calls += 1
        arrays, key = self._arguments.make_key(args, kwargs)
        concrete = self._cache.get(key)
        if concrete is None:
            # Tensors by position, the usual arguments of a stored program, are canonical.
            if not self._is_stored or kwargs or not all(type(leaf) is Tensor for leaf in args):
                args, kwargs = self._arguments.canonicalize(args, kwargs)
                arrays, key = self._arguments.make_key(args, kwargs)
                concrete = self._cache.get(key)
            if concrete is None:
                general = self._find_general(args, kwargs, key)
                is_nested = context.trace is not None or context.tapes
                if general is not None and not is_nested and general.should_interpret(arrays):
                    with contextlib.suppress(SizeGuardError):
                        result = general.interpret(arrays)
                        if FunctionSettings.called is not None:
                            FunctionSettings.called.setdefault(self._name, general)
                        return result
                if general is not None and general.variants and context.tapes and not context.trace:
                    return self._run_variants(general.variants, args, kwargs, arrays)
                had_variables = self._created_variables
                try:
                    concrete = self._trace_once(args, kwargs, key, general, runs=True)
                    if general is not None and not is_nested:
                        concrete.disable_interpreter()
                except VariableNeedsEagerError:
                    if context.trace is not None:
                        raise  # The outermost function runs eagerly.
                    return self._run_first_call(args, kwargs, had_variables)
                except ValueNeededError as error:
                    if context.trace is not None or self._jit_compile:
                        raise  # The outermost function runs eagerly, or the caller requires compilation.
                    if not context.computes_on_host:
                        retracing.warn_eager_fallback(self._name, error)
                        self._runs_op_by_op = True
                    return self._run_python(args, kwargs)
                except Exception as error:
                    if not context.computes_on_host or context.trace is not None:
                        hide_frames(error)
                        raise
                    # This part of a pipeline's function runs as Python: its sizes depend on values.
                    self._runs_as_python_on_host = True
                    return self._call_python(self._python_function, args, kwargs)
        concrete.last_use = self._history.calls
        if FunctionSettings.called is not None:
            FunctionSettings.called.setdefault(self._name, concrete)
        if concrete.variants is not None:
            return self._run_variants(concrete.variants, args, kwargs, arrays)
        if concrete.resizable_variables:
            concrete = self._match_shapes(concrete, args, kwargs, key)
        if concrete.traced.iterator_captures or concrete.traced.infeeds:
            concrete = self._fetch_elements(concrete, args, kwargs, key)
        if context.trace is None and not context.tapes:
            if concrete.traced.infeeds:
                return self._run_with_feeds(concrete, args, kwargs, arrays)
            return concrete.run_arrays(arrays)
        return concrete.run(list_tensors(args, kwargs))

    def _run_with_feeds(
        self, concrete: ConcreteFunction, args: Args, kwargs: Kwargs, arrays: list[Array]
    ) -> PyTree:
        """Run a function that requests elements; as Python from the first element with other shapes on."""
        taken = TakenElements()
        for feed, _ in concrete.traced.infeeds:
            feed.taken = taken
        try:
            return concrete.run_arrays(arrays)
        except ElementShapesError as error:
            if self._jit_compile or not taken.put_back():
                raise
            retracing.warn_eager_fallback(self._name, error)
            self._runs_op_by_op = True
        finally:
            for feed, _ in concrete.traced.infeeds:
                feed.taken = None
        return self._run_python(args, kwargs)

    def _run_variants(
        self,
        variants: SizeVariants[ConcreteFunction],
        args: Args,
        kwargs: Kwargs,
        arrays: list[Array],
    ) -> PyTree:
        """Run a function with sizes that depend on values."""
        if context.trace is not None:
            # The symbols of the sizes belong to the outermost trace.
            return self._trace(args, kwargs, None).run(list_tensors(args, kwargs))
        if context.tapes:
            return self._run_python(args, kwargs)
        try:
            return variants.run(lambda concrete: concrete.run_arrays(arrays))
        except SizeGuardError as error:
            result = self._run_python(args, kwargs)
            if error.__cause__ is not None:
                retracing.warn_eager_fallback(self._name, error.__cause__)
                self._runs_op_by_op = True
            return result

    def _find_general(
        self,
        args: Args,
        kwargs: Kwargs,
        key: Hashable,
        declared_sizes: Sequence[Sequence[int | None]] | None = None,
    ) -> ConcreteFunction | None:
        """Return a trace with symbolic sizes that is valid for these arguments or specs, or None.

        Args:
          args: Positional arguments or specs.
          kwargs: Keyword arguments or specs.
          key: Their key.
          declared_sizes: The sizes of the tensors, with None for unknown ones, if it is not an input signature that
            declares them.
        """
        if context.has_symbolic_sizes or context.exporting or context.place_output is not None:
            return None
        leaves = [leaf for leaf in nest.flatten_parts((args, kwargs)) if is_tensor_or_spec(leaf)]
        shapes = [tuple(leaf.shape) for leaf in leaves]
        family_key = general_traces.make_family_key(key)
        family = self._families.get(family_key)
        if family is None:
            sizes = declared_sizes or self._find_declared_sizes(args, kwargs)
            family = general_traces.create_family(
                sizes, shapes, args, kwargs, bool(self._reduce_retracing)
            )
            if family is None:
                return None
            self._families[family_key] = family
            # The key contains the ids of these objects, so they must exist as long as it.
            family.identity_arguments = self._arguments.list_identity_arguments(args, kwargs)
            if family.is_declared and declared_sizes is None:
                self._first_calls.append(nest.map_structure(to_spec, (args, kwargs)))
            if len(self._families) > retracing.MAX_TRACES:
                self._families.pop(next(iter(tuple(self._families))), None)
        if self._is_stored or not family.is_declared:
            # The function is traced for exact sizes, too.
            is_nested = context.trace is not None or context.tapes
            if is_nested or self._jit_compile or not is_interpreter_enabled():
                return None

        def trace_sizes(sizes: GuardedSizes) -> ConcreteFunction:
            specs = iter(map(TensorSpec, sizes.shapes, [leaf.dtype for leaf in leaves]))
            general_args, general_kwargs = nest.map_parts(
                lambda leaf: next(specs) if is_tensor_or_spec(leaf) else leaf, (args, kwargs)
            )
            try:
                concrete = self._trace(general_args, general_kwargs, None)
            except VariableNeedsEagerError:
                # A trace for exact sizes creates the variables.
                self._families.pop(family_key, None)
                raise
            if concrete.resizable_variables or captures_tracers(concrete.traced):
                raise NotImplementedError("captures of the function differ between its calls")
            concrete.sizes = sizes
            return concrete

        with self._trace_lock:
            return family.find(shapes, trace_sizes)

    def _find_declared_sizes(self, args: Args, kwargs: Kwargs) -> list[Any]:
        """Return the sizes of the tensors among arguments as the signature declares them; see `list_declared_sizes`."""
        return self._signature_sizes

    # ---- tracing ---------------------------------------------------------------------------

    def _trace_once(
        self,
        args: Args,
        kwargs: Kwargs,
        key: Hashable,
        general: ConcreteFunction | None,
        runs: bool = False,
    ) -> ConcreteFunction:
        """Trace the function for a signature, once for all threads, or specialize a trace with symbolic sizes."""
        with self._trace_lock:
            cached = self._cache.get(key)
            if cached is not None:
                return cached
            if not (general is None or self._is_stored or general.traced.has_unknown_sizes):
                concrete = general_traces.specialize(general, self._arguments, args, kwargs)
                if concrete is not None:
                    self._cache_trace(key, concrete, args, kwargs)
                    return concrete
            concrete = self._trace(args, kwargs, key, runs)
        is_counted = not self._reduce_retracing and context.batch_gradients is None
        if runs and self.input_signature is None and is_counted:
            owner = None if self._instance is None else self._instance()
            self._history.add_trace(
                retracing.describe_function(self._python_function, owner),
                lambda: general_traces.explain_trace(
                    list(self._cache.values()), concrete, self._arguments, args, kwargs
                ),
            )
        return concrete

    def _trace(
        self,
        args: Args,
        kwargs: Kwargs,
        key: Hashable | None,
        runs: bool = False,
        hints: Mapping[str, int] | None = None,
    ) -> ConcreteFunction:
        """Trace the function, and cache the trace if it has a key.

        Args:
          args: Positional arguments.
          kwargs: Keyword arguments.
          key: The key, or None.
          runs: Whether the trace runs directly afterwards.
          hints: Sizes that depend on values, by which comparisons are decided.
        """
        signature = nest.map_structure(to_spec, (args, kwargs))
        created_before = self._created_variables
        created: list[Any] = []
        holders: list[Any] = [created]
        converted = self._get_converted()

        def run(*args: Any, **kwargs: Any) -> PyTree:
            copied = nest.map_structure(lambda leaf: leaf, (args, kwargs))
            scope: Any = context.trace
            scope.function = self
            result = self._call_python(converted, args, kwargs)
            if context.has_symbolic_sizes:
                result = nest.map_structure(to_size_tensor, result)
            check_unchanged(self._name, (args, kwargs), copied)
            created.extend(scope.created)
            holders.extend([scope.created, scope.sources, scope.writes])
            return result

        allows = contextlib.nullcontext() if self._jit_compile else allow_unknown_sizes(hints or {})
        with allows:
            traced = trace(run, args, kwargs, name=self._name, isolated=True, runs_immediately=runs)
        traced.structure = convert_result(self._name, traced.structure)
        traced.allows_simplification = self._jit_compile
        if created:
            holders.extend([traced.captures, traced.writes])
            check_created_variables(
                self._name, created, holders, is_first=not (created_before or self._cache)
            )
            self._created_variables = True
            if not traced.sets_initial_values:
                # As in TensorFlow, this second trace raises the error if it creates variables again.
                return self._trace(args, kwargs, key, runs, hints)
        traced.record_iterator_positions(nest.flatten((args, kwargs)))
        concrete = ConcreteFunction(traced, signature, self._arguments.list_parameter_names())
        concrete.is_stored = self._is_stored
        if traced.has_unknown_sizes and context.trace is None:
            concrete.check_unknown_sizes()
            # Without the arrays of the arguments, which the variants must not keep.
            spec_args, spec_kwargs = nest.map_parts(to_spec, (args, kwargs))
            concrete.variants = SizeVariants(
                concrete, lambda hints: self._trace(spec_args, spec_kwargs, None, hints=hints)
            )
        elif traced.has_unknown_sizes:
            key = None
        self._num_traces += 1
        if (
            key is not None
            and not traced.sets_initial_values
            and not captures_tracers(concrete.traced)
        ):
            self._cache_trace(key, concrete, args, kwargs)
        return concrete

    def _cache_trace(
        self, key: Hashable, concrete: ConcreteFunction, args: Args, kwargs: Kwargs
    ) -> None:
        """Cache a trace; if there are too many, delete the one with the oldest last call."""
        concrete.last_use = self._history.calls
        concrete.identity_arguments = self._arguments.list_identity_arguments(args, kwargs)
        self._cache[key] = concrete
        if len(self._cache) > retracing.MAX_TRACES:
            # The dictionary is copied, because other threads may cache traces at the same time.
            items = list(self._cache.items())
            oldest, _ = min(items, key=lambda item: item[1].last_use)
            self._cache.pop(oldest, None)

    def _match_shapes(
        self, concrete: ConcreteFunction, args: Args, kwargs: Kwargs, key: Hashable
    ) -> ConcreteFunction:
        """Return the function traced for the current shapes of variables with variable shapes."""
        while any(variable._shape != shape for variable, shape in concrete.resizable_variables):
            # A trace for other shapes may use other variables.
            key = key, tuple((id(v), v._shape) for v, _ in concrete.resizable_variables)
            concrete = self._cache.get(key) or self._trace(args, kwargs, key)
        concrete.last_use = self._history.calls
        return concrete

    def _fetch_elements(
        self, concrete: ConcreteFunction, args: Args, kwargs: Kwargs, key: Hashable
    ) -> ConcreteFunction:
        """Fetch the iterator elements for a call; trace again if their shapes differ."""
        leaves = nest.flatten((args, kwargs))
        shapes: tuple[Hashable, ...] = ()
        while True:
            concrete.traced.bind_iterators(leaves)
            other_shapes = fetch_elements(concrete.traced.iterator_captures)
            if other_shapes is None:
                return concrete
            shapes += (other_shapes,)
            found = self._cache.get((key, shapes))
            concrete = found or self._trace(args, kwargs, (key, shapes))
            concrete.last_use = self._history.calls

    def _get_converted(self) -> Callable[..., Any]:
        if self._converted_function is None:
            self._converted_function = self._python_function
            if self._autograph:
                self._converted_function = convert(self._python_function)
        return self._converted_function

    def _run_first_call(self, args: Args, kwargs: Kwargs, had_variables: bool = True) -> PyTree:
        """Run the function eagerly once, so that ops can compute initial values of variables.

        Args:
          args: Positional arguments.
          kwargs: Keyword arguments.
          had_variables: Whether the function had created variables before this call was traced.

        Raises:
          ValueError: If it creates variables in a later call.
        """
        with self._trace_lock:
            if not self._created_variables:
                result = self._run_python(args, kwargs)
                self._created_variables = True
                return nest.map_structure(to_result, result)
        if not had_variables:
            # The first call in another thread has created the variables during this trace.
            return self(*args, **kwargs)
        raise ValueError(
            "tf.function only supports singleton tf.Variables created on the first call; "
            f"{self._name} creates one in a later call. Create it outside the function."
        )

    def experimental_get_tracing_count(self) -> int:
        """Return how often the Python function has been traced."""
        return self._num_traces

    @hide_frames_of_errors
    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """Return the traced function for arguments or specs.

        Args:
          *args: Tensors, `TensorSpec`s or Python values.
          **kwargs: The same, by name.

        Returns:
          A `ConcreteFunction`.

        Raises:
          TypeError: If the arguments do not match the input signature.
        """
        if self.input_signature is not None:
            if args or kwargs:
                self._arguments.convert_to_signature(args, kwargs)
            args, kwargs = self.input_signature, {}
        concrete = self.get_concrete_for(*nest.map_structure(specify_strings, (args, kwargs)))
        if isinstance(concrete, ConcreteFunction):
            specs = nest.map_structure(to_spec, (args, kwargs))
            concrete.retrace = functools.partial(_make_retraced, self._make_factory(), *specs)
        return concrete

    def _list_all_concrete_functions_for_serialization(self) -> list[ConcreteFunction]:
        return list(self._cache.values())

    _list_all_concrete_functions = _list_all_concrete_functions_for_serialization

    def get_initialization_function(self, *args: Any, **kwargs: Any) -> Function:
        """Create the variables of the function by tracing it, and return a function that does nothing further.

        Args:
          *args: Arguments of the function, or specs.
          **kwargs: The same, by name.

        Raises:
          RuntimeError: If the function has created its variables already.
        """
        if self._created_variables:
            raise RuntimeError(
                "get_initialization_function cannot be called after the function has been used"
            )
        self.get_concrete_function(*args, **kwargs)
        return Function(lambda: None)

    def experimental_get_compiler_ir(self, *args: Any, **kwargs: Any) -> Callable[..., str | bytes]:
        """Return a function of `stage` that returns the compiled program for arguments as text or bytes.

        Args:
          *args: Arguments of the function, or specs of known sizes.
          **kwargs: The same, by name.

        Returns:
          A function with the parameters `stage` (`"hlo"`, `"hlo_serialized"`, `"optimized_hlo"`,
          `"optimized_hlo_serialized"`, `"optimized_hlo_proto_serialized"` or `"stablehlo"`) and `device_name`, which is
          ignored.

        Raises:
          ValueError: If the function has no `jit_compile=True`, a size of the arguments is unknown, or `stage` is unknown.

        Example:
          >>> @tf.function(jit_compile=True)
          ... def double(x):
          ...     return x * 2
          >>> double.experimental_get_compiler_ir(tf.constant([1.0]))(stage="hlo").split()[0]
          'HloModule'
        """
        if not self._jit_compile:
            raise ValueError(
                "Compiler IR can only be returned for functions marked with 'jit_compile=True'."
            )
        return make_program_reader(self.get_concrete_for(args, kwargs), (args, kwargs))

    def _make_factory(self) -> Callable[[], Function]:
        """Return a factory of this function that refers neither to it nor to its owner."""
        if self._instance is None:
            make, arguments = self.__reduce__()
            return functools.partial(make, *arguments)
        instance, name = self._instance, self._name
        return lambda: getattr(instance(), name)

    def get_concrete_for(self, args: Args, kwargs: Kwargs) -> ConcreteFunction:
        """Return the concrete function for exactly these arguments, also with an input signature."""
        args, kwargs = self._arguments.canonicalize(args, kwargs)
        args, kwargs = nest.map_structure(specify_varying_parts, (args, kwargs))
        specs = [s for s in nest.flatten_parts((args, kwargs)) if isinstance(s, TensorSpec)]
        if any(not s.shape.is_fully_defined() for s in specs) or has_string_specs((args, kwargs)):
            return self._get_polymorphic(args, kwargs)  # type: ignore[return-value]
        _, key = self._arguments.make_key(args, kwargs)
        concrete = self._cache.get(key)
        if concrete is None:
            try:
                general = None if self._is_stored else self.find_general_for(args, kwargs)
                concrete = self._trace_once(args, kwargs, key, general)
            except VariableNeedsEagerError:
                zeros = nest.map_structure(make_zeros, (args, kwargs))
                self._run_first_call(*zeros)
                concrete = self._trace(args, kwargs, key)
        return concrete

    def trace_first_calls(self) -> None:
        """Trace the function for the exact sizes of its first calls, for code that saves such traces."""
        for args, kwargs in self._first_calls:
            self.get_concrete_for(args, kwargs)

    def find_general_for(
        self,
        args: Args,
        kwargs: Kwargs,
        sizes: Sequence[Sequence[int | None]] | None = None,
    ) -> ConcreteFunction | None:
        """Return a trace with symbolic sizes that is valid for specs, or None.

        Args:
          args: Positional arguments with tensors, or specs of known sizes.
          kwargs: The same by name.
          sizes: The sizes of the tensors, with None for unknown ones; by default those of the input signature.
        """
        # The key of calls with tensors.
        _, key = self._arguments.make_key(*nest.map_structure(to_blank_tensor, (args, kwargs)))
        return self._find_general(args, kwargs, key, sizes)

    def _get_polymorphic(self, args: Args, kwargs: Kwargs) -> ShapePolymorphicFunction:
        _, key = self._arguments.make_key(args, kwargs)
        if key not in self._polymorphic_functions:
            self._polymorphic_functions[key] = ShapePolymorphicFunction(self, args, kwargs)
        return self._polymorphic_functions[key]

    def pretty_printed_concrete_signatures(self, verbose: bool = True) -> str:
        """Describe the parameters and results of the traced functions, in one paragraph each."""
        return "\n\n".join(c.pretty_printed_signature(verbose) for c in self._cache.values())

    @property
    def pretty_printed_signatures(self) -> str:
        """Return `pretty_printed_concrete_signatures()`."""
        return self.pretty_printed_concrete_signatures()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self._instance is not None:
            return _get_bound_method, (self._get_owner(), self._name)
        return Function, (self._python_function, *self._list_settings())

    def __repr__(self) -> str:
        return f"<meshflow.function {self._name}>"


class BoundMethod(Function):
    """A method as an attribute of its object, which it keeps alive as other methods do; see `Function.__get__`."""

    __slots__ = ("_function", "_owner")

    _function: Function
    _owner: object

    def _get_polymorphic(self, args: Args, kwargs: Kwargs) -> ShapePolymorphicFunction:
        # It belongs to the state of the method, which must not keep the object alive.
        return self._function._get_polymorphic(args, kwargs)


def _get_bound_method(instance: object, name: str) -> Any:
    """Return a method of an unpickled object; the method keeps the object alive."""
    function = getattr(type(instance), name, None)
    if isinstance(function, Function):
        return function.bind_to(lambda: instance)
    return getattr(instance, name)


def _make_retraced(
    make: Callable[[], Function], args: Args, kwargs: Kwargs
) -> ShapePolymorphicFunction:
    return ShapePolymorphicFunction(make(), args, kwargs)
