"""Automatic mixed precision for any JAX function: a rewrite of its jaxpr.

Products and convolutions, and what lies between them, are computed in bfloat16 or float16; what
needs the range or the digits stays in float32; inputs and results keep their dtypes. `precision_propagation`
decides which equations run in low precision, `casting` runs the program again with the casts that
follow. It is TensorFlow's graph rewrite (`auto_mixed_precision`) for jaxprs.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.passes.casting import run
from meshflow.passes.jaxprs import inner_jaxprs, opened
from meshflow.passes.precision_lists import PrecisionLists, checked
from meshflow.passes.precision_propagation import propagate_precision

__all__ = ["mixed_precision", "rewrite"]

_DTYPES = ("bfloat16", "float16")

F = TypeVar("F", bound=Callable[..., Any])


def mixed_precision(fn: F, dtype: Any = "bfloat16", lists: PrecisionLists | None = None) -> F:
    """A function that computes as `fn` does, with products and convolutions in low precision.

    `fn` is any JAX function. The result may be given to `jax.jit`, `jax.grad`, `jax.vmap` and so
    on, and `fn` may itself be made by them: `mixed_precision(jax.value_and_grad(loss))`. Inputs
    and results keep their dtypes; float32 inputs are cast where low precision needs them. A
    function without float32 products runs unchanged, with a warning where its products are in float64. Arguments that are no arrays, Python's numbers
    included, reach `fn` as they are.

    Like `jax.grad`, the function is traced in each call; put `jax.jit` around.

    Args:
      fn: a function of pytrees of arrays, traceable by JAX.
      dtype: 'bfloat16' or 'float16'. Gradients in float16 need a loss scale.
      lists: which primitives run in which precision; default those of this process,
        `passes.lists`.

    Returns:
      A function with the signature of `fn`.

    Raises:
      TypeError: when `fn` is not callable, or `lists` is no `PrecisionLists`.
      ValueError: for another dtype.

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
    low = low_precision_dtype(dtype)
    chosen = checked(lists)
    again = functools.partial(mixed_precision, dtype=low, lists=chosen)

    @functools.wraps(fn)
    def rewritten(*args: Any, **kwargs: Any) -> Any:
        closed, arrays, tree = traced(fn, args, kwargs)
        precisions = propagate_precision(closed.jaxpr, chosen)
        if not precisions.low_precision and _products(closed.jaxpr, chosen) == {"float64"}:
            warnings.warn(
                f"mixed_precision left {getattr(fn, '__name__', fn)} as it is: it computes in float64, and only "
                "float32 is computed in low precision. Make its arrays float32 (jnp.float32(x), "
                "jnp.ones(3, 'float32')), or turn jax_enable_x64 off, which makes JAX's own arrays float64.",
                stacklevel=2,
            )
        results = run(closed, precisions, low, again, arrays)
        return jax.tree.unflatten(tree, results)

    return rewritten  # type: ignore[return-value]


def traced(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[jex_core.ClosedJaxpr, list[Any], Any]:
    """The program of a function for some arguments, of which the arrays are its inputs.

    Args:
      fn: the function.
      args: its positional arguments, pytrees of arrays, `jax.ShapeDtypeStruct`s and other objects.
      kwargs: its keyword arguments.

    Returns:
      A `ClosedJaxpr`, the arrays that it reads, and the structure of its results.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    # Strings, flags and sizes reach the function as they are, so that Python may look at them.
    places = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]
    structure: list[Any] = []

    def flat(*arrays: Any) -> list[Any]:
        full = list(leaves)
        for i, array in zip(places, arrays, strict=True):
            full[i] = array
        positional, named = jax.tree.unflatten(tree, full)
        results, out_tree = jax.tree.flatten(fn(*positional, **named))
        structure[:] = [out_tree]
        return results

    arrays = [leaves[i] for i in places]
    return jax.make_jaxpr(flat)(*arrays), arrays, structure[0]


def _products(jaxpr: Any, lists: PrecisionLists) -> set[str]:
    """The dtypes of what low precision is for, in a program and in those it calls."""
    found: set[str] = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name in lists.allow:
            found.update(
                v.aval.dtype.name for v in equation.outvars if v.aval.dtype.name.startswith("float")
            )
        for inner in inner_jaxprs(equation):
            found |= _products(opened(inner), lists)
    return found


def _is_array(leaf: Any) -> bool:
    # NumPy's scalar types have the attributes, too.
    return hasattr(leaf, "dtype") and hasattr(leaf, "shape") and not isinstance(leaf, type)


def rewrite(
    closed: jex_core.ClosedJaxpr, lists: PrecisionLists | None = None, dtype: Any = "bfloat16"
) -> jex_core.ClosedJaxpr:
    """The program of `mixed_precision` for a program that is traced already.

    Args:
      closed: a `ClosedJaxpr`.
      lists: which primitives run in which precision; default those of this process,
        `passes.lists`.
      dtype: 'bfloat16' or 'float16'.

    Returns:
      A `ClosedJaxpr` with the same inputs and outputs; the same object when nothing changes.

    Raises:
      ValueError: for another dtype.
    """
    low = low_precision_dtype(dtype)
    chosen = checked(lists)
    precisions = propagate_precision(closed.jaxpr, chosen)
    if not precisions.low_precision:
        return closed
    again = functools.partial(mixed_precision, dtype=low, lists=chosen)
    specs = [_spec(aval) for aval in closed.in_avals]
    return jax.make_jaxpr(lambda *xs: run(closed, precisions, low, again, xs))(*specs)


def _spec(aval: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(aval, "sharding", None)
    # Under a mesh with explicit axes, the sharding is part of the type.
    known = sharding is not None and not sharding.mesh.empty
    return jax.ShapeDtypeStruct(
        aval.shape,
        aval.dtype,
        sharding=sharding if known else None,
        weak_type=getattr(aval, "weak_type", False),
    )


def low_precision_dtype(dtype: Any) -> np.dtype[Any]:
    """The NumPy dtype of a low precision.

    Raises:
      ValueError: for anything but bfloat16 and float16.
    """
    try:
        found = jax.numpy.dtype(getattr(dtype, "dtype", dtype))
    except TypeError:
        found = None
    if found is None or found.name not in _DTYPES:
        raise ValueError(f"Mixed precision computes in 'bfloat16' or 'float16', got {dtype!r}.")
    return found
