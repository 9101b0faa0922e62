"""`LinearOperator`: the base class, with implementations that use the dense matrix."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.module import Module
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.ops import array, debugging, linalg, math

__all__ = ["LinearOperator"]

# A promise of the caller about a matrix; None if nothing is known.
Hint: TypeAlias = bool | None


def keep_variable(value: TensorLike, dtype: DType | None = None) -> TensorLike:
    """Return a variable unchanged, and any other value as a tensor."""
    return value if isinstance(value, Variable) else convert_to_tensor(value, dtype=dtype)


class OperatorTensor:
    """Attribute of an operator that is a tensor; if it is assigned a variable, each access reads its current value."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._source = f"{name}_source"

    def __set__(self, operator: LinearOperator, value: TensorLike) -> None:
        setattr(operator, self._source, keep_variable(value))

    def __get__(self, operator: LinearOperator, owner: type | None = None) -> Tensor:
        return convert_to_tensor(getattr(operator, self._source))


class LinearOperator(Module):
    """Batch of matrices of shape [..., M, N], defined by its product with matrices.

    Subclasses define `_shape` and `_matmul`, and override other methods if they have a faster way than
    the dense matrix. The hints are promises of the caller, which select algorithms; they are not
    checked, except by the `assert_` methods.

    Args:
      dtype: Dtype of the elements.
      graph_parents: Ignored.
      is_non_singular: Whether the matrix is invertible, or None if that is unknown.
      is_self_adjoint: Whether the matrix equals its conjugate transpose, or None.
      is_positive_definite: Whether the matrix is positive definite, or None.
      is_square: Whether the matrix is square; by default determined by its shape.
      name: Name of the operator.
      parameters: Arguments of the constructor of the subclass.

    Raises:
      ValueError: If the hints contradict each other.

    Example:
      >>> class Reversal(tf.linalg.LinearOperator):
      ...     def __init__(self, size):
      ...         super().__init__(tf.float32)
      ...         self.size = size
      ...     def _shape(self):
      ...         return tf.TensorShape([self.size, self.size])
      ...     def _matmul(self, x, adjoint=False, adjoint_arg=False):
      ...         return tf.reverse(tf.linalg.adjoint(x) if adjoint_arg else x, [-2])
      >>> Reversal(3).matvec([1.0, 2.0, 3.0]).numpy().tolist()
      [3.0, 2.0, 1.0]
    """

    def __init__(
        self,
        dtype: DTypeLike,
        graph_parents: object = None,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(name=name or type(self).__name__)
        if is_positive_definite:
            if is_non_singular is False:
                raise ValueError("A positive definite matrix is always non-singular.")
            is_non_singular = True
        if is_square is False and (is_non_singular or is_self_adjoint):
            raise ValueError("A non-singular or self-adjoint matrix is always square.")
        self._dtype = as_dtype(dtype)
        self._is_square_hint = True if is_non_singular or is_self_adjoint else is_square
        self._is_non_singular = is_non_singular
        self._is_self_adjoint = is_self_adjoint
        self._is_positive_definite = is_positive_definite
        self._parameters = dict(parameters or {})

    # ---- properties ------------------------------------------------------------------------

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return dict(self._parameters)

    @property
    def dtype(self) -> DType:
        """Return the dtype of the elements."""
        return self._dtype

    @property
    def is_non_singular(self) -> Hint:
        """Return whether the matrix is invertible, or None if that is unknown."""
        return self._is_non_singular

    @property
    def is_self_adjoint(self) -> Hint:
        """Return whether the matrix equals its conjugate transpose, or None if that is unknown."""
        return self._is_self_adjoint

    @property
    def is_positive_definite(self) -> Hint:
        """Return whether the matrix is positive definite, or None if that is unknown."""
        return self._is_positive_definite

    @property
    def is_square(self) -> bool:
        """Return whether the matrix is square."""
        if self._is_square_hint is not None:
            return self._is_square_hint
        return self.shape[-1] == self.shape[-2]

    @property
    def shape(self) -> TensorShape:
        """Return the shape [..., M, N]."""
        return self._shape()

    @property
    def batch_shape(self) -> TensorShape:
        """Return the shape without the last two dimensions."""
        return self.shape[:-2]

    @property
    def tensor_rank(self) -> int:
        """Return the rank of the dense matrix."""
        return len(self.shape)

    @property
    def domain_dimension(self) -> int:
        """Return the number of columns."""
        return self.shape[-1]

    @property
    def range_dimension(self) -> int:
        """Return the number of rows."""
        return self.shape[-2]

    @property
    def H(self) -> LinearOperator:
        """Return the conjugate transpose."""
        return self.adjoint()

    def shape_tensor(self, name: str = "shape_tensor") -> Tensor:
        """Return the shape as an int32 tensor."""
        if None in (sizes := self.shape.as_list()):
            return array.shape(self.to_dense())
        return convert_to_tensor(np.array(sizes, np.int32))

    def batch_shape_tensor(self, name: str = "batch_shape_tensor") -> Tensor:
        """Return the batch shape as an int32 tensor."""
        return self.shape_tensor()[:-2]

    def tensor_rank_tensor(self, name: str = "tensor_rank_tensor") -> Tensor:
        """Return the rank as an int32 tensor."""
        return convert_to_tensor(np.int32(self.tensor_rank))

    def domain_dimension_tensor(self, name: str = "domain_dimension_tensor") -> Tensor:
        """Return the number of columns as an int32 tensor."""
        return self.shape_tensor()[-1]

    def range_dimension_tensor(self, name: str = "range_dimension_tensor") -> Tensor:
        """Return the number of rows as an int32 tensor."""
        return self.shape_tensor()[-2]

    def _shape(self) -> TensorShape:
        raise NotImplementedError("A linear operator defines `_shape`.")

    # ---- products and solutions ------------------------------------------------------------

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        raise NotImplementedError("A linear operator defines `_matmul`.")

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        matrix, rhs = broadcast_batches([self.to_dense(), take_adjoint(rhs, adjoint_arg)])
        if self._can_use_cholesky():
            return linalg.cholesky_solve(linalg.cholesky(matrix), rhs)
        return linalg.solve(matrix, rhs, adjoint=adjoint)

    def matmul(
        self,
        x: TensorLike | LinearOperator,
        adjoint: bool = False,
        adjoint_arg: bool = False,
        name: str = "matmul",
    ) -> PyTree:
        """Multiply by a matrix [..., N, R], or compose with another operator.

        Args:
          x: The matrix or operator.
          adjoint: Whether to use the conjugate transpose of this operator.
          adjoint_arg: Whether to use the conjugate transpose of `x`.
          name: Ignored.

        Raises:
          ValueError: If the sizes are incompatible.
        """
        if isinstance(x, LinearOperator):
            left = self.adjoint() if adjoint else self
            right = x.adjoint() if adjoint_arg else x
            if left.domain_dimension != right.range_dimension:
                raise ValueError(
                    f"Operators are incompatible. Expected `x` to have dimension {left.domain_dimension} but got {right.range_dimension}."
                )
            return compose(left, right)
        columns = self._convert(x)
        self._check_rows(columns, -2 if adjoint else -1, adjoint_arg)
        return self._matmul(columns, adjoint=adjoint, adjoint_arg=adjoint_arg)

    def __matmul__(self, other: TensorLike | LinearOperator) -> PyTree:
        return self.matmul(other)

    def matvec(self, x: TensorLike, adjoint: bool = False, name: str = "matvec") -> Tensor:
        """Multiply by vectors [..., N].

        Args:
          x: The vectors.
          adjoint: Whether to use the conjugate transpose of this operator.
          name: Ignored.
        """
        columns = array.expand_dims(self._convert(x), -1)
        return array.squeeze(self.matmul(columns, adjoint=adjoint), axis=-1)

    def solve(
        self,
        rhs: TensorLike | LinearOperator,
        adjoint: bool = False,
        adjoint_arg: bool = False,
        name: str = "solve",
    ) -> PyTree:
        """Solve the equations `A X = rhs` for matrices [..., M, R], or compose the inverse with an operator.

        Args:
          rhs: The right side.
          adjoint: Whether to use the conjugate transpose of this operator.
          adjoint_arg: Whether to use the conjugate transpose of `rhs`.
          name: Ignored.

        Raises:
          NotImplementedError: If the matrix is singular or not square.
        """
        if self.is_non_singular is False:
            raise NotImplementedError(
                "Exact solve not implemented for an operator that is expected to be singular."
            )
        self._require_square("Exact solve")
        if isinstance(rhs, LinearOperator):
            left = self.adjoint() if adjoint else self
            return compose(left.inverse(), rhs.adjoint() if adjoint_arg else rhs)
        columns = self._convert(rhs)
        self._check_rows(columns, -1 if adjoint else -2, adjoint_arg)
        return self._solve(columns, adjoint=adjoint, adjoint_arg=adjoint_arg)

    def _check_rows(self, columns: PyTree, axis: int, adjoint_arg: bool) -> None:
        """Raise unless the number of rows of an argument equals the size of an axis of the operator."""
        if not isinstance(columns, Tensor) or self.shape.rank is None:
            return
        if len(columns.shape) < 2:
            raise ValueError(
                f"{self.name}: the argument must have at least 2 dimensions, got shape {columns.shape}. Use matvec or "
                "solvevec for vectors."
            )
        expected, rows = self.shape[axis], columns.shape[-1 if adjoint_arg else -2]
        if None not in (expected, rows) and expected != rows:
            raise ValueError(
                f"Dimensions {expected} and {rows} are not compatible: {self.name} of shape {self.shape} does not fit "
                f"an argument of shape {columns.shape}."
            )

    def solvevec(self, rhs: TensorLike, adjoint: bool = False, name: str = "solve") -> Tensor:
        """Solve the equations for vectors [..., M]; see `solve`."""
        columns = array.expand_dims(self._convert(rhs), -1)
        return array.squeeze(self.solve(columns, adjoint=adjoint), axis=-1)

    def _compose(self, right: LinearOperator) -> LinearOperator | None:
        """Return the product with another operator in a simple form; None if there is none."""
        return None

    def adjoint(self, name: str = "adjoint") -> LinearOperator:
        """Return the conjugate transpose as an operator."""
        if self.is_self_adjoint:
            return self
        return self._adjoint()

    def _adjoint(self) -> LinearOperator:
        return _combine("LinearOperatorAdjoint", self)

    def inverse(self, name: str = "inverse") -> LinearOperator:
        """Return the inverse as an operator.

        Raises:
          ValueError: If the matrix is singular or not square.
        """
        if self.is_non_singular is False or not self.is_square:
            raise ValueError("Cannot take the inverse of a singular or non-square operator.")
        return self._inverse()

    def _inverse(self) -> LinearOperator:
        return _combine("LinearOperatorInversion", self)

    def cholesky(self, name: str = "cholesky") -> LinearOperator:
        """Return the Cholesky factor as a lower triangular operator.

        Raises:
          ValueError: If the hints do not promise a positive definite, self-adjoint matrix.
        """
        if not self._can_use_cholesky():
            raise ValueError(
                "Cannot take the Cholesky decomposition: Not a positive definite self adjoint matrix."
            )
        return self._cholesky()

    def _cholesky(self) -> LinearOperator:
        return _combine("LinearOperatorLowerTriangular", linalg.cholesky(self.to_dense()))

    # ---- dense results ---------------------------------------------------------------------

    def to_dense(self, name: str = "to_dense") -> Tensor:
        """Return the matrix as a tensor."""
        return self._to_dense()

    def _to_dense(self) -> Tensor:
        batch = self.batch_shape.as_list()
        return self.matmul(array.eye(self.domain_dimension, batch_shape=batch, dtype=self.dtype))

    def add_to_tensor(self, x: TensorLike, name: str = "add_to_tensor") -> Tensor:
        """Return the sum of the matrix and a tensor."""
        return self.to_dense() + self._convert(x)

    def diag_part(self, name: str = "diag_part") -> Tensor:
        """Return the diagonal, of shape [..., min(M, N)]."""
        return self._diag_part()

    def _diag_part(self) -> Tensor:
        return linalg.diag_part(self.to_dense())

    def trace(self, name: str = "trace") -> Tensor:
        """Return the sum of the diagonal."""
        return math.reduce_sum(self.diag_part(), axis=-1)

    def determinant(self, name: str = "det") -> Tensor:
        """Return the determinant.

        Raises:
          NotImplementedError: If the matrix is not square.
        """
        self._require_square("Determinant")
        return self._determinant()

    def _determinant(self) -> Tensor:
        return linalg.det(self.to_dense())

    def log_abs_determinant(self, name: str = "log_abs_det") -> Tensor:
        """Return the logarithm of the absolute value of the determinant.

        Raises:
          NotImplementedError: If the matrix is not square.
        """
        self._require_square("Determinant")
        return self._log_abs_determinant()

    def _log_abs_determinant(self) -> Tensor:
        if self._can_use_cholesky():
            diagonal = linalg.diag_part(linalg.cholesky(self.to_dense()))
            return 2.0 * math.reduce_sum(math.log(math.abs(diagonal)), axis=-1)
        return linalg.slogdet(self.to_dense())[1]

    def eigvals(self, name: str = "eigvals") -> Tensor:
        """Return the eigenvalues of a self-adjoint operator, in ascending order.

        Raises:
          NotImplementedError: If the hints do not promise a self-adjoint matrix.
        """
        if not self.is_self_adjoint:
            raise NotImplementedError("Only self-adjoint matrices are supported.")
        return self._eigvals()

    def _eigvals(self) -> Tensor:
        return linalg.eigvalsh(self.to_dense())

    def cond(self, name: str = "cond") -> Tensor:
        """Return the condition number: the ratio of the largest and the smallest singular value."""
        values = self._get_singular_values()
        return math.reduce_max(values, axis=-1) / math.reduce_min(values, axis=-1)

    def _get_singular_values(self) -> Tensor:
        """Return the singular values, in any order."""
        if self.is_self_adjoint:
            return math.abs(self.eigvals())
        return linalg.svd(self.to_dense(), compute_uv=False)

    # ---- checks ----------------------------------------------------------------------------

    def assert_non_singular(self, name: str = "assert_non_singular") -> PyTree:
        """Raise an error if the matrix is singular up to rounding.

        Raises:
          InvalidArgumentError: If the condition number is too large.
        """
        epsilon = np.finfo(self.dtype.real_dtype.as_numpy_dtype).eps
        limit = 1 / (max(100.0, self.range_dimension, self.domain_dimension) * epsilon)
        condition = self.cond()
        return debugging.assert_less(
            condition,
            math.cast(limit, condition.dtype),
            message="Singular matrix up to precision epsilon.",
        )

    def assert_positive_definite(self, name: str = "assert_positive_definite") -> PyTree:
        """Raise an error if the Hermitian part of the matrix is not positive definite.

        Raises:
          InvalidArgumentError: If an eigenvalue is not positive.
        """
        matrix = self.to_dense()
        values = linalg.eigvalsh((matrix + linalg.adjoint(matrix)) / 2)
        return debugging.assert_positive(
            math.real(values), message="Operator was not positive definite."
        )

    def assert_self_adjoint(self, name: str = "assert_self_adjoint") -> PyTree:
        """Raise an error if the matrix is not equal to its conjugate transpose.

        Raises:
          InvalidArgumentError: If it is not.
        """
        matrix = self.to_dense()
        return debugging.assert_equal(
            matrix, linalg.adjoint(matrix), message="Matrix was not equal to its adjoint."
        )

    # ---- helpers ---------------------------------------------------------------------------

    def _convert(self, value: TensorLike) -> Tensor:
        return convert_to_tensor(value, dtype=self.dtype)

    def _can_use_cholesky(self) -> bool:
        return bool(self.is_self_adjoint and self.is_positive_definite)

    def _require_square(self, method: str) -> None:
        if not self.is_square:
            raise NotImplementedError(
                f"{method} not implemented for an operator that is expected to not be square."
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: shape={self.shape} dtype={self.dtype.name}>"


# Subclasses by name, for the operators that methods of the base class return.
_classes: dict[str, type[LinearOperator]] = {}


def register_operator(cls: type[LinearOperator]) -> type[LinearOperator]:
    """Register a class of operators that methods of the base class return."""
    _classes[cls.__name__] = cls
    return cls


def _combine(name: str, *arguments: PyTree) -> LinearOperator:
    return _classes[name](*arguments)


def compose(left: LinearOperator, right: LinearOperator) -> LinearOperator:
    """Return the product of two operators; that of diagonal operators is diagonal."""
    product = left._compose(right)
    return _combine("LinearOperatorComposition", [left, right]) if product is None else product


def combine_hints(left: LinearOperator, right: LinearOperator) -> tuple[Hint, Hint, Hint]:
    """Return whether the product of two diagonal operators is non-singular, self-adjoint and positive definite."""
    return (
        (left.is_non_singular and right.is_non_singular) or None,
        (left.is_self_adjoint and right.is_self_adjoint) or None,
        (left.is_positive_definite and right.is_positive_definite) or None,
    )


def take_adjoint(x: Tensor, adjoint: bool) -> Tensor:
    """Return the conjugate transpose of a matrix if `adjoint` is set."""
    return linalg.adjoint(x) if adjoint else x


def take_conjugate(x: Tensor, adjoint: bool) -> Tensor:
    """Return the conjugate of the elements of a diagonal if `adjoint` is set."""
    return math.conj(x) if adjoint else x


def make_square_shape(rows: TensorShape) -> TensorShape:
    """Return the shape [..., N, N] of matrices with the rows [..., N]."""
    return rows + [rows[-1]]


def broadcast_shapes(shapes: Iterable[TensorShape]) -> TensorShape:
    """Return the common shape of several batches."""
    return functools.reduce(array.broadcast_static_shape, shapes, TensorShape([]))


def broadcast_batches(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Broadcast the dimensions before the last two of several tensors to one shape."""
    batch = broadcast_shapes(m.shape[:-2] for m in matrices)
    return [
        m if m.shape[:-2] == batch else array.broadcast_to(m, batch + m.shape[-2:])
        for m in matrices
    ]
