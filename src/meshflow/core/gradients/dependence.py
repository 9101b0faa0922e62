"""On which operands the gradient of an op depends.

The gradient of `3 * x` is an op of `x`, too, for one rule makes all gradients; but its value does not depend on
`x`, and its own gradient with respect to it is None in TensorFlow, not zeros. What goes through booleans and
integers, as the choice of `tf.maximum`, does not count.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import jax

from meshflow.core.dispatch.operation import Gradient, Op, is_inexact, kept
from meshflow.core.values.tensor import Tensor
from meshflow.environment.jax_internals import jex_core

__all__ = ["links"]

# TensorFlow's gradients of these are ops of the operand, whose own gradients are zeros.
_ZEROS = frozenset(
    {"leaky_relu", "max_pool", "max_pool1d", "max_pool2d", "max_pool3d", "relu", "relu6"}
)
_CALLS = frozenset(
    {"checkpoint", "closed_call", "custom_jvp_call", "custom_vjp_call", "jit", "pjit"}
)
# By operands, of every gradient; gradients come and go with what they are of.
_known: weakref.WeakKeyDictionary[Op, dict[Any, list[frozenset[int]] | None]] = (
    weakref.WeakKeyDictionary()
)


def links(op: Op, operands: Sequence[Any]) -> list[frozenset[int]] | None:
    """For each result of a gradient, the places of the operands (among all tensors given) that it depends on.

    Args:
      op: the op.
      operands: its operands, tensors in lists.

    Returns:
      None for an op that is no gradient, and where that is not known: any result may depend on any operand.
    """
    if not isinstance(op, Gradient) or op.of.whole or op.root.name in _ZEROS:
        return None
    specs = jax.tree.map(_spec, list(operands), is_leaf=lambda leaf: isinstance(leaf, Tensor))
    leaves, tree = jax.tree.flatten(specs)
    known = _known.setdefault(op, {})
    key = tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    if key in known:
        return known[key]
    try:
        closed = jax.make_jaxpr(op.bound(()))(*specs)
    except Exception:  # an op that asks for values; what it depends on stays open
        reached = None
    else:
        reached = _reach(closed.jaxpr, [frozenset([i]) for i in range(len(leaves))])
    kept(known, key, reached)
    return reached


def _spec(tensor: Tensor) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tensor._value.shape, tensor._value.dtype)


def _reach(jaxpr: Any, given: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """What each result of a program depends on, from what its inputs do."""
    known = dict(zip(jaxpr.invars, given, strict=True))
    nothing: frozenset[int] = frozenset()

    def of(atom: Any) -> frozenset[int]:
        if isinstance(atom, jex_core.Literal) or not is_inexact(atom.aval):
            return nothing
        return known.get(atom, nothing)

    for equation in jaxpr.eqns:
        read = [of(atom) for atom in equation.invars]
        inner = _called(equation)
        results = (
            [nothing.union(*read)] * len(equation.outvars) if inner is None else _reach(inner, read)
        )
        known.update(zip(equation.outvars, results, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _called(equation: Any) -> Any:
    """The program that an equation calls with just its own operands, or None."""
    if equation.primitive.name not in _CALLS:
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        found = equation.params.get(name)
        if found is not None:
            inner = getattr(found, "jaxpr", found)
            return inner if len(inner.invars) == len(equation.invars) else None
    return None
