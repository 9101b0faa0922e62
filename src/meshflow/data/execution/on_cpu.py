"""Functions of pipelines run on the host's processor, also in processes whose models run on other devices.

Elements are host arrays: a program on a GPU would move every one of them there and back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax

__all__ = ["compiled_for_cpu", "on_cpu"]


def on_cpu() -> contextlib.AbstractContextManager[Any]:
    """Where programs and ops run on the first CPU device; without one (JAX_PLATFORMS=cuda), on the default device."""
    if jax.default_backend() == "cpu":
        return contextlib.nullcontext()
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return contextlib.nullcontext()
    return jax.default_device(device)


def compiled_for_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.jit` of a function that is called with host arrays and the values of variables, `on_cpu`.

    Args:
      function: the function.
    """
    program = jax.jit(function)

    def run(*arguments: Any) -> Any:
        with on_cpu():
            return program(*arguments)

    return run
