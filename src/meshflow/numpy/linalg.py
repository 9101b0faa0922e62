"""`tf.experimental.numpy.linalg`: NumPy's linear algebra on tensors."""

from __future__ import annotations

from jax.numpy import linalg as jla

from meshflow.numpy.jnp_wrappers import wrap_jnp

__all__ = [
    *("cholesky", "cond", "cross", "det", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq"),
    *("matrix_power", "matrix_rank", "multi_dot", "norm", "pinv", "qr", "slogdet", "solve", "svd"),
    *("tensorinv", "tensorsolve"),
]

cholesky = wrap_jnp(jla.cholesky, floating=True)
cond = wrap_jnp(jla.cond, floating=True)
cross = wrap_jnp(jla.cross, stored_name="linalg_cross")
det = wrap_jnp(jla.det, floating=True)
eig = wrap_jnp(jla.eig, floating=True)
eigh = wrap_jnp(jla.eigh, floating=True)
eigvals = wrap_jnp(jla.eigvals, floating=True)
eigvalsh = wrap_jnp(jla.eigvalsh, floating=True)
inv = wrap_jnp(jla.inv, floating=True)
lstsq = wrap_jnp(jla.lstsq, floating=True)
matrix_power = wrap_jnp(jla.matrix_power)
matrix_rank = wrap_jnp(
    jla.matrix_rank, floating=True, operands=["M"], static=["rtol", "tol"], differentiable=False
)
multi_dot = wrap_jnp(jla.multi_dot)
norm = wrap_jnp(jla.norm, floating=True)
pinv = wrap_jnp(jla.pinv, floating=True, static=["rtol"])
qr = wrap_jnp(jla.qr, floating=True)
slogdet = wrap_jnp(jla.slogdet, floating=True)
solve = wrap_jnp(jla.solve, floating=True)
svd = wrap_jnp(jla.svd, floating=True)
tensorinv = wrap_jnp(jla.tensorinv, floating=True)
tensorsolve = wrap_jnp(jla.tensorsolve, floating=True)
