"""Primitive `shard_like`, which copies the sharding that the partitioner chooses for an array."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.environment.jax_internals import ad, batching, jex_core, mlir, mlir_sdy
from meshflow.environment.types import Array

_shard_like_p = jex_core.Primitive("shard_like")
_groups = itertools.count()


def shard_like(array: Array, model: Array) -> jax.Array:
    """Return an array with the same sharding as another array of its shape.

    Args:
      array: The array; the derivative with respect to it is the identity.
      model: Array with the desired sharding.
    """
    result: jax.Array = _shard_like_p.bind(array, model)
    return result


@jax.jit
def _compiled(array: Array, model: Array) -> jax.Array:
    return shard_like(array, model)


def _jvp(primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[jax.Array, Any]:
    array, model = primals
    tangent = tangents[0]
    result = shard_like(array, model)
    return result, tangent if isinstance(tangent, ad.Zero) else shard_like(tangent, model)


def _transpose(gradient: Any, array: Any, model: Array) -> tuple[Any, None]:
    return gradient if isinstance(gradient, ad.Zero) else shard_like(gradient, model), None


def _batch(operands: tuple[Array, Array], axes: tuple[Any, Any]) -> tuple[jax.Array, int | None]:
    (array, model), (axis, model_axis) = operands, axes
    if axis is None:
        # One example of the model represents the sharding of all.
        return shard_like(array, jax.lax.index_in_dim(model, 0, model_axis, False)), None
    if model_axis is None:
        model = jnp.broadcast_to(jnp.expand_dims(model, axis), array.shape)
    else:
        model = jnp.moveaxis(model, model_axis, axis)
    return shard_like(array, model), axis


def _lower(ctx: Any, array: Any, model: Any) -> Any:
    # Without Shardy, GSPMD chooses the sharding itself. JAX may remove this option together with
    # GSPMD.
    if getattr(jax.config, "jax_use_shardy_partitioner", True):
        group = next(_groups)
        mlir_sdy.sharding_group(array, group)
        mlir_sdy.sharding_group(model, group)
    return [array]


_shard_like_p.def_impl(_compiled)
_shard_like_p.def_abstract_eval(lambda array, model: array)
ad.primitive_jvps[_shard_like_p] = _jvp
ad.primitive_transposes[_shard_like_p] = _transpose
batching.primitive_batchers[_shard_like_p] = _batch
mlir.register_lowering(_shard_like_p, _lower)
