"""Linear operators that store the elements of structured matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.values.dtypes import DTypeLike, float32
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree
from meshflow.ops import array, debugging, linalg, math
from meshflow.ops.array.shaping import StaticInts
from meshflow.ops.linalg.banded import to_compact
from meshflow.ops.linear_operators.linear_operator import (
    Hint,
    LinearOperator,
    OperatorTensor,
    broadcast_batches,
    broadcast_shapes,
    combine_hints,
    make_square_shape,
    register_operator,
    take_adjoint,
    take_conjugate,
)

__all__ = [
    "LinearOperatorDiag",
    "LinearOperatorFullMatrix",
    "LinearOperatorHouseholder",
    "LinearOperatorIdentity",
    "LinearOperatorLowerTriangular",
    "LinearOperatorPermutation",
    "LinearOperatorScaledIdentity",
    "LinearOperatorTridiag",
    "LinearOperatorZeros",
]


def _column(values: Tensor) -> Tensor:
    """Return values [..., n] as factors of the rows of a matrix."""
    return array.expand_dims(values, -1)


class _TriangularOperator(LinearOperator):
    """Base class of operators with the elements of the diagonal as eigenvalues."""

    def _determinant(self) -> Tensor:
        return math.reduce_prod(self.diag_part(), axis=-1)

    def _log_abs_determinant(self) -> Tensor:
        return math.reduce_sum(math.log(math.abs(self.diag_part())), axis=-1)

    def _eigvals(self) -> Tensor:
        return self.diag_part()

    def assert_non_singular(self, name: str = "assert_non_singular") -> PyTree:
        """Raise an `InvalidArgumentError` if the diagonal contains a zero."""
        message = "Singular operator: Diagonal contained zero values."
        return debugging.assert_positive(math.abs(self.diag_part()), message=message)


def _parse_num_rows(num_rows: StaticInts) -> int:
    """Return a number of rows that is a nonnegative integer, or raise TypeError or ValueError."""
    value = to_static_value(num_rows, "num_rows")
    if isinstance(value, float):
        raise TypeError(f"Argument num_rows must be integer type, got {num_rows}.")
    if np.ndim(value) or int(value) < 0:
        raise ValueError(f"Argument num_rows must be a non-negative 0-D Tensor, got {num_rows}.")
    return int(value)


class _UnitaryOperator(LinearOperator):
    """Base class of operators that are the inverse of their conjugate transpose."""

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        return self._matmul(rhs, adjoint=not adjoint, adjoint_arg=adjoint_arg)

    def _log_abs_determinant(self) -> Tensor:
        return array.zeros(self.batch_shape, self.dtype.real_dtype)

    def cond(self, name: str = "cond") -> Tensor:
        """Return 1."""
        return array.ones(self.batch_shape, self.dtype.real_dtype)


class LinearOperatorFullMatrix(LinearOperator):
    """Operator of a dense matrix.

    Args:
      matrix: Matrix [..., M, N].
      is_non_singular: Whether it is invertible.
      is_self_adjoint: Whether it equals its conjugate transpose.
      is_positive_definite: Whether it is positive definite.
      is_square: Whether it is square.
      name: Name of the operator.

    Example:
      >>> tf.linalg.LinearOperatorFullMatrix([[2.0, 0.0], [0.0, 4.0]]).solvevec([2.0, 4.0]).numpy().tolist()
      [1.0, 1.0]
    """

    _matrix = OperatorTensor()

    def __init__(
        self,
        matrix: TensorLike,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str = "LinearOperatorFullMatrix",
    ) -> None:
        self._matrix = matrix
        if len(self._matrix.shape) < 2:
            raise ValueError(
                f"Argument `matrix` must have at least 2 dimensions, got shape {self._matrix.shape}."
            )
        hints = (is_non_singular, is_self_adjoint, is_positive_definite, is_square)
        super().__init__(self._matrix.dtype, None, *hints, name, {"matrix": matrix})

    @property
    def matrix(self) -> Tensor:
        """Return the matrix."""
        return self._matrix

    def _shape(self) -> TensorShape:
        return self._matrix.shape

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        return math.matmul(self._matrix, x, adjoint_a=adjoint, adjoint_b=adjoint_arg)

    def _to_dense(self) -> Tensor:
        return self._matrix


@register_operator
class LinearOperatorLowerTriangular(_TriangularOperator):
    """Operator of a lower triangular matrix.

    Args:
      tril: Matrix [..., N, N], of which only the lower triangle is used.
      is_non_singular: Whether it is invertible.
      is_self_adjoint: Whether it equals its conjugate transpose.
      is_positive_definite: Whether it is positive definite.
      is_square: True.
      name: Name of the operator.

    Example:
      >>> operator = tf.linalg.LinearOperatorLowerTriangular([[2.0, 0.0], [1.0, 3.0]])
      >>> operator.solve([[2.0], [7.0]]).numpy().tolist(), float(operator.determinant())
      ([[1.0], [2.0]], 6.0)
    """

    _matrix = OperatorTensor()

    def __init__(
        self,
        tril: TensorLike,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str = "LinearOperatorLowerTriangular",
    ) -> None:
        if is_square is False:
            raise ValueError("Only square lower triangular operators supported at this time.")
        self._matrix = tril
        hints = (is_non_singular, is_self_adjoint, is_positive_definite, True)
        super().__init__(self._matrix.dtype, None, *hints, name, {"tril": tril})

    @property
    def tril(self) -> Tensor:
        """Return the lower triangular matrix."""
        return self._tril

    @property
    def _tril(self) -> Tensor:
        return linalg.band_part(self._matrix, -1, 0)

    def _shape(self) -> TensorShape:
        return self._matrix.shape

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        return math.matmul(self._tril, x, adjoint_a=adjoint, adjoint_b=adjoint_arg)

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        matrix, rhs = broadcast_batches([self._tril, take_adjoint(rhs, adjoint_arg)])
        return linalg.triangular_solve(matrix, rhs, lower=True, adjoint=adjoint)

    def _to_dense(self) -> Tensor:
        return self._tril


class LinearOperatorDiag(_TriangularOperator):
    """Operator of a diagonal matrix.

    Args:
      diag: The diagonal, of shape [..., N].
      is_non_singular: Whether it is invertible.
      is_self_adjoint: Whether it equals its conjugate transpose; True for real diagonals.
      is_positive_definite: Whether it is positive definite.
      is_square: True.
      name: Name of the operator.

    Example:
      >>> tf.linalg.LinearOperatorDiag([1.0, 2.0]).matvec([3.0, 4.0]).numpy().tolist()
      [3.0, 8.0]
    """

    _diag = OperatorTensor()

    def __init__(
        self,
        diag: TensorLike,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str = "LinearOperatorDiag",
    ) -> None:
        if is_square is False:
            raise ValueError("Only square, diagonal operators currently supported.")
        self._diag = diag
        if len(self._diag.shape) < 1:
            raise ValueError("Argument diag must have at least 1 dimension, got a scalar.")
        if not self._diag.dtype.is_complex:
            if is_self_adjoint is False:
                raise ValueError("A real diagonal operator is always self adjoint.")
            is_self_adjoint = True
        hints = (is_non_singular, is_self_adjoint, is_positive_definite, True)
        super().__init__(self._diag.dtype, None, *hints, name, {"diag": diag})

    @property
    def diag(self) -> Tensor:
        """Return the diagonal."""
        return self._diag

    def _shape(self) -> TensorShape:
        return make_square_shape(self._diag.shape)

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        return _column(take_conjugate(self._diag, adjoint)) * take_adjoint(x, adjoint_arg)

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        return take_adjoint(rhs, adjoint_arg) / _column(take_conjugate(self._diag, adjoint))

    def _adjoint(self) -> LinearOperator:
        return LinearOperatorDiag(math.conj(self._diag), self.is_non_singular)

    def _compose(self, right: LinearOperator) -> LinearOperator | None:
        if not isinstance(right, (LinearOperatorDiag, LinearOperatorScaledIdentity)):
            return None
        return LinearOperatorDiag(self._diag * right.diag_part(), *combine_hints(self, right))

    def _inverse(self) -> LinearOperator:
        hints = (self.is_non_singular, self.is_self_adjoint, self.is_positive_definite)
        return LinearOperatorDiag(1.0 / self._diag, *hints)

    def _cholesky(self) -> LinearOperator:
        return LinearOperatorDiag(math.sqrt(self._diag), True, True, True)

    def _to_dense(self) -> Tensor:
        return linalg.diag(self._diag)

    def _diag_part(self) -> Tensor:
        return self._diag

    def _get_singular_values(self) -> Tensor:
        return math.abs(self._diag)

    def assert_positive_definite(self, name: str = "assert_positive_definite") -> PyTree:
        """Raise an `InvalidArgumentError` if a real part of the diagonal is not positive."""
        message = "The diagonal has entries with a non-positive real part: the operator is not positive definite."
        return debugging.assert_positive(math.real(self._diag), message=message)

    def assert_self_adjoint(self, name: str = "assert_self_adjoint") -> PyTree:
        """Raise an `InvalidArgumentError` if the diagonal is not real."""
        message = "The diagonal has non-zero imaginary parts: the operator is not self-adjoint."
        return debugging.assert_equal(self._diag, take_conjugate(self._diag, True), message=message)


class LinearOperatorScaledIdentity(LinearOperator):
    """Operator of a multiple of the identity matrix.

    Args:
      num_rows: Number of rows.
      multiplier: Factors, of shape [...].
      is_non_singular: Whether it is invertible.
      is_self_adjoint: Whether it equals its conjugate transpose.
      is_positive_definite: Whether it is positive definite.
      is_square: True.
      assert_proper_shapes: Ignored; shapes are checked statically.
      name: Name of the operator.

    Example:
      >>> tf.linalg.LinearOperatorScaledIdentity(2, 3.0).to_dense().numpy().tolist()
      [[3.0, 0.0], [0.0, 3.0]]
    """

    _multiplier = OperatorTensor()

    def __init__(
        self,
        num_rows: int,
        multiplier: TensorLike,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = True,
        assert_proper_shapes: bool = False,
        name: str = "LinearOperatorScaledIdentity",
    ) -> None:
        if not is_square:
            raise ValueError("A ScaledIdentity operator is always square.")
        self._num_rows = _parse_num_rows(num_rows)
        self._multiplier = multiplier
        dtype = self._multiplier.dtype
        is_self_adjoint = is_self_adjoint if dtype.is_complex else True
        hints = (is_non_singular, is_self_adjoint, is_positive_definite, True)
        parameters = {"num_rows": num_rows, "multiplier": multiplier}
        super().__init__(dtype, None, *hints, name, parameters)

    @property
    def multiplier(self) -> Tensor:
        """Return the factors."""
        return self._multiplier

    def _shape(self) -> TensorShape:
        return TensorShape([*self._multiplier.shape.as_list(), self._num_rows, self._num_rows])

    def _get_factor(self, adjoint: bool) -> Tensor:
        return _column(_column(take_conjugate(self._multiplier, adjoint)))

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        return self._get_factor(adjoint) * take_adjoint(x, adjoint_arg)

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        return take_adjoint(rhs, adjoint_arg) / self._get_factor(adjoint)

    def _compose(self, right: LinearOperator) -> LinearOperator | None:
        hints = combine_hints(self, right)
        if isinstance(right, LinearOperatorDiag):
            return LinearOperatorDiag(self.diag_part() * right.diag, *hints)
        if isinstance(right, LinearOperatorScaledIdentity):
            product = self._multiplier * right.multiplier
            return LinearOperatorScaledIdentity(self._num_rows, product, *hints)
        return None

    def _inverse(self) -> LinearOperator:
        hints = (self.is_non_singular, self.is_self_adjoint, self.is_positive_definite)
        return LinearOperatorScaledIdentity(self._num_rows, 1.0 / self._multiplier, *hints)

    def _adjoint(self) -> LinearOperator:
        conjugate = math.conj(self._multiplier)
        return LinearOperatorScaledIdentity(self._num_rows, conjugate, self.is_non_singular)

    def _cholesky(self) -> LinearOperator:
        return LinearOperatorScaledIdentity(
            self._num_rows, math.sqrt(self._multiplier), True, True, True
        )

    def _diag_part(self) -> Tensor:
        ones = array.ones([self._num_rows], self.dtype)
        return _column(self._multiplier) * ones

    def _determinant(self) -> Tensor:
        return self._multiplier**self._num_rows

    def _log_abs_determinant(self) -> Tensor:
        return float(self._num_rows) * math.log(math.abs(self._multiplier))

    def _eigvals(self) -> Tensor:
        return self.diag_part()

    def cond(self, name: str = "cond") -> Tensor:
        """Return 1."""
        return array.ones_like(math.abs(self._multiplier))

    def assert_non_singular(self, name: str = "assert_non_singular") -> PyTree:
        """Raise an `InvalidArgumentError` if a factor is zero."""
        return debugging.assert_positive(
            math.abs(self._multiplier), message="LinearOperator was singular"
        )


class LinearOperatorIdentity(_UnitaryOperator):
    """Operator of the identity matrix.

    Args:
      num_rows: Number of rows.
      batch_shape: Shape of the batch of equal matrices.
      dtype: Dtype; by default float32.
      is_non_singular: True.
      is_self_adjoint: True.
      is_positive_definite: True.
      is_square: True.
      assert_proper_shapes: Ignored; shapes are checked statically.
      name: Name of the operator.

    Example:
      >>> tf.linalg.LinearOperatorIdentity(2).matvec([1.0, 2.0]).numpy().tolist()
      [1.0, 2.0]
    """

    def __init__(
        self,
        num_rows: int,
        batch_shape: Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        is_non_singular: Hint = True,
        is_self_adjoint: Hint = True,
        is_positive_definite: Hint = True,
        is_square: Hint = True,
        assert_proper_shapes: bool = False,
        name: str = "LinearOperatorIdentity",
    ) -> None:
        if not (is_non_singular and is_self_adjoint and is_square):
            raise ValueError(
                "An identity operator is always non-singular, self-adjoint and square."
            )
        self._num_rows = _parse_num_rows(num_rows)
        self._batch = [] if batch_shape is None else [int(d) for d in batch_shape]
        parameters = {"num_rows": num_rows, "batch_shape": batch_shape, "dtype": dtype}
        super().__init__(dtype or float32, None, True, True, True, True, name, parameters)

    def _shape(self) -> TensorShape:
        return TensorShape([*self._batch, self._num_rows, self._num_rows])

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        x = take_adjoint(x, adjoint_arg)
        if x.shape[-2] != self._num_rows:
            raise ValueError(
                f"Expected a matrix with {self._num_rows} rows, got the shape {x.shape}."
            )
        batch = broadcast_shapes([self.batch_shape, x.shape[:-2]])
        return array.broadcast_to(x, batch + x.shape[-2:])

    def _compose(self, right: LinearOperator) -> LinearOperator | None:
        return None if self._batch else right

    def _inverse(self) -> LinearOperator:
        return self

    _cholesky = _inverse

    def _diag_part(self) -> Tensor:
        return array.ones([*self._batch, self._num_rows], self.dtype)

    _eigvals = _diag_part

    def _determinant(self) -> Tensor:
        return array.ones(self._batch, self.dtype)

    def assert_non_singular(self, name: str = "assert_non_singular") -> PyTree:
        """Do nothing."""

    assert_positive_definite = assert_self_adjoint = assert_non_singular


class LinearOperatorZeros(LinearOperator):
    """Operator of a matrix of zeros.

    Args:
      num_rows: Number of rows.
      num_columns: Number of columns; by default the number of rows.
      batch_shape: Shape of the batch of equal matrices.
      dtype: Dtype; by default float32.
      is_non_singular: False.
      is_self_adjoint: Whether it is square.
      is_positive_definite: False.
      is_square: Whether it is square.
      assert_proper_shapes: Ignored; shapes are checked statically.
      name: Name of the operator.

    Example:
      >>> tf.linalg.LinearOperatorZeros(2, 3, is_square=False, is_self_adjoint=False).shape
      TensorShape([2, 3])
    """

    def __init__(
        self,
        num_rows: int,
        num_columns: int | None = None,
        batch_shape: Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        is_non_singular: Hint = False,
        is_self_adjoint: Hint = True,
        is_positive_definite: Hint = False,
        is_square: Hint = True,
        assert_proper_shapes: bool = False,
        name: str = "LinearOperatorZeros",
    ) -> None:
        if is_non_singular or is_positive_definite:
            raise ValueError("A zero operator is always singular and not positive definite.")
        columns = num_rows if num_columns is None else num_columns
        batch = [] if batch_shape is None else [int(d) for d in batch_shape]
        self._sizes = [*batch, int(num_rows), int(columns)]
        parameters = {"num_rows": num_rows, "num_columns": num_columns, "batch_shape": batch_shape}
        hints = (False, is_self_adjoint, False, is_square)
        super().__init__(dtype or float32, None, *hints, name, parameters)

    def _shape(self) -> TensorShape:
        return TensorShape(self._sizes)

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        return math.matmul(self.to_dense(), x, adjoint_a=adjoint, adjoint_b=adjoint_arg)

    def _to_dense(self) -> Tensor:
        return array.zeros(self._sizes, self.dtype)

    def _determinant(self) -> Tensor:
        return array.zeros(self._sizes[:-2], self.dtype)


class LinearOperatorHouseholder(_UnitaryOperator):
    """Operator of a reflection `I - 2 v vᴴ / (vᴴ v)`.

    Args:
      reflection_axis: The vector `v`, of shape [..., N], which need not have length 1.
      is_non_singular: True.
      is_self_adjoint: True.
      is_positive_definite: False.
      is_square: True.
      name: Name of the operator.

    Example:
      >>> tf.linalg.LinearOperatorHouseholder([1.0, 0.0]).matvec([3.0, 4.0]).numpy().tolist()
      [-3.0, 4.0]
    """

    _axis = OperatorTensor()

    def __init__(
        self,
        reflection_axis: TensorLike,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str = "LinearOperatorHouseholder",
    ) -> None:
        if is_positive_definite or False in (is_non_singular, is_self_adjoint, is_square):
            raise ValueError(
                "A Householder operator is always non-singular, self-adjoint and square, and never positive definite."
            )
        self._axis = reflection_axis
        parameters = {"reflection_axis": reflection_axis}
        super().__init__(self._axis.dtype, None, True, True, False, True, name, parameters)

    @property
    def reflection_axis(self) -> Tensor:
        """Return the vector."""
        return self._axis

    def _shape(self) -> TensorShape:
        return make_square_shape(self._axis.shape)

    def _get_unit_axis(self) -> Tensor:
        return linalg.normalize(self._axis, axis=-1)[0]

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        x = take_adjoint(x, adjoint_arg)
        axis = _column(self._get_unit_axis())
        return x - 2.0 * axis * math.matmul(axis, x, adjoint_a=True)

    def _inverse(self) -> LinearOperator:
        return self

    def _diag_part(self) -> Tensor:
        axis = self._get_unit_axis()
        return 1.0 - 2.0 * axis * math.conj(axis)

    def _determinant(self) -> Tensor:
        return -array.ones(self.batch_shape, self.dtype)


class LinearOperatorPermutation(_UnitaryOperator):
    """Operator that permutes rows: row `i` of the product is row `perm[i]` of the matrix.

    Args:
      perm: Permutation of `range(N)`, of shape [..., N].
      dtype: Dtype of the matrix.
      is_non_singular: True.
      is_self_adjoint: Whether the permutation is its own inverse.
      is_positive_definite: Whether it is the identity.
      is_square: True.
      name: Name of the operator.

    Example:
      >>> tf.linalg.LinearOperatorPermutation([2, 0, 1]).matvec([1.0, 2.0, 3.0]).numpy().tolist()
      [3.0, 1.0, 2.0]
    """

    _perm = OperatorTensor()

    def __init__(
        self,
        perm: TensorLike,
        dtype: DTypeLike = float32,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str = "LinearOperatorPermutation",
    ) -> None:
        if is_non_singular is False or is_square is False:
            raise ValueError("A Permutation operator is always non-singular and square.")
        self._perm = perm
        if not self._perm.dtype.is_integer:
            raise TypeError(f"Argument `perm` must be integer dtype, got {self._perm.dtype.name}.")
        hints = (True, is_self_adjoint, is_positive_definite, True)
        super().__init__(dtype, None, *hints, name, {"perm": perm, "dtype": dtype})

    @property
    def perm(self) -> Tensor:
        """Return the permutation."""
        return self._perm

    def _shape(self) -> TensorShape:
        return make_square_shape(self._perm.shape)

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        x = take_adjoint(x, adjoint_arg)
        perm = array.argsort(self._perm, axis=-1) if adjoint else self._perm
        perm, x = broadcast_batches([_column(perm), x])
        return array.gather(x, perm[..., 0], axis=-2, batch_dims=len(x.shape) - 2)


class LinearOperatorTridiag(LinearOperator):
    """Operator of a tridiagonal matrix.

    Args:
      diagonals: The diagonals above, on and below the main diagonal.
      diagonals_format: 'compact' for [..., 3, N], 'sequence' for a list of three vectors, or 'matrix'
        for [..., N, N].
      is_non_singular: Whether it is invertible.
      is_self_adjoint: Whether it equals its conjugate transpose.
      is_positive_definite: Whether it is positive definite.
      is_square: True.
      name: Name of the operator.

    Example:
      >>> diagonals = [[1.0, 1.0, 0.0], [4.0, 4.0, 4.0], [0.0, 1.0, 1.0]]
      >>> tf.linalg.LinearOperatorTridiag(diagonals).matvec([1.0, 1.0, 1.0]).numpy().tolist()
      [5.0, 6.0, 5.0]
    """

    def __init__(
        self,
        diagonals: PyTree,
        diagonals_format: str = "compact",
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str = "LinearOperatorTridiag",
    ) -> None:
        self._format, self._diagonals = diagonals_format, diagonals
        hints = (is_non_singular, is_self_adjoint, is_positive_definite, True)
        parameters = {"diagonals": diagonals, "diagonals_format": diagonals_format}
        super().__init__(self._compact.dtype, None, *hints, name, parameters)

    @property
    def _compact(self) -> Tensor:
        return to_compact(self._diagonals, self._format, "LinearOperatorTridiag")

    @property
    def diagonals(self) -> PyTree:
        """Return the diagonals in their format."""
        return self._diagonals

    @property
    def diagonals_format(self) -> str:
        """Return the format of the diagonals."""
        return self._format

    def _shape(self) -> TensorShape:
        shape = self._compact.shape
        return make_square_shape(shape[:-2] + shape[-1:])

    def _get_diagonals(self, adjoint: bool) -> Tensor:
        compact = self._compact
        if not adjoint:
            return compact
        above, main, below = (math.conj(compact[..., i, :]) for i in range(3))
        # The diagonal below has its unused element at the start, that above at the end.
        return array.stack([array.roll(below, -1, -1), main, array.roll(above, 1, -1)], -2)

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        x = take_adjoint(x, adjoint_arg)
        diagonals, x = broadcast_batches([self._get_diagonals(adjoint), x])
        return linalg.tridiagonal_matmul(diagonals, x)

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        rhs = take_adjoint(rhs, adjoint_arg)
        diagonals, rhs = broadcast_batches([self._get_diagonals(adjoint), rhs])
        return linalg.tridiagonal_solve(diagonals, rhs)

    def _diag_part(self) -> Tensor:
        return self._compact[..., 1, :]
