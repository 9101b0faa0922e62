"""Barriers against the simplifications of XLA that change results.

XLA replaces `log(exp(x))` by `x`, `(x * a) / b` by `x * (a / b)`, `sqrt(x * x)` by `abs(x)`, and `abs(x) < 0` by
false. These are identities of real numbers, but not of numbers that overflow, underflow or wrap around. The pass puts
a barrier between the two operations of such a pair. XLA's CPU compiler removes the barriers before it fuses
operations, so they cost no time; on accelerators, a conversion to the same precision has the same effect.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var
from meshflow.passes.jaxprs import get_aval, rewrite_inner_jaxprs, summarize_jaxpr

_CALLS = frozenset({"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"})
# Operations that XLA exchanges with arithmetic, or looks through.
_TRANSPARENT = frozenset(
    ["broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "copy", "copy_p", "neg"]
    + ["convert_element_type", "reduce_sum", "slice", "rev", "stop_gradient"]
)
_EXPONENTIALS = frozenset({"exp", "exp2"})
_POWERS = frozenset({"pow", "integer_pow", "square"})
_ROOTS = frozenset({"sqrt", "rsqrt", "cbrt"})
_PRODUCTS = frozenset({"mul", "div", "dot_general"})
_SUMS = frozenset({"add", "sub", "add_any"})
_COMPARISONS = frozenset({"lt", "le", "gt", "ge"})
_RANGES = frozenset({"abs", "sign", "max", "min", "clamp"})
# Operations with a result that is not negative if their operands are not.
_SELECTIONS = frozenset({"select_n", "max", "min", "clamp"})
_CONSUMERS = (
    frozenset({"log", "log1p", "pow"}) | _ROOTS | _PRODUCTS | _SUMS | _COMPARISONS | _RANGES
)
_EXAMINED = _CONSUMERS | _TRANSPARENT | _EXPONENTIALS | _POWERS | _SELECTIONS


class _Origin(NamedTuple):
    """The operation that computes a value, except changes of its shape and sign.

    Attributes:
      source: Identifies the value: its variable, or the value of a literal.
      is_uniform: Whether all elements are equal, as in a broadcast scalar, or constant.
      name: Name of the primitive; empty for inputs of the program.
      operands: Origins of the operands.
      is_scaled: Whether the value is a product with a uniform factor, or a sum of equal elements.
      is_selection: Whether the value is selected from squares or magnitudes, among others.
    """

    source: object
    is_uniform: bool = False
    name: str = ""
    operands: tuple[_Origin, ...] = ()
    is_scaled: bool = False
    is_selection: bool = False

    @property
    def is_shifted(self) -> bool:
        """Return whether the value is a sum with a uniform summand."""
        return self.name in _SUMS and any(o.is_uniform for o in self.operands)

    @property
    def is_square(self) -> bool:
        """Return whether the value is a product of equal factors."""
        is_product = self.name in ("mul", "dot_general")
        return self.name in _POWERS or (
            is_product and self.operands[0].source == self.operands[1].source
        )

    @property
    def is_magnitude(self) -> bool:
        """Return whether XLA assumes that the value is not negative."""
        return self.is_square or self.name == "abs" or self.is_selection


def insert_simplification_barriers(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Insert barriers into a program; return the same object if it needs none.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> closed = jax.make_jaxpr(lambda x: jnp.log(jnp.exp(x)))(1.0)
      >>> [str(eqn.primitive) for eqn in insert_simplification_barriers(closed).jaxpr.eqns]
      ['exp', 'optimization_barrier', 'log']
    """
    if summarize_jaxpr(closed.jaxpr).primitives.isdisjoint(_CONSUMERS):
        return closed
    jaxpr, _ = _rewrite_jaxpr(closed.jaxpr, [_Origin(v) for v in closed.jaxpr.invars])
    return closed if jaxpr is closed.jaxpr else jex_core.ClosedJaxpr(jaxpr, closed.consts)


def _rewrite_jaxpr(jaxpr: Jaxpr, inputs: Sequence[_Origin]) -> tuple[Jaxpr, list[_Origin]]:
    """Insert barriers into a jaxpr; return it with the origins of its outputs."""
    origins: dict[Atom, _Origin] = dict(zip(jaxpr.invars, inputs, strict=True))
    origins.update((v, _Origin(v, is_uniform=True)) for v in jaxpr.constvars)
    barriers: dict[Atom, Var] = {}
    eqns: list[JaxprEqn] = []
    is_changed = False

    def find_origin(atom: Atom) -> _Origin:
        if isinstance(atom, jex_core.Literal):
            return _Origin(np.asarray(atom.val).tobytes(), is_uniform=True)
        origin = origins.get(atom)
        if origin is None:
            return _Origin(atom, is_uniform=get_aval(atom).size == 1)
        return origin

    nested = set(summarize_jaxpr(jaxpr).nested)
    for index, eqn in enumerate(jaxpr.eqns):
        name = eqn.primitive.name
        if index not in nested and name not in _EXAMINED:
            eqns.append(eqn)
            continue
        operands = [find_origin(a) for a in eqn.invars]
        if index in nested:
            rewritten, results = _rewrite_call(eqn, operands)
            is_changed = is_changed or rewritten is not eqn
            eqns.append(rewritten)
            origins.update(zip(eqn.outvars, results, strict=True))
            continue
        if name in _CONSUMERS:
            invars = list(eqn.invars)
            for i in _find_guarded_operands(eqn, operands):
                atom = invars[i]
                if isinstance(atom, jex_core.Literal):
                    continue
                if atom not in barriers:
                    barriers[atom] = jex_core.Var(get_aval(atom))
                    eqns.append(_make_barrier(eqn, atom, barriers[atom]))
                invars[i] = barriers[atom]
                operands[i] = _Origin(invars[i], operands[i].is_uniform)
                is_changed = True
            eqn = eqn.replace(invars=invars)
        eqns.append(eqn)
        if len(eqn.outvars) == 1:
            origins[eqn.outvars[0]] = _describe_result(eqn, operands)
    outputs = [find_origin(a) for a in jaxpr.outvars]
    return (jaxpr.replace(eqns=eqns) if is_changed else jaxpr), outputs


def _describe_result(eqn: JaxprEqn, operands: list[_Origin]) -> _Origin:
    name, (result,) = eqn.primitive.name, eqn.outvars
    size = get_aval(result).size
    if name in _TRANSPARENT:
        operand = operands[0]
        is_equal_sum = name == "reduce_sum" and operand.is_uniform
        # XLA replaces the sum of a broadcast value by a product.
        is_broadcast = name == "broadcast_in_dim" and size > get_aval(eqn.invars[0]).size
        is_uniform = operand.is_uniform or size == 1
        return operand._replace(
            is_uniform=is_uniform, is_scaled=operand.is_scaled or is_equal_sum or is_broadcast
        )
    uniform = [o.is_uniform for o in operands]
    is_uniform = size == 1 or all(uniform)
    is_scaled = name in _PRODUCTS and True in uniform
    is_selection = name in _SELECTIONS and any([o.is_magnitude for o in operands])
    # The operands of operands are not examined.
    shallow = tuple([o if not o.operands else o._replace(operands=()) for o in operands])
    return _Origin(result, is_uniform, name, shallow, is_scaled, is_selection)


def _find_guarded_operands(eqn: JaxprEqn, operands: list[_Origin]) -> list[int]:
    """Return the indices of the operands that need barriers."""
    name, first = eqn.primitive.name, operands[0]
    if name in ("log", "log1p"):
        # XLA removes factors of 1.
        factors = first.operands if first.name in _PRODUCTS else ()
        sources = {first.name, *(o.name for o in factors)}
        return [] if sources.isdisjoint(_EXPONENTIALS | _POWERS | _ROOTS) else [0]
    if name in _ROOTS or name == "pow":
        is_power = first.name in _EXPONENTIALS | _POWERS | _ROOTS | {"div"} or first.is_square
        return [0] if is_power else []
    if name in _COMPARISONS | _RANGES:
        # XLA assumes that squares and magnitudes are not negative.
        if name in _RANGES and not jnp.issubdtype(get_aval(eqn.outvars[0]).dtype, np.integer):
            return []
        return [i for i, o in enumerate(operands) if o.is_magnitude]
    if name == "dot_general" or len(operands) != 2:
        return []
    return _find_guarded_pair(name, operands[0], operands[1])


def _find_guarded_pair(name: str, first: _Origin, second: _Origin) -> list[int]:
    """Return the indices of the operands of a product or sum that need barriers."""
    if name in _SUMS:
        if (first.is_shifted and second.is_uniform) or _share_factor(first, second):
            return [0]
        return [1] if second.is_shifted and (first.is_uniform or first.is_shifted) else []
    guarded = set()
    if first.is_scaled and (second.is_uniform or second.is_scaled):
        guarded.add(0)
    if second.is_scaled and first.is_uniform:
        guarded.add(1)
    if name == "mul":
        if first.name in _EXPONENTIALS and second.name in _EXPONENTIALS:
            guarded.add(0)
    else:
        if first.name == "div":
            guarded.add(0)
        if second.name in _EXPONENTIALS | _POWERS | {"div"}:
            guarded.add(1)
    return sorted(guarded)


def _share_factor(first: _Origin, second: _Origin) -> bool:
    """Check whether two values are products or quotients with a common factor."""
    if first.name != second.name or first.name not in ("mul", "div"):
        return False
    return not {o.source for o in first.operands}.isdisjoint(o.source for o in second.operands)


def _rewrite_call(eqn: JaxprEqn, operands: list[_Origin]) -> tuple[JaxprEqn, list[_Origin]]:
    """Insert barriers into the programs of an equation; the origins only pass through calls."""
    is_call = eqn.primitive.name in _CALLS
    results: list[list[_Origin]] = []

    def rewrite(jaxpr: Jaxpr) -> Jaxpr:
        inputs = operands if is_call else [_Origin(v) for v in jaxpr.invars]
        changed, outputs = _rewrite_jaxpr(jaxpr, inputs)
        results.append(outputs)
        return changed

    rewritten = rewrite_inner_jaxprs(eqn, rewrite)
    if is_call and len(results) == 1:
        return rewritten, results[0]
    return rewritten, [_Origin(v) for v in eqn.outvars]


@functools.cache
def _trace_barrier() -> JaxprEqn:
    """Return the equation of an optimization barrier."""
    return jax.make_jaxpr(jax.lax.optimization_barrier)(0.0).eqns[0]


def _make_barrier(near: JaxprEqn, operand: Atom, result: Var) -> JaxprEqn:
    """Return an equation that hides the origin of an operand from XLA."""
    dtype = get_aval(result).dtype
    if jax.default_backend() == "cpu" or not jnp.issubdtype(dtype, np.floating):
        primitive, params = _trace_barrier().primitive, _trace_barrier().params
    else:
        # XLA's GPU compiler does not fuse across a barrier.
        information = jnp.finfo(dtype)
        primitive = jax.lax.reduce_precision_p
        params = {"exponent_bits": information.nexp, "mantissa_bits": information.nmant}
    return near.replace(
        primitive=primitive, invars=[operand], outvars=[result], params=params, effects=set()
    )
