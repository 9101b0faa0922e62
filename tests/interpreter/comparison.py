"""Comparison of the interpreter with XLA."""

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.interpreter import build_plan


def check(function, *arrays, rtol=0.0, atol=None, **options):
    """Compare the results of a function by the interpreter and by `jax.jit`."""
    with jax.enable_x64(True):
        closed = jax.make_jaxpr(function)(*arrays)
        expected = [np.asarray(a) for a in jax.tree.leaves(jax.jit(function)(*arrays))]
    host = [np.array(a) for a in jax.tree.leaves(arrays)]
    copies = [a.copy() for a in host]
    results = build_plan(closed, **options).run(host)
    for i, (a, b) in enumerate(zip(copies, host, strict=True)):
        assert a.tobytes() == b.tobytes() or i in options.get("donated", ())
    check_memory(results, host if "donated" not in options else ())
    assert len(results) == len(expected)
    producers = {v: eqn for eqn in closed.jaxpr.eqns for v in eqn.outvars}
    found = [
        f"{producers.get(v)}: {text}"
        for v, result, value in zip(closed.jaxpr.outvars, results, expected, strict=True)
        if (text := find_difference(result, value, rtol, atol))
    ]
    assert not found, "\n".join(found)


def check_memory(results, operands):
    """Check that results are arrays that share no memory with each other or with operands."""
    assert all(type(r) is np.ndarray and r.flags.c_contiguous for r in results)
    for i, result in enumerate(results):
        assert not any(np.shares_memory(result, a) for a in [*operands, *results[:i]])


def find_difference(result, value, rtol=0.0, atol=None):
    """Describe the difference of two arrays; return None if they agree within rounding errors."""
    if (result.shape, result.dtype) != (value.shape, value.dtype):
        return f"{result.dtype}{result.shape}, expected {value.dtype}{value.shape}"
    if not jnp.issubdtype(value.dtype, np.inexact):
        same = result == value
    else:
        eps = float(jnp.finfo(value.dtype).eps)
        wide = np.complex128 if value.dtype.kind == "c" else np.float64
        result, value = result.astype(wide), value.astype(wide)
        limit = atol if atol is not None else eps
        with np.errstate(all="ignore"):
            same = np.isclose(result, value, max(rtol, 16 * eps), limit, equal_nan=True)
    if same.all():
        return None
    index = np.argwhere(~same)[:6].tolist()
    return f"{result[~same][:6]}, expected {value[~same][:6]} at {index}"
