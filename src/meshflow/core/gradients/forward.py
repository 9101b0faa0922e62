"""`ForwardAccumulator`: derivatives carried along while ops run, in one direction.

It stands among the tapes and is told of the same nodes. For each it computes at once how the
outputs move when the inputs do, with `jax.jvp` of the op's array function. That computation is
itself an op, seen by the gradient tapes and accumulators entered before this one, so that derivatives
of both kinds nest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op, of_wanted
from meshflow.core.dispatch.recorded import RecordedOp
from meshflow.core.gradients.gradient_targets import (
    UnconnectedGradients,
    as_unconnected,
    zeros_like,
)
from meshflow.core.gradients.nodes import FunctionNode, backward
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.runtime.context import context
from meshflow.core.staging import dynamic_loop
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.jax_internals import jex_core
from meshflow.passes.jaxprs import everywhere


class ForwardAccumulator:
    """Jacobian-vector products, computed alongside the ops of a `with` block.

    One direction of the inputs is fixed beforehand; the products of the Jacobians of any number of
    results with it cost about as much as computing the results.

    Args:
      primals: a tensor or variable, or a nested structure of them, to differentiate by.
      tangents: the direction: a structure like `primals`, each of its primal's shape and dtype.

    Raises:
      ValueError: when the structures, shapes or dtypes differ, or a primal is given twice.

    Example:
      >>> import meshflow as tf
      >>> x = tf.constant([2.0, 3.0])
      >>> with tf.autodiff.ForwardAccumulator(x, tf.constant([1.0, 0.0])) as acc:
      ...     y = tf.reduce_sum(x**2)
      >>> float(acc.jvp(y))
      4.0
    """

    def __init__(self, primals: Any, tangents: Any) -> None:
        nest.assert_same_structure(primals, tangents)
        # Tangents by the id of what they belong to, which is held so that the id stays its own.
        self._tangents: dict[int, tuple[Any, Tensor]] = {}
        self._stack: list[Any] | None = None
        for primal, given in zip(nest.flatten(primals), nest.flatten(tangents), strict=True):
            if not isinstance(primal, (Tensor, Variable)):
                raise ValueError(
                    f"ForwardAccumulator: primals are tensors or variables, got {primal!r}."
                )
            if id(primal) in self._tangents:
                raise ValueError(
                    f"ForwardAccumulator: {primal!r} is given twice; add its tangents instead."
                )
            tangent = convert_to_tensor(given, dtype_hint=primal.dtype)
            if tangent.dtype is not primal.dtype or tuple(tangent.shape) != tuple(primal.shape):
                raise ValueError(
                    "ForwardAccumulator: a tangent has the shape and dtype of its primal, got "
                    f"{tangent.dtype.name}{list(tangent.shape)} for {primal.dtype.name}{list(primal.shape)}."
                )
            self._tangents[id(primal)] = primal, tangent

    def __enter__(self) -> ForwardAccumulator:
        if self._stack is not None:
            raise ValueError("ForwardAccumulator is already recording.")
        self._stack = context.tapes
        self._stack.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._stack is not None and self in self._stack:
            self._stack.remove(self)
        self._stack = None

    def jvp(
        self,
        primals: Any,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
    ) -> Any:
        """How results move in the direction given.

        Args:
          primals: tensors or variables, in any nested structure.
          unconnected_gradients: `NONE` or `ZERO`, for those that do not depend on the inputs.

        Returns:
          A structure like `primals` of tensors (or None), each of its primal's shape.
        """
        kind = as_unconnected(unconnected_gradients)

        def tangent_of(primal: Any) -> Any:
            if not isinstance(primal, (Tensor, Variable)):
                raise ValueError(
                    f"ForwardAccumulator.jvp takes tensors and variables, got {primal!r}."
                )
            found = self._tangents.get(id(primal))
            if found is not None:
                return found[1]
            return zeros_like(primal) if kind is UnconnectedGradients.ZERO else None

        return nest.map_structure(tangent_of, primals)

    # ---- what the dispatcher tells ---------------------------------------------------------

    def watches(self, tensor: Any) -> bool:
        """Whether the tensor has a tangent."""
        return id(tensor) in self._tangents

    def is_watching(self, tensors: Sequence[Tensor]) -> bool:
        """Whether any of the tensors has a tangent."""
        return any(id(t) in self._tangents for t in tensors)

    def variable_read(self, variable: Variable, value: Tensor) -> None:
        """The value read from a variable moves as the variable does."""
        found = self._tangents.get(id(variable))
        if found is not None:
            self._tangents[id(value)] = value, found[1]

    def record(self, node: RecordedOp | FunctionNode) -> None:
        """Computes the tangents of an op's outputs."""
        known = [self._tangents.get(id(i)) for i in node.inputs]
        tangents = [None if found is None else found[1] for found in known]
        saved = context.tapes
        # Tapes and accumulators entered later do not see what this one computes.
        context.tapes = saved[: saved.index(self)] if self in saved else []
        try:
            if isinstance(node, RecordedOp):
                moved = apply(_forward_op(node), (list(node.operands), tangents))
            else:
                moved = _through_backward(node, tangents)
        finally:
            context.tapes = saved
        for output, tangent in zip(node.outputs, moved, strict=True):
            self._tangents[id(output)] = output, tangent


def _forward_op(node: RecordedOp) -> Op:
    """The op from (operands of a node's op, a tangent or None per wanted one) to output tangents."""
    op, static, wanted = node.op, node.static, node.wanted

    def make() -> Op:
        run = op.bound(static)

        def call(operands: Any, _: Any) -> list[Any]:
            inputs, given = operands
            function, primals = of_wanted(run, wanted, inputs)
            tangents = [
                jax.numpy.zeros_like(p) if t is None else t
                for p, t in zip(primals, given, strict=True)
            ]
            return list(_pushed(lambda *values: function(*values)[0], primals, tangents))

        return Op(f"forward_{op.name}", call)

    return op.forward((static, wanted), make)


def _pushed(function: Any, primals: list[Any], tangents: list[Any]) -> Any:
    program = everywhere(jax.make_jaxpr(function)(*primals), _followed)
    return jax.jvp(jex_core.jaxpr_as_fun(program), tuple(primals), tuple(tangents))[1]


def _followed(_: Any, equations: list[Any]) -> list[Any]:
    """Equations that have a gradient of their own, which JAX does not follow forwards, as others that it does."""
    return [_replaced(eqn) if eqn.primitive.name == "custom_vjp_call" else eqn for eqn in equations]


def _replaced(equation: Any) -> Any:
    program = equation.params["call_jaxpr"]
    inside = jex_core.jaxpr_as_fun(program)
    known = program.jaxpr.debug_info.func_name == dynamic_loop.NAME
    function = jax.jit(inside) if known else _by_transpose(equation, inside)
    specs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
    (made,) = jax.make_jaxpr(function)(*specs).eqns
    return equation.replace(primitive=made.primitive, params=made.params, effects=made.effects)


def _by_transpose(equation: Any, inside: Any) -> Any:
    """A function pushed forwards by the transpose of the gradient that its author gave, which is linear."""

    def original(*values: Any) -> Any:
        params = equation.primitive.get_bind_params(equation.params)
        return equation.primitive.bind(*values, **params)

    def pushed(primals: Any, tangents: Any) -> Any:
        smooth = [i for i, p in enumerate(primals) if jax.numpy.issubdtype(p.dtype, np.inexact)]

        def of_smooth(*values: Any) -> Any:
            full = list(primals)
            for i, value in zip(smooth, values, strict=True):
                full[i] = value
            return original(*full)

        outputs, pullback = jax.vjp(of_smooth, *(primals[i] for i in smooth))
        zeros = jax.tree.map(jax.numpy.zeros_like, outputs)
        try:
            moved = jax.linear_transpose(pullback, zeros)(tuple(tangents[i] for i in smooth))
        except (NotImplementedError, ValueError) as error:
            raise NotImplementedError(
                "ForwardAccumulator cannot follow this function: it has a custom gradient whose gradient has no "
                "transpose. Use tf.GradientTape."
            ) from error
        return outputs, moved[0]

    function = jax.custom_jvp(inside)
    function.defjvp(pushed)
    return function


def _through_backward(node: FunctionNode, tangents: list[Tensor | None]) -> list[Tensor]:
    """The transpose of a gradient given as a Python function: the gradient of its results."""
    cotangents = [zeros_like(o) for o in node.outputs]
    with GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(cotangents)
        gradients = backward(node, list(cotangents))
    pairs = [
        (g, t) for g, t in zip(gradients, tangents, strict=True) if g is not None and t is not None
    ]
    found = tape.gradient(
        [g for g, _ in pairs],
        cotangents,
        output_gradients=[t for _, t in pairs],
        unconnected_gradients=UnconnectedGradients.ZERO,
    )
    return [convert_to_tensor(f) for f in found]
