"""Automatic mixed precision for any JAX function: a rewrite of its jaxpr.

Products, convolutions and the equations between them are computed in bfloat16 or float16. Equations
that need the range or precision of float32 remain in float32. Inputs and results keep their dtypes.
`precision_propagation` decides which equations run in low precision; `casting` runs the program
with the required casts. It is TensorFlow's graph rewrite (`auto_mixed_precision`) for jaxprs.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.typing import DTypeLike

from meshflow.environment.inner_jaxprs import find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.types import Array, ClosedJaxpr, Jaxpr, PyTree
from meshflow.passes.casting import run_in_mixed_precision
from meshflow.passes.jaxprs import get_aval
from meshflow.passes.precision_lists import PrecisionLists, check_lists
from meshflow.passes.precision_propagation import propagate_precision

_DTYPES = ("bfloat16", "float16")

F = TypeVar("F", bound=Callable[..., Any])


def mixed_precision(fn: F, dtype: DTypeLike = "bfloat16", lists: PrecisionLists | None = None) -> F:
    """Return a function that computes like `fn`, with products and convolutions in low precision.

    `fn` is any JAX function. The result can be transformed by `jax.jit`, `jax.grad`, `jax.vmap` and
    so on, and `fn` may itself be transformed: `mixed_precision(jax.value_and_grad(loss))`. Inputs
    and results keep their dtypes; float32 inputs are cast where low precision needs them. A
    function without float32 products runs unchanged, with a warning if its products are in float64.
    Arguments that are not arrays, including Python numbers, are passed to `fn` unchanged.

    Like `jax.grad`, the result traces `fn` in each call; wrap it in `jax.jit`.

    Args:
      fn: A function of pytrees of arrays that JAX can trace.
      dtype: 'bfloat16' or 'float16'. Gradients in float16 need a loss scale.
      lists: Precision of each primitive; default: the lists of this process, `passes.lists`.

    Returns:
      A function with the signature of `fn`.

    Raises:
      TypeError: If `fn` is not callable, or `lists` is not a `PrecisionLists`.
      ValueError: If `dtype` is not 'bfloat16' or 'float16'.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from meshflow.passes import mixed_precision
      >>> def loss(w, x):
      ...     return jnp.mean((jnp.tanh(x @ w) @ w) ** 2)
      >>> w, x = jnp.full((8, 8), 0.1, "float32"), jnp.ones((2, 8), "float32")
      >>> step = jax.jit(mixed_precision(jax.value_and_grad(loss)))
      >>> value, gradient = step(w, x)
      >>> gradient.dtype
      dtype('float32')
    """
    if not callable(fn):
        raise TypeError(f"mixed_precision takes a function, got {fn!r}.")
    low = to_low_precision_dtype(dtype)
    checked_lists = check_lists(lists)
    rewriter = functools.partial(mixed_precision, dtype=low, lists=checked_lists)

    @functools.wraps(fn)
    def compute_mixed(*args: Any, **kwargs: Any) -> Any:
        closed, arrays, tree = trace_function(fn, args, kwargs)
        precisions = propagate_precision(closed.jaxpr, checked_lists)
        if not precisions.low_precision and _find_product_dtypes(closed.jaxpr, checked_lists) == {
            "float64"
        }:
            warnings.warn(
                f"mixed_precision left {getattr(fn, '__name__', fn)} as it is: it computes in float64, and only "
                "float32 is computed in low precision. Make its arrays float32 (jnp.float32(x), "
                "jnp.ones(3, 'float32')), or disable jax_enable_x64, which makes JAX's own arrays float64.",
                stacklevel=2,
            )
        results = run_in_mixed_precision(closed, precisions, low, rewriter, arrays)
        return jax.tree.unflatten(tree, results)

    return compute_mixed  # type: ignore[return-value]


def trace_function(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[ClosedJaxpr, list[Array], jax.tree_util.PyTreeDef]:
    """Trace a function; the arrays among its arguments are the inputs of the program.

    Arguments are pytrees of arrays, `jax.ShapeDtypeStruct`s and other objects.

    Returns:
      The program, the arrays that it reads, and the structure of its results.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    # Strings, flags and sizes remain Python objects, so that Python code may depend on their
    # values.
    indices = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]
    structure: list[Any] = []

    def flat(*arrays: Any) -> list[Any]:
        full = list(leaves)
        for i, array in zip(indices, arrays, strict=True):
            full[i] = array
        positional, named = jax.tree.unflatten(tree, full)
        results, out_tree = jax.tree.flatten(fn(*positional, **named))
        structure[:] = [out_tree]
        return results

    arrays = [leaves[i] for i in indices]
    return jax.make_jaxpr(flat)(*arrays), arrays, structure[0]


def _find_product_dtypes(jaxpr: Jaxpr, lists: PrecisionLists) -> set[str]:
    """Return the dtypes of all results of `allow` primitives, including those of inner programs."""
    found: set[str] = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name in lists.allow:
            names = (get_aval(v).dtype.name for v in equation.outvars)
            found.update(name for name in names if name.startswith("float"))
        for inner in find_inner_jaxprs(equation):
            found |= _find_product_dtypes(to_open_jaxpr(inner), lists)
    return found


def _is_array(leaf: PyTree) -> bool:
    # NumPy's scalar types have these attributes, too, but they are not arrays.
    return hasattr(leaf, "dtype") and hasattr(leaf, "shape") and not isinstance(leaf, type)


def rewrite(
    closed: ClosedJaxpr, lists: PrecisionLists | None = None, dtype: DTypeLike = "bfloat16"
) -> ClosedJaxpr:
    """Apply `mixed_precision` to a program that is traced already.

    Args:
      closed: The program.
      lists: Precision of each primitive; default: the lists of this process, `passes.lists`.
      dtype: 'bfloat16' or 'float16'.

    Returns:
      A program with the same inputs and outputs; the same object if nothing changes.

    Raises:
      ValueError: If `dtype` is not 'bfloat16' or 'float16'.
    """
    low = to_low_precision_dtype(dtype)
    checked_lists = check_lists(lists)
    precisions = propagate_precision(closed.jaxpr, checked_lists)
    if not precisions.low_precision:
        return closed
    rewriter = functools.partial(mixed_precision, dtype=low, lists=checked_lists)
    specs = [_make_spec(aval) for aval in closed.in_avals]
    return jax.make_jaxpr(
        lambda *xs: run_in_mixed_precision(closed, precisions, low, rewriter, xs)
    )(*specs)


def _make_spec(aval: jax.core.ShapedArray) -> jax.ShapeDtypeStruct:
    sharding = getattr(aval, "sharding", None)
    # Under a mesh with explicit axes, the sharding is part of the type.
    is_explicit = sharding is not None and not sharding.mesh.empty
    return jax.ShapeDtypeStruct(
        aval.shape,
        aval.dtype,
        sharding=sharding if is_explicit else None,
        weak_type=getattr(aval, "weak_type", False),
    )


def to_low_precision_dtype(dtype: DTypeLike) -> np.dtype:
    """Return the NumPy dtype of a low precision.

    Raises:
      ValueError: If `dtype` is not 'bfloat16' or 'float16'.
    """
    try:
        result = jax.numpy.dtype(getattr(dtype, "dtype", dtype))
    except TypeError:
        result = None
    if result is None or result.name not in _DTYPES:
        raise ValueError(f"Mixed precision computes in 'bfloat16' or 'float16', got {dtype!r}.")
    return result
