"""Sums of 16-bit floats are taken in float32, also where XLA would round after every term."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshflow.kernels import library


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(3000, 4), (64, 16, 16, 64)])
def test_the_gradient_of_a_bias_has_the_digits_of_its_dtype(shape, dtype):
    terms = jnp.asarray(np.random.default_rng(0).random(shape), dtype)
    bias = jnp.zeros(shape[-1:], dtype)
    (got,) = jax.jit(lambda x, g: jax.vjp(lambda b: x + b, bias)[1](g))(terms, terms)
    assert got.dtype == dtype
    wanted = np.asarray(terms, np.float64).sum(tuple(range(len(shape) - 1)))
    np.testing.assert_allclose(np.asarray(got, np.float64), wanted, rtol=2**-8)


@pytest.mark.optimized
def test_summands_are_computed_once():
    if library.load() is None:
        pytest.skip("the sum is XLA's own")
    x, w = jnp.ones((16, 64, 256), jnp.float32), jnp.ones((256, 128), jnp.float32)
    both = lambda x, w: ((2 * x).sum((0, 1)), (2 * x) @ w)
    entry = jax.jit(both).lower(x, w).compile().as_text().split("ENTRY")[1]
    assert sum("custom-call(" in line for line in entry.splitlines()) == 2
    assert sum("fusion(%x" in line for line in entry.splitlines()) == 1


@pytest.mark.parametrize("name", ["psum", "psum_scatter", "pmax", "pmean"])
@pytest.mark.parametrize(("manual", "wide"), [(("data",), True), (("data", "model"), False)])
def test_reductions_over_some_dimensions_of_a_mesh_are_wide(name, manual, wide):
    """XLA's CPU compiler ends the process if it widens a reduction that leaves dimensions to its partitioner."""
    types = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=types)
    reduce = lambda x: getattr(jax.lax, name)(
        x, "data", **({"tiled": True} if "scatter" in name else {})
    )
    spec = jax.sharding.PartitionSpec()
    run = jax.shard_map(
        reduce, mesh=mesh, in_specs=spec, out_specs=spec, axis_names={*manual}, check_vma=False
    )
    lowered = jax.jit(run).lower(jnp.ones([4, 4], jnp.bfloat16))
    assert lowered.out_info.dtype == jnp.bfloat16
    # The types of operand and result follow the computation of the reduction.
    reductions = lowered.as_text().split("stablehlo.all_reduce")[1:]
    reductions += lowered.as_text().split("stablehlo.reduce_scatter")[1:]
    types = [text.split("}) ", 1)[1].splitlines()[0] for text in reductions]
    assert types
    assert all(("f32" in t.replace("bf16", "")) is wide for t in types), types
