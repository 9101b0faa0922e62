"""Boundaries that keep XLA's CPU fusion from computing long elementwise chains several times.

XLA fuses a cheap elementwise equation into every consumer, even if the result is in memory for another
consumer. In `x[i + 1] = relu(x[i] + norm(conv(x[i])))` the convolution reads `x[i]` from memory, but the
addition computes `x[i]` from `x[i - 1]`, which it computes from `x[i - 2]`, and so on. Work and compile
time grow with the square of the depth. `lax.optimization_barrier` does not help, because XLA removes it
before fusion. The pass inserts the primitive `fusion_boundary`: a call of the identity that XLA must not
inline. It copies nothing, needs no library, and disappears on other platforms.

The cost model counts bytes of memory traffic; an operation costs `_OPERATION_BYTES` for each element.

* A *kernel* is what XLA compiles to one loop. It ends at a value that is *stored* in memory: a result of the
  program, an operand of an equation that XLA does not fuse (convolution, product, handler, loop), the
  result of a reduction, or a value that XLA does not duplicate. These are expensive values (division,
  exponential, rounding to 16 bits) and combinations of several arrays that an unfused equation reads.
* The *chain* of a value is the set of fused equations that compute it from stored values, its sources. To
  compute it again costs its operations and reads of its sources. A single large source is free, because
  most kernels read it for another reason: normalization reads its operand in the backward pass.
* A boundary replaces a chain by one read in each of the `n` kernels that compute it. If the value is
  not stored otherwise, the boundary also costs the chain and a write.

A value gets a boundary if that saves more than the cost of a kernel, or if the chain is so long that its
compilation costs more. Ordinary activations, which XLA fuses well, remain fused. If one consumer leads to
all kernels of a value, a later value is considered instead. A boundary makes a value a source, so that
chains remain short, and total costs grow linearly with the depth.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata

from meshflow.environment.inner_jaxprs import to_open_jaxpr
from meshflow.environment.jax_internals import ad, batching, jex_core, mlir
from meshflow.environment.types import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from meshflow.passes.jaxprs import are_same_objects, get_aval, rewrite_inner_jaxprs
from meshflow.passes.sub_jaxprs import CALLS, find_call_body

# The identity. XLA's CPU compiler does not fuse across it.
fusion_boundary_p = jex_core.Primitive("fusion_boundary")

# Cost of an elementwise operation on an element, in bytes of memory traffic.
_OPERATION_BYTES = 0.5
# A write reads the cache lines of its destination, too, and the value takes memory and space in the caches.
_WRITE_FACTOR = 3.0
# Sources other than the largest one that are small, compared with a read of the result.
_SMALL_SOURCES = 0.25
# Cost of an additional kernel, in bytes of memory traffic.
_KERNEL_BYTES = 16384
# Length of a chain from which its compilation costs more than any boundary.
_MAX_OPERATIONS = 64

# Equations with programs that XLA compiles separately.
_REGIONS = frozenset({"scan", "while", "cond", "shard_map"})
# Equations that XLA computes again in each consumer.
_CHEAP = """
    abs add add_any and bitcast_convert_type broadcast_in_dim ceil clamp clz concatenate convert_element_type
    copy copy_p dynamic_slice eq expand_dims floor ge gt imag integer_pow iota is_finite le lt max min mul ne
    neg not or pad population_count real reduce_precision reshape rev round select_n shift_left
    shift_right_arithmetic shift_right_logical sign slice split square squeeze stop_gradient sub transpose xor
"""
# Equations that XLA fuses but never computes twice, without and with a sum over elements.
_EXPENSIVE = """
    acos acosh asin asinh atan atan2 atanh cbrt cos cosh div erf erf_inv erfc exp exp2 expm1 gather log log1p
    logistic pow rem rsqrt sin sinh sqrt tan tanh
"""
_REDUCTIONS = """
    argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor
"""
_KINDS = {
    name: kind
    for kind, names in (("cheap", _CHEAP), ("expensive", _EXPENSIVE), ("reduction", _REDUCTIONS))
    for name in names.split()
}
# Operations that an equation counts as, by name or kind: copies of parts compute addresses and branch.
_OPERATIONS = {
    **{"concatenate": 8, "pad": 4, "broadcast_in_dim": 0, "reshape": 0, "squeeze": 0},
    **{"cheap": 1, "expensive": 4},
}


def insert_fusion_boundaries(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Insert boundaries where XLA's CPU fusion would duplicate work; return the same object if nowhere.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def chain(x):
      ...     for _ in range(4):
      ...         x = jax.nn.relu(x + x @ x)
      ...     return x
      >>> closed = jax.make_jaxpr(chain)(jnp.ones((256, 256)))
      >>> str(insert_fusion_boundaries(closed)).count("fusion_boundary")
      3
    """
    jaxpr = _insert_in_program(closed.jaxpr)
    return closed if jaxpr is closed.jaxpr else jex_core.ClosedJaxpr(jaxpr, closed.consts)


def _insert_in_program(jaxpr: Jaxpr) -> Jaxpr:
    """Insert boundaries in a program, in its calls, and in the programs of its loops and branches."""
    graph = _FusionGraph()
    scope = graph.add_program(jaxpr)
    return _rebuild(scope, graph.choose_boundaries())


@dataclasses.dataclass(slots=True)
class _FusionNode:
    """An equation of the program without calls.

    Attributes:
      kind: "cheap", "expensive" or "reduction"; None if XLA does not fuse the equation.
      weight: Number of operations for each element.
      operands: Ids of its operands, without literals.
      results: Ids of its results.
    """

    kind: str | None
    weight: int
    operands: list[int]
    results: list[int]


@dataclasses.dataclass(slots=True)
class _Scope:
    """A jaxpr of the program: ids of the results of its equations, and its calls, by equation."""

    jaxpr: Jaxpr
    results: dict[int, list[int]]
    calls: dict[int, _Scope]


class _FusionGraph:
    """The equations of a program and of its calls, as one graph."""

    def __init__(self) -> None:
        # Number of elements of each value, and its bytes; those of a mask as of 32-bit numbers.
        self._sizes: list[int] = []
        self._bytes: list[int] = []
        # Values that a kernel does not read from memory.
        self._broadcasts: set[int] = set()
        self._equations: list[_FusionNode] = []
        self._outputs: set[int] = set()

    def add_program(self, jaxpr: Jaxpr) -> _Scope:
        """Add a complete program."""
        ids: dict[Atom, int] = {v: self._add_value(v) for v in (*jaxpr.constvars, *jaxpr.invars)}
        scope = self._add_equations(jaxpr, ids)
        self._outputs = {ids[v] for v in jaxpr.outvars if not isinstance(v, Literal)}
        return scope

    def _add_value(self, atom: Atom) -> int:
        aval = get_aval(atom)
        size = math.prod(getattr(aval, "shape", ()))
        itemsize = getattr(getattr(aval, "dtype", None), "itemsize", 0)
        self._sizes.append(size)
        self._bytes.append(size * (itemsize if itemsize > 1 else 4))
        return len(self._sizes) - 1

    def _add_equations(self, jaxpr: Jaxpr, ids: dict[Atom, int]) -> _Scope:
        scope = _Scope(jaxpr, {}, {})
        for index, eqn in enumerate(jaxpr.eqns):
            name = eqn.primitive.name
            call_body = find_call_body(eqn) if name in CALLS else None
            if call_body is None:
                results = [self._add_value(v) for v in eqn.outvars]
                operands = [ids[v] for v in eqn.invars if not isinstance(v, Literal)]
                kind = _KINDS.get(name)
                if kind == "cheap" and _rounds_to_16_bits(eqn):
                    kind = "expensive"
                weight = _OPERATIONS.get(name, _OPERATIONS.get(kind or "", 1))
                # Results of an equation that is fused, such as a split, are computed separately.
                for group in [[v] for v in results] if kind else [results]:
                    self._equations.append(_FusionNode(kind, weight, operands, group))
                scope.results[index] = results
                if name in ("broadcast_in_dim", "iota"):
                    self._broadcasts.update(results)
            else:
                body = to_open_jaxpr(call_body)
                inner: dict[Atom, int] = {v: self._add_value(v) for v in body.constvars}
                for v, operand in zip(body.invars, eqn.invars, strict=True):
                    is_literal = isinstance(operand, Literal)
                    inner[v] = self._add_value(v) if is_literal else ids[operand]
                scope.calls[index] = self._add_equations(body, inner)
                results = [
                    self._add_value(v) if isinstance(v, Literal) else inner[v] for v in body.outvars
                ]
            ids |= zip(eqn.outvars, results, strict=True)
        return scope

    def choose_boundaries(self) -> set[int]:
        """Return the ids of the values that get a boundary."""
        count = len(self._sizes)
        stored, kernels, consumers = self._find_kernels()
        boundaries: set[int] = set()
        # The chain of each value, and its sources.
        operations: list[frozenset[int]] = [frozenset()] * count
        sources = [frozenset({v}) for v in range(count)]
        weights = [1] * count
        for eqn in self._equations:
            v = eqn.results[0] if eqn.kind else 0
            if eqn.kind is None or not consumers[v]:
                continue
            weights[v] = eqn.weight
            if self._is_computed_once(eqn, consumers[v]):
                continue
            chain = frozenset({v}).union(*[operations[u] for u in eqn.operands])
            inputs = frozenset().union(*[sources[u] for u in eqn.operands])
            readers = kernels[v]
            # If one consumer leads to all kernels, a later value is considered instead.
            is_end = stored[v] or all(
                readers & ~self._merge(kernels, stored, c) for c in consumers[v]
            )
            if readers and is_end:
                length = sum(weights[u] for u in chain if self._sizes[u] >= self._sizes[v])
                if self._saves_time(v, length, inputs, readers.bit_count(), stored[v]):
                    boundaries.add(v)
                    continue
            operations[v], sources[v] = chain, inputs
        return boundaries

    def _find_kernels(self) -> tuple[list[bool], list[int], list[list[_FusionNode]]]:
        """Find the kernels that XLA would compile without boundaries.

        Returns:
          For each value: whether it is stored, the kernels that read it, and the equations that read it. Kernels
          are bits of a number: kernel `v` computes the stored value `v`.
        """
        count = len(self._sizes)
        stored, kernels = [False] * count, [0] * count
        consumers: list[list[_FusionNode]] = [[] for _ in range(count)]
        for v in self._outputs:
            stored[v] = True
        for eqn in reversed(self._equations):
            if not any(stored[v] or consumers[v] for v in eqn.results):
                continue
            for v in eqn.results:
                stored[v] = stored[v] or self._is_computed_once(eqn, consumers[v])
            reached = self._merge(kernels, stored, eqn) if eqn.kind else 0
            for v in eqn.operands:
                consumers[v].append(eqn)
                kernels[v] |= reached
                stored[v] = stored[v] or eqn.kind is None
        return stored, kernels, consumers

    def _merge(self, kernels: list[int], stored: list[bool], eqn: _FusionNode) -> int:
        """Return the kernels in which an equation may be fused, as bits."""
        merged = 0
        for v in eqn.results:
            merged |= 1 << v if stored[v] else kernels[v]
        return merged

    def _is_computed_once(self, eqn: _FusionNode, consumers: list[_FusionNode]) -> bool:
        """Check whether XLA stores the result of an equation instead of computing it several times."""
        if eqn.kind in (None, "reduction"):
            return True
        if len(consumers) < 2:
            return False
        if eqn.kind == "expensive":
            return True
        size = self._sizes[eqn.results[0]]
        arrays = {v for v in eqn.operands if self._sizes[v] >= size} - self._broadcasts
        return len(arrays) > 1 and any(c.kind is None for c in consumers)

    def _saves_time(
        self, value: int, length: int, sources: frozenset[int], num_kernels: int, is_stored: bool
    ) -> bool:
        """Check whether a boundary after a value costs less than it saves."""
        if length >= _MAX_OPERATIONS:
            return True
        size, read = self._sizes[value], self._bytes[value]
        # A kernel reads at most as many elements of a source as it computes.
        reads = [self._bytes[v] * min(1, size / self._sizes[v]) for v in sources if self._sizes[v]]
        chain = sum(reads)
        if chain - max(reads, default=0) < _SMALL_SOURCES * read:
            chain -= max(reads, default=0)
        chain += _OPERATION_BYTES * size * length
        saving = num_kernels * (chain - read)
        if not is_stored:
            saving -= chain + _WRITE_FACTOR * read
        return saving >= _KERNEL_BYTES


def _rounds_to_16_bits(eqn: JaxprEqn) -> bool:
    """Check whether a result is rounded to 16 bits, after each operation."""
    dtype = get_aval(eqn.outvars[0]).dtype
    return jax.dtypes.issubdtype(dtype, np.floating) and dtype.itemsize == 2


def _replace_jaxpr(old: Jaxpr, new: Jaxpr, jaxpr: Jaxpr) -> Jaxpr:
    return new if jaxpr is old else jaxpr


def _rebuild(scope: _Scope, boundaries: set[int]) -> Jaxpr:
    """Return the jaxpr of a scope with boundaries; the same object if there are none."""
    eqns: list[JaxprEqn] = []
    for index, eqn in enumerate(scope.jaxpr.eqns):
        call = scope.calls.get(index)
        if call is not None:
            body = _rebuild(call, boundaries)
            eqns.append(
                rewrite_inner_jaxprs(eqn, functools.partial(_replace_jaxpr, call.jaxpr, body))
            )
        elif eqn.primitive.name in _REGIONS:
            eqns.append(rewrite_inner_jaxprs(eqn, _insert_in_program))
        elif boundaries.isdisjoint(scope.results[index]):
            eqns.append(eqn)
        else:
            eqns += _add_boundaries(eqn, [v in boundaries for v in scope.results[index]])
    is_same = are_same_objects(eqns, scope.jaxpr.eqns)
    return scope.jaxpr if is_same else scope.jaxpr.replace(eqns=eqns)


def _add_boundaries(eqn: JaxprEqn, is_end: Sequence[bool]) -> list[JaxprEqn]:
    """Return an equation, and boundaries after the results for which `is_end` is true."""
    outvars, ends = list(eqn.outvars), []
    for i, old in enumerate(eqn.outvars):
        if is_end[i]:
            outvars[i] = Var(get_aval(old))
            ends.append(
                eqn.replace(
                    primitive=fusion_boundary_p, invars=[outvars[i]], outvars=[old], params={}
                )
            )
    return [eqn.replace(outvars=outvars), *ends]


@jax.jit
def _identity(x: jax.Array) -> jax.Array:
    return x


def _call_identity(x: jax.Array) -> jax.Array:
    """Call the identity so that XLA does not inline the call."""
    with set_xla_metadata(inlineable="false"):
        return _identity(x)


fusion_boundary_p.def_impl(lambda x: x)
fusion_boundary_p.def_abstract_eval(lambda aval: aval)
ad.deflinear2(fusion_boundary_p, lambda cotangent, _: [cotangent])
batching.defvectorized(fusion_boundary_p)
mlir.register_lowering(fusion_boundary_p, lambda _, x: [x])
mlir.register_lowering(
    fusion_boundary_p, mlir.lower_fun(_call_identity, multiple_results=False), platform="cpu"
)
