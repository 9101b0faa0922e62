"""Number of threads of NumPy's BLAS while programs run.

The threads of OpenBLAS spin while they wait for each other. On a busy machine, or next to XLA's
threads, a small product on several threads takes many times as long as on one.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

_PREFIXES, _SUFFIXES = ("scipy_openblas", "openblas"), ("64_", "_64", "")


class SingleThreadBlas:
    """A context in which NumPy's BLAS uses one thread, if it is OpenBLAS.

    The setting holds for the process. It is restored when no thread is in the context any more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_users = 0
        self._num_threads = 1

    def __enter__(self) -> None:
        functions = _find_functions()
        if functions is None:
            return
        get, set_threads = functions
        with self._lock:
            if not self._num_users:
                self._num_threads = get()
                set_threads(1)
            self._num_users += 1

    def __exit__(self, *exception: object) -> None:
        functions = _find_functions()
        if functions is None:
            return
        with self._lock:
            self._num_users -= 1
            if not self._num_users:
                functions[1](self._num_threads)


@functools.cache
def _find_functions() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    """Return OpenBLAS's functions that read and set the number of threads; None if there are none."""
    folder = Path(np.__file__).parent
    candidates = [*folder.parent.glob("numpy.libs/*openblas*"), *folder.glob(".dylibs/*openblas*")]
    for path in candidates:
        library = ctypes.CDLL(str(path))
        for prefix, suffix in itertools.product(_PREFIXES, _SUFFIXES):
            get = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
            if get is not None:
                return get, getattr(library, f"{prefix}_set_num_threads{suffix}")
    return None


single_thread_blas = SingleThreadBlas()
