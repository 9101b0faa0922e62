"""Names of layers as a part of the cache keys of compiled programs.

XLA stores the names of scopes in a program, for profiles, but JAX's compilation cache ignores them.
A program that differs only in names would then get the names of another one, so the names are added
to its key. Numbers at the end of names are removed: 'dense_1' and 'dense_7' name the same program.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Iterator

from meshflow.environment.jax_internals import cache_key, persistent_cache_min_compile_time_secs
from meshflow.environment.types import ClosedJaxpr, Jaxpr
from meshflow.passes.jaxprs import inner_jaxprs, opened

_before = cache_key.custom_hook


class _Pending(threading.local):
    """The program that this thread traces and looks up next."""

    program: ClosedJaxpr | None = None
    apart: bool = False


_pending = _Pending()


def announce(closed: ClosedJaxpr) -> None:
    """Set the program to which the next key belongs."""
    _pending.program = closed


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Compile programs without reading or writing JAX's cache."""
    _pending.apart = True
    try:
        with persistent_cache_min_compile_time_secs(math.inf):
            yield
    finally:
        _pending.apart = False


def names(jaxpr: Jaxpr) -> set[str]:
    """Return the scopes of a program, without numbers at the ends of their names."""
    scopes: set[str] = set()
    for equation in jaxpr.eqns:
        scopes.add(re.sub(r"_\d+(?=[/()]|$)", "", str(equation.source_info.name_stack)))
        for inner in inner_jaxprs(equation):
            scopes |= names(opened(inner))
    return scopes


def _key() -> str:
    program, _pending.program = _pending.program, None
    scopes = "" if program is None else "\n".join(sorted(names(program.jaxpr)))
    return str(_before()) + scopes + ("\napart" if _pending.apart else "")


cache_key.custom_hook = _key
