"""Analysis of a traced training step: how the values of its shares combine to those of the batch.

Two traces, for shares of n and of two or three times n rows, have the same equations. Axes with
different sizes are those of rows. A value without such an axis that depends on rows is a partial result.
The results of shares with random values, and of a share with the rows of all of them, show whether the
value of the batch is the mean or the sum of those of the shares.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from meshflow.core.tracing.trace import TracedFunction, run_outside_of_traces
from meshflow.core.values.tensor import Tensor
from meshflow.distribute.parallel.row_order import RowOrder, makes_indices, pair_variables
from meshflow.distribute.parallel.step_shares import StepNotSplitError, StepShares
from meshflow.distribute.parallel.weight_reads import manual_axes_scope
from meshflow.environment.inner_jaxprs import AnyJaxpr, find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Array, Atom, ClosedJaxpr, JaxprEqn, Var
from meshflow.passes.jaxprs import (
    bind_equation,
    extract_program,
    get_aval,
    inline_calls,
    is_plain_call,
    select_variables,
    trace_atoms,
)

_T = TypeVar("_T")
# Largest number of elements of the values for which partial results are computed.
_MAX_ELEMENTS = 1 << 22
# Relative differences of equal results in single and in half precision.
_TOLERANCE, _HALF_TOLERANCE = 1e-4, 2e-2
# Scales of the values. A loss with a margin may be zero for small ones.
_SCALES = (1.0, 10.0, 100.0)
# Operations with results that do not change with small changes of an operand, or change abruptly.
_DECISIONS = frozenset(
    [
        "eq",
        "ne",
        "gt",
        "ge",
        "lt",
        "le",
        "cond",
        "while",
        "max",
        "min",
        "clamp",
        "sign",
        "floor",
        "ceil",
        "round",
        "is_finite",
        "rem",
        "sort",
        "argmax",
        "argmin",
    ]
)
# Reductions of integers over rows that are often equal for all shares, although they are no means.
_REDUCED_DECISIONS = frozenset(
    ["reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_prod", "argmax", "argmin"]
)
# Equations of functions with derivatives of their own, which run the function itself.
_DERIVATIVE_RULES = frozenset(["custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"])
# Number of elements from which a sum hides a term that is a mean, or that does not depend on rows.
_MANY_ELEMENTS = 1000
# Smallest change of an earlier value, relative to it, that is compared.
_SMALLEST_CHANGE = 1e-3


class Combination(enum.Enum):
    """Relation of a value of the batch to the values of its shares."""

    MEAN = enum.auto()
    SUM = enum.auto()
    OTHER = enum.auto()


class StepProgram:
    """Program of a step for a share of a batch.

    Args:
      traced: Trace of the step for a share.
      shares: The shares of `traced`.
      other: Trace for two or three times as many rows, or None if the results of the step are known.
      other_shares: The shares of `other`.

    Attributes:
      closed: The program, without calls.
      dependent: Variables of the program that depend on rows.

    Raises:
      StepNotSplitError: If the two traces have different equations, or side effects.
    """

    def __init__(
        self,
        traced: TracedFunction,
        shares: StepShares,
        other: TracedFunction | None = None,
        other_shares: StepShares | None = None,
    ) -> None:
        if other is None or other_shares is None:
            other, other_shares = traced, shares
        self.ratio = other_shares.repetitions // shares.repetitions
        axes = list(zip(shares.axes, shares.sizes, strict=True))
        with manual_axes_scope(shares):
            programs = [inline_calls(t.closed_jaxpr, _is_inlined, axes) for t in (traced, other)]
        self.num_leaves = len(programs[0].in_avals) - len(traced.captures)
        self.captures = programs[0].jaxpr.invars[self.num_leaves :]
        self.index = self.captures[[*traced.captures].index(shares.index)]
        if len(traced.captures) != len(other.captures):
            # A constant with rows is captured if it is large enough.
            programs = [
                _close_over_tensors(p, t) for p, t in zip(programs, (traced, other), strict=True)
            ]
        self.closed, self._other = programs
        # Collectives have the effect of naming an axis.
        if any(type(e).__name__ != "NamedAxisEffect" for e in self.closed.effects):
            raise StepNotSplitError("has side effects, such as tf.print or assertions")
        self.jaxpr, self._other_jaxpr = (p.jaxpr for p in programs)
        pairs = zip(self.jaxpr.eqns, self._other_jaxpr.eqns, strict=False)
        if (
            len(self.jaxpr.eqns) != len(self._other_jaxpr.eqns)
            or any(a.primitive is not b.primitive for a, b in pairs)
            or len(self.jaxpr.invars) != len(self._other_jaxpr.invars)
            or len(self.jaxpr.outvars) != len(self._other_jaxpr.outvars)
        ):
            raise StepNotSplitError("runs other operations for another number of rows")
        source_shapes = zip(shares.source_shapes, other_shares.source_shapes, strict=True)
        if other is not traced and any(a == b for a, b in source_shapes):
            raise StepNotSplitError("computes gradients of tensors that have no rows")
        # Numbers that are proportional to the rows of a share, but count those of the batch.
        self._counts = {
            (shares.draws.scale(a), b)
            for a, b in zip(shares.draws.counts, other_shares.draws.counts, strict=False)
            if b == self.ratio * a
        }
        self._twins = pair_variables(self.jaxpr, self._other_jaxpr)
        self._num_rows = shares.share_rows * shares.repetitions
        self._constants = [
            dict(zip(j.constvars, p.consts, strict=True))
            for j, p in zip((self.jaxpr, self._other_jaxpr), programs, strict=True)
        ]
        self.constant_outputs = [self._get_constant(v, 0) for v in self.jaxpr.outvars]
        self.check_constants([self._get_constant(v, 1) for v in self._other_jaxpr.outvars])
        self._changed = [
            not all(map(self._are_equal, a.invars, b.invars))
            for a, b in zip(self.jaxpr.eqns, self._other_jaxpr.eqns, strict=True)
        ]
        self.rows = [*self.jaxpr.invars[: self.num_leaves], self.index]
        self.dependent = self.find_dependent(self.rows)

    def _get_constant(self, atom: Atom, program: int) -> object:
        """Return the value of a constant in one of both programs; None for other variables."""
        return (
            atom.val if isinstance(atom, jex_core.Literal) else self._constants[program].get(atom)
        )

    def check_constants(self, others: Sequence[object]) -> None:
        """Check that constant outputs do not depend on the number of rows.

        Args:
          others: Constant outputs of the program for other rows; None for other outputs.

        Raises:
          StepNotSplitError: If they do.
        """
        if not all(map(self._is_same_constant, self.constant_outputs, others)):
            raise StepNotSplitError(
                "has a result, or a new value of a variable, that depends only on the number of rows"
            )

    def _are_equal(self, a: Atom, b: Atom) -> bool:
        """Check whether constants in both programs are equal; others always are."""
        return self._is_same_constant(self._get_constant(a, 0), self._get_constant(b, 1))

    def _is_same_constant(self, a: object, b: object) -> bool:
        if a is b:
            return True
        if a is None or b is None:
            return False
        first, second = np.asarray(a), np.asarray(b)
        # Bytes are compared, since some constants are NaN.
        if first.shape != second.shape or first.tobytes() == second.tobytes():
            return True
        return first.size == 1 and (first.item(), second.item()) in self._counts

    def get_row_axis(self, variable: Atom) -> int | None:
        """Return the axis of a variable that has rows, or None; -1 if several axes have them."""
        if isinstance(variable, jex_core.Literal) or variable not in self._twins:
            return None
        shape, other = get_aval(variable).shape, get_aval(self._twins[variable]).shape
        axes = [i for i, (a, b) in enumerate(zip(shape, other, strict=True)) if a != b]
        if not axes:
            return None
        return axes[0] if len(axes) == 1 and other[axes[0]] == self.ratio * shape[axes[0]] else -1

    def find_dependent(self, sources: Sequence[Var], known: Collection[Any] = ()) -> set[Any]:
        """Return the variables that depend on rows.

        Args:
          sources: Inputs that depend on rows.
          known: Variables that do not, although their equations may.
        """
        dependent: set[Any] = set(sources)
        for eqn, is_changed in zip(self.jaxpr.eqns, self._changed, strict=True):
            if is_changed or not dependent.isdisjoint(select_variables(eqn.invars)):
                dependent.update(v for v in eqn.outvars if v not in known)
            else:
                dependent.update(
                    v for v in eqn.outvars if self.get_row_axis(v) is not None and v not in known
                )
        return dependent

    def select(
        self, outputs: Sequence[Atom], is_inside: Callable[[JaxprEqn], bool]
    ) -> tuple[list[int], list[Any]]:
        """Select the equations on which outputs depend.

        Args:
          outputs: The outputs.
          is_inside: Whether an equation may be selected.

        Returns:
          Indices of the equations, and the variables that they and the outputs read.
        """
        needed = dict.fromkeys(select_variables(outputs))
        indices, made = [], set()
        for i in reversed(range(len(self.jaxpr.eqns))):
            eqn = self.jaxpr.eqns[i]
            if any(v in needed for v in eqn.outvars) and is_inside(eqn):
                indices.append(i)
                made.update(eqn.outvars)
                needed.update(dict.fromkeys(select_variables(eqn.invars)))
        constants = self._constants[0]
        return indices[::-1], [v for v in needed if v not in made and v not in constants]

    def extract(
        self, inputs: Sequence[Any], outputs: Sequence[Atom], eqns: Sequence[int]
    ) -> ClosedJaxpr:
        """Extract some equations as a program."""
        return extract_program(self.closed, inputs, outputs, [self.jaxpr.eqns[i] for i in eqns])

    def check_rows(self, outputs: Sequence[Atom], layer_states: Sequence[Atom]) -> None:
        """Check that each row is computed without the other rows, except in sums over rows.

        Args:
          outputs: Results of the program, without gradients.
          layer_states: New states of layers such as batch normalization, which may also compute with the statistics
            of the rows of a share that the states depend on.

        Raises:
          StepNotSplitError: If a row depends on other rows.
        """
        statistics = {*self.select(layer_states, self._is_partial)[0]}
        sums = self._find_sums(lambda i: i not in statistics, includes_counts=True)
        order = RowOrder(self._num_rows, self.get_row_axis)
        for i in self.select(outputs, lambda eqn: not self.dependent.isdisjoint(eqn.outvars))[0]:
            eqn = self.jaxpr.eqns[i]
            axes = [self.get_row_axis(v) for v in eqn.outvars]
            is_mixed = not sums.isdisjoint(select_variables(eqn.invars))
            has_rows = any(a is not None for a in axes)
            if has_rows and (self._changed[i] or is_mixed or not order.keeps_rows(eqn)):
                raise StepNotSplitError(
                    "computes with rows and with values of all rows of the batch, or with their number"
                )

    def check_gradients(self, outputs: Sequence[Atom]) -> None:
        """Check that the gradients of rows do not depend on sums over the rows, as those of a custom gradient may.

        Raises:
          StepNotSplitError: If they do.
        """
        sums = self._find_sums(lambda _: True, includes_counts=False)
        for i in self.select(outputs, lambda eqn: not self.dependent.isdisjoint(eqn.outvars))[0]:
            eqn = self.jaxpr.eqns[i]
            has_rows = any(self.get_row_axis(v) is not None for v in eqn.outvars)
            if has_rows and not sums.isdisjoint(select_variables(eqn.invars)):
                raise StepNotSplitError(
                    "computes gradients of rows from values of all rows of the batch"
                )

    def _is_partial(self, eqn: JaxprEqn) -> bool:
        """Check whether an equation computes values that depend on rows, but have none."""
        return all(v in self.dependent and self.get_row_axis(v) is None for v in eqn.outvars)

    def _reads_rows(self, eqn: JaxprEqn) -> bool:
        return any(self.get_row_axis(v) is not None for v in eqn.invars)

    def _find_sums(self, is_selected: Callable[[int], bool], includes_counts: bool) -> set[Any]:
        """Return the values without rows that depend on sums over rows.

        Args:
          is_selected: Whether to follow the equation with an index.
          includes_counts: Whether values that depend on the number of rows are sums, too.
        """
        found: set[Any] = set()
        for i, eqn in enumerate(self.jaxpr.eqns):
            if self._is_partial(eqn) and is_selected(i):
                is_sum = self._reads_rows(eqn) or self.index in eqn.invars
                is_sum |= includes_counts and self._changed[i]
                if is_sum or not found.isdisjoint(select_variables(eqn.invars)):
                    found.update(eqn.outvars)
        return found

    # ---- combination of shares -------------------------------------------------------------

    def find_combinations(self, outputs: Sequence[tuple[Atom, Any]]) -> list[Combination]:
        """Find how the values of shares combine to those of the batch.

        Args:
          outputs: Variables without rows, each with an earlier value that it is added to, or None.
        """
        found: list[Combination | None] = [None] * len(outputs)
        try:
            for scale in _SCALES:
                rest = [i for i, kind in enumerate(found) if kind is None]
                if not rest:
                    break
                kinds = self._compare([outputs[i] for i in rest], scale)
                for i, kind in zip(rest, kinds, strict=True):
                    found[i] = kind
        except Exception:
            # Values without bounds for an operation may raise any error.
            return [Combination.OTHER] * len(outputs)
        return [kind or Combination.OTHER for kind in found]

    def _compare(
        self, outputs: Sequence[tuple[Atom, Any]], scale: float
    ) -> list[Combination | None]:
        atoms = [v for v, _ in outputs]
        indices, inputs = self.select(atoms, self._is_partial)
        axes = [self.get_row_axis(v) for v in inputs]
        size = sum(math.prod(get_aval(v).shape) for v in inputs)
        if size > _MAX_ELEMENTS or -1 in axes:
            if len(outputs) == 1:
                return [Combination.OTHER]
            return [self._compare([output], scale)[0] for output in outputs]
        one, double = (
            [jaxpr.eqns[i] for i in indices] for jaxpr in (self.jaxpr, self._other_jaxpr)
        )
        outvars = [self._other_jaxpr.outvars[k] for k in self._find_outputs(atoms)]
        programs = (
            extract_program(self.closed, inputs, atoms, one),
            extract_program(self._other, [self._twins[v] for v in inputs], outvars, double),
        )
        parts = self._draw_parts(inputs, axes, scale)
        runs: list[tuple[ClosedJaxpr, Sequence[Any]]] = []
        for small in self._list_small_inputs(inputs, axes):
            shrunk = [
                [v / v.size if k in small else v for k, v in enumerate(part)] for part in parts
            ]
            union = [
                same[0] if axis is None else np.concatenate(same, axis)
                for same, axis in zip(zip(*shrunk, strict=True), axes, strict=True)
            ]
            runs += [*((programs[0], part) for part in shrunk), (programs[1], union)]
        found = _run(runs)
        known = dict(zip(inputs, parts[0], strict=True))
        steps = self._find_steps(indices)
        results: list[Combination | None] = []
        for k, (_, start) in enumerate(outputs):
            if atoms[k] in steps:
                results.append(Combination.OTHER)
                continue
            before = np.asarray(known.get(start, 0.0), np.float64)
            smallest = _SMALLEST_CHANGE * np.abs(before).max(initial=0.0)
            is_half = np.dtype(get_aval(atoms[k]).dtype).itemsize < 4 and _is_float(atoms[k])
            tolerance = _HALF_TOLERANCE if is_half else _TOLERANCE
            kinds = {}
            for first in range(0, len(found), self.ratio + 1):
                values = [v[k].astype(np.float64) - before for v in found[first:][: self.ratio + 1]]
                kinds[_combine(values[:-1], values[-1], tolerance, smallest)] = True
            kinds.pop(None, None)
            results.append(
                None if not kinds else next(iter(kinds)) if len(kinds) == 1 else Combination.OTHER
            )
        return results

    def _draw_parts(
        self, inputs: Sequence[Any], axes: Sequence[int | None], scale: float
    ) -> list[list[np.ndarray]]:
        """Draw the inputs of each share; those without rows are equal for all shares."""
        generator = np.random.default_rng(0)
        parts: list[list[np.ndarray]] = [[] for _ in range(self.ratio)]
        for variable, axis in zip(inputs, axes, strict=True):
            # The means of many equally distributed values would hardly differ.
            levels = generator.permutation(np.linspace(0.4, 1, self.ratio))
            for part, level in zip(parts, levels, strict=True):
                is_new = axis is not None or part is parts[0]
                part.append(
                    self._draw(generator, variable, scale, level) if is_new else parts[0][len(part)]
                )
        return parts

    def _list_small_inputs(
        self, inputs: Sequence[Any], axes: Sequence[int | None]
    ) -> list[frozenset[int]]:
        """Return sets of inputs with many rows, the sums of which are made small so that they hide no other terms."""
        many = frozenset(
            k
            for k, (v, axis) in enumerate(zip(inputs, axes, strict=True))
            if axis is not None
            and get_aval(v).dtype in (np.float32, np.float64)
            and math.prod(get_aval(v).shape) > _MANY_ELEMENTS
        )
        return [*dict.fromkeys([frozenset(), many, *(many - {k} for k in sorted(many))])]

    def _find_steps(self, indices: Sequence[int]) -> set[Any]:
        """Return the variables that depend on decisions about partial results.

        Random values do not show that such a variable is neither a mean nor a sum.
        """
        steps: set[Any] = set()
        for i in indices:
            eqn = self.jaxpr.eqns[i]
            read = [v for v in select_variables(eqn.invars) if v in self.dependent]
            partial = [v for v in read if self.get_row_axis(v) is None]
            rounds_rows = (
                eqn.primitive.name in _REDUCED_DECISIONS
                and self._reads_rows(eqn)
                and not any(map(_is_float, select_variables(eqn.invars)))
            )
            rounds = any(_is_float(v) for v in partial) and not any(map(_is_float, eqn.outvars))
            if (
                rounds
                or rounds_rows
                or (partial and eqn.primitive.name in _DECISIONS)
                or not steps.isdisjoint(read)
            ):
                steps.update(eqn.outvars)
        return steps

    def _find_outputs(self, atoms: Sequence[Atom]) -> list[int]:
        indices: dict[Any, int] = {}
        for k, atom in enumerate(self.jaxpr.outvars):
            if not isinstance(atom, jex_core.Literal):
                indices.setdefault(atom, k)
        return [indices[a] for a in atoms]

    def _draw(
        self, generator: np.random.Generator, variable: Atom, scale: float, level: float
    ) -> np.ndarray:
        """Draw values that are valid probabilities (for a scale of 1), labels of two classes, or weights.

        Their mean is proportional to `level`, which is at most 1.
        """
        aval = get_aval(variable)
        if variable is self.index:
            return np.zeros(aval.shape, aval.dtype)
        if np.dtype(aval.dtype).kind in "iub":
            return (generator.uniform(size=aval.shape) < 0.6 * level).astype(aval.dtype)
        return (level * scale * generator.uniform(0.2, 0.8, aval.shape)).astype(aval.dtype)


def _combine(
    parts: Sequence[np.ndarray], union: np.ndarray, tolerance: float, smallest: float
) -> Combination | None:
    """Compare the results of shares with that of their union; None if all of them are `smallest` at most."""
    largest = max(np.abs(v).max(initial=0.0) for v in (*parts, union))
    if not np.isfinite(largest):
        return Combination.OTHER
    if largest <= smallest:
        return None
    total = sum(parts, np.zeros(()))
    for kind, expected in (
        (Combination.MEAN, total / len(parts)),
        (Combination.SUM, total),
    ):
        if np.abs(union - expected).max(initial=0.0) <= tolerance * largest:
            return kind
    return Combination.OTHER


def _close_over_tensors(closed: ClosedJaxpr, traced: TracedFunction) -> ClosedJaxpr:
    """Turn the captured tensors with known values into constants."""
    jaxpr = closed.jaxpr
    captures = zip(jaxpr.invars[-len(traced.captures) :], traced.captures, strict=True)
    known = {
        v: c.array
        for v, c in captures
        if isinstance(c, Tensor) and not isinstance(c.array, jax.core.Tracer)
    }
    inputs = [v for v in jaxpr.invars if v not in known]
    constants = [*jaxpr.constvars, *known]
    changed = jaxpr.replace(
        invars=inputs, constvars=constants, debug_info=jaxpr.debug_info.with_unknown_names()
    )
    return jex_core.ClosedJaxpr(changed, [*closed.consts, *known.values()])


def _drop_sharding(eqn: JaxprEqn) -> JaxprEqn:
    """Return an equation without the mesh of its trace, for another mesh."""
    if eqn.primitive.name == "sharding_constraint" or eqn.params.get("sharding") is None:
        return eqn
    return eqn.replace(params={**eqn.params, "sharding": None})


def bind_without_mesh(eqn: JaxprEqn, operands: Sequence[Array]) -> list[Array]:
    """Return the results of an equation, and of the programs inside, on another mesh than that of its trace."""
    inner = find_inner_jaxprs(eqn)
    if eqn.primitive.name == "reshard":
        return [*operands]
    if is_plain_call(eqn) or eqn.primitive.name in _DERIVATIVE_RULES:
        return _run_without_mesh(inner[0], operands)
    if not inner:
        return bind_equation(_drop_sharding(eqn), operands)
    params = {name: _drop_inner_sharding(value) for name, value in eqn.params.items()}
    return bind_equation(_drop_sharding(eqn.replace(params=params)), operands)


def _run_without_mesh(program: AnyJaxpr, operands: Sequence[Array]) -> list[Array]:
    jaxpr = to_open_jaxpr(program)
    constants = map(np.asarray, getattr(program, "consts", ()))
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    env |= zip(jaxpr.invars, operands, strict=True)
    read = lambda a: np.asarray(a.val) if isinstance(a, jex_core.Literal) else env[a]
    for eqn in jaxpr.eqns:
        results = bind_without_mesh(eqn, [read(a) for a in eqn.invars])
        env |= zip(eqn.outvars, results, strict=True)
    return [read(a) for a in jaxpr.outvars]


def _drop_inner_sharding(value: object) -> object:
    """Return a parameter of an equation with programs that belong to no mesh."""
    if type(value) is tuple or type(value) is list:
        return type(value)(map(_drop_inner_sharding, value))
    if not isinstance(value, (jex_core.ClosedJaxpr, jex_core.Jaxpr)):
        return value
    closed = trace_atoms(
        lambda *arrays: _run_without_mesh(value, arrays), to_open_jaxpr(value).invars
    )
    return closed if isinstance(value, jex_core.ClosedJaxpr) else closed.jaxpr


def _is_float(variable: Atom) -> bool:
    return np.dtype(get_aval(variable).dtype).kind not in "iub"


def _is_inlined(eqn: JaxprEqn) -> bool:
    return is_plain_call(eqn) and not makes_indices(eqn)


def _run(programs: Sequence[tuple[ClosedJaxpr, Sequence[Any]]]) -> list[list[Any]]:
    """Run programs, outside of the trace of this thread."""

    def run_all() -> list[list[Any]]:
        functions: dict[int, Any] = {}
        for program, _ in programs:
            functions.setdefault(
                id(program), jax.jit(functools.partial(_run_without_mesh, program))
            )
        return [
            [np.asarray(v).astype(np.float64) for v in functions[id(program)](values)]
            for program, values in programs
        ]

    return run_outside_of_traces(run_all)
