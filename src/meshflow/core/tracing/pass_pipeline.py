"""The pipeline of named jaxpr passes for every compiled function.

`tf.config.optimizer` and the mixed-precision functions install passes. Functions that are already
compiled are compiled again at their next call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax

from meshflow.environment.jax_internals import jex_core
from meshflow.passes.attention_tiling import tile_attention
from meshflow.passes.bias_gradient_fusion import fuse_bias_gradients
from meshflow.passes.column_sum_fusion import fuse_column_sums
from meshflow.passes.convert_folding import fold_converts
from meshflow.passes.epilogue_fusion import fuse_epilogues
from meshflow.passes.fusion_boundaries import insert_fusion_boundaries
from meshflow.passes.simplification_barriers import insert_simplification_barriers
from meshflow.passes.stage_partition import partition_stages
from meshflow.passes.transpose_elimination import eliminate_transposes
from meshflow.passes.wide_sums import widen_sums

JaxprPass = Callable[[jex_core.ClosedJaxpr], jex_core.ClosedJaxpr]


class PassPipeline:
    """The installed passes.

    Attributes:
      passes: Passes by name, in execution order.
      version: Incremented at each change of the passes.
    """

    passes: dict[str, JaxprPass] = {}
    version = 0


def install_pass(name: str, rewrite: JaxprPass | None) -> None:
    """Install a pass, or remove it.

    Args:
      name: Name of the pass.
      rewrite: A function from jaxpr to jaxpr; None removes the installed pass with this name.
    """
    if rewrite is None and name not in PassPipeline.passes:
        return
    PassPipeline.passes.pop(name, None)
    if rewrite is not None:
        PassPipeline.passes[name] = rewrite
    invalidate_programs()


def invalidate_programs() -> None:
    """Make functions that are already compiled compile again at their next call."""
    PassPipeline.version += 1


def apply_all_passes(
    closed: jex_core.ClosedJaxpr, allows_simplification: bool = False
) -> jex_core.ClosedJaxpr:
    """Apply the installed passes, and the fusions that precede compilation.

    The result must not be differentiated.

    Args:
      closed: The program.
      allows_simplification: Whether XLA may simplify arithmetic as if numbers were real.
    """
    if jax.default_backend() == "gpu":
        closed = widen_sums(closed)
    closed = tile_attention(partition_stages(apply_installed_passes(closed)))
    closed = fuse_bias_gradients(fuse_epilogues(fold_converts(eliminate_transposes(closed))))
    if jax.default_backend() == "cpu":
        closed = insert_fusion_boundaries(fuse_column_sums(closed))
    # The fusions search for patterns without barriers.
    return closed if allows_simplification else insert_simplification_barriers(closed)


def apply_installed_passes(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """Apply the installed passes."""
    return functools.reduce(
        lambda jaxpr, rewrite: rewrite(jaxpr), PassPipeline.passes.values(), closed
    )
