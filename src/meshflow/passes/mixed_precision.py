"""Automatic mixed precision for any JAX function: a rewrite of its jaxpr.

Matrix products and convolutions, and what lies between them, are computed in bfloat16 or float16;
what needs the range or the digits stays in float32; inputs and results keep their dtypes. The pass
goes into jit, scan, while, cond, remat, shard_map and custom derivatives. It is TensorFlow's graph
rewrite (`auto_mixed_precision`) for jaxprs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from meshflow.passes.jaxprs import flattened, fresh_variable, inner_jaxprs
from meshflow.passes.precision_colours import colour, gains, wide
from meshflow.passes.precision_lists import PrecisionLists, default_lists

DTYPES = ("bfloat16", "float16")


def mixed_precision(
    fn: Callable[..., Any], dtype: Any = "bfloat16", lists: PrecisionLists | None = None
) -> Callable[..., Any]:
    """A function that computes what another does, in mixed precision where that is safe.

    Wrap the whole step, gradients included: derivatives inside `fn` are rewritten too. Derivatives
    taken of the wrapped function follow its precisions.

    Args:
      fn: a JAX function of pytrees of arrays; everything that is not an array must be closed over.
      dtype: the low precision, 'bfloat16' or 'float16'.
      lists: what may be computed in it; default `default_lists()`.

    Returns:
      A function with the arguments, results and dtypes of `fn`. It may be given to `jax.jit`,
      `jax.grad` and `jax.vmap`.

    Raises:
      ValueError: for another dtype.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from meshflow import passes
      >>> def loss(w, x):
      ...     return jnp.mean(jax.nn.relu(x @ w) ** 2)
      >>> step = jax.jit(passes.mixed_precision(jax.grad(loss)))
      >>> step(jnp.ones((4, 2), "float32"), jnp.ones((8, 4), "float32")).dtype
      dtype('float32')
    """
    low = check_dtype(dtype)
    chosen = default_lists() if lists is None else lists

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        closed, out = jax.make_jaxpr(fn, return_shape=True)(*args, **kwargs)
        flat = jax.tree.leaves((args, kwargs))
        results = jex_core.jaxpr_as_fun(rewrite(closed, chosen, low))(*flat)
        return jax.tree.unflatten(jax.tree.structure(out), results)

    return wrapped


def check_dtype(dtype: Any) -> Any:
    """The low precision as a NumPy dtype.

    Raises:
      ValueError: when it is none.
    """
    name = jnp.dtype(dtype).name
    if name not in DTYPES:
        raise ValueError(f"The low precision must be one of {DTYPES}, got {name!r}.")
    return jnp.dtype(name)


def rewrite(
    closed: jex_core.ClosedJaxpr, lists: PrecisionLists | None = None, dtype: Any = "bfloat16"
) -> jex_core.ClosedJaxpr:
    """A jaxpr with the same inputs and results, computed in mixed precision.

    Args:
      closed: the jaxpr.
      lists: what may be computed in the low precision; default `default_lists()`.
      dtype: the low precision.

    Returns:
      A new jaxpr; `closed` itself when there is nothing to gain.
    """
    lists = default_lists() if lists is None else lists
    if not gains(closed, lists):
        return closed
    low = check_dtype(dtype)

    def run(*arguments: Any) -> list[Any]:
        return _Evaluation(lists, low).run(closed, arguments)

    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in closed.in_avals]
    return jax.make_jaxpr(run)(*avals)


class _Evaluation:
    """Runs a jaxpr, some equations in the low precision; traced, it gives the new jaxpr."""

    def __init__(self, lists: PrecisionLists, low: Any) -> None:
        self._lists, self._low = lists, low
        # The value of each variable by dtype: a cast is made once.
        self._values: dict[Any, dict[Any, Any]] = {}

    def run(self, closed: jex_core.ClosedJaxpr, arguments: Sequence[Any]) -> list[Any]:
        equations, results, constants = flattened(closed)
        for variable, value in (
            *zip(closed.jaxpr.invars, arguments, strict=True),
            *constants.items(),
        ):
            self._write(variable, value)
        for equation, decided in zip(equations, colour(equations, self._lists), strict=True):
            if decided.low and not inner_jaxprs(equation):
                outputs = self._narrow(equation)
            else:
                outputs = self._as_it_is(equation)
                if decided.low:
                    # A custom derivative keeps its dtypes; its results are kept small.
                    outputs = [self._cast(o) if wide_value(o) else o for o in outputs]
            for variable, value in zip(equation.outvars, outputs, strict=True):
                self._write(variable, value)
        return [self._read(v, v.aval.dtype) for v in results]

    def _write(self, variable: Any, value: Any) -> None:
        self._values[variable] = {getattr(value, "dtype", None): value}

    def _read(self, variable: Any, dtype: Any) -> Any:
        if isinstance(variable, jex_core.Literal):
            value = variable.val
            return np.asarray(value, dtype) if dtype == self._low else value
        known = self._values[variable]
        if dtype not in known and wide(variable):
            known[dtype] = jax.lax.convert_element_type(next(iter(known.values())), dtype)
        return known[dtype] if dtype in known else next(iter(known.values()))

    def _cast(self, value: Any) -> Any:
        return jax.lax.convert_element_type(value, self._low)

    def _narrow(self, equation: Any) -> Sequence[Any]:
        """An equation in the low precision."""
        values = [self._read(v, self._low if wide(v) else v.aval.dtype) for v in equation.invars]
        parameters = dict(equation.params)
        if parameters.get("preferred_element_type") == np.float32:
            parameters["preferred_element_type"] = self._low
        outputs = equation.primitive.bind(*values, **parameters)
        return outputs if equation.primitive.multiple_results else [outputs]

    def _as_it_is(self, equation: Any) -> Sequence[Any]:
        """An equation with its dtypes, the jaxprs inside it rewritten."""
        values = [
            self._read(v, getattr(v.aval, "dtype", None)) if hasattr(v, "aval") else v
            for v in equation.invars
        ]
        if equation.primitive.name == "shard_map":
            return self._mapped(equation.params, values)
        parameters = {name: self._inside(value) for name, value in equation.params.items()}
        changed = equation.replace(
            params=parameters, invars=[fresh_variable(v) for v in equation.invars]
        )
        one = jex_core.Jaxpr((), changed.invars, changed.outvars, [changed], changed.effects)
        return jex_core.jaxpr_as_fun(jex_core.ClosedJaxpr(one, ()))(*values)

    def _mapped(self, parameters: dict[str, Any], values: Sequence[Any]) -> Sequence[Any]:
        """A shard_map, whose body is only traced with its mesh around it."""
        body = jex_core.ClosedJaxpr(parameters["jaxpr"], ())

        def run(*arguments: Any) -> tuple[Any, ...]:
            return tuple(_Evaluation(self._lists, self._low).run(body, arguments))

        return jax.shard_map(
            run,
            mesh=parameters["mesh"],
            in_specs=parameters["in_specs"],
            out_specs=parameters["out_specs"],
            axis_names=parameters["newly_manual_axes"],
            check_vma=parameters["check_vma"],
        )(*values)

    def _inside(self, value: Any) -> Any:
        if isinstance(value, jex_core.ClosedJaxpr):
            return rewrite(value, self._lists, self._low)
        if isinstance(value, jex_core.Jaxpr):
            if value.constvars:
                return value
            changed = rewrite(jex_core.ClosedJaxpr(value, ()), self._lists, self._low)
            return changed.jaxpr if not changed.consts else value
        if isinstance(value, tuple) and any(
            isinstance(v, (jex_core.ClosedJaxpr, jex_core.Jaxpr)) for v in value
        ):
            return tuple(self._inside(v) for v in value)
        return value


def wide_value(value: Any) -> bool:
    """Whether an array is float32."""
    return getattr(value, "dtype", None) == np.float32
