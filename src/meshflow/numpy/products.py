"""Products of vectors and matrices, polynomials, and functions of neighboring elements."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.numpy.jnp_wrappers import wrap_jnp
from meshflow.ops.math.products import cross_arrays

__all__ = [
    *("convolve", "correlate", "cross", "diff", "dot", "ediff1d", "einsum", "inner", "interp"),
    *("kron", "matmul", "matvec", "outer", "poly", "polyadd", "polyder", "polyfit", "polyint"),
    *("polymul", "polysub", "polyval", "tensordot", "trace", "trapezoid", "vdot", "vecdot"),
    "vecmat",
]

dot = wrap_jnp(jnp.dot)
matmul = wrap_jnp(jnp.matmul)
inner = wrap_jnp(jnp.inner)
outer = wrap_jnp(jnp.outer)
vdot = wrap_jnp(jnp.vdot)
vecdot = wrap_jnp(jnp.vecdot)
matvec = wrap_jnp(jnp.matvec)
vecmat = wrap_jnp(jnp.vecmat)
tensordot = wrap_jnp(jnp.tensordot)
kron = wrap_jnp(jnp.kron)
cross = wrap_jnp(cross_arrays, "cross", operands=["a", "b"])
trace = wrap_jnp(jnp.trace, widen=True)
_einsum = wrap_jnp(jnp.einsum, "einsum", operands=["operands"], static=["subscripts"])

convolve = wrap_jnp(jnp.convolve)
correlate = wrap_jnp(jnp.correlate)
diff = wrap_jnp(jnp.diff)
ediff1d = wrap_jnp(jnp.ediff1d)
interp = wrap_jnp(jnp.interp, floating=True, static=["left", "right", "period"])
trapezoid = wrap_jnp(jnp.trapezoid, floating=True)

polyval = wrap_jnp(jnp.polyval)
polyadd = wrap_jnp(jnp.polyadd)
polysub = wrap_jnp(jnp.polysub)
polymul = wrap_jnp(jnp.polymul)
polyder = wrap_jnp(jnp.polyder, static=["m"])
polyint = wrap_jnp(jnp.polyint, floating=True, static=["m"])
polyfit = wrap_jnp(jnp.polyfit, floating=True, static=["deg"])
poly = wrap_jnp(jnp.poly, floating=True)


def einsum(subscripts: str, *operands: TensorLike, **kwargs: Any) -> Tensor:
    """Compute sums of products in Einstein notation.

    Args:
      subscripts: Subscripts such as 'ij,jk->ik'.
      *operands: Array-like values, one for each group of subscripts.
      **kwargs: `optimize`, the order of the products; `casting` and `order` must be their defaults.

    Returns:
      A tensor of the common dtype of the operands.

    Raises:
      ValueError: If the subscripts do not match the operands, or another keyword is passed.

    Example:
      >>> tnp.einsum("ij,j->i", [[1, 2], [3, 4]], [1, 10]).numpy()
      array([21, 43])
    """
    return _einsum(subscripts, *operands, **kwargs)
