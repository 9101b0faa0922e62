"""`tf.experimental.numpy.linalg`: NumPy's linear algebra on tensors."""

from __future__ import annotations

from jax.numpy import linalg as jla

from meshflow.numpy.jnp_wrappers import of_jax

__all__ = [
    *(
        "cholesky",
        "cond",
        "cross",
        "det",
        "eig",
        "eigh",
        "eigvals",
        "eigvalsh",
        "inv",
        "lstsq",
    ),
    *(
        "matrix_power",
        "matrix_rank",
        "multi_dot",
        "norm",
        "pinv",
        "qr",
        "slogdet",
        "solve",
    ),
    *(
        "svd",
        "tensorinv",
        "tensorsolve",
    ),
]

cholesky = of_jax(jla.cholesky, floating=True)
cond = of_jax(jla.cond, floating=True)
cross = of_jax(jla.cross)
det = of_jax(jla.det, floating=True)
eig = of_jax(jla.eig, floating=True)
eigh = of_jax(jla.eigh, floating=True)
eigvals = of_jax(jla.eigvals, floating=True)
eigvalsh = of_jax(jla.eigvalsh, floating=True)
inv = of_jax(jla.inv, floating=True)
lstsq = of_jax(jla.lstsq, floating=True)
matrix_power = of_jax(jla.matrix_power)
matrix_rank = of_jax(
    jla.matrix_rank, floating=True, operands=["M"], static=["rtol", "tol"], differentiable=False
)
multi_dot = of_jax(jla.multi_dot)
norm = of_jax(jla.norm, floating=True)
pinv = of_jax(jla.pinv, floating=True, static=["rtol"])
qr = of_jax(jla.qr, floating=True)
slogdet = of_jax(jla.slogdet, floating=True)
solve = of_jax(jla.solve, floating=True)
svd = of_jax(jla.svd, floating=True)
tensorinv = of_jax(jla.tensorinv, floating=True)
tensorsolve = of_jax(jla.tensorsolve, floating=True)
