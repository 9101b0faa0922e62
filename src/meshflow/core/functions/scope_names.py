"""Names of layers and the number of processors as parts of the cache keys of compiled programs.

XLA stores the names of scopes in a program, for profiles, but JAX's compilation cache ignores them.
A program that differs only in names would then get the names of another one, so the names are added
to its key. Numbers at the end of names are removed: 'dense_1' and 'dense_7' name the same program.

XLA also divides loops among the processors of the process that compiles them, which JAX's key ignores, too.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Iterator

from meshflow.environment import cpu_info
from meshflow.environment.inner_jaxprs import find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.jax_internals import cache_key, persistent_cache_min_compile_time_secs
from meshflow.environment.types import ClosedJaxpr, Jaxpr

_previous_hook = cache_key.custom_hook


class _Pending(threading.local):
    """The program that this thread traces and looks up next."""

    program: ClosedJaxpr | None = None
    bypass: bool = False


_pending = _Pending()


def announce_program(closed: ClosedJaxpr) -> None:
    """Set the program to which the next key belongs."""
    _pending.program = closed


@contextlib.contextmanager
def bypass_jax_cache() -> Iterator[None]:
    """Compile programs without reading or writing JAX's cache."""
    _pending.bypass = True
    try:
        with persistent_cache_min_compile_time_secs(math.inf):
            yield
    finally:
        _pending.bypass = False


def collect_scopes(jaxpr: Jaxpr) -> set[str]:
    """Return the scopes of a program, without numbers at the ends of their names."""
    scopes: set[str] = set()
    for equation in jaxpr.eqns:
        scopes.add(re.sub(r"_\d+(?=[/()]|$)", "", str(equation.source_info.name_stack)))
        for inner in find_inner_jaxprs(equation):
            scopes |= collect_scopes(to_open_jaxpr(inner))
    return scopes


def _make_key_suffix() -> str:
    program, _pending.program = _pending.program, None
    scopes = "" if program is None else "\n".join(sorted(collect_scopes(program.jaxpr)))
    processors = f"\n{cpu_info.count_processors()} processors"
    return str(_previous_hook()) + scopes + processors + ("\napart" if _pending.bypass else "")


cache_key.custom_hook = _make_key_suffix
