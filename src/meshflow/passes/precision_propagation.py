"""Decision which equations of a jaxpr run in low precision.

The rules are those of TensorFlow's auto_mixed_precision, on the dataflow graph of all equations,
including those of inner programs:

1. `allow` equations on float32 values run in low precision. Without any, all equations run in
   float32.
2. `deny` equations are denied, and so is every `infer` or `clear` equation that uses a result
   computed by a denied one: a complete softmax, normalization or loss remains in float32.
3. Other `infer` and `clear` equations between two in low precision run in low precision.
4. A `clear` equation also runs in low precision if all its operands are in low precision, or all
   its consumers are, and that saves casts or makes them smaller: a reshape takes the precision of
   its neighbors, a lookup in a large table does not. Neither costs accuracy.

Loop carries, inputs and outputs do not connect equations, and keep their dtypes: running sums and
updated variables remain exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import jax
import numpy as np

from meshflow.environment.jax_internals import source_info_util
from meshflow.environment.types import Atom, Jaxpr, JaxprEqn, Literal
from meshflow.passes.jaxprs import get_aval
from meshflow.passes.precision_lists import PrecisionLists
from meshflow.passes.sub_jaxprs import INLINED_CALLS, find_regions

# Location of an equation: its index, preceded by the path of the enclosing equation.
Path = tuple[Any, ...]


def is_float32(atom: Atom) -> bool:
    """Check whether a variable or literal of a jaxpr is float32."""
    return isinstance(atom.aval, jax.core.ShapedArray) and atom.aval.dtype == np.float32


@dataclasses.dataclass(eq=False)
class PrecisionNode:
    """One equation that reads or computes float32 values.

    Attributes:
      eqn: The equation.
      path: Its path.
      sources: Source locations of the equation and of the enclosing ones, innermost first.
      kind: Its list; 'other' also for a product that is excluded from low precision.
      depth: Number of enclosing programs, without inlined calls.
      inputs: Nodes that compute the float32 values it reads.
      outputs: Nodes that read its float32 results.
      has_external_inputs: Whether it reads float32 inputs, constants or loop carries, which no node
        computes.
      pinned: Whether its result is needed in float32, as an output or a loop carry.
      low_precision: Whether it runs in low precision.
      reason: Why it runs in this precision, for people.
    """

    eqn: JaxprEqn
    path: Path
    sources: tuple[source_info_util.SourceInfo, ...]
    kind: str
    depth: int
    inputs: list[PrecisionNode] = dataclasses.field(default_factory=list)
    outputs: list[PrecisionNode] = dataclasses.field(default_factory=list)
    has_external_inputs: bool = False
    pinned: bool = False
    low_precision: bool = False
    reason: str = ""

    @property
    def name(self) -> str:
        """Return the name of the primitive."""
        return self.eqn.primitive.name

    @property
    def follows_neighbors(self) -> bool:
        """Check whether its precision depends on its neighbors."""
        return self.kind in ("infer", "clear")


@dataclasses.dataclass
class Precisions:
    """The precisions of a jaxpr.

    Attributes:
      nodes: All equations on float32 values, in program order.
      low_precision: Paths of those in low precision.
      regions: Paths of the equations with inner programs that have such equations.
    """

    nodes: list[PrecisionNode]
    low_precision: set[Path]
    regions: set[Path]


def propagate_precision(jaxpr: Jaxpr, lists: PrecisionLists) -> Precisions:
    """Decide the precision of every equation."""
    graph = _NodeBuilder(lists)
    outer: dict[Atom, _Producers] = {v: (None,) for v in [*jaxpr.constvars, *jaxpr.invars]}
    graph.pin(graph.walk(jaxpr, outer, ()))
    _propagate(graph.nodes)
    low_precision = {n.path for n in graph.nodes if n.low_precision}
    regions = {path[:i] for path in low_precision for i in range(1, len(path))}
    return Precisions(graph.nodes, low_precision, regions)


# Nodes that may have computed a value; None for an input, constant or loop carry.
_Producers: TypeAlias = tuple[PrecisionNode | None, ...]


class _NodeBuilder:
    """Builder of the nodes of a program."""

    def __init__(self, lists: PrecisionLists) -> None:
        self.nodes: list[PrecisionNode] = []
        self._lists = lists
        self._sources: tuple[source_info_util.SourceInfo, ...] = ()
        self._depth = 0

    def pin(self, values: Iterable[_Producers]) -> None:
        """Mark the producers of values as needed in float32."""
        for producers in values:
            for node in producers:
                if node is not None:
                    node.pinned = True

    def walk(self, jaxpr: Jaxpr, env: dict[Atom, _Producers], path: Path) -> list[_Producers]:
        """Add the nodes of a jaxpr; return the producers of its outputs."""

        def read(atom: Atom) -> _Producers:
            return () if isinstance(atom, Literal) else env[atom]

        for i, eqn in enumerate(jaxpr.eqns):
            eqn_path = (*path, i)
            regions = find_regions(eqn)
            if not regions:
                producers = self._add_node(eqn, eqn_path, read)
                env.update({v: producers if is_float32(v) else () for v in eqn.outvars})
                continue
            results: list[_Producers] = [() for _ in eqn.outvars]
            enclosing = self._sources, self._depth
            self._sources = (eqn.source_info, *self._sources)
            self._depth += eqn.primitive.name not in INLINED_CALLS
            for region in regions:
                inner: dict[Atom, _Producers] = {v: (None,) for v in region.jaxpr.constvars}
                for var, (operand, pinned) in zip(region.jaxpr.invars, region.feeds, strict=True):
                    value = read(eqn.invars[operand])
                    if pinned:
                        self.pin([value])
                    inner[var] = (None,) if pinned else value
                outs = self.walk(region.jaxpr, inner, (*eqn_path, region.key))
                for (result, pinned), value in zip(region.results, outs, strict=True):
                    if pinned:
                        self.pin([value])
                        value = (None,)
                    if result is not None:
                        results[result] = tuple(dict.fromkeys((*results[result], *value)))
            self._sources, self._depth = enclosing
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _add_node(
        self, eqn: JaxprEqn, path: Path, read: Callable[[Atom], _Producers]
    ) -> _Producers:
        reads = [v for v in eqn.invars if is_float32(v)]
        if not reads and not any(is_float32(v) for v in eqn.outvars):
            return ()
        sources = (eqn.source_info, *self._sources)
        node = PrecisionNode(eqn, path, sources, self._lists.of(eqn.primitive.name), self._depth)
        if node.kind == "allow":
            reason = _explain_exclusion(eqn)
            if reason:
                node.kind, node.reason = "other", reason
        for atom in reads:
            for producer in read(atom):
                if producer is None:
                    node.has_external_inputs = True
                elif producer not in node.inputs:
                    node.inputs.append(producer)
                    producer.outputs.append(node)
        self.nodes.append(node)
        return (node,)


def _explain_exclusion(eqn: JaxprEqn) -> str:
    """Explain why a product is excluded from low precision; empty if it is not."""
    dtypes = [get_aval(v).dtype for v in [*eqn.invars, *eqn.outvars]]
    floats = [dtype for dtype in dtypes if jax.dtypes.issubdtype(dtype, np.inexact)]
    if any(d != np.float32 for d in floats):
        return "not all of its operands and results are float32"
    precision = eqn.params.get("precision")
    requested = precision if isinstance(precision, tuple) else (precision,)
    if any(p == jax.lax.Precision.HIGHEST for p in requested):
        return "the code asks for precision='highest'"
    if any(isinstance(p, jax.lax.DotAlgorithmPreset | jax.lax.DotAlgorithm) for p in requested):
        return "the code chooses the algorithm of the product"
    return ""


def _propagate(nodes: list[PrecisionNode]) -> None:
    allowed = [n for n in nodes if n.kind == "allow"]
    if not allowed:
        for node in nodes:
            node.reason = node.reason or "the program has no float32 product or convolution"
        return
    for node in allowed:
        node.low_precision, node.reason = True, "always in low precision"
    denied = _find_denied(nodes)

    def free(node: PrecisionNode) -> bool:
        return node.follows_neighbors and node not in denied

    after = _find_reachable(allowed, lambda n: n.outputs, free)
    before = _find_reachable(allowed, lambda n: n.inputs, free)
    for node in nodes:
        if node in after and node in before:
            node.low_precision = True
            node.reason = f"between {after[node].name} and {before[node].name}"
    _propagate_clear([n for n in nodes if n.kind == "clear" and free(n)])
    for node in nodes:
        if not node.reason:
            node.reason = _explain_float32(node, after, before)


def _find_denied(nodes: list[PrecisionNode]) -> set[PrecisionNode]:
    """Return the `deny` nodes and those that use their results for computations."""
    roots = [n for n in nodes if n.kind == "deny"]
    for node in roots:
        node.reason = "always in float32"
    # Clear nodes count only between a denied node and one that computes.
    computing = [n for n in nodes if n.kind in ("infer", "deny")]
    before_computing = _find_reachable(computing, lambda n: n.inputs, lambda n: n.kind == "clear")
    reachable = _find_reachable(
        roots,
        lambda n: n.outputs,
        lambda n: n.kind == "infer" or (n.kind == "clear" and n in before_computing),
    )
    for node, root in reachable.items():
        node.reason = f"computed from {root.name}, which stays in float32"
    return {*roots, *reachable}


def _find_reachable(
    roots: list[PrecisionNode],
    get_neighbors: Callable[[PrecisionNode], list[PrecisionNode]],
    enter: Callable[[PrecisionNode], bool],
) -> dict[PrecisionNode, PrecisionNode]:
    """Map each node reachable from `roots` through nodes for which `enter` is true to its root."""
    reachable: dict[PrecisionNode, PrecisionNode] = {}
    stack = [(root, root) for root in reversed(roots)]
    while stack:
        node, root = stack.pop()
        for neighbor in get_neighbors(node):
            if neighbor not in reachable and enter(neighbor):
                reachable[neighbor] = root
                stack.append((neighbor, root))
    return reachable


def _propagate_clear(nodes: list[PrecisionNode]) -> None:
    """Run clear nodes in low precision if all neighbors on one side do, until nothing changes."""
    stack = [n for n in nodes if not n.low_precision]
    candidates = set(stack)
    while stack:
        node = stack.pop()
        if node.low_precision:
            continue
        if _has_low_inputs(node):
            node.reason = f"reads only low precision, from {node.inputs[0].name}"
        elif _has_low_outputs(node):
            node.reason = f"read only in low precision, by {node.outputs[0].name}"
        else:
            continue
        node.low_precision = True
        stack.extend(n for n in [*node.inputs, *node.outputs] if n in candidates)


def _has_low_inputs(node: PrecisionNode) -> bool:
    """Check whether all inputs of a clear node are in low precision and running it so saves a cast."""
    if not node.inputs or node.has_external_inputs or not all(n.low_precision for n in node.inputs):
        return False
    if not _count_elements(node.eqn.outvars):
        return True
    # If another node needs an input in float32, the cast exists anyway.
    is_cast = any(
        n.pinned or any(not o.low_precision for o in n.outputs if o is not node)
        for n in node.inputs
    )
    return not is_cast and _count_elements(node.eqn.outvars) <= _count_elements(node.eqn.invars)


def _has_low_outputs(node: PrecisionNode) -> bool:
    """Check whether all consumers of a clear node are in low precision and it may follow cheaply."""
    if not node.outputs or node.pinned or not all(n.low_precision for n in node.outputs):
        return False
    return _count_elements(node.eqn.invars) <= _count_elements(node.eqn.outvars)


def _count_elements(atoms: Iterable[Atom]) -> int:
    return sum(get_aval(v).size for v in atoms if is_float32(v))


def _explain_float32(
    node: PrecisionNode,
    after: dict[PrecisionNode, PrecisionNode],
    before: dict[PrecisionNode, PrecisionNode],
) -> str:
    if node.kind == "other":
        return "on no list"
    if node in after:
        return f"after {after[node].name}, but nothing in low precision follows"
    if node in before:
        return f"before {before[node].name}, but nothing in low precision comes first"
    return "no neighbour in low precision"
