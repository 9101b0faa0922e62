"""`tf.function`: trace once per input signature, then run compiled.

A `Function` holds one `ConcreteFunction` per signature: the structure of the arguments, shapes
and dtypes of tensors, and the values of everything else. A `ConcreteFunction` owns a `Traced`
and its compiled form, in which variables that the function writes are donated, so that XLA
updates them in place.
"""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core import dtypes, host_calls, nest
from meshflow.core.context import context
from meshflow.core.convert import convert_to_tensor
from meshflow.core.dispatch import Rules
from meshflow.core.errors import DtypeMismatchError, NotFiniteError
from meshflow.core.fetching import lost_worker
from meshflow.core.places import about_places, different_places
from meshflow.core.pulls import Source
from meshflow.core.rewriting import Rewriting, rewritten
from meshflow.core.shapes import TensorShape
from meshflow.core.signatures import describe, heading, match, named_specs
from meshflow.core.specs import TensorSpec, TypeSpec
from meshflow.core.tensor import Tensor
from meshflow.core.trace import Traced, trace
from meshflow.core.variable import Variable, VariableNeedsEagerError

_log = logging.getLogger("meshflow")


class Settings:
    """Process-wide switches of `tf.config`.

    Attributes:
      run_eagerly: functions run as plain Python.
      progress: called whenever a compiled function was started; set by who watches this process.
    """

    run_eagerly = False
    progress: Callable[[], None] | None = None


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
            if len(given) != len(specs) or len(given) != len(nest.flatten(args)) + len(kwargs):
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
    """

    def __init__(
        self, traced: Traced, signature: tuple[Any, Any], parameters: Sequence[str] = ()
    ) -> None:
        self.name = traced.name
        self.traced = traced
        self._parameters = parameters
        self.structured_input_signature = named_specs(signature, parameters)
        written = {id(v) for v in traced.writes}
        offset = len(traced.closed.in_avals) - len(traced.captures)
        donated = [offset + i for i, c in enumerate(traced.captures) if id(c) in written]
        self._donated = [c for c in traced.captures if id(c) in written]
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
        self._compile()

    @property
    def _any_traced(self) -> Traced:
        return self.traced

    def _compile(self, ordered: bool = True) -> None:
        self._version = Rewriting.version
        program = _named(self.traced, ordered)
        self._compiled = jax.jit(program, donate_argnums=self._donated_at)

    @property
    def structured_outputs(self) -> Any:
        """The result structure with specs for tensors."""
        structure = self.traced.rebuild(self.traced.out_specs)
        return nest.map_structure(
            lambda leaf: TensorSpec.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf,
            structure,
        )

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

    def run_arrays(self, arrays: list[Any]) -> Any:
        """The short way: no tape, no enclosing trace."""
        if self._version != Rewriting.version:
            self._compile()
        for variable in self._donated:
            # A buffer that somebody else holds (a tensor read earlier) must survive the call.
            if sys.getrefcount(variable._value) > 2:
                variable._value = jax.numpy.array(variable._value, copy=True)
        traced = self.traced
        captured = [c._value for c in traced.captures]
        if Settings.progress is not None:
            Settings.progress()
        try:
            if self._calls_python:
                outputs = self._finish([*arrays, *captured])
            else:
                outputs = self._compiled(*arrays, *captured)
        except FloatingPointError as error:
            raise NotFiniteError(f"{NotFiniteError.TEXT}, in function {self.name}") from error
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            if about_places(error):
                names = [f"argument {i}" for i in range(len(arrays))]
                names += [getattr(c, "_shared_name", "") for c in traced.captures]
                values = list(zip(names, [*arrays, *captured], strict=True))
                raise different_places(self.name, values) from None
            lost = lost_worker(error)
            if lost is None:
                raise
            raise lost from error
        count = len(traced.writes)
        for variable, value in zip(traced.writes, outputs, strict=False):
            variable._value = value
        results = outputs[count:]
        if context.placing is not None:
            results = [context.placing(o) for o in results]
        return traced.rebuild([Tensor(o) for o in results])

    def _finish(self, arrays: list[Any]) -> Any:
        try:
            return host_calls.finish(self._compiled, *arrays)
        except ValueError as error:
            # Nothing ran: where the arguments lie is known only now.
            if not host_calls.needs_no_order(error):
                raise
        self._compile(ordered=False)
        return host_calls.finish(self._compiled, *arrays)


def _named(traced: Traced, ordered: bool = True) -> Callable[..., Any]:
    """The program with its name: new values of variables, which take the donated buffers, then results."""
    from jax.extend.core import jaxpr_as_fun

    closed = rewritten(traced.closed)
    run = jaxpr_as_fun(closed if ordered else host_calls.unordered(closed))

    def compiled(*arrays: Any) -> Any:
        outputs = run(*arrays)
        return [*outputs[traced.count :], *outputs[: traced.count]]

    compiled.__name__ = compiled.__qualname__ = traced.name
    return compiled


class Function:
    """A Python function that runs compiled; made by `tf.function`.

    Attributes:
      python_function: the original function.
      input_signature: a tuple of specs or None.
    """

    def __init__(
        self,
        python_function: Callable[..., Any],
        input_signature: Sequence[Any] | None = None,
        autograph: bool = True,
        reduce_retracing: bool = False,
        name: str | None = None,
        instance: weakref.ref[Any] | None = None,
    ) -> None:
        self.python_function = python_function
        self._instance = instance
        self.input_signature = None if input_signature is None else tuple(input_signature)
        self._autograph = autograph
        self._name = name or str(
            getattr(python_function, "__name__", type(python_function).__name__)
        )
        self._cache: dict[Any, ConcreteFunction] = {}
        self._later: dict[Any, SizedLater] = {}
        self._kept: dict[int, Any] = {}
        self._bound = IdentityWeakDict()
        self._calls = 0
        self._recent_traces: list[int] = []
        self._created_variables = False
        self._signature: inspect.Signature | None = None
        self._traceable: Callable[..., Any] | None = None
        del reduce_retracing  # every shape is compiled for itself under XLA
        functools.update_wrapper(self, python_function, updated=())

    # ---- methods ---------------------------------------------------------------------------

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        bound = self._bound.get(instance)
        if bound is None:
            # The instance is held weakly: a method's compiled form must not keep its object alive.
            bound = Function(
                self.python_function,
                self.input_signature,
                self._autograph,
                name=self._name,
                instance=weakref.ref(instance),
            )
            self._bound[instance] = bound
        return bound

    def _call_python(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._instance is None:
            return function(*args, **kwargs)
        instance = self._instance()
        if instance is None:
            raise ReferenceError(f"{self._name} was called after its object was deleted.")
        return function(instance, *args, **kwargs)

    # ---- calling ---------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if Settings.run_eagerly:
            return self._call_python(self.python_function, args, kwargs)
        if self.input_signature is not None:
            args, kwargs = self._fit_signature(args, kwargs)
        self._calls += 1
        arrays, key = self._key(args, kwargs)
        concrete = self._cache.get(key)
        if concrete is None:
            args, kwargs = self._canonical(args, kwargs)
            arrays, key = self._key(args, kwargs)
            concrete = self._cache.get(key)
            if concrete is None:
                try:
                    concrete = self._trace(args, kwargs, key)
                except VariableNeedsEagerError:
                    return self._first_call(args, kwargs)
        if concrete.sized:
            concrete = self._with_shapes(concrete, args, kwargs, key)
        if concrete.traced.pulls or concrete.traced.feeds:
            concrete = self._with_elements(concrete, args, kwargs, key)
        if context.trace is None and not context.tapes:
            return concrete.run_arrays(arrays)
        tensors = [leaf for leaf in nest.flatten((args, kwargs)) if _becomes_tensor(leaf)]
        return concrete.run([_as_tensor(t) for t in tensors])

    def _key(self, args: Any, kwargs: Any) -> tuple[list[Any], Any]:
        """Arrays among the arguments, and the cache key."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays: list[Any] = []
        key: list[Any] = []
        for leaf in leaves:
            shape = getattr(leaf, "shape", None)
            if shape is None or type(leaf) is Variable or not hasattr(leaf, "dtype"):
                key.append(self._static_key(leaf))
            elif isinstance(leaf, (jax.Array, np.ndarray, np.generic)) and leaf.dtype != object:
                arrays.append(leaf)
                key.append((shape, leaf.dtype))
            else:
                key.append(self._static_key(leaf))
        return arrays, (tree, tuple(key), Rules.promote, context.device, context.replicas)

    def _static_key(self, leaf: Any) -> Any:
        kind = type(leaf)
        if kind in (int, float, bool, str, bytes, complex):
            return kind, leaf
        if isinstance(leaf, np.ndarray):
            return "host", leaf.shape, tuple(leaf.ravel().tolist())
        if isinstance(leaf, TypeSpec):
            return leaf
        if isinstance(leaf, Source):
            return kind, leaf._kind()
        # Objects are compared by identity and kept, so that an id is never used twice.
        self._kept[id(leaf)] = leaf
        return kind, id(leaf)

    def _canonical(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Arguments in the order of the signature, with arrays as tensors.

        Defaults are filled in and keywords made positional, so that equal calls share a trace.
        """
        signature = self._python_signature()
        if signature is not None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        for leaf in nest.flatten((args, kwargs)):
            if (
                leaf is not None
                and not isinstance(leaf, Tensor)
                and not jax.tree_util.all_leaves([leaf])
            ):
                raise TypeError(
                    f"{self._name} got an argument of type {type(leaf).__name__}, a JAX pytree whose "
                    "arrays would be hidden from tracing. Pass its leaves (jax.tree.leaves) instead."
                )
        return nest.map_structure(_as_argument, (tuple(args), dict(kwargs)))

    def _python_signature(self) -> inspect.Signature | None:
        if self._signature is None:
            try:
                signature = inspect.signature(self.python_function)
            except (TypeError, ValueError):
                return None
            if self._instance is not None:
                parameters = list(signature.parameters.values())[1:]
                signature = signature.replace(parameters=parameters)
            self._signature = signature
        return self._signature

    def _parameter_names(self) -> list[str]:
        """The names of the parameters that may be given by position."""
        signature = self._python_signature()
        if signature is None:
            return []
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [name for name, p in signature.parameters.items() if p.kind in kinds]

    def _fit_signature(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Converts arguments to the declared input signature.

        Raises:
          TypeError: when the number or structure of arguments differs.
          ValueError: when a shape or dtype does not fit.
        """
        declared: tuple[Any, ...] = self.input_signature  # type: ignore[assignment]
        if kwargs:
            signature = self._python_signature()
            if signature is not None:
                bound = signature.bind(*args, **kwargs)
                args, kwargs = bound.args, bound.kwargs
        if len(args) != len(declared) or kwargs:
            raise TypeError(
                f"{self._name} takes {len(declared)} positional arguments by its input_signature "
                f"{declared}, got {len(args)}"
                + (f" and keywords {sorted(kwargs)}" if kwargs else "")
                + "."
            )
        parts = nest.flatten_up_to(declared, tuple(args))
        fitted = [
            _fit(self._name, s, v) for s, v in zip(nest.flatten(declared), parts, strict=True)
        ]
        return tuple(nest.pack_sequence_as(declared, fitted)), {}

    # ---- tracing ---------------------------------------------------------------------------

    def _trace(self, args: Any, kwargs: Any, key: Any) -> ConcreteFunction:
        signature = nest.map_structure(_spec_of, (args, kwargs))
        created_before = self._created_variables
        created: list[Any] = []
        holders: list[Any] = [created]
        converted = self._converted()

        def noting(*args: Any, **kwargs: Any) -> Any:
            result = self._call_python(converted, args, kwargs)
            scope: Any = context.trace
            created.extend(scope.created)
            holders.extend([scope.created, scope.sources, scope.writes])
            return result

        traced = trace(noting, args, kwargs, name=self._name, isolated=True)
        traced.structure = nest.map_structure(_known_result, traced.structure)
        if created:
            holders.extend([traced.captures, traced.writes])
            if created_before or self._cache or _is_dropped(created, holders):
                raise ValueError(
                    "tf.function only supports singleton tf.Variables created on the first call. Make sure "
                    f"the tf.Variable is only created once or created outside tf.function. {self._name} "
                    f"made {[v.name for v in created]} in a later call, or did not keep it. See "
                    "https://www.tensorflow.org/guide/function#creating_tfvariables for more information."
                )
            self._created_variables = True
        traced.place_sources(nest.flatten((args, kwargs)))
        concrete = ConcreteFunction(traced, signature, self._parameter_names())
        if not any(
            isinstance(c, Tensor) and isinstance(c._value, jax.core.Tracer) for c in traced.captures
        ):
            self._cache[key] = concrete
        self._warn_on_retracing()
        return concrete

    def _with_shapes(
        self, concrete: ConcreteFunction, args: Any, kwargs: Any, key: Any
    ) -> ConcreteFunction:
        """The function traced for the present shapes of variables whose shapes change."""
        while any(variable._shape != shape for variable, shape in concrete.sized):
            # A trace for other shapes may use other variables.
            key = key, tuple((id(v), v._shape) for v, _ in concrete.sized)
            concrete = self._cache.get(key) or self._trace(args, kwargs, key)
        return concrete

    def _with_elements(
        self, concrete: ConcreteFunction, args: Any, kwargs: Any, key: Any
    ) -> ConcreteFunction:
        """Takes the elements of iterators that a call needs; traced again when their shapes are others."""
        leaves = nest.flatten((args, kwargs))
        shapes: tuple[Any, ...] = ()
        while True:
            concrete.traced.bind(leaves)
            fetched: list[Any] = []
            for pull in concrete.traced.pulls:
                if not pull.fetch():
                    break
                fetched.append(pull)
            else:
                return concrete
            for earlier in reversed(fetched):
                earlier.put_back()
            shapes += (pull.next_shapes(),)
            found = self._cache.get((key, shapes))
            if found is None:
                found = self._trace(args, kwargs, (key, shapes))
            concrete = found

    def _converted(self) -> Callable[..., Any]:
        if self._traceable is None:
            self._traceable = self.python_function
            if self._autograph:
                from meshflow.core.autograph import convert

                self._traceable = convert(self.python_function)
        return self._traceable

    def _first_call(self, args: Any, kwargs: Any) -> Any:
        """Runs eagerly once, so that variables get initial values computed by ops."""
        if self._created_variables:
            raise ValueError(
                "tf.function only supports singleton tf.Variables created on the first call; "
                f"{self._name} creates one in a later call. Create it outside the function."
            )
        self._created_variables = True
        result = self._call_python(self.python_function, args, kwargs)
        return nest.map_structure(_as_result, result)

    def _warn_on_retracing(self) -> None:
        self._recent_traces = [c for c in self._recent_traces if c > self._calls - 6]
        self._recent_traces.append(self._calls)
        if len(self._recent_traces) >= 5 and self.input_signature is None:
            _log.warning(
                "%d out of the last %d calls to %s triggered tf.function retracing. Tracing is expensive "
                "and the excessive number of tracings could be due to (1) creating @tf.function repeatedly "
                "in a loop, (2) passing tensors with different shapes, (3) passing Python objects instead "
                "of tensors.",
                len(self._recent_traces),
                min(self._calls, 6),
                self._name,
            )

    def experimental_get_tracing_count(self) -> int:
        """How many times the Python function has been traced."""
        return len(self._cache)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """The traced function for given arguments or specs.

        Args:
          *args: tensors, `TensorSpec`s or Python values.
          **kwargs: the same, by name.

        Returns:
          A `ConcreteFunction`.

        Raises:
          ValueError: for specs with unknown sizes, which XLA cannot compile.
        """
        if self.input_signature is not None and not args and not kwargs:
            args = self.input_signature
        args, kwargs = self._canonical(args, kwargs)
        specs = [s for s in nest.flatten((args, kwargs)) if isinstance(s, TensorSpec)]
        if any(not s.shape.is_fully_defined() for s in specs):
            return self._sized_later(args, kwargs)  # type: ignore[return-value]
        _, key = self._key(args, kwargs)
        concrete = self._cache.get(key)
        if concrete is None:
            try:
                concrete = self._trace(args, kwargs, key)
            except VariableNeedsEagerError:
                zeros = nest.map_structure(_zeros_of, (args, kwargs))
                self._first_call(*zeros)
                concrete = self._trace(args, kwargs, key)
        return concrete

    def _sized_later(self, args: Any, kwargs: Any) -> SizedLater:
        _, key = self._key(args, kwargs)
        if key not in self._later:
            self._later[key] = SizedLater(self, args, kwargs)
        return self._later[key]

    def pretty_printed_concrete_signatures(self, verbose: bool = True) -> str:
        """What the traced functions take and return, one paragraph each."""
        return "\n\n".join(c.pretty_printed_signature(verbose) for c in self._cache.values())

    @property
    def pretty_printed_signatures(self) -> str:
        """The same."""
        return self.pretty_printed_concrete_signatures()

    def __repr__(self) -> str:
        return f"<meshflow.function {self._name}>"


class IdentityWeakDict:
    """Values by object identity, dropped when the object goes; objects need not be hashable."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def get(self, key: Any) -> Any:
        """The value for `key`, or None."""
        found = self._items.get(id(key))
        return None if found is None else found[1]

    def __setitem__(self, key: Any, value: Any) -> None:
        number, items = id(key), self._items
        items[number] = weakref.ref(key, lambda _: items.pop(number, None)), value


class SizedLater(Signed):
    """A concrete function whose specs have unknown sizes: traced for each size it meets.

    Attributes:
      structured_input_signature: (args, kwargs) with `TensorSpec`s for tensors.
    """

    def __init__(self, function: Function, args: Any, kwargs: Any) -> None:
        self._function = function
        self._template = (args, kwargs)
        self.name = function._name
        self._parameters = function._parameter_names()
        self.structured_input_signature = named_specs(
            nest.map_structure(_spec_of, (args, kwargs)), self._parameters
        )

    @property
    def _any_traced(self) -> Traced:
        return self._sized(2).traced

    def _sized(self, size: int) -> ConcreteFunction:
        args, kwargs = nest.map_structure(lambda s: _with_size(s, size), self._template)
        return self._function.get_concrete_function(*args, **kwargs)

    @property
    def structured_outputs(self) -> Any:
        """The result structure; sizes that vary with the input's are None."""
        first, second = self._sized(2).structured_outputs, self._sized(3).structured_outputs
        return nest.map_structure(
            lambda a, b: a.most_specific_compatible_type(b) if isinstance(a, TensorSpec) else a,
            first,
            second,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function on tensors that fit the specs."""
        template = nest.flatten(self._template)
        specs = [
            s for s in nest.flatten(self.structured_input_signature) if isinstance(s, TypeSpec)
        ]
        given = iter(self._tensor_arguments(specs, args, kwargs))
        full = []
        for spec in template:
            fits = isinstance(spec, TypeSpec) or _becomes_tensor(spec)
            full.append(_fit(self.name, _spec_of(spec), next(given)) if fits else spec)
        positional, named = nest.pack_sequence_as(self._template, full)
        return self._function(*positional, **named)


def _with_size(spec: Any, size: int) -> Any:
    if not isinstance(spec, TensorSpec):
        return spec
    return TensorSpec([size if d is None else d for d in spec.shape], spec.dtype, spec.name)


def _zeros_of(leaf: Any) -> Any:
    if isinstance(leaf, TensorSpec):
        return Tensor(jax.numpy.zeros(tuple(leaf.shape.as_list()), leaf.dtype.dtype))
    return leaf


def _fit(name: str, spec: Any, value: Any) -> Any:
    if not isinstance(spec, TypeSpec):
        return value
    if isinstance(value, TensorSpec):
        return value
    if not isinstance(spec, TensorSpec):
        if not spec.is_compatible_with(value):
            raise _SignatureError(
                f"Python inputs incompatible with input_signature of {name}: got {value!r}, expected {spec}."
            )
        return value
    try:
        tensor = convert_to_tensor(value, dtype_hint=spec.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name}: when input_signature is provided, all inputs must be convertible to tensors: {error}"
        ) from error
    if not spec.is_compatible_with(tensor):
        raise _SignatureError(
            f"Python inputs incompatible with input_signature of {name}: got a tensor of shape "
            f"{tensor.shape} and dtype {tensor.dtype.name}, expected {spec}."
        )
    return tensor


class _SignatureError(ValueError, TypeError):
    """TensorFlow raises ValueError or TypeError for this, by version."""


def _becomes_tensor(leaf: Any) -> bool:
    if isinstance(leaf, Tensor):
        return leaf.dtype is not dtypes.string
    return isinstance(leaf, (np.ndarray, np.generic, jax.Array))


def _as_tensor(leaf: Any) -> Tensor:
    return leaf if isinstance(leaf, Tensor) else convert_to_tensor(leaf)


def _as_argument(leaf: Any) -> Any:
    if isinstance(leaf, (np.ndarray, np.generic, jax.Array)) or (
        not isinstance(leaf, (Tensor, Variable))
        and hasattr(leaf, "__array__")
        and not isinstance(leaf, type)
        and not hasattr(leaf, "_is_tensor_like")
    ):
        return convert_to_tensor(leaf)
    return leaf


def _known_result(leaf: Any) -> Any:
    """Numbers, texts and shapes that a function returns are tensors, known before it runs."""
    known = isinstance(leaf, (bool, int, float, complex, str, bytes, np.generic))
    if known or (isinstance(leaf, TensorShape) and leaf.is_fully_defined()):
        return convert_to_tensor(leaf)
    return leaf


def _as_result(leaf: Any) -> Any:
    return convert_to_tensor(leaf) if isinstance(leaf, Variable) else _known_result(leaf)


def _is_dropped(variables: list[Any], holders: list[Any]) -> bool:
    """Whether one of the variables is held by nothing but the records of its trace."""
    known = {id(holder) for holder in [*holders, variables]}
    return any(
        all(id(holder) in known or inspect.isframe(holder) for holder in gc.get_referrers(variable))
        for variable in variables
    )


def _spec_of(leaf: Any) -> Any:
    return TensorSpec.from_tensor(leaf) if _becomes_tensor(leaf) else leaf


def function(
    func: Callable[..., Any] | None = None,
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_implements: Any = None,
    experimental_autograph_options: Any = None,
    experimental_attributes: Any = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    experimental_follow_type_hints: bool | None = None,
) -> Any:
    """Compiles a Python function of tensors.

    The function is traced when it is called with a new signature: the shapes and dtypes of its
    tensor arguments and the values of all others. Later calls run the compiled program.
    Everything runs through XLA, so `jit_compile` changes nothing. Sizes are static under XLA: an
    `input_signature` with None sizes is accepted, and each size met is traced and compiled once.

    Args:
      func: the function; None to use `tf.function(...)` as a decorator with arguments.
      input_signature: a sequence of `TensorSpec`s (or structures of them) that arguments must fit.
      autograph: whether Python `if`, `while`, `for` on tensors become XLA control flow.
      jit_compile: accepted; always compiled.
      reduce_retracing: accepted.
      experimental_implements: ignored.
      experimental_autograph_options: ignored.
      experimental_attributes: ignored.
      experimental_relax_shapes: ignored.
      experimental_compile: ignored.
      experimental_follow_type_hints: ignored.

    Returns:
      A `Function`, or a decorator.

    Raises:
      TypeError: when `func` is not callable or the signature is not a sequence.

    Example:
      >>> import meshflow as tf
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

    def decorate(target: Callable[..., Any]) -> Function:
        if not callable(target):
            raise TypeError(f"tf.function takes a callable, got {target!r}.")
        return Function(target, input_signature, autograph)

    return decorate if func is None else decorate(func)
