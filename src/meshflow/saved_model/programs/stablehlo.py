"""Traced functions as StableHLO by `jax.export`, shape-polymorphic where a signature has None."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.export
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import (
    DataLossError,
    InvalidArgumentError,
    InvalidValueError,
    UnimplementedError,
    ValueNeededError,
)
from meshflow.core.tracing.trace import TensorSlot, TracedFunction, list_slots, trace
from meshflow.core.values import nest
from meshflow.core.values.size_guards import SizeScope
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.jax_internals import (
    assume_large_sizes,
    jex_core,
    list_dimensions,
    mlir,
    mlir_ir,
    replace_dimensions,
    write_portable_artifact,
)
from meshflow.environment.module_rewriting import read_programs
from meshflow.environment.types import ClosedJaxpr, PyTree
from meshflow.passes.contraction_order import order_contractions
from meshflow.saved_model.manifest.composite_values import (
    BATCH,
    ComponentSpec,
    list_component_specs,
    replace_slots,
)
from meshflow.saved_model.programs.custom_calls import (
    check_module,
    has_native_calls,
    secure_calls,
)
from meshflow.saved_model.programs.foreign_modules import (
    MAX_DERIVATIVES,
    is_own_program,
    remember_own_program,
    rewrite_programs,
)
from meshflow.saved_model.programs.module_refinement import (
    check_signature,
    read_result_shapes,
    refine_module,
)
from meshflow.saved_model.programs.portable_linear_algebra import get_portable_lowerings

T = TypeVar("T")

# Exceptions that JAX raises for the gradient of a program without one, such as a program with an
# unbounded loop.
NO_GRADIENT = (ValueError, TypeError, NotImplementedError, KeyError)
_PLATFORMS = ("cpu", "cuda", "tpu")

# A divisor of unknown image sizes, for networks that halve images up to five times and combine the
# results.
_SIZE_DIVISOR = 32
# These numbers state which sizes may be 0: all of them, those that depend on values, or none.
_EVERYTHING, _COMPONENTS, _NOTHING = 2, 1, 0
# Symbols of sizes that depend on values start with one of these names.
_COMPONENT_SIZES = ("values", "found")
_NO_SIZES: Mapping[str, str | int] = {}
# Format of the symbols of sizes if no first axes are equal.
_INDEPENDENT_SYMBOL = "n{count}"
# Returns a symbol for a data-dependent size of the function that is being traced, by its name or a new one.
_new_size: contextvars.ContextVar[Callable[[str | None], Any]] = contextvars.ContextVar("new_size")
# Custom calls to code in JAX's wheels, which TensorFlow does not have.
_JAX_ONLY_CALL = re.compile(r'custom_call\s+@"?(lapack_\w+)')


@dataclasses.dataclass
class ExportedProgram:
    """Function that was traced and exported for one signature.

    Attributes:
      name: Name of the function.
      arguments: (args, kwargs) with specs for tensors and composite tensors.
      traced: The traced function of their components.
      exported: The same as StableHLO.
      steps: Text steps of string arguments: (index of the argument, steps). The program takes the
        results of the steps first,
        then the other arguments.
    """

    name: str
    arguments: PyTree
    traced: TracedFunction
    exported: jax.export.Exported
    steps: list[tuple[int, Any]] = dataclasses.field(default_factory=list)

    @property
    def specs(self) -> list[TensorSpec]:
        """Return the specs of the tensor arguments, in TensorFlow's order."""
        return list_component_specs(self.arguments)

    @property
    def result_indices(self) -> list[int]:
        """Return the indices of the returned results of the program, in TensorFlow's order."""
        return [s.index for s in list_slots(self.traced.structure) if isinstance(s, TensorSlot)]

    @property
    def result_specs(self) -> PyTree:
        """Return the nested result with specs for tensors and composite tensors."""
        avals = self.exported.out_avals
        specs = [TensorSpec(get_static_sizes(a.shape), a.dtype) for a in avals]
        return replace_slots(self.traced.structure, specs)

    @functools.cached_property
    def portable_exported(self) -> Any:
        """Return the StableHLO without calls to code of JAX, as far as possible."""
        if _JAX_ONLY_CALL.search(self.exported.mlir_module()) is None:
            return self.exported
        return export_traced(self.traced, portable=True)

    @functools.cached_property
    def _text(self) -> str:
        return str(self.traced.closed_jaxpr.jaxpr)

    def is_same_as(self, other: ExportedProgram) -> bool:
        """Check whether another program is known to have the same results and gradients."""
        if self.exported.mlir_module_serialized != other.exported.mlir_module_serialized:
            return False
        # Custom gradients show neither in the forward program nor in the text of the jaxpr.
        has_custom_gradient = "custom_jvp" in self._text or "custom_vjp" in self._text
        same_platforms = self.exported.platforms == other.exported.platforms
        return not has_custom_gradient and same_platforms and self._text == other._text

    def explain_incompatibility(self) -> str | None:
        """Return the reason for which TensorFlow cannot run the program, or None."""
        call = _JAX_ONLY_CALL.search(self.portable_exported.mlir_module())
        return f"it calls {call[1]}, which is JAX's own code" if call else None


@dataclasses.dataclass(frozen=True)
class StringArgument:
    """Placeholder for a string argument of a function that is traced.

    Attributes:
      spec: Its spec.
    """

    spec: TensorSpec


def get_static_sizes(sizes: Iterable[Any]) -> list[int | None]:
    """Return the sizes of a shape with None in place of symbols.

    Args:
      sizes: Sizes of a shape of `jax.export`.
    """
    return [size if isinstance(size, int) else None for size in sizes]


def trace_for_export(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    has_positive_sizes: bool = False,
) -> TracedFunction:
    """Trace a function with symbols in place of unknown sizes, which may be 0 if the function accepts empty values.

    Args:
      function: Python function.
      args: Its arguments, with `TensorSpec`s for tensors, as `ComponentFunction.arguments`.
      kwargs: Its keyword arguments, in the same form.
      has_positive_sizes: Whether the sizes of dense arguments are at least 1.

    Raises:
      UnimplementedError: If the function needs the value of a size while it is traced.
    """

    def trace_symbols(
        symbol: str, equal_sizes: Mapping[str, str | int] = _NO_SIZES
    ) -> TracedFunction:
        for may_be_empty in (_EVERYTHING, _COMPONENTS)[has_positive_sizes:]:
            try:
                return _trace_with_symbols(
                    function, args, kwargs, symbol, may_be_empty, None, equal_sizes
                )
            except Exception as error:
                if not _is_inconclusive(error):
                    raise
        return _trace_with_symbols(function, args, kwargs, symbol, _NOTHING, None, equal_sizes)

    # Independent symbols may fail if unknown sizes must be equal, for example ids and a mask with the
    # same number of columns. The next attempts use one symbol for the first axes, then one for the sizes that the
    # function combines, as in a product of matrices. The last attempt has one symbol for each axis, divisible for
    # images that are resized down and up.
    specs = list_component_specs((args, kwargs))
    has_components = any(isinstance(s, ComponentSpec) for s in specs)
    if has_components or sum(bool(s.shape.rank) and s.shape[0] is None for s in specs) > 1:
        # If another error is the user's, the next attempt raises it again.
        try:
            return trace_symbols(_INDEPENDENT_SYMBOL)
        except ValueNeededError:
            raise
        except Exception:
            pass
    try:
        return trace_symbols("d{count}")
    except InvalidArgumentError as error:
        failure = error
    with contextlib.suppress(Exception):
        return trace_symbols(_INDEPENDENT_SYMBOL, _find_equal_sizes(function, args, kwargs))
    with contextlib.suppress(InvalidArgumentError):
        return trace_symbols(f"{_SIZE_DIVISOR}*size{{axis}}")
    raise failure


def _is_inconclusive(error: BaseException | None) -> bool:
    """Check whether an error, or its cause, shows that other symbols may fit the function."""
    kinds = (jax.errors.InconclusiveDimensionOperation, SizeMismatchError)
    while error is not None and not isinstance(error, kinds):
        error = error.__cause__
    return error is not None


def _find_equal_sizes(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, str | int]:
    """Return integers or other symbols for the symbols of arguments that a function combines with these.

    Raises:
      InvalidArgumentError: If the function cannot combine its arguments.
    """
    scope = SizeScope({}, may_equal=True)
    with scope.record(has_symbols=True):
        _trace_with_symbols(function, args, kwargs, _INDEPENDENT_SYMBOL, _NOTHING, scope)
    return scope.list_equal_sizes()


def trace_in_stages(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[TracedFunction, SizeScope]:
    """Trace a function like `trace_for_export`, with symbols in place of sizes that depend on values.

    Returns:
      The traced function, and its symbols with the decisions of the trace about them.
    """
    scopes: list[SizeScope] = []

    def trace_symbols(symbol: str, may_equal: bool = False) -> TracedFunction:
        scopes.append(SizeScope({}, may_equal))
        with scopes[-1].record(has_symbols=True):
            return _trace_with_symbols(function, args, kwargs, symbol, _NOTHING, scopes[-1])

    with contextlib.suppress(InvalidArgumentError):
        return trace_symbols(_INDEPENDENT_SYMBOL), scopes[-1]
    # The function combines tensors with different symbols, or compares their shapes.
    with contextlib.suppress(InvalidArgumentError):
        return trace_symbols(_INDEPENDENT_SYMBOL, may_equal=True), scopes[-1]
    return trace_symbols("d{count}"), scopes[-1]


def _trace_with_symbols(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    symbol: str,
    may_be_empty: int,
    scope: SizeScope | None,
    equal_sizes: Mapping[str, str | int] = _NO_SIZES,
) -> TracedFunction:
    """Trace a function with a symbol for each unknown size.

    Args:
      function: Python function.
      args: Its arguments.
      kwargs: Its keyword arguments.
      symbol: Format of the symbols, with the fields `count` (of all symbols) and `axis`.
      may_be_empty: Which sizes may be 0: `_EVERYTHING`, `_COMPONENTS` or `_NOTHING`.
      scope: Decides comparisons of sizes, and creates symbols for those that depend on values; or None.
      equal_sizes: Integers or other symbols in place of symbols.
    """
    counts = itertools.count()
    symbols = jax.export.SymbolicScope()
    # The first axis is usually the batch axis of every tensor.

    def make_size(text: str) -> Any:
        other = equal_sizes.get(text, text)
        if isinstance(other, int):
            return other
        if scope is not None:
            return scope.add_argument_size(other)
        size = jax.export.symbolic_shape(other, scope=symbols)[0]
        # JAX assumes that symbols are positive.
        level = _COMPONENTS if other.startswith(_COMPONENT_SIZES) else _EVERYTHING
        if may_be_empty < level or other.startswith("rows"):
            return size
        names = list_dimensions(size)
        return replace_dimensions(
            size, {n: jax.export.symbolic_shape(f"{n} - 1", scope=symbols)[0] for n in names}
        )

    batch = None if symbol == _INDEPENDENT_SYMBOL else make_size(BATCH)

    def make_argument(leaf: PyTree) -> PyTree:
        if not isinstance(leaf, TensorSpec):
            return leaf
        if leaf.shape.rank is None:
            raise UnimplementedError(
                f"{leaf} has an unknown rank, which XLA cannot compile. Specify the rank."
            )
        first = batch
        if isinstance(leaf, ComponentSpec):
            first = None if leaf.first is None else make_size(leaf.first)
        shape = [
            size
            if size is not None
            else first
            if axis == 0 and first is not None
            else make_size(symbol.format(count=next(counts), axis=axis))
            for axis, size in enumerate(leaf.shape)
        ]
        spec = TensorSpec(shape, leaf.dtype, leaf.name)
        return StringArgument(spec) if leaf.dtype.name == "string" else spec

    new_names = (f"found{i}" for i in itertools.count())
    arguments = nest.map_structure(make_argument, (args, kwargs))
    saved = context.exporting, context.has_symbolic_sizes, context.unknown_sizes
    context.exporting = context.has_symbolic_sizes = True
    context.unknown_sizes = scope

    def make_new_size(name: str | None) -> Any:
        if name == BATCH and batch is not None:
            return batch
        return make_size(next(new_names) if name in (BATCH, None) else name)

    token = _new_size.set(make_new_size)
    try:
        return trace(function, *arguments, isolated=True)
    finally:
        context.exporting, context.has_symbolic_sizes, context.unknown_sizes = saved
        _new_size.reset(token)


def make_data_dependent_size(name: str | None = None) -> Any:
    """Return a symbol for a size of the traced function that depends on values.

    Args:
      name: Name of a symbol that is equal to the size; None for a new symbol. The size may then be 0. `BATCH` is a new
        symbol, too, unless the first axes of arguments are equal.
    """
    return _new_size.get()(name)


def export_traced(traced: TracedFunction, portable: bool = False) -> jax.export.Exported:
    """Export the program of a traced function.

    Args:
      traced: The traced function. Its captures are inputs after the arguments.
      portable: As in `export_for_platforms`.

    Raises:
      UnimplementedError: If the program calls Python while it runs.

    Returns:
      A `jax.export.Exported`.
    """
    if traced.closed_jaxpr.effects or traced.iterator_captures or traced.infeeds:
        raise UnimplementedError(
            f"{traced.name} calls Python while it runs (py_function, print, an assertion, a table, or an "
            "iterator), which cannot be saved."
        )
    closed = order_contractions(traced.closed_jaxpr)
    specs = [_make_spec(a) for a in closed.in_avals]
    return export_for_platforms(jex_core.jaxpr_as_fun(closed), specs, portable)


def _lower(lower: Callable[[], T]) -> T:
    """Call a function that lowers a program with symbolic sizes, which may be 0.

    Lowerings, for example of loops over rows, may expect at least one row, which then also suffices: a loop of no
    iteration reads no row. They assume large sizes only if necessary.
    """
    with contextlib.suppress(jax.errors.InconclusiveDimensionOperation):
        return lower()
    with assume_large_sizes():
        return lower()


def _make_spec(aval: jax.core.ShapedArray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def export_for_platforms(
    function: Callable[..., Any], specs: Sequence[Any], portable: bool = False
) -> jax.export.Exported:
    """Export a function of arrays as StableHLO, for all platforms if possible.

    Args:
      function: The function.
      specs: Specs of its arguments.
      portable: Whether linear algebra must not call code of JAX. Such programs are slower.

    Returns:
      A `jax.export.Exported`.
    """
    run = jax.jit(function)
    options: dict[str, Any] = (
        {"_override_lowering_rules": get_portable_lowerings()} if portable else {}
    )
    with _omit_source_locations():
        try:
            return _lower(lambda: jax.export.export(run, platforms=_PLATFORMS, **options)(*specs))
        except NotImplementedError:
            # Some ops exist for one kind of device only.
            return _lower(lambda: jax.export.export(run, **options)(*specs))


@contextlib.contextmanager
def _omit_source_locations() -> Iterator[None]:
    """Omit the source locations from programs that are exported in this context."""
    option = "jax_traceback_in_locations_limit"
    previous = getattr(jax.config, option)
    jax.config.update(option, 0)
    try:
        yield
    finally:
        jax.config.update(option, previous)


def serialize_program(program: jax.export.Exported) -> bytes:
    """Serialize a program together with its gradient if it has one.

    Args:
      program: Result of `export_traced`.

    Raises:
      ImportError: If the package flatbuffers is not installed.
    """
    orders = (1, 0) if is_differentiable(program.in_avals) else (0,)
    try:
        with _omit_source_locations():
            data = _lower(lambda: _serialize(program, orders))
    except ImportError:
        raise ImportError(
            "Saving functions needs the package flatbuffers: pip install 'meshflow-tf[export]'"
        ) from None
    remember_own_program(data)
    return data


def _serialize(program: jax.export.Exported, orders: Sequence[int]) -> bytes:
    for order in orders[:-1]:
        with contextlib.suppress(*NO_GRADIENT):
            return bytes(program.serialize(vjp_order=order))
    return bytes(program.serialize(vjp_order=orders[-1]))


def is_differentiable(avals: Sequence[Any]) -> bool:
    """Check whether at least one array has a gradient."""
    return any(jax.numpy.issubdtype(a.dtype, np.inexact) for a in avals)


def has_gradient_if_differentiable(data: bytes) -> bool:
    """Check whether a program that this process serialized has a gradient, or no floating-point argument."""
    program = jax.export.deserialize(bytearray(data))
    return program.has_vjp() or not is_differentiable(program.in_avals)


def deserialize_program(data: bytes, label: str = "A saved function") -> jax.export.Exported:
    """Deserialize a program.

    A child process first reads programs that this user's Meshflow did not write.

    Args:
      data: Result of `serialize_program`.
      label: Name of the file or function in error messages.

    Returns:
      A `jax.export.Exported` that is verified when it is compiled: custom calls that saved models
      may not make raise `InvalidArgumentError` then.

    Raises:
      DataLossError: If the data is damaged.
      ImportError: If the package flatbuffers is not installed.
    """
    with _translate_damage(label):
        # Reading may already take forever, so the child process does it first.
        if is_own_program(data):
            # Its derivatives are read when they are needed.
            return _wrap_verified(jax.export.deserialize(bytearray(data)), None, label)
        modules = rewrite_programs([data])[0]
        programs = read_programs(data, MAX_DERIVATIVES)
        if programs[-1].has_vjp():
            raise DataLossError(f"it has more than {MAX_DERIVATIVES} derivatives")
        if len(programs) != len(modules):
            raise DataLossError("it has another number of derivatives for each reader")
    return _wrap_verified(programs[0], modules, label)


def verify_foreign_programs(programs: Sequence[bytes]) -> None:
    """Verify several programs with a single child process, for later calls of `deserialize_program`.

    Args:
      programs: Results of `serialize_program`. Damaged ones are not an error yet.
    """
    with contextlib.suppress(DataLossError, ImportError), _translate_damage(""):
        rewrite_programs([data for data in programs if not is_own_program(data)])


@contextlib.contextmanager
def _translate_damage(label: str) -> Iterator[None]:
    """Translate errors of readers of damaged bytes to `DataLossError`."""
    try:
        yield
    except ImportError:
        raise ImportError(
            "Loading functions needs the package flatbuffers: pip install 'meshflow-tf[export]'"
        ) from None
    except UnimplementedError:
        raise
    except DataLossError as error:
        raise DataLossError(f"{label} is damaged: {error}") from None
    except Exception as error:  # The readers of JAX raise any exception.
        raise DataLossError(f"{label} is damaged: {error!r}") from error


class SizeMismatchError(InvalidValueError):
    """Error for sizes that a saved program does not take, such as 0."""


class NoGradientError(UnimplementedError, ValueError):
    """Error for a derivative that was not saved. It is a `ValueError` because JAX expects one."""


class _VerifiedExported(jax.export.Exported):
    """Program of a file, which is checked before the StableHLO is used."""

    # Name of the file or function in error messages.
    _label = "A saved function"

    def _read_module(self) -> Any:
        """Read the module in the current context."""
        with _translate_damage(self._label):
            return super().mlir_module(serialized=False)

    def mlir_module(self, serialized: bool = True) -> str | Any:
        with mlir.make_ir_context() if serialized else contextlib.nullcontext():
            module = self._read_module()
            check_module(module)
            arguments = [self.in_avals[i] for i in self.module_kept_var_idx]
            has_platform = len(self.platforms) > 1
            check_signature(module, arguments, self.out_avals, has_platform, self._label)
            secure_calls(module)
            return mlir.module_to_string(module) if serialized else module

    def vjp(self) -> jax.export.Exported:
        """Return the gradient, which has no gradient itself.

        Raises:
          NoGradientError: If the program has no gradient.
        """
        if not self.has_vjp():
            raise NoGradientError(
                "A saved function has no such gradient: it is saved with its first derivatives, where it has any. "
                "Compute further derivatives before saving the function."
            )
        return super().vjp()

    def specialize(self, avals_in: Sequence[Any], avals_out: Sequence[Any]) -> jax.export.Exported:
        """Return the program for known sizes if it calls native code, with its sizes checked.

        Args:
          avals_in: Shapes and dtypes of its arguments.
          avals_out: Shapes and dtypes of its results.

        Raises:
          InvalidArgumentError: If it calls native code with operands that this does not take.
        """
        if not all(isinstance(size, int) for a in avals_in for size in a.shape):
            # The program becomes part of another one, which is checked when it is loaded.
            return self
        with mlir.make_ir_context(), mlir_ir.Location.unknown():
            module = self._read_module()
            if not has_native_calls(module):
                return self
            check_module(module)
            arguments = [avals_in[i] for i in self.module_kept_var_idx]
            has_platform = len(self.platforms) > 1
            module = refine_module(module, [*[None] * has_platform, *arguments], None, self._label)
        with module.context, mlir_ir.Location.unknown():
            check_module(module, is_static=True)
            secure_calls(module)
            content = write_portable_artifact(module)
        if read_result_shapes(module) != [tuple(a.shape) for a in avals_out]:
            raise DataLossError(f"{self._label}: its results have other shapes than it declares.")
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields |= {"in_avals": tuple(avals_in), "out_avals": tuple(avals_out)}
        return jax.export.Exported(**fields | {"mlir_module_serialized": content})


def _wrap_verified(
    program: jax.export.Exported, modules: Sequence[bytes] | None, label: str
) -> _VerifiedExported:
    """Return a program with the given modules for it and its derivatives; with its own ones for None."""
    if program.ordered_effects or program.unordered_effects:
        raise InvalidArgumentError(f"{label} has effects, which saved models may not have.")
    fields = {f.name: getattr(program, f.name) for f in dataclasses.fields(program)}
    if modules is not None:
        fields["mlir_module_serialized"] = modules[0]
    if program.has_vjp():
        rest = None if modules is None else modules[1:]
        backward = functools.cache(lambda: _wrap_verified(program.vjp(), rest, label))
        fields["_get_vjp"] = lambda _: backward()
    verified = _VerifiedExported(**fields)
    object.__setattr__(verified, "_label", label)
    return verified


def specialize_program(
    program: jax.export.Exported, arguments: Sequence[Any], captures: Sequence[Any]
) -> ClosedJaxpr:
    """Specialize a program to static sizes, as a closed jaxpr that `TracedFunction` can run.

    Args:
      program: A `jax.export.Exported`.
      arguments: Arrays or specs of the arguments.
      captures: Arrays or specs of the captures.

    Raises:
      InvalidArgumentError: If the function was not saved for these sizes.
    """
    specs = [jax.ShapeDtypeStruct(tuple(x.shape), x.dtype) for x in (*arguments, *captures)]
    try:
        return jax.make_jaxpr(lambda *arrays: program.call(*arrays))(*specs)
    except ValueError as error:
        if not str(error).startswith("Input shapes do not match"):
            raise
        expected = [f"[{', '.join(map(str, a.shape))}]" for a in program.in_avals[: len(arguments)]]
        raise SizeMismatchError(
            f"The saved function takes tensors of the shapes {', '.join(expected)}, where sizes with the same name must "
            f"be equal; got {', '.join(str(list(x.shape)) for x in arguments)}."
        ) from None
