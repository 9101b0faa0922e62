"""Reductions and cumulative functions: sums, products, extrema, averages and quantiles."""

from __future__ import annotations

import jax.numpy as jnp

from meshflow.numpy.jnp_wrappers import wrap_jnp

__all__ = [
    *("all", "amax", "amin", "any", "argmax", "argmin", "average", "corrcoef", "count_nonzero"),
    *("cov", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "max", "mean", "median"),
    *("min", "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmedian"),
    *("nanmin", "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum", "nanvar"),
    *("percentile", "prod", "ptp", "quantile", "std", "sum", "var"),
]

sum = wrap_jnp(jnp.sum, widen=True)
prod = wrap_jnp(jnp.prod, widen=True)
nansum = wrap_jnp(jnp.nansum, widen=True)
nanprod = wrap_jnp(jnp.nanprod, widen=True)
cumsum = wrap_jnp(jnp.cumsum, widen=True)
cumprod = wrap_jnp(jnp.cumprod, widen=True)
nancumsum = wrap_jnp(jnp.nancumsum, widen=True)
nancumprod = wrap_jnp(jnp.nancumprod, widen=True)
cumulative_sum = wrap_jnp(jnp.cumulative_sum, widen=True)
cumulative_prod = wrap_jnp(jnp.cumulative_prod, widen=True)

max = amax = wrap_jnp(jnp.max, "max")
min = amin = wrap_jnp(jnp.min, "min")
nanmax = wrap_jnp(jnp.nanmax)
nanmin = wrap_jnp(jnp.nanmin)
ptp = wrap_jnp(jnp.ptp)
argmax = wrap_jnp(jnp.argmax, differentiable=False)
argmin = wrap_jnp(jnp.argmin, differentiable=False)
nanargmax = wrap_jnp(jnp.nanargmax, differentiable=False)
nanargmin = wrap_jnp(jnp.nanargmin, differentiable=False)

mean = wrap_jnp(jnp.mean, floating=True)
average = wrap_jnp(jnp.average, floating=True)
nanmean = wrap_jnp(jnp.nanmean, floating=True)
std = wrap_jnp(jnp.std, floating=True)
var = wrap_jnp(jnp.var, floating=True)
nanstd = wrap_jnp(jnp.nanstd, floating=True)
nanvar = wrap_jnp(jnp.nanvar, floating=True)
median = wrap_jnp(jnp.median, floating=True)
nanmedian = wrap_jnp(jnp.nanmedian, floating=True)
quantile = wrap_jnp(jnp.quantile, floating=True)
nanquantile = wrap_jnp(jnp.nanquantile, floating=True)
percentile = wrap_jnp(jnp.percentile, floating=True)
nanpercentile = wrap_jnp(jnp.nanpercentile, floating=True)
cov = wrap_jnp(jnp.cov, floating=True, excluded=["fweights", "aweights"])
corrcoef = wrap_jnp(jnp.corrcoef, floating=True)

all = wrap_jnp(jnp.all, differentiable=False)
any = wrap_jnp(jnp.any, differentiable=False)
count_nonzero = wrap_jnp(jnp.count_nonzero, differentiable=False)
