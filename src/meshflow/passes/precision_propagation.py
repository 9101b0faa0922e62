"""Which equations of a jaxpr run in low precision.

The rules are those of TensorFlow's auto_mixed_precision, on the dataflow graph of all equations,
inner programs included:

1. `allow` equations on float32 values run in low precision. Without any, nothing does.
2. `deny` equations are denied, and so is every `infer` or `clear` equation that computes on from
   a denied one: the softmax, the normalisation or the loss as a whole stays in float32.
3. Other `infer` and `clear` equations between two in low precision follow them.
4. A `clear` equation also follows when all it reads is in low precision, or when all that
   reads it is, and that saves casts or makes them smaller: a reshape takes the precision of its
   neighbours, a lookup in a large table does not. Neither costs accuracy.

Nothing is connected through loop carries, inputs and outputs, which keep their dtypes: running
sums and updated variables stay exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.passes.precision_lists import PrecisionLists
from meshflow.passes.sub_jaxprs import INLINED, regions_of

__all__ = ["Node", "Precisions", "is_float32", "propagate_precision"]

# Where an equation is: its index, and for inner programs the path of the enclosing equations.
Path = tuple[Any, ...]


def is_float32(atom: Any) -> bool:
    """Whether a variable or literal of a jaxpr is float32."""
    return isinstance(atom.aval, jax.core.ShapedArray) and atom.aval.dtype == np.float32


@dataclasses.dataclass(eq=False)
class Node:
    """One equation that reads or makes float32 values.

    Attributes:
      eqn: the equation.
      path: where it is.
      sources: where the code is: of the equation, then of the enclosing ones.
      kind: its list; 'other' also for a product that is not for low precision.
      depth: how many programs it is inside of, functions called in place not counted.
      inputs: the nodes whose float32 results it reads.
      outputs: the nodes that read its float32 results.
      open: it reads float32 values that are no node's: inputs, constants, loop carries.
      pinned: its result is needed in float32, as an output or a loop carry.
      low_precision: whether it runs in low precision.
      why: the reason, for people.
    """

    eqn: Any
    path: Path
    sources: tuple[Any, ...]
    kind: str
    depth: int
    inputs: list[Node] = dataclasses.field(default_factory=list)
    outputs: list[Node] = dataclasses.field(default_factory=list)
    open: bool = False
    pinned: bool = False
    low_precision: bool = False
    why: str = ""

    @property
    def name(self) -> str:
        """The primitive's name."""
        return self.eqn.primitive.name

    @property
    def follows(self) -> bool:
        """Whether its precision depends on its neighbours."""
        return self.kind in ("infer", "clear")


@dataclasses.dataclass
class Precisions:
    """The precisions of a jaxpr.

    Attributes:
      nodes: all equations on float32 values, in program order.
      low_precision: paths of those in low precision.
      regions: paths of the equations with inner programs that have such equations.
    """

    nodes: list[Node]
    low_precision: set[Path]
    regions: set[Path]


def propagate_precision(jaxpr: Any, lists: PrecisionLists) -> Precisions:
    """Decides the precision of every equation.

    Args:
      jaxpr: an open jaxpr.
      lists: the lists of primitives.

    Returns:
      A `Precisions`.
    """
    graph = _Graph(lists)
    outer: dict[Any, Any] = {v: (None,) for v in [*jaxpr.constvars, *jaxpr.invars]}
    graph.pin(graph.walk(jaxpr, outer, ()))
    _propagate(graph.nodes)
    low_precision = {n.path for n in graph.nodes if n.low_precision}
    regions = {path[:i] for path in low_precision for i in range(1, len(path))}
    return Precisions(graph.nodes, low_precision, regions)


class _Graph:
    """Builds the nodes; a value is the tuple of nodes that may have made it, None for others."""

    def __init__(self, lists: PrecisionLists) -> None:
        self.nodes: list[Node] = []
        self._lists = lists
        self._sources: tuple[Any, ...] = ()
        self._depth = 0

    def pin(self, values: Iterable[Any]) -> None:
        for makers in values:
            for node in makers:
                if node is not None:
                    node.pinned = True

    def walk(self, jaxpr: Any, env: dict[Any, Any], path: Path) -> list[Any]:
        def read(atom: Any) -> Any:
            return () if isinstance(atom, jex_core.Literal) else env[atom]

        for i, eqn in enumerate(jaxpr.eqns):
            where = (*path, i)
            regions = regions_of(eqn)
            if not regions:
                makers = self._node(eqn, where, read)
                env.update({v: makers if is_float32(v) else () for v in eqn.outvars})
                continue
            results: list[Any] = [() for _ in eqn.outvars]
            enclosing = self._sources, self._depth
            self._sources = (eqn.source_info, *self._sources)
            self._depth += eqn.primitive.name not in INLINED
            for region in regions:
                inner = {v: (None,) for v in region.jaxpr.constvars}
                for var, (operand, pinned) in zip(region.jaxpr.invars, region.feeds, strict=True):
                    value = read(eqn.invars[operand])
                    if pinned:
                        self.pin([value])
                    inner[var] = (None,) if pinned else value
                outs = self.walk(region.jaxpr, inner, (*where, region.key))
                for (result, pinned), value in zip(region.results, outs, strict=True):
                    if pinned:
                        self.pin([value])
                        value = (None,)
                    if result is not None:
                        results[result] = tuple(dict.fromkeys((*results[result], *value)))
            self._sources, self._depth = enclosing
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _node(self, eqn: Any, path: Path, read: Callable[[Any], Any]) -> Any:
        reads = [v for v in eqn.invars if is_float32(v)]
        if not reads and not any(is_float32(v) for v in eqn.outvars):
            return ()
        sources = (eqn.source_info, *self._sources)
        node = Node(eqn, path, sources, self._lists.of(eqn.primitive.name), self._depth)
        if node.kind == "allow":
            reason = _not_for_low_precision(eqn)
            if reason:
                node.kind, node.why = "other", reason
        for atom in reads:
            for maker in read(atom):
                if maker is None:
                    node.open = True
                elif maker not in node.inputs:
                    node.inputs.append(maker)
                    maker.outputs.append(node)
        self.nodes.append(node)
        return (node,)


def _not_for_low_precision(eqn: Any) -> str:
    """Why a product is left alone; empty when it is not."""
    floats = [
        v.aval.dtype
        for v in [*eqn.invars, *eqn.outvars]
        if jax.dtypes.issubdtype(v.aval.dtype, np.inexact)
    ]
    if any(d != np.float32 for d in floats):
        return "not all of its operands and results are float32"
    precision = eqn.params.get("precision")
    asked = precision if isinstance(precision, tuple) else (precision,)
    if any(p == jax.lax.Precision.HIGHEST for p in asked):
        return "the code asks for precision='highest'"
    if any(isinstance(p, jax.lax.DotAlgorithmPreset | jax.lax.DotAlgorithm) for p in asked):
        return "the code chooses the algorithm of the product"
    return ""


def _propagate(nodes: list[Node]) -> None:
    allowed = [n for n in nodes if n.kind == "allow"]
    if not allowed:
        for node in nodes:
            node.why = node.why or "the program has no float32 product or convolution"
        return
    for node in allowed:
        node.low_precision, node.why = True, "always in low precision"
    denied = _deny(nodes)

    def free(node: Node) -> bool:
        return node.follows and node not in denied

    after = _reach(allowed, lambda n: n.outputs, free)
    before = _reach(allowed, lambda n: n.inputs, free)
    for node in nodes:
        if node in after and node in before:
            node.low_precision = True
            node.why = f"between {after[node].name} and {before[node].name}"
    _propagate_clear([n for n in nodes if n.kind == "clear" and free(n)])
    for node in nodes:
        if not node.why:
            node.why = _why_not(node, after, before)


def _deny(nodes: list[Node]) -> set[Node]:
    """Denied nodes: those of the list, and what computes on from them."""
    roots = [n for n in nodes if n.kind == "deny"]
    for node in roots:
        node.why = "always in float32"
    # Clear nodes count only on the way to something that computes.
    computing = [n for n in nodes if n.kind in ("infer", "deny")]
    leads = _reach(computing, lambda n: n.inputs, lambda n: n.kind == "clear")
    found = _reach(
        roots,
        lambda n: n.outputs,
        lambda n: n.kind == "infer" or (n.kind == "clear" and n in leads),
    )
    for node, root in found.items():
        node.why = f"computed from {root.name}, which stays in float32"
    return {*roots, *found}


def _reach(
    roots: list[Node], ways: Callable[[Node], list[Node]], enter: Callable[[Node], bool]
) -> dict[Node, Node]:
    """Nodes reached from `roots` through nodes that may be entered, each with its root."""
    found: dict[Node, Node] = {}
    stack = [(root, root) for root in reversed(roots)]
    while stack:
        node, root = stack.pop()
        for other in ways(node):
            if other not in found and enter(other):
                found[other] = root
                stack.append((other, root))
    return found


def _propagate_clear(nodes: list[Node]) -> None:
    """Lets clear nodes follow whose neighbours on one side are all in low precision, until nothing changes."""
    stack = [n for n in nodes if not n.low_precision]
    candidates = set(stack)
    while stack:
        node = stack.pop()
        if node.low_precision:
            continue
        if _reads_low(node):
            node.why = f"reads only low precision, from {node.inputs[0].name}"
        elif _read_low(node):
            node.why = f"read only in low precision, by {node.outputs[0].name}"
        else:
            continue
        node.low_precision = True
        stack.extend(n for n in [*node.inputs, *node.outputs] if n in candidates)


def _reads_low(node: Node) -> bool:
    """Whether all that a clear node reads is in low precision, and its being so saves a cast."""
    if not node.inputs or node.open or not all(n.low_precision for n in node.inputs):
        return False
    if not _size(node.eqn.outvars):
        return True
    # When others need what it reads in float32, that cast is there anyway.
    needed = any(
        n.pinned or any(not o.low_precision for o in n.outputs if o is not node)
        for n in node.inputs
    )
    return not needed and _size(node.eqn.outvars) <= _size(node.eqn.invars)


def _read_low(node: Node) -> bool:
    """Whether all that reads a clear node is in low precision, and its being so is cheaper."""
    if not node.outputs or node.pinned or not all(n.low_precision for n in node.outputs):
        return False
    return _size(node.eqn.invars) <= _size(node.eqn.outvars)


def _size(atoms: list[Any]) -> int:
    return sum(v.aval.size for v in atoms if is_float32(v))


def _why_not(node: Node, after: dict[Node, Node], before: dict[Node, Node]) -> str:
    if node.kind == "other":
        return "on no list"
    if node in after:
        return f"after {after[node].name}, but nothing in low precision follows"
    if node in before:
        return f"before {before[node].name}, but nothing in low precision comes first"
    return "no neighbour in low precision"
