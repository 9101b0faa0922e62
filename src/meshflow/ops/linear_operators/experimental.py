"""`tf.linalg.experimental`: iterative solvers."""

from __future__ import annotations

from typing import Any, NamedTuple

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array, math
from meshflow.ops import linalg as linear_algebra
from meshflow.ops.control_flow import while_loop

__all__ = ["conjugate_gradient"]


class _SolverState(NamedTuple):
    """State of the solver: step count, solution, residual, direction, and product of residuals."""

    i: Tensor
    x: Tensor
    r: Tensor
    p: Tensor
    gamma: Tensor


def conjugate_gradient(
    operator: Any,
    rhs: TensorLike,
    preconditioner: Any = None,
    x: TensorLike | None = None,
    tol: float = 1e-5,
    max_iter: int = 20,
    name: str = "conjugate_gradient",
) -> _SolverState:
    """Solve `operator @ x = rhs` for a positive definite operator.

    Args:
      operator: Self-adjoint, positive definite `tf.linalg.LinearOperator` of shape [..., n, n].
      rhs: Vectors of shape [..., n].
      preconditioner: Operator that approximates the inverse of `operator`.
      x: First solution. Default: 0.
      tol: The solver stops when the norm of the residual is at most this fraction of the norm of `rhs`.
      max_iter: Largest number of steps.
      name: Ignored.

    Returns:
      The fields `i` (number of steps), `x`, `r` (residual), `p` (direction) and `gamma` (product of residuals).

    Raises:
      ValueError: If the operator is not known to be self-adjoint and positive definite.

    Example:
      >>> options = dict(is_self_adjoint=True, is_positive_definite=True)
      >>> operator = tf.linalg.LinearOperatorFullMatrix([[4.0, 1.0], [1.0, 3.0]], **options)
      >>> tf.linalg.experimental.conjugate_gradient(operator, [1.0, 2.0]).x.numpy().round(4)
      array([0.0909, 0.6364], dtype=float32)
    """
    if not (operator.is_self_adjoint and operator.is_positive_definite):
        raise ValueError("Expected a self-adjoint, positive definite operator.")
    target = convert_to_tensor(rhs)

    def precondition(residual: Tensor) -> Tensor:
        return residual if preconditioner is None else preconditioner.matvec(residual)

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return math.reduce_sum(math.conj(a) * b, axis=-1)

    def step(state: _SolverState) -> list[_SolverState]:
        z = operator.matvec(state.p)
        alpha = array.expand_dims(state.gamma / dot(state.p, z), -1)
        solution, residual = state.x + alpha * state.p, state.r - alpha * z
        q = precondition(residual)
        gamma = dot(residual, q)
        direction = q + array.expand_dims(gamma / state.gamma, -1) * state.p
        return [_SolverState(state.i + 1, solution, residual, direction, gamma)]

    limit = math.cast(tol, target.dtype.real_dtype) * linear_algebra.norm(target, axis=-1)
    solution = array.zeros_like(target) if x is None else convert_to_tensor(x)
    residual = target if x is None else target - operator.matvec(solution)
    direction = precondition(residual)
    start = _SolverState(
        convert_to_tensor(0), solution, residual, direction, dot(residual, direction)
    )
    return while_loop(
        lambda s: math.logical_and(
            s.i < max_iter, math.reduce_any(linear_algebra.norm(s.r, axis=-1) > limit)
        ),
        step,
        [start],
    )[0]
