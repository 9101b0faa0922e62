"""Rewrites of jaxprs that every compiled function goes through, by name.

`tf.config.optimizer` and the mixed-precision functions install them; functions that were compiled
before are compiled again when they are next called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from jax.extend import core as jex_core

from meshflow.passes.bias_gradient_fusion import totalled
from meshflow.passes.convert_folding import narrowed
from meshflow.passes.epilogue_fusion import fused
from meshflow.passes.transpose_elimination import turned

Rewrite = Callable[[jex_core.ClosedJaxpr], jex_core.ClosedJaxpr]


class Rewriting:
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
    if rewrite is None and name not in Rewriting.active:
        return
    Rewriting.active.pop(name, None)
    if rewrite is not None:
        Rewriting.active[name] = rewrite
    Rewriting.version += 1


def ready(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """A jaxpr after all rewrites, as it is compiled: nobody takes its derivative any more."""
    return totalled(fused(narrowed(turned(rewritten(closed)))))


def rewritten(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """A jaxpr after all rewrites."""
    return functools.reduce(
        lambda jaxpr, rewrite: rewrite(jaxpr), Rewriting.active.values(), closed
    )
