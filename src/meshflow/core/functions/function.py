"""`tf.function` traces once for each input signature, then runs the compiled program.

A `Function` holds one `ConcreteFunction` for each signature: the structure of the arguments, the
shapes and dtypes of tensors, and the values of all other arguments (see `call_arguments`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, overload

import jax
import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.autograph import convert
from meshflow.core.dispatch.tiers import is_interpreter_enabled
from meshflow.core.functions import retracing
from meshflow.core.functions.call_arguments import (
    CallArguments,
    is_tensor_argument,
    to_spec,
)
from meshflow.core.functions.concrete_function import ConcreteFunction, FunctionSettings
from meshflow.core.functions.function_types import Parameters, Polymorphic, Result
from meshflow.core.functions.retracing import get_history
from meshflow.core.functions.shape_polymorphic import ShapePolymorphicFunction, has_string_specs
from meshflow.core.functions.signatures import Args, FunctionSpec, Kwargs
from meshflow.core.functions.size_variants import SizeVariants, allow_unknown_sizes
from meshflow.core.iterators.callback_infeed import ElementShapesError, TakenElements
from meshflow.core.runtime.context import context, emulate_graph
from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.runtime.identity_weak_dict import IdentityWeakDict
from meshflow.core.runtime.tracebacks import hide_frames, hide_frames_of_errors
from meshflow.core.tracing.trace import TracedFunction, trace
from meshflow.core.values import dtypes, nest
from meshflow.core.values.composite import CompositeTensor, can_split, list_part_sizes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape, as_shape
from meshflow.core.values.size_guards import GuardedSizes
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.values.symbolic_sizes import has_symbolic_size, make_sizes_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.trace_families import TraceFamily
from meshflow.core.variables.variable import Variable
from meshflow.core.variables.variable_creation import VariableNeedsEagerError
from meshflow.environment.garbage_collection import LOCAL_REFERENCES
from meshflow.environment.types import Array, PyTree
from meshflow.interpreter import SizeGuardError
from meshflow.passes.size_specialization import can_differentiate

_log = logging.getLogger("meshflow")

# Types of results that cannot become tensors.
_OTHER_TYPES = (
    *(object, set, frozenset, slice, type),
    *(GeneratorType, FunctionType, BuiltinFunctionType, ModuleType),
)
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
        self._signature_sizes = list_declared_sizes(self.input_signature or ())
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
            call = nest.map_structure(_specify_tensors, (args, kwargs))
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
                        warn_eager_fallback(self._name, error)
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
        tensors = [leaf for leaf in nest.flatten_parts((args, kwargs)) if is_tensor_argument(leaf)]
        return concrete.run([convert_to_tensor(t) for t in tensors])

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
            warn_eager_fallback(self._name, error)
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
            tensors = [
                leaf for leaf in nest.flatten_parts((args, kwargs)) if is_tensor_argument(leaf)
            ]
            concrete = self._trace(args, kwargs, None)
            return concrete.run([convert_to_tensor(t) for t in tensors])
        if context.tapes:
            return self._run_python(args, kwargs)
        try:
            return variants.run(lambda concrete: concrete.run_arrays(arrays))
        except SizeGuardError as error:
            result = self._run_python(args, kwargs)
            if error.__cause__ is not None:
                warn_eager_fallback(self._name, error.__cause__)
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
        parts: Any = key
        family_key = parts[0], tuple(map(_omit_sizes, parts[1])), *parts[2:]
        family = self._families.get(family_key)
        leaves = [leaf for leaf in nest.flatten_parts((args, kwargs)) if _is_tensor_or_spec(leaf)]
        shapes = [tuple(leaf.shape) for leaf in leaves]
        if family is None:
            argument_sizes = declared_sizes or self._find_declared_sizes(args, kwargs)
            known_sizes: Sequence[Sequence[int | None]] | None = argument_sizes
            ranks = [None if sizes is None else len(sizes) for sizes in argument_sizes]
            is_declared = any(sizes and None in sizes for sizes in argument_sizes)
            if not is_declared or ranks != [len(s) for s in shapes]:
                known_sizes = None
                # The number of values in rows, or of elements, is always unknown.
                if not (self._reduce_retracing or is_declared) and not any(
                    isinstance(leaf, CompositeTensor) for leaf in nest.flatten((args, kwargs))
                ):
                    return None
            family = self._families[family_key] = TraceFamily(known_sizes)
            # The key contains the ids of these objects, so they must exist as long as it.
            family.identity_arguments = self._arguments.list_identity_arguments(args, kwargs)
            if known_sizes is not None and declared_sizes is None:
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
                lambda leaf: next(specs) if _is_tensor_or_spec(leaf) else leaf, (args, kwargs)
            )
            try:
                concrete = self._trace(general_args, general_kwargs, None)
            except VariableNeedsEagerError:
                # A trace for exact sizes creates the variables.
                self._families.pop(family_key, None)
                raise
            if concrete.resizable_variables or _captures_tracers(concrete.traced):
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
                concrete = self._specialize(general, args, kwargs)
                if concrete is not None:
                    self._cache_trace(key, concrete, args, kwargs)
                    return concrete
            concrete = self._trace(args, kwargs, key, runs)
        is_counted = not self._reduce_retracing and context.batch_gradients is None
        if runs and self.input_signature is None and is_counted:
            owner = None if self._instance is None else self._instance()
            self._history.add_trace(
                retracing.describe_function(self._python_function, owner),
                lambda: self._explain_trace(concrete, args, kwargs),
            )
        return concrete

    def _specialize(
        self, general: ConcreteFunction, args: Args, kwargs: Kwargs
    ) -> ConcreteFunction | None:
        """Return a trace with symbolic sizes for the sizes of arguments or specs; None if its derivatives would differ."""
        sizes = general.sizes
        is_differentiable = context.trace is not None or context.tapes
        if sizes is None or (
            is_differentiable and not can_differentiate(general.traced.closed_jaxpr)
        ):
            return None
        leaves = nest.flatten_parts((args, kwargs))
        shapes = [tuple(leaf.shape) for leaf in leaves if _is_tensor_or_spec(leaf)]
        signature = nest.map_structure(to_spec, (args, kwargs))
        concrete = ConcreteFunction(
            general.traced.specialize(sizes, shapes),
            signature,
            self._arguments.list_parameter_names(),
        )
        concrete.is_stored = general.is_stored
        return concrete

    def _explain_trace(self, concrete: ConcreteFunction, args: Args, kwargs: Kwargs) -> str:
        """Return the reason why the arguments of a call needed a new trace."""
        others = [other for other in list(self._cache.values()) if other is not concrete]
        others.sort(key=lambda other: -other.last_use)
        return retracing.explain_change(
            [
                self._arguments.label_leaves(*other.structured_input_signature)
                for other in others[: retracing.MAX_COMPARED]
            ],
            self._arguments.label_leaves(args, kwargs),
        )

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
                result = nest.map_structure(_to_size_tensor, result)
            if _is_changed((args, kwargs), copied):
                raise ValueError(
                    f"{self._name} should not modify its Python input arguments, but it changed a list or dictionary "
                    "among them. Change a copy instead."
                )
            created.extend(scope.created)
            holders.extend([scope.created, scope.sources, scope.writes])
            return result

        allows = contextlib.nullcontext() if self._jit_compile else allow_unknown_sizes(hints or {})
        with allows:
            traced = trace(run, args, kwargs, name=self._name, isolated=True, runs_immediately=runs)
        traced.structure = nest.map_structure(_to_known_tensor, traced.structure)
        self._check_result(traced.structure)
        traced.allows_simplification = self._jit_compile
        if created:
            holders.extend([traced.captures, traced.writes])
            if created_before or self._cache or _is_unreferenced(created, holders):
                raise ValueError(
                    "tf.function only supports singleton tf.Variables created on the first call. Make sure "
                    f"the tf.Variable is only created once or created outside tf.function. {self._name} "
                    f"created {[v.name for v in created]} in a later call, or did not keep it. See "
                    "https://www.tensorflow.org/guide/function#creating_tfvariables for more information."
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
            and not _captures_tracers(concrete.traced)
        ):
            self._cache_trace(key, concrete, args, kwargs)
        return concrete

    def _check_result(self, result: PyTree) -> None:
        """Raise an error if the function returns an object that is no tensor."""
        for leaf in nest.flatten(result):
            if type(leaf) in _OTHER_TYPES:
                raise TypeError(
                    "To be compatible with tf.function, Python functions must return zero or more Tensors or "
                    f"ExtensionTypes or None values; in compilation of {self._name}, found return value of type "
                    f"{type(leaf).__name__}, which is not a Tensor or ExtensionType."
                )

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
            fetched: list[Any] = []
            for capture in concrete.traced.iterator_captures:
                if not capture.fetch():
                    break
                fetched.append(capture)
            else:
                return concrete
            for earlier in reversed(fetched):
                earlier.put_back()
            shapes += (capture.get_next_shapes(),)
            cached = self._cache.get((key, shapes))
            if cached is None:
                cached = self._trace(args, kwargs, (key, shapes))
            concrete = cached
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
                return nest.map_structure(_to_result, result)
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
        concrete = self.get_concrete_for(*nest.map_structure(_specify_strings, (args, kwargs)))
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
        concrete = self.get_concrete_for(args, kwargs)
        if not isinstance(concrete, ConcreteFunction):
            raise ValueError(
                f"Only support static input shape but got inputs = {(args, kwargs)}. Pass tensors or specs of known sizes."
            )
        return functools.partial(_read_program, concrete)

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
        args, kwargs = nest.map_structure(_specify_varying_parts, (args, kwargs))
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
                zeros = nest.map_structure(_make_zeros, (args, kwargs))
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
        _, key = self._arguments.make_key(*nest.map_structure(_to_blank_tensor, (args, kwargs)))
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


def _read_program(
    concrete: ConcreteFunction, stage: str = "hlo", device_name: str | None = None
) -> str | bytes:
    """Return a program of XLA at a stage of its compilation."""
    arguments = [
        jax.ShapeDtypeStruct(a.shape, a.dtype) for a in concrete.traced.closed_jaxpr.in_avals
    ]
    count = len(concrete.traced.captures)
    operands = arguments[: len(arguments) - count], arguments[len(arguments) - count :]
    lowered = concrete.lower(*operands)
    if stage == "stablehlo":
        return lowered.as_text()
    if stage in ("hlo", "hlo_serialized"):
        module: Any = lowered.compiler_ir("hlo")
        return module.as_hlo_text() if stage == "hlo" else module.as_serialized_hlo_module_proto()
    if stage not in (
        "optimized_hlo",
        "optimized_hlo_serialized",
        "optimized_hlo_proto_serialized",
    ):
        raise ValueError(f"Invalid stage {stage!r} of a compiled program.")
    executable: Any = lowered.compile().runtime_executable()
    (compiled,) = executable.hlo_modules()
    return (
        compiled.to_string()
        if stage == "optimized_hlo"
        else compiled.as_serialized_hlo_module_proto()
    )


def _get_bound_method(instance: object, name: str) -> Any:
    """Return a method of an unpickled object; the method keeps the object alive."""
    function = getattr(type(instance), name, None)
    if isinstance(function, Function):
        return function.bind_to(lambda: instance)
    return getattr(instance, name)


def list_declared_sizes(specs: PyTree) -> list[Any]:
    """Return the sizes of the tensors of each spec, with None for unknown ones; None for an unknown rank."""
    leaves = [leaf for leaf in nest.flatten(specs) if isinstance(leaf, TypeSpec)]
    return [sizes for spec in leaves for sizes in list_part_sizes(spec)]


def _make_retraced(
    make: Callable[[], Function], args: Args, kwargs: Kwargs
) -> ShapePolymorphicFunction:
    return ShapePolymorphicFunction(make(), args, kwargs)


def _omit_sizes(leaf_key: Hashable) -> Hashable:
    """Replace the shape in the key of an array by its rank."""
    match leaf_key:
        case (tuple() as shape, np.dtype() as dtype):
            return len(shape), dtype
    return leaf_key


def warn_eager_fallback(name: str, error: BaseException) -> None:
    """Log that a function is not compiled, with the reason."""
    _log.warning(
        "%s runs op by op, not compiled, as sizes in compiled programs are static: %s", name, error
    )


def _to_blank_tensor(leaf: object) -> object:
    """Replace a spec by a tensor without memory for its elements."""
    if isinstance(leaf, TensorSpec) and _is_tensor_or_spec(leaf):
        return Tensor(np.broadcast_to(np.zeros((), leaf.dtype.dtype), tuple(leaf.shape)))
    return leaf


def _make_zeros(leaf: object) -> object:
    if isinstance(leaf, TensorSpec):
        return Tensor(jax.numpy.zeros(tuple(leaf.shape.as_list()), leaf.dtype.dtype))
    return leaf


def _to_known_tensor(leaf: object) -> object:
    """Convert numbers, strings and shapes that a function returns to tensors."""
    is_constant = isinstance(leaf, (bool, int, float, complex, str, bytes, np.generic))
    if is_constant or (isinstance(leaf, TensorShape) and leaf.is_fully_defined()):
        return convert_to_tensor(leaf)
    return leaf


def _to_size_tensor(leaf: PyTree) -> object:
    """Convert symbolic sizes and shapes that a function returns to tensors."""
    if is_symbolic_dim(leaf):
        return make_sizes_tensor(leaf, np.int32)
    if isinstance(leaf, TensorShape) and leaf.rank and has_symbolic_size(as_shape(leaf)):
        return make_sizes_tensor(tuple(as_shape(leaf)), np.int32)
    return leaf


def _specify_tensors(leaf: PyTree) -> PyTree:
    return to_spec(_specify_strings(leaf))


def _specify_strings(leaf: PyTree) -> PyTree:
    if isinstance(leaf, CompositeTensor) and not can_split(leaf):
        return leaf._type_spec
    is_text = isinstance(leaf, Tensor) and leaf.dtype is dtypes.string
    return TensorSpec.from_tensor(leaf) if is_text else leaf


def _specify_varying_parts(leaf: PyTree) -> PyTree:
    """Return the spec of a composite tensor with a part of unknown size, as of a ragged or sparse tensor."""
    if not isinstance(leaf, CompositeTensor) or not can_split(leaf):
        return leaf
    spec = leaf._type_spec
    is_varying = any(sizes is None or None in sizes for sizes in list_part_sizes(spec))
    return spec if is_varying else leaf


def _is_tensor_or_spec(leaf: object) -> bool:
    if isinstance(leaf, TensorSpec):
        return leaf.dtype is not dtypes.string
    return is_tensor_argument(leaf)


def _captures_tracers(traced: TracedFunction) -> bool:
    """Check whether a function uses tensors of an outer trace, so that it cannot be called again."""
    return any(
        isinstance(c, Tensor) and isinstance(c.array, jax.core.Tracer) for c in traced.captures
    )


def _is_changed(arguments: PyTree, copied: PyTree) -> bool:
    """Check whether lists or dictionaries among the arguments changed since they were copied."""
    try:
        nest.assert_same_structure(arguments, copied)
    except (TypeError, ValueError):
        return True
    pairs = zip(nest.flatten(arguments), nest.flatten(copied), strict=True)
    return any(now is not before for now, before in pairs)


def _to_result(leaf: Any) -> Any:
    return convert_to_tensor(leaf) if isinstance(leaf, Variable) else _to_known_tensor(leaf)


def _is_unreferenced(variables: list[Any], holders: list[Any]) -> bool:
    """Check whether only the records of its trace refer to one of the variables."""
    known = {id(holder) for holder in [*holders, variables]}
    # A generator over the variables would be a holder, too.
    for variable in variables:
        key = id(variable)
        referrers = gc.get_referrers(variable)
        # `gc.get_referrers` omits objects that imports have frozen, so their references are counted.
        hidden = sys.getrefcount(variable) - LOCAL_REFERENCES
        for referrer in referrers:
            hidden -= list(map(id, gc.get_referents(referrer))).count(key)
        if not hidden and all(id(r) in known or inspect.isframe(r) for r in referrers):
            return True
    return False


@overload
def function(
    func: Callable[Parameters, Result],
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_implements: object = None,
    experimental_autograph_options: object = None,
    experimental_attributes: Mapping[str, Any] | None = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    experimental_follow_type_hints: bool | None = None,
) -> Polymorphic[Parameters, Result]: ...
@overload
def function(
    func: None = None,
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_implements: object = None,
    experimental_autograph_options: object = None,
    experimental_attributes: Mapping[str, Any] | None = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    experimental_follow_type_hints: bool | None = None,
) -> Callable[[Callable[Parameters, Result]], Polymorphic[Parameters, Result]]: ...
def function(
    func: Callable[..., Any] | None = None,
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_implements: object = None,
    experimental_autograph_options: object = None,
    experimental_attributes: Mapping[str, Any] | None = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    experimental_follow_type_hints: bool | None = None,
) -> Any:
    """Compile a Python function of tensors.

    The function is traced when it is called with a new signature: the shapes and dtypes of its
    tensor arguments and the values of all others. Later calls run the traced program: op by op until
    compiling it with XLA pays off, then compiled. A function caches its 512 most recently used
    traces; an older one is traced again when it is called. With None sizes in the `input_signature`, the
    function is traced once, for any size; `x.shape` then has unknown sizes. With ragged or other composite arguments, or
    with `reduce_retracing`, the second size is traced for any size. A program with sizes that depend on values (`tf.boolean_mask`, `tf.where` with one argument, slices
    up to a computed end) always runs op by op, unless `jit_compile` is True.

    Args:
      func: The function; None to use `tf.function(...)` as a decorator with arguments.
      input_signature: A sequence of `TensorSpec`s (or structures of them) for arguments.
      autograph: Whether Python `if`, `while`, `for` on tensors become XLA control flow.
      jit_compile: Whether to compile the function at its first call, and raise an error if XLA cannot. XLA may then also simplify
        arithmetic as if numbers were real: `log(exp(x))` to `x`. By default, results are those of
        separate operations.
      reduce_retracing: Whether to trace the function for any size at its second size, and to disable the warning about frequent
        retracing.
      experimental_implements: Ignored.
      experimental_autograph_options: Ignored.
      experimental_attributes: Ignored.
      experimental_relax_shapes: The old name of `reduce_retracing`.
      experimental_compile: The old name of `jit_compile`.
      experimental_follow_type_hints: Ignored.

    Returns:
      A `Function`, or a decorator.

    Raises:
      TypeError: If `func` is not callable or the signature is not a sequence.

    Example:
      >>> @tf.function
      ... def square_if_positive(x):
      ...     if x > 0:
      ...         return x * x
      ...     else:
      ...         return x
      >>> float(square_if_positive(tf.constant(3.0)))
      9.0
    """
    if input_signature is not None and not isinstance(input_signature, (list, tuple)):
        raise TypeError(
            f"input_signature must be either a tuple or a list, got {type(input_signature)}."
        )
    for spec in nest.flatten(input_signature or ()):
        if not isinstance(spec, TypeSpec):
            raise TypeError(
                "input_signature must be a possibly nested sequence of TensorSpec objects, got "
                f"{spec!r} of type {type(spec).__name__}."
            )

    must_compile = bool(jit_compile or experimental_compile)
    reduce = reduce_retracing if experimental_relax_shapes is None else experimental_relax_shapes
    attributes = dict(experimental_attributes or {})
    if experimental_implements is not None:
        attributes["api_implements"] = experimental_implements

    def decorate(target: Callable[..., Any]) -> Function:
        if not callable(target):
            raise TypeError(f"tf.function: {target!r} is not a callable object.")
        return Function(
            target,
            input_signature,
            autograph,
            reduce,
            jit_compile=must_compile,
            attributes=attributes,
            autograph_options=experimental_autograph_options,
        )

    return decorate if func is None else decorate(func)
