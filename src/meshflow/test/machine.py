"""What a test may ask of the machine and the build, and skip itself by."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

from meshflow.core.config import config

__all__ = [
    "disable_with_predicate",
    "gpu_device_name",
    "is_built_with_cuda",
    "is_built_with_gpu_support",
    "is_built_with_rocm",
    "is_built_with_xla",
    "is_cpu_target_available",
    "is_gpu_available",
]


def is_gpu_available(cuda_only: bool = False, min_cuda_compute_capability: Any = None) -> bool:
    """Whether there is a GPU.

    Args:
      cuda_only: ignored.
      min_cuda_compute_capability: ignored.
    """
    return bool(config.list_physical_devices("GPU"))


def gpu_device_name() -> str:
    """The first GPU's name, or an empty text."""
    return "/device:GPU:0" if is_gpu_available() else ""


def is_built_with_cuda() -> bool:
    """Whether JAX's CUDA plugin is installed."""
    return any(importlib.util.find_spec(f"jax_cuda{v}_plugin") for v in (12, 13))


def is_built_with_rocm() -> bool:
    """Whether JAX's ROCm plugin is installed."""
    return any(importlib.util.find_spec(f"jax_rocm{v}_plugin") for v in (60, 7))


def is_built_with_gpu_support() -> bool:
    """Whether a GPU plugin of JAX is installed."""
    return is_built_with_cuda() or is_built_with_rocm()


def is_built_with_xla() -> bool:
    """Always True."""
    return True


def is_cpu_target_available(target: str) -> bool:
    """Whether XLA compiles for a processor family; known only for the machine's own.

    Args:
      target: 'x86_64' or 'aarch64'.
    """
    return os.uname().machine == target


def disable_with_predicate(pred: Callable[[], bool], skip_message: str) -> Callable[..., Any]:
    """A decorator of tests that skips them when a condition holds.

    Args:
      pred: called when the test starts.
      skip_message: the reason.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            if pred():
                self.skipTest(skip_message)
            return function(self, *args, **kwargs)

        wrapped.__name__ = function.__name__
        return wrapped

    return decorate
