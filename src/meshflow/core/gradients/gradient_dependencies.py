"""Analysis of the operands on which the value of a gradient depends.

The gradient of `3 * x` is also an op of `x`, because one rule creates all gradients. But its value
does not depend on `x`, and its own gradient with respect to `x` is None in TensorFlow, not zeros.
Dependencies through Booleans and integers, such as the choice in `tf.maximum`, do not count.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import jax

from meshflow.core.dispatch.operation import GradientOp, Op, cache_form, is_inexact
from meshflow.core.values.tensor import Tensor
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Atom, Jaxpr, JaxprEqn, PyTree

# In TensorFlow, the gradients of these ops use the operand, and the gradients of those are zeros.
_ZERO_GRADIENT_OPS = frozenset(
    {"leaky_relu", "max_pool", "max_pool1d", "max_pool2d", "max_pool3d", "relu", "relu6"}
)
_CALL_PRIMITIVES = frozenset(
    {"checkpoint", "closed_call", "custom_jvp_call", "custom_vjp_call", "jit", "pjit"}
)
# Results for each gradient op, by the structure, shapes and dtypes of its operands.
_dependencies: weakref.WeakKeyDictionary[Op, dict[Any, list[frozenset[int]] | None]] = (
    weakref.WeakKeyDictionary()
)


def find_dependencies(op: Op, operands: PyTree) -> list[frozenset[int]] | None:
    """Find the operands on which each result of a gradient op depends.

    Args:
      op: The op.
      operands: Its operands: nested lists of tensors.

    Returns:
      For each result, indices of operands, among all tensors. None if the op is not a gradient or
      if the dependencies are unknown: any result may depend on any operand.
    """
    if (
        not isinstance(op, GradientOp)
        or op.differentiated_op.is_opaque
        or op.root_op.name in _ZERO_GRADIENT_OPS
    ):
        return None
    specs = jax.tree.map(_make_spec, list(operands), is_leaf=lambda leaf: isinstance(leaf, Tensor))
    leaves, tree = jax.tree.flatten(specs)
    cache = _dependencies.setdefault(op, {})
    key = tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    if key in cache:
        return cache[key]
    try:
        closed = jax.make_jaxpr(op.bind_static(()))(*specs)
    except Exception:  # The op requires concrete values, so its dependencies are unknown.
        dependencies = None
    else:
        dependencies = _propagate_dependencies(
            closed.jaxpr, [frozenset([i]) for i in range(len(leaves))]
        )
    cache_form(cache, key, dependencies)
    return dependencies


def _make_spec(tensor: Tensor) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tensor.array.shape, tensor.array.dtype)


def _propagate_dependencies(jaxpr: Jaxpr, inputs: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Return the dependencies of each result of a program from those of its inputs."""
    by_var = dict(zip(jaxpr.invars, inputs, strict=True))
    empty: frozenset[int] = frozenset()

    def get_dependencies(atom: Atom) -> frozenset[int]:
        if isinstance(atom, jex_core.Literal) or not is_inexact(atom.aval):
            return empty
        return by_var.get(atom, empty)

    for equation in jaxpr.eqns:
        operands = [get_dependencies(atom) for atom in equation.invars]
        inner = _find_called_jaxpr(equation)
        results = (
            [empty.union(*operands)] * len(equation.outvars)
            if inner is None
            else _propagate_dependencies(inner, operands)
        )
        by_var.update(zip(equation.outvars, results, strict=True))
    return [get_dependencies(atom) for atom in jaxpr.outvars]


def _find_called_jaxpr(equation: JaxprEqn) -> Jaxpr | None:
    """Return the program that an equation calls with exactly its own operands, or None."""
    if equation.primitive.name not in _CALL_PRIMITIVES:
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        param = equation.params.get(name)
        if param is not None:
            inner = getattr(param, "jaxpr", param)
            return inner if len(inner.invars) == len(equation.invars) else None
    return None
