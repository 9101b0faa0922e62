"""Estimate rounding errors: the change of a program's results when all of its numbers change
slightly.

Tests compare a program in low precision with its float32 version by this estimate, not by a number
that fits one machine.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend import core as jex_core

from meshflow.environment.jax_internals import count_scan_operands

# Samples, and how many times a unit of the low precision they move numbers by.
SAMPLES, FACTOR = 16, 4.0
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
} | {
    **{"remat2": "jaxpr", "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr"},
    **{"custom_vjp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr"},
}

# Their results are numbers that were there before, or have no digits to lose.
EXACT = {
    "max",
    "min",
    "reduce_max",
    "reduce_min",
    "reduce_window_max",
    "sort",
    "neg",
    "abs",
    "sign",
} | {
    *(
        "reshape",
        "transpose",
        "broadcast_in_dim",
        "slice",
        "squeeze",
        "expand_dims",
        "concatenate",
        "pad",
        "rev",
    ),
    *("gather", "dynamic_slice", "select_n", "clamp", "copy", "stop_gradient"),
}


def allowed(fn, *args, dtype="bfloat16"):
    """Estimate the error of each leaf of `fn(*args)` in arithmetic of a type.

    Args:
        fn: a function of arrays that can be traced to a jaxpr.
        *args: its arguments.
        dtype: name of the type.

    Returns:
        A number for each leaf, valid for every element; None if a decision of the program (the side
        of a ReLU, a branch, an index) depends on rounding, so that no estimate exists.
    """
    return _limits(_sampled(jax.make_jaxpr(fn)(*args)), args, dtype)


def _sampled(closed):
    """Return a compiled function of seeds, sizes and the operands of a jaxpr: its results, and a
    code of its decisions."""

    def run(seed, size, args):
        moved = _Moved(seed, size)
        leaves = [moved.number(jnp.asarray(x)) for x in args]
        return moved.evaluate(closed.jaxpr, closed.consts, leaves), moved.decisions

    # Compilation takes most of the time.
    fast = {"xla_backend_optimization_level": 0}
    return jax.jit(jax.vmap(run, (0, 0, None)), compiler_options=fast)


def _limits(run, args, dtype):
    # The first is not moved.
    sizes = FACTOR * float(jnp.finfo(dtype).eps) / 2 * (np.arange(SAMPLES) > 0)
    results, decisions = run(np.arange(SAMPLES, dtype=np.uint32), sizes, jax.tree.leaves(args))
    if len(set(np.asarray(decisions).tolist())) > 1:
        return None
    off = [np.abs(np.asarray(r, "f8") - np.asarray(r[0], "f8")) for r in results]
    return [float(d.max(initial=0.0)) for d in off]


def assert_as_near_as_rounding_allows(found, wanted, limits, **kwargs):
    """Check the leaves of a result against those of the program in float32, each by its limit of `allowed`."""
    found, wanted = jax.tree.leaves(found), jax.tree.leaves(wanted)
    assert limits is not None, (
        "a decision of the program depends on the rounding: take other numbers"
    )
    assert len(found) == len(wanted) == len(limits)
    for a, b, limit in zip(found, wanted, limits, strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype and np.shape(a) == np.shape(b)
        np.testing.assert_allclose(
            np.asarray(a, "f8"), np.asarray(b, "f8"), rtol=0, atol=limit + 1e-6, **kwargs
        )


def steady(fn, draw, dtype="bfloat16"):
    """Return arguments for which no decision of a program depends on rounding.

    Args:
        fn: the program.
        draw: a function of a seed that returns its arguments, of the same shapes for every seed.
        dtype: name of the type.

    Returns:
        The arguments, and the result of `allowed` for them.
    """
    run = _sampled(jax.make_jaxpr(fn)(*draw(0)))
    for seed in range(100):
        limits = _limits(run, draw(seed), dtype)
        if limits is not None:
            return draw(seed), limits
    raise AssertionError("a decision depends on the rounding for every seed")


class _Moved:
    """A walk along a jaxpr that moves each number by a random share of itself.

    Args:
      seed: of the random numbers.
      size: the largest share.
    """

    def __init__(self, seed, size, decisions=None):
        self._seed, self._size = seed, size
        self.decisions = jnp.uint32(0) if decisions is None else decisions

    def number(self, x):
        """Return a perturbed value; integers and booleans are recorded as decisions instead."""
        if type(jax.typeof(x)) is not ShapedArray or jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return x
        if not jnp.issubdtype(x.dtype, jnp.floating):
            self.decisions = _noted(self.decisions, x)
            return x
        self._seed, x = _moved(self._seed, self._size, x)
        return x

    def evaluate(self, jaxpr, consts, args):
        """The results of a jaxpr."""
        consts = [self.number(jnp.asarray(x)) for x in consts]
        values = dict(zip(jaxpr.constvars, consts)) | dict(zip(jaxpr.invars, args))
        read = lambda v: v.val if isinstance(v, jex_core.Literal) else values[v]
        for eqn in jaxpr.eqns:
            results = self._equation(eqn, [read(v) for v in eqn.invars])
            values.update(zip(eqn.outvars, results, strict=True))
        return [jnp.asarray(read(v)) for v in jaxpr.outvars]

    def _equation(self, eqn, args):
        name = eqn.primitive.name
        if name in CALLS:
            inner = eqn.params[CALLS[name]]
            return self.evaluate(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), args)
        if name in ("scan", "while", "cond"):
            return getattr(self, f"_{name}")(eqn.params, args)
        results = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(eqn.params))
        results = results if eqn.primitive.multiple_results else [results]
        kept = name in EXACT and jnp.issubdtype(results[0].dtype, jnp.floating)
        return list(results) if kept else [self.number(x) for x in results]

    def _inside(self, state, closed, args):
        """The results of a part of the program, and the state behind it."""
        inner = _Moved(state[0], self._size, state[1])
        results = inner.evaluate(closed.jaxpr, closed.consts, args)
        return (inner._seed, inner.decisions), results

    def _after(self, state):
        self._seed, self.decisions = state

    def _scan(self, params, args):
        consts, carried = count_scan_operands(params)
        carry = consts + carried

        def step(state, xs):
            state, ys = self._inside(state[0], params["jaxpr"], [*args[:consts], *state[1], *xs])
            return (state, ys[:carried]), ys[carried:]

        (state, last), ys = jax.lax.scan(
            *(step, ((self._seed, self.decisions), args[consts:carry]), args[carry:]),
            **{k: params[k] for k in ("length", "reverse")},
        )
        self._after(state)
        return [*last, *ys]

    def _while(self, params, args):
        tested, walked = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        test, body = params["cond_jaxpr"], params["body_jaxpr"]
        state, last = jax.lax.while_loop(
            lambda c: self._inside(c[0], test, [*args[:tested], *c[1]])[1][0],
            lambda c: self._inside(c[0], body, [*args[tested:walked], *c[1]]),
            ((self._seed, self.decisions), args[walked:]),
        )
        self._after(state)
        return last

    def _cond(self, params, args):
        branches = [
            lambda state, *xs, branch=branch: self._inside(state, branch, xs)
            for branch in params["branches"]
        ]
        state, results = jax.lax.switch(args[0], branches, (self._seed, self.decisions), *args[1:])
        self._after(state)
        return results


# Traced once for each shape and type, where a program has hundreds of numbers.
@jax.jit
def _noted(decisions, x):
    """Return the code of the decisions up to here, with one more."""
    found = jnp.sum(x.reshape(-1).astype(np.uint32) * _mixed(x.size), dtype=np.uint32)
    return decisions * np.uint32(16777619) + found


@jax.jit
def _moved(seed, size, x):
    """The next seed, and a number moved by a share of itself that is at most `size`."""
    # JAX's own random numbers take a hundred times as long to compile.
    seed = seed * np.uint32(1664525) + np.uint32(1013904223)
    drawn = (_mixed(x.size) ^ seed) * np.uint32(2246822519)
    drawn = ((drawn ^ drawn >> 15) * np.uint32(3266489917)) >> 8
    share = size * (drawn.astype(np.float32) / (1 << 23) - 1)
    return seed, x * (1 + share.reshape(x.shape)).astype(x.dtype)


def _mixed(size):
    return np.arange(1, size + 1, dtype=np.uint32) * np.uint32(2654435761)
