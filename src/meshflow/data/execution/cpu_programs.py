"""Run functions of pipelines on the CPU, also in processes in which models run on other devices.

Elements are host arrays: a program on a GPU would move every one of them there and back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax

from meshflow.core.runtime.bounds_checks import translate_bounds_failure


def cpu_scope() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which the first CPU device is the default; without one (JAX_PLATFORMS=cuda), nothing changes."""
    if jax.default_backend() == "cpu":
        return contextlib.nullcontext()
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return contextlib.nullcontext()
    return jax.default_device(device)


def compile_for_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that is called with host arrays and values of variables, to run `cpu_scope`.

    Args:
      function: the function.
    """
    program = jax.jit(function)

    def run(*arguments: Any) -> Any:
        try:
            with cpu_scope():
                return program(*arguments)
        except jax.errors.JaxRuntimeError as error:
            raise translate_bounds_failure(error) or error from None

    return run
