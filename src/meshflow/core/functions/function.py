"""`tf.function`: trace once per input signature, then run compiled.

A `Function` holds one `ConcreteFunction` per signature: the structure of the arguments, shapes
and dtypes of tensors, and the values of everything else (see `call_arguments`).
"""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, overload

import jax
import numpy as np

from meshflow.core.autograph import convert
from meshflow.core.functions import retracing
from meshflow.core.functions.call_arguments import (
    CallArguments,
    RowsGivenError,
    becomes_tensor,
    spec_of,
    with_rows,
    without_rows,
)
from meshflow.core.functions.concrete_function import ConcreteFunction, Settings
from meshflow.core.functions.function_types import Parameters, Polymorphic, Result
from meshflow.core.functions.retracing import history_of
from meshflow.core.functions.shape_polymorphic import ShapePolymorphicFunction
from meshflow.core.runtime.context import context, standing_in
from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.runtime.identity import IdentityWeakDict
from meshflow.core.tracing.trace import trace
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.core.variables.variable_creation import VariableNeedsEagerError

_log = logging.getLogger("meshflow")


class Function:
    """A Python function that runs compiled; made by `tf.function`.

    Attributes:
      python_function: the original function; of a method, with its object in place of `self`.
      input_signature: a tuple of specs or None.

    Example:
      >>> import meshflow as tf
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
        reduce_retracing: bool = False,
        name: str | None = None,
        instance: Callable[[], Any] | None = None,
        jit_compile: bool = False,
    ) -> None:
        self._python = python_function
        self._instance = instance
        self.input_signature = None if input_signature is None else tuple(input_signature)
        self._autograph = autograph
        self._name = name or str(
            getattr(python_function, "__name__", type(python_function).__name__)
        )
        self._arguments = CallArguments(
            self._name, python_function, self.input_signature, method=instance is not None
        )
        self._cache: dict[Any, ConcreteFunction] = {}
        self._traces = 0
        self._tracing = threading.RLock()
        self._later: dict[Any, ShapePolymorphicFunction] = {}
        self._bound = IdentityWeakDict()
        self._history = history_of(python_function)
        self._created_variables = False
        self._plain_on_host = False
        self._jit_compile = jit_compile
        self._op_by_op = False
        self._traceable: Callable[..., Any] | None = None
        self._of_parts: Function | None = None
        # Every shape is compiled for itself under XLA: who asks for fewer traces is spared the warning.
        self._reduce_retracing = reduce_retracing
        functools.update_wrapper(self, python_function, updated=())

    # ---- methods ---------------------------------------------------------------------------

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        bound = self._bound.get(instance)
        if bound is None:
            # The instance is held weakly: a method's compiled form must not keep its object alive.
            bound = self._bound[instance] = self._bound_to(weakref.ref(instance))
        return bound

    def _bound_to(self, owner: Callable[[], Any]) -> Function:
        """The same function as a method of what `owner` gives."""
        bound = Function(
            self._python,
            self.input_signature,
            self._autograph,
            self._reduce_retracing,
            self._name,
            owner,
            self._jit_compile,
        )
        own = self._arguments.python_signature()
        if own is not None:
            # What `inspect.signature` says, which would go by the function with `self`.
            own = own.replace(parameters=[*own.parameters.values()][1:])
            setattr(bound, "__signature__", own)
        return bound

    @property
    def python_function(self) -> Callable[..., Any]:
        """The original function; of a method, with its object in place of `self`."""
        if self._instance is None:
            return self._python

        return MethodType(self._python, self._owner())

    def _run_python(self, args: Any, kwargs: Any) -> Any:
        """Runs the function as it is, where it cannot be compiled."""
        with standing_in():
            return self._call_python(self._python, args, kwargs)

    def _owner(self) -> Any:
        """The object that the function is a method of."""
        instance = self._instance() if self._instance is not None else None
        if instance is None:
            raise ReferenceError(f"{self._name} was called after its object was deleted.")
        return instance

    def _call_python(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._instance is None:
            return function(*args, **kwargs)
        return function(self._owner(), *args, **kwargs)

    # ---- calling ---------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if Settings.run_eagerly or (self._plain_on_host and context.on_host):
            return self._call_python(self._python, args, kwargs)
        if context.recording is not None and context.recording.inlines:
            return self._call_python(self._converted(), args, kwargs)
        if self._op_by_op and context.trace is None:
            return self._run_python(args, kwargs)
        if self.input_signature is not None:
            args, kwargs = self._arguments.fit(args, kwargs)
        self._history.calls += 1
        try:
            arrays, key = self._arguments.key(args, kwargs)
        except RowsGivenError:
            return self._on_parts()(*without_rows((args, kwargs)))
        concrete = self._cache.get(key)
        if concrete is None:
            args, kwargs = self._arguments.canonical(args, kwargs)
            arrays, key = self._arguments.key(args, kwargs)
            concrete = self._cache.get(key)
            if concrete is None:
                try:
                    concrete = self._traced_once(args, kwargs, key, runs=True)
                except VariableNeedsEagerError:
                    if context.trace is not None:
                        raise  # the outermost function runs eagerly
                    return self._first_call(args, kwargs)
                except ValueNeededError as error:
                    if context.trace is not None or self._jit_compile:
                        raise  # as above
                    if not context.on_host:
                        warn_eager_fallback(self._name, error)
                        self._op_by_op = True
                    return self._run_python(args, kwargs)
                except Exception:
                    if not context.on_host or context.trace is not None:
                        raise
                    # A part of a pipeline's function that runs as it is, for its sizes depend on values.
                    self._plain_on_host = True
                    return self._call_python(self._python, args, kwargs)
        concrete.used = self._history.calls
        if concrete.sized:
            concrete = self._with_shapes(concrete, args, kwargs, key)
        if concrete.traced.iterator_captures or concrete.traced.infeeds:
            concrete = self._with_elements(concrete, args, kwargs, key)
        if context.trace is None and not context.tapes:
            return concrete.run_arrays(arrays)
        tensors = [leaf for leaf in nest.flatten((args, kwargs)) if becomes_tensor(leaf)]
        return concrete.run([convert_to_tensor(t) for t in tensors])

    def _on_parts(self) -> Function:
        """The function of arguments from which `tf.IndexedSlices` have been taken apart."""
        if self._of_parts is None:
            converted = self._converted()

            def call(args: Any, kwargs: Any) -> Any:
                return self._call_python(converted, *with_rows((args, kwargs)))

            self._of_parts = Function(call, autograph=False, name=self._name)
        return self._of_parts

    # ---- tracing ---------------------------------------------------------------------------

    def _traced_once(
        self, args: Any, kwargs: Any, key: Any, runs: bool = False
    ) -> ConcreteFunction:
        """The function traced for a signature; threads that come at the same time share one trace."""
        with self._tracing:
            known = self._cache.get(key)
            if known is not None:
                return known
            concrete = self._trace(args, kwargs, key, runs)
        if runs and self.input_signature is None and not self._reduce_retracing:
            self._history.add_trace(self._name)
        return concrete

    def _trace(self, args: Any, kwargs: Any, key: Any, runs: bool = False) -> ConcreteFunction:
        signature = nest.map_structure(spec_of, (args, kwargs))
        created_before = self._created_variables
        created: list[Any] = []
        holders: list[Any] = [created]
        converted = self._converted()

        def noting(*args: Any, **kwargs: Any) -> Any:
            copied = nest.map_structure(lambda leaf: leaf, (args, kwargs))
            result = self._call_python(converted, args, kwargs)
            scope: Any = context.trace
            if _is_changed((args, kwargs), copied):
                raise ValueError(
                    f"{self._name} should not modify its Python input arguments: a list or dictionary that it "
                    "was called with is another after the call. Change a copy instead."
                )
            created.extend(scope.created)
            holders.extend([scope.created, scope.sources, scope.writes])
            return result

        traced = trace(noting, args, kwargs, name=self._name, isolated=True, runs_immediately=runs)
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
        concrete = ConcreteFunction(traced, signature, self._arguments.parameter_names())
        concrete.is_stored = getattr(self._python, "is_stored_program", False)
        if not traced.initializes and not any(
            isinstance(c, Tensor) and isinstance(c._value, jax.core.Tracer) for c in traced.captures
        ):
            self._keep(key, concrete, args, kwargs)
        return concrete

    def _keep(self, key: Any, concrete: ConcreteFunction, args: Any, kwargs: Any) -> None:
        """Keeps a trace, for which the one goes that was called least recently where there are too many."""
        concrete.used = self._history.calls
        concrete.found_by = self._arguments.identified(args, kwargs)
        self._cache[key] = concrete
        self._traces += 1
        if len(self._cache) > retracing.TRACES:
            # Other threads keep traces too.
            known = list(self._cache.items())
            oldest, _ = min(known, key=lambda item: item[1].used)
            self._cache.pop(oldest, None)

    def _with_shapes(
        self, concrete: ConcreteFunction, args: Any, kwargs: Any, key: Any
    ) -> ConcreteFunction:
        """The function traced for the present shapes of variables whose shapes change."""
        while any(variable._shape != shape for variable, shape in concrete.sized):
            # A trace for other shapes may use other variables.
            key = key, tuple((id(v), v._shape) for v, _ in concrete.sized)
            concrete = self._cache.get(key) or self._trace(args, kwargs, key)
        concrete.used = self._history.calls
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
            for capture in concrete.traced.iterator_captures:
                if not capture.fetch():
                    break
                fetched.append(capture)
            else:
                return concrete
            for earlier in reversed(fetched):
                earlier.put_back()
            shapes += (capture.next_shapes(),)
            found = self._cache.get((key, shapes))
            if found is None:
                found = self._trace(args, kwargs, (key, shapes))
            concrete = found
            concrete.used = self._history.calls

    def _converted(self) -> Callable[..., Any]:
        if self._traceable is None:
            self._traceable = self._python
            if self._autograph:
                self._traceable = convert(self._python)
        return self._traceable

    def _first_call(self, args: Any, kwargs: Any) -> Any:
        """Runs eagerly once, so that variables get initial values computed by ops."""
        if self._created_variables:
            raise ValueError(
                "tf.function only supports singleton tf.Variables created on the first call; "
                f"{self._name} creates one in a later call. Create it outside the function."
            )
        result = self._run_python(args, kwargs)
        self._created_variables = True
        return nest.map_structure(_as_result, result)

    def experimental_get_tracing_count(self) -> int:
        """How many times the Python function has been traced."""
        return self._traces

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """The traced function for given arguments or specs.

        Args:
          *args: tensors, `TensorSpec`s or Python values.
          **kwargs: the same, by name.

        Returns:
          A `ConcreteFunction`.

        Raises:
          TypeError: when the arguments do not fit the input signature.
        """
        if self.input_signature is not None:
            if args or kwargs:
                self._arguments.fit(args, kwargs)
            args, kwargs = self.input_signature, {}
        concrete = self.concrete_for(args, kwargs)
        if isinstance(concrete, ConcreteFunction):
            specs = nest.map_structure(spec_of, (args, kwargs))
            concrete.retraced = functools.partial(_retraced, self._again(), *specs)
        return concrete

    def _again(self) -> Callable[[], Function]:
        """Makes the same function once more, and refers neither to this one nor to the object it is a method of."""
        if self._instance is None:
            make, given = self.__reduce__()
            return functools.partial(make, *given)
        instance, name = self._instance, self._name
        return lambda: getattr(instance(), name)

    def concrete_for(self, args: Any, kwargs: Any) -> ConcreteFunction:
        """`get_concrete_function` for just these arguments, also with an input signature."""
        args, kwargs = self._arguments.canonical(args, kwargs)
        specs = [s for s in nest.flatten((args, kwargs)) if isinstance(s, TensorSpec)]
        if any(not s.shape.is_fully_defined() for s in specs):
            return self._sized_later(args, kwargs)  # type: ignore[return-value]
        _, key = self._arguments.key(args, kwargs)
        concrete = self._cache.get(key)
        if concrete is None:
            try:
                concrete = self._traced_once(args, kwargs, key)
            except VariableNeedsEagerError:
                zeros = nest.map_structure(_zeros_of, (args, kwargs))
                self._first_call(*zeros)
                concrete = self._trace(args, kwargs, key)
        return concrete

    def _sized_later(self, args: Any, kwargs: Any) -> ShapePolymorphicFunction:
        _, key = self._arguments.key(args, kwargs)
        if key not in self._later:
            self._later[key] = ShapePolymorphicFunction(self, args, kwargs)
        return self._later[key]

    def pretty_printed_concrete_signatures(self, verbose: bool = True) -> str:
        """What the traced functions take and return, one paragraph each."""
        return "\n\n".join(c.pretty_printed_signature(verbose) for c in self._cache.values())

    @property
    def pretty_printed_signatures(self) -> str:
        """The same."""
        return self.pretty_printed_concrete_signatures()

    def __reduce__(self) -> Any:
        if self._instance is not None:
            return _method_of, (self._owner(), self._name)
        settings = (self._autograph, self._reduce_retracing, self._name, None, self._jit_compile)
        return Function, (self._python, self.input_signature, *settings)

    def __repr__(self) -> str:
        return f"<meshflow.function {self._name}>"


def _method_of(instance: Any, name: str) -> Any:
    """A method of an unpickled object, which it keeps alive: nothing else need refer to that."""
    function = getattr(type(instance), name, None)
    if isinstance(function, Function):
        return function._bound_to(lambda: instance)
    return getattr(instance, name)


def _retraced(make: Callable[[], Function], args: Any, kwargs: Any) -> ShapePolymorphicFunction:
    return ShapePolymorphicFunction(make(), args, kwargs)


def warn_eager_fallback(name: str, error: ValueNeededError) -> None:
    """Says that a function is not compiled, and why."""
    _log.warning(
        "%s runs op by op, not compiled, as sizes in compiled programs are static: %s", name, error
    )


def _zeros_of(leaf: Any) -> Any:
    if isinstance(leaf, TensorSpec):
        return Tensor(jax.numpy.zeros(tuple(leaf.shape.as_list()), leaf.dtype.dtype))
    return leaf


def _known_result(leaf: Any) -> Any:
    """Numbers, texts and shapes that a function returns are tensors, known before it runs."""
    known = isinstance(leaf, (bool, int, float, complex, str, bytes, np.generic))
    if known or (isinstance(leaf, TensorShape) and leaf.is_fully_defined()):
        return convert_to_tensor(leaf)
    return leaf


def _is_changed(arguments: Any, copied: Any) -> bool:
    """Whether lists or dictionaries among the arguments are others than when they were copied."""
    try:
        nest.assert_same_structure(arguments, copied)
    except (TypeError, ValueError):
        return True
    pairs = zip(nest.flatten(arguments), nest.flatten(copied), strict=True)
    return any(now is not before for now, before in pairs)


def _as_result(leaf: Any) -> Any:
    return convert_to_tensor(leaf) if isinstance(leaf, Variable) else _known_result(leaf)


def _is_dropped(variables: list[Any], holders: list[Any]) -> bool:
    """Whether one of the variables is held by nothing but the records of its trace."""
    known = {id(holder) for holder in [*holders, variables]}
    return any(
        all(id(holder) in known or inspect.isframe(holder) for holder in gc.get_referrers(variable))
        for variable in variables
    )


@overload
def function(
    func: Callable[Parameters, Result],
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
) -> Polymorphic[Parameters, Result]: ...
@overload
def function(
    func: None = None,
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
) -> Callable[[Callable[Parameters, Result]], Polymorphic[Parameters, Result]]: ...
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
    A function keeps its 512 latest used traces; an older one is compiled again when it is called again.
    Everything runs through XLA. Sizes are static under XLA: an `input_signature` with None sizes is accepted,
    and each size met is traced and compiled once. A function with an op whose result's size depends on values
    (`tf.boolean_mask`, `tf.where` with one argument, slices up to a computed end) runs op by op, with a warning,
    unless `jit_compile` forbids it.

    Args:
      func: the function; None to use `tf.function(...)` as a decorator with arguments.
      input_signature: a sequence of `TensorSpec`s (or structures of them) that arguments must fit.
      autograph: whether Python `if`, `while`, `for` on tensors become XLA control flow.
      jit_compile: whether a function that XLA cannot compile is an error.
      reduce_retracing: accepted; such a function is not warned of when it is traced often.
      experimental_implements: ignored.
      experimental_autograph_options: ignored.
      experimental_attributes: ignored.
      experimental_relax_shapes: an older name of `reduce_retracing`.
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

    must_compile = bool(jit_compile or experimental_compile)
    relaxed = bool(reduce_retracing or experimental_relax_shapes)

    def decorate(target: Callable[..., Any]) -> Function:
        if not callable(target):
            raise TypeError(f"{target!r} is not a callable object, which tf.function takes.")
        return Function(target, input_signature, autograph, relaxed, jit_compile=must_compile)

    return decorate if func is None else decorate(func)
