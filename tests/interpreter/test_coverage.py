"""Every primitive has a rule, or is listed as one that is left to XLA."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import meshflow as tf
from interpreter.comparison import check
from meshflow.environment.jax_internals import jex_primitives
from meshflow.interpreter import UnsupportedPrimitive, build_plan
from meshflow.interpreter.program import PASSED
from meshflow.interpreter.table import COMPILED, EXPANSIONS, INLINED, RULES
from meshflow.kernels.composite_primitives import composites
from meshflow.saved_model.programs import restored_functions  # noqa: F401  # registers a primitive

# Primitives of programs of this test suite that `jax.extend` does not list.
INTERNAL = [
    "approx_top_k",
    "call_exported",
    "clamp",
    "custom_linear_solve",
    "debug_callback",
    "dim_as_value",
    "dot_general",
    "eq_to",
    "io_callback",
    "le_to",
    "lt_to",
    "lu_pivots_to_permutation",
    "optimization_barrier",
    "platform_index",
    "pure_callback",
    "random_unwrap",
    "random_wrap",
    "scatter-add",
    "scatter-max",
    "scatter-min",
    "scatter-mul",
    "scatter-sub",
    "stack",
    "unstack",
]


def test_every_primitive_is_covered():
    public = {getattr(jex_primitives, n).name for n in dir(jex_primitives) if n.endswith("_p")}
    own = {primitive.name for primitive in composites}
    covered = set(RULES) | PASSED | INLINED | own | set(EXPANSIONS)
    assert (public | own | set(INTERNAL)) - covered <= COMPILED
    assert not covered & COMPILED


def test_primitives_in_the_source_are_covered():
    # A placeholder of traces never runs.
    names = {"capture"} | {primitive.name for primitive in composites}
    for path in Path(tf.__file__).parent.rglob("*.py"):
        found = re.findall(r'core\.Primitive\("(\w+)"\)', path.read_text())
        assert set(found) <= names | set(RULES) | PASSED, path


def test_unsupported_primitives_are_named():
    closed = jax.make_jaxpr(lambda a: jax.grad(lambda a: jnp.sum(lax.igamma(a, a)))(a))(
        np.ones(2, "f")
    )
    with pytest.raises(UnsupportedPrimitive, match="igamma_grad_a") as error:
        build_plan(closed)
    assert error.value.names == ("igamma_grad_a",)


def test_random_keys():
    def run(seed):
        key = jax.random.PRNGKey(seed)
        first, second = jax.random.split(key)
        typed = jax.random.key(seed)
        return [
            jax.random.normal(first, (3, 2)),
            jax.random.uniform(jax.random.fold_in(second, 7), (5,), np.float64),
            jax.random.bits(first, (4,), np.uint8),
            jax.random.bits(typed, (3,), np.uint16),
            jax.random.key_data(jax.random.fold_in(typed, seed)),
            jax.vmap(lambda k: jax.random.bits(k, (2,)))(jax.random.split(key, 3)),
        ]

    check(run, np.int32(5))
    check(run, np.int64(-3))
