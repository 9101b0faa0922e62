"""Traced functions as bytes: StableHLO, by `jax.export`, for any size where the signature says None."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError, UnimplementedError
from meshflow.core.tracing.trace import Slot, Traced, trace
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.jax_internals import jex_core
from meshflow.passes.contraction_order import order_contractions
from meshflow.saved_model.linear_algebra import portable_lowerings

__all__ = [
    "NO_GRADIENT",
    "Program",
    "TextArgument",
    "exported",
    "for_platforms",
    "is_differentiable",
    "known_sizes",
    "loaded",
    "program_for",
    "refuse_foreign_calls",
    "serialized",
    "size_of_values",
    "traced_for_export",
]

# What JAX raises for the gradient of a program that has none, such as one with a loop until something holds.
NO_GRADIENT = (ValueError, TypeError, NotImplementedError, KeyError)
_PLATFORMS = ("cpu", "cuda", "tpu")

# Gives a new size, that is perhaps 0, of the function that is being traced.
# What sizes are multiples of, when halves of them meet: networks halve images up to five times.
_HALVED = 32
_new_size: contextvars.ContextVar[Callable[[], Any]] = contextvars.ContextVar("new_size")
# Native code that JAX writes calls of into programs: linear algebra, random bits, and what XLA takes away itself.
_KNOWN_CALLS = re.compile(
    r"lapack_[a-z0-9_]+|(cu|hip)(solver|sparse|blas)_[a-z0-9_]+|(cu|hip)_(threefry2x32|lu_pivots_to_permutation)\w*"
    r"|Sharding|SPMDFullToShardShape|SPMDShardToFullShape|annotate_device_placement|AllocateBuffer|shape_assertion"
    r"|Eigh|Qr|ProductOfElementaryHouseholderReflectors|LuDecomposition|ApproxTopK|mhlo\.(erf|topk)"
    r"|stablehlo\.dynamic_[a-z_]+"
)
# Native code of JAX's own wheels, which TensorFlow does not have.
_UNKNOWN_THERE = re.compile(r'custom_call\s+@"?(lapack_\w+)')
_CALLED = re.compile(r'(?:stablehlo|mhlo)\.custom_call\s+@(?:"([^"]*)"|([\w.$]+))')


@dataclasses.dataclass
class Program:
    """A function that was traced for one signature.

    Attributes:
      name: of the function.
      arguments: (args, kwargs) with `TensorSpec`s for tensors.
      traced: what it does.
      exported: it as StableHLO.
      steps: places of strings among the arguments, with what is done to each; the program takes what they give first,
        then the other arguments.
    """

    name: str
    arguments: Any
    traced: Traced
    exported: Any
    steps: list[tuple[int, Any]] = dataclasses.field(default_factory=list)

    @property
    def specs(self) -> list[TensorSpec]:
        """Specs of the arguments that are tensors, in TensorFlow's order."""
        return [s for s in nest.flatten(self.arguments) if isinstance(s, TensorSpec)]

    @property
    def results(self) -> list[int]:
        """Which results of the program are returned, in TensorFlow's order."""
        return [s.index for s in nest.flatten(self.traced.structure) if isinstance(s, Slot)]

    @property
    def returned(self) -> Any:
        """The nested result with `TensorSpec`s for tensors."""
        avals = self.exported.out_avals

        def spec(leaf: Any) -> Any:
            if not isinstance(leaf, Slot):
                return leaf
            return TensorSpec(known_sizes(avals[leaf.index].shape), avals[leaf.index].dtype)

        return nest.map_structure(spec, self.traced.structure)

    @functools.cached_property
    def portable(self) -> Any:
        """It as StableHLO without calls of JAX's own code, as far as that goes."""
        if _UNKNOWN_THERE.search(self.exported.mlir_module()) is None:
            return self.exported
        return exported(self.traced, portable=True)

    @functools.cached_property
    def _text(self) -> str:
        return str(self.traced.closed.jaxpr)

    def is_like(self, other: Program) -> bool:
        """Whether it is known to do what another one does, and to have the same gradient."""
        ours, theirs = self.exported, other.exported
        if ours.mlir_module_serialized != theirs.mlir_module_serialized:
            return False
        # Gradients of an op's own are seen neither in what runs forwards nor in the text.
        own = "custom_jvp" in self._text or "custom_vjp" in self._text
        return not own and ours.platforms == theirs.platforms and self._text == other._text

    def why_not(self) -> str | None:
        """What of it TensorFlow cannot run, or None."""
        found = _UNKNOWN_THERE.search(self.portable.mlir_module())
        return f"it calls {found[1]}, which is JAX's own code" if found else None


@dataclasses.dataclass(frozen=True)
class TextArgument:
    """Stands for strings among the arguments of a function that is traced.

    Attributes:
      spec: their spec.
    """

    spec: TensorSpec


def known_sizes(sizes: Any) -> list[int | None]:
    """Sizes of a shape, with None for symbols.

    Args:
      sizes: of `jax.export`.
    """
    return [size if isinstance(size, int) else None for size in sizes]


def traced_for_export(function: Callable[..., Any], args: Any, kwargs: Any) -> Traced:
    """Traces a function with symbols in place of unknown sizes.

    Args:
      function: a Python function.
      args: its arguments, with `TensorSpec`s for tensors.
      kwargs: its keyword arguments, likewise.

    Raises:
      UnimplementedError: when the function needs to know a size while it is traced.
    """
    # Perhaps they meet: ids and a mask of as many columns, or an image and what it is made smaller and larger again to.
    for attempt in ("d{count}", "size{place}"):
        with contextlib.suppress(InvalidArgumentError):
            return _traced(function, args, kwargs, attempt)
    return _traced(function, args, kwargs, f"{_HALVED}*size{{place}}")


def _traced(function: Callable[..., Any], args: Any, kwargs: Any, symbol: str) -> Traced:
    """Traced with symbols for unknown sizes, named by how many there are or by the dimension."""
    counts = itertools.count()
    scope = jax.export.SymbolicScope()
    # All first dimensions are the batch's: tensors that meet must have equal sizes.
    batch = jax.export.symbolic_shape("batch", scope=scope)[0]

    def sized(leaf: Any) -> Any:
        if isinstance(leaf, TensorSpec) and leaf.dtype.name == "string":
            return TextArgument(with_symbols(leaf))
        return with_symbols(leaf)

    def with_symbols(leaf: Any) -> Any:
        if not isinstance(leaf, TensorSpec) or leaf.shape.is_fully_defined():
            return leaf
        if leaf.shape.rank is None:
            raise UnimplementedError(
                f"{leaf} has an unknown rank, which XLA cannot compile: give the rank."
            )
        sizes = [
            size
            if size is not None
            else batch
            if place == 0
            else jax.export.symbolic_shape(
                symbol.format(count=next(counts), place=place), scope=scope
            )[0]
            for place, size in enumerate(leaf.shape)
        ]
        return TensorSpec(sizes, leaf.dtype, leaf.name)

    found = (f"found{i} - 1" for i in itertools.count())
    known = nest.map_structure(sized, (args, kwargs))
    saved, context.exporting = context.exporting, True
    token = _new_size.set(lambda: jax.export.symbolic_shape(next(found), scope=scope)[0])
    try:
        return trace(function, *known, isolated=True)
    finally:
        context.exporting = saved
        _new_size.reset(token)


def size_of_values() -> Any:
    """A symbol for a size, perhaps 0, that values of the function that is being traced for export decide on."""
    return _new_size.get()()


def exported(traced: Traced, portable: bool = False) -> Any:
    """A traced function's program.

    Args:
      traced: the function; its captures are inputs after the arguments.
      portable: as in `for_platforms`.

    Raises:
      UnimplementedError: when it calls Python while it runs.

    Returns:
      A `jax.export.Exported`.
    """
    if traced.closed.effects or traced.iterator_captures or traced.infeeds:
        raise UnimplementedError(
            f"{traced.name} calls Python while it runs (py_function, print, an assertion, a table, or an "
            "iterator), which cannot be saved."
        )
    closed = order_contractions(traced.closed)
    specs = [_spec(a) for a in closed.in_avals]
    return for_platforms(jex_core.jaxpr_as_fun(closed), specs, portable)


def _spec(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def for_platforms(
    function: Callable[..., Any], specs: Sequence[Any], portable: bool = False
) -> Any:
    """A function of arrays as StableHLO, for all kinds of devices where that is possible.

    Args:
      function: the function.
      specs: of its arguments.
      portable: whether linear algebra is to call no code of JAX's own, which is slower.

    Returns:
      A `jax.export.Exported`.
    """
    run = jax.jit(function)
    how: dict[str, Any] = {"_override_lowering_rules": portable_lowerings()} if portable else {}
    with _without_places():
        try:
            return jax.export.export(run, platforms=_PLATFORMS, **how)(*specs)
        except NotImplementedError:
            # Some ops exist for one kind of device only.
            return jax.export.export(run, **how)(*specs)


@contextlib.contextmanager
def _without_places() -> Iterator[None]:
    """While programs are made that do not say which lines of whose files they come from."""
    limit = "jax_traceback_in_locations_limit"
    before = getattr(jax.config, limit)
    jax.config.update(limit, 0)
    try:
        yield
    finally:
        jax.config.update(limit, before)


def serialized(program: Any) -> bytes:
    """A program with what its gradient needs, where it has one.

    Args:
      program: what `exported` gave.

    Raises:
      ImportError: without the package flatbuffers.
    """
    orders = (1, 0) if is_differentiable(program.in_avals) else (0,)
    try:
        with _without_places():
            for order in orders[:-1]:
                with contextlib.suppress(*NO_GRADIENT):
                    return bytes(program.serialize(vjp_order=order))
            return bytes(program.serialize(vjp_order=orders[-1]))
    except ImportError:
        raise ImportError(
            "Saving functions needs the package flatbuffers: pip install 'meshflow[export]'"
        ) from None


def is_differentiable(avals: Sequence[Any]) -> bool:
    """Whether one of some arrays has gradients."""
    return any(jax.numpy.issubdtype(a.dtype, np.inexact) for a in avals)


def loaded(data: bytes) -> Any:
    """The program that `serialized` wrote.

    Args:
      data: its result.

    Returns:
      A `jax.export.Exported`, which is looked at when it is compiled: a program with calls of other code than XLA's
      own raises `InvalidArgumentError` then.

    Raises:
      ImportError: without the package flatbuffers.
    """
    try:
        program = jax.export.deserialize(bytearray(data))
    except ImportError:
        raise ImportError(
            "Loading functions needs the package flatbuffers: pip install 'meshflow[export]'"
        ) from None
    return _checked(program)


class NoGradientError(UnimplementedError, ValueError):
    """A derivative of a saved function that is not saved with it; JAX, which asks whether there is one, expects `ValueError`."""


class _Checked(jax.export.Exported):
    """A program of a file, whose calls are looked at before it is read as StableHLO."""

    def mlir_module(self, serialized: bool = True) -> Any:
        content = super().mlir_module()
        refuse_foreign_calls(content)
        return content if serialized else super().mlir_module(serialized=False)

    def vjp(self) -> jax.export.Exported:
        """Its gradient, which has none itself.

        Raises:
          NoGradientError: for a program without.
        """
        if not self.has_vjp():
            raise NoGradientError(
                "A saved function has no such gradient: it is saved with its first derivatives, where it has any. Take "
                "further ones of the function before it is saved."
            )
        return super().vjp()


def _checked(program: Any) -> _Checked:
    fields = {f.name: getattr(program, f.name) for f in dataclasses.fields(program)}
    if program.has_vjp():
        backward = functools.cache(lambda: _checked(program.vjp()))
        fields["_get_vjp"] = lambda _: backward()
    return _Checked(**fields)


def refuse_foreign_calls(text: str) -> None:
    """A program may call native code by name, also such that calls Python or reads files.

    Args:
      text: the program.

    Raises:
      InvalidArgumentError: for one with calls of other code than XLA's own.
    """
    found = [quoted or plain for quoted, plain in _CALLED.findall(text)]
    calls = text.count("stablehlo.custom_call") + text.count("mhlo.custom_call")
    foreign = sorted({name for name in found if not _KNOWN_CALLS.fullmatch(name)})
    if foreign or len(found) != calls:
        raise InvalidArgumentError(
            f"A saved function calls native code that functions of saved models may not call: {foreign or 'unnamed'}."
        )


def program_for(program: Any, arguments: Sequence[Any], captures: Sequence[Any]) -> Any:
    """The program for known sizes as a closed jaxpr, which `Traced` runs like any other.

    Args:
      program: a `jax.export.Exported`.
      arguments: arrays or specs of the arguments.
      captures: arrays or specs of the captures.

    Raises:
      InvalidArgumentError: for sizes that the function was not saved for.
    """
    specs = [jax.ShapeDtypeStruct(tuple(x.shape), x.dtype) for x in (*arguments, *captures)]
    try:
        return jax.make_jaxpr(lambda *arrays: program.call(*arrays))(*specs)
    except ValueError as error:
        if not str(error).startswith("Input shapes do not match"):
            raise
        wanted = [f"[{', '.join(map(str, a.shape))}]" for a in program.in_avals[: len(arguments)]]
        raise InvalidValueError(
            f"The saved function takes tensors of the sizes {', '.join(wanted)}, of which those of one name are equal; "
            f"got {', '.join(str(list(x.shape)) for x in arguments)}."
        ) from None
