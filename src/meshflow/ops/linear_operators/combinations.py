"""Linear operators that combine others: adjoints, inverses, products, updates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import add, mul

import numpy as np

from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array, linalg, math
from meshflow.ops.linear_operators.linear_operator import (
    Hint,
    LinearOperator,
    OperatorTensor,
    broadcast_batches,
    broadcast_shapes,
    keep_variable,
    register_operator,
    take_adjoint,
)
from meshflow.ops.linear_operators.matrices import LinearOperatorDiag, LinearOperatorIdentity

__all__ = [
    "LinearOperatorAdjoint",
    "LinearOperatorComposition",
    "LinearOperatorInversion",
    "LinearOperatorKronecker",
    "LinearOperatorLowRankUpdate",
]


def infer_hint(hint: Hint, operators: Sequence[LinearOperator], name: str) -> Hint:
    """Return an explicit hint, or True if all operators have it."""
    if hint is not None:
        return hint
    return True if all(getattr(o, name) for o in operators) else None


def infer_hints(
    operators: Sequence[LinearOperator],
    is_non_singular: Hint,
    is_self_adjoint: Hint,
    is_positive_definite: Hint,
) -> tuple[Hint, Hint, Hint]:
    """Return explicit hints, or True for those that all operators have."""
    return (
        infer_hint(is_non_singular, operators, "is_non_singular"),
        infer_hint(is_self_adjoint, operators, "is_self_adjoint"),
        infer_hint(is_positive_definite, operators, "is_positive_definite"),
    )


class _DerivedOperator(LinearOperator):
    """Base class of operators that are computed from another one; its hints are the defaults."""

    def __init__(
        self,
        operator: LinearOperator,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str | None = None,
    ) -> None:
        self._operator = operator
        hints = (
            operator.is_non_singular if is_non_singular is None else is_non_singular,
            operator.is_self_adjoint if is_self_adjoint is None else is_self_adjoint,
            operator.is_positive_definite if is_positive_definite is None else is_positive_definite,
            is_square,
        )
        super().__init__(operator.dtype, None, *hints, name, {"operator": operator})

    @property
    def operator(self) -> LinearOperator:
        """Return the operator from which this one is computed."""
        return self._operator


@register_operator
class LinearOperatorAdjoint(_DerivedOperator):
    """Conjugate transpose of an operator.

    Args:
      operator: The operator.
      is_non_singular: Whether it is invertible; by default the operator's hint, like the others.
      is_self_adjoint: Whether it equals its conjugate transpose.
      is_positive_definite: Whether it is positive definite.
      is_square: Whether it is square.
      name: Name of the operator.

    Example:
      >>> operator = tf.linalg.LinearOperatorFullMatrix([[1.0, 2.0], [3.0, 4.0]])
      >>> tf.linalg.LinearOperatorAdjoint(operator).to_dense().numpy().tolist()
      [[1.0, 3.0], [2.0, 4.0]]
    """

    def _shape(self) -> TensorShape:
        *batch, rows, columns = self._operator.shape.as_list()
        return TensorShape([*batch, columns, rows])

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        return self._operator.matmul(x, adjoint=not adjoint, adjoint_arg=adjoint_arg)

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        return self._operator.solve(rhs, adjoint=not adjoint, adjoint_arg=adjoint_arg)

    def _adjoint(self) -> LinearOperator:
        return self._operator

    def _to_dense(self) -> Tensor:
        return linalg.adjoint(self._operator.to_dense())

    def _diag_part(self) -> Tensor:
        return math.conj(self._operator.diag_part())

    def _determinant(self) -> Tensor:
        return math.conj(self._operator.determinant())

    def _log_abs_determinant(self) -> Tensor:
        return self._operator.log_abs_determinant()


@register_operator
class LinearOperatorInversion(_DerivedOperator):
    """Inverse of an operator.

    Args:
      operator: The operator.
      is_non_singular: True.
      is_self_adjoint: Whether it equals its conjugate transpose; by default the operator's hint.
      is_positive_definite: Whether it is positive definite; by default the operator's hint.
      is_square: True.
      name: Name of the operator.

    Example:
      >>> operator = tf.linalg.LinearOperatorFullMatrix([[2.0, 0.0], [0.0, 4.0]])
      >>> tf.linalg.LinearOperatorInversion(operator).to_dense().numpy().tolist()
      [[0.5, 0.0], [0.0, 0.25]]
    """

    def __init__(
        self,
        operator: LinearOperator,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str | None = None,
    ) -> None:
        if False in (operator.is_non_singular, is_non_singular, operator.is_square):
            raise ValueError(
                f"operator and its inverse must be square and non-singular: {operator}."
            )
        super().__init__(operator, True, is_self_adjoint, is_positive_definite, True, name)

    def _shape(self) -> TensorShape:
        return self._operator.shape

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        return self._operator.solve(x, adjoint=adjoint, adjoint_arg=adjoint_arg)

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        return self._operator.matmul(rhs, adjoint=adjoint, adjoint_arg=adjoint_arg)

    def _inverse(self) -> LinearOperator:
        return self._operator

    def _determinant(self) -> Tensor:
        return 1.0 / self._operator.determinant()

    def _log_abs_determinant(self) -> Tensor:
        return -self._operator.log_abs_determinant()


class _ProductOperator(LinearOperator):
    """Base class of products of operators."""

    _operators: list[LinearOperator]

    @property
    def operators(self) -> list[LinearOperator]:
        """Return the factors."""
        return list(self._operators)

    def _make_shape(self, rows: int, columns: int) -> TensorShape:
        return broadcast_shapes(o.batch_shape for o in self._operators) + [rows, columns]

    def _has_square_factors(self) -> bool:
        return all(o.is_square for o in self._operators)


@register_operator
class LinearOperatorComposition(_ProductOperator):
    """Product of operators.

    Args:
      operators: Factors, from left to right.
      is_non_singular: Whether it is invertible; by default True if all factors are.
      is_self_adjoint: Whether it equals its conjugate transpose.
      is_positive_definite: Whether it is positive definite.
      is_square: Whether it is square.
      name: Name of the operator.

    Example:
      >>> twice = tf.linalg.LinearOperatorDiag([2.0, 2.0])
      >>> tf.linalg.LinearOperatorComposition([twice, twice]).matvec([1.0, 3.0]).numpy().tolist()
      [4.0, 12.0]
    """

    def __init__(
        self,
        operators: Sequence[LinearOperator],
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str | None = None,
    ) -> None:
        if not operators:
            raise ValueError("Expected a non-empty list of operators.")
        self._operators = list(operators)
        is_non_singular = infer_hint(is_non_singular, operators, "is_non_singular")
        hints = (is_non_singular, is_self_adjoint, is_positive_definite, is_square)
        super().__init__(operators[0].dtype, None, *hints, name, {"operators": operators})

    def _shape(self) -> TensorShape:
        first, last = self._operators[0], self._operators[-1]
        return self._make_shape(first.range_dimension, last.domain_dimension)

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        x = take_adjoint(x, adjoint_arg)
        for factor in self._operators if adjoint else reversed(self._operators):
            x = factor.matmul(x, adjoint=adjoint)
        return x

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        if not self._has_square_factors():
            return super()._solve(rhs, adjoint, adjoint_arg)
        rhs = take_adjoint(rhs, adjoint_arg)
        for factor in reversed(self._operators) if adjoint else self._operators:
            rhs = factor.solve(rhs, adjoint=adjoint)
        return rhs

    def _determinant(self) -> Tensor:
        if not self._has_square_factors():
            return super()._determinant()
        return functools.reduce(mul, [o.determinant() for o in self._operators])

    def _log_abs_determinant(self) -> Tensor:
        if not self._has_square_factors():
            return super()._log_abs_determinant()
        return functools.reduce(add, [o.log_abs_determinant() for o in self._operators])


class LinearOperatorKronecker(_ProductOperator):
    """Kronecker product of operators.

    Args:
      operators: Factors, from left to right.
      is_non_singular: Whether it is invertible; by default True if all factors are.
      is_self_adjoint: Whether it equals its conjugate transpose; as `is_non_singular`.
      is_positive_definite: Whether it is positive definite; as `is_non_singular`.
      is_square: Whether it is square.
      name: Name of the operator.

    Example:
      >>> two = tf.linalg.LinearOperatorFullMatrix([[1.0, 2.0], [3.0, 4.0]])
      >>> one = tf.linalg.LinearOperatorIdentity(2)
      >>> tf.linalg.LinearOperatorKronecker([two, one]).to_dense().numpy().tolist()
      [[1.0, 0.0, 2.0, 0.0], [0.0, 1.0, 0.0, 2.0], [3.0, 0.0, 4.0, 0.0], [0.0, 3.0, 0.0, 4.0]]
    """

    def __init__(
        self,
        operators: Sequence[LinearOperator],
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str | None = None,
    ) -> None:
        if not operators:
            raise ValueError("Expected a list of >=1 operators.")
        self._operators = list(operators)
        hints = infer_hints(operators, is_non_singular, is_self_adjoint, is_positive_definite)
        parameters = {"operators": operators}
        super().__init__(operators[0].dtype, None, *hints, is_square, name, parameters)

    def _shape(self) -> TensorShape:
        rows = int(np.prod([o.range_dimension for o in self._operators]))
        columns = int(np.prod([o.domain_dimension for o in self._operators]))
        return self._make_shape(rows, columns)

    def _apply(
        self, x: Tensor, apply: Callable[[LinearOperator, Tensor], Tensor], sizes: list[int]
    ) -> Tensor:
        """Apply a function of each factor along its own axis of the rows of a matrix."""
        axis = -len(sizes) - 1
        x = array.reshape(x, x.shape[:-2] + sizes + x.shape[-1:])
        for factor in self._operators:
            # The axis of the factor is the first one of the block, and becomes its last one.
            rest = x.shape[axis + 1 :]
            result = apply(factor, array.reshape(x, x.shape[: axis + 1] + [rest.num_elements()]))
            result = linalg.matrix_transpose(result)
            result = array.reshape(result, result.shape[:-2] + rest + result.shape[-1:])
            x = linalg.matrix_transpose(result)
        return array.reshape(x, [*x.shape[:axis], -1, x.shape[-1]])

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        x = take_adjoint(x, adjoint_arg)
        sizes = [o.range_dimension if adjoint else o.domain_dimension for o in self._operators]
        return self._apply(x, lambda factor, y: factor.matmul(y, adjoint=adjoint), sizes)

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        rhs = take_adjoint(rhs, adjoint_arg)
        sizes = [o.range_dimension for o in self._operators]
        return self._apply(rhs, lambda factor, y: factor.solve(y, adjoint=adjoint), sizes)

    def _diag_part(self) -> Tensor:
        if not self._has_square_factors():
            return super()._diag_part()
        product = self._operators[0].diag_part()
        for factor in self._operators[1:]:
            outer = array.expand_dims(product, -1) * array.expand_dims(factor.diag_part(), -2)
            product = array.reshape(outer, [*outer.shape[:-2].as_list(), -1])
        return product

    def _determinant(self) -> Tensor:
        if not self._has_square_factors():
            return super()._determinant()
        size = self.domain_dimension
        powers = [o.determinant() ** (size // o.domain_dimension) for o in self._operators]
        return functools.reduce(mul, powers)

    def _log_abs_determinant(self) -> Tensor:
        if not self._has_square_factors():
            return super()._log_abs_determinant()
        size = self.domain_dimension
        terms = [
            float(size // o.domain_dimension) * o.log_abs_determinant() for o in self._operators
        ]
        return functools.reduce(add, terms)


class LinearOperatorLowRankUpdate(LinearOperator):
    """Sum of an operator and a matrix of low rank, `L + U D Vᴴ`.

    Equations are solved by the Woodbury formula, and determinants by the matrix determinant lemma, so
    they cost one small system of size K and solutions by `L`.

    Args:
      base_operator: The operator `L`, of shape [..., M, N].
      u: Matrix `U` [..., M, K].
      diag_update: Diagonal of `D` [..., K]; by default ones.
      v: Matrix `V` [..., N, K]; by default `U`.
      is_diag_update_positive: Whether the diagonal is positive.
      is_non_singular: Whether the sum is invertible.
      is_self_adjoint: Whether the sum equals its conjugate transpose.
      is_positive_definite: Whether the sum is positive definite.
      is_square: Whether it is square.
      name: Name of the operator.

    Example:
      >>> base = tf.linalg.LinearOperatorIdentity(2)
      >>> operator = tf.linalg.LinearOperatorLowRankUpdate(base, [[1.0], [1.0]])
      >>> operator.to_dense().numpy().tolist(), float(operator.determinant())
      ([[2.0, 1.0], [1.0, 2.0]], 3.0)
    """

    _u, _v = OperatorTensor(), OperatorTensor()

    def __init__(
        self,
        base_operator: LinearOperator,
        u: TensorLike,
        diag_update: TensorLike | None = None,
        v: TensorLike | None = None,
        is_diag_update_positive: Hint = None,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str = "LinearOperatorLowRankUpdate",
    ) -> None:
        self._base = base_operator
        self._u = keep_variable(u, base_operator.dtype)
        self._v = keep_variable(u if v is None else v, base_operator.dtype)
        is_positive = True if diag_update is None else is_diag_update_positive
        if v is None and is_positive:
            base = [base_operator]
            is_self_adjoint = infer_hint(is_self_adjoint, base, "is_self_adjoint")
            is_positive_definite = infer_hint(is_positive_definite, base, "is_positive_definite")
        self._is_diag_update_positive = is_positive
        self._diag_operator: LinearOperator = (
            LinearOperatorIdentity(self._u.shape[-1], dtype=base_operator.dtype)
            if diag_update is None
            else LinearOperatorDiag(keep_variable(diag_update, base_operator.dtype))
        )
        hints = (is_non_singular, is_self_adjoint, is_positive_definite, is_square)
        parameters = {"base_operator": base_operator, "u": u, "diag_update": diag_update, "v": v}
        super().__init__(base_operator.dtype, None, *hints, name, parameters)

    @property
    def base_operator(self) -> LinearOperator:
        """Return the operator `L`."""
        return self._base

    @property
    def u(self) -> Tensor:
        """Return the matrix `U`."""
        return self._u

    @property
    def v(self) -> Tensor:
        """Return the matrix `V`."""
        return self._v

    @property
    def diag_update(self) -> Tensor | None:
        """Return the diagonal of `D`, or None."""
        operator = self._diag_operator
        return operator.diag if isinstance(operator, LinearOperatorDiag) else None

    @property
    def diag_operator(self) -> LinearOperator:
        """Return `D` as an operator."""
        return self._diag_operator

    @property
    def is_diag_update_positive(self) -> Hint:
        """Return whether the diagonal is positive, or None if that is unknown."""
        return self._is_diag_update_positive

    def _shape(self) -> TensorShape:
        batches = [self._base.batch_shape, self._u.shape[:-2], self._v.shape[:-2]]
        return broadcast_shapes(batches) + self._base.shape[-2:]

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        left, right = (self._v, self._u) if adjoint else (self._u, self._v)
        inner = math.matmul(right, x, adjoint_a=True, adjoint_b=adjoint_arg)
        update = math.matmul(left, self._diag_operator.matmul(inner, adjoint=adjoint))
        return self._base.matmul(x, adjoint=adjoint, adjoint_arg=adjoint_arg) + update

    def _make_capacitance(self, adjoint: bool = False) -> Tensor:
        """Return `D⁻¹ + Vᴴ L⁻¹ U`, of size [..., K, K]."""
        product = math.matmul(self._v, self._base.solve(self._u), adjoint_a=True)
        return take_adjoint(self._diag_operator.inverse().add_to_tensor(product), adjoint)

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        left, right = (self._v, self._u) if adjoint else (self._u, self._v)
        base = self._base.solve(rhs, adjoint=adjoint, adjoint_arg=adjoint_arg)
        inner = math.matmul(right, base, adjoint_a=True)
        capacitance, inner = broadcast_batches([self._make_capacitance(adjoint), inner])
        inner = linalg.solve(capacitance, inner)
        return base - self._base.solve(math.matmul(left, inner), adjoint=adjoint)

    def _determinant(self) -> Tensor:
        small = linalg.det(self._make_capacitance())
        return small * self._diag_operator.determinant() * self._base.determinant()

    def _log_abs_determinant(self) -> Tensor:
        small = linalg.slogdet(self._make_capacitance())[1]
        rest = self._diag_operator.log_abs_determinant() + self._base.log_abs_determinant()
        return small + rest

    def _diag_part(self) -> Tensor:
        scaled = math.conj(self._v) * array.expand_dims(self._diag_operator.diag_part(), -2)
        return math.reduce_sum(self._u * scaled, axis=-1) + self._base.diag_part()
