"""Sums, extremes, averages and other numbers about many elements."""

from __future__ import annotations

import jax.numpy as jnp

from meshflow.numpy.jnp_wrappers import of_jax

__all__ = [
    *(
        "all",
        "amax",
        "amin",
        "any",
        "argmax",
        "argmin",
        "average",
        "corrcoef",
        "count_nonzero",
    ),
    *(
        "cov",
        "cumprod",
        "cumsum",
        "cumulative_prod",
        "cumulative_sum",
        "max",
        "mean",
        "median",
    ),
    *(
        "min",
        "nanargmax",
        "nanargmin",
        "nancumprod",
        "nancumsum",
        "nanmax",
        "nanmean",
    ),
    *(
        "nanmedian",
        "nanmin",
        "nanpercentile",
        "nanprod",
        "nanquantile",
        "nanstd",
        "nansum",
    ),
    *(
        "nanvar",
        "percentile",
        "prod",
        "ptp",
        "quantile",
        "std",
        "sum",
        "var",
    ),
]

sum = of_jax(jnp.sum, counting=True)
prod = of_jax(jnp.prod, counting=True)
nansum = of_jax(jnp.nansum, counting=True)
nanprod = of_jax(jnp.nanprod, counting=True)
cumsum = of_jax(jnp.cumsum, counting=True)
cumprod = of_jax(jnp.cumprod, counting=True)
nancumsum = of_jax(jnp.nancumsum, counting=True)
nancumprod = of_jax(jnp.nancumprod, counting=True)
cumulative_sum = of_jax(jnp.cumulative_sum, counting=True)
cumulative_prod = of_jax(jnp.cumulative_prod, counting=True)

max = amax = of_jax(jnp.max, "max")
min = amin = of_jax(jnp.min, "min")
nanmax = of_jax(jnp.nanmax)
nanmin = of_jax(jnp.nanmin)
ptp = of_jax(jnp.ptp)
argmax = of_jax(jnp.argmax, differentiable=False)
argmin = of_jax(jnp.argmin, differentiable=False)
nanargmax = of_jax(jnp.nanargmax, differentiable=False)
nanargmin = of_jax(jnp.nanargmin, differentiable=False)

mean = of_jax(jnp.mean, floating=True)
average = of_jax(jnp.average, floating=True)
nanmean = of_jax(jnp.nanmean, floating=True)
std = of_jax(jnp.std, floating=True)
var = of_jax(jnp.var, floating=True)
nanstd = of_jax(jnp.nanstd, floating=True)
nanvar = of_jax(jnp.nanvar, floating=True)
median = of_jax(jnp.median, floating=True)
nanmedian = of_jax(jnp.nanmedian, floating=True)
quantile = of_jax(jnp.quantile, floating=True)
nanquantile = of_jax(jnp.nanquantile, floating=True)
percentile = of_jax(jnp.percentile, floating=True)
nanpercentile = of_jax(jnp.nanpercentile, floating=True)
cov = of_jax(jnp.cov, floating=True, apart=["fweights", "aweights"])
corrcoef = of_jax(jnp.corrcoef, floating=True)

all = of_jax(jnp.all, differentiable=False)
any = of_jax(jnp.any, differentiable=False)
count_nonzero = of_jax(jnp.count_nonzero, differentiable=False)
