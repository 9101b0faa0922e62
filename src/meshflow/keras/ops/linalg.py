"""`keras.ops.linalg`: factorizations of matrices, and linear equations."""

from meshflow.keras.ops.matrices import (
    cholesky,
    cholesky_inverse,
    det,
    eig,
    eigh,
    inv,
    jvp,
    lstsq,
    lu_factor,
    matrix_rank,
    norm,
    pinv,
    qr,
    solve,
    solve_triangular,
    svd,
)

__all__ = [
    "cholesky",
    "cholesky_inverse",
    "det",
    "eig",
    "eigh",
    "inv",
    "jvp",
    "lstsq",
    "lu_factor",
    "matrix_rank",
    "norm",
    "pinv",
    "qr",
    "solve",
    "solve_triangular",
    "svd",
]
