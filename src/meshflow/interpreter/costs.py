"""Static estimates of the cost of programs, for the choice between interpretation and compilation.

Estimates depend on equations and shapes only, never on measured time, so that the choice is the same
in every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jax.export import is_symbolic_dim

from meshflow.environment.inner_jaxprs import AnyJaxpr, find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.types import JaxprEqn
from meshflow.interpreter.symbolic_sizes import InputSizes, Symbol, Symbols
from meshflow.interpreter.table import CALL_RULES, EXPANSIONS, INLINED

# Seconds that NumPy needs for an equation, an operation and a byte, on one core.
SECONDS_PER_EQUATION, SECONDS_PER_FLOP, SECONDS_PER_BYTE = 1.2e-6, 1e-11, 5e-11
# Seconds that XLA needs to compile a program, each of its equations, and each of its loops.
SECONDS_PER_PROGRAM, SECONDS_PER_COMPILED_EQUATION, SECONDS_PER_LOOP = 0.03, 3e-3, 0.2
# Assumed number of iterations of a `while` loop.
WHILE_ITERATIONS = 16
# Operations per element of elementwise primitives that are no single instruction.
_EXPENSIVE = dict.fromkeys(
    ["exp", "exp2", "expm1", "log", "log1p", "log2", "logistic", "tanh", "sin", "cos", "erf"], 20
) | dict.fromkeys(
    ["pow", "tan", "sinh", "cosh", "asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh"]
    + ["cbrt", "erfc", "erf_inv", "lgamma", "digamma", "igamma", "igammac", "polygamma", "zeta"]
    + ["regularized_incomplete_beta", "bessel_i0e", "bessel_i1e", "sort", "top_k", "approx_top_k"]
    + ["argmax", "argmin", "threefry2x32", "random_bits", "gather", "scatter", "scatter-add"],
    80,
)
_CALL_FLOPS = 200
_MATRIX = frozenset(
    ["cholesky", "qr", "lu", "eigh", "eig", "svd", "triangular_solve", "householder_product"]
)
# Primitives that copy nothing.
_VIEWS = frozenset(
    ["broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "rev", "slice", "split"]
)

# A product of a number and of symbolic sizes, by their indices; a cost is a sum of these.
_Term: TypeAlias = tuple[int, ...]
_Polynomial: TypeAlias = dict[_Term, float]


class Costs(NamedTuple):
    """The cost of one run of a program.

    Attributes:
      flops: Floating-point operations.
      bytes: Bytes read and written.
      equations: Equations that run, with the iterations of loops.
      static_equations: Equations to compile; those of a loop count once.
      loops: Loops to compile.
    """

    flops: float
    bytes: float
    equations: float
    static_equations: float
    loops: int

    @property
    def run_seconds(self) -> float:
        """Return the estimated time of the interpreter."""
        return (
            SECONDS_PER_EQUATION * self.equations
            + SECONDS_PER_FLOP * self.flops
            + SECONDS_PER_BYTE * self.bytes
        )

    @property
    def compile_seconds(self) -> float:
        """Return the estimated time to compile the program."""
        return (
            SECONDS_PER_PROGRAM
            + SECONDS_PER_COMPILED_EQUATION * self.static_equations
            + SECONDS_PER_LOOP * self.loops
        )


class CostEstimate:
    """Costs as functions of the symbolic dimensions of a program.

    Args:
      closed: The jaxpr.

    Example:
      >>> import jax, numpy as np
      >>> square = jax.make_jaxpr(lambda x: x @ x)(np.zeros((10, 10), "float32"))
      >>> CostEstimate(square).bind([(10, 10)]).flops
      2000.0
    """

    def __init__(self, closed: AnyJaxpr) -> None:
        self._sizes = InputSizes([v.aval.shape for v in to_open_jaxpr(closed).invars])  # type: ignore[attr-defined]
        self._symbols = Symbols()
        # Products of the sizes of shapes: a number, and symbols.
        self._products: dict[tuple[Any, ...], tuple[float, _Term]] = {}
        self._flops: _Polynomial = {}
        self._bytes: _Polynomial = {}
        self._equations: _Polynomial = {}
        self._static_equations, self._loops = 0.0, 0
        self._visit(closed, (1.0, ()))

    def bind(self, shapes: Sequence[Sequence[int]]) -> Costs:
        """Return the costs for inputs of these shapes."""
        sizes = self._symbols.evaluate(self._sizes.solve(self._sizes.read(shapes)))

        def evaluate(polynomial: _Polynomial) -> float:
            total = 0.0
            for term, coefficient in polynomial.items():
                for index in term:
                    coefficient *= sizes[index]
                total += coefficient
            return total

        flops, size, equations = map(evaluate, (self._flops, self._bytes, self._equations))
        return Costs(flops, size, equations, self._static_equations, self._loops)

    def _visit(self, jaxpr: AnyJaxpr, factor: tuple[float, _Term]) -> None:
        for eqn in to_open_jaxpr(jaxpr).eqns:
            name, inner = eqn.primitive.name, find_inner_jaxprs(eqn)
            if name in INLINED and eqn.params.get("name", "") not in CALL_RULES:
                self._visit(inner[0], factor)
                continue
            if name in EXPANSIONS:
                self._visit(EXPANSIONS[name](eqn), factor)
                continue
            self._static_equations += 1
            self._add(self._equations, 1.0, (), factor)
            if name in ("scan", "while", "cond"):
                self._loops += name != "cond"
                for program in inner:
                    self._visit(program, self._scale(factor, eqn, len(inner)))
                continue
            for flops, sizes in _count_flops(eqn):
                self._add(self._flops, flops, sizes, factor)
            for atom in (*eqn.invars, *eqn.outvars) if name not in _VIEWS else ():
                dtype = getattr(atom.aval, "dtype", None)
                if isinstance(dtype, np.dtype):
                    self._add(self._bytes, dtype.itemsize, atom.aval.shape, factor)  # type: ignore[attr-defined]

    def _add(
        self,
        polynomial: _Polynomial,
        number: float,
        sizes: Iterable[Any],
        factor: tuple[float, _Term],
    ) -> None:
        number, symbols = self._multiply(number * factor[0], factor[1], sizes)
        polynomial[symbols] = polynomial.get(symbols, 0.0) + number

    def _multiply(self, number: float, symbols: _Term, sizes: Iterable[Any]) -> tuple[float, _Term]:
        shape = tuple(sizes)
        found = self._products.get(shape)
        if found is None:
            interned = list(map(self._symbols.intern, shape))
            terms = tuple(sorted([size.index for size in interned if isinstance(size, Symbol)]))
            known = [size for size in interned if not isinstance(size, Symbol)]
            found = self._products[shape] = float(math.prod(known)), terms
        factor, terms = found
        if symbols and terms:
            terms = tuple(sorted((*symbols, *terms)))
        return number * factor, terms or symbols

    def _scale(
        self, factor: tuple[float, _Term], eqn: JaxprEqn, num_inner: int
    ) -> tuple[float, _Term]:
        name = eqn.primitive.name
        if name == "scan":
            return self._multiply(*factor, [eqn.params["length"]])
        if name == "while":
            return factor[0] * WHILE_ITERATIONS, factor[1]
        return factor[0] / num_inner, factor[1]


def _count_flops(eqn: JaxprEqn) -> list[tuple[float, Sequence[Any]]]:
    """Return the operations of an equation as (number, sizes to multiply)."""
    name, p = eqn.primitive.name, eqn.params
    shapes: list[Sequence[Any]]
    shapes = [getattr(a.aval, "shape", ()) for a in (*eqn.invars, *eqn.outvars)]
    out = shapes[len(eqn.invars)] if eqn.outvars else ()
    if name in _VIEWS:
        return []
    if name == "dot_general":
        sums = p["dimension_numbers"][0][0]
        return [(2.0, [*out, *(shapes[0][i] for i in sums)])]
    if name == "conv_general_dilated":
        spec = p["dimension_numbers"].rhs_spec
        window = [shapes[1][i] for i in (spec[1], *spec[2:])]
        return [(2.0 / p["batch_group_count"], [*out, *window])]
    if name.startswith("recurrent_layer"):
        # A product with each kernel for every row.
        rows = shapes[0][:2]
        return [(2.0, [*rows, *s]) for s in shapes[: len(eqn.invars)] if len(s) == 2]
    if name in _MATRIX:
        return [(10.0, [*shapes[0], shapes[0][-1]])]
    if "window_dimensions" in p or "windows" in p:
        window = p["window_dimensions"] if "window_dimensions" in p else p["windows"].size
        grid = min(shapes, key=lambda s: len(s) and math.prod(n for n in s if isinstance(n, int)))
        return [(2.0, [*(grid or out), *window])]
    largest = max(shapes, key=_order_sizes) if shapes else ()
    # A called function with a rule draws random numbers.
    cost = _CALL_FLOPS if name in INLINED else _EXPENSIVE.get(name, 1)
    return [(float(cost), largest)]


def _order_sizes(shape: Sequence[Any]) -> tuple[int, int]:
    """Return a key that orders shapes by symbolic, then by other sizes."""
    symbolic = sum(map(is_symbolic_dim, shape))
    return symbolic, math.prod(n for n in shape if not is_symbolic_dim(n))
