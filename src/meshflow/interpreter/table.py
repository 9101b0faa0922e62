"""The table of primitives: for each name, a rule that makes a NumPy function of an equation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from meshflow.environment.inner_jaxprs import AnyJaxpr
from meshflow.environment.types import ClosedJaxpr, JaxprEqn

# An array, or a NumPy scalar in place of an array without axes.
HostArray: TypeAlias = np.ndarray
# A function of the operands' arrays; returns an array, or a list for a primitive with several
# results.
Compute = Callable[..., Any]


class InnerProgram(Protocol):
    """An inner program for known sizes.

    Attributes:
      is_copied: For each result, whether it may share memory with other values.
    """

    is_copied: list[bool]

    def run(self, arrays: Sequence[HostArray]) -> list[HostArray]:
        """Run the program; results may be scalars, and may share memory with operands."""


class Spec(NamedTuple):
    """The shape, without symbolic sizes, and the dtype of an operand or result."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)


class Equation(NamedTuple):
    """An equation for known sizes, as rules see it.

    Attributes:
      name: Name of the primitive.
      params: Its parameters, without symbolic sizes except in inner programs.
      inputs: Specs of the operands.
      outputs: Specs of the results.
      constants: For each operand, its value if it is constant, otherwise None.
      bind: Returns an inner program, given its jaxpr and the indices of the inputs that it may
        overwrite.
      is_resized: Whether later runs of the program may have other sizes.
    """

    name: str
    params: dict[str, Any]
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    constants: tuple[np.ndarray | None, ...]
    bind: Callable[[AnyJaxpr, Iterable[int]], InnerProgram]
    is_resized: bool = False


class Writer(NamedTuple):
    """Functions of an equation that can write its results to existing arrays.

    Attributes:
      run: Function of the operands.
      write: Function of the operands, followed by arrays of the shapes and dtypes of the results. It
        returns the results, in these arrays.
    """

    run: Compute
    write: Compute


Build = Callable[[Equation], Any]


class Rule(NamedTuple):
    """An entry of the table.

    Attributes:
      build: Makes the function (`Compute` or `Writer`) of an equation.
      is_view: Whether a result may share memory with the first operand.
      is_writer: Whether `build` may return a `Writer`.
      is_elementwise: Whether a writer may write to the array of an operand.
      uses_shapes: Whether the function depends on sizes, and not only on dtypes and numbers of
        dimensions.
      is_pure: Whether the function has no effects and depends on its operands only. A view that is not pure is a
        check of its operand, which is only made if the result is used.
      accepts_symbols: Whether `build` is first called with a `Symbol` for each size that is unknown, and returns a
        function for all sizes, or None.
      broadcasts: Whether the function repeats operands along axes, as NumPy does, if one of them has the shape of the
        result.
    """

    build: Build
    is_view: bool = False
    is_writer: bool = False
    is_elementwise: bool = False
    uses_shapes: bool = True
    is_pure: bool = True
    accepts_symbols: bool = False
    broadcasts: bool = False


RULES: dict[str, Rule] = {}
# Rules of calls of jitted functions by name, which other packages register.
CALL_RULES: dict[str, Rule] = {}


# Functions that return the program of an equation by the name of its primitive, which other packages register.
EXPANSIONS: dict[str, Callable[[JaxprEqn], ClosedJaxpr]] = {}

# Calls that are replaced by the equations of the called program.
INLINED = frozenset(
    ["jit", "pjit", "closed_call", "core_call", "call", "checkpoint", "remat2", "remat"]
    + ["custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin", "eval_jaxpr"]
)
# Primitives without a rule: programs that contain them are compiled.
COMPILED = frozenset(
    # Collectives, which need several devices.
    ["psum", "pmax", "pmin", "ppermute", "all_gather", "all_to_all", "ragged_all_to_all"]
    + ["axis_index", "sharding_constraint", "reshard", "layout_constraint"]
    # Effects on references and tokens.
    + ["after_all", "create_token", "get", "swap"]
    # Rare ones.
    + ["igamma_grad_a", "random_gamma", "rng_bit_generator", "rng_uniform", "select_and_scatter"]
    + ["hessenberg", "tridiagonal"]
)


class UnsupportedPrimitive(NotImplementedError):
    """A program contains primitives without a rule, or with parameters that its rule rejects.

    Attributes:
      names: Names of the primitives.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"no NumPy implementation of {', '.join(names)}; compile the program")
        self.names = tuple(names)


def rule(*names: str, **properties: bool) -> Callable[[Build], Build]:
    """Register a function as the rule of primitives, with properties of `Rule`."""
    return _register(RULES, names, properties)


def call_rule(*names: str, **properties: bool) -> Callable[[Build], Build]:
    """Register a function as the rule of calls of jitted functions with these names."""
    return _register(CALL_RULES, names, properties)


def _register(
    table: dict[str, Rule], names: Sequence[str], properties: dict[str, bool]
) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        for name in names:
            table[name] = Rule(build, **properties)
        return build

    return register
