"""Arrays that the partitioner divides over a mesh alike, without a layout that is known before a program is compiled."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.environment.jax_internals import ad, batching, jex_core, mlir, mlir_sdy

_shard_like_p = jex_core.Primitive("shard_like")
_groups = itertools.count()


def shard_like(array: Any, model: Any) -> Any:
    """Return an array that is divided over the mesh as another of its shape.

    Args:
      array: the array, and what derivatives pass through.
      model: the other.
    """
    return _shard_like_p.bind(array, model)


@jax.jit
def _compiled(array: Any, model: Any) -> Any:
    return shard_like(array, model)


def _jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    array, model = primals
    change = tangents[0]
    result = shard_like(array, model)
    return result, change if isinstance(change, ad.Zero) else shard_like(change, model)


def _transpose(gradient: Any, array: Any, model: Any) -> tuple[Any, None]:
    return gradient if isinstance(gradient, ad.Zero) else shard_like(gradient, model), None


def _batch(operands: Any, axes: Any) -> tuple[Any, Any]:
    (array, model), (axis, axis_of_model) = operands, axes
    if axis is None:
        # One example of the model has the layout of all.
        return shard_like(array, jax.lax.index_in_dim(model, 0, axis_of_model, False)), None
    if axis_of_model is None:
        model = jnp.broadcast_to(jnp.expand_dims(model, axis), array.shape)
    else:
        model = jnp.moveaxis(model, axis_of_model, axis)
    return shard_like(array, model), axis


def _lower(ctx: Any, array: Any, model: Any) -> Any:
    # The older partitioner, GSPMD, chooses the layout by itself; the option may end with it.
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
