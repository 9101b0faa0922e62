"""Rewrites of jaxprs, such as automatic mixed precision, for any JAX function.

>>> import jax, jax.numpy as jnp
>>> from meshflow import passes
>>> dense = passes.mixed_precision(lambda w, x: x @ w)
>>> w, x = jnp.ones((4, 2), "float32"), jnp.ones((3, 4), "float32")
>>> [str(e.outvars[0].aval.dtype) for e in jax.make_jaxpr(dense)(w, x).eqns]
['bfloat16', 'bfloat16', 'bfloat16', 'float32']
"""

from meshflow.passes.explain import Explanation, explain, explain_jaxpr
from meshflow.passes.mixed_precision import mixed_precision, rewrite
from meshflow.passes.precision_lists import PrecisionLists, default_lists, lists
