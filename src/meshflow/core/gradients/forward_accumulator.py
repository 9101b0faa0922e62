"""`ForwardAccumulator`: forward-mode derivatives in one direction, computed while ops run.

The accumulator is one of the active tapes and receives the same nodes. For each node it computes
the tangents of the outputs from those of the inputs, with `jax.jvp` of the op's array function.
That computation is also an op, which the gradient tapes and accumulators entered earlier record, so
derivatives of both modes can be nested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op, restrict_to_requested
from meshflow.core.dispatch.recorded_op import RecordedOp
from meshflow.core.gradients.gradient_targets import (
    UnconnectedGradients,
    parse_unconnected,
    zeros_like,
)
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.gradients.tape_nodes import FunctionNode, backpropagate
from meshflow.core.runtime.context import Recorder, context
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import JaxprEqn, PyTree
from meshflow.passes.jaxprs import rewrite_equations


class ForwardAccumulator:
    """Jacobian-vector products, computed together with the ops of a `with` block.

    The direction of the inputs is fixed in advance. The products of this direction with the
    Jacobians of any number of results cost about as much as the results.

    Args:
      primals: The differentiation variables: a tensor or variable, or a nested structure of them.
      tangents: The direction: a structure like `primals`, with the same shapes and dtypes.

    Raises:
      ValueError: If the structures, shapes or dtypes differ, or if a primal occurs twice.

    Example:
      >>> x = tf.constant([2.0, 3.0])
      >>> with tf.autodiff.ForwardAccumulator(x, tf.constant([1.0, 0.0])) as acc:
      ...     y = tf.reduce_sum(x**2)
      >>> float(acc.jvp(y))
      4.0
    """

    def __init__(self, primals: PyTree, tangents: PyTree) -> None:
        nest.assert_same_structure(primals, tangents)
        # Tangents by the id of their primal, which is held so that no other object can get its id.
        self._tangents: dict[int, tuple[Any, Tensor]] = {}
        self._stack: list[Recorder] | None = None
        for primal, value in zip(nest.flatten(primals), nest.flatten(tangents), strict=True):
            if not isinstance(primal, (Tensor, Variable)):
                raise ValueError(
                    f"ForwardAccumulator: primals must be tensors or variables, got {primal!r}."
                )
            if id(primal) in self._tangents:
                raise ValueError(
                    f"ForwardAccumulator: {primal!r} is given multiple times; add its tangents instead."
                )
            tangent = convert_to_tensor(value, dtype_hint=primal.dtype)
            if tangent.dtype is not primal.dtype or tuple(tangent.shape) != tuple(primal.shape):
                raise ValueError(
                    "ForwardAccumulator: a tangent must have the shape and dtype of its primal, got "
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
        primals: PyTree,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
    ) -> PyTree:
        """Return the tangents of results: their Jacobian-vector products.

        Args:
          primals: Tensors or variables, in any nested structure.
          unconnected_gradients: `NONE` or `ZERO`, for results that do not depend on the inputs.

        Returns:
          A structure like `primals` of tensors with the shapes of the primals, or None.
        """
        unconnected = parse_unconnected(unconnected_gradients)

        def get_tangent(primal: object) -> Tensor | None:
            if not isinstance(primal, (Tensor, Variable)):
                raise ValueError(
                    f"ForwardAccumulator.jvp takes tensors and variables, got {primal!r}."
                )
            entry = self._tangents.get(id(primal))
            if entry is not None:
                return entry[1]
            return zeros_like(primal) if unconnected is UnconnectedGradients.ZERO else None

        return nest.map_structure(get_tangent, primals)

    # ---- interface of recorders, see `Recorder` --------------------------------------------

    def watches(self, tensor: object) -> bool:
        """Check whether the tensor has a tangent."""
        return id(tensor) in self._tangents

    def is_watching(self, tensors: Sequence[Tensor]) -> bool:
        """Check whether at least one of the tensors has a tangent."""
        return any(id(t) in self._tangents for t in tensors)

    def record_read(self, variable: Variable, value: Tensor) -> None:
        """Copy the tangent of a variable to the value that was read from it."""
        entry = self._tangents.get(id(variable))
        if entry is not None:
            self._tangents[id(value)] = value, entry[1]

    def record(self, node: RecordedOp | FunctionNode) -> None:
        """Compute the tangents of the outputs of an op."""
        entries = [self._tangents.get(id(i)) for i in node.inputs]
        tangents = [None if entry is None else entry[1] for entry in entries]
        saved = context.tapes
        # Tapes and accumulators that were entered later must not record this computation.
        context.tapes = saved[: saved.index(self)] if self in saved else []
        try:
            if isinstance(node, RecordedOp):
                output_tangents = apply(_make_forward_op(node), (list(node.operands), tangents))
            else:
                output_tangents = _transpose_node_gradient(node, tangents)
        finally:
            context.tapes = saved
        for output, tangent in zip(node.outputs, output_tangents, strict=True):
            self._tangents[id(output)] = output, tangent


def _make_forward_op(node: RecordedOp) -> Op:
    """Create the op from a node's operands and tangents (or None) to output tangents."""
    op, static, requested = node.op, node.static, node.requested

    def make() -> Op:
        run = op.bind_static(static)

        def call(operands: Any, _: object) -> list[jax.Array]:
            inputs, given_tangents = operands
            function, primals = restrict_to_requested(run, requested, inputs)
            tangents = [
                jax.numpy.zeros_like(p) if t is None else t
                for p, t in zip(primals, given_tangents, strict=True)
            ]
            return list(_push_forward(lambda *values: function(*values)[0], primals, tangents))

        return Op(f"forward_{op.name}", call)

    return op.get_forward_op((static, requested), make)


def _push_forward(
    function: Callable[..., Any], primals: list[jax.Array], tangents: list[jax.Array]
) -> list[jax.Array]:
    program = rewrite_equations(jax.make_jaxpr(function)(*primals), _replace_custom_gradients)
    return jax.jvp(jex_core.jaxpr_as_fun(program), tuple(primals), tuple(tangents))[1]


def _replace_custom_gradients(_: object, equations: list[JaxprEqn]) -> list[JaxprEqn]:
    """Replace equations with a custom gradient, which JAX cannot differentiate in forward mode."""
    return [
        _replace_custom_gradient(eqn) if eqn.primitive.name == "custom_vjp_call" else eqn
        for eqn in equations
    ]


def _replace_custom_gradient(equation: Any) -> JaxprEqn:
    program = equation.params["call_jaxpr"]
    run = jex_core.jaxpr_as_fun(program)
    function = _add_transposed_gradient(equation, run)
    specs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
    (new,) = jax.make_jaxpr(function)(*specs).eqns
    return equation.replace(primitive=new.primitive, params=new.params, effects=new.effects)


def _add_transposed_gradient(equation: JaxprEqn, run: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function a JVP rule: the transpose of its custom gradient, which is linear."""
    # The first operands are arrays that the function captured, for which it has no gradient.
    num_constants = equation.params["num_consts"]

    def original(*values: jax.Array) -> Any:
        params = equation.primitive.get_bind_params(equation.params)
        return equation.primitive.bind(*values, **params)

    def push_forward(primals: Sequence[jax.Array], tangents: Sequence[Any]) -> tuple[Any, Any]:
        inexact = [
            i
            for i, p in enumerate(primals)
            if i >= num_constants and jax.numpy.issubdtype(p.dtype, np.inexact)
        ]

        def run_inexact(*values: jax.Array) -> Any:
            full = list(primals)
            for i, value in zip(inexact, values, strict=True):
                full[i] = value
            return original(*full)

        outputs, pullback = jax.vjp(run_inexact, *(primals[i] for i in inexact))
        zeros = jax.tree.map(jax.numpy.zeros_like, outputs)
        try:
            # The transpose of a linear function is its gradient, which exists for loops, too.
            _, transpose = jax.vjp(pullback, zeros)
            output_tangents = transpose(tuple(tangents[i] for i in inexact))
        except (NotImplementedError, ValueError) as error:
            raise NotImplementedError(
                "ForwardAccumulator cannot follow this function: it has a custom gradient whose gradient has no "
                "transpose. Use tf.GradientTape."
            ) from error
        return outputs, output_tangents[0]

    function = jax.custom_jvp(run)
    function.defjvp(push_forward)
    return function


def _transpose_node_gradient(node: FunctionNode, tangents: list[Tensor | None]) -> list[Tensor]:
    """Compute output tangents by the transpose of a gradient function, which is its gradient."""
    cotangents = [zeros_like(o) for o in node.outputs]
    with GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(cotangents)
        gradients = backpropagate(node, list(cotangents))
    pairs = [
        (g, t) for g, t in zip(gradients, tangents, strict=True) if g is not None and t is not None
    ]
    output_tangents = tape.gradient(
        [g for g, _ in pairs],
        cotangents,
        output_gradients=[t for _, t in pairs],
        unconnected_gradients=UnconnectedGradients.ZERO,
    )
    return [convert_to_tensor(t) for t in output_tangents]
