"""`tf.linalg.LinearOperator` classes against dense matrices."""

import numpy as np
import pytest

import meshflow as tf

L = tf.linalg
rng = np.random.default_rng(0)


def make_well_conditioned_matrix(*shape):
    """A random matrix plus a multiple of the identity."""
    return (rng.normal(size=shape) + 3 * np.eye(*shape[-2:])).astype("float32")


A, B = make_well_conditioned_matrix(3, 3), make_well_conditioned_matrix(2, 2)
BATCH = make_well_conditioned_matrix(4, 3, 3)
SYMMETRIC = A @ A.T
COMPLEX = (A + 1j * make_well_conditioned_matrix(3, 3).T).astype("complex64")
D = np.array([1.5, -2.0, 0.5], "float32")
V = np.array([1.0, 2.0, -1.0], "float32")
U, W = rng.normal(size=(3, 2)).astype("float32"), rng.normal(size=(3, 2)).astype("float32")
COLUMN, ROW = np.array([4.0, 1.0, 2.0], "float32"), np.array([4.0, -1.0, 0.5], "float32")
BANDS = np.array([[1.0, 2.0, 0.0], [5.0, 6.0, 7.0], [0.0, 3.0, 4.0]], "float32")
KERNEL = np.array([3.0, 1.0, 0.5], "float32")
KERNEL_2D = np.array([[4.0, 1.0, 0.5], [0.25, 1.0, 0.0]], "float32")


def full(matrix, **hints):
    return L.LinearOperatorFullMatrix(matrix, **hints)


def make_circular(kernel):
    """The matrix of the circular convolution with a kernel of any number of dimensions."""
    shape = kernel.shape
    indices = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1).reshape(
        -1, len(shape)
    )
    differences = (indices[:, None] - indices[None]) % np.array(shape)
    return kernel[tuple(np.moveaxis(differences, -1, 0))]


ZERO = np.zeros((3, 2), "float32")
C23 = rng.normal(size=(2, 3)).astype("float32")
CASES = {
    "FullMatrix": (lambda: full(A), A),
    "FullMatrix of a batch": (lambda: full(BATCH), BATCH),
    "FullMatrix, complex": (lambda: full(COMPLEX), COMPLEX),
    "FullMatrix by Cholesky": (
        lambda: full(SYMMETRIC, is_self_adjoint=True, is_positive_definite=True),
        SYMMETRIC,
    ),
    "LowerTriangular": (lambda: L.LinearOperatorLowerTriangular(A), np.tril(A)),
    "LowerTriangular, complex": (
        lambda: L.LinearOperatorLowerTriangular(COMPLEX),
        np.tril(COMPLEX),
    ),
    "Diag": (lambda: L.LinearOperatorDiag(D), np.diag(D)),
    "Diag, complex": (lambda: L.LinearOperatorDiag(D * (1 + 2j)), np.diag(D * (1 + 2j))),
    "Diag, positive": (
        lambda: L.LinearOperatorDiag(D**2, is_positive_definite=True),
        np.diag(D**2),
    ),
    "Identity": (lambda: L.LinearOperatorIdentity(3), np.eye(3)),
    "Identity of a batch": (
        lambda: L.LinearOperatorIdentity(3, [2], tf.float64),
        np.broadcast_to(np.eye(3), (2, 3, 3)),
    ),
    "ScaledIdentity": (
        lambda: L.LinearOperatorScaledIdentity(3, [2.0, -3.0]),
        np.array([2.0, -3.0])[:, None, None] * np.eye(3),
    ),
    "Householder": (
        lambda: L.LinearOperatorHouseholder(V),
        np.eye(3) - 2 * np.outer(V, V) / (V @ V),
    ),
    "Permutation": (lambda: L.LinearOperatorPermutation([2, 0, 1]), np.eye(3)[[2, 0, 1]]),
    "Tridiag": (
        lambda: L.LinearOperatorTridiag(BANDS),
        np.diag(BANDS[1]) + np.diag(BANDS[0, :2], 1) + np.diag(BANDS[2, 1:], -1),
    ),
    "Toeplitz": (
        lambda: L.LinearOperatorToeplitz(COLUMN, ROW),
        [[COLUMN[i - j] if i >= j else ROW[j - i] for j in range(3)] for i in range(3)],
    ),
    "Circulant": (
        lambda: L.LinearOperatorCirculant(
            np.fft.fft(KERNEL).astype("complex64"), input_output_dtype=tf.float32
        ),
        make_circular(KERNEL),
    ),
    "Circulant, complex": (
        lambda: L.LinearOperatorCirculant(np.fft.fft(KERNEL * (1 + 1j)).astype("complex64")),
        make_circular(KERNEL * (1 + 1j)),
    ),
    "Circulant2D": (
        lambda: L.LinearOperatorCirculant2D(np.fft.fft2(KERNEL_2D).astype("complex64"), tf.float32),
        make_circular(KERNEL_2D),
    ),
    "Circulant3D": (
        lambda: L.LinearOperatorCirculant3D(
            np.fft.fftn(KERNEL_2D[None]).astype("complex64"), tf.float32
        ),
        make_circular(KERNEL_2D),
    ),
    "Adjoint": (lambda: L.LinearOperatorAdjoint(full(COMPLEX)), COMPLEX.conj().T),
    "Inversion": (lambda: L.LinearOperatorInversion(full(A)), np.linalg.inv(A)),
    "Composition": (
        lambda: L.LinearOperatorComposition([full(A), L.LinearOperatorDiag(D)]),
        A @ np.diag(D),
    ),
    "Composition, not square": (
        lambda: L.LinearOperatorComposition([full(C23), full(W)]),
        C23 @ W,
    ),
    "Kronecker": (lambda: L.LinearOperatorKronecker([full(A), full(B)]), np.kron(A, B)),
    "Kronecker of three": (
        lambda: L.LinearOperatorKronecker([full(B), L.LinearOperatorDiag(D), full(B)]),
        np.kron(np.kron(B, np.diag(D)), B),
    ),
    "LowRankUpdate": (
        lambda: L.LinearOperatorLowRankUpdate(full(A), U, D[:2], W),
        A + U @ np.diag(D[:2]) @ W.T,
    ),
    "LowRankUpdate by Cholesky": (
        lambda: L.LinearOperatorLowRankUpdate(L.LinearOperatorIdentity(3), U),
        np.eye(3) + U @ U.T,
    ),
    "BlockDiag": (
        lambda: L.LinearOperatorBlockDiag([full(A), full(B)]),
        np.block([[A, ZERO], [ZERO.T, B]]),
    ),
    "BlockLowerTriangular": (
        lambda: L.LinearOperatorBlockLowerTriangular([[full(A)], [full(C23), full(B)]]),
        np.block([[A, ZERO], [C23, B]]),
    ),
}


def check(got, expected):
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("case", CASES)
def test_results_equal_those_of_the_dense_matrix(case):
    make, dense = CASES[case]
    dense = np.asarray(dense)
    operator = make()
    assert isinstance(operator, L.LinearOperator)
    assert operator.shape == dense.shape and operator.is_square
    assert (operator.batch_shape, operator.tensor_rank) == (dense.shape[:-2], dense.ndim)
    assert (operator.range_dimension, operator.domain_dimension) == dense.shape[-2:]
    np.testing.assert_array_equal(operator.shape_tensor(), dense.shape)
    dtype = operator.dtype.as_numpy_dtype
    adjoint = np.swapaxes(dense.conj(), -1, -2)
    x = rng.normal(size=(dense.shape[-1], 2)).astype(dtype)
    check(operator.to_dense(), dense)
    check(operator.matmul(x), dense @ x)
    check(operator @ x, dense @ x)
    check(operator.matmul(x, adjoint=True), adjoint @ x)
    check(operator.matmul(x.conj().T, adjoint_arg=True), dense @ x)
    check(operator.matvec(x[:, 0]), dense @ x[:, 0])
    check(operator.solve(x), np.linalg.solve(dense, x))
    check(operator.solve(x, adjoint=True), np.linalg.solve(adjoint, x))
    check(operator.solve(x.conj().T, adjoint_arg=True), np.linalg.solve(dense, x))
    check(operator.solvevec(x[:, 0]), np.linalg.solve(dense, x)[..., 0])
    check(operator.adjoint().to_dense(), adjoint)
    check(operator.H.matmul(x), adjoint @ x)
    check(operator.inverse().to_dense(), np.linalg.inv(dense))
    check(operator.determinant(), np.linalg.det(dense))
    check(operator.log_abs_determinant(), np.linalg.slogdet(dense)[1])
    check(operator.diag_part(), np.diagonal(dense, 0, -2, -1))
    check(operator.trace(), np.trace(dense, 0, -2, -1))
    check(operator.cond(), np.linalg.cond(dense))
    check(operator.add_to_tensor(np.ones(dense.shape, dtype)), dense + 1)
    check((operator @ operator).matmul(x), dense @ dense @ x)
    check(operator.solve(operator).matmul(x), np.broadcast_to(x, (*dense.shape[:-1], 2)))
    operator.assert_non_singular()
    if operator.is_self_adjoint:
        check(np.sort(operator.eigvals()), np.linalg.eigvalsh(dense))
        operator.assert_self_adjoint()
        if operator.is_positive_definite:
            check(operator.cholesky().to_dense(), np.linalg.cholesky(dense))
            operator.assert_positive_definite()


def test_zeros():
    operator = L.LinearOperatorZeros(2, 3, is_square=False, is_self_adjoint=False)
    check(operator.matmul(np.ones((3, 4), "float32")), np.zeros((2, 4)))
    check(operator.matmul(np.ones((2, 4), "float32"), adjoint=True), np.zeros((3, 4)))
    with pytest.raises(NotImplementedError, match="singular"):
        operator.solve(np.ones((2, 1), "float32"))
    assert float(L.LinearOperatorZeros(2).determinant()) == 0


def test_lists_of_blocks():
    for operator in (
        L.LinearOperatorBlockDiag([full(A), full(B)]),
        L.LinearOperatorBlockLowerTriangular([[full(A)], [full(C23), full(B)]]),
    ):
        x = rng.normal(size=(5, 2)).astype("float32")
        blocks = [x[:3], x[3:]]
        for method in (operator.matmul, operator.solve):
            check(np.concatenate(method(blocks)), method(x))
            check(np.concatenate(method(blocks, adjoint=True)), method(x, adjoint=True))
        vectors = [x[:3, 0], x[3:, 0]]
        check(np.concatenate(operator.matvec(vectors)), operator.matvec(x[:, 0]))
        check(np.concatenate(operator.solvevec(vectors)), operator.solvevec(x[:, 0]))


def test_hints_and_checks():
    with pytest.raises(ValueError, match="always non-singular"):
        full(A, is_positive_definite=True, is_non_singular=False)
    with pytest.raises(ValueError, match="Cholesky"):
        full(A).cholesky()
    with pytest.raises(NotImplementedError, match="self-adjoint"):
        full(A).eigvals()
    with pytest.raises(NotImplementedError, match="not be square"):
        full(C23).determinant()
    with pytest.raises(ValueError, match="incompatible"):
        full(C23) @ full(B)
    for assertion in (
        L.LinearOperatorDiag([1.0, 0.0]).assert_non_singular,
        L.LinearOperatorDiag([1.0, -1.0]).assert_positive_definite,
        full(np.ones((2, 2), "float32")).assert_non_singular,
        full(A).assert_self_adjoint,
    ):
        with pytest.raises(tf.errors.InvalidArgumentError):
            assertion()


def test_gradients_and_variables():
    variable = tf.Variable(D)

    @tf.function
    def differentiate(x):
        with tf.GradientTape() as tape:
            operator = L.LinearOperatorDiag(variable)
            loss = tf.reduce_sum(operator.solvevec(x)) + operator.log_abs_determinant()
        return tape.gradient(loss, variable)

    check(differentiate(tf.constant(V)), -V / D**2 + 1 / D)


OPERATORS_OF_VARIABLES = [
    (tf.linalg.LinearOperatorDiag, [1.0, 2.0]),
    (tf.linalg.LinearOperatorFullMatrix, [[1.0, 2.0], [3.0, 4.0]]),
    (tf.linalg.LinearOperatorLowerTriangular, [[1.0, 2.0], [3.0, 4.0]]),
    (tf.linalg.LinearOperatorHouseholder, [1.0, 2.0]),
    (lambda v: tf.linalg.LinearOperatorScaledIdentity(2, v), 3.0),
    (lambda v: tf.linalg.LinearOperatorToeplitz(v, [1.0, 5.0]), [1.0, 2.0]),
    (
        lambda v: tf.linalg.LinearOperatorTridiag(v),
        [[1.0, 1.0, 0.0], [4.0, 4.0, 4.0], [0.0, 1.0, 1.0]],
    ),
    (lambda v: tf.linalg.LinearOperatorCirculant(v), [1 + 0j, 2]),
    (
        lambda v: tf.linalg.LinearOperatorLowRankUpdate(tf.linalg.LinearOperatorIdentity(2), v),
        [[1.0], [2.0]],
    ),
]


@pytest.mark.parametrize(("make", "value"), OPERATORS_OF_VARIABLES)
def test_operators_read_the_current_value_of_variables(make, value):
    variable = tf.Variable(value)
    operator = make(variable)
    with tf.GradientTape() as tape:
        norm = tf.reduce_sum(tf.abs(operator.to_dense()) ** 2)
    assert tape.gradient(norm, variable) is not None
    assert operator.trainable_variables == (variable,)
    variable.assign(
        variable * [2.0, 3.0]
        if variable.shape == (2,) and variable.dtype.is_floating
        else variable * 2
    )
    np.testing.assert_allclose(operator.to_dense(), make(variable.numpy()).to_dense())


def test_functions_of_matrices_accept_operators():
    operator = full(SYMMETRIC, is_self_adjoint=True, is_positive_definite=True)
    results = [
        (L.adjoint(operator).to_dense(), SYMMETRIC.T),
        (L.cholesky(operator).to_dense(), np.linalg.cholesky(SYMMETRIC)),
        (L.det(operator), np.linalg.det(SYMMETRIC)),
        (L.diag_part(operator), np.diag(SYMMETRIC)),
        (L.inv(operator).to_dense(), np.linalg.inv(SYMMETRIC)),
        (L.logdet(operator), np.linalg.slogdet(SYMMETRIC)[1]),
        (L.matmul(operator, A), SYMMETRIC @ A),
        (L.matmul(A, operator, adjoint_a=True), A.T @ SYMMETRIC),
        (L.solve(operator, A), np.linalg.solve(SYMMETRIC, A)),
        (L.trace(operator), np.trace(SYMMETRIC)),
    ]
    for actual, expected in results:
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="transpose_a"):
        L.matmul(operator, A, transpose_a=True)
    with pytest.raises(ValueError, match="`rhs`"):
        L.solve(A, operator)


def test_products_of_diagonal_operators_are_diagonal():
    diagonal, scaled = L.LinearOperatorDiag(D), L.LinearOperatorScaledIdentity(3, 2.0)
    for left, right, cls in (
        (diagonal, diagonal, L.LinearOperatorDiag),
        (diagonal, scaled, L.LinearOperatorDiag),
        (scaled, diagonal, L.LinearOperatorDiag),
        (scaled, scaled, L.LinearOperatorScaledIdentity),
        (L.LinearOperatorIdentity(3), diagonal, L.LinearOperatorDiag),
        (full(A), diagonal, L.LinearOperatorComposition),
    ):
        product = left.matmul(right)
        assert type(product) is cls
        np.testing.assert_allclose(
            product.to_dense(), left.to_dense() @ right.to_dense(), rtol=1e-6
        )


def test_tridiagonal_solve_exchanges_rows_and_transposes_the_right_side():
    diagonals = np.array([[2.0, -1, 1, 0], [1, 4, 1, -1], [0, 2, -2, 3]])
    rhs = np.array([[1.0, 2, 3, 4], [2, 4, 6, 8]])
    expected = np.array([[8, -3.5, 0, -4], [16, -7, 0, -8]]).T
    np.testing.assert_allclose(L.tridiagonal_solve(diagonals, rhs, transpose_rhs=True), expected)
    assert not np.isfinite(L.tridiagonal_solve([[3.0, 0], [1, 3], [0, 1]], [1.0, 4])).any()
    assert L.tridiagonal_solve(np.zeros([3, 0]), np.zeros([0, 1])).shape == [0, 1]
