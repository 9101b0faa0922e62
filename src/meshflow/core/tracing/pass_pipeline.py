"""Rewrites of jaxprs that every compiled function goes through, by name.

`tf.config.optimizer` and the mixed-precision functions install them; functions that were compiled
before are compiled again when they are next called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from meshflow.environment.jax_internals import jex_core
from meshflow.passes.bias_gradient_fusion import fuse_bias_gradients
from meshflow.passes.convert_folding import fold_converts
from meshflow.passes.epilogue_fusion import fuse_epilogues
from meshflow.passes.transpose_elimination import eliminate_transposes

Rewrite = Callable[[jex_core.ClosedJaxpr], jex_core.ClosedJaxpr]


class PassPipeline:
    """What is installed.

    Attributes:
      active: rewrites by name, in the order they run.
      version: another number whenever they change.
    """

    active: dict[str, Rewrite] = {}
    version = 0


def install(name: str, rewrite: Rewrite | None) -> None:
    """Installs a rewrite, or removes it.

    Args:
      name: what it is known by.
      rewrite: a function from jaxpr to jaxpr; None removes the one installed.
    """
    if rewrite is None and name not in PassPipeline.active:
        return
    PassPipeline.active.pop(name, None)
    if rewrite is not None:
        PassPipeline.active[name] = rewrite
    compile_again()


def compile_again() -> None:
    """Has functions that were compiled before compiled again when they are next called."""
    PassPipeline.version += 1


def ready(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """A jaxpr after all rewrites, as it is compiled: nobody takes its derivative any more."""
    return fuse_bias_gradients(
        fuse_epilogues(fold_converts(eliminate_transposes(rewritten(closed))))
    )


def rewritten(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """A jaxpr after all rewrites."""
    return functools.reduce(
        lambda jaxpr, rewrite: rewrite(jaxpr), PassPipeline.active.values(), closed
    )
