"""Names of layers as a part of what compiled programs are kept under.

XLA keeps the names of scopes in a program, for profiles; JAX's cache of compiled programs does not look at them. So
a program that differs in names alone would come with those of another, were they not added to its key. Numbers at
their ends are left out: 'dense_1' and 'dense_7' are names that were given, and are the same program.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Iterator
from typing import Any

from meshflow.environment.jax_internals import cache_key, persistent_cache_min_compile_time_secs
from meshflow.passes.jaxprs import inner_jaxprs, opened

_before = cache_key.custom_hook


class _Pending(threading.local):
    """The program of this thread that is traced, and looked up next."""

    program: Any = None
    apart: bool = False


_pending = _Pending()


def announce(closed: Any) -> None:
    """Says which program the next key is for; `closed` is a `ClosedJaxpr`."""
    _pending.program = closed


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """While programs are compiled that JAX's cache neither gives nor keeps."""
    _pending.apart = True
    try:
        with persistent_cache_min_compile_time_secs(math.inf):
            yield
    finally:
        _pending.apart = False


def names(jaxpr: Any) -> set[str]:
    """The scopes of a program, without numbers at the ends of their names."""
    found: set[str] = set()
    for equation in jaxpr.eqns:
        found.add(re.sub(r"_\d+(?=[/()]|$)", "", str(equation.source_info.name_stack)))
        for inner in inner_jaxprs(equation):
            found |= names(opened(inner))
    return found


def _key() -> str:
    program, _pending.program = _pending.program, None
    own = "" if program is None else "\n".join(sorted(names(program.jaxpr)))
    return str(_before()) + own + ("\napart" if _pending.apart else "")


cache_key.custom_hook = _key
