"""Products of vectors and matrices, polynomials, and functions of neighbours."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.numpy.jnp_wrappers import of_jax

__all__ = [
    *(
        "convolve",
        "correlate",
        "cross",
        "diff",
        "dot",
        "ediff1d",
        "einsum",
        "inner",
        "interp",
    ),
    *(
        "kron",
        "matmul",
        "matvec",
        "outer",
        "poly",
        "polyadd",
        "polyder",
        "polyfit",
        "polyint",
    ),
    *(
        "polymul",
        "polysub",
        "polyval",
        "tensordot",
        "trace",
        "trapezoid",
        "vdot",
        "vecdot",
    ),
    "vecmat",
]

dot = of_jax(jnp.dot)
matmul = of_jax(jnp.matmul)
inner = of_jax(jnp.inner)
outer = of_jax(jnp.outer)
vdot = of_jax(jnp.vdot)
vecdot = of_jax(jnp.vecdot)
matvec = of_jax(jnp.matvec)
vecmat = of_jax(jnp.vecmat)
tensordot = of_jax(jnp.tensordot)
kron = of_jax(jnp.kron)
cross = of_jax(jnp.cross, operands=["a", "b"])
trace = of_jax(jnp.trace, counting=True)
_einsum = of_jax(jnp.einsum, "einsum", operands=["operands"], static=["subscripts"])

convolve = of_jax(jnp.convolve)
correlate = of_jax(jnp.correlate)
diff = of_jax(jnp.diff)
ediff1d = of_jax(jnp.ediff1d)
interp = of_jax(jnp.interp, floating=True, static=["left", "right", "period"])
trapezoid = of_jax(jnp.trapezoid, floating=True)

polyval = of_jax(jnp.polyval)
polyadd = of_jax(jnp.polyadd)
polysub = of_jax(jnp.polysub)
polymul = of_jax(jnp.polymul)
polyder = of_jax(jnp.polyder, static=["m"])
polyint = of_jax(jnp.polyint, floating=True, static=["m"])
polyfit = of_jax(jnp.polyfit, floating=True, static=["deg"])
poly = of_jax(jnp.poly, floating=True)


def einsum(subscripts: str, *operands: TensorLike, **kwargs: Any) -> Tensor:
    """Sums of products by Einstein's notation.

    Args:
      subscripts: such as 'ij,jk->ik'.
      *operands: what `asarray` takes, one per group of subscripts.
      **kwargs: `optimize`, how to order the products; `casting` and `order` must be their defaults.

    Returns:
      A tensor of the dtype in which the operands meet.

    Raises:
      ValueError: for subscripts that do not fit, and for other keyword arguments.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.einsum("ij,j->i", [[1, 2], [3, 4]], [1, 10]).numpy()
      array([21, 43])
    """
    return _einsum(subscripts, *operands, **kwargs)
